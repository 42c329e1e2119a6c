//! The node's way through the election under one session: its member, its candidate, its term and its lease.
//!
//! Decides what follows from an event. It sends the election's requests, at most one of them in flight, and the
//! renewals of the lease; all else it leaves to the session loop, as [`Act`]s. [`requests`] chooses the most urgent
//! request, and [`results`] applies its result.
//!
//! ```text
//!   election ─┬─ link        the connection, and what the daemon knows of the session
//!             ├─ membership  the node's own member
//!             ├─ candidacy   the node's candidate, its position in the queue, its term
//!             ├─ transfer    a handover to a named node
//!             ├─ lease       how long the node may act
//!             ├─ standstill  steps down while the daemon's loop does not turn
//!             ├─ wanted      what operators want of this node
//!             ├─ surveys     when the queue and the members are read
//!             └─ step        the request in flight
//! ```

mod requests;
mod results;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::act::Act;
use super::candidacy::{Candidacy, QueueStep};
use super::ending::SessionEnd;
use super::lease::{LeaseKeeper, LeaseNeed, Renewed};
use super::link::Link;
use super::membership::{MemberEvent, MemberStep, Membership};
use super::standstill::{Standstill, StandstillNews, UnreceivedBegins};
use super::step::{CurrentStep, StepResult};
use super::surveys::Surveys;
use super::task::Task;
use super::transfer::Transfer;
use super::wanted::WantedOfNode;
use crate::paths;
use crate::recipes::committer::Completed;
use crate::recipes::context::{self, SessionContext, SessionError};
use crate::recipes::damage::{Damage, Source};
use crate::recipes::node::Node;
use crate::recipes::strays::Strays;
use crate::recipes::supervisor::ReportPauses;
use crate::tree::{CommitError, Error, Session, State};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::{self, Event, Place, TransferError, Worth};
use cronkeeper_core::term::{NodeName, SessionId, TermEnd};

/// An event of the election, or an answer to a commit.
pub(super) enum ElectionEvent<W> {
    State(State),
    Renewed(Renewed),
    Completed(Completed),
    Member(MemberEvent),
    Step(Result<StepResult<W>, SessionError>),
    Predecessor,
    Wanted,
    /// What the service's commits are worth now.
    Examined(Worth),
}

/// The election under one session.
pub(super) struct Election<C: Session, K> {
    context: SessionContext<C, K>,
    id: SessionId,
    timeout: Duration,
    link: Link<C>,
    /// The session once more: waiting for its state must not keep this from being waited for.
    examined: C,
    membership: Membership,
    candidacy: Candidacy,
    transfer: Transfer,
    lease: LeaseKeeper<C::Proof>,
    standstill: Standstill,
    unreceived: UnreceivedBegins,
    wanted: WantedOfNode,
    surveys: Surveys,
    step: CurrentStep<C::Watch>,
    /// The places that were reported in this term; absent until then.
    places: Option<BTreeMap<NodeName, Place>>,
    /// What was reported last of a queue in which this node never is; absent until then.
    observed: Option<Option<NodeName>>,
    /// What a leader knows of the names among the runs.
    strays: Strays,
    acts: VecDeque<Act>,
    /// When it is reported again that the node cannot use what it finds in the service.
    reports: ReportPauses,
}

impl<C: Session, K: Clock> Election<C, K> {
    /// The election of a session whose connection was started at `requested`. The daemon's loop last turned at
    /// `turned`.
    pub fn new(client: C, context: SessionContext<C, K>, requested: Uptime, turned: Uptime) -> Self {
        let (timeout, now) = (client.timeout(), context.clock.now().up);
        let examined = client.worth().map(|worth| Act::Emit(Event::Examined(worth)));
        Self {
            id: client.id(),
            timeout,
            membership: Membership::new(),
            candidacy: Candidacy::new(),
            transfer: Transfer::None,
            lease: LeaseKeeper::new(timeout, requested, client.proof()),
            standstill: Standstill::new(timeout, now, turned),
            unreceived: UnreceivedBegins::default(),
            wanted: WantedOfNode::new(),
            surveys: Surveys::new(now),
            step: CurrentStep::new(),
            places: None,
            observed: None,
            strays: Strays::default(),
            acts: examined.into_iter().collect(),
            examined: client.clone(),
            link: Link::new(client),
            context,
            reports: ReportPauses::default(),
        }
    }

    /// What must be done next.
    pub fn next_act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    fn act(&mut self, act: Act) {
        self.acts.push_back(act);
    }

    fn emit(&mut self, event: Event) {
        self.act(Act::Emit(event));
    }

    /// Waits for the next event. `committed` resolves with an answer to a commit, or with `None` if none is in flight.
    ///
    /// Cancellation safe: whatever is awaited here is kept, except the state, which loses nothing. `committed` must be
    /// cancellation safe too.
    pub async fn next(&mut self, committed: impl Future<Output = Option<Completed>>) -> ElectionEvent<C::Watch> {
        // Cancellation safe: see above. The state comes first, because all other events are judged by it. Then the
        // lease, so that no number of other events can delay it.
        tokio::select! {
            biased;
            state = self.link.changed() => ElectionEvent::State(state),
            Some(renewed) = self.lease.renewed() => ElectionEvent::Renewed(renewed),
            Some(completed) = committed => ElectionEvent::Completed(completed),
            event = self.membership.next() => ElectionEvent::Member(event),
            found = self.step.result() => ElectionEvent::Step(found),
            () = self.candidacy.predecessor_gone() => ElectionEvent::Predecessor,
            () = self.wanted.changed() => ElectionEvent::Wanted,
            worth = self.examined.worth_changed() => ElectionEvent::Examined(worth),
        }
    }

    /// The connection has another state, or was lost and regained unseen.
    pub fn on_state(&mut self, state: State, node: &Node) {
        match state {
            State::Connected => {
                // The client coalesces state changes: the connection is another, although no loss was seen.
                if self.link.is_connected() {
                    self.suspend();
                }
                self.link.connect();
                let has_entries = self.membership.is_present() || self.candidacy.candidate().is_some();
                self.step.set_due(Task::Verify, has_entries);
                // The servers may have lost what it was last set to.
                self.step.set_due(Task::Publish, self.membership.is_present());
                self.step.reset_retry();
                self.membership.stop_waiting_for_name();
                self.act(Act::ReadLastsAgain);
                self.on_wanted_changed();
            }
            State::Disconnected => {
                self.act(Act::ForgetFailures);
                self.suspend();
            }
            State::Expired => self.link.end(SessionEnd::Expired),
            // Once the node has joined, this must not end it: it requests another session and reports why it gets none.
            State::AuthFailed if node.has_joined => self.link.end(SessionEnd::Expired),
            State::AuthFailed => self.link.end(SessionEnd::refused("authentication failed".into(), &node.options)),
        }
    }

    fn suspend(&mut self) {
        let error = self.link.client().failure();
        if self.link.suspend(&error) {
            self.emit(Event::Suspended { session: self.id.clone(), error });
        }
    }

    /// A watch is only a hint: what it was on is read again.
    pub fn on_member_event(&mut self, event: MemberEvent, now: Uptime) {
        match event {
            MemberEvent::Own => self.verify_entries(),
            MemberEvent::Others => {
                self.membership.unwatch_others();
                self.surveys.members_changed(now);
            }
            MemberEvent::Places => {
                self.membership.unwatch_places();
                self.surveys.members_changed(now);
            }
        }
    }

    /// The predecessor is gone, which says nothing about who else is ahead: the next request reads the position.
    pub fn on_predecessor_gone(&mut self) {
        self.candidacy.step(QueueStep::LosePosition);
    }

    /// The record of what operators want of this node may have changed.
    pub fn on_wanted_changed(&mut self) {
        self.wanted.unwatch();
        self.step.set_due(Task::ReadWanted, true);
    }

    /// The node's own entries may be gone: they are read before anything else.
    fn verify_entries(&mut self) {
        self.step.set_due(Task::Verify, true);
    }

    /// The member's data is older than what the daemon wants published.
    pub fn publish(&mut self) {
        self.step.set_due(Task::Publish, true);
    }

    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    pub fn client(&self) -> &C {
        self.link.client()
    }

    /// True if the daemon knows of the session.
    pub fn is_reported(&self) -> bool {
        self.link.is_reported()
    }

    pub fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    /// The reason why the session must end, if it must.
    pub fn take_end(&mut self) -> Option<SessionEnd> {
        self.link.take_end()
    }

    /// Ends the session, for this reason.
    pub fn end(&mut self, ended: SessionEnd) {
        self.link.end(ended);
    }

    /// Ends the session if this error means that it must end. Once the node has joined, only the end of the session does:
    /// whoever removes the root, or makes a cluster above it, may undo that.
    pub fn on_error(&mut self, error: SessionError, node: &Node) {
        if node.has_joined && !matches!(error, SessionError::SessionOver) {
            return;
        }
        if let Some(ended) = SessionEnd::of(error, &node.options) {
            self.link.end(ended);
        }
    }

    /// The node's entries are removed, and no further request follows: the session ends once its last locks are
    /// released, or the time for that is over.
    pub fn end_steps(&mut self) {
        self.step.end();
    }

    /// True once no further request follows.
    pub fn is_over(&self) -> bool {
        self.step.is_over()
    }

    /// True once this session has created the member, or found its own.
    pub fn is_member(&self) -> bool {
        self.membership.is_present()
    }

    pub fn leads(&self) -> bool {
        self.candidacy.leads()
    }

    /// The path of the candidate that guards the leader's writes, and the fencing token; `None` while this node does
    /// not lead, or resigns.
    pub fn fence(&self, node: &Node) -> Option<(String, i64)> {
        self.candidacy.fence().filter(|_| !node.desired.resign)
    }

    /// The next instant at which something follows without an event. `committed`: when the last commit was sent.
    pub fn wake(&self, now: Uptime, node: &Node, committed: Uptime) -> Option<Uptime> {
        let always = [
            self.lease.term_until(),
            self.transfer.until(),
            self.candidacy.resign_at(now).filter(|_| node.desired.resign),
            self.standstill.check_at(),
        ];
        let sends = [self.lease.renew_at(self.lease_need(node), committed), self.step_at(now)];
        let sends = sends.into_iter().flatten().filter(|_| self.link.is_connected());
        always.into_iter().flatten().chain(sends).min()
    }

    /// When the next request is due, if none is in flight.
    fn step_at(&self, now: Uptime) -> Option<Uptime> {
        if !self.step.is_idle() || self.is_out_of_cluster() {
            return None;
        }
        if self.step.not_before() > now {
            return Some(self.step.not_before());
        }
        let looks_at = self.candidacy.first_look_at();
        let next = [self.candidacy.waits_to_open(now), looks_at, Some(self.surveys.at())];
        next.into_iter().flatten().min()
    }

    /// True if the node is out of the cluster and must not send requests before the loop turns again.
    fn is_out_of_cluster(&self) -> bool {
        self.standstill.is_out_of_cluster() && !self.membership.is_present() && self.candidacy.retired().is_none()
    }

    /// Ends the term once its lease is over, whatever the servers answer later.
    pub fn check_lease(&mut self, now: Uptime) {
        if self.lease.check(now) {
            self.lose_term(TermEnd::LeaseOver);
        }
    }

    fn lease_need(&self, node: &Node) -> LeaseNeed {
        let acts = node.desired.busy || self.candidacy.is_first();
        match (self.membership.is_present(), self.candidacy.candidate()) {
            (true, _) if acts => LeaseNeed::Acts,
            (true, Some(_)) => LeaseNeed::Queued,
            // What is placed here is begun by the servers' clock.
            (true, None) if node.desired.published.never_leads => LeaseNeed::Queued,
            (true, None) | (false, _) => LeaseNeed::None,
        }
    }

    /// Renews the lease if that is due. `committed`: when the last commit was sent.
    pub fn renew(&mut self, now: Uptime, node: &Node, committed: Uptime) {
        if self.lease.renew_at(self.lease_need(node), committed).is_none_or(|at| now < at) {
            return;
        }
        let Ok(line) = self.context.line() else { return };
        let sent = self.context.clock.now().up;
        let member = self.member(node);
        self.lease.renew(line, self.context.member(), sent, || context::json(&member));
    }

    /// Applies the answer to a renewal.
    pub fn on_renewed(&mut self, (sent, result): Renewed, now: Uptime, node: &mut Node) {
        match result {
            Ok(done) => {
                if let Some(time) = done.time(sent, now) {
                    self.lease.time_stated(now);
                    node.time = Some(time);
                    self.emit(Event::Time(time));
                }
                self.act(Act::Succeeded(Task::Renew));
                self.acknowledge(sent, now);
            }
            Err(CommitError { error: Error::Missing | Error::Changed, .. }) => self.verify_entries(),
            Err(CommitError { error: Error::Denied, index: Some(0) }) => self.lose_member(now, node),
            // The next renewal reads the time by writing to the member instead.
            Err(CommitError { error: Error::Denied, index: Some(_) }) if self.lease.read_time_by_member() => {
                self.act(Act::Damaged(Source::Renewals, Damage::unwritten(paths::NODES, &Error::Denied)));
            }
            Err(failed) => {
                let error = SessionError::of(&failed.error, &self.context.member());
                self.act(Act::Failed(Task::Renew, error.to_string()));
                self.on_error(error, node);
            }
        }
    }

    /// Extends the lease: a quorum acknowledged a write that was sent just after `sent`.
    pub fn acknowledge(&mut self, sent: Uptime, now: Uptime) {
        let is_protected = self.membership.is_kept() && !self.standstill.is_out_of_cluster();
        if let Some(until) = self.lease.acknowledge(sent, now, is_protected) {
            self.emit(Event::Lease { until });
        }
    }

    /// Treats the node's own member as gone, because its access list excludes the node. It is then recreated.
    fn lose_member(&mut self, now: Uptime, node: &Node) {
        self.membership.step(MemberStep::Close);
        let why = "its access list excludes its own node; recreating it";
        self.act(Act::Damaged(Source::Renewals, Damage::new(self.context.member(), why)));
        if node.desired.busy || self.candidacy.leads() {
            self.revoke_lease(now);
            self.lose_term(TermEnd::EntryGone);
        }
    }

    /// Ends the lease now. One of the node's own entries, or the session, is gone, so runs that another node may start
    /// again must stop.
    fn revoke_lease(&mut self, now: Uptime) {
        if self.lease.revoke(now) {
            self.emit(Event::Lease { until: Uptime::ZERO });
        }
    }

    /// A commit found that the member is gone: it is read before anything else.
    pub fn on_member_gone(&mut self) {
        self.verify_entries();
    }

    /// A commit found that the candidate is gone.
    pub fn on_fenced(&mut self, now: Uptime) {
        if self.candidacy.leads() {
            self.revoke_lease(now);
            self.lose_term(TermEnd::Fenced);
        }
    }

    /// The session is over.
    pub fn on_expired(&mut self, now: Uptime) {
        self.revoke_lease(now);
        self.lose_term(TermEnd::SessionExpired);
    }

    /// Nothing is sent any more.
    pub fn close(&mut self) {
        self.link.close();
    }

    /// Gives up the position in the queue, and the term that depends on it, if any.
    fn lose_term(&mut self, why: TermEnd) {
        self.lose_position(QueueStep::Retire, why);
    }

    fn lose_position(&mut self, step: QueueStep, why: TermEnd) {
        self.lease.end_term();
        // The term ended for another reason first.
        self.acts.extend(self.transfer.cancel(TransferError::NotLeading).map(Act::Emit));
        let led = self.candidacy.lose(step, why);
        let held = self.candidacy.retired().map(paths::candidate);
        self.act(Act::LeaveQueue { held });
        if led {
            self.act(Act::StopWatching);
        }
        self.act(Act::ReportTermOver);
    }

    /// The end of a term that must be reported now: after the answers to its last commits if those can still arrive.
    /// `has_fenced`: such answers are expected.
    pub fn term_over(&mut self, has_fenced: bool) -> Option<Event> {
        let ends_at_once = matches!(self.candidacy.over()?, TermEnd::LeaseOver | TermEnd::Stalled);
        let waits = !ends_at_once && self.link.is_connected() && has_fenced;
        let (term, why) = if waits { None } else { self.candidacy.take_ended() }?;
        Some(Event::Over { term, why })
    }

    /// Reports the end of the last term now if it was not reported yet.
    fn report_term_over(&mut self) {
        let over = self.candidacy.take_ended();
        self.acts.extend(over.map(|(term, why)| Act::Emit(Event::Over { term, why })));
    }

    /// Resigns once the earlier commits are answered (`has_fenced`), or after a while, because the leader decides
    /// nothing meanwhile.
    pub fn resign_when_answered(&mut self, now: Uptime, has_fenced: bool, node: &mut Node) {
        if !node.desired.resign || self.candidacy.retired().is_some() {
            self.candidacy.forget_resigning();
            return;
        }
        let by = self.candidacy.resign_by(now);
        if has_fenced && now < by {
            return;
        }
        if self.candidacy.candidate().is_some() {
            self.lose_term(TermEnd::Resigned);
        } else if self.step.is_idle() && !self.candidacy.is_unclear() {
            // Otherwise a join in flight may still create a candidate, which must then be given up.
            node.desired.resign = false;
            self.emit(Event::Withdrawn);
        }
    }

    /// Hands leadership over to this node.
    pub fn transfer(&mut self, to: NodeName, now: Uptime) {
        self.acts.extend(self.transfer.start(to, self.candidacy.leads(), now).map(Act::Emit));
    }

    /// Cancels a handover that takes too long.
    pub fn end_late_transfer(&mut self, now: Uptime) {
        self.acts.extend(self.transfer.end_late(now).map(Act::Emit));
    }

    /// Ends the term for the successor once the earlier commits are answered.
    pub fn transfer_when_answered(&mut self, has_fenced: bool, node: &mut Node) {
        if !has_fenced && let Some(successor) = self.transfer.take_certain() {
            node.note(election::Request::Resign);
            self.lose_term(TermEnd::Resigned);
            self.transfer = Transfer::Due(successor);
        }
    }

    /// Checks the daemon's loop. Returns true if the node must leave the cluster, unless the loop turns meanwhile.
    pub fn check_loop(&mut self, turned: Uptime, now: Uptime) -> bool {
        match self.standstill.check(turned, now) {
            Some(StandstillNews::LeaveCluster) => {
                self.revoke_lease(now);
                true
            }
            Some(StandstillNews::Rejoin) => {
                self.step.reset_retry();
                false
            }
            None => false,
        }
    }

    /// The loop has turned meanwhile: the node stays in the cluster.
    pub fn loop_turned_meanwhile(&mut self) {
        self.standstill.turned_meanwhile();
    }

    /// The check of the daemon's loop is done: a node whose loop is stalled does not lead.
    pub fn loop_checked(&mut self, turned: Uptime) {
        self.unreceived.loop_turned(turned);
        if !self.standstill.loop_turns() && self.candidacy.candidate().is_some() {
            self.lose_term(TermEnd::Stalled);
        }
    }

    /// True while the daemon's loop turns, as of the last check.
    pub fn loop_turns(&self) -> bool {
        self.standstill.loop_turns()
    }

    /// Begun attempts that the daemon's loop may not have received.
    pub fn unreceived(&mut self) -> &mut UnreceivedBegins {
        &mut self.unreceived
    }
}
