//! Intervals at which the leader searches for jobs to forget.
//!
//! A job is forgotten some time after it is gone from every node's files; `kept` is that time, as configured.

use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// Upper limit of the delay before the first search, which gives nodes that lost their connection time to return.
const FIRST: Duration = Duration::from_secs(300);

/// Time between two searches: 1/24 of `kept`, between one second and one hour. A `kept` of seconds is for trying the
/// feature out.
pub fn every(kept: Duration) -> Duration {
    (kept / 24).clamp(Duration::from_secs(1), HOUR)
}

/// Time from the election to the first search.
pub fn first(kept: Duration) -> Duration {
    every(kept).min(FIRST)
}
