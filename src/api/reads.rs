//! Reads of the ledger on behalf of whoever asks: bounded in time, and shared, so that many who watch cost as little
//! as one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::guests::Guest;
use crate::clock::{Uptime, system};
use crate::election::Queue;
use crate::job::JobName;
use crate::ledger::{LastEnd, Newest, ReadError, ReadFuture, Reader, Window};
use crate::run::{Link, Pause};
use crate::status::{LastRun, RunStatus};

/// How long a read may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long the queue and what is in flight are shown again.
const FRESH: Duration = Duration::from_secs(1);
/// The same for last outcomes: on ZooKeeper they cost a request or two for each job.
const LASTS_FRESH: Duration = Duration::from_secs(15);
/// The last outcome of each job.
pub(super) type Lasts = BTreeMap<JobName, LastRun>;

/// What only the leader is told of as it happens.
#[derive(Debug, PartialEq)]
pub(super) struct Elsewhere {
    /// The runs in flight.
    pub runs: Vec<RunStatus>,
    /// The paused jobs.
    pub paused: BTreeMap<JobName, Pause>,
    /// What upstreams said to jobs that wait for more.
    pub links: Vec<Link>,
}

/// The reader, and what it gave lately.
pub(super) struct Reads {
    reader: Arc<dyn Reader>,
    queue: Shared<Queue>,
    runs: Shared<Elsewhere>,
    lasts: Shared<Lasts>,
}

impl Reads {
    pub fn new(reader: Arc<dyn Reader>) -> Self {
        Self { reader, queue: Shared::default(), runs: Shared::default(), lasts: Shared::default() }
    }

    /// The queue and the living nodes.
    pub async fn queue(&self) -> Result<Arc<Queue>, ReadError> {
        self.queue.get(FRESH, || self.reader.queue()).await
    }

    /// What is in flight, on whichever node, and what is paused.
    pub async fn runs(&self) -> Result<Arc<Elsewhere>, ReadError> {
        let read = || -> ReadFuture<'_, Elsewhere> {
            Box::pin(async {
                let snapshot = self.reader.snapshot().await?;
                let runs = snapshot.running.iter().map(|running| RunStatus::from(&running.record)).collect();
                let paused = snapshot.requests.control.into_iter().map(|(job, entry)| (job, entry.record.paused));
                let links = snapshot.requests.links.into_values().collect();
                Ok(Elsewhere { runs, paused: paused.collect(), links })
            })
        };
        self.runs.get(FRESH, read).await
    }

    /// How jobs ended last, as far back as is looked.
    pub async fn lasts(&self) -> Result<Arc<Lasts>, ReadError> {
        let shown = |LastEnd { run, outcome, at }| LastRun { run, outcome, at };
        let read = || -> ReadFuture<'_, Lasts> {
            Box::pin(async {
                Ok(self.reader.lasts().await?.into_iter().map(|(job, last)| (job, shown(last))).collect())
            })
        };
        self.lasts.get(LASTS_FRESH, read).await
    }

    /// The newest records. Not shared, for each time it is asked for something else: `guest` waits for his turn.
    pub async fn history(&self, guest: &Guest, job: Option<JobName>, records: usize) -> Result<Newest, ReadError> {
        let window = Window { records, bytes: guest.most_of_history() };
        bounded(async {
            let _turn = guest.history().await;
            self.reader.history(job, window).await
        })
        .await
    }
}

/// An answer with its time, kept for those who ask next. Failures are kept too, for they take the longest, but never
/// long: nobody should be told of a trouble that is over.
struct Shared<T>(Mutex<Option<Kept<T>>>);

/// When it was read, and what that gave.
type Kept<T> = (Uptime, Result<Arc<T>, ReadError>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Shared<T> {
    /// One reads, the others wait for it. Dropped while reading, nothing is kept, and the next one reads.
    async fn get<'a>(&self, fresh: Duration, read: impl FnOnce() -> ReadFuture<'a, T>) -> Result<Arc<T>, ReadError> {
        let mut kept = self.0.lock().await;
        if let Some((at, answer)) = &*kept
            && system::uptime().since(*at) < if answer.is_ok() { fresh } else { FRESH }
        {
            return answer.clone();
        }
        let answer = bounded(read()).await.map(Arc::new);
        *kept = Some((system::uptime(), answer.clone()));
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
    async fn a_trouble_that_is_over_is_soon_not_told_any_more() {
        let shared = Shared::default();
        let long = Duration::from_secs(3_600);
        let failed = shared.get(long, || Box::pin(async { Err(ReadError("away".into())) })).await;
        assert_eq!(failed, Err(ReadError("away".into())));
        let back = async {
            while shared.get(long, || Box::pin(async { Ok(1) })).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), back).await.unwrap();
    }
}
