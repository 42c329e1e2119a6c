//! The life of a run that this node has: begun in the ledger, started, ended, its end written down.
//!
//! A run has at most one commit under way; [`Engine::commit_next`] asks for the next as soon as the last is answered.

mod answers;
mod ending;

use std::time::Duration;

use super::flight::{Alive, Flight, LetGo, Own, Phase, RunOwner, StopCause};
use super::kill::WATCH_AFTER;
use super::takeover::LONGEST_CUT_OFF;
use super::{Command, Engine, Pending, Report, Start, Turn};
use crate::clock::{Now, earlier, later};
use crate::ledger::{Change, Request};
use crate::run::journal::RecoveredRun;
use crate::run::{OnLoss, Outcome, Owner, Reason, RunEnd, RunId, RunRecord, RunState, millis};
use crate::term::{SessionId, TermEnd};
use crate::warden::wire::{Deadline, Notice, Order, TreeId};

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
            self.flights.insert(record.id(), Flight::new(record, version, RunOwner::Own(own)));
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
            own.needs_change_owner = matches!(own.phase, Phase::Alive(_));
            match own.phase {
                Phase::Unsure => t.ledger(Request::ReadRun(run)),
                _ => self.commit_next(t, &run),
            }
        }
        self.watch_all(t);
        self.ask_again(t);
    }

    /// Under its new session a node has a lease again before it has its runs again: until the ledger says so, a successor may begin
    /// the next of a job when a kept run's time has come, whatever this lease says.
    pub(super) fn hold_to_their_time(&mut self, t: &mut Turn) {
        // A successor gives up what it found cut off after so long: this node's session was gone before that.
        let longest = t.now.up + LONGEST_CUT_OFF;
        let kept = self.flights.values().filter(|flight| flight.record.on_loss == OnLoss::CutOff);
        let kept = kept.filter_map(Flight::alive).filter(|alive| !self.overdue.is_kill_sent(alive.tree_id));
        let kept = kept.filter_map(|alive| match self.overdue.deadline(alive.tree_id) {
            Some(Deadline::LeaseAnd(at)) => Some((alive.tree_id, Deadline::At(at.min(longest)))),
            // None is not watched.
            Some(Deadline::None) | None => Some((alive.tree_id, Deadline::At(longest))),
            Some(Deadline::Lease | Deadline::At(_)) => None,
        });
        for (tree_id, deadline) in kept.collect::<Vec<_>>() {
            self.set_deadline(t, tree_id, deadline);
        }
    }

    /// The ledger has the run under this session: its lease protects it again.
    pub(super) fn release_to_the_lease(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run) else { return };
        let Some(tree_id) =
            flight.alive().map(|alive| alive.tree_id).filter(|&tree_id| !self.overdue.is_kill_sent(tree_id))
        else {
            return;
        };
        let deadline = deadline_of(&flight.record, Now { wall: t.due, ..t.now });
        if let Some(Deadline::At(_)) = self.overdue.deadline(tree_id) {
            self.set_deadline(t, tree_id, deadline);
        }
    }

    fn set_deadline(&mut self, t: &mut Turn, tree_id: TreeId, deadline: Deadline) {
        self.overdue.watch(tree_id, deadline);
        t.order(Order::Deadline { tree_id, deadline });
    }

    /// Asks for the commit that an own run waits for, if it waits for one and none is under way.
    pub(super) fn commit_next(&mut self, t: &mut Turn, run: &RunId) {
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
                (Change::ChangeOwner { at, run: record }, Pending::ChangeOwner { run: run.clone() })
            }
            Phase::Alive(alive) if own.needs_change_owner && alive.stopped != Some(StopCause::Superseded) => {
                record.state = RunState::Running;
                record.owner = Owner { node: self.node.clone(), session };
                record.nonce = self.nonce();
                (Change::ChangeOwner { at, run: record }, Pending::ChangeOwner { run: run.clone() })
            }
            Phase::Alive(_) | Phase::Beginning | Phase::Unsure => return,
        };
        if let Change::ChangeOwner { run: record, .. } = &change
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
            return self.apply_kill(t, run);
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
        let tree_id = TreeId(self.count());
        self.tree_ids.insert(tree_id, run.clone());
        // From now on: what comes before the program runs, a working directory on a dead mount for one, can take as long.
        let timeout_at = job.timeout.map(|timeout| t.now.up + timeout);
        self.timeouts.extend(timeout_at.map(|at| (at, tree_id)));
        if let Some(own) = self.flights.get_mut(run).and_then(Flight::own_mut) {
            own.phase = Phase::Alive(Alive { timeout_at, ..Alive::new(tree_id, t.now.up) });
        }
        let deadline = deadline_of(&record, Now { wall: t.due, ..t.now });
        self.overdue.watch(tree_id, deadline);
        let start = Start { tree_id, run: record, version, job, not_after: self.lease_until, deadline };
        t.commands.push(Command::Start(Box::new(start)));
    }

    pub(super) fn on_notice(&mut self, t: &mut Turn, notice: Notice) {
        match notice {
            Notice::Started { tree_id, pid, at, .. } => {
                let Some(run) = self.tree_ids.get(&tree_id).cloned() else { return self.on_hook_started(tree_id, at) };
                let Some(flight) = self.flights.get_mut(&run) else { return };
                let (attempt, token) = (flight.record.attempt, flight.record.token);
                let timeout = flight.own().and_then(|own| own.job.as_ref()?.timeout);
                let Some(alive) = flight.alive_mut() else { return };
                alive.started = Some(at);
                let timeout_at = timeout.map(|timeout| at + timeout);
                let (ordered, before) = (alive.ordered, std::mem::replace(&mut alive.timeout_at, timeout_at));
                // One that has passed was acted on.
                if before.is_some_and(|before| self.timeouts.remove(&(before, tree_id))) {
                    self.timeouts.extend(timeout_at.map(|at| (at, tree_id)));
                }
                self.watch_own.insert((at + WATCH_AFTER, tree_id));
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
                self.transfer.failed_starts = 0;
                t.tell(Report::Started { run, attempt, token, pid, lateness });
            }
            Notice::NotStarted { tree_id, why } => {
                self.overdue.forget(tree_id);
                let Some(run) = self.tree_ids.remove(&tree_id) else {
                    return self.on_hook_not_started(t, tree_id, why);
                };
                self.forget_times(&run, tree_id);
                self.on_not_started(t, &run, why);
            }
            Notice::Ended(ending) => {
                self.overdue.forget(ending.tree_id);
                let Some(run) = self.tree_ids.remove(&ending.tree_id) else { return self.on_hook_ended(t, &ending) };
                self.forget_times(&run, ending.tree_id);
                self.on_ended(t, &run, *ending);
            }
            Notice::Output { .. } | Notice::Pong => {}
        }
    }

    /// Nothing is to be done any more about a tree at its times.
    fn forget_times(&mut self, run: &RunId, tree_id: TreeId) {
        let Some(alive) = self.flights.get(run).and_then(Flight::alive) else { return };
        let (timeout_at, started) = (alive.timeout_at, alive.started);
        timeout_at.map(|at| self.timeouts.remove(&(at, tree_id)));
        started.map(|at| self.watch_own.remove(&(at + WATCH_AFTER, tree_id)));
    }

    /// The term is over. What another node may start again dies now, unless the node gave leadership up itself.
    pub(super) fn kill_for_lease(&mut self, t: &mut Turn, why: TermEnd) {
        if why == TermEnd::Resigned {
            return;
        }
        let kill_sent: Vec<RunId> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.record.on_loss != OnLoss::CutOff)
            .filter(|(_, flight)| flight.alive().is_some_and(|alive| !self.overdue.is_kill_sent(alive.tree_id)))
            .map(|(id, _)| id.clone())
            .collect();
        for run in kill_sent {
            self.kill_run(t, &run, StopCause::Lease);
        }
    }

    /// Stops attempts that have taken their `timeout`.
    pub(super) fn stop_overdue(&mut self, t: &mut Turn) {
        while let Some(&(at, tree_id)) = self.timeouts.first() {
            if at > t.now.up {
                return;
            }
            self.timeouts.remove(&(at, tree_id));
            match self.tree_ids.get(&tree_id).cloned() {
                Some(run) => self.stop_run(t, &run, StopCause::Timeout),
                None => self.stop_hook(t, tree_id),
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
            t.order(Order::Stop { tree_id: alive.tree_id, grace_ms: millis(grace) });
        }
    }

    /// SIGKILL now. The first cause stands, but for [`StopCause::Superseded`], which makes all others void.
    pub(super) fn kill_run(&mut self, t: &mut Turn, run: &RunId, cause: StopCause) {
        let Some(alive) = self.flights.get_mut(run).and_then(Flight::alive_mut) else { return };
        if alive.stopped.is_none() || cause == StopCause::Superseded {
            alive.stopped = Some(cause);
        }
        let tree_id = alive.tree_id;
        self.overdue.ordered(tree_id, t.now.up);
        t.order(Order::Kill { tree_id });
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
