//! Runs that somebody wants to end: an operator, or their job's next run.
//!
//! The request stands in the run's record. Whoever has the run stops it as a timeout would; a run that nobody has is ended by
//! the leader at once. An attempt that lasts is watched for such requests, a short one is not worth the read.

use std::collections::BTreeSet;
use std::time::Duration;

use super::flight::{Flight, News, Phase, RunOwner, StopCause};
use super::{Engine, Pending, Turn};
use crate::ledger::{Change, Commit, CommitId, Request};
use crate::run::{KillRequest, Outcome, RunEnd, RunId};

/// How long an attempt lasts before it is watched.
pub(super) const WATCH_AFTER: Duration = Duration::from_secs(1);

impl Engine {
    /// Lets a run end, whoever has it. The first request stands.
    pub(super) fn request_to_end(&mut self, t: &mut Turn, run: &RunId, kill: KillRequest) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        if !flight.record.request_to_end(kill) {
            return;
        }
        if matches!(flight.holder, RunOwner::Other) { self.write_kill(t, run) } else { self.apply_kill(t, run) }
    }

    /// Does what a run's record asks for, as far as it is this node's to do.
    pub(super) fn apply_kill(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run) else { return };
        let Some(kill) = &flight.record.kill else { return };
        let (reason, force) = (kill.reason, kill.force);
        let leads = self.leading.is_some();
        match &flight.holder {
            RunOwner::Own(own) => match &own.phase {
                Phase::Alive(_) => self.stop_run(t, run, StopCause::Killed(reason)),
                // The ledger has accepted it, and it was not started.
                Phase::Beginning if flight.commit.is_none() => self.end_killed(t, run),
                // The attempt is over, and no other is to follow.
                Phase::LettingGo(_) => self.end_killed(t, run),
                Phase::Beginning | Phase::Unsure | Phase::Ended(_) => {}
            },
            RunOwner::Nobody if leads => self.settle_end(t, run, Outcome::Killed, Some(reason)),
            RunOwner::CutOff if leads && force => self.settle_end(t, run, Outcome::Killed, Some(reason)),
            RunOwner::Nobody | RunOwner::Other | RunOwner::CutOff | RunOwner::Settling => {}
        }
    }

    pub(super) fn end_killed(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run) else { return };
        let reason = flight.record.kill.as_ref().map(|kill| kill.reason);
        let end = RunEnd::unseen(&flight.record, Outcome::Killed, reason, t.now.wall);
        self.end_run(t, run, end);
    }

    /// Asks the ledger to tell the run's owner.
    pub(super) fn write_kill(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run).filter(|flight| flight.commit.is_none()) else { return };
        if !matches!(flight.holder, RunOwner::Other) {
            return self.apply_kill(t, run);
        }
        let change = Change::Kill { at: flight.version, run: flight.record.clone() };
        let id = self.commit(t, change, Pending::Kill { run: run.clone() });
        if let Some(flight) = self.flights.get_mut(run) {
            flight.commit = Some(id);
        }
    }

    pub(super) fn on_kill_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        match answer {
            Commit::Accepted => {
                flight.version = flight.version.next();
                self.hear_news(t, run);
            }
            // What its record says now decides whether the request is written again.
            Commit::Superseded | Commit::Unknown => t.ledger(Request::ReadRun(run.clone())),
            Commit::Fenced => {}
        }
    }

    /// What was heard of a run while a commit about it was under way, and is newer than that.
    pub(super) fn hear_news(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get_mut(run).filter(|flight| flight.commit.is_none()) else { return };
        match flight.news.take() {
            Some(News::Changed(found)) => self.on_run_read(t, run, found),
            Some(news) => self.on_news(t, run, news),
            None => {}
        }
    }

    /// Watches the attempts that last.
    pub(super) fn watch_due(&mut self, t: &mut Turn) {
        while let Some(&(at, tree_id)) = self.watch_own.first() {
            if at > t.now.up {
                return;
            }
            self.watch_own.remove(&(at, tree_id));
            if let Some(run) = self.tree_ids.get(&tree_id) {
                t.ledger(Request::WatchOwn(run.clone()));
            }
        }
    }

    /// Watches them again: what was watched under another session, or in a term, is watched no more.
    pub(super) fn watch_all(&mut self, t: &mut Turn) {
        if self.session.is_none() {
            return;
        }
        let waits: BTreeSet<_> = self.watch_own.iter().map(|&(_, tree_id)| tree_id).collect();
        let lasting = |flight: &Flight| flight.alive().is_some_and(|alive| !waits.contains(&alive.tree_id));
        let runs: Vec<RunId> =
            self.flights.iter().filter(|(_, flight)| lasting(flight)).map(|(id, _)| id.clone()).collect();
        runs.into_iter().for_each(|run| t.ledger(Request::WatchOwn(run)));
    }
}
