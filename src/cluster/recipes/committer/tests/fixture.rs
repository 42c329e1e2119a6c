//! A committer whose server can lose requests and answers, and whose answers are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use jiff::Timestamp;
use serde::Serialize;

use super::*;
use crate::recipes::context::json;
use crate::recipes::tests_support::{OWNER, Server};
use cronkeeper_core::clock::{Now, Wake};

pub const CANDIDATE: &str = "/leader/_c_1-lock-0000000001";

pub struct Fixture {
    pub server: Server,
    pub committer: Committer<Server, Ticks>,
    pub answers: BTreeMap<CommitId, Commit>,
    pub before: BTreeMap<CommitId, Outcome>,
    pub tokens: BTreeMap<CommitId, FencingToken>,
    pub is_fenced: bool,
    pub is_member_gone: bool,
    pub deferred: Vec<CommitId>,
    pub refused: Vec<Damage>,
    pub mended: Vec<String>,
    pub last: u64,
}

impl Fixture {
    pub fn new() -> Self {
        let server = Server::default();
        server.tree().put_ephemeral(CANDIDATE, OWNER);
        let committer = Committer::new(server.context(Ticks::default()));
        Self {
            server,
            committer,
            answers: BTreeMap::new(),
            before: BTreeMap::new(),
            tokens: BTreeMap::new(),
            is_fenced: false,
            is_member_gone: false,
            deferred: Vec::new(),
            refused: Vec::new(),
            mended: Vec::new(),
            last: 0,
        }
    }

    pub fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.server.tree().fates.extend(fates);
    }

    pub fn put(&self, path: String, record: &impl Serialize) {
        self.server.tree().put(&path, json(record));
    }

    pub fn request(&mut self, change: Change) -> CommitId {
        self.last += 1;
        let fence = change.is_fenced().then(|| CANDIDATE.to_owned());
        self.answers.extend(self.committer.request(CommitId(self.last), change, fence));
        CommitId(self.last)
    }

    /// Sends what is due and completes one request; false if nothing is in flight.
    pub fn turn(&mut self) -> bool {
        self.committer.start_next();
        let Some(completed) = self.committer.completed().now_or_never().flatten() else { return false };
        let outcome = self.committer.complete(completed);
        self.is_fenced |= outcome.is_fenced;
        self.is_member_gone |= outcome.is_member_gone;
        self.tokens.extend(outcome.tokens);
        self.deferred.extend(outcome.deferred);
        self.refused.extend(outcome.refused);
        self.mended.extend(outcome.mended);
        self.before.extend(outcome.before);
        for (id, answer) in outcome.answers {
            assert!(self.answers.insert(id, answer).is_none(), "{id:?} was answered twice");
        }
        true
    }

    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the commits did not settle");
    }

    /// Settles repeatedly, as time passes, until this change is answered.
    pub fn await_answer(&mut self, id: CommitId) -> Option<Commit> {
        for _ in 0..200 {
            self.settle();
            if let Some(&answer) = self.answers.get(&id) {
                return Some(answer);
            }
        }
        None
    }

    pub fn commit(&mut self, change: Change) -> Commit {
        let id = self.request(change);
        self.settle();
        self.answers[&id]
    }

    pub fn version(&self, path: &str) -> Option<i32> {
        self.server.tree().stat(path).map(|stat| stat.version)
    }
}

/// A clock that advances one second per reading, so that nothing stays deferred.
#[derive(Clone, Default)]
pub struct Ticks(Arc<Mutex<u64>>);

impl Clock for Ticks {
    fn now(&self) -> Now {
        let mut ticks = self.0.lock().unwrap();
        *ticks += 1;
        Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::from_nanos(*ticks * 1_000_000_000) }
    }

    async fn sleep_until(&self, _: Wake) {}
}
