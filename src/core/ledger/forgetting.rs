//! When the leader forgets jobs and nodes, and the intervals at which it searches for them.
//!
//! A job is forgotten some time after it is gone from every node's files, a node some time after it is gone; `kept` is that
//! time, as configured.

use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// Upper limit of the delay before the first search, which gives nodes that lost their connection time to return.
const FIRST: Duration = Duration::from_secs(300);

/// How long records of what is gone are kept; `None`: forever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetAfter {
    /// A job that no node's file defines.
    pub jobs: Option<Duration>,
    /// A node that is not alive.
    pub nodes: Option<Duration>,
}

impl ForgetAfter {
    /// The time between two searches; `None` if nothing is forgotten.
    pub fn every(&self) -> Option<Duration> {
        self.jobs.into_iter().chain(self.nodes).min().map(every)
    }

    /// The time from the election to the first search; `None` if nothing is forgotten.
    pub fn first(&self) -> Option<Duration> {
        self.jobs.into_iter().chain(self.nodes).min().map(first)
    }
}

/// Time between two searches: 1/24 of `kept`, between one second and one hour. A `kept` of seconds is for trying the
/// feature out.
pub fn every(kept: Duration) -> Duration {
    (kept / 24).clamp(Duration::from_secs(1), HOUR)
}

/// Time from the election to the first search.
pub fn first(kept: Duration) -> Duration {
    every(kept).min(FIRST)
}
