//! The epoll that the warden sleeps in.
//!
//! It waits for the daemon's sockets, SIGCHLD, a timer on CLOCK_BOOTTIME, status pipes, and output. The output pipes
//! are in an epoll of their own inside the first one, so that one call disables them all and so passes the daemon's
//! back pressure on to the jobs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::process::{Stream, TreeId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// The daemon's socket can be read or written.
    Daemon,
    /// There are orders to read.
    Orders,
    /// The daemon's end of a socket is closed; unread bytes may be left.
    DaemonGone,
    /// A child may have ended.
    Children,
    /// The time given to [`Poller::wake_at`] has come.
    Timer,
    /// A child has reached its program or failed to.
    Status(TreeId),
    /// Output can be read: see [`Poller::next_output`].
    Outputs,
    /// Descriptors were deposited or withdrawn.
    Vault,
}

#[derive(Debug)]
pub(super) struct Poller {
    all: OwnedFd,
    outputs: OwnedFd,
    children: SignalFd,
    timer: OwnedFd,
    armed: Option<Uptime>,
    outputs_wanted: bool,
    daemon_writable_wanted: bool,
}

const DAEMON: u64 = u64::MAX;
const CHILDREN: u64 = u64::MAX - 1;
const TIMER: u64 = u64::MAX - 2;
const OUTPUTS: u64 = u64::MAX - 3;
const ORDERS: u64 = u64::MAX - 4;
const VAULT: u64 = u64::MAX - 5;

/// Exclusive upper bound of tree ids: tokens above are the constants here. A daemon counts from 0.
pub(super) const TREE_IDS: u64 = 1 << 62;

const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
const GONE: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

pub(super) const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Events handled in one turn.
const EVENTS: usize = 64;

impl Poller {
    /// Creates a poller for the daemon's two sockets and the vault. SIGCHLD must be blocked.
    pub(super) fn new(daemon: impl AsFd, orders: impl AsFd, vault: impl AsFd) -> io::Result<Self> {
        let mut child_signal = SigSet::empty();
        child_signal.add(Signal::SIGCHLD);
        let this = Self {
            all: epoll::create(CreateFlags::CLOEXEC)?,
            outputs: epoll::create(CreateFlags::CLOEXEC)?,
            children: SignalFd::with_flags(&child_signal, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
            timer: rustix::time::timerfd_create(
                TimerfdClockId::Boottime,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            armed: None,
            outputs_wanted: true,
            daemon_writable_wanted: false,
        };
        epoll::add(&this.all, daemon, EventData::new_u64(DAEMON), READ)?;
        epoll::add(&this.all, orders, EventData::new_u64(ORDERS), READ)?;
        epoll::add(&this.all, &this.children, EventData::new_u64(CHILDREN), EventFlags::IN)?;
        epoll::add(&this.all, &this.timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&this.all, &this.outputs, EventData::new_u64(OUTPUTS), EventFlags::IN)?;
        epoll::add(&this.all, vault, EventData::new_u64(VAULT), EventFlags::IN)?;
        Ok(this)
    }

    /// Sleeps until something is ready; returns at once if `is_busy`.
    pub(super) fn wait(&mut self, is_busy: bool) -> io::Result<Vec<Ready>> {
        let mut ready = Vec::new();
        for (token, flags) in events(&self.all, EVENTS, is_busy.then_some(NOW))? {
            ready.push(match token {
                DAEMON | ORDERS if flags.intersects(GONE) => Ready::DaemonGone,
                DAEMON => Ready::Daemon,
                ORDERS => Ready::Orders,
                CHILDREN => self.children_ended()?,
                TIMER => self.timer_fired(),
                OUTPUTS => Ready::Outputs,
                VAULT => Ready::Vault,
                tree_id => Ready::Status(TreeId(tree_id)),
            });
        }
        Ok(ready)
    }

    /// One stream with output to read now, if any.
    ///
    /// One at a time: the kernel moves what it reported to the end of its queue, so a caller that stops early treats
    /// all streams fairly.
    pub(super) fn next_output(&self) -> io::Result<Option<(TreeId, Stream)>> {
        let event = events(&self.outputs, 1, Some(NOW))?.pop();
        let stream = |token: u64| if token & 1 == 0 { Stream::Stdout } else { Stream::Stderr };
        Ok(event.map(|(token, _)| (TreeId(token >> 1), stream(token))))
    }

    /// Watches for the end of a status pipe until [`Poller::unwatch_status`]: what comes before it needs no turn.
    pub(super) fn watch_status(&self, tree_id: TreeId, pipe: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.all, pipe, EventData::new_u64(tree_id.0), EventFlags::HUP)?)
    }

    /// Watches an output pipe until [`Poller::unwatch_output`].
    pub(super) fn watch_output(&self, tree_id: TreeId, stream: Stream, pipe: impl AsFd) -> io::Result<()> {
        let token = tree_id.0 << 1 | u64::from(stream == Stream::Stderr);
        Ok(epoll::add(&self.outputs, pipe, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Stops watching a status pipe.
    ///
    /// Call it before closing the pipe: a child between fork and exec still has a copy, and epoll would continue to
    /// report that one.
    pub(super) fn unwatch_status(&self, pipe: impl AsFd) {
        let _ = epoll::delete(&self.all, pipe);
    }

    /// Stops watching an output pipe. Call it before closing the pipe: see [`Poller::unwatch_status`].
    pub(super) fn unwatch_output(&self, pipe: impl AsFd) {
        let _ = epoll::delete(&self.outputs, pipe);
    }

    /// Sets whether to wait for output of the jobs.
    pub(super) fn want_outputs(&mut self, wanted: bool) -> io::Result<()> {
        if self.outputs_wanted != wanted {
            let flags = if wanted { EventFlags::IN } else { EventFlags::empty() };
            epoll::modify(&self.all, &self.outputs, EventData::new_u64(OUTPUTS), flags)?;
            self.outputs_wanted = wanted;
        }
        Ok(())
    }

    /// Sets whether to wait for room in the daemon's socket.
    pub(super) fn want_daemon_writable(&mut self, daemon: impl AsFd, wanted: bool) -> io::Result<()> {
        if self.daemon_writable_wanted != wanted {
            let flags = if wanted { READ | EventFlags::OUT } else { READ };
            epoll::modify(&self.all, daemon, EventData::new_u64(DAEMON), flags)?;
            self.daemon_writable_wanted = wanted;
        }
        Ok(())
    }

    /// Stops watching one of the daemon's sockets.
    pub(super) fn unwatch_daemon(&self, socket: impl AsFd) {
        let _ = epoll::delete(&self.all, socket);
    }

    /// Sets the time to wake at, which counts time in suspend too.
    pub(super) fn wake_at(&mut self, at: Option<Uptime>) -> io::Result<()> {
        if self.armed != at {
            let setting = Itimerspec { it_interval: NOW, it_value: at.map_or(NOW, instant) };
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)?;
            self.armed = at;
        }
        Ok(())
    }

    fn children_ended(&self) -> io::Result<Ready> {
        while self.children.read_signal()?.is_some() {}
        Ok(Ready::Children)
    }

    fn timer_fired(&mut self) -> Ready {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.armed = None;
        Ready::Timer
    }
}

pub(super) fn events(epoll: &OwnedFd, most: usize, timeout: Option<Timespec>) -> io::Result<Vec<(u64, EventFlags)>> {
    let mut events: Vec<Event> = Vec::with_capacity(most);
    match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
        Ok(_) => Ok(events.iter().map(|event| (event.data.u64(), event.flags)).collect()),
        Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// An instant of CLOCK_BOOTTIME. A time of zero would disarm a timer, so the instant of boot becomes one nanosecond.
pub(super) fn instant(at: Uptime) -> Timespec {
    let nanos = at.as_nanos().max(1);
    let seconds = i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0) }
}
