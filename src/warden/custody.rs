//! Descriptors that the warden keeps for the daemon until the processes of all trees are dead.
//!
//! Implements the port [`Custody`], which says why.
//!
//! ```text
//!  daemon                                          warden
//!  WardenCustody    ── line, descriptors ────────► Vault   keeps both
//!                   ◄───────────────────── a byte ──       it has all of them
//!  Deposit          ── a byte, on the line ──────►         closes them
//!                   ── end of the line ──────────►         keeps them until the warden ends
//! ```
//! All deposits arrive on one socket, a message each. Every deposit brings its own line, an end of another pair of
//! sockets: so each thread of the daemon waits for its own answer, and a withdrawal always finds room. Until the warden
//! has read the message, the kernel keeps the descriptors open in the queue of the warden's socket.
//!
//! The warden's end of the socket travels on the warden's standard input: see [`send_descriptors`].

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::poller::events;
use cronkeeper_core::process::{Custody, Deposit};

/// Most descriptors in a message (the kernel's SCM_MAX_FD).
const MOST: usize = 253;
/// Messages and withdrawals handled in one turn of the warden.
const EVENTS: usize = 16;
/// The token of the socket in the vault's epoll; the others are those of the deposits.
const SOCKET: u64 = u64::MAX;

/// The daemon's end. Any thread may use it.
#[derive(Debug)]
pub struct WardenCustody(OwnedFd);

impl WardenCustody {
    /// Creates both ends; the other one is for the warden.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }
}

impl Custody for WardenCustody {
    fn deposit(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<Box<dyn Deposit>> {
        let (line, theirs) = UnixStream::pair()?;
        let deposit = Box::new(WardenDeposit { line });
        let all: Vec<BorrowedFd<'_>> = std::iter::once(theirs.as_fd()).chain(descriptors.iter().copied()).collect();
        send(self.0.as_fd(), &all)?;
        drop(theirs);
        match (&deposit.line).read_exact(&mut [0]) {
            Ok(()) => Ok(deposit),
            Err(error) => {
                deposit.withdraw();
                let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
                Err(if is_end { io::Error::other("it does not take the descriptors") } else { error })
            }
        }
    }
}

/// What the warden keeps of one deposit.
#[derive(Debug)]
struct WardenDeposit {
    line: UnixStream,
}

impl Deposit for WardenDeposit {
    fn withdraw(self: Box<Self>) {
        // Without a reader the warden is gone, and the descriptors with it.
        let _ = (&self.line).write(&[0]);
    }
}

/// The warden's end: what it keeps.
#[derive(Debug)]
pub(super) struct Vault {
    epoll: OwnedFd,
    socket: Option<OwnedFd>,
    kept: BTreeMap<u64, Kept>,
    /// Number of deposits so far.
    count: u64,
    /// The highest descriptor that may be used for this; those above it are for ending the trees.
    last: RawFd,
}

#[derive(Debug)]
struct Kept {
    line: UnixStream,
    _descriptors: Vec<OwnedFd>,
}

impl Vault {
    /// `socket`: where deposits arrive; absent if there will be none.
    pub(super) fn new(socket: Option<OwnedFd>, last: RawFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(socket) = &socket {
            epoll::add(&epoll, socket, EventData::new_u64(SOCKET), EventFlags::IN)?;
        }
        Ok(Self { epoll, socket, kept: BTreeMap::new(), count: 0, last })
    }

    /// Handles what has arrived, a bounded share at a time.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        for (token, _) in events(&self.epoll, EVENTS, Some(super::poller::NOW))? {
            match token {
                SOCKET => self.receive(),
                deposit => self.read_line(deposit),
            }
        }
        Ok(())
    }

    fn receive(&mut self) {
        let Some(socket) = &self.socket else { return };
        match receive(socket.as_fd(), RecvFlags::DONTWAIT) {
            Ok(Some(descriptors)) => self.keep(descriptors),
            // Truncated: dropping the line with the rest is the answer.
            Ok(None) | Err(Errno::AGAIN | Errno::INTR) => {}
            // The daemon is gone. What it has deposited stays.
            Err(_) => {
                let _ = epoll::delete(&self.epoll, socket);
                self.socket = None;
            }
        }
    }

    fn keep(&mut self, mut descriptors: Vec<OwnedFd>) {
        let is_reserve_used = descriptors.iter().any(|descriptor| descriptor.as_raw_fd() > self.last);
        if is_reserve_used || descriptors.is_empty() {
            return;
        }
        let line = UnixStream::from(descriptors.remove(0));
        let watched = epoll::add(&self.epoll, &line, EventData::new_u64(self.count), EventFlags::IN);
        if watched.is_err() || line.set_nonblocking(true).is_err() {
            return;
        }
        // It cannot fail for want of room. If the daemon is gone, it has not got the lock, but no harm is done.
        let _ = (&line).write(&[0]);
        self.kept.insert(self.count, Kept { line, _descriptors: descriptors });
        self.count += 1;
    }

    /// Reads a withdrawal, or the end of the line.
    fn read_line(&mut self, deposit: u64) {
        let Some(kept) = self.kept.get(&deposit) else { return };
        let is_withdrawn = match (&kept.line).read(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            read => read.is_ok_and(|bytes| bytes > 0),
        };
        // Before it is closed: a child between fork and exec has a copy, and epoll would continue to report that one.
        let _ = epoll::delete(&self.epoll, &kept.line);
        if is_withdrawn {
            self.kept.remove(&deposit);
        }
    }
}

impl AsFd for Vault {
    /// Readable when there is something for [`Vault::turn`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Sends the warden descriptors on the socket that is its standard input, before any other message: its end, and what
/// else it needs, before it is started.
///
/// The standard library can pass a child no other descriptors, and one that every child inherits could reach other
/// children too.
pub(super) fn send_descriptors(stdin: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    Ok(send(stdin.as_fd(), descriptors)?)
}

/// Takes what [`send_descriptors`] has sent; nothing if no such message is the first one.
pub(super) fn take_descriptors(stdin: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let Ok(Some(found)) = receive(stdin, RecvFlags::DONTWAIT | RecvFlags::PEEK) else { return Vec::new() };
    let is_message = !found.is_empty() && rustix::io::read(stdin, &mut [0]).is_ok();
    if is_message { found } else { Vec::new() }
}

/// Waits for what [`send_descriptors`] sends once the warden has been started, before any other message. `None` if the
/// daemon has ended before.
pub(super) fn await_descriptors(stdin: BorrowedFd<'_>) -> io::Result<Option<Vec<OwnedFd>>> {
    loop {
        let mut polled = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
        match poll(&mut polled, None).and_then(|_| receive(stdin, RecvFlags::DONTWAIT)) {
            Ok(found) => return Ok(Some(found.unwrap_or_default())),
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends a byte with the descriptors.
fn send(socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut control, flags).map(drop)
}

/// Receives a byte with descriptors; none if some of them could not be had. `PIPE`: the other end is closed.
fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    if received.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            descriptors.extend(arrived);
        }
    }
    Ok((!received.flags.contains(ReturnFlags::CTRUNC)).then_some(descriptors))
}
