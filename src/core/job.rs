//! Definitions of jobs: name, schedule, command and policies.
//!
//! A [`JobSet`] is always valid, because only the program's `config` creates one, from validated jobs files.

mod alarms;
mod due;
mod edit;
mod execution;
mod hooks;
mod notify;
mod place;
mod set;
mod splay;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::environment_file::EnvironmentFile;
use crate::lock::LockPath;

pub use alarms::{Alarm, AlarmLimits};
pub use due::{Condition, Due};
pub use edit::Edit;
pub use hooks::{Hook, Hooks, NodeHook};
pub use notify::{BadChannelName, Channel, ChannelName, NoticeKind, NoticeKinds, Notify, Target, Url};
pub use place::{BadLabel, Label, Labels, MOST_LABELS, Requirement, RunOn, RunWhere};
pub use set::{Difference, JobSet};
pub use splay::Splay;

/// A job's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct JobName(Arc<str>);

/// The error for a text that is not a job name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a job name: expected a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`")]
pub struct BadJobName(pub String);

impl JobName {
    /// Checks a name.
    ///
    /// # Errors
    /// If the text is not a job name.
    pub fn parse(name: &str) -> Result<Self, BadJobName> {
        let rest = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let good = name.len() <= 100
            && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && name.bytes().all(rest);
        if good { Ok(Self(name.into())) } else { Err(BadJobName(name.to_owned())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobName {
    type Error = BadJobName;
    fn try_from(name: String) -> Result<Self, BadJobName> {
        Self::parse(&name)
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The command that a job or hook starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// A program and its arguments, passed literally. Never empty.
    Argv(Vec<String>),
    /// A script for `/bin/sh -c`.
    Shell(String),
    /// A script for another shell: a program and its arguments, never empty, to which the script is appended.
    OtherShell { shell: Vec<String>, script: String },
}

impl CommandLine {
    /// The shell of scripts that name none.
    pub const SHELL: &str = "/bin/sh";

    /// The same command, run by this shell if it is a script.
    #[must_use]
    pub fn under(self, shell: Vec<String>) -> Self {
        match self {
            // Written out or not, the default is the same command.
            Self::Shell(script) if shell != [Self::SHELL, "-c"] => Self::OtherShell { shell, script },
            command => command,
        }
    }

    /// The program and arguments to execute, including the shell of a script.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Argv(argv) => argv.clone(),
            Self::Shell(script) => vec![Self::SHELL.into(), "-c".into(), script.clone()],
            Self::OtherShell { shell, script } => shell.iter().chain([script]).cloned().collect(),
        }
    }

    /// The program to execute: that of a list, or the shell of a script.
    pub fn program(&self) -> &str {
        match self {
            Self::Argv(argv) => argv.first().map(String::as_str).unwrap_or_default(),
            Self::Shell(_) | Self::OtherShell { .. } => self.shell(),
        }
    }

    /// What the variable SHELL names: the shell of a script. For a list, too, the default.
    pub fn shell(&self) -> &str {
        match self {
            Self::OtherShell { shell, .. } => shell.first().map(String::as_str).unwrap_or_default(),
            Self::Argv(_) | Self::Shell(_) => Self::SHELL,
        }
    }
}

/// The policy for an occurrence while another run of the job is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Skip it and record the skip.
    #[default]
    Skip,
    /// Run it after the other has ended; at most one run waits.
    Queue,
    /// Run it concurrently.
    Allow,
    /// End the other run first.
    Replace,
}

/// Retry policy for runs whose attempt failed or timed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// Maximum number of further attempts.
    pub limit: u32,
    /// Delay from the first failure to the next attempt.
    pub delay: Duration,
    /// Factor by which the delay grows after each failure; at least 1.
    pub backoff: f64,
    /// Upper limit of the delay.
    pub max_delay: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self { limit: 0, delay: Duration::from_secs(30), backoff: 2.0, max_delay: Duration::from_secs(600) }
    }
}

/// A concurrency group: jobs that share a limit on concurrent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    /// Maximum number of runs in flight over all its jobs. At least 1, and equal in all of them.
    pub limit: usize,
}

/// The policy for occurrences that no leader decided in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misfire {
    /// Record them as missed.
    Skip,
    /// Run the newest one in the misfire window; record the others as missed.
    #[default]
    RunOnce,
    /// Run all in the misfire window, one after the other.
    RunAll,
}

/// The policy for a run whose node died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interrupted {
    /// The run ends as `interrupted`.
    #[default]
    Skip,
    /// The next leader begins another attempt.
    Rerun,
}

/// The policy for a run whose node is cut off from the coordination service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLeaseEnd {
    /// The run continues, at most until the job's next occurrence.
    #[default]
    Keep,
    /// The run is killed when the lease ends.
    Kill,
}

/// Least [`Job::history_limit`].
pub const LEAST_HISTORY_LIMIT: u16 = 5;

/// Default of [`Job::history_limit`]. It also applies to jobs that a node's files do not define.
pub const HISTORY_LIMIT: u16 = 20;

/// The user and group of a job's processes. The default for each is the daemon's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunAs {
    /// Name or number of a user, whose groups all apply.
    pub user: Option<String>,
    /// Name or number of a group that replaces the user's primary group.
    pub group: Option<String>,
}

/// Resource limits of a job's processes. `None` means unlimited or inherited from the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes. With a cgroup for the whole run, otherwise for the data of each process.
    pub memory: Option<u64>,
    /// Processes and threads. With a cgroup for the whole run, otherwise for the user.
    pub processes: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// CPU time of each process, in whole seconds.
    pub cpu_time: Option<Duration>,
}

/// A complete and valid definition of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Unique within the set.
    pub name: JobName,
    pub description: Option<String>,
    pub due: Due,
    /// Delay between each occurrence and its start.
    pub splay: Splay,
    pub command: CommandLine,
    /// If false, the job has no occurrences.
    pub enabled: bool,
    pub environment: BTreeMap<String, String>,
    /// Files with more variables, read at each start.
    pub environment_file: Vec<EnvironmentFile>,
    /// Files, by the names of the secrets in them, read at each start.
    pub secrets: BTreeMap<String, PathBuf>,
    /// Names of the variables that a trigger may set.
    pub parameters: BTreeSet<String>,
    pub run_as: RunAs,
    /// Nice value of its processes, -20 to 19; `None` means the daemon's.
    pub nice: Option<i32>,
    pub limits: Limits,
    /// `None` means the user's home directory.
    pub working_directory: Option<PathBuf>,
    pub umask: u32,
    /// Maximum duration of an attempt.
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace: Duration,
    pub retries: Retries,
    pub overlap: Overlap,
    pub concurrency_group: Option<Group>,
    pub run_on: RunOn,
    /// What a node must be like to run it; empty for a job that the leader runs.
    pub run_where: RunWhere,
    /// Held from before an attempt begins until its processes are dead.
    pub lock: Vec<LockPath>,
    pub misfire: Misfire,
    /// Maximum age of a missed occurrence that still runs. `None` means the time to the next occurrence, at most 12 h.
    pub misfire_window: Option<Duration>,
    /// Maximum number of occurrences that `misfire: run-all` makes up for at once.
    pub misfire_limit: usize,
    pub interrupted: Interrupted,
    /// Always `Kill` if `interrupted` is `Rerun`, or if there are locks.
    pub on_lease_end: OnLeaseEnd,
    pub success_exit_codes: BTreeSet<i32>,
    /// Maximum number of bytes of output to log for each attempt.
    pub max_output: u64,
    /// Number of newest run records, and of newest skip records, that the ledger keeps; at least 5.
    pub history_limit: u16,
    pub alarms: AlarmLimits,
    pub hooks: Hooks,
    /// Who hears of the job.
    pub notify: Notify,
}

/// Digest of a text: the first 16 hexadecimal digits of its SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    pub fn of(text: &[u8]) -> Self {
        use sha2::Digest as _;
        let hash = sha2::Sha256::digest(text);
        Self(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
