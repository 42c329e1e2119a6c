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

mod transfer;
mod ending;
mod errand;
mod failing;
mod forgetting;
mod found;
mod relook;
mod request;
mod rights;
mod standstill;
mod term;
mod requests;

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, Connect, Done, MultiError, State, Watch};
use super::committer::{Committer, Completed};
use super::context::{self, LocalNode, SessionContext, SessionError};
use super::node::{Node, Waiting};
use super::trim::{self, Trimmer};
use super::watcher::{Step, Watcher};
use super::{forget, queue, session_id};
use crate::clock::{Clock, Uptime, Wake};
use crate::coordination::Request;
use crate::election::Event;
use crate::lease::Lease;
use crate::ledger;
use crate::term::{CandidateName, SessionId, Term, TermEnd};
use errand::Errand;
use failing::{Failing, Task};
use forgetting::Forgetting;
use found::Found;
use requests::{Heard, Listening};
use transfer::Transfer;

pub use ending::SessionEnd;

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// When a renewal was sent, and its answer.
type Renewed = (Uptime, Result<Vec<Done>, MultiError>);
/// A read, and what it brought.
type ReadDone = (ledger::Request, Result<ledger::Event, SessionError>);

/// How often a node reads the queue and the members, without a watch.
const SURVEY_EVERY: Duration = Duration::from_secs(15);

/// The place in the queue.
enum Role {
    /// None, or not known.
    None,
    /// Behind another.
    Waiting(Pending<()>),
    /// First since then; the term is being opened.
    First(Uptime),
    /// The leader.
    Leading(Term),
}

enum Happened<W> {
    State(State),
    Errand(Result<Found<W>, SessionError>),
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
    node: &'n mut Node<C, K>,
    states: C::Client,
    context: SessionContext<C::Client, K>,
    id: SessionId,
    timeout: Duration,

    is_connected: bool,
    is_suspended: bool,
    /// The session was told to the daemon.
    is_told: bool,

    errand: Option<Errand<<C::Client as Client>::Watch>>,
    /// What the errand under way is.
    task: Task,
    failing: Failing,
    retry: errand::Retry,
    is_prepared: bool,
    is_member: bool,
    name_wanted_until: Option<Uptime>,
    candidate: Option<CandidateName>,
    is_join_unclear: bool,
    /// A candidate whose term is over, or that was resigned: to be removed before another is made.
    retired: Option<CandidateName>,
    role: Role,
    /// The opening write of the term is answered.
    is_written: bool,
    following: Option<super::place::Behind>,
    must_verify: bool,
    must_publish: bool,
    survey_at: Uptime,
    is_high_sequence_told: bool,
    /// The numbers of the triggers are to be counted anew, and no trigger is there.
    must_renumber: bool,
    may_renumber: bool,
    /// The own member may not be used by its own node: it is to be made anew.
    is_member_closed: bool,
    /// The queue's folder may not be written to.
    is_queue_closed: bool,
    /// The members' folder may not be written to.
    is_folder_closed: bool,
    /// Until when commits are waited for before leadership is given up.
    resign_by: Option<Uptime>,

    own_watches: FuturesUnordered<Pending<()>>,
    watches_member: bool,

    lease: Lease,
    /// The lease has held in this term: once it no longer does, the term is over.
    has_acted: bool,
    /// Whether the daemon's loop turns.
    loops: standstill::Watch,
    /// What the loop may not have heard of.
    unheard: standstill::Unheard,
    /// The own entries are being removed.
    is_going_out: bool,
    /// A lease that ends by then lets nobody act: it was nearly over when the term was opened.
    acts_beyond: Uptime,
    lease_told: Uptime,
    /// Writes sent before this renew nothing: the lease was taken away since.
    lease_from: Uptime,
    renewals: FuturesUnordered<Pending<Renewed>>,
    renewed_at: Uptime,
    /// Who is to be given leadership.
    transfer: Transfer,
    /// When a renewal asked for the servers' time last.
    timed_at: Option<Uptime>,
    /// It was told: nothing is decided by the node's clock alone.
    has_time: bool,
    /// A term's end that waits for the last answers.
    over: Option<(Term, TermEnd)>,

    committer: Committer<C::Client, K>,
    watcher: Watcher<C::Client, K>,
    listening: Listening,
    /// What the last look found of each trigger that is still there.
    answered: super::requests::Answered,
    reads: FuturesUnordered<Pending<Box<ReadDone>>>,
    /// Reads under way, and those that wait.
    asked: Vec<ledger::Request>,
    unread: VecDeque<ledger::Request>,
    /// Reads that the server refuses: tried again with each survey.
    refused: Vec<ledger::Request>,
    read_from: Uptime,
    taking: rights::Taking,
    trimmer: Trimmer<C::Client, K>,
    forgetting: Forgetting,
    forgets: FuturesUnordered<Pending<Result<forget::Look, SessionError>>>,
    ended: Option<SessionEnd>,
}

impl<'n, C: Connect, K: Clock> SessionLoop<'n, C, K> {
    /// A life under this session, which was asked for at `asked`.
    pub fn new(node: &'n mut Node<C, K>, client: C::Client, asked: Uptime) -> Self {
        let uuid = (node.options.uuid)();
        let me = LocalNode {
            node: node.identity.node.clone(),
            owner: client.owner_id(),
            prefix: queue::prefix(uuid),
            candidate_data: candidate_data(node),
        };
        let timeout = client.timeout();
        let context = SessionContext::new(client.clone(), node.clock.clone(), me);
        let (now, turned) = (node.clock.now().up, *node.service.turned.borrow());
        let mut life = Self {
            id: session_id(client.owner_id()),
            is_connected: client.state() == State::Connected,
            is_suspended: false,
            is_told: false,
            errand: None,
            task: Task::Prepare,
            failing: Failing::default(),
            retry: errand::Retry::default(),
            is_prepared: false,
            is_member: false,
            name_wanted_until: None,
            candidate: None,
            is_join_unclear: false,
            retired: None,
            role: Role::None,
            is_written: false,
            following: None,
            must_verify: false,
            must_publish: false,
            survey_at: now + SURVEY_EVERY,
            is_high_sequence_told: false,
            must_renumber: false,
            may_renumber: false,
            is_member_closed: false,
            is_queue_closed: false,
            is_folder_closed: false,
            resign_by: None,
            own_watches: FuturesUnordered::new(),
            watches_member: false,
            lease: Lease::of_session(timeout, asked),
            has_acted: false,
            loops: standstill::Watch::from(now, turned),
            unheard: standstill::Unheard::default(),
            is_going_out: false,
            acts_beyond: Uptime::ZERO,
            lease_told: Uptime::ZERO,
            lease_from: Uptime::ZERO,
            renewals: FuturesUnordered::new(),
            renewed_at: Uptime::ZERO,
            transfer: Transfer::None,
            timed_at: None,
            has_time: false,
            over: None,
            committer: Committer::new(context.clone()),
            watcher: Watcher::new(context.clone()),
            listening: Listening::From(Uptime::ZERO),
            answered: super::requests::Answered::new(),
            reads: FuturesUnordered::new(),
            asked: Vec::new(),
            unread: VecDeque::new(),
            refused: Vec::new(),
            read_from: Uptime::ZERO,
            taking: rights::Taking::default(),
            trimmer: Trimmer::new(context.clone()),
            forgetting: Forgetting::default(),
            forgets: FuturesUnordered::new(),
            ended: None,
            states: client,
            context,
            timeout,
            node,
        };
        life.take_backlog();
        life
    }

    fn take_backlog(&mut self) {
        for waiting in std::mem::take(&mut self.node.backlog) {
            match waiting {
                Waiting::Commit(id, change) => self.commit(id, change),
                Waiting::Read(read) => self.unread.push_back(read),
            }
        }
    }

    /// Lives until the session is over or the daemon is done.
    pub async fn run(mut self) -> SessionEnd {
        loop {
            self.turn();
            if let Some(ended) = self.ended.take() {
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
        let predecessor = match &mut self.role {
            Role::Waiting(watch) => Some(watch),
            Role::None | Role::First(_) | Role::Leading(_) => None,
        };
        // Cancellation safe: every future awaited here is kept in `self` and polled again, but for the state's and the clock's,
        // which lose nothing, and a request not received, which stays in the channel. The state comes first: what the
        // others bring is judged by it. Then the lease, which no number of answers may delay. A turn of a loop that stood still is
        // only a hint to look.
        tokio::select! {
            biased;
            state = self.states.state_changed() => Happened::State(state),
            Some(renewed) = self.renewals.next() => Happened::Renewed(renewed),
            Some(completed) = self.committer.completed() => Happened::Completed(completed),
            Some(()) = self.own_watches.next() => Happened::OwnEntry,
            found = under_way(self.errand.as_mut()) => Happened::Errand(found),
            () = under_way(predecessor) => Happened::Predecessor,
            Some(step) = self.watcher.step() => Happened::Run(step),
            heard = self.listening.heard() => Happened::OperatorRequests(heard),
            Some(done) = self.reads.next() => Happened::Read(done),
            taken = under_way(self.taking.under_way.as_mut()) => Happened::Taken(taken),
            Some(step) = self.trimmer.step() => Happened::Trimmed(step),
            Some(look) = self.forgets.next() => Happened::Forgot(look),
            request = self.node.service.requests.recv() => Happened::Request(request),
            Ok(()) = self.node.service.turned.changed(), if stands_still => Happened::Time,
            () = self.node.clock.sleep_until(wake) => Happened::Time,
        }
    }

    fn handle(&mut self, happened: Happened<<C::Client as Client>::Watch>) {
        let now = self.now();
        match happened {
            Happened::State(state) => self.note_state(state),
            Happened::Errand(found) => self.finish_errand(found),
            Happened::Completed(completed) => self.complete(completed),
            Happened::Renewed((sent, result)) => self.renewed(sent, result),
            Happened::OwnEntry => self.must_verify = true,
            // A place that is not known is looked up.
            Happened::Predecessor => self.role = Role::None,
            Happened::Run(step) => match self.watcher.complete(step, now) {
                Ok(events) => {
                    self.succeeded(Task::Watch);
                    events.into_iter().for_each(|event| self.node.tell_ledger(event));
                }
                Err(error) => self.failed(Task::Watch, &error.to_string()),
            },
            Happened::OperatorRequests(heard) => self.heard(heard, now),
            Happened::Read(done) => self.finish_read(*done),
            Happened::Taken(taken) => self.taken(taken),
            Happened::Trimmed(step) => self.trimmer.complete(step, now),
            Happened::Forgot(look) => self.forgot(look, now),
            Happened::Request(None) => self.ended = Some(SessionEnd::Done),
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
        if self.node.desired.leave.is_some_and(|until| now >= until) {
            self.left();
        }
        if !self.is_connected || self.ended.is_some() {
            return;
        }
        self.renew(now);
        self.committer.start_next();
        self.start_errand(now);
        self.watcher.start_next(now);
        self.listen(now);
        self.start_reads(now);
        self.start_taking(now);
        self.trimmer.start_next(now, matches!(self.role, Role::Leading(_)));
        self.start_forgetting(now);
    }

    /// When something happens by itself.
    fn wake(&self) -> Option<Uptime> {
        let lease = self.has_acted.then(|| self.lease.until());
        let waits = [self.node.desired.leave, self.transfer.until(), self.resign_at(), self.loops.next(self.timeout)];
        let always = lease.into_iter().chain(waits.into_iter().flatten());
        if !self.is_connected {
            return always.min();
        }
        let is_put_off = self.retry.at() > self.now();
        let is_idle = self.errand.is_none() && !self.is_out();
        let errand = is_idle.then(|| if is_put_off { self.retry.at() } else { self.survey_at });
        let more = [
            self.committer.wake(),
            self.renew_at(),
            self.watcher.wake(),
            self.listen_at(),
            errand,
            self.read_at(),
            self.taking.at(),
            self.trimmer.wake(),
            self.forget_at(),
        ];
        always.chain(more.into_iter().flatten()).min()
    }

    fn note_state(&mut self, state: State) {
        match state {
            // Also when no loss was seen: changes are coalesced.
            State::Connected => {
                self.is_connected = true;
                self.must_verify = self.is_member || self.candidate.is_some();
                self.retry = errand::Retry::default();
                self.name_wanted_until = None;
            }
            State::Disconnected => {
                self.forget_failures();
                self.is_connected = false;
                if self.is_told && !self.is_suspended {
                    self.is_suspended = true;
                    self.node.tell(Event::Suspended { session: self.id.clone() });
                }
            }
            State::Expired => self.ended = Some(SessionEnd::Expired),
            // After its start a node does not end by this: it asks for another session, and says why it gets none.
            State::AuthFailed if self.node.has_joined => self.ended = Some(SessionEnd::Expired),
            State::AuthFailed => self.fail_auth("authentication failed".into()),
        }
    }

    fn now(&self) -> Uptime {
        self.node.clock.now().up
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

fn candidate_data<C: Connect, K: Clock>(node: &Node<C, K>) -> Vec<u8> {
    let identity = &node.identity;
    context::json(&serde_json::json!({
        "v": 1,
        "node": identity.node,
        "host": identity.host,
        "pid": identity.pid,
        "version": identity.version,
        "started_at": identity.started_at,
    }))
}
