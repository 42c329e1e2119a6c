//! The leader's slow look for jobs that are gone from the files of all members.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Backend;
use super::trouble::Trouble;
use crate::clock::system;
use crate::election::Defined;
use crate::ledger::{self, forgetting};

/// What a look rests on.
pub(super) struct Forgetting {
    after: Option<Duration>,
    /// The jobs of this node's files, once it has said so.
    defined: Option<Arc<Defined>>,
}

impl Forgetting {
    pub(super) fn after(after: Option<Duration>) -> Self {
        Self { after, defined: None }
    }

    pub(super) fn define(&mut self, defined: Arc<Defined>) {
        self.defined = Some(defined);
    }

    /// When a new leader looks first; never where nothing is to be removed.
    pub(super) fn first(&self, now: Instant) -> Option<Instant> {
        self.after.map(|after| now + forgetting::first(after))
    }
}

impl Backend {
    pub(super) fn forget(&mut self, now: Instant) -> Result<(), Trouble> {
        let Some(after) = self.forgetting.after else { return Ok(()) };
        self.timers.forget = Some(now + forgetting::every(after));
        let (Some(token), Some(defined)) =
            (self.contender.token(&self.service.events), self.forgetting.defined.clone())
        else {
            return Ok(());
        };
        if !self.errands.members.all_define(&defined.digest)? {
            return Ok(());
        }
        for (job, records) in self.store.forget(token, &defined.jobs, system::now().wall, after)? {
            self.untrimmed.remove(&job);
            self.answer(ledger::Event::Forgotten { job, records });
        }
        Ok(())
    }
}
