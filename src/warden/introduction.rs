//! How the daemon learns which process its warden is: not its child, because the watcher is between them.
//!
//! ```text
//!  warden  ── its pid, on the socket for orders, on which nothing else comes back ──▶  daemon: checks it, opens a pidfd
//! ```

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::procfs::Process;

/// Longest time for a process to be started and to divide itself.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// In the warden: says which process it is.
pub(super) fn introduce(mut orders: &UnixStream) -> io::Result<()> {
    orders.write_all(&std::process::id().to_ne_bytes())
}

/// A warden that is not a child of this process, and whose pid may be reused once it has ended.
#[derive(Debug)]
pub(super) struct WardenProcess {
    pid: u32,
    pidfd: OwnedFd,
}

impl WardenProcess {
    /// Waits until the child of this watcher has introduced itself.
    pub(super) fn await_on(mut orders: &UnixStream, watcher: u32) -> io::Result<Self> {
        let mut pid = [0; 4];
        orders.set_read_timeout(Some(START_TIMEOUT))?;
        orders.read_exact(&mut pid).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            io::ErrorKind::UnexpectedEof => io::Error::other("it ended at once"),
            _ => error,
        })?;
        let pid = u32::from_ne_bytes(pid);
        let named = Pid::from_raw(pid.cast_signed()).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(named, PidfdFlags::empty())?;
        // Checked with the pidfd open: from here on the number cannot mean another process.
        let is_child = Process::read(pid.cast_signed()).is_some_and(|process| process.parent == watcher.cast_signed());
        if is_child { Ok(Self { pid, pidfd }) } else { Err(io::Error::other("it ended at once")) }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills it, unless it has ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Blocks until it has ended.
    pub(super) fn wait(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None) {
                Ok(1..) => return Ok(()),
                Ok(0) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_child_of_the_watcher_is_taken_for_the_warden() {
        let own = std::process::id();
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get().cast_unsigned();
        let introduced = |watcher| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            introduce(&theirs).unwrap();
            WardenProcess::await_on(&ours, watcher)
        };
        assert_eq!(introduced(parent).unwrap().pid(), own);
        assert!(introduced(own).is_err());
    }

    #[test]
    fn a_warden_that_ends_before_it_introduces_itself_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(WardenProcess::await_on(&ours, 1).is_err());
    }
}
