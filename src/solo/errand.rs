//! What waits or blocks, on a thread of its own, reporting back by a notice.
//!
//! A wait in the kernel for a lock cannot be called off. A thread whose result nobody wants any more is left to itself: it
//! ends with the wait, and what it brings back is dropped, a lock with it.

use std::io;
use std::path::PathBuf;
use std::thread;

use tokio::sync::mpsc::UnboundedSender;

use super::Leftovers;
use super::members::{MemberName, Members};
use super::reap::{self, DeadMember, ReapError};
use crate::state_dir::lock::{self, FileLock, Kind};

/// Which wait of the contender a notice answers; those of an earlier turn are stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(pub(super) u64);

/// What an errand brings back.
#[derive(Debug)]
pub(super) enum Notice {
    /// The predecessor is gone.
    Ahead(Turn, io::Result<()>),
    /// The leader's lock is ours.
    LeaderLock(Turn, io::Result<FileLock>),
    /// The dead members were seen to, before a term.
    AllReaped(Turn, Result<Vec<DeadMember>, ReapError>),
    /// The owner of a watched run is gone.
    MemberGone(MemberName, io::Result<()>),
    /// It was seen to.
    MemberReaped(MemberName, Result<Vec<DeadMember>, ReapError>),
    /// An operator wants something.
    Wished,
    /// Something was done to the own lock file.
    MemberTouched,
    /// An errand ended without a notice: a bug of ours, and what it was to bring will never come.
    Lost,
}

/// Starts errands.
pub(super) struct Errands {
    pub(super) notices: UnboundedSender<Notice>,
    pub(super) members: Members,
    /// Where the ledger is, to be read.
    pub(super) ledger: PathBuf,
    pub(super) leftovers: Leftovers,
}

impl Errands {
    pub(super) fn wait_for_predecessor(&self, turn: Turn, path: PathBuf) -> io::Result<()> {
        self.run("solo-predecessor", move || Notice::Ahead(turn, lock::wait_until_free(&path)))
    }

    pub(super) fn take_leader_lock(&self, turn: Turn, path: PathBuf) -> io::Result<()> {
        self.run("solo-leader", move || Notice::LeaderLock(turn, FileLock::take(&path, Kind::Exclusive)))
    }

    pub(super) fn reap_all(&self, turn: Turn) -> io::Result<()> {
        let (members, ledger, leftovers) = (self.members.clone(), self.ledger.clone(), self.leftovers.clone());
        self.run("solo-bury", move || Notice::AllReaped(turn, reap::all(&members, &ledger, &leftovers)))
    }

    pub(super) fn wait_for_member(&self, name: MemberName) -> io::Result<()> {
        let path = self.members.lock(&name);
        self.run("solo-member", move || Notice::MemberGone(name, lock::wait_until_free(&path)))
    }

    pub(super) fn reap(&self, name: MemberName) -> io::Result<()> {
        let (members, ledger, leftovers) = (self.members.clone(), self.ledger.clone(), self.leftovers.clone());
        self.run("solo-bury", move || {
            let reaped = reap::one(&members, name.clone(), &ledger, &leftovers);
            Notice::MemberReaped(name, reaped)
        })
    }

    fn run(&self, name: &str, work: impl FnOnce() -> Notice + Send + 'static) -> io::Result<()> {
        let notices = self.notices.clone();
        let body = move || {
            let mut report = Report { notices, notice: Notice::Lost };
            report.notice = work();
        };
        thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}

/// Sends its notice when dropped, also by a panic. With nobody there the backend has ended, and the notice drops what it holds.
struct Report {
    notices: UnboundedSender<Notice>,
    notice: Notice,
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = self.notices.send(std::mem::replace(&mut self.notice, Notice::Lost));
    }
}
