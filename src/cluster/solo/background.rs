//! Blocking work of the backend, each piece on a separate thread that reports back with a notice.
//!
//! A thread that waits for a lock in the kernel cannot be cancelled. If its result is no longer needed, the thread
//! keeps waiting and its result is then dropped, which also releases a lock that it took.

use std::io;
use std::path::PathBuf;
use std::thread;

use tokio::sync::mpsc::UnboundedSender;

use super::Leftovers;
use super::job_locks::{WaitEnd, WaiterId};
use super::members::{MemberName, Members};
use super::reap::{self, DeadMember, ReapError};
use crate::state_dir::lock::{self, FileLock, Kind};

/// Identifies a wait of the contender. A notice with an older id is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitId(pub(super) u64);

/// A result of background work, or another reason to wake the backend.
#[derive(Debug)]
pub(super) enum BackendNotice {
    PredecessorGone(WaitId, io::Result<()>),
    /// This process holds the leader's lock.
    LeaderLock(WaitId, io::Result<FileLock>),
    /// All dead members were reaped, before a term begins.
    AllReaped(WaitId, Result<Vec<DeadMember>, ReapError>),
    /// The owner of a watched run is gone.
    MemberGone(MemberName, io::Result<()>),
    /// The owner of a watched run was reaped.
    MemberReaped(MemberName, Result<Vec<DeadMember>, ReapError>),
    /// A thread no longer waits for the locks of a run.
    LocksWaited(WaiterId, WaitEnd),
    /// An operator has written a request.
    OperatorRequest,
    /// Something may have happened to this member's lock file.
    MemberTouched,
    /// A thread panicked, which is a bug: its result will never come.
    WorkerPanicked,
}

/// Starts background work.
pub(super) struct BackgroundWork {
    pub(super) notices: UnboundedSender<BackendNotice>,
    pub(super) members: Members,
    pub(super) ledger: PathBuf,
    pub(super) leftovers: Leftovers,
}

impl BackgroundWork {
    pub(super) fn wait_for_predecessor(&self, id: WaitId, path: PathBuf) -> io::Result<()> {
        self.run("solo-predecessor", move || BackendNotice::PredecessorGone(id, lock::wait_until_free(&path)))
    }

    pub(super) fn take_leader_lock(&self, id: WaitId, path: PathBuf) -> io::Result<()> {
        self.run("solo-leader", move || BackendNotice::LeaderLock(id, FileLock::take(&path, Kind::Exclusive)))
    }

    pub(super) fn reap_all(&self, id: WaitId) -> io::Result<()> {
        let (members, ledger, leftovers) = (self.members.clone(), self.ledger.clone(), self.leftovers.clone());
        self.run("solo-reap", move || BackendNotice::AllReaped(id, reap::all(&members, &ledger, &leftovers)))
    }

    pub(super) fn wait_for_member(&self, name: MemberName) -> io::Result<()> {
        let path = self.members.lock(&name);
        self.run("solo-member", move || BackendNotice::MemberGone(name, lock::wait_until_free(&path)))
    }

    pub(super) fn reap(&self, name: MemberName) -> io::Result<()> {
        let (members, ledger, leftovers) = (self.members.clone(), self.ledger.clone(), self.leftovers.clone());
        self.run("solo-reap", move || {
            let reaped = reap::one(&members, name.clone(), &ledger, &leftovers);
            BackendNotice::MemberReaped(name, reaped)
        })
    }

    pub(super) fn wait_for_locks(
        &self,
        id: WaiterId,
        wait: impl FnOnce() -> WaitEnd + Send + 'static,
    ) -> io::Result<()> {
        self.run("solo-lock", move || BackendNotice::LocksWaited(id, wait()))
    }

    fn run(&self, name: &str, work: impl FnOnce() -> BackendNotice + Send + 'static) -> io::Result<()> {
        let notices = self.notices.clone();
        let body = move || {
            let mut report = NoticeOnDrop { notices, notice: BackendNotice::WorkerPanicked };
            report.notice = work();
        };
        thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}

/// Sends its notice when dropped, also by a panic.
struct NoticeOnDrop {
    notices: UnboundedSender<BackendNotice>,
    notice: BackendNotice,
}

impl Drop for NoticeOnDrop {
    fn drop(&mut self) {
        // Without a receiver the backend has ended; dropping the notice releases what it holds.
        let _ = self.notices.send(std::mem::replace(&mut self.notice, BackendNotice::WorkerPanicked));
    }
}
