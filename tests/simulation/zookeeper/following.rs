//! The follower's part of a server: stores proposals, applies commits, and reports which sessions are alive.

use std::collections::BTreeSet;

use cronkeeper_core::clock::Uptime;

use super::super::network::{Conn, Host, Packet};
use super::super::world::Env;
use super::server::{Role, Server};
use super::txn::Session;
use super::wire::Body;

pub struct Following {
    leader: usize,
    conn: Conn,
    last_received: Uptime,
    /// Sessions that were active since the leader last asked.
    pub(super) touched: BTreeSet<Session>,
}

impl Following {
    pub(super) fn send(&self, env: &mut Env, from: Host, body: Body) {
        env.send(from, Host::Server(self.leader), self.conn, body);
    }

    pub(super) fn close(self, env: &mut Env, host: Host) {
        self.send(env, host, Body::Fin);
    }
}

impl Server {
    /// Joins `leader`, and takes over its log.
    pub(super) fn follow(&mut self, env: &mut Env, leader: &mut Server) {
        let is_same =
            |index: usize| leader.log.get(index).is_some_and(|entry| entry.txn.zxid == self.log[index].txn.zxid);
        // The ensemble has lost what this server has committed.
        if !self.committed.checked_sub(1).is_none_or(is_same) {
            let same = (0..self.committed).take_while(|&index| is_same(index)).count();
            self.rewind(same);
        }
        let same = (self.committed..self.log.len().min(leader.log.len()))
            .take_while(|index| self.log[*index].txn.zxid == leader.log[*index].txn.zxid)
            .count();
        self.log.truncate(self.committed + same);
        self.log.extend_from_slice(&leader.log[self.committed + same..]);
        self.on_disk = self.on_disk.map(|_| self.log.len());
        self.epoch = leader.epoch;
        self.advance(env, leader.committed);
        let conn = env.network.open();
        leader.adopt(env, self.id, conn);
        let touched = BTreeSet::new();
        self.role = Role::Following(Following { leader: leader.id, conn, last_received: env.now(), touched });
    }

    pub(super) fn follow_half_tick(&mut self, env: &mut Env) {
        let Role::Following(following) = &self.role else { return };
        if following.last_received + env.timing.tick * env.timing.sync_limit < env.now() {
            let host = self.host();
            env.note(|| format!("{host} has received nothing from the ensemble's leader"));
            self.look(env);
        }
    }

    pub(super) fn receive_from_leader(&mut self, env: &mut Env, packet: Packet) {
        let host = self.host();
        let Role::Following(following) = &mut self.role else { return };
        if following.conn != packet.conn {
            return;
        }
        following.last_received = env.now();
        match packet.body {
            Body::Fin => self.look(env),
            Body::Propose { index, entry } => {
                debug_assert_eq!(index, self.log.len());
                self.log.push(entry);
                if self.on_disk.is_none() {
                    following.send(env, host, Body::Ack { length: self.log.len() });
                }
            }
            Body::Commit { length } => self.advance(env, length),
            Body::LeaderPing => {
                let touched = std::mem::take(&mut following.touched).into_iter().collect();
                following.send(env, host, Body::LearnerPong(touched));
            }
            Body::Validated { client, session, valid } => self.opened(env, client, session, valid),
            _ => unreachable!("no leader says this"),
        }
    }
}
