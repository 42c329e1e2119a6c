//! Watches on runs in flight, which report changes of their records and the death of their owners.
//!
//! The leader watches runs of former leaders that are still alive, and runs that wait. A node also watches its own
//! long runs, for requests to end them.
//!
//! A thread waits in the kernel for an owner's lock. There is no such wait for a record: SQLite does not notify a
//! process of the commits of others. So while any run is watched, such as while a former leader drains, `data_version`
//! is polled ten times a second, which reads shared memory and not the file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::backend::BackendError;
use super::background::BackgroundWork;
use super::members::MemberName;
use super::read::owner;
use super::reap::{DeadMember, ReapError};
use super::store::Store;
use cronkeeper_core::coordination::Event;
use cronkeeper_core::ledger;
use cronkeeper_core::run::{RunId, RunRecord, RunState, Version};
use cronkeeper_core::term::SessionId;

/// Interval of checks for writes by other processes.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct RunWatch {
    own: SessionId,
    /// The watched runs, each with the version last reported and the member that held it then.
    runs: BTreeMap<RunId, (Version, Option<MemberName>)>,
    /// The watched runs of this node, which are watched also while it does not lead.
    own_runs: BTreeSet<RunId>,
    /// Members whose end a thread waits for, or that are being reaped.
    awaited_members: BTreeSet<MemberName>,
    /// Dead members that could not be reaped yet.
    unreaped: BTreeSet<MemberName>,
    /// This process has written since the last check.
    has_written: bool,
    checked_at: Option<Instant>,
    /// SQLite's `data_version` at the last check.
    data_version: i64,
}

impl RunWatch {
    pub(super) fn new(own: SessionId) -> Self {
        Self {
            own,
            runs: BTreeMap::new(),
            own_runs: BTreeSet::new(),
            awaited_members: BTreeSet::new(),
            unreaped: BTreeSet::new(),
            has_written: false,
            checked_at: None,
            data_version: -1,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    /// Ends all watches of the term. Threads that wait for members continue, because a later term may need them.
    pub(super) fn end(&mut self) {
        self.runs.retain(|run, _| self.own_runs.contains(run));
        self.unreaped.clear();
    }

    /// Watches a run of this node, independent of terms.
    pub(super) fn watch_own(
        &mut self,
        run: &RunId,
        store: &Store,
        background: &BackgroundWork,
        events: &UnboundedSender<Event>,
    ) -> Result<(), BackendError> {
        self.own_runs.insert(run.clone());
        self.add(run, store, background, events)
    }

    /// Watches a run, and reports its current record, so that no earlier change is missed.
    pub(super) fn add(
        &mut self,
        run: &RunId,
        store: &Store,
        background: &BackgroundWork,
        events: &UnboundedSender<Event>,
    ) -> Result<(), BackendError> {
        let row = store.run(run)?;
        if row.is_none() {
            self.runs.remove(run);
            self.own_runs.remove(run);
        }
        if let Some((record, version)) = &row {
            let holder = holder(record);
            self.runs.insert(run.clone(), (*version, holder.clone()));
            holder.map_or(Ok(()), |holder| self.wait_for(holder, background))?;
        }
        emit(events, ledger::Event::Run(run.clone(), row));
        Ok(())
    }

    /// Reports the runs whose records changed. Returns true if another process has written.
    pub(super) fn check(
        &mut self,
        store: &Store,
        background: &BackgroundWork,
        events: &UnboundedSender<Event>,
    ) -> Result<bool, BackendError> {
        let data_version = store.data_version()?;
        let others_wrote = data_version != self.data_version;
        if self.is_idle() || !(others_wrote || self.own_writes_are_due()) {
            return Ok(false);
        }
        let versions = store.run_versions()?;
        let is_new = |(run, (known, _)): &(&RunId, &(Version, Option<MemberName>))| {
            versions.get(&run.to_string()) != Some(known)
        };
        let changed: Vec<RunId> = self.runs.iter().filter(is_new).map(|(run, _)| run.clone()).collect();
        changed.iter().try_for_each(|run| self.add(run, store, background, events))?;
        (self.has_written, self.checked_at, self.data_version) = (false, Some(Instant::now()), data_version);
        Ok(others_wrote)
    }

    /// True if this process has written and the last check is not recent.
    ///
    /// Without the limit, each write of a busy process would check all watched runs, which may be thousands.
    fn own_writes_are_due(&self) -> bool {
        self.has_written && self.checked_at.is_none_or(|at| at.elapsed() >= POLL_EVERY)
    }

    /// Starts to reap a member whose lock is free.
    pub(super) fn member_gone(&mut self, name: MemberName, background: &BackgroundWork) -> Result<(), BackendError> {
        if self.is_idle() {
            self.awaited_members.remove(&name); // the next leader reaps it
            return Ok(());
        }
        background.reap(name.clone()).inspect_err(|_| {
            self.unreaped.insert(name);
        })?;
        Ok(())
    }

    /// Records that a wait for a member failed, so that the next retry waits again.
    pub(super) fn wait_failed(&mut self, name: &MemberName) {
        self.awaited_members.remove(name);
    }

    /// Records a write of this process, which does not change its own `data_version`.
    pub(super) fn note_own_write(&mut self) {
        self.has_written = true;
    }

    /// Settles a member that was reaped, and reports its runs.
    pub(super) fn member_reaped(
        &mut self,
        name: &MemberName,
        result: Result<Vec<DeadMember>, ReapError>,
        store: &mut Store,
        background: &BackgroundWork,
        events: &UnboundedSender<Event>,
    ) -> Result<(), BackendError> {
        if self.is_idle() {
            self.awaited_members.remove(name);
            return Ok(());
        }
        let written = match result {
            Ok(reaped) => store.settle_dead(&reaped).map_err(BackendError::from),
            Err(error) => Err(error.into()),
        };
        let ended = written.inspect_err(|_| {
            self.unreaped.insert(name.clone());
        })?;
        ended.into_iter().for_each(|end| emit(events, end));
        background.members.remove(name).ok(); // if it fails, the next leader removes the files
        self.awaited_members.remove(name);
        self.emit_owner_gone(name, store, events)
    }

    /// Retries the waits and reapings that failed.
    pub(super) fn retry(&mut self, background: &BackgroundWork) -> Result<(), BackendError> {
        std::mem::take(&mut self.unreaped).into_iter().try_for_each(|name| self.member_gone(name, background))?;
        let owners: BTreeSet<_> = self.runs.values().filter_map(|(_, holder)| holder.clone()).collect();
        owners.into_iter().try_for_each(|owner| self.wait_for(owner, background))
    }

    fn emit_owner_gone(
        &mut self,
        name: &MemberName,
        store: &Store,
        events: &UnboundedSender<Event>,
    ) -> Result<(), BackendError> {
        for run in self.runs.keys().cloned().collect::<Vec<_>>() {
            match store.run(&run)? {
                Some((record, version)) if holder(&record).as_ref() == Some(name) => {
                    self.runs.insert(run.clone(), (version, Some(name.clone())));
                    emit(events, ledger::Event::OwnerGone(run, ledger::OwnerState::Dead, Some((record, version))));
                }
                Some(_) => {}
                None => self.emit_gone(&run, events),
            }
        }
        Ok(())
    }

    fn emit_gone(&mut self, run: &RunId, events: &UnboundedSender<Event>) {
        self.runs.remove(run);
        self.own_runs.remove(run);
        emit(events, ledger::Event::Run(run.clone(), None));
    }

    fn wait_for(&mut self, name: MemberName, background: &BackgroundWork) -> Result<(), BackendError> {
        if name.session == self.own || self.awaited_members.contains(&name) {
            return Ok(());
        }
        background.wait_for_member(name.clone())?;
        self.awaited_members.insert(name);
        Ok(())
    }
}

/// The member whose death concerns the run; none for a run that waits, because nobody is running it.
fn holder(run: &RunRecord) -> Option<MemberName> {
    match run.state {
        RunState::Running | RunState::Placed | RunState::CutOff => Some(owner(run)),
        RunState::Queued | RunState::Retrying | RunState::Unstarted => None,
    }
}

fn emit(events: &UnboundedSender<Event>, event: ledger::Event) {
    let _ = events.send(Event::Ledger(event)); // without a receiver the daemon has ended, and the backend will
}
