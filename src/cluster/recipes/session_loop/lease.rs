//! The lease: how long this node may act, and the writes that renew it.
//!
//! ```text
//!   NoTerm ─┬─ BeginActing ──────────► Acting ─ End ─► NoTerm
//!           └─ Begin ─► Pending ─ Hold ──▲       the term is over as soon as the lease no longer holds
//! ```

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::futures::BoxFuture;
use crate::recipes::time;
use crate::tree::{AtVersion, CommitError, Committed, Op, Session};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::lease::{Lease, Proof};

/// The most renewals in flight at once: beyond that, the oldest is too old to extend the lease.
const RENEWALS: usize = 5;

/// When a lease renewal was sent, and its result.
pub(super) type Renewed = (Uptime, Result<Committed, CommitError>);

/// What the lease means for the term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TermLease {
    /// This node does not lead.
    NoTerm,
    /// It leads, and the lease has not held yet. One that ends at or before this instant does not count: it was nearly
    /// over when the term was opened.
    Pending { beyond: Uptime },
    /// The lease has held in this term, so the term is over as soon as it no longer holds.
    Acting,
}

/// What happens to the term, as far as the lease is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseStep {
    /// A term begins, and nobody acts in it until the lease ends later than at this instant.
    Begin(Uptime),
    /// A term begins with a lease that holds.
    BeginActing,
    /// The lease holds.
    Hold,
    /// The term is over.
    End,
}

impl TermLease {
    /// The state after a step. Total: a step that does not apply changes nothing.
    fn after(self, step: LeaseStep) -> Self {
        match (self, step) {
            (Self::NoTerm, LeaseStep::Begin(beyond)) => Self::Pending { beyond },
            (Self::NoTerm, LeaseStep::BeginActing) | (Self::Pending { .. }, LeaseStep::Hold) => Self::Acting,
            (_, LeaseStep::End) => Self::NoTerm,
            (
                Self::NoTerm | Self::Pending { .. } | Self::Acting,
                LeaseStep::Begin(_) | LeaseStep::BeginActing | LeaseStep::Hold,
            ) => self,
        }
    }
}

/// The record that renewals write to for the servers' time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeRecord {
    /// The folder of the members.
    Folder,
    /// This node's member: the folder is not writable for this node.
    Member,
}

/// Who depends on the lease, and so how often it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseNeed {
    /// Nobody.
    None,
    /// The node waits in the queue.
    Queued,
    /// The node leads, is about to, or has runs in flight.
    Acts,
}

/// The lease of this session, and the writes that renew it.
pub(super) struct LeaseKeeper<P> {
    lease: Lease<P>,
    timeout: Duration,
    state: TermLease,
    /// The end of the lease as last reported to the daemon.
    reported: Uptime,
    /// Writes sent before this instant do not renew the lease: it was revoked since.
    valid_from: Uptime,
    renewals: FuturesUnordered<BoxFuture<Renewed>>,
    renewed_at: Uptime,
    /// When a renewal last read the servers' time.
    timed_at: Option<Uptime>,
    /// When the servers last stated their time; until they have, the node would decide by its own clock alone.
    time_stated_at: Option<Uptime>,
    time_record: TimeRecord,
}

impl<P: Proof> LeaseKeeper<P> {
    /// The lease of a session whose connection was started at `requested`.
    pub fn new(timeout: Duration, requested: Uptime, proof: P) -> Self {
        Self {
            lease: Lease::of_session(timeout, requested, proof),
            timeout,
            state: TermLease::NoTerm,
            reported: Uptime::ZERO,
            valid_from: Uptime::ZERO,
            renewals: FuturesUnordered::new(),
            renewed_at: Uptime::ZERO,
            timed_at: None,
            time_stated_at: None,
            time_record: TimeRecord::Folder,
        }
    }

    fn step(&mut self, step: LeaseStep) {
        self.state = self.state.after(step);
    }

    pub fn holds(&self, now: Uptime) -> bool {
        self.lease.holds(now)
    }

    /// True if a term may begin without waiting for a write: the lease holds, and the servers' time is known.
    pub fn is_proof(&self, now: Uptime) -> bool {
        self.lease.holds(now) && self.time_stated_at.is_some()
    }

    /// When the term is over unless the lease is extended.
    pub fn term_until(&self) -> Option<Uptime> {
        (self.state == TermLease::Acting).then(|| self.lease.until())
    }

    /// Checks the lease. Returns true if the term is over with it, whatever the servers answer later.
    ///
    /// A term may be opened before there is a lease: then nobody has acted in it yet.
    #[must_use]
    pub fn check(&mut self, now: Uptime) -> bool {
        let holds = self.lease.holds(now) && self.lease.until() > self.beyond();
        if holds {
            self.step(LeaseStep::Hold);
        }
        self.state == TermLease::Acting && !holds
    }

    /// A lease that ends at or before this instant does not count.
    fn beyond(&self) -> Uptime {
        match self.state {
            TermLease::Pending { beyond } => beyond,
            TermLease::NoTerm | TermLease::Acting => Uptime::ZERO,
        }
    }

    /// Begins a term, and returns the lease that it begins with.
    ///
    /// A term that begins with a lease that is nearly over would be lost at once, so it begins without one until the
    /// lease is renewed. If the node has runs in flight, they depend on the same lease, and it is not taken from them.
    pub fn begin_term(&mut self, now: Uptime, is_busy: bool) -> Uptime {
        let until = self.lease.until();
        let counts = until >= now + self.timeout / 4 || is_busy;
        self.reported = if counts { until } else { Uptime::ZERO };
        self.step(match counts {
            true if now < until => LeaseStep::BeginActing,
            true => LeaseStep::Begin(Uptime::ZERO),
            false => LeaseStep::Begin(until),
        });
        self.reported
    }

    /// The term is over, if there was one.
    pub fn end_term(&mut self) {
        self.step(LeaseStep::End);
    }

    /// Extends the lease: a quorum acknowledged by `now` a write that was sent just after `sent`. Returns the end of
    /// the lease if it must be reported. Without a member it protects nothing (`is_protected`): the other nodes go by
    /// the member.
    pub fn acknowledge(&mut self, sent: Uptime, now: Uptime, is_protected: bool) -> Option<Uptime> {
        if sent < self.valid_from {
            return None;
        }
        self.lease.renew(sent, now);
        let until = self.lease.until();
        let lets_act = is_protected && until > self.beyond();
        if lets_act && until >= self.reported + self.timeout / 20 {
            self.reported = until;
            return Some(until);
        }
        None
    }

    /// Ends the lease now. Returns true if that must be reported.
    #[must_use]
    pub fn revoke(&mut self, now: Uptime) -> bool {
        self.valid_from = now;
        self.lease.end();
        std::mem::replace(&mut self.reported, Uptime::ZERO) > Uptime::ZERO
    }

    /// When the next renewal is due. `committed`: when the last commit was sent.
    ///
    /// A node that leads or has runs in flight writes at least once per interval, a node that waits in the queue half
    /// as often. Every commit counts as such a write. However much the node commits, it reads the servers' time once
    /// per [`time::EVERY`].
    pub fn renew_at(&self, need: LeaseNeed, committed: Uptime) -> Option<Uptime> {
        let every = match need {
            LeaseNeed::None => return None,
            LeaseNeed::Queued => self.lease.write_every_in_queue(),
            LeaseNeed::Acts => self.lease.write_every(),
        };
        let renewal = self.renewed_at.max(committed) + every;
        let timing = self.timed_at.map_or(Uptime::ZERO, |at| at + time::EVERY);
        (self.renewals.len() < RENEWALS).then(|| renewal.min(timing))
    }

    /// Renews the lease by checking the node's own member, at `path`.
    ///
    /// The check needs a transaction, and so a quorum, but changes nothing and fires no watch. Once per [`time::EVERY`]
    /// it also reads the servers' time. `sent` was read just before; `member` is the member's data.
    pub fn renew<C: Session>(&mut self, line: &C, path: String, sent: Uptime, member: impl FnOnce() -> Vec<u8>) {
        let asks_for_time = self.timed_at.is_none_or(|at| sent >= at + time::EVERY);
        let mut ops = vec![Op::Check { path: path.clone(), at: AtVersion::Any }];
        if asks_for_time {
            self.timed_at = Some(sent);
            ops.push(match self.time_record {
                TimeRecord::Folder => time::touch(),
                TimeRecord::Member => time::touch_member(path, member()),
            });
        }
        let multi = line.commit(ops);
        self.renewed_at = sent;
        self.renewals.push(Box::pin(async move { (sent, multi.await) }));
    }

    /// The next result of a renewal; `None` at once if none is in flight. Cancellation safe: the renewals are kept.
    pub async fn renewed(&mut self) -> Option<Renewed> {
        self.renewals.next().await
    }

    /// The opening write of a term follows soon and renews the lease; another renewal before it would only delay the
    /// term.
    pub fn leave_renewal_to_opening(&mut self, now: Uptime) {
        (self.renewed_at, self.timed_at) = (now, Some(now));
    }

    /// The answer to a renewal stated the servers' time.
    pub fn time_stated(&mut self, now: Uptime) {
        self.time_stated_at = Some(now);
    }

    /// The answer to the opening write, sent at `sent`, stated the servers' time.
    pub fn time_stated_by_opening(&mut self, sent: Uptime, now: Uptime) {
        self.timed_at = Some(sent);
        self.time_stated(now);
    }

    /// The folder of the members is not writable: from the next renewal on, which is due at once because the lease must
    /// not wait for that, the time is read by writing to the member. Returns false if that is so already.
    pub fn read_time_by_member(&mut self) -> bool {
        if self.time_record == TimeRecord::Member {
            return false;
        }
        self.time_record = TimeRecord::Member;
        (self.timed_at, self.renewed_at) = (None, Uptime::ZERO);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::session_loop::table::assert_table;
    use cronkeeper_core::lease::EachWrite;

    const T: Duration = Duration::from_secs(8);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    fn keeper() -> LeaseKeeper<EachWrite> {
        LeaseKeeper::new(T, at(1_000), EachWrite)
    }

    /// A row for each state, a column for each step; `-` changes nothing.
    const TABLE: &str = "
        state    Begin    BeginActing  Hold    End
        NoTerm   Pending  Acting       -       -
        Pending  -        -            Acting  NoTerm
        Acting   -        -            -       NoTerm
    ";

    #[test]
    fn every_state_takes_the_steps_of_the_table_and_no_other() {
        let states = [TermLease::NoTerm, TermLease::Pending { beyond: at(1) }, TermLease::Acting];
        let steps = [LeaseStep::Begin(at(2)), LeaseStep::BeginActing, LeaseStep::Hold, LeaseStep::End];
        let label = |state: TermLease| match state {
            TermLease::NoTerm => "NoTerm".to_owned(),
            TermLease::Pending { .. } => "Pending".to_owned(),
            TermLease::Acting => "Acting".to_owned(),
        };
        let after = |row: usize, column: usize| {
            let (state, after) = (states[row], states[row].after(steps[column]));
            (after != state).then(|| label(after))
        };
        assert_table(TABLE, |row| label(states[row]), after);
    }

    #[test]
    fn a_term_is_over_with_the_lease_that_it_acted_under() {
        let mut lease = keeper();
        assert!(!lease.check(at(90_000)), "there is no term");
        assert_eq!(lease.begin_term(at(2_000), false), at(7_800));
        assert!(!lease.check(at(7_799)));
        assert_eq!(lease.term_until(), Some(at(7_800)));
        assert!(lease.check(at(7_800)) && lease.check(at(7_900)), "until the term is ended");
        lease.end_term();
        assert!(!lease.check(at(7_900)));
    }

    #[test]
    fn a_term_that_begins_with_a_lease_nearly_over_begins_without_one() {
        let mut lease = keeper();
        assert_eq!(lease.begin_term(at(7_000), false), Uptime::ZERO);
        assert!(!lease.check(at(7_001)) && !lease.check(at(9_000)), "nobody has acted in it");
        assert_eq!(lease.acknowledge(at(9_000), at(9_010), true), Some(at(15_800)));
        assert!(!lease.check(at(9_010)) && lease.check(at(15_800)));
        let mut busy = keeper();
        assert_eq!(busy.begin_term(at(7_000), true), at(7_800), "its runs depend on that lease");
    }

    #[test]
    fn a_lease_that_is_revoked_is_not_renewed_by_earlier_writes() {
        let mut lease = keeper();
        assert_eq!(lease.acknowledge(at(2_000), at(2_010), true), Some(at(8_800)));
        assert!(lease.revoke(at(3_000)) && !lease.revoke(at(3_000)), "it is reported once");
        assert_eq!(lease.acknowledge(at(2_999), at(3_010), true), None);
        assert!(!lease.holds(at(3_010)));
        assert_eq!(lease.acknowledge(at(3_000), at(3_010), false), None, "without a member it lets nobody act");
        assert!(lease.holds(at(3_010)));
    }

    #[test]
    fn a_node_in_the_queue_renews_half_as_often_as_one_that_acts() {
        let mut lease = keeper();
        assert_eq!(lease.renew_at(LeaseNeed::Acts, at(1_000)), Some(Uptime::ZERO), "the time is unknown");
        lease.leave_renewal_to_opening(at(2_000));
        assert_eq!(lease.renew_at(LeaseNeed::Acts, at(1_000)), Some(at(2_800)));
        assert_eq!(lease.renew_at(LeaseNeed::Queued, at(2_500)), Some(at(4_100)));
        assert_eq!(lease.renew_at(LeaseNeed::None, at(2_500)), None);
        assert!(lease.read_time_by_member() && !lease.read_time_by_member());
    }
}
