//! Tests of sessions, entries and watches over the store in memory, on virtual time.

mod examined;
mod faulty;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::Timestamp;
use proptest::prelude::*;
use tokio::time::Instant;

use self::faulty::{Fate, Faulty};
use super::*;
use crate::memory::Memory;
use crate::store::{self, Done, Found, Head, NotDone, Wanted};
use crate::tree::{Limits, Revision};
use cronkeeper_core::clock::{Now, Uptime, Wake};
use cronkeeper_core::ledger::LostCommits;
use cronkeeper_core::run::Version;

const T: Duration = Duration::from_secs(4);

static DRAWN: AtomicU64 = AtomicU64::new(0);

/// The clock of tokio's paused time.
#[derive(Clone)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Now {
        let up = Uptime::ZERO + self.0.elapsed() + Duration::from_secs(1_000);
        Now { wall: Timestamp::UNIX_EPOCH, up }
    }

    async fn sleep_until(&self, wake: Wake) {
        match wake.up {
            Some(up) => tokio::time::sleep(up.since(self.now().up)).await,
            None => std::future::pending().await,
        }
    }
}

fn observed<S: Store>(store: S) -> Observed<S, Virtual, OnTokio> {
    let uuid = || Uuid::from_u64_pair(0, DRAWN.fetch_add(1, Ordering::Relaxed));
    Observed {
        store,
        clock: Virtual(Instant::now()),
        spawn: OnTokio,
        timeout: T,
        uuid: Arc::new(uuid),
        heads: Arc::default(),
    }
}

fn append(folder: &str) -> Op {
    Op::Append { folder: folder.into(), prefix: "lock-".into(), data: b"{}".to_vec(), life: Life::OfSession }
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), data: b"{}".to_vec(), life: Life::Lasting }
}

#[tokio::test(start_paused = true)]
async fn an_entry_ends_with_its_session_and_whoever_watches_it_learns_that() {
    let observed = observed(Memory::default());
    let (owner, other) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    let (path, made) = owner.append(paths::LEADER, "lock-", b"{}".to_vec(), Life::OfSession).await.unwrap();
    assert_eq!((made.session, owner.state()), (Some(owner.id()), State::Connected));
    let (data, stat, watch) = other.get_and_watch(&path).await.unwrap();
    assert_eq!((data, stat.session), (b"{}".to_vec(), Some(owner.id())));
    tokio::time::sleep(T * 3).await;
    assert!(other.get(&path).await.is_ok(), "its driver beats");
    let begun = Instant::now();
    drop(owner);
    watch.fired().await;
    let took = begun.elapsed();
    assert!(took >= T * 9 / 10 && took <= T * 12 / 10, "{took:?}");
    assert_eq!(other.get(&path).await, Err(Error::Missing));
    assert_eq!(other.names(SESSIONS).await.unwrap(), [other.id().0]);
}

/// A process that is stopped for long, and continues.
#[tokio::test(start_paused = true)]
async fn a_session_that_others_have_ended_commits_nothing_more() {
    let store = Faulty::new(Memory::default());
    let (stopped, other) = (observed(store.clone()), observed(store.inner().clone()));
    let owner = stopped.connect().await.unwrap();
    let other = other.connect().await.unwrap();
    owner.append(paths::LEADER, "lock-", Vec::new(), Life::OfSession).await.unwrap();
    let (_, watch) = other.names_and_watch(paths::LEADER).await.unwrap();
    store.cut(true);
    let late = owner.commit(vec![create("/cronkeeper/gone/a")]);
    watch.fired().await;
    assert_eq!(other.names(paths::LEADER).await.unwrap(), [""; 0]);
    store.cut(false);
    assert_eq!(late.await.unwrap_err().error, Error::SessionOver);
    assert_eq!(other.stat("/cronkeeper/gone/a").await.unwrap(), None);
    let mut owner = owner;
    while owner.state() != State::Expired {
        owner.state_changed().await;
    }
    assert_eq!(owner.get("/x").await, Err(Error::SessionOver));
}

/// Like a server that others have replaced: it carries commits out, and nobody acknowledges them.
#[derive(Clone, Default)]
struct Replaced {
    memory: Memory,
    is_replaced: Arc<AtomicBool>,
}

impl Store for Replaced {
    const SERVICE: &'static str = "a replaced server";

    fn limits(&self) -> Limits {
        self.memory.limits()
    }

    fn commit(&self, ops: Vec<store::Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let (committing, is_replaced) = (self.memory.commit(ops), Arc::clone(&self.is_replaced));
        async move {
            match committing.await {
                Ok(_) if is_replaced.load(Ordering::Relaxed) => {
                    Err(NotDone::Failed(Error::Unanswered("no replica has it".to_owned())))
                }
                answer => answer,
            }
        }
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        self.memory.read(wanted)
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_a_read_has_shown_is_no_answer_to_a_commit() {
    let store = Replaced::default();
    let session = observed(store.clone()).connect().await.unwrap();
    store.is_replaced.store(true, Ordering::Relaxed);
    let creating = {
        let session = session.clone();
        tokio::spawn(async move { session.commit(vec![create("/a")]).await.map(drop) })
    };
    tokio::time::sleep(T * 10).await;
    let (_, found) = store.read(vec![Wanted::Meta("/a".to_owned())]).await.unwrap();
    assert!(matches!(found[..], [Found::Meta(Some(_))]), "the server has carried it out");
    assert!(!creating.is_finished(), "nobody has acknowledged it");
    store.is_replaced.store(false, Ordering::Relaxed);
    creating.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_says_why_its_store_does_not_write_until_it_does() {
    let store = Replaced::default();
    let session = observed(store.clone()).connect().await.unwrap();
    for _ in 0..2 {
        assert_eq!((session.state(), session.failure()), (State::Connected, None));
        store.is_replaced.store(true, Ordering::Relaxed);
        tokio::time::sleep(T).await;
        assert_eq!((session.state(), session.failure().as_deref()), (State::Disconnected, Some("no replica has it")));
        store.is_replaced.store(false, Ordering::Relaxed);
        tokio::time::sleep(T).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_record_nobody_acknowledges_does_not_begin() {
    let store = Replaced::default();
    store.is_replaced.store(true, Ordering::Relaxed);
    let refused = observed(store.clone()).connect().await;
    assert!(matches!(refused, Err(ConnectError::Unreachable(_))));
    store.is_replaced.store(false, Ordering::Relaxed);
    observed(store).connect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_the_store_longer_than_the_timeout_every_session_goes_on() {
    let store = Faulty::new(Memory::default());
    let observed = observed(store.clone());
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = observed.connect().await.unwrap();
        session.append(paths::LEADER, "lock-", Vec::new(), Life::OfSession).await.unwrap();
        sessions.push(session);
    }
    tokio::time::sleep(T).await;
    store.cut(true);
    tokio::time::sleep(T * 5).await;
    assert!(sessions.iter().all(|session| session.state() == State::Disconnected));
    store.cut(false);
    tokio::time::sleep(T * 3).await;
    assert!(sessions.iter().all(|session| session.state() == State::Connected));
    assert_eq!(sessions[0].names(paths::LEADER).await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_take_effect_in_the_order_of_the_calls() {
    let observed = observed(Memory::default());
    let (a, b) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    const PATH: &str = "/cronkeeper/gone/a";
    let requests =
        (a.stat(PATH), a.commit(vec![create(PATH)]), a.get(PATH), a.delete(PATH, AtVersion::Any), a.stat(PATH));
    // Awaited in another order than they were handed over.
    assert_eq!(requests.4.await.unwrap(), None);
    assert!(requests.3.await.is_ok() && requests.2.await.is_ok() && requests.1.await.is_ok());
    assert_eq!(requests.0.await.unwrap(), None);
    a.commit(vec![create(PATH)]).await.unwrap();
    assert!(b.get(PATH).await.is_ok(), "an answered commit is seen by everybody");
}

#[tokio::test(start_paused = true)]
async fn the_order_of_arrival_is_that_of_the_numbers_and_none_is_used_twice() {
    let observed = observed(Memory::default());
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(observed.connect().await.unwrap());
    }
    let joined = sessions.iter().map(|session| session.append("/locks/a", "lock-", Vec::new(), Life::OfSession));
    let joined: Vec<_> = futures_util::future::try_join_all(joined).await.unwrap();
    let mut arrived: Vec<(Revision, String)> =
        joined.iter().map(|(path, stat)| (stat.created, paths::name(path).to_owned())).collect();
    arrived.sort();
    let names = sessions[0].names("/locks/a").await.unwrap();
    let ordered = sessions[0].in_order("/locks/a", names).await.unwrap();
    assert_eq!(ordered, arrived.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>());
    for (session, (path, _)) in sessions.iter().zip(&joined) {
        session.delete(path, AtVersion::Any).await.unwrap();
    }
    let (path, _) = sessions[0].append("/locks/a", "lock-", Vec::new(), Life::OfSession).await.unwrap();
    assert_eq!(path, "/locks/a/lock-0000000005");
}

#[tokio::test(start_paused = true)]
async fn a_number_that_another_session_has_taken_is_not_tried_again() {
    let observed = observed(Memory::default());
    let (a, b) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    for (session, number) in [(&a, 0), (&b, 1), (&a, 2), (&a, 3), (&b, 4)] {
        let (path, _) = session.append(paths::TRIGGERS, "", b"{}".to_vec(), Life::Lasting).await.unwrap();
        assert_eq!(path, format!("{}/{number:010}", paths::TRIGGERS));
    }
    let append = || Op::Append {
        folder: paths::TRIGGERS.into(),
        prefix: String::new(),
        data: b"{}".to_vec(),
        life: Life::Lasting,
    };
    let remove = |number: u64| Op::Delete {
        path: format!("{}/{number:010}", paths::TRIGGERS),
        at: AtVersion::Version(Version::FIRST),
    };
    for (next, ops) in [(5, vec![remove(4), append()]), (7, vec![append(), remove(6)])] {
        let made = a.commit(ops).await.unwrap();
        assert_eq!(made.created, [format!("{}/{next:010}", paths::TRIGGERS)], "a's numbers were those before b's");
        b.append(paths::TRIGGERS, "", b"{}".to_vec(), Life::Lasting).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_fires_once_for_what_others_do() {
    let observed = observed(Memory::default());
    let (a, b) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    const PATH: &str = "/cronkeeper/gone/a";
    assert!(matches!(a.get_and_watch(PATH).await, Err(Error::Missing)));
    let (found, made) = a.stat_and_watch(PATH).await.unwrap();
    let (names, named) = a.names_and_watch("/cronkeeper/gone").await.unwrap();
    assert_eq!((found, names.len()), (None, 0));
    b.commit(vec![create(PATH)]).await.unwrap();
    made.fired().await;
    named.fired().await;
    let (_, stat, changed) = a.get_and_watch(PATH).await.unwrap();
    assert_eq!((stat.version, stat.session), (Version::FIRST, None));
    b.commit(vec![Op::Set { path: PATH.into(), data: Vec::new(), at: Version::FIRST.into() }]).await.unwrap();
    changed.fired().await;
}

/// Locks of many jobs, more than the store removes at once.
#[tokio::test(start_paused = true)]
async fn a_session_with_more_entries_than_a_commit_takes_leaves_none() {
    let observed = observed(Memory::default());
    let (owner, other) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    for folder in 0..450 {
        owner.commit(vec![append(&format!("/locks/{folder}"))]).await.unwrap();
    }
    drop(owner);
    tokio::time::sleep(T * 2).await;
    for folder in 0..450 {
        assert_eq!(other.names(&format!("/locks/{folder}")).await.unwrap(), [""; 0], "{folder}");
    }
    assert_eq!(other.names(SESSIONS).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_another_session_has_made_since_at_the_same_path_stays() {
    let observed = observed(Memory::default());
    let (old, new) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    const MEMBER: &str = "/cronkeeper/nodes/a";
    old.create(MEMBER, b"old".to_vec(), Life::OfSession).await.unwrap();
    new.delete(MEMBER, AtVersion::Any).await.unwrap();
    new.create(MEMBER, b"new".to_vec(), Life::OfSession).await.unwrap();
    drop(old);
    tokio::time::sleep(T * 2).await;
    assert_eq!(new.get(MEMBER).await.unwrap().0, b"new");
}

#[tokio::test(start_paused = true)]
async fn a_lent_session_has_a_record_as_long_as_it_writes() {
    let store = Faulty::new(Memory::default());
    let observed = observed(store.clone());
    let lent = observed.session().await.unwrap();
    for (name, fate) in [("a", Fate::Answered), ("b", Fate::AnswerLost), ("c", Fate::RequestLost), ("d", Fate::Late)] {
        // The first makes the record.
        store.fates([Fate::Answered, fate]);
        lent.commit(vec![create(&format!("/cronkeeper/gone/{name}"))]).await.unwrap();
        assert_eq!(lent.names(SESSIONS).await.unwrap(), [""; 0]);
    }
    assert_eq!(lent.names("/cronkeeper/gone").await.unwrap(), ["a", "b", "c", "d"]);
    store.cut(true);
    let unclear = lent.commit(vec![create("/cronkeeper/gone/e")]).await.unwrap_err();
    assert!(matches!(unclear.error, Error::Unanswered(_)), "{unclear:?}");
    store.cut(false);
    lent.commit(vec![create("/cronkeeper/gone/f")]).await.unwrap();
}

/// An operator asks for something, takes it back, and the first request arrives once more.
#[tokio::test(start_paused = true)]
async fn what_a_lent_session_has_written_takes_effect_no_second_time() {
    let memory = Memory::default();
    let store = Faulty::new(memory.clone());
    let observed = observed(store.clone());
    let lent = observed.session().await.unwrap();
    const PATH: &str = "/cronkeeper/control/a";
    // Both the record of the session and the commit arrive twice.
    store.fates([Fate::Late, Fate::Answered, Fate::Late, Fate::Answered]);
    lent.commit(vec![create(PATH)]).await.unwrap();
    lent.delete(PATH, AtVersion::Any).await.unwrap();
    store.deliver_late();
    assert_eq!(lent.stat(PATH).await.unwrap(), None);
    assert_eq!(lent.names(SESSIONS).await.unwrap(), [""; 0]);
}

/// Whoever observes it is slower than the owner, whose next write comes first.
#[tokio::test(start_paused = true)]
async fn a_session_that_writes_at_the_last_moment_lives_on() {
    let memory = Memory::default();
    let (slow, late) = (Faulty::new(memory.clone()), Faulty::new(memory.clone()));
    let (stopped, observer) = (observed(slow.clone()), observed(late.clone()));
    let owner = stopped.connect().await.unwrap();
    let _other = observer.connect().await.unwrap();
    let (path, _) = owner.append(paths::LEADER, "lock-", Vec::new(), Life::OfSession).await.unwrap();
    late.delay_removals();
    slow.cut(true);
    tokio::time::sleep(T * 11 / 10).await;
    assert!(late.has_late(), "it is being ended");
    slow.cut(false);
    tokio::time::sleep(T / 2).await;
    late.deliver_late();
    tokio::time::sleep(T / 2).await;
    assert_eq!((owner.state(), owner.get(&path).await.map(|_| ())), (State::Connected, Ok(())));
}

/// A try without an answer could still take effect, once its condition holds again.
#[tokio::test(start_paused = true)]
async fn what_was_answered_as_refused_takes_no_effect_later() {
    let memory = Memory::default();
    let store = Faulty::new(memory.clone());
    let (owner, other) = (observed(store.clone()), observed(memory.clone()));
    let (owner, other) = (owner.connect().await.unwrap(), other.connect().await.unwrap());
    const PATH: &str = "/cronkeeper/gone/a";
    other.commit(vec![create(PATH)]).await.unwrap();
    store.fates([Fate::Late, Fate::Answered]);
    assert_eq!(owner.commit(vec![create(PATH)]).await.unwrap_err().error, Error::Exists);
    other.delete(PATH, AtVersion::Any).await.unwrap();
    store.deliver_late();
    assert_eq!(other.stat(PATH).await.unwrap(), None);
}

/// The end of a session whose first part was carried out, as of one with many entries.
#[tokio::test(start_paused = true)]
async fn entries_of_a_session_without_a_record_are_removed() {
    let memory = Memory::default();
    let observed = observed(memory.clone());
    let (owner, other) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    let (path, _) = owner.append(paths::LEADER, "lock-", Vec::new(), Life::OfSession).await.unwrap();
    let member = "/cronkeeper/nodes/a";
    owner.create(member, Vec::new(), Life::OfSession).await.unwrap();
    other.create("/cronkeeper/nodes/b", Vec::new(), Life::OfSession).await.unwrap();
    // A lock that the other waits for, and a semaphore.
    let (lock, _) = owner.append("/locks/a", "lock-", Vec::new(), Life::OfSession).await.unwrap();
    let (permit, _) = owner.append("/locks/b", "lock-", Vec::new(), Life::OfSession).await.unwrap();
    let (stat, lock_is_gone) = other.stat_and_watch(&lock).await.unwrap();
    let (names, permit_is_gone) = other.names_and_watch("/locks/b").await.unwrap();
    assert_eq!((stat.and_then(|stat| stat.session), names.len()), (Some(owner.id()), 1));
    other.delete(&plan::session_path(&owner.id()), AtVersion::Any).await.unwrap();
    lock_is_gone.fired().await;
    permit_is_gone.fired().await;
    tokio::time::sleep(T * 2).await;
    assert_eq!((other.stat(&lock).await.unwrap(), other.stat(&permit).await.unwrap()), (None, None));
    assert_eq!((other.stat(&path).await.unwrap(), other.stat(member).await.unwrap()), (None, None));
    assert_eq!(other.names(paths::NODES).await.unwrap(), ["b"]);
}

/// What a session that was shown a loss has left.
async fn lost_until(session: &ObservedSession<Memory>) -> Option<LostCommits> {
    session.get(paths::REWOUND).await.ok().map(|(data, _)| serde_json::from_slice(&data).unwrap())
}

#[tokio::test(start_paused = true)]
async fn whoever_was_shown_a_commit_that_is_lost_leaves_a_record() {
    let memory = Memory::default();
    let (a, b) = (observed(memory.clone()), observed(memory.clone()));
    let (mut witness, writer) = (a.connect().await.unwrap(), b.connect().await.unwrap());
    // Between two beats of the witness; none of them is lost.
    tokio::time::sleep(T + T / 80).await;
    let before = memory.copy();
    writer.commit(vec![create("/cronkeeper/gone/a")]).await.unwrap();
    assert_eq!((witness.names("/cronkeeper/gone").await.unwrap().len(), lost_until(&witness).await), (1, None));
    memory.rewind(before);
    // Others have gone on, so that the revision alone shows nothing.
    let others = observed(memory.clone()).session().await.unwrap();
    for name in ["b", "c", "d"] {
        others.commit(vec![create(&format!("/cronkeeper/gone/{name}"))]).await.unwrap();
    }
    // As if the connection had been lost: whoever waits looks for what it has written.
    while witness.state_changed().await != State::Connected {}
    assert_eq!(lost_until(&witness).await.unwrap().until, Timestamp::UNIX_EPOCH + T);
    let mut writer = writer;
    while writer.state() != State::Expired {
        writer.state_changed().await;
    }
    // It is reported once.
    witness.delete(paths::REWOUND, AtVersion::Any).await.unwrap();
    tokio::time::sleep(T * 2).await;
    assert_eq!(lost_until(&witness).await, None);
}

/// The next session of a process whose session had all its newest beats lost. The next one has written something.
async fn next_after_loss(
    memory: &Memory,
    observed: &Observed<Memory, Virtual, OnTokio>,
    session: ObservedSession<Memory>,
) -> ObservedSession<Memory> {
    let before = memory.copy();
    tokio::time::sleep(T).await;
    drop(session);
    memory.rewind(before);
    let next = observed.connect().await.unwrap();
    next.create("/cronkeeper/gone/a", Vec::new(), Life::Lasting).await.unwrap();
    next
}

#[tokio::test(start_paused = true)]
async fn of_two_losses_the_one_that_lasts_longer_counts() {
    let memory = Memory::default();
    let observed = observed(memory.clone());
    let session = observed.connect().await.unwrap();
    let later = Timestamp::UNIX_EPOCH + T * 9;
    let known = serde_json::to_vec(&LostCommits { v: 1, until: later }).unwrap();
    session.create(paths::REWOUND, known, Life::Lasting).await.unwrap();
    let next = next_after_loss(&memory, &observed, session).await;
    let (data, stat) = next.get(paths::REWOUND).await.unwrap();
    let lost: LostCommits = serde_json::from_slice(&data).unwrap();
    assert_eq!((lost.until, stat.version), (later, Version(1)));
}

#[tokio::test(start_paused = true)]
async fn the_next_session_of_a_process_says_what_the_one_before_was_shown() {
    let memory = Memory::default();
    let observed = observed(memory.clone());
    let session = observed.connect().await.unwrap();
    let next = next_after_loss(&memory, &observed, session).await;
    assert!(lost_until(&next).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_in_an_outage_or_by_those_who_are_gone() {
    let memory = Memory::default();
    let store = Faulty::new(memory.clone());
    let observed = observed(store.clone());
    let (owner, other) = (observed.connect().await.unwrap(), observed.connect().await.unwrap());
    owner.append(paths::LEADER, "lock-", Vec::new(), Life::OfSession).await.unwrap();
    store.fates([Fate::Late, Fate::AnswerLost, Fate::RequestLost, Fate::Late]);
    store.cut(true);
    tokio::time::sleep(T * 3).await;
    store.cut(false);
    tokio::time::sleep(T).await;
    store.deliver_late();
    drop(owner);
    tokio::time::sleep(T * 3).await;
    assert_eq!(other.stat(paths::REWOUND).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_refused_commit_names_the_operation_and_writes_nothing() {
    let observed = observed(Memory::default());
    let session = observed.connect().await.unwrap();
    session.commit(vec![create("/cronkeeper/gone/a")]).await.unwrap();
    let twice = vec![create("/cronkeeper/history/j/1"), append(paths::LEADER), create("/cronkeeper/gone/a")];
    let failed = session.commit(twice).await.unwrap_err();
    assert_eq!(failed, CommitError { index: Some(2), error: Error::Exists });
    assert_eq!(session.names(paths::LEADER).await.unwrap(), [""; 0]);
    let stale = Op::Check { path: "/cronkeeper/gone/a".into(), at: Version(3).into() };
    assert_eq!(session.commit(vec![stale]).await.unwrap_err().error, Error::Changed);
    let missing = Op::Delete { path: "/cronkeeper/gone/x".into(), at: AtVersion::Any };
    assert_eq!(session.commit(vec![missing]).await.unwrap_err().error, Error::Missing);
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Answered),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::Late),
    ]
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever is lost, late or doubled on the way: a commit takes effect once, and its answer says so.
    #[test]
    fn a_commit_takes_effect_exactly_as_answered(
        fates in prop::collection::vec(fate(), 0..60),
        names in prop::collection::vec(0_u8..6, 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = Faulty::new(Memory::default());
            let observed = observed(store.clone());
            let session = observed.connect().await.unwrap();
            store.fates(fates);
            let mut expected = BTreeMap::new();
            for name in names {
                // Each name is made, changed and removed in turn.
                let path = format!("/cronkeeper/gone/{name}");
                let version = expected.get(&name).copied();
                let op = match version {
                    None => create(&path),
                    Some(0) => Op::Set { path: path.clone(), data: Vec::new(), at: Version(0).into() },
                    Some(_) => Op::Delete { path: path.clone(), at: Version(1).into() },
                };
                let refused = Op::Check { path: "/nowhere".into(), at: AtVersion::Any };
                let both = session.commit(vec![op.clone(), refused]).await;
                prop_assert_eq!(both.unwrap_err(), CommitError { index: Some(1), error: Error::Missing });
                session.commit(vec![op]).await.unwrap();
                match version {
                    None => drop(expected.insert(name, 0)),
                    Some(0) => drop(expected.insert(name, 1)),
                    Some(_) => drop(expected.remove(&name)),
                }
                let found = session.stat(&path).await.unwrap().map(|stat| stat.version.0);
                prop_assert_eq!(found, expected.get(&name).copied());
            }
            store.deliver_late();
            for name in 0..6 {
                let found = session.stat(&format!("/cronkeeper/gone/{name}")).await.unwrap();
                prop_assert_eq!(found.map(|stat| stat.version.0), expected.get(&name).copied());
            }
            Ok(())
        })?;
    }
}
