//! The daemon's end of the warden.
//!
//! [`Warden::spawn`] runs before the daemon has a runtime or any thread; [`Warden::into_async`] then turns it into a
//! [`Handle`]. A handle needs no task of its own: [`Handle::start`] and [`Handle::send`] write as much as the sockets
//! accept and keep the rest, and [`Handle::notice`], which the daemon's loop always awaits, writes the rest while it
//! waits. So the warden can never block the loop. Starts and orders use a socket each, so that no order waits behind a
//! start.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

use nix::sys::signal::{SigSet, SigmaskHow};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::SUBCOMMAND;
use super::begins::{self, Begins, BeginsFile};
use super::codec::{CodecError, Decoder};
use super::custody::{self, WardenCustody};
use super::introduction::WardenProcess;
use super::outbox::Outbox;
use super::window::Receipts;
use cronkeeper_core::process::{Custody, InheritedStreams, Launch, Notice, Order, SentOrder, TreeId};

/// Read from the socket in one call, in bytes.
const CHUNK: usize = 64 << 10;

/// The reason why no notice will come any more.
///
/// The main processes of all trees die with the warden; [`super::recover`] finds the processes that they started.
#[derive(Debug, thiserror::Error)]
pub enum WardenGone {
    /// The warden ended or was killed.
    #[error("the warden is gone")]
    Closed,
    #[error("the connection to the warden failed")]
    Socket(#[from] io::Error),
    /// The warden sent bytes that are not a notice.
    #[error("the warden sent a message that cannot be decoded")]
    Nonsense(#[from] CodecError),
}

/// Descriptors of this process that others hold too, as long as they run.
#[derive(Debug, Default)]
pub struct HeldDescriptors<'a> {
    pub by_warden: Vec<BorrowedFd<'a>>,
    /// By the warden, and by each tree with these streams.
    pub by_trees: Vec<BorrowedFd<'a>>,
}

fn duplicates(descriptors: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    descriptors.iter().map(|descriptor| Ok(rustix::io::dup(descriptor)?)).collect()
}

/// A warden that was started and has received no order yet.
#[derive(Debug)]
pub struct Warden {
    /// The child of this process, and the parent of the warden.
    watcher: Child,
    process: WardenProcess,
    socket: StdUnixStream,
    orders: StdUnixStream,
    custody: Arc<WardenCustody>,
    begins: Option<Begins>,
}

impl Warden {
    /// Starts watcher and warden from this process's own binary, even if its file was replaced meanwhile. Call it before
    /// any thread is started.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn spawn() -> io::Result<Self> {
        Self::spawn_from(Path::new("/proc/self/exe"))
    }

    /// Starts the warden from the cronkeeper binary at `program`, an absolute path.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn spawn_from(program: &Path) -> io::Result<Self> {
        Self::start(program, Some(Begins::new()?))
    }

    /// Starts the warden with the standard streams of this process, for trees that inherit them. It notes no begins: the
    /// user's limit of file sizes may forbid it.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn spawn_with_streams(held: &HeldDescriptors<'_>) -> io::Result<(Self, InheritedStreams)> {
        // Duplicates without close-on-exec, which only the warden inherits: they are closed here when it was started.
        let [stdin, stdout, stderr] =
            [rustix::io::dup(io::stdin())?, rustix::io::dup(io::stdout())?, rustix::io::dup(io::stderr())?];
        let _of_warden = duplicates(&held.by_warden)?;
        let locks = duplicates(&held.by_trees)?;
        let inherited = InheritedStreams {
            stdin: stdin.as_raw_fd(),
            stdout: stdout.as_raw_fd(),
            stderr: stderr.as_raw_fd(),
            locks: locks.iter().map(OwnedFd::as_raw_fd).collect(),
        };
        Ok((Self::start(Path::new("/proc/self/exe"), None)?, inherited))
    }

    fn start(program: &Path, begins: Option<Begins>) -> io::Result<Self> {
        let (socket, theirs) = StdUnixStream::pair()?;
        let (orders, their_orders) = StdUnixStream::pair()?;
        let (custody, theirs_custody) = WardenCustody::pair()?;
        let for_warden = std::iter::once(theirs_custody.as_fd()).chain(begins.as_ref().map(Begins::as_fd));
        custody::send_descriptors(&socket, &for_warden.collect::<Vec<_>>())?;
        drop(theirs_custody);
        socket.set_nonblocking(true)?;
        // The warden runs with all signals blocked. They are blocked already here, so that a signal to the whole group
        // of a starting daemon does not kill the warden before it blocks them itself.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let watcher = Command::new(program)
            // In `ps` and `systemctl status`; for why it is another name than the daemon's, see `PROCESS_NAME`.
            .arg0("job-warden")
            .arg(SUBCOMMAND)
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(their_orders))
            // No environment: it would give the warden the daemon's secrets. In `/`, so that it keeps no file system
            // busy.
            .env_clear()
            .current_dir("/")
            .spawn();
        mask.thread_set_mask()?;
        let mut watcher = watcher?;
        let introduced = WardenProcess::await_on(&orders, watcher.id()).and_then(|process| {
            orders.set_nonblocking(true)?;
            Ok(process)
        });
        match introduced {
            Ok(process) => Ok(Self { watcher, process, socket, orders, custody: Arc::new(custody), begins }),
            Err(error) => {
                // It has started nothing yet.
                watcher.kill()?;
                watcher.wait()?;
                Err(error)
            }
        }
    }

    /// Where descriptors are deposited that must stay open until the processes of all trees are dead.
    pub fn custody(&self) -> Arc<dyn Custody> {
        self.custody.clone()
    }

    /// Registers the warden's sockets with the running runtime, and lets the warden continue. If this process dies, it
    /// leaves in `left` which programs have begun.
    ///
    /// # Errors
    /// If the runtime accepts no more sockets, or the warden is gone.
    pub fn into_async(self, left: Option<BeginsFile>) -> io::Result<Handle> {
        custody::send_descriptors(&self.socket, &left.iter().map(BeginsFile::as_fd).collect::<Vec<_>>())?;
        Ok(Handle {
            watcher: self.watcher,
            process: self.process,
            starts: Lane::over(self.socket)?,
            orders: Lane::over(self.orders)?,
            begins: self.begins,
            left,
            starts_sent: 0,
            notices: Decoder::default(),
            receipts: Receipts::default(),
            buffer: vec![0; CHUNK],
        })
    }
}

#[derive(Debug)]
pub struct Handle {
    watcher: Child,
    process: WardenProcess,
    /// For starts, and for all notices of the warden.
    starts: Lane,
    /// For orders.
    orders: Lane,
    /// Absent for the wardens of clients.
    begins: Option<Begins>,
    /// Where the warden leaves the notes if this process dies.
    left: Option<BeginsFile>,
    /// Number of starts sent so far.
    starts_sent: u64,
    notices: Decoder,
    receipts: Receipts,
    buffer: Vec<u8>,
}

impl Handle {
    /// The pid of the warden.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The name of the file in which the warden leaves the notes on begins if this process dies.
    pub fn begins_file(&self) -> Option<&str> {
        self.left.as_ref().map(BeginsFile::name)
    }

    /// The pid of the watcher, the child of this process that [`Self::close`] waits for.
    pub fn watcher(&self) -> u32 {
        self.watcher.id()
    }

    /// Orders a start without ever waiting.
    ///
    /// Bytes that the socket does not accept now are kept for [`Handle::notice`] to write. If the warden is gone, that
    /// method returns the error.
    ///
    /// # Errors
    /// If the launch is too long: with megabytes of arguments and environment, which the system would refuse as well.
    /// Nothing was sent then.
    pub fn start(&mut self, launch: &Launch) -> Result<(), CodecError> {
        self.starts.push(launch)?;
        if let Some(begins) = &mut self.begins {
            begins.expect(launch.tree_id);
        }
        self.starts_sent += 1;
        Ok(())
    }

    /// Sends an order without ever waiting, as [`Handle::start`] does.
    ///
    /// # Errors
    /// If the order cannot be encoded. Nothing was sent then.
    pub fn send(&mut self, order: Order) -> Result<(), CodecError> {
        self.orders.push(&SentOrder { after: self.starts_sent, order })
    }

    /// Waits for the next notice.
    ///
    /// Cancellation safe: it waits only for readiness, and keeps all bytes in the handle.
    ///
    /// # Errors
    /// If the warden is gone; everything that it sent before has been returned by then.
    pub async fn notice(&mut self) -> Result<Notice, WardenGone> {
        loop {
            if let Some(notice) = self.notices.take()? {
                self.acknowledge(&notice);
                self.forget(&notice);
                return Ok(notice);
            }
            // Cancellation safe: both wait only for readiness.
            let ready = tokio::select! {
                biased;
                writable = self.orders.socket.writable(), if self.orders.has_more() => {
                    writable?;
                    self.orders.flush();
                    continue;
                }
                ready = self.starts.socket.ready(self.starts.interest()) => ready?,
            };
            // Read first, and let reading decide: the last notices of a warden can still be read when nothing can be
            // written to it any more.
            if ready.is_readable() {
                self.read()?;
            }
            if ready.is_writable() {
                self.starts.flush();
            }
        }
    }

    /// Forgets a tree that is over by this notice.
    fn forget(&mut self, notice: &Notice) {
        let Some(begins) = &mut self.begins else { return };
        match notice {
            Notice::NotStarted { tree_id, .. } => begins.forget(*tree_id),
            Notice::Ended(ending) => begins.forget(ending.tree_id),
            _ => {}
        }
    }

    /// Lets the warden send as much output again as this notice had.
    fn acknowledge(&mut self, notice: &Notice) {
        if let Some(cost) = self.receipts.take(notice.output_cost()) {
            // Cannot fail: it is a short order.
            let _ = self.send(Order::OutputTaken { cost });
        }
    }

    /// Kills warden and watcher, even if they are stopped.
    ///
    /// The main processes of all trees die with the warden. The watcher, if it is stopped too, would only keep the sockets
    /// open: without it, [`Handle::notice`] certainly returns [`WardenGone`] then.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.watcher.kill()
    }

    /// Closes the sockets and waits until the warden has killed everything that still runs and has ended; or if somebody
    /// has killed it, until the watcher has.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn close(self) -> io::Result<Closed> {
        let Self { mut watcher, process, starts, orders, begins, left, .. } = self;
        drop((starts, orders));
        let wait = move || {
            // Also if somebody has killed the watcher.
            process.wait()?;
            watcher.wait()
        };
        let status = tokio::task::spawn_blocking(wait).await.map_err(io::Error::other)??;
        left.into_iter().for_each(BeginsFile::remove);
        Ok(Closed { status, begins })
    }

    fn read(&mut self) -> Result<(), WardenGone> {
        match self.starts.socket.try_read(&mut self.buffer) {
            Ok(0) => Err(WardenGone::Closed),
            Ok(bytes) => {
                self.notices.push(&self.buffer[..bytes]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // The warden was killed while orders were unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(WardenGone::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

/// A warden that has ended, and whose trees are dead.
#[derive(Debug)]
pub struct Closed {
    /// Of the watcher.
    pub status: ExitStatus,
    begins: Option<Begins>,
}

impl Closed {
    /// True if the program of a tree that was not reported as over is known not to have begun.
    pub fn is_unbegun(&self, tree_id: TreeId) -> bool {
        self.begins.as_ref().is_some_and(|begins| begins::is_unbegun(begins.as_fd(), tree_id))
    }
}

/// A socket with the messages that it has not accepted yet.
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

    /// Writes as much as the socket accepts. An error is not returned: if the warden is gone, the next read returns it.
    fn flush(&mut self) {
        let socket = &self.socket;
        if self.outbox.flush(|bytes| socket.try_write(bytes)).is_err() {
            self.outbox.clear();
        }
    }
}
