//! Ledger reads for API clients: with a timeout, and cached, so that many clients cost as little as one.

use std::collections::BTreeMap;
use std::sync::{self, Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::admission::Admitted;
use crate::archive::{Archive, Merged};
use crate::status::{AlarmStatus, RecordedEnds, RunStatus, Status};
use cronkeeper_core::clock::{Uptime, earlier, system};
use cronkeeper_core::coordination::{ReadError, ReadFuture, Reader};
use cronkeeper_core::election::{Defined, Queue};
use cronkeeper_core::engine::MarkAhead;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Filter, JobEntry, Newest, Window};
use cronkeeper_core::run::{HistoryRecord, Link, Pause, RunId};

/// Timeout of a read.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Age up to which a cached answer is used.
const FRESH: Duration = Duration::from_secs(1);
/// An answer about jobs is used for at least this many times as long as it took, so that reads of thousands of jobs for
/// many clients leave ZooKeeper time for other things.
const REST: u32 = 10;
/// After a change that was written to the ledger, the daemon has published a status that shows it: it learns of the
/// change, and pauses between two publications, for at most a second; a node that gets no processor takes longer.
const SETTLED: Duration = Duration::from_secs(10);

/// The state that only the leader keeps in memory; other nodes read it from the ledger.
#[derive(Debug, PartialEq)]
pub(super) struct LeaderState {
    /// The runs in flight.
    pub runs: Vec<RunStatus>,
    pub paused: BTreeMap<JobName, Pause>,
    pub alarms: BTreeMap<JobName, Vec<AlarmStatus>>,
    pub rest: Rest,
}

/// What of the leader's state a leader shows only as what follows from it.
#[derive(Debug, PartialEq)]
pub(super) enum Rest {
    Read {
        marks_ahead: BTreeMap<JobName, MarkAhead>,
        /// Results of upstreams for jobs that still wait for other upstreams.
        links: Vec<Link>,
    },
    /// The jobs as this node showed them while it led.
    Shown(Arc<Status>),
}

impl LeaderState {
    /// What the leader's own status shows of it.
    pub fn of(status: &Arc<Status>) -> Self {
        let paused = status.jobs.iter().filter_map(|job| Some((job.name.clone(), job.paused.as_deref()?.clone())));
        let alarms = status.jobs.iter().filter(|job| !job.alarms.is_empty());
        Self {
            runs: status.runs.clone(),
            paused: paused.collect(),
            alarms: alarms.map(|job| (job.name.clone(), job.alarms.clone())).collect(),
            rest: Rest::Shown(Arc::clone(status)),
        }
    }
}

/// What was read last of the ledger, shared by all that read it for clients: a node tells each of them the same.
#[derive(Clone, Default)]
pub struct LastReads {
    queue: Remembered<Queue>,
    runs: Remembered<LeaderState>,
    lasts: Remembered<RecordedEnds>,
}

type Remembered<T> = Arc<sync::Mutex<Memory<T>>>;

/// The ledger's reader, with its cached answers.
pub(super) struct Reads {
    reader: Arc<dyn Reader>,
    queue: CachedRead<Queue>,
    runs: CachedRead<LeaderState>,
    lasts: CachedRead<RecordedEnds>,
    changes: watch::Sender<Changes>,
}

/// What is known of a part of the ledger.
#[derive(Debug)]
pub(super) struct Known<T> {
    /// As it was read, now or before, and when; absent if it was never read.
    pub value: Option<(Arc<T>, Timestamp)>,
    /// Why it could not be read now.
    pub failure: Option<ReadFailure>,
}

impl<T> Known<T> {
    /// Nothing was read, because nothing had to be.
    pub const NOT_ASKED: Self = Self { value: None, failure: None };

    /// Why the value is not that of now; `None` if it is.
    pub fn old(&self) -> Option<Old> {
        let ReadFailure { error, since } = self.failure.clone()?;
        Some(Old { error, since, read_at: self.value.as_ref().map(|(_, read_at)| *read_at) })
    }
}

/// Why a part of the ledger could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadFailure {
    pub error: ReadError,
    /// When the first read failed of those that have failed without a success between them.
    pub since: Timestamp,
}

/// Why what is known of a part of the ledger is old, or why nothing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Old {
    pub error: ReadError,
    /// Since when it cannot be read.
    pub since: Timestamp,
    /// When it was read; absent if it never was.
    pub read_at: Option<Timestamp>,
}

/// The changes that answers from now on must show.
#[derive(Debug, Default)]
struct Changes {
    count: u64,
    /// When the last one was.
    at: Option<Uptime>,
}

impl Reads {
    pub fn new(reader: Arc<dyn Reader>, last: LastReads) -> Self {
        let LastReads { queue, runs, lasts } = last;
        Self {
            reader,
            // One listing costs little, and it says who leads.
            queue: CachedRead::resting(0, queue),
            runs: CachedRead::resting(REST, runs),
            lasts: CachedRead::resting(REST, lasts),
            changes: watch::Sender::default(),
        }
    }

    /// Records a change that the next answer must show: a request of an operator was written, or an answer has shown
    /// the end of a run.
    pub fn changed(&self) {
        self.changes.send_modify(|changes| {
            changes.count += 1;
            changes.at = Some(system::uptime());
        });
    }

    /// True for some time after a change: what the daemon has published may be older.
    pub fn has_just_changed(&self) -> bool {
        self.changes.borrow().at.is_some_and(|at| system::uptime().since(at) < SETTLED)
    }

    /// Counts the changes so far.
    pub fn change(&self) -> u64 {
        self.changes.borrow().count
    }

    /// The queue of candidates and the members.
    async fn read_queue(&self) -> Answer<Queue> {
        self.queue.get(self.change(), || self.reader.queue()).await
    }

    /// The runs in flight on all nodes, the paused jobs, the alarms, and the results that dependents wait with.
    pub async fn runs(&self) -> Result<Arc<LeaderState>, ReadError> {
        self.read_runs().await.map(|(runs, _)| runs)
    }

    async fn read_runs(&self) -> Answer<LeaderState> {
        let read = || -> ReadFuture<'_, LeaderState> {
            Box::pin(async {
                let snapshot = self.reader.snapshot().await?;
                let runs = snapshot.running.iter().map(|running| RunStatus::from(&running.record)).collect();
                let paused = snapshot.requests.control.into_iter().map(|(job, entry)| (job, entry.record.paused));
                let links = snapshot.requests.links.into_values().collect();
                let now = system::now().wall;
                let ahead = |(job, entry): (&JobName, &JobEntry)| {
                    Some((job.clone(), MarkAhead::of(entry.record.as_ref()?, now)?))
                };
                let marks_ahead = snapshot.jobs.iter().filter_map(ahead).collect();
                let standing = |(job, entry): (JobName, JobEntry)| {
                    let alarms = AlarmStatus::of(&entry.record?.alarms);
                    (!alarms.is_empty()).then_some((job, alarms))
                };
                let alarms = snapshot.jobs.into_iter().filter_map(standing).collect();
                Ok(LeaderState { runs, paused: paused.collect(), alarms, rest: Rest::Read { marks_ahead, links } })
            })
        };
        self.runs.get(self.change(), read).await
    }

    async fn read_lasts(&self) -> Answer<RecordedEnds> {
        let read = || -> ReadFuture<'_, RecordedEnds> {
            Box::pin(async {
                let read_at = system::uptime();
                Ok(RecordedEnds::read(self.reader.lasts().await?, read_at))
            })
        };
        self.lasts.get(self.change(), read).await
    }

    /// The queue, as far as it is known.
    pub async fn known_queue(&self) -> Known<Queue> {
        self.queue.known(self.read_queue().await)
    }

    /// What [`Reads::runs`] returns, as far as it is known.
    pub async fn known_runs(&self) -> Known<LeaderState> {
        self.runs.known(self.read_runs().await)
    }

    /// How the runs of each job ended last, as far as it is known.
    pub async fn known_lasts(&self) -> Known<RecordedEnds> {
        self.lasts.known(self.read_lasts().await)
    }

    /// The same as it was read at most this long ago.
    pub async fn lasts_within(&self, age: Duration) -> Known<RecordedEnds> {
        let last = self.lasts.memory().last.clone();
        let since = earlier(system::now().wall, age);
        match last.filter(|(_, read_at)| *read_at > since) {
            Some(read) => Known { value: Some(read), failure: None },
            None => self.known_lasts().await,
        }
    }

    /// Reads what is known of the queue, the ends and, if wanted, the runs. True if all of it could be read.
    pub async fn refresh(&self, with_runs: bool) -> bool {
        let runs = async { !with_runs || self.read_runs().await.is_ok() };
        let (queue, runs, lasts) = futures_util::join!(self.read_queue(), runs, self.read_lasts());
        queue.is_ok() && runs && lasts.is_ok()
    }

    /// Takes what this node knew as leader without reading. What was read before is out of date.
    pub fn led_with(&self, status: &Arc<Status>) {
        let mut memory = self.runs.memory();
        if memory.last.as_ref().is_none_or(|(_, read_at)| *read_at < status.at) {
            memory.last = Some((Arc::new(LeaderState::of(status)), status.at));
        }
    }

    /// The newest records of ledger and archive; of the archive alone, which the answer says, if the ledger cannot be
    /// read. Not cached, because the requests differ; instead, each connection waits for its turn.
    ///
    /// # Errors
    /// If neither can be read.
    pub async fn history(
        &self,
        admitted: &Admitted,
        archive: &Archive,
        filter: Filter,
        records: usize,
        defined: Arc<Defined>,
    ) -> Result<Merged, ReadError> {
        let window = Window { records, bytes: admitted.history_limit() };
        let turn = bounded(async { Ok(admitted.history_permits().await) }).await?;
        let read = bounded(self.reader.history_since(filter.clone(), window, defined)).await;
        let ((newest, complete_since), ledger_error) = match read {
            Ok(found) => (found, None),
            Err(error) if !archive.is_kept() => return Err(error),
            Err(error) => ((Newest::default(), None), Some(error)),
        };
        let unreadable = newest.unreadable;
        // The archive bounds its own search.
        let merged = archive.merge(newest, filter, window, turn).await;
        match ledger_error {
            Some(error) if merged.error.is_some() => Err(error),
            // A loss counts until a little after it was noticed.
            ledger_error => {
                let complete_since = complete_since.map(|at| at.min(system::now().wall));
                Ok(Merged { ledger_error, complete_since, unreadable, ..merged })
            }
        }
    }

    /// What this node's archive alone has.
    ///
    /// # Errors
    /// If the caller's turn does not come in time.
    pub async fn archived(
        &self,
        admitted: &Admitted,
        archive: &Archive,
        filter: Filter,
        records: usize,
    ) -> Result<Merged, ReadError> {
        let window = Window { records, bytes: admitted.history_limit() };
        let turn = bounded(async { Ok(admitted.history_permits().await) }).await?;
        Ok(archive.merge(Newest::default(), filter, window, turn).await)
    }

    /// The record of a run from this node's archive alone.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub async fn archived_record(
        &self,
        admitted: &Admitted,
        archive: &Archive,
        run: &RunId,
    ) -> Result<Option<HistoryRecord>, ReadError> {
        let turn = bounded(async { Ok(admitted.history_permits().await) }).await?;
        archive.record(run.clone(), turn).await.map_err(|error| ReadError(error.to_string()))
    }

    /// The record of a run that has ended, or whose start was skipped, from the ledger or else from the archive.
    ///
    /// # Errors
    /// If the ledger cannot be read, and the archive does not have it.
    pub async fn record(
        &self,
        admitted: &Admitted,
        archive: &Archive,
        run: &RunId,
    ) -> Result<Option<HistoryRecord>, ReadError> {
        let turn = bounded(async { Ok(admitted.history_permits().await) }).await?;
        let found = bounded(self.reader.record(run.clone())).await;
        if let Ok(Some(_)) = found {
            return found;
        }
        // What the archive's own error is, its thread logs.
        let archived = archive.record(run.clone(), turn).await.ok().flatten();
        archived.map_or(found, |record| Ok(Some(record)))
    }
}

/// Most bytes of a history that is read for its outcomes only.
const BYTES: usize = 256 << 10;

impl Reads {
    /// The newest records of a job, for a picture of them.
    pub async fn newest_of(&self, job: JobName) -> Result<Newest, ReadError> {
        bounded(self.reader.history(Filter::of_job(job), Window { records: 40, bytes: BYTES })).await
    }
}

/// The cached answer of a read. Failures are cached too, because they take the longest.
struct CachedRead<T> {
    /// Held while reading.
    newest: Mutex<Option<CachedAnswer<T>>>,
    memory: Remembered<T>,
    /// An answer is used for at least this many times as long as it took.
    rest: u32,
}

/// What is remembered of earlier reads.
#[derive(Debug)]
struct Memory<T> {
    /// The newest answer that was no failure, and when it was read.
    last: Option<(Arc<T>, Timestamp)>,
    /// When the first read since then failed.
    failing_since: Option<Timestamp>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { last: None, failing_since: None }
    }
}

/// What a read has found, and when it began: what has changed while it was read may be missing.
type Answer<T> = Result<(Arc<T>, Timestamp), ReadError>;

/// The result of a read, and until when it is used.
struct CachedAnswer<T> {
    answer: Answer<T>,
    until: Uptime,
    /// The newest change that the read can have seen.
    change: u64,
}

impl<T> CachedRead<T> {
    fn resting(rest: u32, memory: Remembered<T>) -> Self {
        Self { newest: Mutex::new(None), memory, rest }
    }

    /// Returns the cached answer if it is fresh and shows the change, else reads. Concurrent callers wait for one read.
    ///
    /// If this future is dropped while reading, nothing is cached, and the next caller reads.
    async fn get<'a>(&self, change: u64, read: impl FnOnce() -> ReadFuture<'a, T>) -> Answer<T> {
        let mut cached = self.newest.lock().await;
        let (began, began_at) = (system::uptime(), system::now().wall);
        if let Some(CachedAnswer { answer, until, change: seen }) = &*cached
            && began < *until
            && *seen >= change
        {
            return answer.clone();
        }
        let answer = bounded(read()).await.map(|value| (Arc::new(value), began_at));
        let took = system::uptime().since(began);
        // A recovery shows up soon, however long the failure took.
        let rest = if answer.is_ok() { took.saturating_mul(self.rest).max(took + FRESH) } else { took + FRESH };
        match &answer {
            Ok((value, read_at)) => self.remember(Arc::clone(value), *read_at),
            Err(_) => {
                self.memory().failing_since.get_or_insert(began_at);
            }
        }
        *cached = Some(CachedAnswer { answer: answer.clone(), until: began + rest, change });
        answer
    }

    /// Another reader may have read later, and answered with that.
    fn remember(&self, value: Arc<T>, at: Timestamp) {
        let mut memory = self.memory();
        memory.failing_since = None;
        if memory.last.as_ref().is_none_or(|(_, read_at)| *read_at <= at) {
            memory.last = Some((value, at));
        }
    }

    /// What is known after this answer: what it says, or else what is remembered.
    ///
    /// What is remembered can be newer than what was just read and lack a change that this shows: what this node led
    /// with is as new as its publication, but a leader learns of a change only after it was written.
    fn known(&self, answer: Answer<T>) -> Known<T> {
        let error = match answer {
            Ok(found) => return Known { value: Some(found), failure: None },
            Err(error) => error,
        };
        let memory = self.memory();
        let since = memory.failing_since.unwrap_or_else(|| system::now().wall);
        Known { value: memory.last.clone(), failure: Some(ReadFailure { error, since }) }
    }

    fn memory(&self) -> sync::MutexGuard<'_, Memory<T>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn bounded<T>(read: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    let late = |_| Err(ReadError(format!("no answer within {} s", TIMEOUT.as_secs())));
    timeout(TIMEOUT, read).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn counting(reads: &AtomicUsize) -> ReadFuture<'_, usize> {
        Box::pin(async { Ok(reads.fetch_add(1, Ordering::Relaxed)) })
    }

    #[tokio::test]
    async fn a_fresh_answer_is_used_until_something_has_changed() {
        let (cached, reads) = (CachedRead::resting(REST, Remembered::default()), AtomicUsize::new(0));
        let first = cached.get(0, || counting(&reads)).await.unwrap();
        if let Some(answer) = &mut *cached.newest.lock().await {
            answer.until = system::uptime() + Duration::from_secs(3_600);
        }
        let second = cached.get(0, || counting(&reads)).await.unwrap();
        let third = cached.get(1, || counting(&reads)).await.unwrap();
        assert_eq!([first, second, third].map(|(value, _)| *value), [0, 0, 1]);
    }

    #[tokio::test]
    async fn what_was_just_read_is_known_whatever_else_is_remembered() {
        let cached = CachedRead::resting(REST, Remembered::default());
        let read = cached.get(0, || Box::pin(async { Ok(1) })).await;
        cached.remember(Arc::new(2), Timestamp::MAX);
        assert_eq!(cached.known(read).value.map(|(value, _)| *value), Some(1));
        let failed = cached.get(1, || Box::pin(async { Err(ReadError("away".into())) })).await;
        assert_eq!(cached.known(failed).value.map(|(value, _)| *value), Some(2));
    }

    #[tokio::test]
    async fn a_cached_failure_is_soon_read_again() {
        let cached = CachedRead::resting(REST, Remembered::default());
        let failed = cached.get(0, || Box::pin(async { Err(ReadError("away".into())) })).await;
        assert_eq!(failed, Err(ReadError("away".into())));
        let back = async {
            while cached.get(0, || Box::pin(async { Ok(1) })).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), back).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_read_last_is_known_while_nothing_can_be_read() {
        let cached = CachedRead::resting(REST, Remembered::default());
        let away = async |change| {
            let read = cached.get(change, || Box::pin(async { Err(ReadError("away".into())) })).await;
            cached.known(read)
        };
        let known = away(0).await;
        let never = known.failure.expect("the read has failed");
        assert_eq!((known.value, never.error), (None, ReadError("away".into())));
        let read = cached.get(1, || Box::pin(async { Ok(1) })).await;
        assert_eq!(cached.known(read).failure, None);
        let (first, second) = (away(2).await, away(3).await);
        let since = first.failure.expect("the read has failed").since;
        assert_eq!(second.failure.expect("this one too").since, since, "the first failure counts");
        let (value, read_at) = second.value.expect("it was read before");
        assert!(*value == 1 && read_at <= since && never.since <= read_at);
    }
}
