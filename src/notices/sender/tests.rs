use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::status::sample;
use cronkeeper_core::job::{JobName, NoticeKind};
use cronkeeper_core::ledger::ChannelEntry;
use cronkeeper_core::run::{ChannelRecord, Sending, Version};

const FILE: &str = "notify: {ops: {webhook: 'http://127.0.0.1:1/x', on: [failure, output, leader_changed]}}\n\
                    jobs: {known: {schedule: '@daily', command: x, notify: ops}, \
                    quiet: {schedule: '@daily', command: x}}";

/// What a test does as a channel's record is written.
type OnPut = Box<dyn Fn() + Send>;

/// An outbox in memory.
#[derive(Default)]
struct Store {
    notices: Mutex<BTreeMap<NoticeKey, Result<Notice, String>>>,
    channels: Mutex<BTreeMap<ChannelName, ChannelEntry>>,
    /// What was asked for, request by request.
    read: Mutex<Vec<BTreeSet<NoticeKey>>>,
    added: Mutex<Vec<Notice>>,
    on_put: Mutex<Option<OnPut>>,
    /// So many requests for the numbers panic.
    panics: AtomicUsize,
    /// So many additions fail.
    failing_adds: AtomicUsize,
    polls: AtomicUsize,
    /// No channel's record can be read.
    is_damaged: bool,
    /// It says what there is, and nothing of it can be read.
    is_unreadable: bool,
    /// It does not answer what there is.
    is_hanging: AtomicBool,
}

fn counts_down(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

fn broken() -> OperatorError {
    OperatorError::Unread("broken".into())
}

impl Outbox for Store {
    fn keys(&self) -> OperatorFuture<'_, BTreeSet<NoticeKey>> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        assert!(!counts_down(&self.panics), "as the test asks");
        Box::pin(async {
            if self.is_hanging.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(self.notices.lock().unwrap().keys().copied().collect())
        })
    }

    fn notices(&self, wanted: BTreeSet<NoticeKey>) -> OperatorFuture<'_, BTreeMap<NoticeKey, Result<Notice, String>>> {
        let all = self.notices.lock().unwrap().clone();
        let found = all.into_iter().filter(|(seq, _)| wanted.contains(seq)).collect();
        self.read.lock().unwrap().push(wanted);
        Box::pin(async move { if self.is_unreadable { Err(broken()) } else { Ok(found) } })
    }

    fn add(&self, notice: Notice) -> OperatorFuture<'_, ()> {
        if counts_down(&self.failing_adds) {
            return Box::pin(async { Err(broken()) });
        }
        self.added.lock().unwrap().push(notice);
        Box::pin(async { Ok(()) })
    }

    fn remove(&self, numbers: BTreeSet<NoticeKey>) -> OperatorFuture<'_, ()> {
        self.notices.lock().unwrap().retain(|seq, _| !numbers.contains(seq));
        Box::pin(async { Ok(()) })
    }

    fn channel(&self, name: ChannelName) -> OperatorFuture<'_, ChannelEntry> {
        let found = self.channels.lock().unwrap().get(&name).cloned().unwrap_or_default();
        Box::pin(async move { if self.is_damaged { Err(broken()) } else { Ok(found) } })
    }

    fn put_channel(
        &self,
        name: ChannelName,
        record: ChannelRecord,
        at: Option<Version>,
    ) -> OperatorFuture<'_, Option<Version>> {
        let version = at.map_or(Version::FIRST, Version::next);
        self.channels.lock().unwrap().insert(name, ChannelEntry { record, at: Some(version), is_damaged: false });
        if let Some(on_put) = self.on_put.lock().unwrap().take() {
            on_put();
        }
        Box::pin(async move { Ok(Some(version)) })
    }
}

fn set(text: &str) -> Arc<JobSet> {
    let (set, _) = crate::config::parse("j", text.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"));
    Arc::new(set)
}

struct World {
    store: Arc<Store>,
    sender: Sender,
    status: watch::Sender<Arc<Status>>,
    jobs: watch::Sender<Arc<JobSet>>,
}

impl World {
    fn new(store: Store) -> Self {
        let (status, seen) = watch::channel(Arc::new(sample::leader()));
        let (jobs, defined) = watch::channel(set(FILE));
        let store = Arc::new(store);
        let sender = Sender {
            node: NodeName::new("host-a"),
            outbox: store.clone(),
            jobs: defined,
            status: seen,
            health: Health::default(),
            missing_after: Duration::from_secs(300),
        };
        Self { store, sender, status, jobs }
    }

    fn term(&self) -> Term<'_> {
        Term::new(&self.sender, self.sender.leads().unwrap())
    }

    fn numbers(&self) -> Vec<NoticeKey> {
        self.store.notices.lock().unwrap().keys().copied().collect()
    }

    fn sending(&self) -> Option<Sending> {
        self.store.channels.lock().unwrap().get(&ops())?.record.sending.clone()
    }
}

/// A number of a notification.
fn seq(number: u64) -> NoticeKey {
    NoticeKey::parse(&format!("{number:011x}{:016x}", 0)).unwrap()
}

fn ops() -> ChannelName {
    ChannelName::parse("ops").unwrap()
}

fn notice(job: &str, kind: NoticeKind, number: u64, age: Duration) -> (NoticeKey, Result<Notice, String>) {
    let at = earlier(system::now().wall, age);
    let notice = Notice::new(kind, format!("{job}.{number}/{}", kind.as_str()), at);
    (seq(number), Ok(Notice { job: Some(JobName::parse(job).unwrap()), ..notice }))
}

fn failure(job: &str, number: u64, age: Duration) -> (NoticeKey, Result<Notice, String>) {
    notice(job, NoticeKind::Failure, number, age)
}

fn store(notices: impl IntoIterator<Item = (NoticeKey, Result<Notice, String>)>) -> Store {
    Store { notices: Mutex::new(notices.into_iter().collect()), ..Store::default() }
}

/// A turn that reads the outbox, though the last one was just now.
async fn turn(term: &mut Term<'_>) {
    term.polled = None;
    // The news are those of a term that was said.
    let mut news = ClusterNews::of_term(term.token, term.sender.missing_after);
    news.see(system::now(), &term.sender.node, &Nodes::default());
    news.said();
    term.turn(&mut news).await;
}

const NEW: Duration = Duration::ZERO;
const OLD: Duration = Duration::from_secs(25 * 3600);

#[tokio::test]
async fn the_mark_of_a_predecessor_stays_and_its_notices_are_read_first() {
    let marked: BTreeSet<NoticeKey> = (1_200..1_210).map(seq).collect();
    let store = store((0..1_500).map(|number| failure("known", number, NEW)));
    let sending = Sending { notices: marked.clone(), id: "0".repeat(32), by: NodeName::new("host-b") };
    let record = ChannelRecord { v: 1, sending: Some(sending.clone()), done: BTreeSet::new() };
    store.channels.lock().unwrap().insert(ops(), ChannelEntry { record, at: Some(Version::FIRST), is_damaged: false });
    let world = World::new(store);
    let mut term = world.term();
    turn(&mut term).await;
    assert_eq!(world.sending(), Some(sending.clone()));
    turn(&mut term).await;
    assert!(marked.is_subset(&world.store.read.lock().unwrap()[1]));
    assert_eq!(
        (world.sending(), term.on_their_way.len()),
        (Some(sending), 0),
        "it is left to the predecessor for a while"
    );
}

#[tokio::test]
async fn what_this_node_cannot_judge_waits_for_another_leader_for_a_day() {
    let world = World::new(store([
        failure("elsewhere", 1, NEW),
        failure("elsewhere", 2, OLD),
        failure("quiet", 3, NEW),
        failure("known", 4, NEW),
    ]));
    turn(&mut world.term()).await;
    assert_eq!(world.numbers(), [seq(1), seq(4)]);
}

#[tokio::test]
async fn a_message_that_another_leader_began_is_sent_as_it_was() {
    let store = store([failure("elsewhere", 1, NEW), failure("known", 2, NEW)]);
    let notices = BTreeSet::from([seq(1), seq(2)]);
    let sending = Sending { notices: notices.clone(), id: "0".repeat(32), by: NodeName::new("host-b") };
    let record = ChannelRecord { v: 1, sending: Some(sending), done: BTreeSet::new() };
    store.channels.lock().unwrap().insert(ops(), ChannelEntry { record, at: Some(Version::FIRST), is_damaged: false });
    let world = World::new(store);
    let mut term = world.term();
    turn(&mut term).await;
    assert_eq!((term.channels[&ops()].marked().count(), world.sending().map(|it| it.notices)), (2, Some(notices)));
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_looked_at_twice_and_stays() {
    let newer = failure("known", 2, NEW);
    let newer = (newer.0, newer.1.map(|notice| Notice { v: 2, ..notice }));
    let world = World::new(store([(seq(1), Err("nonsense".to_owned())), newer, failure("known", 3, NEW)]));
    let mut term = world.term();
    for _ in 0..4 {
        turn(&mut term).await;
    }
    let read = world.store.read.lock().unwrap().clone();
    assert_eq!(read, [BTreeSet::from([1, 2, 3].map(seq)), BTreeSet::from([seq(1)])]);
    assert_eq!(world.numbers().len(), 3);
    let long_ago = Instant::now().checked_sub(LONGEST);
    // A host that has not run for a day cannot say so.
    if let Some(long_ago) = long_ago {
        term.unreadable.values_mut().for_each(|it| it.since = long_ago);
        turn(&mut term).await;
        assert_eq!(world.numbers(), [seq(3)]);
    }
}

#[tokio::test]
async fn a_channel_whose_record_cannot_be_used_fills_no_memory() {
    let many = (0..6_000).map(|number| failure("known", number, if number < 300 { OLD } else { NEW }));
    let world = World::new(Store { is_damaged: true, ..store(many) });
    let mut term = world.term();
    for _ in 0..15 {
        turn(&mut term).await;
    }
    assert_eq!(term.notices.len(), MOST + AT_ONCE);
    assert_eq!(world.sender.health.failing().len(), 0, "it may still be short");
    term.channels.get_mut(&ops()).unwrap().reading = Trouble::Said;
    for _ in 0..15 {
        turn(&mut term).await;
    }
    assert_eq!((term.notices.len(), term.notices.keys().next()), (MOST, Some(&seq(2_000))));
    assert_eq!(world.numbers().len(), 6_000, "nothing is lost");
}

#[tokio::test]
async fn an_outbox_that_cannot_be_used_for_long_is_a_failure_of_the_channels() {
    let world = World::new(Store::default());
    let mut term = world.term();
    let jobs = set(FILE);
    let long_ago = cronkeeper_core::clock::Uptime::ZERO;
    term.reading = Trouble::Since(long_ago);
    let up = system::now().up.since(long_ago);
    assert!(!term.took(Use::Read, &Err::<(), _>(Unasked("no answer".into())), &jobs));
    let failing = world.sender.health.failing();
    // Right after the boot of a host it is not long yet.
    if up > Duration::from_secs(120) {
        assert_eq!(failing[0].error, "the outbox cannot be used: no answer");
    }
    assert!(term.took(Use::Read, &Ok(()), &jobs));
    assert_eq!(world.sender.health.failing().len(), 0);
}

#[tokio::test]
async fn an_outbox_that_only_says_what_there_is_cannot_be_used() {
    let world = World::new(Store { is_unreadable: true, ..store([failure("known", 1, NEW)]) });
    let mut term = world.term();
    turn(&mut term).await;
    let Trouble::Since(first) = term.reading else { panic!("it failed") };
    turn(&mut term).await;
    assert!(matches!(term.reading, Trouble::Since(since) if since == first));
}

#[tokio::test]
async fn a_leader_that_loses_its_term_between_mark_and_message_sends_nothing() {
    let world = World::new(store([notice("known", NoticeKind::Output, 1, NEW)]));
    let status = world.status.clone();
    let follow = move || {
        let mut now = sample::leader();
        now.role.token = None;
        _ = status.send(Arc::new(now));
    };
    *world.store.on_put.lock().unwrap() = Some(Box::new(follow));
    let jobs = "notify: {ops: {webhook: 'http://127.0.0.1:1/x'}}\n\
                jobs: {known: {schedule: '@daily', command: x, notify: {ops: [output]}}}";
    world.jobs.send(set(jobs)).unwrap();
    let mut term = world.term();
    turn(&mut term).await;
    assert_eq!((term.on_their_way.len(), world.sending()), (0, None));
    assert_eq!(world.store.channels.lock().unwrap().len(), 1, "it was marked");
}

#[tokio::test]
async fn a_message_goes_out_while_the_ledger_does_not_answer() {
    use tokio::io::AsyncReadExt as _;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(store([notice("known", NoticeKind::Output, 1, NEW)]));
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    world.jobs.send(set(&FILE.replace("http://127.0.0.1:1/x", &url))).unwrap();
    let mut term = world.term();
    turn(&mut term).await;
    world.store.is_hanging.store(true, Ordering::SeqCst);
    let got = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read(&mut [0; 100]).await.unwrap()
    };
    tokio::select! {
        length = got => assert!(length > 0),
        () = turn(&mut term) => panic!("the message waits for the ledger"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_is_announced_once_though_the_outbox_fails_and_the_channels_come_and_go() {
    let world = World::new(Store { failing_adds: AtomicUsize::new(2), ..Store::default() });
    let sending = tokio::spawn(world.sender.clone().run());
    sleep(Duration::from_secs(20)).await;
    let none = "jobs: {known: {schedule: '@daily', command: x}}";
    for text in [none, FILE] {
        world.jobs.send(set(text)).unwrap();
        sleep(Duration::from_secs(20)).await;
    }
    let added: Vec<NoticeKind> = world.store.added.lock().unwrap().iter().map(|notice| notice.kind).collect();
    assert_eq!(added, [NoticeKind::LeaderChanged]);
    sending.abort();
}

#[tokio::test(start_paused = true)]
async fn a_panic_does_not_end_notifications() {
    let world = World::new(Store { panics: AtomicUsize::new(1), ..Store::default() });
    let sending = tokio::spawn(world.sender.clone().run());
    sleep(RESTART * 2).await;
    assert!(world.store.polls.load(Ordering::SeqCst) > 1);
    sending.abort();
}

#[test]
fn only_nodes_that_somebody_waits_for_are_missing() {
    let mut status = sample::leader();
    status.missing = vec![sample::missing("host-x")];
    status.places = BTreeMap::new();
    assert_eq!(nodes(&status).missing.len(), 1, "the places are not read yet");
    status.places = sample::places();
    assert_eq!(nodes(&status).missing.len(), 0, "it was forgotten");
}
