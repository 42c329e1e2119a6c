//! The leader's slow search for jobs that no node's file defines any more.

use std::time::Duration;

use super::SessionLoop;
use crate::recipes::context::SessionError;
use crate::recipes::forget::{self, ForgetLook, ForgetOrder};
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{self, forgetting};
use cronkeeper_core::log_event::TARGET;

/// Pause before the next pass when one failed or did not reach all jobs.
const SOON: Duration = Duration::from_secs(10);

/// When the leader's next pass is due, and from which job it continues.
#[derive(Default)]
pub struct Forgetting {
    at: Option<Uptime>,
    behind: Option<JobName>,
    is_under_way: bool,
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// When the next pass is due.
    pub(super) fn forget_at(&self) -> Option<Uptime> {
        self.housekeeping.forgetting.at.filter(|_| !self.housekeeping.forgetting.is_under_way)
    }

    /// Starts a pass if one is due. Only a leader does this: only it knows what all nodes' files define.
    pub(super) fn start_forgetting(&mut self, now: Uptime) {
        let Some(after) = self.node.options.forget_after else { return };
        if !self.candidacy.leads() {
            (self.housekeeping.forgetting.at, self.housekeeping.forgetting.behind) = (None, None);
            return;
        }
        let at = *self.housekeeping.forgetting.at.get_or_insert(now + forgetting::first(after));
        if self.housekeeping.forgetting.is_under_way || now < at {
            return;
        }
        let (fence, defined, time) = (self.fence(), self.node.desired.defined.clone(), self.node.time);
        let (Some((fence, _)), Some(defined), Some(time)) = (fence, defined, time) else {
            self.housekeeping.forgetting.at = Some(now + forgetting::every(after));
            return;
        };
        let now_ms = time.earliest(now).as_millisecond();
        let order = ForgetOrder { fence, defined, after, now_ms, behind: self.housekeeping.forgetting.behind.take() };
        self.housekeeping.forgetting.is_under_way = true;
        self.housekeeping.forgets.push(Box::pin(forget::look(self.context.clone(), order)));
    }

    pub(super) fn forgot(&mut self, look: Result<ForgetLook, SessionError>, now: Uptime) {
        self.housekeeping.forgetting.is_under_way = false;
        let pause = self.node.options.forget_after.map_or(SOON, forgetting::every);
        let ForgetLook { forgotten, behind } = match look {
            Ok(look) => look,
            Err(error) => {
                tracing::debug!(target: TARGET, "cannot read the records of undefined jobs: {error}");
                self.housekeeping.forgetting.at = self.housekeeping.forgetting.at.map(|_| now + pause.max(SOON));
                return;
            }
        };
        let next = if behind.is_some() { pause.min(SOON) } else { pause };
        self.housekeeping.forgetting.at = self.housekeeping.forgetting.at.map(|_| now + next);
        self.housekeeping.forgetting.behind = behind;
        for (job, records) in forgotten {
            self.housekeeping.trimmer.forget(&job);
            self.node.emit_ledger(ledger::Event::Forgotten { job, records });
        }
    }
}
