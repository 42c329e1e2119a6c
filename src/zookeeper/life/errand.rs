//! What the election asks of the servers, one errand at a time: which is wanted most, and when a failed one is tried again.
//!
//! Asks only; what comes back is taken in [`found`](super::found).

use std::collections::BTreeSet;
use std::time::Duration;

use super::found::Found;
use super::{Life, Pending, Role};
use crate::clock::{Clock, Uptime};
use crate::election::Event;
use crate::term::SessionId;
use crate::zookeeper::client::{Client, Connect};
use crate::zookeeper::desk::Trouble;
use crate::zookeeper::give_up::Leftover;
use crate::zookeeper::place::Proof;
use crate::zookeeper::{appoint, entry, place, session_id};

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
        if let Some(going) = self.go_out() {
            return Some(going);
        }
        if self.is_out() {
            return None;
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
        let wants_place = self.node.wishes.campaign && !self.node.wishes.resign && self.loop_turns();
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
                let proof = if self.lease.holds(now) && self.has_time { Proof::Lease } else { Proof::Write };
                return Some(Box::pin(
                    async move { place::open(desk, candidate, dead, proof).await.map(Found::Opened) },
                ));
            }
            (Some(candidate), Role::Leading(_)) if !self.is_written => {
                let candidate = candidate.clone();
                return Some(Box::pin(async { place::write_opening(desk, candidate).await.map(Found::Written) }));
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
    pub(super) fn removable(&self) -> Vec<i64> {
        self.node.store.removable().into_iter().chain(self.node.earlier.iter().copied()).collect()
    }

    fn leftover(&self) -> Leftover {
        let heir = Some(self.node.service.events.clone());
        Leftover { sessions: self.removable(), heir, ..Leftover::of_the_dead(self.node.store.as_ref()) }
    }

    fn dead(&self) -> BTreeSet<SessionId> {
        self.node.store.removable().into_iter().map(session_id).collect()
    }

    pub(super) fn retry_errand(&mut self, trouble: Trouble) {
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

    /// What comes next is tried after this pause, and people are told why.
    pub(super) fn put_off(&mut self, retry: Duration, error: String) {
        self.retry = Retry { at: self.now() + retry, pause: FIRST_PAUSE };
        self.node.tell(Event::Unreachable { retry, error });
    }
}
