//! The life of a run that this node has: begun in the ledger, started, ended, its end written down.
//!
//! A run has at most one commit under way; [`Engine::pump`] asks for the next as soon as the last is answered.

use std::time::Duration;

use super::flight::{Alive, Flight, Holder, Own, Phase, StopCause};
use super::{Command, Engine, Pending, Report, Start, Turn};
use crate::clock::Now;
use crate::ledger::{Change, Commit, CommitId, Request};
use crate::run::journal::RecoveredRun;
use crate::run::{OnLoss, Outcome, Owner, Reason, RunEnd, RunId, RunRecord, RunState, Version, millis};
use crate::term::{SessionId, TermEnd};
use crate::warden::wire::{Deadline, EndedBy, Ending, Exit, Notice, Order, Slot, StartFailure, Step};

/// The tail kept of a successful run, in bytes; the warden hands on 4 KiB.
const TAIL_OF_SUCCESS: usize = 512;

impl Engine {
    /// Runs of an earlier process, dead for sure: their ends are written, or they are let go for another attempt.
    pub(super) fn on_recovered(&mut self, t: &mut Turn, runs: Vec<RecoveredRun>) {
        for RecoveredRun { record, version, end, .. } in runs {
            let own = match end {
                Some(end) => {
                    // The death of the node is news; all other ends were told when they came.
                    let is_told = end.reason != Some(Reason::NodeDied);
                    Own { is_told, ..Own::dead(Phase::Ended(Box::new(end))) }
                }
                None if record.on_loss == OnLoss::Rerun => {
                    t.tell(Report::Retrying { run: record.id(), attempt: record.attempt });
                    Own::dead(Phase::LettingGo)
                }
                None => {
                    let end = RunEnd::unseen(&record, Outcome::Interrupted, Some(Reason::NodeDied), t.now.wall);
                    Own::dead(Phase::Ended(Box::new(end)))
                }
            };
            self.flights.insert(record.id(), Flight::new(record, version, Holder::Own(own)));
        }
    }

    /// A member stands: every own run is put under its session, and what waited for one is asked for.
    pub(super) fn on_session(&mut self, t: &mut Turn, id: SessionId) {
        self.session = Some(id);
        let own: Vec<RunId> =
            self.flights.iter().filter(|(_, f)| f.own().is_some()).map(|(id, _)| id.clone()).collect();
        for run in own {
            let Some(own) = self.flights.get_mut(&run).and_then(Flight::own_mut) else { continue };
            own.needs_reown = matches!(own.phase, Phase::Alive(_));
            match own.phase {
                Phase::Unsure => t.ledger(Request::ReadRun(run)),
                _ => self.pump(t, &run),
            }
        }
    }

    /// Asks for the commit that an own run waits for, if it waits for one and none is under way.
    pub(super) fn pump(&mut self, t: &mut Turn, run: &RunId) {
        let Some(session) = self.session.clone() else { return };
        let Some(flight) = self.flights.get(run).filter(|flight| flight.commit.is_none()) else { return };
        let Some(own) = flight.own() else { return };
        let at = flight.version;
        let mut record = flight.record.clone();
        let (change, pending) = match &own.phase {
            Phase::Ended(end) => {
                let end = RunEnd::clone(end);
                (Change::End { at, end, as_leader: false }, Pending::End { run: run.clone(), settled: None })
            }
            Phase::LettingGo => {
                record.state = RunState::Retrying;
                record.nonce = self.nonce();
                (Change::Reown { at, run: record }, Pending::Reown { run: run.clone() })
            }
            Phase::Alive(alive) if own.needs_reown && alive.stopped != Some(StopCause::Superseded) => {
                record.state = RunState::Running;
                record.owner = Owner { node: self.node.clone(), session };
                record.nonce = self.nonce();
                (Change::Reown { at, run: record }, Pending::Reown { run: run.clone() })
            }
            Phase::Alive(_) | Phase::Beginning | Phase::Unsure => return,
        };
        if let Change::Reown { run: record, .. } = &change
            && let Some(flight) = self.flights.get_mut(run)
        {
            flight.record = record.clone();
        }
        let id = self.commit(t, change, pending);
        if let Some(flight) = self.flights.get_mut(run) {
            flight.commit = Some(id);
        }
    }

    /// The ledger has accepted an attempt of this node: now, and only now, it may start.
    pub(super) fn on_begun(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run) else { return };
        let leads = self.leading.as_ref().is_some_and(|leading| leading.term.token == flight.record.token);
        let job = flight.own().and_then(|own| own.job.clone());
        let (Some(job), true) = (job, leads && t.now.up < self.lease_until && !self.is_at_once(t.now.up)) else {
            let reason = if self.stage.is_ending() { Reason::Drain } else { Reason::Lease };
            let end = RunEnd::unseen(&flight.record, Outcome::Interrupted, Some(reason), t.now.wall);
            return self.end_run(t, run, end);
        };
        let (record, version) = (flight.record.clone(), flight.version);
        let slot = Slot(self.count());
        self.slots.insert(slot, run.clone());
        if let Some(own) = self.flights.get_mut(run).and_then(Flight::own_mut) {
            own.phase = Phase::Alive(Alive { slot, started: None, stopped: None });
        }
        let deadline = deadline_of(&record, t.now);
        let start = Start { slot, run: record, version, job, not_after: self.lease_until, deadline };
        t.commands.push(Command::Start(Box::new(start)));
    }

    pub(super) fn on_notice(&mut self, t: &mut Turn, notice: Notice) {
        match notice {
            Notice::Started { slot, pid, at } => {
                let Some(run) = self.slots.get(&slot).cloned() else { return };
                let Some(flight) = self.flights.get_mut(&run) else { return };
                let (attempt, token) = (flight.record.attempt, flight.record.token);
                let Some(alive) = flight.alive_mut() else { return };
                alive.started = Some(at);
                if let Some(timeout) = flight.own().and_then(|own| own.job.as_ref()?.timeout) {
                    self.timeouts.insert((at + timeout, slot));
                }
                let started_at = t.now.wall - t.now.up.since(at);
                let lateness = started_at.duration_since(run.scheduled_at());
                let lateness = Duration::try_from(lateness).unwrap_or_default();
                t.tell(Report::Started { run, attempt, token, pid, lateness });
            }
            Notice::NotStarted { slot, why } => {
                let Some(run) = self.slots.remove(&slot) else { return };
                self.on_not_started(t, &run, why);
            }
            Notice::Ended(ending) => {
                let Some(run) = self.slots.remove(&ending.slot) else { return };
                self.timeouts.retain(|&(_, slot)| slot != ending.slot);
                self.on_ended(t, &run, *ending);
            }
            Notice::Output { .. } => {}
        }
    }

    fn on_not_started(&mut self, t: &mut Turn, run: &RunId, why: StartFailure) {
        let Some(flight) = self.flights.get(run) else { return };
        let (outcome, reason) = match why {
            StartFailure::TooLate => (Outcome::Interrupted, Some(Reason::Lease)),
            StartFailure::Step { step, errno } => (Outcome::Failure, reason_of(step, errno)),
        };
        let end = RunEnd::unseen(&flight.record, outcome, reason, t.now.wall);
        self.end_run(t, run, end);
    }

    fn on_ended(&mut self, t: &mut Turn, run: &RunId, ending: Ending) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        let Some(alive) = flight.alive().cloned() else { return };
        if alive.stopped == Some(StopCause::Superseded) {
            self.drop_run(t, run);
            return;
        }
        let by_lease = ending.ended_by == Some(EndedBy::Deadline)
            || (ending.ended_by == Some(EndedBy::Order) && alive.stopped == Some(StopCause::Lease));
        if by_lease && flight.record.on_loss == OnLoss::Rerun {
            let attempt = flight.record.attempt;
            if let Some(own) = flight.own_mut() {
                own.phase = Phase::LettingGo;
            }
            t.tell(Report::Retrying { run: run.clone(), attempt });
            return self.pump(t, run);
        }
        let success = flight.own().and_then(|own| own.job.as_ref()).map(|job| &job.success_exit_codes);
        let is_success = |code: i32| success.map_or(code == 0, |codes| codes.contains(&code));
        let (outcome, reason) = match (ending.ended_by, alive.stopped) {
            (Some(EndedBy::Deadline), _) | (Some(EndedBy::Order), Some(StopCause::Lease)) => {
                (Outcome::Interrupted, Some(Reason::Lease))
            }
            (Some(EndedBy::Order), Some(StopCause::Timeout)) => (Outcome::Timeout, None),
            (Some(EndedBy::Order), _) => (Outcome::Interrupted, Some(Reason::Drain)),
            (None, _) => match ending.exit {
                Exit::Code(code) if is_success(code) => (Outcome::Success, None),
                Exit::Code(_) => (Outcome::Failure, None),
                Exit::Signal { core, .. } => (Outcome::Failure, core.then_some(Reason::CoreDump)),
            },
        };
        let (exit_code, signal) = match ending.exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal { signal, .. } => (None, Some(signal)),
        };
        let tail = if outcome == Outcome::Success { last_bytes(&ending.tail, TAIL_OF_SUCCESS) } else { &ending.tail };
        let end = RunEnd {
            v: 1,
            run: flight.record.clone(),
            outcome,
            reason,
            exit_code,
            signal,
            ended_at: t.now.wall - t.now.up.since(ending.at),
            duration_ms: alive.started.map(|started| millis(ending.at.since(started))),
            leftovers: ending.leftovers,
            tail: tail.to_owned(),
            dropped_bytes: ending.dropped_bytes,
        };
        self.end_run(t, run, end);
    }

    /// The run is over here: kept until the ledger has it, told, and asked to be written.
    fn end_run(&mut self, t: &mut Turn, run: &RunId, end: RunEnd) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        let version = flight.version;
        if let Some(own) = flight.own_mut() {
            own.phase = Phase::Ended(Box::new(end.clone()));
            own.is_told = true;
        }
        t.commands.push(Command::KeepEnd { end: Box::new(end.clone()), version });
        t.tell(Report::Finished(Box::new(end)));
        self.pump(t, run);
    }

    pub(super) fn on_attempt_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        if self.answered_flight(run, id).is_none() {
            return;
        }
        match answer {
            Commit::Accepted => self.on_begun(t, run),
            Commit::Superseded | Commit::Fenced => {
                self.flights.remove(run);
            }
            Commit::Unknown => self.look_up(t, run),
        }
    }

    /// Nobody knows whether an attempt was begun: the ledger is asked, under the next session if this one is gone.
    pub(super) fn look_up(&mut self, t: &mut Turn, run: &RunId) {
        if let Some(own) = self.flights.get_mut(run).and_then(Flight::own_mut) {
            own.phase = Phase::Unsure;
        }
        if self.session.is_some() {
            t.ledger(Request::ReadRun(run.clone()));
        }
    }

    pub(super) fn on_reown_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        match answer {
            Commit::Accepted => {
                flight.version = flight.version.next();
                let Some(own) = flight.own_mut() else { return };
                own.needs_reown = false;
                if matches!(own.phase, Phase::LettingGo) { self.on_let_go(t, run) } else { self.pump(t, run) }
            }
            Commit::Superseded | Commit::Fenced => t.ledger(Request::ReadRun(run.clone())),
            Commit::Unknown => {
                if self.session.is_some() {
                    self.pump(t, run);
                }
            }
        }
    }

    fn on_let_go(&mut self, t: &mut Turn, run: &RunId) {
        t.commands.push(Command::Forget(run.clone()));
        if self.leading.is_none() {
            self.flights.remove(run);
            return;
        }
        if let Some(flight) = self.flights.get_mut(run) {
            flight.holder = Holder::Nobody;
        }
        self.begin_again(t, run);
    }

    pub(super) fn on_own_end_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        match answer {
            Commit::Accepted => {
                if let Some(Own { phase: Phase::Ended(end), is_told: false, .. }) = flight.own() {
                    t.tell(Report::Finished(end.clone()));
                }
                self.flights.remove(run);
                t.commands.push(Command::Forget(run.clone()));
            }
            Commit::Superseded | Commit::Fenced => t.ledger(Request::ReadRun(run.clone())),
            Commit::Unknown => {
                if let Some(own) = flight.own_mut() {
                    own.may_be_written = true;
                }
                if self.session.is_some() {
                    self.pump(t, run);
                }
            }
        }
    }

    /// What the ledger says of an own run whose commit it did not take, or did not answer.
    pub(super) fn on_own_run_read(&mut self, t: &mut Turn, run: &RunId, found: Option<(RunRecord, Version)>) {
        let Some(flight) = self.flights.get_mut(run).filter(|flight| flight.commit.is_none()) else { return };
        let is_unsure = matches!(flight.own().map(|own| &own.phase), Some(Phase::Unsure));
        let may_be_written = flight.own().is_some_and(|own| own.may_be_written);
        match found {
            Some((record, version)) if flight.is_same_attempt(&record) => {
                if is_unsure && record.nonce != flight.record.nonce {
                    self.flights.remove(run);
                    return self.take_note(t, run, Some((record, version)));
                }
                flight.version = version;
                if is_unsure { self.on_begun_unsure(t, run) } else { self.pump(t, run) }
            }
            found if is_unsure => {
                self.flights.remove(run);
                self.take_note(t, run, found);
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
    fn on_begun_unsure(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        if flight.record.on_loss == OnLoss::Rerun {
            if let Some(own) = flight.own_mut() {
                own.phase = Phase::LettingGo;
            }
            return self.pump(t, run);
        }
        let end = RunEnd::unseen(&flight.record, Outcome::Interrupted, Some(Reason::Lease), t.now.wall);
        self.end_run(t, run, end);
    }

    /// Another settled an own run: what still runs of it is killed, and nothing more is written about it.
    fn on_superseded(&mut self, t: &mut Turn, run: &RunId) {
        t.tell(Report::Superseded { run: run.clone() });
        if self.flights.get(run).is_some_and(|flight| flight.alive().is_some()) {
            self.kill_run(t, run, StopCause::Superseded);
        } else {
            self.drop_run(t, run);
        }
    }

    /// What the ledger has of it, if anything, is another node's affair; a leader looks.
    fn drop_run(&mut self, t: &mut Turn, run: &RunId) {
        self.flights.remove(run);
        t.commands.push(Command::Forget(run.clone()));
        if self.leading.is_some() {
            t.ledger(Request::ReadRun(run.clone()));
        }
    }

    /// The term is over. What another node may start again dies now, unless the node gave leadership up itself.
    pub(super) fn kill_for_lease(&mut self, t: &mut Turn, why: TermEnd) {
        if why == TermEnd::Resigned {
            return;
        }
        let doomed: Vec<RunId> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.alive().is_some() && flight.record.on_loss != OnLoss::CutOff)
            .map(|(id, _)| id.clone())
            .collect();
        for run in doomed {
            self.kill_run(t, &run, StopCause::Lease);
        }
    }

    /// Stops attempts that have taken their `timeout`.
    pub(super) fn stop_overdue(&mut self, t: &mut Turn) {
        while let Some(&(at, slot)) = self.timeouts.first() {
            if at > t.now.up {
                return;
            }
            self.timeouts.remove(&(at, slot));
            if let Some(run) = self.slots.get(&slot).cloned() {
                self.stop_run(t, &run, StopCause::Timeout);
            }
        }
    }

    /// SIGTERM, and SIGKILL after the job's grace. The first cause stands.
    pub(super) fn stop_run(&mut self, t: &mut Turn, run: &RunId, cause: StopCause) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        let grace = flight.own().and_then(|own| own.job.as_ref()).map_or(Duration::ZERO, |job| job.kill_grace);
        let Some(alive) = flight.alive_mut() else { return };
        if alive.stopped.is_none() {
            alive.stopped = Some(cause);
            t.order(Order::Stop { slot: alive.slot, grace_ms: millis(grace) });
        }
    }

    /// SIGKILL now. The first cause stands, but for [`StopCause::Superseded`], which makes all others void.
    pub(super) fn kill_run(&mut self, t: &mut Turn, run: &RunId, cause: StopCause) {
        let Some(alive) = self.flights.get_mut(run).and_then(Flight::alive_mut) else { return };
        if alive.stopped.is_none() || cause == StopCause::Superseded {
            alive.stopped = Some(cause);
        }
        t.order(Order::Kill { slot: alive.slot });
    }
}

/// When the warden kills the run by itself: the rule that a successor will go by.
fn deadline_of(run: &RunRecord, now: Now) -> Deadline {
    match (run.on_loss, run.keep_until) {
        (OnLoss::Rerun | OnLoss::Interrupt, _) => Deadline::Lease,
        (OnLoss::CutOff, Some(until)) => Deadline::LeaseAnd(now.up_at(until)),
        (OnLoss::CutOff, None) => Deadline::None,
    }
}

fn reason_of(step: Step, errno: i32) -> Option<Reason> {
    use rustix::io::Errno;
    match (step, Errno::from_raw_os_error(errno)) {
        (Step::Directory, _) => Some(Reason::NoDirectory),
        (Step::Exec, Errno::NOENT) => Some(Reason::NotFound),
        (_, Errno::NOMEM | Errno::AGAIN) => Some(Reason::NoMemory),
        (Step::Exec, _) => Some(Reason::NotExecutable),
        // The log says which step failed, and how.
        (Step::Fork | Step::Prepare, _) => None,
    }
}

/// The last `limit` bytes of a text, or a few less so as not to break a character.
fn last_bytes(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
