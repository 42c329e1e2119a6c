//! ZooKeeper client interface: sessions and requests, as far as [`znodes`](super::znodes) needs them.
//!
//! [`session`](super::session) implements it with the crate `zookeeper-client`, the simulation with a model of an
//! ensemble on virtual time. A request is handed over when the method is *called*, not when its future is first polled,
//! and requests are carried out in the order of the calls. Paths are relative to the chroot.

use std::future::ready;
use std::time::Duration;

use cronkeeper_core::term::SessionId;

pub use crate::tree::{ConnectError, State, Watch};

/// A change inside a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Checks that the znode exists and has this version (-1: any).
    Check { path: String, version: i32 },
    /// Creates a znode.
    Create { path: String, data: Vec<u8>, mode: Mode },
    /// Replaces a znode's data.
    Set {
        path: String,
        data: Vec<u8>,
        /// The required version (-1: any).
        version: i32,
    },
    /// Removes a znode.
    Delete {
        path: String,
        /// The required version (-1: any).
        version: i32,
    },
}

/// Lifetime and naming of a new znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Persistent,
    /// The server removes it some time after its last child.
    Container,
    /// The server appends a sequence number to the name.
    PersistentSequential,
    /// Removed with its session.
    Ephemeral,
    /// Removed with its session; the server appends a sequence number to the name.
    EphemeralSequential,
}

/// Metadata of a znode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created it. Do not use the one from a create inside a multi: 3.8.0 fills in garbage there.
    pub czxid: i64,
    /// The transaction that last changed it.
    pub mzxid: i64,
    /// When it was last changed: milliseconds since the epoch by the ensemble's clock.
    pub mtime_ms: i64,
    /// When it was created, likewise.
    pub ctime_ms: i64,
    /// Number of changes of its data.
    pub version: i32,
    /// Number of children created and removed.
    pub cversion: i32,
    /// The session that an ephemeral znode belongs to; 0 for a persistent one.
    pub ephemeral_owner: i64,
    /// Bytes of its data.
    pub data_length: usize,
}

impl Stat {
    /// True if it goes with a session. A container and a znode with a time to live have an owner that is no session's:
    /// the servers set its first bit, or all bits of its first byte.
    pub fn is_of_session(&self) -> bool {
        let is_container = self.ephemeral_owner == i64::MIN;
        let has_time_to_live = self.ephemeral_owner >> 56 == -1;
        self.ephemeral_owner != 0 && !is_container && !has_time_to_live
    }
}

/// A znode's data and metadata.
pub type Data = (Vec<u8>, Stat);

/// The result for one znode of a request that reads many.
pub type Read = Result<Data, Error>;

/// An entry of an access list: one identity and its permissions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// Bits of ZooKeeper's permissions: read 1, write 2, create 4, delete 8, admin 16.
    pub permissions: u8,
    /// How the identity proves itself.
    pub scheme: String,
    pub id: String,
}

impl Acl {
    /// True if both entries are for the same identity.
    pub fn is_of(&self, other: &Self) -> bool {
        (&self.scheme, &self.id) == (&other.scheme, &other.id)
    }
}

/// Ownership of the znodes that a session creates: who may read and change them and their access lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The identities of the session's node and nobody else.
    Own,
    /// Everybody, by configuration, besides the identities of the session's node.
    OwnAndEverybody,
    /// Everybody.
    Everybody(OpenReason),
}

/// The reason why a session's znodes are open to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenReason {
    /// The node has no identity.
    NoIdentity,
    /// The node presents a certificate, but the servers do not accept it as an identity.
    NotIdentified,
    /// The node presents a certificate, but the servers, older than 3.7, do not report whether they accept it as an
    /// identity.
    CannotBeAsked,
    /// The node presents a certificate, but existing znodes are open to everybody: other nodes may have no identity, or
    /// another one.
    OpenBefore,
}

/// Failure of a request, which may nevertheless have been carried out if it is [`Unanswered`](Error::Unanswered).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no such znode")]
    NoNode,
    #[error("the znode already exists")]
    NodeExists,
    #[error("the znode has a different version")]
    BadVersion,
    #[error("the znode has children")]
    NotEmpty,
    #[error("not authorized")]
    NoAuth,
    #[error("the session is over")]
    SessionOver,
    /// No answer came: the request may have been carried out, or may be later.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// The server refuses the request for another reason; it was not carried out.
    #[error("refused: {0}")]
    Refused(String),
}

impl Error {
    /// True if a znode is not in the state that the request assumes.
    pub fn is_of_state(&self) -> bool {
        matches!(self, Self::NoNode | Self::NodeExists | Self::BadVersion | Self::NotEmpty)
    }

    /// True if the server has answered, and the answer concerns only the requested path.
    pub fn is_of_path(&self) -> bool {
        self.is_of_state() || matches!(self, Self::NoAuth | Self::Refused(_))
    }
}

/// Failure of a multi, which may nevertheless have been carried out if it is [`Unanswered`](Error::Unanswered).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiError {
    /// The operation that failed, if the server named one.
    pub index: Option<usize>,
    pub error: Error,
}

/// Result of one operation of a multi that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Of a check or a delete.
    Nothing,
    /// Of a create: the path, sequence number included.
    Created(String),
    /// Of a set: the new metadata.
    Set(Stat),
}

/// Opens sessions.
pub trait Connect: Send + Sync + 'static {
    type Client: Client;

    /// Opens a session. Takes at most about the session timeout; dropping the future gives up.
    fn connect(&self) -> impl Future<Output = Result<Self::Client, ConnectError>> + Send;

    /// Adds to the text of a [`ConnectError::Unreachable`] what each server does, as far as that is found out within a
    /// fraction of a second.
    fn explain(&self, error: String) -> impl Future<Output = String> + Send + 'static {
        std::future::ready(error)
    }
}

/// Lends sessions for reads on behalf of people. They are never the node's own session, whose answers renew the lease.
pub trait Lend: Send + Sync + 'static {
    type Client: Client;

    /// Returns a session, which may have lost its connection. Bounded in time; dropping the future gives up.
    fn session(&self) -> impl Future<Output = Result<Self::Client, ConnectError>> + Send;
}

/// One session.
///
/// Dropping all clones does not close the session on the server: the caller removes ephemeral znodes itself. (If a
/// panic's unwinding closed a session, it would give leadership away while processes still run.)
pub trait Client: Clone + Send + Sync + 'static {
    type Watch: Watch;

    /// The session's name: [`session_id`](super::session_id) of [`Client::owner_id`].
    fn id(&self) -> SessionId;
    /// The session's id as shown in [`Stat::ephemeral_owner`].
    fn owner_id(&self) -> i64;
    /// The negotiated session timeout.
    fn timeout(&self) -> Duration;
    /// The newest state. Changes are coalesced.
    fn state(&self) -> State;
    /// Returns after the next notification of a state. If the connection is lost and regained between two polls, only
    /// `Connected` shows: so each notification of `Connected` counts as a reconnect. Cancel safe.
    fn state_changed(&mut self) -> impl Future<Output = State> + Send;

    /// Carries out all operations or none.
    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static;
    /// Creates a znode. Returns its path, sequence number included, and its metadata.
    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static;
    /// Removes a znode that has this version (-1: any).
    fn delete(&self, path: &str, version: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static;
    /// Reads a znode. The answer may be old: the server may lag behind, or be cut off.
    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static;
    /// Reads a znode's metadata and watches it, whether or not it exists.
    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Self::Watch), Error>> + Send + 'static;
    /// Reads a znode and watches it; sets no watch if it does not exist.
    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Self::Watch), Error>> + Send + 'static;
    /// The names of a znode's children, in no order.
    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static;
    /// Reads many znodes in one request, each with its own result. The caller limits the number and the bytes of the
    /// answer: 1 MiB is the protocol's limit.
    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static;

    /// The names of a znode's children, in no order, and a watch on the set of names.
    fn children_and_watch(
        &self,
        _path: &str,
    ) -> impl Future<Output = Result<(Vec<String>, Self::Watch), Error>> + Send + 'static {
        ready(Err(Error::Refused("no watches on children here".into())))
    }

    /// A znode's metadata, if it exists. Reading it needs no right, unlike reading the data.
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

    /// The chroot that comes before all paths; empty if there is none.
    fn chroot(&self) -> String {
        String::new()
    }

    /// Like [`Client::stat`], but for a path that no chroot comes before.
    fn stat_outside(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        self.stat(path)
    }

    /// Who owns the znodes that this session creates.
    fn belongs(&self) -> Ownership {
        Ownership::Everybody(OpenReason::NoIdentity)
    }

    /// A znode's access list, in no order, and its metadata.
    fn acl(&self, _path: &str) -> impl Future<Output = Result<(Vec<Acl>, Stat), Error>> + Send + 'static {
        ready(Err(Error::Refused("no access lists here".into())))
    }

    /// Replaces a znode's access list.
    fn set_acl(&self, _path: &str, _acl: Vec<Acl>) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        ready(Err(Error::Refused("no access lists here".into())))
    }
}
