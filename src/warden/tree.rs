//! One tree id in use: a main process, its descendants, and the progress of its end.
//!
//! ```text
//!   held ──▶ starting ──▶ running ──▶ exited ──▶ cleared ──▶ Ended is sent
//!                            └─ killing ─┘ (its leftovers)
//! ```

mod all;
mod owner;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::Pid;

use super::cgroup::RunCgroup;
use super::hold::Hold;
use super::output::Output;
use super::procfs::Identity;
use super::spawn::Child;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::process::{Deadline, EndedBy, Exit, Launch, Stream};
use cronkeeper_core::run::KnownBy;

pub(super) use self::all::Trees;
pub(super) use self::owner::{Orphan, Owner, owner};

/// The variable that every process of a run has in its environment, unless a job removes it.
pub(super) const RUN_ID: &str = "CRONKEEPER_RUN_ID";

/// How long the steps before the program may take, before its time limit counts all the same.
const LONGEST_START: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) main: Pid,
    pub(super) forked_at: Uptime,
    pub(super) run: Option<Vec<u8>>,
    uid: u32,
    /// How to recognize its processes. If it is an audit session, it is known only once the program has started.
    pub(super) known_by: KnownBy,
    deadline: Deadline,
    /// The status pipe, until the child reports whether it reached its program.
    pub(super) starting: Option<OwnedFd>,
    /// The token of a child that is held until its time, while its program has not begun as far as is known.
    pub(super) hold: Option<Hold>,
    /// The warden has taken that token: its program never begins.
    pub(super) is_cancelled: bool,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) output: Output,
    /// What is left to read from the pipes of stdout and stderr, once no process of the tree is alive.
    left: [Option<usize>; 2],
    pub(super) cgroup: Option<RunCgroup>,
    pub(super) out_of_memory: bool,
    /// The first thing that the warden did to end it.
    pub(super) ended_by: Option<EndedBy>,
    /// It was sent SIGTERM, to which it can respond.
    got_sigterm: bool,
    time_limit: Option<Duration>,
    /// When that is over. It does not count any more once the tree is asked to end.
    limit_at: Option<Uptime>,
    /// When the grace period of a stop ends.
    kill_at: Option<Uptime>,
    /// All its processes are to be killed.
    is_killing: bool,
    pub(super) next_sweep: Uptime,
    pub(super) sweep_pause: Duration,
    /// Processes that were found while the tree was being killed, and whether they were sent SIGKILL.
    pub(super) found: BTreeMap<Identity, bool>,
    pub(super) leftovers: u32,
    /// How and when the main process ended. It stays a zombie until the tree is cleared, so that no other process,
    /// group or session can get its number meanwhile.
    exit: Option<(Exit, Uptime)>,
    /// No process of the tree is left, and the main process is reaped.
    is_cleared: bool,
}

impl Tree {
    /// The tree of a child that was just forked. `deadline` may be a newer one than that of the launch.
    pub(super) fn new(launch: &Launch, deadline: Deadline, child: Child) -> Self {
        Self {
            main: child.pid,
            forked_at: child.forked_at,
            run: launch.environment.variable(RUN_ID).map(|run| run.as_bytes().to_vec()),
            uid: launch.uid(),
            known_by: child.cgroup.as_ref().map_or(KnownBy::Environment, RunCgroup::known_by),
            deadline,
            starting: Some(child.status),
            hold: child.hold,
            is_cancelled: false,
            stdout: child.stdout,
            stderr: child.stderr,
            output: Output::new(launch.max_output),
            left: [None; 2],
            cgroup: child.cgroup,
            out_of_memory: false,
            ended_by: None,
            got_sigterm: false,
            time_limit: launch.time_limit,
            limit_at: launch
                .time_limit
                .map(|limit| launch.not_before.unwrap_or(child.forked_at) + LONGEST_START + limit),
            kill_at: None,
            is_killing: false,
            next_sweep: Uptime::ZERO,
            sweep_pause: Duration::ZERO,
            found: BTreeMap::new(),
            leftovers: 0,
            exit: None,
            is_cleared: false,
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.main.as_raw_nonzero().get()
    }

    pub(super) fn pipe(&mut self, stream: Stream) -> &mut Option<OwnedFd> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// The bytes to read from a pipe before the tree's end is reported; `None` if there are none. They are counted at the
    /// first call, when all processes of the tree are dead.
    pub(super) fn left_in_pipe(&mut self, stream: Stream) -> Option<usize> {
        let counted = match self.left[stream as usize] {
            Some(left) => left,
            None => {
                let in_pipe = rustix::io::ioctl_fionread(self.pipe(stream).as_ref()?).unwrap_or(0);
                usize::try_from(in_pipe).unwrap_or(usize::MAX)
            }
        };
        self.left[stream as usize] = Some(counted);
        (counted > 0).then_some(counted)
    }

    /// Records that this many of these bytes were read; 0: nothing is left.
    pub(super) fn drained(&mut self, stream: Stream, bytes: usize) {
        let left = &mut self.left[stream as usize];
        *left = if bytes == 0 { Some(0) } else { left.map(|left| left.saturating_sub(bytes)) };
    }

    /// Removes its cgroup if no process is left in it; true if there is none any more.
    pub(super) fn leave_cgroup(&mut self) -> bool {
        let Some(cgroup) = &self.cgroup else { return true };
        self.out_of_memory |= cgroup.ran_out_of_memory();
        if cgroup.remove() {
            self.cgroup = None;
        }
        self.cgroup.is_none()
    }

    /// True while the main process has not ended, as far as is known.
    pub(super) fn is_live(&self) -> bool {
        self.exit.is_none()
    }

    /// When it is killed, whatever its deadline is.
    fn limit(&self) -> Option<Uptime> {
        self.kill_at.or(self.limit_at)
    }

    pub(super) fn is_killing(&self) -> bool {
        self.is_killing
    }

    pub(super) fn exit(&self) -> Option<(Exit, Uptime)> {
        self.exit
    }

    /// The first thing that the warden did to end it, if that is what ended it.
    ///
    /// SIGKILL leaves no exit code. A main process with an exit code therefore ended by itself just before it was
    /// killed, unless it was asked to end.
    pub(super) fn ended_by(&self) -> Option<EndedBy> {
        let has_code = matches!(self.exit, Some((Exit::Code(_), _)));
        self.ended_by.filter(|_| self.got_sigterm || !has_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::process::{ExecStrings, LaunchFiles, Limits, TreeId};

    pub(super) fn tree(main: i32, run: &str, forked_at: u64) -> Tree {
        let pipe = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let at = Uptime::ZERO + Duration::from_secs(forked_at);
        let launch = Launch {
            tree_id: TreeId(0),
            argv: ["x"].into_iter().collect(),
            environment: ExecStrings::of_variables([(RUN_ID, run)]),
            input: String::new(),
            streams: None,
            directory: "/".into(),
            umask: 0o022,
            files: LaunchFiles::default(),
            or_root: false,
            user: None,
            nice: None,
            limits: Limits::default(),
            cgroup: None,
            not_before: None,
            not_after: Uptime::NEVER,
            deadline: Deadline::None,
            time_limit: None,
            max_output: 0,
        };
        let pid = Pid::from_raw(main).unwrap();
        let (stdout, stderr) = (Some(pipe()), Some(pipe()));
        let child = Child { pid, forked_at: at, status: pipe(), hold: None, stdout, stderr, cgroup: None };
        Tree::new(&launch, launch.deadline, child)
    }

    #[test]
    fn a_process_with_an_exit_code_was_not_killed() {
        let ended = |exit, got_sigterm| {
            let tree = Tree {
                ended_by: Some(EndedBy::Deadline),
                exit: Some((exit, Uptime::ZERO)),
                got_sigterm,
                ..tree(10, "a", 5)
            };
            tree.ended_by()
        };
        assert_eq!(ended(Exit::Code(0), false), None);
        assert_eq!(ended(Exit::Code(0), true), Some(EndedBy::Deadline));
        assert_eq!(ended(Exit::Signal { signal: 9, core: false }, false), Some(EndedBy::Deadline));
    }

    #[test]
    fn a_deadline_of_lease_and_instant_needs_both() {
        let at = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
        assert_eq!(Deadline::LeaseAnd(at(5)).due(at(9)), at(9));
        assert_eq!(Deadline::LeaseAnd(at(5)).due(at(3)), at(5));
        assert_eq!(Deadline::Lease.due(at(3)), at(3));
        assert_eq!((Deadline::At(at(5)).due(at(3)), Deadline::At(at(5)).due(at(9))), (at(5), at(5)));
        assert_eq!((Deadline::LeaseOr(at(5)).due(at(3)), Deadline::LeaseOr(at(5)).due(at(9))), (at(3), at(5)));
        assert_eq!(Deadline::None.due(Uptime::ZERO), Uptime::NEVER);
    }
}
