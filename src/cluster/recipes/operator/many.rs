//! Requests about many jobs at once, a few dozen in each multi.
//!
//! If another writer gets in between, the jobs of that multi are written one by one.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use uuid::Uuid;

use super::{Doubt, LedgerReader, Written, put_pause, put_resume, touch};
use crate::paths;
use crate::recipes::context::{self, SessionError};
use crate::recipes::requests;
use crate::tree::{Lend, Session as _};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{ControlEntry, Each};
use cronkeeper_core::run::{Pause, Resume};

/// Most jobs in a commit.
const AT_ONCE: usize = 50;
/// Writes for each of them.
const WRITES: usize = 2;
/// Multis in flight: few, because commits share the servers.
const IN_FLIGHT: usize = 4;

impl<L: Lend> LedgerReader<L> {
    pub(super) async fn paused_all(
        &self,
        jobs: &[(JobName, Uuid)],
        pause: &Pause,
        doubt: &Doubt,
    ) -> Result<Each<Option<Pause>>, SessionError> {
        let most = AT_ONCE.min(self.line().await?.limits().jobs(WRITES));
        let chunks = jobs.chunks(most).map(<[_]>::to_vec).collect::<Vec<_>>();
        joined(stream::iter(chunks).map(|jobs| self.paused_together(jobs, pause, doubt))).await
    }

    async fn paused_together(
        &self,
        jobs: Vec<(JobName, Uuid)>,
        pause: &Pause,
        doubt: &Doubt,
    ) -> Result<Each<Option<Pause>>, SessionError> {
        let client = self.line().await?;
        let names = || jobs.iter().map(|(job, _)| job.to_string()).collect::<Vec<_>>();
        // The records first: a pause that is written between the two reads changes a record, and the multi fails.
        let records = context::get_small(&client, paths::JOBS, names()).await?;
        let mut controls = requests::pauses_of(&client, names()).await?;
        let mut ops = vec![requests::notify_leader(paths::CONTROL)];
        let mut each = Each::default();
        let mut records: BTreeMap<String, _> =
            records.found.into_iter().map(|(name, data, stat)| (name, (data, stat.version))).collect();
        for (job, id) in &jobs {
            let (control, was) = put_pause(job, *id, pause, controls.remove(job));
            ops.extend([control, touch(job, *id, records.remove(job.as_str()))]);
            each.done.insert(job.clone(), was);
        }
        let written = doubt.write(&client, ops, paths::CONTROL).await;
        if let Ok(Written::Done(_)) = written {
            return Ok(each);
        }
        let is_unclear = matches!(written, Ok(Written::Unanswered));
        let (mut first, mut each) = (each.done, Each::default());
        for (job, id) in &jobs {
            let tried = first.remove(job).filter(|_| is_unclear);
            put(&mut each, job, self.paused(job, *id, pause, tried, doubt).await)?;
        }
        Ok(each)
    }

    pub(super) async fn resumes_requested(
        &self,
        jobs: &[JobName],
        resume: &Resume,
        doubt: &Doubt,
    ) -> Result<Each<Option<Uuid>>, SessionError> {
        let most = AT_ONCE.min(self.line().await?.limits().jobs(WRITES));
        let chunks = jobs.chunks(most).map(<[_]>::to_vec).collect::<Vec<_>>();
        joined(stream::iter(chunks).map(|jobs| self.resumes_requested_together(jobs, resume, doubt))).await
    }

    async fn resumes_requested_together(
        &self,
        jobs: Vec<JobName>,
        resume: &Resume,
        doubt: &Doubt,
    ) -> Result<Each<Option<Uuid>>, SessionError> {
        let client = self.line().await?;
        let mut controls: BTreeMap<JobName, ControlEntry> =
            requests::pauses_of(&client, jobs.iter().map(JobName::to_string).collect()).await?;
        let (mut ops, mut each) = (vec![requests::notify_leader(paths::CONTROL)], Each::default());
        let mut found = BTreeMap::new();
        for job in &jobs {
            let control = controls.remove(job);
            found.extend(control.as_ref().map(|was| (job.clone(), (was.record.id, was.version))));
            let asked = control.map(|was| put_resume(job, resume, was));
            each.done.insert(job.clone(), asked.as_ref().map(|(_, id)| *id));
            ops.extend(asked.map(|(op, _)| op));
        }
        if found.is_empty() {
            return Ok(each);
        }
        let written = doubt.write(&client, ops, paths::CONTROL).await;
        if let Ok(Written::Done(_)) = written {
            return Ok(each);
        }
        let is_unclear = matches!(written, Ok(Written::Unanswered));
        let mut each = Each::default();
        for job in &jobs {
            let tried = found.remove(job).filter(|_| is_unclear);
            put(&mut each, job, self.resume_requested(job, resume, tried, doubt).await)?;
        }
        Ok(each)
    }
}

async fn joined<T>(
    chunks: impl stream::Stream<Item = impl Future<Output = Result<Each<T>, SessionError>>>,
) -> Result<Each<T>, SessionError> {
    let join = |mut all: Each<T>, each: Each<T>| async {
        all.done.extend(each.done);
        all.failed.extend(each.failed);
        Ok(all)
    };
    chunks.buffer_unordered(IN_FLIGHT).try_fold(Each::default(), join).await
}

/// Notes what became of a job. An error that is not about this job is passed on.
fn put<T>(each: &mut Each<T>, job: &JobName, result: Result<T, SessionError>) -> Result<(), SessionError> {
    match result {
        Ok(result) => drop(each.done.insert(job.clone(), result)),
        Err(error @ SessionError::NoAuth(_)) => drop(each.failed.insert(job.clone(), error.to_string())),
        Err(error) => return Err(error),
    }
    Ok(())
}
