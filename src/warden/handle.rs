//! The daemon's end of the warden.
//!
//! [`Warden::spawn`] runs before the daemon has a runtime or any thread; [`Warden::into_async`] then makes a [`Handle`] of
//! it. A handle needs no task of its own: [`Handle::send`] writes what the sockets take at once and keeps the rest, and
//! [`Handle::notice`], which the daemon's loop always awaits, writes that as well while it waits. So nothing the warden
//! does can block the loop. Starts go by one socket, all other orders by another, where no start is before them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{SigSet, SigmaskHow};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::SUBCOMMAND;
use super::codec::{CodecError, Decoder};
use super::outbox::Outbox;
use super::wire::{Notice, Order, Urgent};

/// Read from the socket at once, in bytes.
const CHUNK: usize = 64 << 10;

/// Why no notice will ever come again. The main processes of all trees die with the warden; what they started is for
/// [`super::recover`] to find.
#[derive(Debug, thiserror::Error)]
pub enum WardenGone {
    /// It ended, or was killed.
    #[error("the warden is gone")]
    Closed,
    /// The socket failed.
    #[error("the warden cannot be reached")]
    Socket(#[from] io::Error),
    /// It sent what is no notice.
    #[error("the warden sent nonsense")]
    Nonsense(#[from] CodecError),
}

/// A warden that was started and not spoken to yet.
#[derive(Debug)]
pub struct Warden {
    child: Child,
    socket: StdUnixStream,
    urgent: StdUnixStream,
}

impl Warden {
    /// Starts the warden from this very binary, also if its file was replaced meanwhile. To be called before any thread.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn spawn() -> io::Result<Self> {
        Self::spawn_from(Path::new("/proc/self/exe"))
    }

    /// Starts the warden from the cronkeeper binary at `program`, an absolute path.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn spawn_from(program: &Path) -> io::Result<Self> {
        let (socket, theirs) = StdUnixStream::pair()?;
        let (urgent, theirs_urgent) = StdUnixStream::pair()?;
        socket.set_nonblocking(true)?;
        urgent.set_nonblocking(true)?;
        // The warden lives with all signals blocked; a signal to the whole group of a starting daemon must not end it
        // before it gets to that.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let child = Command::new(program)
            // For `ps` and `systemctl status`: the path says nothing.
            .arg0("cronkeeper")
            .arg(SUBCOMMAND)
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(theirs_urgent))
            // It has no secret of the daemon's environment, keeps no file system busy, and a terminal's Ctrl-C, which
            // is for the daemon, goes past it.
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .spawn();
        mask.thread_set_mask()?;
        Ok(Self { child: child?, socket, urgent })
    }

    /// Makes it a part of the running runtime.
    ///
    /// # Errors
    /// When the runtime takes no more sockets.
    pub fn into_async(self) -> io::Result<Handle> {
        Ok(Handle {
            child: self.child,
            starts: Lane::over(self.socket)?,
            urgent: Lane::over(self.urgent)?,
            ordered: 0,
            notices: Decoder::default(),
            buffer: vec![0; CHUNK],
        })
    }
}

/// The warden, for the daemon's loop.
#[derive(Debug)]
pub struct Handle {
    child: Child,
    /// For starts, and for all that the warden tells.
    starts: Lane,
    /// For all other orders.
    urgent: Lane,
    /// Starts that were ordered.
    ordered: u64,
    notices: Decoder,
    buffer: Vec<u8>,
}

impl Handle {
    /// The warden's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order. It never waits: what the socket does not take now is kept for [`Handle::notice`] to write. A warden that
    /// is gone is reported there too.
    ///
    /// # Errors
    /// When the order is too long to be sent: a launch with megabytes of arguments and environment, which the system would
    /// refuse as well. Nothing was sent then.
    pub fn send(&mut self, order: &Order) -> Result<(), CodecError> {
        match order {
            Order::Start(_) => {
                self.starts.push(order)?;
                self.ordered += 1;
                Ok(())
            }
            _ => self.urgent.push(&Urgent { after: self.ordered, order: order.clone() }),
        }
    }

    /// The next notice. Cancellation safe: it waits only for readiness, and keeps all bytes in the handle.
    ///
    /// # Errors
    /// When the warden is gone; all that it said before was returned before.
    pub async fn notice(&mut self) -> Result<Notice, WardenGone> {
        loop {
            if let Some(notice) = self.notices.take()? {
                return Ok(notice);
            }
            // Cancellation safe: both wait only for readiness.
            let ready = tokio::select! {
                biased;
                writable = self.urgent.socket.writable(), if self.urgent.has_more() => {
                    writable?;
                    self.urgent.flush();
                    continue;
                }
                ready = self.starts.socket.ready(self.starts.interest()) => ready?,
            };
            // Reading goes first and decides: what the warden said last is to be had also when it can be written to no more.
            if ready.is_readable() {
                self.read()?;
            }
            if ready.is_writable() {
                self.starts.flush();
            }
        }
    }

    /// Kills the warden, also one that is stopped. The main processes of all trees die with it; [`Handle::notice`] then says that it
    /// is gone.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Lets the warden go, which kills all that still runs, and waits until it is done with that and ended.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn close(self) -> io::Result<ExitStatus> {
        let Self { mut child, starts, urgent, .. } = self;
        drop((starts, urgent));
        tokio::task::spawn_blocking(move || child.wait()).await.map_err(io::Error::other)?
    }

    fn read(&mut self) -> Result<(), WardenGone> {
        match self.starts.socket.try_read(&mut self.buffer) {
            Ok(0) => Err(WardenGone::Closed),
            Ok(bytes) => {
                self.notices.push(&self.buffer[..bytes]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // Killed with orders unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(WardenGone::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

/// A socket, and what it has not taken yet.
#[derive(Debug)]
struct Lane {
    socket: UnixStream,
    outbox: Outbox,
}

impl Lane {
    fn over(socket: StdUnixStream) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::from_std(socket)?, outbox: Outbox::default() })
    }

    fn push<T: Serialize>(&mut self, message: &T) -> Result<(), CodecError> {
        self.outbox.push(message)?;
        self.flush();
        Ok(())
    }

    fn has_more(&self) -> bool {
        self.outbox.waiting() > 0
    }

    fn interest(&self) -> Interest {
        if self.has_more() { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE }
    }

    /// A warden that is gone takes nothing any more; the next read says so.
    fn flush(&mut self) {
        let socket = &self.socket;
        if self.outbox.flush(|bytes| socket.try_write(bytes)).is_err() {
            self.outbox.clear();
        }
    }
}
