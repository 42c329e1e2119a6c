//! Clients of one lock in place of the nodes, under the same faults: no two of them ever hold it.

use std::time::Duration;

use cronkeeper::clock::{Clock as _, Uptime, Wake};
use cronkeeper::lock::{LockKind, LockPath};
use cronkeeper::term::FencingToken;
use cronkeeper::zookeeper::SessionError;
use cronkeeper::zookeeper::client::{Client as _, Connect};
use cronkeeper::zookeeper::lock::{HeldLock, LockError, LockEvent, LockRequest, LockSession, Recipe};

use uuid::Uuid;

use super::clock::NodeClock;
use super::executor::{Program, Task};
use super::facts::Fact;
use super::trial::{Length, Plan, Subject, many};
use super::world::{Shared, World};
use super::zookeeper::Connector;

const PATH: &str = "/locks/a";
/// How long a client waits before it gives up every fourth attempt.
const PATIENCE: Duration = Duration::from_secs(2);

struct Locks;

impl Subject for Locks {
    fn new(_seed: u64, _nodes: usize, _length: Length) -> Self {
        Self
    }

    fn at_peace(&self, world: &World) -> Result<(), String> {
        let tree = world.ensemble.leader().ok_or("the ensemble has no leader")?.tree();
        let queue = tree.children(PATH).unwrap_or_default();
        // Whoever is between two attempts has no entry.
        if (1..=world.nodes.len()).contains(&queue.len()) { Ok(()) } else { Err(format!("the queue is {queue:?}")) }
    }
}

impl Program for Locks {
    fn start(&mut self, world: &Shared, node: usize) -> Vec<Task> {
        let clock = NodeClock { world: world.clone(), node };
        let connector = Connector { world: world.clone(), node };
        vec![Box::pin(Contender { world: world.clone(), node, clock, connector }.contend())]
    }
}

struct Contender {
    world: Shared,
    node: usize,
    clock: NodeClock,
    connector: Connector,
}

type Session = LockSession<<Connector as Connect>::Client, NodeClock>;

impl Contender {
    async fn contend(self) {
        let mut request = LockRequest {
            paths: vec![LockPath::parse(PATH).expect("a path of a lock")],
            kind: LockKind::Mutex,
            recipe: Recipe::Curator,
            uuid: Uuid::nil(),
            data: Vec::new(),
            waits: true,
        };
        let mut attempts = self.node;
        loop {
            let requested = self.clock.now().up;
            let Ok(client) = self.connector.connect().await else {
                self.sleep(Duration::from_millis(300)).await;
                continue;
            };
            // A session's own, and drawn from the seed.
            request.uuid = Uuid::from_u64_pair(self.node as u64, client.owner_id().cast_unsigned());
            let mut session = LockSession::new(client, self.clock.clone(), requested);
            let mut held = Vec::new();
            loop {
                attempts += 1;
                match self.attempt(&mut session, &request, &held, attempts).await {
                    Ok(again) => held = again,
                    Err(SessionError::SessionOver) => break,
                    Err(SessionError::Again(_)) => self.sleep(Duration::from_millis(100)).await,
                    Err(error) => panic!("node-{}: {error}", self.node),
                }
            }
        }
    }

    /// Acquires, holds and releases. Returns what is to be released with the next attempt.
    async fn attempt(
        &self,
        session: &mut Session,
        request: &LockRequest,
        held: &[HeldLock],
        attempts: usize,
    ) -> Result<Vec<HeldLock>, SessionError> {
        let gives_up = attempts.is_multiple_of(4);
        let acquired = {
            let acquired = session.acquire_again(held, request);
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
                let is_kept = self.hold(session, &held).await;
                if is_kept && attempts.is_multiple_of(3) {
                    return Ok(held);
                }
                match session.release(&held).await {
                    Ok(()) => {}
                    Err(_) => self.withdraw(session, request).await?,
                }
            }
            Some(Err(LockError::Session(error))) => return Err(error),
            Some(Err(error)) => panic!("node-{}: {error}", self.node),
            None => self.withdraw(session, request).await?,
        }
        Ok(Vec::new())
    }

    async fn withdraw(&self, session: &mut Session, request: &LockRequest) -> Result<(), SessionError> {
        loop {
            match session.withdraw(request).await {
                Err(SessionError::Again(_)) => self.sleep(Duration::from_millis(200)).await,
                done => return done,
            }
        }
    }

    /// Holds the lock for a while, as long as the lease lasts. False if it was lost.
    async fn hold(&self, session: &mut Session, held: &[HeldLock]) -> bool {
        let token = held[0].token;
        let mut lease_until = session.lease_until();
        self.emit(Fact::Elected { node: self.node, token, lease_until });
        session.watch_entries(held, b"");
        let end = self.clock.now().up + Duration::from_millis(400 + 317 * self.node as u64);
        let is_kept = loop {
            let now = self.clock.now().up;
            if now >= end.min(lease_until) {
                break end <= lease_until;
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
                    LockEvent::SessionOver | LockEvent::EntryGone { .. } => break false,
                    LockEvent::Connected | LockEvent::Disconnected | LockEvent::RevokeRequested { .. } => {}
                },
            }
        };
        self.emit(Fact::Over { node: self.node, token });
        is_kept
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

#[test]
fn no_two_clients_hold_a_lock() {
    many::<Locks>("no_two_clients_hold_a_lock", 2_000, Plan { faults: 25, peace: 4 });
}
