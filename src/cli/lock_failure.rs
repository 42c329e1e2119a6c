//! Failures of the commands around locks, and of the way to ZooKeeper that they share.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Exit;
use cronkeeper_cluster::recipes::SessionError;
use cronkeeper_cluster::recipes::lock::LockError;
use cronkeeper_cluster::recipes::lock::latch::LatchError;
use cronkeeper_cluster::safe_path;
use cronkeeper_cluster::solo::file_lock::FileLockError;
use cronkeeper_core::escape;
use cronkeeper_core::lock::LockPath;

/// Why a command around locks failed.
#[derive(Debug, thiserror::Error)]
pub enum LockFailure {
    /// Options that clap alone cannot check contradict each other.
    #[error("{0}")]
    Usage(&'static str),
    /// The command could not be given the names of its locks.
    #[error(
        "the names of {names} locks take {bytes} bytes in CRONKEEPER_LOCK_PATH, more than the 128 KiB that one \
         variable can have: nothing was locked"
    )]
    TooLong { names: usize, bytes: usize },
    /// A command that needs a service has no servers.
    #[error("`{command}` needs a coordination service, and no servers are configured")]
    NoServers { command: &'static str },
    #[error("cannot reach {service} at {connect}: {why}")]
    Unreachable { service: &'static str, connect: String, why: String },
    #[error("{service} at {connect} refuses the credentials{}: {why}", of_file(file.as_deref()))]
    Credentials {
        service: &'static str,
        connect: String,
        /// The file with the identities, if there is one.
        file: Option<PathBuf>,
        why: String,
    },
    #[error("{service} at {connect} cannot be used: {why}")]
    Unusable { service: &'static str, connect: String, why: String },
    #[error("the path `{chroot}` does not exist in ZooKeeper")]
    NoChroot { chroot: String },
    #[error("`--environment-file`: cannot read {}", path.display())]
    EnvironmentFile { path: PathBuf, source: io::Error },
    /// The line is not quoted: it may be a secret.
    #[error("{}:{line}: {why}", path.display())]
    EnvironmentLine { path: PathBuf, line: u32, why: String },
    #[error("{}:{line}: {name}: {}", path.display(), escape::plain(why))]
    EnvironmentValue {
        path: PathBuf,
        line: u32,
        /// The variable.
        name: &'static str,
        why: String,
    },
    #[error(transparent)]
    Refused(#[from] LockError),
    #[error(transparent)]
    Latch(#[from] LatchError),
    #[error("`{path}` was not free {}", within(*waited))]
    Busy {
        /// The path in ZooKeeper, or the file.
        path: String,
        waited: Duration,
    },
    #[error("`{path}` did not open {}", within(*waited))]
    NotOpen { path: LockPath, waited: Duration },
    #[error(transparent)]
    File(FileLockError),
    /// The directory of the files for paths cannot be created or read.
    #[error("cannot use {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// A command under a read lock wants the write lock.
    #[error("this command runs under a read lock on `{path}`, which cannot become a write lock")]
    Upgrade { path: String },
    #[error("the warden was killed, and the command with it")]
    WardenGone,
    /// The lock was lost, or the time to hold it was over, before the command was started.
    #[error("the lock was lost, or `--hold` was over, before the command could be started")]
    Lost,
    #[error("the command cannot be started: {what}")]
    NotStarted {
        /// The program, or what failed.
        what: String,
        /// The program does not exist.
        is_missing: bool,
        source: io::Error,
    },
}

impl LockFailure {
    /// The failure of the session behind it, if that is what it is.
    pub(super) fn session(&self) -> Option<&SessionError> {
        match self {
            Self::Refused(LockError::Session(error)) | Self::Latch(LatchError::Session(error)) => Some(error),
            _ => None,
        }
    }

    /// Its exit code.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_)
            | Self::NoServers { .. }
            | Self::Upgrade { .. }
            | Self::Refused(LockError::OtherPermits { .. })
            | Self::File(FileLockError::OtherPermits { .. })
            | Self::Latch(LatchError::OtherCount { .. } | LatchError::NoLatch { .. }) => Exit::Usage,
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Busy { .. }
            | Self::NotOpen { .. }
            | Self::Refused(LockError::Busy { .. })
            | Self::File(FileLockError::Occupied { .. }) => Exit::TempFail,
            Self::Directory { source, .. } if safe_path::is_settled(source) => Exit::Config,
            // A user who may not open a file today may do so tomorrow.
            Self::File(FileLockError::Io { source, .. })
                if safe_path::is_settled(source) && source.kind() != io::ErrorKind::PermissionDenied =>
            {
                Exit::Config
            }
            Self::Credentials { .. }
            | Self::Unusable { .. }
            | Self::NoChroot { .. }
            | Self::EnvironmentFile { .. }
            | Self::EnvironmentLine { .. }
            | Self::EnvironmentValue { .. }
            | Self::File(FileLockError::Unsafe { .. } | FileLockError::Misled(_)) => Exit::Config,
            failure if matches!(failure.session(), Some(SessionError::NoAuth(_) | SessionError::NoRoot)) => {
                Exit::Config
            }
            Self::WardenGone => Exit::Command(137),
            Self::NotStarted { is_missing, .. } => Exit::Command(if *is_missing { 127 } else { 126 }),
            Self::TooLong { .. }
            | Self::Refused(_)
            | Self::Latch(_)
            | Self::File(_)
            | Self::Directory { .. }
            | Self::Lost => Exit::Failed,
        }
    }

    /// What to do about it.
    pub(super) fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::TooLong { .. } => {
                "lock fewer at once, name them by shorter paths, or lock a directory above them; a ZooKeeper server, too, \
                 takes only so many at once (`jute.maxbuffer`, about 1 MB by default)"
            }
            Self::NoServers { .. } => {
                "name them with `--zookeeper`, `--postgres`, `--etcd` or `--redis`, with the variables of these options, or in the environment file"
            }
            Self::EnvironmentFile { .. } => {
                "run as a user that can read it, name the servers with `--zookeeper`, or lock a file with `--file`"
            }
            Self::Directory { source, .. } if safe_path::is_settled(source) => {
                "without ZooKeeper, locks are in `locks` in the state directory of this user: $STATE_DIRECTORY, else \
                 /var/lib/cronkeeper for root, else $XDG_STATE_HOME/cronkeeper"
            }
            Self::NoChroot { .. } => "create it with ZooKeeper's shell, or correct `--zookeeper`",
            Self::Credentials { .. } => {
                "check `--zookeeper-auth-file`, or the setting of that name, and the certificates: each line is \
                 `scheme:credential`, such as `digest:user:password`, with a scheme that the servers know"
            }
            Self::Refused(LockError::TooLarge { .. }) => {
                "lock fewer paths or permits at once, or raise `jute.maxbuffer` on all servers"
            }
            Self::Refused(LockError::OtherPermits { .. }) | Self::File(FileLockError::OtherPermits { .. }) => {
                "all users of a semaphore must name the same `--permits`"
            }
            Self::Latch(LatchError::OtherCount { .. }) => "all users of a latch must name the same `--count`",
            failure if matches!(failure.session(), Some(SessionError::NoAuth(_))) => {
                "check `--zookeeper-auth-file` and the certificates"
            }
            Self::File(FileLockError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
                "everything above the file must be a directory"
            }
            Self::Upgrade { .. } => "take the lock with `--exclusive` outside",
            Self::NotStarted { source, .. } if source.kind() == io::ErrorKind::ArgumentListTooLong => {
                "one argument or variable can have 128 KiB, and all of them together a quarter of `ulimit -s`: the \
                 command gets this process's variables and CRONKEEPER_LOCK_PATH, CRONKEEPER_FENCING_TOKEN and \
                 CRONKEEPER_LOCK_KEYS"
            }
            Self::NotStarted { is_missing: true, source, .. } if source.raw_os_error().is_some() => {
                "a program without a slash is searched for in PATH; a script needs the interpreter that it names"
            }
            _ => return None,
        })
    }
}

/// Names the file of the credentials.
fn of_file(file: Option<&Path>) -> String {
    file.map(|file| format!(" of `{}`", file.display())).unwrap_or_default()
}

/// How long a lock was waited for.
fn within(waited: Duration) -> String {
    if waited.is_zero() {
        "at once".to_owned()
    } else {
        format!("within {}", cronkeeper_core::duration::format(waited))
    }
}
