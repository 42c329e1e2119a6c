//! In-memory server for unit tests: the simulation's znodes behind one session.
//!
//! What a write does and what it returns is up to the [`simulated`] tree, the one of the simulation's servers. A
//! request is carried out when it is handed over and answered at once, unless a test makes the server silent, loses
//! requests or answers, withdraws rights, or holds answers back.

#[path = "../../../tests/simulation/zookeeper/tree.rs"]
#[expect(dead_code, reason = "the simulation uses the rest")]
mod simulated;
mod tree;
#[path = "../../../tests/support/ledger/txn.rs"]
#[expect(dead_code, reason = "the simulation uses the rest")]
mod txn;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::client::{Client, Data, Done, Error, Mode, MultiError, Op, Read, Stat, State, Watch};
use super::{ZnodeSession, session_id};
use crate::paths;
use cronkeeper_core::clock::{Clock, Now, Uptime, Wake};
use cronkeeper_core::term::SessionId;
pub use tree::{Fate, Right, Tree};

/// The server's session.
pub const OWNER: i64 = 1;
/// Most round trips that a future may take.
const MOST_ROUNDS: usize = 100;

/// A session with the server, as the recipes use it.
pub type Server = ZnodeSession<Served>;

/// The server and its client in one.
#[derive(Clone)]
pub struct Served(Arc<Mutex<Tree>>);

impl Served {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap()
    }
}

/// A server with the znodes that every cluster has.
impl Default for Server {
    fn default() -> Self {
        let mut tree = Tree::new();
        paths::PARENTS.iter().for_each(|parent| tree.put(parent, ""));
        Self::of(Served(Arc::new(Mutex::new(tree))))
    }
}

impl Server {
    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.client.tree()
    }

    /// Completes a future that has sent nothing yet, and counts its round trips.
    pub fn round_trips<T>(&self, future: impl Future<Output = T>) -> (T, usize) {
        self.tree().hold_answers();
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for rounds in 0..MOST_ROUNDS {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return (output, rounds);
            }
            self.tree().next_round();
        }
        panic!("it is not complete after {MOST_ROUNDS} round trips");
    }
}

/// A watch that fires when its path changes.
pub struct Fires(oneshot::Receiver<()>);

impl Watch for Fires {
    async fn fired(self) {
        let _ = self.0.await;
    }
}

impl Client for Served {
    type Watch = Fires;

    fn id(&self) -> SessionId {
        session_id(OWNER)
    }

    fn owner_id(&self) -> i64 {
        OWNER
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn state(&self) -> State {
        State::Connected
    }

    async fn state_changed(&mut self) -> State {
        std::future::pending().await
    }

    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static {
        let mut tree = self.tree();
        let done = tree.multi(ops);
        tree.answer(done)
    }

    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let mut tree = self.tree();
        let made = tree.single(Op::Create { path: path.to_owned(), data, mode }).map(|(done, stat)| match done {
            Done::Created(path) => (path, stat),
            Done::Nothing | Done::Set(_) => unreachable!("a create creates"),
        });
        tree.answer(made)
    }

    fn delete(&self, path: &str, version: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let mut tree = self.tree();
        let deleted = tree.single(Op::Delete { path: path.to_owned(), version }).map(drop);
        tree.answer(deleted)
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static {
        let mut tree = self.tree();
        let found = tree.get(path);
        tree.answer(found)
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Fires), Error>> + Send + 'static {
        let mut tree = self.tree();
        let found = tree.listen().map(|()| (tree.stat(path), Fires(tree.watch(path))));
        tree.answer(found)
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Fires), Error>> + Send + 'static {
        let mut tree = self.tree();
        let found = tree.get(path).map(|(data, stat)| (data, stat, Fires(tree.watch(path))));
        tree.answer(found)
    }

    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let mut tree = self.tree();
        let names = tree.list(path);
        tree.answer(names)
    }

    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let mut tree = self.tree();
        let found = tree.get_many(&paths);
        tree.answer(found)
    }

    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        let mut tree = self.tree();
        let found = tree.listen().map(|()| tree.stat(path));
        tree.answer(found)
    }
}

/// A clock that moves only by [`ByHand::pass`].
#[derive(Clone, Default)]
pub struct ByHand(Arc<Mutex<Duration>>);

impl ByHand {
    pub fn pass(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

impl Clock for ByHand {
    fn now(&self) -> Now {
        Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::ZERO + *self.0.lock().unwrap() }
    }

    async fn sleep_until(&self, _: Wake) {
        std::future::pending().await
    }
}
