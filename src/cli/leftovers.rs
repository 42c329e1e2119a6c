//! Cleanup after an earlier process of a node on this host.
//!
//! Kills what is left of its runs, waits until it is dead, and records the ends of those runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use super::Error;
use crate::warden::begins::LeftBegins;
use crate::warden::cgroup::hierarchy;
use crate::warden::recover;
use cronkeeper_cluster::solo::StillAlive;
use cronkeeper_cluster::state_dir::StateDir;
use cronkeeper_cluster::state_dir::journal::FileJournal;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::Recorded;
use cronkeeper_core::run::BeginNote;
use cronkeeper_core::run::journal::{Journal as _, Recovered, RecoveredRun};
use cronkeeper_core::term::NodeName;

/// How long to wait for the warden of a dead daemon whose trees are dead: it only has to copy its notes.
const WARDEN_TIMEOUT: Duration = Duration::from_millis(500);

/// Opens the journal of a node and settles the runs that are open in it on this host.
///
/// Afterwards no process of these runs is alive. The journal has an end for each of them, with two exceptions: runs that
/// may be begun again, which the leader decides on, and runs whose program never began, which it no longer lists. The
/// caller must hold the state directory. PIDs in a journal that was written on another host, or by another node, are
/// ignored.
pub(super) fn settle(
    state: &StateDir,
    node: &NodeName,
    within: Duration,
    now: Timestamp,
) -> Result<(FileJournal, Recovered), Error> {
    let (mut journal, mut recovered) = state.journal()?;
    let unwritten = |source| Error::System { what: "cannot write the journal", source };
    recovered.keep_own(node, &mut journal).map_err(unwritten)?;
    let unbegun = end(state.path(), &recovered.runs, within).map_err(Error::StillAlive)?;
    recovered.drop_unbegun(uptime(), &unbegun).iter().try_for_each(|run| journal.unstarted(run)).map_err(unwritten)?;
    recovered.end_dead(&mut journal, now).map_err(unwritten)?;
    Ok((journal, recovered))
}

/// Kills what is left of runs whose node is dead, and waits until it is dead. Returns the notes of programs that are known
/// not to have begun, by what the node's warden has left in the state directory.
pub(super) fn end(
    state_dir: &Path,
    runs: &[RecoveredRun],
    within: Duration,
) -> Result<BTreeSet<BeginNote>, StillAlive> {
    kill(runs, within)?;
    let mut by_file: BTreeMap<&str, Vec<&BeginNote>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.end.is_none()) {
        if let Some(note) = &run.traces.begin {
            by_file.entry(&note.file).or_default().push(note);
        }
    }
    let mut unbegun = BTreeSet::new();
    for (file, noted) in by_file {
        if let Some(left) = LeftBegins::read(state_dir, file, WARDEN_TIMEOUT) {
            unbegun.extend(noted.into_iter().filter(|note| left.is_unbegun(note)).cloned());
        }
    }
    Ok(unbegun)
}

/// Kills what is left of runs whose node is dead, and waits until it is dead.
///
/// The end of a run may be recorded only once none of its processes is alive.
pub(super) fn kill(runs: &[RecoveredRun], within: Duration) -> Result<(), StillAlive> {
    let until = uptime() + within;
    // Processes in a dead node's cgroup are killed even if no journal mentions them.
    if let Some(pid) = hierarchy::reap(within).first() {
        return Err(StillAlive(format!("process {pid} in the cgroup of a dead node")));
    }
    let mut by_node: BTreeMap<&NodeName, Vec<Recorded>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.end.is_none()) {
        let main = run.pid.map(|(pid, start)| (pid, Some(start)));
        let (run_id, traces) = (run.record.id().to_string(), run.traces.clone());
        by_node.entry(&run.record.owner.node).or_default().push(Recorded { run: run_id, main, traces });
    }
    by_node.into_iter().try_for_each(|(node, recorded)| kill_recorded(&recorded, node, until.since(uptime())))
}

/// Kills what is left of hooks that ran on this host, and waits until it is dead.
pub(super) fn kill_hooks(hooks: &[Recorded], node: &NodeName, within: Duration) -> Result<(), StillAlive> {
    if hooks.is_empty() { Ok(()) } else { kill_recorded(hooks, node, within) }
}

fn kill_recorded(recorded: &[Recorded], node: &NodeName, within: Duration) -> Result<(), StillAlive> {
    let survivors = recover::kill_leftovers(recorded, node.as_str(), within);
    let survivors = survivors.map_err(|error| StillAlive(format!("cannot read /proc: {error}")))?;
    match survivors.first() {
        Some(survivor) => Err(StillAlive(format!("process {} of run {}", survivor.pid, survivor.run))),
        None => Ok(()),
    }
}
