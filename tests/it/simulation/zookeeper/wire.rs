//! What clients and servers of the modelled ensemble say to each other.

use std::sync::Arc;

use cronkeeper::zookeeper::client::{Done, MultiError, Op, Stat};

use super::super::network::Conn;
use super::tree::{Change, Session};

pub use super::tree::Txn;

pub enum Body {
    /// Opens a TCP connection; the far kernel answers, whatever its process does.
    Syn,
    SynAck,
    /// The sender's end is closed.
    Fin,

    // From a client.
    Open {
        /// 0 for a new one.
        session: Session,
        /// A server that has not seen this transaction sends the client away.
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
    /// The session is open; none: it is over.
    Opened(Option<Session>),
    Reply {
        xid: u64,
        zxid: i64,
        answer: Answer,
    },
    Pong,
    /// The node was made, changed or removed.
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
    /// The answer to it: the sessions heard of since the last.
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
    /// The node was there: fires at once if it is gone, or newer.
    Data,
    /// It was not: fires at once if it is there.
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
    /// All that it names.
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

/// Which connection of which server waits for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub server: usize,
    pub conn: Conn,
    pub xid: u64,
}

/// A place in the ensemble's log.
pub struct Entry {
    pub txn: Txn,
    pub origin: Option<Origin>,
}
