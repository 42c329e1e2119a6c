//! Handles the daemon's requests: commits, reads, watches, and the election's requests.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;

use super::failing::Task;
use super::{BoxFuture, ReadDone, SessionLoop};
use crate::paths;
use crate::recipes::context::{self, At as _, SessionContext, SessionError};
use crate::recipes::{lasts, requests, snapshot, transaction, watcher};
use crate::tree::{Error, Session, Stat};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::coordination::Request;
use cronkeeper_core::election;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{self, Change, Commit, CommitId, Event, JobEntry, RunLookup};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::run::{RunId, RunState};

const PAUSE: Duration = Duration::from_millis(200);

/// The daemon's reads: in flight, waiting, and refused.
pub(super) struct Reading {
    pub under_way: FuturesUnordered<BoxFuture<Box<ReadDone>>>,
    /// The reads in flight, to be repeated under the next session if this one ends first.
    pub requested: Vec<ledger::Request>,
    pub waiting: VecDeque<ledger::Request>,
    /// Reads that the servers refuse; each survey retries them.
    pub refused: Vec<ledger::Request>,
    /// Waiting reads start at this instant: there is a pause after a failed one.
    pub not_before: Uptime,
}

impl Reading {
    pub fn new() -> Self {
        Self {
            under_way: FuturesUnordered::new(),
            requested: Vec::new(),
            waiting: VecDeque::new(),
            refused: Vec::new(),
            not_before: Uptime::ZERO,
        }
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Handles a request and all that are queued behind it, so that commits requested together share a multi.
    pub(super) fn take_requests(&mut self, first: Request) {
        self.take_request(first);
        while let Ok(request) = self.node.service.requests.try_recv() {
            self.take_request(request);
        }
    }

    fn take_request(&mut self, request: Request) {
        match request {
            Request::Election(request) => self.take_election_request(request),
            Request::Ledger(ledger::Request::Commit { id, change }) => self.commit(id, change),
            Request::Lock(request) => self.take_lock_request(request),
            Request::Ledger(ledger::Request::Watch(run)) => {
                if self.fence().is_some() {
                    self.watcher.watch(run);
                }
            }
            Request::Ledger(ledger::Request::WatchOwn(run)) => self.watcher.watch(run),
            Request::Ledger(read) => {
                if let ledger::Request::ReadJob(job) = &read {
                    self.committer.read(job);
                }
                // The engine requests it again with each session; only one copy must wait.
                if let ledger::Request::ReadInFlight = &read {
                    self.reading.waiting.retain(|waiting| *waiting != read);
                }
                self.reading.waiting.push_back(read);
            }
        }
    }

    fn pass_to_committer(&mut self, id: CommitId, change: Change, fence: Option<String>) {
        for (id, answer) in self.committer.request(id, change, fence) {
            self.answer(id, answer);
        }
    }

    fn take_election_request(&mut self, request: election::Request) {
        match &request {
            election::Request::Publish(published) => {
                self.membership.must_publish |= *published != self.node.desired.published
            }
            election::Request::Leave => self.leave(),
            election::Request::Transfer(to) => self.transfer(to.clone()),
            election::Request::Define(defined) => self.update_access_to(&defined.locks),
            election::Request::Campaign | election::Request::Resign | election::Request::Busy(_) => {}
        }
        self.node.note(request);
    }

    /// Passes a change to the committer, or answers it at once if it can no longer be written.
    pub(super) fn commit(&mut self, id: CommitId, change: Change) {
        if !change.is_fenced() {
            match &change {
                // It names a session that is gone. A released run keeps the session it ran under, so it does not count
                // here.
                Change::ChangeOwner { run, .. } | Change::Restore { run, .. }
                    if run.state == RunState::Running && run.owner.session != self.id =>
                {
                    self.node.answer(id, Commit::Superseded);
                }
                _ => self.pass_to_committer(id, change, None),
            }
            return;
        }
        match self.fence() {
            Some((candidate, token)) if !transaction::is_of_another_term(&change, token) => {
                self.pass_to_committer(id, change, Some(candidate));
            }
            _ => self.node.answer(id, Commit::Fenced),
        }
    }

    /// When waiting reads may start: once the member exists.
    ///
    /// Until then the candidate of an earlier session may still guard a write in flight whose result is unknown. After
    /// that, what is absent stays absent.
    pub(super) fn read_at(&self) -> Option<Uptime> {
        (self.membership.is_present() && !self.reading.waiting.is_empty()).then_some(self.reading.not_before)
    }

    pub(super) fn start_reads(&mut self, now: Uptime) {
        if self.read_at().is_none_or(|at| now < at) {
            return;
        }
        while let Some(request) = self.reading.waiting.pop_front() {
            let context = self.context.clone();
            self.reading.requested.push(request.clone());
            self.reading.under_way.push(Box::pin(async move {
                let result = read(&context, &request).await;
                Box::new((request, result))
            }));
        }
    }

    pub(super) fn finish_read(&mut self, (request, result): ReadDone) {
        if let Some(at) = self.reading.requested.iter().position(|requested| *requested == request) {
            self.reading.requested.remove(at);
        }
        match result {
            Ok(event) => {
                self.succeeded(Task::Read);
                self.node.emit_ledger(event);
            }
            // Retried with the next survey. Until it is read nothing can be decided.
            Err(SessionError::NoAuth(detail)) => {
                tracing::debug!(target: TARGET, %detail, "a read was refused; deferring it");
                self.reading.refused.push(request);
            }
            Err(error) => {
                self.reading.waiting.push_back(request);
                self.reading.not_before = self.now() + PAUSE;
                self.failed(Task::Read, &error.to_string());
                self.note_error(error);
            }
        }
    }
}

async fn read<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    request: &ledger::Request,
) -> Result<Event, SessionError> {
    match request {
        ledger::Request::ReadJob(job) => read_job(context, job).await,
        ledger::Request::ReadRun(run) => read_run(context, run).await,
        // Reads start once this session has created the member, or found its own, so this server knows what the node has
        // written before.
        ledger::Request::ReadInFlight => {
            let names = context::or_none(context::names(context.line()?, paths::RUNNING).await)?;
            Ok(Event::InFlight(names.iter().filter_map(|name| RunId::parse(name).ok()).collect()))
        }
        ledger::Request::ReadAgain(run) => Ok(Event::Again(run.clone(), look_up(context, run).await?)),
        ledger::Request::ReadLastSuccesses(jobs) => {
            let read = lasts::read(context.line()?, jobs.iter().cloned()).await?;
            Ok(Event::LastSuccesses(read.into_iter().map(|(job, read)| (job, read.success())).collect()))
        }
        // Watches and commits are handled elsewhere and never reach this function.
        ledger::Request::Watch(run) | ledger::Request::WatchOwn(run) => read_run(context, run).await,
        ledger::Request::Commit { change, .. } => read_job(context, change.job()).await,
    }
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
        let event = log_event::COORDINATION_REPAIRED;
        tracing::warn!(target: TARGET, event, path = damage.path, "rewriting the damaged record of a job: {damage}");
    }
    entry
}

/// Looks for a run among those in flight, and then in the history.
async fn look_up<C: Session, K: Clock>(context: &SessionContext<C, K>, run: &RunId) -> Result<RunLookup, SessionError> {
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
    Ok(RunLookup::not_in_flight(run, &recorded, job))
}

async fn read_run<C: Session, K: Clock>(context: &SessionContext<C, K>, run: &RunId) -> Result<Event, SessionError> {
    Ok(Event::Run(run.clone(), watcher::read_run(context, run).await?))
}
