//! What concerns placed attempts: those that are placed on this node, and, for a leader, what becomes of those on others.
//!
//! Every commit that places an attempt on a node also sets the data of the folder `offers/<node>`, and one that a leader
//! waits for sets that of `running`. So one watch tells a node of all that is placed on it, and a leader of all answers. A
//! notification that is lost costs time only: the node lists what is placed on it with each survey, and the leader polls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::futures::fired;
use super::listener::{Heard, Listener, ListenerEvent};
use crate::paths;
use crate::recipes::bounded;
use crate::recipes::context::{self, At as _, SessionContext, SessionError};
use crate::recipes::snapshot;
use crate::tree::{Error, Life, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::ledger::Event;
use cronkeeper_core::run::{RunId, RunRecord, Version};

/// An attempt that is still listed is read again after this time: it may be another one.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The attempts that are placed on this node: the ids of all, and the records that were read.
pub(super) struct Listed {
    all: BTreeSet<RunId>,
    read: BTreeSet<RunId>,
    found: Vec<(RunRecord, Version)>,
}

/// Reads what is placed on this node, whenever something was added.
pub(super) struct OwnOffers {
    listener: Listener<Listed>,
    /// When each listed attempt was last read.
    known: BTreeMap<RunId, Uptime>,
}

impl OwnOffers {
    pub fn new() -> Self {
        Self { listener: Listener::new(), known: BTreeMap::new() }
    }

    /// The end of the current phase. Cancellation safe.
    pub async fn next(&mut self) -> ListenerEvent<Listed> {
        self.listener.next().await
    }

    /// When the next read is due. Nothing is placed on a node that is not a member.
    pub fn at(&self, is_member: bool) -> Option<Uptime> {
        self.listener.at().filter(|_| is_member)
    }

    pub fn start<C: Session, K: Clock>(&mut self, now: Uptime, is_member: bool, context: &SessionContext<C, K>) {
        if is_member && self.listener.is_due(now) {
            let recent = self.known.iter().filter(|(_, at)| **at + READ_AGAIN_AFTER > now);
            let recent = recent.map(|(run, _)| run.clone()).collect();
            self.listener.reading(Box::pin(read_own(context.clone(), recent)));
        }
    }

    /// The connection is back, or a survey was done: reads everything again.
    pub fn read_again(&mut self, now: Uptime) {
        self.known.clear();
        self.listener.read_again(now);
    }

    /// Takes the end of a phase. Returns what to report.
    ///
    /// # Errors
    /// If a read failed, and will be repeated.
    pub fn take(&mut self, event: ListenerEvent<Listed>, now: Uptime) -> Result<Option<Event>, SessionError> {
        let read = match event {
            ListenerEvent::Changed => {
                self.listener.read_from(now);
                return Ok(None);
            }
            ListenerEvent::Read(read) => read,
        };
        let Listed { all, read, found } = self.listener.take(read, now)?;
        self.known.retain(|run, _| all.contains(run));
        self.known.extend(read.into_iter().map(|run| (run, now)));
        Ok(Some(Event::Offers { listed: all, found }))
    }
}

async fn read_own<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    recent: BTreeSet<RunId>,
) -> Result<Heard<Listed>, SessionError> {
    let folder = paths::offers(&context.me.node);
    let client = context.line()?;
    let (found, watch) = client.stat_and_watch(&folder).await.at(&folder)?;
    if found.is_none() {
        // Somebody has removed it.
        match client.create(&folder, Vec::new(), Life::Lasting).await {
            Ok(_) | Err(Error::Exists) => {}
            Err(error) => return Err(error).at(&folder),
        }
    }
    let names = context::or_none(context::names(client, &folder).await)?;
    let all: BTreeSet<RunId> = names.iter().filter_map(|name| RunId::parse(name).ok()).collect();
    let read: BTreeSet<RunId> = all.difference(&recent).cloned().collect();
    let records = bounded::get(client, read.iter().map(paths::running).collect(), bounded::RUNS);
    let records = records.await.at(paths::RUNNING)?;
    let parse = |(run, record): (&RunId, Result<(Vec<u8>, crate::tree::Stat), Error>)| {
        let (data, stat) = record.ok()?;
        // A record that cannot be read is the leader's affair.
        snapshot::run_record(&run.to_string(), &data, &stat).ok()
    };
    let found = read.iter().zip(records).filter_map(parse).collect();
    Ok((Listed { all, read, found }, fired(watch)))
}

/// What became of placed attempts, as a leader is notified.
pub(super) enum Answers {
    /// These runs have changed.
    Of(Vec<RunId>),
    /// Notifications were missed: any run may have changed.
    OfAny,
}

/// Reads which runs a leader is notified of.
pub(super) struct LeadersBell {
    listener: Listener<(Vec<RunId>, Version)>,
    /// The version that was read last.
    known: Option<Version>,
}

impl LeadersBell {
    pub fn new() -> Self {
        Self { listener: Listener::new(), known: None }
    }

    /// The end of the current phase. Cancellation safe.
    pub async fn next(&mut self) -> ListenerEvent<(Vec<RunId>, Version)> {
        self.listener.next().await
    }

    pub fn at(&self, leads: bool) -> Option<Uptime> {
        self.listener.at().filter(|_| leads)
    }

    /// Starts a read if this node leads and one is due. Drops everything if it does not lead.
    pub fn start<C: Session, K: Clock>(&mut self, now: Uptime, leads: bool, context: &SessionContext<C, K>) {
        if !leads {
            *self = Self::new();
        } else if self.listener.is_due(now) {
            self.listener.reading(Box::pin(read_bell(context.clone())));
        }
    }

    /// The connection is back.
    pub fn read_again(&mut self, now: Uptime) {
        self.known = None;
        self.listener.read_again(now);
    }

    /// Takes the end of a phase.
    ///
    /// # Errors
    /// If a read failed, and will be repeated.
    pub fn take(
        &mut self,
        event: ListenerEvent<(Vec<RunId>, Version)>,
        now: Uptime,
    ) -> Result<Option<Answers>, SessionError> {
        let read = match event {
            ListenerEvent::Changed => {
                self.listener.read_from(now);
                return Ok(None);
            }
            ListenerEvent::Read(read) => read,
        };
        let (runs, version) = self.listener.take(read, now)?;
        let before = self.known.replace(version);
        Ok(match before {
            Some(before) if before == version => None,
            Some(before) if before.next() == version => Some(Answers::Of(runs)),
            Some(_) | None => Some(Answers::OfAny),
        })
    }
}

async fn read_bell<C: Session, K: Clock>(
    context: SessionContext<C, K>,
) -> Result<Heard<(Vec<RunId>, Version)>, SessionError> {
    let (data, stat, watch) = context.line()?.get_and_watch(paths::RUNNING).await.at(paths::RUNNING)?;
    // Whoever has written something else there makes this node read more, and nothing else.
    let runs = bounded::RUNS.parse(&data).unwrap_or_default();
    Ok(((runs, stat.version), fired(watch)))
}
