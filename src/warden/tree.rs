//! One tree id: a main process, all that came of it, and how far its end has come.
//!
//! ```text
//!   starting ──▶ running ──▶ exited ──▶ cleared ──▶ Ended is sent
//!                   └─ killing ─┘ (its leftovers)
//! ```

mod all;
mod owner;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::Pid;

use super::cgroup::Place;
use super::output::Output;
use super::procfs::Identity;
use super::spawn::Child;
use super::wire::{Deadline, EndedBy, Exit, Launch, Stream};
use crate::clock::Uptime;
use crate::run::KnownBy;

pub(super) use self::all::Trees;
pub(super) use self::owner::{Orphan, Owner, owner};

/// What the environment of every process of a run carries, unless a job takes it out.
pub(super) const RUN_ID: &str = "CRONKEEPER_RUN_ID";

/// A tree id in use.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) main: Pid,
    pub(super) forked_at: Uptime,
    pub(super) run: Option<Vec<u8>>,
    /// Whom it runs as.
    uid: u32,
    /// What tells its processes from others; in an audit session it is known to be from when its program was reached.
    pub(super) known_by: KnownBy,
    deadline: Deadline,
    /// Until the child has said whether it reached its program.
    pub(super) starting: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) output: Output,
    /// Its cgroup, until that is removed.
    pub(super) place: Option<Place>,
    pub(super) out_of_memory: bool,
    /// The first thing that was done to end it.
    pub(super) ended_by: Option<EndedBy>,
    /// It was asked to end, by a signal that it could answer.
    was_asked: bool,
    /// When a stop's timeout ends.
    kill_at: Option<Uptime>,
    /// Everything of it is to die.
    is_killing: bool,
    pub(super) next_sweep: Uptime,
    pub(super) sweep_pause: Duration,
    /// What was found of it while it was being killed, and whether SIGKILL was sent.
    pub(super) found: BTreeMap<Identity, bool>,
    pub(super) leftovers: u32,
    /// How and when the main process ended. It stays a zombie until the tree is cleared, so that no other process, group
    /// or session can get its number meanwhile.
    exit: Option<(Exit, Uptime)>,
    /// Nothing of it is left, the main process is reaped.
    is_cleared: bool,
}

impl Tree {
    pub(super) fn new(launch: &Launch, child: Child, place: Option<Place>) -> Self {
        let run = launch.environment.iter().rev().find(|(key, _)| key == RUN_ID);
        Self {
            main: child.pid,
            forked_at: child.at,
            run: run.map(|(_, value)| value.clone().into_bytes()),
            uid: launch.uid(),
            known_by: place.as_ref().map_or(KnownBy::Environment, Place::known_by),
            deadline: launch.deadline,
            starting: Some(child.status),
            stdout: Some(child.stdout),
            stderr: Some(child.stderr),
            output: Output::new(launch.max_output),
            place,
            out_of_memory: false,
            ended_by: None,
            was_asked: false,
            kill_at: None,
            is_killing: false,
            next_sweep: Uptime::ZERO,
            sweep_pause: Duration::ZERO,
            found: BTreeMap::new(),
            leftovers: 0,
            exit: None,
            is_cleared: false,
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.main.as_raw_nonzero().get()
    }

    pub(super) fn pipe(&mut self, stream: Stream) -> &mut Option<OwnedFd> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Removes its cgroup if nothing lives in it; true when there is none.
    pub(super) fn leave_cgroup(&mut self) -> bool {
        let Some(place) = &self.place else { return true };
        self.out_of_memory |= place.ran_out_of_memory();
        if place.remove() {
            self.place = None;
        }
        self.place.is_none()
    }

    /// True while a kill can still be what ends the main process.
    pub(super) fn is_live(&self) -> bool {
        self.exit.is_none()
    }

    /// True while all of it is to die.
    pub(super) fn is_killing(&self) -> bool {
        self.is_killing
    }

    /// How and when the main process ended.
    pub(super) fn exit(&self) -> Option<(Exit, Uptime)> {
        self.exit
    }

    /// What ended it, if that was not itself. SIGKILL gives no exit code: who has one ended by itself, just before it was killed,
    /// unless it was asked to end.
    pub(super) fn ended_by(&self) -> Option<EndedBy> {
        let has_code = matches!(self.exit, Some((Exit::Code(_), _)));
        self.ended_by.filter(|_| self.was_asked || !has_code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Limits, TreeId};
    use super::*;

    pub(super) fn tree(main: i32, run: &str, forked_at: u64) -> Tree {
        let pipe = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let at = Uptime::ZERO + Duration::from_secs(forked_at);
        let launch = Launch {
            tree_id: TreeId(0),
            argv: vec!["x".into()],
            environment: vec![(RUN_ID.into(), run.into())],
            input: String::new(),
            directory: "/".into(),
            umask: 0o022,
            or_root: false,
            user: None,
            nice: None,
            limits: Limits::default(),
            cgroup: None,
            not_after: Uptime::NEVER,
            deadline: Deadline::None,
            max_output: 0,
        };
        Tree::new(
            &launch,
            Child { pid: Pid::from_raw(main).unwrap(), at, status: pipe(), stdout: pipe(), stderr: pipe() },
            None,
        )
    }

    #[test]
    fn who_has_an_exit_code_was_not_killed() {
        let ended = |exit, was_asked| {
            let tree = Tree {
                ended_by: Some(EndedBy::Deadline),
                exit: Some((exit, Uptime::ZERO)),
                was_asked,
                ..tree(10, "a", 5)
            };
            tree.ended_by()
        };
        assert_eq!(ended(Exit::Code(0), false), None);
        assert_eq!(ended(Exit::Code(0), true), Some(EndedBy::Deadline));
        assert_eq!(ended(Exit::Signal { signal: 9, core: false }, false), Some(EndedBy::Deadline));
    }

    #[test]
    fn a_deadline_of_lease_and_instant_needs_both() {
        let at = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
        assert_eq!(Deadline::LeaseAnd(at(5)).due(at(9)), at(9));
        assert_eq!(Deadline::LeaseAnd(at(5)).due(at(3)), at(5));
        assert_eq!(Deadline::Lease.due(at(3)), at(3));
        assert_eq!((Deadline::At(at(5)).due(at(3)), Deadline::At(at(5)).due(at(9))), (at(5), at(5)));
        assert_eq!(Deadline::None.due(Uptime::ZERO), Uptime::NEVER);
    }
}
