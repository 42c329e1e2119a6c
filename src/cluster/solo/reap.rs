//! Reaping of dead members: kills their processes, then collects the ends they could not commit.
//!
//! Both the journal of a member and the ledger are read, because somebody may have removed the journal while the
//! processes in it are still alive.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::members::{MemberName, Members};
use super::read::owner;
use super::{Leftovers, StillAlive, reader};
use crate::state_dir::journal;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::run::journal::{Noted, RecoveredRun};
use cronkeeper_core::run::{RunEnd, RunRecord, Traces, Version};

/// A dead member without live processes. Its files can be removed once its ends are in the ledger.
#[derive(Debug)]
pub(super) struct DeadMember {
    pub(super) name: MemberName,
    pub(super) ends: Vec<RunEnd>,
    /// What it handed to its warden; absent if unknown.
    pub(super) noted: Option<Noted>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReapError {
    #[error(transparent)]
    StillAlive(#[from] StillAlive),
    #[error("cannot read the files that a dead node left behind: {0}")]
    Files(#[from] io::Error),
    #[error("cannot read the runs of a dead node: {0}")]
    Ledger(#[from] ReadError),
}

/// Reaps all dead members. Blocks until their processes are dead.
pub(super) fn all(members: &Members, ledger: &Path, leftovers: &Leftovers) -> Result<Vec<DeadMember>, ReapError> {
    let running = reader::running(ledger)?;
    let mut dead: BTreeSet<_> = members.all()?.into_iter().chain(running.iter().map(|(run, _)| owner(run))).collect();
    for name in dead.clone() {
        if members.is_alive(&name)? {
            dead.remove(&name);
        }
    }
    reap(members, dead, running, leftovers)
}

/// Reaps this dead member. Blocks until its processes are dead.
pub(super) fn one(
    members: &Members,
    name: MemberName,
    ledger: &Path,
    leftovers: &Leftovers,
) -> Result<Vec<DeadMember>, ReapError> {
    reap(members, BTreeSet::from([name]), reader::running(ledger)?, leftovers)
}

fn reap(
    members: &Members,
    dead: BTreeSet<MemberName>,
    running: Vec<(RunRecord, Version)>,
    leftovers: &Leftovers,
) -> Result<Vec<DeadMember>, ReapError> {
    let mut runs: Vec<RecoveredRun> = Vec::new();
    let mut journals = Vec::new();
    for name in &dead {
        let open = journal::read(&members.journal(name))?.recovered();
        runs.extend(open.runs.iter().cloned());
        journals.push((name.clone(), open));
    }
    let noted: BTreeSet<_> = runs.iter().map(|run| run.record.id()).collect();
    let only_in_ledger = |(run, _): &(RunRecord, Version)| dead.contains(&owner(run)) && !noted.contains(&run.id());
    let unnoted = running.into_iter().filter(only_in_ledger);
    runs.extend(unnoted.map(|(record, version)| RecoveredRun {
        record,
        version,
        pid: None,
        traces: Traces::default(),
        end: None,
    }));
    let unbegun = if runs.is_empty() { BTreeSet::new() } else { leftovers(&runs)? };
    let now = uptime();
    let reaped = journals.into_iter().map(|(name, mut open)| {
        open.drop_unbegun(now, &unbegun);
        DeadMember { name, ends: open.ends(), noted: open.noted() }
    });
    Ok(reaped.collect())
}
