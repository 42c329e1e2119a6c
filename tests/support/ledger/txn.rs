//! The transactions of an ensemble.

use cronkeeper_cluster::store::{self, If, Then};
use cronkeeper_cluster::zookeeper::client::{Mode, Op};

/// The number of a ZooKeeper session.
pub type Session = i64;

/// A transaction, as the leader of the ensemble ordered it.
#[derive(Debug)]
pub struct Txn {
    pub zxid: i64,
    pub time_ms: i64,
    pub session: Session,
    pub change: Change,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// A client's write: one operation, or several in a multi.
    Ops(Vec<Op>),
    OpenSession,
    CloseSession,
    /// A write that the leader refused. It has a place in the order and changes nothing.
    Refused,
}

/// The session of writers that are not cronkeeper's.
pub const STRANGER: Session = -1;

/// An operation of a store in ZooKeeper's words; `None` if ZooKeeper has none like it. `is_there`: the record existed.
pub fn in_znodes(op: &store::Op, is_there: bool) -> Option<Op> {
    let path = op.path.clone();
    let version = match op.when {
        If::Version(version) => version.0,
        If::Absent | If::Exists | If::Anything => -1,
    };
    match &op.then {
        Then::Nothing if op.when == If::Absent => None,
        Then::Nothing => Some(Op::Check { path, version }),
        Then::Delete => is_there.then_some(Op::Delete { path, version }),
        Then::Put(data) => {
            let (owner, data) = cronkeeper_cluster::observed::unwrap(&path, data.clone());
            let mode = if owner.is_some() { Mode::Ephemeral } else { Mode::Persistent };
            Some(match is_there {
                true => Op::Set { path, data, version },
                false => Op::Create { path, data, mode },
            })
        }
    }
}
