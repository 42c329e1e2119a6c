//! A node from its first session to its last: connects, with growing pauses and forever, and lives one session after another.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, Connect, ConnectError, State};
use super::damage::Damages;
use super::session_loop::{SessionEnd, SessionLoop};
use super::{NodeIdentity, Options, SessionStore};
use crate::clock::server::ServerTime;
use crate::clock::{Clock, Uptime, Wake};
use crate::coordination::{self, Service};
use crate::election::{self, Defined, Failure, Member, Published};
use crate::ledger::{self, Change, Commit, CommitId};
use crate::run::millis;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// After an outage nobody leads before the nodes are back: a refused connection costs little, half a second of cron more.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// It is said again after growing times, up to this.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// What outlives a session.
pub struct Supervisor<C: Connect, K> {
    connect: Arc<C>,
    /// The clocks.
    pub clock: K,
    /// Who this is.
    pub identity: NodeIdentity,
    /// The state directory.
    pub store: Box<dyn SessionStore>,
    /// The daemon.
    pub service: Service,
    /// What else was given.
    pub options: Options,
    /// What the daemon wants.
    pub desired: Desired,
    /// Changes and reads that wait for a session.
    pub backlog: VecDeque<Waiting>,
    /// The cluster, once known.
    pub cluster: Option<String>,
    /// This process's own earlier sessions.
    pub earlier: Vec<i64>,
    /// The newest reading of the servers' clock.
    pub time: Option<ServerTime>,
    /// It has had a place in the queue: what the servers refuse from now on is no mistake in how it was set up.
    pub has_joined: bool,
    /// What stands open to others was told, or that nothing does.
    pub is_openness_told: bool,
    /// What cannot be read, written or trusted.
    pub damages: Damages,
}

/// What the daemon wants.
#[derive(Default)]
pub struct Desired {
    /// A place in the queue.
    pub campaign: bool,
    /// To be out of the queue, and to hear of it.
    pub resign: bool,
    /// To end, at the latest then.
    pub leave: Option<Uptime>,
    /// Runs are in flight here.
    pub busy: bool,
    /// To tell the others.
    pub published: Published,
    /// The jobs of this node's files, once it has said so.
    pub defined: Option<Arc<Defined>>,
}

/// Tries of something that fails: after growing pauses, and told after growing times.
struct Tries {
    retry: Duration,
    told_from: Uptime,
    silence: Duration,
}

impl Tries {
    fn none_yet() -> Self {
        Self { retry: FIRST_PAUSE, told_from: Uptime::ZERO, silence: FIRST_PAUSE }
    }
}

/// What waits for a session. Changes that a candidate guards never do: there is none.
pub enum Waiting {
    /// A change without a fence.
    Commit(CommitId, Change),
    /// A read.
    Read(ledger::Request),
}

impl<C: Connect, K: Clock> Supervisor<C, K> {
    /// A node that was never connected.
    pub fn new(
        connect: C,
        clock: K,
        identity: NodeIdentity,
        store: Box<dyn SessionStore>,
        service: Service,
        options: Options,
    ) -> Self {
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
            time: None,
            has_joined: false,
            is_openness_told: false,
            damages: Damages::default(),
        }
    }

    /// Lives until the daemon is done, or an operator must act.
    pub async fn serve(mut self) {
        while let Some((client, asked)) = self.connected().await {
            let owner = client.owner_id();
            match self.recorded(&client).await {
                Some(true) => {}
                Some(false) => continue,
                None => return,
            }
            match SessionLoop::new(&mut self, client, asked).run().await {
                SessionEnd::Expired => self.earlier.push(owner),
                SessionEnd::Done => return,
                SessionEnd::Failed(failure) => return self.tell(election::Event::Failed(failure)),
            }
        }
    }

    /// A new session, and when it was asked for; `None` where the daemon is done or an operator must act.
    async fn connected(&mut self) -> Option<(C::Client, Uptime)> {
        let mut tries = Tries::none_yet();
        loop {
            let connect = Arc::clone(&self.connect);
            let asked = self.clock.now().up;
            let error = match self.while_away(Box::pin(async move { connect.connect().await })).await? {
                Ok(client) => return Some((client, asked)),
                // The servers were told of other credentials since, or they are wrong for a moment: runs go on meanwhile.
                Err(ConnectError::AuthFailed(detail)) if self.has_joined => {
                    format!("authentication was refused: {detail}")
                }
                Err(ConnectError::AuthFailed(detail)) => {
                    let service = self.options.service.clone();
                    self.tell(election::Event::Failed(Failure::Refused { service, detail }));
                    return None;
                }
                Err(ConnectError::Unreachable(error)) => error,
            };
            self.pause(&mut tries, error).await?;
        }
    }

    /// Writes the session down, before anything is made under it. A disk that is full has room again some day: until then this
    /// session is kept, so that no others pile up. False: it is over. `None`: the daemon is done.
    async fn recorded(&mut self, client: &C::Client) -> Option<bool> {
        let mut tries = Tries::none_yet();
        while matches!(client.state(), State::Connected | State::Disconnected) {
            let Err(error) = self.store.record(client.owner_id()) else { return Some(true) };
            self.pause(&mut tries, error.to_string()).await?;
        }
        Some(false)
    }

    /// Says what went wrong, unless it was said just now, and waits. `None`: the daemon is done.
    async fn pause(&mut self, tries: &mut Tries, error: String) -> Option<()> {
        let (now, retry) = (self.clock.now().up, tries.retry);
        if now >= tries.told_from {
            (tries.told_from, tries.silence) = (now + tries.silence, (tries.silence * 2).min(LONGEST_SILENCE));
            self.tell(election::Event::Unreachable { retry, error });
        }
        let clock = self.clock.clone();
        self.while_away(Box::pin(async move { sleep(&clock, now + retry).await })).await?;
        tries.retry = (retry * 2).min(LONGEST_PAUSE);
        Some(())
    }

    /// Waits for something while there is no session. `None`: the daemon is done.
    async fn while_away<T>(&mut self, mut awaited: Pin<Box<dyn Future<Output = T> + Send>>) -> Option<T> {
        loop {
            // Cancellation safe: the awaited future is kept, and a request not received stays in the channel.
            let request = tokio::select! {
                biased;
                done = &mut awaited => return Some(done),
                request = self.service.requests.recv() => request?,
            };
            if self.answer_away(request) {
                return None;
            }
        }
    }

    /// Takes a request without a session. True: the daemon is done.
    fn answer_away(&mut self, request: coordination::Request) -> bool {
        match request {
            coordination::Request::Election(request) => return self.note_away(request),
            coordination::Request::Ledger(ledger::Request::Commit { id, change }) => {
                if change.is_fenced() {
                    self.answer(id, Commit::Fenced);
                } else {
                    self.backlog.push_back(Waiting::Commit(id, change));
                }
            }
            // Watches end with the term, and there is none.
            coordination::Request::Ledger(ledger::Request::Watch(_) | ledger::Request::WatchOwn(_)) => {}
            coordination::Request::Ledger(read) => self.backlog.push_back(Waiting::Read(read)),
        }
        false
    }

    fn note_away(&mut self, request: election::Request) -> bool {
        let is_leave = request == election::Request::Leave;
        if let election::Request::Transfer(to) = &request {
            self.tell(election::Event::NotTransferred { to: to.clone(), why: election::TransferError::NotLeading });
        }
        self.note(request);
        if std::mem::take(&mut self.desired.resign) {
            self.tell(election::Event::Withdrawn);
        }
        if is_leave {
            self.tell(election::Event::Left);
        }
        is_leave
    }

    /// Notes what the daemon wants; [`election::Request::Leave`] is left to the caller.
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
            // The affair of a session that leads.
            election::Request::Transfer(_) => {}
        }
    }

    /// Tells the daemon of the election. One that is gone is noticed by its closed channel.
    pub fn tell(&self, event: election::Event) {
        self.service.tell(coordination::Event::Election(event));
    }

    /// Tells the daemon of the ledger.
    pub fn tell_ledger(&self, event: ledger::Event) {
        self.service.tell(coordination::Event::Ledger(event));
    }

    /// Answers a commit.
    pub fn answer(&self, id: CommitId, answer: Commit) {
        self.tell_ledger(ledger::Event::Answered { id, answer });
    }

    /// What the member says.
    pub fn member(&self, session_timeout: Duration) -> Member {
        let session_timeout_ms = Some(millis(session_timeout));
        let NodeIdentity { node, host, pid, version, started_at } = self.identity.clone();
        let published = self.desired.published.clone();
        Member { v: 1, node, host, pid, version, started_at, session_timeout_ms, published }
    }
}

async fn sleep<K: Clock>(clock: &K, until: Uptime) {
    while clock.now().up < until {
        pin!(clock.sleep_until(Wake { wall: None, up: Some(until) })).await;
    }
}
