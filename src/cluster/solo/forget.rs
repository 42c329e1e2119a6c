//! Removal of the records of jobs that no member's files have defined for some time.
//!
//! The table `gone` records since when a job has been missing. Earlier versions of cronkeeper ignore the table.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, params};

use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Note, RunId};

/// Maximum jobs removed in one transaction. It limits how long other processes wait for theirs.
const MAX_JOBS: usize = 100;

/// True if the table exists; otherwise [`make_table`] creates it.
pub(super) fn has_table(db: &Connection) -> rusqlite::Result<bool> {
    db.table_exists(None::<&str>, "gone")
}

pub(super) fn make_table(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute_batch("CREATE TABLE IF NOT EXISTS gone (job TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID")
}

/// Records which jobs are missing from `defined`, and removes all records of those missing for at least `after`.
///
/// Jobs with runs in flight, with pending triggers or with later history are kept. Returns the removed jobs, each with
/// the number of its history records.
pub(super) fn all(
    tx: &Transaction<'_>,
    defined: &BTreeSet<JobName>,
    now: Timestamp,
    after: Duration,
) -> rusqlite::Result<Vec<(JobName, usize)>> {
    let mut gone: BTreeSet<JobName> = jobs(tx, RECORDED_JOBS)?;
    gone.retain(|job| !defined.contains(job));
    for back in jobs(tx, "SELECT job FROM gone")?.difference(&gone) {
        tx.prepare_cached("DELETE FROM gone WHERE job = ?1")?.execute([back.as_str()])?;
    }
    for job in &gone {
        let sql = "INSERT OR IGNORE INTO gone (job, since) VALUES (?1, ?2)";
        tx.prepare_cached(sql)?.execute(params![job.as_str(), now.as_microsecond()])?;
    }
    let busy = busy(tx)?;
    let over = now.as_microsecond().saturating_sub(i64::try_from(after.as_micros()).unwrap_or(i64::MAX));
    let due: BTreeSet<JobName> = parse_names(tx.prepare(DUE_JOBS)?.query_map([over], |row| row.get(0))?)?;
    let due = due.into_iter().filter(|job| gone.contains(job) && !busy.contains(job));
    due.take(MAX_JOBS).map(|job| remove(tx, &job).map(|records| (job, records))).collect()
}

/// All jobs with records.
const RECORDED_JOBS: &str = "SELECT job FROM jobs UNION SELECT DISTINCT job FROM history
                             UNION SELECT job FROM last UNION SELECT job FROM control";
/// The jobs that have been missing since before an instant and have no history after it.
const DUE_JOBS: &str = "SELECT job FROM gone WHERE since <= ?1
                    AND NOT EXISTS (SELECT 1 FROM history WHERE history.job = gone.job AND history.at > ?1)";

fn jobs(db: &Connection, sql: &str) -> rusqlite::Result<BTreeSet<JobName>> {
    let mut statement = db.prepare(sql)?;
    parse_names(statement.query_map([], |row| row.get(0))?)
}

/// Parses job names and leaves out invalid ones: cronkeeper did not write them, so it must not remove them.
fn parse_names(rows: impl Iterator<Item = rusqlite::Result<String>>) -> rusqlite::Result<BTreeSet<JobName>> {
    rows.filter_map(|name| name.map(|name| JobName::parse(&name).ok()).transpose()).collect()
}

/// The jobs with a run in flight, a trigger or a link.
fn busy(db: &Connection) -> rusqlite::Result<BTreeSet<JobName>> {
    let mut busy = BTreeSet::new();
    for row in db.prepare("SELECT run FROM running")?.query_map([], |row| row.get::<_, String>(0))? {
        busy.extend(RunId::parse(&row?).ok().map(|run| run.job().clone()));
    }
    for row in db.prepare("SELECT record FROM triggers")?.query_map([], |row| row.get::<_, String>(0))? {
        busy.extend(Note::read(row?.as_bytes()).ok().map(Note::into_job));
    }
    Ok(busy)
}

fn remove(tx: &Transaction<'_>, job: &JobName) -> rusqlite::Result<usize> {
    let records = tx.prepare_cached("DELETE FROM history WHERE job = ?1")?.execute([job.as_str()])?;
    for sql in [
        "DELETE FROM last WHERE job = ?1",
        "DELETE FROM control WHERE job = ?1",
        "DELETE FROM jobs WHERE job = ?1",
        "DELETE FROM gone WHERE job = ?1",
    ] {
        tx.prepare_cached(sql)?.execute([job.as_str()])?;
    }
    Ok(records)
}
