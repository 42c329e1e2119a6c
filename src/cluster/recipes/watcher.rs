//! Watches runs of other nodes for a leader: one watch per run, and one per owner's member.
//!
//! Every reconnect has to carry the paths of all watches. So runs get a watch only while their paths fit into
//! [`MOST_BYTES`], which is some three thousand runs. The watcher polls the other runs every few seconds, in requests
//! of [`bounded::RUNS`], and at once when an owner's member may be gone.
//!
//! A run that may be over soon is followed: it has no watch at first. The watcher reads it a second later, many such runs
//! in one request, and gives it a watch if it is still there. Whoever changes a run that the leader waits for sets the
//! data of the runs' folder to its id, the leader's bell, so that it is read at once.
//!
//! The number of steps in flight is bounded: one per watched run, one per member, one for all runs without a watch, and
//! one for the bell.
//! When a run is requested again, its old step is dropped. Members are those of the owners of watched runs, and for a
//! while at most as many others.

mod latest;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::bounded;
use super::context::{self, At as _, SessionContext, SessionError};
use super::{snapshot, transaction};
use crate::paths;
use crate::tree::{Error, Read, Revision, Session, Watch};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::ledger::{Event, OwnerState};
use cronkeeper_core::run::{Owner, RunId, RunRecord, Version};
use cronkeeper_core::term::{NodeName, SessionId};
use latest::{Latest, Subscriber};

/// Most bytes of watched paths. Runs beyond that are polled instead.
const MOST_BYTES: usize = 128 * 1024;
const POLL_EVERY: Duration = Duration::from_secs(5);
/// A followed run is read for the first time after this long.
const FIRST_READ: Duration = Duration::from_secs(1);
/// Followed runs that are due within this time are read together.
const TOGETHER: Duration = Duration::from_millis(250);
/// Pause after a failed read.
const PAUSE: Duration = Duration::from_millis(500);
/// Members that may be watched although they own no watched run any more.
const IDLE_MEMBERS: usize = 64;

/// What was last reported of a run.
#[derive(Clone, Debug, Default)]
struct ReportedRun {
    /// The transaction that wrote it. Its version alone could be that of another record, after the service had lost some.
    written: Option<Revision>,
    owner: Option<Owner>,
    /// The session of the owner that was reported as gone.
    gone: Option<SessionId>,
}

/// State of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WatchedMemberState {
    /// Not read yet.
    Unknown,
    /// The session of the member; `None` if there is no such member.
    Session(Option<SessionId>),
}

/// The result of one of the watcher's steps: a read, and often a wait for a change after it.
pub struct CompletedWatch(WatchResult);

#[expect(clippy::large_enum_variant, reason = "nearly all results are of runs")]
enum WatchResult {
    OfRun {
        run: RunId,
        request: u64,
        reported: ReportedRun,
        result: Result<RunReading, SessionError>,
    },
    OfMember {
        node: NodeName,
        result: Result<(), SessionError>,
    },
    OfUnwatched(Selection, Result<Vec<Polled>, SessionError>),
    OfBell {
        request: u64,
        result: Result<BellReading, SessionError>,
    },
    /// The step was dropped: its result is no longer needed.
    Nothing,
}

/// The result of reading a run and, if nothing was new, waiting for a change.
#[expect(clippy::large_enum_variant, reason = "nearly all readings bring news")]
enum RunReading {
    /// An event to report.
    News(Event),
    /// Something may have changed: read again.
    Changed,
    /// This node must not read the record: nothing can be decided on it, and no watch reports when the rights change.
    Closed,
}

/// The result of reading the leader's bell and, if nothing was new, waiting for a change.
enum BellReading {
    /// It has rung, or is read for the first time.
    Rung {
        now: Ring,
        /// The runs that it has rung for since it was seen last; `None` if it is not known which.
        runs: Option<BTreeSet<RunId>>,
    },
    /// It may have rung: read again.
    Changed,
    /// This node must not read it.
    Closed,
}

/// A state of the leader's bell: what made its record, and how often it was set since.
type Ring = (Revision, Version);

/// The leader's bell.
struct Bell {
    /// The newest request. Results of older ones are ignored.
    request: u64,
    seen: Option<Ring>,
    keep: Option<Keep>,
}

/// The runs that are read together.
#[derive(Debug, Default)]
struct Selection {
    runs: BTreeSet<RunId>,
    /// All runs without a watch are among them.
    is_full: bool,
    /// Those among them that are followed and read for the first time.
    followed: BTreeSet<RunId>,
    /// Those for which the bell has rung.
    rung: BTreeSet<RunId>,
}

/// A run without a watch, and the result of polling it.
struct Polled {
    run: RunId,
    request: u64,
    reported: ReportedRun,
    event: Option<Event>,
}

/// Ends a step when dropped.
type Keep = oneshot::Sender<()>;

/// State of a watched run.
struct Watched {
    /// False if the run is polled instead.
    has_watch: bool,
    /// The newest request. Results of older ones are ignored.
    request: u64,
    reported: ReportedRun,
    keep: Option<Keep>,
}

/// State of a watched member.
struct WatchedMember {
    state: Latest<WatchedMemberState>,
    keep: Option<Keep>,
}

/// A read that waits to be started.
enum WaitingRead {
    Run { run: RunId, request: u64, reported: ReportedRun },
    Member(NodeName),
    Bell { request: u64, seen: Option<Ring> },
}

/// The watched runs of a term.
pub struct Watcher<C, K> {
    context: SessionContext<C, K>,
    watched: BTreeMap<RunId, Watched>,
    /// Watched runs that are polled.
    unwatched: BTreeSet<RunId>,
    /// Followed runs that have not been read yet.
    followed: BTreeSet<RunId>,
    /// When each of them is read, in that order. Some are not followed any more.
    follow_at: VecDeque<(Uptime, RunId)>,
    /// Runs without a watch for which the bell has rung.
    rung: BTreeSet<RunId>,
    /// The leader's bell, while this node leads.
    bell: Option<Bell>,
    requests: u64,
    bytes: usize,
    members: BTreeMap<NodeName, WatchedMember>,
    /// Above this number, members without a run are dropped.
    most_members: usize,
    waiting: VecDeque<WaitingRead>,
    not_before: Uptime,
    /// Runs without a watch are being read.
    is_polling: bool,
    /// When the next poll of all of them is due; absent while one is in flight.
    poll_at: Option<Uptime>,
    /// Something happened during a poll that calls for another at once.
    is_poll_late: bool,
    /// Members that have changed. The next poll finds out whether they are alive.
    changed: BTreeSet<NodeName>,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = CompletedWatch> + Send>>>,
}

impl<C: Session, K: Clock> Watcher<C, K> {
    pub fn new(context: SessionContext<C, K>) -> Self {
        Self {
            context,
            watched: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            followed: BTreeSet::new(),
            follow_at: VecDeque::new(),
            rung: BTreeSet::new(),
            bell: None,
            requests: 0,
            bytes: 0,
            members: BTreeMap::new(),
            most_members: IDLE_MEMBERS,
            waiting: VecDeque::new(),
            not_before: Uptime::ZERO,
            is_polling: false,
            poll_at: Some(Uptime::ZERO),
            is_poll_late: false,
            changed: BTreeSet::new(),
            steps: FuturesUnordered::new(),
        }
    }

    /// Watches a run and reports its current state, even if it is watched already: whoever received an earlier report
    /// may not have been able to act on it.
    pub fn watch(&mut self, run: RunId) {
        if self.followed.remove(&run) {
            self.watched.remove(&run);
        }
        let bytes = paths::running(&run).len();
        let has_room = self.bytes + bytes <= MOST_BYTES;
        let watched = self.watched.entry(run.clone()).or_insert_with(|| {
            self.bytes += if has_room { bytes } else { 0 };
            Watched { has_watch: has_room, request: 0, reported: ReportedRun::default(), keep: None }
        });
        self.requests += 1;
        (watched.request, watched.reported, watched.keep) = (self.requests, ReportedRun::default(), None);
        if watched.has_watch {
            self.waiting.push_back(WaitingRead::Run {
                run,
                request: watched.request,
                reported: ReportedRun::default(),
            });
        } else {
            self.unwatched.insert(run);
            self.poll_soon();
        }
    }

    /// Watches a run that may be over soon: it is read after a while, and has no watch before. One that is watched already
    /// stays so.
    pub fn follow(&mut self, run: RunId, now: Uptime) {
        if self.watched.contains_key(&run) && !self.followed.contains(&run) {
            return self.watch(run);
        }
        self.requests += 1;
        let (request, reported) = (self.requests, ReportedRun::default());
        self.watched.insert(run.clone(), Watched { has_watch: false, request, reported, keep: None });
        // Also if it is followed already: a read that is on its way is of an older request.
        self.followed.insert(run.clone());
        self.follow_at.push_back((now + FIRST_READ, run));
    }

    /// A term begins: the leader's bell is watched from now on.
    pub fn start_term(&mut self) {
        self.bell = Some(Bell { request: 0, seen: None, keep: None });
        self.read_bell_again();
    }

    fn read_bell_again(&mut self) {
        if let Some(bell) = &mut self.bell {
            self.requests += 1;
            (bell.request, bell.keep) = (self.requests, None);
            self.waiting.push_back(WaitingRead::Bell { request: bell.request, seen: bell.seen });
        }
    }

    /// Reads all watched runs again. After a reconnect the records may be older ones, which no watch reports.
    pub fn read_all_again(&mut self) {
        for (run, watched) in self.watched.iter_mut().filter(|(_, watched)| watched.has_watch) {
            self.requests += 1;
            (watched.request, watched.keep) = (self.requests, None);
            let (run, reported) = (run.clone(), watched.reported.clone());
            self.waiting.push_back(WaitingRead::Run { run, request: watched.request, reported });
        }
        self.read_bell_again();
        if !self.unwatched.is_empty() {
            self.poll_soon();
        }
    }

    fn unwatch(&mut self, run: &RunId) {
        if self.watched.remove(run).is_some_and(|watched| watched.has_watch) {
            self.bytes -= paths::running(run).len();
        }
        self.unwatched.remove(run);
        self.followed.remove(run);
        self.drop_idle_members();
    }

    /// Polls a run that cannot be watched.
    fn give_watch_up(&mut self, run: RunId) {
        let bytes = paths::running(&run).len();
        if let Some(watched) = self.watched.get_mut(&run).filter(|watched| watched.has_watch) {
            watched.has_watch = false;
            self.bytes -= bytes;
        }
        self.unwatched.insert(run);
    }

    /// Drops members that own no watched run, once there are many.
    fn drop_idle_members(&mut self) {
        if self.members.len() > self.most_members {
            let owners = self.watched.values().filter_map(|watched| Some(&watched.reported.owner.as_ref()?.node));
            let owners: BTreeSet<&NodeName> = owners.collect();
            self.members.retain(|node, _| owners.contains(node));
            self.most_members = IDLE_MEMBERS + 2 * self.members.len();
        }
    }

    fn is_wanted(&self, run: &RunId, request: u64) -> bool {
        self.watched.get(run).is_some_and(|watched| watched.request == request)
    }

    fn poll_soon(&mut self) {
        self.is_poll_late = self.poll_at.is_none();
        self.poll_at = self.poll_at.map(|_| Uptime::ZERO);
    }

    /// Stops watching at the end of a term. Only reads and watches are dropped, no writes.
    pub fn clear(&mut self) {
        *self = Self { requests: self.requests, not_before: self.not_before, ..Self::new(self.context.clone()) };
    }

    /// Starts what waits, if the session is connected.
    pub fn start_next(&mut self, now: Uptime) {
        if now < self.not_before || self.context.line().is_err() {
            return;
        }
        while let Some(read) = self.waiting.pop_front() {
            match read {
                WaitingRead::Run { run, request, reported } => self.read_run(run, request, reported),
                WaitingRead::Member(node) => self.read_member(node),
                WaitingRead::Bell { request, seen } => self.read_bell(request, seen),
            }
        }
        if !self.is_polling {
            let selection = self.select(now);
            if !selection.runs.is_empty() {
                self.poll(selection);
            }
        }
    }

    /// The runs without a watch that are to be read now.
    fn select(&mut self, now: Uptime) -> Selection {
        let mut selection = Selection::default();
        if !self.unwatched.is_empty() && self.poll_at.is_some_and(|at| at <= now) {
            (selection.is_full, selection.runs) = (true, self.unwatched.clone());
        }
        if self.follow_at.front().is_some_and(|(at, _)| *at <= now) {
            while let Some((_, run)) = self.follow_at.pop_front_if(|(at, _)| *at <= now + TOGETHER) {
                selection.followed.extend(Some(run).filter(|run| self.followed.contains(run)));
            }
        }
        if !self.rung.is_empty() {
            selection.rung = std::mem::take(&mut self.rung);
            selection.rung.retain(|run| self.unwatched.contains(run) || self.followed.contains(run));
        }
        selection.runs.extend(selection.followed.iter().chain(&selection.rung).cloned());
        selection
    }

    fn read_bell(&mut self, request: u64, seen: Option<Ring>) {
        if self.bell.as_ref().is_none_or(|bell| bell.request != request) {
            return;
        }
        let context = self.context.clone();
        let keep = self.start(async move {
            let result = read_and_watch_bell(&context, seen).await;
            WatchResult::OfBell { request, result }
        });
        if let Some(bell) = &mut self.bell {
            bell.keep = Some(keep);
        }
    }

    fn read_run(&mut self, run: RunId, request: u64, mut reported: ReportedRun) {
        if !self.is_wanted(&run, request) {
            return;
        }
        let member = reported.owner.as_ref().map(|owner| self.member(&owner.node).state.subscribe());
        let (context, id) = (self.context.clone(), run.clone());
        let keep = self.start(async move {
            let result = read_and_watch_run(&context, &run, &mut reported, member).await;
            WatchResult::OfRun { run, request, reported, result }
        });
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.keep = Some(keep);
        }
    }

    fn read_member(&mut self, node: NodeName) {
        let Some(watched) = self.members.get(&node) else { return };
        let (context, state, name) = (self.context.clone(), watched.state.clone(), node.clone());
        let keep = self.start(async move {
            let result = read_and_watch_member(&context, &name, &state).await;
            WatchResult::OfMember { node: name, result }
        });
        if let Some(watched) = self.members.get_mut(&node) {
            watched.keep = Some(keep);
        }
    }

    /// Reads runs without a watch.
    fn poll(&mut self, selection: Selection) {
        let watched = selection.runs.iter().filter_map(|run| Some((run, self.watched.get(run)?)));
        let polled = watched.map(|(run, Watched { request, reported, .. })| Polled {
            run: run.clone(),
            request: *request,
            reported: reported.clone(),
            event: None,
        });
        let polled: Vec<Polled> = polled.collect();
        let states = self.members.iter().map(|(node, watched)| (node.clone(), watched.state.value()));
        // Only a poll of all runs finds all that concerns.
        let changed = if selection.is_full { std::mem::take(&mut self.changed) } else { BTreeSet::new() };
        let changed = changed.into_iter().map(|node| (node, WatchedMemberState::Session(None)));
        let states: BTreeMap<NodeName, WatchedMemberState> = states.chain(changed).collect();
        let context = self.context.clone();
        self.is_polling = true;
        if selection.is_full {
            self.poll_at = None;
        }
        self.steps.push(Box::pin(async move {
            CompletedWatch(WatchResult::OfUnwatched(selection, poll(&context, polled, &states).await))
        }));
    }

    /// Starts a step, which ends early when the returned sender is dropped.
    fn start(&mut self, step: impl Future<Output = WatchResult> + Send + 'static) -> Keep {
        let (keep, dropped) = oneshot::channel();
        self.steps.push(Box::pin(async move {
            // A step only reads and watches, so it may be dropped at any time.
            match select(pin!(step), dropped).await {
                Either::Left((result, _)) => CompletedWatch(result),
                Either::Right(_) => CompletedWatch(WatchResult::Nothing),
            }
        }));
        keep
    }

    /// A member's state. The first call starts to watch the member.
    fn member(&mut self, node: &NodeName) -> &WatchedMember {
        self.members.entry(node.clone()).or_insert_with(|| {
            self.waiting.push_back(WaitingRead::Member(node.clone()));
            WatchedMember { state: Latest::new(WatchedMemberState::Unknown), keep: None }
        })
    }

    /// When the next read is due.
    pub fn wake(&self) -> Option<Uptime> {
        let poll = self.poll_at.filter(|_| !self.unwatched.is_empty());
        let followed = self.follow_at.front().map(|(at, _)| *at);
        let rung = (!self.rung.is_empty()).then_some(Uptime::ZERO);
        let poll = poll.into_iter().chain(followed).chain(rung).min().filter(|_| !self.is_polling);
        let waiting = (!self.waiting.is_empty()).then_some(Uptime::ZERO);
        poll.into_iter().chain(waiting).min().map(|at| at.max(self.not_before))
    }

    /// The next result; `None` at once if no step is in flight. Cancel safe.
    pub async fn step(&mut self) -> Option<CompletedWatch> {
        self.steps.next().await
    }

    /// Applies a result and returns the events to report. A read that failed is repeated.
    pub fn complete(&mut self, step: CompletedWatch, now: Uptime) -> Result<Vec<Event>, SessionError> {
        match step.0 {
            WatchResult::Nothing => Ok(Vec::new()),
            WatchResult::OfUnwatched(selection, result) => self.polled(selection, result, now),
            WatchResult::OfBell { request, result } => self.bell_read(request, result, now),
            WatchResult::OfMember { node, .. } if !self.members.contains_key(&node) => Ok(Vec::new()),
            WatchResult::OfMember { node, result } => {
                if !self.unwatched.is_empty() {
                    self.changed.insert(node.clone());
                    self.poll_soon();
                }
                self.read_again(WaitingRead::Member(node), result.map(|()| None), now)
            }
            WatchResult::OfRun { run, request, .. } if !self.is_wanted(&run, request) => Ok(Vec::new()),
            WatchResult::OfRun { run, result: Ok(RunReading::News(event @ Event::Run(_, None))), .. } => {
                self.unwatch(&run);
                Ok(vec![event])
            }
            WatchResult::OfRun { run, result: Ok(RunReading::Closed), .. } => {
                self.give_watch_up(run);
                Ok(Vec::new())
            }
            WatchResult::OfRun { run, request, reported, result } => {
                self.note_reported(&run, &reported);
                let result = result.map(|reading| match reading {
                    RunReading::News(event) => Some(event),
                    RunReading::Changed | RunReading::Closed => None,
                });
                self.read_again(WaitingRead::Run { run, request, reported }, result, now)
            }
        }
    }

    fn read_again(
        &mut self,
        read: WaitingRead,
        result: Result<Option<Event>, SessionError>,
        now: Uptime,
    ) -> Result<Vec<Event>, SessionError> {
        match result {
            Ok(event) => {
                self.waiting.push_front(read);
                Ok(event.into_iter().collect())
            }
            Err(error) => {
                self.waiting.push_back(read);
                self.not_before = now + PAUSE;
                Err(error)
            }
        }
    }

    fn bell_read(
        &mut self,
        request: u64,
        result: Result<BellReading, SessionError>,
        now: Uptime,
    ) -> Result<Vec<Event>, SessionError> {
        let Some(bell) = self.bell.as_mut().filter(|bell| bell.request == request) else { return Ok(Vec::new()) };
        let seen = bell.seen;
        match result {
            // The runs are polled all the same.
            Ok(BellReading::Closed) => Ok(Vec::new()),
            Ok(BellReading::Changed) => self.read_again(WaitingRead::Bell { request, seen }, Ok(None), now),
            Ok(BellReading::Rung { now: ring, runs }) => {
                let was_seen = bell.seen.replace(ring).is_some();
                let is_read = |run: &RunId| self.unwatched.contains(run) || self.followed.contains(run);
                let (known, others) = match runs {
                    Some(runs) => runs.into_iter().partition(is_read),
                    // The first reading misses nothing: what is watched is read after it.
                    None if was_seen => {
                        (self.unwatched.iter().chain(&self.followed).cloned().collect(), BTreeSet::new())
                    }
                    None => Default::default(),
                };
                self.rung.extend(known);
                self.rung.retain(is_read);
                let others = (!others.is_empty()).then_some(Event::Rung(others));
                self.read_again(WaitingRead::Bell { request, seen: Some(ring) }, Ok(others), now)
            }
            Err(error) => self.read_again(WaitingRead::Bell { request, seen }, Err(error), now),
        }
    }

    fn polled(
        &mut self,
        selection: Selection,
        result: Result<Vec<Polled>, SessionError>,
        now: Uptime,
    ) -> Result<Vec<Event>, SessionError> {
        self.is_polling = false;
        let polled = match result {
            Ok(polled) => polled,
            Err(error) => {
                self.not_before = now + PAUSE;
                if selection.is_full {
                    self.poll_at = Some(now);
                    // The poll failed, so it is still unknown which members are alive.
                    self.changed.extend(self.members.keys().cloned());
                }
                self.rung.extend(selection.rung);
                selection.followed.into_iter().for_each(|run| self.follow_at.push_front((now, run)));
                return Err(error);
            }
        };
        if selection.is_full {
            // A change during the poll makes the next one due at once.
            let is_late = std::mem::take(&mut self.is_poll_late);
            self.poll_at = Some(if is_late { now } else { now + POLL_EVERY });
        }
        let mut events = Vec::new();
        for Polled { run, request, reported, event } in polled {
            if !self.is_wanted(&run, request) {
                continue;
            }
            if let Some(Event::Run(_, None)) = event {
                self.unwatch(&run);
            } else {
                self.note_reported(&run, &reported);
                if let Some(owner) = &reported.owner {
                    self.member(&owner.node);
                }
                if selection.followed.contains(&run) && self.followed.remove(&run) {
                    self.watch_followed(run, request, reported);
                }
            }
            events.extend(event);
        }
        Ok(events)
    }

    /// A followed run is still there: it gets a watch if there is room.
    fn watch_followed(&mut self, run: RunId, request: u64, reported: ReportedRun) {
        let bytes = paths::running(&run).len();
        let has_room = self.bytes + bytes <= MOST_BYTES;
        match self.watched.get_mut(&run).filter(|_| has_room) {
            Some(watched) => {
                watched.has_watch = true;
                self.bytes += bytes;
                self.waiting.push_back(WaitingRead::Run { run, request, reported });
            }
            None => _ = self.unwatched.insert(run),
        }
    }

    fn note_reported(&mut self, run: &RunId, reported: &ReportedRun) {
        if let Some(watched) = self.watched.get_mut(run) {
            watched.reported = reported.clone();
        }
    }
}

async fn read_and_watch_member<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    node: &NodeName,
    member: &Latest<WatchedMemberState>,
) -> Result<(), SessionError> {
    let path = paths::member(node);
    let (stat, watch) = context.line()?.stat_and_watch(&path).await.at(&path)?;
    // Publish also an unchanged state: the member may have gone and come back between two reads, and a run's reader has
    // seen that.
    member.publish(WatchedMemberState::Session(stat.and_then(|stat| stat.session)));
    watch.fired().await;
    Ok(())
}

/// Reads the leader's bell; if it has not rung, waits until it may have.
async fn read_and_watch_bell<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    seen: Option<Ring>,
) -> Result<BellReading, SessionError> {
    let (data, stat, watch) = match context.line()?.get_and_watch(paths::RUNNING).await {
        Ok(found) => found,
        Err(Error::Denied) => return Ok(BellReading::Closed),
        Err(error) => return Err(error).at(paths::RUNNING),
    };
    let now = (stat.created, stat.version);
    if seen == Some(now) {
        watch.fired().await;
        return Ok(BellReading::Changed);
    }
    // Only if none was missed are all runs named.
    let is_next = seen.is_some_and(|(created, version)| (created, version.next()) == now);
    let is_readable = is_next && bounded::RUNS.check(data.len()).is_ok();
    Ok(BellReading::Rung { now, runs: if is_readable { transaction::rung_for(&data) } else { None } })
}

/// Reads a run; if nothing is new, waits until something may be.
async fn read_and_watch_run<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    run: &RunId,
    reported: &mut ReportedRun,
    member: Option<Subscriber<WatchedMemberState>>,
) -> Result<RunReading, SessionError> {
    let path = paths::running(run);
    let (data, stat, watch) = match context.line()?.get_and_watch(&path).await {
        Ok(found) => found,
        Err(Error::Missing) => return Ok(RunReading::News(Event::Run(run.clone(), None))),
        Err(Error::Denied) => return Ok(RunReading::Closed),
        Err(error) => return Err(error).at(&path),
    };
    let Ok((record, version)) = snapshot::run_record(paths::name(&path), &data, &stat) else {
        watch.fired().await;
        return Ok(RunReading::Changed);
    };
    if reported.written != Some(stat.changed) {
        (reported.written, reported.owner) = (Some(stat.changed), Some(record.owner.clone()));
        return Ok(RunReading::News(Event::Run(run.clone(), Some((record, version)))));
    }
    let owner = &record.owner;
    let mut member = member;
    let seems_gone = member.as_mut().is_some_and(|member| is_without(&member.read(), &owner.session));
    // If the owner has just come back, the watched state of its member may be older than the record: read both again.
    if seems_gone && reported.gone.as_ref() != Some(&owner.session) && !is_alive(context, owner).await? {
        let found = read_run(context, run).await?;
        if found.as_ref().is_none_or(|(now, _)| now.owner != record.owner) {
            return Ok(RunReading::Changed);
        }
        // Set only together with the event: if a read before this fails, it is repeated.
        reported.gone = Some(record.owner.session);
        return Ok(RunReading::News(Event::OwnerGone(run.clone(), OwnerState::Gone, found)));
    }
    changed(watch, member).await;
    Ok(RunReading::Changed)
}

fn is_without(member: &WatchedMemberState, session: &SessionId) -> bool {
    matches!(member, WatchedMemberState::Session(current) if current.as_ref() != Some(session))
}

async fn is_alive<C: Session, K: Clock>(context: &SessionContext<C, K>, owner: &Owner) -> Result<bool, SessionError> {
    let path = paths::member(&owner.node);
    let stat = context.line()?.stat(&path).await.at(&path)?;
    Ok(stat.is_some_and(|stat| stat.session.as_ref() == Some(&owner.session)))
}

/// Returns when the run or its owner's member may have changed.
async fn changed<W: Watch>(watch: W, member: Option<Subscriber<WatchedMemberState>>) {
    let member = async {
        match member {
            Some(mut member) => member.changed().await,
            None => std::future::pending().await,
        }
    };
    // The caller reads both again, so the other one may be dropped.
    select(pin!(watch.fired()), pin!(member)).await;
}

/// Reads runs without a watch and fills in what is new of each.
async fn poll<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    mut polled: Vec<Polled>,
    members: &BTreeMap<NodeName, WatchedMemberState>,
) -> Result<Vec<Polled>, SessionError> {
    let found = read_runs(context, polled.iter().map(|polled| &polled.run)).await?;
    let mut lost = BTreeMap::new();
    for (index, (polled, found)) in polled.iter_mut().zip(found).enumerate() {
        let (data, stat) = match found {
            Ok(found) => found,
            Err(Error::Missing) => {
                polled.event = Some(Event::Run(polled.run.clone(), None));
                continue;
            }
            Err(error) if error.is_of_path() => continue,
            Err(error) => return Err(error).at(&paths::running(&polled.run)),
        };
        let Ok((record, version)) = snapshot::run_record(&polled.run.to_string(), &data, &stat) else { continue };
        let (owner, reported) = (record.owner.clone(), &mut polled.reported);
        if reported.written != Some(stat.changed) {
            (reported.written, reported.owner) = (Some(stat.changed), Some(owner));
            polled.event = Some(Event::Run(polled.run.clone(), Some((record, version))));
        } else if reported.gone.as_ref() != Some(&owner.session)
            && members.get(&owner.node).is_some_and(|member| is_without(member, &owner.session))
        {
            lost.insert(index, owner);
        }
    }
    // If an owner has just come back, the watched state of its member may be older than the record: read both again.
    let nodes: BTreeSet<&NodeName> = lost.values().map(|owner| &owner.node).collect();
    let names = nodes.iter().map(|node| node.as_str().to_owned()).collect();
    let living = context::stats(context.line()?, paths::NODES, names).await?;
    let living: BTreeSet<SessionId> = living.into_iter().filter_map(|(_, stat)| stat.session).collect();
    lost.retain(|_, owner| !living.contains(&owner.session));
    let found = read_runs(context, lost.keys().map(|&index| &polled[index].run)).await?;
    for ((index, owner), found) in lost.into_iter().zip(found) {
        let Polled { run, reported, event, .. } = &mut polled[index];
        let found = found.ok().and_then(|(data, stat)| snapshot::run_record(&run.to_string(), &data, &stat).ok());
        if found.as_ref().is_some_and(|(now, _)| now.owner == owner) {
            reported.gone = Some(owner.session);
            *event = Some(Event::OwnerGone(run.clone(), OwnerState::Gone, found));
        }
    }
    Ok(polled)
}

async fn read_runs<'r, C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    runs: impl Iterator<Item = &'r RunId>,
) -> Result<Vec<Read>, SessionError> {
    let runs = runs.map(paths::running).collect();
    bounded::get(context.line()?, runs, bounded::RUNS).await.at(paths::RUNNING)
}

/// Reads a run. A record that cannot be parsed counts as absent, because nothing can be decided on it.
pub async fn read_run<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    run: &RunId,
) -> Result<Option<(RunRecord, Version)>, SessionError> {
    let path = paths::running(run);
    match context.line()?.get(&path).await {
        Ok((data, stat)) => Ok(snapshot::run_record(paths::name(&path), &data, &stat).ok()),
        Err(Error::Missing) => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

#[cfg(test)]
mod tests;
