//! Runs of living former leaders, and runs that wait, watched by the leader until their rows or their owners go; and own runs
//! that take their time, watched for what others want of them.
//!
//! An owner's end is waited for in the kernel, by its lock. A change of a row has no such sign: SQLite tells another
//! process's commit only to who asks. So while any run is watched, which is while a former leader drains, `data_version` is
//! asked ten times a second: a look into shared memory, no read of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::backend::Trouble;
use super::errand::Errands;
use super::members::MemberName;
use super::read::owner;
use super::reap::{DeadMember, ReapError};
use super::store::Store;
use crate::coordination::Event;
use crate::ledger;
use crate::run::{RunId, RunRecord, RunState, Version};
use crate::term::SessionId;

/// How often to ask whether another process has written.
pub(super) const EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Watch {
    own: SessionId,
    /// With the version that was told last, and the member that had it then, if one did.
    runs: BTreeMap<RunId, (Version, Option<MemberName>)>,
    /// Those that are this node's own: they are watched whoever leads.
    attended: BTreeSet<RunId>,
    /// Members whose end is waited for, or being seen to.
    awaited: BTreeSet<MemberName>,
    /// Members that are gone but could not be seen to.
    unburied: BTreeSet<MemberName>,
    /// This process has written since it was looked at last.
    has_written: bool,
    looked_at: Option<Instant>,
    /// As other processes left it when it was looked at last.
    left: i64,
}

impl Watch {
    pub(super) fn new(own: SessionId) -> Self {
        Self {
            own,
            runs: BTreeMap::new(),
            attended: BTreeSet::new(),
            awaited: BTreeSet::new(),
            unburied: BTreeSet::new(),
            has_written: false,
            looked_at: None,
            left: -1,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    /// The term is over. Waits that are under way go on, for a later term may want them.
    pub(super) fn end(&mut self) {
        self.runs.retain(|run, _| self.attended.contains(run));
        self.unburied.clear();
    }

    /// Watches an own run, in no term.
    pub(super) fn watch_own(
        &mut self,
        run: &RunId,
        store: &Store,
        errands: &Errands,
        events: &UnboundedSender<Event>,
    ) -> Result<(), Trouble> {
        self.attended.insert(run.clone());
        self.add(run, store, errands, events)
    }

    /// Watches a run: tells what it is now, so that nothing that happened before is missed.
    pub(super) fn add(
        &mut self,
        run: &RunId,
        store: &Store,
        errands: &Errands,
        events: &UnboundedSender<Event>,
    ) -> Result<(), Trouble> {
        let row = store.run(run)?;
        if row.is_none() {
            self.runs.remove(run);
            self.attended.remove(run);
        }
        if let Some((record, version)) = &row {
            let holder = holder(record);
            self.runs.insert(run.clone(), (*version, holder.clone()));
            holder.map_or(Ok(()), |holder| self.wait_for(holder, errands))?;
        }
        tell(events, ledger::Event::Run(run.clone(), row));
        Ok(())
    }

    /// Tells the rows that changed, if anybody wrote anything. True where another process did.
    pub(super) fn look(
        &mut self,
        store: &Store,
        errands: &Errands,
        events: &UnboundedSender<Event>,
    ) -> Result<bool, Trouble> {
        let left = store.data_version()?;
        let others_wrote = left != self.left;
        if self.is_idle() || !(others_wrote || self.is_to_look_at_own_writes()) {
            return Ok(false);
        }
        let versions = store.run_versions()?;
        let is_new =
            |(run, (told, _)): &(&RunId, &(Version, Option<MemberName>))| versions.get(&run.to_string()) != Some(told);
        let changed: Vec<RunId> = self.runs.iter().filter(is_new).map(|(run, _)| run.clone()).collect();
        changed.iter().try_for_each(|run| self.add(run, store, errands, events))?;
        (self.has_written, self.looked_at, self.left) = (false, Some(Instant::now()), left);
        Ok(others_wrote)
    }

    /// Thousands that wait would otherwise be looked at with each write of a busy process.
    fn is_to_look_at_own_writes(&self) -> bool {
        self.has_written && self.looked_at.is_none_or(|at| at.elapsed() >= EVERY)
    }

    /// A watched run's owner has let its lock go: now its processes have to be seen dead.
    pub(super) fn member_gone(&mut self, name: MemberName, errands: &Errands) -> Result<(), Trouble> {
        if self.is_idle() {
            self.awaited.remove(&name); // whoever leads next sees to it
            return Ok(());
        }
        errands.reap(name.clone()).inspect_err(|_| {
            self.unburied.insert(name);
        })?;
        Ok(())
    }

    /// A member's end could not be waited for; the next retry waits again.
    pub(super) fn could_not_wait(&mut self, name: &MemberName) {
        self.awaited.remove(name);
    }

    /// This process wrote something itself, which `data_version` does not tell.
    pub(super) fn wrote(&mut self) {
        self.has_written = true;
    }

    /// Tells what became of the runs of a member that was seen to.
    pub(super) fn member_reaped(
        &mut self,
        name: &MemberName,
        result: Result<Vec<DeadMember>, ReapError>,
        store: &mut Store,
        errands: &Errands,
        events: &UnboundedSender<Event>,
    ) -> Result<(), Trouble> {
        if self.is_idle() {
            self.awaited.remove(name);
            return Ok(());
        }
        let written = match result {
            Ok(reaped) => store.settle_dead(&reaped).map_err(Trouble::from),
            Err(error) => Err(error.into()),
        };
        let ended = written.inspect_err(|_| {
            self.unburied.insert(name.clone());
        })?;
        ended.into_iter().for_each(|end| tell(events, end));
        errands.members.remove(name).ok(); // found again by the next leader, who finds nothing to do
        self.awaited.remove(name);
        self.tell_owner_gone(name, store, events)
    }

    /// Waits again for the members that could not be waited for, and sees again to those that could not be seen to.
    pub(super) fn retry(&mut self, errands: &Errands) -> Result<(), Trouble> {
        std::mem::take(&mut self.unburied).into_iter().try_for_each(|name| self.member_gone(name, errands))?;
        let owners: BTreeSet<_> = self.runs.values().filter_map(|(_, holder)| holder.clone()).collect();
        owners.into_iter().try_for_each(|owner| self.wait_for(owner, errands))
    }

    fn tell_owner_gone(
        &mut self,
        name: &MemberName,
        store: &Store,
        events: &UnboundedSender<Event>,
    ) -> Result<(), Trouble> {
        for run in self.runs.keys().cloned().collect::<Vec<_>>() {
            match store.run(&run)? {
                Some((record, version)) if holder(&record).as_ref() == Some(name) => {
                    self.runs.insert(run.clone(), (version, Some(name.clone())));
                    tell(events, ledger::Event::OwnerGone(run, ledger::OwnerState::Dead, Some((record, version))));
                }
                Some(_) => {}
                None => self.gone(&run, events),
            }
        }
        Ok(())
    }

    fn gone(&mut self, run: &RunId, events: &UnboundedSender<Event>) {
        self.runs.remove(run);
        self.attended.remove(run);
        tell(events, ledger::Event::Run(run.clone(), None));
    }

    fn wait_for(&mut self, name: MemberName, errands: &Errands) -> Result<(), Trouble> {
        if name.session == self.own || self.awaited.contains(&name) {
            return Ok(());
        }
        errands.wait_for_member(name.clone())?;
        self.awaited.insert(name);
        Ok(())
    }
}

/// The member whose end is news of the run: nobody has a run that waits.
fn holder(run: &RunRecord) -> Option<MemberName> {
    match run.state {
        RunState::Running | RunState::CutOff => Some(owner(run)),
        RunState::Queued | RunState::Retrying | RunState::Unstarted => None,
    }
}

fn tell(events: &UnboundedSender<Event>, event: ledger::Event) {
    let _ = events.send(Event::Ledger(event)); // nobody there: the daemon has ended, and so will the backend
}
