//! A leader looks again at what it could not read when it took over.

use super::SessionLoop;
use crate::clock::Clock;
use crate::ledger::Event;
use crate::zookeeper::client::{Client, Connect, Error};
use crate::zookeeper::context::{self, SessionContext, SessionError};
use crate::zookeeper::damage::{Damage, Source};
use crate::zookeeper::{paths, snapshot};

/// What another look showed.
#[derive(Default)]
pub struct Again {
    /// What was looked at, and is as it was.
    damaged: Vec<Damage>,
    /// What was looked at, and can be read.
    mended: Vec<String>,
    /// What is to be told of that.
    events: Vec<Event>,
}

/// Looks again at these paths.
pub(super) async fn look_again<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    damaged: Vec<String>,
) -> Result<Again, SessionError> {
    let mut again = Again::default();
    for path in damaged {
        let seen = match path.rsplit_once('/') {
            Some((paths::RUNNING, name)) => look_at_run(context, &path, name, &mut again.events).await?,
            Some((paths::JOBS, name)) => look_at_job(context, &path, name).await?,
            _ if path == paths::RUNNING => look_at_runs(context, &mut again.events).await?,
            _ => look_at_folder(context, &path).await?,
        };
        match seen {
            Ok(()) => again.mended.push(path),
            Err(damage) => again.damaged.push(damage),
        }
    }
    Ok(again)
}

type Seen = Result<Result<(), Damage>, SessionError>;

/// Each by itself: these are few, and nothing waits for them.
async fn look_at_run<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    path: &str,
    name: &str,
    events: &mut Vec<Event>,
) -> Seen {
    let mut damaged = Vec::new();
    let found = context.get_small(paths::RUNNING, vec![name.to_owned()]).await?;
    for (name, data, stat) in found.or_damaged(paths::RUNNING, &mut damaged) {
        match snapshot::run_record(&name, &data, &stat) {
            Ok((record, version)) => events.push(Event::Run(record.id(), Some((record, version)))),
            Err(why) => damaged.push(Damage::new(path, why)),
        }
    }
    Ok(damaged.pop().map_or(Ok(()), Err))
}

async fn look_at_job<C: Client, K: Clock>(context: &SessionContext<C, K>, path: &str, name: &str) -> Seen {
    let mut damaged = Vec::new();
    if let Err(bad) = crate::job::JobName::parse(name) {
        let is_there = context.line()?.stat(path).await;
        return Ok(if matches!(is_there, Ok(None)) { Ok(()) } else { Err(Damage::new(path, bad)) });
    }
    let found = context.get_small(paths::JOBS, vec![name.to_owned()]).await?;
    for (name, data, stat) in found.or_damaged(paths::JOBS, &mut damaged) {
        snapshot::job_entry(&name, &data, &stat, &mut damaged);
    }
    Ok(damaged.pop().map_or(Ok(()), Err))
}

/// The folder of the runs: all that is in it was unknown.
async fn look_at_runs<C: Client, K: Clock>(context: &SessionContext<C, K>, events: &mut Vec<Event>) -> Seen {
    let mut damaged = Vec::new();
    let names = context::children_or_damaged(context.line()?, paths::RUNNING, &mut damaged).await?;
    if let Some(damage) = damaged.pop() {
        return Ok(Err(damage));
    }
    for (name, data, stat) in context.get_small(paths::RUNNING, names).await?.found {
        if let Ok((record, version)) = snapshot::run_record(&name, &data, &stat) {
            events.push(Event::Run(record.id(), Some((record, version))));
        }
    }
    Ok(Ok(()))
}

async fn look_at_folder<C: Client, K: Clock>(context: &SessionContext<C, K>, path: &str) -> Seen {
    let mut damaged = Vec::new();
    match context.line()?.children(path).await {
        Ok(_) | Err(Error::NoNode) => {}
        Err(error) => damaged.push(Damage::unread(path, &error)),
    }
    Ok(damaged.pop().map_or(Ok(()), Err))
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    pub(super) fn looked_again(&mut self, again: Again) {
        for damage in again.damaged {
            self.damaged(Source::Ledger, damage);
        }
        for path in again.mended {
            self.mended(Source::Ledger, &path);
        }
        for event in again.events {
            self.supervisor.tell_ledger(event);
        }
    }
}
