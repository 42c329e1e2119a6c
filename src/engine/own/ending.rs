//! How an attempt ended, from what the warden saw and why it was told to stop.

use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{earlier, later};
use crate::engine::flight::{LetGo, Phase, StopCause};
use crate::engine::{Command, Engine, Report, Turn};
use crate::run::{OnLoss, Outcome, Reason, RunEnd, RunId, RunState, millis};
use crate::warden::wire::{EndedBy, Ending, Exit, StartFailure, Step};

/// Its number.
const SIGKILL: i32 = 9;

/// Before the first new try of a start that failed for want of means.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Between two tries at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The tail kept of a successful run, in bytes; the warden hands on 4 KiB.
const TAIL_OF_SUCCESS: usize = 512;

impl Engine {
    pub(super) fn on_not_started(&mut self, t: &mut Turn, run: &RunId, why: StartFailure) {
        let Some(flight) = self.flights.get(run) else { return };
        if flight.record.kill.is_some() {
            // Stopped before it was started.
            return self.end_killed(t, run);
        }
        match why {
            StartFailure::TooLate => {
                let reason = if self.stage.is_ending() { Reason::Drain } else { Reason::Lease };
                self.let_go_unstarted(t, run, Some(reason), Duration::ZERO);
            }
            // Any other job would have failed here too: what failed is this node, not the run.
            StartFailure::Step { step: step @ (Step::Fork | Step::Prepare), errno } => {
                let pause = pause_after(flight.record.unstarted_attempts());
                self.let_go_unstarted(t, run, reason_of(step, errno), pause);
                self.note_failed_start(t);
            }
            StartFailure::Step { step, errno } => {
                let end = RunEnd::unseen(&flight.record, Outcome::Failure, reason_of(step, errno), t.now.wall);
                self.end_attempt(t, run, end);
                if is_for_want_of_means(errno) {
                    self.note_failed_start(t);
                }
            }
        }
    }

    /// No process was started for an attempt that the ledger has: the run goes back to be started, by whoever leads, after a pause.
    /// Nothing of it is here any more, so nothing of it stays noted: what is not noted was not started.
    pub(in crate::engine) fn let_go_unstarted(
        &mut self,
        t: &mut Turn,
        run: &RunId,
        reason: Option<Reason>,
        pause: Duration,
    ) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        let report = Report::Unstarted { run: run.clone(), attempt: flight.record.attempt, reason };
        flight.record.retry_at = (!pause.is_zero()).then(|| later(t.due, pause));
        if let Some(own) = flight.own_mut() {
            own.phase = Phase::LettingGo(LetGo { state: RunState::Unstarted, report: Some(Box::new(report)) });
        }
        t.commands.push(Command::Forget(run.clone()));
        self.commit_next(t, run);
    }

    pub(super) fn on_ended(&mut self, t: &mut Turn, run: &RunId, ending: Ending) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        let Some(alive) = flight.alive().cloned() else { return };
        if alive.stopped == Some(StopCause::Superseded) {
            self.drop_run(t, run);
            return;
        }
        // The warden may have seen it dead before it read the order to kill it.
        let was_ended_here = alive.is_ended_here && matches!(ending.exit, Exit::Signal { signal: SIGKILL, .. });
        let ended_by = ending.ended_by.or(was_ended_here.then_some(EndedBy::Order));
        // SIGKILL gives no exit code: what has one ended by itself, whatever was about to end it.
        let by_sigkill = ended_by == Some(EndedBy::Deadline) || alive.stopped == Some(StopCause::Lease);
        let ended_by = ended_by.filter(|_| !(by_sigkill && matches!(ending.exit, Exit::Code(_))));
        let by_lease = ended_by == Some(EndedBy::Deadline)
            || (ended_by == Some(EndedBy::Order) && alive.stopped == Some(StopCause::Lease));
        let success = flight.own().and_then(|own| own.job.as_ref()).map(|job| &job.success_exit_codes);
        let is_success = |code: i32| success.map_or(code == 0, |codes| codes.contains(&code));
        let (outcome, reason) = match (ended_by, alive.stopped) {
            (Some(EndedBy::Deadline), _) | (Some(EndedBy::Order), Some(StopCause::Lease)) => {
                (Outcome::Interrupted, Some(Reason::Lease))
            }
            (Some(EndedBy::Order), Some(StopCause::Timeout)) => (Outcome::Timeout, None),
            (Some(EndedBy::Order), Some(StopCause::Killed(reason))) => (Outcome::Killed, Some(reason)),
            (Some(EndedBy::Order), _) => (Outcome::Interrupted, Some(Reason::Drain)),
            (None, _) => match ending.exit {
                Exit::Code(code) if is_success(code) => (Outcome::Success, None),
                _ if ending.out_of_memory => (Outcome::Failure, Some(Reason::NoMemory)),
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
            ended_at: earlier(t.now.wall, t.now.up.since(ending.at)),
            duration_ms: alive.started.map(|started| millis(ending.at.since(started))),
            leftovers: ending.leftovers,
            tail: tail.to_owned(),
            dropped_bytes: ending.dropped_bytes,
        };
        if by_lease && flight.record.on_loss == OnLoss::Rerun {
            return self.try_again(t, run, &end, Duration::ZERO);
        }
        self.end_attempt(t, run, end);
    }

    /// The run is over here: kept until the ledger has it, told, and asked to be written.
    pub(in crate::engine) fn end_run(&mut self, t: &mut Turn, run: &RunId, end: RunEnd) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        let version = flight.version;
        if let Some(own) = flight.own_mut() {
            own.phase = Phase::Ended(Box::new(end.clone()));
            own.is_told = true;
        }
        t.commands.push(Command::KeepEnd { end: Box::new(end.clone()), version });
        t.tell(Report::Finished(Box::new(end)));
        self.commit_next(t, run);
        self.mark_job_changed(run.job());
    }
}

/// Before a start that failed for want of means is tried again: doubled each time, so that what has no means is not asked of all the
/// time.
fn pause_after(unstarted: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2u32.saturating_pow(unstarted.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// True where the job is not to blame: any other would have failed here too.
fn is_for_want_of_means(errno: i32) -> bool {
    is_any(errno, &[Errno::NOMEM, Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::IO])
}

fn reason_of(step: Step, errno: i32) -> Option<Reason> {
    match step {
        Step::Directory => Some(Reason::NoDirectory),
        Step::User => Some(Reason::NoUser),
        Step::Exec if is_any(errno, &[Errno::NOENT]) => Some(Reason::NotFound),
        _ if is_any(errno, &[Errno::NOMEM, Errno::AGAIN]) => Some(Reason::NoMemory),
        Step::Exec => Some(Reason::NotExecutable),
        // The log says which step failed, and how.
        Step::Fork | Step::Prepare | Step::Limits => None,
    }
}

/// Compared as numbers: what is no error number at all, as where the system gave none, is none of these.
fn is_any(errno: i32, of: &[Errno]) -> bool {
    of.iter().any(|one| one.raw_os_error() == errno)
}

/// The last `limit` bytes of a text, or a few less so as not to break a character.
fn last_bytes(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
