//! How the runs of each job ended last, in the table `last`.
//!
//! Earlier versions of cronkeeper ignore the table. What they have written to the history is taken from there when the
//! table is made.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::commit::Json;
use super::read;
use cronkeeper_core::clock::system;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Last, LastSuccess};
use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd};

/// True if the table exists; otherwise [`make_table`] creates it.
pub(super) fn has_table(db: &Connection) -> rusqlite::Result<bool> {
    db.table_exists(None::<&str>, "last")
}

pub(super) fn make_table(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    if has_table(tx)? {
        return Ok(());
    }
    tx.execute_batch("CREATE TABLE last (job TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID")?;
    let mut lasts = BTreeMap::new();
    // Row ids increase in the order of writing.
    let mut records = tx.prepare("SELECT record FROM history WHERE kind = 'run' ORDER BY rowid")?;
    let mut rows = records.query([])?;
    while let Some(row) = rows.next()? {
        if let Ok(HistoryRecord::Run(end)) = read::parsed(row.get_ref(0)?.as_str().unwrap_or_default()) {
            let last = Last::after(lasts.get(&end.run.job), &end, Timestamp::MAX);
            lasts.insert(end.run.job.clone(), last);
        }
    }
    lasts.iter().try_for_each(|(job, last)| put(tx, job, last))
}

/// Moves the job's record with an end. Returns the outcome of the end that was written before it.
pub(super) fn note(tx: &Transaction<'_>, end: &RunEnd) -> rusqlite::Result<Option<Outcome>> {
    let job = &end.run.job;
    // One that cannot be read is written again.
    let last = Last::after(of(tx, job)?.and_then(Result::ok).as_ref(), end, system::now().wall);
    put(tx, job, &last)?;
    Ok(last.written.before)
}

fn put(tx: &Transaction<'_>, job: &JobName, last: &Last) -> rusqlite::Result<()> {
    let sql = "REPLACE INTO last (job, record) VALUES (?1, ?2)";
    tx.prepare_cached(sql)?.execute(params![job.as_str(), Json(last)]).map(drop)
}

/// A job's record, or why it cannot be read.
fn of(db: &Connection, job: &JobName) -> rusqlite::Result<Option<Result<Last, String>>> {
    let sql = "SELECT record FROM last WHERE job = ?1";
    // Whatever it is, no text is a record that cannot be read.
    let parsed = |row: &Row<'_>| Ok(read::parsed(row.get_ref(0)?.as_str().unwrap_or_default()));
    db.prepare_cached(sql)?.query_row([job.as_str()], parsed).optional()
}

/// When the job last succeeded.
pub(super) fn success(db: &Connection, job: &JobName) -> rusqlite::Result<LastSuccess> {
    Ok(match of(db, job)? {
        Some(Ok(last)) => last.success.into(),
        Some(Err(_)) => LastSuccess::Unreadable,
        None => LastSuccess::Never,
    })
}

/// The records of all jobs. Leaves out those that cannot be read.
pub(super) fn all(db: &Connection) -> rusqlite::Result<BTreeMap<JobName, Last>> {
    let mut statement = db.prepare_cached("SELECT job, record FROM last")?;
    let mut rows = statement.query([])?;
    let mut lasts = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let text = |index| Ok::<_, rusqlite::Error>(row.get_ref(index)?.as_str().unwrap_or_default());
        if let (Ok(job), Ok(last)) = (JobName::parse(text(0)?), read::parsed(text(1)?)) {
            lasts.insert(job, last);
        }
    }
    Ok(lasts)
}
