//! Reads the requests of operators while this node leads.
//!
//! Each read sets the watches first and then reads. A watch that fires carries no data; it only makes the node read
//! again.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select};

use super::SessionLoop;
use super::candidacy::Role;
use super::failing::Task;
use crate::paths;
use crate::recipes::context::{At as _, SessionContext, SessionError};
use crate::recipes::damage::{Damage, Source};
use crate::recipes::requests;
use crate::tree::{Session, Watch};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::ledger::{Event, OperatorRequests};
use cronkeeper_core::log_event::{self, TARGET};

const PAUSE: Duration = Duration::from_millis(500);

/// The result of a read: the requests, the damaged paths, and a future that resolves when the requests may have
/// changed.
pub type ReadResult = Result<(OperatorRequests, Vec<Damage>, BoxFuture<'static, ()>), SessionError>;

/// The current phase of the read cycle.
pub enum Listening {
    /// The next read starts at this instant.
    From(Uptime),
    /// A read is in flight.
    Reading(BoxFuture<'static, ReadResult>),
    /// Waits for a change.
    Waiting(BoxFuture<'static, ()>),
}

/// The end of a phase.
pub enum RequestsEvent {
    /// A read has finished.
    Read(ReadResult),
    /// The requests may have changed.
    Changed,
}

impl Listening {
    /// Waits for the end of the current phase. Cancellation safe: the awaited future is kept.
    pub async fn next(&mut self) -> RequestsEvent {
        match self {
            Self::From(_) => std::future::pending().await,
            Self::Reading(read) => RequestsEvent::Read(read.await),
            Self::Waiting(changed) => {
                changed.await;
                RequestsEvent::Changed
            }
        }
    }
}

/// The requests of operators, as a leader reads them.
pub(super) struct Operators {
    pub listening: Listening,
    /// The result of the last read for each trigger that still exists.
    pub answered: requests::Answered,
    /// The sequence numbers of the triggers must restart at 0 once no trigger exists.
    pub must_renumber: bool,
    pub may_renumber: bool,
}

impl Operators {
    pub fn new() -> Self {
        Self {
            listening: Listening::From(Uptime::ZERO),
            answered: requests::Answered::new(),
            must_renumber: false,
            may_renumber: false,
        }
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// When the next read is due.
    pub(super) fn listen_at(&self) -> Option<Uptime> {
        match (&self.candidacy.role, &self.operators.listening) {
            (Role::Leading(_), &Listening::From(at)) => Some(at),
            _ => None,
        }
    }

    /// Starts a read if this node leads and none is in flight. Drops everything if it does not lead.
    pub(super) fn listen(&mut self, now: Uptime) {
        if !self.candidacy.leads() {
            self.operators.listening = Listening::From(Uptime::ZERO);
            self.operators.answered.clear();
        } else if self.listen_at().is_some_and(|at| at <= now) {
            self.operators.listening =
                Listening::Reading(read_and_watch(self.context.clone(), self.operators.answered.clone()).boxed());
        }
    }

    /// Checks the sequence numbers of the triggers: once half are used up, they restart as soon as no trigger is left.
    fn note_numbers(&mut self, requests: &OperatorRequests) {
        if requests::is_high(requests) && !std::mem::replace(&mut self.operators.must_renumber, true) {
            tracing::warn!(
                target: TARGET,
                event = log_event::COORDINATION_NUMBERS_LOW,
                path = paths::TRIGGERS,
                "half of the sequence numbers of {} are used up; they restart at 0 as soon as no trigger is left there",
                paths::TRIGGERS
            );
        }
        let is_empty = requests.triggers.is_empty() && requests.links.is_empty();
        self.operators.may_renumber = is_empty && self.node.damages.paths(Source::OperatorRequests).is_empty();
    }

    /// The candidate that guards the restart of the sequence numbers, if a restart is due.
    pub(super) fn renumbers_by(&self) -> Option<String> {
        let is_due = self.operators.must_renumber && self.operators.may_renumber;
        self.fence().filter(|_| is_due).map(|(candidate, _)| candidate)
    }

    pub(super) fn renumbered(&mut self, is_done: bool) {
        self.operators.may_renumber = false;
        if is_done {
            self.operators.must_renumber = false;
            let (event, path) = (log_event::COORDINATION_NUMBERS_RESTARTED, paths::TRIGGERS);
            tracing::info!(target: TARGET, event, path, "the sequence numbers of {path} restarted at 0");
        }
    }

    /// Reads again unless a read is in flight: what could not be read may be readable now.
    pub(super) fn listen_again(&mut self) {
        if matches!(self.operators.listening, Listening::Waiting(_)) {
            self.operators.listening = Listening::From(self.now());
        }
    }

    pub(super) fn on_operator_requests(&mut self, event: RequestsEvent, now: Uptime) {
        self.operators.listening = match event {
            RequestsEvent::Changed => Listening::From(now),
            RequestsEvent::Read(Ok((requests, damaged, changed))) => {
                self.succeeded(Task::Listen);
                self.note_numbers(&requests);
                self.found_damage(Source::OperatorRequests, damaged);
                self.operators.answered = requests::answered_in(&requests);
                self.node.emit_ledger(Event::OperatorRequests(requests));
                Listening::Waiting(changed)
            }
            RequestsEvent::Read(Err(error)) => {
                self.failed(Task::Listen, &error.to_string());
                self.note_error(error);
                Listening::From(now + PAUSE)
            }
        };
    }
}

async fn read_and_watch<C: Session, K: Clock>(context: SessionContext<C, K>, known: requests::Answered) -> ReadResult {
    let client = context.line()?;
    let watches = (client.stat_and_watch(paths::CONTROL), client.stat_and_watch(paths::TRIGGERS));
    let ((_, control), (_, triggers)) = (watches.0.await.at(paths::CONTROL)?, watches.1.await.at(paths::TRIGGERS)?);
    let (requests, damaged) = requests::read(client, &known).await?;
    let changed = async { drop(select(control.fired().boxed(), triggers.fired().boxed()).await) };
    Ok((requests, damaged, changed.boxed()))
}
