//! The task that sends: reads the outbox while this node leads, and carries out what [`plan`](super::plan) says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::cluster::ClusterNews;
use super::deliver::{self, Answer, Failed};
use super::message::Message;
use super::plan::{Batch, ChannelState, Fate, Step};
use crate::metrics::Health;
use crate::status::{NodeState, Status};
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
/// Longest wait for what is on its way when the term is over.
const FAREWELL: Duration = Duration::from_secs(25);

/// What the task needs.
pub struct Sender {
    pub node: NodeName,
    pub outbox: Arc<dyn Outbox>,
    pub jobs: watch::Receiver<Arc<JobSet>>,
    pub status: watch::Receiver<Arc<Status>>,
    pub health: Health,
}

/// A message on its way: when it is answered.
type Delivery = BoxFuture<'static, (ChannelName, Batch, Result<Answer, Failed>)>;

/// One term of this node, while the jobs file has channels.
struct Term<'a> {
    sender: &'a Sender,
    news: ClusterNews,
    numbers: BTreeSet<NoticeKey>,
    notices: BTreeMap<NoticeKey, Notice>,
    channels: BTreeMap<ChannelName, ChannelState>,
    on_their_way: FuturesUnordered<Delivery>,
    polled: Option<Instant>,
}

impl Sender {
    /// Sends while this node leads; ends with the daemon, which drops the status.
    pub async fn run(mut self) {
        let (mut status, mut jobs) = (self.status.clone(), self.jobs.clone());
        loop {
            if let Some(token) = self.leads() {
                self.lead(token).await;
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
        let status = self.status.borrow();
        let has_channels = !self.jobs.borrow().channels.is_empty();
        status.role.token.filter(|_| status.state == NodeState::Leading && has_channels)
    }

    async fn lead(&self, token: FencingToken) {
        let mut term = Term {
            sender: self,
            news: ClusterNews::of_term(token),
            numbers: BTreeSet::new(),
            notices: BTreeMap::new(),
            channels: BTreeMap::new(),
            on_their_way: FuturesUnordered::new(),
            polled: None,
        };
        while self.leads() == Some(token) {
            let wake = term.turn().await;
            tokio::select! {
                Some(answered) = term.on_their_way.next() => term.answered(answered),
                () = sleep(wake) => {}
            }
        }
        term.end().await;
    }
}

/// Waits for the ledger, in bounded time. `None`: it does not answer, or refuses.
async fn asked<T>(request: OperatorFuture<'_, T>) -> Option<T> {
    let failed = match timeout(PATIENCE, request).await {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => error,
        Err(_) => OperatorError::Unclear("no answer in time".to_owned()),
    };
    debug!(target: TARGET, error = %failed, "the outbox cannot be used now");
    None
}

impl Term<'_> {
    /// Does everything that is due now. Returns how long to wait, unless an answer comes first.
    async fn turn(&mut self) -> Duration {
        if self.polled.is_none_or(|polled| polled.elapsed() >= POLL) {
            self.say_news().await;
            self.read().await;
            self.polled = Some(Instant::now());
        }
        let jobs = Arc::clone(&self.sender.jobs.borrow());
        self.give_up_old(&jobs);
        let mut next = POLL;
        for (name, channel) in &jobs.channels {
            next = next.min(self.serve(&jobs, name, channel).await);
        }
        self.clear(&jobs).await;
        next
    }

    /// Adds notifications about the cluster, if a channel wants them.
    async fn say_news(&mut self) {
        let jobs = Arc::clone(&self.sender.jobs.borrow());
        let missing = {
            let status = self.sender.status.borrow();
            status.missing.iter().map(|missing| (missing.node.clone(), missing.gone_since)).collect()
        };
        for notice in self.news.see(system::now(), &self.sender.node, &missing) {
            if !jobs.wanted_by(notice.kind, None).is_empty() {
                // A leader whose ledger does not answer will not lead for long, and its successor says that it leads.
                asked(self.sender.outbox.add(notice)).await;
            }
        }
    }

    async fn read(&mut self) {
        let outbox = &self.sender.outbox;
        let Some(numbers) = asked(outbox.keys()).await else { return };
        self.notices.retain(|seq, _| numbers.contains(seq));
        let unknown: BTreeSet<_> = numbers.iter().filter(|seq| !self.notices.contains_key(seq)).copied().collect();
        self.numbers = numbers;
        let unknown: BTreeSet<NoticeKey> = unknown.into_iter().take(AT_ONCE).collect();
        if unknown.is_empty() {
            return;
        }
        let mut damaged = BTreeSet::new();
        for (seq, read) in asked(outbox.notices(unknown)).await.unwrap_or_default() {
            match read {
                // A newer leader knows what to do with the others.
                Ok(notice) if notice.v <= 1 => _ = self.notices.insert(seq, notice),
                Ok(_) => {}
                Err(why) => {
                    dropped(&format!("outbox/{seq}"), &why);
                    damaged.insert(seq);
                }
            }
        }
        self.remove(damaged).await;
    }

    /// Gives up notifications that are too old, and the oldest if there are too many.
    fn give_up_old(&mut self, jobs: &JobSet) {
        let too_many = self.notices.len().saturating_sub(MOST);
        let limit = earlier(system::now().wall, LONGEST);
        let old = |(index, (_, notice)): &(usize, (&NoticeKey, &Notice))| *index < too_many || notice.at < limit;
        let old: BTreeSet<NoticeKey> = self.notices.iter().enumerate().filter(old).map(|(_, (seq, _))| *seq).collect();
        for (name, state) in &mut self.channels {
            let wants = |seq: &&NoticeKey| self.notices.get(seq).is_some_and(|notice| is_wanted(jobs, notice, name));
            let given_up_now = state.give_up(&old.iter().filter(wants).copied().collect());
            if given_up_now > 0 {
                given_up(&self.sender.health, name, given_up_now, "older than 24 hours, or too many were waiting");
            }
        }
    }

    /// Does what is due for a channel. Returns how long to wait before the next step.
    async fn serve(&mut self, jobs: &JobSet, name: &ChannelName, channel: &Channel) -> Duration {
        // A few requests at most: to read, to write, and to mark.
        for _ in 0..4 {
            let waiting: BTreeMap<NoticeKey, &Notice> =
                self.notices.iter().map(|(seq, notice)| (*seq, notice)).collect();
            let waiting: BTreeMap<_, _> =
                waiting.into_iter().filter(|(_, notice)| is_wanted(jobs, notice, name)).collect();
            let state = self.channels.entry(name.clone()).or_default();
            let pending = waiting.keys().filter(|seq| !state.is_done(**seq)).count();
            self.sender.health.change(name, |health| health.pending = pending as u64);
            if waiting.is_empty() && !state.is_busy() {
                return POLL;
            }
            let now = system::now().up;
            match state.next(name, &waiting, channel.every, now) {
                Step::Wait(until) => return until.map_or(POLL, |until| until.since(now)),
                Step::Read => match asked(self.sender.outbox.channel(name.clone())).await {
                    Some(entry) => state.read(entry, system::now().up),
                    None => return POLL,
                },
                Step::Write => {
                    if !write(state, name, &self.numbers, self.sender).await {
                        return POLL;
                    }
                }
                Step::Send(batch) => {
                    let found: Vec<Notice> = batch
                        .notices
                        .iter()
                        .filter_map(|seq| waiting.get(seq))
                        .map(|notice| (*notice).clone())
                        .collect();
                    state.mark(&batch, &self.sender.node);
                    if !write(state, name, &self.numbers, self.sender).await {
                        return POLL;
                    }
                    state.sent();
                    self.send(name.clone(), channel, batch, &found);
                    return POLL;
                }
            }
        }
        Duration::ZERO
    }

    fn send(&mut self, name: ChannelName, channel: &Channel, batch: Batch, notices: &[Notice]) {
        let notices: Vec<&Notice> = notices.iter().collect();
        let at = system::now().wall;
        let message = Message::of(&name, &batch, &notices, &self.sender.node, at);
        let target = channel.target.clone();
        self.on_their_way.push(Box::pin(async move {
            let answer = deliver::deliver(target, message, at).await;
            (name, batch, answer)
        }));
    }

    /// Takes the answer to a message.
    fn answered(&mut self, (name, batch, answer): (ChannelName, Batch, Result<Answer, Failed>)) {
        let Some(state) = self.channels.get_mut(&name) else { return };
        let (health, count, now) = (&self.sender.health, batch.notices.len(), system::now());
        let fate = answer.as_ref().map_or_else(|failed| failed.fate, |_| Fate::Delivered);
        let jitter = uuid::Uuid::new_v4().as_u64_pair().0;
        let pause = state.answered(&batch, fate, jitter, now.up);
        match answer {
            Ok(_) => {
                log!(NOTICE_SENT, channel = %name, delivery = batch.id, count, second_copy = batch.is_again);
                health.change(&name, |health| (health.sent, health.failing) = (health.sent + 1, None));
            }
            Err(Failed { why, .. }) => {
                let retry_ms = pause.map(cronkeeper_core::run::millis);
                let failures = state.failures();
                // The first and then every tenth: a service that is away for a day must not fill the log.
                if failures == 1 || failures.is_multiple_of(10) {
                    log!(NOTICE_FAILED, channel = %name, delivery = batch.id, count, error = why, retry_ms);
                }
                failing(health, &name, now.wall, &why);
                if fate == Fate::Hopeless {
                    given_up(health, &name, count, &why);
                }
            }
        }
    }

    /// Removes what nobody waits for any more.
    async fn clear(&mut self, jobs: &JobSet) {
        let mut gone = BTreeSet::new();
        for (seq, notice) in &self.notices {
            let wanted = jobs.wanted_by(notice.kind, notice.job.as_ref());
            if wanted.is_empty() {
                dropped(&notice.id, "no channel of the jobs file wants it any more");
                gone.insert(*seq);
            } else if wanted.iter().all(|name| self.channels.get(name).is_some_and(|state| state.is_done(*seq))) {
                gone.insert(*seq);
            }
            if gone.len() == AT_ONCE {
                break;
            }
        }
        self.remove(gone).await;
        self.channels.retain(|name, state| jobs.channels.contains_key(name) || state.is_busy());
        self.sender.health.keep(|name| jobs.channels.contains_key(name));
    }

    async fn remove(&mut self, gone: BTreeSet<NoticeKey>) {
        if !gone.is_empty() && asked(self.sender.outbox.remove(gone.clone())).await.is_some() {
            self.notices.retain(|seq, _| !gone.contains(seq));
            self.numbers.retain(|seq| !gone.contains(seq));
        }
    }

    /// The term is over: what is on its way is answered and noted, and nothing else is sent.
    async fn end(mut self) {
        let rest = async {
            while let Some(answered) = self.on_their_way.next().await {
                let name = answered.0.clone();
                self.answered(answered);
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

/// Writes a channel's record, if nobody else has. False: it is to be read again.
async fn write(state: &mut ChannelState, name: &ChannelName, existing: &BTreeSet<NoticeKey>, sender: &Sender) -> bool {
    let Some(entry) = state.record(existing) else { return false };
    match asked(sender.outbox.put_channel(name.clone(), entry.record, entry.at)).await {
        Some(Some(version)) => {
            state.written(version);
            true
        }
        // Another node has written it; or nobody knows, and the record will show.
        Some(None) => {
            state.superseded();
            false
        }
        None => {
            state.unwritten();
            false
        }
    }
}

fn is_wanted(jobs: &JobSet, notice: &Notice, name: &ChannelName) -> bool {
    jobs.wanted_by(notice.kind, notice.job.as_ref()).contains(name)
}

fn failing(health: &Health, name: &ChannelName, now: Timestamp, why: &str) {
    health.change(name, |health| {
        let since = health.failing.as_ref().map_or(now, |(since, _)| *since);
        health.failed += 1;
        health.failing = Some((since, why.to_owned()));
    });
}

fn given_up(health: &Health, name: &ChannelName, count: usize, why: &str) {
    log!(NOTICE_GIVEN_UP, channel = %name, count, error = why);
    health.change(name, |health| health.given_up += count as u64);
}

fn dropped(notice: &str, why: &str) {
    log!(NOTICE_DROPPED, notice, reason = why);
}
