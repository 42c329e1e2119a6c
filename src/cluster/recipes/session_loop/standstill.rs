//! Steps down while the daemon's loop stands still.
//!
//! A disk that does not answer blocks the daemon's loop, but not the session: without this the node would lead and do
//! nothing.
//!
//! T is the session timeout. The loop turns every T/8 at least.
//!
//! - T/2 after its last turn the node leaves the queue and its term is over. It joins again only after the loop has
//!   turned.
//! - 3T/2 after its last turn the node removes its member too, so that other nodes settle its runs. By then the warden
//!   has killed all runs that they may start again: it receives the lease only through the loop, the last lease that it
//!   received ends within 0.85 T of the loop's last turn, and the rest is time to kill. Attempts that were begun, and
//!   reported to the loop since its last turn, were never started and never will be: the loop reads of them only behind
//!   the end of the term, or behind a lease that ends at most 1.35 T after its last turn (no lease sent later than T/2
//!   after that turn is passed on), and either way the lease is over. So the node releases these attempts, for whoever
//!   leads to start, before it removes the member.
//! - When the loop turns again the node recreates its member, claims its runs under it, and queues again.
//!
//! Only time in which this side was running counts: a process that was stopped as a whole is not a loop that stands
//! still.

use std::collections::BTreeSet;
use std::time::Duration;

use super::SessionLoop;
use super::step::{Request, Retry};
use super::step_result::StepResult;
use crate::recipes::place;
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::lease::longest_standstill;
use cronkeeper_core::ledger::{Change, CommitId};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::run::{Nonce, RunRecord, RunState, Version, millis};
use cronkeeper_core::term::TermEnd;

/// How far the node has stepped down because the daemon's loop stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standstill {
    /// It turns.
    #[default]
    None,
    /// The loop has not turned for T/2: the node must leave the queue.
    OutOfQueue,
    /// The loop has not turned for 3T/2: the node must remove its member too.
    OutOfCluster,
}

/// Measures for how long the daemon's loop has not turned.
#[derive(Clone, Copy, Debug)]
pub struct LoopWatch {
    /// The result of the last check.
    pub is: Standstill,
    /// The newest turn that a check has seen.
    turned: Uptime,
    /// Since when the loop stands still, moved forward by any time in which this side did not run either.
    since: Uptime,
    checked_at: Uptime,
}

impl LoopWatch {
    /// Starts measuring now, for a loop that last turned at `turned`.
    ///
    /// Establishing a session takes a while. A loop that has not turned meanwhile has stood still since `turned`.
    pub fn from(now: Uptime, turned: Uptime) -> Self {
        let since = if turned == Uptime::ZERO { now } else { turned };
        Self { is: Standstill::None, turned, since, checked_at: now }
    }

    /// Checks when the loop last turned. A loop that has not begun does not stand still.
    fn check(&mut self, turned: Uptime, now: Uptime, timeout: Duration) -> Standstill {
        let unseen = now.since(self.checked_at);
        let was_away = unseen > timeout / 4;
        self.checked_at = now;
        let has_turned = std::mem::replace(&mut self.turned, turned) != turned;
        self.since = match (has_turned, was_away) {
            _ if turned == Uptime::ZERO => now,
            (true, true) => now,
            (true, false) => turned.max(self.since),
            (false, true) => self.since + unseen,
            (false, false) => self.since,
        };
        let stands = now.since(self.since);
        match self.is {
            Standstill::OutOfCluster if stands >= longest_standstill(timeout) => Standstill::OutOfCluster,
            _ if stands >= timeout * 3 / 2 => Standstill::OutOfCluster,
            _ if stands >= longest_standstill(timeout) => Standstill::OutOfQueue,
            _ => Standstill::None,
        }
    }

    /// When to check again.
    pub fn next(&self, timeout: Duration) -> Option<Uptime> {
        (self.turned > Uptime::ZERO).then(|| self.checked_at + timeout / 8)
    }
}

/// The session's reaction to a daemon's loop that stands still.
pub(super) struct StandstillGuard {
    pub watch: LoopWatch,
    /// Begun attempts that the loop may not have received.
    pub unreceived: UnreceivedBegins,
    /// The node's own entries are being removed.
    pub is_leaving: bool,
}

impl StandstillGuard {
    pub fn new(now: Uptime, turned: Uptime) -> Self {
        Self { watch: LoopWatch::from(now, turned), unreceived: UnreceivedBegins::default(), is_leaving: false }
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Checks the daemon's loop, and steps down or comes back accordingly.
    pub(super) fn watch_loop(&mut self) {
        let (now, turned) = (self.now(), *self.node.service.turned.borrow());
        let before = self.standstill.watch.is;
        self.standstill.watch.is = self.standstill.watch.check(turned, now, self.timeout);
        let stood_ms = millis(now.since(turned));
        match (before, self.standstill.watch.is) {
            (Standstill::None, Standstill::OutOfQueue) => tracing::warn!(
                target: TARGET,
                event = log_event::NODE_STUCK,
                stood_ms,
                "the daemon's loop is stuck, perhaps because the state directory's disk does not respond; leaving \
                 the queue until it turns again"
            ),
            (Standstill::None | Standstill::OutOfQueue, Standstill::OutOfCluster) => {
                tracing::warn!(
                    target: TARGET,
                    event = log_event::NODE_STUCK,
                    stood_ms,
                    "the daemon's loop is still stuck; removing this node's member, so that other nodes settle its \
                     runs"
                );
                self.revoke_lease();
                // The loop may be turning right now. The lease is revoked first, because the loop reports its turn
                // before it reads the lease: if no turn is visible here, the loop will read the revoked lease.
                if *self.node.service.turned.borrow() == turned {
                    self.release_unreceived();
                    self.release_job_locks();
                } else {
                    self.standstill.watch.is = Standstill::OutOfQueue;
                }
            }
            (Standstill::OutOfQueue | Standstill::OutOfCluster, Standstill::None) => {
                tracing::info!(target: TARGET, event = log_event::NODE_UNSTUCK, "the daemon's loop turns again; rejoining");
                self.step.retry = Retry::default();
            }
            _ => {}
        }
        self.standstill.unreceived.loop_turned(turned);
        let has_candidate = self.candidacy.candidate.is_some() || self.candidacy.leads();
        if self.standstill.watch.is != Standstill::None && has_candidate {
            self.lose_term(TermEnd::Stalled);
        }
    }

    fn release_unreceived(&mut self) {
        for (id, change) in self.standstill.unreceived.release_all() {
            self.commit(id, change);
        }
    }

    /// True while the daemon's loop turns, as of the last check.
    pub(super) fn loop_turns(&self) -> bool {
        self.standstill.watch.is == Standstill::None
    }

    /// True if the node is out of the cluster and must not send requests before the loop turns again.
    pub(super) fn is_out_of_cluster(&self) -> bool {
        self.standstill.watch.is == Standstill::OutOfCluster
            && !self.membership.is_present()
            && self.candidacy.retired.is_none()
    }

    /// The request that removes the node's own entries but keeps the session; `None` if it is not needed.
    pub(super) fn leave_cluster(&mut self) -> Option<Request<C::Watch>> {
        let is_wanted = self.standstill.watch.is == Standstill::OutOfCluster
            && self.membership.is_present()
            && self.candidacy.retired.is_none();
        self.standstill.is_leaving = is_wanted && self.standstill.unreceived.under_way.is_empty();
        let context = self.context.clone();
        self.standstill
            .is_leaving
            .then(|| Box::pin(async { place::leave(context).await.map(|()| StepResult::OutOfCluster) }) as _)
    }

    /// Records that this node removed its own member. The watches on it would only report that.
    pub(super) fn on_cluster_left(&mut self) {
        self.revoke_lease();
        self.membership.lose();
        self.candidacy.is_join_unclear = false;
        self.membership.watches.clear();
        self.membership.is_watched = false;
        self.membership.must_verify = false;
    }
}

/// Attempts that were begun and that the daemon's loop may not have received.
#[derive(Default)]
pub struct UnreceivedBegins {
    /// When each was sent to the loop, with the version of its record.
    begun: Vec<(Uptime, RunRecord, Version)>,
    /// In-flight writes that release one.
    under_way: BTreeSet<CommitId>,
    released: u64,
}

impl UnreceivedBegins {
    /// Records attempts that are sent to the loop now or later.
    pub fn begun(&mut self, begun: Vec<(RunRecord, Version)>, now: Uptime) {
        self.begun.extend(begun.into_iter().map(|(run, at)| (now, run, at)));
    }

    /// Drops the attempts sent before the loop's last turn: the loop may have received them.
    fn loop_turned(&mut self, turned: Uptime) {
        self.begun.retain(|(sent, ..)| *sent > turned && turned > Uptime::ZERO);
    }

    /// Releases the attempts that the loop has not received. The daemon counts its commits up from 1, so ids counted
    /// down from the maximum never collide with its own.
    fn release_all(&mut self) -> Vec<(CommitId, Change)> {
        let mut changes = Vec::new();
        for (_, run, at) in std::mem::take(&mut self.begun) {
            let id = CommitId(u64::MAX - self.released);
            self.released += 1;
            self.under_way.insert(id);
            let nonce = Nonce(format!("{}-unheard", run.nonce.0));
            changes.push((id, Change::ChangeOwner { at, run: RunRecord { state: RunState::Unstarted, nonce, ..run } }));
        }
        changes
    }

    /// True if `id` was a write of [`Self::release_all`]; it is then done.
    pub fn is_done(&mut self, id: CommitId) -> bool {
        self.under_way.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(8);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    /// Checks once a second and returns the last result.
    fn check_until(watch: &mut LoopWatch, turned: Uptime, from_ms: u64, until_ms: u64) -> Standstill {
        for ms in (from_ms..=until_ms).step_by(1_000) {
            watch.is = watch.check(turned, at(ms), T);
        }
        watch.is
    }

    #[test]
    fn a_loop_that_stands_still_takes_the_node_out_of_the_queue_then_out_of_everything() {
        let mut watch = LoopWatch::from(at(1_000), Uptime::ZERO);
        assert_eq!(check_until(&mut watch, at(1_000), 1_000, 4_999), Standstill::None);
        assert_eq!(check_until(&mut watch, at(1_000), 5_000, 12_999), Standstill::OutOfQueue);
        assert_eq!(check_until(&mut watch, at(1_000), 13_000, 60_000), Standstill::OutOfCluster);
        assert_eq!(watch.next(T), Some(at(61_000)));
        assert_eq!(check_until(&mut watch, at(60_500), 61_000, 61_000), Standstill::None);
    }

    #[test]
    fn a_loop_that_stands_still_is_known_under_a_new_session() {
        let mut watch = LoopWatch::from(at(6_000), at(1_000));
        assert_eq!(check_until(&mut watch, at(1_000), 6_000, 6_000), Standstill::OutOfQueue);
        let mut watch = LoopWatch::from(at(6_000), at(5_900));
        assert_eq!(check_until(&mut watch, at(5_900), 6_000, 6_000), Standstill::None);
    }

    #[test]
    fn a_loop_that_has_not_begun_does_not_stand_still() {
        let mut watch = LoopWatch::from(at(1_000), Uptime::ZERO);
        assert_eq!(check_until(&mut watch, Uptime::ZERO, 1_000, 90_000), Standstill::None);
        assert_eq!(watch.next(T), None);
    }

    #[test]
    fn only_begins_sent_since_the_last_turn_are_released() {
        let mut unreceived = UnreceivedBegins::default();
        let record = |job| crate::test_records::record(job, 60, "s");
        unreceived.begun(vec![(record("a"), Version::FIRST)], at(1_000));
        unreceived.begun(vec![(record("b"), Version(3))], at(3_000));
        unreceived.loop_turned(at(2_000));
        let released = unreceived.release_all();
        let [(id, Change::ChangeOwner { at: Version(3), run })] = &released[..] else { panic!("{released:?}") };
        assert_eq!((run.job.as_str(), run.state), ("b", RunState::Unstarted));
        assert_ne!(run.nonce, record("b").nonce);
        assert!(unreceived.is_done(*id) && !unreceived.is_done(*id) && unreceived.under_way.is_empty());
    }

    #[test]
    fn time_in_which_this_side_did_not_run_does_not_count() {
        let mut watch = LoopWatch::from(at(1_000), Uptime::ZERO);
        check_until(&mut watch, at(1_000), 1_000, 2_000);
        assert_eq!(check_until(&mut watch, at(1_000), 30_000, 32_999), Standstill::None);
        assert_eq!(check_until(&mut watch, at(1_000), 33_000, 33_000), Standstill::OutOfQueue);
    }
}
