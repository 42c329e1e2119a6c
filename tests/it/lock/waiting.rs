//! Many clients in one queue, each with a session of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cronkeeper_cluster::recipes::lock::{LockRequest, LockSession, Recipe};
use cronkeeper_cluster::zookeeper::client::Connect as _;
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_cluster::zookeeper::{ServerSession, ZnodeSession};
use cronkeeper_core::clock::Clock as _;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::lock::{LockKey, LockKind, LockPath};
use tokio::time::timeout;

use crate::support::LONG;
use crate::support::zookeeper::Ensemble;

const CLIENTS: usize = 300;

async fn session(connect: &str) -> LockSession<ServerSession, SystemClock> {
    let settings = ConnectionSettings {
        connect: connect.to_owned(),
        session_timeout: Duration::from_secs(10),
        ..ConnectionSettings::default()
    };
    let clock = SystemClock::default();
    let requested = clock.now().up;
    let session = Connector::closing(settings).unwrap().connect().await.unwrap();
    LockSession::new(ZnodeSession::of(session), clock, requested)
}

fn request(kind: LockKind) -> LockRequest {
    LockRequest {
        paths: vec![LockPath::parse("/locks/a").unwrap()],
        kind,
        recipe: Recipe::Curator,
        uuid: LockKey::draw().uuid(),
        data: Vec::new(),
        waits: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_wait_with_one_watch_each_and_a_release_wakes_one() {
    let ensemble = Ensemble::start(1);
    let connect = ensemble.connect_string();
    let first = {
        let mut first = session(&connect).await;
        let held = first.acquire(&request(LockKind::Mutex)).await.unwrap();
        (first, held)
    };
    let granted = Arc::new(AtomicUsize::new(0));
    let (release, _) = tokio::sync::broadcast::channel::<()>(1);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (connect, granted, mut released) = (connect.clone(), granted.clone(), release.subscribe());
        waiting.spawn(async move {
            let (mut session, request) = (session(&connect).await, request(LockKind::Mutex));
            let held = session.acquire(&request).await.unwrap();
            granted.fetch_add(1, Ordering::SeqCst);
            released.recv().await.unwrap_err();
            session.release(&held).await.unwrap();
        });
    }
    await_that(|| ensemble.watch_count(0) == CLIENTS).await;
    first.0.release(&first.1).await.unwrap();
    await_that(|| granted.load(Ordering::SeqCst) == 1).await;
    // Whoever else had been woken would have set its watch again by the time that all these answers are here.
    assert_eq!(ensemble.watch_count(0), CLIENTS - 1);
    assert_eq!(granted.load(Ordering::SeqCst), 1);
    drop(release);
    timeout(LONG * 3, async { while waiting.join_next().await.transpose().unwrap().is_some() {} }).await.unwrap();
    assert_eq!(granted.load(Ordering::SeqCst), CLIENTS);
}

async fn await_that(is_so: impl Fn() -> bool) {
    let polled = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG * 3, polled).await.expect("it becomes so");
}
