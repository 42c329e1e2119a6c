//! The last runs of the jobs, as bars and with what the failed ones wrote last, kept in memory while they are true.
//!
//! Those of a job change only when a run of it ends, and the status says which run that was. So the history of
//! a job is read again only after that, and an open page costs nothing per job. What cannot be read in a few
//! milliseconds is read on for the next request: a page never waits for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::bars::{self, Bar};
use crate::api::ApiState;
use crate::api::reads::Reads;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::RunId;

/// How long a request waits for what is read.
const BUDGET: Duration = Duration::from_millis(40);
/// Histories that are read at the same time, each of at most 256 KiB.
const AT_ONCE: usize = 4;
/// Most jobs whose runs are kept: about 2 MiB.
const MOST_JOBS: usize = 2_000;

/// The jobs of a page, each with the run of it that ended last.
pub(super) type Wanted = Vec<(JobName, Option<RunId>)>;

#[derive(Default)]
pub(super) struct BarCache {
    known: Mutex<BTreeMap<JobName, Known>>,
    /// Held by the one task that reads.
    reading: Arc<tokio::sync::Mutex<()>>,
}

struct Known {
    /// The newest run that they show.
    last: RunId,
    recent: Recent,
}

/// The last runs of a job.
#[derive(Clone, Debug, Default)]
pub(in crate::api) struct Recent {
    pub(super) bars: Vec<Bar>,
    /// What the newest ones that did not succeed wrote last; not for those who see only the outline.
    pub(super) last_lines: Vec<(RunId, String)>,
}

impl Recent {
    /// What this run wrote last.
    pub(super) fn last_line(&self, run: &RunId) -> Option<&str> {
        self.last_lines.iter().find(|(of, _)| of == run).map(|(_, line)| line.as_str())
    }
}

/// The last runs of jobs, as far as they are known.
pub(super) type Recents = BTreeMap<JobName, Recent>;

impl ApiState {
    /// The last runs of these jobs, as far as they are known in time. They may lack the very last.
    pub(super) async fn recent_runs(self: &Arc<Self>, wanted: Wanted) -> Recents {
        let cache = &self.page.bars;
        // If another task reads, this request does not wait for it.
        if let Ok(turn) = Arc::clone(&cache.reading).try_lock_owned() {
            let (state, stale) = (Arc::clone(self), cache.stale(&wanted));
            // It continues when the time is over: a slow service is read all the same.
            let reading = tokio::spawn(async move {
                state.page.bars.read(&state.reads, stale).await;
                drop(turn);
            });
            let _ = timeout(BUDGET, reading).await;
        }
        cache.as_known(wanted)
    }
}

impl BarCache {
    fn as_known(&self, wanted: Wanted) -> Recents {
        let known = self.known();
        let recent = |(job, last): (JobName, Option<RunId>)| match last {
            None => Some((job, Recent::default())),
            Some(_) => known.get(&job).map(|known| known.recent.clone()).map(|recent| (job, recent)),
        };
        wanted.into_iter().filter_map(recent).collect()
    }

    /// The jobs that had a run end since they were read.
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
            let recent = Recent { bars: bars::of(&newest.records), last_lines: bars::last_lines(&newest.records) };
            known.insert(job, Known { last, recent });
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<JobName, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
