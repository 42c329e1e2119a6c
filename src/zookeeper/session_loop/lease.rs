//! How long this node may act, and how its term ends.

use std::time::Duration;

use futures_util::stream::FuturesUnordered;

use super::candidacy::{Leading, Role};
use super::failing::Task;
use super::membership::MemberState;
use super::operator_requests::Listening;
use super::rights::Taking;
use super::standstill::Standstill;
use super::{Pending, Renewed, SessionLoop};
use crate::clock::{Clock, Uptime};
use crate::election::Event;
use crate::lease::Lease;
use crate::ledger::{self, Commit, CommitId};
use crate::term::TermEnd;
use crate::zookeeper::client::{Client, Connect, Done, Error, MultiError, Op};
use crate::zookeeper::committer::Completed;
use crate::zookeeper::context::{self, SessionError};
use crate::zookeeper::damage::{Damage, Source};
use crate::zookeeper::{paths, time};

/// How long resigning waits for the answers to commits.
const RESIGN_WITHIN: Duration = Duration::from_secs(5);
/// Renewals under way at once: by then the oldest would renew nothing.
const RENEWALS: usize = 5;

/// The lease of this session, and the writes that renew it.
pub(super) struct LeaseKeeper {
    pub lease: Lease,
    /// The lease has held in this term: once it no longer does, the term is over.
    pub has_acted: bool,
    /// A lease that ends by then lets nobody act: it was nearly over when the term was opened.
    pub acts_beyond: Uptime,
    /// The end of the lease that the daemon knows of.
    pub reported: Uptime,
    /// Writes sent before this renew nothing: the lease was taken away since.
    pub valid_from: Uptime,
    pub renewals: FuturesUnordered<Pending<Renewed>>,
    pub renewed_at: Uptime,
    /// When a renewal asked for the servers' time last.
    pub timed_at: Option<Uptime>,
    /// The servers' time was read: nothing is decided by the node's clock alone.
    pub has_time: bool,
}

impl LeaseKeeper {
    /// Of a session that was requested at `requested`.
    pub fn new(timeout: Duration, requested: Uptime) -> Self {
        Self {
            lease: Lease::of_session(timeout, requested),
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

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// Takes what came back of a commit.
    pub(super) fn complete(&mut self, completed: Completed) {
        let outcome = self.committer.complete(completed);
        if let Some(sent) = outcome.acknowledged {
            self.acknowledge(sent);
        }
        self.standstill.unheard.begun(outcome.begun, self.now());
        for (id, answer) in outcome.answers {
            self.answer(id, answer);
        }
        for path in outcome.mended {
            self.mended(Source::Writes, &path);
        }
        for damage in outcome.refused {
            // Refused although nobody has closed it: it has no more numbers to give.
            self.operators.must_renumber |= damage.path == paths::TRIGGERS;
            self.listen_again();
            self.damaged(Source::Writes, damage);
        }
        for id in outcome.put_off {
            if !self.standstill.unheard.is_done(id) {
                self.supervisor.tell_ledger(ledger::Event::PutOff(id));
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

    /// Answers a commit of the daemon; others are this node's own affair.
    pub(super) fn answer(&mut self, id: CommitId, answer: Commit) {
        if !self.standstill.unheard.is_done(id) {
            self.supervisor.answer(id, answer);
        }
    }

    /// While this node leads or runs anything it writes at least this often, and half as often while it waits in the queue; every
    /// commit is such a write.
    /// However much it commits, it asks for the servers' time now and then.
    pub(super) fn renew_at(&self) -> Option<Uptime> {
        let acts = self.supervisor.desired.busy || matches!(self.candidacy.role, Role::First(_) | Role::Leading(_));
        let may = (acts || self.candidacy.candidate.is_some())
            && self.membership.is_present()
            && self.lease.renewals.len() < RENEWALS;
        let every = if acts { self.lease.lease.write_every() } else { self.lease.lease.write_every_in_queue() };
        let renewal = self.lease.renewed_at.max(self.committer.last_sent()) + every;
        may.then(|| renewal.min(self.lease.timed_at.map_or(Uptime::ZERO, |at| at + time::EVERY)))
    }

    /// One check of the own member: it takes a transaction, changes nothing and fires no watch. Now and then it asks for the time.
    pub(super) fn renew(&mut self, now: Uptime) {
        if self.renew_at().is_none_or(|at| now < at) {
            return;
        }
        let check = Op::Check { path: self.context.member(), version: -1 };
        let Ok(line) = self.context.line() else { return };
        let asks_for_time = self.lease.timed_at.is_none_or(|at| now >= at + time::EVERY);
        let ops = if asks_for_time { vec![check, self.touch()] } else { vec![check] };
        let sent = self.supervisor.clock.now().up;
        let multi = line.multi(ops);
        self.lease.renewed_at = sent;
        if asks_for_time {
            self.lease.timed_at = Some(sent);
        }
        self.lease.renewals.push(Box::pin(async move { (sent, multi.await) }));
    }

    fn touch(&self) -> Op {
        match self.membership.is_parent_closed {
            true => time::touch_member(self.context.member(), context::json(&self.supervisor.member(self.timeout))),
            false => time::touch(),
        }
    }

    pub(super) fn renewed(&mut self, sent: Uptime, result: Result<Vec<Done>, MultiError>) {
        match result {
            Ok(done) => {
                if let Some(time) = time::of(&done, sent, self.now()) {
                    self.lease.has_time = true;
                    self.supervisor.time = Some(time);
                    self.supervisor.tell(Event::Time(time));
                }
                self.succeeded(Task::Renew);
                self.acknowledge(sent);
            }
            Err(MultiError { error: Error::NoNode | Error::BadVersion, .. }) => self.membership.must_verify = true,
            Err(MultiError { error: Error::NoAuth, index: Some(0) }) => self.lose_member(),
            // The time is asked for elsewhere, and the lease does not wait for it.
            Err(MultiError { error: Error::NoAuth, index: Some(_) }) if !self.membership.is_parent_closed => {
                (self.membership.is_parent_closed, self.lease.timed_at) = (true, None);
                self.lease.renewed_at = Uptime::ZERO;
                self.damaged(Source::Renewals, Damage::unwritten(paths::NODES, &Error::NoAuth));
            }
            Err(failed) => {
                let error = SessionError::of(&failed.error, &self.context.member());
                self.failed(Task::Renew, &error.to_string());
                self.note_error(error);
            }
        }
    }

    /// A quorum acknowledged a write that was handed over just after `sent`; the lease says what that proves.
    pub(super) fn acknowledge(&mut self, sent: Uptime) {
        if sent < self.lease.valid_from {
            return;
        }
        self.lease.lease.renew(sent, self.now());
        // Before the member stands nothing is protected by it.
        let stands =
            self.membership.is_present() && self.standstill.watch.is != Standstill::Out && !self.standstill.is_leaving;
        let lets_act = stands && self.lease.lease.until() > self.lease.acts_beyond;
        if lets_act && self.lease.lease.until() >= self.lease.reported + self.timeout / 20 {
            self.lease.reported = self.lease.lease.until();
            self.supervisor.tell(Event::Lease { until: self.lease.reported });
        }
    }

    /// The term is over for good once its lease is, whatever the servers say later. A term may be opened before there is a lease:
    /// then nobody has acted in it yet.
    pub(super) fn check_lease(&mut self) {
        let holds = self.lease.lease.holds(self.now()) && self.lease.lease.until() > self.lease.acts_beyond;
        if self.lease.has_acted && !holds {
            self.lose_term(TermEnd::LeaseOver);
        } else {
            self.lease.has_acted = holds && self.candidacy.leads();
        }
    }

    /// The own member is closed to its own node: it proves nothing any more, as if it were gone, and is made anew.
    fn lose_member(&mut self) {
        self.membership.state = MemberState::Closed;
        self.damaged(
            Source::Renewals,
            Damage::new(self.context.member(), "it is closed to its own node, and is made anew"),
        );
        if self.supervisor.desired.busy || self.candidacy.leads() {
            self.revoke_lease();
            self.lose_term(TermEnd::EntryGone);
        }
    }

    /// An own entry, or the session, is gone: what another may start again must stop now.
    pub(super) fn revoke_lease(&mut self) {
        self.lease.valid_from = self.now();
        self.lease.lease.end();
        if self.lease.reported > Uptime::ZERO {
            self.lease.reported = Uptime::ZERO;
            self.supervisor.tell(Event::Lease { until: Uptime::ZERO });
        }
    }

    /// Gives up the place in the queue, and the term that rests on it if there is one.
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
            self.supervisor.answer(id, answer);
        }
        self.forget_damage();
        self.housekeeping.rights = Taking::default();
        self.operators.listening = Listening::From(Uptime::ZERO);
        if let Role::Leading(Leading { term, .. }) = role {
            // The engine asks again for its own runs when it hears that the term is over. What a follower attends to, it still has.
            self.watcher.clear();
            self.candidacy.over = Some((term, why));
        }
        self.tell_over();
    }

    /// Says that the term is over, after the last answers of its commits where they can be had soon.
    pub(super) fn tell_over(&mut self) {
        let Some((_, why)) = &self.candidacy.over else { return };
        let waits = !matches!(why, TermEnd::LeaseOver | TermEnd::Stalled)
            && self.link.is_connected
            && self.committer.has_fenced();
        if !waits {
            self.say_over();
        }
    }

    pub(super) fn say_over(&mut self) {
        if let Some((term, why)) = self.candidacy.over.take() {
            self.supervisor.tell(Event::Over { term, why });
        }
    }

    /// When resigning no longer waits for answers. After that it waits for a join at most, which ends by itself: a time that has passed
    /// would wake the loop again at once, for as long as that takes.
    pub(super) fn resign_at(&self) -> Option<Uptime> {
        let now = self.now();
        self.candidacy
            .resign_by
            .filter(|&by| now < by && self.supervisor.desired.resign && self.candidacy.retired.is_none())
    }

    /// Resigning waits for the answers to what was requested before it, but not for ever: nothing is decided meanwhile.
    pub(super) fn resign_when_answered(&mut self) {
        if !self.supervisor.desired.resign || self.candidacy.retired.is_some() {
            self.candidacy.resign_by = None;
            return;
        }
        let now = self.now();
        let by = *self.candidacy.resign_by.get_or_insert(now + RESIGN_WITHIN);
        if self.committer.has_fenced() && now < by {
            return;
        }
        // A join under way may yet make a candidate: then that one is given up.
        if self.candidacy.candidate.is_none() && (self.step.under_way.is_some() || self.candidacy.is_join_unclear) {
            return;
        }
        if self.candidacy.candidate.is_some() {
            self.lose_term(TermEnd::Resigned);
        } else {
            self.supervisor.desired.resign = false;
            self.supervisor.tell(Event::Withdrawn);
        }
    }

    /// The path of the candidate that guards what the leader writes; absent where this node does not lead.
    pub(super) fn fence(&self) -> Option<(String, i64)> {
        match &self.candidacy.role {
            Role::Leading(Leading { term, .. }) if !self.supervisor.desired.resign => {
                Some((paths::candidate(&term.candidate), term.token.0))
            }
            _ => None,
        }
    }
}
