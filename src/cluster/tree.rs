//! The port of the recipes to a coordination service: sessions, and records below folders.
//!
//! Queue, term, ledger, pauses, triggers, watches, trimming and locks are written on this. A service promises:
//! - A request is handed over when the method is *called*, not when its future is first polled, and the requests of a
//!   session take effect in the order of the calls, its reads among them. A read sees whatever this session has had
//!   answered, but may miss what others have written since.
//! - A commit happens as a whole or not at all, and all its conditions hold at that moment. One that creates records may
//!   take effect later than requests that were handed over after it, if the service has to make their folders first.
//! - A record has a path, `/folder/…/name`. The folders of a cluster ([`paths`](super::paths)) need no creation, except
//!   for entries; others are made by [`Session::make_folders`].
//! - An *entry* is a record that ends with its session. Entries of a session that is over are gone for everybody.
//! - The service makes the names of *appended* records, and [`Session::in_order`] tells the order in which they were
//!   appended.
//! - A watch only tells that something may have changed: the caller reads again.
//!
//! [`zookeeper`](super::zookeeper) implements it, and [`observed`](super::observed) on any store.

use std::collections::BTreeSet;
use std::future::{pending, ready};
use std::time::Duration;

use jiff::Timestamp;

use cronkeeper_core::clock::server::ServerTime;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Worth;
use cronkeeper_core::lease::Proof;
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::run::Version;
use cronkeeper_core::term::{FencingToken, SessionId};

/// A write's place in the service's order of all writes. Grows, and never repeats: that of an entry's creation is a
/// fencing token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub i64);

impl Revision {
    /// The fencing token of a lock whose entry was created by this write.
    pub fn token(self) -> FencingToken {
        FencingToken(self.0)
    }
}

/// The version that a record must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtVersion {
    /// Any: the record must exist.
    Any,
    Version(Version),
}

impl AtVersion {
    /// The version after a write; the first one if it is not known.
    pub fn next(self) -> Version {
        match self {
            Self::Version(version) => version.next(),
            Self::Any => Version::FIRST,
        }
    }
}

impl From<Version> for AtVersion {
    fn from(version: Version) -> Self {
        Self::Version(version)
    }
}

/// How long a new record stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Until somebody deletes it.
    Lasting,
    /// Until its session ends: it is an entry.
    OfSession,
}

/// One operation of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Checks that the record exists and has this version.
    Check { path: String, at: AtVersion },
    /// Creates a record, which must not exist.
    Create { path: String, data: Vec<u8>, life: Life },
    /// Creates a record below a folder, under this prefix and a number that the service appends.
    Append { folder: String, prefix: String, data: Vec<u8>, life: Life },
    /// Replaces a record's data.
    Set { path: String, data: Vec<u8>, at: AtVersion },
    /// Removes a record.
    Delete { path: String, at: AtVersion },
}

/// What a commit that took effect has made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The paths of the created records, in the order of their operations.
    pub created: Vec<String>,
    /// When it took effect, by the service's clock; absent if the service does not say.
    pub at: Option<Timestamp>,
    /// Its place among all writes: that of every record that it has changed. Absent if the service does not say.
    pub revision: Option<Revision>,
}

impl Committed {
    /// The reading of the service's clock that this answer is.
    pub fn time(&self, sent: Uptime, received: Uptime) -> Option<ServerTime> {
        ServerTime::new(self.at?.as_millisecond(), sent, received)
    }
}

/// What a service knows of a record besides its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The write that created it.
    pub created: Revision,
    /// The write that last changed it.
    pub changed: Revision,
    /// When it was created and when it was last changed, by the service's clock.
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
    /// Writes since its creation.
    pub version: Version,
    /// The session that it ends with; absent: it lasts.
    pub session: Option<SessionId>,
    /// Bytes of its data.
    pub bytes: usize,
    /// Number of records created and removed below it, directly.
    pub below: i64,
}

/// A record's data, and what is known of it.
pub type Record = (Vec<u8>, Stat);

/// The result for one record of a request that reads many.
pub type Read = Result<Record, Error>;

/// Failure of a request, which may nevertheless have been carried out if it is [`Unanswered`](Error::Unanswered).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no such record")]
    Missing,
    #[error("the record already exists")]
    Exists,
    #[error("the record has a different version")]
    Changed,
    #[error("there are records below it")]
    NotEmpty,
    #[error("not authorized")]
    Denied,
    #[error("the session is over")]
    SessionOver,
    /// No answer came: the request may have been carried out, or may be later.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// This node does not read the record.
    #[error("it has {bytes} bytes, and no such record of cronkeeper has more than {most}")]
    TooLarge { bytes: usize, most: usize },
    /// This node does not read the record, because the others in its folder take too much room.
    #[error("it and the smaller ones beside it have more than {most} bytes")]
    Crowded { most: usize },
    /// The root that the service's address names does not exist.
    #[error("the root does not exist")]
    NoRoot,
    /// The root that the service's address names is among the data of another cluster.
    #[error("the root is among the data of the cluster at {cluster}")]
    RootInCluster { cluster: String },
    /// The service refuses the request for another reason; it was not carried out.
    #[error("refused: {0}")]
    Refused(String),
}

impl Error {
    /// True if a record is not in the state that the request assumes.
    pub fn is_of_state(&self) -> bool {
        matches!(self, Self::Missing | Self::Exists | Self::Changed | Self::NotEmpty)
    }

    /// True if the service has answered, and the answer concerns only the requested path.
    pub fn is_of_path(&self) -> bool {
        self.is_of_state()
            || matches!(self, Self::Denied | Self::TooLarge { .. } | Self::Crowded { .. } | Self::Refused(_))
    }
}

/// Failure of a commit, which may nevertheless have been carried out if it is [`Unanswered`](Error::Unanswered).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitError {
    /// The operation that failed, if the service named one.
    pub index: Option<usize>,
    pub error: Error,
}

/// What a service takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most operations of a commit.
    pub operations: usize,
    /// Most bytes of a commit: of its paths and its data.
    pub bytes: usize,
    /// Commits on their way at the same time: enough to keep the servers busy, few enough that later changes gather.
    pub in_flight: usize,
    /// A commit may change a record several times, each change at the version that the one before has made.
    pub repeats: bool,
    /// The last number that appended records of one folder get.
    pub last_number: i64,
}

impl Limits {
    /// Those of most unit tests.
    #[cfg(test)]
    pub const OF_TESTS: Self =
        Self { operations: 200, bytes: 128 << 10, in_flight: 1, repeats: true, last_number: i32::MAX as i64 };

    /// True if half of a folder's numbers are used up once this one is given out.
    pub fn is_high(&self, number: i64) -> bool {
        number > self.last_number / 2
    }

    /// The most jobs in a commit that writes this many records of each, and two others.
    pub fn jobs(&self, records_of_each: usize) -> usize {
        (self.operations.saturating_sub(2) / records_of_each).max(1)
    }
}

/// State of a session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Connected,
    /// No server answers; the session is looking for one.
    Disconnected,
    /// The session is over, according to the service or to the session's own clock.
    Expired,
    /// The service does not accept this node's credentials.
    AuthFailed,
}

/// Failure to open a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No server answered in time.
    #[error("{0}")]
    Unreachable(String),
    /// The service does not accept this node's credentials.
    #[error("{0}")]
    AuthFailed(String),
    /// The service cannot be used until somebody changes something: the text says what.
    #[error("{0}")]
    Refused(String),
}

/// Opens sessions.
pub trait Connect: Send + Sync + 'static {
    type Session: Session;

    /// Opens a session. Takes at most about the session timeout; dropping the future gives up.
    fn connect(&self) -> impl Future<Output = Result<Self::Session, ConnectError>> + Send;

    /// Adds to the text of a [`ConnectError::Unreachable`] what each server does, as far as that is found out within a
    /// fraction of a second.
    fn explain(&self, error: String) -> impl Future<Output = String> + Send + 'static {
        ready(error)
    }
}

/// Lends sessions for reads on behalf of people. They are never the node's own session, whose answers renew the lease.
pub trait Lend: Send + Sync + 'static {
    type Session: Session;

    /// Returns a session, which may have lost its connection. Bounded in time; dropping the future gives up.
    fn session(&self) -> impl Future<Output = Result<Self::Session, ConnectError>> + Send;
}

/// A one-time watch. Dropping it removes it.
pub trait Watch: Send + 'static {
    /// Returns when the record was created, changed or removed, or the session is over. The caller must read the record
    /// again.
    fn fired(self) -> impl Future<Output = ()> + Send;
}

/// One session.
///
/// Dropping all clones does not end the session: the caller removes its entries itself. (If a panic's unwinding ended a
/// session, it would give leadership away while processes still run.)
pub trait Session: Clone + Send + Sync + 'static {
    /// The service's name, for messages.
    const SERVICE: &'static str;
    /// True if the sessions find lost commits by themselves, and leave the record of it.
    const NOTES_LOSSES: bool = false;
    type Watch: Watch;
    /// What its acknowledged commits prove, whether carried out or refused for the state of a record.
    type Proof: Proof;

    fn id(&self) -> SessionId;
    /// The service ends the session after this long without a sign of life.
    fn timeout(&self) -> Duration;
    fn limits(&self) -> Limits;
    /// What the service says that its commits are worth.
    fn worth(&self) -> Option<Worth> {
        None
    }
    /// Returns once that is another than it was. Cancel safe.
    fn worth_changed(&mut self) -> impl Future<Output = Worth> + Send {
        pending()
    }
    /// What is proven of it so far: nothing.
    fn proof(&self) -> Self::Proof;
    /// The newest state. Changes are coalesced.
    fn state(&self) -> State;
    /// Why no request is answered while it is [`Disconnected`](State::Disconnected), if that is known. A change counts
    /// as one of the state.
    fn failure(&self) -> Option<String> {
        None
    }
    /// Returns after the next notification of a state. If the connection is lost and regained between two polls, only
    /// `Connected` shows: so each notification of `Connected` counts as a reconnect. Cancel safe.
    fn state_changed(&mut self) -> impl Future<Output = State> + Send;

    /// How somebody removes a record by hand, with the service's own tools.
    fn removal(&self, _path: &str) -> Option<String> {
        None
    }

    /// Carries out all operations or none.
    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Committed, CommitError>> + Send + 'static;
    /// Creates a record.
    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        life: Life,
    ) -> impl Future<Output = Result<Stat, Error>> + Send + 'static;
    /// Creates a record below a folder, under a name that the service makes from this prefix. Returns its path too.
    fn append(
        &self,
        folder: &str,
        prefix: &str,
        data: Vec<u8>,
        life: Life,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static;
    /// Removes a record.
    fn delete(&self, path: &str, at: AtVersion) -> impl Future<Output = Result<(), Error>> + Send + 'static;
    /// Reads a record. The answer may be old: the server may lag behind, or be cut off.
    fn get(&self, path: &str) -> impl Future<Output = Result<Record, Error>> + Send + 'static;
    /// Reads what is known of a record besides its data, if it exists. That needs no right, unlike reading the data.
    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static;
    /// The same, and watches the record, whether or not it exists.
    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Self::Watch), Error>> + Send + 'static;
    /// Reads a record and watches it; sets no watch if it does not exist.
    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Self::Watch), Error>> + Send + 'static;
    /// The names of the records below a folder, in no order.
    fn names(&self, folder: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static;
    /// The same, and a watch on the set of names.
    fn names_and_watch(
        &self,
        folder: &str,
    ) -> impl Future<Output = Result<(Vec<String>, Self::Watch), Error>> + Send + 'static;
    /// Reads many records in one request, each with its own result. The caller limits the number and the bytes of the
    /// answer: no answer may be larger than 1 MiB.
    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static;
    /// Sorts the names of a folder's appended records, first to last. Leaves out other names, and records that are gone.
    fn in_order(
        &self,
        folder: &str,
        names: Vec<String>,
    ) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static;

    /// Makes sure that these folders exist, for entries. The service may remove each once it is unused.
    fn make_folders(&self, _paths: Vec<String>) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
        ready(Ok(()))
    }

    /// Checks that the root exists which the service's address names.
    ///
    /// # Errors
    /// [`Error::NoRoot`], or if no server answers.
    fn check_root(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        ready(Ok(()))
    }

    /// Checks that no cluster is founded among the data of another one. `record` is in the data of every cluster; one
    /// that has it goes on.
    ///
    /// # Errors
    /// [`Error::RootInCluster`], or if no server answers.
    fn check_founding(&self, _record: &str) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        ready(Ok(()))
    }

    /// Whose the records are that this session creates.
    fn ownership(&self) -> Ownership {
        Ownership::OfLogin
    }

    /// Gives this node's rights to the records that others have created, with rests between them. `own` is an entry of
    /// this session; `locks` are the locks of jobs, which other programs may share.
    fn secure<K: Clock>(
        &self,
        _own: String,
        _locks: BTreeSet<LockPath>,
        _clock: K,
    ) -> impl Future<Output = Result<Secured, Failed>> + Send + 'static {
        ready(Ok(Secured::default()))
    }

    /// Finds out what is open to others than this node, as sentences for its operator.
    fn exposed(
        &self,
        _own: String,
        _locks: BTreeSet<LockPath>,
    ) -> impl Future<Output = Result<Vec<String>, Failed>> + Send + 'static {
        ready(Ok(Vec::new()))
    }
}

/// Whose the records are that a session creates: who may read and change them, and their rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Whoever may log in to the service has rights to all records alike.
    OfLogin,
    /// The session's node and nobody else.
    Own,
    /// The session's node and everybody, by configuration; the text says who everybody is, and why.
    OwnAndEverybody(&'static str),
    /// Everybody, because no identity is configured for the node; likewise.
    Unowned(&'static str),
    /// Everybody, against what is configured; likewise.
    Everybody(&'static str),
}

/// What it means that a cluster's data is open.
pub const RISK: &str = "Whoever can write there controls all jobs; whoever can read there sees their output";

/// What [`Session::secure`] has done.
#[derive(Debug, Default)]
pub struct Secured {
    /// Number of records whose rights were changed.
    pub changed: usize,
    /// Paths whose rights could not be changed, and why.
    pub refused: Vec<(String, String)>,
}

/// A failed request, and the path that it was for.
pub type Failed = (String, Error);
