//! The transactions of an ensemble.

use cronkeeper_cluster::zookeeper::client::Op;

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
