//! Process start: pipes, fork, and the child's report of its outcome.
//!
//! The steps in the child are in `child`. The warden never waits for a child to reach exec: a working directory on a
//! dead network mount would delay every deadline. The child reports on a pipe which step failed; the pipe closes by
//! itself when exec succeeds.
//!
//! This is the only file with `unsafe`: safe Rust has no fork and no way to advise the kernel about pages. The warden
//! has one thread, so between fork and exec the child may do anything that a process may do, including allocation.
#![expect(unsafe_code, reason = "fork, _exit, madvise, keyrings and the dispositions of signals have no safe form")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::unistd::ForkResult;
use rustix::io::Errno as Error;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::cgroup::RunCgroup;
use super::child::{ChildSetup, ChildStreams, HoldEnd, NulByte, become_job};
use super::hold::Hold;
use super::procfs;
use crate::clock::Uptime;
use crate::clock::system::uptime;
use crate::environment_file::{BadLine, LineFault};
use crate::memory_file;
use crate::process::{FileFault, FileProblem, Launch, StartFailure, StartStep};

/// Descriptors kept free for reading /proc: without them no tree could be ended in an orderly way.
const RESERVE: RawFd = 16;

/// A child that was forked, and may not have reached its program yet.
#[derive(Debug)]
pub(super) struct Child {
    /// Leader of a session and process group of its own.
    pub(super) pid: Pid,
    pub(super) forked_at: Uptime,
    /// Closed when exec succeeds. It says when the program began, or what failed: see [`outcome`].
    pub(super) status: OwnedFd,
    /// The token of a child that is held until its time; `None` if it begins its program at once.
    pub(super) hold: Option<Hold>,
    /// Its standard output, non-blocking; `None` if it has inherited streams.
    pub(super) stdout: Option<OwnedFd>,
    /// Its standard error, likewise.
    pub(super) stderr: Option<OwnedFd>,
}

/// Resets every signal to its default disposition.
///
/// The parent of the daemon may have ignored some, and jobs would inherit that. If SIGCHLD were ignored, the kernel
/// would even reap children without the warden's knowledge.
pub(super) fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL is not a handler, so none of our code can run in signal context. For signals that cannot be
        // changed (SIGKILL, SIGSTOP, those of the C library itself) the call fails without effect.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Releases the pages of the program and its libraries that the start has touched.
///
/// The warden needs few of them again, and the kernel reloads those by itself. Only what nobody can write to is
/// released: the file contains every byte of it.
pub(super) fn release_file_pages() {
    for (start, length) in procfs::own_file_pages() {
        // SAFETY: the range is a mapping of a file that is never written to, so the kernel finds the same bytes again.
        // If the call fails, the pages stay where they are.
        let _ = unsafe { rustix::mm::madvise(start as *mut c_void, length, rustix::mm::Advice::LinuxDontNeed) };
    }
}

/// The resources that every start needs.
#[derive(Debug)]
pub(super) struct Spawner {
    null: OwnedFd,
    /// The limit that the warden was started with. Jobs get it back.
    open_files: Rlimit,
    /// A duplicate of the warden's end of a socket to the daemon.
    daemon: OwnedFd,
    /// The timer slack that the warden was started with, in nanoseconds. Jobs get it back.
    timer_slack: Option<NonZeroU64>,
    /// The highest descriptor that a job's pipes may have.
    last: RawFd,
}

impl Spawner {
    /// Raises the limit of open files to the maximum: each tree needs three, and a held one four.
    pub(super) fn new(daemon: BorrowedFd<'_>, timer_slack: Option<NonZeroU64>) -> io::Result<Self> {
        let open_files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: open_files.maximum, ..open_files })?;
        let limit = open_files.maximum.and_then(|limit| RawFd::try_from(limit).ok()).unwrap_or(RawFd::MAX);
        let daemon = daemon.try_clone_to_owned()?;
        Ok(Self { null: File::open("/dev/null")?.into(), open_files, daemon, timer_slack, last: limit - RESERVE })
    }

    /// The highest descriptor that may be used for anything but ending trees.
    pub(super) fn last(&self) -> RawFd {
        self.last
    }

    /// Forks and starts `launch`, unless it is too late.
    pub(super) fn spawn(&self, launch: &Launch, cgroup: Option<&RunCgroup>) -> Result<Child, StartFailure> {
        let cgroup = cgroup.map(RunCgroup::open).transpose().map_err(|error| failed(StartStep::Fork, error))?;
        let cgroup = cgroup.as_ref().map(AsFd::as_fd);
        let setup = ChildSetup::new(launch, (self.open_files, self.timer_slack), cgroup)
            .map_err(|NulByte| failed(StartStep::Exec, Error::INVAL))?;
        let input =
            Some(&launch.input).filter(|text| !text.is_empty()).map(|text| memory_file::holding(text.as_bytes()));
        let input = input.transpose().map_err(|error| failed(StartStep::Fork, error))?;
        let no_pipe = |error| failed(StartStep::Fork, error);
        let (status, status_end) = pipe_below(self.last).map_err(no_pipe)?;
        let not_before = launch.not_before.filter(|&at| at > uptime());
        let hold = not_before.map(Hold::until).transpose().map_err(no_pipe)?;
        if hold.as_ref().is_some_and(|hold| hold.as_fd().as_raw_fd() > self.last) {
            return Err(no_pipe(Error::MFILE));
        }
        let hold_end = hold.as_ref().map(|hold| HoldEnd { token: hold.as_fd(), daemon: self.daemon.as_fd() });
        if let Some(inherited) = launch.streams {
            // SAFETY: nothing in the warden opens or closes these descriptors, which it has had since its start. A
            // number that is no descriptor makes the child fail.
            let [stdin, stdout, stderr] = [inherited.stdin, inherited.stdout, inherited.stderr]
                .map(|stream| unsafe { BorrowedFd::borrow_raw(stream.max(0)) });
            let streams = ChildStreams { stdin, stdout, stderr, status: status_end.as_fd(), hold: hold_end };
            let (pid, forked_at) = fork(&setup, &streams)?;
            return Ok(Child { pid, forked_at, status, hold, stdout: None, stderr: None });
        }
        let (stdout, stdout_end) = pipe_below(self.last).map_err(no_pipe)?;
        let (stderr, stderr_end) = pipe_below(self.last).map_err(no_pipe)?;
        let streams = ChildStreams {
            stdin: input.as_ref().unwrap_or(&self.null).as_fd(),
            stdout: stdout_end.as_fd(),
            stderr: stderr_end.as_fd(),
            status: status_end.as_fd(),
            hold: hold_end,
        };
        let (pid, forked_at) = fork(&setup, &streams)?;
        Ok(Child { pid, forked_at, status, hold, stdout: Some(stdout), stderr: Some(stderr) })
    }
}

/// Forks, and runs the child's part in the child. Returns its pid and when it was forked.
fn fork(setup: &ChildSetup<'_>, streams: &ChildStreams<'_>) -> Result<(Pid, Uptime), StartFailure> {
    let warden = rustix::process::getpid();
    let at = uptime();
    if at >= setup.launch.not_after {
        return Err(StartFailure::TooLate);
    }
    let forked = match setup.cgroup {
        Some(cgroup) => fork_into(cgroup),
        None => plain_fork().map(|child| (child, true)),
    };
    match forked {
        Ok((None, is_in_cgroup)) => run_child(setup, streams, warden, is_in_cgroup),
        Ok((Some(pid), _)) => Ok((pid, at)),
        Err(error) => Err(failed(StartStep::Fork, Error::from_raw_os_error(error as i32))),
    }
}

/// The pid of the child; `None` in the child itself.
type Forked = Option<Pid>;

fn plain_fork() -> Result<Forked, Errno> {
    // SAFETY: the process has one thread, so the child's copy of memory is consistent and no lock in it is held by a
    // thread that does not exist there.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => Ok(None),
        ForkResult::Parent { child } => Pid::from_raw(child.as_raw()).map(Some).ok_or(Errno::ECHILD),
    }
}

/// Forks into a cgroup; returns true if the child starts there.
///
/// Moving a process into a cgroup afterwards would stop every fork and exit on the machine for a moment. If a sandbox
/// does not allow clone3, the child has to move itself.
fn fork_into(cgroup: BorrowedFd<'_>) -> Result<(Forked, bool), Errno> {
    let cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    let how = CloneArgs { flags: CLONE_INTO_CGROUP, exit_signal: libc::SIGCHLD as u64, cgroup, ..CloneArgs::default() };
    // SAFETY: without a flag that shares memory, and without a stack, this is a fork: see `plain_fork`. What the C
    // library does around its own fork is only needed by programs with threads.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const how, size_of::<CloneArgs>()) };
    match Errno::result(child) {
        Ok(child) => Ok((i32::try_from(child).ok().and_then(Pid::from_raw), true)),
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM) => Ok((plain_fork()?, false)),
        Err(error) => Err(error),
    }
}

/// The kernel's `struct clone_args`.
#[derive(Default)]
#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Defined here because the value does not fit the type of the libc crate's constant.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// How a start has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOutcome {
    /// The program began at this time.
    Began(Uptime),
    Failed(StartFailure),
    /// The child ended before its program, without a report: it was killed.
    Died,
}

/// Longest report on the status pipe, in bytes: the begin, and the failure to execute the program. That of a file is
/// shorter, as it comes alone.
pub(super) const REPORT: usize = 1 + 8 + 5;

/// Decodes the bytes on the status pipe, read to its end.
pub(super) fn outcome(report: &[u8]) -> StartOutcome {
    match report.split_first() {
        None => StartOutcome::Died,
        Some((&BEGAN, rest)) => {
            let (at, failure) =
                rest.split_first_chunk().map_or((0, rest), |(at, rest)| (u64::from_le_bytes(*at), rest));
            let began = StartOutcome::Began(Uptime::from_nanos(at));
            failure.split_first().map_or(began, |(&step, errno)| StartOutcome::Failed(failure_of(step, errno)))
        }
        Some((&step, errno)) => StartOutcome::Failed(failure_of(step, errno)),
    }
}

fn failure_of(step: u8, rest: &[u8]) -> StartFailure {
    let (errno, rest) = rest.split_first_chunk().map_or((0, rest), |(bytes, rest)| (i32::from_le_bytes(*bytes), rest));
    match step {
        ENVIRONMENT => StartFailure::Step { step: StartStep::Environment(file_problem(rest)), errno },
        TOO_LATE => StartFailure::TooLate,
        LIMITS => StartFailure::Step { step: StartStep::Limits, errno },
        USER => StartFailure::Step { step: StartStep::User, errno },
        DIRECTORY => StartFailure::Step { step: StartStep::Directory, errno },
        EXEC => StartFailure::Step { step: StartStep::Exec, errno },
        _ => StartFailure::Step { step: StartStep::Prepare, errno },
    }
}

const TOO_LATE: u8 = 0;
const PREPARE: u8 = 1;
const DIRECTORY: u8 = 2;
const EXEC: u8 = 3;
const LIMITS: u8 = 4;
const USER: u8 = 5;
const BEGAN: u8 = 6;
const ENVIRONMENT: u8 = 7;

/// The report about a file: its place, the fault, and the number that belongs to the fault.
fn report_of_file(FileProblem { index, fault }: FileProblem) -> Vec<u8> {
    let (code, number) = match fault {
        FileFault::System => (0, 0),
        FileFault::Unsafe => (1, 0),
        FileFault::Open => (2, 0),
        FileFault::NoFile => (3, 0),
        FileFault::TooLarge(most) => (4, most),
        FileFault::Line(BadLine { line, fault: LineFault::Name }) => (5, line),
        FileFault::Line(BadLine { line, fault: LineFault::Nul }) => (6, line),
        FileFault::Line(BadLine { line, fault: LineFault::Unclosed }) => (7, line),
        FileFault::Line(BadLine { line, fault: LineFault::TooLong }) => (8, line),
    };
    [&[index, code][..], &u32::to_le_bytes(number)].concat()
}

fn file_problem(report: &[u8]) -> FileProblem {
    let &[index, code, a, b, c, d] = report else { return FileProblem { index: 0, fault: FileFault::System } };
    let number = u32::from_le_bytes([a, b, c, d]);
    let line = |fault| FileFault::Line(BadLine { line: number, fault });
    let fault = match code {
        1 => FileFault::Unsafe,
        2 => FileFault::Open,
        3 => FileFault::NoFile,
        4 => FileFault::TooLarge(number),
        5 => line(LineFault::Name),
        6 => line(LineFault::Nul),
        7 => line(LineFault::Unclosed),
        8 => line(LineFault::TooLong),
        _ => FileFault::System,
    };
    FileProblem { index, fault }
}

/// The report that the program begins now.
pub(super) fn begin(now: Uptime) -> [u8; 9] {
    let [a, b, c, d, e, f, g, h] = now.as_nanos().to_le_bytes();
    [BEGAN, a, b, c, d, e, f, g, h]
}

fn report(failure: StartFailure) -> Vec<u8> {
    let (step, errno) = match failure {
        StartFailure::TooLate => (TOO_LATE, 0),
        StartFailure::Step { step: StartStep::Environment(_), errno } => (ENVIRONMENT, errno),
        StartFailure::Step { step: StartStep::Limits, errno } => (LIMITS, errno),
        StartFailure::Step { step: StartStep::User, errno } => (USER, errno),
        StartFailure::Step { step: StartStep::Directory, errno } => (DIRECTORY, errno),
        StartFailure::Step { step: StartStep::Exec, errno } => (EXEC, errno),
        StartFailure::Step { step: StartStep::Fork | StartStep::Prepare, errno } => (PREPARE, errno),
    };
    let of_file = match failure {
        StartFailure::Step { step: StartStep::Environment(problem), .. } => report_of_file(problem),
        _ => Vec::new(),
    };
    [&[step][..], &errno.to_le_bytes(), &of_file].concat()
}

pub(super) fn failed(step: StartStep, error: Error) -> StartFailure {
    StartFailure::Step { step, errno: error.raw_os_error() }
}

/// A pipe whose child's end has a descriptor of at most `last`.
fn pipe_below(last: RawFd) -> Result<(OwnedFd, OwnedFd), Error> {
    let (read, write) = pipe()?;
    if write.as_raw_fd() > last { Err(Error::MFILE) } else { Ok((read, write)) }
}

/// A pipe, as the warden's end and the child's end.
///
/// The warden's end is non-blocking. The child's end blocks, as programs expect of their output.
fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

/// Ends the child even if it panics: it must never return into the warden's loop.
struct NeverReturn;

impl Drop for NeverReturn {
    fn drop(&mut self) {
        // SAFETY: _exit only ends the process. Not `exit`, which would run code that belongs to the warden.
        unsafe { libc::_exit(127) }
    }
}

fn run_child(setup: &ChildSetup<'_>, streams: &ChildStreams<'_>, warden: Pid, is_in_cgroup: bool) -> ! {
    let guard = NeverReturn;
    let Err(failure) = become_job(setup, streams, warden, is_in_cgroup);
    // If this fails, the warden is gone, and nobody else reads the report.
    let _ = rustix::io::write(streams.status, &report(failure));
    drop(guard);
    unreachable!("the guard ended the process")
}

/// Closes all descriptors but the standard streams and `kept`.
///
/// Otherwise a child that hangs before exec would hold the daemon's socket or another job's pipe open. Kernels before
/// 5.9 do not have this call; there, close-on-exec has to suffice.
pub(super) fn close_others(kept: &mut [RawFd]) {
    kept.sort_unstable();
    let mut first = 3;
    for kept in kept.iter().map(|kept| kept.unsigned_abs()) {
        close_between(first, kept - 1);
        first = kept + 1;
    }
    close_between(first, u32::MAX);
}

fn close_between(first: u32, last: u32) {
    if first <= last {
        // SAFETY: nothing in this child uses another descriptor from here on, and no owner of one is ever dropped: the
        // child ends in exec or `_exit`.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Creates a session keyring for this process alone.
///
/// The inherited one is shared with the daemon and all other jobs. Without effect if the kernel has no keyrings, a
/// sandbox forbids them, or the user's quota is used up.
pub(super) fn join_own_keyring() -> Result<(), Error> {
    let nameless = std::ptr::null::<libc::c_char>();
    // SAFETY: it changes the credentials of this process, which has one thread, and nothing in its memory.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, nameless) };
    match Errno::result(joined) {
        Ok(_) | Err(Errno::ENOSYS | Errno::EPERM | Errno::EACCES | Errno::EDQUOT) => Ok(()),
        Err(error) => Err(Error::from_raw_os_error(error as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warden_decodes_what_the_child_reports() {
        for step in [StartStep::Prepare, StartStep::Limits, StartStep::User, StartStep::Directory, StartStep::Exec] {
            let failure = StartFailure::Step { step, errno: 13 };
            assert_eq!(outcome(&report(failure)), StartOutcome::Failed(failure));
        }
        let lines = [LineFault::Name, LineFault::Nul, LineFault::Unclosed, LineFault::TooLong];
        let lines = lines.map(|fault| FileFault::Line(BadLine { line: 70_000, fault }));
        let faults = [FileFault::System, FileFault::Unsafe, FileFault::Open, FileFault::NoFile, FileFault::TooLarge(9)];
        for fault in faults.into_iter().chain(lines) {
            let failure =
                StartFailure::Step { step: StartStep::Environment(FileProblem { index: 31, fault }), errno: 2 };
            assert_eq!(outcome(&report(failure)), StartOutcome::Failed(failure));
            assert!(report(failure).len() <= REPORT);
        }
        assert_eq!(outcome(&report(StartFailure::TooLate)), StartOutcome::Failed(StartFailure::TooLate));
        let at = Uptime::from_nanos(0x0102_0304_0506_0708);
        assert_eq!(outcome(&begin(at)), StartOutcome::Began(at));
        let failure = StartFailure::Step { step: StartStep::Exec, errno: 2 };
        let both = [&begin(at)[..], &report(failure)].concat();
        assert_eq!((outcome(&both), both.len()), (StartOutcome::Failed(failure), REPORT));
        assert_eq!(outcome(&[]), StartOutcome::Died);
    }
}
