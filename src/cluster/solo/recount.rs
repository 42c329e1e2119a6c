//! Counts a job from now on again. The transaction that writes its record has read everything that this depends on.

use rusqlite::{Connection, Transaction};

use super::commit::put_job;
use super::read::{self, parsed};
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Decisions, HistoryRecord, JobRecord, NotRecounted, RecountRequest, Recounted, RunId};

pub(super) fn recount(
    tx: &Transaction<'_>,
    job: &JobName,
    request: &RecountRequest,
) -> rusqlite::Result<Result<Recounted, NotRecounted>> {
    let sql = "SELECT version, record FROM jobs WHERE job = ?1";
    let Some((at, text)) = read::versioned(tx, sql, job.as_str())? else { return Ok(Err(NotRecounted::Uncounted)) };
    let record: JobRecord = match parsed(&text) {
        Ok(record) => record,
        Err(why) => return Ok(Err(NotRecounted::Unreadable(why))),
    };
    match record.recounted(&decisions(tx, job)?, request) {
        Ok((record, done)) => put_job(tx, job, Some(at), &record).map(|()| Ok(done)),
        Err(why) => Ok(Err(why)),
    }
}

fn decisions(db: &Connection, job: &JobName) -> rusqlite::Result<Decisions> {
    let mut decisions = Decisions::default();
    let running = read::run_versions(db)?.into_keys().filter_map(|run| RunId::parse(&run).ok());
    running.filter(|run| run.job() == job).for_each(|run| decisions.add_in_flight(run));
    let mut statement = db.prepare_cached("SELECT run, record FROM history WHERE job = ?1")?;
    let mut rows = statement.query([job.as_str()])?;
    while let Some(row) = rows.next()? {
        let run = RunId::parse(row.get_ref(0)?.as_str().unwrap_or_default());
        match (parsed::<HistoryRecord>(row.get_ref(1)?.as_str().unwrap_or_default()), run) {
            (Ok(record), _) => decisions.add_record(&record),
            (Err(_), Ok(run)) => decisions.add_unreadable(&run),
            (Err(_), Err(_)) => {}
        }
    }
    Ok(decisions)
}
