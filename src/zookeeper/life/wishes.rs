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
        } else if self.listen_at().is_some_and(|at| at <= now) {
            self.listening = Listening::Looking(look(self.desk.clone()).boxed());
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
                self.found_damage(Source::Wishes, damaged);
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

async fn look<C: Client, K: Clock>(desk: Desk<C, K>) -> Looked {
    let client = desk.line()?;
    let watches = (client.stat_and_watch(paths::CONTROL), client.stat_and_watch(paths::TRIGGERS));
    let ((_, control), (_, triggers)) = (watches.0.await.at(paths::CONTROL)?, watches.1.await.at(paths::TRIGGERS)?);
    let (wishes, damaged) = wishes::read(client).await?;
    let bell = async { drop(select(control.fired().boxed(), triggers.fired().boxed()).await) };
    Ok((wishes, damaged, bell.boxed()))
}
