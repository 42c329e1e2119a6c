//! The leader's slow search for jobs that no node's file defines any more, and for nodes that are gone.

use std::collections::BTreeSet;
use std::time::Duration;

use super::futures::{BoxFuture, under_way};
use crate::recipes::context::{SessionContext, SessionError};
use crate::recipes::forget::{self, ForgetLook, ForgetOrder};
use crate::recipes::node::Node;
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Member;
use cronkeeper_core::job::JobName;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::term::NodeName;

/// Pause before the next pass when one failed or did not reach all jobs.
const SOON: Duration = Duration::from_secs(10);

/// The result of a pass.
pub(super) type Looked = Result<ForgetLook, SessionError>;

/// The leader's pass in flight, when the next one is due, and from which job it continues.
#[derive(Default)]
pub(super) struct Forgetting {
    under_way: Option<BoxFuture<Looked>>,
    at: Option<Uptime>,
    behind: Option<JobName>,
    /// The nodes that the last pass has found to be noted as gone.
    noted: BTreeSet<NodeName>,
}

impl Forgetting {
    /// When the next pass is due; absent while one is in flight.
    pub fn at(&self) -> Option<Uptime> {
        self.at.filter(|_| self.under_way.is_none())
    }

    /// The result of the pass in flight, forever if there is none. Cancellation safe: the pass is kept.
    pub async fn looked(&mut self) -> Looked {
        under_way(self.under_way.as_mut()).await
    }

    /// These nodes are alive. If one of them is noted as gone, the next pass, which removes that note, is due now: by the
    /// next regular one the node may be gone again, and its time would count from the old note.
    pub fn seen(&mut self, members: &[Member], now: Uptime) {
        if members.iter().any(|member| self.noted.contains(&member.node)) {
            self.noted.clear();
            self.at = self.at.map(|at| at.min(now));
        }
    }

    /// Starts a pass if one is due. Only a leader does this: only it knows what all nodes' files define. `fence` is the
    /// path of its candidate, unless it resigns.
    pub fn start<C: Session, K: Clock>(
        &mut self,
        now: Uptime,
        leads: bool,
        fence: Option<String>,
        node: &Node,
        context: &SessionContext<C, K>,
    ) {
        let after = node.options.forget_after;
        let Some((first, every)) = after.first().zip(after.every()) else { return };
        if !leads {
            (self.at, self.behind) = (None, None);
            self.noted.clear();
            return;
        }
        let at = *self.at.get_or_insert(now + first);
        if self.under_way.is_some() || now < at {
            return;
        }
        let (Some(fence), Some(defined), Some(time)) = (fence, node.desired.defined.clone(), node.time) else {
            self.at = Some(now + every);
            return;
        };
        let now_ms = time.earliest(now).as_millisecond();
        let order = ForgetOrder { fence, defined, after, now_ms, behind: self.behind.take() };
        self.under_way = Some(Box::pin(forget::look(context.clone(), order)));
    }

    /// Applies the result of a pass, and returns it.
    pub fn finish(&mut self, looked: Looked, now: Uptime, node: &Node) -> ForgetLook {
        self.under_way = None;
        let pause = node.options.forget_after.every().unwrap_or(SOON);
        let mut look = match looked {
            Ok(look) => look,
            Err(error) => {
                tracing::debug!(target: TARGET, "cannot read the records of undefined jobs: {error}");
                self.at = self.at.map(|_| now + pause.max(SOON));
                return ForgetLook::default();
            }
        };
        let next = if look.behind.is_some() { pause.min(SOON) } else { pause };
        self.at = self.at.map(|_| now + next);
        self.behind = look.behind.take();
        self.noted = std::mem::take(&mut look.noted);
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::tests_support::member;

    #[test]
    fn a_node_that_is_back_is_looked_at_now_and_one_that_was_not_gone_is_not() {
        let at = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
        let noted = [NodeName::new("host-b")].into();
        let mut forgetting = Forgetting { at: Some(at(3_600)), noted, ..Forgetting::default() };
        forgetting.seen(&[member("host-a")], at(5));
        assert_eq!(forgetting.at(), Some(at(3_600)));
        forgetting.seen(&[member("host-a"), member("host-b")], at(10));
        assert_eq!(forgetting.at(), Some(at(10)));
    }
}
