//! Counts a job from now on again, by a write at the version of its record that was read first.
//!
//! What else decides is read after the record: a leader that decides on another occurrence meanwhile changes the record,
//! and the write fails. A run moves to the history when it ends, so the runs in flight are read before the history.

use super::{Doubt, LedgerReader, TRIES, Written, busy, write};
use crate::paths;
use crate::recipes::context::{self, At as _, SessionError, json};
use crate::recipes::{bounded, requests};
use crate::tree::{Error, Lend, Session};
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Decisions, HistoryRecord, JobRecord, NotRecounted, RecountRequest, Recounted, RunId};

impl<L: Lend> LedgerReader<L> {
    pub(super) async fn recounted(
        &self,
        job: &JobName,
        request: &RecountRequest,
        doubt: &Doubt,
    ) -> Result<Result<Recounted, NotRecounted>, SessionError> {
        let path = paths::job(job);
        for _ in 0..TRIES {
            let client = self.line().await?;
            // A server that lags behind does not know the newest decisions.
            context::catch_up(&client).await?;
            let (data, stat) = match client.get(&path).await {
                Ok(found) => found,
                Err(Error::Missing) => return Ok(Err(NotRecounted::Uncounted)),
                Err(error) => return Err(error).at(&path),
            };
            let record: JobRecord = match bounded::SMALL.parse(&data) {
                Ok(record) => record,
                Err(why) => return Ok(Err(NotRecounted::Unreadable(why))),
            };
            let (record, recounted) = match record.recounted(&decisions(&client, job).await?, request) {
                Ok(counted) => counted,
                Err(why) => return Ok(Err(why)),
            };
            let set = write(path.clone(), json(&record), Some(stat.version));
            match doubt.write(&client, vec![set, requests::notify_leader(paths::CONTROL)], &path).await? {
                Written::Done(_) => return Ok(Ok(recounted)),
                Written::Superseded => {}
                // Written once, it would be refused the second time.
                Written::Unanswered => return Err(SessionError::Again("no answer".to_owned())),
            }
        }
        Err(busy())
    }
}

async fn decisions<C: Session>(client: &C, job: &JobName) -> Result<Decisions, SessionError> {
    let mut decisions = Decisions::default();
    let running = context::names(client, paths::RUNNING).await?;
    let running = running.iter().filter_map(|name| RunId::parse(name).ok());
    running.filter(|run| run.job() == job).for_each(|run| decisions.add_in_flight(run));
    let parent = paths::job_history(job);
    let names = context::newest_history(client, job, usize::MAX).await?;
    // A few at a time, because together they may be large.
    for names in names.chunks(bounded::HISTORY.count) {
        let found = context::get_history(client, &parent, names.to_vec()).await?.found;
        let read = |name: &String| {
            let (_, data, _) = found.iter().find(|(found, ..)| found == name)?;
            bounded::HISTORY.parse::<HistoryRecord>(data).ok()
        };
        for name in names {
            match (read(name), RunId::parse(name)) {
                (Some(record), _) => decisions.add_record(&record),
                // Also one that was trimmed just now.
                (None, Ok(run)) => decisions.add_unreadable(&run),
                (None, Err(_)) => {}
            }
        }
    }
    Ok(decisions)
}
