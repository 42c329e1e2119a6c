//! What the election asks of the servers, one errand at a time, and what each brings back.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Ended, LEAVE_WITHIN, Life, Pending, Role, SURVEY_EVERY, fired};
use crate::clock::{Clock, Uptime};
use crate::election::{Event, Failure, Unappointable};
use crate::term::{CandidateName, Term, TermEnd};
use crate::zookeeper::appoint::{self, Heir};
use crate::zookeeper::client::{Client, Connect};
use crate::zookeeper::desk::Trouble;
use crate::zookeeper::entry::{self, Entered};
use crate::zookeeper::give_up::Leftover;
use crate::zookeeper::place::{self, Behind, Look, Opened, Survey, Verified};
use crate::zookeeper::store::ClaimError;
use crate::zookeeper::{queue, session_id};

/// What an errand found.
pub enum Found<W> {
    Cluster(String),
    Entered(Entered),
    Candidate(CandidateName),
    Place(Look<W>),
    Opened(Option<Opened<W>>),
    Verified(Verified<W>),
    Heir(Result<Heir, Unappointable>),
    HandedOver(bool),
    Withdrawn,
    Left,
    Published(bool),
    Survey(Survey),
}

/// An errand under way.
pub type Errand<W> = Pending<Result<Found<W>, Trouble>>;

/// When a failed errand is tried again: after growing pauses.
#[derive(Clone, Copy)]
pub struct Retry {
    at: Uptime,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Default for Retry {
    fn default() -> Self {
        Self { at: Uptime::ZERO, pause: FIRST_PAUSE }
    }
}

impl Retry {
    fn put_off(&mut self, now: Uptime) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    pub fn at(&self) -> Uptime {
        self.at
    }
}

impl<C: Connect, K: Clock> Life<'_, C, K> {
    /// Starts the errand that is wanted most, if none is under way.
    pub(super) fn start_errand(&mut self, now: Uptime) {
        if self.errand.is_none() && now >= self.retry.at() {
            self.errand = self.next_errand(now);
        }
    }

    fn next_errand(&mut self, now: Uptime) -> Option<Errand<<C::Client as Client>::Watch>> {
        let desk = self.desk.clone();
        if self.node.wishes.leave.is_some() {
            return Some(Box::pin(async { place::leave(desk).await.map(|()| Found::Left) }));
        }
        if let Some(retired) = self.retired.clone() {
            if let Some(heir) = self.appointment.heir() {
                return Some(Box::pin(async { appoint::hand_over(desk, retired, heir).await.map(Found::HandedOver) }));
            }
            return Some(Box::pin(async { place::withdraw(desk, retired).await.map(|()| Found::Withdrawn) }));
        }
        if !self.is_prepared {
            let cluster = self.node.cluster.clone().unwrap_or_else(|| (self.node.options.uuid)().to_string());
            return Some(Box::pin(async { entry::prepare(desk, cluster).await.map(Found::Cluster) }));
        }
        if !self.is_member {
            let (member, left) = (self.node.member(), self.leftover());
            self.must_publish = false;
            return Some(Box::pin(async { entry::enter(desk, member, left).await.map(Found::Entered) }));
        }
        if self.must_verify || self.watches_member != self.wants_watch() {
            return Some(self.verify());
        }
        if self.node.wishes.resign && self.is_join_unclear && self.candidate.is_none() {
            return Some(Box::pin(async { place::clear(desk).await.map(|()| Found::Withdrawn) }));
        }
        if let (Some(to), Some(own)) = (self.appointment.wanted(), self.candidate.clone()) {
            return Some(Box::pin(async { appoint::find(desk, own, to).await.map(Found::Heir) }));
        }
        let wants_place = self.node.wishes.campaign && !self.node.wishes.resign;
        match (&self.candidate, &self.role) {
            (None, _) if wants_place => {
                let is_unclear = std::mem::replace(&mut self.is_join_unclear, true);
                return Some(Box::pin(async move { place::join(desk, is_unclear).await.map(Found::Candidate) }));
            }
            (Some(_), Role::None) => {
                return Some(Box::pin(async { place::look(desk).await.map(Found::Place) }));
            }
            (Some(candidate), Role::First(_)) => {
                let (candidate, dead) = (candidate.clone(), self.dead());
                return Some(Box::pin(async { place::open(desk, candidate, dead).await.map(Found::Opened) }));
            }
            _ => {}
        }
        if std::mem::take(&mut self.must_publish) {
            let member = self.node.member();
            return Some(Box::pin(async { entry::publish(desk, member).await.map(Found::Published) }));
        }
        if now >= self.survey_at {
            return Some(Box::pin(async { place::survey(desk).await.map(Found::Survey) }));
        }
        None
    }

    fn verify(&mut self) -> Errand<<C::Client as Client>::Watch> {
        self.must_verify = false;
        let (desk, candidate) = (self.desk.clone(), self.candidate.clone());
        let (is_leader, wants_watch) = (matches!(self.role, Role::Leading(_)), self.wants_watch());
        self.watches_member = wants_watch;
        Box::pin(async move { place::verify(desk, candidate, is_leader, wants_watch).await.map(Found::Verified) })
    }

    /// A node that leads or runs jobs watches its own entries.
    fn wants_watch(&self) -> bool {
        matches!(self.role, Role::Leading(_)) || self.node.wishes.busy
    }

    /// Sessions whose entries go at once: this process's own earlier ones, and those of dead processes.
    fn removable(&self) -> Vec<i64> {
        self.node.store.removable().into_iter().chain(self.node.earlier.iter().copied()).collect()
    }

    fn leftover(&self) -> Leftover {
        let heir = Some(self.node.service.events.clone());
        Leftover { sessions: self.removable(), heir, ..Leftover::of_the_dead(self.node.store.as_ref()) }
    }

    fn dead(&self) -> BTreeSet<crate::term::SessionId> {
        self.node.store.removable().into_iter().map(session_id).collect()
    }

    /// Takes what an errand brought back.
    pub(super) fn finish_errand(&mut self, found: Result<Found<<C::Client as Client>::Watch>, Trouble>) {
        self.errand = None;
        let found = match found {
            Ok(found) => found,
            Err(trouble) => return self.retry_errand(trouble),
        };
        // What is only looked at between two tries of something else does not make its pauses short again.
        if !matches!(found, Found::Verified(_)) {
            self.retry = Retry::default();
        }
        match found {
            Found::Cluster(cluster) => self.claim(cluster),
            Found::Entered(entered) => self.entered(entered),
            Found::Candidate(candidate) => self.joined(candidate),
            // Given up while it was looked for: nobody takes it up again.
            Found::Place(_) if self.candidate.is_none() => {}
            Found::Place(look) => self.looked(look),
            Found::Opened(opened) => self.opened(opened),
            Found::Verified(verified) => self.verified(verified),
            Found::Heir(heir) => self.found_heir(heir),
            Found::HandedOver(is_to_heir) => self.handed_over(is_to_heir),
            Found::Withdrawn => self.withdrawn(),
            Found::Left => {
                self.forget_own();
                self.left();
            }
            // Not made again before its going was judged.
            Found::Published(is_there) => self.must_verify |= !is_there,
            Found::Survey(survey) => self.surveyed(survey),
        }
    }

    fn retry_errand(&mut self, trouble: Trouble) {
        let now = self.now();
        self.retry.put_off(now);
        // Whatever failed may have failed because an own entry is gone.
        self.must_verify = self.is_member;
        self.must_publish = true;
        if let Trouble::Again(error) = &trouble
            && self.is_connected
        {
            tracing::debug!(%error, "an errand of the election is tried again");
        }
        self.note_trouble(trouble);
    }

    fn claim(&mut self, cluster: String) {
        match self.node.store.claim(&cluster) {
            Ok(()) => {
                self.is_prepared = true;
                self.node.cluster = Some(cluster);
            }
            Err(ClaimError::OtherCluster { ours }) => {
                let service = self.node.options.service.clone();
                let failure = Failure::OtherCluster { ours, theirs: cluster, service };
                self.ended = Some(Ended::Failed(failure));
            }
            // A disk that is full has room again some day.
            Err(ClaimError::Store(error)) => self.put_off(self.timeout / 5, error.to_string()),
        }
    }

    fn entered(&mut self, entered: Entered) {
        match entered {
            Entered::Yes => {
                self.is_member = true;
                let removed = self.removable();
                self.node.store.forget(&removed);
                self.node.earlier.clear();
                self.name_wanted_until = None;
                self.survey_at = self.now();
                self.is_told = true;
                self.node.tell(Event::Session { id: self.id.clone(), timeout: self.timeout });
                self.tell_resumed();
            }
            Entered::NameHeld { by, owner } => self.want_name(by, owner),
        }
    }

    /// The holder may be a session that nobody renews any more: the server removes it within its timeout and two ticks,
    /// and two ticks are at most a session timeout. Counted from the newest connection, for an ensemble that was away gives every
    /// session its whole time again. A session of this node's own dead processes is nobody, and removed at the next try.
    fn want_name(&mut self, holder: String, owner: i64) {
        let now = self.now();
        let until = *self.name_wanted_until.get_or_insert(now + self.timeout * 2);
        let node = self.node.identity.node.clone();
        if now >= until && !self.removable().contains(&owner) {
            self.ended = Some(Ended::Failed(Failure::NameTaken { node, holder }));
            return;
        }
        self.put_off(self.timeout / 5, format!("node name `{node}` is still held by {holder}"));
    }

    /// What comes next is tried after this pause, and people are told why.
    fn put_off(&mut self, retry: Duration, error: String) {
        self.retry = Retry { at: self.now() + retry, pause: FIRST_PAUSE };
        self.node.tell(Event::Unreachable { retry, error });
    }

    fn joined(&mut self, candidate: CandidateName) {
        self.is_join_unclear = false;
        if queue::sequence(&candidate.0).is_some_and(|sequence| sequence >= queue::HIGH_SEQUENCE)
            && !std::mem::replace(&mut self.is_high_sequence_told, true)
        {
            tracing::warn!(
                "the sequence numbers of /leader are half used up: remove the node while no cronkeeper runs"
            );
        }
        self.role = Role::None;
        self.following = None;
        self.candidate = Some(candidate.clone());
        self.node.tell(Event::Joined { candidate });
    }

    fn looked(&mut self, look: Look<<C::Client as Client>::Watch>) {
        match look {
            Look::First(candidate) => {
                self.adopt(&candidate);
                self.role = Role::First(self.now());
                self.following = None;
                // The opening write, which comes next, renews the lease; one more before it would only hold it up.
                (self.renewed_at, self.timed_at) = (self.now(), Some(self.now()));
            }
            Look::Behind(behind, watch) => {
                self.adopt(&behind.candidate);
                self.role = Role::Waiting(fired(watch));
                self.tell_following(behind);
            }
            Look::Gone => self.candidate = None,
        }
    }

    /// Of several own entries the lowest is ours: it may be one that an unclear create left.
    fn adopt(&mut self, candidate: &CandidateName) {
        if self.candidate.as_ref() != Some(candidate) {
            self.candidate = Some(candidate.clone());
            self.node.tell(Event::Joined { candidate: candidate.clone() });
        }
    }

    fn tell_following(&mut self, behind: Behind) {
        if self.following.as_ref() == Some(&behind) {
            return;
        }
        self.following = Some(behind.clone());
        let Behind { candidate, predecessor, predecessor_node, leader_node } = behind;
        self.node.tell(Event::Following { candidate, predecessor, predecessor_node, leader_node });
    }

    fn opened(&mut self, opened: Option<Opened<<C::Client as Client>::Watch>>) {
        let (&Role::First(since), Some(candidate)) = (&self.role, self.candidate.clone()) else { return };
        let Some(opened) = opened else {
            // Gone, or not as it was made: either way another is needed.
            self.role = Role::None;
            self.retired = self.candidate.take();
            self.must_verify = true;
            return;
        };
        self.acknowledge(opened.sent);
        let now = self.now();
        let is_wanted = !self.node.wishes.resign && self.node.wishes.leave.is_none();
        if !self.is_connected || !is_wanted {
            return;
        }
        self.say_over();
        if let Some(time) = opened.time {
            self.timed_at = Some(opened.sent);
            self.node.tell(Event::Time(time));
        }
        self.committer.start_term();
        let term = Term { token: opened.token, candidate };
        self.role = Role::Leading(term.clone());
        self.watches_member = true;
        self.own_watches = opened.watches.into_iter().map(fired).collect();
        self.has_acted = self.lease.holds(now);
        self.lease_told = self.lease.until();
        let (lease_until, took) = (self.lease.until(), now.since(since));
        self.node.tell(Event::Elected { term, lease_until, snapshot: opened.snapshot, took });
    }

    fn verified(&mut self, verified: Verified<<C::Client as Client>::Watch>) {
        self.own_watches = verified.watches.into_iter().map(fired).collect();
        if !verified.has_candidate {
            self.candidate = None;
        }
        if !verified.has_member {
            self.is_member = false;
        }
        let is_leader = matches!(self.role, Role::Leading(_));
        if !verified.has_candidate {
            self.role = match std::mem::replace(&mut self.role, Role::None) {
                leading @ Role::Leading(_) => leading,
                _ => Role::None,
            };
        }
        let lost = !verified.has_member || (is_leader && !verified.has_candidate);
        if lost && (is_leader || self.node.wishes.busy) {
            self.revoke_lease();
            self.lose_term(TermEnd::EntryGone);
        } else {
            self.tell_resumed();
        }
    }

    fn tell_resumed(&mut self) {
        if self.is_connected && self.is_member && std::mem::take(&mut self.is_suspended) {
            self.node.tell(Event::Resumed { session: self.id.clone() });
        }
    }

    pub(super) fn withdrawn(&mut self) {
        if self.retired.take().is_none() {
            self.is_join_unclear = false;
        }
        self.committer.release();
        if std::mem::take(&mut self.node.wishes.resign) {
            self.node.tell(Event::Withdrawn);
        }
    }

    fn surveyed(&mut self, survey: Survey) {
        self.survey_at = self.now() + SURVEY_EVERY;
        self.must_verify |= !survey.has_member || (self.candidate.is_some() && !survey.has_candidate);
        if let (Role::Waiting(_), true) = (&self.role, survey.has_candidate) {
            match survey.behind {
                Some(behind) if self.following.as_ref().is_none_or(|told| told.predecessor == behind.predecessor) => {
                    self.tell_following(behind);
                }
                // Another predecessor than the watched one, or none: look again, with a watch. Its word has not come, or never will.
                Some(_) | None => self.role = Role::None,
            }
        }
        self.node.tell(Event::Members(survey.members));
    }

    /// Nothing stands of this session any more, nor of those that were removed when the member was made.
    fn forget_own(&mut self) {
        let mut gone = if self.is_member { self.removable() } else { Vec::new() };
        gone.push(self.desk.me.owner);
        self.node.store.forget(&gone);
    }

    /// Done, or as much as the time allowed.
    pub(super) fn left(&mut self) {
        self.node.tell(Event::Left);
        self.ended = Some(Ended::Done);
    }

    pub(super) fn leave(&mut self) {
        let until = self.now() + LEAVE_WITHIN;
        self.node.wishes.leave.get_or_insert(until);
    }
}
