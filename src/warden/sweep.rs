//! Signals for whole trees: SIGTERM as a request to end, then SIGKILL.
//!
//! To kill a tree, the warden first freezes it: it sends SIGSTOP to every process that it finds until a reading of
//! /proc finds no new one, then SIGKILL to all. A stopped process cannot fork and keeps its children below it, so no
//! process escapes by forking or loses its ancestry on the way. The warden repeats this until the tree is cleared
//! (`reap`). A tree in a cgroup of its own needs no freezing: the kernel kills everything in the cgroup at once,
//! including forks under way.

use std::io;
use std::time::Duration;

use rustix::process::Signal;

use super::cgroup::RunCgroup;
use super::keeper::Keeper;
use super::process_table::ProcessTable;
use super::procfs::Process;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::TreeId;

/// Readings of /proc in one turn; a tree that forks faster is dealt with in the next turn.
const FREEZE_ROUNDS: usize = 8;

/// The pause between two sweeps of one tree doubles up to this: a process in uninterruptible sleep needs few retries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Passes over the inherited children in one round.
const ADOPT_ROUNDS: usize = 64;

impl Keeper {
    /// Sends trees SIGTERM, and SIGCONT so that stopped processes receive it.
    pub(super) fn terminate(&mut self, tree_ids: &[TreeId]) {
        self.must_reap = true;
        // If /proc cannot be read, the signal still reaches the group of the main process.
        let process_table = ProcessTable::read().ok();
        for tree_id in tree_ids {
            let Some(tree) = self.trees.get(*tree_id).filter(|tree| tree.is_live()) else { continue };
            let _ = rustix::process::kill_process_group(tree.main, Signal::TERM);
            let _ = rustix::process::kill_process_group(tree.main, Signal::CONT);
            let members =
                process_table.as_ref().map(|process_table| self.members(process_table, *tree_id)).unwrap_or_default();
            for process in members.iter().filter(|process| process.group != tree.pid()) {
                process.signal(Signal::TERM);
                process.signal(Signal::CONT);
            }
        }
    }

    /// Sends a signal to the group of a live tree's main process. An unknown number has no effect.
    pub(super) fn signal(&self, tree_id: TreeId, signal: i32) {
        let tree = self.trees.get(tree_id).filter(|tree| tree.is_live());
        if let (Some(tree), Some(signal)) = (tree, Signal::from_named_raw(signal)) {
            let _ = rustix::process::kill_process_group(tree.main, signal);
        }
    }

    /// Kills the trees that are being killed and whose next sweep is due.
    pub(super) fn sweep(&mut self) {
        let now = uptime();
        let due = self.trees.killing().filter(|(_, tree)| tree.next_sweep <= now);
        let tree_ids: Vec<TreeId> = due.map(|(tree_id, _)| tree_id).collect();
        if tree_ids.is_empty() {
            return;
        }
        // If /proc cannot be read, the signal still reaches the groups of the main processes, and the next sweep is
        // soon.
        let has_no_cgroup = |tree_id: &TreeId| self.trees.get(*tree_id).is_some_and(|tree| tree.cgroup.is_none());
        let loose: Vec<TreeId> = tree_ids.iter().copied().filter(has_no_cgroup).collect();
        let process_table = if loose.is_empty() { ProcessTable::read() } else { self.freeze(&loose) }.ok();
        for tree_id in tree_ids {
            self.kill_members(process_table.as_ref(), tree_id);
        }
    }

    /// Stops all processes of these trees and returns the last reading of /proc.
    ///
    /// Nothing in that reading was new, unless the rounds ran out first.
    fn freeze(&mut self, tree_ids: &[TreeId]) -> io::Result<ProcessTable> {
        let mut process_table = ProcessTable::read()?;
        for _ in 1..FREEZE_ROUNDS {
            let mut has_new = self.stop_inherited(tree_ids)?;
            for &tree_id in tree_ids {
                has_new |= self.stop_new(&process_table, tree_id);
            }
            if !has_new {
                break;
            }
            process_table = ProcessTable::read()?;
        }
        Ok(process_table)
    }

    /// Stops orphans of these trees until the warden inherits no new ones.
    ///
    /// A process that changes parent and session with every fork appears here each time, and its next fork takes longer
    /// than one pass here.
    fn stop_inherited(&mut self, tree_ids: &[TreeId]) -> io::Result<bool> {
        let mut has_new = false;
        for _ in 0..ADOPT_ROUNDS {
            self.adopt()?;
            let of_these = self.adopted.iter().filter(|(_, tree_id)| tree_ids.contains(tree_id));
            let inherited: Vec<(i32, TreeId)> = of_these.map(|(&pid, &tree_id)| (pid, tree_id)).collect();
            let new = inherited.into_iter().filter(|&(pid, tree_id)| self.stop_one(pid, tree_id)).count();
            if new == 0 {
                break;
            }
            has_new = true;
        }
        Ok(has_new)
    }

    /// Stops an inherited child; returns false if it is already stopped.
    fn stop_one(&mut self, pid: i32, tree_id: TreeId) -> bool {
        let Some(tree) = self.trees.get_mut(tree_id) else { return false };
        // Compares the pid alone, which needs no reading of /proc. If the pid is reused while its tree dies, the next
        // reading of /proc notices.
        if tree.found.range((pid, 0)..=(pid, u64::MAX)).next().is_some() {
            return false;
        }
        let Some(process) = Process::read(pid).filter(|process| !process.is_dead) else { return false };
        process.signal(Signal::STOP);
        tree.found.insert(process.identity(), false);
        true
    }

    fn stop_new(&mut self, process_table: &ProcessTable, tree_id: TreeId) -> bool {
        let members = self.members(process_table, tree_id);
        let Some(tree) = self.trees.get_mut(tree_id) else { return false };
        let new: Vec<_> = members.into_iter().filter(|process| !tree.found.contains_key(&process.identity())).collect();
        for process in &new {
            process.signal(Signal::STOP);
            tree.found.insert(process.identity(), false);
        }
        !new.is_empty()
    }

    fn kill_members(&mut self, process_table: Option<&ProcessTable>, tree_id: TreeId) {
        let members = process_table.map(|process_table| self.members(process_table, tree_id)).unwrap_or_default();
        let Some(tree) = self.trees.get_mut(tree_id) else { return };
        // The main process is not reaped yet, so no other process group can have its number.
        let _ = rustix::process::kill_process_group(tree.main, Signal::KILL);
        if let Some(cgroup) = &tree.cgroup {
            cgroup.kill();
        }
        for process in members {
            process.signal(Signal::KILL);
            let was_killed = tree.found.insert(process.identity(), true) == Some(true);
            if !tree.is_live() && !was_killed {
                tree.leftovers += 1;
            }
        }
        tree.sweep_pause = (tree.sweep_pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        tree.next_sweep = uptime() + tree.sweep_pause;
    }

    fn members<'a>(&self, process_table: &'a ProcessTable, tree_id: TreeId) -> Vec<&'a Process> {
        let Some(tree) = self.trees.get(tree_id) else { return Vec::new() };
        let adopted = self.adopted.iter().filter(|(_, owner)| **owner == tree_id).map(|(pid, _)| *pid);
        let in_cgroup = tree.cgroup.as_ref().map(RunCgroup::pids).unwrap_or_default();
        process_table.members(Some(tree.pid()), adopted.chain(in_cgroup))
    }
}
