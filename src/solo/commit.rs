//! Applies one change to the ledger inside a transaction.
//!
//! All conditions of a change are checked before anything is written, so that it is written as a whole or not at all.

use rusqlite::types::ToSqlOutput;
use rusqlite::{OptionalExtension, ToSql, Transaction, params};
use serde::Serialize;

use super::{read, requests};
use crate::job::JobName;
use crate::ledger::{Change, Commit, SkipWrite};
use crate::run::{HistoryRecord, JobRecord, RunEnd, RunId, RunRecord, RunState, Skip, TriggerSeq, Version};

/// Maximum number of runs, and also of skips, in a job's history.
const KEPT_RECORDS: i64 = 20;

/// Applies a change. The caller has checked the term's token and the change's chain.
pub(super) fn apply(tx: &Transaction<'_>, change: &Change) -> rusqlite::Result<Commit> {
    let written = match change {
        Change::Advance { job, at, record, skip } => advance(tx, job, *at, record, skip.as_ref()),
        Change::Begin { at, record, run } => begin(tx, *at, record, run),
        Change::BeginTriggered { run } => begin_triggered(tx, run),
        Change::DropTrigger { seq, skip, .. } => drop_trigger(tx, *seq, skip.as_ref()),
        Change::BeginDownstream { mark, run, links } => begin_downstream(tx, mark.as_ref(), run, links),
        Change::DropLinks { links, skip, .. } => drop_links(tx, links, skip.as_ref()),
        Change::Resume { job, control, mark, skip } => resume(tx, job, *control, mark.as_ref(), skip.as_ref()),
        Change::UpdateRun { at, run } | Change::ChangeOwner { at, run } | Change::Kill { at, run } => {
            set_run(tx, *at, run)
        }
        Change::Miss { at, run, skip, .. } => close_run(tx, *at, run, &HistoryRecord::Skip(skip.clone())),
        Change::End { at, end, .. } => close_run(tx, *at, &end.run.id(), &HistoryRecord::Run(end.clone())),
    }?;
    if !written {
        return Ok(Commit::Superseded);
    }
    change.links().iter().try_for_each(|link| requests::add_link(tx, link))?;
    Ok(Commit::Accepted)
}

/// Writes an end that a dead member left, if the run is still that member's attempt. Returns the run's last version.
pub(super) fn end_left_open(tx: &Transaction<'_>, end: &RunEnd) -> rusqlite::Result<Option<Version>> {
    match read::run(tx, &end.run.id())? {
        Some((run, at)) if run.owner == end.run.owner && run.attempt == end.run.attempt => {
            let end = Change::End { at, end: end.clone(), as_leader: false };
            Ok((apply(tx, &end)? == Commit::Accepted).then_some(at))
        }
        _ => Ok(None), // another node has settled the run
    }
}

/// Marks a run that a dead member never started as unstarted, unless it is waiting already.
pub(super) fn release_unstarted(tx: &Transaction<'_>, run: RunRecord, at: Version) -> rusqlite::Result<()> {
    if run.state.waits() {
        return Ok(());
    }
    let run = RunRecord { state: RunState::Unstarted, ..run };
    apply(tx, &Change::ChangeOwner { at, run }).map(drop)
}

/// Deletes all but the newest [`KEPT_RECORDS`] runs and skips of a job.
pub(super) fn trim(tx: &Transaction<'_>, job: &JobName) -> rusqlite::Result<()> {
    let mut statement = tx.prepare_cached(
        "DELETE FROM history WHERE job = ?1 AND kind = ?2 AND run NOT IN
           (SELECT run FROM history WHERE job = ?1 AND kind = ?2 ORDER BY at DESC, run DESC LIMIT ?3)",
    )?;
    for kind in ["run", "skip"] {
        statement.execute(params![job.as_str(), kind, KEPT_RECORDS])?;
    }
    Ok(())
}

fn advance(
    tx: &Transaction<'_>,
    job: &JobName,
    at: Option<Version>,
    record: &JobRecord,
    skip: Option<&SkipWrite>,
) -> rusqlite::Result<bool> {
    if version(tx, "jobs", job.as_str())? != at {
        return Ok(false);
    }
    put_job(tx, job, at, record)?;
    if let Some(write) = skip {
        put_history(tx, &write.skip.id(), write.at, &HistoryRecord::Skip(write.skip.clone()))?;
    }
    Ok(true)
}

fn begin(tx: &Transaction<'_>, at: Version, record: &JobRecord, run: &RunRecord) -> rusqlite::Result<bool> {
    let id = run.id();
    if version(tx, "jobs", run.job.as_str())? != Some(at) || version(tx, "running", &id.to_string())?.is_some() {
        return Ok(false);
    }
    put_job(tx, &run.job, Some(at), record)?;
    put_run(tx, &id, Version::FIRST, run)?;
    Ok(true)
}

fn begin_triggered(tx: &Transaction<'_>, run: &RunRecord) -> rusqlite::Result<bool> {
    let id = run.id();
    let Some(trigger) = &run.trigger else { return Ok(false) };
    if version(tx, "running", &id.to_string())?.is_some() || !requests::remove(tx, trigger.seq)? {
        return Ok(false);
    }
    put_run(tx, &id, Version::FIRST, run)?;
    Ok(true)
}

fn drop_trigger(tx: &Transaction<'_>, seq: TriggerSeq, skip: Option<&Skip>) -> rusqlite::Result<bool> {
    let removed = requests::remove(tx, seq)?;
    if let Some(skip) = skip.filter(|_| removed) {
        put_history(tx, &skip.id(), None, &HistoryRecord::Skip(skip.clone()))?;
    }
    Ok(removed)
}

fn begin_downstream(
    tx: &Transaction<'_>,
    mark: Option<&(Version, JobRecord)>,
    run: &RunRecord,
    links: &[TriggerSeq],
) -> rusqlite::Result<bool> {
    let id = run.id();
    let mark_is_current = match mark {
        Some((at, _)) => version(tx, "jobs", run.job.as_str())? == Some(*at),
        None => true,
    };
    if !mark_is_current || version(tx, "running", &id.to_string())?.is_some() || !remove_links(tx, links)? {
        return Ok(false);
    }
    if let Some((at, record)) = mark {
        put_job(tx, &run.job, Some(*at), record)?;
    }
    put_run(tx, &id, Version::FIRST, run)?;
    Ok(true)
}

/// Removes links, and records a skip unless the history already has a record: that may be the end of the run.
fn drop_links(tx: &Transaction<'_>, links: &[TriggerSeq], skip: Option<&Skip>) -> rusqlite::Result<bool> {
    if !remove_links(tx, links)? {
        return Ok(false);
    }
    match skip {
        Some(skip) if requests::history_record(tx, &skip.id())?.is_none() => {
            put_history(tx, &skip.id(), None, &HistoryRecord::Skip(skip.clone()))?;
        }
        Some(_) | None => {}
    }
    Ok(true)
}

/// Removes all links, or none if one is missing.
fn remove_links(tx: &Transaction<'_>, links: &[TriggerSeq]) -> rusqlite::Result<bool> {
    for &link in links {
        if !requests::exists(tx, link)? {
            return Ok(false);
        }
    }
    links.iter().try_for_each(|&link| requests::remove(tx, link).map(drop))?;
    Ok(true)
}

fn resume(
    tx: &Transaction<'_>,
    job: &JobName,
    control: Version,
    mark: Option<&(Option<Version>, JobRecord)>,
    skip: Option<&SkipWrite>,
) -> rusqlite::Result<bool> {
    if version(tx, "control", job.as_str())? != Some(control) {
        return Ok(false);
    }
    let is_written = match mark {
        Some((at, record)) => advance(tx, job, *at, record, skip)?,
        None => true,
    };
    Ok(is_written && requests::end_pause(tx, job, control)?)
}

fn set_run(tx: &Transaction<'_>, at: Version, run: &RunRecord) -> rusqlite::Result<bool> {
    let id = run.id();
    if version(tx, "running", &id.to_string())? != Some(at) {
        return Ok(false);
    }
    put_run(tx, &id, at.next(), run)?;
    Ok(true)
}

/// Replaces a run in flight by a record of the history.
fn close_run(tx: &Transaction<'_>, at: Version, run: &RunId, record: &HistoryRecord) -> rusqlite::Result<bool> {
    let name = run.to_string();
    if version(tx, "running", &name)? != Some(at) {
        return Ok(false);
    }
    tx.prepare_cached("DELETE FROM running WHERE run = ?1")?.execute([name])?;
    put_history(tx, run, None, record)?;
    Ok(true)
}

/// The version of a record in `jobs`, `control` or `running`, if it exists.
pub(super) fn version(tx: &Transaction<'_>, table: &str, key: &str) -> rusqlite::Result<Option<Version>> {
    let sql = match table {
        "jobs" => "SELECT version FROM jobs WHERE job = ?1",
        "control" => "SELECT version FROM control WHERE job = ?1",
        _ => "SELECT version FROM running WHERE run = ?1",
    };
    tx.prepare_cached(sql)?.query_row([key], |row| row.get(0)).optional().map(|found| found.map(Version))
}

pub(super) fn put_job(
    tx: &Transaction<'_>,
    job: &JobName,
    at: Option<Version>,
    record: &JobRecord,
) -> rusqlite::Result<()> {
    let version = at.map_or(Version::FIRST, Version::next);
    tx.prepare_cached("REPLACE INTO jobs (job, version, record) VALUES (?1, ?2, ?3)")?
        .execute(params![job.as_str(), version.0, Json(record)])
        .map(drop)
}

pub(super) fn put_run(tx: &Transaction<'_>, id: &RunId, version: Version, run: &RunRecord) -> rusqlite::Result<()> {
    tx.prepare_cached("REPLACE INTO running (run, version, record) VALUES (?1, ?2, ?3)")?
        .execute(params![id.to_string(), version.0, Json(run)])
        .map(drop)
}

/// Writes a record of the history, whether or not one exists.
///
/// It needs no version check, because the same transaction checks the version of the job or run. The existing record
/// may have been trimmed, so its absence is not an error.
fn put_history(tx: &Transaction<'_>, id: &RunId, at: Option<Version>, record: &HistoryRecord) -> rusqlite::Result<()> {
    let version = at.map_or(Version::FIRST, Version::next);
    let kind = match record {
        HistoryRecord::Run(_) => "run",
        HistoryRecord::Skip(_) => "skip",
    };
    tx.prepare_cached("REPLACE INTO history (run, job, kind, at, version, record) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            id.to_string(),
            id.job().as_str(),
            kind,
            record.at().as_microsecond(),
            version.0,
            Json(record)
        ])
        .map(drop)
}

/// Stores a value as JSON text.
pub(super) struct Json<'a, T>(pub(super) &'a T);

impl<T: Serialize> ToSql for Json<'_, T> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text =
            serde_json::to_string(self.0).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(text.into())
    }
}
