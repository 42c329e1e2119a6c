//! The steps between fork and exec, run in the forked child.
//!
//! In this order: session, streams, cgroup, audit, OOM score, files, limits, keyring, user, directory, the wait for its
//! time, program. Everything that can be prepared is prepared before the fork, in a [`ChildSetup`], except what is in
//! files. If a step fails, the child ends, and the warden learns which step it was.
//!
//! Where there is a choice, a step is a system call and not a function of the C library or of `std`: see `spawn`.

use std::convert::Infallible;
use std::ffi::{CStr, CString, FromBytesWithNulError, NulError};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::{Errno as Error, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::path::DecInt;
use rustix::process::{Pid, Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::given_files::{self, Given};
use super::spawn::{ExecArray, Inherited, close_others, execute, join_own_keyring, unblock_signals};
use super::start_report::{begin, failed, without};
use super::{begins, hold, interpreter, limits, program};
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Launch, StartFailure, StartStep, User};

/// Runs a script without `#!`, as execvp(3) and every shell do.
const SHELL: &CStr = c"/bin/sh";

/// A string that contains a NUL byte, which the system does not accept.
pub(super) struct NulByte;

impl From<NulError> for NulByte {
    fn from(_: NulError) -> Self {
        Self
    }
}

impl From<FromBytesWithNulError> for NulByte {
    fn from(_: FromBytesWithNulError) -> Self {
        Self
    }
}

/// A launch in the system's terms, prepared before the fork.
pub(super) struct ChildSetup<'a> {
    pub(super) launch: &'a Launch,
    inherited: Inherited,
    /// The user id that it runs as, as text.
    uid: DecInt,
    has_negative_oom_score: bool,
    limits: [Option<(Resource, Rlimit)>; 4],
    groups: Vec<Gid>,
    candidates: Vec<CString>,
    argv: ExecArray<'a>,
    environment: ExecArray<'a>,
    directory: CString,
}

impl<'a> ChildSetup<'a> {
    /// `is_in_cgroup`: some limits may be those of a cgroup.
    pub(super) fn new(
        launch: &'a Launch,
        inherited: Inherited,
        is_in_cgroup: bool,
        has_negative_oom_score: bool,
    ) -> Result<Self, NulByte> {
        Ok(Self {
            launch,
            inherited,
            uid: DecInt::new(launch.uid()),
            has_negative_oom_score,
            limits: limits::of(launch, is_in_cgroup, inherited.open_files),
            groups: launch.user.iter().flat_map(|user| &user.groups).copied().map(Gid::from_raw_unchecked).collect(),
            candidates: program::candidates(
                launch.argv.first().unwrap_or_default(),
                launch.environment.variable("PATH").map(str::as_bytes),
            )?,
            argv: ExecArray::of(&launch.argv)?,
            environment: ExecArray::of(&launch.environment)?,
            directory: CString::new(launch.directory.as_str())?,
        })
    }
}

/// The child's ends of its pipes, and its standard input.
#[derive(Clone, Copy)]
pub(super) struct ChildStreams<'a> {
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    /// Locked files that its program keeps open.
    pub(super) locks: &'a [BorrowedFd<'a>],
    pub(super) status: BorrowedFd<'a>,
    /// See [`begins`].
    pub(super) begins: Option<BorrowedFd<'a>>,
    /// What a child needs that is held until its time.
    pub(super) hold: Option<HoldEnd<'a>>,
}

/// The child's own descriptors, where they leave the lowest numbers free.
pub(super) struct MovedEnds {
    status: OwnedFd,
    begins: Option<OwnedFd>,
    /// The token and the socket of a held child.
    hold: Option<(OwnedFd, OwnedFd)>,
}

impl MovedEnds {
    /// Duplicates the descriptors that the child keeps until its program begins, at or above a number.
    pub(super) fn from(streams: &ChildStreams<'_>, lowest: RawFd) -> Result<Self, Error> {
        let moved = |descriptor: BorrowedFd<'_>| fcntl_dupfd_cloexec(descriptor, lowest);
        let hold = streams.hold.map(|hold| Ok::<_, Error>((moved(hold.token)?, moved(hold.daemon)?)));
        let begins = streams.begins.map(moved).transpose()?;
        Ok(Self { status: moved(streams.status)?, begins, hold: hold.transpose()? })
    }

    /// The streams of a child with these instead of its first descriptors.
    pub(super) fn of<'a>(&'a self, streams: &ChildStreams<'a>) -> ChildStreams<'a> {
        let hold = self.hold.as_ref().map(|(token, daemon)| HoldEnd { token: token.as_fd(), daemon: daemon.as_fd() });
        let begins = self.begins.as_ref().map(AsFd::as_fd);
        ChildStreams { status: self.status.as_fd(), begins, hold, ..*streams }
    }
}

/// What a held child needs: see [`hold::wait`].
#[derive(Clone, Copy)]
pub(super) struct HoldEnd<'a> {
    pub(super) token: BorrowedFd<'a>,
    pub(super) daemon: BorrowedFd<'a>,
}

/// Turns the process that was just forked into the job; returns only if a step fails.
///
/// The order matters. Reading files, setting limits and lowering the nice value may need the rights of the daemon's user,
/// and the limits are not about the files. The parent-death signal is set after the change of user, which clears it.
pub(super) fn become_job(
    setup: &ChildSetup<'_>,
    streams: &ChildStreams<'_>,
    warden: Pid,
    cgroup_to_enter: Option<BorrowedFd<'_>>,
) -> Result<Infallible, StartFailure> {
    let prepare = |done: Result<(), Error>| done.map_err(|error| failed(StartStep::Prepare, error));
    prepare(own_session(streams))?;
    prepare(cgroup_to_enter.map_or(Ok(()), enter_cgroup))?;
    audit_as(&setup.uid);
    if setup.has_negative_oom_score {
        reset_oom_score();
    }
    prepare(keep_locks(streams))?;
    let given = given_files::read(setup.launch)?;
    if let Some(Given { unusable, .. }) = given.as_ref().filter(|given| !given.unusable.is_empty()) {
        prepare(rustix::io::write(streams.status, &without(unusable)).map(drop))?;
    }
    limit(setup).map_err(|error| failed(StartStep::Limits, error))?;
    prepare(join_own_keyring())?;
    become_user(setup).map_err(|error| failed(StartStep::User, error))?;
    if setup.launch.user.is_some() {
        // The keyring joined above belongs to root, and it remains in use if the user's quota allows no other. In both
        // cases it is this job's alone.
        prepare(join_own_keyring())?;
    }
    prepare(tie_to(warden))?;
    prepare(set_masks(setup.launch.umask))?;
    enter(setup).map_err(|error| failed(StartStep::Directory, error))?;
    if !wait_for_its_time(setup, streams) {
        return Err(StartFailure::TooLate);
    }
    // Without effect on the job if it fails: its timers are only more exact than it asked for.
    let _ = rustix::thread::set_current_timer_slack(setup.inherited.timer_slack);
    // Checked again at the very end: entering a directory can take arbitrarily long.
    let now = uptime();
    if now >= setup.launch.not_after {
        return Err(StartFailure::TooLate);
    }
    prepare(streams.begins.map_or(Ok(()), |file| begins::note(file, setup.launch.tree_id)))?;
    prepare(rustix::io::write(streams.status, &begin(now)).map(drop))?;
    let (step, errno) = exec(setup, given.as_ref());
    Err(StartFailure::Step { step, errno: errno as i32 })
}

/// The lowest descriptor of a locked file: a script may use those below it without closing the file (sh has 3 to 9).
const FIRST_LOCK: RawFd = 10;

/// Leaves the locked files to the program, and closes all else that it does not need.
fn keep_locks(streams: &ChildStreams<'_>) -> Result<(), Error> {
    if streams.locks.is_empty() {
        close_unneeded(streams, &[]);
        return Ok(());
    }
    // The warden's own descriptors would be in the way.
    let inherited: Vec<RawFd> = streams.locks.iter().map(|lock| lock.as_raw_fd()).collect();
    close_unneeded(streams, &inherited);
    let mut kept = Vec::with_capacity(streams.locks.len());
    for lock in streams.locks {
        let lock = fcntl_dupfd_cloexec(lock, FIRST_LOCK)?;
        fcntl_setfd(&lock, FdFlags::empty())?;
        kept.push(lock.into_raw_fd());
    }
    close_unneeded(streams, &kept);
    Ok(())
}

/// Closes all descriptors but the standard streams, the locks, and those that the child needs until its program begins.
fn close_unneeded(streams: &ChildStreams<'_>, locks: &[RawFd]) {
    let status = streams.status.as_raw_fd();
    // Without a file for begins it is the same number twice.
    let begins = streams.begins.map_or(status, |file| file.as_raw_fd());
    match streams.hold {
        Some(HoldEnd { token, daemon }) => close_others(&mut [status, begins, token.as_raw_fd(), daemon.as_raw_fd()]),
        None if locks.is_empty() => close_others(&mut [status, begins]),
        None => close_others(&mut [&[status, begins][..], locks].concat()),
    }
}

fn wait_for_its_time(setup: &ChildSetup<'_>, streams: &ChildStreams<'_>) -> bool {
    match (streams.hold, setup.launch.not_before) {
        (Some(HoldEnd { token, daemon }), Some(not_before)) => hold::wait(token, not_before, daemon),
        _ => true,
    }
}

fn own_session(streams: &ChildStreams<'_>) -> Result<(), Error> {
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(streams.stdin)?;
    rustix::stdio::dup2_stdout(streams.stdout)?;
    rustix::stdio::dup2_stderr(streams.stderr)
}

fn enter_cgroup(cgroup: BorrowedFd<'_>) -> Result<(), Error> {
    let procs = rustix::fs::openat(cgroup, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(procs, b"0").map(drop)
}

/// Attributes the job's actions to its user in the kernel's audit.
///
/// Its processes also get an audit session of their own. It fails if the kernel has no audit, or if the value was set
/// before and this user may not change it.
fn audit_as(uid: &DecInt) {
    let _ = write_own(c"/proc/self/loginuid", uid.as_bytes());
}

/// Writes to a file of the child's own in /proc. It stays open until [`close_unneeded`].
fn write_own(file: &CStr, bytes: &[u8]) -> Result<(), Error> {
    let file = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let written = rustix::io::write(&file, bytes);
    let _ = file.into_raw_fd();
    written.map(drop)
}

/// Resets a negative OOM score, which would protect the job when memory runs out.
///
/// The unit's `OOMScoreAdjust=` protects the daemon, not the jobs that it starts. Called before the change of user: if
/// the daemon is root, the kernel then lets no job lower the value again. Every process may raise its own score, so the
/// write fails only if /proc cannot be written to, and running the job matters more than its score.
fn reset_oom_score() {
    let _ = write_own(c"/proc/self/oom_score_adj", b"0");
}

fn limit(setup: &ChildSetup<'_>) -> Result<(), Error> {
    for &(resource, limit) in setup.limits.iter().flatten() {
        setrlimit(resource, limit)?;
    }
    match setup.launch.nice {
        Some(nice) => rustix::process::setpriority_process(None, nice),
        None => Ok(()),
    }
}

/// Changes the user of this thread, which is the only one of its process. The kernel refuses -1, which is not a
/// valid id.
fn become_user(setup: &ChildSetup<'_>) -> Result<(), Error> {
    let Some(User { uid, gid, .. }) = &setup.launch.user else { return Ok(()) };
    set_thread_groups(&setup.groups)?;
    set_thread_gid(Gid::from_raw_unchecked(*gid))?;
    set_thread_uid(Uid::from_raw_unchecked(*uid))
}

fn tie_to(warden: Pid) -> Result<(), Error> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(warden) {
        return Err(Error::SRCH); // The warden died before the line above could take effect.
    }
    Ok(())
}

fn set_masks(umask: u32) -> Result<(), Error> {
    unblock_signals()?;
    rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
    Ok(())
}

fn enter(setup: &ChildSetup<'_>) -> Result<(), Error> {
    let entered = rustix::process::chdir(&setup.directory);
    if setup.launch.or_root { entered.or_else(|_| rustix::process::chdir("/")) } else { entered }
}

/// Tries each candidate as execvp(3) does.
///
/// It skips a missing file, remembers one that may not be executed, and runs a script without `#!` by [`SHELL`].
fn exec(setup: &ChildSetup<'_>, given: Option<&Given>) -> (StartStep, Errno) {
    match given {
        Some(Given { candidates, environment, .. }) => {
            let environment = environment.iter().map(CString::as_c_str).collect();
            exec_first(candidates, setup, &environment)
        }
        None => exec_first(&setup.candidates, setup, &setup.environment),
    }
}

fn exec_first(candidates: &[CString], setup: &ChildSetup<'_>, environment: &ExecArray<'_>) -> (StartStep, Errno) {
    const MISSING: (StartStep, Errno) = (StartStep::Exec, Errno::ENOENT);
    let mut result = MISSING;
    for path in candidates {
        match execute(path, &setup.argv, environment) {
            // The file may be there: then the error is about its interpreter.
            Errno::ENOENT if result == MISSING => {
                let fault = interpreter::fault_of(path);
                result.0 = fault.map_or(StartStep::Exec, StartStep::Interpreter);
            }
            Errno::ENOENT | Errno::ENOTDIR => {}
            Errno::EACCES => result = (StartStep::Exec, Errno::EACCES),
            Errno::ENOEXEC => {
                let arguments = setup.launch.argv.c_strings().skip(1).flatten();
                let argv = [SHELL, path].into_iter().chain(arguments).collect();
                return (StartStep::Exec, execute(SHELL, &argv, environment));
            }
            other => return (StartStep::Exec, other),
        }
    }
    result
}
