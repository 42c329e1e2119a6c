//! The task of a session: carries out its requests, one after the other, beats, and observes the other sessions.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use super::SESSIONS;
use super::heads::{self, Heads};
use super::plan::{self, Known, Origin, Own, Plan, SessionRecord, session_path, sessions_counted_at};
use super::sightings::Sightings;
use super::watches::Watches;
use crate::paths;
use crate::store::{self, Done, Found, If, Meta, NotDone, Store, Then, Wanted};
use crate::tree::{CommitError, Committed, ConnectError, Error, Life, Op, Revision, State};
use cronkeeper_core::clock::{Clock, Uptime, Wake, instant, later};
use cronkeeper_core::election::Worth;
use cronkeeper_core::ledger::LostCommits;
use cronkeeper_core::log;
use cronkeeper_core::run::Version;
use cronkeeper_core::term::SessionId;

/// Pause before a request without an answer is sent again. The pauses double up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Longest interval between two looks at the other sessions, and the shortest if the store hints at changes.
const POLL: Duration = Duration::from_millis(250);
const HINTED_POLL: Duration = Duration::from_millis(20);
/// Parts of one read that answers several requests.
const MOST_WANTED: usize = 100;
/// Most entries that are looked at for sessions without a record.
const MOST_SWEPT: usize = 500;
/// A session ends before the version of its record is the last one.
const LAST_VERSION: Version = Version(i32::MAX / 2);

pub type Answer<T> = oneshot::Sender<T>;
/// What was read, and what resolves when it may have changed.
pub type Seen = (Found, oneshot::Receiver<()>);

/// The state of a session, and why no request is answered while it is disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    pub state: State,
    pub failure: Option<String>,
}

impl From<State> for Contact {
    fn from(state: State) -> Self {
        Self { state, failure: None }
    }
}

/// A request to the driver. A read is given up if the receiver of its answer is dropped before it begins.
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
    /// Ends the session, and with it its entries.
    Close,
}

/// A commit that took effect.
#[derive(Debug)]
pub struct Written {
    pub revision: Revision,
    pub committed: Committed,
}

/// Where and when a commit took effect.
#[derive(Clone, Copy)]
struct Effect {
    revision: Revision,
    at: Option<Timestamp>,
}

impl From<Done> for Effect {
    fn from(Done { revision, at, .. }: Done) -> Self {
        Self { revision, at }
    }
}

/// How a commit of the session was answered.
enum Sent {
    Done(Effect),
    /// The session's record is not at the version that it was known at, although the session lives.
    Stale,
    Refused {
        index: usize,
        found: Option<Version>,
    },
    Failed(Error),
}

/// Why the driver stops.
enum Stop {
    /// The session is over.
    Over,
    /// Whoever asked has waited long enough.
    GivenUp,
}

/// Draws the names of sessions.
type Names = Box<dyn Fn() -> SessionId + Send + Sync>;

pub struct Driver<S, K> {
    store: S,
    clock: K,
    names: Names,
    /// What the store says that its commits are worth.
    worth: Option<Worth>,
    id: SessionId,
    timeout: Duration,
    /// Absent between the writes for people.
    own: Option<Own>,
    /// It is a node's session: it beats, has entries, and observes the others.
    is_of_node: bool,
    /// When a write for people is given up.
    give_up_at: Option<Uptime>,
    /// A try of the commit that is being sent had no answer.
    is_in_doubt: bool,
    known: Known,
    requests: mpsc::UnboundedReceiver<Request>,
    waiting: VecDeque<Request>,
    watches: Watches,
    sightings: Sightings,
    contact: watch::Sender<Contact>,
    /// When it was last said why no request is answered.
    failed_at: Uptime,
    /// The newest revision that was seen.
    revision: Revision,
    /// What this process was shown last.
    heads: Arc<Mutex<Heads>>,
    /// Resolves when the store hints at a change; absent once it has, until the next look.
    hint: Option<BoxFuture<'static, ()>>,
    /// When the session's record was last written, and when the sessions and the entries were last looked at.
    beaten_at: Uptime,
    polled_at: Uptime,
    swept_at: Uptime,
}

impl<S: Store, K: Clock> Driver<S, K> {
    /// Makes the session's record.
    ///
    /// # Errors
    /// If the store does not answer within the timeout.
    pub async fn open(mut self) -> Result<Self, ConnectError> {
        self.is_of_node = true;
        self.worth = self.store.examine().await?;
        match self.make_record(self.id.clone()).await {
            Ok(()) => Ok(self),
            Err(Error::Denied) => Err(ConnectError::AuthFailed(Error::Denied.to_string())),
            Err(error) => Err(ConnectError::Unreachable(error.to_string())),
        }
    }

    /// Makes a record for a session with this id, within the timeout.
    async fn make_record(&mut self, id: SessionId) -> Result<(), Error> {
        let own = Own { id, version: Version::FIRST, count: 0, entries: BTreeSet::new() };
        let until = self.clock.now().up + self.timeout;
        let mut pause = PAUSE;
        loop {
            match self.try_to_make(&own).await {
                Ok(is_acknowledged) => {
                    self.own = Some(own);
                    if !is_acknowledged {
                        self.give_up_at = self.give_up_at.or(Some(until));
                        let confirmed = self.confirm().await;
                        self.give_up_at = self.give_up_at.filter(|_| !self.is_of_node);
                        return confirmed.map_err(|_| unclear());
                    }
                    return Ok(());
                }
                Err(Error::Denied) => return Err(Error::Denied),
                Err(error) if self.clock.now().up >= until => return Err(error),
                Err(_) => self.rest(&mut pause).await,
            }
        }
    }

    /// Makes the record. False if it is there, and nobody has acknowledged that.
    async fn try_to_make(&mut self, own: &Own) -> Result<bool, Error> {
        let counted_at = sessions_counted_at(&own.id);
        // Before the first write, which would hide that the store is not as far any more.
        let mut found = self.read(vec![Wanted::Meta(counted_at.clone())]).await?;
        let when = match found.pop() {
            Some(Found::Meta(Some(meta))) => If::Version(meta.version),
            _ => If::Absent,
        };
        self.beaten_at = self.clock.now().up;
        let make = store::Op { when: If::Absent, ..own.beat(&own.entries) };
        let count = store::Op { path: counted_at, when, then: Then::Put(Vec::new()) };
        match self.write(vec![make, count]).await {
            Ok(_) => Ok(true),
            // No other session has this id: a try without an answer has made it.
            Err(NotDone::Refused { index: 0, .. }) => Ok(false),
            Err(NotDone::Refused { .. }) => Err(Error::Unanswered(
                "others have begun sessions in the \
                meantime"
                    .to_owned(),
            )),
            Err(NotDone::Failed(error)) => Err(error),
        }
    }

    /// A session for reads and writes on behalf of people: it observes nobody.
    pub fn without_record(
        store: S,
        clock: K,
        names: Names,
        heads: Arc<Mutex<Heads>>,
        timeout: Duration,
        requests: mpsc::UnboundedReceiver<Request>,
    ) -> Self {
        Self {
            store,
            clock,
            id: names(),
            names,
            worth: None,
            timeout,
            own: None,
            is_of_node: false,
            give_up_at: None,
            is_in_doubt: false,
            known: Known::default(),
            requests,
            waiting: VecDeque::new(),
            watches: Watches::default(),
            sightings: Sightings::default(),
            contact: watch::Sender::new(State::Connected.into()),
            failed_at: Uptime::ZERO,
            revision: Revision::default(),
            heads,
            hint: None,
            beaten_at: Uptime::ZERO,
            polled_at: Uptime::ZERO,
            swept_at: Uptime::ZERO,
        }
    }

    pub fn worth(&self) -> Option<&Worth> {
        self.worth.as_ref()
    }

    pub fn id(&self) -> &SessionId {
        &self.id
    }

    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// Runs until the session is over or every handle of it is dropped. Its record stays until another session has seen
    /// it silent for the timeout.
    pub async fn run(mut self) {
        self.serve().await;
        self.set_state(State::Expired);
    }

    async fn serve(&mut self) {
        loop {
            if self.waiting.is_empty() {
                let wake = Wake { wall: None, up: self.next_at() };
                // Cancellation safe: a request that was not received stays in the channel, the hint is kept, and the
                // clock loses nothing.
                tokio::select! {
                    biased;
                    request = self.requests.recv() => match request {
                        Some(request) => self.waiting.push_back(request),
                        None => return self.leave().await,
                    },
                    () = hinted(&mut self.hint) => self.hint = None,
                    () = self.clock.sleep_until(wake) => {}
                }
            }
            while let Ok(request) = self.requests.try_recv() {
                self.waiting.push_back(request);
            }
            if self.turn().await.is_err() {
                return;
            }
        }
    }

    /// The next instant at which the driver acts by itself.
    fn next_at(&self) -> Option<Uptime> {
        self.beat_at().into_iter().chain(self.poll_at()).min()
    }

    fn beat_at(&self) -> Option<Uptime> {
        self.is_of_node.then(|| self.beaten_at + self.timeout / 10)
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
        (self.is_of_node || !self.watches.is_empty()).then(|| self.polled_at + pause)
    }

    async fn turn(&mut self) -> Result<(), Stop> {
        // Before any request: an answer must not prove a session that others no longer see alive.
        if self.is_beat_due() {
            self.move_on(self.count()).await?;
        }
        let unreported = if self.is_of_node { self.heads().unreported() } else { None };
        if let Some(until) = unreported {
            self.report_loss(until).await?;
            if self.heads().unreported().is_some() {
                // Nothing is answered before. A beat may be due, so the next turn tries again.
                self.rest(&mut PAUSE.clone()).await;
                return Ok(());
            }
        }
        match self.waiting.pop_front() {
            Some(Request::Commit { ops, answer }) if self.is_of_node => {
                let written = self.commit(&ops).await?;
                let _ = answer.send(written);
            }
            Some(Request::Commit { ops, answer }) if !answer.is_closed() => {
                let written = self.commit_for_people(&ops).await;
                let _ = answer.send(written);
            }
            Some(Request::Watch { wanted, answer }) if !answer.is_closed() => self.watch(wanted, answer).await,
            Some(read @ Request::Read { .. }) => self.read_together(read).await,
            Some(Request::Close) => {
                if let Some(own) = self.own.take() {
                    // If nobody answers, others find it silent.
                    let _ = self.end(&own.id, own.version).await;
                }
                return Err(Stop::Over);
            }
            Some(Request::Watch { .. } | Request::Commit { .. }) | None => {}
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
            // A request for many parts is as large as an answer may be.
            let is_small = |next: &Request| matches!(next, Request::Read { wanted, .. } if wanted.len() <= 2);
            let may_join = parts.len() < MOST_WANTED && self.waiting.front().is_some_and(is_small);
            next = if may_join { self.waiting.pop_front() } else { None };
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

    async fn read(&mut self, mut wanted: Vec<Wanted>) -> Result<Vec<Found>, Error> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let asked = if self.is_of_node { self.heads().newest() } else { Vec::new() };
        let of_caller = wanted.len();
        wanted.extend(asked.iter().map(heads::wanted));
        match self.store.read(wanted).await {
            Ok((head, mut found)) => {
                let nonces = found.split_off(of_caller.min(found.len()));
                let lost = if self.is_of_node { self.heads().see(head, &asked, &nonces) } else { None };
                if let Some(lost) = lost {
                    return Err(self.note_loss(lost.revision, head.revision));
                }
                self.answered(head.revision);
                Ok(found)
            }
            Err(error) => {
                if let Error::Unanswered(why) = &error {
                    self.disconnect(why.clone());
                }
                Err(error)
            }
        }
    }

    /// Has the store carry a commit out.
    async fn write(&mut self, ops: Vec<store::Op>) -> Result<Done, NotDone> {
        let done = self.store.commit(ops).await;
        done.iter().for_each(|done| self.heads().wrote(done.head()));
        done
    }

    fn heads(&self) -> MutexGuard<'_, Heads> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store has lost a commit that this process was shown: what it has answered before need not be true any more.
    fn note_loss(&mut self, known: Revision, found: Revision) -> Error {
        // A leader may continue for that long, on a server that does not know of this one.
        let until = later(self.clock.now().wall, self.timeout);
        let (path, revision) = (paths::REWOUND, known.0);
        log!(COORDINATION_REWOUND, path, revision, until = %instant(until), "commits that it had acknowledged");
        self.heads().note_loss(until);
        self.revision = found;
        (self.known, self.sightings) = (Known::default(), Sightings::default());
        let why = format!("{} has lost commits: it is at {}, and was at {}", S::SERVICE, found.0, known.0);
        self.disconnect(why.clone());
        Error::Unanswered(why)
    }

    /// Leaves a record of the loss for whoever leads next, before anything else is answered.
    async fn report_loss(&mut self, until: Timestamp) -> Result<(), Stop> {
        match self.is_own_as_known().await {
            Ok(true) => {}
            Ok(false) => return Err(Stop::Over),
            // With the next turn: a beat may be due.
            Err(_) => return Ok(()),
        }
        loop {
            let mut found = match self.read(vec![Wanted::Record(paths::REWOUND.to_owned())]).await {
                Ok(found) => found,
                Err(_) => return Ok(()),
            };
            let found = match found.pop() {
                Some(Found::Record(found)) => found,
                _ => None,
            };
            // Another loss may last longer.
            let known = found.as_ref().and_then(|(data, _)| serde_json::from_slice::<LostCommits>(data).ok());
            let lost = LostCommits { v: 1, until: known.map_or(until, |known| known.until.max(until)) };
            let (path, data) = (paths::REWOUND.to_owned(), serde_json::to_vec(&lost).unwrap_or_default());
            let op = match found {
                Some((_, meta)) => Op::Set { path, data, at: meta.version.into() },
                None => Op::Create { path, data, life: Life::Lasting },
            };
            match self.commit(&[op]).await? {
                Ok(_) => {
                    self.heads().reported(until);
                    return Ok(());
                }
                Err(CommitError { error: Error::Exists | Error::Missing | Error::Changed, .. }) => {}
                Err(CommitError { error: Error::Unanswered(_), .. }) => return Ok(()),
                // A session that cannot say it answers nothing more.
                Err(_) => return Err(Stop::Over),
            }
        }
    }

    fn answered(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
        self.set_state(State::Connected);
    }

    fn set_state(&self, state: State) {
        self.set_contact(state.into());
    }

    fn set_contact(&self, contact: Contact) {
        self.contact.send_if_modified(|known| {
            let is_news = *known != contact;
            *known = contact;
            is_news
        });
    }

    fn disconnect(&mut self, why: String) {
        let now = self.clock.now().up;
        let is_known = self.contact.borrow().state == State::Disconnected;
        // The reasons may alternate with each try, and each change is logged.
        if !is_known || self.failed_at + self.timeout <= now {
            self.failed_at = now;
            self.set_contact(Contact { state: State::Disconnected, failure: Some(why) });
        }
    }

    async fn lose_connection(&mut self, why: String, pause: &mut Duration) -> Result<(), Stop> {
        self.disconnect(why);
        if self.give_up_at.is_some_and(|at| at <= self.clock.now().up) {
            return Err(Stop::GivenUp);
        }
        self.rest(pause).await;
        Ok(())
    }

    async fn rest(&mut self, pause: &mut Duration) {
        let until = self.clock.now().up + *pause;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        while self.clock.now().up < until {
            self.clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
        }
    }

    /// Commits for people, under a record that lasts until there is an answer.
    async fn commit_for_people(&mut self, ops: &[Op]) -> Result<Written, CommitError> {
        self.give_up_at = Some(self.clock.now().up + self.timeout);
        loop {
            let is_kept = self.own.is_some();
            if !is_kept {
                let name = (self.names)();
                self.make_record(name).await.map_err(|error| CommitError { index: None, error })?;
            }
            let stop = match self.commit(ops).await {
                Ok(answer) => {
                    if !matches!(self.waiting.front(), Some(Request::Commit { .. })) {
                        self.leave().await;
                    }
                    return answer;
                }
                Err(stop) => stop,
            };
            match stop {
                // The record of a write without an answer is gone, and none of this one was carried out.
                Stop::Over if is_kept && !self.is_in_doubt => self.own = None,
                Stop::Over => {
                    self.own = None;
                    return Err(CommitError { index: None, error: unclear() });
                }
                // The record is kept: as long as it is there, the next write is carried out in its turn.
                Stop::GivenUp => return Err(CommitError { index: None, error: unclear() }),
            }
        }
    }

    /// Removes the session's record if it has no entries. If nobody answers, others find it silent.
    async fn leave(&mut self) {
        let may_leave = self.own.as_ref().is_some_and(|own| own.entries.is_empty());
        // A write for people never has entries: its record need not be read.
        if !may_leave || self.is_of_node && self.is_own_as_known().await != Ok(true) {
            return;
        }
        if let Some(own) = self.own.take() {
            let gone = store::Op { path: session_path(&own.id), when: If::Version(own.version), then: Then::Delete };
            let _ = self.write(vec![gone]).await;
        }
    }

    /// The record of the session as it is now; `None` if there is none.
    async fn read_own(&mut self) -> Result<Option<(SessionRecord, Meta)>, Error> {
        let Some(own) = &self.own else { return Ok(None) };
        let found = self.read(vec![Wanted::Record(session_path(&own.id))]).await?.pop();
        let Some(Found::Record(Some((data, meta)))) = found else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&data).unwrap_or_default(), meta)))
    }

    /// True if the record of the session lists the entries that this driver knows of. In a store that has lost commits, a
    /// late copy may have put another record at the same version.
    async fn is_own_as_known(&mut self) -> Result<bool, Error> {
        let (Some((record, meta)), Some(own)) = (self.read_own().await?, &self.own) else { return Ok(false) };
        // It may have moved on by a beat without an answer.
        Ok(meta.version > own.version || meta.version == own.version && record.entries == own.entries)
    }

    /// Commits for a recipe, as often as it takes to have an answer.
    ///
    /// Each answer, refusals among them, comes after a write of the session's record that was acknowledged: only then is
    /// it certain that no try takes effect any more, and only then does the answer prove that the session lived.
    async fn commit(&mut self, ops: &[Op]) -> Result<Result<Written, CommitError>, Stop> {
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
                Ok(plan) if self.adds_entries(&plan) && plan.is_too_large(self.store.limits()) => {
                    self.move_on(self.count()).await?;
                    return Ok(Err(CommitError { index: None, error: too_many_entries() }));
                }
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

    fn adds_entries(&self, plan: &Plan) -> bool {
        self.own.as_ref().is_some_and(|own| plan.entries.len() > own.entries.len())
    }

    /// Reads what must be known before the commit can be planned.
    async fn prepare(&mut self, ops: &[Op]) -> Result<Result<(), Error>, Stop> {
        self.known.forget_reads();
        let mut pause = PAUSE;
        loop {
            if self.is_beat_due() {
                self.move_on(self.count()).await?;
            }
            let wanted = plan::needs(ops, &self.known);
            match self.read(wanted.clone()).await {
                Ok(found) => {
                    wanted.into_iter().zip(found).for_each(|(wanted, found)| self.known.learn(wanted, found));
                    return Ok(Ok(()));
                }
                Err(Error::Unanswered(why)) => self.lose_connection(why, &mut pause).await?,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Sends a commit until it is answered.
    async fn send(&mut self, ops: &[store::Op]) -> Result<Sent, Stop> {
        self.is_in_doubt = false;
        let mut pause = PAUSE;
        let of = self.count();
        loop {
            let sent_at = self.clock.now().up;
            let answer = self.write(ops.to_vec()).await;
            let refused = match answer {
                Ok(done) => {
                    self.beaten(sent_at);
                    return Ok(Sent::Done(done.into()));
                }
                Err(NotDone::Refused { index: 0, found: None }) => return Err(Stop::Over),
                Err(NotDone::Refused { index: 0, .. }) => {
                    let moved = self.what_moved(of).await?;
                    self.confirm().await?;
                    return Ok(moved);
                }
                Err(NotDone::Failed(Error::Unanswered(why))) => {
                    self.is_in_doubt = true;
                    self.lose_connection(why, &mut pause).await?;
                    continue;
                }
                Err(NotDone::Refused { index, found }) => Sent::Refused { index, found },
                Err(NotDone::Failed(error)) if self.is_in_doubt => Sent::Failed(error),
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

    /// The write of the session's record that a commit of its own begins with; `None` if the session is over, or its
    /// versions are used up.
    fn next_beat(&mut self) -> Option<store::Op> {
        let own = self.own.as_mut().filter(|own| own.version < LAST_VERSION)?;
        own.count += 1;
        Some(own.beat(&own.entries))
    }

    /// Beats until that is acknowledged. What a read or a refusal has shown may be a write that the store has not made
    /// safe, such as one of a server that others have replaced in the meantime: it shows from which version to
    /// continue, and proves nothing.
    async fn confirm(&mut self) -> Result<(), Stop> {
        // No commit has the number of the beats.
        self.move_on(u64::MAX).await.map(drop)
    }

    /// Beats until that is acknowledged. Returns what commit number `of` has done, if it took effect before.
    async fn move_on(&mut self, of: u64) -> Result<Option<Effect>, Stop> {
        let (mut pause, mut done) = (PAUSE, None);
        loop {
            let Some(beat) = self.next_beat() else { return Err(Stop::Over) };
            let sent_at = self.clock.now().up;
            match self.write(vec![beat]).await {
                Ok(_) => {
                    self.beaten(sent_at);
                    return Ok(done);
                }
                Err(NotDone::Refused { found: None, .. }) => return Err(Stop::Over),
                // By that commit, or by a beat without an answer.
                Err(NotDone::Refused { .. }) => {
                    let moved = self.what_moved(of).await?;
                    done = done.or(match moved {
                        Sent::Done(done) => Some(done),
                        Sent::Stale | Sent::Refused { .. } | Sent::Failed(_) => None,
                    });
                }
                Err(NotDone::Failed(Error::Unanswered(why))) => self.lose_connection(why, &mut pause).await?,
                // Another session finds out the same, and says so.
                Err(NotDone::Failed(_)) => return Err(Stop::Over),
            }
        }
    }

    /// Finds out if it was commit number `of` that has moved the session's record on.
    async fn what_moved(&mut self, of: u64) -> Result<Sent, Stop> {
        let mut pause = PAUSE;
        let found = loop {
            match self.read_own().await {
                Ok(found) => break found,
                Err(Error::Unanswered(why)) => self.lose_connection(why, &mut pause).await?,
                Err(_) => return Err(Stop::Over),
            }
        };
        let (Some((record, meta)), Some(own)) = (found, &mut self.own) else { return Err(Stop::Over) };
        // An observer has ended it; or the store has lost its newest commits.
        if record.count == plan::ENDED || meta.version < own.version {
            return Err(Stop::Over);
        }
        own.version = meta.version;
        let done = Effect { revision: meta.changed, at: Some(meta.changed_at) };
        Ok(if record.count == of { Sent::Done(done) } else { Sent::Stale })
    }

    fn done(&mut self, plan: Plan, done: Effect) -> Written {
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
        Written {
            revision: done.revision,
            committed: Committed { created: plan.created, at: done.at, revision: Some(done.revision) },
        }
    }

    /// Looks at the other sessions and at what is watched.
    async fn poll(&mut self) -> Result<(), Stop> {
        loop {
            self.polled_at = self.clock.now().up;
            let mut wanted = self.watches.wanted();
            if self.is_of_node {
                wanted.push(Wanted::Names(SESSIONS.to_owned()));
            }
            // Not awaited forever: requests come before.
            let Ok(mut found) = self.read(wanted).await else { return Ok(()) };
            let sessions = if self.is_of_node { found.pop() } else { None };
            self.watches.see(&found);
            let (Some(Found::Names(sessions)), Some(own)) = (sessions, &self.own) else { return Ok(()) };
            let lives = |(name, meta): &(String, Meta)| *name == self.id.0 && meta.version >= own.version;
            if !sessions.iter().any(lives) {
                return Err(Stop::Over);
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
                has_ended |= self.end(&session, version).await?;
            }
            if self.swept_at + self.timeout <= self.clock.now().up {
                self.swept_at = self.clock.now().up;
                has_ended |= self.sweep().await;
            }
            // Whoever waits for what they have left must not wait for the next look.
            if !has_ended || self.watches.is_empty() {
                return Ok(());
            }
        }
    }

    /// Ends a silent session at the version that it was seen with: removes its record and its entries. Returns false if
    /// that was not done: the session lives, another has ended it, or the next look tries again.
    async fn end(&mut self, session: &SessionId, version: Version) -> Result<bool, Stop> {
        let path = session_path(session);
        let Ok((_, mut found)) = self.store.read(vec![Wanted::Record(path.clone())]).await else { return Ok(false) };
        let Some(Found::Record(Some((data, meta)))) = found.pop() else { return Ok(false) };
        if meta.version != version {
            return Ok(false);
        }
        // The entries of one that cannot be read are found by the next sweep.
        let record: SessionRecord = serde_json::from_slice(&data).unwrap_or_default();
        let paths: Vec<String> = record.entries.into_iter().collect();
        let entries = paths.iter().cloned().map(Wanted::Record).collect();
        let Ok((_, found)) = self.store.read(entries).await else { return Ok(false) };
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
            let is_done = self.write(std::iter::once(of_session).chain(removed).collect()).await.is_ok();
            if !is_done || left.is_empty() {
                return Ok(is_done);
            }
            version = version.next();
            if self.is_beat_due() {
                self.move_on(self.count()).await?;
            }
        }
    }

    /// Removes entries whose session has no record, because somebody has removed or damaged that: candidates, members,
    /// and what this session watches. Returns true if there was one.
    async fn sweep(&mut self) -> bool {
        let (mut paths, mut folders) =
            (BTreeSet::new(), BTreeSet::from([paths::LEADER, paths::NODES].map(str::to_owned)));
        for watched in self.watches.wanted() {
            match watched {
                Wanted::Meta(path) | Wanted::Record(path) if paths::may_be_entry(&path) => _ = paths.insert(path),
                Wanted::Names(folder) if paths::may_be_entry(&paths::under(&folder, "")) => _ = folders.insert(folder),
                Wanted::Meta(_) | Wanted::Record(_) | Wanted::Names(_) | Wanted::Nonce(_) => {}
            }
        }
        let wanted = folders.iter().cloned().map(Wanted::Names).collect();
        let Ok((_, found)) = self.store.read(wanted).await else { return false };
        let names = folders.iter().zip(found).flat_map(|(folder, found)| match found {
            Found::Names(names) => names.into_iter().map(|(name, _)| paths::under(folder, &name)).collect(),
            _ => Vec::new(),
        });
        let names = names.filter(|path| !paths.contains(path));
        let paths: Vec<String> = paths.iter().cloned().chain(names).take(MOST_SWEPT).collect();
        let entries = paths.iter().cloned().map(Wanted::Record);
        let wanted = entries.chain([Wanted::Names(SESSIONS.to_owned())]).collect();
        let Ok((_, mut found)) = self.store.read(wanted).await else { return false };
        let Some(Found::Names(sessions)) = found.pop() else { return false };
        let sessions: BTreeSet<String> = sessions.into_iter().map(|(name, _)| name).collect();
        let mut has_removed = false;
        for (path, found) in paths.into_iter().zip(found) {
            let Found::Record(Some((data, meta))) = found else { continue };
            let Some(session) = plan::unwrap(&path, data).0.filter(|session| !sessions.contains(&session.0)) else {
                continue;
            };
            // As each commit of the session, so that no late copy removes what its next session makes there.
            let Some(beat) = self.next_beat() else { return has_removed };
            let sent_at = self.clock.now().up;
            let is_over = store::Op { path: session_path(&session), when: If::Absent, then: Then::Nothing };
            let remove = store::Op { path, when: If::Version(meta.version), then: Then::Delete };
            if self.write(vec![beat, is_over, remove]).await.is_ok() {
                self.beaten(sent_at);
                has_removed = true;
            }
        }
        has_removed
    }
}

fn unclear() -> Error {
    Error::Unanswered("it is not known whether it was written".to_owned())
}

fn too_many_entries() -> Error {
    Error::Refused("the session has more entries than its record can list".to_owned())
}

/// Waits for a hint; forever if it has come already.
async fn hinted(hint: &mut Option<BoxFuture<'static, ()>>) {
    match hint {
        Some(hint) => hint.await,
        None => std::future::pending().await,
    }
}
