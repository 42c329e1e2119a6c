//! The protocol between the daemon and the warden.
//!
//! Messages on a stream socket, each a length (u32, little endian) and that many bytes of JSON. There are two sockets.
//! On the first, the daemon sends each [`Launch`] and the warden all its notices. On the second, the daemon sends its
//! orders, each as a [`SentOrder`]: however many starts wait on the first socket, the lease and a kill do not wait
//! behind them.
//!
//! The daemon's ends close when the daemon dies, however it dies: that is the order to kill everything.

mod custody;
mod exec_strings;
mod output;
mod processes;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::custody::{Custody, Deposit};
pub use self::exec_strings::ExecStrings;
pub use self::output::{LINE_COST, character_cost, line_cost};
pub use self::processes::{NotSent, Processes, Recorded, WardenGone};
use crate::clock::Uptime;
use crate::environment_file::{BadLine, EnvironmentFile};
use crate::run::KnownBy;

/// A process tree, between daemon and warden. A daemon never uses a tree id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TreeId(pub u64);

/// A message from the daemon about trees that it has started, or about all of them.
///
/// It can overtake the starts that were sent before it. A tree that is to be stopped, killed or cancelled before the
/// warden has carried out its start is not started: `TooLate`. A deadline that overtakes its start replaces the
/// launch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// End a tree: SIGTERM now, SIGKILL after `grace_ms`. The warden answers with `Ended`.
    ///
    /// SIGCONT follows the SIGTERM, so that a stopped process receives it.
    Stop {
        tree_id: TreeId,
        /// Milliseconds until SIGKILL.
        grace_ms: u64,
    },
    /// End a tree by SIGKILL now. The warden answers with `Ended`.
    Kill { tree_id: TreeId },
    /// The new end of the lease. The warden then kills the trees whose `deadline` depends on it.
    Lease { until: Uptime },
    /// Do not start a tree whose `not_before` has not come. The warden answers with `NotStarted`. Without effect if the
    /// tree was not held, or if its program has begun meanwhile.
    Cancel { tree_id: TreeId },
    /// Send a signal to the group of a tree's main process. Without effect if the tree was not started.
    Signal {
        tree_id: TreeId,
        /// Its number.
        signal: i32,
    },
    /// Replace the deadline of a tree.
    Deadline { tree_id: TreeId, deadline: Deadline },
    /// Output that costs this much has been taken. The warden sends no more than a little ahead of these orders, so
    /// that no other notice waits behind much of it.
    OutputTaken { cost: u64 },
    /// Ask whether the warden is responding. It answers with `Pong`, after all notices before.
    Ping,
}

/// An order as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentOrder {
    /// Number of starts sent before it. An unknown tree id may be that of one of them, if the warden has not carried out
    /// as many yet.
    pub after: u64,
    /// What to do.
    pub order: Order,
}

/// A message from the daemon: start a process tree.
///
/// The warden answers with `Started` or `NotStarted`; before, with `Held`, if the program must not begin yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub tree_id: TreeId,
    /// The program and its arguments. Not empty. A program without a slash is searched in the PATH of `environment`.
    pub argv: ExecStrings,
    /// The whole environment: nothing is inherited.
    pub environment: ExecStrings,
    /// What the process is given besides, from files.
    #[serde(default, skip_serializing_if = "LaunchFiles::is_empty")]
    pub files: LaunchFiles,
    /// Text on its standard input; if empty, standard input is /dev/null.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// Its standard streams, if not `input` and two pipes to the warden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<InheritedStreams>,
    /// The working directory.
    pub directory: String,
    /// Start in `/` if `directory` cannot be entered.
    pub or_root: bool,
    /// The file mode creation mask.
    pub umask: u32,
    /// The user to run as, if not the daemon's.
    pub user: Option<User>,
    /// The nice value, if not the daemon's.
    pub nice: Option<i32>,
    pub limits: Limits,
    /// The cgroup to create for it. Without one, or if it cannot be created, all limits apply to single processes.
    pub cgroup: Option<Cgroup>,
    /// The program must not begin before this instant: the process is prepared and then held. Absent: it begins at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Uptime>,
    /// The process must not be started at or after this instant.
    pub not_after: Uptime,
    pub deadline: Deadline,
    /// The longest time that the program may run: then the warden kills the tree, unless it was asked to end before.
    ///
    /// The daemon stops what has timed out. This is for one that is stopped itself by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<Duration>,
    /// Bytes of output to send to the daemon, and less of very short lines; the rest is counted and dropped.
    pub max_output: u64,
}

impl Launch {
    /// The user id that it runs as.
    pub fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(|| nix::unistd::geteuid().as_raw(), |user| user.uid)
    }
}

/// Files that are read at the start, with the rights of the warden: they may be closed to the job's user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFiles {
    /// Files with variables. Of two with the same variable the later counts.
    pub environment: Vec<EnvironmentFile>,
    /// The names in the launch's `environment` whose values these files may replace.
    pub replaceable: Vec<String>,
    /// Files whose content the process finds in memory files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretFile>,
    /// The process starts without those that cannot be used, and finds their paths in [`UNUSABLE_FILES`].
    #[serde(default)]
    pub are_dispensable: bool,
}

/// The variable of a hook with the paths of the files that it starts without, a line each.
pub const UNUSABLE_FILES: &str = "CRONKEEPER_UNUSABLE_FILES";

/// A secret of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretFile {
    /// With `_FILE` at its end, the variable that holds the path of the memory file.
    pub name: String,
    pub path: PathBuf,
}

impl LaunchFiles {
    pub fn is_empty(&self) -> bool {
        self.environment.is_empty() && self.secrets.is_empty()
    }
}

/// Descriptors of the warden that become a process's standard streams. The warden inherited them from its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedStreams {
    pub stdin: i32,
    pub stdout: i32,
    pub stderr: i32,
    /// Other descriptors that the process has open. They are locked files, so the locks last as long as the process or
    /// one that it has started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<i32>,
}

/// Numeric ids of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The supplementary groups, the primary one included.
    pub groups: Vec<u32>,
}

/// Resource limits; absent means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Soft and hard RLIMIT_NOFILE; if absent, the limit that the warden was started with.
    pub open_files: Option<(u64, u64)>,
    /// Seconds of processor time.
    pub cpu_time: Option<u64>,
}

/// A cgroup for one tree, with the limits that it enforces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Path of the directory to create; its parent exists.
    pub path: String,
    /// Bytes for the whole tree.
    pub memory: Option<u64>,
    /// Processes and threads of the whole tree.
    pub processes: Option<u64>,
}

/// When the warden kills a tree without an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// When the lease ends.
    Lease,
    /// When the lease has ended and this instant has come.
    LeaseAnd(Uptime),
    /// When the lease ends or this instant has come, whichever is first.
    LeaseOr(Uptime),
    /// When this instant has come, regardless of the lease.
    At(Uptime),
    /// Never by itself.
    None,
}

impl Deadline {
    /// When to kill a tree with this deadline, if the lease ends at `lease_until`.
    pub fn due(self, lease_until: Uptime) -> Uptime {
        match self {
            Self::Lease => lease_until,
            Self::LeaseAnd(at) => lease_until.max(at),
            Self::LeaseOr(at) => lease_until.min(at),
            Self::At(at) => at,
            Self::None => Uptime::NEVER,
        }
    }
}

/// A message from the warden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The main process of a tree was forked, and waits for its `not_before`.
    Held {
        tree_id: TreeId,
        /// The process, as `Started` will name it.
        pid: i32,
    },
    /// A process is started without these files, which cannot be used. `Started` or `NotStarted` follows.
    WithoutFiles { tree_id: TreeId, files: Vec<UnusableFile> },
    /// A tree was started.
    Started {
        tree_id: TreeId,
        /// Its main process, leader of a session and process group of its own.
        pid: i32,
        /// When its program began.
        at: Uptime,
        /// What its processes are recognized by.
        known_by: KnownBy,
    },
    /// A tree was not started.
    NotStarted { tree_id: TreeId, why: StartFailure },
    /// Lines that a stream of a tree has got, in order.
    Output {
        tree_id: TreeId,
        stream: Stream,
        /// Without their ends; bytes that are not UTF-8 are replaced.
        lines: Vec<String>,
        /// True if the last line continues in the next message about this stream.
        continues: bool,
    },
    /// A tree has ended: its main process is reaped, and none of its processes is left.
    Ended(Box<Ending>),
    /// The warden is responding.
    Pong,
}

impl Notice {
    /// What the output in it costs; 0 if there is none.
    pub fn output_cost(&self) -> u64 {
        match self {
            Self::Output { lines, .. } => lines.iter().map(|line| line_cost(line)).sum(),
            _ => 0,
        }
    }
}

/// The end of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    pub tree_id: TreeId,
    pub exit: Exit,
    /// The first thing the warden did to end the main process; absent if that ended by itself.
    pub ended_by: Option<EndedBy>,
    /// When the main process ended.
    pub at: Uptime,
    /// Processes that outlived the main process and were killed.
    pub leftovers: u32,
    /// The last 4 KiB of its output, as text.
    pub tail: String,
    /// Bytes of output that were not sent.
    pub dropped_bytes: u64,
    /// The end of what was not sent; absent if everything was sent.
    pub unsent: Option<Unsent>,
    /// The kernel killed a process of it because the memory limit of its cgroup was reached.
    pub out_of_memory: bool,
}

/// What a tree wrote beyond what is sent of its output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsent {
    /// Bytes between what was sent and the lines.
    pub left_out: u64,
    /// The last lines, without their ends, in the order in which they were read. Bytes that are not UTF-8 are replaced.
    pub lines: Vec<(Stream, String)>,
}

/// The reason why the warden ended a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The daemon ordered a stop or a kill.
    Order,
    /// Its deadline passed.
    Deadline,
    /// It had run for its time limit.
    TimeLimit,
}

/// How a main process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal {
        signal: i32,
        /// True if it dumped core.
        core: bool,
    },
}

/// The stream that a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Why a tree was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartFailure {
    /// `not_after` or its deadline had passed, or the daemon ended or cancelled it before its program began.
    TooLate,
    /// A step between fork and exec failed.
    Step {
        step: StartStep,
        /// The system's error number (errno).
        errno: i32,
    },
}

/// A step of starting a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStep {
    /// Pipes and fork.
    Fork,
    /// Session, streams, mask.
    Prepare,
    /// Reading a file with variables.
    Environment(FileProblem),
    /// Reading a secret.
    Secret(FileProblem),
    /// Limits and nice value.
    Limits,
    /// Becoming the user.
    User,
    /// Entering the directory.
    Directory,
    /// Finding and executing the program.
    Exec,
    /// Executing a program that is there, by the interpreter that it names.
    Interpreter(InterpreterFault),
}

impl StartStep {
    /// The step as it appears in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Prepare => "prepare",
            Self::Environment(_) => "environment",
            Self::Secret(_) => "secret",
            Self::Limits => "limits",
            Self::User => "user",
            Self::Directory => "directory",
            Self::Exec | Self::Interpreter(_) => "exec",
        }
    }
}

/// What is wrong with the interpreter that a program names. The system reports that there is no such file, as if the
/// program were missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterpreterFault {
    /// The first line of the script ends with a carriage return, which is then part of the interpreter's name.
    CarriageReturn,
    /// The first line of the script names a file that does not exist.
    Missing,
    /// It is a binary, and its loader does not exist here.
    Loader,
}

/// A file that a process is started without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableFile {
    /// The step that would have failed.
    pub step: StartStep,
    /// The system's error number (errno), if that is what is wrong.
    pub errno: i32,
}

/// A file of a [`Launch`] that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileProblem {
    /// Its place among the files of its kind.
    pub index: u8,
    pub fault: FileFault,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFault {
    /// The failure has the system's error.
    System,
    /// Other users can change it, or replace it by another one.
    Unsafe,
    /// Users other than its owner can read or write it.
    Open,
    /// It is not a regular file.
    NoFile,
    /// It has more bytes than this.
    TooLarge(u32),
    /// One of its lines.
    Line(BadLine),
}
