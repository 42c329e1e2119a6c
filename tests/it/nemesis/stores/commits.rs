//! What a store has committed, in ZooKeeper's words.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::store::{If, Op, Then};
use cronkeeper_core::run::Version;
use jiff::Timestamp;

use crate::ledger::txn::{Change, Txn, in_znodes};

/// A commit that took effect.
pub struct Commit {
    pub revision: i64,
    pub at: Timestamp,
    pub ops: Vec<Op>,
}

/// A condition as the clients of PostgreSQL and Redis number it.
pub fn condition(number: i32) -> If {
    match number {
        -1 => If::Absent,
        -2 => If::Exists,
        -3 => If::Anything,
        version => If::Version(Version(version)),
    }
}

/// All commits, in their order.
pub fn txns(commits: impl IntoIterator<Item = Commit>) -> Vec<Txn> {
    let (mut sessions, mut there) = (BTreeMap::new(), BTreeSet::new());
    commits.into_iter().map(|commit| commit.into_txn(&mut sessions, &mut there)).collect()
}

impl Commit {
    fn into_txn(self, sessions: &mut BTreeMap<String, i64>, there: &mut BTreeSet<String>) -> Txn {
        let number = |id: &str| {
            let next = i64::try_from(sessions.len()).expect("there are few") + 1;
            *sessions.entry(id.to_owned()).or_insert(next)
        };
        let session = self.ops.iter().find_map(|op| op.path.strip_prefix("/cronkeeper/sessions/"));
        let session = session.map_or(0, number);
        let mut changes = Vec::new();
        for op in self.ops {
            let is_there = there.contains(&op.path);
            match &op.then {
                Then::Put(_) => _ = there.insert(op.path.clone()),
                Then::Delete => _ = there.remove(&op.path),
                Then::Nothing => {}
            }
            let is_internal =
                ["/cronkeeper/sessions/", "/cronkeeper/numbers/"].iter().any(|of| op.path.starts_with(of));
            changes.extend(in_znodes(&op, is_there).filter(|_| !is_internal));
        }
        let time_ms = self.at.as_millisecond();
        Txn { zxid: self.revision, time_ms, session, change: Change::Ops(changes) }
    }
}
