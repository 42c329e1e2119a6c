//! What a forked child does to itself until it is the job: session, streams, cgroup, audit, place when memory runs out, limits, keyring,
//! user, directory, program.
//!
//! All that could be prepared was, before the fork: a [`Plan`]. A step that fails ends it; which one is told to the warden.

use std::convert::Infallible;
use std::ffi::{CString, NulError};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::unistd::{Gid, Uid};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Error;
use rustix::process::{Pid, Resource, Rlimit, Signal, setrlimit};

use super::spawn::{close_others, failed, join_own_keyring};
use super::wire::{Launch, StartFailure, Step, User};
use super::{limits, program};
use crate::clock::system::uptime;

/// What runs a script without `#!`, as execvp(3) and every shell do.
const SHELL: &str = "/bin/sh";

/// A NUL byte where the system takes none.
pub(super) struct NulByte;

impl From<NulError> for NulByte {
    fn from(_: NulError) -> Self {
        Self
    }
}

/// A launch in the system's terms, made before the fork.
pub(super) struct Plan<'a> {
    pub(super) launch: &'a Launch,
    limits: Vec<(Resource, Rlimit)>,
    pub(super) place: Option<BorrowedFd<'a>>,
    groups: Vec<Gid>,
    candidates: Vec<CString>,
    argv: Vec<CString>,
    environment: Vec<CString>,
    directory: CString,
}

impl<'a> Plan<'a> {
    pub(super) fn new(launch: &'a Launch, open_files: Rlimit, place: Option<BorrowedFd<'a>>) -> Result<Self, NulByte> {
        let name = launch.argv.first().map_or("", String::as_str);
        let argv = launch.argv.iter().map(|argument| CString::new(argument.as_str()));
        let environment = launch.environment.iter().map(|(key, value)| CString::new(format!("{key}={value}")));
        Ok(Self {
            launch,
            limits: limits::of(launch, place.is_some(), open_files),
            place,
            groups: launch.user.iter().flat_map(|user| &user.groups).map(|&gid| Gid::from_raw(gid)).collect(),
            candidates: program::candidates(name, &launch.environment)?,
            argv: argv.collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            directory: CString::new(launch.directory.as_str())?,
        })
    }
}

/// The child's ends.
pub(super) struct Ends<'a> {
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    pub(super) status: BorrowedFd<'a>,
}

/// Turns the process that was just forked into the job; returns only what kept it from that.
///
/// The order matters: limits and a lower nice value may need the rights of the daemon's user, and the parent-death signal
/// comes after the change of user, which clears it.
pub(super) fn become_job(
    plan: &Plan<'_>,
    ends: &Ends<'_>,
    warden: Pid,
    is_placed: bool,
) -> Result<Infallible, StartFailure> {
    let prepare = |done: Result<(), Error>| done.map_err(|error| failed(Step::Prepare, error));
    prepare(own_session(ends))?;
    if !is_placed {
        prepare(move_into(plan.place))?;
    }
    close_others(ends.status.as_raw_fd());
    audit_as(plan.launch.uid());
    be_spared_no_longer();
    limit(plan).map_err(|error| failed(Step::Limits, error))?;
    prepare(join_own_keyring())?;
    become_user(plan).map_err(|error| failed(Step::User, error))?;
    if plan.launch.user.is_some() {
        // The one before was root's, and stays where the user has used up what he may have: it is this job's alone as well.
        prepare(join_own_keyring())?;
    }
    prepare(tie_to(warden))?;
    prepare(set_masks(plan.launch.umask))?;
    enter(plan).map_err(|error| failed(Step::Directory, error))?;
    // Again, last of all: entering a directory can take as long as it likes.
    if uptime() >= plan.launch.not_after {
        return Err(StartFailure::TooLate);
    }
    Err(failed(Step::Exec, Error::from_raw_os_error(exec(plan) as i32)))
}

fn own_session(ends: &Ends<'_>) -> Result<(), Error> {
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(ends.stdin)?;
    rustix::stdio::dup2_stdout(ends.stdout)?;
    rustix::stdio::dup2_stderr(ends.stderr)
}

fn move_into(place: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let Some(place) = place else { return Ok(()) };
    let procs = rustix::fs::openat(place, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(procs, b"0").map(drop)
}

/// What the job does is the user's in the kernel's audit, and its processes are in a session there that no other job is in. Not
/// where the kernel does not keep that, or it was set before and this user may not change it.
fn audit_as(uid: u32) {
    let _ = std::fs::write("/proc/self/loginuid", uid.to_string());
}

/// The daemon may be one of the last to go where the host has no memory left (`OOMScoreAdjust=` of its unit); what it starts is not. It
/// comes before the change of user: where the daemon is root, the kernel then lets no job lower the value again. Any process may raise its
/// own, so the write can only fail where /proc cannot be written to, and a job that runs is worth more than its place in that order.
fn be_spared_no_longer() {
    let file = "/proc/self/oom_score_adj";
    let is_spared = std::fs::read_to_string(file).is_ok_and(|score| score.starts_with('-'));
    if is_spared {
        let _ = std::fs::write(file, "0");
    }
}

fn limit(plan: &Plan<'_>) -> Result<(), Error> {
    for (resource, limit) in &plan.limits {
        setrlimit(*resource, *limit)?;
    }
    match plan.launch.nice {
        Some(nice) => rustix::process::setpriority_process(None, nice),
        None => Ok(()),
    }
}

fn become_user(plan: &Plan<'_>) -> Result<(), Error> {
    let Some(User { uid, gid, .. }) = &plan.launch.user else { return Ok(()) };
    nix::unistd::setgroups(&plan.groups)
        .and_then(|()| nix::unistd::setgid(Gid::from_raw(*gid)))
        .and_then(|()| nix::unistd::setuid(Uid::from_raw(*uid)))
        .map_err(|errno| Error::from_raw_os_error(errno as i32))
}

fn tie_to(warden: Pid) -> Result<(), Error> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(warden) {
        return Err(Error::SRCH); // The warden died before the line above could take effect.
    }
    Ok(())
}

fn set_masks(umask: u32) -> Result<(), Error> {
    SigSet::empty().thread_set_mask().map_err(|errno| Error::from_raw_os_error(errno as i32))?;
    rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
    Ok(())
}

fn enter(plan: &Plan<'_>) -> Result<(), Error> {
    let entered = rustix::process::chdir(&plan.directory);
    if plan.launch.or_root { entered.or_else(|_| rustix::process::chdir("/")) } else { entered }
}

/// Tries each candidate as execvp(3) does: one that is missing is passed over, one that may not be executed is
/// remembered, a script without `#!` is run by [`SHELL`].
fn exec(plan: &Plan<'_>) -> Errno {
    let mut verdict = Errno::ENOENT;
    for path in &plan.candidates {
        let Err(error) = nix::unistd::execve(path, &plan.argv, &plan.environment);
        match error {
            Errno::ENOENT | Errno::ENOTDIR => {}
            Errno::EACCES => verdict = Errno::EACCES,
            Errno::ENOEXEC => return exec_script(path, plan),
            other => return other,
        }
    }
    verdict
}

fn exec_script(path: &CString, plan: &Plan<'_>) -> Errno {
    let Ok(shell) = CString::new(SHELL) else { return Errno::EINVAL };
    let argv: Vec<_> = [&shell, path].into_iter().chain(plan.argv.iter().skip(1)).collect();
    let Err(error) = nix::unistd::execve(&shell, &argv, &plan.environment);
    error
}
