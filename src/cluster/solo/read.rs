//! Reads of the ledger's tables.
//!
//! A record that cannot be read is listed as damaged and does not prevent the others from being read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};
use serde::de::DeserializeOwned;

use super::members::{MemberName, Members};
use super::requests;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{
    Filter, Gathering, JobEntry, MOST_LOOKED_UP, Newest, OperatorRequests, OwnerState, RECORDS_LOOKED_UP, Running,
    Snapshot, Window, unreadable,
};
use cronkeeper_core::run::{HistoryRecord, RunId, RunRecord, Version};

/// The ledger without the history, and without the state of the runs' owners.
#[derive(Debug, Default)]
pub(super) struct Rows {
    jobs: BTreeMap<JobName, JobEntry>,
    running: Vec<(RunRecord, Version)>,
    requests: OperatorRequests,
    /// The newest history of jobs whose records are damaged.
    histories: BTreeMap<JobName, Vec<HistoryRecord>>,
    damaged: Vec<String>,
}

impl Rows {
    /// Adds the state of the owners.
    ///
    /// A dead member counts as alive while its files exist: they are removed only once its processes are dead, and then
    /// the watchers of its runs are notified.
    pub(super) fn with_owners(self, members: &Members) -> Snapshot {
        let owned = |(record, version): (RunRecord, Version)| {
            let reaped = members.is_reaped(&owner(&record));
            let owner = if reaped { OwnerState::Dead } else { OwnerState::Alive };
            Running { record, version, owner }
        };
        let running = self.running.into_iter().map(owned).collect();
        let (jobs, requests, damaged) = (self.jobs, self.requests, self.damaged);
        let mut snapshot = Snapshot { jobs, running, requests, damaged, ..Snapshot::default() };
        self.histories.into_iter().for_each(|(job, records)| snapshot.note_decided(&job, records));
        snapshot
    }

    pub(super) fn running(self) -> Vec<(RunRecord, Version)> {
        self.running
    }
}

/// The member that owns a run.
pub(super) fn owner(run: &RunRecord) -> MemberName {
    MemberName { node: run.owner.node.clone(), session: run.owner.session.clone() }
}

pub(super) fn rows(db: &Connection) -> rusqlite::Result<Rows> {
    let mut rows = Rows::default();
    for (key, version, text) in triples(db, "SELECT job, version, record FROM jobs ORDER BY job")? {
        match JobName::parse(&key) {
            Ok(job) => {
                let record = parsed(&text).map_err(|why| rows.damaged.push(format!("jobs/{key}: {why}"))).ok();
                rows.jobs.insert(job, JobEntry { record, version });
            }
            Err(why) => rows.damaged.push(format!("jobs/{key}: {why}")),
        }
    }
    rows.running = running(db, &mut rows.damaged)?;
    rows.requests = requests::read(db, &mut rows.damaged)?;
    // Oldest first: a new leader settles them in this order.
    rows.running.sort_by(|(a, _), (b, _)| (a.scheduled_at, &a.job).cmp(&(b.scheduled_at, &b.job)));
    Ok(rows)
}

/// What [`rows`] reads, and the newest history of jobs whose records are damaged: only a new leader needs that.
pub(super) fn rows_for_takeover(db: &Connection) -> rusqlite::Result<Rows> {
    let mut rows = rows(db)?;
    for job in unreadable(&rows.jobs).take(MOST_LOOKED_UP) {
        let newest = history(db, &Filter::of_job(job.clone()), Window::of(RECORDS_LOOKED_UP))?;
        rows.histories.insert(job.clone(), newest.records);
    }
    Ok(rows)
}

/// The readable runs in flight. Unreadable ones are added to `damaged`.
pub(super) fn running(db: &Connection, damaged: &mut Vec<String>) -> rusqlite::Result<Vec<(RunRecord, Version)>> {
    let mut running = Vec::new();
    for (key, version, text) in triples(db, "SELECT run, version, record FROM running ORDER BY run")? {
        match RunRecord::read(text.as_bytes()) {
            Ok(record) => running.push((record, version)),
            Err(why) => damaged.push(format!("running/{key}: {why}")),
        }
    }
    Ok(running)
}

pub(super) fn job(db: &Connection, job: &JobName) -> rusqlite::Result<Option<JobEntry>> {
    let sql = "SELECT version, record FROM jobs WHERE job = ?1";
    let found = versioned(db, sql, job.as_str())?;
    Ok(found.map(|(version, text)| JobEntry { record: parsed(&text).ok(), version }))
}

/// The version of each run in flight, without reading the records.
pub(super) fn run_versions(db: &Connection) -> rusqlite::Result<BTreeMap<String, Version>> {
    let mut statement = db.prepare_cached("SELECT run, version FROM running")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, Version(row.get(1)?))))?;
    rows.collect()
}

/// The runs and skips that the history has of a job.
pub(super) fn recorded(db: &Connection, job: &JobName) -> rusqlite::Result<Vec<RunId>> {
    let mut statement = db.prepare_cached("SELECT run FROM history WHERE job = ?1")?;
    let rows = statement.query_map([job.as_str()], |row| row.get::<_, String>(0))?;
    rows.filter_map(|run| run.map(|run| RunId::parse(&run).ok()).transpose()).collect()
}

/// A run in flight, if it exists and can be read.
pub(super) fn run(db: &Connection, run: &RunId) -> rusqlite::Result<Option<(RunRecord, Version)>> {
    let sql = "SELECT version, record FROM running WHERE run = ?1";
    let found = versioned(db, sql, &run.to_string())?;
    Ok(found.and_then(|(version, text)| RunRecord::read(text.as_bytes()).ok().map(|record| (record, version))))
}

/// The newest records that the filter wants, newest first, without unreadable ones.
pub(super) fn history(db: &Connection, filter: &Filter, window: Window) -> rusqlite::Result<Newest> {
    history_within(db, filter, window, Duration::MAX)
}

/// The same for a caller who waits no longer than `patience`. If that is not enough, the rest is cut.
pub(super) fn history_within(
    db: &Connection,
    filter: &Filter,
    window: Window,
    patience: Duration,
) -> rusqlite::Result<Newest> {
    let mut statement = db.prepare_cached(match filter.only_job() {
        Some(_) => {
            "SELECT record, job FROM history INDEXED BY history_of_job WHERE job = ?1 AND at BETWEEN ?2 AND ?3
             ORDER BY at DESC, run DESC"
        }
        None => {
            "SELECT record, job FROM history INDEXED BY history_by_time WHERE ?1 IS NULL AND at BETWEEN ?2 AND ?3
             ORDER BY at DESC, run DESC"
        }
    })?;
    let (since, until) = filter.times();
    let mut rows = statement.query(params![filter.only_job(), since, until])?;
    let (mut gathering, begun, mut is_late) = (Gathering::new(window), Instant::now(), false);
    while !gathering.is_full()
        && !is_late
        && let Some(row) = rows.next()?
    {
        // Records of other jobs need not be parsed for that.
        if filter.wants_job(row.get_ref(1)?.as_str().unwrap_or_default()) {
            let text = row.get_ref(0)?.as_str().unwrap_or_default();
            let record = parsed(text).ok();
            gathering.note_unreadable(usize::from(record.is_none()));
            let wanted = record.filter(|record| filter.matches(record));
            gathering.extend(wanted.map(|record| (record, text.len())));
        }
        is_late = begun.elapsed() >= patience;
    }
    let newest = gathering.newest();
    Ok(Newest { is_cut: newest.is_cut || is_late, ..newest })
}

pub(super) fn versioned(db: &Connection, sql: &str, key: &str) -> rusqlite::Result<Option<(Version, String)>> {
    db.prepare_cached(sql)?.query_row([key], |row| Ok((Version(row.get(0)?), row.get(1)?))).optional()
}

pub(super) fn triples(db: &Connection, sql: &str) -> rusqlite::Result<Vec<(String, Version, String)>> {
    let mut statement = db.prepare_cached(sql)?;
    statement.query_map([], |row| Ok((row.get(0)?, Version(row.get(1)?), row.get(2)?)))?.collect()
}

pub(super) fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
