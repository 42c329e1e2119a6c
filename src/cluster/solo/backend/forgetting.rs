//! The leader's periodic removal of records of jobs that no member defines any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Backend;
use super::error::BackendError;
use cronkeeper_core::clock::system;
use cronkeeper_core::election::Defined;
use cronkeeper_core::job::{HISTORY_LIMIT, JobName};
use cronkeeper_core::ledger::{self, forgetting};

pub(super) struct Forgetting {
    /// How long a job must have been gone; absent: records are kept forever.
    after: Option<Duration>,
    /// The jobs of this node's files, once the daemon has sent them.
    defined: Option<Arc<Defined>>,
}

impl Forgetting {
    pub(super) fn after(after: Option<Duration>) -> Self {
        Self { after, defined: None }
    }

    /// Returns the jobs that now keep fewer history records.
    pub(super) fn define(&mut self, defined: Arc<Defined>) -> BTreeSet<JobName> {
        let before = self.defined.take().unwrap_or_default();
        let lowered = defined.lowered(&before);
        self.defined = Some(defined);
        lowered
    }

    pub(super) fn least_kept(&self, job: &JobName) -> usize {
        Defined::least_kept(self.defined.as_deref(), job)
    }

    pub(super) fn history_limit(&self, job: &JobName) -> usize {
        self.defined.as_ref().map_or(usize::from(HISTORY_LIMIT), |defined| defined.history_limit(job))
    }

    /// When a new leader checks first; absent if records are kept forever.
    pub(super) fn first(&self, now: Instant) -> Option<Instant> {
        self.after.map(|after| now + forgetting::first(after))
    }
}

impl Backend {
    pub(super) fn forget(&mut self, now: Instant) -> Result<(), BackendError> {
        let Some(after) = self.forgetting.after else { return Ok(()) };
        self.timers.forget = Some(now + forgetting::every(after));
        let (Some(token), Some(defined)) =
            (self.contender.token(&self.service.events), self.forgetting.defined.clone())
        else {
            return Ok(());
        };
        if !self.background.members.all_define(&defined.digest)? {
            return Ok(());
        }
        for (job, records) in self.store.forget(token, &defined.jobs, system::now().wall, after)? {
            self.untrimmed.remove(&job);
            self.emit_ledger(ledger::Event::Forgotten { job, records });
        }
        Ok(())
    }
}
