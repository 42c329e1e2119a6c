//! A node under one session: one loop over everything that can happen to it.
//!
//! Each turn one thing happens; then what follows from it is started. Of the election's requests there is one under way
//! at a time, the [`errand`]; commits, renewals of the lease, watches and reads go beside it. What was handed over
//! is waited for as long as the session lives. A connection lost is nothing but a pause: nothing is asked meanwhile,
//! and after it the own entries are verified.
//!
//! What is asked of the daemon's side is in [`request`] and [`requests`], of the election's in [`errand`], with its answers in
//! [`found`]; [`term`] says how long the node may act, [`standstill`] what becomes of it when the daemon's loop does not turn,
//! [`ending`] how a life ends.

mod candidacy;
mod daemon_requests;
mod lease;
mod link;
mod membership;
mod operator_requests;
mod step;
mod step_result;
mod transfer;
mod ending;
mod failing;
mod forgetting;
mod relook;
mod rights;
mod standstill;

use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, Connect, Done, MultiError, State, Watch};
use super::committer::{Committer, Completed};
use super::context::{self, LocalNode, SessionContext, SessionError};
use super::supervisor::{Supervisor, Waiting};
use super::trim::{self, Trimmer};
use super::watcher::{Step, Watcher};
use super::{forget, queue, session_id};
use crate::clock::{Clock, Uptime, Wake};
use crate::coordination::Request;
use crate::election::Event;
use crate::ledger;
use crate::term::SessionId;
use candidacy::{Candidacy, Role};
use daemon_requests::Reading;
use failing::{Failing, Task};
use forgetting::Forgetting;
use lease::LeaseKeeper;
use link::{Link, Reported};
use membership::Membership;
use operator_requests::{Heard, Operators};
use standstill::StandstillGuard;
use step_result::Found;

pub use ending::SessionEnd;

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// When a renewal was sent, and its answer.
type Renewed = (Uptime, Result<Vec<Done>, MultiError>);
/// A read, and what it brought.
type ReadDone = (ledger::Request, Result<ledger::Event, SessionError>);

/// How often a node reads the queue and the members, without a watch.
const SURVEY_EVERY: Duration = Duration::from_secs(15);

enum Happened<W> {
    State(State),
    Step(Result<Found<W>, SessionError>),
    Completed(Completed),
    Renewed(Renewed),
    OwnEntry,
    Predecessor,
    Run(Step),
    OperatorRequests(Heard),
    Read(Box<ReadDone>),
    Taken(rights::Taken),
    Trimmed(trim::Step),
    Forgot(Result<forget::Look, SessionError>),
    Request(Option<Request>),
    Time,
}

/// A node under one session.
pub struct SessionLoop<'n, C: Connect, K> {
    supervisor: &'n mut Supervisor<C, K>,
    context: SessionContext<C::Client, K>,
    id: SessionId,
    timeout: Duration,
    link: Link<C::Client>,
    step: step::Step<<C::Client as Client>::Watch>,
    membership: Membership,
    candidacy: Candidacy,
    lease: LeaseKeeper,
    standstill: StandstillGuard,
    committer: Committer<C::Client, K>,
    watcher: Watcher<C::Client, K>,
    operators: Operators,
    reading: Reading,
    housekeeping: Housekeeping<C::Client, K>,
}

/// What a node does beside its election and its runs, and what fails.
struct Housekeeping<C: Client, K> {
    rights: rights::Taking,
    trimmer: Trimmer<C, K>,
    forgetting: Forgetting,
    forgets: FuturesUnordered<Pending<Result<forget::Look, SessionError>>>,
    failing: Failing,
}

impl<C: Client, K: Clock> Housekeeping<C, K> {
    fn new(context: SessionContext<C, K>) -> Self {
        Self {
            rights: rights::Taking::default(),
            trimmer: Trimmer::new(context),
            forgetting: Forgetting::default(),
            forgets: FuturesUnordered::new(),
            failing: Failing::default(),
        }
    }
}

impl<'n, C: Connect, K: Clock> SessionLoop<'n, C, K> {
    /// A loop for this session, which was requested at `requested`.
    pub fn new(supervisor: &'n mut Supervisor<C, K>, client: C::Client, requested: Uptime) -> Self {
        let uuid = (supervisor.options.uuid)();
        let local = LocalNode {
            node: supervisor.identity.node.clone(),
            owner: client.owner_id(),
            prefix: queue::prefix(uuid),
            candidate_data: candidate_data(supervisor),
        };
        let timeout = client.timeout();
        let context = SessionContext::new(client.clone(), supervisor.clock.clone(), local);
        let (now, turned) = (supervisor.clock.now().up, *supervisor.service.turned.borrow());
        let mut session = Self {
            id: session_id(client.owner_id()),
            timeout,
            step: step::Step::new(),
            membership: Membership::new(),
            candidacy: Candidacy::new(now + SURVEY_EVERY),
            lease: LeaseKeeper::new(timeout, requested),
            standstill: StandstillGuard::new(now, turned),
            committer: Committer::new(context.clone()),
            watcher: Watcher::new(context.clone()),
            operators: Operators::new(),
            reading: Reading::new(),
            housekeeping: Housekeeping::new(context.clone()),
            link: Link {
                is_connected: client.state() == State::Connected,
                client,
                reported: Reported::Nothing,
                ended: None,
            },
            context,
            supervisor,
        };
        session.take_backlog();
        session
    }

    fn take_backlog(&mut self) {
        for waiting in std::mem::take(&mut self.supervisor.backlog) {
            match waiting {
                Waiting::Commit(id, change) => self.commit(id, change),
                Waiting::Read(read) => self.reading.waiting.push_back(read),
            }
        }
    }

    /// Lives until the session is over or the daemon is done.
    pub async fn run(mut self) -> SessionEnd {
        loop {
            self.turn();
            if let Some(ended) = self.link.ended.take() {
                return self.end(ended);
            }
            let happened = self.happened().await;
            // A lease that ran out meanwhile is over before anything that came meanwhile is looked at.
            self.check_lease();
            self.handle(happened);
            self.watch_loop();
        }
    }

    /// Waits for the next thing to happen.
    async fn happened(&mut self) -> Happened<<C::Client as Client>::Watch> {
        let wake = Wake { wall: None, up: self.wake() };
        let stands_still = !self.loop_turns();
        let predecessor = match &mut self.candidacy.role {
            Role::Waiting(watch) => Some(watch),
            Role::None | Role::First(_) | Role::Leading(_) => None,
        };
        // Cancellation safe: every future awaited here is kept in `self` and polled again, but for the state's and the clock's,
        // which lose nothing, and a request not received, which stays in the channel. The state comes first: what the
        // others bring is judged by it. Then the lease, which no number of answers may delay. A turn of a loop that stood still is
        // only a hint to look.
        tokio::select! {
            biased;
            state = self.link.client.state_changed() => Happened::State(state),
            Some(renewed) = self.lease.renewals.next() => Happened::Renewed(renewed),
            Some(completed) = self.committer.completed() => Happened::Completed(completed),
            Some(()) = self.membership.watches.next() => Happened::OwnEntry,
            found = under_way(self.step.under_way.as_mut()) => Happened::Step(found),
            () = under_way(predecessor) => Happened::Predecessor,
            Some(step) = self.watcher.step() => Happened::Run(step),
            heard = self.operators.listening.heard() => Happened::OperatorRequests(heard),
            Some(done) = self.reading.under_way.next() => Happened::Read(done),
            taken = under_way(self.housekeeping.rights.under_way.as_mut()) => Happened::Taken(taken),
            Some(step) = self.housekeeping.trimmer.step() => Happened::Trimmed(step),
            Some(look) = self.housekeeping.forgets.next() => Happened::Forgot(look),
            request = self.supervisor.service.requests.recv() => Happened::Request(request),
            Ok(()) = self.supervisor.service.turned.changed(), if stands_still => Happened::Time,
            () = self.supervisor.clock.sleep_until(wake) => Happened::Time,
        }
    }

    fn handle(&mut self, happened: Happened<<C::Client as Client>::Watch>) {
        let now = self.now();
        match happened {
            Happened::State(state) => self.note_state(state),
            Happened::Step(found) => self.finish_step(found),
            Happened::Completed(completed) => self.complete(completed),
            Happened::Renewed((sent, result)) => self.renewed(sent, result),
            Happened::OwnEntry => self.membership.must_verify = true,
            // A place that is not known is looked up.
            Happened::Predecessor => self.candidacy.role = Role::None,
            Happened::Run(step) => match self.watcher.complete(step, now) {
                Ok(events) => {
                    self.succeeded(Task::Watch);
                    events.into_iter().for_each(|event| self.supervisor.tell_ledger(event));
                }
                Err(error) => self.failed(Task::Watch, &error.to_string()),
            },
            Happened::OperatorRequests(heard) => self.heard(heard, now),
            Happened::Read(done) => self.finish_read(*done),
            Happened::Taken(taken) => self.taken(taken),
            Happened::Trimmed(step) => self.housekeeping.trimmer.complete(step, now),
            Happened::Forgot(look) => self.forgot(look, now),
            Happened::Request(None) => self.link.ended = Some(SessionEnd::Done),
            Happened::Request(Some(request)) => self.take_requests(request),
            Happened::Time => {}
        }
    }

    /// Starts what follows from how things stand.
    fn turn(&mut self) {
        let now = self.now();
        self.end_late_transfer(now);
        self.transfer_when_answered();
        self.resign_when_answered();
        self.tell_over();
        if self.supervisor.desired.leave.is_some_and(|until| now >= until) {
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
        self.start_taking(now);
        self.housekeeping.trimmer.start_next(now, self.candidacy.leads());
        self.start_forgetting(now);
    }

    /// When something happens by itself.
    fn wake(&self) -> Option<Uptime> {
        let lease = self.lease.has_acted.then(|| self.lease.lease.until());
        let waits = [
            self.supervisor.desired.leave,
            self.candidacy.transfer.until(),
            self.resign_at(),
            self.standstill.watch.next(self.timeout),
        ];
        let always = lease.into_iter().chain(waits.into_iter().flatten());
        if !self.link.is_connected {
            return always.min();
        }
        let is_put_off = self.step.retry.at() > self.now();
        let is_idle = self.step.under_way.is_none() && !self.is_out();
        let step = is_idle.then(|| if is_put_off { self.step.retry.at() } else { self.candidacy.survey_at });
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
            // Also when no loss was seen: changes are coalesced.
            State::Connected => {
                self.link.is_connected = true;
                self.membership.must_verify = self.membership.is_present() || self.candidacy.candidate.is_some();
                self.step.retry = step::Retry::default();
                self.membership.name_wanted_until = None;
            }
            State::Disconnected => {
                self.forget_failures();
                if self.link.suspend() {
                    self.supervisor.tell(Event::Suspended { session: self.id.clone() });
                }
            }
            State::Expired => self.link.ended = Some(SessionEnd::Expired),
            // After its start a node does not end by this: it asks for another session, and says why it gets none.
            State::AuthFailed if self.supervisor.has_joined => self.link.ended = Some(SessionEnd::Expired),
            State::AuthFailed => self.fail_auth("authentication failed".into()),
        }
    }

    fn now(&self) -> Uptime {
        self.supervisor.clock.now().up
    }
}

/// Polls what is under way, if anything is.
async fn under_way<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

fn fired<W: Watch>(watch: W) -> Pending<()> {
    Box::pin(watch.fired())
}

fn candidate_data<C: Connect, K: Clock>(supervisor: &Supervisor<C, K>) -> Vec<u8> {
    let identity = &supervisor.identity;
    context::json(&serde_json::json!({
        "v": 1,
        "node": identity.node,
        "host": identity.host,
        "pid": identity.pid,
        "version": identity.version,
        "started_at": identity.started_at,
    }))
}
