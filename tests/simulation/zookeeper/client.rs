//! Model of a `zookeeper-client` 0.11.2 session as a state machine, with the crate's timers and quirks.
//!
//! A session pings after 3/20 T without sending. It gives up a connection after 8/20 T without receiving, and itself
//! after 7/5 T. Requests made while disconnected wait and are sent after the reconnect; requests that were sent and not
//! answered fail. Watches are set again at every reconnect. The client runs in the node's process, and is paused or
//! dies with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{ConnectError, Error, State};
use cronkeeper_cluster::zookeeper::session_id;
use cronkeeper_core::clock::Uptime;
use tokio::sync::oneshot;

use super::super::facts::Fact;
use super::super::network::{Conn, Host, Packet};
use super::super::world::{Env, Event};
use super::ensemble::SERVERS;
use super::states::{StateSetter, States, states};
use super::txn::Session;
use super::wire::{Answer, Body, Request, WatchKind, Watching};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(pub u64);

/// The answer to a request, and the watch that came with it.
pub type Answered = Result<(Answer, Option<(WatchId, oneshot::Receiver<()>)>), Error>;

/// The clients of all sessions of all nodes.
#[derive(Default)]
pub struct Clients {
    made: u64,
    clients: BTreeMap<ClientId, Client>,
    by_conn: BTreeMap<Conn, ClientId>,
    /// How often a watch on a candidate has fired.
    pub woken: u64,
    /// How many candidates were read, and how often they were listed.
    pub reads_of_queue: usize,
}

struct Client {
    id: ClientId,
    node: usize,
    /// In the order in which they are tried.
    endpoints: Vec<usize>,
    /// The server tried last.
    server: usize,
    /// Attempts since the last success.
    tries: usize,
    /// Attempts before this search began. After the first round, the attempts of a search wait between them.
    searched_from: usize,
    phase: Phase,
    /// The time at which the search for a server gives the session up.
    deadline: Uptime,
    since: Uptime,
    received: Uptime,
    sent: Uptime,
    pinging: bool,
    last_zxid: i64,
    session: Session,
    state: StateSetter,
    /// Waits for the first connection.
    first: Option<oneshot::Sender<Result<(), ConnectError>>>,
    waiting: VecDeque<Sent>,
    unanswered: VecDeque<Sent>,
    xid: u64,
    watches: BTreeMap<WatchId, Watched>,
    /// No handle is left: the client closes once everything is answered.
    released: bool,
    /// The time at which it wants to be woken; `alarms` identifies the newest request to be woken.
    alarm: Option<Uptime>,
    alarms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits until the next attempt.
    Resting(Uptime),
    /// The TCP connection is being made.
    Dialing(Conn),
    /// The request for the session is under way.
    Opening(Conn),
    /// The session is open, but the first ping is not answered.
    Settling(Conn),
    Serving(Conn),
    Over,
}

struct Sent {
    xid: u64,
    request: Request,
    answer: oneshot::Sender<Answered>,
}

struct Watched {
    path: String,
    kind: WatchKind,
    fire: oneshot::Sender<()>,
}

impl Clients {
    /// Creates a client of `node`, which starts to look for a server.
    pub fn connect(
        &mut self,
        env: &mut Env,
        node: usize,
    ) -> (ClientId, oneshot::Receiver<Result<(), ConnectError>>, States) {
        self.made += 1;
        let id = ClientId(self.made);
        let mut endpoints: Vec<usize> = (0..SERVERS).collect();
        env.rng.shuffle(&mut endpoints);
        let (first, connected) = oneshot::channel();
        let (state, states) = states(State::Disconnected);
        let now = env.now();
        let mut client = Client {
            id,
            node,
            endpoints,
            server: 0,
            tries: 0,
            searched_from: 0,
            phase: Phase::Resting(now),
            deadline: now + env.timing.session_timeout,
            since: now,
            received: now,
            sent: now,
            pinging: false,
            last_zxid: 0,
            session: 0,
            state,
            first: Some(first),
            waiting: VecDeque::new(),
            unanswered: VecDeque::new(),
            xid: 0,
            watches: BTreeMap::new(),
            released: false,
            alarm: None,
            alarms: 0,
        };
        client.dial(env, &mut self.by_conn);
        self.clients.insert(id, client);
        (id, connected, states)
    }

    /// The server that the newest client of `node` is connected to.
    pub fn server_of(&self, node: usize) -> Option<usize> {
        let client = self.clients.values().rev().find(|client| client.node == node)?;
        matches!(client.phase, Phase::Serving(_)).then_some(client.server)
    }

    /// The number of sessions that watch each znode below `folder`.
    pub fn watched(&self, folder: &str) -> BTreeMap<String, usize> {
        let mut watched = BTreeMap::new();
        for client in self.clients.values() {
            let paths: BTreeSet<&String> = client.watches.values().map(|watched| &watched.path).collect();
            for path in paths.into_iter().filter(|path| path.starts_with(folder)) {
                *watched.entry(path.clone()).or_default() += 1;
            }
        }
        watched
    }

    /// The node whose session this is.
    pub fn node_of(&self, session: Session) -> Option<usize> {
        self.clients.values().find(|client| client.session == session).map(|client| client.node)
    }

    /// The session of the newest client of `node`.
    pub fn newest_session(&self, node: usize) -> Option<Session> {
        self.clients.values().rev().find(|client| client.node == node).map(|client| client.session)
    }

    /// True while a write of `node`, or the answer to it, is under way.
    pub fn awaits_write(&self, node: usize) -> bool {
        let is_write = |sent: &Sent| matches!(sent.request, Request::Write(_));
        self.clients.values().any(|client| client.node == node && client.unanswered.iter().any(is_write))
    }

    /// The server that a client is connected to.
    pub fn server(&self, id: ClientId) -> Option<usize> {
        self.clients.get(&id).filter(|client| matches!(client.phase, Phase::Serving(_))).map(|client| client.server)
    }

    pub fn session(&self, id: ClientId) -> Session {
        self.clients.get(&id).map_or(0, |client| client.session)
    }

    /// Takes a request from the program.
    pub fn request(&mut self, env: &mut Env, id: ClientId, request: Request) -> oneshot::Receiver<Answered> {
        let (answer, answered) = oneshot::channel();
        if !matches!(request, Request::Write(_)) {
            self.reads_of_queue += request.paths().into_iter().filter(|path| path.starts_with("/leader")).count();
        }
        match self.clients.get_mut(&id) {
            Some(client) if client.phase != Phase::Over => {
                client.xid += 1;
                client.waiting.push_back(Sent { xid: client.xid, request, answer });
                client.flush(env);
                client.set_alarm(env);
            }
            _ => drop(answer.send(Err(Error::SessionOver))),
        }
        answered
    }

    /// Called when the last handle of the client is dropped.
    pub fn release(&mut self, env: &mut Env, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.released = true;
            client.close_if_done(env);
        }
    }

    /// Called when nobody waits for the first connection any more.
    pub fn abandon(&mut self, env: &mut Env, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id).filter(|client| client.first.is_some()) {
            client.released = true;
            client.over(env, false);
        }
        self.sweep();
    }

    pub fn unwatch(&mut self, id: ClientId, watch: WatchId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.watches.remove(&watch);
        }
    }

    /// The process is gone. Its kernel closes the connections, unless the host is gone too.
    pub fn kill(&mut self, env: &mut Env, node: usize, with_host: bool) {
        if with_host {
            env.network.lose(Host::Node(node));
        }
        for client in self.clients.values().filter(|client| client.node == node) {
            if let (false, Some(conn)) = (with_host, client.conn()) {
                let server = client.server();
                env.send(Host::Node(node), server, conn, Body::Fin);
            }
        }
        self.clients.retain(|_, client| client.node != node);
        let clients = &self.clients;
        self.by_conn.retain(|_, id| clients.contains_key(id));
    }

    pub fn node(&self, id: ClientId) -> Option<usize> {
        self.clients.get(&id).map(|client| client.node)
    }

    pub fn take(&mut self, env: &mut Env, packet: Packet) {
        let client = self.by_conn.get(&packet.conn).and_then(|id| self.clients.get_mut(id));
        let Some(client) = client.filter(|client| client.conn() == Some(packet.conn)) else {
            if !matches!(packet.body, Body::Fin) {
                env.send(packet.to, packet.from, packet.conn, Body::Fin);
            }
            return;
        };
        self.woken += u64::from(matches!(&packet.body, Body::Fired(path) if path.starts_with("/leader/")));
        client.take(env, packet, &mut self.by_conn);
        client.set_alarm(env);
        self.sweep();
    }

    pub fn alarm(&mut self, env: &mut Env, id: ClientId, count: u64) {
        if let Some(client) = self.clients.get_mut(&id).filter(|client| client.alarms == count) {
            client.alarm = None;
            client.look_at_clock(env, &mut self.by_conn);
            client.set_alarm(env);
        }
        self.sweep();
    }

    fn sweep(&mut self) {
        self.clients.retain(|_, client| client.phase != Phase::Over || !client.released);
    }
}

impl Client {
    fn conn(&self) -> Option<Conn> {
        match self.phase {
            Phase::Resting(_) | Phase::Over => None,
            Phase::Dialing(conn) | Phase::Opening(conn) | Phase::Settling(conn) | Phase::Serving(conn) => Some(conn),
        }
    }

    fn server(&self) -> Host {
        Host::Server(self.server)
    }

    fn send(&mut self, env: &mut Env, conn: Conn, body: Body) {
        self.sent = env.now();
        env.send(Host::Node(self.node), self.server(), conn, body);
    }

    fn set_state(&mut self, env: &mut Env, state: State) {
        if self.state.set(state) {
            env.note(|| format!("node-{} session {:#x} is {state:?}", self.node, self.session));
        }
    }

    // Finding a server.

    fn dial(&mut self, env: &mut Env, by_conn: &mut BTreeMap<Conn, ClientId>) {
        let conn = env.network.open();
        by_conn.insert(conn, self.id);
        self.server = self.endpoints[self.tries % SERVERS];
        self.tries += 1;
        self.phase = Phase::Dialing(conn);
        self.since = env.now();
        let sent = self.sent;
        self.send(env, conn, Body::Syn);
        self.sent = sent;
        self.set_alarm(env);
    }

    /// Starts to look for a server after a loss.
    fn search(&mut self, env: &mut Env, by_conn: &mut BTreeMap<Conn, ClientId>) {
        self.deadline = self.received + env.timing.session_timeout * 7 / 5;
        self.searched_from = self.tries;
        self.dial(env, by_conn);
    }

    /// Handles a failed attempt.
    fn try_next(&mut self, env: &mut Env, by_conn: &mut BTreeMap<Conn, ClientId>) {
        let tried = self.tries - self.searched_from;
        if env.now() >= self.deadline {
            return self.over(env, true);
        }
        if self.first.is_some() && tried >= SERVERS {
            return self.over(env, true);
        }
        let pause = match (tried / SERVERS, tried % SERVERS) {
            (0, _) => Duration::ZERO,
            (round, 0) => Duration::from_millis((300 << (round - 1).min(10)) + env.rng.u64(..100)),
            (_, place) => Duration::from_millis(50 * place as u64 + env.rng.u64(..50)),
        };
        if pause.is_zero() {
            return self.dial(env, by_conn);
        }
        self.phase = Phase::Resting((env.now() + pause).min(self.deadline));
        self.set_alarm(env);
    }

    fn lost(&mut self, env: &mut Env, by_conn: &mut BTreeMap<Conn, ClientId>) {
        if let Some(conn) = self.conn() {
            by_conn.remove(&conn);
        }
        if !matches!(self.phase, Phase::Serving(_)) {
            return self.try_next(env, by_conn);
        }
        self.set_state(env, State::Disconnected);
        for sent in self.unanswered.drain(..) {
            let _ = sent.answer.send(Err(Error::Unanswered("connection loss".into())));
        }
        self.search(env, by_conn);
    }

    /// Closes the connection from this end.
    fn hang_up(&mut self, env: &mut Env, by_conn: &mut BTreeMap<Conn, ClientId>) {
        if let Some(conn) = self.conn() {
            self.send(env, conn, Body::Fin);
        }
        self.lost(env, by_conn);
    }

    /// The session is over, or never existed.
    fn over(&mut self, env: &mut Env, expired: bool) {
        if let Some(conn) = self.conn() {
            self.send(env, conn, Body::Fin);
        }
        self.phase = Phase::Over;
        if let Some(first) = self.first.take() {
            let _ = first.send(Err(ConnectError::Unreachable("no server answered".into())));
        }
        if expired {
            self.set_state(env, State::Expired);
        }
        for sent in self.unanswered.drain(..).chain(self.waiting.drain(..)) {
            let _ = sent.answer.send(Err(Error::SessionOver));
        }
        for watched in std::mem::take(&mut self.watches).into_values() {
            let _ = watched.fire.send(());
        }
    }

    // Serving.

    fn take(&mut self, env: &mut Env, packet: Packet, by_conn: &mut BTreeMap<Conn, ClientId>) {
        let conn = packet.conn;
        self.received = env.now();
        match (packet.body, self.phase) {
            (Body::Fin, _) => self.lost(env, by_conn),
            (Body::SynAck, Phase::Dialing(_)) => {
                self.set_state(env, State::Disconnected);
                self.phase = Phase::Opening(conn);
                self.since = env.now();
                self.pinging = false;
                self.watches.retain(|_, watched| !watched.fire.is_closed());
                let watches = self.watches.values().map(|watched| (watched.path.clone(), watched.kind)).collect();
                self.send(env, conn, Body::Open { session: self.session, last_zxid: self.last_zxid, watches });
            }
            (Body::Opened(None), _) => self.over(env, true),
            (Body::Opened(Some(session)), _) => {
                self.session = session;
                env.facts.push(Fact::Connected { node: self.node, session, id: session_id(session) });
                self.phase = Phase::Settling(conn);
                self.set_state(env, State::Connected);
                self.ping(env, conn);
            }
            (Body::Pong, Phase::Settling(_)) => {
                self.pinging = false;
                self.phase = Phase::Serving(conn);
                let server = self.server();
                env.note(|| format!("node-{} is connected to {server} in session {:#x}", self.node, self.session));
                self.tries = 0;
                self.searched_from = 0;
                env.rng.shuffle(&mut self.endpoints);
                if let Some(first) = self.first.take() {
                    let _ = first.send(Ok(()));
                }
                self.flush(env);
            }
            (Body::Pong, _) => self.pinging = false,
            (Body::Fired(path), _) => self.fire(&path),
            (Body::Reply { answer: Answer::SessionOver, .. }, _) => self.over(env, true),
            (Body::Reply { xid, zxid, answer }, _) => self.answered(xid, zxid, answer),
            _ => unreachable!("no server says this"),
        }
        self.close_if_done(env);
    }

    fn answered(&mut self, xid: u64, zxid: i64, answer: Answer) {
        self.last_zxid = self.last_zxid.max(zxid);
        let Some(sent) = self.unanswered.pop_front() else { return };
        debug_assert_eq!(sent.xid, xid);
        let there = matches!(&answer, Answer::Node(Some(_)));
        let watch = match sent.request {
            Request::Get { path, watch } if watch == Watching::Always || watch == Watching::IfThere && there => {
                let (fire, fired) = oneshot::channel();
                let kind = if there { WatchKind::Data } else { WatchKind::Exist };
                let id = WatchId(xid);
                self.watches.insert(id, Watched { path, kind, fire });
                Some((id, fired))
            }
            _ => None,
        };
        if let Err(Ok((_, Some((id, _))))) = sent.answer.send(Ok((answer, watch))) {
            self.watches.remove(&id);
        }
    }

    fn fire(&mut self, path: &str) {
        let due: Vec<WatchId> =
            self.watches.iter().filter(|(_, watched)| watched.path == path).map(|(id, _)| *id).collect();
        for id in due {
            if let Some(watched) = self.watches.remove(&id) {
                let _ = watched.fire.send(());
            }
        }
    }

    fn flush(&mut self, env: &mut Env) {
        let Phase::Serving(conn) = self.phase else { return };
        while let Some(sent) = self.waiting.pop_front() {
            self.send(env, conn, Body::Request { xid: sent.xid, request: sent.request.clone() });
            self.unanswered.push_back(sent);
        }
    }

    fn ping(&mut self, env: &mut Env, conn: Conn) {
        self.pinging = true;
        self.send(env, conn, Body::Ping);
    }

    fn close_if_done(&mut self, env: &mut Env) {
        let idle = self.waiting.is_empty() && self.unanswered.is_empty();
        if self.released && idle && matches!(self.phase, Phase::Serving(_)) {
            self.over(env, false);
        }
    }

    // The timers.

    fn look_at_clock(&mut self, env: &mut Env, by_conn: &mut BTreeMap<Conn, ClientId>) {
        let now = env.now();
        let silence = env.timing.session_timeout * 2 / 5;
        match self.phase {
            Phase::Over => {}
            Phase::Resting(until) if until <= now => {
                if now >= self.deadline {
                    self.over(env, true);
                } else {
                    self.dial(env, by_conn);
                }
            }
            Phase::Resting(_) => {}
            Phase::Dialing(_) if self.deadline <= now || self.since + silence <= now => self.hang_up(env, by_conn),
            Phase::Dialing(_) => {}
            Phase::Opening(_) | Phase::Settling(_) => {
                if self.received + silence <= now {
                    self.hang_up(env, by_conn);
                }
            }
            Phase::Serving(conn) => {
                if self.received + silence <= now {
                    self.hang_up(env, by_conn);
                } else if !self.pinging && self.sent + env.timing.session_timeout * 3 / 20 <= now {
                    self.ping(env, conn);
                }
            }
        }
    }

    /// Schedules the next check of the timers, in steps of T/20 like the crate's interval.
    fn set_alarm(&mut self, env: &mut Env) {
        let timeout = env.timing.session_timeout;
        let silence = timeout * 2 / 5;
        let at = match self.phase {
            Phase::Over => return,
            Phase::Resting(until) => until,
            Phase::Dialing(_) => self.deadline.min(self.since + silence),
            Phase::Opening(_) | Phase::Settling(_) => self.on_tick(timeout, self.received + silence),
            Phase::Serving(_) if self.pinging => self.on_tick(timeout, self.received + silence),
            Phase::Serving(_) => self.on_tick(timeout, (self.received + silence).min(self.sent + timeout * 3 / 20)),
        };
        if self.alarm.is_none_or(|set| at < set) {
            self.alarm = Some(at);
            self.alarms += 1;
            env.queue.at(at, Event::Client(self.id, self.alarms));
        }
    }

    fn on_tick(&self, timeout: Duration, at: Uptime) -> Uptime {
        let tick = (timeout / 20).as_nanos() as u64;
        let since = at.since(self.since).as_nanos() as u64;
        self.since + Duration::from_nanos(since.div_ceil(tick) * tick)
    }
}
