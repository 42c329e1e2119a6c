//! Steps down while the daemon's loop is stalled.
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
//! Only time in which this side was running counts: a process that was stopped as a whole is not a stalled loop.

use std::collections::BTreeSet;
use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::lease::longest_standstill;
use cronkeeper_core::ledger::{Change, CommitId};
use cronkeeper_core::log;
use cronkeeper_core::run::{Nonce, RunRecord, RunState, Version, millis};

/// How far the node has stepped down because the daemon's loop is stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The loop turns.
    TakesPart,
    /// The loop has not turned for T/2: the node must leave the queue.
    OutOfQueue,
    /// The loop has not turned for 3T/2: the node must remove its member too.
    OutOfCluster,
}

/// What a check of the loop finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopStep {
    /// It has turned less than T/2 ago.
    Turn,
    /// It has not turned for T/2.
    Stand,
    /// It has not turned for 3T/2.
    StandLong,
    /// It has turned while this node was about to remove its member.
    TurnMeanwhile,
}

impl Stage {
    /// The stage after a step. Total. A node that is out of the cluster returns only after the loop has turned.
    fn after(self, step: LoopStep) -> Self {
        match (self, step) {
            (_, LoopStep::Turn) => Self::TakesPart,
            (Self::OutOfCluster, LoopStep::Stand) | (_, LoopStep::StandLong) => Self::OutOfCluster,
            (Self::TakesPart | Self::OutOfQueue, LoopStep::Stand) | (Self::OutOfCluster, LoopStep::TurnMeanwhile) => {
                Self::OutOfQueue
            }
            (Self::TakesPart | Self::OutOfQueue, LoopStep::TurnMeanwhile) => self,
        }
    }
}

/// What follows from a check of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandstillNews {
    /// The lease must be revoked now. The member goes too, unless the loop has turned by then.
    LeaveCluster,
    /// The loop turns again.
    Rejoin,
}

/// Measures for how long the daemon's loop has not turned.
pub(super) struct Standstill {
    stage: Stage,
    timeout: Duration,
    /// The newest turn that a check has seen.
    turned: Uptime,
    /// Since when the loop has been stalled, moved forward by any time in which this side did not run either.
    since: Uptime,
    checked_at: Uptime,
}

impl Standstill {
    /// Starts measuring now, for a loop that last turned at `turned`.
    ///
    /// Establishing a session takes a while. A loop that has not turned meanwhile has stood still since `turned`.
    pub fn new(timeout: Duration, now: Uptime, turned: Uptime) -> Self {
        let since = if turned == Uptime::ZERO { now } else { turned };
        Self { stage: Stage::TakesPart, timeout, turned, since, checked_at: now }
    }

    /// Checks when the loop last turned, and reports what that means.
    pub fn check(&mut self, turned: Uptime, now: Uptime) -> Option<StandstillNews> {
        let before = self.stage;
        self.stage = before.after(self.measure(turned, now));
        let stood_ms = millis(now.since(turned));
        match (before, self.stage) {
            (Stage::TakesPart, Stage::OutOfQueue) => {
                log!(NODE_STUCK, stood_ms, "leaving the queue until it works again");
                None
            }
            (Stage::TakesPart | Stage::OutOfQueue, Stage::OutOfCluster) => {
                log!(NODE_STUCK, stood_ms, "leaving the cluster, so that other nodes settle its runs");
                Some(StandstillNews::LeaveCluster)
            }
            (Stage::OutOfQueue | Stage::OutOfCluster, Stage::TakesPart) => {
                log!(NODE_UNSTUCK);
                Some(StandstillNews::Rejoin)
            }
            _ => None,
        }
    }

    /// Measures how long the loop has been stalled. A loop that has not begun is not stalled.
    fn measure(&mut self, turned: Uptime, now: Uptime) -> LoopStep {
        let unseen = now.since(self.checked_at);
        let was_away = unseen > self.timeout / 4;
        self.checked_at = now;
        let has_turned = std::mem::replace(&mut self.turned, turned) != turned;
        self.since = match (has_turned, was_away) {
            _ if turned == Uptime::ZERO => now,
            (true, true) => now,
            (true, false) => turned.max(self.since),
            (false, true) => self.since + unseen,
            (false, false) => self.since,
        };
        match now.since(self.since) {
            stood if stood >= self.timeout * 3 / 2 => LoopStep::StandLong,
            stood if stood >= longest_standstill(self.timeout) => LoopStep::Stand,
            _ => LoopStep::Turn,
        }
    }

    /// The loop has turned since [`StandstillNews::LeaveCluster`]: the member stays.
    pub fn turned_meanwhile(&mut self) {
        self.stage = self.stage.after(LoopStep::TurnMeanwhile);
    }

    /// When to check again.
    pub fn check_at(&self) -> Option<Uptime> {
        (self.turned > Uptime::ZERO).then(|| self.checked_at + self.timeout / 8)
    }

    /// True while the loop turns, as of the last check.
    pub fn loop_turns(&self) -> bool {
        self.stage == Stage::TakesPart
    }

    /// True while the node must not be a member.
    pub fn is_out_of_cluster(&self) -> bool {
        self.stage == Stage::OutOfCluster
    }
}

/// Attempts that were begun and that the daemon's loop may not have received.
#[derive(Default)]
pub(super) struct UnreceivedBegins {
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
    pub fn loop_turned(&mut self, turned: Uptime) {
        self.begun.retain(|(sent, ..)| *sent > turned && turned > Uptime::ZERO);
    }

    /// Releases the attempts that the loop has not received. The daemon counts its commits up from 1, so ids counted
    /// down from the maximum never collide with its own.
    pub fn release_all(&mut self) -> Vec<(CommitId, Change)> {
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

    /// True once every write of [`Self::release_all`] is done.
    pub fn all_done(&self) -> bool {
        self.under_way.is_empty()
    }

    /// True if `id` was a write of [`Self::release_all`]; it is then done. The daemon knows nothing of it.
    pub fn is_done(&mut self, id: CommitId) -> bool {
        self.under_way.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::session_loop::table::assert_table;

    const T: Duration = Duration::from_secs(8);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    /// Checks once a second and returns the last result.
    fn check_until(standstill: &mut Standstill, turned: Uptime, from_ms: u64, until_ms: u64) -> Stage {
        for ms in (from_ms..=until_ms).step_by(1_000) {
            standstill.check(turned, at(ms));
        }
        standstill.stage
    }

    /// A row for each stage, a column for each step; `-` changes nothing.
    const TABLE: &str = "
        stage         Turn       Stand       StandLong     TurnMeanwhile
        TakesPart     -          OutOfQueue  OutOfCluster  -
        OutOfQueue    TakesPart  -           OutOfCluster  -
        OutOfCluster  TakesPart  -           -             OutOfQueue
    ";

    #[test]
    fn every_stage_takes_the_steps_of_the_table_and_no_other() {
        let stages = [Stage::TakesPart, Stage::OutOfQueue, Stage::OutOfCluster];
        let steps = [LoopStep::Turn, LoopStep::Stand, LoopStep::StandLong, LoopStep::TurnMeanwhile];
        let after = |row: usize, column: usize| {
            let (state, after) = (stages[row], stages[row].after(steps[column]));
            (after != state).then(|| format!("{after:?}"))
        };
        assert_table(TABLE, |row| format!("{:?}", stages[row]), after);
    }

    #[test]
    fn a_loop_that_stands_still_takes_the_node_out_of_the_queue_then_out_of_everything() {
        let mut standstill = Standstill::new(T, at(1_000), Uptime::ZERO);
        assert_eq!(check_until(&mut standstill, at(1_000), 1_000, 4_999), Stage::TakesPart);
        assert_eq!(check_until(&mut standstill, at(1_000), 5_000, 12_999), Stage::OutOfQueue);
        assert_eq!(standstill.check(at(1_000), at(13_000)), Some(StandstillNews::LeaveCluster));
        assert_eq!(check_until(&mut standstill, at(1_000), 14_000, 60_000), Stage::OutOfCluster);
        assert_eq!(standstill.check_at(), Some(at(61_000)));
        assert_eq!(standstill.check(at(60_500), at(61_000)), Some(StandstillNews::Rejoin));
        assert!(standstill.loop_turns());
    }

    #[test]
    fn a_loop_that_stands_still_is_known_under_a_new_session() {
        let mut standstill = Standstill::new(T, at(6_000), at(1_000));
        assert_eq!(check_until(&mut standstill, at(1_000), 6_000, 6_000), Stage::OutOfQueue);
        let mut standstill = Standstill::new(T, at(6_000), at(5_900));
        assert_eq!(check_until(&mut standstill, at(5_900), 6_000, 6_000), Stage::TakesPart);
    }

    #[test]
    fn a_loop_that_has_not_begun_does_not_stand_still() {
        let mut standstill = Standstill::new(T, at(1_000), Uptime::ZERO);
        assert_eq!(check_until(&mut standstill, Uptime::ZERO, 1_000, 90_000), Stage::TakesPart);
        assert_eq!(standstill.check_at(), None);
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
        assert!(unreceived.is_done(*id) && !unreceived.is_done(*id) && unreceived.all_done());
    }

    #[test]
    fn time_in_which_this_side_did_not_run_does_not_count() {
        let mut standstill = Standstill::new(T, at(1_000), Uptime::ZERO);
        check_until(&mut standstill, at(1_000), 1_000, 2_000);
        assert_eq!(check_until(&mut standstill, at(1_000), 30_000, 32_999), Stage::TakesPart);
        assert_eq!(check_until(&mut standstill, at(1_000), 33_000, 33_000), Stage::OutOfQueue);
    }
}
