//! The election's next request to the servers, one at a time.
//!
//! Chooses the most urgent request, sends it, and retries a failed one after a growing pause. Results are applied in
//! [`step_result`](super::step_result).

use std::collections::BTreeSet;
use std::time::Duration;

use super::candidacy::{Leading, Role};
use super::failing::Task;
use super::membership::OwnMemberState;
use super::step_result::StepResult;
use super::{BoxFuture, LEADER_EVERY, SessionEnd, SessionLoop, reread};
use crate::paths;
use crate::recipes::context::{self, SessionError};
use crate::recipes::damage::{Damage, Source};
use crate::recipes::give_up::{self, Leftover};
use crate::recipes::node::Desired;
use crate::recipes::place::{OpenAt, Proof};
use crate::recipes::{entry, place, requests, transfer, wanted};
use crate::tree::{Error, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Event;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::term::SessionId;

/// A request in flight.
pub type Request<W> = BoxFuture<Result<StepResult<W>, SessionError>>;

/// When a failed request is retried: after growing pauses.
#[derive(Clone, Copy)]
pub struct Retry {
    at: Uptime,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The election's request in flight: at most one.
pub(super) struct CurrentStep<W> {
    pub under_way: Option<Request<W>>,
    /// The task of the request in flight, or of the last one.
    pub task: Task,
    pub retry: Retry,
}

impl<W> CurrentStep<W> {
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
    /// Retries at `at`, with the shortest pause after that.
    pub fn from(at: Uptime) -> Self {
        Self { at, pause: FIRST_PAUSE }
    }

    fn back_off(&mut self, now: Uptime) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    pub fn at(&self) -> Uptime {
        self.at
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Starts the most urgent request, unless one is in flight.
    pub(super) fn start_step(&mut self, now: Uptime) {
        if self.step.under_way.is_none()
            && now >= self.step.retry.at()
            && let Some((task, request)) = self.next_request(now)
        {
            (self.step.task, self.step.under_way) = (task, Some(request));
        }
    }

    fn next_request(&mut self, now: Uptime) -> Option<(Task, Request<C::Watch>)> {
        let context = self.context.clone();
        if self.node.desired.leave.is_some() {
            return Some((Task::Leave, Box::pin(async { place::leave(context).await.map(|()| StepResult::Left) })));
        }
        if let Some(retired) = self.candidacy.retired.clone() {
            if let Some(successor) = self.candidacy.transfer.successor() {
                let handing =
                    async { transfer::hand_over(context, retired, successor).await.map(StepResult::HandedOver) };
                return Some((Task::HandOver, Box::pin(handing)));
            }
            let withdrawing = async { place::withdraw(context, retired).await.map(|()| StepResult::Withdrawn) };
            return Some((Task::Withdraw, Box::pin(withdrawing)));
        }
        if let Some(going) = self.leave_cluster() {
            return Some((Task::Leave, going));
        }
        if self.is_out_of_cluster() {
            return None;
        }
        if self.membership.state == OwnMemberState::Unprepared {
            let known = self.node.cluster.clone().or_else(|| self.node.store.cluster());
            let new = (self.node.options.uuid)().to_string();
            let preparing = async { entry::prepare(context, known, new).await.map(StepResult::Cluster) };
            return Some((Task::Prepare, Box::pin(preparing)));
        }
        if !self.membership.is_present() {
            let (member, left, is_closed) =
                (self.node.member(self.timeout), self.leftover(), self.membership.state == OwnMemberState::Closed);
            self.membership.must_publish = false;
            let entering = async move { entry::enter(context, member, left, is_closed).await.map(StepResult::Entered) };
            return Some((Task::Enter, Box::pin(entering)));
        }
        if self.membership.must_verify || self.membership.is_watched != self.wants_watch() {
            return Some((Task::Verify, self.verify()));
        }
        if std::mem::take(&mut self.wanted.must_read) {
            let reading = async { wanted::read_own(context).await.map(StepResult::Wanted) };
            return Some((Task::ReadWanted, Box::pin(reading)));
        }
        if self.node.desired.resign && self.candidacy.is_join_unclear && self.candidacy.candidate.is_none() {
            return Some((
                Task::Clear,
                Box::pin(async { place::clear(context).await.map(|()| StepResult::Withdrawn) }),
            ));
        }
        if let (Some(to), Some(own)) = (self.candidacy.transfer.wanted(), self.candidacy.candidate.clone()) {
            return Some((
                Task::Find,
                Box::pin(async { transfer::find(context, own, to).await.map(StepResult::Successor) }),
            ));
        }
        if let Some(step) = self.next_step(now) {
            return Some(step);
        }
        if !self.node.left_by_dead.is_empty() {
            let left = self.left_by_dead();
            let settling = async move { give_up::end_runs(&context, &left).await.map(|()| StepResult::LeftSettled) };
            return Some((Task::SettleLeft, Box::pin(settling)));
        }
        if std::mem::take(&mut self.membership.must_publish) {
            let member = self.node.member(self.timeout);
            let publishing = async { entry::publish(context, member).await.map(StepResult::Published) };
            return Some((Task::Publish, Box::pin(publishing)));
        }
        if let Some(candidate) = self.renumbers_by() {
            let counting = async { requests::renumber(context, candidate).await.map(StepResult::Renumbered) };
            return Some((Task::Renumber, Box::pin(counting)));
        }
        if now >= self.candidacy.survey_at {
            return Some((Task::Survey, self.survey()));
        }
        let (_, leader) = self.candidacy.distant_leader().filter(|(at, _)| now >= *at)?;
        self.candidacy.leader_look_at = now + LEADER_EVERY;
        let looking = async move { place::look_for_leader(context, leader).await.map(StepResult::Leader) };
        Some((Task::LookForLeader, Box::pin(looking)))
    }

    /// The next request on the way into the queue, to its front and into a term.
    fn next_step(&mut self, now: Uptime) -> Option<(Task, Request<C::Watch>)> {
        let context = self.context.clone();
        let Desired { campaign, resign, .. } = self.node.desired;
        // The daemon is notified of the end of a term before it is of a new candidate.
        let is_reported = self.candidacy.over.is_none();
        let wants_position = campaign && !resign && is_reported && self.loop_turns() && self.wanted.may_join();
        match (&self.candidacy.candidate, &self.candidacy.role) {
            (None, _) if wants_position => {
                let is_unclear = std::mem::replace(&mut self.candidacy.is_join_unclear, true);
                let joining = async move { place::join(context, is_unclear).await.map(StepResult::Candidate) };
                Some((Task::Join, Box::pin(joining)))
            }
            (Some(_), Role::None) => {
                Some((Task::Look, Box::pin(async { place::look(context).await.map(StepResult::Position) })))
            }
            (Some(_), Role::First(_)) if self.candidacy.waits_to_open(now).is_some() => None,
            (Some(candidate), Role::First(_)) => {
                let (candidate, dead, at) = (candidate.clone(), self.dead(), self.open_at());
                let proof =
                    if self.lease.lease.holds(now) && self.lease.has_time { Proof::Lease } else { Proof::Write };
                let opening =
                    async move { place::open(context, candidate, dead, proof, at).await.map(StepResult::Opened) };
                Some((Task::Open, Box::pin(opening)))
            }
            (Some(candidate), Role::Leading(Leading { is_written: false, .. })) => {
                let (candidate, at) = (candidate.clone(), self.open_at());
                let writing = async { place::write_opening(context, candidate, at).await.map(StepResult::Written) };
                Some((Task::WriteOpening, Box::pin(writing)))
            }
            _ => None,
        }
    }

    fn open_at(&self) -> OpenAt {
        match self.candidacy.is_queue_closed {
            true => OpenAt::Member(context::json(&self.node.member(self.timeout))),
            false => OpenAt::Queue,
        }
    }

    /// Reads the queue and the members. A leader also reads the damaged paths again.
    fn survey(&mut self) -> Request<C::Watch> {
        let context = self.context.clone();
        let is_leader = self.candidacy.leads();
        if !is_leader {
            self.membership.of_others = None;
        }
        let wants_watch = is_leader && self.membership.of_others.is_none();
        let known = self.node.cluster.clone().filter(|_| is_leader);
        let damaged = if is_leader { self.node.damages.paths(Source::Ledger) } else { Vec::new() };
        Box::pin(async move {
            if let Some(known) = known {
                entry::keep_cluster(&context, known).await?;
            }
            let reread = reread::reread(&context, damaged).await?;
            Ok(StepResult::Survey(place::survey(context, wants_watch).await?, reread))
        })
    }

    fn verify(&mut self) -> Request<C::Watch> {
        self.membership.must_verify = false;
        let (context, candidate) = (self.context.clone(), self.candidacy.candidate.clone());
        let (is_leader, wants_watch) = (self.candidacy.leads(), self.wants_watch());
        self.membership.is_watched = wants_watch;
        Box::pin(
            async move { place::verify(context, candidate, is_leader, wants_watch).await.map(StepResult::Verified) },
        )
    }

    /// A node that leads or runs jobs watches its own entries.
    fn wants_watch(&self) -> bool {
        self.candidacy.leads() || self.node.desired.busy
    }

    /// Sessions whose entries may be removed at once: this process's own earlier ones, and those of dead processes.
    pub(super) fn removable(&self) -> Vec<SessionId> {
        self.node.store.removable().into_iter().chain(self.node.earlier.iter().cloned()).collect()
    }

    fn leftover(&self) -> Leftover {
        let successor = Some(self.node.service.events.clone());
        let left = self.node.left.iter().cloned().collect();
        Leftover { sessions: self.removable(), left, successor, ..Leftover::of_the_dead(self.node.store.as_ref()) }
    }

    /// What the servers may have given back to sessions that had left nothing. Not urgent, so it does not delay the start.
    fn left_by_dead(&self) -> Leftover {
        let successor = Some(self.node.service.events.clone());
        let dead = self.node.left_by_dead.iter().cloned().collect();
        Leftover { dead, successor, ..Leftover::of_the_dead(self.node.store.as_ref()) }
    }

    fn dead(&self) -> BTreeSet<SessionId> {
        self.node.store.removable().into_iter().collect()
    }

    pub(super) fn retry_step(&mut self, error: SessionError) {
        let now = self.now();
        self.step.retry.back_off(now);
        // The request may have failed because one of the node's own entries is gone.
        self.membership.must_verify = self.membership.is_present();
        self.membership.must_publish = true;
        self.wanted.must_read |= self.wanted.watch.is_none();
        match error {
            SessionError::SessionOver => self.note_error(error),
            SessionError::NoRoot | SessionError::RootInCluster { .. } if !self.node.has_joined => {
                self.note_error(error)
            }
            SessionError::NoAuth(detail) if !self.node.has_joined && self.step.task.is_of_the_start() => {
                self.fail_auth(detail)
            }
            SessionError::NoAuth(detail) => self.not_allowed(&detail),
            SessionError::Again(_) | SessionError::NoRoot | SessionError::RootInCluster { .. } => {
                self.failed(self.step.task, &error.to_string());
            }
        }
    }

    /// Handles a request that the servers refused after the node had joined: somebody changed an access list, and may
    /// change it back.
    fn not_allowed(&mut self, detail: &str) {
        match self.step.task {
            Task::Open | Task::WriteOpening => {
                self.candidacy.is_queue_closed = true;
                self.damaged(Source::Renewals, Damage::unwritten(paths::LEADER, &Error::Denied));
            }
            Task::Publish => {
                self.membership.must_publish = false;
                let path = self.context.member();
                self.damaged(Source::Renewals, Damage::unwritten(path, &Error::Denied));
            }
            // A candidate that its own node cannot remove would block all behind it. Ending the session removes it.
            Task::Withdraw | Task::HandOver => {
                tracing::warn!(
                    target: TARGET,
                    "cannot remove the node's own candidate; leaving it to expire with its session: {detail}"
                );
                self.link.ended = Some(SessionEnd::Expired);
            }
            Task::Renumber => self.operators.may_renumber = false,
            task => self.failed(task, detail),
        }
    }

    /// Tries the next request after this pause, and reports why.
    pub(super) fn postpone_step(&mut self, retry: Duration, error: String) {
        self.step.retry = Retry::from(self.now() + retry);
        self.node.emit(Event::Unreachable { retry, error });
    }
}
