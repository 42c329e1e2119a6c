//! The election's request in flight, one at a time, and what makes the next one due.

use std::collections::BTreeSet;
use std::time::Duration;

use super::futures::{BoxFuture, under_way};
use super::reread::RereadResult;
use super::task::Task;
use crate::recipes::context::SessionError;
use crate::recipes::entry::Entered;
use crate::recipes::place::{Ahead, Look, Opened, Survey, Verified, Written};
use crate::recipes::transfer::Successor;
use crate::recipes::wanted::Wanted;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::TransferError;
use cronkeeper_core::term::CandidateName;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A request to the servers.
pub(super) type Request<W> = BoxFuture<Result<StepResult<W>, SessionError>>;

/// The result of a request of the election.
pub(super) enum StepResult<W> {
    Cluster(String),
    Entered(Entered),
    Candidate(CandidateName),
    Position(Look<W>),
    Opened(Option<Opened<W>>),
    Written(Option<Written>),
    Verified(Verified<W>),
    Wanted(Wanted<W>),
    Successor(Result<Successor, TransferError>),
    HandedOver(bool),
    Withdrawn,
    OutOfCluster,
    Left,
    Published(bool),
    Renumbered(bool),
    LeftSettled,
    /// `None`: the leader's entry is still there.
    First(Option<Ahead>),
    Survey(Box<Survey<W>>, RereadResult),
}

/// The election's request in flight: at most one.
pub(super) struct CurrentStep<W> {
    stage: Stage<W>,
    /// Requests that are due for another reason than the state of the node: each is sent when nothing is more urgent.
    due: BTreeSet<Task>,
    retry: Retry,
}

enum Stage<W> {
    Idle,
    UnderWay(Task, Request<W>),
    /// The node's entries are removed, and no further request follows.
    Over,
}

impl<W> CurrentStep<W> {
    pub fn new() -> Self {
        Self { stage: Stage::Idle, due: BTreeSet::from([Task::ReadWanted]), retry: Retry::default() }
    }

    /// True if a request may be sent.
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// True once the node's entries are removed.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// A request was sent.
    pub fn start(&mut self, task: Task, request: Request<W>) {
        self.stage = Stage::UnderWay(task, request);
    }

    /// The result of the request in flight, forever if there is none. Cancellation safe: the request is kept.
    pub async fn result(&mut self) -> Result<StepResult<W>, SessionError> {
        let request = match &mut self.stage {
            Stage::UnderWay(_, request) => Some(request),
            Stage::Idle | Stage::Over => None,
        };
        under_way(request).await
    }

    /// The request in flight is done. Returns its task.
    pub fn finish(&mut self) -> Option<Task> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::UnderWay(task, _) => Some(task),
            Stage::Idle | Stage::Over => None,
        }
    }

    /// No further request follows.
    pub fn end(&mut self) {
        self.stage = Stage::Over;
    }

    /// Makes a request due, or not.
    pub fn set_due(&mut self, task: Task, is_due: bool) {
        if is_due {
            self.due.insert(task);
        } else {
            self.due.remove(&task);
        }
    }

    pub fn is_due(&self, task: Task) -> bool {
        self.due.contains(&task)
    }

    /// Returns true if the request was due. It is about to be sent, so it no longer is.
    pub fn take_due(&mut self, task: Task) -> bool {
        self.due.remove(&task)
    }

    /// When the next request may be sent.
    pub fn not_before(&self) -> Uptime {
        self.retry.at
    }

    /// The next request may be sent at once, and a failed one is retried soon.
    pub fn reset_retry(&mut self) {
        self.retry = Retry::default();
    }

    /// Sends the next request at `at`, with the shortest pause after that.
    pub fn postpone(&mut self, at: Uptime) {
        self.retry = Retry { at, pause: FIRST_PAUSE };
    }

    /// A request has failed: each pause is longer than the one before.
    pub fn back_off(&mut self, now: Uptime) {
        let Retry { pause, .. } = self.retry;
        self.retry = Retry { at: now + pause, pause: (pause * 2).min(LONGEST_PAUSE) };
    }
}

/// When a failed request is retried: after growing pauses.
#[derive(Clone, Copy)]
struct Retry {
    at: Uptime,
    pause: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { at: Uptime::ZERO, pause: FIRST_PAUSE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_failing_request_is_retried_after_growing_pauses() {
        let mut step = CurrentStep::<()>::new();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            step.back_off(at(0));
            pauses.push(step.not_before().since(at(0)).as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        step.reset_retry();
        assert_eq!(step.not_before(), Uptime::ZERO);
        step.postpone(at(700));
        assert_eq!(step.not_before(), at(700));
        step.back_off(at(700));
        assert_eq!(step.not_before(), at(750));
    }

    #[test]
    fn after_the_last_request_none_is_sent() {
        let mut step = CurrentStep::<()>::new();
        step.start(Task::Leave, Box::pin(std::future::pending()));
        assert!(!step.is_idle() && step.finish() == Some(Task::Leave) && step.is_idle());
        step.end();
        assert!(!step.is_idle() && step.is_over());
    }
}
