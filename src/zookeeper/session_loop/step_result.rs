//! What an request of the election brought back, and what that makes of the node.
//!
//! Each finding changes how things stand and tells the daemon; what is to be asked next follows from it, in
//! [`step`](super::step).

use std::time::Duration;

use super::candidacy::{Leading, Role};
use super::link::Reported;
use super::membership::MemberState;
use super::relook::Again;
use super::step::Retry;
use super::{SURVEY_EVERY, SessionEnd, SessionLoop, fired};
use crate::clock::{Clock, Uptime};
use crate::election::{Event, Failure, TransferError};
use crate::telemetry::TARGET;
use crate::term::{CandidateName, Term, TermEnd};
use crate::zookeeper::client::{Client, Connect};
use crate::zookeeper::context::SessionError;
use crate::zookeeper::damage::Source;
use crate::zookeeper::entry::Entered;
use crate::zookeeper::place::{Behind, Look, Opened, Survey, Verified, Written};
use crate::zookeeper::store::ClaimError;
use crate::zookeeper::transfer::Successor;
use crate::zookeeper::{paths, queue};

/// The longest session that servers grant by default, at their usual tick of 2 s.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(40);
/// Whatever a record says, a name is waited for no longer than twice this.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// What an request found.
pub enum Found<W> {
    Cluster(String),
    Entered(Entered),
    Candidate(CandidateName),
    Place(Look<W>),
    Opened(Option<Opened<W>>),
    Written(Option<Written>),
    Verified(Verified<W>),
    Successor(Result<Successor, TransferError>),
    HandedOver(bool),
    Withdrawn,
    Out,
    Left,
    Published(bool),
    Renumbered(bool),
    Survey(Survey, Again),
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// Takes what an request brought back.
    pub(super) fn finish_step(&mut self, found: Result<Found<<C::Client as Client>::Watch>, SessionError>) {
        self.step.under_way = None;
        let task = self.step.task;
        self.standstill.is_leaving = false;
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.retry_step(error),
        };
        // What is only looked at between two tries of something else does not make its pauses short again.
        if !matches!(found, Found::Verified(_)) {
            self.step.retry = Retry::default();
        }
        self.succeeded(task);
        match found {
            Found::Cluster(cluster) => self.claim(cluster),
            Found::Entered(entered) => self.entered(entered),
            Found::Candidate(candidate) => self.joined(candidate),
            // Given up while it was looked for: nobody takes it up again.
            Found::Place(_) if self.candidacy.candidate.is_none() => {}
            Found::Place(look) => self.looked(look),
            Found::Opened(opened) => self.opened(opened),
            Found::Written(written) => self.written(written),
            Found::Verified(verified) => self.verified(verified),
            Found::Successor(successor) => self.found_successor(successor),
            Found::HandedOver(is_to_successor) => self.handed_over(is_to_successor),
            Found::Withdrawn => self.withdrawn(),
            Found::Out => self.went_out(),
            Found::Left => {
                self.forget_own();
                self.left();
            }
            // Not made again before its going was judged.
            Found::Published(is_there) => self.membership.must_verify |= !is_there,
            Found::Renumbered(is_done) => self.renumbered(is_done),
            Found::Survey(survey, again) => {
                self.looked_again(again);
                self.surveyed(survey);
            }
        }
    }

    fn claim(&mut self, cluster: String) {
        match self.supervisor.store.claim(&cluster) {
            Ok(()) => {
                self.membership.prepared();
                self.supervisor.cluster = Some(cluster);
            }
            Err(ClaimError::OtherCluster { ours }) if self.supervisor.has_joined => {
                let error = format!("{} says that this is cluster {cluster}, and not {ours}", paths::CLUSTER);
                self.put_off(self.timeout / 5, error);
            }
            Err(ClaimError::OtherCluster { ours }) => {
                let service = self.supervisor.options.service.clone();
                let failure = Failure::OtherCluster { ours, theirs: cluster, service };
                self.link.ended = Some(SessionEnd::Failed(failure));
            }
            // A disk that is full has room again some day.
            Err(ClaimError::Store(error)) => self.put_off(self.timeout / 5, error.to_string()),
        }
    }

    fn entered(&mut self, entered: Entered) {
        match entered {
            Entered::Yes => {
                self.membership.state = MemberState::Present;
                let removed = self.removable();
                self.supervisor.store.forget(&removed);
                self.supervisor.earlier.clear();
                self.membership.name_wanted_until = None;
                self.candidacy.survey_at = self.now();
                self.link.reported = Reported::Session;
                self.supervisor.tell(Event::Session { id: self.id.clone(), timeout: self.timeout });
                self.tell_resumed();
                self.tell_what_is_open();
            }
            Entered::NameHeld { by, owner, timeout } => self.want_name(by, owner, timeout),
        }
    }

    /// The holder may be a session that nobody renews any more: the server removes it within its timeout and two ticks,
    /// and two ticks are at most a session timeout. Where its timeout is not known, it may be as long as servers allow; what has no
    /// session goes with none. Counted from the newest connection, for an ensemble that was away gives every session its whole time
    /// again. A session of this node's own dead processes is nobody, and removed at the next try.
    fn want_name(&mut self, holder: String, owner: i64, timeout: Option<Duration>) {
        let now = self.now();
        let unknown = if owner == 0 { self.timeout } else { LONGEST_TIMEOUT };
        let timeout = timeout.unwrap_or(unknown).clamp(self.timeout, LONGEST_WAIT);
        let until = *self.membership.name_wanted_until.get_or_insert(now + timeout * 2);
        let node = self.supervisor.identity.node.clone();
        if now >= until && !self.removable().contains(&owner) {
            self.link.ended = Some(SessionEnd::Failed(Failure::NameTaken { node, holder }));
            return;
        }
        self.put_off(self.timeout / 5, format!("node name `{node}` is still held by {holder}"));
    }

    fn joined(&mut self, candidate: CandidateName) {
        self.candidacy.is_join_unclear = false;
        self.supervisor.has_joined = true;
        if queue::sequence(&candidate.0).is_some_and(|sequence| sequence >= queue::HIGH_SEQUENCE)
            && !std::mem::replace(&mut self.candidacy.is_high_sequence_reported, true)
        {
            tracing::warn!(
                "the sequence numbers of /leader are half used up: remove the node while no cronkeeper runs"
            );
        }
        self.candidacy.role = Role::None;
        self.candidacy.following = None;
        self.candidacy.candidate = Some(candidate.clone());
        self.supervisor.tell(Event::Joined { candidate });
    }

    fn looked(&mut self, look: Look<<C::Client as Client>::Watch>) {
        match look {
            Look::First(candidate) => {
                self.found_damage(Source::Queue, None);
                self.adopt(&candidate);
                self.candidacy.role = Role::First(self.now());
                self.candidacy.following = None;
                // The opening write, which comes soon, renews the lease; one more before it would only hold the term up.
                (self.lease.renewed_at, self.lease.timed_at) = (self.now(), Some(self.now()));
            }
            Look::Behind(behind, watch, damage) => {
                self.found_damage(Source::Queue, damage);
                self.adopt(&behind.candidate);
                self.candidacy.role = Role::Waiting(fired(watch));
                self.tell_following(behind);
                self.look_what_is_open();
            }
            Look::Gone => {
                self.found_damage(Source::Queue, None);
                self.candidacy.candidate = None;
            }
        }
    }

    /// Of several own entries the lowest is ours: it may be one that an unclear create left.
    fn adopt(&mut self, candidate: &CandidateName) {
        if self.candidacy.candidate.as_ref() != Some(candidate) {
            self.candidacy.candidate = Some(candidate.clone());
            self.supervisor.tell(Event::Joined { candidate: candidate.clone() });
        }
    }

    fn tell_following(&mut self, behind: Behind) {
        if self.candidacy.following.as_ref() == Some(&behind) {
            return;
        }
        self.candidacy.following = Some(behind.clone());
        let Behind { candidate, predecessor, predecessor_node, leader_node } = behind;
        self.supervisor.tell(Event::Following { candidate, predecessor, predecessor_node, leader_node });
    }

    fn opened(&mut self, opened: Option<Opened<<C::Client as Client>::Watch>>) {
        let (&Role::First(since), Some(candidate)) = (&self.candidacy.role, self.candidacy.candidate.clone()) else {
            return;
        };
        let Some(opened) = opened else {
            // Gone, or not as it was made: either way another is needed.
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
        let is_wanted = !self.supervisor.desired.resign && self.supervisor.desired.leave.is_none();
        if !self.link.is_connected || !is_proven || !is_wanted {
            return;
        }
        self.say_over();
        self.found_damage(Source::Ledger, opened.damaged);
        self.tell_time(opened.written);
        self.committer.start_term();
        let term = Term { token: opened.token, candidate };
        self.candidacy.role = Role::Leading(Leading { term: term.clone(), is_written: opened.written.is_some() });
        self.membership.is_watched = true;
        self.membership.watches = opened.watches.into_iter().map(fired).collect();
        let lease_until = self.lease_to_act_by(now);
        self.lease.reported = lease_until;
        self.lease.has_acted = now < lease_until;
        self.take_rights();
        let took = now.since(since);
        self.supervisor.tell(Event::Elected { term, lease_until, snapshot: opened.snapshot, took });
    }

    /// A term that began with a lease which is nearly over would be lost at once: it begins without, until the lease is renewed. Where
    /// runs are here, that lease is theirs too, and is not taken from them.
    fn lease_to_act_by(&mut self, now: Uptime) -> Uptime {
        let until = self.lease.lease.until();
        if until >= now + self.timeout / 4 || self.supervisor.desired.busy {
            return until;
        }
        self.lease.acts_beyond = until;
        Uptime::ZERO
    }

    /// A node that may neither write that it leads nor read what is to be done would lead nobody: another may do better.
    fn leave_it_to_others(&mut self) {
        tracing::warn!(
            target: TARGET,
            "this node may not lead: {} cannot be written, and the jobs or runs cannot be read. It goes to the end of the queue",
            paths::LEADER
        );
        (self.candidacy.role, self.candidacy.is_queue_closed) = (Role::None, false);
        self.candidacy.retired = self.candidacy.candidate.take();
        self.step.retry = Retry::from(self.now() + self.timeout / 2);
    }

    /// Refused: the candidate is gone, or not as it was made, as where a commit finds that.
    fn written(&mut self, written: Option<Written>) {
        match written {
            Some(written) => {
                if let Role::Leading(leading) = &mut self.candidacy.role {
                    leading.is_written = true;
                }
                self.tell_time(Some(written));
                self.acknowledge(written.sent);
            }
            None if self.candidacy.leads() => {
                self.revoke_lease();
                self.lose_term(TermEnd::Fenced);
            }
            None => {}
        }
    }

    fn tell_time(&mut self, written: Option<Written>) {
        if let Some(Written { sent, time: Some(time) }) = written {
            self.lease.timed_at = Some(sent);
            self.lease.has_time = true;
            self.supervisor.time = Some(time);
            self.supervisor.tell(Event::Time(time));
        }
    }

    fn verified(&mut self, verified: Verified<<C::Client as Client>::Watch>) {
        self.membership.watches = verified.watches.into_iter().map(fired).collect();
        if !verified.has_candidate {
            self.candidacy.candidate = None;
        }
        if !verified.has_member {
            self.membership.lose();
        }
        let is_leader = self.candidacy.leads();
        if !verified.has_candidate {
            self.candidacy.role = match std::mem::replace(&mut self.candidacy.role, Role::None) {
                leading @ Role::Leading(_) => leading,
                _ => Role::None,
            };
        }
        let lost = !verified.has_member || (is_leader && !verified.has_candidate);
        if lost && (is_leader || self.supervisor.desired.busy) {
            self.revoke_lease();
            self.lose_term(TermEnd::EntryGone);
        } else {
            self.tell_resumed();
        }
    }

    fn tell_resumed(&mut self) {
        if self.link.is_connected && self.membership.is_present() && self.link.resume() {
            self.supervisor.tell(Event::Resumed { session: self.id.clone() });
        }
    }

    pub(super) fn withdrawn(&mut self) {
        if self.candidacy.retired.take().is_none() {
            self.candidacy.is_join_unclear = false;
        }
        self.committer.release();
        if std::mem::take(&mut self.supervisor.desired.resign) {
            self.supervisor.tell(Event::Withdrawn);
        }
    }

    fn surveyed(&mut self, survey: Survey) {
        self.candidacy.survey_at = self.now() + SURVEY_EVERY;
        self.membership.must_verify |=
            !survey.has_member || (self.candidacy.candidate.is_some() && !survey.has_candidate);
        if let (Role::Waiting(_), true) = (&self.candidacy.role, survey.has_candidate) {
            match survey.behind {
                Some(behind)
                    if self.candidacy.following.as_ref().is_none_or(|told| told.predecessor == behind.predecessor) =>
                {
                    self.tell_following(behind);
                }
                // Another predecessor than the watched one, or none: look again, with a watch. Its word has not come, or never will.
                Some(_) | None => self.candidacy.role = Role::None,
            }
        }
        self.membership.must_publish |=
            self.membership.is_present() && !survey.members.iter().any(|member| member.node == self.context.me.node);
        self.reading.waiting.extend(self.reading.refused.drain(..));
        if !self.supervisor.damages.paths(Source::OperatorRequests).is_empty() {
            self.listen_again();
        }
        self.take_rights_of(&survey.members);
        self.found_damage(Source::Members, survey.damaged);
        self.supervisor.tell(Event::Members(survey.members));
    }
}
