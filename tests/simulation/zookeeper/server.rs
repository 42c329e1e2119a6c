//! A server of the ensemble: serves its clients from its own, possibly old, state and forwards writes to the leader.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{Done, MultiError, Stat};
use cronkeeper_core::clock::Uptime;

use super::super::facts::Fact;
use super::super::network::{Conn, Host, Packet};
use super::super::world::{Env, Event};
use super::following::Following;
use super::leading::Leading;
use super::tree::Tree;
use super::txn::{Change, Session};
use super::wire::{Answer, Body, Entry, Origin, Proposal, Request, WatchKind, Watching};

pub struct Server {
    pub(super) id: usize,
    pub(super) health: Health,
    pub(super) role: Role,
    /// The log on its disk. The end of it may not be committed.
    pub(super) log: Vec<Arc<Entry>>,
    /// While its disk hangs: how much of the log is on the disk.
    pub(super) on_disk: Option<usize>,
    /// How much of the log is committed and applied to `tree`.
    pub(super) committed: usize,
    pub(super) tree: Tree,
    /// The newest epoch that it took part in.
    pub(super) epoch: i64,
    clients: BTreeMap<Conn, ClientConn>,
    watches: BTreeMap<String, BTreeSet<Conn>>,
    /// Messages that came while it was paused.
    inbox: Vec<Input>,
    /// The origin from which ticks are counted.
    pub(super) born: Uptime,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Running,
    /// Its process hangs; its kernel accepts connections and keeps the data.
    Paused,
    Down,
}

pub enum Role {
    Looking,
    Leading(Leading),
    Following(Following),
}

pub enum Input {
    Packet(Packet),
    /// Half a tick has passed. Ignored if the server has ended since: it is of another generation then.
    HalfTick(u32),
    /// A tick has passed in which sessions may end, under the leader of this epoch.
    Expiry(i64),
}

struct ClientConn {
    host: Host,
    session: Session,
    open: bool,
    /// Watches to set again once the session is open.
    watches: Vec<(String, WatchKind)>,
    /// The newest transaction that the client knew of when it connected.
    seen: i64,
    pending: VecDeque<Pending>,
}

/// A request that waits, because the requests of one connection are answered in order.
enum Pending {
    Write { xid: u64, answer: Option<(i64, Answer)> },
    Read { xid: u64, request: Request },
    Ping,
}

impl Server {
    pub fn new(id: usize, env: &mut Env) -> Self {
        let half_tick = env.timing.tick / 2;
        let born = env.now() + half_tick.mul_f64(env.rng.f64());
        let mut server = Self {
            id,
            health: Health::Down,
            role: Role::Looking,
            log: Vec::new(),
            on_disk: None,
            committed: 0,
            tree: Tree::new(),
            epoch: 0,
            clients: BTreeMap::new(),
            watches: BTreeMap::new(),
            inbox: Vec::new(),
            born,
            generation: 0,
        };
        server.start(env);
        server
    }

    pub fn id(&self) -> usize {
        self.id
    }

    pub fn host(&self) -> Host {
        Host::Server(self.id)
    }

    pub fn health(&self) -> Health {
        self.health
    }

    pub fn is_leading(&self) -> bool {
        matches!(self.role, Role::Leading(_))
    }

    /// True if it accepts writes.
    pub fn is_serving(&self) -> bool {
        self.health == Health::Running && self.is_leading()
    }

    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(super) fn is_electable(&self) -> bool {
        self.health == Health::Running && matches!(self.role, Role::Looking)
    }

    // Start and end.

    pub fn start(&mut self, env: &mut Env) {
        if self.health == Health::Down {
            self.health = Health::Running;
            self.generation += 1;
            self.schedule_tick(env);
            env.hold_election();
        }
    }

    /// The process dies. With its host it dies without notice to anybody; alone, its kernel closes its connections.
    pub fn crash(&mut self, env: &mut Env, with_host: bool) {
        if self.health == Health::Down {
            return;
        }
        if with_host {
            self.clients.clear();
            self.role = Role::Looking;
            env.network.lose(self.host());
        }
        self.look(env);
        self.health = Health::Down;
        self.inbox.clear();
        self.generation += 1;
    }

    pub fn pause(&mut self) {
        if self.health == Health::Running {
            self.health = Health::Paused;
        }
    }

    pub fn resume(&mut self, env: &mut Env) {
        if self.health != Health::Paused {
            return;
        }
        self.health = Health::Running;
        let mut inbox = std::mem::take(&mut self.inbox);
        // Chance decides whether the timers or the sockets are read first.
        if env.rng.bool() {
            inbox.sort_by_key(|input| matches!(input, Input::Packet(_)));
        }
        for input in inbox {
            self.take(env, input);
        }
        if matches!(self.role, Role::Looking) {
            env.hold_election();
        }
    }

    /// Leaves the ensemble, and closes all its connections.
    pub(super) fn look(&mut self, env: &mut Env) {
        let host = self.host();
        match std::mem::replace(&mut self.role, Role::Looking) {
            Role::Looking => {}
            Role::Leading(leading) => leading.close(env, host),
            Role::Following(following) => following.close(env, host),
        }
        for (conn, client) in std::mem::take(&mut self.clients) {
            env.send(host, client.host, conn, Body::Fin);
        }
        self.watches.clear();
        env.hold_election();
    }

    /// Its disk hangs: the server accepts writes and does not acknowledge them; everything else continues.
    pub fn stall_disk(&mut self) {
        self.on_disk.get_or_insert(self.log.len());
    }

    /// Everything that it accepted meanwhile is on its disk now.
    pub fn resume_disk(&mut self, env: &mut Env) {
        if self.on_disk.take().is_none() || self.health == Health::Down {
            return;
        }
        match &self.role {
            Role::Looking => {}
            Role::Leading(_) => self.commit(env),
            Role::Following(following) => following.send(env, self.host(), Body::Ack { length: self.log.len() }),
        }
    }

    pub(super) fn schedule_tick(&self, env: &mut Env) {
        let half = (env.timing.tick / 2).as_nanos() as u64;
        let passed = env.now().since(self.born).as_nanos() as u64 / half;
        let next = self.born + Duration::from_nanos((passed + 1) * half);
        env.queue.at(next, Event::Server(self.id, Input::HalfTick(self.generation)));
    }

    // Incoming messages.

    pub fn take(&mut self, env: &mut Env, input: Input) {
        match (self.health, input) {
            (Health::Down, Input::Packet(packet)) if !matches!(packet.body, Body::Fin) => {
                env.send(self.host(), packet.from, packet.conn, Body::Fin);
            }
            (Health::Down, _) => {}
            (_, Input::Packet(Packet { from, conn, body: Body::Syn, .. })) => {
                env.send(self.host(), from, conn, Body::SynAck);
            }
            (Health::Paused, input) => self.inbox.push(input),
            (Health::Running, Input::HalfTick(generation)) if generation == self.generation => self.half_tick(env),
            (Health::Running, Input::HalfTick(_)) => {}
            (Health::Running, Input::Expiry(epoch)) => self.expire(env, epoch),
            (Health::Running, Input::Packet(packet)) => match packet.from {
                Host::Node(_) => self.receive_from_client(env, packet),
                Host::Server(_) => self.receive_from_server(env, packet),
            },
        }
    }

    fn half_tick(&mut self, env: &mut Env) {
        match &self.role {
            Role::Looking => {}
            Role::Leading(_) => self.lead_half_tick(env),
            Role::Following(_) => self.follow_half_tick(env),
        }
        self.schedule_tick(env);
    }

    fn receive_from_server(&mut self, env: &mut Env, packet: Packet) {
        match &self.role {
            Role::Looking => {}
            Role::Leading(_) => self.receive_from_learner(env, packet),
            Role::Following(_) => self.receive_from_leader(env, packet),
        }
    }

    fn receive_from_client(&mut self, env: &mut Env, packet: Packet) {
        let Packet { from, conn, body, .. } = packet;
        if let Body::Open { session, last_zxid, watches } = body {
            return self.open(env, from, conn, session, last_zxid, watches);
        }
        let Some(client) = self.clients.get_mut(&conn) else {
            if !matches!(body, Body::Fin) {
                env.send(self.host(), from, conn, Body::Fin);
            }
            return;
        };
        let session = client.session;
        match body {
            Body::Fin => self.forget(conn),
            Body::Ping => client.pending.push_back(Pending::Ping),
            Body::Request { xid, request: Request::Write(ops) } => {
                client.pending.push_back(Pending::Write { xid, answer: None });
                let origin = Origin { server: self.id, conn, xid };
                self.submit(env, Proposal { origin, session, change: Change::Ops(ops) });
            }
            Body::Request { xid, request } => client.pending.push_back(Pending::Read { xid, request }),
            _ => unreachable!("no client says this"),
        }
        self.touch(env, session);
        self.drain(env, conn);
    }

    // Sessions.

    fn open(
        &mut self,
        env: &mut Env,
        host: Host,
        conn: Conn,
        session: Session,
        last_zxid: i64,
        watches: Vec<(String, WatchKind)>,
    ) {
        // A server counts from the begin of the epoch that it has joined.
        let newest = self.tree.zxid().max(self.epoch << 32);
        if matches!(self.role, Role::Looking) || last_zxid > newest {
            return env.send(self.host(), host, conn, Body::Fin);
        }
        let new = session == 0;
        let session = if new { env.new_session() } else { session };
        self.clients.insert(
            conn,
            ClientConn { host, session, open: false, watches, seen: last_zxid, pending: VecDeque::new() },
        );
        if new {
            let origin = Origin { server: self.id, conn, xid: 0 };
            return self.submit(env, Proposal { origin, session, change: Change::OpenSession });
        }
        match &mut self.role {
            Role::Looking => {}
            Role::Leading(leading) => {
                let valid = leading.tracker.reopen(env.now(), session, (self.id, None));
                self.opened(env, conn, session, valid);
            }
            Role::Following(following) => {
                following.send(env, Host::Server(self.id), Body::Validate { client: conn, session })
            }
        }
    }

    /// The leader has answered a request to open the session.
    pub(super) fn opened(&mut self, env: &mut Env, conn: Conn, session: Session, valid: bool) {
        let others: Vec<Conn> = self
            .clients
            .iter()
            .filter(|(at, client)| **at != conn && client.session == session)
            .map(|(at, _)| *at)
            .collect();
        let Some(client) = self.clients.get_mut(&conn) else { return };
        let host = client.host;
        if !valid {
            env.send(self.host(), host, conn, Body::Opened(None));
            return self.close_client(env, conn);
        }
        client.open = true;
        let seen = client.seen;
        let watches = std::mem::take(&mut client.watches);
        for other in others {
            self.close_client(env, other);
        }
        env.send(self.host(), host, conn, Body::Opened(Some(session)));
        self.touch(env, session);
        for (path, kind) in watches {
            let stat = self.tree.stat(&path);
            let fires = match kind {
                WatchKind::Exist => stat.is_some(),
                WatchKind::Data => stat.is_none_or(|stat| stat.mzxid > seen),
            };
            if fires {
                env.send(self.host(), host, conn, Body::Fired(path));
            } else {
                self.watches.entry(path).or_default().insert(conn);
            }
        }
    }

    fn touch(&mut self, env: &Env, session: Session) {
        match &mut self.role {
            Role::Looking => {}
            Role::Leading(leading) => {
                leading.tracker.touch(env.now(), session);
            }
            Role::Following(following) => {
                following.touched.insert(session);
            }
        }
    }

    fn close_client(&mut self, env: &mut Env, conn: Conn) {
        if let Some(client) = self.clients.get(&conn) {
            env.send(self.host(), client.host, conn, Body::Fin);
        }
        self.forget(conn);
    }

    fn forget(&mut self, conn: Conn) {
        self.clients.remove(&conn);
        for conns in self.watches.values_mut() {
            conns.remove(&conn);
        }
    }

    // Requests.

    fn submit(&mut self, env: &mut Env, proposal: Proposal) {
        match &mut self.role {
            Role::Looking => {}
            Role::Leading(_) => self.propose(env, proposal, (self.id, None)),
            Role::Following(following) => following.send(env, Host::Server(self.id), Body::Forward(proposal)),
        }
    }

    /// Applies the committed part of the log.
    pub(super) fn advance(&mut self, env: &mut Env, length: usize) {
        while self.committed < length.min(self.log.len()) {
            let entry = self.log[self.committed].clone();
            self.committed += 1;
            let applied = self.tree.apply(&entry.txn);
            if self.committed > env.committed {
                env.committed = self.committed;
                if applied.result.is_ok() {
                    env.facts.push(Fact::Committed { txn: entry.txn.clone(), touched: applied.touched.clone() });
                }
            }
            for path in applied.touched {
                self.fire(env, path);
            }
            self.answer(env, &entry, applied.result);
        }
    }

    /// Loses everything after the first `length` transactions, as if it had never been written.
    pub(super) fn rewind(&mut self, length: usize) {
        self.log.truncate(length);
        if self.committed > length {
            self.tree = Tree::new();
            self.log.iter().for_each(|entry| drop(self.tree.apply(&entry.txn)));
            self.committed = length;
        }
    }

    fn fire(&mut self, env: &mut Env, path: String) {
        for conn in self.watches.remove(&path).unwrap_or_default() {
            if let Some(client) = self.clients.get(&conn) {
                env.send(Host::Server(self.id), client.host, conn, Body::Fired(path.clone()));
            }
        }
    }

    fn answer(&mut self, env: &mut Env, entry: &Entry, result: Result<Vec<(Done, Stat)>, MultiError>) {
        let (session, zxid) = (entry.txn.session, entry.txn.zxid);
        if matches!(entry.txn.change, Change::CloseSession) {
            let gone: Vec<Conn> =
                self.clients.iter().filter(|(_, client)| client.session == session).map(|(conn, _)| *conn).collect();
            for conn in gone {
                self.close_client(env, conn);
            }
        }
        let Some(Origin { conn, xid, .. }) = entry.origin.filter(|origin| origin.server == self.id) else { return };
        let answer = match entry.txn.change {
            Change::OpenSession => return self.opened(env, conn, session, true),
            Change::CloseSession => return,
            Change::Refused => Answer::SessionOver,
            Change::Ops(_) => Answer::Written(result),
        };
        let Some(client) = self.clients.get_mut(&conn) else { return };
        let mut answer = Some((zxid, answer));
        for pending in &mut client.pending {
            if let Pending::Write { xid: of, answer: tree_id } = pending
                && *of == xid
            {
                *tree_id = answer.take();
            }
        }
        self.drain(env, conn);
    }

    /// Answers all requests that can be answered; a read waits for the writes before it.
    fn drain(&mut self, env: &mut Env, conn: Conn) {
        let host = self.host();
        let Some(client) = self.clients.get_mut(&conn) else { return };
        while client.open {
            match client.pending.pop_front() {
                None => break,
                Some(Pending::Write { xid, answer: None }) => {
                    client.pending.push_front(Pending::Write { xid, answer: None });
                    break;
                }
                Some(Pending::Write { xid, answer: Some((zxid, answer)) }) => {
                    env.send(host, client.host, conn, Body::Reply { xid, zxid, answer });
                }
                Some(Pending::Ping) => env.send(host, client.host, conn, Body::Pong),
                Some(Pending::Read { xid, request }) => {
                    let answer = read(&self.tree, env, &request);
                    if let (Request::Get { path, watch }, Answer::Node(node)) = (request, &answer)
                        && (watch == Watching::Always || watch == Watching::IfThere && node.is_some())
                    {
                        self.watches.entry(path).or_default().insert(conn);
                    }
                    env.send(host, client.host, conn, Body::Reply { xid, zxid: self.tree.zxid(), answer });
                }
            }
        }
    }
}

fn read(tree: &Tree, env: &mut Env, request: &Request) -> Answer {
    match request {
        Request::Write(_) => unreachable!("writes go to the leader"),
        Request::Get { path, .. } => Answer::Node(tree.get(path)),
        Request::GetMany(paths) => Answer::Nodes(paths.iter().map(|path| tree.get(path)).collect()),
        Request::Children(path) => Answer::Children(tree.children(path).map(|mut children| {
            env.rng.shuffle(&mut children);
            children
        })),
    }
}
