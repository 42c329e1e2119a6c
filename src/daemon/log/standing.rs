//! A cluster of which every node is drained: nobody leads, and each node says so now and then.

use std::time::Duration;

use tracing::warn;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Member;
use cronkeeper_core::log_event::{self, TARGET};

/// Interval of the warning.
const SAY_EVERY: Duration = Duration::from_secs(600);

/// When the warning is due.
#[derive(Debug, Default)]
pub(in crate::daemon) struct AllDrained {
    said_at: Option<Uptime>,
}

impl AllDrained {
    /// Warns if every node is drained, at once and then every [`SAY_EVERY`].
    pub fn follow(&mut self, now: Uptime, members: &[Member]) {
        if self.is_due(now, members) {
            let nodes = members.len();
            warn!(
                target: TARGET,
                event = log_event::ELECTION_ALL_DRAINED,
                nodes,
                "nobody leads and no job runs: every node is drained; `cronkeeper undrain NODE` lets one lead again",
            );
        }
    }

    fn is_due(&mut self, now: Uptime, members: &[Member]) -> bool {
        if members.is_empty() || !members.iter().all(|member| member.published.drained) {
            self.said_at = None;
            return false;
        }
        let is_due = self.said_at.is_none_or(|at| now >= at + SAY_EVERY);
        if is_due {
            self.said_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    #[test]
    fn it_is_said_at_once_and_every_ten_minutes_while_all_are_drained() {
        let at = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
        let (mut said, mut members) = (AllDrained::default(), sample::queue().members);
        members[0].published.drained = true;
        assert!(!said.is_due(at(0), &members), "one may still lead");
        members[1].published.drained = true;
        let said_at: Vec<u64> = (1..1300).filter(|&second| said.is_due(at(second), &members)).collect();
        assert_eq!(said_at, [1, 601, 1201]);
        assert!(!said.is_due(at(1300), &members[..0]) && said.is_due(at(1301), &members));
    }
}
