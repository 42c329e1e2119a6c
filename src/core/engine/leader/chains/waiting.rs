//! A run that waits for the links of its upstreams.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::job::JobName;
use crate::run::{Link, TriggerSeq, UpstreamResult};

/// Time to wait for a link that apparently cannot arrive any more, because this node's knowledge may be outdated; and
/// for a job that this node's file does not define.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// Least time to wait, however old the other links are: this leader may not have read all links yet.
const LISTEN_FOR: Duration = Duration::from_secs(10);
/// An undecided run, with its links.
#[derive(Debug, Default)]
pub(super) struct WaitingRun {
    pub links: BTreeMap<TriggerSeq, Link>,
    /// Links that an in-flight commit removes.
    pub removing: Vec<TriggerSeq>,
    /// How often its begin was rejected.
    pub rejected: u32,
    /// When the run is given up, because the missing links cannot arrive any more.
    pub give_up_at: Option<Uptime>,
}

impl WaitingRun {
    pub fn link_of(&self, upstream: &JobName) -> Option<&Link> {
        self.links.values().find(|link| link.upstream == *upstream)
    }

    /// When the newest link was created.
    pub fn newest(&self) -> Timestamp {
        self.links.values().map(|link| link.at).max().unwrap_or(Timestamp::MIN)
    }

    /// The earliest time at which the last link can have been there, as far as commits can be lost.
    pub fn earliest(&self) -> Timestamp {
        self.links.values().map(Link::earliest).max().unwrap_or(Timestamp::MIN)
    }

    /// Remaining time to wait for a missing link that cannot arrive any more.
    pub fn timeout(&self, now: Timestamp) -> Duration {
        let waited = Duration::try_from(now.duration_since(self.newest())).unwrap_or_default();
        GIVE_UP_AFTER.saturating_sub(waited).max(LISTEN_FOR)
    }

    /// The result that its dependents receive if it is not run.
    pub fn result_for_dependents(&self) -> UpstreamResult {
        let is_not_begun = self.links.values().any(|link| link.result == UpstreamResult::NotBegun);
        if is_not_begun { UpstreamResult::NotBegun } else { UpstreamResult::Skipped }
    }
}
