//! Signals for whole trees: ask them to end, or see that they do.
//!
//! Killing freezes first: SIGSTOP for all that is found, until a reading of /proc finds nothing new, then SIGKILL. What is
//! stopped cannot fork, and keeps its children below it, so nothing outruns the killing and nothing loses its ancestry
//! on the way. It repeats until the tree is cleared (`reap`). A tree in a cgroup of its own needs no freezing: the kernel
//! kills all in it at once, forks under way included.

use std::io;
use std::time::Duration;

use rustix::process::Signal;

use super::cgroup::Place;
use super::keeper::Keeper;
use super::process_table::ProcessTable;
use super::procfs::Process;
use super::wire::TreeId;
use crate::clock::system::uptime;

/// Readings of /proc in one turn; whoever forks faster is met again in the next.
const ROUNDS: usize = 8;

/// The pause between two sweeps of one tree doubles up to this: what sleeps uninterruptibly need not be asked often.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Looks at the inherited children in one round.
const LOOKS: usize = 64;

impl Keeper {
    /// Asks trees to end: SIGTERM, and SIGCONT so that what is stopped hears it.
    pub(super) fn terminate(&mut self, tree_ids: &[TreeId]) {
        self.must_reap = true;
        // Without /proc the group of the main process is still reached.
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

    /// Kills the trees that are to die and whose turn it is.
    pub(super) fn sweep(&mut self) {
        let now = uptime();
        let due = self.trees.killing().filter(|(_, tree)| tree.next_sweep <= now);
        let tree_ids: Vec<TreeId> = due.map(|(tree_id, _)| tree_id).collect();
        if tree_ids.is_empty() {
            return;
        }
        // Without /proc the groups of the main processes are still reached; the next sweep is soon.
        let has_no_place = |tree_id: &TreeId| self.trees.get(*tree_id).is_some_and(|tree| tree.place.is_none());
        let loose: Vec<TreeId> = tree_ids.iter().copied().filter(has_no_place).collect();
        let process_table = if loose.is_empty() { ProcessTable::read() } else { self.freeze(&loose) }.ok();
        for tree_id in tree_ids {
            self.kill_members(process_table.as_ref(), tree_id);
        }
    }

    /// Stops all of these trees. Returns the last reading, in which nothing was new, or as little as could be reached.
    fn freeze(&mut self, tree_ids: &[TreeId]) -> io::Result<ProcessTable> {
        let mut process_table = ProcessTable::read()?;
        for _ in 1..ROUNDS {
            let mut is_news = self.stop_inherited(tree_ids)?;
            for &tree_id in tree_ids {
                is_news |= self.stop_new(&process_table, tree_id);
            }
            if !is_news {
                break;
            }
            process_table = ProcessTable::read()?;
        }
        Ok(process_table)
    }

    /// Stops what the warden inherits from these trees while it inherits more. What leaves parent and session with every
    /// fork passes by here each time, and its next fork takes longer than this look.
    fn stop_inherited(&mut self, tree_ids: &[TreeId]) -> io::Result<bool> {
        let mut is_news = false;
        for _ in 0..LOOKS {
            self.adopt()?;
            let of_these = self.adopted.iter().filter(|(_, tree_id)| tree_ids.contains(tree_id));
            let inherited: Vec<(i32, TreeId)> = of_these.map(|(&pid, &tree_id)| (pid, tree_id)).collect();
            let new = inherited.into_iter().filter(|&(pid, tree_id)| self.stop_one(pid, tree_id)).count();
            if new == 0 {
                break;
            }
            is_news = true;
        }
        Ok(is_news)
    }

    /// Stops an inherited child; false if that was done before.
    fn stop_one(&mut self, pid: i32, tree_id: TreeId) -> bool {
        let Some(tree) = self.trees.get_mut(tree_id) else { return false };
        // By pid alone, which costs no reading: of a pid used again while its tree dies, the next reading of /proc knows.
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
        // The main process is not reaped, so its group's number is its own.
        let _ = rustix::process::kill_process_group(tree.main, Signal::KILL);
        if let Some(place) = &tree.place {
            place.kill();
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
        let placed = tree.place.as_ref().map(Place::pids).unwrap_or_default();
        process_table.members(Some(tree.pid()), adopted.chain(placed))
    }
}
