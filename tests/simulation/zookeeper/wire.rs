//! The messages between clients and servers of the modelled ensemble.

use std::sync::Arc;

use cronkeeper_cluster::zookeeper::client::{Done, MultiError, Op, Stat};

use super::super::network::Conn;
use super::txn::{Change, Session, Txn};

pub enum Body {
    /// Opens a TCP connection. The far kernel answers, whatever its process does.
    Syn,
    SynAck,
    /// The sender has closed its end.
    Fin,

    // From a client.
    Open {
        /// 0 for a new session.
        session: Session,
        /// A server that has not seen this transaction refuses the client.
        last_zxid: i64,
        /// Watches to set again.
        watches: Vec<(String, WatchKind)>,
    },
    Request {
        xid: u64,
        request: Request,
    },
    Ping,

    // To a client.
    /// The session is open; `None`: it is over.
    Opened(Option<Session>),
    Reply {
        xid: u64,
        zxid: i64,
        answer: Answer,
    },
    Pong,
    /// The znode was created, changed or removed.
    Fired(String),

    // Between servers.
    Forward(Proposal),
    Propose {
        index: usize,
        entry: Arc<Entry>,
    },
    Ack {
        length: usize,
    },
    Commit {
        length: usize,
    },
    LeaderPing,
    /// The answer to it: the sessions that were active since the last one.
    LearnerPong(Vec<Session>),
    Validate {
        client: Conn,
        session: Session,
    },
    Validated {
        client: Conn,
        session: Session,
        valid: bool,
    },
}

/// A watch as the client sets it again after a reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchKind {
    /// The znode existed: fires at once if it is gone, or newer.
    Data,
    /// The znode did not exist: fires at once if it exists.
    Exist,
}

#[derive(Clone, Debug)]
pub enum Request {
    Write(Vec<Op>),
    Get { path: String, watch: Watching },
    GetMany(Vec<String>),
    Children(String),
}

impl Request {
    /// All paths that the request names.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Self::Write(ops) => ops.iter().map(path).collect(),
            Self::Get { path, .. } | Self::Children(path) => vec![path],
            Self::GetMany(paths) => paths.iter().map(String::as_str).collect(),
        }
    }
}

fn path(op: &Op) -> &str {
    match op {
        Op::Check { path, .. } | Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } => path,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watching {
    No,
    IfThere,
    Always,
}

#[derive(Debug)]
pub enum Answer {
    Written(Result<Vec<(Done, Stat)>, MultiError>),
    Node(Option<(Vec<u8>, Stat)>),
    Nodes(Vec<Option<(Vec<u8>, Stat)>>),
    Children(Option<Vec<String>>),
    SessionOver,
}

/// A write on its way to the leader.
pub struct Proposal {
    pub origin: Origin,
    pub session: Session,
    pub change: Change,
}

/// The server and the connection that wait for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub server: usize,
    pub conn: Conn,
    pub xid: u64,
}

/// An entry of the ensemble's log.
pub struct Entry {
    pub txn: Arc<Txn>,
    pub origin: Option<Origin>,
}
