//! Applies the results of the election's requests.
//!
//! Each result changes the node's state and is reported to the daemon. The next request follows from the new state, in
//! [`step`](super::step).

use std::time::Duration;

use super::candidacy::{Leading, Role};
use super::link::ReportedLink;
use super::membership::OwnMemberState;
use super::reread::RereadResult;
use super::step::Retry;
use super::{FIRST_SURVEY, SessionEnd, SessionLoop, fired};
use crate::paths;
use crate::queue;
use crate::recipes::context::SessionError;
use crate::recipes::damage::Source;
use crate::recipes::entry::Entered;
use crate::recipes::place::{Ahead, Behind, Look, Opened, Survey, Verified, Written};
use crate::recipes::store::ClaimError;
use crate::recipes::transfer::Successor;
use crate::recipes::wanted::Wanted;
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::{Event, Failure, TransferError};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::term::SessionId;
use cronkeeper_core::term::{CandidateName, Term, TermEnd};

/// The longest session timeout that servers grant by default, at their usual tick of 2 s.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(40);
/// The node waits for its name at most twice this long, whatever timeout the holder's record names.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The result of a request of the election.
pub enum StepResult<W> {
    Cluster(String),
    Entered(Entered),
    Candidate(CandidateName),
    Position(Look<W>),
    Opened(Option<Opened<W>>),
    Written(Option<Written>),
    Verified(Verified<W>),
    Wanted(Wanted<W>),
    Successor(Result<Successor, TransferError>),
    HandedOver(bool),
    Withdrawn,
    OutOfCluster,
    Left,
    Published(bool),
    Renumbered(bool),
    LeftSettled,
    /// `None`: the leader's entry is still there.
    Leader(Option<Ahead>),
    Survey(Survey<W>, RereadResult),
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Applies the result of the request in flight.
    pub(super) fn finish_step(&mut self, found: Result<StepResult<C::Watch>, SessionError>) {
        self.step.under_way = None;
        let task = self.step.task;
        self.standstill.is_leaving = false;
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.retry_step(error),
        };
        // Verifying runs between two tries of a failing request. Its success must not reset that request's backoff.
        if !matches!(found, StepResult::Verified(_)) {
            self.step.retry = Retry::default();
        }
        self.succeeded(task);
        match found {
            StepResult::Cluster(cluster) => self.claim(cluster),
            StepResult::Entered(entered) => self.entered(entered),
            StepResult::Candidate(candidate) => self.joined(candidate),
            // The candidate was given up while its position was read.
            StepResult::Position(_) if self.candidacy.candidate.is_none() => {}
            StepResult::Position(look) => self.on_position(look),
            StepResult::Opened(opened) => self.opened(opened),
            StepResult::Written(written) => self.written(written),
            StepResult::Verified(verified) => self.verified(verified),
            StepResult::Wanted(wanted) => self.read_wanted(wanted),
            StepResult::Successor(successor) => self.found_successor(successor),
            StepResult::HandedOver(is_to_successor) => self.handed_over(is_to_successor),
            StepResult::Withdrawn => self.withdrawn(),
            StepResult::OutOfCluster => self.on_cluster_left(),
            StepResult::Left => {
                self.forget_own();
                if self.job_locks.is_busy() {
                    // No further step follows. The end of the last release ends the session, or the time for it.
                    self.step.under_way = Some(Box::pin(std::future::pending()));
                    self.job_locks.ends_session = true;
                } else {
                    self.left();
                }
            }
            // The member must not be recreated before the loss of the old one was handled.
            StepResult::Published(is_there) => self.membership.must_verify |= !is_there,
            StepResult::LeftSettled => self.node.left_by_dead.clear(),
            StepResult::Renumbered(is_done) => self.renumbered(is_done),
            StepResult::Leader(ahead) => {
                if let Some(ahead) = ahead {
                    self.read_ahead(ahead);
                }
            }
            StepResult::Survey(survey, reread) => {
                self.finish_reread(reread);
                self.surveyed(survey);
            }
        }
    }

    fn claim(&mut self, cluster: String) {
        match self.node.store.claim(&cluster) {
            Ok(()) => {
                self.membership.prepared();
                self.node.cluster = Some(cluster);
            }
            Err(ClaimError::OtherCluster { ours }) if self.node.has_joined => {
                let error = format!("{} holds the id of cluster {cluster}, expected {ours}", paths::CLUSTER);
                self.postpone_step(self.timeout / 5, error);
            }
            Err(ClaimError::OtherCluster { ours }) => {
                let service = self.node.options.service.clone();
                let failure = Failure::OtherCluster { ours, theirs: cluster, service };
                self.link.ended = Some(SessionEnd::Failed(failure));
            }
            // A full disk may have room again later.
            Err(ClaimError::Store(error)) => self.postpone_step(self.timeout / 5, error.to_string()),
        }
    }

    fn entered(&mut self, entered: Entered) {
        match entered {
            Entered::Yes => {
                self.membership.state = OwnMemberState::Present;
                let removed = self.removable();
                self.node.note_left(&removed);
                self.membership.name_wanted_until = None;
                self.candidacy.survey_at = self.now();
                self.link.on_member();
                if self.node.has_joined {
                    self.let_others_restore();
                }
                self.node.emit(Event::Session { id: self.id.clone(), timeout: self.timeout });
                self.report_resumed();
                self.warn_if_open_to_everybody();
            }
            Entered::NameHeld { by, session, timeout } => self.wait_for_name(by, session.as_ref(), timeout),
        }
    }

    /// Waits for another session to give up this node's name.
    ///
    /// The holder may be a session that nobody renews any more. The server removes it within its timeout and two ticks,
    /// and two ticks are at most a session timeout. If the holder's timeout is unknown, it may be as long as servers
    /// allow; a member without a session is removed with none. The wait counts from the newest connection, because a
    /// service that was away gives every session its full timeout again. A session of this node's own dead processes
    /// does not count as a holder: the next try removes it.
    fn wait_for_name(&mut self, holder: String, session: Option<&SessionId>, timeout: Option<Duration>) {
        let now = self.now();
        let unknown = if session.is_none() { self.timeout } else { LONGEST_TIMEOUT };
        let timeout = timeout.unwrap_or(unknown).clamp(self.timeout, LONGEST_WAIT);
        let until = *self.membership.name_wanted_until.get_or_insert(now + timeout * 2);
        let node = self.node.identity.node.clone();
        let is_own = |id: &SessionId| self.removable().contains(id) || self.node.left.contains(id);
        if now >= until && !session.is_some_and(is_own) {
            self.link.ended = Some(SessionEnd::Failed(Failure::NameTaken { node, holder }));
            return;
        }
        self.postpone_step(self.timeout / 5, format!("node name `{node}` is still held by {holder}"));
    }

    fn joined(&mut self, candidate: CandidateName) {
        self.candidacy.is_join_unclear = false;
        self.node.has_joined = true;
        if queue::sequence(&candidate.0).is_some_and(|sequence| sequence >= queue::HIGH_SEQUENCE)
            && !std::mem::replace(&mut self.candidacy.is_high_sequence_reported, true)
        {
            tracing::warn!(
                target: TARGET,
                event = log_event::COORDINATION_NUMBERS_LOW,
                path = paths::LEADER,
                "half of the sequence numbers of /leader are used up; stop every cronkeeper and remove /leader to \
                 restart at 0"
            );
        }
        self.candidacy.role = Role::None;
        self.candidacy.following = None;
        self.candidacy.candidate = Some(candidate.clone());
        self.node.emit(Event::Joined { candidate });
    }

    fn on_position(&mut self, look: Look<C::Watch>) {
        match look {
            Look::First(candidate) => {
                self.found_damage(Source::Queue, None);
                self.adopt(&candidate);
                self.candidacy.role = Role::First(self.now());
                self.candidacy.following = None;
                // The opening write follows soon and renews the lease; another renewal before it would only delay the
                // term.
                (self.lease.renewed_at, self.lease.timed_at) = (self.now(), Some(self.now()));
            }
            Look::Behind(behind, watch, damage) => {
                self.found_damage(Source::Queue, damage);
                self.adopt(&behind.candidate);
                self.candidacy.role = Role::Waiting(fired(watch));
                self.candidacy.survey_soon(self.now());
                self.report_following(behind);
                self.schedule_open_check();
            }
            Look::Gone => {
                self.found_damage(Source::Queue, None);
                self.candidacy.candidate = None;
            }
        }
    }

    /// Uses the lowest of the node's own candidates: it may be one that an unanswered create left.
    fn adopt(&mut self, candidate: &CandidateName) {
        if self.candidacy.candidate.as_ref() != Some(candidate) {
            self.candidacy.candidate = Some(candidate.clone());
            self.node.emit(Event::Joined { candidate: candidate.clone() });
        }
    }

    fn report_following(&mut self, behind: Behind) {
        self.candidacy.look_for_leader_soon(self.now(), &behind.candidate);
        let known = self.candidacy.following.replace(behind.clone());
        // One entry of a stranger after another is the same to the daemon.
        if known.is_some_and(|known| Behind { leader: behind.leader.clone(), ..known } == behind) {
            return;
        }
        let Behind { candidate, predecessor, predecessor_node, leader: _, leader_node } = behind;
        self.node.emit(Event::Following { candidate, predecessor, predecessor_node, leader_node });
    }

    fn opened(&mut self, opened: Option<Opened<C::Watch>>) {
        let (&Role::First(since), Some(candidate)) = (&self.candidacy.role, self.candidacy.candidate.clone()) else {
            return;
        };
        let Some(opened) = opened else {
            // The candidate is gone or was changed: either way the node needs a new one.
            self.candidacy.role = Role::None;
            self.candidacy.retired = self.candidacy.candidate.take();
            self.membership.must_verify = true;
            return;
        };
        if let Some(written) = opened.written {
            self.acknowledge(written.sent);
        }
        if self.candidacy.is_queue_closed && opened.is_blind() {
            return self.leave_it_to_others();
        }
        let now = self.now();
        let is_proven = opened.written.is_some() || self.lease.lease.holds(now);
        let is_wanted = !self.node.desired.resign && self.node.desired.leave.is_none();
        if !self.link.is_connected || !is_proven || !is_wanted {
            return;
        }
        if self.node.newest_token >= Some(opened.token) {
            return self.leave_returned_candidate(&candidate);
        }
        self.node.newest_token = Some(opened.token);
        self.emit_term_over();
        self.found_damage(Source::Ledger, opened.damaged);
        self.report_time(opened.written);
        self.committer.start_term();
        let term = Term { token: opened.token, candidate };
        self.candidacy.role = Role::Leading(Leading { term: term.clone(), is_written: opened.written.is_some() });
        self.membership.is_watched = true;
        self.membership.watches = opened.watches.into_iter().map(fired).collect();
        let lease_until = self.lease_to_act_by(now);
        self.lease.reported = lease_until;
        self.lease.has_acted = now < lease_until;
        self.schedule_access_update();
        let took = now.since(since);
        self.node.emit(Event::Elected { term, lease_until, snapshot: opened.snapshot, took });
        // The leader before may be gone: whoever asks who is missing must not wait for the next survey.
        self.candidacy.survey_at = now;
    }

    /// Removes the candidate of an earlier term, which the servers have lost the removal of: its token has been used, and
    /// tokens only grow.
    fn leave_returned_candidate(&mut self, candidate: &CandidateName) {
        tracing::error!(
            target: TARGET,
            event = log_event::COORDINATION_REWOUND,
            path = paths::candidate(candidate),
            "the coordination service has lost that this candidate was removed; removing it again",
        );
        self.candidacy.role = Role::None;
        self.candidacy.retired = self.candidacy.candidate.take();
        // What this node knows of that term is restored before the removal lets another node lead.
        self.step.retry = Retry::from(self.now() + self.timeout / 4);
    }

    /// The lease that a new term begins with.
    ///
    /// A term that begins with a lease that is nearly over would be lost at once, so it begins without one until the
    /// lease is renewed. If the node has runs in flight, they depend on the same lease, and it is not taken from them.
    fn lease_to_act_by(&mut self, now: Uptime) -> Uptime {
        let until = self.lease.lease.until();
        if until >= now + self.timeout / 4 || self.node.desired.busy {
            return until;
        }
        self.lease.acts_beyond = until;
        Uptime::ZERO
    }

    /// Gives up the first position: this node can neither write that it leads nor read the jobs or runs. Another node
    /// may be able to.
    fn leave_it_to_others(&mut self) {
        tracing::warn!(
            target: TARGET,
            event = log_event::ELECTION_UNFIT,
            path = paths::LEADER,
            "this node cannot lead: {} is not writable, and the jobs or runs are not readable; going to the end of \
             the queue",
            paths::LEADER
        );
        (self.candidacy.role, self.candidacy.is_queue_closed) = (Role::None, false);
        self.candidacy.retired = self.candidacy.candidate.take();
        self.step.retry = Retry::from(self.now() + self.timeout / 2);
    }

    /// Applies the result of the opening write. `None`: the candidate is gone or was changed, as when a commit is
    /// fenced.
    fn written(&mut self, written: Option<Written>) {
        match written {
            Some(written) => {
                if let Role::Leading(leading) = &mut self.candidacy.role {
                    leading.is_written = true;
                }
                self.report_time(Some(written));
                self.acknowledge(written.sent);
            }
            None if self.candidacy.leads() => {
                self.revoke_lease();
                self.lose_term(TermEnd::Fenced);
            }
            None => {}
        }
    }

    fn report_time(&mut self, written: Option<Written>) {
        if let Some(Written { sent, time: Some(time) }) = written {
            self.lease.timed_at = Some(sent);
            self.lease.has_time = true;
            self.node.time = Some(time);
            self.node.emit(Event::Time(time));
        }
    }

    fn verified(&mut self, verified: Verified<C::Watch>) {
        self.membership.watches = verified.watches.into_iter().map(fired).collect();
        if !verified.has_candidate {
            self.candidacy.candidate = None;
        }
        if !verified.has_member {
            self.membership.lose();
        }
        let is_leader = self.candidacy.leads();
        // After a reconnect the queue may be another: the servers may have lost something.
        let is_outdated = !verified.has_candidate || self.link.reported == ReportedLink::Suspended;
        if is_outdated && !is_leader {
            self.candidacy.role = Role::None;
        }
        let lost = !verified.has_member || (is_leader && (!verified.has_candidate || verified.is_preceded));
        if lost && (is_leader || self.node.desired.busy) {
            self.revoke_lease();
            self.lose_term(TermEnd::EntryGone);
        } else {
            self.report_resumed();
        }
    }

    fn report_resumed(&mut self) {
        if self.link.is_connected && self.membership.is_present() && self.link.resume() {
            self.node.emit(Event::Resumed { session: self.id.clone() });
            // Perhaps by other servers, which have lost something.
            self.let_others_restore();
            self.listen_again();
            self.watcher.read_all_again();
            self.job_locks.release_again();
        }
    }

    /// Opens no term for a while: a leader begins what is not on record, so whoever knows more writes it first.
    fn let_others_restore(&mut self) {
        self.candidacy.opens_at = self.now() + self.timeout / 4;
    }

    pub(super) fn withdrawn(&mut self) {
        if self.candidacy.retired.take().is_none() {
            self.candidacy.is_join_unclear = false;
        }
        self.committer.release();
        if std::mem::take(&mut self.node.desired.resign) {
            // A term is over before its node has withdrawn, even if the last answers are still to come.
            self.emit_term_over();
            self.node.emit(Event::Withdrawn);
        }
    }

    /// A member has come or gone: the leader looks at once, but not more often than once a second.
    pub(super) fn members_changed(&mut self) {
        self.membership.of_others = None;
        let soonest = (self.candidacy.surveyed_at + FIRST_SURVEY).max(self.now());
        self.candidacy.survey_at = self.candidacy.survey_at.min(soonest);
    }

    fn surveyed(&mut self, survey: Survey<C::Watch>) {
        self.candidacy.surveyed(self.now());
        match survey.changed {
            Some(watch) if self.candidacy.leads() => self.membership.of_others = Some(fired(watch)),
            Some(_) | None => {}
        }
        // Nobody overtakes a leader, unless the servers have lost that a candidate was removed.
        let is_overtaken =
            self.candidacy.leads() && survey.ahead.behind.as_ref().is_some_and(|behind| behind.leader_node.is_some());
        self.membership.must_verify |= !survey.has_member || is_overtaken;
        self.read_ahead(survey.ahead);
        self.membership.must_publish |=
            self.membership.is_present() && !survey.members.iter().any(|member| member.node == self.context.me.node);
        self.reading.waiting.extend(self.reading.refused.drain(..));
        if !self.node.damages.paths(Source::OperatorRequests).is_empty() {
            self.listen_again();
        }
        self.update_access_for(&survey.members);
        self.found_damage(Source::Members, survey.damaged);
        self.node.emit(Event::Members(survey.members));
    }

    /// The queue was read without a watch.
    fn read_ahead(&mut self, ahead: Ahead) {
        self.membership.must_verify |= self.candidacy.candidate.is_some() && !ahead.has_candidate;
        if !ahead.has_candidate || !matches!(self.candidacy.role, Role::Waiting(_)) {
            return;
        }
        let watched = self.candidacy.following.as_ref().map(|known| &known.predecessor);
        match ahead.behind {
            Some(behind) if watched.is_none_or(|watched| *watched == behind.predecessor) => {
                self.report_following(behind);
            }
            // Another predecessor than the watched one, or none. The watch has not fired yet, or never will: read the
            // position again.
            Some(_) | None => self.candidacy.role = Role::None,
        }
    }
}
