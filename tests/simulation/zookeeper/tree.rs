//! The znodes on one server: a state machine that applies committed transactions in order.
//!
//! Every server applies the same transactions and therefore returns the same answers. This module knows neither servers
//! nor time, so the server of the unit tests (`src/cluster/zookeeper/tests_support.rs`) stands on it too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::txn::{Change, Session, Txn};
use cronkeeper_cluster::zookeeper::client::{Done, Error, Mode, MultiError, Op, Stat};

/// The effect of a transaction.
pub struct Applied {
    pub result: Result<Vec<(Done, Stat)>, MultiError>,
    /// The znodes that it created, changed or removed.
    pub touched: Vec<String>,
}

/// The data of a znode whose ACL lets only its creator read and set it. Other ACLs are not modelled.
pub const CLOSED: &[u8] = b"for others only";

#[derive(Clone, Debug)]
struct Znode {
    data: Arc<[u8]>,
    stat: Stat,
    children: u32,
}

#[derive(Clone)]
pub struct Tree {
    nodes: BTreeMap<String, Znode>,
    ephemerals: BTreeMap<Session, BTreeSet<String>>,
    sessions: BTreeSet<Session>,
    zxid: i64,
}

/// The znodes as they were before a multi changed them, so that a failing multi leaves nothing behind.
type Undo = Vec<(String, Option<Znode>)>;

impl Tree {
    pub fn new() -> Self {
        let root = Znode { data: Arc::new([]), stat: Stat::default(), children: 0 };
        let nodes = BTreeMap::from([("/".to_owned(), root)]);
        Self { nodes, ephemerals: BTreeMap::new(), sessions: BTreeSet::new(), zxid: 0 }
    }

    /// The newest applied transaction.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    pub fn sessions(&self) -> impl Iterator<Item = Session> {
        self.sessions.iter().copied()
    }

    pub fn has_session(&self, session: Session) -> bool {
        self.sessions.contains(&session)
    }

    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.nodes.get(path).map(|node| node.stat)
    }

    pub fn get(&self, path: &str) -> Option<(Vec<u8>, Stat)> {
        self.nodes.get(path).map(|node| (node.data.to_vec(), node.stat))
    }

    /// The names of the children, oldest first, because names may come from outside the simulation and ages do not.
    pub fn children(&self, path: &str) -> Option<Vec<String>> {
        self.nodes.get(path)?;
        let folder = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.nodes.range(folder.clone()..).take_while(|(child, _)| child.starts_with(&folder));
        let mut children: Vec<_> = below
            .filter_map(|(child, node)| Some((node.stat.czxid, child.strip_prefix(&folder)?)))
            .filter(|(_, name)| !name.is_empty() && !name.contains('/'))
            .collect();
        // The znodes of one multi share their zxid, so they are ordered by name.
        children.sort();
        Some(children.into_iter().map(|(_, name)| name.to_owned()).collect())
    }

    /// Applies a transaction.
    pub fn apply(&mut self, txn: &Txn) -> Applied {
        debug_assert!(txn.zxid > self.zxid);
        self.zxid = txn.zxid;
        match &txn.change {
            Change::Ops(ops) => self.multi(txn, ops),
            Change::OpenSession => {
                self.sessions.insert(txn.session);
                Applied { result: Ok(Vec::new()), touched: Vec::new() }
            }
            Change::CloseSession => self.close(txn.session),
            Change::Refused => {
                Applied { result: Err(MultiError { index: None, error: Error::SessionOver }), touched: Vec::new() }
            }
        }
    }

    fn multi(&mut self, txn: &Txn, ops: &[Op]) -> Applied {
        let mut undo = Undo::new();
        let mut done = Vec::with_capacity(ops.len());
        let mut touched = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            match self.op(txn, op, &mut undo, &mut touched) {
                Ok(result) => done.push(result),
                Err(error) => {
                    self.revert(undo);
                    return Applied { result: Err(MultiError { index: Some(index), error }), touched: Vec::new() };
                }
            }
        }
        Applied { result: Ok(done), touched }
    }

    fn op(&mut self, txn: &Txn, op: &Op, undo: &mut Undo, touched: &mut Vec<String>) -> Result<(Done, Stat), Error> {
        match op {
            Op::Check { path, version } => {
                self.expect(path, *version)?;
                Ok((Done::Nothing, Stat::default()))
            }
            Op::Create { path, data, mode } => {
                let (path, stat) = self.create(txn, path, data, *mode, undo)?;
                touched.push(path.clone());
                Ok((Done::Created(path), stat))
            }
            Op::Set { path, .. } if self.nodes.get(path).is_some_and(|node| &*node.data == CLOSED) => {
                Err(Error::NoAuth)
            }
            Op::Set { path, data, version } => {
                let mut node = self.expect(path, *version)?.clone();
                node.data = data.as_slice().into();
                node.stat.version = node.stat.version.wrapping_add(1);
                node.stat.mzxid = txn.zxid;
                node.stat.mtime_ms = txn.time_ms;
                node.stat.data_length = data.len();
                let stat = node.stat;
                self.put(path, Some(node), undo);
                touched.push(path.clone());
                Ok((Done::Set(stat), stat))
            }
            Op::Delete { path, version } => {
                if self.expect(path, *version)?.children > 0 {
                    return Err(Error::NotEmpty);
                }
                self.put(path, None, undo);
                self.count_child(parent(path), -1, undo);
                touched.push(path.clone());
                Ok((Done::Nothing, Stat::default()))
            }
        }
    }

    fn expect(&self, path: &str, version: i32) -> Result<&Znode, Error> {
        let node = self.nodes.get(path).ok_or(Error::NoNode)?;
        if version != -1 && version != node.stat.version { Err(Error::BadVersion) } else { Ok(node) }
    }

    fn create(
        &mut self,
        txn: &Txn,
        path: &str,
        data: &[u8],
        mode: Mode,
        undo: &mut Undo,
    ) -> Result<(String, Stat), Error> {
        let parent_node = self.nodes.get(parent(path)).ok_or(Error::NoNode)?;
        if parent_node.stat.ephemeral_owner != 0 {
            return Err(Error::Refused("an ephemeral node has no children".into()));
        }
        let full = match mode {
            Mode::EphemeralSequential | Mode::PersistentSequential => {
                format!("{path}{:010}", parent_node.stat.cversion)
            }
            Mode::Persistent | Mode::Container | Mode::Ephemeral => path.to_owned(),
        };
        if self.nodes.contains_key(&full) {
            return Err(Error::NodeExists);
        }
        let ephemeral_owner = match mode {
            Mode::Persistent | Mode::Container | Mode::PersistentSequential => 0,
            Mode::Ephemeral | Mode::EphemeralSequential => txn.session,
        };
        let stat = Stat {
            czxid: txn.zxid,
            mzxid: txn.zxid,
            mtime_ms: txn.time_ms,
            ctime_ms: txn.time_ms,
            version: 0,
            cversion: 0,
            ephemeral_owner,
            data_length: data.len(),
        };
        self.put(&full, Some(Znode { data: data.into(), stat, children: 0 }), undo);
        self.count_child(parent(path), 1, undo);
        Ok((full, stat))
    }

    fn count_child(&mut self, path: &str, by: i32, undo: &mut Undo) {
        if let Some(node) = self.nodes.get(path) {
            let mut node = node.clone();
            node.stat.cversion = node.stat.cversion.wrapping_add(1);
            node.children = node.children.saturating_add_signed(by);
            self.put(path, Some(node), undo);
        }
    }

    /// The znodes that would go with this session.
    pub fn owned(&self, session: Session) -> impl Iterator<Item = &String> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// Lets a znode go with this session; with none if that is 0.
    pub fn hand_over(&mut self, path: &str, session: Session) {
        if let Some(mut node) = self.nodes.get(path).cloned() {
            node.stat.ephemeral_owner = session;
            self.replace(path, Some(node));
        }
    }

    fn close(&mut self, session: Session) -> Applied {
        self.sessions.remove(&session);
        let owned: Vec<String> = self.ephemerals.remove(&session).unwrap_or_default().into_iter().collect();
        for path in &owned {
            self.put(path, None, &mut Undo::new());
            self.count_child(parent(path), -1, &mut Undo::new());
        }
        Applied { result: Ok(Vec::new()), touched: owned }
    }

    fn put(&mut self, path: &str, node: Option<Znode>, undo: &mut Undo) {
        let before = self.replace(path, node);
        undo.push((path.to_owned(), before));
    }

    fn replace(&mut self, path: &str, node: Option<Znode>) -> Option<Znode> {
        let after = node.as_ref().map_or(0, |node| node.stat.ephemeral_owner);
        let before = match node {
            Some(node) => self.nodes.insert(path.to_owned(), node),
            None => self.nodes.remove(path),
        };
        let owner = before.as_ref().map_or(0, |node| node.stat.ephemeral_owner);
        if owner != after {
            if let Some(owned) = self.ephemerals.get_mut(&owner) {
                owned.remove(path);
            }
            if after != 0 {
                self.ephemerals.entry(after).or_default().insert(path.to_owned());
            }
        }
        before
    }

    fn revert(&mut self, undo: Undo) {
        for (path, before) in undo.into_iter().rev() {
            self.replace(&path, before);
        }
    }
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        None | Some(("", _)) => "/",
        Some((parent, _)) => parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        tree: Tree,
        zxid: i64,
    }

    impl Fixture {
        fn new() -> Self {
            Self { tree: Tree::new(), zxid: 0 }
        }

        fn change(&mut self, session: Session, change: Change) -> Applied {
            self.zxid += 1;
            self.tree.apply(&Txn { zxid: self.zxid, time_ms: 0, session, change })
        }

        fn ops(&mut self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
            self.change(7, Change::Ops(ops)).result.map(|done| done.into_iter().map(|(done, _)| done).collect())
        }
    }

    fn create(path: &str, mode: Mode) -> Op {
        Op::Create { path: path.into(), data: Vec::new(), mode }
    }

    fn set(path: &str, version: i32) -> Op {
        Op::Set { path: path.into(), data: vec![1], version }
    }

    fn delete(path: &str) -> Op {
        Op::Delete { path: path.into(), version: -1 }
    }

    #[test]
    fn a_multi_that_fails_names_the_operation_and_leaves_nothing_behind() {
        let mut fixture = Fixture::new();
        fixture.ops(vec![create("/a", Mode::Persistent)]).unwrap();
        let failed = fixture.ops(vec![
            set("/a", 0),
            create("/e", Mode::Ephemeral),
            create("/a/s-", Mode::EphemeralSequential),
            set("/a", 0),
        ]);
        assert_eq!(failed, Err(MultiError { index: Some(3), error: Error::BadVersion }));
        assert_eq!(fixture.tree.stat("/a").unwrap().version, 0);
        assert_eq!(fixture.tree.children("/"), Some(vec!["a".to_owned()]));
        assert_eq!(fixture.tree.children("/a"), Some(vec![]));
        assert!(fixture.change(7, Change::CloseSession).touched.is_empty());
    }

    #[test]
    fn operations_of_a_multi_see_those_before_them() {
        let mut fixture = Fixture::new();
        let ops =
            vec![create("/a", Mode::Persistent), create("/a/b", Mode::Persistent), set("/a/b", 0), set("/a/b", 1)];
        assert!(fixture.ops(ops).is_ok());
        assert_eq!(fixture.tree.stat("/a/b").unwrap().version, 2);
    }

    #[test]
    fn sequence_numbers_count_children_made_and_removed() {
        let mut fixture = Fixture::new();
        fixture.ops(vec![create("/q", Mode::Persistent)]).unwrap();
        let first = fixture.ops(vec![create("/q/c-", Mode::EphemeralSequential)]).unwrap();
        assert_eq!(first, vec![Done::Created("/q/c-0000000000".into())]);
        fixture.ops(vec![delete("/q/c-0000000000")]).unwrap();
        let second = fixture.ops(vec![create("/q/c-", Mode::EphemeralSequential)]).unwrap();
        assert_eq!(second, vec![Done::Created("/q/c-0000000002".into())]);
    }

    #[test]
    fn a_session_takes_its_ephemeral_nodes_along_and_no_others() {
        let mut fixture = Fixture::new();
        fixture.change(7, Change::OpenSession);
        fixture.ops(vec![create("/p", Mode::Persistent), create("/e", Mode::Ephemeral)]).unwrap();
        fixture.change(8, Change::Ops(vec![create("/other", Mode::Ephemeral)]));
        assert_eq!(fixture.change(7, Change::CloseSession).touched, vec!["/e".to_owned()]);
        assert_eq!(fixture.tree.children("/"), Some(vec!["p".to_owned(), "other".to_owned()]));
        assert!(!fixture.tree.has_session(7));
    }

    #[test]
    fn refusals_are_those_of_a_real_server() {
        let mut fixture = Fixture::new();
        fixture.ops(vec![create("/a", Mode::Persistent), create("/a/e", Mode::Ephemeral)]).unwrap();
        let error = |fixture: &mut Fixture, op| fixture.ops(vec![op]).unwrap_err().error;
        assert_eq!(error(&mut fixture, create("/a", Mode::Persistent)), Error::NodeExists);
        assert_eq!(error(&mut fixture, create("/b/c", Mode::Persistent)), Error::NoNode);
        assert!(matches!(error(&mut fixture, create("/a/e/f", Mode::Persistent)), Error::Refused(_)));
        assert_eq!(error(&mut fixture, delete("/a")), Error::NotEmpty);
        assert_eq!(error(&mut fixture, set("/a", 4)), Error::BadVersion);
        assert_eq!(error(&mut fixture, Op::Check { path: "/x".into(), version: -1 }), Error::NoNode);
    }
}
