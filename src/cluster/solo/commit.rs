//! Applies one change to the ledger inside a transaction.
//!
//! All conditions of a change are checked before anything is written, so that it is written as a whole or not at all.

use rusqlite::types::ToSqlOutput;
use rusqlite::{OptionalExtension, ToSql, Transaction, params};
use serde::Serialize;

use super::{last, outbox, read, requests};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Change, Commit, Existing, Write};
use cronkeeper_core::run::{HistoryRecord, JobRecord, Outcome, RunEnd, RunId, RunRecord, RunState, Version};

/// Most records of a kind that one call of [`trim`] deletes: other processes wait for its transaction.
const MOST_DELETES: u32 = 500;

/// Applies a change. The caller has checked the term's token and the change's pipeline. Of an end that is written, also
/// returns the outcome of the end before it.
pub(super) fn apply(tx: &Transaction<'_>, change: &Change) -> rusqlite::Result<(Commit, Option<Outcome>)> {
    let writes = change.writes();
    for write in &writes {
        if !holds(tx, write)? {
            return Ok((Commit::Superseded, None));
        }
    }
    writes.iter().try_for_each(|write| carry_out(tx, write))?;
    let before = match change {
        Change::End { end, .. } => last::note(tx, end)?,
        _ => None,
    };
    change.notices(before).iter().try_for_each(|notice| outbox::add(tx, notice))?;
    Ok((Commit::Accepted, before))
}

/// True if the write's precondition holds.
///
/// The history has none: the same transaction checks the version of the job or run. The existing record may have been
/// trimmed, so its absence is not an error.
fn holds(tx: &Transaction<'_>, write: &Write<'_>) -> rusqlite::Result<bool> {
    match write {
        Write::Job { job, at, .. } => Ok(version(tx, "jobs", job.as_str())? == *at),
        Write::Run { at, record } => Ok(version(tx, "running", &record.id().to_string())? == *at),
        Write::RemoveRun { run, at } => Ok(version(tx, "running", &run.to_string())? == Some(*at)),
        Write::RemoveTrigger(seq) => requests::exists(tx, *seq),
        Write::RemovePause { job, at } => Ok(version(tx, "control", job.as_str())? == Some(*at)),
        Write::NotEnded(run) => Ok(requests::history_record(tx, run)?.is_none()),
        // One host has nobody to place anything on.
        Write::Member(_) | Write::Offer { .. } | Write::RemoveOffer { .. } => Ok(false),
        Write::History { .. } | Write::Link(_) | Write::Ring(_) => Ok(true),
    }
}

fn carry_out(tx: &Transaction<'_>, write: &Write<'_>) -> rusqlite::Result<()> {
    match write {
        Write::Job { job, at, record } => put_job(tx, job, *at, record),
        Write::Run { at, record } => put_run(tx, &record.id(), at.map_or(Version::FIRST, Version::next), record),
        Write::RemoveRun { run, .. } => {
            tx.prepare_cached("DELETE FROM running WHERE run = ?1")?.execute([run.to_string()]).map(drop)
        }
        Write::RemoveTrigger(seq) => requests::remove(tx, *seq).map(drop),
        Write::RemovePause { job, at } => requests::end_pause(tx, job, *at).map(drop),
        Write::History { at, record, existing } => {
            let id = Write::history_id(record);
            let stays = *existing == Existing::Stays && requests::history_record(tx, &id)?.is_some();
            if stays { Ok(()) } else { put_history(tx, &id, *at, record) }
        }
        Write::NotEnded(_) | Write::Member(_) | Write::Offer { .. } | Write::RemoveOffer { .. } | Write::Ring(_) => {
            Ok(())
        }
        Write::Link(link) => requests::add_link(tx, link),
    }
}

/// Writes an end that a dead member left, if the run is still that member's attempt. Returns the run's last version, and
/// the outcome of the end before it.
pub(super) fn end_left_open(
    tx: &Transaction<'_>,
    end: &RunEnd,
) -> rusqlite::Result<Option<(Version, Option<Outcome>)>> {
    match read::run(tx, &end.run.id())? {
        Some((run, at)) if run.owner == end.run.owner && run.attempt == end.run.attempt => {
            let end = Change::End { at, end: end.clone(), as_leader: false };
            let (answer, before) = apply(tx, &end)?;
            Ok((answer == Commit::Accepted).then_some((at, before)))
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

/// Deletes the oldest of a job's records beyond the newest `kept` runs and `kept` skips. Returns true if none is left
/// to delete.
pub(super) fn trim(tx: &Transaction<'_>, job: &JobName, kept: usize) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(
        "DELETE FROM history WHERE rowid IN
           (SELECT rowid FROM history WHERE job = ?1 AND kind = ?2 ORDER BY at DESC, run DESC LIMIT ?4 OFFSET ?3)",
    )?;
    let kept = i64::try_from(kept).unwrap_or(i64::MAX);
    let mut is_done = true;
    for kind in ["run", "skip"] {
        is_done &= statement.execute(params![job.as_str(), kind, kept, MOST_DELETES])? < MOST_DELETES as usize;
    }
    Ok(is_done)
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
