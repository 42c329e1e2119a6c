//! Cleanup after an earlier process of a node on this host.
//!
//! Kills what is left of its runs, waits until it is dead, and records the ends of those runs.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::Error;
use crate::warden::cgroup::hierarchy;
use crate::warden::recover;
use cronkeeper_cluster::solo::StillAlive;
use cronkeeper_cluster::state_dir::StateDir;
use cronkeeper_cluster::state_dir::journal::FileJournal;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::Recorded;
use cronkeeper_core::run::journal::{Journal as _, Recovered, RecoveredRun};
use cronkeeper_core::term::NodeName;

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
    kill(&recovered.runs, within).map_err(Error::StillAlive)?;
    recovered.drop_held(uptime()).iter().try_for_each(|run| journal.unstarted(run)).map_err(unwritten)?;
    recovered.end_dead(&mut journal, now).map_err(unwritten)?;
    Ok((journal, recovered))
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
