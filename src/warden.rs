//! The warden: the small process that starts the jobs' processes and never lets one go.
//!
//! ```text
//!            orders: start                                       fork, exec
//!            urgent: stop, kill, lease
//!   daemon ───────────────────────────────────▶ warden ───────────────────────▶ a tree for each tree id
//!          ◀───────────────────────────────────        ◀───────────────────────
//!            notices: started, output, ended                output, SIGCHLD
//! ```
//!
//! It is the same binary, started by the daemon before any thread of its own ([`handle`]). It is single-threaded, knows
//! no tokio, and sleeps in one epoll ([`poller`]). It kills every tree when the daemon's end of a socket closes or
//! when a deadline comes, whatever the daemon is doing then; as subreaper it inherits every process whose parent ended,
//! so nothing a job starts can leave its sight. That it may hang itself is for the daemon to notice, which then kills without it
//! ([`recover`]).
//!
//! Deliberately absent: schedules, leadership, reasons. It obeys orders and clocks.

pub mod cgroup;
mod child;
mod codec;
mod process_table;
pub mod handle;
mod keeper;
mod limits;
mod outbox;
mod output;
mod poller;
mod procfs;
mod program;
mod reap;
pub mod recover;
mod spawn;
mod sweep;
mod tree;
pub mod wire;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::SigSet;

pub use codec::{CodecError, Decoder, MAX_MESSAGE, encode};

/// The hidden subcommand.
const SUBCOMMAND: &str = "warden";
/// In `ps` and `top`, where the kernel keeps 15 bytes; after an exec of /proc/self/exe it would be `exe`.
const PROCESS_NAME: &CStr = c"cronkeeper-ward";

/// Is the warden, until its daemon is gone and all trees are dead, if the command line says so. To be called before
/// anything else: the warden must stay small and single-threaded.
pub fn main_if_asked() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != SUBCOMMAND {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cronkeeper: the warden, which only `cronkeeper run` starts, cannot go on: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Reaps all children of this process that have ended, but for `spared`: another waits for that one.
pub fn reap_children_but(spared: u32) {
    // Without /proc the next end of a child is another chance.
    for pid in procfs::children_of_process().unwrap_or_default() {
        if u32::try_from(pid) != Ok(spared) {
            reap::reap(pid);
        }
    }
}

fn serve() -> io::Result<()> {
    let daemon = socket_on(io::stdin().as_fd())?;
    let urgent = socket_on(io::stdout().as_fd())?;
    // Only a name: without it nothing is worse than to read.
    let _ = rustix::thread::set_name(PROCESS_NAME);
    spawn::default_signals();
    // Blocked rather than ignored: a job would inherit an ignored signal, and the signalfd needs SIGCHLD blocked.
    // A terminal's Ctrl-C or a shutdown's SIGTERM is for the daemon; the warden ends when its socket does.
    SigSet::all().thread_block()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let keeper = keeper::Keeper::new(daemon, urgent)?;
    spawn::forget_code();
    keeper.run()
}

/// The daemon's sockets stand in place of standard input and output, which a child of the standard library can be given.
fn socket_on(stream: BorrowedFd<'_>) -> io::Result<UnixStream> {
    rustix::net::sockopt::socket_type(stream)?;
    let socket = UnixStream::from(stream.try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    Ok(socket)
}
