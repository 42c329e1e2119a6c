//! In-memory server that carries out multis and loses answers as planned.
//!
//! It has no sessions, watches or time; the clock advances with every reading.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{Clock, Now, Uptime, Wake};
use crate::term::SessionId;
use crate::zookeeper::client::{Client, Data, Done, Error, Mode, MultiError, Op, Read, Stat, State, Watch};
use crate::zookeeper::paths;

/// Planned result of a multi.
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
    Read,
    Write,
}

#[derive(Default)]
pub struct Tree {
    /// Rights that this client lacks, by path.
    pub closed: BTreeSet<(String, Right)>,
    pub nodes: BTreeMap<String, (Vec<u8>, i32)>,
    pub fates: VecDeque<Fate>,
    pub multis: usize,
}

impl Tree {
    pub fn apply(&mut self, ops: &[Op]) -> Result<Vec<Done>, MultiError> {
        let mut nodes = self.nodes.clone();
        for (index, op) in ops.iter().enumerate() {
            let error = |error| MultiError { index: Some(index), error };
            self.may(op).map_err(error)?;
            step(&mut nodes, op).map_err(error)?;
        }
        self.nodes = nodes;
        Ok(ops.iter().map(|_| Done::Nothing).collect())
    }

    /// Checks rights as a real server does: a check reads, a create and a delete write to the parent.
    fn may(&self, op: &Op) -> Result<(), Error> {
        let parent = |path: &str| path.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned());
        let is_closed = match op {
            Op::Check { path, .. } => self.is_closed(path, Right::Read),
            Op::Set { path, .. } => self.is_closed(path, Right::Write),
            Op::Create { path, .. } | Op::Delete { path, .. } => self.is_closed(&parent(path), Right::Write),
        };
        if is_closed { Err(Error::NoAuth) } else { Ok(()) }
    }

    fn is_closed(&self, path: &str, right: Right) -> bool {
        self.closed.contains(&(path.to_owned(), right))
    }

    pub fn version(&self, path: &str) -> Option<i32> {
        self.nodes.get(path).map(|&(_, version)| version)
    }
}

fn step(nodes: &mut BTreeMap<String, (Vec<u8>, i32)>, op: &Op) -> Result<(), Error> {
    let (Op::Check { path, .. } | Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. }) = op;
    let found = nodes.get(path).map(|&(_, version)| version);
    let at = |wanted: i32| match found {
        None => Err(Error::NoNode),
        Some(version) if wanted >= 0 && wanted != version => Err(Error::BadVersion),
        Some(version) => Ok(version),
    };
    match op {
        Op::Check { version, .. } => drop(at(*version)?),
        Op::Delete { version, .. } => {
            at(*version)?;
            nodes.remove(path);
        }
        Op::Set { data, version, .. } => {
            let version = at(*version)?;
            nodes.insert(path.clone(), (data.clone(), version + 1));
        }
        Op::Create { .. } if found.is_some() => return Err(Error::NodeExists),
        Op::Create { data, .. } => {
            if !paths::ancestors(path).all(|parent| nodes.contains_key(parent)) {
                return Err(Error::NoNode);
            }
            nodes.insert(path.clone(), (data.clone(), 0));
        }
    }
    Ok(())
}

#[derive(Clone)]
pub struct Server(pub Arc<Mutex<Tree>>);

pub struct NoWatch;

impl Watch for NoWatch {
    async fn fired(self) {}
}

impl Client for Server {
    type Watch = NoWatch;

    fn id(&self) -> SessionId {
        SessionId("0x1".into())
    }
    fn owner_id(&self) -> i64 {
        1
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
        let mut tree = self.0.lock().unwrap();
        tree.multis += 1;
        let lost = Err(MultiError { index: None, error: Error::Unanswered("cut".into()) });
        ready(match tree.fates.pop_front().unwrap_or(Fate::Answered) {
            Fate::Answered => tree.apply(&ops),
            Fate::AnswerLost => {
                let _ = tree.apply(&ops);
                lost
            }
            Fate::RequestLost => lost,
        })
    }
    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let create = Op::Create { path: path.into(), data, mode };
        let made = step(&mut self.0.lock().unwrap().nodes, &create);
        ready(made.map(|()| (path.to_owned(), Default::default())))
    }
    fn delete(&self, _: &str, _: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        ready(Ok(()))
    }
    fn get(&self, _: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static {
        ready(Err(Error::NoNode))
    }
    fn stat_and_watch(&self, _: &str) -> impl Future<Output = Result<(Option<Stat>, NoWatch), Error>> + Send + 'static {
        ready(Ok((None, NoWatch)))
    }
    fn get_and_watch(&self, _: &str) -> impl Future<Output = Result<(Vec<u8>, Stat, NoWatch), Error>> + Send + 'static {
        ready(Err(Error::NoNode))
    }
    fn children(&self, _: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        ready(Ok(Vec::new()))
    }
    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let tree = self.0.lock().unwrap();
        let stat = |version| Stat { version, ..Stat::default() };
        let found = paths.iter().map(|path| {
            if tree.is_closed(path, Right::Read) {
                return Err(Error::NoAuth);
            }
            tree.nodes.get(path).map(|(data, at)| (data.clone(), stat(*at))).ok_or(Error::NoNode)
        });
        ready(Ok(found.collect()))
    }
}

/// A clock that advances one second per reading, so that nothing stays deferred.
#[derive(Clone, Default)]
pub struct Ticks(Arc<Mutex<u64>>);

impl Clock for Ticks {
    fn now(&self) -> Now {
        let mut ticks = self.0.lock().unwrap();
        *ticks += 1;
        Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::from_nanos(*ticks * 1_000_000_000) }
    }
    async fn sleep_until(&self, _: Wake) {}
}
