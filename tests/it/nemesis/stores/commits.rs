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

/// A commit that a client has asked for. Whether it took effect only the servers know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub nonce: u64,
    /// When it was passed on to the server, and so before it took effect.
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

/// The requests that took effect: those whose nonces the servers have, by revision.
pub fn carried_out(requests: Vec<Request>, nonces: &BTreeMap<i64, u64>) -> Vec<Txn> {
    let mut asked = BTreeMap::new();
    for request in requests {
        asked.entry(request.nonce).or_insert(request);
    }
    txns(nonces.iter().map(|(revision, nonce)| {
        let request = asked.get(nonce);
        let Request { at, ops, .. } = request.unwrap_or_else(|| panic!("nobody has asked for the commit {revision}"));
        Commit { revision: *revision, at: *at, ops: ops.clone() }
    }))
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

#[cfg(test)]
mod tests {
    use cronkeeper_cluster::zookeeper::client::Op as Znode;

    use super::*;

    fn request(nonce: u64, second: i64, data: &str) -> Request {
        let op = Op { path: "/cronkeeper/jobs/a".to_owned(), when: If::Anything, then: Then::Put(data.into()) };
        Request { nonce, at: Timestamp::from_second(second).expect("it is small"), ops: vec![op] }
    }

    #[test]
    fn requests_that_took_effect_are_in_the_order_of_their_revisions() {
        let asked =
            vec![request(1, 10, "later"), request(2, 11, "never"), request(3, 12, "first"), request(3, 13, "first")];
        let found = carried_out(asked, &BTreeMap::from([(5, 3), (7, 1)]));
        let shown: Vec<(i64, i64)> = found.iter().map(|txn| (txn.zxid, txn.time_ms)).collect();
        assert_eq!(shown, [(5, 12_000), (7, 10_000)]);
        let of = |txn: &Txn| match &txn.change {
            Change::Ops(ops) => ops.clone(),
            other => panic!("{other:?}"),
        };
        assert!(matches!(&of(&found[0])[..], [Znode::Create { data, .. }] if data == b"first"));
        assert!(matches!(&of(&found[1])[..], [Znode::Set { data, .. }] if data == b"later"));
    }

    #[test]
    #[should_panic = "nobody has asked for the commit 9"]
    fn a_commit_that_nobody_has_asked_for_is_noticed() {
        carried_out(vec![request(1, 10, "a")], &BTreeMap::from([(9, 2)]));
    }
}
