//! The daemon's state as others see it: the status, the lease, the metrics, and when the loop last turned.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::metrics::Recorder;
use crate::status::Status;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::JobSet;

/// Shortest pause between two publications of the state.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause, however long a publication takes. The API relies on it: see `SETTLED` in `api::reads`.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause as a multiple of the time that the last publication took: what people look at must not delay runs.
const PAUSE_FACTOR: u32 = 50;

/// Whether the state has to be published, and when.
#[derive(Debug)]
pub(super) enum Showing {
    /// Nothing has changed since it was published; not before this time again.
    Fresh { not_before: Uptime },
    /// The state has changed, and is published from this time on.
    Stale { from: Uptime },
}

impl Showing {
    /// Of a state that was never published.
    pub(super) const NEVER: Self = Self::Stale { from: Uptime::ZERO };

    /// The state has changed.
    pub(super) fn changed(&mut self) {
        if let Self::Fresh { not_before } = *self {
            *self = Self::Stale { from: not_before };
        }
    }

    /// When it is to be published; absent while nothing has changed.
    pub(super) fn due(&self) -> Option<Uptime> {
        match *self {
            Self::Fresh { .. } => None,
            Self::Stale { from } => Some(from),
        }
    }

    pub(super) fn is_due(&self, now: Uptime) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// The state was published, which took from `began` to `ended`.
    pub(super) fn published(began: Uptime, ended: Uptime) -> Self {
        let pause = (ended.since(began) * PAUSE_FACTOR).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        Self::Fresh { not_before: ended + pause }
    }
}

/// The channels on which the daemon publishes its state.
pub struct Shown {
    pub status: watch::Sender<Arc<Status>>,
    /// The last status while the node led: once the ledger cannot be read, nobody else knows what it knew then.
    pub led: watch::Sender<Option<Arc<Status>>>,
    /// When the lease ends; absent while the node keeps none. It changes often, and alone: with it in the status, each
    /// renewal would copy the status for as long as a reader holds it.
    pub lease: watch::Sender<Option<Uptime>>,
    /// The jobs as last loaded.
    pub jobs: watch::Sender<Arc<JobSet>>,
    /// When the loop last turned.
    pub turned: watch::Sender<Uptime>,
    pub metrics: Recorder,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_publication_takes_the_later_is_the_next() {
        let at = |millis| Uptime::ZERO + Duration::from_millis(millis);
        assert!(Showing::NEVER.is_due(Uptime::ZERO));
        for (took, pause) in [(0, 250), (5, 250), (10, 500), (30, 1_000), (9_000, 1_000)] {
            let mut showing = Showing::published(at(1_000), at(1_000 + took));
            assert_eq!(showing.due(), None, "nothing has changed");
            showing.changed();
            showing.changed();
            assert_eq!(showing.due(), Some(at(1_000 + took + pause)), "after {took} ms");
        }
    }
}
