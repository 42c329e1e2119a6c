//! Runs of other nodes, watched for a leader: each run by itself, and the member of each owner once for all its runs.

mod known;

use std::collections::{BTreeMap, VecDeque};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, Error, Watch};
use super::desk::{At as _, Desk, Trouble};
use super::{paths, session_id, snapshot};
use crate::clock::{Clock, Uptime, Wake};
use crate::ledger::{Event, OwnerState};
use crate::run::{Owner, RunId, RunRecord, Version};
use crate::term::{NodeName, SessionId};
use known::{Hearer, Known};

/// The paths of watched runs, which every reconnect has to carry. Runs beyond that are read again and again instead.
const MOST_BYTES: usize = 128 * 1024;
const LOOK_EVERY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

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
    OfRun { run: RunId, wish: u64, told: Told, result: Result<Option<Event>, Trouble> },
    OfMember { node: NodeName, result: Result<(), Trouble> },
}

/// A run as it is watched.
struct Watched {
    /// With a watch, or one too many for that.
    has_watch: bool,
    /// The newest: only that is answered.
    wish: u64,
}

enum Look {
    Run { run: RunId, wish: u64, told: Told },
    Member(NodeName),
}

/// The watched runs of a term.
pub struct Watcher<C, K> {
    desk: Desk<C, K>,
    watched: BTreeMap<RunId, Watched>,
    wishes: u64,
    bytes: usize,
    members: BTreeMap<NodeName, Known<Member>>,
    waiting: VecDeque<Look>,
    not_before: Uptime,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = Step> + Send>>>,
}

impl<C: Client, K: Clock> Watcher<C, K> {
    /// Nothing watched yet.
    pub fn new(desk: Desk<C, K>) -> Self {
        Self {
            desk,
            watched: BTreeMap::new(),
            wishes: 0,
            bytes: 0,
            members: BTreeMap::new(),
            waiting: VecDeque::new(),
            not_before: Uptime::ZERO,
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
            Watched { has_watch: has_room, wish: 0 }
        });
        self.wishes += 1;
        watched.wish = self.wishes;
        self.waiting.push_back(Look::Run { run, wish: watched.wish, told: Told::default() });
    }

    fn unwatch(&mut self, run: &RunId) {
        if self.watched.remove(run).is_some_and(|watched| watched.has_watch) {
            self.bytes -= paths::running(run).len();
        }
    }

    fn is_wanted(&self, run: &RunId, wish: u64) -> bool {
        self.watched.get(run).is_some_and(|watched| watched.wish == wish)
    }

    /// The term is over. Only reads and watches are dropped by it.
    pub fn clear(&mut self) {
        self.steps = FuturesUnordered::new();
        self.watched.clear();
        self.bytes = 0;
        self.members.clear();
        self.waiting.clear();
    }

    /// Starts what waits, if a server answers.
    pub fn pump(&mut self, now: Uptime) {
        if now < self.not_before || self.desk.line().is_err() {
            return;
        }
        while let Some(look) = self.waiting.pop_front() {
            let desk = self.desk.clone();
            match look {
                Look::Run { run, wish, .. } if !self.is_wanted(&run, wish) => {}
                Look::Run { run, wish, told } => {
                    let has_watch = self.watched.get(&run).is_some_and(|watched| watched.has_watch);
                    let member = told.owner.as_ref().map(|owner| self.member(&owner.node));
                    self.steps.push(Box::pin(async move {
                        let mut told = told;
                        let result = look_at_run(&desk, &run, &mut told, has_watch, member).await;
                        Step(Brought::OfRun { run, wish, told, result })
                    }));
                }
                Look::Member(node) => {
                    let member = self.members.entry(node.clone()).or_insert_with(unknown).clone();
                    self.steps.push(Box::pin(of_member(desk, node, member)));
                }
            }
        }
    }

    /// What is known of a member, which is watched from the first question on.
    fn member(&mut self, node: &NodeName) -> Hearer<Member> {
        if let Some(member) = self.members.get(node) {
            return member.hearer();
        }
        self.waiting.push_back(Look::Member(node.clone()));
        self.members.entry(node.clone()).or_insert_with(unknown).hearer()
    }

    /// When what was put off is due.
    pub fn wake(&self) -> Option<Uptime> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// The next step; `None` at once where nothing is watched. Cancel safe.
    pub async fn step(&mut self) -> Option<Step> {
        self.steps.next().await
    }

    /// Takes a step's result; what to tell. What failed is looked at again.
    pub fn land(&mut self, step: Step, now: Uptime) -> Result<Option<Event>, Trouble> {
        let (look, result) = match step.0 {
            Brought::OfMember { node, result } => (Look::Member(node), result.map(|()| None)),
            Brought::OfRun { run, wish, .. } if !self.is_wanted(&run, wish) => return Ok(None),
            Brought::OfRun { run, result: Ok(Some(event @ Event::Run(_, None))), .. } => {
                self.unwatch(&run);
                return Ok(Some(event));
            }
            Brought::OfRun { run, wish, told, result } => (Look::Run { run, wish, told }, result),
        };
        match result {
            Ok(event) => {
                self.waiting.push_front(look);
                Ok(event)
            }
            Err(trouble) => {
                self.waiting.push_back(look);
                self.not_before = now + PAUSE;
                Err(trouble)
            }
        }
    }
}

fn unknown() -> Known<Member> {
    Known::new(Member::Unknown)
}

/// Says what stands of a member, and waits until that may have changed.
async fn of_member<C: Client, K: Clock>(desk: Desk<C, K>, node: NodeName, member: Known<Member>) -> Step {
    let result = look_at_member(&desk, &node, &member).await;
    Step(Brought::OfMember { node, result })
}

async fn look_at_member<C: Client, K: Clock>(
    desk: &Desk<C, K>,
    node: &NodeName,
    member: &Known<Member>,
) -> Result<(), Trouble> {
    let path = paths::member(node);
    let (stat, watch) = desk.line()?.stat_and_watch(&path).await.at(&path)?;
    // Said also when it is as before: it may have come and gone between two looks, and been seen in between.
    member.say(Member::Lives(stat.map(|stat| session_id(stat.ephemeral_owner))));
    watch.fired().await;
    Ok(())
}

/// One look; where nothing is new, waits until something may be.
async fn look_at_run<C: Client, K: Clock>(
    desk: &Desk<C, K>,
    run: &RunId,
    told: &mut Told,
    has_watch: bool,
    member: Option<Hearer<Member>>,
) -> Result<Option<Event>, Trouble> {
    let path = paths::running(run);
    let found = if has_watch {
        desk.line()?.get_and_watch(&path).await.map(|(data, stat, watch)| (data, stat, Some(watch)))
    } else {
        desk.line()?.get(&path).await.map(|(data, stat)| (data, stat, None))
    };
    let (data, stat, watch) = match found {
        Ok(found) => found,
        Err(Error::NoNode) => return Ok(Some(Event::Run(run.clone(), None))),
        Err(Error::NoAuth) => return closed(desk, run, &path).await,
        Err(error) => return Err(error).at(&path),
    };
    let version = Version(stat.version);
    let Ok(record) = snapshot::run_record(paths::name(&path), &data, &stat) else {
        changed(desk, watch, None).await;
        return Ok(None);
    };
    if told.version != Some(version) {
        (told.version, told.owner) = (Some(version), Some(record.owner.clone()));
        return Ok(Some(Event::Run(run.clone(), Some((record, version)))));
    }
    let owner = &record.owner;
    let mut member = member;
    let seems_gone = member.as_mut().is_some_and(|member| is_without(&member.hear(), &owner.session));
    // What the watch brought may be behind the record, if the owner has just come back: the facts are read again.
    if seems_gone && told.gone.as_ref() != Some(&owner.session) && !lives(desk, owner).await? {
        let found = read_run(desk, run).await?;
        if found.as_ref().is_none_or(|(now, _)| now.owner != record.owner) {
            return Ok(None);
        }
        // Only what is told counts as told: a read that fails is done again.
        told.gone = Some(record.owner.session);
        return Ok(Some(Event::OwnerGone(run.clone(), OwnerState::Gone, found)));
    }
    changed(desk, watch, member).await;
    Ok(None)
}

/// A run whose record may not be read: nothing can be decided on it, and who may read it can change without a sign.
async fn closed<C: Client, K: Clock>(desk: &Desk<C, K>, run: &RunId, path: &str) -> Result<Option<Event>, Trouble> {
    if desk.line()?.stat(path).await.at(path)?.is_none() {
        return Ok(Some(Event::Run(run.clone(), None)));
    }
    changed(desk, None, None).await;
    Ok(None)
}

fn is_without(member: &Member, session: &SessionId) -> bool {
    matches!(member, Member::Lives(living) if living.as_ref() != Some(session))
}

async fn lives<C: Client, K: Clock>(desk: &Desk<C, K>, owner: &Owner) -> Result<bool, Trouble> {
    let path = paths::member(&owner.node);
    let stat = desk.line()?.stat(&path).await.at(&path)?;
    Ok(stat.is_some_and(|stat| session_id(stat.ephemeral_owner) == owner.session))
}

/// Returns when the run or its owner's member may have changed: either says no more than to look again.
async fn changed<C: Client, K: Clock>(desk: &Desk<C, K>, watch: Option<C::Watch>, member: Option<Hearer<Member>>) {
    let run = async {
        match watch {
            Some(watch) => watch.fired().await,
            None => desk.clock.sleep_until(Wake { wall: None, up: Some(desk.clock.now().up + LOOK_EVERY) }).await,
        }
    };
    let member = async {
        match member {
            Some(mut member) => member.said().await,
            None => std::future::pending().await,
        }
    };
    // Neither is needed once the other has spoken: both are looked at afresh.
    select(pin!(run), pin!(member)).await;
}

/// A run as it stands; one whose record cannot be read is told as absent, for nothing can be decided on it.
pub async fn read_run<C: Client, K: Clock>(
    desk: &Desk<C, K>,
    run: &RunId,
) -> Result<Option<(RunRecord, Version)>, Trouble> {
    let path = paths::running(run);
    match desk.line()?.get(&path).await {
        Ok((data, stat)) => Ok(snapshot::run_record(paths::name(&path), &data, &stat)
            .ok()
            .map(|record| (record, Version(stat.version)))),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}
