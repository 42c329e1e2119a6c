//! Runs of other nodes, watched for a leader: each run by itself, and the member of each owner once for all its runs.
//!
//! Watches on runs are set as long as their paths have room in what every reconnect has to carry ([`MOST_BYTES`], some three thousand
//! runs). The runs beyond that are read together every few seconds, in requests of [`context::SMALL`], and at once when an owner's member may
//! have gone.
//!
//! Bounded are the steps under way: one for each run with a watch, one for each member, one for all runs without a watch. A run that is
//! asked for again gives its old step up. Members are those of the owners of watched runs, and for a while at most as many others.

mod known;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::client::{Client, Error, Read, Watch};
use super::context::{self, At as _, SessionContext, SessionError};
use super::{paths, session_id, snapshot};
use crate::clock::{Clock, Uptime};
use crate::ledger::{Event, OwnerState};
use crate::run::{Owner, RunId, RunRecord, Version};
use crate::term::{NodeName, SessionId};
use known::{Hearer, Known};

/// The paths of watched runs, which every reconnect has to carry. Runs beyond that are read again and again instead.
const MOST_BYTES: usize = 128 * 1024;
const LOOK_EVERY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);
/// Members that may be watched though no run is theirs any more.
const IDLE_MEMBERS: usize = 64;

/// What was told of a run so far.
#[derive(Clone, Debug, Default)]
struct Told {
    version: Option<Version>,
    owner: Option<Owner>,
    gone: Option<SessionId>,
}

/// What a look at a member showed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Member {
    /// It was not looked at yet.
    Unknown,
    /// The session it lives under, if it does.
    Lives(Option<SessionId>),
}

/// What one look, or a wait for something to look at, brought.
pub struct Step(Brought);

#[expect(clippy::large_enum_variant, reason = "nearly all that is brought is of runs")]
enum Brought {
    OfRun {
        run: RunId,
        request: u64,
        told: Told,
        result: Result<Looked, SessionError>,
    },
    OfMember {
        node: NodeName,
        result: Result<(), SessionError>,
    },
    OfUnwatched(Result<Vec<Polled>, SessionError>),
    /// Nobody wants it any more.
    Nothing,
}

/// What one look at a run, or a wait for something to look at, showed.
#[expect(clippy::large_enum_variant, reason = "nearly all looks bring news")]
enum Looked {
    /// This is to be told.
    News(Event),
    /// Something may have changed.
    Same,
    /// Its record may not be read: nothing can be decided on it, and who may read it can change without a sign.
    Closed,
}

/// A run without a watch, as it was read.
struct Polled {
    run: RunId,
    request: u64,
    told: Told,
    event: Option<Event>,
}

/// Ends a step when it is dropped.
type Keep = oneshot::Sender<()>;

/// A run as it is watched.
struct Watched {
    /// With a watch, or one too many for that.
    has_watch: bool,
    /// The newest: only that is answered.
    request: u64,
    told: Told,
    keep: Option<Keep>,
}

/// An owner's member as it is watched.
struct Followed {
    seen: Known<Member>,
    keep: Option<Keep>,
}

enum Look {
    Run { run: RunId, request: u64, told: Told },
    Member(NodeName),
}

/// The watched runs of a term.
pub struct Watcher<C, K> {
    context: SessionContext<C, K>,
    watched: BTreeMap<RunId, Watched>,
    /// Those without a watch.
    unwatched: BTreeSet<RunId>,
    requests: u64,
    bytes: usize,
    members: BTreeMap<NodeName, Followed>,
    /// With more members than that, those without a run are given up.
    most_members: usize,
    waiting: VecDeque<Look>,
    not_before: Uptime,
    /// When the runs without a watch are read next; absent while they are.
    poll_at: Option<Uptime>,
    /// Something came meanwhile that calls for the next reading.
    is_poll_late: bool,
    /// Members that changed: whether they live is read with the runs.
    changed: BTreeSet<NodeName>,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = Step> + Send>>>,
}

impl<C: Client, K: Clock> Watcher<C, K> {
    /// Nothing watched yet.
    pub fn new(context: SessionContext<C, K>) -> Self {
        Self {
            context,
            watched: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            requests: 0,
            bytes: 0,
            members: BTreeMap::new(),
            most_members: IDLE_MEMBERS,
            waiting: VecDeque::new(),
            not_before: Uptime::ZERO,
            poll_at: Some(Uptime::ZERO),
            is_poll_late: false,
            changed: BTreeSet::new(),
            steps: FuturesUnordered::new(),
        }
    }

    /// Watches a run, and tells what it is now also where it is watched already: what was told before may have been told to nobody
    /// who knew what to do with it.
    pub fn watch(&mut self, run: RunId) {
        let bytes = paths::running(&run).len();
        let has_room = self.bytes + bytes <= MOST_BYTES;
        let watched = self.watched.entry(run.clone()).or_insert_with(|| {
            self.bytes += if has_room { bytes } else { 0 };
            Watched { has_watch: has_room, request: 0, told: Told::default(), keep: None }
        });
        self.requests += 1;
        (watched.request, watched.told, watched.keep) = (self.requests, Told::default(), None);
        if watched.has_watch {
            self.waiting.push_back(Look::Run { run, request: watched.request, told: Told::default() });
        } else {
            self.unwatched.insert(run);
            self.poll_soon();
        }
    }

    fn unwatch(&mut self, run: &RunId) {
        if self.watched.remove(run).is_some_and(|watched| watched.has_watch) {
            self.bytes -= paths::running(run).len();
        }
        self.unwatched.remove(run);
        self.forget_members();
    }

    /// A run that no watch can be had for is read with the others.
    fn give_watch_up(&mut self, run: RunId) {
        let bytes = paths::running(&run).len();
        if let Some(watched) = self.watched.get_mut(&run).filter(|watched| watched.has_watch) {
            watched.has_watch = false;
            self.bytes -= bytes;
        }
        self.unwatched.insert(run);
    }

    /// Gives up the members that no run is of, now and then.
    fn forget_members(&mut self) {
        if self.members.len() > self.most_members {
            let owners = self.watched.values().filter_map(|watched| Some(&watched.told.owner.as_ref()?.node));
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

    /// The term is over. Only reads and watches are dropped by it.
    pub fn clear(&mut self) {
        *self = Self { requests: self.requests, not_before: self.not_before, ..Self::new(self.context.clone()) };
    }

    /// Starts what waits, if a server answers.
    pub fn start_next(&mut self, now: Uptime) {
        if now < self.not_before || self.context.line().is_err() {
            return;
        }
        while let Some(look) = self.waiting.pop_front() {
            match look {
                Look::Run { run, request, told } => self.look_at(run, request, told),
                Look::Member(node) => self.follow(node),
            }
        }
        if !self.unwatched.is_empty() && self.poll_at.is_some_and(|at| at <= now) {
            self.poll();
        }
    }

    fn look_at(&mut self, run: RunId, request: u64, mut told: Told) {
        if !self.is_wanted(&run, request) {
            return;
        }
        let member = told.owner.as_ref().map(|owner| self.member(&owner.node).seen.hearer());
        let (context, id) = (self.context.clone(), run.clone());
        let keep = self.start(async move {
            let result = look_at_run(&context, &run, &mut told, member).await;
            Brought::OfRun { run, request, told, result }
        });
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.keep = Some(keep);
        }
    }

    fn follow(&mut self, node: NodeName) {
        let Some(followed) = self.members.get(&node) else { return };
        let (context, seen, name) = (self.context.clone(), followed.seen.clone(), node.clone());
        let keep = self.start(async move {
            let result = look_at_member(&context, &name, &seen).await;
            Brought::OfMember { node: name, result }
        });
        if let Some(followed) = self.members.get_mut(&node) {
            followed.keep = Some(keep);
        }
    }

    /// Reads all runs without a watch.
    fn poll(&mut self) {
        let watched = self.unwatched.iter().filter_map(|run| Some((run, self.watched.get(run)?)));
        let polled = watched.map(|(run, Watched { request, told, .. })| Polled {
            run: run.clone(),
            request: *request,
            told: told.clone(),
            event: None,
        });
        let polled: Vec<Polled> = polled.collect();
        let seen = self.members.iter().map(|(node, followed)| (node.clone(), followed.seen.value()));
        let changed = std::mem::take(&mut self.changed).into_iter().map(|node| (node, Member::Lives(None)));
        let seen: BTreeMap<NodeName, Member> = seen.chain(changed).collect();
        let context = self.context.clone();
        self.poll_at = None;
        self.steps.push(Box::pin(async move { Step(Brought::OfUnwatched(poll(&context, polled, &seen).await)) }));
    }

    /// Starts a step, which ends early when what is returned is dropped.
    fn start(&mut self, step: impl Future<Output = Brought> + Send + 'static) -> Keep {
        let (keep, dropped) = oneshot::channel();
        self.steps.push(Box::pin(async move {
            // Only reads and watches are dropped where nobody wants them.
            match select(pin!(step), dropped).await {
                Either::Left((brought, _)) => Step(brought),
                Either::Right(_) => Step(Brought::Nothing),
            }
        }));
        keep
    }

    /// What is known of a member, which is watched from the first question on.
    fn member(&mut self, node: &NodeName) -> &Followed {
        self.members.entry(node.clone()).or_insert_with(|| {
            self.waiting.push_back(Look::Member(node.clone()));
            Followed { seen: Known::new(Member::Unknown), keep: None }
        })
    }

    /// When what was put off is due.
    pub fn wake(&self) -> Option<Uptime> {
        let poll = self.poll_at.filter(|_| !self.unwatched.is_empty());
        let waiting = (!self.waiting.is_empty()).then_some(Uptime::ZERO);
        poll.into_iter().chain(waiting).min().map(|at| at.max(self.not_before))
    }

    /// The next step; `None` at once where nothing is watched. Cancel safe.
    pub async fn step(&mut self) -> Option<Step> {
        self.steps.next().await
    }

    /// Takes a step's result; what to tell. What failed is looked at again.
    pub fn complete(&mut self, step: Step, now: Uptime) -> Result<Vec<Event>, SessionError> {
        match step.0 {
            Brought::Nothing => Ok(Vec::new()),
            Brought::OfUnwatched(result) => self.polled(result, now),
            Brought::OfMember { node, .. } if !self.members.contains_key(&node) => Ok(Vec::new()),
            Brought::OfMember { node, result } => {
                if !self.unwatched.is_empty() {
                    self.changed.insert(node.clone());
                    self.poll_soon();
                }
                self.again(Look::Member(node), result.map(|()| None), now)
            }
            Brought::OfRun { run, request, .. } if !self.is_wanted(&run, request) => Ok(Vec::new()),
            Brought::OfRun { run, result: Ok(Looked::News(event @ Event::Run(_, None))), .. } => {
                self.unwatch(&run);
                Ok(vec![event])
            }
            Brought::OfRun { run, result: Ok(Looked::Closed), .. } => {
                self.give_watch_up(run);
                Ok(Vec::new())
            }
            Brought::OfRun { run, request, told, result } => {
                self.tell(&run, &told);
                let result = result.map(|looked| match looked {
                    Looked::News(event) => Some(event),
                    Looked::Same | Looked::Closed => None,
                });
                self.again(Look::Run { run, request, told }, result, now)
            }
        }
    }

    fn again(
        &mut self,
        look: Look,
        result: Result<Option<Event>, SessionError>,
        now: Uptime,
    ) -> Result<Vec<Event>, SessionError> {
        match result {
            Ok(event) => {
                self.waiting.push_front(look);
                Ok(event.into_iter().collect())
            }
            Err(error) => {
                self.waiting.push_back(look);
                self.not_before = now + PAUSE;
                Err(error)
            }
        }
    }

    fn polled(&mut self, result: Result<Vec<Polled>, SessionError>, now: Uptime) -> Result<Vec<Event>, SessionError> {
        let polled = match result {
            Ok(polled) => polled,
            Err(error) => {
                (self.poll_at, self.not_before) = (Some(now), now + PAUSE);
                // What they were read for is not known yet.
                self.changed.extend(self.members.keys().cloned());
                return Err(error);
            }
        };
        // What was asked for meanwhile waits no longer.
        let is_late = std::mem::take(&mut self.is_poll_late);
        self.poll_at = Some(if is_late { now } else { now + LOOK_EVERY });
        let mut events = Vec::new();
        for Polled { run, request, told, event } in polled {
            if !self.is_wanted(&run, request) {
                continue;
            }
            if let Some(Event::Run(_, None)) = event {
                self.unwatch(&run);
            } else {
                self.tell(&run, &told);
                if let Some(owner) = &told.owner {
                    self.member(&owner.node);
                }
            }
            events.extend(event);
        }
        Ok(events)
    }

    fn tell(&mut self, run: &RunId, told: &Told) {
        if let Some(watched) = self.watched.get_mut(run) {
            watched.told = told.clone();
        }
    }
}

async fn look_at_member<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    node: &NodeName,
    member: &Known<Member>,
) -> Result<(), SessionError> {
    let path = paths::member(node);
    let (stat, watch) = context.line()?.stat_and_watch(&path).await.at(&path)?;
    // Said also when it is as before: it may have come and gone between two looks, and been seen in between.
    member.say(Member::Lives(stat.map(|stat| session_id(stat.ephemeral_owner))));
    watch.fired().await;
    Ok(())
}

/// One look; where nothing is new, waits until something may be.
async fn look_at_run<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    run: &RunId,
    told: &mut Told,
    member: Option<Hearer<Member>>,
) -> Result<Looked, SessionError> {
    let path = paths::running(run);
    let (data, stat, watch) = match context.line()?.get_and_watch(&path).await {
        Ok(found) => found,
        Err(Error::NoNode) => return Ok(Looked::News(Event::Run(run.clone(), None))),
        Err(Error::NoAuth) => return Ok(Looked::Closed),
        Err(error) => return Err(error).at(&path),
    };
    let Ok((record, version)) = snapshot::run_record(paths::name(&path), &data, &stat) else {
        watch.fired().await;
        return Ok(Looked::Same);
    };
    if told.version != Some(version) {
        (told.version, told.owner) = (Some(version), Some(record.owner.clone()));
        return Ok(Looked::News(Event::Run(run.clone(), Some((record, version)))));
    }
    let owner = &record.owner;
    let mut member = member;
    let seems_gone = member.as_mut().is_some_and(|member| is_without(&member.hear(), &owner.session));
    // What the watch brought may be behind the record, if the owner has just come back: the facts are read again.
    if seems_gone && told.gone.as_ref() != Some(&owner.session) && !lives(context, owner).await? {
        let found = read_run(context, run).await?;
        if found.as_ref().is_none_or(|(now, _)| now.owner != record.owner) {
            return Ok(Looked::Same);
        }
        // Only what is told counts as told: a read that fails is done again.
        told.gone = Some(record.owner.session);
        return Ok(Looked::News(Event::OwnerGone(run.clone(), OwnerState::Gone, found)));
    }
    changed(watch, member).await;
    Ok(Looked::Same)
}

fn is_without(member: &Member, session: &SessionId) -> bool {
    matches!(member, Member::Lives(living) if living.as_ref() != Some(session))
}

async fn lives<C: Client, K: Clock>(context: &SessionContext<C, K>, owner: &Owner) -> Result<bool, SessionError> {
    let path = paths::member(&owner.node);
    let stat = context.line()?.stat(&path).await.at(&path)?;
    Ok(stat.is_some_and(|stat| session_id(stat.ephemeral_owner) == owner.session))
}

/// Returns when the run or its owner's member may have changed: either says no more than to look again.
async fn changed<W: Watch>(watch: W, member: Option<Hearer<Member>>) {
    let member = async {
        match member {
            Some(mut member) => member.said().await,
            None => std::future::pending().await,
        }
    };
    // Neither is needed once the other has spoken: both are looked at afresh.
    select(pin!(watch.fired()), pin!(member)).await;
}

/// Reads runs without a watch, and finds out what is new of each.
async fn poll<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    mut polled: Vec<Polled>,
    members: &BTreeMap<NodeName, Member>,
) -> Result<Vec<Polled>, SessionError> {
    let found = read_runs(context, polled.iter().map(|polled| &polled.run)).await?;
    let mut lost = BTreeMap::new();
    for (index, (polled, found)) in polled.iter_mut().zip(found).enumerate() {
        let (data, stat) = match found {
            Ok(found) => found,
            Err(Error::NoNode) => {
                polled.event = Some(Event::Run(polled.run.clone(), None));
                continue;
            }
            Err(error) if error.is_of_path() => continue,
            Err(error) => return Err(error).at(&paths::running(&polled.run)),
        };
        let Ok((record, version)) = snapshot::run_record(&polled.run.to_string(), &data, &stat) else { continue };
        let (owner, told) = (record.owner.clone(), &mut polled.told);
        if told.version != Some(version) {
            (told.version, told.owner) = (Some(version), Some(owner));
            polled.event = Some(Event::Run(polled.run.clone(), Some((record, version))));
        } else if told.gone.as_ref() != Some(&owner.session)
            && members.get(&owner.node).is_some_and(|member| is_without(member, &owner.session))
        {
            lost.insert(index, owner);
        }
    }
    // What the watch brought may be behind the record, if the owner has just come back: the facts are read again.
    let nodes: BTreeSet<&NodeName> = lost.values().map(|owner| &owner.node).collect();
    let names = nodes.iter().map(|node| node.as_str().to_owned()).collect();
    let living = context::stats(context.line()?, paths::NODES, names).await?;
    let living: BTreeSet<SessionId> = living.iter().map(|(_, stat)| session_id(stat.ephemeral_owner)).collect();
    lost.retain(|_, owner| !living.contains(&owner.session));
    let found = read_runs(context, lost.keys().map(|&index| &polled[index].run)).await?;
    for ((index, owner), found) in lost.into_iter().zip(found) {
        let Polled { run, told, event, .. } = &mut polled[index];
        let found = found.ok().and_then(|(data, stat)| snapshot::run_record(&run.to_string(), &data, &stat).ok());
        if found.as_ref().is_some_and(|(now, _)| now.owner == owner) {
            told.gone = Some(owner.session);
            *event = Some(Event::OwnerGone(run.clone(), OwnerState::Gone, found));
        }
    }
    Ok(polled)
}

async fn read_runs<'r, C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    runs: impl Iterator<Item = &'r RunId>,
) -> Result<Vec<Read>, SessionError> {
    let runs: Vec<String> = runs.map(paths::running).collect();
    let mut found = Vec::with_capacity(runs.len());
    for chunk in runs.chunks(context::SMALL) {
        found.extend(context.line()?.get_many(chunk.to_vec()).await.at(paths::RUNNING)?);
    }
    Ok(found)
}

/// A run as it stands; one whose record cannot be read is told as absent, for nothing can be decided on it.
pub async fn read_run<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    run: &RunId,
) -> Result<Option<(RunRecord, Version)>, SessionError> {
    let path = paths::running(run);
    match context.line()?.get(&path).await {
        Ok((data, stat)) => Ok(snapshot::run_record(paths::name(&path), &data, &stat).ok()),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

#[cfg(test)]
mod tests;
