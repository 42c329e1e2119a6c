//! What commits are worth is examined again.

use std::sync::Mutex;

use super::*;
use crate::observed::examiner::{AFTER_RECONNECT, EVERY};

/// A store that says what its commits are worth.
#[derive(Clone)]
struct Examined {
    inner: Faulty<Memory>,
    says: Arc<Mutex<Result<Worth, ConnectError>>>,
    asked: Arc<AtomicU64>,
}

fn worth(durability: &str) -> Worth {
    Worth { service: "a store".to_owned(), durability: durability.to_owned(), may_rewind: false }
}

impl Examined {
    fn new() -> Self {
        let says = Arc::new(Mutex::new(Ok(worth("first"))));
        Self { inner: Faulty::new(Memory::default()), says, asked: Arc::default() }
    }

    fn say(&self, says: Result<Worth, ConnectError>) {
        *self.says.lock().unwrap() = says;
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Store for Examined {
    const SERVICE: &'static str = "a store";

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn examine(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        ready(self.says.lock().unwrap().clone().map(Some))
    }

    fn worth(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.examine()
    }

    fn commit(&self, ops: Vec<store::Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        self.inner.commit(ops)
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        self.inner.read(wanted)
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_noticed_within_a_minute_and_after_a_reconnect_at_once() {
    let store = Examined::new();
    let mut session = observed(store.clone()).connect().await.unwrap();
    assert_eq!(session.worth(), Some(worth("first")));
    store.say(Ok(worth("second")));
    let begun = Instant::now();
    assert_eq!(session.worth_changed().await, worth("second"));
    assert!(begun.elapsed() <= EVERY + Duration::from_millis(1), "{:?}", begun.elapsed());
    // Another server takes over, and the session lasts.
    store.inner.cut(true);
    while session.state_changed().await != State::Disconnected {}
    store.say(Ok(worth("third")));
    store.inner.cut(false);
    while session.state_changed().await != State::Connected {}
    let begun = Instant::now();
    assert_eq!(session.worth_changed().await, worth("third"));
    assert!(begun.elapsed() <= AFTER_RECONNECT * 2, "{:?}", begun.elapsed());
    assert_eq!(session.worth(), Some(worth("third")));
}

#[tokio::test(start_paused = true)]
async fn what_has_not_changed_is_no_news_and_a_failure_changes_nothing() {
    let store = Examined::new();
    let mut session = observed(store.clone()).connect().await.unwrap();
    store.say(Err(ConnectError::Unreachable("no answer in time".to_owned())));
    tokio::time::sleep(EVERY * 5).await;
    store.say(Ok(worth("first")));
    tokio::time::sleep(EVERY * 5).await;
    assert!((9..=10).contains(&store.asked()), "{}", store.asked());
    store.say(Ok(worth("second")));
    assert_eq!(session.worth_changed().await, worth("second"), "nothing was reported before");
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_while_the_store_is_away_or_when_the_session_is_over() {
    let store = Examined::new();
    let mut session = observed(store.clone()).connect().await.unwrap();
    store.inner.cut(true);
    while session.state_changed().await != State::Disconnected {}
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(store.asked(), 0);
    store.inner.cut(false);
    while session.state_changed().await != State::Connected {}
    session.close().await;
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(store.asked(), 0);
}
