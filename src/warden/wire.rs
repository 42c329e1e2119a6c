//! What the daemon and the warden say to each other: messages on a stream socket, each a length (u32, little
//! endian) and that many bytes of JSON.
//!
//! There are two sockets. On the first the daemon orders starts and the warden tells all that it has to tell; on the second come all
//! other orders, each an [`Urgent`]: however many starts wait on the first, the lease and a kill wait for none of them.
//!
//! The daemon's ends close with the daemon, however it dies: that is the warden's order to kill all.

use serde::{Deserialize, Serialize};

use crate::clock::Uptime;
use crate::run::KnownBy;

/// Names a process tree between daemon and warden; never used twice by one daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TreeId(pub u64);

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start a process tree. Answered by `Started` or `NotStarted`. The only order that other orders overtake: what is to be stopped
    /// or killed before its start was read is not started, and that is `TooLate`.
    Start(Box<Launch>),
    /// End a tree: SIGTERM now (with SIGCONT, so that a stopped process hears it), SIGKILL after `grace_ms`. Answered by `Ended`.
    Stop {
        /// Which.
        tree_id: TreeId,
        /// Milliseconds until SIGKILL.
        grace_ms: u64,
    },
    /// End a tree by SIGKILL now. Answered by `Ended`.
    Kill {
        /// Which.
        tree_id: TreeId,
    },
    /// The lease now ends here; trees are killed by it as their `deadline` says.
    Lease {
        /// When.
        until: Uptime,
    },
    /// A tree is killed by this from now on.
    Deadline {
        /// Which.
        tree_id: TreeId,
        /// In place of the one it was started with.
        deadline: Deadline,
    },
    /// Say that you live. Answered by `Pong`, after all that was said before.
    Ping,
}

/// An order that waits for no start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Urgent {
    /// How many starts were ordered before it: a tree id that is not known may be among those of them that are still unread.
    pub after: u64,
    /// Anything but a start.
    pub order: Order,
}

/// What to start, and within which bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The tree's name.
    pub tree_id: TreeId,
    /// The program, searched in the PATH of `environment` unless it has a slash, and its arguments. Not empty.
    pub argv: Vec<String>,
    /// The whole environment.
    pub environment: Vec<(String, String)>,
    /// What it finds on its standard input; nothing where empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// Where to start.
    pub directory: String,
    /// Start in `/` where that cannot be entered.
    pub or_root: bool,
    /// The file mode creation mask.
    pub umask: u32,
    /// Whom to become, if not the daemon's user.
    pub user: Option<User>,
    /// The nice value, if not the daemon's.
    pub nice: Option<i32>,
    /// See [`Limits`].
    pub limits: Limits,
    /// The cgroup to make for it. Without one, or where it cannot be made, all limits are the kernel's for single processes.
    pub cgroup: Option<Cgroup>,
    /// Not to be started at or after this instant.
    pub not_after: Uptime,
    /// See [`Deadline`].
    pub deadline: Deadline,
    /// Bytes of output to hand on; what comes after is counted and dropped.
    pub max_output: u64,
}

impl Launch {
    /// Whom it runs as.
    pub fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(|| nix::unistd::geteuid().as_raw(), |user| user.uid)
    }
}

/// A user in the kernel's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// What processes may take; none where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Soft and hard RLIMIT_NOFILE; absent: what the warden was started with.
    pub open_files: Option<(u64, u64)>,
    /// Seconds of processor time.
    pub cpu_time: Option<u64>,
}

/// A cgroup for one tree, and those limits that it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Where to make it; the folder it stands in is there.
    pub path: String,
    /// Bytes of the whole tree.
    pub memory: Option<u64>,
    /// Processes and threads of the whole tree.
    pub processes: Option<u64>,
}

/// When a tree is killed without being told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// When the lease ends.
    Lease,
    /// When the lease has ended and this instant has come.
    LeaseAnd(Uptime),
    /// When this instant has come, whatever the lease says.
    At(Uptime),
    /// Never by itself.
    None,
}

impl Deadline {
    /// When a tree with this deadline is to be killed, if the lease ends at `lease_until`.
    pub fn due(self, lease_until: Uptime) -> Uptime {
        match self {
            Self::Lease => lease_until,
            Self::LeaseAnd(at) => lease_until.max(at),
            Self::At(at) => at,
            Self::None => Uptime::NEVER,
        }
    }
}

/// From the warden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// A tree was started.
    Started {
        /// Which.
        tree_id: TreeId,
        /// Its main process, leader of a session and process group of its own.
        pid: i32,
        /// When it was forked.
        at: Uptime,
        /// What tells its processes from others.
        known_by: KnownBy,
    },
    /// A tree was not started.
    NotStarted {
        /// Which.
        tree_id: TreeId,
        /// Why.
        why: StartFailure,
    },
    /// A line of output, without its end.
    Output {
        /// Of which tree.
        tree_id: TreeId,
        /// From where.
        stream: Stream,
        /// The line; bytes that are not UTF-8 are replaced.
        line: String,
        /// True where the line goes on in the next message.
        continues: bool,
    },
    /// A tree has ended: its main process is reaped and nothing of it is left.
    Ended(Box<Ending>),
    /// It lives.
    Pong,
}

/// The end of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// Which.
    pub tree_id: TreeId,
    /// How the main process ended.
    pub exit: Exit,
    /// The first thing the warden did to end it, before it had ended; absent where it ended by itself.
    pub ended_by: Option<EndedBy>,
    /// When the main process ended.
    pub at: Uptime,
    /// Processes that outlived the main process and were killed.
    pub leftovers: u32,
    /// The last 4 KiB of its output, as text.
    pub tail: String,
    /// Bytes of output that were not handed on.
    pub dropped_bytes: u64,
    /// The kernel killed it, or a part of it, because its cgroup's memory was used up.
    pub out_of_memory: bool,
}

/// What the warden did to end a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// Was told to stop or kill it.
    Order,
    /// Its deadline came.
    Deadline,
}

/// How a main process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal {
        /// Its number.
        signal: i32,
        /// True if it dumped core.
        core: bool,
    },
}

/// Where a line came from.
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
    /// `not_after` had come, or its deadline was already due, or it was to be ended before it began.
    TooLate,
    /// A step between fork and exec failed.
    Step {
        /// Which.
        step: Step,
        /// The system's error number.
        errno: i32,
    },
}

/// A step of starting a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Pipes and fork.
    Fork,
    /// Session, streams, mask.
    Prepare,
    /// Limits and nice value.
    Limits,
    /// Becoming the user.
    User,
    /// Entering the directory.
    Directory,
    /// Finding and executing the program.
    Exec,
}
