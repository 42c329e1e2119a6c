//! What the election asks of the servers, one request at a time: which is wanted most, and when a failed one is tried again.
//!
//! Asks only; what comes back is taken in [`step_result`](super::step_result).

use std::collections::BTreeSet;
use std::time::Duration;

use super::candidacy::{Leading, Role};
use super::failing::Task;
use super::membership::MemberState;
use super::step_result::Found;
use super::{Pending, SessionEnd, SessionLoop, relook};
use crate::clock::{Clock, Uptime};
use crate::election::Event;
use crate::telemetry::TARGET;
use crate::term::SessionId;
use crate::zookeeper::client::{Client, Connect, Error};
use crate::zookeeper::context::{self, SessionError};
use crate::zookeeper::damage::{Damage, Source};
use crate::zookeeper::give_up::Leftover;
use crate::zookeeper::place::{OpenAt, Proof};
use crate::zookeeper::{entry, paths, place, requests, session_id, transfer};

/// An request under way.
pub type Request<W> = Pending<Result<Found<W>, SessionError>>;

/// When a failed request is tried again: after growing pauses.
#[derive(Clone, Copy)]
pub struct Retry {
    at: Uptime,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The election's request to the servers: there is one at a time.
pub(super) struct Step<W> {
    pub under_way: Option<Request<W>>,
    /// What it is, or was last.
    pub task: Task,
    pub retry: Retry,
}

impl<W> Step<W> {
    pub fn new() -> Self {
        Self { under_way: None, task: Task::Prepare, retry: Retry::default() }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { at: Uptime::ZERO, pause: FIRST_PAUSE }
    }
}

impl Retry {
    /// Not before then.
    pub fn from(at: Uptime) -> Self {
        Self { at, pause: FIRST_PAUSE }
    }

    fn put_off(&mut self, now: Uptime) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    pub fn at(&self) -> Uptime {
        self.at
    }
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// Starts the request that is wanted most, if none is under way.
    pub(super) fn start_step(&mut self, now: Uptime) {
        if self.step.under_way.is_none()
            && now >= self.step.retry.at()
            && let Some((task, request)) = self.next_request(now)
        {
            (self.step.task, self.step.under_way) = (task, Some(request));
        }
    }

    fn next_request(&mut self, now: Uptime) -> Option<(Task, Request<<C::Client as Client>::Watch>)> {
        let context = self.context.clone();
        if self.supervisor.desired.leave.is_some() {
            return Some((Task::Leave, Box::pin(async { place::leave(context).await.map(|()| Found::Left) })));
        }
        if let Some(retired) = self.candidacy.retired.clone() {
            if let Some(successor) = self.candidacy.transfer.successor() {
                let handing = async { transfer::hand_over(context, retired, successor).await.map(Found::HandedOver) };
                return Some((Task::HandOver, Box::pin(handing)));
            }
            let withdrawing = async { place::withdraw(context, retired).await.map(|()| Found::Withdrawn) };
            return Some((Task::Withdraw, Box::pin(withdrawing)));
        }
        if let Some(going) = self.go_out() {
            return Some((Task::Leave, going));
        }
        if self.is_out() {
            return None;
        }
        if self.membership.state == MemberState::Unprepared {
            let known = self.supervisor.cluster.clone().or_else(|| self.supervisor.store.cluster());
            let new = (self.supervisor.options.uuid)().to_string();
            let preparing = async { entry::prepare(context, known, new).await.map(Found::Cluster) };
            return Some((Task::Prepare, Box::pin(preparing)));
        }
        if !self.membership.is_present() {
            let (member, left, is_closed) =
                (self.supervisor.member(self.timeout), self.leftover(), self.membership.state == MemberState::Closed);
            self.membership.must_publish = false;
            let entering = async move { entry::enter(context, member, left, is_closed).await.map(Found::Entered) };
            return Some((Task::Enter, Box::pin(entering)));
        }
        if self.membership.must_verify || self.membership.is_watched != self.wants_watch() {
            return Some((Task::Verify, self.verify()));
        }
        if self.supervisor.desired.resign && self.candidacy.is_join_unclear && self.candidacy.candidate.is_none() {
            return Some((Task::Clear, Box::pin(async { place::clear(context).await.map(|()| Found::Withdrawn) })));
        }
        if let (Some(to), Some(own)) = (self.candidacy.transfer.wanted(), self.candidacy.candidate.clone()) {
            return Some((
                Task::Find,
                Box::pin(async { transfer::find(context, own, to).await.map(Found::Successor) }),
            ));
        }
        if let Some(step) = self.next_step(now) {
            return Some(step);
        }
        if std::mem::take(&mut self.membership.must_publish) {
            let member = self.supervisor.member(self.timeout);
            let publishing = async { entry::publish(context, member).await.map(Found::Published) };
            return Some((Task::Publish, Box::pin(publishing)));
        }
        if let Some(candidate) = self.renumbers_by() {
            let counting = async { requests::renumber(context, candidate).await.map(Found::Renumbered) };
            return Some((Task::Renumber, Box::pin(counting)));
        }
        (now >= self.candidacy.survey_at).then(|| (Task::Survey, self.survey()))
    }

    /// The way into the queue, to its front and into a term.
    fn next_step(&mut self, now: Uptime) -> Option<(Task, Request<<C::Client as Client>::Watch>)> {
        let context = self.context.clone();
        let wants_place = self.supervisor.desired.campaign && !self.supervisor.desired.resign && self.loop_turns();
        match (&self.candidacy.candidate, &self.candidacy.role) {
            (None, _) if wants_place => {
                let is_unclear = std::mem::replace(&mut self.candidacy.is_join_unclear, true);
                let joining = async move { place::join(context, is_unclear).await.map(Found::Candidate) };
                Some((Task::Join, Box::pin(joining)))
            }
            (Some(_), Role::None) => {
                Some((Task::Look, Box::pin(async { place::look(context).await.map(Found::Place) })))
            }
            (Some(candidate), Role::First(_)) => {
                let (candidate, dead, at) = (candidate.clone(), self.dead(), self.open_at());
                let proof =
                    if self.lease.lease.holds(now) && self.lease.has_time { Proof::Lease } else { Proof::Write };
                let opening = async move { place::open(context, candidate, dead, proof, at).await.map(Found::Opened) };
                Some((Task::Open, Box::pin(opening)))
            }
            (Some(candidate), Role::Leading(Leading { is_written: false, .. })) => {
                let (candidate, at) = (candidate.clone(), self.open_at());
                let writing = async { place::write_opening(context, candidate, at).await.map(Found::Written) };
                Some((Task::WriteOpening, Box::pin(writing)))
            }
            _ => None,
        }
    }

    fn open_at(&self) -> OpenAt {
        match self.candidacy.is_queue_closed {
            true => OpenAt::Member(context::json(&self.supervisor.member(self.timeout))),
            false => OpenAt::Queue,
        }
    }

    /// A leader also looks again at what it could not read.
    fn survey(&self) -> Request<<C::Client as Client>::Watch> {
        let context = self.context.clone();
        let is_leader = self.candidacy.leads();
        let known = self.supervisor.cluster.clone().filter(|_| is_leader);
        let damaged = if is_leader { self.supervisor.damages.paths(Source::Ledger) } else { Vec::new() };
        Box::pin(async move {
            if let Some(known) = known {
                entry::keep_cluster(&context, known).await?;
            }
            let again = relook::look_again(&context, damaged).await?;
            Ok(Found::Survey(place::survey(context).await?, again))
        })
    }

    fn verify(&mut self) -> Request<<C::Client as Client>::Watch> {
        self.membership.must_verify = false;
        let (context, candidate) = (self.context.clone(), self.candidacy.candidate.clone());
        let (is_leader, wants_watch) = (self.candidacy.leads(), self.wants_watch());
        self.membership.is_watched = wants_watch;
        Box::pin(async move { place::verify(context, candidate, is_leader, wants_watch).await.map(Found::Verified) })
    }

    /// A node that leads or runs jobs watches its own entries.
    fn wants_watch(&self) -> bool {
        self.candidacy.leads() || self.supervisor.desired.busy
    }

    /// Sessions whose entries go at once: this process's own earlier ones, and those of dead processes.
    pub(super) fn removable(&self) -> Vec<i64> {
        self.supervisor.store.removable().into_iter().chain(self.supervisor.earlier.iter().copied()).collect()
    }

    fn leftover(&self) -> Leftover {
        let successor = Some(self.supervisor.service.events.clone());
        Leftover { sessions: self.removable(), successor, ..Leftover::of_the_dead(self.supervisor.store.as_ref()) }
    }

    fn dead(&self) -> BTreeSet<SessionId> {
        self.supervisor.store.removable().into_iter().map(session_id).collect()
    }

    pub(super) fn retry_step(&mut self, error: SessionError) {
        let now = self.now();
        self.step.retry.put_off(now);
        // Whatever failed may have failed because an own entry is gone.
        self.membership.must_verify = self.membership.is_present();
        self.membership.must_publish = true;
        match error {
            SessionError::SessionOver => self.note_error(error),
            SessionError::NoChroot if !self.supervisor.has_joined => self.note_error(error),
            SessionError::NoAuth(detail) if !self.supervisor.has_joined && self.step.task.is_of_the_start() => {
                self.fail_auth(detail)
            }
            SessionError::NoAuth(detail) => self.not_allowed(&detail),
            SessionError::Again(_) | SessionError::NoChroot => self.failed(self.step.task, &error.to_string()),
        }
    }

    /// The servers refuse an request to a node that has taken part already: somebody has changed who may do what, and may change it back.
    fn not_allowed(&mut self, detail: &str) {
        match self.step.task {
            Task::Open | Task::WriteOpening => {
                self.candidacy.is_queue_closed = true;
                self.damaged(Source::Renewals, Damage::unwritten(paths::LEADER, &Error::NoAuth));
            }
            Task::Publish => {
                self.membership.must_publish = false;
                let path = self.context.member();
                self.damaged(Source::Renewals, Damage::unwritten(path, &Error::NoAuth));
            }
            // An entry that its own node cannot remove would block all behind it. It goes with its session, which nobody renews any more.
            Task::Withdraw | Task::HandOver => {
                tracing::warn!(
                    target: TARGET,
                    "the node's entry in the queue cannot be removed, and is left to expire with its session: {detail}"
                );
                self.link.ended = Some(SessionEnd::Expired);
            }
            Task::Renumber => self.operators.may_renumber = false,
            task => self.failed(task, detail),
        }
    }

    /// What comes next is tried after this pause, and people are told why.
    pub(super) fn put_off(&mut self, retry: Duration, error: String) {
        self.step.retry = Retry::from(self.now() + retry);
        self.supervisor.tell(Event::Unreachable { retry, error });
    }
}
