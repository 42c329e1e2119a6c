//! Reads the requests of operators while this node leads.
//!
//! Each read sets the watches first and then reads. A watch that fires carries no data; it only makes the node read
//! again.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select;

use super::futures::BoxFuture;
use crate::paths;
use crate::recipes::context::{At as _, SessionContext, SessionError};
use crate::recipes::damage::Damage;
use crate::recipes::requests;
use crate::tree::{Limits, Session, Watch};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::ledger::OperatorRequests;
use cronkeeper_core::log;

/// Time before a read that failed is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// What was read: the requests, the damaged paths, and a future that resolves when the requests may have changed.
pub(super) type ReadRequests = (OperatorRequests, Vec<Damage>, BoxFuture<()>);

/// The current phase of the read cycle.
enum Listening {
    /// The next read starts at this instant.
    From(Uptime),
    /// A read is in flight.
    Reading(BoxFuture<Result<ReadRequests, SessionError>>),
    /// Waits for a change.
    Waiting(BoxFuture<()>),
}

/// The end of a phase.
pub(super) enum RequestsEvent {
    /// A read has finished.
    Read(Result<ReadRequests, SessionError>),
    /// The requests may have changed.
    Changed,
}

/// The sequence numbers of the triggers. Once half are used up they restart at 0 as soon as no trigger is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// Enough are left, and there are triggers, as far as is known.
    InUse,
    /// Enough are left, and there is no trigger.
    Unused,
    /// They run out, and there are triggers, as far as is known.
    RunningOut,
    /// They run out, and there is no trigger: they must be restarted.
    RestartDue,
}

/// What is learned about the sequence numbers, or done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumbersStep {
    RunOut,
    /// No trigger is left.
    Empty,
    /// There is a trigger, or it is not known whether there is one.
    Fill,
    Restart,
}

impl Numbers {
    /// The state after a step. Total.
    fn after(self, step: NumbersStep) -> Self {
        match (self, step) {
            (_, NumbersStep::Restart) => Self::InUse,
            (Self::InUse, NumbersStep::RunOut) => Self::RunningOut,
            (Self::Unused, NumbersStep::RunOut) => Self::RestartDue,
            (Self::InUse, NumbersStep::Empty) => Self::Unused,
            (Self::RunningOut, NumbersStep::Empty) => Self::RestartDue,
            (Self::Unused, NumbersStep::Fill) => Self::InUse,
            (Self::RestartDue, NumbersStep::Fill) => Self::RunningOut,
            (Self::RunningOut | Self::RestartDue, NumbersStep::RunOut)
            | (Self::Unused | Self::RestartDue, NumbersStep::Empty)
            | (Self::InUse | Self::RunningOut, NumbersStep::Fill) => self,
        }
    }
}

/// The requests of operators, as a leader reads them.
pub(super) struct Operators {
    listening: Listening,
    /// The result of the last read for each trigger that still exists.
    answered: requests::Answered,
    numbers: Numbers,
}

impl Operators {
    pub fn new() -> Self {
        Self { listening: Listening::From(Uptime::ZERO), answered: requests::Answered::new(), numbers: Numbers::InUse }
    }

    /// Waits for the end of the current phase, forever before a read. Cancellation safe: the awaited future is kept.
    pub async fn next(&mut self) -> RequestsEvent {
        match &mut self.listening {
            Listening::From(_) => std::future::pending().await,
            Listening::Reading(read) => RequestsEvent::Read(read.await),
            Listening::Waiting(changed) => {
                changed.await;
                RequestsEvent::Changed
            }
        }
    }

    /// When the next read is due.
    pub fn at(&self, leads: bool) -> Option<Uptime> {
        match self.listening {
            Listening::From(at) if leads => Some(at),
            _ => None,
        }
    }

    /// Starts a read if this node leads and none is in flight. Drops everything if it does not lead.
    pub fn start<C: Session, K: Clock>(&mut self, now: Uptime, leads: bool, context: &SessionContext<C, K>) {
        if !leads {
            self.stop();
            self.answered.clear();
        } else if self.at(leads).is_some_and(|at| at <= now) {
            self.listening = Listening::Reading(Box::pin(read_and_watch(context.clone(), self.answered.clone())));
        }
    }

    /// The term is over.
    pub fn stop(&mut self) {
        self.read_from(Uptime::ZERO);
    }

    /// Reads at this instant, whatever the phase.
    pub fn read_from(&mut self, at: Uptime) {
        self.listening = Listening::From(at);
    }

    /// Reads again unless a read is in flight: what could not be read may be readable now.
    pub fn read_again(&mut self, now: Uptime) {
        if matches!(self.listening, Listening::Waiting(_)) {
            self.read_from(now);
        }
    }

    /// A read has failed: the next one follows after a pause.
    pub fn read_failed(&mut self, now: Uptime) {
        self.read_from(now + PAUSE);
    }

    /// Takes what was read, and waits for a change. Returns the requests and the damaged paths. `is_damaged`: not all
    /// could be read before.
    pub fn read(
        &mut self,
        (requests, damaged, changed): ReadRequests,
        is_damaged: bool,
        limits: Limits,
    ) -> (OperatorRequests, Vec<Damage>) {
        self.note_numbers(&requests, is_damaged, limits);
        self.answered = requests::answered_in(&requests);
        self.listening = Listening::Waiting(changed);
        (requests, damaged)
    }

    /// Checks the sequence numbers of the triggers: once half are used up, they restart as soon as no trigger is left.
    fn note_numbers(&mut self, requests: &OperatorRequests, is_damaged: bool, limits: Limits) {
        if requests::is_high(requests, limits) && self.run_out_of_numbers() {
            log!(INFO COORDINATION_NUMBERS_LOW, path = paths::TRIGGERS, "they restart at 0 once no trigger is left there");
        }
        let is_empty = requests.triggers.is_empty() && requests.links.is_empty() && !is_damaged;
        self.step(if is_empty { NumbersStep::Empty } else { NumbersStep::Fill });
    }

    fn step(&mut self, step: NumbersStep) {
        self.numbers = self.numbers.after(step);
    }

    /// The sequence numbers must restart at 0 once no trigger exists. Returns true if that was not known.
    pub fn run_out_of_numbers(&mut self) -> bool {
        let before = self.numbers;
        self.step(NumbersStep::RunOut);
        before != self.numbers
    }

    /// True if the sequence numbers must and can be restarted.
    pub fn may_renumber(&self) -> bool {
        self.numbers == Numbers::RestartDue
    }

    /// The restart is done, or there still is a trigger.
    pub fn renumbered(&mut self, is_done: bool) {
        self.step(if is_done { NumbersStep::Restart } else { NumbersStep::Fill });
        if is_done {
            log!(COORDINATION_NUMBERS_RESTARTED, path = paths::TRIGGERS);
        }
    }

    /// The servers refuse the restart: it is tried again after the next read.
    pub fn renumber_refused(&mut self) {
        self.step(NumbersStep::Fill);
    }
}

async fn read_and_watch<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    known: requests::Answered,
) -> Result<ReadRequests, SessionError> {
    let client = context.line()?;
    let watches = (client.stat_and_watch(paths::CONTROL), client.stat_and_watch(paths::TRIGGERS));
    let ((_, control), (_, triggers)) = (watches.0.await.at(paths::CONTROL)?, watches.1.await.at(paths::TRIGGERS)?);
    let (requests, damaged) = requests::read(client, &known).await?;
    let changed = async { drop(select(control.fired().boxed(), triggers.fired().boxed()).await) };
    Ok((requests, damaged, changed.boxed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::session_loop::table::assert_table;

    /// A row for each state, a column for each step; `-` changes nothing.
    const TABLE: &str = "
        state       RunOut      Empty       Fill        Restart
        InUse       RunningOut  Unused      -           -
        Unused      RestartDue  -           InUse       InUse
        RunningOut  -           RestartDue  -           InUse
        RestartDue  -           -           RunningOut  InUse
    ";

    #[test]
    fn every_state_takes_the_steps_of_the_table_and_no_other() {
        let states = [Numbers::InUse, Numbers::Unused, Numbers::RunningOut, Numbers::RestartDue];
        let steps = [NumbersStep::RunOut, NumbersStep::Empty, NumbersStep::Fill, NumbersStep::Restart];
        let after = |row: usize, column: usize| {
            let (state, after) = (states[row], states[row].after(steps[column]));
            (after != state).then(|| format!("{after:?}"))
        };
        assert_table(TABLE, |row| format!("{:?}", states[row]), after);
    }

    #[test]
    fn the_numbers_are_reported_once_and_restarted_when_no_trigger_is_left() {
        let mut operators = Operators::new();
        assert!(operators.run_out_of_numbers() && !operators.run_out_of_numbers());
        let nothing = || (OperatorRequests::default(), Vec::new(), Box::pin(std::future::pending()) as BoxFuture<()>);
        operators.read(nothing(), true, Limits::OF_TESTS);
        assert!(!operators.may_renumber(), "not all triggers could be read");
        operators.read(nothing(), false, Limits::OF_TESTS);
        assert!(operators.may_renumber());
        operators.renumbered(false);
        assert!(!operators.may_renumber());
        operators.read(nothing(), false, Limits::OF_TESTS);
        operators.renumbered(true);
        operators.read(nothing(), false, Limits::OF_TESTS);
        assert!(!operators.may_renumber(), "they have restarted");
    }
}
