//! The life of a run that this node has: begun in the ledger, started, ended, its end written down.
//!
//! A run has at most one commit under way; [`Engine::pump`] asks for the next as soon as the last is answered.

mod answers;
mod ending;

use std::time::Duration;

use super::flight::{Alive, Flight, Holder, LetGo, Own, Phase, StopCause};
use super::kill::ATTEND_AFTER;
use super::takeover::LONGEST_CUT_OFF;
use super::{Command, Engine, Pending, Report, Start, Turn};
use crate::clock::{Now, earlier, later};
use crate::ledger::{Change, Request};
use crate::run::journal::RecoveredRun;
use crate::run::{OnLoss, Outcome, Owner, Reason, RunEnd, RunId, RunRecord, RunState, millis};
use crate::term::{SessionId, TermEnd};
use crate::warden::wire::{Deadline, Notice, Order, Slot};

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
                    let end = RunEnd::unseen(&record, Outcome::Interrupted, Some(Reason::NodeDied), t.now.wall);
                    let report = Report::Retrying { end: Box::new(end), delay: Duration::ZERO };
                    Own::dead(Phase::LettingGo(LetGo::retrying(report)))
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
        self.sessions.insert(id.clone());
        self.session = Some(id);
        self.hold_to_their_time(t);
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
        self.attend_all(t);
        self.ask_again(t);
    }

    /// Under its new session a node has a lease again before it has its runs again: until the ledger says so, a successor may begin
    /// the next of a job when a kept run's time has come, whatever this lease says.
    pub(super) fn hold_to_their_time(&mut self, t: &mut Turn) {
        // A successor gives up what it found cut off after so long: this node's session was gone before that.
        let longest = t.now.up + LONGEST_CUT_OFF;
        let kept = self.flights.values().filter(|flight| flight.record.on_loss == OnLoss::CutOff);
        let kept = kept.filter_map(Flight::alive).filter(|alive| !self.outlived.is_doomed(alive.slot));
        let kept = kept.filter_map(|alive| match self.outlived.deadline(alive.slot) {
            Some(Deadline::LeaseAnd(at)) => Some((alive.slot, Deadline::At(at.min(longest)))),
            // None is not watched.
            Some(Deadline::None) | None => Some((alive.slot, Deadline::At(longest))),
            Some(Deadline::Lease | Deadline::At(_)) => None,
        });
        for (slot, deadline) in kept.collect::<Vec<_>>() {
            self.set_deadline(t, slot, deadline);
        }
    }

    /// The ledger has the run under this session: its lease protects it again.
    pub(super) fn release_to_the_lease(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run) else { return };
        let Some(slot) = flight.alive().map(|alive| alive.slot).filter(|&slot| !self.outlived.is_doomed(slot)) else {
            return;
        };
        let deadline = deadline_of(&flight.record, Now { wall: t.due, ..t.now });
        if let Some(Deadline::At(_)) = self.outlived.deadline(slot) {
            self.set_deadline(t, slot, deadline);
        }
    }

    fn set_deadline(&mut self, t: &mut Turn, slot: Slot, deadline: Deadline) {
        self.outlived.watch(slot, deadline);
        t.order(Order::Deadline { slot, deadline });
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
            Phase::LettingGo(LetGo { state, .. }) => {
                record.state = *state;
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
        if flight.record.kill.is_some() {
            return self.obey(t, run);
        }
        let leads = self.leading.as_ref().is_some_and(|leading| leading.term.token == flight.record.token);
        let job = flight.own().and_then(|own| own.job.clone());
        let (Some(job), true) = (job, leads && t.now.up < self.lease_until && !self.is_at_once(t.now.up)) else {
            let reason = if self.stage.is_ending() { Reason::Drain } else { Reason::Lease };
            return self.let_go_unstarted(t, run, Some(reason), Duration::ZERO);
        };
        if self.is_accepted_too_late(t, &flight.record) {
            return self.let_go_unstarted(t, run, None, Duration::ZERO);
        }
        let (record, version) = (flight.record.clone(), flight.version);
        let slot = Slot(self.count());
        self.slots.insert(slot, run.clone());
        // From now on: what comes before the program runs, a working directory on a dead mount for one, can take as long.
        let timeout_at = job.timeout.map(|timeout| t.now.up + timeout);
        self.timeouts.extend(timeout_at.map(|at| (at, slot)));
        if let Some(own) = self.flights.get_mut(run).and_then(Flight::own_mut) {
            own.phase = Phase::Alive(Alive { timeout_at, ..Alive::new(slot, t.now.up) });
        }
        let deadline = deadline_of(&record, Now { wall: t.due, ..t.now });
        self.outlived.watch(slot, deadline);
        let start = Start { slot, run: record, version, job, not_after: self.lease_until, deadline };
        t.commands.push(Command::Start(Box::new(start)));
    }

    pub(super) fn on_notice(&mut self, t: &mut Turn, notice: Notice) {
        match notice {
            Notice::Started { slot, pid, at, .. } => {
                let Some(run) = self.slots.get(&slot).cloned() else { return self.on_hook_started(slot, at) };
                let Some(flight) = self.flights.get_mut(&run) else { return };
                let (attempt, token) = (flight.record.attempt, flight.record.token);
                let timeout = flight.own().and_then(|own| own.job.as_ref()?.timeout);
                let Some(alive) = flight.alive_mut() else { return };
                alive.started = Some(at);
                let timeout_at = timeout.map(|timeout| at + timeout);
                let (ordered, before) = (alive.ordered, std::mem::replace(&mut alive.timeout_at, timeout_at));
                // One that has passed was acted on.
                if before.is_some_and(|before| self.timeouts.remove(&(before, slot))) {
                    self.timeouts.extend(timeout_at.map(|at| (at, slot)));
                }
                self.attend.insert((at + ATTEND_AFTER, slot));
                self.admission.started(ordered, t.now.up, self.flights.starting());
                let Some(flight) = self.flights.get(&run) else { return };
                let started_at = earlier(t.now.wall, t.now.up.since(at));
                let job = flight.own().and_then(|own| own.job.as_ref());
                let due_at = match job {
                    // How long its upstreams took makes it not late.
                    Some(job) if job.schedule().is_none() => flight.record.ready(),
                    job => later(run.scheduled_at(), job.map_or(Duration::ZERO, |job| job.splay.delay())),
                };
                let lateness = started_at.duration_since(due_at);
                let lateness = Duration::try_from(lateness).unwrap_or_default();
                self.succession.failed_starts = 0;
                t.tell(Report::Started { run, attempt, token, pid, lateness });
            }
            Notice::NotStarted { slot, why } => {
                self.outlived.forget(slot);
                let Some(run) = self.slots.remove(&slot) else { return self.on_hook_not_started(t, slot, why) };
                self.forget_times(&run, slot);
                self.on_not_started(t, &run, why);
            }
            Notice::Ended(ending) => {
                self.outlived.forget(ending.slot);
                let Some(run) = self.slots.remove(&ending.slot) else { return self.on_hook_ended(t, &ending) };
                self.forget_times(&run, ending.slot);
                self.on_ended(t, &run, *ending);
            }
            Notice::Output { .. } | Notice::Pong => {}
        }
    }

    /// Nothing is to be done any more about a tree at its times.
    fn forget_times(&mut self, run: &RunId, slot: Slot) {
        let Some(alive) = self.flights.get(run).and_then(Flight::alive) else { return };
        let (timeout_at, started) = (alive.timeout_at, alive.started);
        timeout_at.map(|at| self.timeouts.remove(&(at, slot)));
        started.map(|at| self.attend.remove(&(at + ATTEND_AFTER, slot)));
    }

    /// The term is over. What another node may start again dies now, unless the node gave leadership up itself.
    pub(super) fn kill_for_lease(&mut self, t: &mut Turn, why: TermEnd) {
        if why == TermEnd::Resigned {
            return;
        }
        let doomed: Vec<RunId> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.record.on_loss != OnLoss::CutOff)
            .filter(|(_, flight)| flight.alive().is_some_and(|alive| !self.outlived.is_doomed(alive.slot)))
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
            match self.slots.get(&slot).cloned() {
                Some(run) => self.stop_run(t, &run, StopCause::Timeout),
                None => self.stop_hook(t, slot),
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
        let slot = alive.slot;
        self.outlived.ordered(slot, t.now.up);
        t.order(Order::Kill { slot });
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
