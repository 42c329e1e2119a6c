//! Runs of other nodes, watched for a leader: the run itself, and the member of its owner.

use std::collections::{BTreeSet, VecDeque};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, Error, Watch};
use super::desk::{Desk, Trouble};
use super::{paths, session_id, snapshot};
use crate::clock::{Clock, Uptime};
use crate::ledger::Event;
use crate::run::{RunId, RunRecord, Version};
use crate::term::SessionId;

/// Runs watched at once: their paths stay under the 128 KiB that a reconnect can carry. Others wait for a place.
const MOST: usize = 500;
const PAUSE: Duration = Duration::from_millis(500);

/// What was told of a run so far.
#[derive(Clone, Debug, Default)]
struct Told {
    version: Option<Version>,
    gone: Option<SessionId>,
}

/// What one look at a run, or a wait for it, brought.
pub struct Step {
    run: RunId,
    told: Told,
    result: Result<Option<Event>, Trouble>,
}

/// The watched runs of a term.
pub struct Watcher<C, K> {
    desk: Desk<C, K>,
    watched: BTreeSet<RunId>,
    waiting: VecDeque<(RunId, Told)>,
    not_before: Uptime,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = Step> + Send>>>,
}

impl<C: Client, K: Clock> Watcher<C, K> {
    /// Nothing watched yet.
    pub fn new(desk: Desk<C, K>) -> Self {
        Self {
            desk,
            watched: BTreeSet::new(),
            waiting: VecDeque::new(),
            not_before: Uptime::ZERO,
            steps: FuturesUnordered::new(),
        }
    }

    /// Watches a run.
    pub fn watch(&mut self, run: RunId) {
        if self.watched.insert(run.clone()) {
            self.waiting.push_back((run, Told::default()));
        }
    }

    /// The term is over. Only reads and watches are dropped by it.
    pub fn clear(&mut self) {
        self.watched.clear();
        self.waiting.clear();
        self.steps = FuturesUnordered::new();
    }

    /// Starts what waits, if a server answers.
    pub fn pump(&mut self, now: Uptime) {
        if now < self.not_before || self.desk.line().is_err() {
            return;
        }
        while self.steps.len() < MOST
            && let Some((run, told)) = self.waiting.pop_front()
        {
            self.steps.push(Box::pin(step(self.desk.clone(), run, told)));
        }
    }

    /// When what was put off is due.
    pub fn wake(&self) -> Option<Uptime> {
        (!self.waiting.is_empty() && self.steps.len() < MOST).then_some(self.not_before)
    }

    /// The next step; `None` at once where nothing is watched. Cancel safe.
    pub async fn step(&mut self) -> Option<Step> {
        self.steps.next().await
    }

    /// Takes a step's result; what to tell.
    pub fn land(&mut self, step: Step, now: Uptime) -> Option<Event> {
        let Step { run, told, result } = step;
        match result {
            Ok(Some(event @ Event::Run(_, None))) => {
                self.watched.remove(&run);
                Some(event)
            }
            Ok(event) => {
                self.waiting.push_front((run, told));
                event
            }
            Err(_) => {
                self.waiting.push_back((run, told));
                self.not_before = now + PAUSE;
                None
            }
        }
    }
}

async fn step<C: Client, K: Clock>(desk: Desk<C, K>, run: RunId, mut told: Told) -> Step {
    let result = look(&desk, &run, &mut told).await;
    Step { run, told, result }
}

/// One look; where nothing is new, waits until something may be.
async fn look<C: Client, K: Clock>(desk: &Desk<C, K>, run: &RunId, told: &mut Told) -> Result<Option<Event>, Trouble> {
    let (data, stat, run_watch) = match desk.line()?.get_and_watch(&paths::running(run)).await {
        Ok(found) => found,
        Err(Error::NoNode) => return Ok(Some(Event::Run(run.clone(), None))),
        Err(error) => return Err(error.into()),
    };
    let Ok(record) = snapshot::run_record(&data) else {
        run_watch.fired().await;
        return Ok(None);
    };
    let version = Version(stat.version);
    if told.version.replace(version) != Some(version) {
        return Ok(Some(Event::Run(run.clone(), Some((record, version)))));
    }
    if told.gone.as_ref() == Some(&record.owner.session) {
        run_watch.fired().await;
        return Ok(None);
    }
    let (member, member_watch) = desk.line()?.stat_and_watch(&paths::member(&record.owner.node)).await?;
    if member.is_some_and(|member| session_id(member.ephemeral_owner) == record.owner.session) {
        // Either says no more than to look again.
        select(pin!(run_watch.fired()), pin!(member_watch.fired())).await;
        return Ok(None);
    }
    told.gone = Some(record.owner.session);
    Ok(Some(Event::OwnerGone(run.clone(), read_run(desk, run).await?)))
}

/// A run as it stands.
pub async fn read_run<C: Client, K: Clock>(
    desk: &Desk<C, K>,
    run: &RunId,
) -> Result<Option<(RunRecord, Version)>, Trouble> {
    match desk.line()?.get(&paths::running(run)).await {
        Ok((data, stat)) => {
            let record = snapshot::run_record(&data).map_err(|error| Trouble::Again(error.to_string()))?;
            Ok(Some((record, Version(stat.version))))
        }
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
