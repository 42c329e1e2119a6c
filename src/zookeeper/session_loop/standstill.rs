//! A daemon whose loop stands still leads nobody, however well its session is kept: a disk that does not answer holds up the loop,
//! and nothing else.
//!
//! T is the session timeout. The loop turns every T/8 at least.
//!
//! - T/2 after its last turn the node leaves the queue, its term is over, and it does not come back before the loop turns.
//! - 3T/2 after its last turn its member goes too, so that others settle its runs. By then the warden has killed what they may
//!   start again: it hears of the lease through the loop alone, the last word that it had ends within 0.85 T of the loop's last
//!   turn, and for killing there is the rest. What was begun, and told to the loop since its last turn, was never started, and never
//!   will be: the loop hears of it behind the end of the term, or behind no word of the lease that is of more than T/2 after that turn
//!   and so of more than 1.35 T: any such lease is over. So that goes back to be started by whoever leads, before the member goes.
//! - When the loop turns again the node makes its member anew, its runs are claimed under it, and it queues again.
//!
//! Only time that this side saw pass counts: a process that was stopped as a whole is no loop that stands still.

use std::collections::BTreeSet;
use std::time::Duration;

use super::SessionLoop;
use super::step::{Request, Retry};
use super::step_result::Found;
use crate::clock::{Clock, Uptime};
use crate::lease::longest_standstill;
use crate::ledger::{Change, CommitId};
use crate::run::{Nonce, RunRecord, RunState, Version, millis};
use crate::term::TermEnd;
use crate::zookeeper::client::{Client, Connect};
use crate::zookeeper::place;

/// What this side makes of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standstill {
    /// It turns.
    #[default]
    None,
    /// It has not turned for so long that the node is to be out of the queue.
    OutOfQueue,
    /// And for so long that it is to be out of everything.
    Out,
}

/// How long the loop has not turned.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// What the node does about it.
    pub is: Standstill,
    /// The newest turn that was seen.
    turned: Uptime,
    /// Since when it stands, less the time in which nobody looked.
    since: Uptime,
    looked: Uptime,
}

impl Watch {
    /// From now on, of a loop that turned last at `turned`. A session takes a while to be had: a loop that has not turned meanwhile stands
    /// still since then, whatever was looked at.
    pub fn from(now: Uptime, turned: Uptime) -> Self {
        let since = if turned == Uptime::ZERO { now } else { turned };
        Self { is: Standstill::None, turned, since, looked: now }
    }

    /// Looks at when the loop turned last. A loop that has not begun does not stand still.
    fn look(&mut self, turned: Uptime, now: Uptime, timeout: Duration) -> Standstill {
        let unseen = now.since(self.looked);
        let was_away = unseen > timeout / 4;
        self.looked = now;
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
            Standstill::Out if stands >= longest_standstill(timeout) => Standstill::Out,
            _ if stands >= timeout * 3 / 2 => Standstill::Out,
            _ if stands >= longest_standstill(timeout) => Standstill::OutOfQueue,
            _ => Standstill::None,
        }
    }

    /// When to look again.
    pub fn next(&self, timeout: Duration) -> Option<Uptime> {
        (self.turned > Uptime::ZERO).then(|| self.looked + timeout / 8)
    }
}

/// What this side does about a daemon whose loop stands still.
pub(super) struct StandstillGuard {
    pub watch: Watch,
    /// What the loop may not have received.
    pub unheard: Unheard,
    /// The own entries are being removed.
    pub is_leaving: bool,
}

impl StandstillGuard {
    pub fn new(now: Uptime, turned: Uptime) -> Self {
        Self { watch: Watch::from(now, turned), unheard: Unheard::default(), is_leaving: false }
    }
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// Does what follows from how long the loop has not turned.
    pub(super) fn watch_loop(&mut self) {
        let (now, turned) = (self.now(), *self.supervisor.service.turned.borrow());
        let before = self.standstill.watch.is;
        self.standstill.watch.is = self.standstill.watch.look(turned, now, self.timeout);
        let stood_ms = millis(now.since(turned));
        match (before, self.standstill.watch.is) {
            (Standstill::None, Standstill::OutOfQueue) => tracing::warn!(
                stood_ms,
                "the daemon's loop stands still, as where the state directory's disk does not answer: this node leaves the queue \
                 until it turns again"
            ),
            (Standstill::None | Standstill::OutOfQueue, Standstill::Out) => {
                tracing::warn!(
                    stood_ms,
                    "the daemon's loop still stands still: this node gives up its membership, and others settle its runs"
                );
                self.revoke_lease();
                // It may turn just now. In that order: it says so before it looks at the lease.
                if *self.supervisor.service.turned.borrow() == turned {
                    self.return_unheard();
                } else {
                    self.standstill.watch.is = Standstill::OutOfQueue;
                }
            }
            (Standstill::OutOfQueue | Standstill::Out, Standstill::None) => {
                tracing::warn!("the daemon's loop turns again: this node takes part again");
                self.step.retry = Retry::default();
            }
            _ => {}
        }
        self.standstill.unheard.heard(turned);
        let has_place = self.candidacy.candidate.is_some() || self.candidacy.leads();
        if self.standstill.watch.is != Standstill::None && has_place {
            self.lose_term(TermEnd::Stalled);
        }
    }

    fn return_unheard(&mut self) {
        for (id, change) in self.standstill.unheard.give_back() {
            self.commit(id, change);
        }
    }

    /// True while the loop turns, as far as is known.
    pub(super) fn loop_turns(&self) -> bool {
        self.standstill.watch.is == Standstill::None
    }

    /// True where no request is to be done before the loop turns again.
    pub(super) fn is_out(&self) -> bool {
        self.standstill.watch.is == Standstill::Out && !self.membership.is_present() && self.candidacy.retired.is_none()
    }

    /// The own entries go while the session stays; absent where they need not.
    pub(super) fn go_out(&mut self) -> Option<Request<<C::Client as Client>::Watch>> {
        let is_wanted = self.standstill.watch.is == Standstill::Out
            && self.membership.is_present()
            && self.candidacy.retired.is_none();
        self.standstill.is_leaving = is_wanted && self.standstill.unheard.under_way.is_empty();
        let context = self.context.clone();
        self.standstill.is_leaving.then(|| Box::pin(async { place::leave(context).await.map(|()| Found::Out) }) as _)
    }

    /// The member is gone, by this node's own hand. What a watch on it says of that is known.
    pub(super) fn went_out(&mut self) {
        self.revoke_lease();
        self.membership.lose();
        self.candidacy.is_join_unclear = false;
        self.membership.watches.clear();
        self.membership.is_watched = false;
        self.membership.must_verify = false;
    }
}

/// Attempts that were begun, of which the loop may not have heard.
#[derive(Default)]
pub struct Unheard {
    /// When each was told to it, with the version of its record.
    begun: Vec<(Uptime, RunRecord, Version)>,
    /// Writes that give one back, and have no answer.
    under_way: BTreeSet<CommitId>,
    given_back: u64,
}

impl Unheard {
    /// These are told to the loop, now or later.
    pub fn begun(&mut self, begun: Vec<(RunRecord, Version)>, now: Uptime) {
        self.begun.extend(begun.into_iter().map(|(run, at)| (now, run, at)));
    }

    /// What was told before the loop turned last it may have heard.
    fn heard(&mut self, turned: Uptime) {
        self.begun.retain(|(told, ..)| *told > turned && turned > Uptime::ZERO);
    }

    /// Gives back what it has not heard of. The daemon counts its commits from 1, so these numbers are no other's.
    fn give_back(&mut self) -> Vec<(CommitId, Change)> {
        let mut changes = Vec::new();
        for (_, run, at) in std::mem::take(&mut self.begun) {
            let id = CommitId(u64::MAX - self.given_back);
            self.given_back += 1;
            self.under_way.insert(id);
            let nonce = Nonce(format!("{}-unheard", run.nonce.0));
            changes.push((id, Change::ChangeOwner { at, run: RunRecord { state: RunState::Unstarted, nonce, ..run } }));
        }
        changes
    }

    /// True for a write that gave one back.
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

    /// Looks every so often; how it stands at the end.
    fn looked(watch: &mut Watch, turned: Uptime, from_ms: u64, until_ms: u64) -> Standstill {
        for ms in (from_ms..=until_ms).step_by(1_000) {
            watch.is = watch.look(turned, at(ms), T);
        }
        watch.is
    }

    #[test]
    fn a_loop_that_stands_still_takes_the_node_out_of_the_queue_then_out_of_everything() {
        let mut watch = Watch::from(at(1_000), Uptime::ZERO);
        assert_eq!(looked(&mut watch, at(1_000), 1_000, 4_999), Standstill::None);
        assert_eq!(looked(&mut watch, at(1_000), 5_000, 12_999), Standstill::OutOfQueue);
        assert_eq!(looked(&mut watch, at(1_000), 13_000, 60_000), Standstill::Out);
        assert_eq!(watch.next(T), Some(at(61_000)));
        assert_eq!(looked(&mut watch, at(60_500), 61_000, 61_000), Standstill::None);
    }

    #[test]
    fn a_loop_that_stands_still_is_known_under_a_new_session() {
        let mut watch = Watch::from(at(6_000), at(1_000));
        assert_eq!(looked(&mut watch, at(1_000), 6_000, 6_000), Standstill::OutOfQueue);
        let mut watch = Watch::from(at(6_000), at(5_900));
        assert_eq!(looked(&mut watch, at(5_900), 6_000, 6_000), Standstill::None);
    }

    #[test]
    fn a_loop_that_has_not_begun_does_not_stand_still() {
        let mut watch = Watch::from(at(1_000), Uptime::ZERO);
        assert_eq!(looked(&mut watch, Uptime::ZERO, 1_000, 90_000), Standstill::None);
        assert_eq!(watch.next(T), None);
    }

    #[test]
    fn what_was_told_since_the_last_turn_is_given_back_and_nothing_else() {
        let mut unheard = Unheard::default();
        let record = |job| crate::run::tests_support::record(job, 60, "s");
        unheard.begun(vec![(record("a"), Version::FIRST)], at(1_000));
        unheard.begun(vec![(record("b"), Version(3))], at(3_000));
        unheard.heard(at(2_000));
        let given = unheard.give_back();
        let [(id, Change::ChangeOwner { at: Version(3), run })] = &given[..] else { panic!("{given:?}") };
        assert_eq!((run.job.as_str(), run.state), ("b", RunState::Unstarted));
        assert_ne!(run.nonce, record("b").nonce);
        assert!(unheard.is_done(*id) && !unheard.is_done(*id) && unheard.under_way.is_empty());
    }

    #[test]
    fn time_in_which_this_side_stood_as_well_does_not_count() {
        let mut watch = Watch::from(at(1_000), Uptime::ZERO);
        looked(&mut watch, at(1_000), 1_000, 2_000);
        assert_eq!(looked(&mut watch, at(1_000), 30_000, 32_999), Standstill::None);
        assert_eq!(looked(&mut watch, at(1_000), 33_000, 33_000), Standstill::OutOfQueue);
    }
}
