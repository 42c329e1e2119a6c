//! The end of trees: ended children, owners of inherited ones, cleared trees.
//!
//! Every child is waited for by its own pid. The warden checks whether a main process has ended without reaping it, and
//! reaps it when its tree is cleared. In the usual case, without leftovers, an end costs one check of each main process
//! and one reading of the warden's children, however many processes the machine has. A pidfd for each main process
//! would save the check, but cost every fork more than that, because a fork copies and closes all of them. With
//! thousands of children, the checks become rarer instead: see [`next_reap_from`].

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use super::keeper::Keeper;
use super::procfs::{self, Process};
use super::tree::{self, Orphan, Owner};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Ending, Exit, Notice, TreeId};
use cronkeeper_core::run::KnownBy;

/// Maximum number of readings of the list of children while it keeps changing.
const ADOPT_PASSES: usize = 16;

/// Longest time between two programs. A process without a program for longer stays like that.
const LONGEST_EXEC: Duration = Duration::from_secs(1);

/// Time for reading environments in one pass. A process that this leaves no time for stays one of several trees'.
const READ_TIME: Duration = Duration::from_millis(20);

/// Pause before checking again children that keep changing, or whose owner depends on the end of other processes.
const RECHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The pause after a long pass, as a multiple of its duration: with thousands of children a pass takes long, and most
/// of the warden's time must be left for other work.
const PAUSE_FACTOR: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// A pass that is shorter than this needs no pause.
const SHORT_PASS: Duration = Duration::from_micros(200);

impl Keeper {
    /// Finds ended children, kills trees that are due, and clears trees without processes.
    pub(super) fn reap_and_kill(&mut self) {
        let now = uptime();
        let is_sweep_due = self.trees.killing().any(|(_, tree)| tree.next_sweep <= now);
        let is_due = self.reap_at.is_some_and(|at| at <= now);
        if !(self.must_reap || is_sweep_due || is_due) {
            return;
        }
        if now < self.reap_from && !is_sweep_due {
            self.reap_at = Some(self.reap_from);
            return;
        }
        self.reap_at = None;
        self.trees.living().into_iter().for_each(|tree_id| self.check_exit(tree_id));
        self.must_reap = false;
        // /proc may be unreadable for a while if the whole system is out of memory or files. The warden continues:
        // ending now would help nobody.
        let is_settled = self.adopt().unwrap_or_else(|_| {
            self.has_no_orphans = false;
            self.recheck_soon();
            false
        });
        self.clear(is_settled);
        self.reap_from = next_reap_from(now, uptime());
        self.sweep();
    }

    /// Checks whether a main process has ended, without reaping it.
    pub(super) fn check_exit(&mut self, tree_id: TreeId) {
        let Some(main) = self.trees.live(tree_id).map(|tree| tree.main) else { return };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = rustix::process::waitid(WaitId::Pid(main), options).ok().flatten() else { return };
        self.read_start_outcome(tree_id, true);
        self.trees.exited(tree_id, exit(&status), uptime());
        self.must_reap = true;
    }

    /// Reaps ended orphans and finds the owners of the others.
    ///
    /// Returns false if the list kept changing, so that one may have been missed.
    pub(super) fn adopt(&mut self) -> io::Result<bool> {
        for _ in 0..ADOPT_PASSES {
            let children = procfs::own_children()?;
            let orphans: Vec<i32> = children.into_iter().filter(|&pid| !self.trees.has_main(pid)).collect();
            let gone: Vec<i32> = orphans.iter().copied().filter(|&pid| reap(pid)).collect();
            for pid in &gone {
                self.adopted.remove(pid);
                self.without_program.remove(pid);
                self.unmarked.remove(pid);
            }
            if gone.is_empty() && self.attribute(&orphans) {
                self.has_no_orphans = orphans.is_empty();
                return Ok(true);
            }
        }
        self.has_no_orphans = false;
        self.recheck_soon();
        Ok(false)
    }

    /// Finds the owners of these orphans.
    ///
    /// Returns false if one has ended meanwhile or is just executing a program: the processes it left behind, or its
    /// environment, can be read in a moment.
    fn attribute(&mut self, orphans: &[i32]) -> bool {
        let is_new = |pid: &&i32| !self.adopted.get(pid).is_some_and(|&tree_id| self.trees.contains(tree_id));
        let new: Vec<i32> = orphans.iter().filter(is_new).copied().collect();
        let read_until = uptime() + READ_TIME;
        let mut is_complete = true;
        for pid in new {
            let Some(orphan) = Orphan::read(pid) else {
                is_complete = false;
                continue;
            };
            match tree::owner(&orphan, self.trees.all()) {
                Owner::Tree(tree_id) => {
                    self.adopted.insert(pid, tree_id);
                }
                Owner::Nobody => orphan.process.signal(Signal::KILL),
                Owner::OneOf(tree_ids) => is_complete &= self.owner_by_environment(&orphan, &tree_ids, read_until),
            }
        }
        is_complete
    }

    /// Finds the owner by the environment, which the users of all these trees can write.
    ///
    /// Returns false if it must be read again in a moment.
    fn owner_by_environment(&mut self, orphan: &Orphan, tree_ids: &[TreeId], read_until: Uptime) -> bool {
        let pid = orphan.process.pid;
        let loose =
            |tree_id: &&TreeId| self.trees.get(**tree_id).is_some_and(|tree| tree.known_by == KnownBy::Environment);
        let mut loose = tree_ids.iter().filter(loose).peekable();
        if loose.peek().is_none() || self.unmarked.contains(&pid) || uptime() >= read_until {
            return true;
        }
        let environment = procfs::environment(pid, &[tree::RUN_ID]);
        let run = environment.values.into_iter().next().flatten();
        let is_of = |tree_id: &&TreeId| run.is_some() && self.trees.get(**tree_id).is_some_and(|tree| tree.run == run);
        // If two attempts of a run match, it is the newer one: when that started, no process of the other was left.
        let owner = loose.rfind(is_of).copied();
        if Process::read(pid).is_none_or(|now| now.is_dead) {
            return false;
        }
        match owner {
            Some(tree_id) => drop(self.adopted.insert(pid, tree_id)),
            None if environment.is_empty => return !self.may_be_executing(pid),
            None => drop(self.unmarked.insert(pid)),
        }
        true
    }

    /// True for a process that is probably between two programs: it has neither environment nor arguments.
    ///
    /// A process that stays like that has cleared both.
    fn may_be_executing(&mut self, pid: i32) -> bool {
        let first_seen = *self.without_program.entry(pid).or_insert_with(uptime);
        !procfs::has_arguments(pid) && uptime().since(first_seen) < LONGEST_EXEC
    }

    /// Clears each tree whose main process has ended and that owns no orphan: all its other processes would descend
    /// from those.
    fn clear(&mut self, is_settled: bool) {
        for tree_id in self.trees.ended() {
            let has_adopted = self.adopted.values().any(|&owner| owner == tree_id);
            let Some(tree) = self.trees.get_mut(tree_id) else { continue };
            // Its cgroup contains nothing but zombies, whatever happened to their ancestry.
            let is_empty = tree.leave_cgroup();
            if has_adopted || !is_empty {
                self.trees.set_killing(tree_id);
            } else if is_settled {
                reap(tree.pid());
                self.trees.clear(tree_id);
                // Orphans whose owner was unclear now have one possible tree fewer.
                if !self.has_no_orphans {
                    self.recheck_soon();
                }
            }
        }
    }

    fn recheck_soon(&mut self) {
        self.reap_at = Some(uptime() + RECHECK_INTERVAL);
    }

    /// Reports cleared trees, each as soon as its own output is on its way.
    pub(super) fn report_ends(&mut self) {
        for tree_id in self.trees.cleared() {
            if self.drain(tree_id) {
                self.report_end(tree_id);
            }
        }
    }

    fn report_end(&mut self, tree_id: TreeId) {
        let Some(tree) = self.trees.remove(tree_id) else { return };
        let Some((exit, at)) = tree.exit() else { return };
        self.send(&Notice::Ended(Box::new(Ending {
            tree_id,
            exit,
            ended_by: tree.ended_by(),
            at,
            leftovers: tree.leftovers,
            tail: tree.output.tail(),
            dropped_bytes: tree.output.dropped(),
            unsent: tree.output.unsent(),
            out_of_memory: tree.out_of_memory,
        })));
    }

    /// Discards a child that did not reach its program. It is about to end, so the wait is short.
    pub(super) fn discard(&mut self, tree_id: TreeId) {
        let Some(mut tree) = self.trees.remove(tree_id) else { return };
        let _ = rustix::process::waitid(WaitId::Pid(tree.main), WaitIdOptions::EXITED);
        tree.leave_cgroup();
        for pipe in [&tree.stdout, &tree.stderr].into_iter().flatten() {
            self.poller.unwatch_output(pipe);
        }
    }
}

/// The earliest time for the next pass, after one from `began` to `ended`.
fn next_reap_from(began: Uptime, ended: Uptime) -> Uptime {
    let took = ended.since(began);
    if took < SHORT_PASS { ended } else { ended + (took * PAUSE_FACTOR).min(LONGEST_PAUSE) }
}

/// Reaps a child if it has ended; also returns true if it is not a child any more.
pub(super) fn reap(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return true };
    !matches!(rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(None))
}

fn exit(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal { signal: signal.unwrap_or(0), core: status.dumped() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pass_is_followed_by_a_longer_but_bounded_pause() {
        let at = |micros| Uptime::ZERO + Duration::from_micros(micros);
        assert_eq!(next_reap_from(at(1_000), at(1_100)), at(1_100));
        assert_eq!(next_reap_from(at(1_000), at(2_000)), at(6_000));
        assert_eq!(next_reap_from(at(0), at(50_000)), at(70_000));
    }
}
