//! Notifications as a jobs file configures them: kinds of notifications, and channels that get them.
//!
//! A channel is a webhook, a chat or a list of mail addresses, and has the kinds that it gets by default. A job names its
//! channels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Alarm;

/// Most characters of a channel's name.
const LONGEST_NAME: usize = 60;

/// What a notification is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// A run ended without success, and no retry follows.
    Failure,
    /// A run succeeded, and the job's previous run did not.
    Recovery,
    /// Occurrences were not run: no leader decided on them in time, no node took them, or commits about them are lost.
    Missed,
    /// A run has not started `late_after` after it was due.
    Late,
    /// An attempt has been running for longer than `long_after`.
    Long,
    /// The job has not succeeded for `stale_after`.
    Stale,
    /// A run printed something, whatever its outcome.
    Output,
    /// A new leader has taken over.
    LeaderChanged,
    /// A node has been gone for a while.
    NodeMissing,
    /// A node that was missing is back.
    NodeBack,
    /// A test of a channel.
    Test,
}

/// Kinds of notifications.
pub type NoticeKinds = BTreeSet<NoticeKind>;

impl NoticeKind {
    /// Those that a jobs file can name, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Failure,
        Self::Recovery,
        Self::Missed,
        Self::Late,
        Self::Long,
        Self::Stale,
        Self::Output,
        Self::LeaderChanged,
        Self::NodeMissing,
        Self::NodeBack,
    ];

    /// The word in jobs files, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Recovery => "recovery",
            Self::Missed => "missed",
            Self::Late => "late",
            Self::Long => "long",
            Self::Stale => "stale",
            Self::Output => "output",
            Self::LeaderChanged => "leader_changed",
            Self::NodeMissing => "node_missing",
            Self::NodeBack => "node_back",
            Self::Test => "test",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// True if it is about the cluster, and not about a job.
    pub fn is_of_cluster(self) -> bool {
        matches!(self, Self::LeaderChanged | Self::NodeMissing | Self::NodeBack)
    }

    /// What a channel gets without `on`: the problems that somebody must look at, and the news that they are over.
    pub fn by_default() -> NoticeKinds {
        [Self::Failure, Self::Recovery, Self::Missed, Self::Late, Self::Long, Self::Stale].into()
    }
}

impl From<Alarm> for NoticeKind {
    fn from(alarm: Alarm) -> Self {
        match alarm {
            Alarm::Late => Self::Late,
            Alarm::Long => Self::Long,
            Alarm::Stale => Self::Stale,
        }
    }
}

/// A channel's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,59}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct ChannelName(Arc<str>);

/// The error for a text that is not a channel's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a channel name: expected a letter or digit, then at most 59 letters, digits, `.`, `_` or `-`")]
pub struct BadChannelName(pub String);

impl ChannelName {
    /// Checks a name.
    ///
    /// # Errors
    /// If the text is not a channel's name.
    pub fn parse(name: &str) -> Result<Self, BadChannelName> {
        let is_known = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let begins = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        let is_good = begins && name.len() <= LONGEST_NAME && name.bytes().all(is_known);
        if is_good { Ok(Self(name.into())) } else { Err(BadChannelName(name.to_owned())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ChannelName {
    type Error = BadChannelName;
    fn try_from(name: String) -> Result<Self, BadChannelName> {
        Self::parse(&name)
    }
}

impl From<ChannelName> for String {
    fn from(name: ChannelName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The channels of a job, each with the kinds that it gets; absent: those that it gets by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify(pub BTreeMap<ChannelName, Option<NoticeKinds>>);

/// A place where people read notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    pub target: Target,
    /// What it gets by default.
    pub on: NoticeKinds,
    /// The least time from one message to the next.
    pub every: Duration,
}

/// How a channel's messages are delivered. What is secret is in files, which are read for each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// JSON by HTTP.
    Webhook {
        url: Url,
        headers: BTreeMap<String, String>,
        /// A file with more headers, a line each.
        headers_file: Option<PathBuf>,
        /// A file with the key of the signature.
        secret_file: Option<PathBuf>,
        /// The authorities whose certificates count; absent: those of the system.
        ca_file: Option<PathBuf>,
    },
    /// A text for Slack, or a service that takes the same.
    Slack { url: Url, ca_file: Option<PathBuf> },
    /// Mail.
    Mail {
        to: Vec<String>,
        /// Absent: cronkeeper, at the host's name.
        from: Option<String>,
        /// `smtps://` with TLS from the beginning, `smtp://` with STARTTLS unless the server is this host.
        smtp: String,
        user: Option<String>,
        password_file: Option<PathBuf>,
        /// The authorities whose certificates count; absent: those of the system.
        ca_file: Option<PathBuf>,
    },
}

/// An address, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Url {
    Text(String),
    /// It is the content of this file.
    File(PathBuf),
}

impl Url {
    fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Text(_) => None,
        }
    }
}

impl Target {
    /// The files with its secrets.
    pub fn secret_files(&self) -> Vec<&Path> {
        let files = match self {
            Self::Webhook { url, headers_file, secret_file, .. } => {
                [url.file(), headers_file.as_ref(), secret_file.as_ref()]
            }
            Self::Slack { url, .. } => [url.file(), None, None],
            Self::Mail { password_file, .. } => [password_file.as_ref(), None, None],
        };
        files.into_iter().flatten().map(PathBuf::as_path).collect()
    }

    /// The file with the authorities that its server's certificate is checked by.
    pub fn ca_file(&self) -> Option<&Path> {
        match self {
            Self::Webhook { ca_file, .. } | Self::Slack { ca_file, .. } | Self::Mail { ca_file, .. } => {
                ca_file.as_deref()
            }
        }
    }

    /// The word in jobs files and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Webhook { .. } => "webhook",
            Self::Slack { .. } => "slack",
            Self::Mail { .. } => "mail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_events_are_read_as_they_are_written() {
        for kind in NoticeKind::ALL {
            assert_eq!(NoticeKind::parse(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!(NoticeKind::parse("test"), None, "nobody subscribes to tests");
    }

    #[test]
    fn a_name_is_one_that_fits_into_a_path() {
        assert!(ChannelName::parse("ops.mail-1").is_ok());
        for bad in ["", ".", "a/b", "-a", "a b", &"x".repeat(61)] {
            assert!(ChannelName::parse(bad).is_err(), "{bad}");
        }
    }
}
