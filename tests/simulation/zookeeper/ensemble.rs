//! The servers of the ensemble, and the election of their leader.
//!
//! Votes are not modelled. As in ZooKeeper, of the servers that look for a leader and can reach each other, the one
//! with the longest log leads after some time; a server that comes later joins the existing leader.

use std::time::Duration;

use super::super::facts::Fact;
use super::super::network::{Host, Packet};
use super::super::world::{Env, Event};
use super::leading::QUORUM;
use super::server::{Health, Input, Server};
use crate::ledger::txn::{Change, Txn};
use cronkeeper_cluster::zookeeper::client::Op;

/// Number of servers.
pub const SERVERS: usize = 3;

pub struct Ensemble {
    pub servers: Vec<Server>,
    /// The next leader loses so many of the transactions that were committed last.
    loses: Option<usize>,
}

impl Ensemble {
    pub fn new(env: &mut Env) -> Self {
        Self { servers: (0..SERVERS).map(|id| Server::new(id, env)).collect(), loses: None }
    }

    pub fn take(&mut self, env: &mut Env, packet: Packet) {
        if let Host::Server(id) = packet.to {
            self.servers[id].take(env, Input::Packet(packet));
        }
    }

    /// The server that leads with a quorum, if any.
    pub fn leader(&self) -> Option<&Server> {
        self.servers.iter().filter(|server| server.is_serving()).max_by_key(|s| s.epoch)
    }

    /// Lets the servers that look for a leader find one.
    pub fn elect(&mut self, env: &mut Env) {
        env.electing = false;
        for id in 0..self.servers.len() {
            if self.servers[id].is_electable() && !self.join(env, id) {
                self.found(env, id);
            }
        }
        let look_on = self.servers.iter().any(|server| server.is_electable());
        if look_on {
            env.hold_election();
        }
    }

    fn join(&mut self, env: &mut Env, id: usize) -> bool {
        let epoch = self.servers[id].epoch;
        let serves = |server: &Server| server.health == Health::Running && server.is_leading() && server.epoch >= epoch;
        let leaders = self.servers.iter().filter(|server| serves(server) && talk(env, id, server.id));
        let Some(leader) = leaders.max_by_key(|server| server.epoch).map(|server| server.id) else { return false };
        self.follow(env, id, leader);
        true
    }

    fn found(&mut self, env: &mut Env, id: usize) {
        let group: Vec<usize> = (0..self.servers.len())
            .filter(|other| *other == id || self.servers[*other].is_electable() && talk(env, id, *other))
            .collect();
        let last = |id: &usize| self.servers[*id].log.last().map_or(0, |entry| entry.txn.zxid);
        if group.len() < QUORUM || group.iter().max_by_key(|id| (last(id), **id)) != Some(&id) {
            return;
        }
        let epoch = group.iter().map(|id| self.servers[*id].epoch).max().unwrap_or(0) + 1;
        env.note(|| format!("server-{id} leads the ensemble in epoch {epoch}"));
        // Other servers may still serve what is lost.
        if group.len() == SERVERS
            && let Some(lost) = self.loses.take()
        {
            self.lose(env, id, lost);
        }
        self.servers[id].lead(env, epoch);
        for other in group {
            if other != id {
                self.follow(env, other, id);
            }
        }
    }

    /// All servers look for a leader, and the one that they find has lost the `lost` transactions that were committed
    /// last. ZooKeeper has had several bugs that do this.
    pub fn rewind(&mut self, env: &mut Env, lost: usize) {
        self.loses = Some(lost);
        for server in &mut self.servers {
            if server.health == Health::Running {
                server.look(env);
            }
        }
    }

    /// From now on nothing is lost.
    pub fn calm(&mut self) {
        self.loses = None;
    }

    fn lose(&mut self, env: &mut Env, leader: usize, lost: usize) {
        let log = &self.servers[leader].log;
        // Nodes that have joined a cluster do not join another, so the first moments of a cluster are not lost.
        let founded = log.iter().position(|entry| creates(&entry.txn, "/cronkeeper/cluster"));
        let length = env.committed.saturating_sub(lost).max(founded.map_or(0, |at| at + 1).min(env.committed));
        let lost = env.committed - length;
        let txns = log[length..env.committed.min(log.len())].iter().map(|entry| entry.txn.clone()).collect();
        env.committed = length;
        env.note(|| format!("the ensemble loses {lost} transactions"));
        env.facts.push(Fact::Lost { txns });
        self.servers[leader].rewind(length);
    }

    fn follow(&mut self, env: &mut Env, id: usize, leader: usize) {
        if let Ok([follower, leader]) = self.servers.get_disjoint_mut([id, leader]) {
            env.note(|| format!("server-{} follows server-{}", follower.id, leader.id));
            follower.follow(env, leader);
        }
    }
}

fn creates(txn: &Txn, wanted: &str) -> bool {
    let Change::Ops(ops) = &txn.change else { return false };
    ops.iter().any(|op| matches!(op, Op::Create { path, .. } if path == wanted))
}

fn talk(env: &Env, a: usize, b: usize) -> bool {
    let (a, b) = (Host::Server(a), Host::Server(b));
    !env.network.is_cut(a, b) && !env.network.is_cut(b, a)
}

impl Env {
    /// Starts an election, which succeeds after some time if it can.
    pub(super) fn hold_election(&mut self) {
        if !self.electing {
            self.electing = true;
            let delay = Duration::from_millis(self.rng.u64(200..1200));
            self.queue.after(delay, Event::Elect);
        }
    }
}
