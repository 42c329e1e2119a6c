//! The task of a session: carries out its requests, one after the other, beats, and observes the other sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};

use super::SESSIONS;
use super::plan::{self, Known, Origin, Own, Plan, SessionRecord, session_path};
use super::sightings::Sightings;
use super::watches::Watches;
use crate::store::{self, Done, Found, If, NotDone, Store, Then, Wanted};
use crate::tree::{CommitError, Committed, ConnectError, Error, Op, Revision, State};
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::run::Version;
use cronkeeper_core::term::SessionId;

/// Pause before a request without an answer is sent again. The pauses double up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Longest interval between two looks at the other sessions, and the shortest if the store hints at changes.
const POLL: Duration = Duration::from_millis(250);
const HINTED_POLL: Duration = Duration::from_millis(20);
/// Parts of one read.
const MOST_WANTED: usize = 1_000;

pub type Answer<T> = oneshot::Sender<T>;
/// What was read, and what resolves when it may have changed.
pub type Seen = (Found, oneshot::Receiver<()>);

/// A request to the driver. Whoever drops the receiver of its answer gives it up, if it was not begun.
pub enum Request {
    Commit {
        ops: Vec<Op>,
        answer: Answer<Result<Written, CommitError>>,
    },
    Read {
        wanted: Vec<Wanted>,
        answer: Answer<Result<Vec<Found>, Error>>,
    },
    /// Reads, and sets a watch.
    Watch {
        wanted: Wanted,
        answer: Answer<Result<Seen, Error>>,
    },
}

/// A commit that took effect.
#[derive(Debug)]
pub struct Written {
    pub revision: Revision,
    pub committed: Committed,
}

/// How a commit of the session was answered.
enum Sent {
    Done(Done),
    /// The session's record is not at the version that it was known at, although the session lives.
    Stale,
    Refused {
        index: usize,
        found: Option<Version>,
    },
    Failed(Error),
}

/// The session is over.
struct Over;

pub struct Driver<S, K> {
    store: S,
    clock: K,
    id: SessionId,
    timeout: Duration,
    /// Absent for a session that has no record: its commits prove nothing, and it can have no entries.
    own: Option<Own>,
    known: Known,
    requests: mpsc::UnboundedReceiver<Request>,
    waiting: VecDeque<Request>,
    watches: Watches,
    sightings: Sightings,
    state: watch::Sender<State>,
    /// The newest revision that was seen.
    revision: Revision,
    /// Resolves when the store hints at a change; absent once it has, until the next look.
    hint: Option<BoxFuture<'static, ()>>,
    /// When the session's record was last written, and when the sessions were last looked at.
    beaten_at: Uptime,
    polled_at: Uptime,
}

impl<S: Store, K: Clock> Driver<S, K> {
    /// A session, whose record is made now.
    ///
    /// # Errors
    /// If the store does not answer within the timeout.
    pub async fn open(
        store: S,
        clock: K,
        id: SessionId,
        timeout: Duration,
        requests: mpsc::UnboundedReceiver<Request>,
    ) -> Result<Self, ConnectError> {
        let mut driver = Self::without_record(store, clock, id, timeout, requests);
        let own = Own { id: driver.id.clone(), version: Version::FIRST, count: 0, entries: BTreeSet::new() };
        let make = store::Op { when: If::Absent, ..own.beat(&own.entries) };
        let until = driver.clock.now().up + timeout;
        let mut pause = PAUSE;
        loop {
            driver.beaten_at = driver.clock.now().up;
            match driver.store.commit(vec![make.clone()]).await {
                // No other session has this id: a try without an answer has made it.
                Ok(_) | Err(NotDone::Refused { .. }) => {
                    driver.own = Some(own);
                    return Ok(driver);
                }
                Err(NotDone::Failed(Error::Denied)) => return Err(ConnectError::AuthFailed(Error::Denied.to_string())),
                Err(NotDone::Failed(error)) if driver.clock.now().up >= until => {
                    return Err(ConnectError::Unreachable(error.to_string()));
                }
                Err(NotDone::Failed(_)) => driver.rest(&mut pause).await,
            }
        }
    }

    /// A session for reads and writes on behalf of people: it has no record, and observes nobody.
    pub fn without_record(
        store: S,
        clock: K,
        id: SessionId,
        timeout: Duration,
        requests: mpsc::UnboundedReceiver<Request>,
    ) -> Self {
        Self {
            store,
            clock,
            id,
            timeout,
            own: None,
            known: Known::default(),
            requests,
            waiting: VecDeque::new(),
            watches: Watches::default(),
            sightings: Sightings::default(),
            state: watch::Sender::new(State::Connected),
            revision: Revision::default(),
            hint: None,
            beaten_at: Uptime::ZERO,
            polled_at: Uptime::ZERO,
        }
    }

    pub fn id(&self) -> &SessionId {
        &self.id
    }

    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Runs until the session is over or every handle of it is dropped. Its record stays until another session has seen
    /// it silent for the timeout.
    pub async fn run(mut self) {
        let Over = self.serve().await;
        self.set_state(State::Expired);
    }

    async fn serve(&mut self) -> Over {
        loop {
            if self.waiting.is_empty() {
                let wake = Wake { wall: None, up: self.next_at() };
                // Cancellation safe: a request that was not received stays in the channel, the hint is kept, and the
                // clock loses nothing.
                tokio::select! {
                    biased;
                    request = self.requests.recv() => match request {
                        Some(request) => self.waiting.push_back(request),
                        None => return Over,
                    },
                    () = hinted(&mut self.hint) => self.hint = None,
                    () = self.clock.sleep_until(wake) => {}
                }
            }
            while let Ok(request) = self.requests.try_recv() {
                self.waiting.push_back(request);
            }
            if let Err(over) = self.turn().await {
                return over;
            }
        }
    }

    /// The next instant at which the driver acts by itself.
    fn next_at(&self) -> Option<Uptime> {
        self.beat_at().into_iter().chain(self.poll_at()).min()
    }

    fn beat_at(&self) -> Option<Uptime> {
        self.own.as_ref().map(|_| self.beaten_at + self.timeout / 10)
    }

    fn is_beat_due(&self) -> bool {
        self.beat_at().is_some_and(|at| at <= self.clock.now().up)
    }

    /// The number of the commit that was planned last.
    fn count(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.count)
    }

    /// When the next look is due: sooner after a hint.
    fn poll_at(&self) -> Option<Uptime> {
        let every = (self.timeout / 20).min(POLL);
        let pause = if self.hint.is_none() { HINTED_POLL.min(every) } else { every };
        (self.own.is_some() || !self.watches.is_empty()).then(|| self.polled_at + pause)
    }

    async fn turn(&mut self) -> Result<(), Over> {
        // Before any request: an answer must not prove a session that others no longer see alive.
        if self.is_beat_due() {
            self.move_on(self.count()).await?;
        }
        match self.waiting.pop_front() {
            Some(Request::Commit { ops, answer }) => {
                let written = self.commit(&ops).await?;
                let _ = answer.send(written);
            }
            Some(Request::Watch { wanted, answer }) if !answer.is_closed() => self.watch(wanted, answer).await,
            Some(read @ Request::Read { .. }) => self.read_together(read).await,
            Some(Request::Watch { .. }) | None => {}
        }
        if self.poll_at().is_some_and(|at| at <= self.clock.now().up) {
            self.poll().await?;
            self.hint = Some(Box::pin(self.store.changed(self.revision)));
        }
        Ok(())
    }

    /// Reads what waits together, up to the next other request.
    async fn read_together(&mut self, first: Request) {
        let (mut parts, mut answers) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(Request::Read { wanted, answer }) = next.take() {
            if !answer.is_closed() {
                answers.push((wanted.len(), answer));
                parts.extend(wanted);
            }
            let is_read = matches!(self.waiting.front(), Some(Request::Read { .. }));
            next = if is_read && parts.len() < MOST_WANTED { self.waiting.pop_front() } else { None };
        }
        let found = self.read(parts).await.map(VecDeque::from);
        match found {
            Ok(mut found) => {
                answers.into_iter().for_each(|(count, answer)| _ = answer.send(Ok(found.drain(..count).collect())));
            }
            Err(error) => answers.into_iter().for_each(|(_, answer)| _ = answer.send(Err(error.clone()))),
        }
    }

    async fn watch(&mut self, wanted: Wanted, answer: Answer<Result<Seen, Error>>) {
        let found = self.read(vec![wanted.clone()]).await;
        let seen = found.and_then(|mut found| {
            let found = found.pop().ok_or(Error::Missing)?;
            // Whoever does not want a watch on a record that is not there drops it.
            let fires = self.watches.set(wanted, &found);
            Ok((found, fires))
        });
        let _ = answer.send(seen);
    }

    async fn read(&mut self, wanted: Vec<Wanted>) -> Result<Vec<Found>, Error> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        match self.store.read(wanted).await {
            Ok((revision, found)) => {
                self.answered(revision);
                Ok(found)
            }
            Err(error) => {
                if matches!(error, Error::Unanswered(_)) {
                    self.set_state(State::Disconnected);
                }
                Err(error)
            }
        }
    }

    fn answered(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
        self.set_state(State::Connected);
    }

    fn set_state(&self, state: State) {
        self.state.send_if_modified(|known| std::mem::replace(known, state) != state);
    }

    async fn lose_connection(&mut self, pause: &mut Duration) {
        self.set_state(State::Disconnected);
        self.rest(pause).await;
    }

    async fn rest(&mut self, pause: &mut Duration) {
        let until = self.clock.now().up + *pause;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        while self.clock.now().up < until {
            self.clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
        }
    }

    /// Commits for a recipe, as often as it takes to have an answer.
    ///
    /// Each answer, refusals among them, comes after a write of the session's record that was acknowledged: only then is
    /// it certain that no try takes effect any more, and only then does the answer prove that the session lived.
    async fn commit(&mut self, ops: &[Op]) -> Result<Result<Written, CommitError>, Over> {
        let appends = || ops.iter().filter_map(plan::appends_to);
        loop {
            let has_old_numbers = appends().any(|folder| self.known.numbers.contains_key(folder));
            if let Err(error) = self.prepare(ops).await? {
                return Ok(Err(CommitError { index: None, error }));
            }
            if let Some(own) = &mut self.own {
                own.count += 1;
            }
            let plan = match Plan::of(ops, &self.known, self.own.as_ref()) {
                Ok(plan) => plan,
                // A record with such a number may be another session's, which the same commit removes.
                Err(_) if has_old_numbers => {
                    for folder in appends() {
                        self.known.numbers.remove(folder);
                    }
                    continue;
                }
                Err(refused) => {
                    self.move_on(self.count()).await?;
                    return Ok(Err(refused));
                }
            };
            match self.send(&plan.ops).await? {
                Sent::Done(done) => return Ok(Ok(self.done(plan, done))),
                Sent::Stale => {}
                Sent::Failed(error) => return Ok(Err(CommitError { index: None, error })),
                Sent::Refused { index, found } => match plan.origins.get(index) {
                    // Its version was only read to keep the entry's session.
                    Some(Origin::Op(op)) if found.is_some() && self.known.is_at_any(&ops[*op]) => {}
                    // Another session has taken the number.
                    Some(Origin::Op(op)) if let Some(folder) = plan::appends_to(&ops[*op]) => {
                        self.known.numbers.remove(folder);
                    }
                    Some(Origin::Op(op)) => {
                        let error = plan::refusal(plan.ops[index].when, found);
                        return Ok(Err(CommitError { index: Some(*op), error }));
                    }
                    Some(Origin::Numbers(folder)) => drop(self.known.numbers.remove(folder)),
                    Some(Origin::Folder(folder)) => drop(self.known.folders.insert(folder.clone(), found.is_some())),
                    Some(Origin::Session) | None => {}
                },
            }
        }
    }

    /// Reads what must be known before the commit can be planned.
    async fn prepare(&mut self, ops: &[Op]) -> Result<Result<(), Error>, Over> {
        (self.known.others, self.known.emptied) = (BTreeMap::new(), BTreeMap::new());
        let wanted = plan::needs(ops, &self.known);
        let mut pause = PAUSE;
        loop {
            match self.read(wanted.clone()).await {
                Ok(found) => {
                    wanted.into_iter().zip(found).for_each(|(wanted, found)| self.known.learn(wanted, found));
                    return Ok(Ok(()));
                }
                Err(Error::Unanswered(_)) if self.own.is_some() => self.lose_connection(&mut pause).await,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Sends a commit until it is answered. A session without a record gives up at once: it cannot find out what a try
    /// without an answer has done.
    async fn send(&mut self, ops: &[store::Op]) -> Result<Sent, Over> {
        let (mut is_in_doubt, mut pause) = (false, PAUSE);
        let of = self.count();
        loop {
            let sent_at = self.clock.now().up;
            let answer = self.store.commit(ops.to_vec()).await;
            if self.own.is_none() {
                return Ok(match answer {
                    Ok(done) => Sent::Done(done),
                    Err(NotDone::Refused { index, found }) => Sent::Refused { index, found },
                    Err(NotDone::Failed(error)) => Sent::Failed(error),
                });
            }
            let refused = match answer {
                Ok(done) => {
                    self.beaten(sent_at);
                    return Ok(Sent::Done(done));
                }
                Err(NotDone::Refused { index: 0, found: None }) => return Err(Over),
                Err(NotDone::Refused { index: 0, .. }) => return self.what_moved(of).await,
                Err(NotDone::Failed(Error::Unanswered(_))) => {
                    is_in_doubt = true;
                    self.lose_connection(&mut pause).await;
                    continue;
                }
                Err(NotDone::Refused { index, found }) => Sent::Refused { index, found },
                Err(NotDone::Failed(error)) if is_in_doubt => Sent::Failed(error),
                Err(NotDone::Failed(error)) => return Ok(Sent::Failed(error)),
            };
            return Ok(self.move_on(of).await?.map_or(refused, Sent::Done));
        }
    }

    /// The session's record was written, by a commit that was sent at this time.
    fn beaten(&mut self, sent_at: Uptime) {
        if let Some(own) = &mut self.own {
            own.version = own.version.next();
            self.beaten_at = sent_at;
            self.set_state(State::Connected);
        }
    }

    /// Beats until that is answered. Returns what commit number `of` has done, if it took effect before.
    async fn move_on(&mut self, of: u64) -> Result<Option<Done>, Over> {
        let mut pause = PAUSE;
        loop {
            let Some(own) = &mut self.own else { return Ok(None) };
            own.count += 1;
            let (beat, sent_at) = (own.beat(&own.entries), self.clock.now().up);
            match self.store.commit(vec![beat]).await {
                Ok(_) => {
                    self.beaten(sent_at);
                    return Ok(None);
                }
                Err(NotDone::Refused { found: None, .. }) => return Err(Over),
                // By that commit, or by a beat without an answer.
                Err(NotDone::Refused { .. }) => {
                    return Ok(match self.what_moved(of).await? {
                        Sent::Done(done) => Some(done),
                        Sent::Stale | Sent::Refused { .. } | Sent::Failed(_) => None,
                    });
                }
                Err(NotDone::Failed(_)) => self.lose_connection(&mut pause).await,
            }
        }
    }

    /// Finds out if it was commit number `of` that has moved the session's record on.
    async fn what_moved(&mut self, of: u64) -> Result<Sent, Over> {
        let mut pause = PAUSE;
        let found = loop {
            match self.read(vec![Wanted::Record(session_path(&self.id))]).await {
                Ok(mut found) => break found.pop(),
                Err(_) => self.lose_connection(&mut pause).await,
            }
        };
        let (Some(Found::Record(Some((data, meta)))), Some(own)) = (found, &mut self.own) else { return Err(Over) };
        let record = serde_json::from_slice::<SessionRecord>(&data).unwrap_or_default();
        // An observer has ended it; or a late copy of its first commit has made it anew since.
        if record.count == plan::ENDED || meta.version < own.version {
            return Err(Over);
        }
        own.version = meta.version;
        let done = Done { revision: meta.changed, at: Some(meta.changed_at) };
        Ok(if record.count == of { Sent::Done(done) } else { Sent::Stale })
    }

    fn done(&mut self, plan: Plan, done: Done) -> Written {
        self.answered(done.revision);
        for (folder, next) in plan.numbers {
            let at = self.known.numbers.get(&folder).and_then(|(_, at)| *at);
            self.known.numbers.insert(folder, (next, Some(at.map_or(Version::FIRST, Version::next))));
        }
        for origin in plan.origins {
            if let Origin::Folder(folder) = origin {
                self.known.folders.insert(folder, true);
            }
        }
        if let Some(own) = &mut self.own {
            own.entries = plan.entries;
        }
        Written { revision: done.revision, committed: Committed { created: plan.created, at: done.at } }
    }

    /// Looks at the other sessions and at what is watched.
    async fn poll(&mut self) -> Result<(), Over> {
        loop {
            self.polled_at = self.clock.now().up;
            let mut wanted = self.watches.wanted();
            wanted.push(Wanted::Names(SESSIONS.to_owned()));
            // Not awaited for ever: requests come before.
            let Ok((revision, mut found)) = self.store.read(wanted).await else {
                self.set_state(State::Disconnected);
                return Ok(());
            };
            self.answered(revision);
            let sessions = found.pop();
            self.watches.see(&found);
            let (Some(Found::Names(sessions)), Some(own)) = (sessions, &self.own) else { return Ok(()) };
            let lives = |(name, meta): &(String, store::Meta)| *name == self.id.0 && meta.version >= own.version;
            if !sessions.iter().any(lives) {
                return Err(Over);
            }
            let others = sessions.iter().filter(|(name, _)| *name != self.id.0);
            let others = others.map(|(name, meta)| (name.as_str(), meta));
            let silent = self.sightings.see(others, self.clock.now().up);
            let mut has_ended = false;
            for (session, version) in silent {
                // The rest is still silent with the next look.
                if self.is_beat_due() {
                    break;
                }
                has_ended |= self.end(&session, version).await;
            }
            // Whoever waits for what they have left must not wait for the next look.
            if !has_ended || self.watches.is_empty() {
                return Ok(());
            }
        }
    }

    /// Ends a silent session at the version that it was seen with: removes its record and its entries. Returns false if
    /// that was not done: the session lives, another has ended it, or the next look tries again.
    async fn end(&mut self, session: &SessionId, version: Version) -> bool {
        let path = session_path(session);
        let Ok((_, mut found)) = self.store.read(vec![Wanted::Record(path.clone())]).await else { return false };
        let Some(Found::Record(Some((data, meta)))) = found.pop() else { return false };
        if meta.version != version {
            return false;
        }
        // One that cannot be read has no entries that anybody knows of.
        let record: SessionRecord = serde_json::from_slice(&data).unwrap_or_default();
        let paths: Vec<String> = record.entries.into_iter().collect();
        let entries = paths.iter().cloned().map(Wanted::Record).collect();
        let Ok((_, found)) = self.store.read(entries).await else { return false };
        // Others may have made an entry at the same path since.
        let theirs = paths.into_iter().zip(found).filter_map(|(path, found)| match found {
            Found::Record(Some((data, meta))) => {
                (plan::unwrap(&path, data).0.as_ref() == Some(session)).then_some((path, meta.version))
            }
            _ => None,
        });
        let mut entries: VecDeque<(String, Version)> = theirs.collect();
        let mut version = version;
        loop {
            let most = self.store.limits().operations.saturating_sub(1).max(1);
            let now: Vec<_> = entries.drain(..entries.len().min(most)).collect();
            // Without the version that its owner knows, it can commit nothing more.
            let left = entries.iter().map(|(path, _)| path.clone()).collect::<BTreeSet<_>>();
            let then = match left.is_empty() {
                true => Then::Delete,
                false => {
                    Own { id: session.clone(), version, count: plan::ENDED, entries: BTreeSet::new() }.beat(&left).then
                }
            };
            let of_session = store::Op { path: path.clone(), when: If::Version(version), then };
            let removed = now.into_iter().map(|(path, version)| store::Op {
                path,
                when: If::Version(version),
                then: Then::Delete,
            });
            let is_done = self.store.commit(std::iter::once(of_session).chain(removed).collect()).await.is_ok();
            if !is_done || left.is_empty() {
                return is_done;
            }
            version = version.next();
        }
    }
}

/// Waits for a hint; forever if it has come already.
async fn hinted(hint: &mut Option<BoxFuture<'static, ()>>) {
    match hint {
        Some(hint) => hint.await,
        None => std::future::pending().await,
    }
}
