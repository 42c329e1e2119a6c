//! The leader's part of a server: orders writes, commits what a quorum has on disk, and expires sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;

use super::super::network::{Conn, Host, Packet};
use super::super::world::{Env, Event};
use super::ensemble::SERVERS;
use super::server::{Input, Role, Server};
use super::tracker::{Owner, Tracker};
use super::txn::{Change, Session, Txn};
use super::wire::{Body, Entry, Origin, Proposal};

/// Number of servers in a quorum.
pub const QUORUM: usize = SERVERS / 2 + 1;

pub struct Leading {
    pub(super) tracker: Tracker,
    pub(super) learners: BTreeMap<usize, Learner>,
    proposed: i64,
    half_ticks: u64,
}

pub struct Learner {
    pub(super) conn: Conn,
    /// How much of the log it has on disk.
    acked: usize,
    last_received: Uptime,
}

impl Leading {
    pub(super) fn close(self, env: &mut Env, host: Host) {
        for (id, learner) in self.learners {
            env.send(host, Host::Server(id), learner.conn, Body::Fin);
        }
    }
}

impl Server {
    /// Starts to lead in a new epoch. The whole log counts as committed once the quorum has it, which it already does.
    pub(super) fn lead(&mut self, env: &mut Env, epoch: i64) {
        self.epoch = epoch;
        self.on_disk = self.on_disk.map(|_| self.log.len());
        self.advance(env, self.log.len());
        // The tracker counts by the host's clock, the leader's pings from the start of its epoch.
        let origin = env.now() + env.timing.tick.mul_f64(env.rng.f64());
        let mut tracker = Tracker::new(env.timing.tick, env.timing.session_timeout, origin);
        for session in self.tree.sessions() {
            tracker.open(env.now(), session, None);
        }
        env.queue.at(origin, Event::Server(self.id, Input::Expiry(epoch)));
        self.role = Role::Leading(Leading { tracker, learners: BTreeMap::new(), proposed: 0, half_ticks: 0 });
    }

    /// A tick of the tracker has passed: closes the sessions that should have been active by then.
    pub(super) fn expire(&mut self, env: &mut Env, epoch: i64) {
        let host = self.host();
        let now = env.now();
        let Role::Leading(leading) = &mut self.role else { return };
        if self.epoch != epoch {
            return;
        }
        env.queue.at(leading.tracker.next_tick(now), Event::Server(self.id, Input::Expiry(epoch)));
        for session in leading.tracker.expire(now) {
            env.note(|| format!("{host} expires session {session:#x}"));
            self.append(env, Txn { zxid: 0, time_ms: 0, session, change: Change::CloseSession }, None);
        }
    }

    /// The time at which a session ends if nothing more arrives from it.
    pub fn session_end(&self, session: Session) -> Option<Uptime> {
        match &self.role {
            Role::Leading(leading) => leading.tracker.end(session),
            Role::Looking | Role::Following(_) => None,
        }
    }

    pub(super) fn adopt(&mut self, env: &Env, id: usize, conn: Conn) {
        if let Role::Leading(leading) = &mut self.role {
            leading.learners.insert(id, Learner { conn, acked: self.log.len(), last_received: env.now() });
        }
    }

    pub(super) fn lead_half_tick(&mut self, env: &mut Env) {
        let host = self.host();
        let now = env.now();
        let Role::Leading(leading) = &mut self.role else { return };
        leading.half_ticks += 1;
        for (id, learner) in &leading.learners {
            env.send(host, Host::Server(*id), learner.conn, Body::LeaderPing);
        }
        let silence = env.timing.tick * env.timing.sync_limit;
        let silent: Vec<usize> = leading
            .learners
            .iter()
            .filter(|(_, learner)| learner.last_received + silence < now)
            .map(|(id, _)| *id)
            .collect();
        for id in silent {
            if let Some(learner) = leading.learners.remove(&id) {
                env.send(host, Host::Server(id), learner.conn, Body::Fin);
            }
        }
        if leading.half_ticks.is_multiple_of(2) && leading.learners.len() + 1 < QUORUM {
            env.note(|| format!("{host} has lost its quorum"));
            return self.look(env);
        }
        // A server that has just joined has the whole log on disk, so writes that waited for a quorum are committed,
        // even if no other write follows.
        self.commit(env);
    }

    pub(super) fn propose(&mut self, env: &mut Env, proposal: Proposal, owner: Owner) {
        let Role::Leading(leading) = &mut self.role else { return };
        let Proposal { origin, session, mut change } = proposal;
        if matches!(change, Change::OpenSession) {
            leading.tracker.open(env.now(), session, Some(owner));
        } else if leading.tracker.check(session, owner).is_err() {
            change = Change::Refused;
        }
        self.append(env, Txn { zxid: 0, time_ms: 0, session, change }, Some(origin));
    }

    /// Accepts a write that comes from none of the simulated clients.
    pub fn write_for(&mut self, env: &mut Env, session: Session, ops: Vec<Op>) {
        self.append(env, Txn { zxid: 0, time_ms: 0, session, change: Change::Ops(ops) }, None);
    }

    fn append(&mut self, env: &mut Env, mut txn: Txn, origin: Option<Origin>) {
        let host = self.host();
        let Role::Leading(leading) = &mut self.role else { return };
        leading.proposed += 1;
        txn.zxid = (self.epoch << 32) | leading.proposed;
        txn.time_ms = env.wall_ms();
        let entry = Arc::new(Entry { txn: Arc::new(txn), origin });
        let index = self.log.len();
        self.log.push(entry.clone());
        for (id, learner) in &leading.learners {
            env.send(host, Host::Server(*id), learner.conn, Body::Propose { index, entry: entry.clone() });
        }
    }

    pub(super) fn receive_from_learner(&mut self, env: &mut Env, packet: Packet) {
        let host = self.host();
        let now = env.now();
        let (Role::Leading(leading), Host::Server(id)) = (&mut self.role, packet.from) else { return };
        let Some(learner) = leading.learners.get_mut(&id).filter(|learner| learner.conn == packet.conn) else { return };
        learner.last_received = now;
        match packet.body {
            Body::Fin => {
                leading.learners.remove(&id);
            }
            Body::Forward(proposal) => self.propose(env, proposal, (id, Some(packet.conn))),
            Body::LearnerPong(touched) => {
                for session in touched {
                    leading.tracker.touch(now, session);
                }
            }
            Body::Validate { client, session } => {
                let valid = leading.tracker.reopen(now, session, (id, Some(packet.conn)));
                env.send(host, packet.from, packet.conn, Body::Validated { client, session, valid });
            }
            Body::Ack { length } => {
                learner.acked = learner.acked.max(length);
                self.commit(env);
            }
            _ => unreachable!("no learner says this"),
        }
    }

    pub(super) fn commit(&mut self, env: &mut Env) {
        let host = self.host();
        let own = self.on_disk.unwrap_or(self.log.len());
        let Role::Leading(leading) = &mut self.role else { return };
        let mut acked: Vec<usize> = leading.learners.values().map(|learner| learner.acked).collect();
        acked.push(own);
        acked.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&length) = acked.get(QUORUM - 1).filter(|length| **length > self.committed) else { return };
        for (id, learner) in &leading.learners {
            env.send(host, Host::Server(*id), learner.conn, Body::Commit { length });
        }
        self.advance(env, length);
    }
}
