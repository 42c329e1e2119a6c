//! The port [`tree`](crate::tree) on znodes: a record is a znode, a folder its parent.
//!
//! Generic over [`client`](super::client), so that the simulated ensemble serves it as real servers do.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::client::{self, Client, Done, Mode};
use super::parents::Parents;
use super::proof::PairedWrites;
use super::{chroot, folders, rights, session_id};
use crate::paths;
use crate::queue::{self, QueueEntry};
use crate::tree::{
    AtVersion, CommitError, Committed, Connect, ConnectError, Error, Failed, Lend, Life, Limits, Op, Ownership, Read,
    Record, Revision, Secured, Session, Stat, State,
};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::run::Version;
use cronkeeper_core::term::SessionId;

/// The servers take 1 MiB by default. The parents that a multi makes come on top, as many as it has operations at most.
const LIMITS: Limits =
    Limits { operations: 200, bytes: 128 * 1024, in_flight: 8, repeats: true, last_number: i32::MAX as i64 };

/// What opens or lends sessions with ZooKeeper, for the recipes.
#[derive(Clone)]
pub struct Znodes<C>(pub C);

/// A session with ZooKeeper, as the recipes use it.
#[derive(Clone)]
pub struct ZnodeSession<C> {
    pub(super) client: C,
    parents: Parents,
}

impl<C: Client> ZnodeSession<C> {
    pub fn of(client: C) -> Self {
        Self { client, parents: Parents::default() }
    }

    /// The session without what the recipes need.
    pub fn into_client(self) -> C {
        self.client
    }
}

impl<C: client::Connect> Connect for Znodes<C> {
    type Session = ZnodeSession<C::Client>;

    async fn connect(&self) -> Result<Self::Session, ConnectError> {
        self.0.connect().await.map(ZnodeSession::of)
    }

    fn explain(&self, error: String) -> impl Future<Output = String> + Send + 'static {
        self.0.explain(error)
    }
}

impl<L: client::Lend> Lend for Znodes<L> {
    type Session = ZnodeSession<L::Client>;

    async fn session(&self) -> Result<Self::Session, ConnectError> {
        self.0.session().await.map(ZnodeSession::of)
    }
}

impl<C: Client> Session for ZnodeSession<C> {
    const SERVICE: &'static str = "ZooKeeper";
    type Watch = C::Watch;
    type Proof = PairedWrites;

    fn id(&self) -> SessionId {
        self.client.id()
    }

    fn timeout(&self) -> Duration {
        self.client.timeout()
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn proof(&self) -> PairedWrites {
        PairedWrites::new(self.timeout())
    }

    fn state(&self) -> State {
        self.client.state()
    }

    async fn state_changed(&mut self) -> State {
        self.client.state_changed().await
    }

    /// Relative to the chroot, as the nodes' connect string is.
    fn removal(&self, path: &str) -> Option<String> {
        Some(format!("`deleteall {path}` in zkCli.sh, with the nodes' connect string"))
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Committed, CommitError>> + Send + 'static {
        let multi = self.parents.multi(&self.client, ops.into_iter().map(Into::into).collect());
        async move {
            let done = multi.await.map_err(|failed| CommitError { index: failed.index, error: failed.error.into() })?;
            // The stamp on a create does not count: inside a multi 3.8.0 fills in garbage.
            let set = done.iter().find_map(|done| match done {
                Done::Set(stat) => Some(*stat),
                Done::Created(_) | Done::Nothing => None,
            });
            let at = set.and_then(|stat| Timestamp::from_millisecond(stat.mtime_ms).ok());
            let revision = set.map(|stat| Revision(stat.mzxid));
            let created = done.into_iter().filter_map(|done| match done {
                Done::Created(path) => Some(path),
                Done::Set(_) | Done::Nothing => None,
            });
            Ok(Committed { created: created.collect(), at, revision })
        }
    }

    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        life: Life,
    ) -> impl Future<Output = Result<Stat, Error>> + Send + 'static {
        let (create, path) = (self.client.create(path, data, named(life)), path.to_owned());
        async move { create.await.map(|(_, made)| stat(made)).map_err(|error| chroot::of_create(&path, error)) }
    }

    fn append(
        &self,
        folder: &str,
        prefix: &str,
        data: Vec<u8>,
        life: Life,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let create = self.client.create(&paths::under(folder, prefix), data, sequential(life)).boxed();
        async move { create.await.map(|(path, made)| (path, stat(made))).map_err(Error::from) }
    }

    fn delete(&self, path: &str, at: AtVersion) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.client.delete(path, version(at)).map(|deleted| deleted.map_err(Error::from))
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<Record, Error>> + Send + 'static {
        self.client.get(path).map(read)
    }

    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        self.client.stat(path).map(|found| found.map(|found| found.map(stat)).map_err(Error::from))
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Self::Watch), Error>> + Send + 'static {
        let found = self.client.stat_and_watch(path);
        async move { found.await.map(|(found, watch)| (found.map(stat), watch)).map_err(Error::from) }
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Self::Watch), Error>> + Send + 'static {
        let found = self.client.get_and_watch(path);
        async move { found.await.map(|(data, found, watch)| (data, stat(found), watch)).map_err(Error::from) }
    }

    fn names(&self, folder: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        self.client.children(folder).map(|names| names.map_err(Error::from))
    }

    fn names_and_watch(
        &self,
        folder: &str,
    ) -> impl Future<Output = Result<(Vec<String>, Self::Watch), Error>> + Send + 'static {
        self.client.children_and_watch(folder).map(|found| found.map_err(Error::from))
    }

    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        self.client.get_many(paths).map(|reads| Ok(reads.map_err(Error::from)?.into_iter().map(read).collect()))
    }

    /// Where names alone do not give the order, reads when each was created.
    fn in_order(
        &self,
        folder: &str,
        names: Vec<String>,
    ) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        type Found = BoxFuture<'static, Result<Option<client::Stat>, client::Error>>;
        let needs_age = queue::needs_age(&names);
        let entry = |name: String| {
            let path = paths::under(folder, &name);
            let found: Option<Found> = needs_age.then(|| self.client.stat(&path).boxed());
            (name, found)
        };
        let requested: Vec<(String, Option<Found>)> = names.into_iter().map(entry).collect();
        async move {
            let mut entries = Vec::with_capacity(requested.len());
            for (name, found) in requested {
                let Some(found) = found else {
                    entries.push(QueueEntry { name, created: 0 });
                    continue;
                };
                match found.await.map_err(Error::from) {
                    Ok(found) => entries.extend(found.map(|stat| QueueEntry { name, created: stat.czxid })),
                    Err(error) if error.is_of_path() => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(queue::order(entries))
        }
    }

    fn make_folders(&self, paths: Vec<String>) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
        folders::make(self.client.clone(), paths)
    }

    fn check_root(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        chroot::check(self.client.clone())
    }

    fn check_founding(&self, record: &str) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        chroot::check_around(self.client.clone(), record.to_owned())
    }

    fn ownership(&self) -> Ownership {
        rights::ownership(self.client.belongs())
    }

    fn secure<K: Clock>(
        &self,
        own: String,
        locks: BTreeSet<LockPath>,
        clock: K,
    ) -> impl Future<Output = Result<Secured, Failed>> + Send + 'static {
        rights::secure(self.client.clone(), own, locks, clock)
    }

    fn exposed(
        &self,
        own: String,
        locks: BTreeSet<LockPath>,
    ) -> impl Future<Output = Result<Vec<String>, Failed>> + Send + 'static {
        rights::exposed(self.client.clone(), own, locks)
    }
}

impl From<Op> for client::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::Check { path, at } => Self::Check { path, version: version(at) },
            Op::Create { path, data, life } => Self::Create { path, data, mode: named(life) },
            Op::Append { folder, prefix, data, life } => {
                Self::Create { path: paths::under(&folder, &prefix), data, mode: sequential(life) }
            }
            Op::Set { path, data, at } => Self::Set { path, data, version: version(at) },
            Op::Delete { path, at } => Self::Delete { path, version: version(at) },
        }
    }
}

fn named(life: Life) -> Mode {
    match life {
        Life::Lasting => Mode::Persistent,
        Life::OfSession => Mode::Ephemeral,
    }
}

fn sequential(life: Life) -> Mode {
    match life {
        Life::Lasting => Mode::PersistentSequential,
        Life::OfSession => Mode::EphemeralSequential,
    }
}

fn version(at: AtVersion) -> i32 {
    match at {
        AtVersion::Any => -1,
        AtVersion::Version(Version(version)) => version,
    }
}

fn read(read: client::Read) -> Read {
    read.map(|(data, found)| (data, stat(found))).map_err(Error::from)
}

fn stat(found: client::Stat) -> Stat {
    let at = |ms| Timestamp::from_millisecond(ms).unwrap_or_default();
    Stat {
        created: Revision(found.czxid),
        changed: Revision(found.mzxid),
        created_at: at(found.ctime_ms),
        changed_at: at(found.mtime_ms),
        version: Version(found.version),
        session: found.is_of_session().then(|| session_id(found.ephemeral_owner)),
        bytes: found.data_length,
        below: found.cversion.into(),
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        match error {
            client::Error::NoNode => Self::Missing,
            client::Error::NodeExists => Self::Exists,
            client::Error::BadVersion => Self::Changed,
            client::Error::NotEmpty => Self::NotEmpty,
            client::Error::NoAuth => Self::Denied,
            client::Error::SessionOver => Self::SessionOver,
            client::Error::Unanswered(why) => Self::Unanswered(why),
            client::Error::Refused(why) => Self::Refused(why),
        }
    }
}
