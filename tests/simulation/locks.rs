//! Clients of one lock in place of the nodes, under the same faults: no two of them ever hold it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Mutex;
use std::time::Duration;

use cronkeeper_cluster::recipes::SessionError;
use cronkeeper_cluster::recipes::lock::{
    Contender as LockContender, HeldLock, LockError, LockEvent, LockRequest, LockSession, Recipe,
};
use cronkeeper_cluster::tree::{Connect, Session as _};
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_core::clock::{Clock as _, Uptime, Wake};
use cronkeeper_core::lock::{LockKind, LockPath};
use cronkeeper_core::term::FencingToken;

use uuid::Uuid;

use super::backend::observed;
use super::clock::NodeClock;
use super::executor::{Program, Task};
use super::facts::Fact;
use super::trial::{Length, Plan, Seeds, Subject, many};
use super::world::{Shared, World};
use super::zookeeper::Connector;

const PATH: &str = "/locks/a";
/// How long a client waits before it gives up every fourth attempt.
const PATIENCE: Duration = Duration::from_secs(2);

struct Locks<const ON_STORE: bool>;

impl<const ON_STORE: bool> Subject for Locks<ON_STORE> {
    const ON_STORE: bool = ON_STORE;

    fn new(_seed: u64, _nodes: usize, _length: Length) -> Self {
        Self
    }

    fn at_peace(&self, world: &World) -> Result<(), String> {
        let tree = world.tree().ok_or("the ensemble has no leader")?;
        let queue = tree.children(PATH).unwrap_or_default();
        // Whoever is between two attempts has no entry.
        if (1..=2 * world.nodes.len()).contains(&queue.len()) { Ok(()) } else { Err(format!("the queue is {queue:?}")) }
    }
}

impl<const ON_STORE: bool> Program for Locks<ON_STORE> {
    fn start(&mut self, world: &Shared, node: usize) -> Vec<Task> {
        let clock = NodeClock { world: world.clone(), node };
        let world = world.clone();
        if ON_STORE {
            let rng = world.lock().env.rng.fork();
            let connector = observed(&world, node, rng);
            vec![Box::pin(Contender { world, node, clock, connector }.contend())]
        } else {
            let connector = Znodes(Connector { world: world.clone(), node });
            vec![Box::pin(Contender { world, node, clock, connector }.contend())]
        }
    }
}

struct Contender<C> {
    world: Shared,
    node: usize,
    clock: NodeClock,
    connector: C,
}

type Session<C> = LockSession<<C as Connect>::Session, NodeClock>;
type SharedContender<C> = LockContender<<C as Connect>::Session, NodeClock>;

/// What the clients of one session share.
struct SharedLease {
    until: Uptime,
    /// The token of the one that holds the lock.
    held: Option<FencingToken>,
}

impl<C: Connect> Contender<C> {
    async fn contend(self) {
        let mut request = LockRequest {
            paths: vec![LockPath::parse(PATH).expect("a path of a lock")],
            kind: LockKind::Mutex,
            recipe: Recipe::Curator,
            uuid: Uuid::nil(),
            data: Vec::new(),
            waits: true,
        };
        loop {
            let requested = self.clock.now().up;
            let Ok(client) = self.connector.connect().await else {
                self.sleep(Duration::from_millis(300)).await;
                continue;
            };
            // A session's own, and drawn from the seed.
            let mut hasher = DefaultHasher::new();
            client.id().hash(&mut hasher);
            request.uuid = Uuid::from_u64_pair(self.node as u64, hasher.finish());
            let session = LockSession::new(client, self.clock.clone(), requested);
            // Half of the nodes have two clients that share the session.
            if self.node.is_multiple_of(2) {
                self.use_alone(session, &request).await;
            } else {
                self.share(session, &request).await;
            }
        }
    }

    /// Acquires and releases until the session is over.
    async fn use_alone(&self, mut session: Session<C>, request: &LockRequest) {
        let mut attempts = self.node;
        loop {
            attempts += 1;
            match self.attempt(&mut session, request, attempts).await {
                Ok(()) => {}
                Err(SessionError::SessionOver) => return,
                Err(SessionError::Again(_)) => self.sleep(Duration::from_millis(100)).await,
                Err(error) => panic!("node-{}: {error}", self.node),
            }
        }
    }

    async fn attempt(
        &self,
        session: &mut Session<C>,
        request: &LockRequest,
        attempts: usize,
    ) -> Result<(), SessionError> {
        let gives_up = attempts.is_multiple_of(4);
        let acquired = {
            let acquired = session.acquire(request);
            let late = self.sleep(PATIENCE);
            // Cancellation safe: an attempt that is given up is withdrawn.
            tokio::select! {
                biased;
                acquired = acquired => Some(acquired),
                () = late, if gives_up => None,
            }
        };
        match acquired {
            Some(Ok(held)) => {
                self.hold(session, &held).await;
                if session.release(&held).await.is_err() {
                    self.withdraw(session, request).await?;
                }
                Ok(())
            }
            Some(Err(LockError::Session(error))) => Err(error),
            Some(Err(error)) => panic!("node-{}: {error}", self.node),
            None => self.withdraw(session, request).await,
        }
    }

    /// Two clients acquire and release, which hand over to each other, until the session is over.
    async fn share(&self, mut session: Session<C>, request: &LockRequest) {
        session.renew_at(&request.paths[0]);
        let shared = Mutex::new(SharedLease { until: session.lease_until(), held: None });
        let clients = [0, 1].map(|n| {
            let uuid = Uuid::from_u128(request.uuid.as_u128() ^ ((n + 1) << 32));
            self.share_as(session.contender(), LockRequest { uuid, ..request.clone() }, &shared)
        });
        let [one, two] = clients;
        let upkeep = async {
            loop {
                match session.event().await {
                    LockEvent::Lease { until } => self.renew_shared(&shared, until),
                    LockEvent::SessionOver => return,
                    _ => {}
                }
            }
        };
        // Cancellation safe: the session is over, and with it everything that the clients were about to do.
        tokio::select! {
            biased;
            () = upkeep => {}
            () = one => {}
            () = two => {}
        }
        if let Some(token) = shared.lock().expect("nothing panicked").held.take() {
            self.emit(Fact::Over { node: self.node, token });
        }
    }

    fn renew_shared(&self, shared: &Mutex<SharedLease>, until: Uptime) {
        let mut shared = shared.lock().expect("nothing panicked");
        // A lease that was over has ended what it guarded.
        let is_kept = self.clock.now().up < shared.until;
        shared.until = until;
        if shared.held.is_some() && is_kept {
            self.emit(Fact::Lease { node: self.node, until });
        }
    }

    async fn share_as(&self, contender: SharedContender<C>, request: LockRequest, shared: &Mutex<SharedLease>) {
        for attempt in 0usize.. {
            let gives_up = attempt.is_multiple_of(3);
            // Cancellation safe: an attempt that is given up is withdrawn.
            let acquired = tokio::select! {
                biased;
                acquired = contender.acquire(&request) => Some(acquired),
                () = self.sleep(PATIENCE), if gives_up => None,
            };
            match acquired {
                Some(Ok(held)) => {
                    self.hold_shared(&held, shared).await;
                    if contender.release(&held).await.is_ok() {
                        continue;
                    }
                }
                Some(Err(LockError::Session(SessionError::SessionOver))) => return,
                Some(Err(LockError::Session(SessionError::Again(_)))) | None => {}
                Some(Err(error)) => panic!("node-{}: {error}", self.node),
            }
            while let Err(error) = contender.withdraw(&request).await {
                if error == SessionError::SessionOver {
                    return;
                }
                self.sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn hold_shared(&self, held: &[HeldLock], shared: &Mutex<SharedLease>) {
        let token = held[0].token;
        let lease_until = || shared.lock().expect("nothing panicked").until;
        if self.clock.now().up >= lease_until() {
            return self.sleep(Duration::from_millis(50)).await;
        }
        let before = shared.lock().expect("nothing panicked").held.replace(token);
        assert_eq!(before, None, "two clients of node-{} hold the lock", self.node);
        self.emit(Fact::Elected { node: self.node, token, lease_until: lease_until() });
        let end = self.clock.now().up + Duration::from_millis(300 + 171 * self.node as u64);
        while self.clock.now().up < end.min(lease_until()) {
            self.clock.sleep_until(Wake { wall: None, up: Some(end.min(lease_until())) }).await;
        }
        shared.lock().expect("nothing panicked").held = None;
        self.emit(Fact::Over { node: self.node, token });
    }

    async fn withdraw(&self, session: &mut Session<C>, request: &LockRequest) -> Result<(), SessionError> {
        loop {
            match session.withdraw(request).await {
                Err(SessionError::Again(_)) => self.sleep(Duration::from_millis(200)).await,
                done => return done,
            }
        }
    }

    /// Holds the lock for a while, as long as the lease lasts.
    async fn hold(&self, session: &mut Session<C>, held: &[HeldLock]) {
        let token = held[0].token;
        let mut lease_until = session.lease_until();
        self.emit(Fact::Elected { node: self.node, token, lease_until });
        session.watch_entries(held, b"");
        let end = self.clock.now().up + Duration::from_millis(400 + 317 * self.node as u64);
        loop {
            let now = self.clock.now().up;
            if now >= end.min(lease_until) {
                break;
            }
            let wake = Wake { wall: None, up: Some(end.min(lease_until)) };
            // Cancellation safe: the sleep is recreated, and `event` documents it.
            tokio::select! {
                biased;
                () = self.clock.sleep_until(wake) => {}
                event = session.event() => match event {
                    LockEvent::Lease { until } => {
                        // A lease that was over has ended what it guarded.
                        if self.clock.now().up < lease_until {
                            lease_until = until;
                            self.emit(Fact::Lease { node: self.node, until });
                        }
                    }
                    LockEvent::SessionOver | LockEvent::EntryGone { .. } => break,
                    LockEvent::Connected | LockEvent::Disconnected | LockEvent::RevokeRequested { .. } => {}
                },
            }
        }
        self.emit(Fact::Over { node: self.node, token });
    }

    async fn sleep(&self, time: Duration) {
        let up: Uptime = self.clock.now().up + time;
        while self.clock.now().up < up {
            self.clock.sleep_until(Wake { wall: None, up: Some(up) }).await;
        }
    }

    fn emit(&self, fact: Fact) {
        let env = &mut self.world.lock().env;
        let node = self.node;
        let note = |token: &FencingToken, what: &str| format!("node-{node} {what} the lock with token {token}");
        env.note(|| match &fact {
            Fact::Elected { token, .. } => note(token, "holds"),
            Fact::Over { token, .. } => note(token, "gives up"),
            _ => format!("node-{node} renews"),
        });
        env.facts.push(fact);
    }
}

const SEEDS: Seeds = Seeds { each_run: 500, long_run: 1_000 };
const PLAN: Plan = Plan { faults: 25, peace: 4 };

#[test]
fn no_two_clients_hold_a_lock() {
    many::<Locks<false>>("no_two_clients_hold_a_lock", SEEDS, PLAN);
}

#[test]
fn no_two_clients_hold_a_lock_on_the_weakest_store() {
    const FEWER: Seeds = Seeds { each_run: 200, ..SEEDS };
    many::<Locks<true>>("no_two_clients_hold_a_lock_on_the_weakest_store", FEWER, PLAN);
}
