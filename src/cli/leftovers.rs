//! What an earlier process of a node left on this host: its runs, killed and seen dead, and their ends.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::Error;
use crate::clock::system::uptime;
use crate::run::journal::{Recovered, RecoveredRun};
use crate::solo::StillAlive;
use crate::state_dir::StateDir;
use crate::state_dir::journal::FileJournal;
use crate::term::NodeName;
use crate::warden::cgroup::hierarchy;
use crate::warden::recover::{self, Recorded};

/// Opens the journal of a node whose directory is held, and settles on this host what is open in it: nothing of it lives
/// any more, and what had no end has one. A run that is to be begun again has none: that is the leader's to say. What a journal
/// that was not written here says of processes, is said of another host's, or of another node's.
pub(super) fn settle(
    state: &StateDir,
    node: &NodeName,
    within: Duration,
    now: Timestamp,
) -> Result<(FileJournal, Recovered), Error> {
    let (mut journal, mut recovered) = state.journal()?;
    let unwritten = |source| Error::System { what: "the journal cannot be written", source };
    recovered.keep_own(node, &mut journal).map_err(unwritten)?;
    kill(&recovered.runs, within).map_err(Error::StillAlive)?;
    recovered.end_dead(&mut journal, now).map_err(unwritten)?;
    Ok((journal, recovered))
}

/// Kills what is left of runs whose node is dead, and sees it dead. An end is noted only when nothing of its run lives any more.
pub(super) fn kill(runs: &[RecoveredRun], within: Duration) -> Result<(), StillAlive> {
    let until = uptime() + within;
    // Also what no journal tells of is found by its cgroup, where it had one.
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

/// Kills what is left of hooks that follow these runs here, and sees it dead.
pub(super) fn kill_hooks(hooks: &[Recorded], node: &NodeName, within: Duration) -> Result<(), StillAlive> {
    if hooks.is_empty() { Ok(()) } else { kill_recorded(hooks, node, within) }
}

fn kill_recorded(recorded: &[Recorded], node: &NodeName, within: Duration) -> Result<(), StillAlive> {
    let survivors = recover::kill_leftovers(recorded, node.as_str(), within);
    let survivors = survivors.map_err(|error| StillAlive(format!("/proc cannot be read: {error}")))?;
    match survivors.first() {
        Some(survivor) => Err(StillAlive(format!("process {} of run {}", survivor.pid, survivor.run))),
        None => Ok(()),
    }
}
