//! The watcher: the parent of the warden, which ends what a warden leaves behind that was killed.
//!
//! ```text
//!   daemon ── starts ──▶ watcher ── forks ──▶ warden ── forks ──▶ trees
//! ```
//! A warden outlives its daemon and ends the trees. But the kernel, or somebody with a list of pids, can kill both. The
//! main process of each tree dies with the warden; the processes that it has started do not. As a subreaper, the watcher
//! inherits them from the dead warden, whatever they did to their session, group, cgroup and environment, and kills
//! them. So of the three, any two can be killed.
//!
//! Watcher and warden share one table of open files. What the warden keeps in custody therefore stays open until the
//! watcher has killed everything, and no locked file is free while a process runs that relies on the lock.
//!
//! Apart from that it does nothing: it waits for one process, and reads nothing that another process has written.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::cgroup::hierarchy;
use super::{descendants, spawn};

/// The process name in `ps` and `top`. Not that of the warden, so that `pkill job-warden` leaves the watcher.
const PROCESS_NAME: &CStr = c"job-watcher";

/// The pause before the next attempt doubles up to the second: a process in uninterruptible sleep needs few.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Time for the processes in the cgroups of a dead daemon to die.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// One of the two processes that the daemon starts as one.
#[derive(Debug)]
pub(super) enum Part {
    Warden,
    Watcher { warden: Pid },
}

/// Divides this process into watcher and warden: returns in both.
///
/// Must come before anything that owns a descriptor: what one of the two closes, the other loses too.
pub(super) fn divide() -> io::Result<Part> {
    spawn::default_signals();
    // Blocked and not ignored: a job would inherit an ignored signal, and the warden's signalfd needs SIGCHLD blocked.
    // Ctrl-C in a terminal and SIGTERM at shutdown are meant for the daemon; both end when its sockets close.
    SigSet::all().thread_block()?;
    be_apart();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    match spawn::fork_sharing_files()? {
        Some(warden) => {
            // Only a display name: failing to set it does no harm.
            let _ = rustix::thread::set_name(PROCESS_NAME);
            // The warden does the same for itself, and can then open more files than this process could.
            spawn::raise_open_files();
            spawn::release_file_pages();
            Ok(Part::Watcher { warden })
        }
        None => {
            be_apart();
            Ok(Part::Warden)
        }
    }
}

/// Leaves the session and the process group, so that a signal to either reaches neither the daemon nor the other part.
fn be_apart() {
    // Fails for the leader of a group, which has one of its own already.
    let _ = rustix::process::setsid();
}

/// Waits for the end of the warden and, unless that ended by itself, kills what it has left.
pub(super) fn watch(warden: Pid) -> ExitCode {
    if has_ended_by_itself(warden) {
        // Everything was dead by then.
        return ExitCode::SUCCESS;
    }
    // The daemon must learn of it now, and the sockets would stay open as long as this process runs.
    let (stdin, stdout) = (io::stdin(), io::stdout());
    for socket in [stdin.as_fd(), stdout.as_fd()] {
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
    let mut pause = FIRST_PAUSE;
    // While the whole system is out of memory or files, /proc may be unreadable. Then the next attempt counts.
    while !descendants::kill_once().unwrap_or(false) {
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    // If the daemon is dead too, nobody else removes its cgroups before the next one starts. This process may be in one.
    hierarchy::reap(REAP_TIMEOUT);
    ExitCode::FAILURE
}

/// Waits for its end. Returns false if it was killed or has failed.
fn has_ended_by_itself(warden: Pid) -> bool {
    loop {
        match rustix::process::waitid(WaitId::Pid(warden), WaitIdOptions::EXITED) {
            Ok(Some(status)) => return status.exit_status() == Some(0),
            Ok(None) | Err(Errno::INTR) => {}
            // Nobody else waits for it, so this cannot happen.
            Err(_) => return false,
        }
    }
}
