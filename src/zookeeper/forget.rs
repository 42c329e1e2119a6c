//! What is kept of jobs that are gone from every node's jobs files is removed, after a time.
//!
//! The leader looks now and then, and only while each living node has published the same valid jobs as its own: then a job that is not
//! among them is in nobody's file. Such a job is noted in `gone/<job>`, and its time counts from that note and from the newest
//! of its records, by the servers' clock. When it is over its history, its pause and its mark are removed; a job of
//! that name that comes later is a new one. A job that comes back before is no longer noted.
//!
//! Every multi is guarded by the candidate, and holds few operations. A job with a run in flight, or that somebody wants to run, is
//! left as it is. One look is about so many jobs ([`MOST_JOBS`]); the next goes on behind them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join3;

use super::client::{Client, Error, Mode, MultiError, Op};
use super::committer::check;
use super::context::{self, At as _, SessionContext, SessionError};
use super::paths;
use crate::clock::Clock;
use crate::election::{Defined, Member};
use crate::job::JobName;
use crate::run::{Note, RunId};

/// Jobs that one look is about.
const MOST_JOBS: usize = 100;
/// Records that one multi removes.
const MOST_DELETES: usize = 100;

/// What a look rests on.
pub struct Order {
    /// The candidate that guards what is removed.
    pub fence: String,
    /// The jobs of this node's files.
    pub defined: Arc<Defined>,
    /// How long a job must be gone.
    pub after: Duration,
    /// The servers' time.
    pub now_ms: i64,
    /// The job that the last look ended with, where it did not come to all.
    pub behind: Option<JobName>,
}

/// What a look brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The jobs of which nothing is left, and how many records of the history they had.
    pub forgotten: Vec<(JobName, usize)>,
    /// The job that it ended with; absent: it came to all.
    pub behind: Option<JobName>,
}

/// Looks at the next jobs that are gone, and removes what is due.
pub async fn look<C: Client, K: Clock>(context: SessionContext<C, K>, order: Order) -> Result<Look, SessionError> {
    if !all_define_the_same(&context, &order.defined).await? {
        return Ok(Look::default());
    }
    let noted = context::children(context.line()?, paths::GONE).await?;
    let back = noted.iter().filter(|name| JobName::parse(name).is_ok_and(|job| order.defined.jobs.contains(&job)));
    remove(&context, &order, back.map(|name| paths::under(paths::GONE, name)).collect()).await?;

    let mut gone = kept(&context).await?;
    gone.retain(|job| !order.defined.jobs.contains(job));
    let after = |job: &&JobName| order.behind.as_ref().is_none_or(|behind| *job > behind);
    let here: Vec<JobName> = gone.iter().filter(after).take(MOST_JOBS).cloned().collect();
    if here.is_empty() {
        return Ok(Look::default());
    }
    let is_all = gone.last() == here.last();
    let busy = busy(&context).await?;
    let mut look = Look { forgotten: Vec::new(), behind: here.last().filter(|_| !is_all).cloned() };
    for job in here.into_iter().filter(|job| !busy.contains(job)) {
        match see_to(&context, &order, &job).await {
            Ok(Some(records)) => look.forgotten.push((job, records)),
            Ok(None) => {}
            // That job's affair: whoever has to write to it names it.
            Err(SessionError::NoAuth(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(look)
}

/// True where every living node has the same jobs as this one. One that cannot be read may have others.
async fn all_define_the_same<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    defined: &Defined,
) -> Result<bool, SessionError> {
    let names = context::children(context.line()?, paths::NODES).await?;
    let members = context.get_small(paths::NODES, names).await?;
    let has_the_same = |data: &[u8]| {
        serde_json::from_slice::<Member>(data).is_ok_and(|member| member.published.defines(&defined.digest))
    };
    Ok(members.unread.is_empty() && members.found.iter().all(|(_, data, _)| has_the_same(data)))
}

/// The jobs of which anything is kept.
async fn kept<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<BTreeSet<JobName>, SessionError> {
    let client = context.line()?;
    let (jobs, history, control) = try_join3(
        context::children(client, paths::JOBS),
        context::children(client, paths::HISTORY),
        context::children(client, paths::CONTROL),
    )
    .await?;
    Ok(jobs.iter().chain(&history).chain(&control).filter_map(|name| JobName::parse(name).ok()).collect())
}

/// The jobs that have a run in flight, or that are to run.
async fn busy<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<BTreeSet<JobName>, SessionError> {
    let running = context::children(context.line()?, paths::RUNNING).await?;
    let names = context::children(context.line()?, paths::TRIGGERS).await?;
    let triggers = context.get_small(paths::TRIGGERS, names).await?;
    let wanted = triggers.found.iter().filter_map(|(_, data, _)| Note::read(data).ok().map(Note::into_job));
    let running = running.iter().filter_map(|name| Some(RunId::parse(name).ok()?.job().clone()));
    Ok(running.chain(wanted).collect())
}

/// Notes that a job is gone, or removes all of it where its time is over: then how many records of the history it had.
async fn see_to<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    order: &Order,
    job: &JobName,
) -> Result<Option<usize>, SessionError> {
    let note = paths::gone(job);
    let Some(noted) = context.line()?.stat(&note).await.at(&note)? else {
        make_note(context, order, &note).await?;
        return Ok(None);
    };
    let (record, control, folder) = (paths::job(job), paths::control(job), paths::job_history(job));
    let record_stat = context.line()?.stat(&record).await.at(&record)?;
    let control_stat = context.line()?.stat(&control).await.at(&control)?;
    let folder_stat = context.line()?.stat(&folder).await.at(&folder)?;
    let newest = context::newest_history(context.line()?, job, context::MOST_LOOKED_AT).await?;
    let newest = context::stats(context.line()?, &folder, newest).await?;
    let stats = [Some(noted), record_stat, control_stat].into_iter().flatten();
    let newest = stats.chain(newest.into_iter().map(|(_, stat)| stat)).map(|stat| stat.mtime_ms).max();
    let after = i64::try_from(order.after.as_millis()).unwrap_or(i64::MAX);
    if newest.is_none_or(|newest| order.now_ms.saturating_sub(newest) < after) {
        return Ok(None);
    }
    let names = context::children(context.line()?, &folder).await?;
    let records = names.len();
    if !remove(context, order, names.iter().map(|name| paths::under(&folder, name)).collect()).await? {
        return Ok(None);
    }
    // The mark last: until it is gone, what is left of the job is found.
    let parts = [(folder, folder_stat.map(|_| -1)), (control, control_stat.map(|stat| stat.version))];
    let parts = parts.into_iter().chain([(note, Some(-1)), (record, record_stat.map(|stat| stat.version))]);
    let deletes = parts.filter_map(|(path, version)| Some(Op::Delete { path, version: version? }));
    let ops = std::iter::once(check(&order.fence)).chain(deletes).collect();
    Ok(done(context.line()?.multi(ops).await, job.as_str())?.then_some(records))
}

async fn make_note<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    order: &Order,
    note: &str,
) -> Result<(), SessionError> {
    let create = |path: &str| Op::Create { path: path.to_owned(), data: Vec::new(), mode: Mode::Persistent };
    let ops = vec![check(&order.fence), create(note)];
    match context.line()?.multi(ops).await {
        Err(MultiError { index: Some(1), error: Error::NoNode }) => {
            let folder = vec![check(&order.fence), create(paths::GONE), create(note)];
            done(context.line()?.multi(folder).await, note).map(drop)
        }
        answer => done(answer, note).map(drop),
    }
}

/// Removes these nodes, some at a time. False where one was changed meanwhile: the next look sees to it.
async fn remove<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    order: &Order,
    paths: Vec<String>,
) -> Result<bool, SessionError> {
    for paths in paths.chunks(MOST_DELETES) {
        let deletes = paths.iter().map(|path| Op::Delete { path: path.clone(), version: -1 });
        let ops = std::iter::once(check(&order.fence)).chain(deletes).collect();
        if !done(context.line()?.multi(ops).await, &paths[0])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// False where something stood otherwise than it was read. Where that is the candidate the term is over, as others will find.
fn done<T>(answer: Result<T, MultiError>, path: &str) -> Result<bool, SessionError> {
    match answer {
        Ok(_) => Ok(true),
        Err(MultiError { index: Some(0), error: Error::NoNode | Error::BadVersion }) => {
            Err(SessionError::Again("this node leads no more".into()))
        }
        Err(failed) if failed.error.is_of_state() => Ok(false),
        Err(failed) => Err(failed).at(path).map(|()| false),
    }
}

#[cfg(test)]
mod tests;
