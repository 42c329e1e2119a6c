//! The locks of this node's runs, under the node's own session.
//!
//! Each request is a task of its own that waits in the lock's queue. The node's lease guards what it holds: the entries
//! live as long as the session, and the node's runs die before the session can end.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use super::futures::BoxFuture;
use crate::recipes::context::SessionError;
use crate::recipes::damage::{Damage, Source};
use crate::recipes::lock::{
    self, Contender, EntryNews, EntryWatches, HeldLock, KnownObstacles, LockClient, LockError, LockRequest, Recipe,
};
use crate::recipes::node::{Node, NodeIdentity};
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::lock::{LockKey, LockKind, LockPath};
use cronkeeper_core::run_lock::{Event, LockGrant, LockRequestId, Request};

/// Time before a request that was refused is repeated.
const REFUSED: Duration = Duration::from_secs(10);
/// Time before a request that failed is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// How long, and how many of them, released requests are remembered.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(60), 64);

/// The locks that runs of this node hold, or wait for.
pub(super) struct JobLocks<C, K> {
    contender: Contender<C, K>,
    clock: K,
    requests: BTreeMap<LockRequestId, JobLock>,
    tasks: FuturesUnordered<BoxFuture<TaskEnd>>,
    watches: EntryWatches<C, K>,
    obstacles: watch::Receiver<KnownObstacles>,
    /// The entries that are held, each with its request and its path.
    entries: BTreeMap<String, (LockRequestId, LockPath)>,
    /// The requests released last, oldest first: the servers may lose that they were.
    released: VecDeque<(Uptime, LockRequest)>,
}

/// A request that the daemon has not released.
struct JobLock {
    request: LockRequest,
    key: LockKey,
    state: JobLockState,
}

enum JobLockState {
    /// A task waits for the locks. It gives up when the sender is dropped.
    Acquiring {
        _task: oneshot::Sender<()>,
    },
    /// The same, after the servers have refused the request: the daemon knows.
    Refused {
        _task: oneshot::Sender<()>,
    },
    Held(Vec<HeldLock>),
}

/// What the loop must handle.
pub(super) enum JobLockEvent {
    Task(TaskEnd),
    Entry(EntryNews),
    /// Other persistent entries than before are in the way.
    Obstacles,
}

/// How a task ended.
pub(super) enum TaskEnd {
    Acquired(LockRequestId, LockRequest, Vec<HeldLock>),
    Busy(LockRequestId, LockPath),
    Refused(LockRequestId, LockRequest, String),
    /// Nothing follows: the locks were released, or the session is over.
    Done,
}

impl<C: Session, K: Clock> JobLocks<C, K> {
    pub fn new(client: C, clock: K) -> Self {
        let contender = Contender::new(client.clone(), clock.clone());
        Self {
            obstacles: contender.obstacles(),
            contender,
            watches: EntryWatches::new(client, clock.clone()),
            clock,
            requests: BTreeMap::new(),
            tasks: FuturesUnordered::new(),
            entries: BTreeMap::new(),
            released: VecDeque::new(),
        }
    }

    /// Waits for the next event; forever if there is nothing to wait for. Cancellation safe: tasks and watches are
    /// kept.
    pub async fn next(&mut self) -> JobLockEvent {
        // Cancellation safe: see above.
        tokio::select! {
            biased;
            Some(end) = self.tasks.next() => JobLockEvent::Task(end),
            Some(news) = self.watches.next() => JobLockEvent::Entry(news),
            Ok(()) = self.obstacles.changed() => JobLockEvent::Obstacles,
            else => std::future::pending().await,
        }
    }

    /// Takes a request of the daemon. `draw` draws the uuids of a lock's key.
    pub fn take(&mut self, request: Request, identity: &NodeIdentity, draw: &mut dyn FnMut() -> Uuid) {
        match request {
            Request::Release { id } => self.release(id),
            Request::Acquire { id, run, paths, waits } => {
                let key = LockKey::of(draw(), draw());
                let client = LockClient {
                    host: identity.host.clone(),
                    pid: identity.pid,
                    user: identity.user.clone(),
                    program: format!("job {}", run.job()),
                    revoked_at_ms: None,
                };
                let (uuid, data) = (key.uuid(), lock::data(&client));
                let (kind, recipe) = (LockKind::Mutex, Recipe::Curator);
                self.acquire(id, LockRequest { paths, kind, recipe, uuid, data, waits }, key);
            }
        }
    }

    /// Applies an event. Returns what the daemon must know.
    pub fn apply(&mut self, event: JobLockEvent, node: &mut Node) -> Option<Event> {
        match event {
            JobLockEvent::Task(end) => self.on_task_end(end),
            JobLockEvent::Entry(news) => self.on_news(news),
            JobLockEvent::Obstacles => {
                let known = self.obstacles.borrow_and_update().clone();
                let found = known.into_values().map(|entry| Damage::new(entry, lock::STAYS));
                node.found_damage(Source::Locks, found);
                None
            }
        }
    }

    fn acquire(&mut self, id: LockRequestId, request: LockRequest, key: LockKey) {
        let task = self.start(id, request.clone(), false);
        let state = JobLockState::Acquiring { _task: task };
        self.requests.insert(id, JobLock { request, key, state });
    }

    /// Starts a task that waits for the locks of a request. If the request was refused before, its remains are removed
    /// first, and there is a pause.
    fn start(&self, id: LockRequestId, request: LockRequest, was_refused: bool) -> oneshot::Sender<()> {
        let (task, given_up) = oneshot::channel();
        let (contender, clock) = (self.contender.clone(), self.clock.clone());
        self.tasks.push(Box::pin(async move {
            let acquiring = async {
                if was_refused {
                    withdraw(&contender, &clock, &request).await;
                    sleep(&clock, REFUSED).await;
                }
                contender.acquire(&request).await
            };
            // Cancellation safe: what was acquired by an attempt that is dropped here is withdrawn.
            let acquired = tokio::select! {
                biased;
                _ = given_up => None,
                acquired = acquiring => Some(acquired),
            };
            match acquired {
                Some(Ok(held)) => TaskEnd::Acquired(id, request, held),
                Some(Err(LockError::Session(SessionError::SessionOver))) => TaskEnd::Done,
                Some(Err(LockError::Busy { path })) => {
                    withdraw(&contender, &clock, &request).await;
                    TaskEnd::Busy(id, path)
                }
                // The withdrawal may be refused too, so it must not delay the report.
                Some(Err(error)) => TaskEnd::Refused(id, request, error.to_string()),
                None => {
                    withdraw(&contender, &clock, &request).await;
                    TaskEnd::Done
                }
            }
        }));
        task
    }

    /// Releases a request, in whatever state it is. Later events about it are ignored.
    fn release(&mut self, id: LockRequestId) {
        // The task of a request that is not granted gives up when its state is dropped.
        match self.requests.remove(&id) {
            Some(JobLock { request, state: JobLockState::Held(held), .. }) => self.release_held(request, &held),
            Some(JobLock { request, .. }) => self.remember(request),
            None => {}
        }
    }

    fn release_held(&mut self, request: LockRequest, held: &[HeldLock]) {
        held.iter().flat_map(|held| &held.entries).for_each(|entry| drop(self.entries.remove(entry)));
        // Sent now, so that the next in the queue need not wait for this loop.
        let released = self.contender.release(held);
        self.remember(request.clone());
        let (contender, clock) = (self.contender.clone(), self.clock.clone());
        self.tasks.push(Box::pin(async move {
            if released.await.is_err() {
                withdraw(&contender, &clock, &request).await;
            }
            TaskEnd::Done
        }));
    }

    fn remember(&mut self, request: LockRequest) {
        self.released.push_back((self.clock.now().up, request));
        if self.released.len() > REMEMBERED.1 {
            self.released.pop_front();
        }
    }

    /// Removes the entries of released requests once more: they may be back, as long as this session lasts.
    pub fn release_again(&mut self) {
        let now = self.clock.now().up;
        for (at, request) in std::mem::take(&mut self.released) {
            if now < at + REMEMBERED.0 {
                self.withdraw(request.clone());
                self.released.push_back((at, request));
            }
        }
    }

    /// Removes what a request has left that the daemon gave up at the same time.
    fn withdraw(&self, request: LockRequest) {
        let (contender, clock) = (self.contender.clone(), self.clock.clone());
        self.tasks.push(Box::pin(async move {
            withdraw(&contender, &clock, &request).await;
            TaskEnd::Done
        }));
    }

    /// Releases all locks and gives up all requests: their runs are dead, and the daemon's loop is stalled and does not
    /// do it. Returns what the daemon must know.
    pub fn release_all(&mut self) -> Vec<Event> {
        let mut lost = Vec::new();
        for (id, JobLock { request, state, .. }) in std::mem::take(&mut self.requests) {
            lost.extend(request.paths.iter().map(|path| Event::Lost { id, path: path.clone() }));
            if let JobLockState::Held(held) = state {
                self.release_held(request, &held);
            }
        }
        lost
    }

    /// True while a release or a withdrawal has no answer.
    pub fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    fn on_task_end(&mut self, end: TaskEnd) -> Option<Event> {
        match end {
            TaskEnd::Acquired(id, request, held) => self.on_acquired(id, request, held),
            TaskEnd::Busy(id, path) => {
                let JobLock { request, .. } = self.requests.remove(&id)?;
                self.remember(request);
                Some(Event::Busy { id, path })
            }
            TaskEnd::Refused(id, request, why) => {
                if !self.requests.contains_key(&id) {
                    self.withdraw(request);
                    return None;
                }
                let task = self.start(id, request, true);
                let lock = self.requests.get_mut(&id)?;
                let was = std::mem::replace(&mut lock.state, JobLockState::Refused { _task: task });
                let is_new = matches!(was, JobLockState::Acquiring { .. });
                is_new.then_some(Event::Refused { id, why })
            }
            TaskEnd::Done => None,
        }
    }

    /// Handles locks that are held now. The daemon may have given the request up meanwhile.
    fn on_acquired(&mut self, id: LockRequestId, request: LockRequest, held: Vec<HeldLock>) -> Option<Event> {
        let Some(lock) = self.requests.get_mut(&id) else {
            self.release_held(request, &held);
            return None;
        };
        let paths = held.iter().map(|held| (held.path.clone(), held.token)).collect();
        let grant = LockGrant { key: lock.key.clone(), held: paths };
        self.watches.add(held.iter().flat_map(|held| &held.entries), &request.data);
        for lock in &held {
            self.entries.extend(lock.entries.iter().map(|entry| (entry.clone(), (id, lock.path.clone()))));
        }
        lock.state = JobLockState::Held(held);
        Some(Event::Held { id, grant })
    }

    fn on_news(&mut self, news: EntryNews) -> Option<Event> {
        match news {
            EntryNews::Gone { entry } => self.entries.remove(&entry).map(|(id, path)| Event::Lost { id, path }),
            EntryNews::RevokeRequested { entry } => {
                self.entries.get(&entry).cloned().map(|(id, path)| Event::RevokeRequested { id, path })
            }
        }
    }
}

async fn withdraw<C: Session, K: Clock>(contender: &Contender<C, K>, clock: &K, request: &LockRequest) {
    loop {
        match contender.withdraw(request).await {
            Ok(()) | Err(SessionError::SessionOver) => return,
            Err(SessionError::Again(_)) => sleep(clock, PAUSE).await,
            // Without it others would wait for an entry that nobody needs, as long as this session lasts.
            Err(_) => sleep(clock, REFUSED).await,
        }
    }
}

async fn sleep<K: Clock>(clock: &K, pause: Duration) {
    let until = clock.now().up + pause;
    while clock.now().up < until {
        clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
    }
}
