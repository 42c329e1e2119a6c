//! The event loop of a node under one session.
//!
//! Each turn handles one event, then starts the requests that follow from it. At most one request of the election is in
//! flight, the [`step`]; commits, lease renewals, watches and reads run beside it. The loop waits for every request it
//! has sent until the session ends. A lost connection is only a pause: the loop sends nothing meanwhile, and verifies
//! the node's own entries once it is connected again.
//!
//! ```text
//!   session_loop ─┬─ link          the connection, and what the daemon knows of the session
//!                 ├─ membership    the node's own member
//!                 ├─ candidacy     the node's candidate, its position in the queue, its term
//!                 ├─ lease         how long the node may act, and how its term ends
//!                 ├─ standstill    steps down while the daemon's loop does not turn
//!                 ├─ reading       reads that the daemon requested (in `daemon_requests`)
//!                 ├─ job_locks     locks of this node's runs
//!                 ├─ operators     requests of operators (in `operator_requests`)
//!                 ├─ wanted        what operators want of this node
//!                 └─ housekeeping  access lists, trimming, forgotten jobs, tasks that keep failing
//! ```
//!
//! [`step`] chooses the election's next request, [`step_result`] applies its result, and [`reread`] reads damaged paths
//! again. [`daemon_requests`] and [`operator_requests`] handle requests from outside, [`transfer`] hands leadership
//! over, and [`ending`] ends the session. [`rights`], [`forgetting`] and [`failing`] are the parts of housekeeping.

mod candidacy;
mod daemon_requests;
mod ending;
mod failing;
mod forgetting;
mod job_locks;
mod lease;
mod link;
mod membership;
mod operator_requests;
mod reread;
mod rights;
mod standstill;
mod step;
mod step_result;
mod transfer;
mod wanted;

use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::committer::{Committer, Completed};
use super::context::{self, LocalNode, SessionContext, SessionError};
use super::forget;
use super::node::{Deferred, Node, NodeIdentity};
use super::trim::{CompletedTrim, Trimmer};
use super::watcher::{CompletedWatch, Watcher};
use crate::queue;
use crate::tree::{CommitError, Committed, Session, State, Watch};
use candidacy::{Candidacy, Role};
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::coordination::Request;
use cronkeeper_core::election::Event;
use cronkeeper_core::ledger;
use cronkeeper_core::term::SessionId;
use daemon_requests::Reading;
use failing::{Failing, Task};
use forgetting::Forgetting;
use job_locks::{JobLockEvent, JobLocks};
use lease::LeaseKeeper;
use link::{Link, ReportedLink};
use membership::Membership;
use operator_requests::{Operators, RequestsEvent};
use standstill::StandstillGuard;
use step_result::StepResult;
use wanted::WantedOfNode;

pub use ending::SessionEnd;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// When a lease renewal was sent, and its result.
type Renewed = (Uptime, Result<Committed, CommitError>);
/// A read and its result.
type ReadDone = (ledger::Request, Result<ledger::Event, SessionError>);

/// Interval at which a node reads the queue and the members without a watch.
const SURVEY_EVERY: Duration = Duration::from_secs(15);
/// The first interval after the node's position has changed, and the shortest after the members have. It doubles up to
/// the usual one: what changes the position of one often changes that of others.
const FIRST_SURVEY: Duration = Duration::from_secs(1);

/// Interval at which a follower looks whether the leader's entry is still there, if it does not watch that entry.
const LEADER_EVERY: Duration = Duration::from_secs(2);

/// An event that the loop handles.
enum LoopEvent<W> {
    State(State),
    Step(Result<StepResult<W>, SessionError>),
    Completed(Completed),
    Renewed(Renewed),
    OwnEntry,
    Members,
    Wanted,
    Predecessor,
    Run(CompletedWatch),
    OperatorRequests(RequestsEvent),
    Read(Box<ReadDone>),
    JobLock(JobLockEvent),
    AccessUpdated(rights::Finished),
    Trimmed(CompletedTrim),
    Forgot(Result<forget::ForgetLook, SessionError>),
    Request(Option<Request>),
    Time,
}

/// A node under one session.
pub struct SessionLoop<'n, C: Session, K> {
    node: &'n mut Node,
    context: SessionContext<C, K>,
    id: SessionId,
    timeout: Duration,
    link: Link<C>,
    step: step::CurrentStep<C::Watch>,
    membership: Membership,
    candidacy: Candidacy,
    lease: LeaseKeeper<C::Proof>,
    standstill: StandstillGuard,
    committer: Committer<C, K>,
    watcher: Watcher<C, K>,
    operators: Operators,
    wanted: WantedOfNode,
    reading: Reading,
    job_locks: JobLocks<C, K>,
    housekeeping: Housekeeping<C, K>,
}

/// Background work of a node, and the tasks that keep failing.
struct Housekeeping<C: Session, K> {
    rights: rights::AccessUpdates,
    trimmer: Trimmer<C, K>,
    forgetting: Forgetting,
    forgets: FuturesUnordered<BoxFuture<Result<forget::ForgetLook, SessionError>>>,
    failing: Failing,
}

impl<C: Session, K: Clock> Housekeeping<C, K> {
    fn new(context: SessionContext<C, K>) -> Self {
        Self {
            rights: rights::AccessUpdates::default(),
            trimmer: Trimmer::new(context),
            forgetting: Forgetting::default(),
            forgets: FuturesUnordered::new(),
            failing: Failing::default(),
        }
    }
}

impl<'n, C: Session, K: Clock> SessionLoop<'n, C, K> {
    /// Creates the loop of a session whose connection was started at `requested`.
    pub fn new(node: &'n mut Node, clock: K, client: C, requested: Uptime) -> Self {
        let uuid = (node.options.uuid)();
        let local = LocalNode {
            node: node.identity.node.clone(),
            session: client.id(),
            prefix: queue::prefix(uuid),
            candidate_data: candidate_data(&node.identity),
        };
        let timeout = client.timeout();
        let context = SessionContext::new(client.clone(), clock.clone(), local);
        let (now, turned) = (clock.now().up, *node.service.turned.borrow());
        let mut session = Self {
            id: client.id(),
            timeout,
            step: step::CurrentStep::new(),
            membership: Membership::new(),
            candidacy: Candidacy::new(now + SURVEY_EVERY),
            lease: LeaseKeeper::new(timeout, requested, client.proof()),
            standstill: StandstillGuard::new(now, turned),
            committer: Committer::new(context.clone()),
            watcher: Watcher::new(context.clone()),
            operators: Operators::new(),
            wanted: WantedOfNode::new(),
            reading: Reading::new(),
            job_locks: JobLocks::new(client.clone(), clock.clone()),
            housekeeping: Housekeeping::new(context.clone()),
            link: Link {
                is_connected: client.state() == State::Connected,
                client,
                reported: ReportedLink::Nothing,
                ended: None,
            },
            context,
            node,
        };
        session.take_backlog();
        session
    }

    fn take_backlog(&mut self) {
        for deferred in std::mem::take(&mut self.node.backlog) {
            match deferred {
                Deferred::Commit(id, change) => self.commit(id, change),
                Deferred::Read(read) => self.reading.waiting.push_back(read),
            }
        }
    }

    /// Runs until the session is over or the daemon is done.
    pub async fn run(mut self) -> SessionEnd {
        loop {
            self.turn();
            if let Some(ended) = self.link.ended.take() {
                return self.end(ended);
            }
            let event = self.next_event().await;
            // A lease that ran out meanwhile must end before the event is handled: the event must not be judged under
            // it.
            self.check_lease();
            self.handle(event);
            self.watch_loop();
        }
    }

    /// Waits for the next event.
    async fn next_event(&mut self) -> LoopEvent<C::Watch> {
        let wake = Wake { wall: None, up: self.wake() };
        let stands_still = !self.loop_turns();
        let predecessor = match &mut self.candidacy.role {
            Role::Waiting(watch) => Some(watch),
            Role::None | Role::First(_) | Role::Leading(_) => None,
        };
        // Cancellation safe: every future awaited here is kept in `self` and polled again, except the state's and the
        // clock's, which lose nothing, and a request that was not received, which stays in the channel. The state comes
        // first, because all other events are judged by it. Then the lease, so that no number of other events can delay
        // it. The daemon's loop turning again after a standstill carries no data; it only makes this loop check.
        tokio::select! {
            biased;
            state = self.link.client.state_changed() => LoopEvent::State(state),
            Some(renewed) = self.lease.renewals.next() => LoopEvent::Renewed(renewed),
            Some(completed) = self.committer.completed() => LoopEvent::Completed(completed),
            Some(()) = self.membership.watches.next() => LoopEvent::OwnEntry,
            () = under_way(self.membership.of_others.as_mut()) => LoopEvent::Members,
            found = under_way(self.step.under_way.as_mut()) => LoopEvent::Step(found),
            () = under_way(predecessor) => LoopEvent::Predecessor,
            () = under_way(self.wanted.watch.as_mut()) => LoopEvent::Wanted,
            Some(step) = self.watcher.step() => LoopEvent::Run(step),
            read = self.operators.listening.next() => LoopEvent::OperatorRequests(read),
            Some(done) = self.reading.under_way.next() => LoopEvent::Read(done),
            event = self.job_locks.next() => LoopEvent::JobLock(event),
            finished = under_way(self.housekeeping.rights.under_way.as_mut()) => LoopEvent::AccessUpdated(finished),
            Some(step) = self.housekeeping.trimmer.step() => LoopEvent::Trimmed(step),
            Some(look) = self.housekeeping.forgets.next() => LoopEvent::Forgot(look),
            request = self.node.service.requests.recv() => LoopEvent::Request(request),
            Ok(()) = self.node.service.turned.changed(), if stands_still => LoopEvent::Time,
            () = self.context.clock.sleep_until(wake) => LoopEvent::Time,
        }
    }

    fn handle(&mut self, event: LoopEvent<C::Watch>) {
        let now = self.now();
        match event {
            LoopEvent::State(state) => self.note_state(state),
            LoopEvent::Step(found) => self.finish_step(found),
            LoopEvent::Completed(completed) => self.complete(completed),
            LoopEvent::Renewed((sent, result)) => self.renewed(sent, result),
            LoopEvent::OwnEntry => self.membership.must_verify = true,
            // `Role::None` makes the next step read the position.
            LoopEvent::Predecessor => self.candidacy.role = Role::None,
            LoopEvent::Run(step) => match self.watcher.complete(step, now) {
                Ok(events) => {
                    self.succeeded(Task::Watch);
                    events.into_iter().for_each(|event| self.node.emit_ledger(event));
                }
                Err(error) => self.failed(Task::Watch, &error.to_string()),
            },
            LoopEvent::OperatorRequests(read) => self.on_operator_requests(read, now),
            LoopEvent::Wanted => self.wanted_changed(),
            LoopEvent::Members => self.members_changed(),
            LoopEvent::Read(done) => self.finish_read(*done),
            LoopEvent::JobLock(event) => self.on_job_lock(event),
            LoopEvent::AccessUpdated(finished) => self.finish_access_update(finished),
            LoopEvent::Trimmed(step) => self.housekeeping.trimmer.complete(step, now),
            LoopEvent::Forgot(look) => self.forgot(look, now),
            LoopEvent::Request(None) => self.link.ended = Some(SessionEnd::Done),
            LoopEvent::Request(Some(request)) => self.take_requests(request),
            LoopEvent::Time => {}
        }
    }

    /// Starts the requests that follow from the current state.
    fn turn(&mut self) {
        let now = self.now();
        self.end_late_transfer(now);
        self.transfer_when_answered();
        self.resign_when_answered();
        self.emit_term_over_when_answered();
        if self.link.ended.is_none() && self.node.desired.leave.is_some_and(|until| now >= until) {
            self.left();
        }
        if !self.link.is_connected || self.link.ended.is_some() {
            return;
        }
        self.renew(now);
        self.committer.start_next();
        self.start_step(now);
        self.watcher.start_next(now);
        self.listen(now);
        self.start_reads(now);
        self.start_access_update(now);
        if let Some(defined) = &self.node.desired.defined {
            self.housekeeping.trimmer.define(defined, now);
        }
        self.housekeeping.trimmer.start_next(now, self.candidacy.leads());
        self.start_forgetting(now);
    }

    /// The next instant at which the loop has to act without an event.
    fn wake(&self) -> Option<Uptime> {
        let lease = self.lease.has_acted.then(|| self.lease.lease.until());
        let waits = [
            self.node.desired.leave,
            self.candidacy.transfer.until(),
            self.resign_at(),
            self.standstill.watch.next(self.timeout),
        ];
        let always = lease.into_iter().chain(waits.into_iter().flatten());
        if !self.link.is_connected {
            return always.min();
        }
        let is_postponed = self.step.retry.at() > self.now();
        let is_idle = self.step.under_way.is_none() && !self.is_out_of_cluster();
        let looks_at = self.candidacy.distant_leader().map(|(at, _)| at);
        let opens_at = self.candidacy.waits_to_open(self.now());
        let next = [opens_at, looks_at, Some(self.candidacy.survey_at)].into_iter().flatten().min();
        let step = next.filter(|_| is_idle).map(|next| if is_postponed { self.step.retry.at() } else { next });
        let more = [
            self.committer.wake(),
            self.renew_at(),
            self.watcher.wake(),
            self.listen_at(),
            step,
            self.read_at(),
            self.housekeeping.rights.at(),
            self.housekeeping.trimmer.wake(),
            self.forget_at(),
        ];
        always.chain(more.into_iter().flatten()).min()
    }

    fn note_state(&mut self, state: State) {
        match state {
            State::Connected => {
                // The client coalesces state changes: the connection is another, although no loss was seen.
                if self.link.is_connected {
                    self.suspended();
                }
                self.link.is_connected = true;
                self.membership.must_verify = self.membership.is_present() || self.candidacy.candidate.is_some();
                self.step.retry = step::Retry::default();
                self.membership.name_wanted_until = None;
                self.committer.read_lasts_again();
                self.wanted_changed();
            }
            State::Disconnected => {
                self.forget_failures();
                self.suspended();
            }
            State::Expired => self.link.ended = Some(SessionEnd::Expired),
            // Once the node has joined, this must not end it: it requests another session and reports why it gets none.
            State::AuthFailed if self.node.has_joined => self.link.ended = Some(SessionEnd::Expired),
            State::AuthFailed => self.fail_auth("authentication failed".into()),
        }
    }

    fn suspended(&mut self) {
        if self.link.suspend() {
            self.node.emit(Event::Suspended { session: self.id.clone() });
        }
    }

    fn now(&self) -> Uptime {
        self.context.clock.now().up
    }
}

/// Awaits the future, or forever if there is none.
async fn under_way<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

fn fired<W: Watch>(watch: W) -> BoxFuture<()> {
    Box::pin(watch.fired())
}

fn candidate_data(identity: &NodeIdentity) -> Vec<u8> {
    context::json(&serde_json::json!({
        "v": 1,
        "node": identity.node,
        "host": identity.host,
        "pid": identity.pid,
        "version": identity.version,
        "started_at": identity.started_at,
    }))
}
