//! In-memory server for tests of single operations: znodes with stats, watches, and counted requests.
//!
//! It carries out each request when it is handed over and answers at once, or never while it is silent. It has one
//! session.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::client::{Client, Data, Done, Error, Mode, MultiError, Op, Read, Stat, State, Watch};
use super::context::{LocalNode, SessionContext};
use super::{paths, session_id};
use crate::clock::{Clock, Now, Uptime, Wake};
use crate::term::{NodeName, SessionId};

pub const OWNER: i64 = 1;

/// The server's content and request counters.
#[derive(Default)]
pub struct Tree {
    pub nodes: BTreeMap<String, (Vec<u8>, Stat)>,
    /// Time stamped on every write, in milliseconds.
    pub time_ms: i64,
    /// While true, requests are neither carried out nor answered.
    pub is_silent: bool,
    /// Znodes at or under this path must not be deleted or read.
    pub forbidden: Option<String>,
    /// Number of reads so far: of names, and of data.
    pub listings: usize,
    pub reads: usize,
    /// Most znodes read in one request.
    pub most_read: usize,
    /// Number of operations of each multi so far, carried out or not.
    pub multis: Vec<usize>,
    zxid: i64,
    watches: BTreeMap<String, Vec<oneshot::Sender<()>>>,
}

impl Tree {
    /// Creates a znode, or sets its data.
    pub fn put(&mut self, path: &str, data: impl Into<Vec<u8>>) {
        self.zxid += 1;
        let (zxid, time) = (self.zxid, self.time_ms);
        let new = Stat { czxid: zxid, version: -1, ..Stat::default() };
        let (held, stat) = self.nodes.entry(path.to_owned()).or_insert((Vec::new(), new));
        *held = data.into();
        *stat = Stat { mzxid: zxid, mtime_ms: time, version: stat.version + 1, ..*stat };
        self.fire(path);
    }

    /// Creates an ephemeral znode.
    pub fn put_ephemeral(&mut self, path: &str, owner: i64) {
        self.put(path, "");
        if let Some((_, stat)) = self.nodes.get_mut(path) {
            stat.ephemeral_owner = owner;
        }
    }

    /// Number of watches that have not fired.
    pub fn watches(&self) -> usize {
        self.watches.values().flatten().filter(|watch| !watch.is_closed()).count()
    }

    pub fn remove(&mut self, path: &str) {
        self.nodes.remove(path);
        self.fire(path);
    }

    pub fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// The names of a znode's children.
    pub fn names(&self, parent: &str) -> Vec<String> {
        self.under(parent).filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    fn under<'a>(&'a self, parent: &str) -> impl Iterator<Item = &'a str> {
        let prefix = format!("{parent}/");
        let from = (Bound::Included(prefix.clone()), Bound::Unbounded);
        self.nodes.range(from).map_while(move |(path, _)| path.strip_prefix(&prefix))
    }

    fn fire(&mut self, path: &str) {
        for watch in self.watches.remove(path).unwrap_or_default() {
            let _ = watch.send(());
        }
    }

    fn watch(&mut self, path: &str) -> Fires {
        let (sender, receiver) = oneshot::channel();
        self.watches.entry(path.to_owned()).or_default().push(sender);
        Fires(receiver)
    }

    fn answer<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        if self.is_silent { Err(Error::Unanswered("silent".into())) } else { answer }
    }

    fn is_forbidden(&self, path: &str) -> bool {
        self.forbidden.as_deref().is_some_and(|forbidden| path.starts_with(forbidden))
    }

    fn get(&self, path: &str) -> Result<Data, Error> {
        if self.is_forbidden(path) {
            return Err(Error::NoAuth);
        }
        self.nodes.get(path).cloned().ok_or(Error::NoNode)
    }

    fn check(&self, op: &Op) -> Result<(), Error> {
        let (Op::Check { path, .. } | Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. }) = op;
        let found = self.nodes.get(path).map(|(_, stat)| stat.version);
        match op {
            Op::Create { .. } if found.is_some() => Err(Error::NodeExists),
            Op::Create { .. } if paths::ancestors(path).any(|parent| !self.has(parent)) => Err(Error::NoNode),
            Op::Create { .. } => Ok(()),
            Op::Check { version, .. } | Op::Set { version, .. } | Op::Delete { version, .. } => match found {
                _ if self.is_forbidden(path) => Err(Error::NoAuth),
                None => Err(Error::NoNode),
                Some(found) if *version >= 0 && *version != found => Err(Error::BadVersion),
                Some(_) if matches!(op, Op::Delete { .. }) && self.under(path).next().is_some() => Err(Error::NotEmpty),
                Some(_) => Ok(()),
            },
        }
    }

    fn apply(&mut self, op: &Op) -> Done {
        match op {
            Op::Check { .. } => Done::Nothing,
            Op::Create { path, data, .. } => {
                self.put(path, data.clone());
                Done::Created(path.clone())
            }
            Op::Set { path, data, .. } => {
                self.put(path, data.clone());
                Done::Set(self.nodes[path].1)
            }
            Op::Delete { path, .. } => {
                self.remove(path);
                Done::Nothing
            }
        }
    }

    /// Carries out all operations or none.
    fn multi(&mut self, ops: &[Op]) -> Result<Vec<Done>, MultiError> {
        if self.is_silent {
            return Err(MultiError { index: None, error: Error::Unanswered("silent".into()) });
        }
        self.multis.push(ops.len());
        let mut kept = Vec::new();
        let mut done = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            if let Err(error) = self.check(op) {
                for (path, node) in kept.into_iter().rev() {
                    match node {
                        Some(node) => drop(self.nodes.insert(path, node)),
                        None => drop(self.nodes.remove(&path)),
                    }
                }
                return Err(MultiError { index: Some(index), error });
            }
            let (Op::Check { path, .. } | Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. }) =
                op;
            kept.push((path.clone(), self.nodes.get(path).cloned()));
            done.push(self.apply(op));
        }
        Ok(done)
    }
}

/// The server and its client in one.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<Tree>>);

impl Server {
    /// A server with the znodes that every cluster has.
    pub fn new() -> Self {
        let server = Self::default();
        for parent in paths::PARENTS {
            server.tree().put(parent, "");
        }
        server
    }

    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap()
    }

    /// A context for a node with the server's session.
    pub fn context(&self, clock: ByHand) -> SessionContext<Self, ByHand> {
        let me = LocalNode {
            node: NodeName::new("host-a"),
            owner: OWNER,
            prefix: "_c_1-lock-".into(),
            candidate_data: Vec::new(),
        };
        SessionContext::new(self.clone(), clock, me)
    }
}

/// A watch that fires when its path changes.
pub struct Fires(oneshot::Receiver<()>);

impl Watch for Fires {
    async fn fired(self) {
        let _ = self.0.await;
    }
}

impl Client for Server {
    type Watch = Fires;

    fn id(&self) -> SessionId {
        session_id(OWNER)
    }

    fn owner_id(&self) -> i64 {
        OWNER
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn state(&self) -> State {
        State::Connected
    }

    async fn state_changed(&mut self) -> State {
        std::future::pending().await
    }

    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static {
        ready(self.tree().multi(&ops))
    }

    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let mut tree = self.tree();
        let create = Op::Create { path: path.into(), data, mode };
        let made = tree.check(&create).map(|()| tree.apply(&create)).map(|_| (path.to_owned(), tree.nodes[path].1));
        ready(tree.answer(made))
    }

    fn delete(&self, path: &str, version: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let mut tree = self.tree();
        let delete = Op::Delete { path: path.into(), version };
        let deleted = tree.check(&delete);
        if deleted.is_ok() && !tree.is_silent {
            tree.apply(&delete);
        }
        ready(tree.answer(deleted))
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static {
        let mut tree = self.tree();
        tree.reads += 1;
        ready(tree.answer(tree.get(path)))
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Fires), Error>> + Send + 'static {
        let mut tree = self.tree();
        let stat = tree.nodes.get(path).map(|(_, stat)| *stat);
        let watch = tree.watch(path);
        ready(tree.answer(Ok((stat, watch))))
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Fires), Error>> + Send + 'static {
        let mut tree = self.tree();
        tree.reads += 1;
        let found = tree.get(path).map(|(data, stat)| (data, stat, tree.watch(path)));
        ready(tree.answer(found))
    }

    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let mut tree = self.tree();
        tree.listings += 1;
        let names = match tree.has(path) {
            _ if tree.is_forbidden(path) => Err(Error::NoAuth),
            true => Ok(tree.names(path)),
            false => Err(Error::NoNode),
        };
        ready(tree.answer(names))
    }

    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let mut tree = self.tree();
        tree.reads += paths.len();
        tree.most_read = tree.most_read.max(paths.len());
        let found = paths.iter().map(|path| tree.get(path)).collect();
        ready(tree.answer(Ok(found)))
    }
}

/// A clock that moves only by [`ByHand::pass`].
#[derive(Clone, Default)]
pub struct ByHand(Arc<Mutex<Duration>>);

impl ByHand {
    pub fn pass(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

impl Clock for ByHand {
    fn now(&self) -> Now {
        Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::ZERO + *self.0.lock().unwrap() }
    }

    async fn sleep_until(&self, _: Wake) {
        std::future::pending().await
    }
}
