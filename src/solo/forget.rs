//! What is kept of jobs that are gone from the files of all members is removed, after a time.
//!
//! The table `gone` says since when a job is. Versions before it know nothing of the table, and leave it as it is.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, params};

use crate::job::JobName;
use crate::run::{Note, RunId};

/// Most jobs that one transaction removes: bounds how long other processes wait for theirs.
const MOST_JOBS: usize = 100;

pub(super) fn make_table(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute_batch("CREATE TABLE IF NOT EXISTS gone (job TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID")
}

/// Notes which jobs are gone, for they are not among those `defined`, and removes what is kept of those that have been for so long,
/// and of which nothing was recorded since. Of each that was removed, how many records its history had.
pub(super) fn all(
    tx: &Transaction<'_>,
    defined: &BTreeSet<JobName>,
    now: Timestamp,
    after: Duration,
) -> rusqlite::Result<Vec<(JobName, usize)>> {
    let mut gone: BTreeSet<JobName> = jobs(tx, KEPT)?;
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
    let due: BTreeSet<JobName> = named(tx.prepare(OVER)?.query_map([over], |row| row.get(0))?)?;
    let due = due.into_iter().filter(|job| gone.contains(job) && !busy.contains(job));
    due.take(MOST_JOBS).map(|job| remove(tx, &job).map(|records| (job, records))).collect()
}

/// The jobs of which anything is kept.
const KEPT: &str = "SELECT job FROM jobs UNION SELECT DISTINCT job FROM history UNION SELECT job FROM control";
/// The jobs that are gone since before an instant, and of which nothing was recorded after it.
const OVER: &str = "SELECT job FROM gone WHERE since <= ?1
                    AND NOT EXISTS (SELECT 1 FROM history WHERE history.job = gone.job AND history.at > ?1)";

fn jobs(db: &Connection, sql: &str) -> rusqlite::Result<BTreeSet<JobName>> {
    let mut statement = db.prepare(sql)?;
    named(statement.query_map([], |row| row.get(0))?)
}

/// What is no name of a job is not ours to remove.
fn named(rows: impl Iterator<Item = rusqlite::Result<String>>) -> rusqlite::Result<BTreeSet<JobName>> {
    rows.filter_map(|name| name.map(|name| JobName::parse(&name).ok()).transpose()).collect()
}

/// The jobs that have a run in flight, or that are to run.
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
    for sql in
        ["DELETE FROM control WHERE job = ?1", "DELETE FROM jobs WHERE job = ?1", "DELETE FROM gone WHERE job = ?1"]
    {
        tx.prepare_cached(sql)?.execute([job.as_str()])?;
    }
    Ok(records)
}
