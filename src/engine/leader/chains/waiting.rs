//! A run that waits for links of its upstreams.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::job::JobName;
use crate::run::{Answer, Link, TriggerSeq};

/// How long a link is waited for that nobody can leave any more, as far as is known here: that may lag behind. And how long a job is
/// waited for that this node's file lacks.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// So long at least, however old the other links are: those of earlier leaders' terms count, but not those that this one has not read yet.
const LISTEN_FOR: Duration = Duration::from_secs(10);
/// A run that is not decided on.
#[derive(Debug, Default)]
pub(super) struct WaitingRun {
    pub links: BTreeMap<TriggerSeq, Link>,
    /// Those that a commit under way takes away.
    pub asked: Vec<TriggerSeq>,
    /// How often its begin was refused.
    pub refused: u32,
    /// When it is given up: nobody can leave the links that are missing.
    pub give_up_at: Option<Uptime>,
}

impl WaitingRun {
    pub fn link_of(&self, upstream: &JobName) -> Option<&Link> {
        self.links.values().find(|link| link.upstream == *upstream)
    }

    /// Since when the newest of them stands.
    pub fn newest(&self) -> Timestamp {
        self.links.values().map(|link| link.at).max().unwrap_or(Timestamp::MIN)
    }

    /// How much longer a missing link is waited for that nobody can leave.
    pub fn timeout(&self, now: Timestamp) -> Duration {
        let waited = Duration::try_from(now.duration_since(self.newest())).unwrap_or_default();
        GIVE_UP_AFTER.saturating_sub(waited).max(LISTEN_FOR)
    }

    /// What its dependents receive when it is not run.
    pub fn answer_to_dependents(&self) -> Answer {
        let is_not_begun = self.links.values().any(|link| link.answer == Answer::NotBegun);
        if is_not_begun { Answer::NotBegun } else { Answer::Skipped }
    }
}
