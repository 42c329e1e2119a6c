//! Runs a node under one session after another, from its first to its last.
//!
//! Connects again forever, with growing pauses, and keeps what is needed beyond one session: what the daemon wants, and
//! the requests that wait for the next session.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use super::damage::Damages;
use super::session_loop::{SessionEnd, SessionLoop};
use super::{NodeIdentity, Options, SessionStore};
use crate::state_dir::KEPT_SESSIONS;
use crate::tree::{Connect, ConnectError, Session, State};
use cronkeeper_core::clock::server::ServerTime;
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::coordination::{self, Service};
use cronkeeper_core::election::{self, Defined, Failure, Member, Published};
use cronkeeper_core::ledger::{self, Change, Commit, CommitId};
use cronkeeper_core::run::millis;
use cronkeeper_core::term::{FencingToken, SessionId};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Short, because nobody leads after an outage until the nodes are back: a refused connection costs little, another
/// half second without cron costs more.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A failure is reported again after growing pauses, at most this long.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// Runs a node's sessions, and keeps the state that lasts longer than one of them.
pub struct Supervisor<C: Connect, K> {
    connect: Arc<C>,
    pub clock: K,
    pub identity: NodeIdentity,
    /// Records sessions and the cluster's id in the state directory.
    pub store: Box<dyn SessionStore>,
    /// The channels to and from the daemon.
    pub service: Service,
    pub options: Options,
    pub desired: Desired,
    /// Requests of the daemon that wait for a session.
    pub backlog: VecDeque<Deferred>,
    /// The cluster's id; absent until a session has read it.
    pub cluster: Option<String>,
    /// This process's own earlier sessions, whose entries may be removed.
    pub earlier: Vec<SessionId>,
    /// The last of this node's sessions whose entries are gone, unless the servers lose that.
    pub left: VecDeque<SessionId>,
    /// Those of them that dead processes had, until the runs are settled that the servers may have given back to them.
    pub left_by_dead: Vec<SessionId>,
    /// The newest reading of the servers' clock.
    pub time: Option<ServerTime>,
    /// The node has been in the queue, so what the servers refuse from now on is not a mistake in its setup.
    pub has_joined: bool,
    /// The warning about paths that are open to others was logged, or there was no need for it.
    pub has_reported_open_paths: bool,
    /// The paths that cannot be read, written or trusted.
    pub damages: Damages,
    /// The fencing token of this process's newest term.
    pub newest_token: Option<FencingToken>,
}

/// The state that the daemon wants, as last requested.
#[derive(Default)]
pub struct Desired {
    /// The node should be in the queue.
    pub campaign: bool,
    /// The node should leave the queue; the daemon is notified when it has.
    pub resign: bool,
    /// The node should leave the cluster, at the latest at this instant.
    pub leave: Option<Uptime>,
    /// Runs are in flight here.
    pub busy: bool,
    /// The data to publish to the other nodes.
    pub published: Published,
    /// The jobs of this node's file; absent until the daemon has loaded it.
    pub defined: Option<Arc<Defined>>,
}

/// Backoff of a failing operation, and of the reports about it.
struct Backoff {
    retry: Duration,
    report_from: Uptime,
    silence: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { retry: FIRST_PAUSE, report_from: Uptime::ZERO, silence: FIRST_PAUSE }
    }
}

/// A request that waits for a session. Fenced changes never wait: without a session there is no candidate to guard
/// them.
pub enum Deferred {
    /// A change that no candidate guards.
    Commit(CommitId, Change),
    Read(ledger::Request),
}

impl<C: Connect, K: Clock> Supervisor<C, K> {
    pub fn new(
        connect: C,
        clock: K,
        identity: NodeIdentity,
        store: Box<dyn SessionStore>,
        service: Service,
        options: Options,
    ) -> Self {
        let left_by_dead = store.left();
        let left = left_by_dead.iter().cloned().collect();
        Self {
            connect: Arc::new(connect),
            clock,
            identity,
            store,
            service,
            options,
            desired: Desired::default(),
            backlog: VecDeque::new(),
            cluster: None,
            earlier: Vec::new(),
            left,
            left_by_dead,
            time: None,
            has_joined: false,
            has_reported_open_paths: false,
            damages: Damages::default(),
            newest_token: None,
        }
    }

    /// Runs sessions until the daemon is done, or an operator must act.
    pub async fn serve(mut self) {
        while let Some((client, requested)) = self.connect().await {
            let id = client.id();
            match self.record(&client).await {
                Some(true) => {}
                Some(false) => continue,
                None => return,
            }
            match SessionLoop::new(&mut self, client, requested).run().await {
                SessionEnd::Expired => self.earlier.push(id),
                SessionEnd::Done => return,
                SessionEnd::Failed(failure) => return self.emit(election::Event::Failed(failure)),
            }
        }
    }

    /// Records that the entries of these sessions are gone.
    pub fn note_left(&mut self, sessions: &[SessionId]) {
        self.store.note_left(sessions);
        self.earlier.retain(|session| !sessions.contains(session));
        self.left.extend(sessions.iter().cloned());
        self.left.drain(..self.left.len().saturating_sub(KEPT_SESSIONS));
    }

    /// Establishes a session. Returns it with the instant at which it was requested; `None` if the daemon is done or an
    /// operator must act.
    async fn connect(&mut self) -> Option<(C::Session, Uptime)> {
        let mut backoff = Backoff::new();
        loop {
            let connect = Arc::clone(&self.connect);
            let requested = self.clock.now().up;
            let error = match self.serve_until(Box::pin(async move { connect.connect().await })).await? {
                Ok(client) => return Some((client, requested)),
                // The servers' credentials were changed since, or the refusal is temporary: the runs in flight go on
                // meanwhile.
                Err(ConnectError::AuthFailed(detail)) if self.has_joined => {
                    format!("authentication was refused: {detail}")
                }
                Err(ConnectError::AuthFailed(detail)) => {
                    let service = self.options.service.clone();
                    self.emit(election::Event::Failed(Failure::Refused { service, detail }));
                    return None;
                }
                Err(ConnectError::Unreachable(error)) => error,
            };
            self.pause(&mut backoff, error).await?;
        }
    }

    /// Records the session in the state directory, before anything is created under it.
    ///
    /// A full disk may have room again later. Until then this session is kept, so that no others pile up. Returns false
    /// if the session is over, `None` if the daemon is done.
    async fn record(&mut self, client: &C::Session) -> Option<bool> {
        let mut backoff = Backoff::new();
        while matches!(client.state(), State::Connected | State::Disconnected) {
            let Err(error) = self.store.record(&client.id()) else { return Some(true) };
            self.pause(&mut backoff, error.to_string()).await?;
        }
        Some(false)
    }

    /// Waits for the next try, and reports the error unless it was reported recently. Returns `None` if the daemon is
    /// done.
    async fn pause(&mut self, backoff: &mut Backoff, error: String) -> Option<()> {
        let (now, retry) = (self.clock.now().up, backoff.retry);
        let clock = self.clock.clone();
        if now >= backoff.report_from {
            (backoff.report_from, backoff.silence) =
                (now + backoff.silence, (backoff.silence * 2).min(LONGEST_SILENCE));
            let (explaining, ending) = (self.connect.explain(error.clone()), clock.clone());
            let explained = async move {
                // Cancellation safe: the diagnosis is only for people, and the next try does not wait for it.
                tokio::select! {
                    biased;
                    explained = explaining => explained,
                    () = sleep(&ending, now + retry) => error,
                }
            };
            let error = self.serve_until(Box::pin(explained)).await?;
            self.emit(election::Event::Unreachable { retry, error });
        }
        self.serve_until(Box::pin(async move { sleep(&clock, now + retry).await })).await?;
        backoff.retry = (retry * 2).min(LONGEST_PAUSE);
        Some(())
    }

    /// Awaits a future while there is no session, and handles requests meanwhile. Returns `None` if the daemon is done.
    async fn serve_until<T>(&mut self, mut awaited: Pin<Box<dyn Future<Output = T> + Send>>) -> Option<T> {
        loop {
            // Cancellation safe: the awaited future is kept, and a request not received stays in the channel.
            let request = tokio::select! {
                biased;
                done = &mut awaited => return Some(done),
                request = self.service.requests.recv() => request?,
            };
            if self.handle_without_session(request) {
                return None;
            }
        }
    }

    /// Handles a request without a session. Returns true if the daemon is done.
    fn handle_without_session(&mut self, request: coordination::Request) -> bool {
        match request {
            coordination::Request::Election(request) => return self.note_without_session(request),
            coordination::Request::Ledger(ledger::Request::Commit { id, change }) => {
                if change.is_fenced() {
                    self.answer(id, Commit::Fenced);
                } else {
                    self.backlog.push_back(Deferred::Commit(id, change));
                }
            }
            // Watches end with the term, and there is none.
            coordination::Request::Ledger(ledger::Request::Watch(_) | ledger::Request::WatchOwn(_)) => {}
            coordination::Request::Ledger(read) => self.backlog.push_back(Deferred::Read(read)),
            // Locks end with the session, and there is none.
            coordination::Request::Lock(_) => {}
        }
        false
    }

    fn note_without_session(&mut self, request: election::Request) -> bool {
        let is_leave = request == election::Request::Leave;
        if let election::Request::Transfer(to) = &request {
            self.emit(election::Event::NotTransferred { to: to.clone(), why: election::TransferError::NotLeading });
        }
        self.note(request);
        if std::mem::take(&mut self.desired.resign) {
            self.emit(election::Event::Withdrawn);
        }
        if is_leave {
            self.emit(election::Event::Left);
        }
        is_leave
    }

    /// Records what the daemon wants. The caller handles [`election::Request::Leave`].
    pub fn note(&mut self, request: election::Request) {
        match request {
            election::Request::Campaign => self.desired.campaign = true,
            election::Request::Resign => {
                self.desired.campaign = false;
                self.desired.resign = true;
            }
            election::Request::Busy(busy) => self.desired.busy = busy,
            election::Request::Publish(published) => self.desired.published = published,
            election::Request::Define(defined) => self.desired.defined = Some(defined),
            election::Request::Leave => self.desired.campaign = false,
            // Handled by the session that leads.
            election::Request::Transfer(_) => {}
        }
    }

    /// Emits an event of the election to the daemon. That the daemon is gone shows in its closed request channel.
    pub fn emit(&self, event: election::Event) {
        self.service.emit(coordination::Event::Election(event));
    }

    /// Emits an event of the ledger to the daemon.
    pub fn emit_ledger(&self, event: ledger::Event) {
        self.service.emit(coordination::Event::Ledger(event));
    }

    /// Answers a commit that was not accepted, as far as is known.
    pub fn answer(&self, id: CommitId, answer: Commit) {
        self.emit_ledger(ledger::Event::Answered { id, answer, before: None });
    }

    /// The data of the node's member.
    pub fn member(&self, session_timeout: Duration) -> Member {
        let session_timeout_ms = Some(millis(session_timeout));
        let NodeIdentity { node, host, pid, version, started_at, .. } = self.identity.clone();
        let published = self.desired.published.clone();
        Member { v: 1, node, host, pid, version, started_at, session_timeout_ms, published }
    }
}

async fn sleep<K: Clock>(clock: &K, until: Uptime) {
    while clock.now().up < until {
        pin!(clock.sleep_until(Wake { wall: None, up: Some(until) })).await;
    }
}
