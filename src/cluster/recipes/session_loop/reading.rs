//! The daemon's reads of the ledger.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::futures::BoxFuture;
use crate::paths;
use crate::recipes::context::{self, At as _, SessionContext, SessionError};
use crate::recipes::{lasts, losses, requests, snapshot, watcher};
use crate::tree::{Error, Session, Stat};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Defined;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{self, Event, JobEntry, RunLookup};
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::RunId;

/// Time before a read that failed is repeated.
const PAUSE: Duration = Duration::from_millis(200);

/// Most reads in flight. A leader may have ten thousand runs to read: all at once would hold up the renewal of its lease,
/// which goes through the same connection.
const MOST_IN_FLIGHT: usize = 100;

/// A read, by its number, and its result.
pub(super) type ReadDone = (u64, Result<Option<Event>, SessionError>);

/// The daemon's reads: in flight, waiting, and refused.
pub(super) struct Reading {
    under_way: FuturesUnordered<BoxFuture<Box<ReadDone>>>,
    /// The reads in flight, by their numbers, to be repeated under the next session if this one ends first.
    requested: BTreeMap<u64, ledger::Request>,
    /// The number of the last read.
    started: u64,
    waiting: VecDeque<ledger::Request>,
    /// The runs that are to be read and not being read yet. The engine requests that again after a while, and once is
    /// enough.
    waiting_runs: BTreeSet<RunId>,
    /// Reads that the servers refuse; each survey retries them.
    refused: Vec<ledger::Request>,
    /// Waiting reads start at this instant: there is a pause after a failed one.
    not_before: Uptime,
}

impl Reading {
    pub fn new() -> Self {
        Self {
            under_way: FuturesUnordered::new(),
            requested: BTreeMap::new(),
            started: 0,
            waiting: VecDeque::new(),
            waiting_runs: BTreeSet::new(),
            refused: Vec::new(),
            not_before: Uptime::ZERO,
        }
    }

    /// Takes a read, also one that has failed, or was requested under an earlier session.
    pub fn take(&mut self, read: ledger::Request) {
        let is_new = match &read {
            ledger::Request::ReadRun(run) => self.waiting_runs.insert(run.clone()),
            // The engine requests it again with each session, or with each run that is lost. The copy that waits keeps
            // its place: a leader begins nothing again before it is answered.
            ledger::Request::ReadInFlight | ledger::Request::NoteLoss => !self.waiting.contains(&read),
            _ => true,
        };
        if is_new {
            self.waiting.push_back(read);
        }
    }

    /// Retries what the servers refuse.
    pub fn retry_refused(&mut self) {
        std::mem::take(&mut self.refused).into_iter().for_each(|read| self.take(read));
    }

    /// When waiting reads may start: once the member exists.
    ///
    /// Until then the candidate of an earlier session may still guard a write in flight whose result is unknown. After
    /// that, what is absent stays absent.
    pub fn at(&self, is_member: bool) -> Option<Uptime> {
        let may_start = is_member && !self.waiting.is_empty() && self.requested.len() < MOST_IN_FLIGHT;
        may_start.then_some(self.not_before)
    }

    /// Starts the waiting reads if they may start.
    pub fn start<C: Session, K: Clock>(
        &mut self,
        now: Uptime,
        is_member: bool,
        context: &SessionContext<C, K>,
        defined: Option<&Arc<Defined>>,
    ) {
        if self.at(is_member).is_none_or(|at| now < at) {
            return;
        }
        while self.requested.len() < MOST_IN_FLIGHT
            && let Some(request) = self.waiting.pop_front()
        {
            if let ledger::Request::ReadRun(run) = &request {
                self.waiting_runs.remove(run);
            }
            self.started += 1;
            let (number, context, defined) = (self.started, context.clone(), defined.cloned());
            self.requested.insert(number, request.clone());
            self.under_way
                .push(Box::pin(async move { Box::new((number, read(&context, defined.as_deref(), &request).await)) }));
        }
    }

    /// The next result; `None` at once if no read is in flight. Cancellation safe: the reads are kept.
    pub async fn done(&mut self) -> Option<Box<ReadDone>> {
        self.under_way.next().await
    }

    /// Takes the result of a read. Returns what was read; `None` if that must wait.
    ///
    /// # Errors
    /// If the read failed, and will be retried soon.
    pub fn finish(&mut self, (number, result): ReadDone, now: Uptime) -> Result<Option<Event>, SessionError> {
        let Some(request) = self.requested.remove(&number) else { return result };
        match result {
            Ok(event) => Ok(event),
            // Retried with the next survey. Until it is read nothing can be decided.
            Err(SessionError::NoAuth(detail)) => {
                tracing::debug!(target: TARGET, %detail, "a read was refused; deferring it");
                self.refused.push(request);
                Ok(None)
            }
            Err(error) => {
                self.take(request);
                self.not_before = now + PAUSE;
                Err(error)
            }
        }
    }

    /// Ends with the session: the reads that have no result.
    pub fn take_unread(&mut self) -> impl Iterator<Item = ledger::Request> + use<> {
        self.waiting_runs.clear();
        let requested = std::mem::take(&mut self.requested).into_values().chain(std::mem::take(&mut self.waiting));
        requested.chain(std::mem::take(&mut self.refused))
    }
}

async fn read<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    defined: Option<&Defined>,
    request: &ledger::Request,
) -> Result<Option<Event>, SessionError> {
    let found = match request {
        ledger::Request::NoteLoss => return losses::note(context).await.map(|()| None),
        ledger::Request::ReadJob(job) => read_job(context, job).await,
        ledger::Request::ReadRun(run) => read_run(context, run).await,
        // Reads start once this session has created the member, or found its own, so this server knows what the node has
        // written before.
        ledger::Request::ReadInFlight => {
            let names = context::or_none(context::names(context.line()?, paths::RUNNING).await)?;
            let (lost_until, _) = snapshot::lost_until(context.line()?).await?;
            Ok(Event::InFlight(names.iter().filter_map(|name| RunId::parse(name).ok()).collect(), lost_until))
        }
        ledger::Request::ReadAgain(run) => Ok(Event::Again(run.clone(), look_up(context, defined, run).await?)),
        ledger::Request::ReadLastSuccesses(jobs) => {
            let read = lasts::read(context.line()?, jobs.iter().cloned()).await?;
            Ok(Event::LastSuccesses(read.into_iter().map(|(job, read)| (job, read.success())).collect()))
        }
        ledger::Request::ReadOpenOffers(node) => {
            let names = context::names(context.line()?, &paths::offers(node)).await?;
            let open = names.iter().filter_map(|name| RunId::parse(name).ok()).collect();
            Ok(Event::OpenOffers(node.clone(), open))
        }
        // Watches and commits are handled elsewhere and never reach this function.
        ledger::Request::Watch(run) | ledger::Request::Follow(run) | ledger::Request::WatchOwn(run) => {
            read_run(context, run).await
        }
        ledger::Request::Commit { change, .. } => read_job(context, change.job()).await,
    };
    found.map(Some)
}

async fn read_job<C: Session, K: Clock>(context: &SessionContext<C, K>, job: &JobName) -> Result<Event, SessionError> {
    let client = context.line()?;
    // Both requests are sent now, in this order: a pause written between them has changed the record too.
    let path = paths::job(job);
    let (found, control) = futures_util::join!(client.get(&path), requests::control(client, job));
    let entry = match found {
        Ok((data, stat)) => Some(job_entry(job, &data, &stat)),
        Err(Error::Missing) => None,
        // The record cannot be read, but its version can, and the leader needs it to write the record again.
        Err(error) if error.is_of_path() => {
            let stat = client.stat(&path).await.at(&path)?;
            stat.map(|stat| JobEntry { record: None, version: stat.version })
        }
        Err(error) => return Err(error).at(&path),
    };
    Ok(Event::Job(job.clone(), entry, control?))
}

/// A job's record as read. The leader rewrites a damaged one from what it knows; each time is logged once.
fn job_entry(job: &JobName, data: &[u8], stat: &Stat) -> JobEntry {
    let mut damaged = Vec::new();
    let entry = snapshot::job_entry(job.as_str(), data, stat, &mut damaged);
    for damage in damaged {
        log!(COORDINATION_REPAIRED, path = damage.path, "rewriting the damaged record of a job: {damage}");
    }
    entry
}

/// Looks for a run among those in flight, and then in the history.
async fn look_up<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    defined: Option<&Defined>,
    run: &RunId,
) -> Result<RunLookup, SessionError> {
    let line = context.line()?;
    let path = paths::running(run);
    match line.get(&path).await {
        Ok((data, stat)) => {
            let record = snapshot::run_record(paths::name(&path), &data, &stat).ok();
            // Whoever has made it unreadable has the run now.
            return Ok(
                record.map_or(RunLookup::Ended, |(record, version)| RunLookup::InFlight(Box::new(record), version))
            );
        }
        Err(Error::Missing) => {}
        Err(error) => return Err(error).at(&path),
    }
    let names = context::names(line, &paths::job_history(run.job())).await?;
    let recorded: Vec<RunId> = names.iter().filter_map(|name| RunId::parse(name).ok()).collect();
    let path = paths::job(run.job());
    let job = match line.get(&path).await {
        Ok((data, stat)) => Some(job_entry(run.job(), &data, &stat)),
        Err(error) if error == Error::Missing || error.is_of_path() => None,
        Err(error) => return Err(error).at(&path),
    };
    Ok(RunLookup::not_in_flight(run, &recorded, Defined::least_kept(defined, run.job()), job))
}

async fn read_run<C: Session, K: Clock>(context: &SessionContext<C, K>, run: &RunId) -> Result<Event, SessionError> {
    Ok(Event::Run(run.clone(), watcher::read_run(context, run).await?))
}
