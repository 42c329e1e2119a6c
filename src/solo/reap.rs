//! Seeing to what dead members left behind: their processes dead first, then the ends they could not commit.
//!
//! What a member left is known from its journal, and from the ledger: a journal may have been removed by others while the
//! processes it names live on.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::members::{MemberName, Members};
use super::read::owner;
use super::{Leftovers, StillAlive, reader};
use crate::ledger::ReadError;
use crate::run::journal::{Noted, RecoveredRun};
use crate::run::{RunEnd, RunRecord, Traces, Version};
use crate::state_dir::journal;

/// A dead member of which no process lives. Its files go when its ends are in the ledger.
#[derive(Debug)]
pub(super) struct DeadMember {
    pub(super) name: MemberName,
    pub(super) ends: Vec<RunEnd>,
    /// What it handed to its warden, where that is known.
    pub(super) noted: Option<Noted>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReapError {
    #[error(transparent)]
    StillAlive(#[from] StillAlive),
    #[error("what a dead node left behind cannot be read: {0}")]
    Files(#[from] io::Error),
    #[error("the runs of a dead node cannot be read: {0}")]
    Ledger(#[from] ReadError),
}

/// Sees to all dead members. Blocks until their processes are dead.
pub(super) fn all(members: &Members, ledger: &Path, leftovers: &Leftovers) -> Result<Vec<DeadMember>, ReapError> {
    let running = reader::running(ledger)?;
    let mut dead: BTreeSet<_> = members.all()?.into_iter().chain(running.iter().map(|(run, _)| owner(run))).collect();
    for name in dead.clone() {
        if members.lives(&name)? {
            dead.remove(&name);
        }
    }
    see_to(members, dead, running, leftovers)
}

/// Sees to this member, which is dead. Blocks until its processes are too.
pub(super) fn one(
    members: &Members,
    name: MemberName,
    ledger: &Path,
    leftovers: &Leftovers,
) -> Result<Vec<DeadMember>, ReapError> {
    see_to(members, BTreeSet::from([name]), reader::running(ledger)?, leftovers)
}

fn see_to(
    members: &Members,
    dead: BTreeSet<MemberName>,
    running: Vec<(RunRecord, Version)>,
    leftovers: &Leftovers,
) -> Result<Vec<DeadMember>, ReapError> {
    let mut runs: Vec<RecoveredRun> = Vec::new();
    let mut reaped = Vec::new();
    for name in &dead {
        let open = journal::read(&members.journal(name))?.recovered();
        reaped.push(DeadMember { name: name.clone(), ends: open.ends(), noted: open.noted() });
        runs.extend(open.runs);
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
    if !runs.is_empty() {
        leftovers(&runs)?;
    }
    Ok(reaped)
}
