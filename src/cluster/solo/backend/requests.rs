//! Execution of the daemon's requests, in order.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::error::BackendError;
use super::{Backend, MAX_CHANGES, MAX_TRIMMED, TRIM_AFTER};
use crate::state_dir::journal;
use cronkeeper_core::coordination::Request;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Change, Commit, RunLookup, Write};
use cronkeeper_core::run::RunId;
use cronkeeper_core::term::TermEnd;
use cronkeeper_core::{election, ledger};

/// The room that the empty queue keeps, in requests.
const KEPT_ROOM: usize = 256;

impl Backend {
    /// Carries out all pending requests. A ledger request that fails stays at the head of the queue.
    pub(super) fn process_requests(&mut self) -> Result<(), BackendError> {
        while let Some(request) = self.pending.front() {
            match request.clone() {
                Request::Ledger(ledger::Request::Commit { .. }) => self.commit()?,
                Request::Ledger(request) => {
                    self.read(request)?;
                    self.pending.pop_front();
                }
                Request::Lock(_) => drop(self.pending.pop_front()), // `receive` lets none in
                Request::Election(request) => {
                    self.pending.pop_front();
                    self.elect(request)?;
                }
            }
        }
        // A takeover requests a commit of each job.
        self.pending.shrink_to(KEPT_ROOM);
        Ok(())
    }

    /// Writes the commits at the head of the queue.
    fn commit(&mut self) -> Result<(), BackendError> {
        self.check_member()?;
        let token = self.contender.token(&self.service.events);
        let waiting = self.pending.iter().map_while(as_commit).take(MAX_CHANGES);
        let answers = self.store.commit(token, &mut self.pipelines, waiting.map(|(_, change)| change))?;
        let fenced = token.is_some() && answers.iter().any(|(answer, _)| *answer == Commit::Fenced);
        for (answer, before) in answers {
            if let Some(Request::Ledger(ledger::Request::Commit { id, change })) = self.pending.pop_front() {
                self.note_history(&change, answer);
                // The daemon receives new links together with the operators' requests.
                self.has_operator_requests |= answer == Commit::Accepted && !change.links().is_empty();
                self.emit_ledger(ledger::Event::Answered { id, answer, before, token: None });
            }
        }
        self.watch.note_own_write();
        self.written.send_modify(|written| *written += 1);
        if fenced {
            self.contender.give_up(TermEnd::Fenced, &self.service.events);
        }
        Ok(())
    }

    fn note_history(&mut self, change: &Change, answer: Commit) {
        let writes_history = change.writes().iter().any(|write| matches!(write, Write::History { .. }));
        if writes_history && answer == Commit::Accepted {
            self.trim_later([change.job().clone()]);
        }
    }

    fn trim_later(&mut self, jobs: impl IntoIterator<Item = JobName>) {
        self.untrimmed.extend(jobs);
        if !self.untrimmed.is_empty() {
            self.timers.trim.get_or_insert_with(|| Instant::now() + TRIM_AFTER);
        }
    }

    /// Trims histories written since the last time. It is not part of the commit, which would have to wait for it.
    ///
    /// What does not fit into one transaction, because a limit was lowered, follows later.
    pub(super) fn trim(&mut self) -> Result<(), BackendError> {
        let jobs: BTreeSet<_> = self.untrimmed.iter().take(MAX_TRIMMED).cloned().collect();
        let limits = jobs.iter().map(|job| (job.clone(), self.forgetting.history_limit(job)));
        let unfinished = self.store.trim(limits)?;
        self.untrimmed.retain(|job| !jobs.contains(job));
        self.trim_later(unfinished);
        Ok(())
    }

    fn read(&mut self, request: ledger::Request) -> Result<(), BackendError> {
        match request {
            ledger::Request::Commit { .. } => {}
            ledger::Request::ReadJob(job) => {
                self.pipelines.read(&job);
                let entry = self.store.job(&job)?;
                // The two reads need no transaction: a pause between them changes the version of the job's record too.
                let control = self.store.control(&job)?;
                self.emit_ledger(ledger::Event::Job(job, entry, control));
            }
            ledger::Request::ReadRun(run) => {
                let row = self.store.run(&run)?;
                self.emit_ledger(ledger::Event::Run(run, row));
            }
            ledger::Request::ReadInFlight => {
                let runs = self.store.run_versions()?.into_keys().filter_map(|run| RunId::parse(&run).ok());
                self.emit_ledger(ledger::Event::InFlight(runs.collect(), None));
            }
            ledger::Request::ReadAgain(run) => {
                let found = match self.store.run(&run)? {
                    Some((record, version)) => RunLookup::InFlight(Box::new(record), version),
                    // Whoever has made it unreadable has the run now.
                    None if self.store.run_versions()?.contains_key(&run.to_string()) => RunLookup::Ended,
                    None => {
                        let recorded = self.store.recorded(run.job())?;
                        let kept = self.forgetting.least_kept(run.job());
                        RunLookup::not_in_flight(&run, &recorded, kept, self.store.job(run.job())?)
                    }
                };
                self.emit_ledger(ledger::Event::Again(run, found));
            }
            ledger::Request::ReadLastSuccesses(jobs) => {
                let read = |job: JobName| self.store.last_success(&job).map(|found| (job, found));
                let found = jobs.into_iter().map(read).collect::<Result<_, _>>()?;
                self.emit_ledger(ledger::Event::LastSuccesses(found));
            }
            ledger::Request::Follow(run) | ledger::Request::Watch(run) => {
                self.watch.add(&run, &self.store, &self.background, &self.service.events)?;
            }
            // One host places nothing.
            ledger::Request::ReadOpenOffers(node) => {
                self.emit_ledger(ledger::Event::OpenOffers(node, BTreeSet::new()));
            }
            // Nobody else has records of it.
            ledger::Request::NoteLoss => {}
            ledger::Request::WatchOwn(run) => {
                self.watch.watch_own(&run, &self.store, &self.background, &self.service.events)?;
            }
        }
        Ok(())
    }

    fn elect(&mut self, request: election::Request) -> Result<(), BackendError> {
        match request {
            election::Request::Campaign => self.contender.campaign(),
            election::Request::Resign => {
                self.contender.withdraw(TermEnd::Resigned, &self.service.events);
                self.emit(election::Event::Withdrawn);
            }
            election::Request::Transfer(to) => match self.contender.may_transfer(&to)? {
                Ok(()) => self.elect(election::Request::Resign)?,
                Err(why) => self.emit(election::Event::NotTransferred { to, why }),
            },
            election::Request::Define(defined) => {
                let lowered = self.forgetting.define(defined);
                self.trim_later(lowered);
            }
            election::Request::Busy(_) => {} // the lease of a live process never ends
            election::Request::Publish(published) => {
                self.member.set_published(published);
                self.background.members.publish(&self.member)?;
                self.timers.poll = Instant::now();
            }
            election::Request::Leave => self.leave(),
        }
        Ok(())
    }

    /// Leaves the cluster. If the journal has open runs, the member's files remain, and the next leader settles them.
    fn leave(&mut self) {
        self.contender.withdraw(TermEnd::Resigned, &self.service.events);
        let (members, name) = (&self.background.members, self.member.name());
        if journal::read(&members.journal(name)).is_ok_and(|open| open.is_empty()) {
            members.remove(name).ok(); // if it fails, the next leader removes the files
        }
        self.emit(election::Event::Left);
        self.ended = true;
    }
}

fn as_commit(request: &Request) -> Option<(ledger::CommitId, &Change)> {
    match request {
        Request::Ledger(ledger::Request::Commit { id, change }) => Some((*id, change)),
        _ => None,
    }
}
