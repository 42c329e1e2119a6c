//! A contender small enough to be seen correct, and variants with one flaw each, to test the invariants with.

use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{Client, Connect, Error, Mode, Op, Stat, State, Watch};
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::term::FencingToken;

use super::clock::NodeClock;
use super::executor::{Program, Task};
use super::facts::Fact;
use super::trial::{Length, Plan, Seeds, Subject, first_failing};
use super::world::{Shared, World};
use super::zookeeper::Connector;

/// The flaw of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Every acknowledged write gives half a session, even the first after a silence.
    OneWriteSuffices,
    /// The lease is longer than the session.
    LongLease,
    /// The lease is counted from the answer.
    LeaseFromTheAnswer,
    /// A read renews the lease.
    ReadsRenew,
}

struct Toy<const FLAW: u8>;

impl<const FLAW: u8> Toy<FLAW> {
    const FLAW: Flaw =
        [Flaw::None, Flaw::OneWriteSuffices, Flaw::LongLease, Flaw::LeaseFromTheAnswer, Flaw::ReadsRenew]
            [FLAW as usize];
}

impl<const FLAW: u8> Subject for Toy<FLAW> {
    fn new(_seed: u64, _nodes: usize, _length: Length) -> Self {
        Self
    }

    fn at_peace(&self, world: &World) -> Result<(), String> {
        let tree = world.ensemble.leader().ok_or("the ensemble has no leader")?.tree();
        let queue = tree.children("/leader").unwrap_or_default();
        if queue.len() == world.nodes.len() { Ok(()) } else { Err(format!("the queue is {queue:?}")) }
    }
}

impl<const FLAW: u8> Program for Toy<FLAW> {
    fn start(&mut self, world: &Shared, node: usize) -> Vec<Task> {
        let contender = Contender {
            world: world.clone(),
            node,
            clock: NodeClock { world: world.clone(), node },
            connector: Connector { world: world.clone(), node },
            flaw: Self::FLAW,
        };
        vec![Box::pin(contender.contend())]
    }
}

struct Contender {
    world: Shared,
    node: usize,
    clock: NodeClock,
    connector: Connector,
    flaw: Flaw,
}

type Session = <Connector as Connect>::Client;

impl Contender {
    async fn contend(self) {
        loop {
            match self.connector.connect().await {
                Ok(client) => while self.campaign(&client).await != Err(Error::SessionOver) {},
                Err(_) => self.sleep(Duration::from_millis(300)).await,
            }
        }
    }

    /// Campaigns with a new candidate, until that is over.
    async fn campaign(&self, client: &Session) -> Result<(), Error> {
        // An earlier create may still be under way; a write on the same session settles it.
        let write = || async {
            client.multi(vec![Op::Check { path: "/".into(), version: -1 }]).await.map_err(|multi| multi.error)
        };
        self.settled(client, write).await?;
        for name in self.settled(client, || client.children("/leader")).await.unwrap_or_default() {
            let path = format!("/leader/{name}");
            let found = self.settled(client, || client.get(&path)).await;
            if found.is_ok_and(|(_, stat)| stat.ephemeral_owner == client.owner_id()) {
                let _ = self.settled(client, || client.delete(&path, -1)).await;
            }
        }
        match client.create("/leader", vec![], Mode::Persistent).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(error),
        }
        let (candidate, stat) = client.create("/leader/c-", vec![], Mode::EphemeralSequential).await?;
        let mut own = candidate.as_str();
        own = own.rsplit('/').next().unwrap_or(own);
        loop {
            let mut queue = self.settled(client, || client.children("/leader")).await?;
            queue.sort();
            match queue.iter().position(|name| name == own) {
                None => return Ok(()),
                Some(0) => return self.lead(client, &candidate, stat).await,
                Some(place) => {
                    let before = format!("/leader/{}", queue[place - 1]);
                    let (found, watch) = self.settled(client, || client.stat_and_watch(&before)).await?;
                    if found.is_some() {
                        watch.fired().await;
                    }
                }
            }
        }
    }

    async fn lead(&self, client: &Session, candidate: &str, stat: Stat) -> Result<(), Error> {
        let token = FencingToken(stat.czxid);
        let mut until = Uptime::ZERO;
        let mut is_open = false;
        let mut leads = false;
        let mut acknowledged = Vec::new();
        let outcome = loop {
            let sent = self.clock.now().up;
            if leads && sent >= until {
                break Ok(());
            }
            let mut ops = vec![Op::Check { path: candidate.to_owned(), version: -1 }];
            if !is_open {
                ops.push(Op::Set { path: "/leader".into(), data: vec![], version: -1 });
            }
            let renewed = if leads && self.flaw == Flaw::ReadsRenew {
                client.get(candidate).await.map(|_| ())
            } else {
                client.multi(ops).await.map(|_| ()).map_err(|multi| multi.error)
            };
            match renewed {
                Ok(()) => {
                    is_open = true;
                    let now = self.clock.now().up;
                    acknowledged.push(if self.flaw == Flaw::LeaseFromTheAnswer { now } else { sent });
                    let renewed = self.lease(&acknowledged, client.timeout());
                    if renewed > now && (!leads || now < until) {
                        until = renewed;
                        let node = self.node;
                        let lease_until = until;
                        self.emit(if leads {
                            Fact::Lease { node, until }
                        } else {
                            Fact::Elected { node, token, lease_until }
                        });
                        leads = true;
                    }
                    self.sleep(client.timeout() / 10).await;
                }
                Err(Error::Unanswered(_)) => self.connected(client).await?,
                Err(error) => break Err(error),
            }
        };
        if leads {
            self.emit(Fact::Over { node: self.node, token });
        }
        outcome
    }

    /// The time until which these acknowledged writes allow it to act.
    ///
    /// The leader of the ensemble learns about a session with the next ping of the server in between, not by its
    /// writes. Two writes, one ping apart, prove that it knows of the first; one alone, after a silence, proves
    /// nothing.
    fn lease(&self, acknowledged: &[Uptime], timeout: Duration) -> Uptime {
        let Some(&newest) = acknowledged.last() else { return Uptime::ZERO };
        match self.flaw {
            Flaw::LongLease => newest + timeout * 5 / 4,
            Flaw::None => {
                let proven = acknowledged.iter().rev().find(|sent| **sent + timeout / 4 <= newest);
                proven.map_or(Uptime::ZERO, |sent| *sent + timeout * 85 / 100)
            }
            Flaw::OneWriteSuffices | Flaw::LeaseFromTheAnswer | Flaw::ReadsRenew => newest + timeout / 2,
        }
    }

    /// Repeats a request until it is answered.
    async fn settled<T, F: Future<Output = Result<T, Error>>>(
        &self,
        client: &Session,
        ask: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            self.connected(client).await?;
            match ask().await {
                Err(Error::Unanswered(_)) => {}
                answer => return answer,
            }
        }
    }

    async fn connected(&self, client: &Session) -> Result<(), Error> {
        let mut states = client.clone();
        loop {
            match states.state() {
                State::Connected => return Ok(()),
                State::Expired | State::AuthFailed => return Err(Error::SessionOver),
                State::Disconnected => states.state_changed().await,
            };
        }
    }

    async fn sleep(&self, time: Duration) {
        let up = self.clock.now().up + time;
        self.clock.sleep_until(Wake { wall: None, up: Some(up) }).await;
    }

    fn emit(&self, fact: Fact) {
        let env = &mut self.world.lock().env;
        let node = self.node;
        env.note(|| match &fact {
            Fact::Elected { token, lease_until, .. } => {
                format!("node-{node} leads in the term {token} until {lease_until:?}")
            }
            Fact::Over { token, .. } => format!("node-{node} is over with the term {token}"),
            _ => format!("node-{node} renews"),
        });
        env.facts.push(fact);
    }
}

const PLAN: Plan = Plan { faults: 25, peace: 4 };

#[test]
fn a_sound_contender_breaks_nothing() {
    let seeds = Seeds { each_run: 300, long_run: 300 };
    super::trial::many::<Toy<0>>("a_sound_contender", seeds, PLAN);
}

#[test]
fn a_lease_by_the_first_write_after_a_silence_is_found_out() {
    assert!(first_failing::<Toy<1>>(3000, PLAN).is_some());
}

#[test]
fn a_lease_longer_than_the_session_is_found_out() {
    assert!(first_failing::<Toy<2>>(1000, PLAN).is_some());
}

#[test]
fn a_lease_counted_from_the_answer_is_found_out() {
    assert!(first_failing::<Toy<3>>(3000, PLAN).is_some());
}

#[test]
fn a_lease_renewed_by_reads_is_found_out() {
    assert!(first_failing::<Toy<4>>(1000, PLAN).is_some());
}
