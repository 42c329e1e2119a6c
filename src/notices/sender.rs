//! The task that sends: reads the outbox while this node leads, and carries out what [`plan`](super::plan) says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::cluster::{ClusterNews, Nodes};
use super::deliver::{self, Answer, Failed};
use super::message::Message;
use super::plan::{After, Batch, ChannelState, Fate, Step, Waiting};
use super::trouble::Trouble;
use crate::metrics::Health;
use crate::status::{MissingMember, NodeState, Status};
use cronkeeper_core::clock::{earlier, system};
use cronkeeper_core::job::{Channel, ChannelName, JobSet};
use cronkeeper_core::ledger::{OperatorError, OperatorFuture, Outbox};
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::{Notice, NoticeKey};
use cronkeeper_core::term::{FencingToken, NodeName};

/// How often the outbox is read: no event announces what other nodes add to it.
const POLL: Duration = Duration::from_secs(2);
/// How long a request to the ledger may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a notification is tried.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Most notifications that wait; of more, the oldest are given up.
const MOST: usize = 4_000;
/// Most notifications that are read, or removed, at once.
const AT_ONCE: usize = 500;
/// After this long a turn is broken off, so that a slow ledger does not keep answers from being taken.
const TURN: Duration = Duration::from_secs(20);
/// Longest wait for what is on its way when the term is over.
const FAREWELL: Duration = deliver::LONGEST;
/// The pause after a panic.
const RESTART: Duration = Duration::from_secs(30);
/// The distance after a channel was removed from the jobs file.
const NO_DISTANCE: Duration = Duration::ZERO;
const TOO_OLD: &str = "older than 24 hours";
const TOO_MANY: &str = "more than 4,000 were waiting";
const NOWHERE: &str = "its job is not defined here, and no other leader has sent it for 24 hours";
const UNTOLD: &str = "no answer said whether it arrived";
/// How the error begins of a channel that is failing because of the ledger.
const UNUSABLE: &str = "the outbox cannot be used";

/// What the task needs.
#[derive(Clone)]
pub struct Sender {
    pub node: NodeName,
    pub outbox: Arc<dyn Outbox>,
    pub jobs: watch::Receiver<Arc<JobSet>>,
    pub status: watch::Receiver<Arc<Status>>,
    pub health: Health,
    /// How long a node must be gone before it is called missing.
    pub missing_after: Duration,
}

/// A notification whose record this version cannot use.
struct Unreadable {
    since: Instant,
    why: String,
    /// A damaged record is read twice before it counts as one.
    is_certain: bool,
}

/// One term of this node, while the jobs file has channels.
struct Term<'a> {
    sender: &'a Sender,
    token: FencingToken,
    /// All that exist.
    numbers: BTreeSet<NoticeKey>,
    /// Those that are read, at most [`MOST`] and [`AT_ONCE`].
    notices: BTreeMap<NoticeKey, Notice>,
    unreadable: BTreeMap<NoticeKey, Unreadable>,
    /// Those that cannot be sent or given up now, and are not kept in memory: of when they are.
    let_go: BTreeMap<NoticeKey, Timestamp>,
    channels: BTreeMap<ChannelName, ChannelState>,
    on_their_way: JoinSet<Result<Answer, Failed>>,
    deliveries: HashMap<Id, (ChannelName, Batch)>,
    polled: Option<Instant>,
    /// Where the last turn was broken off.
    resume_at: Option<ChannelName>,
    /// The jobs that the notifications were judged by last.
    jobs: Arc<JobSet>,
    reading: Trouble,
    writing: Trouble,
}

impl Sender {
    /// Sends while this node leads; ends with the daemon, which drops the status. Begins again after a panic, which
    /// would else end all notifications.
    pub async fn run(self) {
        loop {
            let mut task = JoinSet::new();
            task.spawn(self.clone().send());
            match task.join_next().await {
                // The panic itself is logged where it happens.
                Some(Err(error)) if error.is_panic() => {
                    log!(INTERNAL_ERROR, "the task that sends notifications has ended; it begins again in 30 s");
                    sleep(RESTART).await;
                }
                _ => return,
            }
        }
    }

    async fn send(mut self) {
        let (mut status, mut jobs) = (self.status.clone(), self.jobs.clone());
        let mut news: Option<ClusterNews> = None;
        loop {
            if let Some(token) = self.term() {
                let news = news.get_or_insert_with(|| ClusterNews::of_term(token, self.missing_after));
                news.go_on(token);
                if self.has_channels() {
                    self.lead(token, news).await;
                } else {
                    news.began_unheard();
                }
            }
            let changed = async {
                tokio::select! { it = status.changed() => it, it = jobs.changed() => it }
            };
            if changed.await.is_err() {
                return;
            }
            self.status.mark_unchanged();
            self.jobs.mark_unchanged();
        }
    }

    /// The term in which this node sends: it leads, and there are channels.
    fn leads(&self) -> Option<FencingToken> {
        self.term().filter(|_| self.has_channels())
    }

    /// The term in which this node leads.
    fn term(&self) -> Option<FencingToken> {
        let status = self.status.borrow();
        status.role.token.filter(|_| status.state == NodeState::Leading)
    }

    fn has_channels(&self) -> bool {
        !self.jobs.borrow().channels.is_empty()
    }

    async fn lead(&self, token: FencingToken, news: &mut ClusterNews) {
        let mut term = Term::new(self, token);
        while self.leads() == Some(token) {
            let wake = term.turn(news).await;
            tokio::select! {
                biased;
                Some(joined) = term.on_their_way.join_next_with_id() => drop(term.joined(joined)),
                () = sleep(wake) => {}
            }
        }
        term.end().await;
    }
}

/// Why the ledger has not done what it was asked.
struct Unasked(String);

/// Waits for the ledger, in bounded time.
async fn asked<T>(request: OperatorFuture<'_, T>) -> Result<T, Unasked> {
    let failed = match timeout(PATIENCE, request).await {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error,
        Err(_) => OperatorError::Unclear("no answer in time".to_owned()),
    };
    debug!(target: TARGET, error = %failed, "the outbox cannot be used now");
    Err(Unasked(failed.to_string()))
}

impl<'a> Term<'a> {
    fn new(sender: &'a Sender, token: FencingToken) -> Self {
        Self {
            sender,
            token,
            numbers: BTreeSet::new(),
            notices: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            let_go: BTreeMap::new(),
            channels: BTreeMap::new(),
            on_their_way: JoinSet::new(),
            deliveries: HashMap::new(),
            polled: None,
            resume_at: None,
            jobs: Arc::clone(&sender.jobs.borrow()),
            reading: Trouble::default(),
            writing: Trouble::default(),
        }
    }

    /// Does everything that is due now. Returns how long to wait, unless an answer comes first.
    async fn turn(&mut self, news: &mut ClusterNews) -> Duration {
        let jobs = Arc::clone(&self.sender.jobs.borrow());
        if !Arc::ptr_eq(&jobs, &self.jobs) {
            // Other jobs may be defined now.
            self.let_go.clear();
            self.jobs = Arc::clone(&jobs);
        }
        if self.polled.is_none_or(|polled| polled.elapsed() >= POLL) {
            self.say(news, &jobs).await;
            self.read(&jobs).await;
            self.polled = Some(Instant::now());
        }
        self.give_up_old(&jobs);
        let (began, mut next) = (Instant::now(), POLL);
        let first = self.resume_at.take();
        let from = |name: &&ChannelName| first.as_ref().is_none_or(|first| *name >= first);
        let (later, sooner): (Vec<_>, Vec<_>) = jobs.channels.keys().partition(from);
        for name in later.into_iter().chain(sooner) {
            if began.elapsed() >= TURN {
                self.resume_at = Some(name.clone());
                next = Duration::ZERO;
                break;
            }
            while let Some(joined) = self.on_their_way.try_join_next_with_id() {
                self.joined(joined);
            }
            let Some(channel) = jobs.channels.get(name) else { continue };
            let was_stuck = self.is_stuck(name);
            next = next.min(self.serve(&jobs, name, channel).await);
            if was_stuck && !self.is_stuck(name) {
                self.let_go.clear();
            }
        }
        self.clear(&jobs).await;
        next
    }

    fn is_stuck(&self, name: &ChannelName) -> bool {
        self.channels.get(name).is_some_and(ChannelState::is_stuck)
    }

    /// Adds notifications about the cluster, if a channel wants them.
    async fn say(&mut self, news: &mut ClusterNews, jobs: &JobSet) {
        let nodes = nodes(&self.sender.status.borrow());
        news.see(system::now(), &self.sender.node, &nodes);
        while let Some(notice) = news.next() {
            if jobs.wanted_by(notice.kind, None).is_some_and(|wanted| !wanted.is_empty()) {
                let added = asked(self.sender.outbox.add(notice.clone())).await;
                if !self.took(Use::Write, &added, jobs) {
                    return;
                }
            }
            news.said();
        }
    }

    /// Notes whether the outbox does what it is asked, and says so if it has not for a while.
    fn took<T>(&mut self, what: Use, asked: &Result<T, Unasked>, jobs: &JobSet) -> bool {
        let now = system::now();
        let trouble = match what {
            Use::Read => &mut self.reading,
            Use::Write => &mut self.writing,
        };
        match asked {
            Ok(_) => {
                if trouble.ended() && !self.reading.is_said() && !self.writing.is_said() {
                    jobs.channels.keys().for_each(|name| usable(&self.sender.health, name));
                }
                true
            }
            Err(Unasked(why)) => {
                if trouble.failed(now.up) {
                    jobs.channels.keys().for_each(|name| unusable(&self.sender.health, name, now.wall, why));
                }
                false
            }
        }
    }

    async fn read(&mut self, jobs: &JobSet) {
        let outbox = &self.sender.outbox;
        let numbers = match asked(outbox.keys()).await {
            Ok(numbers) => numbers,
            failed => {
                self.took(Use::Read, &failed, jobs);
                return;
            }
        };
        self.notices.retain(|seq, _| numbers.contains(seq));
        self.unreadable.retain(|seq, _| numbers.contains(seq));
        self.let_go.retain(|seq, _| numbers.contains(seq));
        self.numbers = numbers;
        let unread = self.to_read();
        // It can be read only if both requests are answered.
        let read = if unread.is_empty() { Ok(BTreeMap::new()) } else { asked(outbox.notices(unread)).await };
        self.took(Use::Read, &read, jobs);
        for (seq, read) in read.unwrap_or_default() {
            self.take(seq, read);
        }
    }

    /// What is to be read next: first the notifications that a channel's mark names, because it waits for them all.
    fn to_read(&self) -> BTreeSet<NoticeKey> {
        let room = (MOST + AT_ONCE).saturating_sub(self.notices.len()).min(AT_ONCE);
        let marked: BTreeSet<NoticeKey> = self.channels.values().flat_map(ChannelState::marked).collect();
        let others = self.numbers.iter().copied().filter(|seq| !marked.contains(seq));
        let all = marked.iter().copied().chain(others);
        all.filter(|&seq| is_unread(seq, &self.numbers, &self.notices, &self.unreadable, &self.let_go))
            .take(room)
            .collect()
    }

    /// Takes a notification as read.
    fn take(&mut self, seq: NoticeKey, read: Result<Notice, String>) {
        let (why, is_newer) = match read {
            Ok(notice) if notice.v <= 1 => {
                self.unreadable.remove(&seq);
                self.notices.insert(seq, notice);
                return;
            }
            // A newer leader knows what to do with it.
            Ok(notice) => (format!("its format {} is that of a newer version", notice.v), true),
            Err(why) => (why, false),
        };
        let was_seen = self.unreadable.contains_key(&seq);
        if was_seen && !is_newer {
            let path = path(seq);
            log!(WARN COORDINATION_DAMAGED, path, "ignoring {path}, which is removed after 24 hours: {why}");
        }
        let fresh = Unreadable { since: Instant::now(), why, is_certain: false };
        self.unreadable.entry(seq).or_insert(fresh).is_certain = was_seen || is_newer;
    }

    /// Gives up notifications that are too old, and the oldest if there are too many.
    fn give_up_old(&mut self, jobs: &JobSet) {
        let limit = earlier(system::now().wall, LONGEST);
        let old = self.notices.iter().filter(|(_, notice)| notice.at < limit).map(|(seq, _)| *seq);
        let old: BTreeSet<NoticeKey> = old.collect();
        let too_many = self.notices.len().saturating_sub(MOST);
        let too_many: BTreeSet<NoticeKey> = self.notices.keys().copied().take(too_many).collect();
        for (why, seqs) in [(TOO_OLD, &old), (TOO_MANY, &too_many)] {
            for (name, state) in &mut self.channels {
                let wants = |seq: &&NoticeKey| self.notices.get(seq).is_some_and(|it| is_wanted(jobs, it, name));
                let count = state.give_up(&seqs.iter().filter(wants).copied().collect());
                if count > 0 {
                    given_up(&self.sender.health, name, count, why);
                }
            }
        }
        // What a channel cannot give up, because its record cannot be used, stays in the store alone; and so does what
        // another leader may be able to send.
        let is_stuck = |name: &ChannelName| self.channels.get(name).is_some_and(ChannelState::is_stuck);
        let is_let_go = |seq: &NoticeKey, notice: &Notice| match jobs.wanted_by(notice.kind, notice.job.as_ref()) {
            Some(wanted) => (old.contains(seq) || too_many.contains(seq)) && wanted.iter().any(is_stuck),
            None => too_many.contains(seq),
        };
        let gone = self.notices.extract_if(.., |seq, notice| is_let_go(seq, notice));
        self.let_go.extend(gone.map(|(seq, notice)| (seq, notice.at)));
    }

    /// Does what is due for a channel. Returns how long to wait before the next step.
    async fn serve(&mut self, jobs: &JobSet, name: &ChannelName, channel: &Channel) -> Duration {
        let sender = self.sender;
        // A few requests at most: to read, to write, and to mark.
        for _ in 0..4 {
            if sender.leads() != Some(self.token) {
                return POLL;
            }
            let state = self.channels.entry(name.clone()).or_default();
            let marked: BTreeSet<NoticeKey> = state.marked().collect();
            // A message that another leader began is sent as it was, though this one's file lacks some of its jobs.
            let is_for = |(seq, notice): &(&NoticeKey, &Notice)| match jobs.wanted_by(notice.kind, notice.job.as_ref())
            {
                Some(wanted) => wanted.contains(name),
                None => marked.contains(seq),
            };
            let wanted: BTreeMap<NoticeKey, &Notice> =
                self.notices.iter().filter(is_for).map(|(seq, notice)| (*seq, notice)).collect();
            let pending = wanted.keys().filter(|seq| !state.is_done(**seq)).count();
            sender.health.change(name, |health| health.pending = pending as u64);
            if wanted.is_empty() && !state.is_busy() {
                return POLL;
            }
            let is_unread =
                |&seq: &NoticeKey| is_unread(seq, &self.numbers, &self.notices, &self.unreadable, &self.let_go);
            let waiting = Waiting { wanted, marks_unread: marked.iter().any(is_unread) };
            let now = system::now();
            match state.next(name, &waiting, channel.every, now.up) {
                Step::Wait(until) => return until.map_or(POLL, |until| until.since(now.up)),
                Step::Read => match asked(sender.outbox.channel(name.clone())).await {
                    Ok(entry) => {
                        state.read(entry, self.numbers.last().copied(), system::now().up);
                        if state.reading.ended() {
                            usable(&sender.health, name);
                            // Its mark may name some of them.
                            self.let_go.clear();
                        }
                    }
                    Err(Unasked(why)) => {
                        if state.reading.failed(now.up) {
                            unusable(&sender.health, name, now.wall, &why);
                        }
                        return POLL;
                    }
                },
                Step::Write => {
                    if !write(state, name, &self.numbers, sender).await {
                        return POLL;
                    }
                }
                Step::Send(batch) => {
                    // The time of the delivery counts from before its mark, as that of a successor does.
                    let until = Instant::now() + deliver::LONGEST;
                    state.mark(&batch, &sender.node);
                    if !write(state, name, &self.numbers, sender).await {
                        return POLL;
                    }
                    if sender.leads() != Some(self.token) {
                        state.unsent(&batch);
                        write(state, name, &self.numbers, sender).await;
                        return POLL;
                    }
                    state.sent();
                    self.send(name.clone(), channel, batch, until);
                    return POLL;
                }
            }
        }
        Duration::ZERO
    }

    fn send(&mut self, name: ChannelName, channel: &Channel, batch: Batch, until: Instant) {
        let notices: Vec<&Notice> = batch.notices.iter().filter_map(|seq| self.notices.get(seq)).collect();
        let at = system::now().wall;
        let message = Message::of(&name, &batch, &notices, &self.sender.node, at);
        // A task of its own: it goes on while the ledger is slow.
        let task = self.on_their_way.spawn(deliver::deliver(channel.target.clone(), message, at, until));
        self.deliveries.insert(task.id(), (name, batch));
    }

    /// Takes what became of a delivery. Returns the channel, whose record is to be written.
    fn joined(&mut self, joined: Result<(Id, Result<Answer, Failed>), JoinError>) -> Option<ChannelName> {
        let (id, answer) = match joined {
            Ok(joined) => joined,
            // A panic, which is logged where it happens.
            Err(error) => {
                let why = "the delivery was broken off by an internal error".to_owned();
                (error.id(), Err(Failed { fate: Fate::Doubtful, why, answer: None }))
            }
        };
        let (name, batch) = self.deliveries.remove(&id)?;
        self.answered(&name, &batch, answer);
        Some(name)
    }

    /// Takes the answer to a message.
    fn answered(&mut self, name: &ChannelName, batch: &Batch, answer: Result<Answer, Failed>) {
        let Some(state) = self.channels.get_mut(name) else { return };
        let (health, count, now) = (&self.sender.health, batch.notices.len(), system::now());
        let every = self.sender.jobs.borrow().channels.get(name).map_or(NO_DISTANCE, |channel| channel.every);
        let fate = answer.as_ref().map_or_else(|failed| failed.fate, |_| Fate::Delivered);
        let jitter = uuid::Uuid::new_v4().as_u64_pair().0;
        let failures = state.failures() + 1;
        let after = state.answered(batch, fate, every, jitter, now.up);
        match answer {
            Ok(Answer { refused, .. }) => {
                log!(NOTICE_SENT, channel = %name, delivery = batch.id, count, second_copy = batch.is_again);
                health.change(name, |health| (health.sent, health.failing) = (health.sent + 1, None));
                if let Some(error) = refused {
                    // Others have it, so it does not count as given up.
                    log!(WARN NOTICE_GIVEN_UP, channel = %name, count, error);
                }
            }
            Err(Failed { why, .. }) => {
                let retry_ms = match after {
                    After::Again(pause) => Some(cronkeeper_core::run::millis(pause)),
                    After::Delivered | After::Hopeless | After::Untold => None,
                };
                // The first and then every tenth: a service that is away for a day must not fill the log.
                if failures == 1 || failures.is_multiple_of(10) || retry_ms.is_none() {
                    log!(NOTICE_FAILED, channel = %name, delivery = batch.id, count, error = why, retry_ms);
                }
                failing(health, name, now.wall, &why);
                match after {
                    After::Hopeless => given_up(health, name, count, &why),
                    After::Untold => given_up(health, name, count, UNTOLD),
                    After::Again(_) | After::Delivered => {}
                }
            }
        }
    }

    /// Removes what nobody waits for any more.
    async fn clear(&mut self, jobs: &JobSet) {
        let limit = earlier(system::now().wall, LONGEST);
        let is_done = |name: &ChannelName, seq| self.channels.get(name).is_some_and(|state| state.is_done(seq));
        // With the name and the reason if it is lost with that.
        let mut gone: BTreeMap<NoticeKey, Option<(String, String)>> = BTreeMap::new();
        for (seq, notice) in &self.notices {
            let lost = |why: &str| Some((notice.id.clone(), why.to_owned()));
            match jobs.wanted_by(notice.kind, notice.job.as_ref()) {
                None if notice.at < limit => {
                    let was_sent = self.channels.values().any(|state| state.is_done(*seq));
                    gone.insert(*seq, lost(NOWHERE).filter(|_| !was_sent));
                }
                // The next leader's file may have the job.
                None => {}
                Some(wanted) if wanted.is_empty() => {
                    gone.insert(*seq, lost("no channel of the jobs file wants it any more"));
                }
                Some(wanted) if wanted.iter().all(|name| is_done(name, *seq)) => _ = gone.insert(*seq, None),
                Some(_) => {}
            }
            if gone.len() == AT_ONCE {
                break;
            }
        }
        if !self.channels.values().any(ChannelState::is_stuck) {
            let old = self.let_go.iter().filter(|(_, at)| **at < limit);
            gone.extend(old.map(|(seq, _)| (*seq, Some((path(*seq), NOWHERE.to_owned())))));
        }
        let old = self.unreadable.iter().filter(|(_, it)| it.since.elapsed() >= LONGEST);
        gone.extend(old.map(|(seq, it)| (*seq, Some((path(*seq), it.why.clone())))));
        let gone: BTreeMap<_, _> = gone.into_iter().take(AT_ONCE).collect();
        self.remove(gone, jobs).await;
        self.channels.retain(|name, state| jobs.channels.contains_key(name) || state.is_busy());
        self.sender.health.keep(|name| jobs.channels.contains_key(name));
    }

    async fn remove(&mut self, gone: BTreeMap<NoticeKey, Option<(String, String)>>, jobs: &JobSet) {
        if gone.is_empty() {
            return;
        }
        let removed = asked(self.sender.outbox.remove(gone.keys().copied().collect())).await;
        if !self.took(Use::Write, &removed, jobs) {
            return;
        }
        for (notice, reason) in gone.values().flatten() {
            log!(NOTICE_DROPPED, notice, reason);
        }
        self.notices.retain(|seq, _| !gone.contains_key(seq));
        self.unreadable.retain(|seq, _| !gone.contains_key(seq));
        self.let_go.retain(|seq, _| !gone.contains_key(seq));
        self.numbers.retain(|seq| !gone.contains_key(seq));
    }

    /// The term is over: what is on its way is answered and noted, and nothing else is sent.
    async fn end(mut self) {
        let rest = async {
            while let Some(joined) = self.on_their_way.join_next_with_id().await {
                let Some(name) = self.joined(joined) else { continue };
                if let Some(state) = self.channels.get_mut(&name) {
                    write(state, &name, &self.numbers, self.sender).await;
                }
            }
        };
        // What is not noted is sent again by the next leader, which says so.
        let _ = timeout(FAREWELL, rest).await;
        for name in self.channels.keys() {
            // From now on the next leader knows.
            self.sender.health.change(name, |health| (health.pending, health.failing) = (0, None));
        }
    }
}

/// What the outbox is used for.
#[derive(Clone, Copy)]
enum Use {
    Read,
    Write,
}

/// True if it exists, and may still become known.
fn is_unread(
    seq: NoticeKey,
    existing: &BTreeSet<NoticeKey>,
    notices: &BTreeMap<NoticeKey, Notice>,
    unreadable: &BTreeMap<NoticeKey, Unreadable>,
    let_go: &BTreeMap<NoticeKey, Timestamp>,
) -> bool {
    existing.contains(&seq)
        && !notices.contains_key(&seq)
        && !let_go.contains_key(&seq)
        && unreadable.get(&seq).is_none_or(|it| !it.is_certain)
}

/// The nodes, without those that were forgotten.
fn nodes(status: &Status) -> Nodes {
    // Which nodes are forgotten the leader knows once it has read the places.
    let is_awaited = |missing: &&MissingMember| status.places.is_empty() || !missing.is_forgotten(&status.places);
    let missing = status.missing.iter().filter(is_awaited);
    Nodes {
        alive: status.members.iter().map(|member| member.node.clone()).collect(),
        missing: missing.map(|missing| (missing.node.clone(), missing.gone_since)).collect(),
    }
}

fn path(seq: NoticeKey) -> String {
    format!("outbox/{seq}")
}

/// Writes a channel's record, if nobody else has. False: it is not as it is here.
async fn write(state: &mut ChannelState, name: &ChannelName, existing: &BTreeSet<NoticeKey>, sender: &Sender) -> bool {
    let Some(entry) = state.record(existing) else { return false };
    match asked(sender.outbox.put_channel(name.clone(), entry.record, entry.at)).await {
        Ok(version) => {
            if state.writing.ended() {
                usable(&sender.health, name);
            }
            match version {
                Some(version) => state.written(version),
                // Another node has written it.
                None => state.superseded(),
            }
            version.is_some()
        }
        Err(Unasked(why)) => {
            // Nobody knows, and the record will show.
            state.unwritten();
            let now = system::now();
            if state.writing.failed(now.up) {
                unusable(&sender.health, name, now.wall, &why);
            }
            false
        }
    }
}

/// Says that the ledger keeps a channel from getting anything.
fn unusable(health: &Health, name: &ChannelName, now: Timestamp, why: &str) {
    let error = format!("{UNUSABLE}: {why}");
    let count = health.channels().get(name).map_or(0, |health| health.pending);
    log!(NOTICE_FAILED, channel = %name, count, error);
    health.change(name, |health| health.fails(now, error));
}

fn usable(health: &Health, name: &ChannelName) {
    health.change(name, |health| _ = health.failing.take_if(|(_, error)| error.starts_with(UNUSABLE)));
}

fn is_wanted(jobs: &JobSet, notice: &Notice, name: &ChannelName) -> bool {
    jobs.wanted_by(notice.kind, notice.job.as_ref()).is_some_and(|wanted| wanted.contains(name))
}

fn failing(health: &Health, name: &ChannelName, now: Timestamp, why: &str) {
    health.change(name, |health| {
        health.failed += 1;
        health.fails(now, why.to_owned());
    });
}

fn given_up(health: &Health, name: &ChannelName, count: usize, why: &str) {
    log!(ERROR NOTICE_GIVEN_UP, channel = %name, count, error = why);
    health.change(name, |health| health.given_up += count as u64);
}

#[cfg(test)]
mod tests;
