//! The daemon's state as others see it: the status, the lease, the metrics, and when the loop last turned.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Daemon, Processes};
use crate::clock::{Clock, Now, Uptime};
use crate::job::JobSet;
use crate::metrics::Recorder;
use crate::run::journal::Journal;
use crate::status::Status;

/// Minimum interval between two publications of the status.
pub(super) const SHOW_EVERY: Duration = Duration::from_millis(250);

/// The channels on which the daemon publishes its state.
pub struct Shown {
    pub status: watch::Sender<Arc<Status>>,
    /// When the lease ends; absent while the node keeps none. It changes often, and alone: with it in the status, each
    /// renewal would copy the status for as long as a reader holds it.
    pub lease: watch::Sender<Option<Uptime>>,
    /// The jobs as last loaded.
    pub jobs: watch::Sender<Arc<JobSet>>,
    /// When the loop last turned.
    pub turned: watch::Sender<Uptime>,
    pub metrics: Recorder,
}

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    /// Publishes the metrics and the state. Building the state visits every job, so this happens at most once every [`SHOW_EVERY`].
    pub(super) fn show(&mut self, now: Now) {
        self.shown.metrics.share();
        if self.is_stale && now.up >= self.shown_at + SHOW_EVERY {
            (self.is_stale, self.shown_at) = (false, now.up);
            self.settings.notifier.status(&self.view.summary(&self.engine));
            self.shown.status.send_replace(Arc::new(self.view.status(now, &self.engine)));
            self.shown.lease.send_replace(self.view.lease_until(&self.engine));
        }
    }

    pub(super) fn show_lease(&mut self) {
        self.view.lease(self.engine.lease_until());
        self.shown.lease.send_replace(self.view.lease_until(&self.engine));
    }
}
