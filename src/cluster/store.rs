//! The port of [`observed`](crate::observed) to a store: records with versions, written all or nothing if they are as
//! compared.
//!
//! A store promises:
//! - A commit happens as a whole or not at all, and all its conditions hold at that moment. All commits have one order,
//!   in which their [`Revision`]s grow.
//! - A commit without an answer may have taken effect, may take effect later, or never. It may even take effect twice,
//!   if its conditions hold twice.
//! - A read shows one moment. If it was handed over after the answer to a commit, whoever committed, it shows that commit.
//! - A write is answered once it is as safe as the store can make it. What a read or a refusal shows may be a write that
//!   is not, and is lost before it is answered.
//! - Every request is answered in bounded time, if only by [`Error::Unanswered`].
//! - A store that loses acknowledged commits loses the newest ones. Each commit has a nonce, and the store keeps the
//!   nonces of at least [`KEPT_NONCES`] commits, so that whoever was shown a commit can tell that it is lost.
//!
//! No time limit of a service takes part: whether a session lives is found out by reading, and decided by a commit.

use std::collections::BTreeSet;
use std::future::{pending, ready};
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;

use crate::tree::{ConnectError, Error, Limits, Revision};
use cronkeeper_core::election::Worth;
use cronkeeper_core::run::Version;

/// What must hold of a record for a commit to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum If {
    Absent,
    Exists,
    Version(Version),
    Anything,
}

/// What a commit does with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// It stays as it is: only the condition counts.
    Nothing,
    /// It has this data from then on.
    Put(Vec<u8>),
    /// It is gone from then on.
    Delete,
}

/// A condition on a record, and what becomes of the record. A commit names each record once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub path: String,
    pub when: If,
    pub then: Then,
}

/// As many operations as etcd takes by default, where one of 128 is the store's own. One change may have some eighty: an end
/// leaves a link for each of up to 64 jobs that run after it.
pub const LEAST_OPERATIONS: usize = 127;
/// Two history records at their largest, and the record of a session.
pub const LEAST_BYTES: usize = 128 << 10;
/// A store keeps the nonces of at least this many of the newest commits.
pub const KEPT_NONCES: i64 = 4_096;

/// What becomes of a service that may lose commits that it has acknowledged, as when it fails over to a copy that lacks
/// the newest ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewinds {
    /// It is not used.
    #[default]
    Refused,
    /// An operator has accepted that occurrences are skipped when it happens.
    Accepted,
}

/// Decides whether a service is used that may lose commits.
#[derive(Debug)]
pub struct Tolerance {
    rewinds: Rewinds,
    /// A session has begun: what the service is worse at since then is reported, and stops nobody.
    is_in_use: AtomicBool,
}

impl Tolerance {
    pub fn new(rewinds: Rewinds) -> Self {
        Self { rewinds, is_in_use: AtomicBool::new(false) }
    }

    /// A session begins.
    pub fn note_use(&self) {
        self.is_in_use.store(true, Ordering::Relaxed);
    }

    /// Checks what the commits of a service are worth. `remedy` is for the message, whose sentence continues after it.
    ///
    /// # Errors
    /// If it may lose commits, and nobody has accepted that.
    pub fn check(&self, worth: &Worth, remedy: &str) -> Result<(), ConnectError> {
        if !worth.may_rewind || self.rewinds == Rewinds::Accepted || self.is_in_use.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(ConnectError::Refused(format!(
            "{}; {remedy}or accept with `--accept-rewind` that occurrences are skipped when that happens",
            worth.durability,
        )))
    }
}

/// A moment in the order of commits: that of the newest one. Another commit in its place has another nonce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub revision: Revision,
    pub nonce: u64,
}

/// A commit that took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub revision: Revision,
    pub nonce: u64,
    /// When, by the service's clock; absent if it has none.
    pub at: Option<Timestamp>,
}

/// A commit that did not take effect, or may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The condition of the operation with this index does not hold; those before it do. `found` is the version of the
    /// record, or `None` if there is no record.
    Refused { index: usize, found: Option<Version> },
    /// [`Error::Unanswered`], or why the service refuses it whatever the records are.
    Failed(Error),
}

/// What a store knows of a record besides its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Writes since its creation.
    pub version: Version,
    pub created: Revision,
    pub changed: Revision,
    /// By the service's clock, or by that of whoever wrote it.
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
    pub bytes: usize,
}

/// A part of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// What is known of a record.
    Meta(String),
    /// A record with its data.
    Record(String),
    /// The names directly below a folder, and what is known of each. Of the ledger's folders, but that of the nodes,
    /// times and lengths need not be known.
    Names(String),
    /// The nonce of the commit with this revision.
    Nonce(Revision),
}

/// The answer to a part of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Meta(Option<Meta>),
    Record(Option<(Vec<u8>, Meta)>),
    Names(Vec<(String, Meta)>),
    /// Absent if there is no such commit, or so many later ones that it is not kept.
    Nonce(Option<u64>),
}

impl Done {
    pub fn head(&self) -> Head {
        Head { revision: self.revision, nonce: self.nonce }
    }
}

/// A store.
pub trait Store: Clone + Send + Sync + 'static {
    /// The service's name, for messages.
    const SERVICE: &'static str;

    /// What it takes at once, at least [`LEAST_OPERATIONS`] and [`LEAST_BYTES`]. [`Limits::in_flight`] does not matter: one
    /// commit of a session is on its way at a time.
    fn limits(&self) -> Limits;

    /// Makes sure that the store can be used, and makes it if it is not there. Returns what its commits are worth, if it
    /// says so.
    ///
    /// # Errors
    /// [`ConnectError::Refused`] if somebody must change something.
    fn examine(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        ready(Ok(None))
    }

    /// What its commits are worth now, if it says so. Keeps no commit and no read waiting, and changes nothing.
    ///
    /// # Errors
    /// If that cannot be found out now.
    fn worth(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        ready(Ok(None))
    }

    /// Resolves when it has to connect again from now on, perhaps to another server. No request need fail over that.
    fn reconnected(&self) -> impl Future<Output = ()> + Send + 'static {
        pending()
    }

    /// How somebody removes a record by hand, with the store's own tools.
    fn removal(&self, _path: &str) -> Option<String> {
        None
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static;

    /// Reads all parts at one moment, and tells which moment that is.
    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static;

    /// Resolves when there may be a revision after this one: a hint, which may be late, or not come at all.
    fn changed(&self, _since: Revision) -> impl Future<Output = ()> + Send + 'static {
        pending()
    }
}

/// What somebody finds who looks at a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    pub worth: Worth,
    /// What is special for a node that begins to use it.
    pub for_node: Option<&'static str>,
}

/// A store that is a service, at the place that its settings name.
pub trait Remote: Store {
    /// Where it is, for messages.
    fn place(&self) -> String;

    /// Looks at it and changes nothing.
    ///
    /// # Errors
    /// As [`Store::examine`].
    fn look(&self) -> impl Future<Output = Result<Looked, ConnectError>> + Send;
}

/// Refuses a commit that is larger than the store takes, or names a record twice.
///
/// # Errors
/// If it is refused.
pub fn check(ops: &[Op], limits: Limits) -> Result<(), NotDone> {
    let bytes_of = |op: &Op| match &op.then {
        Then::Put(data) => op.path.len() + data.len(),
        Then::Nothing | Then::Delete => op.path.len(),
    };
    let bytes: usize = ops.iter().map(bytes_of).sum();
    let paths: BTreeSet<&str> = ops.iter().map(|op| op.path.as_str()).collect();
    let why = match () {
        () if paths.len() < ops.len() => Error::Refused("a commit names a record twice".to_owned()),
        () if ops.len() > limits.operations => {
            Error::Refused(format!("a commit has {} operations, and may have {}", ops.len(), limits.operations))
        }
        () if bytes > limits.bytes => Error::TooLarge { bytes, most: limits.bytes },
        () => return Ok(()),
    };
    Err(NotDone::Failed(why))
}

impl If {
    /// True if it holds of a record with this version, or of no record if that is `None`.
    pub fn holds(self, found: Option<Version>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::Exists => found.is_some(),
            Self::Version(version) => found == Some(version),
            Self::Anything => true,
        }
    }
}
