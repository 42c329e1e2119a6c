//! Hearing what operators want, while this node leads.
//!
//! A look sets the watches, then reads; what the watches bring only says that it is time to look again.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select};

use super::SessionLoop;
use super::candidacy::Role;
use super::failing::Task;
use crate::clock::{Clock, Uptime};
use crate::ledger::{Event, OperatorRequests};
use crate::telemetry::TARGET;
use crate::zookeeper::client::{Client, Connect, Watch};
use crate::zookeeper::context::{At as _, SessionContext, SessionError};
use crate::zookeeper::damage::{Damage, Source};
use crate::zookeeper::{paths, requests};

const PAUSE: Duration = Duration::from_millis(500);

/// What a look brought: the requests, and what returns when they may have changed.
pub type Looked = Result<(OperatorRequests, Vec<Damage>, BoxFuture<'static, ()>), SessionError>;

/// What is waited for.
pub enum Listening {
    /// Nothing; the next look comes then.
    From(Uptime),
    /// A look's end.
    Looking(BoxFuture<'static, Looked>),
    /// A change.
    Waiting(BoxFuture<'static, ()>),
}

/// What was waited for has come.
pub enum Heard {
    /// A look is done.
    Looked(Looked),
    /// Something may have changed.
    Rang,
}

impl Listening {
    /// Cancel safe: what is waited for is kept.
    pub async fn heard(&mut self) -> Heard {
        match self {
            Self::From(_) => std::future::pending().await,
            Self::Looking(look) => Heard::Looked(look.await),
            Self::Waiting(bell) => {
                bell.await;
                Heard::Rang
            }
        }
    }
}

/// What operators request, as a leader reads it.
pub(super) struct Operators {
    pub listening: Listening,
    /// What the last read found of each trigger that still exists.
    pub answered: requests::Answered,
    /// The numbers of the triggers are to be counted again once no trigger exists.
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

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// When the next look is due.
    pub(super) fn listen_at(&self) -> Option<Uptime> {
        match (&self.candidacy.role, &self.operators.listening) {
            (Role::Leading(_), &Listening::From(at)) => Some(at),
            _ => None,
        }
    }

    /// Starts a look where this node leads and none is under way; drops everything where it does not.
    pub(super) fn listen(&mut self, now: Uptime) {
        if !self.candidacy.leads() {
            self.operators.listening = Listening::From(Uptime::ZERO);
            self.operators.answered.clear();
        } else if self.listen_at().is_some_and(|at| at <= now) {
            self.operators.listening =
                Listening::Looking(look(self.context.clone(), self.operators.answered.clone()).boxed());
        }
    }

    /// Half of the numbers of the triggers are used up: once none is left there, they are counted anew.
    fn note_numbers(&mut self, requests: &OperatorRequests) {
        if requests::is_high(requests) && !std::mem::replace(&mut self.operators.must_renumber, true) {
            tracing::warn!(
                target: TARGET,
                "the sequence numbers of {} are half used up: they are counted anew once no trigger is left there",
                paths::TRIGGERS
            );
        }
        let is_empty = requests.triggers.is_empty() && requests.links.is_empty();
        self.operators.may_renumber = is_empty && self.supervisor.damages.paths(Source::OperatorRequests).is_empty();
    }

    /// The candidate that guards it, where the numbers of the triggers are to be counted anew.
    pub(super) fn renumbers_by(&self) -> Option<String> {
        let is_due = self.operators.must_renumber && self.operators.may_renumber;
        self.fence().filter(|_| is_due).map(|(candidate, _)| candidate)
    }

    pub(super) fn renumbered(&mut self, is_done: bool) {
        self.operators.may_renumber = false;
        if is_done {
            self.operators.must_renumber = false;
            tracing::info!(target: TARGET, "the sequence numbers of {} are counted anew", paths::TRIGGERS);
        }
    }

    /// Looks again where nothing is under way: what could not be read may be readable now.
    pub(super) fn listen_again(&mut self) {
        if matches!(self.operators.listening, Listening::Waiting(_)) {
            self.operators.listening = Listening::From(self.now());
        }
    }

    pub(super) fn heard(&mut self, heard: Heard, now: Uptime) {
        self.operators.listening = match heard {
            Heard::Rang => Listening::From(now),
            Heard::Looked(Ok((requests, damaged, bell))) => {
                self.succeeded(Task::Listen);
                self.note_numbers(&requests);
                self.found_damage(Source::OperatorRequests, damaged);
                self.operators.answered = requests::answered_in(&requests);
                self.supervisor.tell_ledger(Event::OperatorRequests(requests));
                Listening::Waiting(bell)
            }
            Heard::Looked(Err(error)) => {
                self.failed(Task::Listen, &error.to_string());
                self.note_error(error);
                Listening::From(now + PAUSE)
            }
        };
    }
}

async fn look<C: Client, K: Clock>(context: SessionContext<C, K>, known: requests::Answered) -> Looked {
    let client = context.line()?;
    let watches = (client.stat_and_watch(paths::CONTROL), client.stat_and_watch(paths::TRIGGERS));
    let ((_, control), (_, triggers)) = (watches.0.await.at(paths::CONTROL)?, watches.1.await.at(paths::TRIGGERS)?);
    let (requests, damaged) = requests::read(client, &known).await?;
    let bell = async { drop(select(control.fired().boxed(), triggers.fired().boxed()).await) };
    Ok((requests, damaged, bell.boxed()))
}
