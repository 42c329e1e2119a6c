//! The weakest store that its port allows, as a service of the simulated world.
//!
//! It is where server 0 is, whose links, crashes and stalls are its own. What goes into a cut link is lost, or arrives
//! much later; any commit may arrive a second time; hints come late, for nothing, or not at all. It may lose its newest
//! commits, while a server that still has them goes on answering some of the nodes for a moment. What it commits is
//! reported in the words of ZooKeeper, so that the invariants judge it as they judge the ensemble.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::memory::Records;
use cronkeeper_cluster::paths;
use cronkeeper_cluster::store::{self, Done, Found, Head, If, NotDone, Op, Store, Then, Wanted};
use cronkeeper_cluster::tree::{Error, Limits, Revision};
use cronkeeper_cluster::zookeeper::client::{self, Mode};
use cronkeeper_cluster::zookeeper::session_id;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::term::SessionId;
use tokio::sync::oneshot;

use super::facts::Fact;
use super::network::Host;
use super::world::{Env, Event, Shared, World};
use super::zookeeper::{Change, ServerHealth, Tree};
use crate::ledger::txn::{Txn, in_znodes};

/// Where it is.
const SERVER: usize = 0;
const HOST: Host = Host::Server(SERVER);
/// How soon a request is tried again that waits for the server or its disk.
const AGAIN: Duration = Duration::from_millis(20);

/// What happens between the store and its clients.
pub enum StoreEvent {
    Arrives {
        node: usize,
        id: u64,
        request: Request,
    },
    Answers {
        node: usize,
        id: u64,
        answer: Answer,
        is_primary: bool,
    },
    /// The client has waited long enough.
    GivesUp {
        node: usize,
        id: u64,
    },
    Hints,
}

#[derive(Clone)]
pub enum Request {
    Commit(Vec<Op>),
    Read(Vec<Wanted>),
}

pub enum Answer {
    Committed(Result<Done, NotDone>),
    Found(Head, Vec<Found>),
}

impl Answer {
    /// The moment that it shows.
    fn revision(&self) -> Option<Revision> {
        match self {
            Self::Committed(Ok(done)) => Some(done.revision),
            Self::Committed(Err(_)) => None,
            Self::Found(head, _) => Some(head.revision),
        }
    }
}

/// A request that waits for its answer.
struct Pending {
    answer: oneshot::Sender<Answer>,
    /// The session that asked remembers what it was shown.
    remembers: bool,
}

/// A commit, and everything before it.
struct Logged {
    records: Records,
    tree: Tree,
    txn: Arc<Txn>,
}

/// The server that had the lost commits, and still answers these nodes.
struct Zombie {
    records: Records,
    nodes: BTreeSet<usize>,
    until: Uptime,
}

/// As little as a service may take.
const LIMITS: Limits = Limits {
    operations: store::LEAST_OPERATIONS,
    bytes: store::LEAST_BYTES,
    in_flight: 1,
    repeats: false,
    last_number: i64::MAX,
};

/// Most commits that are lost at once.
const MOST_LOST: usize = 12;
/// How long at most a server goes on that is not the primary one any more, in session timeouts: less than the rest of a
/// timeout after the lease. Nothing but the store itself can keep a longer one from having a leader of its own.
const ZOMBIE: f64 = 0.1;

/// A session as the invariants know it.
struct SessionNumber {
    number: i64,
    node: usize,
}

#[derive(Default)]
pub struct WeakStore {
    records: Records,
    /// The same records as znodes.
    tree: Option<Tree>,
    sessions: BTreeMap<String, SessionNumber>,
    requests: u64,
    pending: BTreeMap<u64, Pending>,
    hints: Vec<oneshot::Sender<()>>,
    pub is_stalled: bool,
    /// It loses commits.
    pub rewinds: bool,
    log: VecDeque<Logged>,
    zombie: Option<Zombie>,
}

impl WeakStore {
    /// The records as znodes, if anybody uses the store.
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// The node that a session is of.
    pub fn node_of(&self, number: i64) -> Option<usize> {
        self.sessions.values().find(|session| session.number == number).map(|session| session.node)
    }

    /// The id of a session; that of one with the ensemble if it is none of the store's.
    pub fn id_of(&self, number: i64) -> SessionId {
        let own = self.sessions.iter().find(|(_, session)| session.number == number);
        own.map_or_else(|| session_id(number), |(id, _)| SessionId(id.clone()))
    }

    fn commit(&mut self, env: &mut Env, node: usize, ops: &[Op]) -> Result<Done, NotDone> {
        store::check(ops, LIMITS)?;
        let at = env.wall();
        let before: Vec<bool> = ops.iter().map(|op| self.has(&op.path)).collect();
        let old = self.rewinds.then(|| (self.records.clone(), self.tree.clone().unwrap_or_else(Tree::new)));
        let done = self.records.commit(ops, env.rng.u64(..), at)?;
        let (session, change) = self.in_znodes(env, node, ops, &before);
        let txn = Txn { zxid: done.revision.0, time_ms: at.as_millisecond(), session, change };
        let tree = self.tree.get_or_insert_with(Tree::new);
        if matches!(txn.change, Change::CloseSession) {
            // A service would remove what the session leaves; a store removes what the commit names. Where commits are
            // lost, the list of that may be among them: what stays in the store stays in the tree.
            let is_removed = |path: &str| ops.iter().any(|op| op.path == path && op.then == Then::Delete);
            let left: Vec<String> = tree.owned(session).filter(|path| !is_removed(path)).cloned().collect();
            assert!(self.rewinds || left.is_empty(), "{left:?} stay, whose session is over");
            left.iter().for_each(|path| tree.hand_over(path, 0));
            // It may also name an entry of the node's next session, if that has the version which this one's had.
            ops.iter().filter(|op| op.then == Then::Delete).for_each(|op| tree.hand_over(&op.path, session));
        }
        let applied = tree.apply(&txn);
        if let Err(error) = applied.result {
            panic!("the store and the tree disagree about {:?}: {error:?}", txn.change);
        }
        let reported = Arc::new(Txn { change: appended(&txn.change), ..txn });
        env.note(|| format!("the store commits {}: {:?}", done.revision.0, reported.change));
        // Nodes that have joined a cluster do not join another, so the first moments of a cluster are not lost.
        match old {
            Some(_) if applied.touched.iter().any(|path| path == paths::CLUSTER) => self.log.clear(),
            Some((records, tree)) => self.log.push_back(Logged { records, tree, txn: Arc::clone(&reported) }),
            None => {}
        }
        if self.log.len() > MOST_LOST {
            self.log.pop_front();
        }
        env.facts.push(Fact::Committed { txn: reported, touched: applied.touched });
        self.hint(env);
        Ok(done)
    }

    /// Loses so many of its newest commits.
    fn rewind(&mut self, env: &mut Env, nodes: usize, lost: usize) {
        let lost = self.log.split_off(self.log.len().saturating_sub(lost));
        let Some(first) = lost.front() else { return };
        let records = std::mem::replace(&mut self.records, first.records.clone());
        self.tree = Some(first.tree.clone());
        if env.rng.u8(..3) == 0 {
            let lasts = env.timing.session_timeout.mul_f64(ZOMBIE * env.rng.f64());
            let nodes = (0..nodes).filter(|_| env.rng.bool()).collect();
            self.zombie = Some(Zombie { records, nodes, until: env.now() + lasts });
        }
        env.note(|| format!("the store loses {} commits", lost.len()));
        env.facts.push(Fact::Lost { txns: lost.into_iter().map(|logged| logged.txn).collect() });
    }

    /// The records of the server that lost nothing, if it still answers this node.
    fn zombie_of(&mut self, env: &Env, node: usize) -> Option<&mut Records> {
        let serves = |zombie: &&mut Zombie| zombie.nodes.contains(&node) && env.now() < zombie.until;
        self.zombie.as_mut().filter(serves).map(|zombie| &mut zombie.records)
    }

    /// Carries a request out. Returns true beside the answer if the primary server did.
    fn answer(&mut self, env: &mut Env, node: usize, request: Request) -> (Answer, bool) {
        let (at, nonce) = (env.wall(), env.rng.u64(..));
        let read = |records: &Records, wanted: &[Wanted]| {
            Answer::Found(records.head(), wanted.iter().map(|wanted| records.read(wanted)).collect())
        };
        let zombie = self.zombie_of(env, node);
        match (request, zombie) {
            (Request::Commit(ops), Some(records)) => (Answer::Committed(records.commit(&ops, nonce, at)), false),
            (Request::Read(wanted), Some(records)) => (read(records, &wanted), false),
            (Request::Commit(ops), None) => (Answer::Committed(self.commit(env, node, &ops)), true),
            (Request::Read(wanted), None) => (read(&self.records, &wanted), true),
        }
    }

    fn has(&self, path: &str) -> bool {
        matches!(self.records.read(&Wanted::Meta(path.to_owned())), Found::Meta(Some(_)))
    }

    /// The session that commits, and what it does, in ZooKeeper's words.
    fn in_znodes(&mut self, env: &mut Env, node: usize, ops: &[Op], before: &[bool]) -> (i64, Change) {
        let of_session = ops.iter().find_map(|op| Some((op.path.strip_prefix("/cronkeeper/sessions/")?, op)));
        let Some((id, op)) = of_session else { return (0, Change::Refused) };
        let session = match self.sessions.get(id) {
            Some(session) => session.number,
            None => {
                let number = env.new_session();
                self.sessions.insert(id.to_owned(), SessionNumber { number, node });
                env.facts.push(Fact::Connected { node, session: number, id: SessionId(id.to_owned()) });
                number
            }
        };
        match (&op.then, op.when) {
            (Then::Delete, _) => return (session, Change::CloseSession),
            (_, If::Absent) => return (session, Change::OpenSession),
            _ => {}
        }
        let is_internal =
            |path: &str| path.starts_with("/cronkeeper/sessions/") || path.starts_with("/cronkeeper/numbers/");
        let ops = ops.iter().zip(before).filter(|(op, _)| !is_internal(&op.path));
        let mut ops: Vec<client::Op> = ops.filter_map(|(op, is_there)| in_znodes(op, *is_there)).collect();
        // To a store it is all the same in which order a commit makes a folder and what is in it.
        let makes_folder = |op: &client::Op, all: &[client::Op]| match op {
            client::Op::Create { path, .. } => {
                let below = format!("{path}/");
                all.iter().any(|op| matches!(op, client::Op::Create { path, .. } if path.starts_with(&below)))
            }
            _ => false,
        };
        let all = ops.clone();
        ops.sort_by_key(|op| !makes_folder(op, &all));
        (session, Change::Ops(ops))
    }

    /// Wakes those who wait for a hint: some soon, some late, some never.
    fn hint(&mut self, env: &mut Env) {
        match env.rng.u8(..4) {
            0 => self.hints.clear(),
            1 => env.queue.after(Duration::from_millis(env.rng.u64(50..2_000)), Event::Store(StoreEvent::Hints)),
            _ => env.queue.after(Duration::from_micros(env.rng.u64(100..2_000)), Event::Store(StoreEvent::Hints)),
        }
    }
}

/// The same with the paths under which a client of ZooKeeper would have asked for appended records.
fn appended(change: &Change) -> Change {
    let Change::Ops(ops) = change else { return change.clone() };
    let ops = ops.iter().map(|op| match op {
        client::Op::Create { path, data, mode } if is_appended(path) => {
            let path = path.trim_end_matches(|digit: char| digit.is_ascii_digit()).to_owned();
            let mode = if *mode == Mode::Ephemeral { Mode::EphemeralSequential } else { Mode::PersistentSequential };
            client::Op::Create { path, data: data.clone(), mode }
        }
        other => other.clone(),
    });
    Change::Ops(ops.collect())
}

fn is_appended(path: &str) -> bool {
    let digits = path.bytes().rev().take_while(u8::is_ascii_digit).count();
    digits >= 10 && (paths::parent(path) == "/cronkeeper/triggers" || !path.starts_with("/cronkeeper/"))
}

impl World {
    /// The store loses so many of its newest commits.
    pub fn rewind_store(&mut self, lost: usize) {
        self.store.rewind(&mut self.env, self.nodes.len(), lost);
    }

    /// Hands a request of a node's process over to the store.
    pub fn ask_store(&mut self, node: usize, request: Request) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        self.store.requests += 1;
        let id = self.store.requests;
        let remembers = match &request {
            Request::Commit(ops) => ops.first().is_some_and(|op| op.path.starts_with("/cronkeeper/sessions/")),
            Request::Read(wanted) => wanted.iter().any(|wanted| matches!(wanted, Wanted::Nonce(_))),
        };
        self.store.pending.insert(id, Pending { answer, remembers });
        let timeout = self.env.timing.session_timeout;
        self.env.queue.after(timeout / 4, Event::Store(StoreEvent::GivesUp { node, id }));
        let from = Host::Node(node);
        let is_commit = matches!(request, Request::Commit(_));
        let late = timeout.mul_f64(2.0 * self.env.rng.f64());
        let arrives = |request: Request| Event::Store(StoreEvent::Arrives { node, id, request });
        if is_commit && self.env.rng.u8(..8) == 0 {
            self.env.queue.after(late, arrives(request.clone()));
        }
        if !self.env.network.is_cut(from, HOST) {
            let at = self.env.network.delay(&mut self.env.rng, from, HOST);
            self.env.queue.after(at, arrives(request));
        } else if is_commit && self.env.rng.bool() {
            self.env.queue.after(late, arrives(request));
        }
        answered
    }

    /// A hint, which may be for nothing.
    pub fn hint_of_store(&mut self) -> oneshot::Receiver<()> {
        let (hint, hinted) = oneshot::channel();
        self.store.hints.push(hint);
        if self.env.rng.u8(..16) == 0 {
            self.env.queue.after(Duration::from_millis(self.env.rng.u64(1..100)), Event::Store(StoreEvent::Hints));
        }
        hinted
    }

    pub fn take_store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Hints => self.store.hints.drain(..).for_each(|hint| _ = hint.send(())),
            StoreEvent::GivesUp { id, .. } => drop(self.store.pending.remove(&id)),
            StoreEvent::Answers { node, id, answer, is_primary } => {
                if let Some(pending) = self.store.pending.remove(&id) {
                    let shown = answer.revision().filter(|_| pending.remembers && is_primary && self.store.rewinds);
                    self.env.facts.extend(shown.map(|revision| Fact::Shown { node, revision }));
                    drop(pending.answer.send(answer));
                }
            }
            StoreEvent::Arrives { node, id, request } => self.arrives(node, id, request),
        }
    }

    fn arrives(&mut self, node: usize, id: u64, request: Request) {
        let is_commit = matches!(request, Request::Commit(_));
        match self.ensemble.servers[SERVER].health() {
            ServerHealth::Down => return,
            ServerHealth::Running if !(is_commit && self.store.is_stalled) => {}
            ServerHealth::Running | ServerHealth::Paused => {
                return self.env.queue.after(AGAIN, Event::Store(StoreEvent::Arrives { node, id, request }));
            }
        }
        let (answer, is_primary) = self.store.answer(&mut self.env, node, request);
        let to = Host::Node(node);
        if !self.env.network.is_cut(HOST, to) {
            let at = self.env.network.delay(&mut self.env.rng, HOST, to);
            self.env.queue.after(at, Event::Store(StoreEvent::Answers { node, id, answer, is_primary }));
        }
    }
}

/// A client of the store on a node.
#[derive(Clone)]
pub struct SimStore {
    pub world: Shared,
    pub node: usize,
}

impl Store for SimStore {
    const SERVICE: &'static str = "the weakest store";

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let answered = self.world.lock().ask_store(self.node, Request::Commit(ops));
        async move {
            match answered.await {
                Ok(Answer::Committed(answer)) => answer,
                Ok(Answer::Found(..)) | Err(_) => Err(NotDone::Failed(unanswered())),
            }
        }
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let answered = self.world.lock().ask_store(self.node, Request::Read(wanted));
        async move {
            match answered.await {
                Ok(Answer::Found(head, found)) => Ok((head, found)),
                Ok(Answer::Committed(_)) | Err(_) => Err(unanswered()),
            }
        }
    }

    fn changed(&self, _since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let hinted = self.world.lock().hint_of_store();
        async move {
            if hinted.await.is_err() {
                std::future::pending().await
            }
        }
    }
}

fn unanswered() -> Error {
    Error::Unanswered("the store does not answer".into())
}
