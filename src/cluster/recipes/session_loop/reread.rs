//! Reads the damaged paths again that a leader could not read at its takeover.

use crate::paths;
use crate::recipes::context::{self, SessionContext, SessionError};
use crate::recipes::damage::Damage;
use crate::recipes::{snapshot, strays};
use crate::tree::{Error, Session};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::ledger::Event;

/// The result of reading damaged paths again.
#[derive(Default)]
pub(super) struct RereadResult {
    /// The paths that are still damaged.
    damaged: Vec<Damage>,
    /// The paths that can be read now.
    mended: Vec<String>,
    /// The records that were found there.
    events: Vec<Event>,
}

impl RereadResult {
    /// The paths that are still damaged, those that can be read now, and the records that were found there.
    pub(super) fn into_parts(self) -> (Vec<Damage>, Vec<String>, Vec<Event>) {
        (self.damaged, self.mended, self.events)
    }
}

/// Reads these paths again.
pub(super) async fn reread<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    damaged: Vec<String>,
) -> Result<RereadResult, SessionError> {
    let mut result = RereadResult::default();
    for path in damaged {
        let read = match path.rsplit_once('/') {
            Some((paths::RUNNING, name)) => reread_run(context, name, &mut result.events).await?,
            Some((paths::JOBS, name)) => reread_job(context, &path, name).await?,
            _ if path == paths::RUNNING => reread_runs_parent(context, &mut result.events).await?,
            _ => reread_parent(context, &path).await?,
        };
        match read {
            Ok(()) => result.mended.push(path),
            Err(damage) => result.damaged.push(damage),
        }
    }
    Ok(result)
}

type PathResult = Result<Result<(), Damage>, SessionError>;

/// Reads one record per request: damaged ones are few, and nothing waits for them.
async fn reread_run<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    name: &str,
    events: &mut Vec<Event>,
) -> PathResult {
    let mut damaged = Vec::new();
    let found = context.get_small(paths::RUNNING, vec![name.to_owned()]).await?;
    for (name, data, stat) in found.or_damaged(paths::RUNNING, &mut damaged) {
        match snapshot::run_record(&name, &data, &stat) {
            Ok((record, version)) => events.push(Event::Run(record.id(), Some((record, version)))),
            Err(why) => damaged.push(strays::no_run(context.line()?, &name, &why)),
        }
    }
    Ok(damaged.pop().map_or(Ok(()), Err))
}

async fn reread_job<C: Session, K: Clock>(context: &SessionContext<C, K>, path: &str, name: &str) -> PathResult {
    let mut damaged = Vec::new();
    if let Err(bad) = cronkeeper_core::job::JobName::parse(name) {
        let is_there = context.line()?.stat(path).await;
        return Ok(if matches!(is_there, Ok(None)) { Ok(()) } else { Err(Damage::new(path, bad)) });
    }
    let found = context.get_small(paths::JOBS, vec![name.to_owned()]).await?;
    for (name, data, stat) in found.or_damaged(paths::JOBS, &mut damaged) {
        snapshot::job_entry(&name, &data, &stat, &mut damaged);
    }
    Ok(damaged.pop().map_or(Ok(()), Err))
}

/// Reads the folder of the runs: all runs in it were unknown.
async fn reread_runs_parent<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    events: &mut Vec<Event>,
) -> PathResult {
    let mut damaged = Vec::new();
    let names = context::names_or_damaged(context.line()?, paths::RUNNING, &mut damaged).await?;
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

async fn reread_parent<C: Session, K: Clock>(context: &SessionContext<C, K>, path: &str) -> PathResult {
    let mut damaged = Vec::new();
    match context.line()?.names(path).await {
        Ok(_) | Err(Error::Missing) => {}
        Err(error) => damaged.push(Damage::unread(path, &error)),
    }
    Ok(damaged.pop().map_or(Ok(()), Err))
}
