//! What a job is: its name, its command, and the policies its owner chose.
//!
//! A [`JobSet`] cannot be wrong: it is only made from a validated jobs file (`config`).

mod due;
mod hooks;
mod set;
mod splay;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use due::{Condition, Due};
pub use hooks::{Hook, Hooks};
pub use set::{Difference, JobSet};
pub use splay::Splay;

/// A job's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(Arc<str>);

/// A text that is no job name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no job name: a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`")]
pub struct BadJobName(pub String);

impl JobName {
    /// Checks a name.
    ///
    /// # Errors
    /// When the text is no job name.
    pub fn parse(name: &str) -> Result<Self, BadJobName> {
        let rest = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let good = name.len() <= 100
            && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && name.bytes().all(rest);
        if good { Ok(Self(name.into())) } else { Err(BadJobName(name.to_owned())) }
    }

    /// The name.
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

/// What a job starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// A program and its arguments, as they are. Never empty.
    Argv(Vec<String>),
    /// A text for `/bin/sh -c`.
    Shell(String),
}

impl CommandLine {
    /// The program and its arguments.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Argv(argv) => argv.clone(),
            Self::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
        }
    }
}

/// What to do when an occurrence comes while a run of the job is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Do not run it, and say so.
    #[default]
    Skip,
    /// Run it once the other has ended; one waits.
    Queue,
    /// Run it beside the other.
    Allow,
    /// End the other, then run it.
    Replace,
}

/// How often, and when, a run whose attempt failed or took too long is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// How many more attempts a run gets.
    pub limit: u32,
    /// From the failure to the next attempt, the first time.
    pub delay: Duration,
    /// What the delay is multiplied with from one time to the next; at least 1.
    pub backoff: f64,
    /// The longest delay.
    pub max_delay: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self { limit: 0, delay: Duration::from_secs(30), backoff: 2.0, max_delay: Duration::from_secs(600) }
    }
}

/// Jobs of which only so many run at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What its jobs name it.
    pub name: String,
    /// How many runs of all its jobs may be in flight at once; at least 1, and the same for all of them.
    pub limit: usize,
}

/// What to do with occurrences that nobody decided on in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misfire {
    /// Record them as missed.
    Skip,
    /// Run the newest in the window; record the others as missed.
    #[default]
    RunOnce,
    /// Run all in the window, one after the other.
    RunAll,
}

/// What becomes of a run whose node died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interrupted {
    /// It ends `interrupted`.
    #[default]
    Skip,
    /// Another attempt, on the next leader.
    Rerun,
}

/// What becomes of a run while its node is cut off from the coordination service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLeaseEnd {
    /// It goes on, at most until the job's next occurrence.
    #[default]
    Keep,
    /// It is killed when the lease ends.
    Kill,
}

/// Who a job's processes run as; what is not named is the daemon's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunAs {
    /// A user's name or number, with all groups of that user.
    pub user: Option<String>,
    /// A group's name or number, in place of the user's own group.
    pub group: Option<String>,
}

/// How much a job's processes may take; what is not given is unlimited, or as the daemon was given it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes: of the whole run where a cgroup limits it, else of data in each process.
    pub memory: Option<u64>,
    /// Processes and threads: of the whole run where a cgroup limits it, else of all that the user has.
    pub processes: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// Processor time of each process.
    pub cpu_time: Option<Duration>,
}

/// A definition of a job, complete and valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Unique in its set.
    pub name: JobName,
    /// For people.
    pub description: Option<String>,
    /// See [`Due`].
    pub due: Due,
    /// How much later it starts.
    pub splay: Splay,
    /// What it starts.
    pub command: CommandLine,
    /// False: it has no occurrences.
    pub enabled: bool,
    /// Added to the environment of its processes.
    pub environment: BTreeMap<String, String>,
    /// Who its processes run as.
    pub run_as: RunAs,
    /// The nice value of its processes, -20 to 19; absent: as the daemon's.
    pub nice: Option<i32>,
    /// See [`Limits`].
    pub limits: Limits,
    /// Where its processes start; without one, the home directory.
    pub working_directory: Option<PathBuf>,
    /// The file mode creation mask of its processes.
    pub umask: u32,
    /// How long an attempt may take.
    pub timeout: Option<Duration>,
    /// How long after SIGTERM comes SIGKILL.
    pub kill_grace: Duration,
    /// See [`Retries`].
    pub retries: Retries,
    /// See [`Overlap`].
    pub overlap: Overlap,
    /// See [`Group`].
    pub concurrency_group: Option<Group>,
    /// See [`Misfire`].
    pub misfire: Misfire,
    /// How old a missed occurrence may be and still be run; without one, the time to its next occurrence, at most 12 h.
    pub misfire_window: Option<Duration>,
    /// How many occurrences `misfire: run-all` makes up in one go.
    pub misfire_limit: usize,
    /// See [`Interrupted`].
    pub interrupted: Interrupted,
    /// See [`OnLeaseEnd`]. `Kill` wherever `interrupted` is `Rerun`.
    pub on_lease_end: OnLeaseEnd,
    /// Exit codes that count as success.
    pub success_exit_codes: BTreeSet<i32>,
    /// Bytes of output that are logged of an attempt.
    pub max_output: u64,
    /// What is run after it.
    pub hooks: Hooks,
}

impl Job {
    /// Of all that says when it starts: its expressions, zone, treatment of shifts and splay; or after which jobs.
    pub fn schedule_digest(&self) -> Digest {
        let canonical = self.due.canonical();
        let text = match self.splay.within() {
            Duration::ZERO => canonical,
            within => format!("{canonical} | splay {}ms", within.as_millis()),
        };
        Digest::of(text.as_bytes())
    }
}

/// Identifies a text by its content: 16 hexadecimal digits of its SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    /// The digest of `text`.
    pub fn of(text: &[u8]) -> Self {
        use sha2::Digest as _;
        let hash = sha2::Sha256::digest(text);
        Self(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
