//! The warden: a small process that starts the jobs' processes and kills them.
//!
//! ```text
//!            starts                                              fork, exec
//!            orders: stop, kill, lease, …
//!   daemon ───────────────────────────────────▶ warden ───────────────────────▶ a tree for each tree id
//!          ◀───────────────────────────────────        ◀───────────────────────
//!            notices: started, output, ended                output, SIGCHLD
//! ```
//!
//! It is the same binary. The daemon starts it before it starts any thread of its own ([`handle`]). The warden has a
//! single thread, does not use tokio, and sleeps in one epoll ([`poller`]).
//!
//! It kills every tree when the daemon's end of a socket closes or when a deadline comes, whatever the daemon is doing
//! at that moment. As subreaper it inherits every process whose parent has ended, so it never loses sight of a process
//! that a job started. If the warden itself hangs, the daemon notices and kills the jobs without it ([`recover`]). If it
//! is killed, its parent does ([`watcher`]), even if the daemon is dead too.
//!
//! It also keeps the descriptors of locked files, so that no lock is free before the trees are dead ([`custody`]). The
//! children note which programs have begun, so that the daemon knows that even of a warden that is dead ([`begins`]).
//!
//! The warden knows nothing about schedules, leadership or reasons. It obeys orders and clocks.

pub mod begins;
pub mod cgroup;
mod child;
mod codec;
pub mod custody;
mod descendants;
mod given_files;
pub mod handle;
mod hold;
pub mod interpreter;
mod introduction;
mod keeper;
mod limits;
mod outbox;
mod output;
mod poller;
mod process_table;
mod procfs;
mod program;
mod reap;
pub mod recover;
mod relay;
mod spawn;
mod start_report;
mod sweep;
mod tree;
mod watcher;
mod window;

use std::ffi::CStr;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use self::watcher::Part;
pub use codec::{CodecError, Decoder, MAX_MESSAGE, encode};
pub use descendants::kill_children;

const SUBCOMMAND: &str = "warden";
/// The process name in `ps` and `top`. After an exec of /proc/self/exe it would be `exe`.
///
/// Without the program's name in it: `pkill -9 cronkeeper` must not kill daemon and warden at once, because then nobody
/// would be left to end what the jobs have started.
const PROCESS_NAME: &CStr = c"job-warden";

/// Runs watcher and warden if the command line asks for them; returns when they are done.
///
/// They are done when the daemon is gone and all trees are dead. Call it before anything else: both must stay small and
/// single-threaded.
pub fn main_if_asked() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != SUBCOMMAND {
        return None;
    }
    let served = watcher::divide().and_then(|part| match part {
        Part::Watcher { warden } => Ok(watcher::watch(warden)),
        Part::Warden => serve().map(|()| ExitCode::SUCCESS),
    });
    Some(match served {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cronkeeper: the warden, which only `cronkeeper run` starts, cannot continue: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Releases the pages of the program's files, which the kernel loads again as they are needed.
///
/// For a process that will wait for long: what it needed to start is most of its memory.
pub fn release_file_pages() {
    spawn::release_file_pages();
}

/// Makes this process inherit the orphans of its warden, should the warden die: see [`kill_children`].
///
/// # Errors
/// If the kernel refuses.
pub fn inherit_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Reaps all children of this process that have ended, except `spared`, which other code waits for.
pub fn reap_children_but(spared: u32) {
    // If /proc cannot be read, the next SIGCHLD is another chance.
    for pid in procfs::children_of_process().unwrap_or_default() {
        if u32::try_from(pid) != Ok(spared) {
            reap::reap(pid);
        }
    }
}

fn serve() -> io::Result<()> {
    let mut descriptors = custody::take_descriptors(io::stdin().as_fd()).into_iter();
    let (custody, begins) = (descriptors.next(), descriptors.next());
    let daemon = socket_on(io::stdin().as_fd())?;
    let order_socket = socket_on(io::stdout().as_fd())?;
    // Only a display name: failing to set it does no harm.
    let _ = rustix::thread::set_name(PROCESS_NAME);
    introduction::introduce(&order_socket)?;
    // The daemon has opened its state directory by then, or ended because it could not.
    let Some(descriptors) = custody::await_descriptors(io::stdin().as_fd())? else { return Ok(()) };
    let left = descriptors.into_iter().next();
    let timer_slack = be_on_time();
    // All that the warden creates in file systems are cgroups; each job gets its own umask.
    rustix::process::umask(cgroup::UMASK);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let notes = begins.as_ref().map(OwnedFd::try_clone).transpose()?;
    let keeper = keeper::Keeper::new(daemon, order_socket, custody, begins, timer_slack)?;
    spawn::release_file_pages();
    keeper.run()?;
    if let (Some(notes), Some(left)) = (notes, left) {
        // If it fails, the next daemon knows less.
        let _ = begins::leave(notes.as_fd(), left.as_fd());
    }
    Ok(())
}

/// Has the kernel wake this thread, and the children that it forks, as exactly as it can: by default it may be 50 µs
/// late, to save power. See PR_SET_TIMERSLACK(2const).
///
/// Returns the slack before, in nanoseconds, which jobs get back.
fn be_on_time() -> Option<NonZeroU64> {
    let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
    // If it fails, some starts are 50 µs late.
    let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
    before
}

/// Takes a socket of the daemon, passed as standard input or output: the standard library can pass a child only those.
fn socket_on(stream: BorrowedFd<'_>) -> io::Result<UnixStream> {
    rustix::net::sockopt::socket_type(stream)?;
    let socket = UnixStream::from(stream.try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    Ok(socket)
}
