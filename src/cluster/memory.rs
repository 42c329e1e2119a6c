//! The port [`store`](crate::store) in memory: the model that real stores are held against.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::paths;
use crate::store::{self, Done, Found, Head, KEPT_NONCES, Meta, NotDone, Op, Store, Then, Wanted};
use crate::tree::{Error, Limits, Revision};

/// A store that lasts as long as its clones.
#[derive(Clone)]
pub struct Memory {
    records: Arc<Mutex<Records>>,
    revision: watch::Sender<Revision>,
}

/// Records, and the order of what was committed.
#[derive(Clone, Debug, Default)]
pub struct Records {
    records: BTreeMap<String, (Vec<u8>, Meta)>,
    head: Head,
    nonces: BTreeMap<Revision, u64>,
}

impl Records {
    /// Carries a commit with this nonce out at this time.
    pub fn commit(&mut self, ops: &[Op], nonce: u64, at: Timestamp) -> Result<Done, NotDone> {
        for (index, op) in ops.iter().enumerate() {
            let found = self.records.get(&op.path).map(|(_, meta)| meta.version);
            if !op.when.holds(found) {
                return Err(NotDone::Refused { index, found });
            }
        }
        self.head = Head { revision: Revision(self.head.revision.0 + 1), nonce };
        self.nonces.insert(self.head.revision, nonce);
        self.nonces.remove(&Revision(self.head.revision.0 - KEPT_NONCES));
        for Op { path, then, .. } in ops {
            match then {
                Then::Nothing => {}
                Then::Put(data) => self.put(path, data, at),
                Then::Delete => drop(self.records.remove(path)),
            }
        }
        Ok(Done { revision: self.head.revision, nonce, at: Some(at) })
    }

    fn put(&mut self, path: &str, data: &[u8], at: Timestamp) {
        let made = Meta { created: self.head.revision, created_at: at, ..Meta::default() };
        let before = self.records.get(path).map(|(_, meta)| Meta { version: meta.version.next(), ..meta.clone() });
        let meta = before.unwrap_or(made);
        let meta = Meta { changed: self.head.revision, changed_at: at, bytes: data.len(), ..meta };
        self.records.insert(path.to_owned(), (data.to_vec(), meta));
    }

    pub fn read(&self, wanted: &Wanted) -> Found {
        match wanted {
            Wanted::Meta(path) => Found::Meta(self.records.get(path).map(|(_, meta)| meta.clone())),
            Wanted::Record(path) => Found::Record(self.records.get(path).cloned()),
            Wanted::Nonce(revision) => Found::Nonce(self.nonces.get(revision).copied()),
            Wanted::Names(parent) => {
                let below = format!("{parent}/");
                let inside = self.records.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
                let direct = inside.filter(|(path, _)| paths::parent(path) == parent);
                Found::Names(direct.map(|(path, (_, meta))| (path[below.len()..].to_owned(), meta.clone())).collect())
            }
        }
    }

    pub fn head(&self) -> Head {
        self.head
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self { records: Arc::default(), revision: watch::Sender::new(Revision::default()) }
    }
}

#[cfg(test)]
impl Memory {
    /// Its state, to go back to.
    pub fn copy(&self) -> Records {
        self.records().clone()
    }

    /// Loses everything that was committed since this copy.
    pub fn rewind(&self, to: Records) {
        *self.records() = to;
    }
}

impl Memory {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    const SERVICE: &'static str = "the store in memory";

    fn limits(&self) -> Limits {
        Limits { operations: 200, bytes: 128 << 10, in_flight: 1, repeats: false, last_number: i64::MAX }
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let at = cronkeeper_core::clock::system::now().wall;
        let done = store::check(&ops, self.limits());
        let done = done.and_then(|()| self.records().commit(&ops, Uuid::new_v4().as_u64_pair().1, at));
        if let Ok(done) = done {
            self.revision.send_replace(done.revision);
        }
        ready(done)
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let records = self.records();
        let found = wanted.iter().map(|wanted| records.read(wanted)).collect();
        ready(Ok((records.head, found)))
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let mut revision = self.revision.subscribe();
        // The sender may be gone together with the store.
        async move { drop(revision.wait_for(|revision| *revision > since).await) }
    }
}
