//! Protocol of a run that this node has: begun in the ledger, started, ended, end written.
//!
//! A run has at most one commit in flight; [`Runs::commit_next`] requests the next as soon as the last is answered.

use std::sync::Arc;
use std::time::Duration;

use super::active_run::{ActiveRun, ActiveRunState, Ended, Phase, Process, Release, RunStep, StopCause};
use super::ending::{is_for_lack_of_resources, judge, pause_after, reason_of};
use super::rewound::OwnWrite;
use super::unowned::LONGEST_CUT_OFF;
use super::{Runs, at_due, retry, window};
use crate::clock::{Now, Uptime, earlier, later};
use crate::engine::command::{Command, Start};
use crate::engine::commits::Purpose;
use crate::engine::context::{Context, Fact};
use crate::engine::report::Report;
use crate::ledger::{Change, Commit, CommitId, Request};
use crate::process::{Deadline, EndedBy, Ending, Order, StartFailure, StartStep, TreeId};
use crate::run::journal::RecoveredRun;
use crate::run::{LONGEST_HOLD, OnLoss, Outcome, Owner, Reason, RunEnd, RunId, RunRecord, RunState, Version, millis};
use crate::start_problem::StartProblem;
use crate::term::TermEnd;

impl Runs {
    /// Takes over runs of an earlier process that is known to be dead: writes their ends, or releases them for another
    /// attempt.
    pub fn on_recovered(&mut self, cx: &mut Context, runs: Vec<RecoveredRun>) {
        for RecoveredRun { record, version, end, .. } in runs {
            let died = || RunEnd::unseen(&record, Outcome::Interrupted, Some(Reason::NodeDied), cx.now.wall);
            let phase = match end {
                Some(end) => {
                    // All other ends were reported when they happened.
                    let is_reported = end.reason != Some(Reason::NodeDied);
                    Phase::Ended(Ended::new(end, is_reported))
                }
                None if record.on_loss == OnLoss::Rerun => {
                    let report = Report::Retrying { end: Box::new(died()), delay: Duration::ZERO };
                    Phase::Releasing(Release::retrying(report))
                }
                None => Phase::Ended(Ended::new(died(), false)),
            };
            self.active.insert(record.id(), ActiveRun::new(record, version, ActiveRunState::recovered(phase)));
        }
    }

    /// Puts every own run under a new session, and requests the commits that waited for one.
    pub fn on_session(&mut self, cx: &mut Context) {
        self.limit_kept_runs(cx);
        let own: Vec<RunId> = self.active.iter().filter(|(_, run)| run.is_local()).map(|(id, _)| id.clone()).collect();
        for run in own {
            let Some(active) = self.active.get_mut(&run) else { continue };
            if active.is_offered() {
                self.consider(cx, &run);
                continue;
            }
            active.is_of_earlier_stay = true;
            if let Some(process) = active.process_mut() {
                process.needs_change_owner = true;
            }
            match active.phase() {
                Some(Phase::Unconfirmed) => cx.ledger(Request::ReadRun(run)),
                _ => self.commit_next(cx, &run),
            }
        }
        self.watch_all(cx);
    }

    /// Limits kept runs to their own deadlines until the ledger has them under the new session.
    ///
    /// The node has a lease again before it has its runs again. Until then a successor may begin the job's next run as
    /// soon as a kept run's time is over, whatever this node's lease is.
    pub fn limit_kept_runs(&mut self, cx: &mut Context) {
        // A successor gives up a cut-off run after this time, counted from later than now: it must first see that this
        // node's session is gone.
        let longest = cx.now.up + LONGEST_CUT_OFF;
        let overdue = &self.trees.overdue;
        let kept = self.active.values().filter(|run| run.record.on_loss == OnLoss::CutOff);
        let kept = kept.filter_map(ActiveRun::process).filter(|process| !overdue.is_kill_sent(process.tree_id));
        let kept = kept.filter_map(|process| match overdue.deadline(process.tree_id) {
            Some(Deadline::LeaseAnd(at)) => Some((process.tree_id, Deadline::At(at.min(longest)))),
            // Trees with `Deadline::None` are not watched.
            Some(Deadline::None) | None => Some((process.tree_id, Deadline::At(longest))),
            Some(Deadline::Lease | Deadline::LeaseOr(_) | Deadline::At(_)) => None,
        });
        for (tree_id, deadline) in kept.collect::<Vec<_>>() {
            self.set_deadline(cx, tree_id, deadline);
        }
    }

    /// Ties a run to the lease again, once the ledger has it under this session.
    pub(super) fn tie_to_lease(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        let overdue = &self.trees.overdue;
        let Some(tree_id) =
            active.process().map(|process| process.tree_id).filter(|&tree_id| !overdue.is_kill_sent(tree_id))
        else {
            return;
        };
        let deadline = deadline_of(&active.record, at_due(cx));
        if let Some(Deadline::At(_)) = overdue.deadline(tree_id) {
            self.set_deadline(cx, tree_id, deadline);
        }
    }

    fn set_deadline(&mut self, cx: &mut Context, tree_id: TreeId, deadline: Deadline) {
        self.trees.overdue.watch(tree_id, deadline);
        cx.order(Order::Deadline { tree_id, deadline });
    }

    /// Takes the new end of the lease.
    pub fn renew(&mut self, cx: &mut Context, until: Uptime) {
        self.trees.overdue.lease(until, cx.now.up);
        cx.order(Order::Lease { until });
    }

    /// Requests the commit that an own run needs, if it needs one and none is in flight.
    pub(super) fn commit_next(&mut self, cx: &mut Context, run: &RunId) {
        let Some(session) = cx.session.clone() else { return };
        let Some(active) = self.active.get(run).filter(|active| active.commit.is_none()) else { return };
        let (at, is_placed_again) = (active.version, active.is_placed_again);
        let mut record = active.record.clone();
        let (change, purpose) = match active.phase() {
            Some(Phase::Ended(ended)) => {
                let mut end = RunEnd::clone(&ended.end);
                if is_placed_again {
                    end.run.state = RunState::Placed;
                }
                (Change::End { at, end, as_leader: false }, Purpose::End { run: run.clone(), settled: None })
            }
            Some(Phase::Releasing(Release { state, refusal, .. })) => {
                record.state = *state;
                record.nonce = cx.nonce();
                let purpose = Purpose::ChangeOwner { run: run.clone() };
                match refusal {
                    None if !is_placed_again => (Change::ChangeOwner { at, run: record }, purpose),
                    _ => {
                        record.owner.session = session;
                        (Change::Refuse { at, run: record }, purpose)
                    }
                }
            }
            Some(Phase::Alive(process))
                if (process.needs_change_owner || is_placed_again)
                    && !process.stopped.is_some_and(StopCause::is_of_others) =>
            {
                record.state = RunState::Running;
                record.owner = Owner { node: cx.node.clone(), session };
                record.nonce = cx.nonce();
                let purpose = Purpose::ChangeOwner { run: run.clone() };
                match is_placed_again {
                    true => (Change::Accept { at, run: record }, purpose),
                    false => (Change::ChangeOwner { at, run: record }, purpose),
                }
            }
            Some(Phase::Offered(_) | Phase::Accepting(_) | Phase::Alive(_) | Phase::Beginning | Phase::Unconfirmed)
            | None => return,
        };
        if let Change::ChangeOwner { run: record, .. }
        | Change::Accept { run: record, .. }
        | Change::Refuse { run: record, .. } = &change
            && let Some(active) = self.active.get_mut(run)
        {
            active.record = record.clone();
        }
        let id = cx.commit(change, purpose);
        if let Some(active) = self.active.get_mut(run) {
            active.commit = Some(id);
        }
    }

    /// Handles the answer to the begin of a run.
    pub fn on_attempt_answer(&mut self, cx: &mut Context, run: &RunId, id: CommitId, answer: Commit) {
        let Some(active) = self.answered_run(run, id) else { return };
        active.is_new = false;
        if active.is_queued() {
            return self.on_queued_answer(cx, run, answer);
        }
        if active.record.state == RunState::Placed {
            return self.on_placing_answer(cx, run, answer);
        }
        match answer {
            Commit::Accepted => {
                let took = cx.now.wall.duration_since(active.record.begun_at);
                self.horizon.accepted(Duration::try_from(took).unwrap_or_default());
                self.on_begun(cx, run);
            }
            Commit::Superseded | Commit::Fenced => self.forget(cx, run),
            Commit::Unknown => self.read_unconfirmed(cx, run),
        }
    }

    /// Reads the record of a run whose begin was not answered; under the next session if this one is gone.
    pub(super) fn read_unconfirmed(&mut self, cx: &mut Context, run: &RunId) {
        self.step(cx, run, RunStep::LoseAnswer);
        if cx.session.is_some() {
            cx.ledger(Request::ReadRun(run.clone()));
        }
    }

    /// Starts an attempt that the ledger has accepted. It must not start before.
    pub(super) fn on_begun(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        if active.record.kill.is_some() {
            return self.apply_kill(cx, run);
        }
        // What was placed needs no term, but the session that the ledger has for it.
        let is_ours = match active.record.placement {
            Some(_) => cx.session.as_ref() == Some(&active.record.owner.session),
            None => cx.token() == Some(active.record.token),
        };
        let (Some(job), true) = (active.job().cloned(), is_ours && cx.now.up < cx.lease_until && !cx.is_at_once) else {
            return self.release_unstarted(cx, run, Some(too_late(cx)), Duration::ZERO);
        };
        if !job.lock.is_empty() && self.locks.grant(run).is_none() {
            return self.release_unstarted(cx, run, Some(Reason::Lock), Duration::ZERO);
        }
        if window::is_accepted_too_late(cx, &active.record) {
            return self.release_unstarted(cx, run, None, Duration::ZERO);
        }
        let not_before = self.not_before(cx, run);
        // Also if the clock was set back since the begin.
        let is_far = not_before.is_some_and(|at| at > cx.now.up + LONGEST_HOLD);
        if is_far || not_before.is_some() && (cx.is_ending || Self::is_redefined(cx, run, &job)) {
            let reason = cx.is_ending.then_some(Reason::Drain);
            return self.release_unstarted(cx, run, reason, Duration::ZERO);
        }
        let Some(active) = self.active.get(run) else { return };
        let (record, version) = (active.record.clone(), active.version);
        let tree_id = TreeId(cx.count());
        // The timeout counts from now on, because the steps before exec can hang too, for example on a working
        // directory on a dead mount.
        let timeout_at = job.timeout.map(|timeout| not_before.unwrap_or(cx.now.up) + timeout);
        let starts_before = self.active.starting().saturating_sub(1);
        let process = Process { starts_before, not_before, ..Process::new(tree_id, cx.now.up, timeout_at) };
        if !self.step(cx, run, RunStep::Start(process.clone())) {
            return;
        }
        let deadline = deadline_of(&record, at_due(cx));
        self.trees.ordered(run, &process, deadline);
        let lock = self.locks.grant(run).cloned();
        let not_after = cx.lease_until;
        let start = Start { tree_id, run: record, version, job, lock, not_before, not_after, deadline };
        cx.commands.push(Command::Start(Box::new(start)));
    }

    /// Handles a started process.
    pub fn on_started(&mut self, cx: &mut Context, run: RunId, pid: i32, at: Uptime) {
        let Some(active) = self.active.get_mut(&run) else { return };
        let (attempt, token) = (active.record.attempt, active.record.fencing_token());
        let timeout = active.job().and_then(|job| job.timeout);
        let Some(process) = active.process_mut() else { return };
        process.started = Some(at);
        let timeout_at = timeout.map(|timeout| at + timeout);
        let was_held = std::mem::take(&mut process.is_held);
        let (ordered, before) = (process.ordered, process.starts_before);
        let old_timeout = std::mem::replace(&mut process.timeout_at, timeout_at);
        self.trees.started(process, at, old_timeout);
        if !was_held {
            self.note_start_time(cx, ordered, before);
        }
        let Some(active) = self.active.get(&run) else { return };
        let started_at = earlier(cx.now.wall, cx.now.up.since(at));
        let due_at = active.due_at(active.job().map(Arc::as_ref));
        let lateness = Duration::try_from(started_at.duration_since(due_at)).unwrap_or_default();
        let is_first = !active.record.has_past();
        cx.facts.push_back(Fact::Started { run: run.clone(), due_at, lateness, is_first });
        let lateness = is_first.then_some(lateness);
        cx.report(Report::Started { run, attempt, token, pid, started_at, lateness });
    }

    /// Forgets a tree that is gone or was never started. Returns its run; `None` for a hook's.
    pub fn end_tree(&mut self, tree_id: TreeId) -> Option<RunId> {
        let run = self.trees.ended(tree_id)?;
        if let Some(process) = self.active.get(&run).and_then(ActiveRun::process) {
            self.trees.forget_times(process);
        }
        Some(run)
    }

    /// Handles an attempt that the warden could not start.
    pub fn on_not_started(&mut self, cx: &mut Context, run: &RunId, why: StartFailure) {
        let Some(active) = self.active.get(run) else { return };
        let process = active.process();
        let (stopped, is_cancelled) = process.map_or((None, false), |process| (process.stopped, process.is_cancelled));
        if stopped.is_some_and(StopCause::is_of_others) {
            return self.leave_to_another(cx, run);
        }
        if active.record.kill.is_some() {
            // The kill request arrived before the start.
            return self.end_killed(cx, run);
        }
        if let Some(problem) = problem_of(active, why) {
            cx.report(Report::NotStarted { run: run.clone(), attempt: active.record.attempt, problem });
        }
        // Whatever failed may be well when its time comes.
        let is_early = self.time_to_come(cx, run).is_some();
        match why {
            StartFailure::TooLate => {
                let reason = Some(too_late(cx)).filter(|_| !is_cancelled || cx.is_ending);
                self.release_unstarted(cx, run, reason, Duration::ZERO);
            }
            StartFailure::Step { step, errno } if is_early || is_of_node(step) => {
                let pause = if is_early { Duration::ZERO } else { pause_after(active.record.unstarted_attempts()) };
                if is_of_node(step) {
                    self.note_failed_start(run);
                }
                self.release_unstarted(cx, run, reason_of(step, errno), pause);
                if !is_early {
                    cx.facts.push_back(Fact::StartFailed);
                }
            }
            StartFailure::Step { step, errno } => {
                let detail = problem_of(active, why).map(|problem| problem.for_record());
                let end = RunEnd::unseen(&active.record, Outcome::Failure, reason_of(step, errno), cx.now.wall);
                let end = RunEnd { detail, ..end };
                self.end_attempt(cx, run, end);
                if is_for_lack_of_resources(step, errno) {
                    cx.facts.push_back(Fact::StartFailed);
                }
            }
        }
    }

    /// Handles an ended process.
    pub fn on_ended(&mut self, cx: &mut Context, run: &RunId, ending: &Ending) {
        let Some(active) = self.active.get(run) else { return };
        let Some(process) = active.process() else { return };
        let stopped = process.stopped;
        if stopped.is_some_and(StopCause::is_of_others) {
            if stopped == Some(StopCause::Settled) && process.started.is_some() {
                let end = judge(cx.now, active, process, ending).end;
                self.own_writes.note(OwnWrite::Settled(Box::new(end)));
            }
            return self.leave_to_another(cx, run);
        }
        // The time for the steps before its program counts too.
        let has_timed_out = stopped == Some(StopCause::Timeout) || ending.ended_by == Some(EndedBy::TimeLimit);
        if process.started.is_none() && !has_timed_out {
            return self.on_ended_before_its_program(cx, run, stopped, ending);
        }
        let verdict = judge(cx.now, active, process, ending);
        if verdict.is_by_loss && active.record.on_loss == OnLoss::Rerun {
            // What comes of it is not known here before the ledger can be written to again.
            let (attempt, reason) = (active.record.attempt, verdict.end.reason);
            cx.report(Report::Killed { run: run.clone(), attempt, reason });
            return self.try_again(cx, run, &verdict.end, Duration::ZERO);
        }
        self.end_attempt(cx, run, verdict.end);
    }

    /// Handles an attempt whose process ended before its program began, whoever ended it: it was never started.
    fn on_ended_before_its_program(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        stopped: Option<StopCause>,
        ending: &Ending,
    ) {
        let Some(active) = self.active.get(run) else { return };
        if active.record.kill.is_some() {
            return self.end_killed(cx, run);
        }
        let problem = StartProblem::died(ending.exit);
        cx.report(Report::NotStarted { run: run.clone(), attempt: active.record.attempt, problem });
        let reason = match (stopped, ending.ended_by) {
            (Some(StopCause::LockLost), _) => Some(Reason::Lock),
            (Some(StopCause::Lease), _) | (_, Some(EndedBy::Deadline)) => Some(Reason::Lease),
            _ if cx.is_ending => Some(Reason::Drain),
            _ => None,
        };
        let pauses = reason.is_none() && self.time_to_come(cx, run).is_none();
        let setbacks = self.active.get_mut(run).map_or(0, |active| match &mut active.record.placement {
            Some(placement) => {
                placement.setbacks += u32::from(reason.is_none());
                placement.setbacks
            }
            None => active.record.unstarted_attempts(),
        });
        let pause = if pauses { pause_after(setbacks) } else { Duration::ZERO };
        self.release_unstarted(cx, run, reason, pause);
    }

    /// Notes in the record of a placed attempt that this node could start no process for it.
    fn note_failed_start(&mut self, run: &RunId) {
        let placement = self.active.get_mut(run).and_then(|active| active.record.placement.as_mut());
        placement.into_iter().for_each(|placement| placement.failed_start = true);
    }

    /// Ends an own attempt: releases the run for another if `retries` allow one, else ends the run.
    fn end_attempt(&mut self, cx: &mut Context, run: &RunId, end: RunEnd) {
        match retry::delay_after(cx, &end) {
            Some(delay) => self.try_again(cx, run, &end, delay),
            None => self.end_run(cx, run, end),
        }
    }

    /// Releases an own run, so that the leader begins another attempt.
    fn try_again(&mut self, cx: &mut Context, run: &RunId, end: &RunEnd, delay: Duration) {
        let release = Release::retrying(Report::Retrying { end: Box::new(end.clone()), delay });
        if !self.step(cx, run, RunStep::Release(release)) {
            return;
        }
        if let Some(active) = self.active.get_mut(run) {
            active.record.past.note(end);
            active.record.retry_at = (!delay.is_zero()).then(|| later(end.ended_at.min(cx.due), delay));
        }
        self.commit_next(cx, run);
    }

    /// Releases a run whose attempt was accepted but not started; the leader begins another after `pause`, and not
    /// before its time.
    ///
    /// No process of the run is here, so the state directory forgets it: an attempt that is not recorded there was not
    /// started.
    fn release_unstarted(&mut self, cx: &mut Context, run: &RunId, reason: Option<Reason>, pause: Duration) {
        let Some(active) = self.active.get(run) else { return };
        let report = Report::Unstarted { run: run.clone(), attempt: active.record.attempt, reason };
        let release = Release { state: RunState::Unstarted, report: Some(Box::new(report)), refusal: None };
        if !self.step(cx, run, RunStep::Release(release)) {
            return;
        }
        let its_time = self.time_to_come(cx, run);
        if let Some(active) = self.active.get_mut(run) {
            active.record.retry_at = its_time.max((!pause.is_zero()).then(|| later(cx.due, pause)));
        }
        cx.note_unstarted(run);
        self.commit_next(cx, run);
    }

    /// Ends an own run: keeps the end in the state directory until the ledger has it, reports it, and requests its
    /// write.
    fn end_run(&mut self, cx: &mut Context, run: &RunId, end: RunEnd) {
        let Some(version) = self.active.get(run).map(|active| active.version) else { return };
        if !self.step(cx, run, RunStep::End(Ended::new(end.clone(), true))) {
            return;
        }
        cx.commands.push(Command::KeepEnd { end: Box::new(end.clone()), version });
        cx.report(Report::Finished(Box::new(end)));
        self.commit_next(cx, run);
        self.changed(cx, run.job());
    }

    pub(super) fn end_killed(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        let reason = active.record.kill.as_ref().map(|kill| kill.reason);
        let end = RunEnd::unseen(&active.record, Outcome::Killed, reason, cx.now.wall);
        self.end_run(cx, run, end);
    }

    /// Handles the answer to a change of owner or to a release.
    pub fn on_change_owner_answer(&mut self, cx: &mut Context, run: &RunId, id: CommitId, answer: Commit) {
        let Some(active) = self.answered_run(run, id) else { return };
        match answer {
            Commit::Accepted => {
                active.version = active.version.next();
                (active.is_placed_again, active.is_of_earlier_stay) = (false, false);
                let is_released = active.record.state.is_released();
                if !active.is_local() {
                    return;
                }
                if let Some(process) = active.process_mut() {
                    process.needs_change_owner = false;
                }
                // The accepted change may also be the new session, requested while the process was still alive.
                if is_released && active.release_mut().is_some() {
                    self.on_released(cx, run)
                } else if active.is_offered() {
                    self.consider(cx, run)
                } else {
                    self.commit_next(cx, run)
                }
                self.tie_to_lease(cx, run);
                // It may have been requested while the write was on its way.
                if self.active.get(run).is_some_and(|active| active.commit.is_none()) {
                    self.apply_kill(cx, run);
                }
                self.take_up_news(cx, run);
            }
            Commit::Superseded | Commit::Fenced => cx.ledger(Request::ReadRun(run.clone())),
            Commit::Unknown => {
                if cx.session.is_some() {
                    self.commit_next(cx, run);
                }
            }
        }
    }

    fn on_released(&mut self, cx: &mut Context, run: &RunId) {
        if let Some(active) = self.active.get_mut(run) {
            if active.record.state == RunState::Retrying {
                self.over.remember(active.over());
            }
            self.own_writes.note(OwnWrite::Released(Box::new(active.record.clone())));
            let report = active.release_mut().and_then(|release| release.report.take());
            cx.commands.extend(report.map(|report| Command::Report(*report)));
        }
        cx.forget(run);
        if cx.leads() {
            let placed = self.active.get(run).filter(|active| active.record.placement.is_some());
            let record = placed.map(|active| active.record.clone());
            record.iter().for_each(|record| self.note_answer(cx, record));
            self.await_retry(cx, run);
        } else {
            self.forget(cx, run);
        }
    }

    /// Handles the answer to the end of an own run. `before` is the outcome of the job's end that was written before it.
    pub fn on_own_end_answer(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        id: CommitId,
        answer: Commit,
        before: Option<Outcome>,
    ) {
        let Some(active) = self.answered_run(run, id) else { return };
        match answer {
            Commit::Accepted => {
                let is_local = active.is_local();
                let over = active.over();
                if is_local {
                    self.over.remember(over);
                }
                cx.forget(run);
                let Some((job, Some(ended))) = self.close(cx, run).filter(|_| is_local).map(ActiveRun::into_end) else {
                    return;
                };
                self.own_writes.note(OwnWrite::Ended(ended.end.clone()));
                if ended.was_written {
                    // Whatever follows from it has followed already.
                    return;
                }
                if !ended.is_reported {
                    cx.report(Report::Finished(ended.end.clone()));
                }
                cx.facts.push_back(Fact::Ended { job, end: ended.end, before });
            }
            Commit::Superseded | Commit::Fenced => cx.ledger(Request::ReadRun(run.clone())),
            Commit::Unknown => {
                if let Some(ended) = active.ended_mut() {
                    ended.may_be_written = true;
                }
                if cx.session.is_some() {
                    self.commit_next(cx, run);
                }
            }
        }
    }

    /// Handles the record of an own run, read because a commit about it was rejected or not answered.
    pub(super) fn on_own_read(&mut self, cx: &mut Context, run: &RunId, found: Option<(RunRecord, Version)>) {
        let Some(active) = self.active.get_mut(run).filter(|active| active.commit.is_none()) else { return };
        let is_unconfirmed = matches!(active.phase(), Some(Phase::Unconfirmed));
        if active.is_offered() || is_unconfirmed && is_placed(&found) {
            return self.on_offer_read(cx, run, found);
        }
        match found {
            Some((record, version)) if active.record.is_same_attempt(&record) && record.owner.node == cx.node => {
                // The same attempt, whichever decision of the term wrote it, and even if another leader has marked it
                // cut off since: nobody has started it.
                active.version = version;
                active.is_placed_again = record.state == RunState::Placed;
                active.record.kill = record.kill.clone().or(active.record.kill.take());
                let is_lost = active.is_placed_again && !active.is_unaccepted();
                let is_released = record.state.is_released() && active.release_mut().is_none();
                if is_released && !active.was_accepted_here() {
                    active.record = record;
                    // Released by an earlier process of this node, which died before it received the answer.
                    return self.on_released(cx, run);
                }
                // By the leader, because the service had lost that it was accepted; and not by a release of this node that
                // was not answered before a kill ended it.
                let is_taken_back = is_released && active.ended().is_none_or(|ended| ended.was_written);
                if let Some(process) = active.process_mut().filter(|_| is_taken_back) {
                    process.needs_change_owner = true;
                }
                if is_lost || is_taken_back {
                    self.report_rewound(cx, run);
                }
                if is_unconfirmed {
                    // Its begin was accepted, but that is known too late to start it.
                    return self.release_unstarted(cx, run, Some(Reason::Lease), Duration::ZERO);
                }
                self.apply_kill(cx, run);
                self.commit_next(cx, run);
            }
            Some((record, version))
                if record.attempt < active.record.attempt && !is_unconfirmed
                    || is_moved_after_loss(cx, active, &record) =>
            {
                // The service has lost that this attempt was begun, or accepted.
                active.version = version;
                if let Some(process) = active.process_mut() {
                    process.needs_change_owner = true;
                }
                self.report_rewound(cx, run);
                self.commit_next(cx, run);
            }
            None if is_unconfirmed && cx.leads() && active.record.placement.is_some() => {
                // Its acceptance is not answered. The service may have lost that it was placed.
                self.drop_offer(cx, run);
                self.look_up(cx, run);
            }
            None if is_unconfirmed && cx.leads() && active.put_back() => {
                // The service has lost the run that was to be begun.
                self.step(cx, run, RunStep::Disown);
                self.look_up(cx, run);
            }
            found if is_unconfirmed => {
                self.leave(cx, run);
                self.adopt_unknown(cx, run, found);
                cx.facts.push_back(Fact::JobReleased(run.job().clone()));
            }
            // Ended by a write that was not answered, or by another node; or the service has lost it.
            None => self.look_up(cx, run),
            found => {
                self.supersede(cx, run, StopCause::Superseded);
                if !self.active.contains_key(run) {
                    self.adopt_unknown(cx, run, found);
                }
            }
        }
    }

    /// Gives up an own run that other nodes have ended or begun again: kills its process, and writes nothing more about
    /// it.
    pub(super) fn supersede(&mut self, cx: &mut Context, run: &RunId, why: StopCause) {
        let Some(active) = self.active.get(run) else { return };
        let end = active.ended().map(|ended| ended.end.clone());
        let has_process = active.process().is_some();
        cx.report(Report::Superseded { run: run.clone(), outcome: end.as_ref().map(|end| end.outcome) });
        if has_process {
            return self.kill(cx, run, why);
        }
        if let (StopCause::Settled, Some(end)) = (why, end) {
            self.own_writes.note(OwnWrite::Settled(end));
        }
        self.forget_own(cx, run);
    }

    /// Forgets an own run, here and in the state directory.
    pub(super) fn forget_own(&mut self, cx: &mut Context, run: &RunId) {
        if let Some(active) = self.active.get(run) {
            self.over.remember(active.over());
        }
        self.forget(cx, run);
        cx.forget(run);
        // An occurrence that was due meanwhile waits for what becomes of the run.
        cx.facts.push_back(Fact::JobReleased(run.job().clone()));
    }

    /// Leaves a superseded run, whose process is gone, to the node that has it now.
    ///
    /// A leader has read that another node has it, or that it has ended, and must read again which of them is true by
    /// now. Until then it keeps the run as that node's, because it may hold back other runs of the job.
    fn leave_to_another(&mut self, cx: &mut Context, run: &RunId) {
        if !cx.leads() {
            return self.forget_own(cx, run);
        }
        cx.forget(run);
        if let Some(active) = self.active.get_mut(run) {
            self.over.remember(active.over());
            debug_assert_eq!(active.commit, None, "nothing is written about a superseded run");
            // News that arrived while the process was dying are older than what will be read.
            active.news = None;
        }
        if self.step(cx, run, RunStep::FindRemote) {
            self.changed(cx, run.job());
            cx.ledger(Request::Watch(run.clone()));
            cx.ledger(Request::ReadRun(run.clone()));
        }
    }

    /// Stops every own process, with its grace or at once.
    pub fn stop_all(&mut self, cx: &mut Context, at_once: bool) {
        let alive = self.active.iter().filter(|(_, run)| run.process().is_some());
        let alive: Vec<RunId> = alive.map(|(id, _)| id.clone()).collect();
        for run in alive {
            if at_once { self.kill(cx, &run, StopCause::Drain) } else { self.stop(cx, &run, StopCause::Drain) }
        }
    }

    /// The longest `kill_grace` of an own run.
    pub fn longest_grace(&self) -> Duration {
        self.active.values().filter_map(|run| run.job().map(|job| job.kill_grace)).max().unwrap_or_default()
    }

    /// Kills runs that another node may start again, because the term is over, and cancels all held starts: nobody may
    /// start them here any more. A node that resigned keeps them.
    pub fn kill_for_lease(&mut self, cx: &mut Context, why: TermEnd) {
        if why == TermEnd::Resigned {
            return;
        }
        let overdue = &self.trees.overdue;
        let runs = self.active.iter().filter(|(_, run)| run.record.on_loss != OnLoss::CutOff);
        let runs = runs.filter(|(_, run)| run.process().is_some_and(|process| !overdue.is_kill_sent(process.tree_id)));
        let runs: Vec<RunId> = runs.map(|(id, _)| id.clone()).collect();
        for run in runs {
            self.kill(cx, &run, StopCause::Lease);
        }
        self.cancel_all_held(cx);
    }

    /// Sends SIGTERM, and SIGKILL after the job's grace. The first cause counts.
    pub(super) fn stop(&mut self, cx: &mut Context, run: &RunId, cause: StopCause) {
        let Some(active) = self.active.get_mut(run) else { return };
        let grace = active.job().map_or(Duration::ZERO, |job| job.kill_grace);
        let Some(process) = active.process_mut() else { return };
        if process.stopped.is_none() {
            process.stopped = Some(cause);
            cx.order(Order::Stop { tree_id: process.tree_id, grace_ms: millis(grace) });
        }
    }

    /// Sends SIGKILL. The first cause counts, except that any other is replaced once the run is the affair of others.
    pub(super) fn kill(&mut self, cx: &mut Context, run: &RunId, cause: StopCause) {
        let Some(process) = self.active.get_mut(run).and_then(ActiveRun::process_mut) else { return };
        if process.stopped.is_none() || cause.is_of_others() {
            process.stopped = Some(cause);
        }
        let tree_id = process.tree_id;
        self.trees.overdue.ordered(tree_id, cx.now.up);
        cx.order(Order::Kill { tree_id });
    }

    /// Has the daemon kill the trees that the warden should have killed. The kill order still goes to the warden,
    /// before the next lease.
    pub(super) fn kill_overdue(&mut self, cx: &mut Context) {
        let mut overdue = Vec::new();
        while let Some(tree_id) = self.trees.overdue.pop_due(cx.now.up) {
            let Some(run) = self.of_tree(tree_id) else { continue };
            if let Some(process) = self.active.get_mut(&run).and_then(ActiveRun::process_mut) {
                process.is_killed_here = true;
                self.kill(cx, &run, StopCause::Lease);
            }
            self.trees.overdue.forget(tree_id);
            overdue.push(tree_id);
        }
        if !overdue.is_empty() {
            cx.commands.push(Command::EndTrees(overdue));
        }
    }

    /// Watches own runs again: watches end with their session, and with the term.
    pub fn watch_all(&mut self, cx: &mut Context) {
        if cx.session.is_none() {
            return;
        }
        let unwatched = self.trees.unwatched();
        let lasts = |run: &ActiveRun| run.process().is_some_and(|process| !unwatched.contains(&process.tree_id));
        let runs: Vec<RunId> = self.active.iter().filter(|(_, run)| lasts(run)).map(|(id, _)| id.clone()).collect();
        runs.into_iter().for_each(|run| cx.ledger(Request::WatchOwn(run)));
    }
}

/// What a start failed over; `None` if it was too late, for which nothing is to blame.
fn problem_of(run: &ActiveRun, why: StartFailure) -> Option<StartProblem> {
    let StartFailure::Step { step, errno } = why else { return None };
    run.job().map(|job| StartProblem::of(Some(job), &job.command, step, errno))
}

/// Why an attempt is not started.
fn too_late(cx: &Context) -> Reason {
    if cx.is_ending { Reason::Drain } else { Reason::Lease }
}

/// When the warden kills the run by itself. A successor settles the run by the same rule.
fn deadline_of(run: &RunRecord, now: Now) -> Deadline {
    match (run.on_loss, run.keep_until) {
        (OnLoss::Rerun | OnLoss::Interrupt, _) => Deadline::Lease,
        (OnLoss::CutOff, Some(until)) => Deadline::LeaseAnd(now.up_at(until)),
        (OnLoss::CutOff, None) => Deadline::None,
    }
}

/// True if a run that this node has was placed elsewhere, and is not accepted there. While this node stays in the cluster,
/// a leader does that only if the service has lost that the run was accepted here. A node that loses its lease leaves, and
/// may come back in the same session.
fn is_moved_after_loss(cx: &Context, active: &ActiveRun, found: &RunRecord) -> bool {
    let is_moved = found.state == RunState::Placed && found.attempt > active.record.attempt;
    let is_of_this_stay = !active.is_of_earlier_stay && cx.owner().as_ref() == Some(&active.record.owner);
    is_moved && active.was_accepted_here() && is_of_this_stay
}

/// True for a run that is placed, and not accepted.
fn is_placed(found: &Option<(RunRecord, Version)>) -> bool {
    found.as_ref().is_some_and(|(record, _)| record.state == RunState::Placed)
}

/// True if any other job would have failed here too: the node failed, not the run.
fn is_of_node(step: StartStep) -> bool {
    matches!(step, StartStep::Fork | StartStep::Prepare)
}
