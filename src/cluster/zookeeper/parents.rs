//! The parents of the cluster's records, which the servers want to be there before the first record below them.
//!
//! Every job has a znode of its own that holds its history, made with the first record below it. A transaction for
//! each of them alone would cost the servers as much as all that a multi of fifty changes writes. So the multi that
//! needs some of them creates them itself. Which ones exist is remembered for a session: the session lists them as soon
//! as it needs one that it does not know, in the same round trip as the first try of the multi.
//!
//! A multi is sent again only if the servers have refused it, so it is carried out once at most. But it may then take
//! effect later than requests that were handed over after it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};

use super::client::{Client, Done, Error, Mode, MultiError, Op, State};
use crate::paths;

/// Most times that a multi makes parents again which are gone. If they keep disappearing, somebody removes them on
/// purpose.
const MOST_MADE: usize = 3;

/// The znodes that hold the histories of jobs, as far as a session knows them.
#[derive(Clone, Debug, Default)]
pub struct Parents(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    histories: BTreeSet<String>,
    /// A listing of all of them has been answered since one was found to be gone.
    is_listed: bool,
}

impl Parents {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self, names: &[String]) {
        let mut known = self.known();
        known.histories.extend(names.iter().map(|name| paths::under(paths::HISTORY, name)));
        known.is_listed = true;
    }

    /// Carries out a multi, and creates the parents that it needs. The first try is handed over before this returns.
    pub fn multi<C: Client>(
        &self,
        client: &C,
        ops: Vec<Op>,
    ) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static + use<C> {
        let multi = Multi { client: client.clone(), parents: self.clone(), ops };
        let first = multi.send(None);
        multi.answer(first)
    }
}

/// A multi of the caller's operations.
struct Multi<C> {
    client: C,
    parents: Parents,
    ops: Vec<Op>,
}

/// A try of a multi that is on its way.
struct Sent {
    /// Parents that are created before it, because they were gone.
    before: Vec<BoxFuture<'static, Result<(), Error>>>,
    listing: Option<BoxFuture<'static, Result<Vec<String>, Error>>>,
    /// What each of its operations is for.
    origins: Vec<Origin>,
    multi: BoxFuture<'static, Result<Vec<Done>, MultiError>>,
}

/// What an operation of a multi is for.
#[derive(Clone, Copy)]
enum Origin {
    /// It is the caller's operation with this index.
    Caller(usize),
    /// It creates the history for the caller's operation with this index.
    History(usize),
}

/// What follows from the refusal of a multi.
enum Next<'a> {
    /// Parents are gone: it is sent again, after creates of what this path lies below, if one is named.
    Make(Option<&'a str>),
    /// It is sent again, with the creates that are now known to be needed.
    Adapt,
    /// It stays refused.
    Fail,
}

impl<C: Client> Multi<C> {
    fn send(&self, missing: Option<&str>) -> Sent {
        let create = |path| self.client.create(path, Vec::new(), Mode::Persistent).map(|made| made.map(drop)).boxed();
        // Requests of a session are carried out in order: these exist when the multi runs.
        let before = missing.into_iter().flat_map(paths::ancestors).map(create).collect();
        let mut known = self.parents.known();
        let (mut ops, mut origins, mut inside) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (index, op) in self.ops.iter().enumerate() {
            if let Op::Delete { path, .. } = op {
                known.histories.remove(path);
            }
            if let Some(parent) = history_of(op)
                && !known.histories.contains(parent)
                && inside.insert(parent)
            {
                ops.push(Op::Create { path: parent.to_owned(), data: Vec::new(), mode: Mode::Persistent });
                origins.push(Origin::History(index));
            }
            ops.push(op.clone());
            origins.push(Origin::Caller(index));
        }
        let needs_listing = !inside.is_empty() && !known.is_listed;
        let listing = needs_listing.then(|| self.client.children(paths::HISTORY).boxed());
        Sent { before, listing, origins, multi: self.client.multi(ops).boxed() }
    }

    async fn answer(self, mut sent: Sent) -> Result<Vec<Done>, MultiError> {
        let mut made = 0;
        loop {
            join_all(sent.before).await;
            if let Some(listing) = sent.listing
                && let Ok(names) = listing.await
            {
                self.parents.listed(&names);
            }
            let failed = match sent.multi.await {
                Ok(done) => return Ok(self.accepted(sent.origins, done)),
                Err(failed) => failed,
            };
            let Some(&origin) = failed.index.and_then(|index| sent.origins.get(index)) else { return Err(failed) };
            let missing = match self.next(origin, &failed.error) {
                Next::Adapt => None,
                Next::Make(path) if made < MOST_MADE => {
                    made += 1;
                    path
                }
                Next::Make(_) | Next::Fail => {
                    let (Origin::Caller(index) | Origin::History(index)) = origin;
                    return Err(MultiError { index: Some(index), ..failed });
                }
            };
            // A request that is given up while disconnected would still be carried out later.
            if self.client.state() != State::Connected {
                return Err(MultiError { index: None, error: Error::Unanswered("the connection is lost".to_owned()) });
            }
            sent = self.send(missing);
        }
    }

    fn next(&self, origin: Origin, error: &Error) -> Next<'_> {
        let (Origin::Caller(index) | Origin::History(index)) = origin;
        let Some(op @ Op::Create { path, .. }) = self.ops.get(index) else { return Next::Fail };
        match (origin, history_of(op), error) {
            (_, _, Error::Unanswered(_) | Error::SessionOver) => Next::Fail,
            (Origin::History(_), history, Error::NoNode) => Next::Make(history),
            // It exists, or this node may only write below it.
            (Origin::History(_), history, _) => {
                self.parents.known().histories.extend(history.map(str::to_owned));
                Next::Adapt
            }
            (Origin::Caller(_), Some(_), Error::NoNode) => {
                // If one is gone, the others may be gone as well.
                let mut known = self.parents.known();
                for history in self.ops.iter().filter_map(history_of) {
                    known.histories.remove(history);
                }
                known.is_listed = false;
                Next::Make(None)
            }
            (Origin::Caller(_), None, Error::NoNode) if is_of_cluster(path) => Next::Make(Some(path)),
            (Origin::Caller(_), ..) => Next::Fail,
        }
    }

    /// The results of the caller's operations.
    fn accepted(&self, origins: Vec<Origin>, done: Vec<Done>) -> Vec<Done> {
        let mut of_caller = Vec::with_capacity(self.ops.len());
        for (origin, done) in origins.into_iter().zip(done) {
            match origin {
                Origin::Caller(_) => of_caller.push(done),
                Origin::History(index) => {
                    let history = self.ops.get(index).and_then(history_of);
                    self.parents.known().histories.extend(history.map(str::to_owned));
                }
            }
        }
        of_caller
    }
}

/// The znode that holds the job's history, if the operation creates a record of it.
fn history_of(op: &Op) -> Option<&str> {
    let Op::Create { path, .. } = op else { return None };
    Some(paths::parent(path)).filter(|parent| paths::is_job_history(parent))
}

/// True if the path lies directly below one of the znodes that every cluster or every node has.
fn is_of_cluster(path: &str) -> bool {
    let parent = paths::parent(path);
    paths::PARENTS.contains(&parent) || parent == paths::GONE || paths::is_offers_of_node(parent)
}

#[cfg(test)]
mod tests;
