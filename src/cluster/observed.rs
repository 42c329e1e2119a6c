//! The port [`tree`](crate::tree) on any [`store`](crate::store): sessions, order of arrival and one-time watches, built
//! once for all stores.
//!
//! ```text
//!  recipes ─ tree ─ handle ─ requests ─► driver ┬ plan        a commit in the words of the store
//!                                               ├ sightings   which sessions have been silent for how long
//!                                               ├ heads       whether the store has lost commits
//!                                               ├ watches     what is compared with each poll
//!                                               └ store
//!                              examiner ─► store              what its commits are worth
//! ```
//!
//! **A session is a record**, `/cronkeeper/sessions/<id>`. Each commit of the session checks its version and writes it anew, with a
//! beat if nothing else was committed for a tenth of the timeout T. So every commit that is acknowledged proves that the
//! session lived, a commit that was sent twice takes effect once, and whether a commit without an answer took effect
//! shows in the version that it would have made.
//!
//! **A session is over** when somebody has removed its record. Whoever has seen the same version for T, by its own clock
//! and without a gap in what the store answered, removes it at that version, together with the session's entries. The
//! comparison is the fence: a session that has written since lives on, and one that is removed can commit nothing more.
//! The owner acts for at most 0.85 T after it sent its last write, so it has stopped before, if no clock is 15 % faster
//! than another. No limit of the service's own takes part. When the store answers nobody, nobody's time runs.
//!
//! **A store may lose commits** that it had acknowledged. A session that finds that ([`heads`]) leaves a record for
//! whoever leads next, and its connection counts as lost: the recipes look again for what they have written.
//!
//! **Requests take effect in the order of the calls**, because one task, the driver, carries them out one after the
//! other. Reads that wait together are one request.
//!
//! **Whoever writes for people** has a record too, for as long as that write takes. So no copy of it takes effect later,
//! beside what they ask for next.
//!
//! **An entry** names its session in its data. **Appended records** get their numbers from a record of their own,
//! `/cronkeeper/numbers/<folder>`, so that none is ever used twice. A folder of the history is a record too, without data.

mod driver;
mod examiner;
mod heads;
mod plan;
mod sightings;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::BTreeSet;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use self::driver::{Answer, Contact, Driver, Request, Written};
pub use self::heads::Heads;
pub use self::plan::unwrap;
use crate::paths;
use crate::store::{Found, Meta, Store, Wanted};
use crate::tree::{
    AtVersion, CommitError, Committed, Connect, ConnectError, Error, Failed, Lend, Life, Limits, Op, Read, Record,
    Session, Stat, State, Watch,
};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::Worth;
use cronkeeper_core::lease::EachWrite;
use cronkeeper_core::term::SessionId;

/// Where the records of sessions are.
const SESSIONS: &str = "/cronkeeper/sessions";
/// Where the numbers are that appended records get, by folder.
const NUMBERS: &str = "/cronkeeper/numbers";

/// Runs a session's driver.
pub trait Spawn: Clone + Send + Sync + 'static {
    /// Runs a task until it ends by itself, or this process does.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Runs drivers on tokio.
#[derive(Clone, Copy, Debug)]
pub struct OnTokio;

impl Spawn for OnTokio {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

/// Opens sessions with a store, or lends them.
#[derive(Clone)]
pub struct Observed<S, K, P> {
    pub store: S,
    pub clock: K,
    pub spawn: P,
    /// How long a session lasts in silence.
    pub timeout: Duration,
    /// Draws the ids of sessions.
    pub uuid: Arc<dyn Fn() -> Uuid + Send + Sync>,
    /// What the sessions of this process were shown last.
    pub heads: Arc<Mutex<Heads>>,
}

impl<S: Store, K: Clock, P: Spawn> Observed<S, K, P> {
    fn driver(&self, requests: mpsc::UnboundedReceiver<Request>) -> Driver<S, K> {
        let (uuid, timeout) = (Arc::clone(&self.uuid), self.timeout);
        let names = Box::new(move || sightings::name(uuid(), timeout));
        let heads = Arc::clone(&self.heads);
        Driver::without_record(self.store.clone(), self.clock.clone(), names, heads, self.timeout, requests)
    }

    /// A session with this driver.
    fn start(&self, driver: Driver<S, K>, requests: mpsc::UnboundedSender<Request>) -> ObservedSession<S> {
        let (id, contact) = (driver.id().clone(), driver.contact());
        let (sender, worth) = watch::channel(driver.worth().cloned());
        self.spawn.spawn(Box::pin(driver.run()));
        if worth.borrow().is_some() {
            let (store, clock) = (self.store.clone(), self.clock.clone());
            self.spawn.spawn(Box::pin(examiner::keep(store, clock, contact.clone(), sender)));
        }
        let limits = plan::within(self.store.limits());
        ObservedSession { id, timeout: self.timeout, limits, worth, requests, contact, store: self.store.clone() }
    }
}

impl<S: Store, K: Clock, P: Spawn> Connect for Observed<S, K, P> {
    type Session = ObservedSession<S>;

    async fn connect(&self) -> Result<ObservedSession<S>, ConnectError> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let driver = self.driver(receiver).open().await?;
        Ok(self.start(driver, sender))
    }
}

impl<S: Store, K: Clock, P: Spawn> Lend for Observed<S, K, P> {
    type Session = ObservedSession<S>;

    async fn session(&self) -> Result<ObservedSession<S>, ConnectError> {
        let (sender, receiver) = mpsc::unbounded_channel();
        Ok(self.start(self.driver(receiver), sender))
    }
}

/// A session with a store. The driver carries its requests out.
pub struct ObservedSession<S> {
    id: SessionId,
    timeout: Duration,
    limits: Limits,
    /// Its sender is gone if nothing is known of it.
    worth: watch::Receiver<Option<Worth>>,
    /// Closed if the driver has ended, and with it the session.
    requests: mpsc::UnboundedSender<Request>,
    contact: watch::Receiver<Contact>,
    store: S,
}

impl<S: Clone> Clone for ObservedSession<S> {
    fn clone(&self) -> Self {
        let Self { id, timeout, limits, worth, requests, contact, store } = self;
        let (id, worth, requests, contact) = (id.clone(), worth.clone(), requests.clone(), contact.clone());
        Self { id, timeout: *timeout, limits: *limits, worth, requests, contact, store: store.clone() }
    }
}

/// A one-time watch, which the driver fires.
pub struct Fires(oneshot::Receiver<()>);

impl Watch for Fires {
    async fn fired(self) {
        // The sender is gone with the session.
        let _ = self.0.await;
    }
}

impl<S> ObservedSession<S> {
    /// Hands a request over. The answer's sender is dropped if the session is over.
    fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        let _ = self.requests.send(request(answer));
        answered
    }

    /// Ends the session, and with it its entries. Returns when that was tried.
    pub async fn close(self) {
        let _ = self.requests.send(Request::Close);
        let mut contact = self.contact.clone();
        drop(self);
        // The driver ends in any case.
        let _ = contact.wait_for(|contact| contact.state == State::Expired).await;
    }

    fn read(&self, wanted: Vec<Wanted>) -> oneshot::Receiver<Result<Vec<Found>, Error>> {
        self.ask(|answer| Request::Read { wanted, answer })
    }

    fn read_and_watch(&self, wanted: Wanted) -> oneshot::Receiver<Result<driver::Seen, Error>> {
        self.ask(|answer| Request::Watch { wanted, answer })
    }

    fn write(&self, ops: Vec<Op>) -> oneshot::Receiver<Result<Written, CommitError>> {
        self.ask(|answer| Request::Commit { ops, answer })
    }

    /// What is known of a record that this session makes now.
    fn new_record(&self, data: &[u8], life: Life) -> Stat {
        let session = (life == Life::OfSession).then(|| self.id.clone());
        Stat { session, bytes: data.len(), ..Stat::default() }
    }
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    answer.await.unwrap_or(Err(Error::SessionOver))
}

async fn written(answer: oneshot::Receiver<Result<Written, CommitError>>) -> Result<Written, CommitError> {
    answer.await.unwrap_or(Err(CommitError { index: None, error: Error::SessionOver }))
}

/// The path of the one record that was made, and what is known of it.
async fn made(answer: oneshot::Receiver<Result<Written, CommitError>>, record: Stat) -> Result<(String, Stat), Error> {
    let Written { revision, committed } = written(answer).await.map_err(|failed| failed.error)?;
    let at = committed.at.unwrap_or_default();
    let path = committed.created.into_iter().next().unwrap_or_default();
    Ok((path, Stat { created: revision, changed: revision, created_at: at, changed_at: at, ..record }))
}

impl<S: Store> Session for ObservedSession<S> {
    const SERVICE: &'static str = S::SERVICE;
    const NOTES_LOSSES: bool = true;
    type Watch = Fires;
    type Proof = EachWrite;

    fn id(&self) -> SessionId {
        self.id.clone()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn worth(&self) -> Option<Worth> {
        self.worth.borrow().clone()
    }

    async fn worth_changed(&mut self) -> Worth {
        loop {
            if self.worth.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let worth = self.worth.borrow_and_update().clone();
            if let Some(worth) = worth {
                return worth;
            }
        }
    }

    fn removal(&self, path: &str) -> Option<String> {
        self.store.removal(path)
    }

    fn proof(&self) -> EachWrite {
        EachWrite
    }

    fn state(&self) -> State {
        self.contact.borrow().state
    }

    fn failure(&self) -> Option<String> {
        self.contact.borrow().failure.clone()
    }

    async fn state_changed(&mut self) -> State {
        if self.contact.changed().await.is_err() {
            // The driver has ended with the session, and has said so.
            std::future::pending::<()>().await;
        }
        self.contact.borrow_and_update().state
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Committed, CommitError>> + Send + 'static {
        let answer = self.write(ops);
        async move { written(answer).await.map(|written| written.committed) }
    }

    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        life: Life,
    ) -> impl Future<Output = Result<Stat, Error>> + Send + 'static {
        let record = self.new_record(&data, life);
        let answer = self.write(vec![Op::Create { path: path.to_owned(), data, life }]);
        async move { made(answer, record).await.map(|(_, stat)| stat) }
    }

    fn append(
        &self,
        folder: &str,
        prefix: &str,
        data: Vec<u8>,
        life: Life,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let record = self.new_record(&data, life);
        let append = Op::Append { folder: folder.to_owned(), prefix: prefix.to_owned(), data, life };
        made(self.write(vec![append]), record)
    }

    fn delete(&self, path: &str, at: AtVersion) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let answer = self.write(vec![Op::Delete { path: path.to_owned(), at }]);
        async move { written(answer).await.map(drop).map_err(|failed| failed.error) }
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<Record, Error>> + Send + 'static {
        let (found, path) = (self.read(vec![Wanted::Record(path.to_owned())]), path.to_owned());
        async move { record(&path, answered(found).await?.pop()) }
    }

    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        let (found, path) = (self.read(plan::stat_of(path)), path.to_owned());
        async move { Ok(stat(&path, answered(found).await?)) }
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Fires), Error>> + Send + 'static {
        let (found, path) = (self.read_and_watch(Wanted::Record(path.to_owned())), path.to_owned());
        async move { answered(found).await.map(|(found, fires)| (stat(&path, vec![found]), Fires(fires))) }
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Fires), Error>> + Send + 'static {
        let (found, path) = (self.read_and_watch(Wanted::Record(path.to_owned())), path.to_owned());
        async move {
            let (found, fires) = answered(found).await?;
            record(&path, Some(found)).map(|(data, stat)| (data, stat, Fires(fires)))
        }
    }

    fn names(&self, folder: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let folder = if folder == "/" { "" } else { folder };
        let found = self.read(vec![Wanted::Names(folder.to_owned())]);
        async move { Ok(names(answered(found).await?.pop())) }
    }

    fn names_and_watch(
        &self,
        folder: &str,
    ) -> impl Future<Output = Result<(Vec<String>, Fires), Error>> + Send + 'static {
        let found = self.read_and_watch(Wanted::Names(folder.to_owned()));
        async move { answered(found).await.map(|(found, fires)| (names(Some(found)), Fires(fires))) }
    }

    fn get_many(&self, wanted: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let found = self.read(wanted.iter().cloned().map(Wanted::Record).collect());
        async move {
            let found = answered(found).await?;
            Ok(wanted.iter().zip(found).map(|(path, found)| record(path, Some(found))).collect())
        }
    }

    fn in_order(
        &self,
        _folder: &str,
        names: Vec<String>,
    ) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let numbered = names.into_iter().filter_map(|name| Some((plan::number(&name)?, name)));
        let numbered: BTreeSet<(i64, String)> = numbered.collect();
        ready(Ok(numbered.into_iter().map(|(_, name)| name).collect()))
    }

    fn make_folders(&self, folders: Vec<String>) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
        let all = folders.iter().flat_map(|folder| paths::ancestors(folder).chain([folder.as_str()]));
        let all: BTreeSet<String> = all.map(str::to_owned).collect();
        let make = |path: String| {
            let op = Op::Create { path: path.clone(), data: Vec::new(), life: Life::Lasting };
            (self.write(vec![op]), path)
        };
        let asked: Vec<_> = all.into_iter().map(make).collect();
        async move {
            for (answer, path) in asked {
                match written(answer).await {
                    Ok(_) | Err(CommitError { error: Error::Exists, .. }) => {}
                    Err(failed) => return Err((path, failed.error)),
                }
            }
            Ok(())
        }
    }
}

/// The record at this path, as read.
fn record(path: &str, found: Option<Found>) -> Result<Record, Error> {
    match found {
        Some(Found::Record(Some((data, meta)))) => {
            let (session, data) = plan::unwrap(path, data);
            let bytes = data.len();
            Ok((data, Stat { bytes, ..stat_of(meta, session) }))
        }
        _ => Err(Error::Missing),
    }
}

/// What is known of the record at this path, and of what is below it, as far as that was read.
fn stat(path: &str, found: Vec<Found>) -> Option<Stat> {
    let mut found = found.into_iter();
    let stat = match found.next()? {
        Found::Meta(meta) => stat_of(meta?, None),
        read @ Found::Record(_) => record(path, Some(read)).ok()?.1,
        Found::Names(_) | Found::Nonce(_) => return None,
    };
    let below = found.next().map(|below| i64::try_from(names(Some(below)).len()).unwrap_or(i64::MAX));
    // Where the names were not read: whatever is made below a folder changes its record.
    Some(Stat { below: below.unwrap_or(stat.version.0.into()), ..stat })
}

fn stat_of(meta: Meta, session: Option<SessionId>) -> Stat {
    let Meta { version, created, changed, created_at, changed_at, bytes } = meta;
    Stat { created, changed, created_at, changed_at, version, session, bytes, below: 0 }
}

fn names(found: Option<Found>) -> Vec<String> {
    match found {
        Some(Found::Names(names)) => names.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}
