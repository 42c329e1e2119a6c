//! The znodes of the one server, its faults, and the requests it has counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::sync::oneshot;

use super::OWNER;
use super::simulated;
use super::txn::{Change, Session, Txn};
use crate::paths;
use crate::zookeeper::client::{Data, Done, Error, Mode, MultiError, Op, Read, Stat};

/// A session of somebody else.
const OTHER: Session = 2;

/// What becomes of a multi.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Answered,
    /// Carried out, the answer lost.
    AnswerLost,
    /// Never carried out.
    RequestLost,
}

/// A right that can be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To read data, to list children, and to check.
    Read,
    /// To set data, and to create and delete children.
    Write,
}

/// The server's content, faults and request counters.
pub struct Tree {
    znodes: simulated::Tree,
    watches: BTreeMap<String, Vec<oneshot::Sender<()>>>,
    /// Time stamped on every write, in milliseconds.
    pub time_ms: i64,
    /// While true, requests are not carried out and fail as unanswered.
    pub is_silent: bool,
    /// The fates of the next multis; later ones are answered.
    pub fates: VecDeque<Fate>,
    /// Rights that the session lacks, by path.
    closed: BTreeSet<(String, Right)>,
    /// Answers that wait for the next round; absent while they come at once.
    held: Option<Vec<oneshot::Sender<()>>>,
    /// Number of reads so far: of names, and of data.
    pub listings: usize,
    pub reads: usize,
    /// Most znodes read in one request.
    pub most_read: usize,
    /// Most bytes of data in one answer.
    pub most_read_bytes: usize,
    /// Number of operations of each multi so far, carried out or not.
    pub multis: Vec<usize>,
}

/// What tests do and see behind the session's back.
impl Tree {
    pub fn new() -> Self {
        let mut tree = Self {
            znodes: simulated::Tree::new(),
            watches: BTreeMap::new(),
            time_ms: 0,
            is_silent: false,
            fates: VecDeque::new(),
            closed: BTreeSet::new(),
            held: None,
            listings: 0,
            reads: 0,
            most_read: 0,
            most_read_bytes: 0,
            multis: Vec::new(),
        };
        tree.commit(OWNER, Change::OpenSession).expect("a session can be opened");
        tree
    }

    /// Carries out a multi of another session, which must succeed.
    pub fn apply(&mut self, ops: Vec<impl Into<Op>>) {
        let ops = ops.into_iter().map(Into::into).collect();
        self.commit(OTHER, Change::Ops(ops)).expect("the other session's multi is carried out");
    }

    /// Creates a znode, with its parents if they are missing, or sets its data.
    pub fn put(&mut self, path: &str, data: impl Into<Vec<u8>>) {
        let (path, data) = (path.to_owned(), data.into());
        let missing = paths::ancestors(&path).filter(|parent| !self.has(parent));
        let mut ops: Vec<Op> = missing.map(|parent| create(parent, Vec::new(), Mode::Persistent)).collect();
        ops.push(match self.has(&path) {
            true => Op::Set { path, data, version: -1 },
            false => create(&path, data, Mode::Persistent),
        });
        self.apply(ops);
    }

    /// Creates an ephemeral znode.
    pub fn put_ephemeral(&mut self, path: &str, owner: Session) {
        self.put_ephemeral_with(path, Vec::new(), owner);
    }

    /// Creates an ephemeral znode with data.
    pub fn put_ephemeral_with(&mut self, path: &str, data: Vec<u8>, owner: Session) {
        let create = create(path, data, Mode::Ephemeral);
        self.commit(owner, Change::Ops(vec![create])).expect("the znode can be created");
    }

    /// Sets a znode's data to what they are: only its version and its times change.
    pub fn touch(&mut self, path: &str) {
        let (data, _) = self.znodes.get(path).expect("the znode exists");
        self.put(path, data);
    }

    pub fn remove(&mut self, path: &str) {
        self.apply(vec![Op::Delete { path: path.to_owned(), version: -1 }]);
    }

    pub fn has(&self, path: &str) -> bool {
        self.stat(path).is_some()
    }

    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.znodes.stat(path)
    }

    /// A znode's data.
    pub fn data(&self, path: &str) -> Option<Vec<u8>> {
        self.znodes.get(path).map(|(data, _)| data)
    }

    /// The sorted names of a znode's children.
    pub fn names(&self, parent: &str) -> Vec<String> {
        let mut names = self.znodes.children(parent).unwrap_or_default();
        names.sort_unstable();
        names
    }

    /// The paths of all znodes below this one.
    pub fn below(&self, parent: &str) -> Vec<String> {
        let children = self.names(parent).into_iter().map(|name| paths::under(parent, &name));
        children.flat_map(|child| [vec![child.clone()], self.below(&child)].concat()).collect()
    }

    /// Number of watches that have not fired.
    pub fn watches(&self) -> usize {
        self.watches.values().flatten().filter(|watch| !watch.is_closed()).count()
    }

    /// Withdraws a right of the session.
    pub fn close(&mut self, path: &str, right: Right) {
        self.closed.insert((path.to_owned(), right));
    }

    /// Gives a withdrawn right back.
    pub fn open(&mut self, path: &str, right: Right) {
        self.closed.remove(&(path.to_owned(), right));
    }

    /// From now on answers wait for [`Tree::next_round`].
    pub fn hold_answers(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Delivers the answers to all requests handed over so far.
    pub fn next_round(&mut self) {
        for answer in self.held.as_mut().map(std::mem::take).unwrap_or_default() {
            let _ = answer.send(());
        }
    }

    fn commit(&mut self, session: Session, change: Change) -> Result<Vec<(Done, Stat)>, MultiError> {
        let txn = Txn { zxid: self.znodes.zxid() + 1, time_ms: self.time_ms, session, change };
        let applied = self.znodes.apply(&txn);
        for watch in applied.touched.iter().filter_map(|path| self.watches.remove(path)).flatten() {
            let _ = watch.send(());
        }
        applied.result
    }
}

/// The session's requests.
impl Tree {
    /// Fails while no request arrives.
    pub(super) fn listen(&self) -> Result<(), Error> {
        if self.is_silent { Err(unanswered()) } else { Ok(()) }
    }

    /// Delivers an answer at once, or with the next round.
    pub(super) fn answer<T>(&mut self, answer: T) -> impl Future<Output = T> + use<T> {
        let round = self.held.as_mut().map(|held| {
            let (sender, receiver) = oneshot::channel();
            held.push(sender);
            receiver
        });
        async move {
            if let Some(round) = round {
                round.await.expect("the round comes");
            }
            answer
        }
    }

    pub(super) fn multi(&mut self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        self.multis.push(ops.len());
        let lost = MultiError { index: None, error: unanswered() };
        let fate = match self.is_silent {
            true => Fate::RequestLost,
            false => self.fates.pop_front().unwrap_or(Fate::Answered),
        };
        if fate == Fate::RequestLost {
            return Err(lost);
        }
        let done = self.write(ops);
        if fate == Fate::AnswerLost {
            return Err(lost);
        }
        Ok(done?.into_iter().map(|(done, _)| done).collect())
    }

    /// Carries out a write of one operation.
    pub(super) fn single(&mut self, op: Op) -> Result<(Done, Stat), Error> {
        self.listen()?;
        let mut done = self.write(vec![op]).map_err(|failed| failed.error)?;
        Ok(done.remove(0))
    }

    pub(super) fn get(&mut self, path: &str) -> Result<Data, Error> {
        self.reads += 1;
        self.listen()?;
        self.read(path)
    }

    pub(super) fn get_many(&mut self, paths: &[String]) -> Result<Vec<Read>, Error> {
        self.reads += paths.len();
        self.most_read = self.most_read.max(paths.len());
        self.listen()?;
        let reads: Vec<Read> = paths.iter().map(|path| self.read(path)).collect();
        let bytes = reads.iter().flatten().map(|(data, _)| data.len()).sum();
        self.most_read_bytes = self.most_read_bytes.max(bytes);
        Ok(reads)
    }

    pub(super) fn list(&mut self, path: &str) -> Result<Vec<String>, Error> {
        self.listings += 1;
        self.listen()?;
        let names = self.znodes.children(path).ok_or(Error::NoNode)?;
        if self.is_closed(path, Right::Read) { Err(Error::NoAuth) } else { Ok(names) }
    }

    pub(super) fn watch(&mut self, path: &str) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.watches.entry(path.to_owned()).or_default().push(sender);
        receiver
    }

    fn read(&self, path: &str) -> Result<Data, Error> {
        let found = self.znodes.get(path).ok_or(Error::NoNode)?;
        if self.is_closed(path, Right::Read) { Err(Error::NoAuth) } else { Ok(found) }
    }

    fn write(&mut self, mut ops: Vec<Op>) -> Result<Vec<(Done, Stat)>, MultiError> {
        let denied = ops.iter().position(|op| self.is_denied(op));
        // The simulated tree knows no rights, so the operation that lacks one becomes one that fails in its place.
        if let Some(denied) = denied {
            ops[denied] = Op::Check { path: "/".into(), version: i32::MAX };
        }
        self.commit(OWNER, Change::Ops(ops)).map_err(|failed| match denied.is_some() && failed.index == denied {
            true => MultiError { error: Error::NoAuth, ..failed },
            false => failed,
        })
    }

    /// Applies rights as a real server does: a check reads, a create and a delete write to the parent.
    fn is_denied(&self, op: &Op) -> bool {
        match op {
            Op::Check { path, .. } => self.is_closed(path, Right::Read),
            Op::Set { path, .. } => self.is_closed(path, Right::Write),
            Op::Create { path, .. } | Op::Delete { path, .. } => {
                path.rsplit_once('/').is_some_and(|(parent, _)| self.is_closed(parent, Right::Write))
            }
        }
    }

    /// True if the znode exists and the session lacks the right: a missing znode refuses nobody.
    fn is_closed(&self, path: &str, right: Right) -> bool {
        !self.closed.is_empty() && self.has(path) && self.closed.contains(&(path.to_owned(), right))
    }
}

fn create(path: &str, data: Vec<u8>, mode: Mode) -> Op {
    Op::Create { path: path.to_owned(), data, mode }
}

fn unanswered() -> Error {
    Error::Unanswered("silent, or lost on the way".into())
}
