//! The bars of the jobs, kept in memory while they are true.
//!
//! A job's bars change only when a run of it ends, and the status says which run of a job ended last. So the history of
//! a job is read again only after that, and an open page costs nothing per job. What cannot be read in a few
//! milliseconds is left to the next request: a page never waits for its bars.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::bars::{self, Bar};
use crate::api::reads::Reads;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::RunId;

/// How long a request may read.
const BUDGET: Duration = Duration::from_millis(40);
/// Histories that are read at the same time, each of at most 256 KiB.
const AT_ONCE: usize = 4;
/// Most jobs whose bars are kept: about 1 MiB.
const MOST_JOBS: usize = 2_000;

/// The jobs of a page, each with the run of it that ended last.
pub(super) type Wanted = Vec<(JobName, Option<RunId>)>;

#[derive(Default)]
pub(super) struct BarCache {
    known: Mutex<BTreeMap<JobName, Known>>,
    /// Held by the one request that reads.
    reading: tokio::sync::Mutex<()>,
}

struct Known {
    /// The newest run that the bars show.
    last: RunId,
    bars: Vec<Bar>,
}

impl BarCache {
    /// The bars of these jobs, as far as they are known in time. They may be older than the last run.
    pub async fn of(&self, reads: &Reads, wanted: Wanted) -> BTreeMap<JobName, Vec<Bar>> {
        // If another request reads, this one does not wait for it.
        if let Ok(_turn) = self.reading.try_lock() {
            // Dropping a read loses only its answer.
            let _ = timeout(BUDGET, self.read(reads, self.stale(&wanted))).await;
        }
        let known = self.known();
        let bars = |(job, last): (JobName, Option<RunId>)| match last {
            None => Some((job, Vec::new())),
            Some(_) => known.get(&job).map(|known| known.bars.clone()).map(|bars| (job, bars)),
        };
        wanted.into_iter().filter_map(bars).collect()
    }

    /// The jobs of which a run has ended since their bars were read.
    fn stale(&self, wanted: &Wanted) -> Vec<(JobName, RunId)> {
        let known = self.known();
        let is_stale = |(job, last): &(JobName, RunId)| known.get(job).is_none_or(|known| known.last != *last);
        wanted.iter().filter_map(|(job, last)| Some((job.clone(), last.clone()?))).filter(is_stale).collect()
    }

    async fn read(&self, reads: &Reads, stale: Vec<(JobName, RunId)>) {
        let each = stream::iter(stale).map(async |(job, last)| (reads.newest_of(job.clone()).await, job, last));
        let mut each = std::pin::pin!(each.buffer_unordered(AT_ONCE));
        while let Some((newest, job, last)) = each.next().await {
            // The ledger does not answer: the next request tries again.
            let Ok(newest) = newest else { return };
            let mut known = self.known();
            if known.len() >= MOST_JOBS && !known.contains_key(&job) {
                known.clear();
            }
            known.insert(job, Known { last, bars: bars::of(&newest.records) });
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<JobName, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
