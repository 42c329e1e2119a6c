//! Removes the records of jobs that are gone from every node's jobs files.
//!
//! The leader checks now and then, and only while every living node has published the same valid jobs as the leader
//! itself: then a job that is not among them is in nobody's file. The leader notes such a job in `gone/<job>`. Its time
//! counts, by the servers' clock, from that note and from the newest of its records. When the time is up, the leader
//! removes the job's history, last end, pause and mark, and a later job of the same name is a new one. If the job comes back
//! earlier, the leader removes the note.
//!
//! A node that is not alive is noted in the same way, as `gone/@<node>`, and its record as a place to run jobs is
//! removed when its time is up. It writes that again when it comes back. The note is removed as soon as the leader sees
//! the node alive, so that its time begins again. There are no more notes than jobs with records and nodes with a
//! place: each goes in one commit with what it is about. The folder of its offers goes too, if it is empty.
//!
//! Every multi is guarded by the candidate and holds few operations. Jobs with a run in flight or a requested run are
//! left alone. Each pass covers at most [`MOST_JOBS`] jobs; the next one continues behind them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::context::{self, At as _, SessionContext, SessionError};
use super::requests;
use crate::paths;
use crate::tree::{AtVersion, CommitError, Error, Life, Op, Session};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::{Defined, Member};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::run::{Note, RunId};
use cronkeeper_core::term::NodeName;

/// Most jobs per pass.
const MOST_JOBS: usize = 100;

/// Input of a pass.
pub struct ForgetOrder {
    /// The candidate that guards the removals.
    pub fence: String,
    /// The jobs of this node's files.
    pub defined: Arc<Defined>,
    /// How long a job or a node must be gone before its records are removed.
    pub after: ForgetAfter,
    /// The servers' time, in milliseconds since the epoch.
    pub now_ms: i64,
    /// The last job of the previous pass, if that pass did not reach the end.
    pub behind: Option<JobName>,
}

/// Result of a pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ForgetLook {
    /// The jobs that were removed, with the number of their history records.
    pub jobs: Vec<(JobName, usize)>,
    /// The nodes that were removed.
    pub nodes: Vec<NodeName>,
    /// The nodes that are noted as gone.
    pub noted: BTreeSet<NodeName>,
    /// The last job of this pass; `None` if it reached the end.
    pub behind: Option<JobName>,
}

/// Checks the nodes and the next jobs that are gone, and removes those that are due.
pub async fn look<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    order: ForgetOrder,
) -> Result<ForgetLook, SessionError> {
    let (nodes, noted) = match order.after.nodes {
        Some(after) => match look_at_nodes(&context, &order, after).await {
            // Their records stay. Nodes that have to write to them report the damage.
            Err(SessionError::NoAuth(_)) => (Vec::new(), BTreeSet::new()),
            found => found?,
        },
        None => (Vec::new(), BTreeSet::new()),
    };
    let jobs = match order.after.jobs {
        Some(after) => look_at_jobs(context, order, after).await?,
        None => ForgetLook::default(),
    };
    Ok(ForgetLook { nodes, noted, ..jobs })
}

/// Notes the nodes that are gone, and removes those that have been gone long enough. Returns these, and the noted ones.
async fn look_at_nodes<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    order: &ForgetOrder,
    after: Duration,
) -> Result<(Vec<NodeName>, BTreeSet<NodeName>), SessionError> {
    let named = |names: Vec<String>| names.iter().filter_map(|name| NodeName::parse(name).ok()).collect();
    let places: BTreeSet<NodeName> = named(context::names(context.line()?, paths::PLACES).await?);
    // Read after the places: a node that comes back meanwhile counts as alive.
    let alive: BTreeSet<NodeName> = named(context::names(context.line()?, paths::NODES).await?);
    let noted = context::names(context.line()?, paths::GONE).await?;
    let noted: BTreeSet<NodeName> = noted.iter().filter_map(|name| paths::gone_node_in(name)).collect();
    let is_back = |node: &&NodeName| alive.contains(*node) || !places.contains(*node);
    remove(context, order, noted.iter().filter(is_back).map(paths::gone_node).collect()).await?;
    let (mut forgotten, mut noted) = (Vec::new(), BTreeSet::new());
    for node in places.difference(&alive) {
        let note = paths::gone_node(node);
        noted.insert(node.clone());
        let Some(since) = context.line()?.stat(&note).await.at(&note)? else {
            make_note(context, order, &note).await?;
            continue;
        };
        let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        if order.now_ms.saturating_sub(since.changed_at.as_millisecond()) < after {
            continue;
        }
        let deletes = [paths::place(node), note].map(|path| Op::Delete { path, at: AtVersion::Any });
        let ops = std::iter::once(context::fence(&order.fence)).chain(deletes);
        let ops = ops.chain([requests::notify_leader(paths::PLACES)]).collect();
        // With an offer in it, it stays: the leader takes that back.
        match remove(context, order, vec![paths::offers(node)]).await {
            Ok(_) | Err(SessionError::NoAuth(_)) => {}
            Err(error) => return Err(error),
        }
        if done(context.line()?.commit(ops).await, node.as_str())? {
            noted.remove(node);
            forgotten.push(node.clone());
        }
    }
    Ok((forgotten, noted))
}

/// Checks the next jobs that are gone, and removes those that are due.
async fn look_at_jobs<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    order: ForgetOrder,
    after: Duration,
) -> Result<ForgetLook, SessionError> {
    if !all_define_the_same(&context, &order.defined).await? {
        return Ok(ForgetLook::default());
    }
    let noted = context::names(context.line()?, paths::GONE).await?;
    let back = noted.iter().filter(|name| JobName::parse(name).is_ok_and(|job| order.defined.jobs.contains(&job)));
    remove(&context, &order, back.map(|name| paths::under(paths::GONE, name)).collect()).await?;

    let mut gone = kept(&context).await?;
    gone.retain(|job| !order.defined.jobs.contains(job));
    let is_next = |job: &&JobName| order.behind.as_ref().is_none_or(|behind| *job > behind);
    let here: Vec<JobName> = gone.iter().filter(is_next).take(MOST_JOBS).cloned().collect();
    if here.is_empty() {
        return Ok(ForgetLook::default());
    }
    let is_all = gone.last() == here.last();
    let busy = busy(&context).await?;
    let mut look = ForgetLook { behind: here.last().filter(|_| !is_all).cloned(), ..ForgetLook::default() };
    for job in here.into_iter().filter(|job| !busy.contains(job)) {
        match forget_if_due(&context, &order, after, &job).await {
            Ok(Some(records)) => look.jobs.push((job, records)),
            Ok(None) => {}
            // This job stays. Nodes that have to write to it report the damage.
            Err(SessionError::NoAuth(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(look)
}

/// True if every living node has the same jobs as this one. A member that cannot be read may have others.
async fn all_define_the_same<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    defined: &Defined,
) -> Result<bool, SessionError> {
    let names = context::names(context.line()?, paths::NODES).await?;
    let members = context.get_small(paths::NODES, names).await?;
    let has_the_same = |data: &[u8]| {
        serde_json::from_slice::<Member>(data).is_ok_and(|member| member.published.defines(&defined.digest))
    };
    Ok(members.unread.is_empty() && members.found.iter().all(|(_, data, _)| has_the_same(data)))
}

/// The jobs that have a mark, a history, a last end or a pause.
async fn kept<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<BTreeSet<JobName>, SessionError> {
    let client = context.line()?;
    let folders = [paths::JOBS, paths::HISTORY, paths::LAST, paths::CONTROL];
    let names = try_join_all(folders.map(|folder| context::names(client, folder))).await?;
    Ok(names.iter().flatten().filter_map(|name| JobName::parse(name).ok()).collect())
}

/// The jobs that have a run in flight or a requested run.
async fn busy<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<BTreeSet<JobName>, SessionError> {
    let running = context::names(context.line()?, paths::RUNNING).await?;
    let names = context::names(context.line()?, paths::TRIGGERS).await?;
    let triggers = context.get_small(paths::TRIGGERS, names).await?;
    let wanted = triggers.found.iter().filter_map(|(_, data, _)| Note::read(data).ok().map(Note::into_job));
    let running = running.iter().filter_map(|name| Some(RunId::parse(name).ok()?.job().clone()));
    Ok(running.chain(wanted).collect())
}

/// Notes that a job is gone. If it has been gone long enough, removes it and returns the number of its history records.
async fn forget_if_due<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    order: &ForgetOrder,
    after: Duration,
    job: &JobName,
) -> Result<Option<usize>, SessionError> {
    let note = paths::gone(job);
    let Some(noted) = context.line()?.stat(&note).await.at(&note)? else {
        make_note(context, order, &note).await?;
        return Ok(None);
    };
    let (record, control, history) = (paths::job(job), paths::control(job), paths::job_history(job));
    let last = paths::last(job);
    let record_stat = context.line()?.stat(&record).await.at(&record)?;
    let control_stat = context.line()?.stat(&control).await.at(&control)?;
    let history_stat = context.line()?.stat(&history).await.at(&history)?;
    let last_stat = context.line()?.stat(&last).await.at(&last)?;
    let newest = context::newest_history(context.line()?, job, context::MOST_RECENT).await?;
    let newest = context::stats(context.line()?, &history, newest).await?;
    let stats = [Some(&noted), record_stat.as_ref(), control_stat.as_ref()].into_iter().flatten();
    let newest = stats.chain(newest.iter().map(|(_, stat)| stat)).map(|stat| stat.changed_at.as_millisecond()).max();
    let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
    if newest.is_none_or(|newest| order.now_ms.saturating_sub(newest) < after) {
        return Ok(None);
    }
    let names = context::names(context.line()?, &history).await?;
    let records = names.len();
    if !remove(context, order, names.iter().map(|name| paths::under(&history, name)).collect()).await? {
        return Ok(None);
    }
    // Delete the mark last: as long as it exists, a later pass finds the rest of the job.
    let parts = [
        (history, history_stat.map(|_| AtVersion::Any)),
        (last, last_stat.map(|stat| stat.version.into())),
        (control, control_stat.map(|stat| stat.version.into())),
        (note, Some(AtVersion::Any)),
        (record, record_stat.map(|stat| stat.version.into())),
    ];
    let deletes = parts.into_iter().filter_map(|(path, at)| Some(Op::Delete { path, at: at? }));
    let ops = std::iter::once(context::fence(&order.fence)).chain(deletes).collect();
    Ok(done(context.line()?.commit(ops).await, job.as_str())?.then_some(records))
}

async fn make_note<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    order: &ForgetOrder,
    note: &str,
) -> Result<(), SessionError> {
    let create = Op::Create { path: note.to_owned(), data: Vec::new(), life: Life::Lasting };
    done(context.line()?.commit(vec![context::fence(&order.fence), create]).await, note).map(drop)
}

/// Removes these records, some at a time. Returns false if one was changed meanwhile: the next pass tries again.
async fn remove<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    order: &ForgetOrder,
    paths: Vec<String>,
) -> Result<bool, SessionError> {
    for paths in paths.chunks(context.most_deletes()) {
        let deletes = paths.iter().map(|path| Op::Delete { path: path.clone(), at: AtVersion::Any });
        let ops = std::iter::once(context::fence(&order.fence)).chain(deletes).collect();
        if !done(context.line()?.commit(ops).await, &paths[0])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns false if a record was not in the expected state. If that is the candidate, the term is over: returns an
/// error.
fn done<T>(answer: Result<T, CommitError>, path: &str) -> Result<bool, SessionError> {
    match answer {
        Ok(_) => Ok(true),
        Err(CommitError { index: Some(0), error: Error::Missing | Error::Changed }) => {
            Err(SessionError::Again("this node no longer leads".into()))
        }
        Err(failed) if failed.error.is_of_state() => Ok(false),
        Err(failed) => Err(failed).at(path).map(|()| false),
    }
}

#[cfg(test)]
mod tests;
