//! The lease: how long this node may act, and how its term ends.

use std::time::Duration;

use futures_util::stream::FuturesUnordered;

use super::candidacy::{Leading, Role};
use super::failing::Task;
use super::membership::OwnMemberState;
use super::operator_requests::Listening;
use super::rights::AccessUpdates;
use super::standstill::Standstill;
use super::{BoxFuture, Renewed, SessionLoop};
use crate::paths;
use crate::recipes::committer::Completed;
use crate::recipes::context::{self, SessionError};
use crate::recipes::damage::{Damage, Source};
use crate::recipes::time;
use crate::tree::{AtVersion, CommitError, Committed, Error, Op, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Event;
use cronkeeper_core::lease::{Lease, Proof};
use cronkeeper_core::ledger::{self, Commit, CommitId};
use cronkeeper_core::term::TermEnd;

/// Resigning waits at most this long for the answers to commits.
const RESIGN_WITHIN: Duration = Duration::from_secs(5);
/// Most renewals in flight at once: once there are so many, the oldest is too old to extend the lease.
const RENEWALS: usize = 5;

/// The lease of this session, and the writes that renew it.
pub(super) struct LeaseKeeper<P> {
    pub lease: Lease<P>,
    /// The lease has held in this term, so the term is over as soon as it no longer holds.
    pub has_acted: bool,
    /// A lease that ends at or before this instant does not count: it was nearly over when the term was opened.
    pub acts_beyond: Uptime,
    /// The end of the lease as last reported to the daemon.
    pub reported: Uptime,
    /// Writes sent before this instant do not renew the lease: it was revoked since.
    pub valid_from: Uptime,
    pub renewals: FuturesUnordered<BoxFuture<Renewed>>,
    pub renewed_at: Uptime,
    /// When a renewal last read the servers' time.
    pub timed_at: Option<Uptime>,
    /// The servers' time was read at least once, so the node does not decide by its own clock alone.
    pub has_time: bool,
}

impl<P: Proof> LeaseKeeper<P> {
    /// The lease of a session whose connection was started at `requested`.
    pub fn new(timeout: Duration, requested: Uptime, proof: P) -> Self {
        Self {
            lease: Lease::of_session(timeout, requested, proof),
            has_acted: false,
            acts_beyond: Uptime::ZERO,
            reported: Uptime::ZERO,
            valid_from: Uptime::ZERO,
            renewals: FuturesUnordered::new(),
            renewed_at: Uptime::ZERO,
            timed_at: None,
            has_time: false,
        }
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Handles the result of a commit.
    pub(super) fn complete(&mut self, completed: Completed) {
        let outcome = self.committer.complete(completed);
        if let Some(sent) = outcome.acknowledged {
            self.acknowledge(sent);
        }
        self.standstill.unreceived.begun(outcome.begun, self.now());
        for (id, answer) in outcome.answers {
            let before = outcome.before.get(&id).copied();
            if !self.standstill.unreceived.is_done(id) {
                self.node.emit_ledger(ledger::Event::Answered { id, answer, before });
            }
        }
        for path in outcome.mended {
            self.mended(Source::Writes, &path);
        }
        for damage in outcome.refused {
            // Refused although its access list is open: its sequence numbers are used up.
            self.operators.must_renumber |= damage.path == paths::TRIGGERS;
            self.listen_again();
            self.damaged(Source::Writes, damage);
        }
        for id in outcome.deferred {
            if !self.standstill.unreceived.is_done(id) {
                self.node.emit_ledger(ledger::Event::Deferred(id));
            }
        }
        let now = self.now();
        outcome.grown.into_iter().for_each(|written| self.housekeeping.trimmer.grew(written, now));
        if outcome.is_fenced && self.candidacy.leads() {
            self.revoke_lease();
            self.lose_term(TermEnd::Fenced);
        }
        if let Some(error) = outcome.error {
            self.note_error(error);
        }
    }

    /// Returns the answer to the daemon, unless the session loop itself requested the commit.
    pub(super) fn answer(&mut self, id: CommitId, answer: Commit) {
        if !self.standstill.unreceived.is_done(id) {
            self.node.answer(id, answer);
        }
    }

    /// When the next renewal is due.
    ///
    /// A node that leads or has runs in flight writes at least once per interval, a node that waits in the queue half
    /// as often. Every commit counts as such a write. However much the node commits, it reads the servers' time once
    /// per [`time::EVERY`].
    pub(super) fn renew_at(&self) -> Option<Uptime> {
        let acts = self.node.desired.busy || matches!(self.candidacy.role, Role::First(_) | Role::Leading(_));
        let may = (acts || self.candidacy.candidate.is_some())
            && self.membership.is_present()
            && self.lease.renewals.len() < RENEWALS;
        let every = if acts { self.lease.lease.write_every() } else { self.lease.lease.write_every_in_queue() };
        let renewal = self.lease.renewed_at.max(self.committer.last_sent()) + every;
        may.then(|| renewal.min(self.lease.timed_at.map_or(Uptime::ZERO, |at| at + time::EVERY)))
    }

    /// Renews the lease by checking the node's own member.
    ///
    /// The check needs a transaction, and so a quorum, but changes nothing and fires no watch. Once per [`time::EVERY`]
    /// it also reads the servers' time.
    pub(super) fn renew(&mut self, now: Uptime) {
        if self.renew_at().is_none_or(|at| now < at) {
            return;
        }
        let check = Op::Check { path: self.context.member(), at: AtVersion::Any };
        let Ok(line) = self.context.line() else { return };
        let asks_for_time = self.lease.timed_at.is_none_or(|at| now >= at + time::EVERY);
        let ops = if asks_for_time { vec![check, self.touch()] } else { vec![check] };
        let sent = self.context.clock.now().up;
        let multi = line.commit(ops);
        self.lease.renewed_at = sent;
        if asks_for_time {
            self.lease.timed_at = Some(sent);
        }
        self.lease.renewals.push(Box::pin(async move { (sent, multi.await) }));
    }

    fn touch(&self) -> Op {
        match self.membership.is_parent_closed {
            true => time::touch_member(self.context.member(), context::json(&self.node.member(self.timeout))),
            false => time::touch(),
        }
    }

    pub(super) fn renewed(&mut self, sent: Uptime, result: Result<Committed, CommitError>) {
        match result {
            Ok(done) => {
                if let Some(time) = done.time(sent, self.now()) {
                    self.lease.has_time = true;
                    self.node.time = Some(time);
                    self.node.emit(Event::Time(time));
                }
                self.succeeded(Task::Renew);
                self.acknowledge(sent);
            }
            Err(CommitError { error: Error::Missing | Error::Changed, .. }) => self.membership.must_verify = true,
            Err(CommitError { error: Error::Denied, index: Some(0) }) => self.lose_member(),
            // The next renewal reads the time by writing to the member instead; the lease must not wait for that.
            Err(CommitError { error: Error::Denied, index: Some(_) }) if !self.membership.is_parent_closed => {
                (self.membership.is_parent_closed, self.lease.timed_at) = (true, None);
                self.lease.renewed_at = Uptime::ZERO;
                self.damaged(Source::Renewals, Damage::unwritten(paths::NODES, &Error::Denied));
            }
            Err(failed) => {
                let error = SessionError::of(&failed.error, &self.context.member());
                self.failed(Task::Renew, &error.to_string());
                self.note_error(error);
            }
        }
    }

    /// Extends the lease: a quorum acknowledged a write that was sent just after `sent`.
    pub(super) fn acknowledge(&mut self, sent: Uptime) {
        if sent < self.lease.valid_from {
            return;
        }
        self.lease.lease.renew(sent, self.now());
        // Without a member the lease protects nothing: the other nodes go by the member.
        let is_protected = self.membership.is_present()
            && self.standstill.watch.is != Standstill::OutOfCluster
            && !self.standstill.is_leaving;
        let lets_act = is_protected && self.lease.lease.until() > self.lease.acts_beyond;
        if lets_act && self.lease.lease.until() >= self.lease.reported + self.timeout / 20 {
            self.lease.reported = self.lease.lease.until();
            self.node.emit(Event::Lease { until: self.lease.reported });
        }
    }

    /// Ends the term once its lease is over, whatever the servers answer later.
    ///
    /// A term may be opened before there is a lease: then nobody has acted in it yet.
    pub(super) fn check_lease(&mut self) {
        let holds = self.lease.lease.holds(self.now()) && self.lease.lease.until() > self.lease.acts_beyond;
        if self.lease.has_acted && !holds {
            self.lose_term(TermEnd::LeaseOver);
        } else {
            self.lease.has_acted = holds && self.candidacy.leads();
        }
    }

    /// Treats the node's own member as gone, because its access list excludes the node. It is then recreated.
    fn lose_member(&mut self) {
        self.membership.state = OwnMemberState::Closed;
        self.damaged(
            Source::Renewals,
            Damage::new(self.context.member(), "its access list excludes its own node; recreating it"),
        );
        if self.node.desired.busy || self.candidacy.leads() {
            self.revoke_lease();
            self.lose_term(TermEnd::EntryGone);
        }
    }

    /// Ends the lease now. One of the node's own entries, or the session, is gone, so runs that another node may start
    /// again must stop.
    pub(super) fn revoke_lease(&mut self) {
        self.lease.valid_from = self.now();
        self.lease.lease.end();
        if self.lease.reported > Uptime::ZERO {
            self.lease.reported = Uptime::ZERO;
            self.node.emit(Event::Lease { until: Uptime::ZERO });
        }
    }

    /// Gives up the position in the queue, and the term that depends on it, if any.
    pub(super) fn lose_term(&mut self, why: TermEnd) {
        let role = std::mem::replace(&mut self.candidacy.role, Role::None);
        (self.lease.has_acted, self.lease.acts_beyond) = (false, Uptime::ZERO);
        self.candidacy.following = None;
        self.forget_transfer();
        if let Some(candidate) = self.candidacy.candidate.take() {
            self.candidacy.retired = Some(candidate);
        }
        let held = self.candidacy.retired.as_ref().map(paths::candidate);
        for (id, answer) in self.committer.fence_off(held) {
            self.node.answer(id, answer);
        }
        self.forget_damage();
        self.housekeeping.rights = AccessUpdates::default();
        self.operators.listening = Listening::From(Uptime::ZERO);
        if let Role::Leading(Leading { term, .. }) = role {
            // The engine watches its own runs again when it is notified that the term is over.
            self.watcher.clear();
            self.candidacy.over = Some((term, why));
        }
        self.emit_term_over_when_answered();
    }

    /// Emits the end of the term, after the answers to its last commits if those can still arrive.
    pub(super) fn emit_term_over_when_answered(&mut self) {
        let Some((_, why)) = &self.candidacy.over else { return };
        let waits = !matches!(why, TermEnd::LeaseOver | TermEnd::Stalled)
            && self.link.is_connected
            && self.committer.has_fenced();
        if !waits {
            self.emit_term_over();
        }
    }

    pub(super) fn emit_term_over(&mut self) {
        if let Some((term, why)) = self.candidacy.over.take() {
            self.node.emit(Event::Over { term, why });
        }
    }

    /// When resigning stops waiting for answers; `None` once that instant has passed.
    ///
    /// After it, resigning waits at most for a join, which ends by itself. An instant in the past would wake the loop
    /// over and over.
    pub(super) fn resign_at(&self) -> Option<Uptime> {
        let now = self.now();
        self.candidacy.resign_by.filter(|&by| now < by && self.node.desired.resign && self.candidacy.retired.is_none())
    }

    /// Resigns once the earlier commits are answered, or after [`RESIGN_WITHIN`], because the leader decides nothing
    /// meanwhile.
    pub(super) fn resign_when_answered(&mut self) {
        if !self.node.desired.resign || self.candidacy.retired.is_some() {
            self.candidacy.resign_by = None;
            return;
        }
        let now = self.now();
        let by = *self.candidacy.resign_by.get_or_insert(now + RESIGN_WITHIN);
        if self.committer.has_fenced() && now < by {
            return;
        }
        // A join in flight may still create a candidate, which must then be given up.
        if self.candidacy.candidate.is_none() && (self.step.under_way.is_some() || self.candidacy.is_join_unclear) {
            return;
        }
        if self.candidacy.candidate.is_some() {
            self.lose_term(TermEnd::Resigned);
        } else {
            self.node.desired.resign = false;
            self.node.emit(Event::Withdrawn);
        }
    }

    /// The path of the candidate that guards the leader's writes, and the fencing token; `None` while this node does
    /// not lead.
    pub(super) fn fence(&self) -> Option<(String, i64)> {
        match &self.candidacy.role {
            Role::Leading(Leading { term, .. }) if !self.node.desired.resign => {
                Some((paths::candidate(&term.candidate), term.token.0))
            }
            _ => None,
        }
    }
}
