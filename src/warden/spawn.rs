//! Process start: pipes and fork.
//!
//! A start has two halves, [`Spawner::prepare`] and [`Spawner::fork`]. The warden prepares several starts before
//! it forks for the first: after a fork, the kernel copies each page that the warden writes to, and preparing a start
//! writes to many.
//!
//! The steps in the child are in `child`. The warden never waits for a child to reach exec: a working directory on a
//! dead network mount would delay every deadline. The child reports on a pipe what came of it: see `start_report`.
//!
//! This is the only file with `unsafe`: safe Rust has no fork. The warden has one thread, so between fork and exec the
//! child may do anything that a process may do, including allocation. But each page that it is the first to touch costs
//! it some microseconds. So the child calls the kernel directly and allocates nothing, unless the job has files or
//! inherits locks, or its program is a script without `#!`.
#![expect(
    unsafe_code,
    reason = "fork, exec, _exit, madvise, close_range, keyrings, signal masks and dispositions, and descriptors known by \
              number have no safe form"
)]

use std::ffi::{CStr, FromBytesWithNulError, c_char, c_void};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::unistd::ForkResult;
use rustix::io::Errno as Error;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::cgroup::{RunCgroup, UnusedCgroup};
use super::child::{ChildSetup, ChildStreams, HoldEnd, MovedEnds, NulByte, become_job};
use super::hold::Hold;
use super::procfs;
use super::start_report::{failed, report};
use crate::memory_file;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{ExecStrings, InheritedStreams, Launch, StartFailure, StartStep};

/// Descriptors kept free for reading /proc: without them no tree could be ended in an orderly way.
const RESERVE: RawFd = 16;

/// The first descriptor that is not a standard stream.
const FIRST_OF_JOB: RawFd = 3;

/// A child that was forked, and may not have reached its program yet.
#[derive(Debug)]
pub(super) struct Child {
    /// Leader of a session and process group of its own.
    pub(super) pid: Pid,
    pub(super) forked_at: Uptime,
    /// Closed when exec succeeds. It says when the program began, or what failed: see `start_report`.
    pub(super) status: OwnedFd,
    /// The token of a child that is held until its time; `None` if it begins its program at once.
    pub(super) hold: Option<Hold>,
    /// Its standard output, non-blocking; `None` if it has inherited streams.
    pub(super) stdout: Option<OwnedFd>,
    /// Its standard error, likewise.
    pub(super) stderr: Option<OwnedFd>,
    /// The cgroup that was created for it.
    pub(super) cgroup: Option<RunCgroup>,
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

/// Raises the limit of open files to the maximum, and returns the limit before. If the kernel refuses, it stays.
pub(super) fn raise_open_files() -> Rlimit {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    limit
}

/// The resources that every start needs.
#[derive(Debug)]
pub(super) struct Spawner {
    null: OwnedFd,
    /// What jobs get back of what the warden was started with.
    inherited: Inherited,
    /// The warden's own OOM score; absent if /proc cannot be read.
    oom_score: Option<OwnedFd>,
    /// A duplicate of the warden's end of a socket to the daemon.
    daemon: OwnedFd,
    /// Where children note that their programs begin; absent if no daemon has started this process.
    begins: Option<OwnedFd>,
    /// The highest descriptor that a job's pipes may have.
    last: RawFd,
}

/// What the warden was started with and has changed for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited {
    pub(super) open_files: Rlimit,
    /// In nanoseconds.
    pub(super) timer_slack: Option<NonZeroU64>,
}

impl Spawner {
    /// Raises the limit of open files to the maximum: each tree needs three, and a held one four.
    pub(super) fn new(
        daemon: BorrowedFd<'_>,
        begins: Option<OwnedFd>,
        timer_slack: Option<NonZeroU64>,
    ) -> io::Result<Self> {
        let open_files = raise_open_files();
        let limit = open_files.maximum.and_then(|limit| RawFd::try_from(limit).ok()).unwrap_or(RawFd::MAX);
        Ok(Self {
            null: File::open("/dev/null")?.into(),
            inherited: Inherited { open_files, timer_slack },
            oom_score: File::open("/proc/self/oom_score_adj").ok().map(OwnedFd::from),
            daemon: daemon.try_clone_to_owned()?,
            begins,
            last: limit - RESERVE,
        })
    }

    /// The highest descriptor that may be used for anything but ending trees.
    pub(super) fn last(&self) -> RawFd {
        self.last
    }

    /// Prepares all of a start but its descriptors, which [`Spawner::fork`] opens.
    pub(super) fn prepare<'a>(
        &self,
        launch: &'a Launch,
        cgroup: UnusedCgroup,
    ) -> Result<PreparedStart<'a>, StartFailure> {
        if launch.streams.as_ref().is_some_and(has_invalid) {
            return Err(failed(StartStep::Prepare, Error::BADF));
        }
        let is_in_cgroup = cgroup.get().is_some();
        let setup = ChildSetup::new(launch, self.inherited, is_in_cgroup, self.has_negative_oom_score())
            .map_err(|NulByte| failed(StartStep::Exec, Error::INVAL))?;
        Ok(PreparedStart { setup, cgroup })
    }

    /// Forks, unless it is too late, and runs the child's part in the child. The cgroup is then the child's.
    ///
    /// The descriptors are opened here. If those of this start existed at the fork for another, its child would hold
    /// the pipes open too, and the end of this one would look like its silence.
    pub(super) fn fork(&self, prepared: &mut PreparedStart<'_>) -> Result<Child, StartFailure> {
        let PreparedStart { setup, cgroup } = prepared;
        let launch = setup.launch;
        let no_pipe = |error| failed(StartStep::Fork, error);
        let directory = cgroup.get().map(RunCgroup::open).transpose().map_err(no_pipe)?;
        let (status, status_end) = pipe_below(self.last).map_err(no_pipe)?;
        let not_before = launch.not_before.filter(|&at| at > uptime());
        let hold = not_before.map(Hold::until).transpose().map_err(no_pipe)?;
        if hold.as_ref().is_some_and(|hold| hold.as_fd().as_raw_fd() > self.last) {
            return Err(no_pipe(Error::MFILE));
        }
        let streams = match &launch.streams {
            Some(inherited) => NewStreams::Inherited(inherited),
            None => self.pipes(launch).map_err(no_pipe)?,
        };
        // SAFETY: none is negative, which `prepare` has checked. Nothing in the warden opens or closes these descriptors,
        // which it has had since its start. A number that is no descriptor makes the child fail.
        let borrowed = |&inherited: &RawFd| unsafe { BorrowedFd::borrow_raw(inherited) };
        let locks: Vec<BorrowedFd<'_>> =
            launch.streams.iter().flat_map(|inherited| &inherited.locks).map(borrowed).collect();
        let [stdin, stdout, stderr] = match &streams {
            NewStreams::Inherited(InheritedStreams { stdin, stdout, stderr, .. }) => {
                [stdin, stdout, stderr].map(borrowed)
            }
            NewStreams::Pipes { input, stdout, stderr } => {
                [input.as_ref().unwrap_or(&self.null), &stdout.1, &stderr.1].map(AsFd::as_fd)
            }
        };
        let hold_end = hold.as_ref().map(|hold| HoldEnd { token: hold.as_fd(), daemon: self.daemon.as_fd() });
        let (status_end, begins) = (status_end.as_fd(), self.begins.as_ref().map(AsFd::as_fd));
        let ends = ChildStreams { stdin, stdout, stderr, locks: &locks, status: status_end, begins, hold: hold_end };
        let (pid, forked_at) = fork(setup, &ends, directory.as_ref().map(AsFd::as_fd))?;
        let (stdout, stderr) = match streams {
            NewStreams::Inherited(_) => (None, None),
            NewStreams::Pipes { stdout, stderr, .. } => (Some(stdout.0), Some(stderr.0)),
        };
        Ok(Child { pid, forked_at, status, hold, stdout, stderr, cgroup: cgroup.take() })
    }

    fn pipes<'a>(&self, launch: &'a Launch) -> Result<NewStreams<'a>, Error> {
        let text = Some(launch.input.as_bytes()).filter(|text| !text.is_empty());
        Ok(NewStreams::Pipes {
            input: text.map(memory_file::holding).transpose()?,
            stdout: pipe_below(self.last)?,
            stderr: pipe_below(self.last)?,
        })
    }

    /// True if the warden is protected when memory runs out, as its children are until they give that up.
    fn has_negative_oom_score(&self) -> bool {
        let mut sign = [0];
        self.oom_score.as_ref().is_some_and(|score| rustix::io::pread(score, &mut sign, 0).is_ok()) && sign == *b"-"
    }
}

/// A start that is ready for its descriptors and its fork. Without a fork, dropping it removes the cgroup.
pub(super) struct PreparedStart<'a> {
    setup: ChildSetup<'a>,
    cgroup: UnusedCgroup,
}

/// True if one of these numbers cannot be a descriptor.
fn has_invalid(inherited: &InheritedStreams) -> bool {
    let InheritedStreams { stdin, stdout, stderr, locks } = inherited;
    [stdin, stdout, stderr].into_iter().chain(locks).any(|&descriptor| descriptor < 0)
}

/// The standard streams of a child that is about to be forked.
enum NewStreams<'a> {
    Inherited(&'a InheritedStreams),
    Pipes {
        /// Without one, standard input is /dev/null.
        input: Option<OwnedFd>,
        stdout: Pipe,
        stderr: Pipe,
    },
}

/// The warden's end and the child's end.
type Pipe = (OwnedFd, OwnedFd);

/// Forks into a cgroup if there is one. Returns the child's pid and when it was forked.
fn fork(
    setup: &ChildSetup<'_>,
    streams: &ChildStreams<'_>,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<(Pid, Uptime), StartFailure> {
    let warden = rustix::process::getpid();
    let at = uptime();
    if at >= setup.launch.not_after {
        return Err(StartFailure::TooLate);
    }
    let forked = match cgroup {
        Some(cgroup) => fork_into(cgroup),
        None => plain_fork().map(|child| (child, true)),
    };
    match forked {
        Ok((None, is_in_cgroup)) => run_child(setup, streams, warden, cgroup.filter(|_| !is_in_cgroup)),
        Ok((Some(pid), _)) => Ok((pid, at)),
        Err(error) => Err(failed(StartStep::Fork, Error::from_raw_os_error(error as i32))),
    }
}

/// The pid of the child; `None` in the child itself.
pub(super) type Forked = Option<Pid>;

fn plain_fork() -> Result<Forked, Errno> {
    // SAFETY: the process has one thread, so the child's copy of memory is consistent and no lock in it is held by a
    // thread that does not exist there.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => Ok(None),
        ForkResult::Parent { child } => Pid::from_raw(child.as_raw()).map(Some).ok_or(Errno::ECHILD),
    }
}

/// Forks a child that shares this process's table of open files: what one of them opens or closes, both have or lose.
///
/// If a sandbox does not allow clone3, the child has a copy of the table.
pub(super) fn fork_sharing_files() -> Result<Forked, Errno> {
    let how = CloneArgs { flags: CLONE_FILES, exit_signal: libc::SIGCHLD as u64, ..CloneArgs::default() };
    match clone3(&how) {
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM) => plain_fork(),
        other => other,
    }
}

/// Forks into a cgroup; returns true if the child starts there.
///
/// Moving a process into a cgroup afterwards would stop every fork and exit on the machine for a moment. If a sandbox
/// does not allow clone3, the child has to move itself.
fn fork_into(cgroup: BorrowedFd<'_>) -> Result<(Forked, bool), Errno> {
    let cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    let how = CloneArgs { flags: CLONE_INTO_CGROUP, exit_signal: libc::SIGCHLD as u64, cgroup, ..CloneArgs::default() };
    match clone3(&how) {
        Ok(child) => Ok((child, true)),
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM) => Ok((plain_fork()?, false)),
        Err(error) => Err(error),
    }
}

/// A fork with some of the flags that share no memory.
fn clone3(how: &CloneArgs) -> Result<Forked, Errno> {
    // SAFETY: without a flag that shares memory, and without a stack, this is a fork: see `plain_fork`. What the C
    // library does around its own fork is only needed by programs with threads.
    let child = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::from_ref(how), size_of::<CloneArgs>()) };
    Errno::result(child).map(|child| i32::try_from(child).ok().and_then(Pid::from_raw))
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

const CLONE_FILES: u64 = libc::CLONE_FILES as u64;

/// A pipe whose child's end has a descriptor of at most `last`.
fn pipe_below(last: RawFd) -> Result<Pipe, Error> {
    let (read, write) = pipe()?;
    if write.as_raw_fd() > last { Err(Error::MFILE) } else { Ok((read, write)) }
}

/// A pipe. The warden's end is non-blocking. The child's end blocks, as programs expect of their output.
fn pipe() -> Result<Pipe, Error> {
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

fn run_child(
    setup: &ChildSetup<'_>,
    streams: &ChildStreams<'_>,
    warden: Pid,
    cgroup_to_enter: Option<BorrowedFd<'_>>,
) -> ! {
    let guard = NeverReturn;
    // A job finds its secrets at the descriptors behind its streams, whatever else the warden has open.
    let secrets = RawFd::try_from(setup.launch.files.secrets.len()).unwrap_or(RawFd::MAX);
    let moved = (secrets > 0).then(|| MovedEnds::from(streams, FIRST_OF_JOB.saturating_add(secrets))).transpose();
    let moved_streams = moved.as_ref().ok().and_then(Option::as_ref).map(|moved| moved.of(streams));
    let streams = moved_streams.as_ref().unwrap_or(streams);
    let Err(failure) = match &moved {
        Ok(_) => become_job(setup, streams, warden, cgroup_to_enter),
        Err(error) => Err(failed(StartStep::Prepare, *error)),
    };
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
    let mut first = FIRST_OF_JOB.unsigned_abs();
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

/// Unblocks all signals, which the warden has blocked and a child inherits.
pub(super) fn unblock_signals() -> Result<(), Error> {
    let (none, old) = (0_u64, std::ptr::null_mut::<u64>());
    // SAFETY: the kernel reads eight bytes, its whole set of signals. It writes none: it is not asked for the old set. No
    // handler can run: see `default_signals`.
    let done =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, old, size_of_val(&none)) };
    Errno::result(done).map(drop).map_err(|error| Error::from_raw_os_error(error as i32))
}

/// The arguments or the environment of a program, as execve(2) takes them.
pub(super) struct ExecArray<'a> {
    /// The strings, and a null pointer behind them.
    pointers: Vec<*const c_char>,
    strings: PhantomData<&'a CStr>,
}

impl<'a> ExecArray<'a> {
    pub(super) fn of(strings: &'a ExecStrings) -> Result<Self, FromBytesWithNulError> {
        let mut pointers = Vec::with_capacity(strings.len() + 1);
        for string in strings.c_strings() {
            pointers.push(string?.as_ptr());
        }
        pointers.push(std::ptr::null());
        Ok(Self { pointers, strings: PhantomData })
    }
}

impl<'a> FromIterator<&'a CStr> for ExecArray<'a> {
    fn from_iter<I: IntoIterator<Item = &'a CStr>>(strings: I) -> Self {
        let pointers = strings.into_iter().map(CStr::as_ptr).chain([std::ptr::null()]).collect();
        Self { pointers, strings: PhantomData }
    }
}

/// Executes a program in place of this process; returns only if that fails.
pub(super) fn execute(program: &CStr, argv: &ExecArray<'_>, environment: &ExecArray<'_>) -> Errno {
    let (argv, environment) = (argv.pointers.as_ptr(), environment.pointers.as_ptr());
    // SAFETY: all three are as execve(2) takes them: strings that end in NUL, and two arrays of such strings, which live
    // as long as the arrays, with a null pointer at their end.
    unsafe { libc::syscall(libc::SYS_execve, program.as_ptr(), argv, environment) };
    Errno::last()
}
