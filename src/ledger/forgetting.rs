//! When a leader looks for jobs that are gone from every node's files, by how long they are kept.

use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// The first look waits at most so long for nodes that were away with the leader before.
const FIRST: Duration = Duration::from_secs(300);

/// Between two looks. They are as far apart as the time asked for allows: a short one is tried out.
pub fn every(kept: Duration) -> Duration {
    (kept / 24).clamp(Duration::from_secs(1), HOUR)
}

/// From the election to the first look.
pub fn first(kept: Duration) -> Duration {
    every(kept).min(FIRST)
}
