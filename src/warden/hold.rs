//! A child that is prepared before its time, and held just before its program.
//!
//! Child and warden share one token. The child takes it when its time has come, and only then begins its program; the
//! warden takes it to cancel the start. As only one of them can, a cancelled child is known never to have run, however
//! close the two are. The child keeps its time by itself: a warden that hangs, or that is busy with other starts,
//! delays no program. As such a warden kills nobody, the child also checks that the daemon is alive: else the daemon's
//! successor could begin the run again, and not find a process that has no environment of its own yet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno as Error;
use rustix::thread::{ClockId, clock_nanosleep_absolute};

use super::poller::{NOW, instant};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;

/// The token that decides if a held program begins.
#[derive(Debug)]
pub(super) struct Hold {
    token: OwnedFd,
    not_before: Uptime,
}

impl Hold {
    /// The token of a program that begins at `not_before`.
    pub(super) fn until(not_before: Uptime) -> Result<Self, Error> {
        let token = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { token, not_before })
    }

    /// True while the program's time has not come.
    pub(super) fn is_early(&self) -> bool {
        uptime() < self.not_before
    }

    /// Keeps the program from beginning. Returns false if it has begun, or is about to.
    pub(super) fn cancel(&self) -> bool {
        take_token(self.token.as_fd())
    }
}

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.token.as_fd()
    }
}

/// In the child: waits until its time has come. Returns false if it must not begin its program.
///
/// `daemon`: the warden's end of a socket whose other end only the daemon has.
pub(super) fn wait(hold: BorrowedFd<'_>, not_before: Uptime, daemon: BorrowedFd<'_>) -> bool {
    while uptime() < not_before {
        // A signal that the child survives, such as SIGCONT, ends the sleep early.
        let _ = clock_nanosleep_absolute(ClockId::Boottime, &instant(not_before));
    }
    is_open(daemon) && take_token(hold)
}

fn is_open(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    matches!(poll(&mut polled, Some(&NOW)), Ok(0))
}

/// Takes the token: reading an eventfd sets it to zero, and then reading it fails; see eventfd(2).
fn take_token(hold: BorrowedFd<'_>) -> bool {
    rustix::io::read(hold, &mut [0; 8]).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_one_side_takes_the_token() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let hold = Hold::until(uptime()).unwrap();
        let at = uptime() + Duration::from_millis(5);
        assert!(wait(hold.as_fd(), at, ours.as_fd()) && uptime() >= at);
        assert!(!hold.cancel());
        let hold = Hold::until(uptime()).unwrap();
        assert!(hold.cancel() && !wait(hold.as_fd(), uptime(), ours.as_fd()));
    }

    #[test]
    fn without_its_daemon_nothing_begins() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let hold = Hold::until(uptime()).unwrap();
        assert!(!wait(hold.as_fd(), uptime(), ours.as_fd()));
        assert!(hold.cancel(), "it has not taken the token");
    }
}
