//! Ledger reads for API clients: with a timeout, and cached, so that many clients cost as little as one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::admission::Admitted;
use crate::clock::{Uptime, system};
use crate::coordination::{ReadError, ReadFuture, Reader};
use crate::election::Queue;
use crate::job::JobName;
use crate::ledger::{LastEnd, Newest, Window};
use crate::run::{Link, Pause};
use crate::status::{LastRun, RunStatus};

/// Timeout of a read.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Age up to which the cached queue and runs are used, and the cached failure of any read.
const FRESH: Duration = Duration::from_secs(1);
/// Age up to which cached last outcomes are used: on ZooKeeper they cost one or two requests per job.
const LASTS_FRESH: Duration = Duration::from_secs(15);
/// The last outcome of each job.
pub(super) type LastRuns = BTreeMap<JobName, LastRun>;

/// The state that only the leader keeps in memory; other nodes read it from the ledger.
#[derive(Debug, PartialEq)]
pub(super) struct LeaderState {
    /// The runs in flight.
    pub runs: Vec<RunStatus>,
    pub paused: BTreeMap<JobName, Pause>,
    /// Results of upstreams for jobs that still wait for other upstreams.
    pub links: Vec<Link>,
}

/// The ledger's reader, with its cached answers.
pub(super) struct Reads {
    reader: Arc<dyn Reader>,
    queue: CachedRead<Queue>,
    runs: CachedRead<LeaderState>,
    lasts: CachedRead<LastRuns>,
}

impl Reads {
    pub fn new(reader: Arc<dyn Reader>) -> Self {
        Self { reader, queue: CachedRead::default(), runs: CachedRead::default(), lasts: CachedRead::default() }
    }

    /// The queue of candidates and the members.
    pub async fn queue(&self) -> Result<Arc<Queue>, ReadError> {
        self.queue.get(FRESH, || self.reader.queue()).await
    }

    /// The runs in flight on all nodes, the paused jobs, and the results that dependents wait with.
    pub async fn runs(&self) -> Result<Arc<LeaderState>, ReadError> {
        let read = || -> ReadFuture<'_, LeaderState> {
            Box::pin(async {
                let snapshot = self.reader.snapshot().await?;
                let runs = snapshot.running.iter().map(|running| RunStatus::from(&running.record)).collect();
                let paused = snapshot.requests.control.into_iter().map(|(job, entry)| (job, entry.record.paused));
                let links = snapshot.requests.links.into_values().collect();
                Ok(LeaderState { runs, paused: paused.collect(), links })
            })
        };
        self.runs.get(FRESH, read).await
    }

    /// The last outcome of each job that still has one in the history.
    pub async fn lasts(&self) -> Result<Arc<LastRuns>, ReadError> {
        let shown = |LastEnd { run, outcome, at }| LastRun { run, outcome, at };
        let read = || -> ReadFuture<'_, LastRuns> {
            Box::pin(async {
                Ok(self.reader.lasts().await?.into_iter().map(|(job, last)| (job, shown(last))).collect())
            })
        };
        self.lasts.get(LASTS_FRESH, read).await
    }

    /// The newest records. Not cached, because the requests differ; instead, each connection waits for its turn.
    pub async fn history(
        &self,
        admitted: &Admitted,
        job: Option<JobName>,
        records: usize,
    ) -> Result<Newest, ReadError> {
        let window = Window { records, bytes: admitted.history_limit() };
        bounded(async {
            let _turn = admitted.history_permits().await;
            self.reader.history(job, window).await
        })
        .await
    }
}

/// The cached answer of a read.
///
/// Failures are cached too, because they take the longest, but only for [`FRESH`], so that a recovery shows up soon.
struct CachedRead<T>(Mutex<Option<CachedAnswer<T>>>);

/// The time of a read, and its result.
type CachedAnswer<T> = (Uptime, Result<Arc<T>, ReadError>);

impl<T> Default for CachedRead<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> CachedRead<T> {
    /// Returns the cached answer if it is fresh, else reads. Concurrent callers wait for one read.
    ///
    /// If this future is dropped while reading, nothing is cached, and the next caller reads.
    async fn get<'a>(&self, fresh: Duration, read: impl FnOnce() -> ReadFuture<'a, T>) -> Result<Arc<T>, ReadError> {
        let mut cached = self.0.lock().await;
        if let Some((at, answer)) = &*cached
            && system::uptime().since(*at) < if answer.is_ok() { fresh } else { FRESH }
        {
            return answer.clone();
        }
        let answer = bounded(read()).await.map(Arc::new);
        *cached = Some((system::uptime(), answer.clone()));
        answer
    }
}

async fn bounded<T>(read: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    let late = |_| Err(ReadError(format!("no answer within {} s", TIMEOUT.as_secs())));
    timeout(TIMEOUT, read).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cached_failure_is_soon_read_again() {
        let cached = CachedRead::default();
        let long = Duration::from_secs(3_600);
        let failed = cached.get(long, || Box::pin(async { Err(ReadError("away".into())) })).await;
        assert_eq!(failed, Err(ReadError("away".into())));
        let back = async {
            while cached.get(long, || Box::pin(async { Ok(1) })).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), back).await.unwrap();
    }
}
