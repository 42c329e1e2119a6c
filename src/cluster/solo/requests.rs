//! Operators' requests and links, in the tables `control` and `triggers`.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use uuid::Uuid;

use super::commit::{Json, put_job, put_run, version};
use super::read::{self, parsed};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{ControlEntry, Filter, OperatorRequests, TriggerEntry, Window};
use cronkeeper_core::run::{
    ControlRecord, HistoryRecord, JobRecord, KillRequest, Link, Note, Pause, Resume, RunId, RunRecord, RunState,
    TriggerRecord, TriggerSeq, Version,
};

/// A limit above the number of records in any job's history.
const ALL: usize = 1_000;

/// Reads all requests. Unreadable records are added to `damaged` and do not block others.
pub(super) fn read(db: &Connection, damaged: &mut Vec<String>) -> rusqlite::Result<OperatorRequests> {
    let mut requests = OperatorRequests { control: pauses(db, damaged)?, ..OperatorRequests::default() };
    let mut answered = BTreeMap::new();
    for (seq, text) in triggers(db)? {
        let record = match Note::read(text.as_bytes()) {
            Ok(Note::Trigger(record)) => record,
            Ok(Note::Link(link)) => {
                requests.links.insert(seq, link);
                continue;
            }
            Err(why) => {
                damaged.push(format!("triggers/{seq}: {why}"));
                continue;
            }
        };
        let job = record.job.clone();
        let uuids = match answered.entry(job.clone()) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => new.insert(in_history(db, &job)?),
        };
        let is_in_history = uuids.contains(&record.uuid);
        requests.triggers.insert(seq, TriggerEntry { record, is_in_history });
    }
    Ok(requests)
}

/// The pauses of all jobs.
pub(super) fn pauses(db: &Connection, damaged: &mut Vec<String>) -> rusqlite::Result<BTreeMap<JobName, ControlEntry>> {
    let mut pauses = BTreeMap::new();
    for (key, version, text) in read::triples(db, "SELECT job, version, record FROM control ORDER BY job")? {
        match JobName::parse(&key) {
            Ok(job) => {
                let record = parsed(&text).inspect_err(|why| damaged.push(format!("control/{key}: {why}")));
                let record = record.unwrap_or_else(|_| ControlRecord::unreadable());
                pauses.insert(job, ControlEntry { record, version });
            }
            Err(why) => damaged.push(format!("control/{key}: {why}")),
        }
    }
    Ok(pauses)
}

/// The record of a job's pause, if it is paused. An unreadable record counts as a pause.
pub(super) fn control(db: &Connection, job: &JobName) -> rusqlite::Result<Option<ControlEntry>> {
    let found = read::versioned(db, "SELECT version, record FROM control WHERE job = ?1", job.as_str())?;
    Ok(found.map(|(version, text)| ControlEntry {
        record: parsed(&text).unwrap_or_else(|_| ControlRecord::unreadable()),
        version,
    }))
}

/// Pauses a job. Returns the pause that it replaces.
///
/// The version of the job's record is increased, so that commits a leader has in flight for the job are rejected.
pub(super) fn pause(tx: &Transaction<'_>, job: &JobName, id: Uuid, pause: Pause) -> rusqlite::Result<Option<Pause>> {
    let known = control(tx, job)?;
    let (at, id) = known.as_ref().map_or((None, id), |entry| (Some(entry.version), entry.record.id));
    put_control(tx, job, at, &ControlRecord::new(id, pause))?;
    let touched = tx.execute("UPDATE jobs SET version = version + 1 WHERE job = ?1", [job.as_str()])?;
    if touched == 0 {
        put_job(tx, job, None, &JobRecord::undecided(id))?;
    }
    Ok(known.map(|entry| entry.record.paused))
}

/// Requests the end of a job's pause. Returns the id of the pause, or `None` if the job is not paused.
pub(super) fn request_resume(tx: &Transaction<'_>, job: &JobName, resume: Resume) -> rusqlite::Result<Option<Uuid>> {
    let Some(entry) = control(tx, job)? else { return Ok(None) };
    let id = entry.record.id;
    put_control(tx, job, Some(entry.version), &ControlRecord { resume: Some(resume), ..entry.record })?;
    Ok(Some(id))
}

/// Records a trigger. Returns the id of its run, which is the same for the same uuid.
pub(super) fn trigger(tx: &Transaction<'_>, request: &TriggerRecord) -> rusqlite::Result<RunId> {
    if let Some(known) = known(tx, &request.job, request.uuid)? {
        return Ok(known);
    }
    tx.execute("INSERT INTO triggers (record) VALUES (?1)", params![Json(request)])?;
    let seq = TriggerSeq(u64::try_from(tx.last_insert_rowid()).unwrap_or_default());
    Ok(RunId::manual(request.job.clone(), request.at, seq))
}

/// Requests the end of a run. Returns its state, or `None` if it is not in flight.
pub(super) fn kill(tx: &Transaction<'_>, run: &RunId, request: KillRequest) -> rusqlite::Result<Option<RunState>> {
    let Some((mut record, at)) = read::run(tx, run)? else { return Ok(None) };
    if record.request_to_end(request) {
        put_run(tx, run, at.next(), &record)?;
    }
    Ok(Some(record.state))
}

/// Adds a link for a downstream job.
pub(super) fn add_link(tx: &Transaction<'_>, link: &Link) -> rusqlite::Result<()> {
    tx.prepare_cached("INSERT INTO triggers (record) VALUES (?1)")?.execute(params![Json(link)]).map(drop)
}

/// True while a trigger or link exists.
pub(super) fn exists(db: &Connection, seq: TriggerSeq) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM triggers WHERE seq = ?1)";
    db.prepare_cached(sql)?.query_row([seq.0.cast_signed()], |row| row.get(0))
}

/// Removes a trigger or link. Returns false if it does not exist.
pub(super) fn remove(tx: &Transaction<'_>, seq: TriggerSeq) -> rusqlite::Result<bool> {
    let removed = tx.prepare_cached("DELETE FROM triggers WHERE seq = ?1")?.execute([seq.0.cast_signed()])?;
    Ok(removed > 0)
}

/// Ends a pause, if its record has not changed since it was read.
pub(super) fn end_pause(tx: &Transaction<'_>, job: &JobName, at: Version) -> rusqlite::Result<bool> {
    if version(tx, "control", job.as_str())? != Some(at) {
        return Ok(false);
    }
    tx.prepare_cached("DELETE FROM control WHERE job = ?1")?.execute([job.as_str()])?;
    Ok(true)
}

/// The record of a run in the history, if it has ended.
pub(super) fn history_record(db: &Connection, run: &RunId) -> rusqlite::Result<Option<HistoryRecord>> {
    let sql = "SELECT record FROM history WHERE run = ?1";
    let text: Option<String> = db.query_row(sql, [run.to_string()], |row| row.get(0)).optional()?;
    Ok(text.and_then(|text| parsed(&text).ok()))
}

/// True while a run is in flight, or its trigger waits to be run.
pub(super) fn is_open(db: &Connection, run: &RunId) -> rusqlite::Result<bool> {
    // In this order, so that a begin that is written between the two reads is found.
    let waits = run.trigger().map_or(Ok(false), |seq| exists(db, seq))?;
    Ok(waits || read::run(db, run)?.is_some())
}

/// The run of an earlier trigger with this uuid: waiting, in flight or ended. `job`: whose runs are searched.
pub(super) fn known(db: &Connection, job: &JobName, uuid: Uuid) -> rusqlite::Result<Option<RunId>> {
    for (seq, text) in triggers(db)? {
        if let Some(record) = parsed::<TriggerRecord>(&text).ok().filter(|record| record.uuid == uuid) {
            return Ok(Some(RunId::manual(record.job, record.at, seq)));
        }
    }
    let running = read::rows(db)?.running().into_iter().map(|(run, _)| run);
    // The job must match too, because runs of downstream jobs carry the same trigger.
    let is_its = |run: &RunRecord| run.job == *job && run.trigger.as_ref().is_some_and(|own| own.uuid == uuid);
    if let Some(run) = running.into_iter().find(is_its) {
        return Ok(Some(run.id()));
    }
    let history = read::history(db, &Filter::of_job(job.clone()), Window::of(ALL))?.records;
    let answer = history.iter().find(|record| record.trigger().is_some_and(|own| own.uuid == uuid));
    Ok(answer.map(HistoryRecord::id))
}

fn in_history(db: &Connection, job: &JobName) -> rusqlite::Result<BTreeSet<Uuid>> {
    let history = read::history(db, &Filter::of_job(job.clone()), Window::of(ALL))?.records;
    Ok(history.iter().filter_map(|record| Some(record.trigger()?.uuid)).collect())
}

fn triggers(db: &Connection) -> rusqlite::Result<Vec<(TriggerSeq, String)>> {
    let mut statement = db.prepare_cached("SELECT seq, record FROM triggers ORDER BY seq")?;
    let rows = statement.query_map([], |row| Ok((TriggerSeq(row.get::<_, i64>(0)?.cast_unsigned()), row.get(1)?)))?;
    rows.collect()
}

fn put_control(
    tx: &Transaction<'_>,
    job: &JobName,
    at: Option<Version>,
    record: &ControlRecord,
) -> rusqlite::Result<()> {
    let version = at.map_or(Version::FIRST, Version::next);
    tx.execute(
        "REPLACE INTO control (job, version, record) VALUES (?1, ?2, ?3)",
        params![job.as_str(), version.0, Json(record)],
    )
    .map(drop)
}
