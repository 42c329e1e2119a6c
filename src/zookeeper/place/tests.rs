//! Tests of the number of round trips per takeover, on a server that answers only on command.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::clock::{Now, Wake};
use crate::run::RunRecord;
use crate::run::tests_support::record;
use crate::zookeeper::client::{Data, Done, MultiError, Read, State, Watch};
use crate::zookeeper::context::{LocalNode, json};
use crate::zookeeper::session_id;

const OWNER: i64 = 7;

#[derive(Default)]
struct Tree {
    nodes: BTreeMap<String, Vec<u8>>,
    /// Round trips so far.
    answered: usize,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Tree>>);

struct NoWatch;

impl Watch for NoWatch {
    async fn fired(self) {}
}

/// An answer fixed when the request was handed over, and delivered with the next round.
struct DelayedAnswer<T> {
    server: Server,
    after: usize,
    answer: Option<T>,
}

impl<T> Unpin for DelayedAnswer<T> {}

impl<T> Future for DelayedAnswer<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        let is_answered = self.server.0.lock().unwrap().answered > self.after;
        if is_answered { self.answer.take().map_or(Poll::Pending, Poll::Ready) } else { Poll::Pending }
    }
}

impl Server {
    fn put(&self, path: &str, data: Vec<u8>) {
        self.0.lock().unwrap().nodes.insert(path.to_owned(), data);
    }

    fn later<T>(&self, answer: T) -> DelayedAnswer<T> {
        DelayedAnswer { server: self.clone(), after: self.0.lock().unwrap().answered, answer: Some(answer) }
    }

    fn find(&self, path: &str) -> Option<Data> {
        let stat = Stat { czxid: 3, ephemeral_owner: OWNER, ..Stat::default() };
        self.0.lock().unwrap().nodes.get(path).map(|data| (data.clone(), stat))
    }
}

impl Client for Server {
    type Watch = NoWatch;

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
        self.later(Ok(ops.iter().map(|_| Done::Nothing).collect()))
    }
    fn create(
        &self,
        path: &str,
        _: Vec<u8>,
        _: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        self.later(Ok((path.to_owned(), Stat::default())))
    }
    fn delete(&self, _: &str, _: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.later(Ok(()))
    }
    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static {
        self.later(self.find(path).ok_or(Error::NoNode))
    }
    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, NoWatch), Error>> + Send + 'static {
        self.later(Ok((self.find(path).map(|(_, stat)| stat), NoWatch)))
    }
    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, NoWatch), Error>> + Send + 'static {
        self.later(self.find(path).map(|(data, stat)| (data, stat, NoWatch)).ok_or(Error::NoNode))
    }
    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let parent = format!("{path}/");
        let tree = self.0.lock().unwrap();
        let names: Vec<_> = tree.nodes.keys().filter_map(|path| Some(path.strip_prefix(&parent)?.to_owned())).collect();
        drop(tree);
        self.later(Ok(names))
    }
    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        self.later(Ok(paths.iter().map(|path| self.find(path).ok_or(Error::NoNode)).collect()))
    }
}

#[derive(Clone)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Now {
        Now { wall: jiff::Timestamp::UNIX_EPOCH, up: Uptime::ZERO }
    }
    async fn sleep_until(&self, _: Wake) {
        std::future::pending().await
    }
}

fn candidate() -> CandidateName {
    CandidateName("_c_1-lock-0000000001".into())
}

/// Opens a term on a ledger with these jobs and runs. Returns the snapshot and the number of round trips.
fn opened(jobs: usize, runs: &[RunRecord], proof: Proof) -> (Snapshot, usize) {
    let server = Server::default();
    let me =
        LocalNode { node: NodeName::new("a"), owner: OWNER, prefix: "_c_1-lock-".into(), candidate_data: Vec::new() };
    server.put(&paths::candidate(&candidate()), Vec::new());
    server.put(&paths::member(&me.node), Vec::new());
    (0..jobs).for_each(|n| server.put(&paths::under(paths::JOBS, &format!("job-{n}")), b"{}".to_vec()));
    runs.iter().for_each(|run| server.put(&paths::running(&run.id()), json(run)));
    let mut opening =
        pin!(open(SessionContext::new(server.clone(), Still, me), candidate(), BTreeSet::new(), proof, OpenAt::Queue));
    let mut context = Context::from_waker(Waker::noop());
    for rounds in 0..100 {
        if let Poll::Ready(opened) = opening.poll_unpin(&mut context) {
            let opened = opened.unwrap_or_else(|error| panic!("{error:?}")).expect("the candidate is there");
            assert_eq!(opened.written.is_some(), proof == Proof::Write);
            return (*opened.snapshot, rounds);
        }
        server.0.lock().unwrap().answered += 1;
    }
    panic!("the opening does not complete");
}

#[test]
fn a_takeover_is_two_round_trips_whatever_the_number_of_jobs() {
    for proof in [Proof::Lease, Proof::Write] {
        assert_eq!(opened(0, &[], proof).1, 2);
        let (snapshot, rounds) = opened(1_200, &[], proof);
        assert_eq!((snapshot.jobs.len(), rounds), (1_200, 2));
    }
}

#[test]
fn with_runs_in_flight_it_is_one_more_to_find_their_owners() {
    let (snapshot, rounds) = opened(3, &[record("job-0", 60, "0x7")], Proof::Lease);
    assert_eq!((snapshot.running.len(), rounds), (1, 3));
}
