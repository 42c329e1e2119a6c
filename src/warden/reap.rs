//! How trees end: which children are gone, whose the inherited ones are, and when nothing of a tree is left.
//!
//! No wait is blind. Every child is waited for by its own pid; a main process is first only looked at, and reaped when
//! its tree is cleared. The usual end, where nothing is left over, costs one look at each main process and one reading of the
//! warden's children, however many processes the machine has. A descriptor for each main process would save the look, and cost each
//! fork more than that: it copies and closes all of them. With thousands of children the looks are fewer instead, see [`rest`].

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use super::keeper::Keeper;
use super::procfs::{self, Process};
use super::tree::{self, Orphan, Owner};
use super::wire::{Ending, Exit, Notice, TreeId};
use crate::clock::Uptime;
use crate::clock::system::uptime;
use crate::run::KnownBy;

/// How often in a row the list of children is read when it keeps changing.
const ROUNDS: usize = 16;

/// How long a process may be between two programs before that is taken for its nature.
const LONGEST_EXEC: Duration = Duration::from_secs(1);

/// How long environments are read in one look. Those for which there is no time are of one of several trees, as before.
const READING: Duration = Duration::from_millis(20);

/// When to look again at children that keep changing, or that only other processes' ends can decide about.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// With thousands of children a look at them takes its time: most of the warden's is left to other things.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(20);
/// What takes no longer may be repeated at once.
const SHORT_LOOK: Duration = Duration::from_micros(200);

impl Keeper {
    /// Sees who is gone, kills what is to die, and clears the trees of which nothing is left.
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
        self.trees.living().into_iter().for_each(|tree_id| self.note_exit(tree_id));
        self.must_reap = false;
        // /proc can be out of reach for a while, for want of memory or files in the whole system. To end would help nobody.
        let is_settled = self.adopt().unwrap_or_else(|_| {
            self.is_alone = false;
            self.look_again();
            false
        });
        self.clear(is_settled);
        self.reap_from = rest(now, uptime());
        self.sweep();
    }

    /// Looks whether a main process has ended, without reaping it.
    pub(super) fn note_exit(&mut self, tree_id: TreeId) {
        let Some(main) = self.trees.live(tree_id).map(|tree| tree.main) else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = rustix::process::waitid(WaitId::Pid(main), look).ok().flatten() else { return };
        self.start_decided(tree_id);
        self.trees.exited(tree_id, exit(&status), uptime());
        self.must_reap = true;
    }

    /// Reaps inherited children that ended and finds out whose the others are. False if they changed all the while, so
    /// that one may have been missed.
    pub(super) fn adopt(&mut self) -> io::Result<bool> {
        for _ in 0..ROUNDS {
            let children = procfs::own_children()?;
            let orphans: Vec<i32> = children.into_iter().filter(|&pid| !self.trees.has_main(pid)).collect();
            let gone: Vec<i32> = orphans.iter().copied().filter(|&pid| reap(pid)).collect();
            for pid in &gone {
                self.adopted.remove(pid);
                self.puzzling.remove(pid);
                self.unmarked.remove(pid);
            }
            if gone.is_empty() && self.attribute(&orphans) {
                self.is_alone = orphans.is_empty();
                return Ok(true);
            }
        }
        self.is_alone = false;
        self.look_again();
        Ok(false)
    }

    /// Finds out whose these are. False if one has ended meanwhile or is just executing a program: what it has left behind,
    /// or what it carries, is to be seen in a moment.
    fn attribute(&mut self, orphans: &[i32]) -> bool {
        let is_new = |pid: &&i32| !self.adopted.get(pid).is_some_and(|&tree_id| self.trees.contains(tree_id));
        let new: Vec<i32> = orphans.iter().filter(is_new).copied().collect();
        let read_until = uptime() + READING;
        let mut is_sure = true;
        for pid in new {
            let Some(orphan) = Orphan::read(pid) else {
                is_sure = false;
                continue;
            };
            match tree::owner(&orphan, self.trees.all()) {
                Owner::Tree(tree_id) => {
                    self.adopted.insert(pid, tree_id);
                }
                Owner::Nobody => orphan.process.signal(Signal::KILL),
                Owner::OneOf(tree_ids) => is_sure &= self.tell_apart(&orphan, &tree_ids, read_until),
            }
        }
        is_sure
    }

    /// Asks the environment, which of these trees' users all can write. False if it is to be asked again in a moment.
    fn tell_apart(&mut self, orphan: &Orphan, tree_ids: &[TreeId], read_until: Uptime) -> bool {
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
        // Of two attempts of one run, the newer: when it started, nothing was left of the other.
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

    /// Between two programs a process has neither environment nor arguments. One that stays like that has cleared both.
    fn may_be_executing(&mut self, pid: i32) -> bool {
        let first_seen = *self.puzzling.entry(pid).or_insert_with(uptime);
        !procfs::has_arguments(pid) && uptime().since(first_seen) < LONGEST_EXEC
    }

    /// A tree is cleared when its main process has ended and no inherited child is its own: all that is left of a tree
    /// hangs below those.
    fn clear(&mut self, is_settled: bool) {
        for tree_id in self.trees.ended() {
            let has_adopted = self.adopted.values().any(|&owner| owner == tree_id);
            let Some(tree) = self.trees.get_mut(tree_id) else { continue };
            // Nothing in its cgroup but zombies, whatever became of their ancestry.
            let is_empty = tree.leave_cgroup();
            if has_adopted || !is_empty {
                self.trees.condemn(tree_id);
            } else if is_settled {
                reap(tree.pid());
                self.trees.clear(tree_id);
                // Of inherited children whose tree was unclear, one candidate less is left.
                if !self.is_alone {
                    self.look_again();
                }
            }
        }
    }

    fn look_again(&mut self) {
        self.reap_at = Some(uptime() + LOOK_AGAIN);
    }

    /// Reports the trees that are cleared, when the daemon reads: until then their last output waits in their pipes.
    pub(super) fn tell_ends(&mut self) {
        while let Some(tree_id) = self.trees.first_cleared() {
            if self.is_pressed() && !self.is_closing {
                break;
            }
            self.drain(tree_id);
            self.tell_end(tree_id);
        }
    }

    fn tell_end(&mut self, tree_id: TreeId) {
        let Some(tree) = self.trees.remove(tree_id) else { return };
        let Some((exit, at)) = tree.exit() else { return };
        self.tell(&Notice::Ended(Box::new(Ending {
            tree_id,
            exit,
            ended_by: tree.ended_by(),
            at,
            leftovers: tree.leftovers,
            tail: tree.output.tail(),
            dropped_bytes: tree.output.dropped(),
            out_of_memory: tree.out_of_memory,
        })));
    }

    /// Forgets a child that did not reach its program. It is about to end, so waiting for it is short.
    pub(super) fn discard(&mut self, tree_id: TreeId) {
        let Some(mut tree) = self.trees.remove(tree_id) else { return };
        let _ = rustix::process::waitid(WaitId::Pid(tree.main), WaitIdOptions::EXITED);
        tree.leave_cgroup();
        for pipe in [&tree.stdout, &tree.stderr].into_iter().flatten() {
            self.poller.forget_output(pipe);
        }
    }
}

/// From when to look again after a look from `began` to `ended`.
fn rest(began: Uptime, ended: Uptime) -> Uptime {
    let took = ended.since(began);
    if took < SHORT_LOOK { ended } else { ended + (took * REST).min(LONGEST_REST) }
}

/// Reaps a child if it has ended; also true if it is no child any more.
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
    fn a_long_look_is_followed_by_a_longer_rest_with_an_end() {
        let at = |micros| Uptime::ZERO + Duration::from_micros(micros);
        assert_eq!(rest(at(1_000), at(1_100)), at(1_100));
        assert_eq!(rest(at(1_000), at(2_000)), at(6_000));
        assert_eq!(rest(at(0), at(50_000)), at(70_000));
    }
}
