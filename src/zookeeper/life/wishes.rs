//! Hearing what operators want, while this node leads.
//!
//! A look sets the watches, then reads; what the watches bring only says that it is time to look again.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select};

use super::failing::Task;
use super::{Life, Role};
use crate::clock::{Clock, Uptime};
use crate::ledger::{Event, Wishes};
use crate::telemetry::TARGET;
use crate::zookeeper::client::{Client, Connect, Watch};
use crate::zookeeper::damage::{Damage, Source};
use crate::zookeeper::desk::{At as _, Desk, Trouble};
use crate::zookeeper::{paths, wishes};

const PAUSE: Duration = Duration::from_millis(500);

/// What a look brought: the wishes, and what returns when they may have changed.
pub type Looked = Result<(Wishes, Vec<Damage>, BoxFuture<'static, ()>), Trouble>;

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

impl<C: Connect, K: Clock> Life<'_, C, K> {
    /// When the next look is due.
    pub(super) fn listen_at(&self) -> Option<Uptime> {
        match (&self.role, &self.listening) {
            (Role::Leading(_), &Listening::From(at)) => Some(at),
            _ => None,
        }
    }

    /// Starts a look where this node leads and none is under way; drops everything where it does not.
    pub(super) fn listen(&mut self, now: Uptime) {
        if !matches!(self.role, Role::Leading(_)) {
            self.listening = Listening::From(Uptime::ZERO);
            self.answered.clear();
        } else if self.listen_at().is_some_and(|at| at <= now) {
            self.listening = Listening::Looking(look(self.desk.clone(), self.answered.clone()).boxed());
        }
    }

    /// Half of the numbers of the triggers are used up: once none is left there, they are counted anew.
    fn note_numbers(&mut self, wishes: &Wishes) {
        if wishes::is_high(wishes) && !std::mem::replace(&mut self.must_renumber, true) {
            tracing::warn!(
                target: TARGET,
                "the sequence numbers of {} are half used up: they are counted anew once no trigger is left there",
                paths::TRIGGERS
            );
        }
        let is_empty = wishes.triggers.is_empty() && wishes.links.is_empty();
        self.may_renumber = is_empty && self.node.damages.paths(Source::Wishes).is_empty();
    }

    /// The candidate that guards it, where the numbers of the triggers are to be counted anew.
    pub(super) fn renumbers_by(&self) -> Option<String> {
        let is_due = self.must_renumber && self.may_renumber;
        self.fence().filter(|_| is_due).map(|(candidate, _)| candidate)
    }

    pub(super) fn renumbered(&mut self, is_done: bool) {
        self.may_renumber = false;
        if is_done {
            self.must_renumber = false;
            tracing::info!(target: TARGET, "the sequence numbers of {} are counted anew", paths::TRIGGERS);
        }
    }

    /// Looks again where nothing is under way: what could not be read may be readable now.
    pub(super) fn listen_again(&mut self) {
        if matches!(self.listening, Listening::Waiting(_)) {
            self.listening = Listening::From(self.now());
        }
    }

    pub(super) fn heard(&mut self, heard: Heard, now: Uptime) {
        self.listening = match heard {
            Heard::Rang => Listening::From(now),
            Heard::Looked(Ok((wishes, damaged, bell))) => {
                self.succeeded(Task::Listen);
                self.note_numbers(&wishes);
                self.found_damage(Source::Wishes, damaged);
                self.answered = wishes::answered_in(&wishes);
                self.node.tell_ledger(Event::Wishes(wishes));
                Listening::Waiting(bell)
            }
            Heard::Looked(Err(trouble)) => {
                self.failed(Task::Listen, &trouble.to_string());
                self.note_trouble(trouble);
                Listening::From(now + PAUSE)
            }
        };
    }
}

async fn look<C: Client, K: Clock>(desk: Desk<C, K>, known: wishes::Answered) -> Looked {
    let client = desk.line()?;
    let watches = (client.stat_and_watch(paths::CONTROL), client.stat_and_watch(paths::TRIGGERS));
    let ((_, control), (_, triggers)) = (watches.0.await.at(paths::CONTROL)?, watches.1.await.at(paths::TRIGGERS)?);
    let (wishes, damaged) = wishes::read(client, &known).await?;
    let bell = async { drop(select(control.fired().boxed(), triggers.fired().boxed()).await) };
    Ok((wishes, damaged, bell.boxed()))
}
