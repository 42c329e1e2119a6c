//! Kills everything below this process, without a warden.
//!
//! Only for a subreaper: its descendants cannot leave it. As in `sweep`, all of them are stopped before the first is
//! killed, because a stopped process cannot fork.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::process_table::ProcessTable;
use super::procfs::{self, Identity, Process};
use super::reap::reap;
use cronkeeper_core::clock::system::uptime;

/// Readings of /proc in one attempt. Processes that are still new after the last one are found by the next attempt.
const FREEZE_ROUNDS: usize = 8;

/// The pause before checking again whether killed processes are dead.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Kills all descendants of this process, those that it inherits meanwhile included, until none is left.
///
/// Blocks at most for `within`. Returns the children that are still alive then.
pub fn kill_children(within: Duration) -> Vec<i32> {
    let until = uptime() + within;
    // While the whole system is out of memory or files, /proc may be unreadable. Then the next attempt counts.
    while !kill_once().unwrap_or(false) {
        if uptime() >= until {
            return procfs::children_of_process().unwrap_or_default();
        }
        thread::sleep(POLL_INTERVAL);
    }
    Vec::new()
}

/// Kills all descendants of this process and reaps its dead children. Returns true if it has no child.
pub(super) fn kill_once() -> io::Result<bool> {
    loop {
        let children = procfs::children_of_process()?;
        if children.is_empty() {
            return Ok(true);
        }
        let count = children.len();
        let living: Vec<i32> = children.into_iter().filter(|&pid| !reap(pid)).collect();
        if living.is_empty() {
            // One of them may have died after the reading, and its children are this process's now.
            continue;
        }
        for process in freeze(&living)?.values() {
            process.signal(Signal::KILL);
        }
        if living.len() == count {
            return Ok(false);
        }
    }
}

/// Stops these processes and everything below them, until no new process appears.
fn freeze(children: &[i32]) -> io::Result<BTreeMap<Identity, Process>> {
    let mut stopped = BTreeMap::new();
    for _ in 0..FREEZE_ROUNDS {
        let process_table = ProcessTable::read()?;
        let mut has_new = false;
        for process in process_table.members(None, children.iter().copied()) {
            if stopped.insert(process.identity(), process.clone()).is_none() {
                process.signal(Signal::STOP);
                has_new = true;
            }
        }
        if !has_new {
            break;
        }
    }
    Ok(stopped)
}
