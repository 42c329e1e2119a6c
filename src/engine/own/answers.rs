//! What the ledger says to the commits about own runs, and what it says when it was not heard.

use std::time::Duration;

use crate::engine::flight::{Flight, Own, Phase, RunOwner, StopCause};
use crate::engine::{Command, Engine, Report, Turn};
use crate::ledger::{Commit, CommitId, Request};
use crate::run::{Reason, RunId, RunRecord, Version};

impl Engine {
    pub(in crate::engine) fn on_attempt_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        if flight.is_queued() {
            return self.on_queued_answer(t, run, answer);
        }
        match answer {
            Commit::Accepted => self.on_begun(t, run),
            Commit::Superseded | Commit::Fenced => {
                self.forget(run);
            }
            Commit::Unknown => self.look_up(t, run),
        }
    }

    /// Nobody knows whether an attempt was begun: the ledger is asked, under the next session if this one is gone.
    pub(in crate::engine) fn look_up(&mut self, t: &mut Turn, run: &RunId) {
        if let Some(own) = self.flights.get_mut(run).and_then(Flight::own_mut) {
            own.phase = Phase::Unsure;
        }
        if self.session.is_some() {
            t.ledger(Request::ReadRun(run.clone()));
        }
    }

    pub(in crate::engine) fn on_change_owner_answer(
        &mut self,
        t: &mut Turn,
        run: &RunId,
        id: CommitId,
        answer: Commit,
    ) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        match answer {
            Commit::Accepted => {
                flight.version = flight.version.next();
                let is_let_go = flight.record.state.is_let_go();
                let Some(own) = flight.own_mut() else { return };
                own.needs_change_owner = false;
                // What was accepted may also be the new session, asked for while the process still lived.
                if is_let_go && matches!(own.phase, Phase::LettingGo(_)) {
                    self.on_let_go(t, run)
                } else {
                    self.commit_next(t, run)
                }
                self.release_to_the_lease(t, run);
                self.hear_news(t, run);
            }
            Commit::Superseded | Commit::Fenced => t.ledger(Request::ReadRun(run.clone())),
            Commit::Unknown => {
                if self.session.is_some() {
                    self.commit_next(t, run);
                }
            }
        }
    }

    pub(super) fn on_let_go(&mut self, t: &mut Turn, run: &RunId) {
        if let Some(Own { phase: Phase::LettingGo(let_go), .. }) = self.flights.get_mut(run).and_then(Flight::own_mut) {
            t.commands.extend(let_go.report.take().map(|report| Command::Tell(*report)));
        }
        t.commands.push(Command::Forget(run.clone()));
        if self.leading.is_none() {
            self.forget(run);
            return;
        }
        self.await_retry(t, run);
    }

    pub(in crate::engine) fn on_own_end_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        match answer {
            Commit::Accepted => {
                t.commands.push(Command::Forget(run.clone()));
                let Some(RunOwner::Own(own)) = self.close(run).map(|flight| flight.holder) else { return };
                let Phase::Ended(end) = own.phase else { return };
                if !own.is_told {
                    t.tell(Report::Finished(end.clone()));
                }
                self.follow_end(t, own.job, *end);
            }
            Commit::Superseded | Commit::Fenced => t.ledger(Request::ReadRun(run.clone())),
            Commit::Unknown => {
                if let Some(own) = flight.own_mut() {
                    own.may_be_written = true;
                }
                if self.session.is_some() {
                    self.commit_next(t, run);
                }
            }
        }
    }

    /// What the ledger says of an own run whose commit it did not take, or did not answer.
    pub(in crate::engine) fn on_own_run_read(
        &mut self,
        t: &mut Turn,
        run: &RunId,
        found: Option<(RunRecord, Version)>,
    ) {
        let Some(flight) = self.flights.get_mut(run).filter(|flight| flight.commit.is_none()) else { return };
        let is_unsure = matches!(flight.own().map(|own| &own.phase), Some(Phase::Unsure));
        let may_be_written = flight.own().is_some_and(|own| own.may_be_written);
        match found {
            Some((record, version)) if flight.record.is_same_attempt(&record) => {
                // Of whichever decision of that term it is, and if another leader has cut it off since: nobody ever started it.
                flight.version = version;
                flight.record.kill = record.kill.clone().or(flight.record.kill.take());
                let is_let_go = record.state.is_let_go();
                if is_let_go && !matches!(flight.own().map(|own| &own.phase), Some(Phase::LettingGo(_))) {
                    flight.record = record;
                    // By an earlier process of this node, which did not live to hear of it.
                    return self.on_let_go(t, run);
                }
                if is_unsure {
                    return self.on_begun_unsure(t, run);
                }
                self.apply_kill(t, run);
                self.commit_next(t, run);
            }
            found if is_unsure => {
                self.forget(run);
                self.take_note(t, run, found);
                self.release_job(run.job());
            }
            // What is not in flight any more was ended: by the write that was never answered.
            None if may_be_written => self.drop_run(t, run),
            found => {
                self.on_superseded(t, run);
                if !self.flights.contains_key(run) {
                    self.take_note(t, run, found);
                }
            }
        }
    }

    /// An attempt was begun in the ledger by a write that was answered too late for it to be started.
    pub(super) fn on_begun_unsure(&mut self, t: &mut Turn, run: &RunId) {
        self.let_go_unstarted(t, run, Some(Reason::Lease), Duration::ZERO);
    }

    /// Another settled an own run: what still runs of it is killed, and nothing more is written about it.
    pub(in crate::engine) fn on_superseded(&mut self, t: &mut Turn, run: &RunId) {
        t.tell(Report::Superseded { run: run.clone() });
        if self.flights.get(run).is_some_and(|flight| flight.alive().is_some()) {
            self.kill_run(t, run, StopCause::Superseded);
        } else {
            self.drop_run(t, run);
        }
    }

    /// What the ledger has of it, if anything, is another node's affair; a leader looks.
    pub(super) fn drop_run(&mut self, t: &mut Turn, run: &RunId) {
        self.forget(run);
        t.commands.push(Command::Forget(run.clone()));
        if self.leading.is_some() {
            t.ledger(Request::ReadRun(run.clone()));
        }
    }
}
