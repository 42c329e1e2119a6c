//! What keeps descriptors open until the processes of all trees are dead, even if the daemon is not.
//!
//! A lock of a file is released when its last descriptor is closed, and the death of the daemon closes its own. So the
//! warden gets duplicates before a process may start under the lock.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// Keeps descriptors: the warden, or a model of it. Any thread may use it.
pub trait Custody: Debug + Send + Sync {
    /// Hands over duplicates of the descriptors, and waits until they are all kept.
    ///
    /// Call it on a thread that may block: the warden may be stopped. There is no timeout, because a warden that does
    /// not respond is killed, which ends this wait too.
    ///
    /// # Errors
    /// If they are not taken. None of them is kept then.
    fn deposit(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<Box<dyn Deposit>>;
}

/// Descriptors that are kept. After a drop without [`Deposit::withdraw`], they are kept until the warden ends.
pub trait Deposit: Debug + Send {
    /// Has them closed. Never blocks.
    fn withdraw(self: Box<Self>);
}
