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
use super::forest::Forest;
use super::keeper::Keeper;
use super::procfs::Process;
use super::wire::Slot;
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
    pub(super) fn terminate(&mut self, slots: &[Slot]) {
        self.must_reap = true;
        // Without /proc the group of the main process is still reached.
        let forest = Forest::read().ok();
        for slot in slots {
            let Some(tree) = self.trees.get(*slot).filter(|tree| tree.is_live()) else { continue };
            let _ = rustix::process::kill_process_group(tree.main, Signal::TERM);
            let _ = rustix::process::kill_process_group(tree.main, Signal::CONT);
            let members = forest.as_ref().map(|forest| self.members(forest, *slot)).unwrap_or_default();
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
        let slots: Vec<Slot> = due.map(|(slot, _)| slot).collect();
        if slots.is_empty() {
            return;
        }
        // Without /proc the groups of the main processes are still reached; the next sweep is soon.
        let has_no_place = |slot: &Slot| self.trees.get(*slot).is_some_and(|tree| tree.place.is_none());
        let loose: Vec<Slot> = slots.iter().copied().filter(has_no_place).collect();
        let forest = if loose.is_empty() { Forest::read() } else { self.freeze(&loose) }.ok();
        for slot in slots {
            self.kill_members(forest.as_ref(), slot);
        }
    }

    /// Stops all of these trees. Returns the last reading, in which nothing was new, or as little as could be reached.
    fn freeze(&mut self, slots: &[Slot]) -> io::Result<Forest> {
        let mut forest = Forest::read()?;
        for _ in 1..ROUNDS {
            let mut is_news = self.stop_inherited(slots)?;
            for &slot in slots {
                is_news |= self.stop_new(&forest, slot);
            }
            if !is_news {
                break;
            }
            forest = Forest::read()?;
        }
        Ok(forest)
    }

    /// Stops what the warden inherits from these trees while it inherits more. What leaves parent and session with every
    /// fork passes by here each time, and its next fork takes longer than this look.
    fn stop_inherited(&mut self, slots: &[Slot]) -> io::Result<bool> {
        let mut is_news = false;
        for _ in 0..LOOKS {
            self.adopt()?;
            let of_these = self.adopted.iter().filter(|(_, slot)| slots.contains(slot));
            let inherited: Vec<(i32, Slot)> = of_these.map(|(&pid, &slot)| (pid, slot)).collect();
            let new = inherited.into_iter().filter(|&(pid, slot)| self.stop_one(pid, slot)).count();
            if new == 0 {
                break;
            }
            is_news = true;
        }
        Ok(is_news)
    }

    /// Stops an inherited child; false if that was done before.
    fn stop_one(&mut self, pid: i32, slot: Slot) -> bool {
        let Some(tree) = self.trees.get_mut(slot) else { return false };
        // By pid alone, which costs no reading: of a pid used again while its tree dies, the next reading of /proc knows.
        if tree.found.range((pid, 0)..=(pid, u64::MAX)).next().is_some() {
            return false;
        }
        let Some(process) = Process::read(pid).filter(|process| !process.is_dead) else { return false };
        process.signal(Signal::STOP);
        tree.found.insert(process.identity(), false);
        true
    }

    fn stop_new(&mut self, forest: &Forest, slot: Slot) -> bool {
        let members = self.members(forest, slot);
        let Some(tree) = self.trees.get_mut(slot) else { return false };
        let new: Vec<_> = members.into_iter().filter(|process| !tree.found.contains_key(&process.identity())).collect();
        for process in &new {
            process.signal(Signal::STOP);
            tree.found.insert(process.identity(), false);
        }
        !new.is_empty()
    }

    fn kill_members(&mut self, forest: Option<&Forest>, slot: Slot) {
        let members = forest.map(|forest| self.members(forest, slot)).unwrap_or_default();
        let Some(tree) = self.trees.get_mut(slot) else { return };
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

    fn members<'a>(&self, forest: &'a Forest, slot: Slot) -> Vec<&'a Process> {
        let Some(tree) = self.trees.get(slot) else { return Vec::new() };
        let adopted = self.adopted.iter().filter(|(_, owner)| **owner == slot).map(|(pid, _)| *pid);
        let placed = tree.place.as_ref().map(Place::pids).unwrap_or_default();
        forest.members(Some(tree.pid()), adopted.chain(placed))
    }
}
