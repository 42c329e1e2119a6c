//! What the recipes need of a ZooKeeper client, and no more: sessions and requests.
//!
//! [`session`](super::session) gives it by the crate `zookeeper-client`; the simulation gives it by a model of an
//! ensemble on virtual time. A request is handed over when the method is *called*, not when its future is first
//! polled: calls are carried out in their order. Paths are relative to the chroot.

use std::future::ready;
use std::time::Duration;

use crate::term::SessionId;

/// A change inside a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The node exists, with this version (-1: any).
    Check {
        /// The node.
        path: String,
        /// Its version.
        version: i32,
    },
    /// Make a node.
    Create {
        /// The node.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Its kind.
        mode: Mode,
    },
    /// Replace a node's data.
    Set {
        /// The node.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// The version it must have (-1: any).
        version: i32,
    },
    /// Remove a node.
    Delete {
        /// The node.
        path: String,
        /// The version it must have (-1: any).
        version: i32,
    },
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Stays.
    Persistent,
    /// Stays; the server appends a sequence number to its name.
    PersistentSequential,
    /// Goes with its session.
    Ephemeral,
    /// Goes with its session; the server appends a sequence number to its name.
    EphemeralSequential,
}

/// What the server says of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that made it. Not to be used from a create inside a multi: 3.8.0 fills in garbage there.
    pub czxid: i64,
    /// The transaction that changed it last.
    pub mzxid: i64,
    /// When that was, by the ensemble's clock, in milliseconds since the epoch.
    pub mtime_ms: i64,
    /// Counts changes of its data.
    pub version: i32,
    /// The session it lives with; 0 for none.
    pub ephemeral_owner: i64,
}

/// A node as read: its data, and what the server says of it.
pub type Data = (Vec<u8>, Stat);

/// A node of many that were read together.
pub type Read = Result<Data, Error>;

/// An entry of an access list: one identity, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// The bits of ZooKeeper's permissions: read 1, write 2, create 4, delete 8, admin 16.
    pub permissions: u8,
    /// How the identity is proved.
    pub scheme: String,
    /// The identity.
    pub id: String,
}

impl Acl {
    /// True where both are of the same identity.
    pub fn is_of(&self, other: &Self) -> bool {
        (&self.scheme, &self.id) == (&other.scheme, &other.id)
    }
}

/// To whom belongs what a session makes: who may read and change it, and say who else may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// To the identities of its node, and to nobody else.
    Own,
    /// To them and to everybody, as its node was told.
    OwnAndEverybody,
    /// To everybody.
    Everybody(OpenReason),
}

/// Why what a session makes is open to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenReason {
    /// Its node has no identity.
    NoIdentity,
    /// Its node shows a certificate, which the servers take for no identity.
    NotIdentified,
    /// Its node shows a certificate, and the servers cannot say whether they take it for an identity: those before 3.7.
    CannotBeAsked,
    /// Its node shows a certificate, and what stands there is open to everybody: other nodes may have none, or another.
    OpenBefore,
}

/// Why a request was not carried out, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such node.
    #[error("no such node")]
    NoNode,
    /// The node is there already.
    #[error("the node exists")]
    NodeExists,
    /// The node has another version.
    #[error("the node has another version")]
    BadVersion,
    /// The node has children.
    #[error("the node has children")]
    NotEmpty,
    /// This client may not do that.
    #[error("not authorized")]
    NoAuth,
    /// The session is over.
    #[error("the session is over")]
    SessionOver,
    /// No answer came: the request may have been carried out, or may yet be.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// The server refuses it for another reason; nothing was done.
    #[error("refused: {0}")]
    Refused(String),
}

impl Error {
    /// True where something is not as the request says that it is.
    pub fn is_of_state(&self) -> bool {
        matches!(self, Self::NoNode | Self::NodeExists | Self::BadVersion | Self::NotEmpty)
    }

    /// True where the server has answered, and the answer concerns nothing but the path that was asked for.
    pub fn is_of_path(&self) -> bool {
        self.is_of_state() || matches!(self, Self::NoAuth | Self::Refused(_))
    }
}

/// Why a multi was not carried out, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiError {
    /// The operation that failed, where the server named one.
    pub index: Option<usize>,
    /// How.
    pub error: Error,
}

/// What became of an operation of a multi that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A check, or a delete.
    Nothing,
    /// A create: the node's path, sequence number included.
    Created(String),
    /// A set: the node as it is now.
    Set(Stat),
}

/// The state of a session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A server answers.
    Connected,
    /// None does; the client looks for one.
    Disconnected,
    /// The session is over, by the server's word or by the client's own clock.
    Expired,
    /// The server does not accept this client's credentials.
    AuthFailed,
}

/// Why no session could be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answered in time.
    #[error("{0}")]
    Unreachable(String),
    /// The server does not accept this client's credentials.
    #[error("{0}")]
    AuthFailed(String),
}

/// Makes sessions.
pub trait Connect: Send + Sync + 'static {
    /// What it makes.
    type Client: Client;

    /// A new session. Bounded by about the session timeout; dropping the future gives up.
    fn connect(&self) -> impl Future<Output = Result<Self::Client, ConnectError>> + Send;
}

/// Lends sessions to whoever reads for people: not the node's own, whose answers renew the lease.
pub trait Lend: Send + Sync + 'static {
    /// What it lends.
    type Client: Client;

    /// A session, which may have lost its connection. Bounded in time; dropping the future gives up.
    fn session(&self) -> impl Future<Output = Result<Self::Client, ConnectError>> + Send;
}

/// A one-time watch. Dropping it takes it back.
pub trait Watch: Send + 'static {
    /// Returns when the node was made, changed or removed, or the session is over: look again.
    fn fired(self) -> impl Future<Output = ()> + Send;
}

/// One session.
///
/// Dropping all clones does not close the session on the server: entries that must go are removed by hand.
/// (A session closed by a panic's unwinding would give leadership away while processes still run.)
pub trait Client: Clone + Send + Sync + 'static {
    /// Its watches.
    type Watch: Watch;

    /// Its id: [`session_id`](super::session_id) of [`Client::owner_id`].
    fn id(&self) -> SessionId;
    /// Its id as [`Stat::ephemeral_owner`] shows it.
    fn owner_id(&self) -> i64;
    /// Its timeout as negotiated.
    fn timeout(&self) -> Duration;
    /// The newest state. Changes are coalesced.
    fn state(&self) -> State;
    /// Returns after the next notification of a state. A loss and return between two polls shows as `Connected` only: each
    /// notification that reads so counts as a reconnect. Cancel safe.
    fn state_changed(&mut self) -> impl Future<Output = State> + Send;

    /// All or nothing.
    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static;
    /// Makes a node; its path, sequence number included, and what the server says of it.
    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static;
    /// Removes a node of this version (-1: any).
    fn delete(&self, path: &str, version: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static;
    /// A node's data. A read: the server may lag behind, or be cut off.
    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static;
    /// What the server says of a node, and a watch on it, there or not.
    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Self::Watch), Error>> + Send + 'static;
    /// A node's data, and a watch on it; no watch where there is no node.
    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Self::Watch), Error>> + Send + 'static;
    /// The names of a node's children, in no order.
    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static;
    /// Many nodes' data in one request, each with a result of its own. The caller bounds the number (1 MiB is the protocol's limit).
    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static;

    /// What the server says of a node, if it is there. Unlike its data, nobody can be kept from asking for that.
    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        let get = self.get(path);
        async move {
            match get.await {
                Ok((_, stat)) => Ok(Some(stat)),
                Err(Error::NoNode) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// To whom belongs what this session makes.
    fn belongs(&self) -> Ownership {
        Ownership::Everybody(OpenReason::NoIdentity)
    }

    /// Who may do what with a node, in no order.
    fn acl(&self, _path: &str) -> impl Future<Output = Result<(Vec<Acl>, Stat), Error>> + Send + 'static {
        ready(Err(Error::Refused("no access lists here".into())))
    }

    /// Says who may do what with a node from now on.
    fn set_acl(&self, _path: &str, _acl: Vec<Acl>) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        ready(Err(Error::Refused("no access lists here".into())))
    }
}
