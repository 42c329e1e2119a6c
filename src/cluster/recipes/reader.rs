//! Reads for operators, on borrowed sessions: never on the session that renews the lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::{try_join, try_join3};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use tokio::sync::Mutex;

use super::bounded;
use super::context::{self, At as _, Reads, SessionError};
use super::lasts::AllLasts;
use super::newest_records::NewestRecords;
use super::{damage, place, snapshot, wanted};
use crate::paths;
use crate::tree::{ConnectError, Error, Lend, Session, State};
use cronkeeper_core::coordination::{ReadError, ReadFuture, Reader};
use cronkeeper_core::election::{Candidate, Defined, Queue};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Filter, Gathering, Last, Newest, Snapshot, Window};
use cronkeeper_core::run::{HistoryRecord, RunId, RunRecord};
use cronkeeper_core::term::{CandidateName, NodeName};

/// Reads the ledger on sessions borrowed from a lender. The caller bounds the wait.
pub struct LedgerReader<L> {
    lender: L,
    /// The last ends as of the last read, so that the next one reads only what has changed.
    lasts: Mutex<AllLasts>,
}

impl<L: Lend> LedgerReader<L> {
    pub fn new(lender: L) -> Self {
        Self { lender, lasts: Mutex::default() }
    }

    /// A connected session; an error if no server gives one now. Servers without a quorum answer too, but give none.
    pub(super) async fn line(&self) -> Result<L::Session, SessionError> {
        let none = |why: &str| SessionError::Again(format!("{} gives no session{why}", L::Session::SERVICE));
        match self.lender.session().await {
            Ok(session) if session.state() == State::Connected => Ok(session),
            Ok(_) => Err(none("")),
            Err(ConnectError::Unreachable(why)) => Err(none(&format!(": {why}"))),
            Err(ConnectError::AuthFailed(why)) => {
                Err(SessionError::Again(format!("authentication was refused: {why}")))
            }
            Err(ConnectError::Refused(why)) => Err(SessionError::Again(why)),
        }
    }

    async fn client(&self) -> Result<L::Session, ReadError> {
        self.line().await.map_err(read_error)
    }
}

impl<L: Lend> Reader for LedgerReader<L> {
    fn queue(&self) -> ReadFuture<'_, Queue> {
        Box::pin(async { queue(&self.client().await?).await.map_err(read_error) })
    }

    fn snapshot(&self) -> ReadFuture<'_, Snapshot> {
        Box::pin(async {
            let (snapshot, damaged) =
                snapshot::read(&self.client().await?, &BTreeSet::new()).await.map_err(read_error)?;
            Ok(Snapshot { damaged: damage::named(damaged), ..snapshot })
        })
    }

    fn run(&self, run: RunId) -> ReadFuture<'_, Option<RunRecord>> {
        Box::pin(async move { in_flight(&self.client().await?, &run).await.map_err(read_error) })
    }

    fn record(&self, run: RunId) -> ReadFuture<'_, Option<HistoryRecord>> {
        Box::pin(async move { record(&self.client().await?, &run).await.map_err(read_error) })
    }

    fn history(&self, filter: Filter, window: Window) -> ReadFuture<'_, Newest> {
        let found = self.history_since(filter, window, Arc::default());
        Box::pin(async move { found.await.map(|(newest, _)| newest) })
    }

    fn history_since(
        &self,
        filter: Filter,
        window: Window,
        defined: Arc<Defined>,
    ) -> ReadFuture<'_, (Newest, Option<Timestamp>)> {
        Box::pin(
            async move { history_since(&self.client().await?, &filter, window, &defined).await.map_err(read_error) },
        )
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, Last>> {
        Box::pin(async move {
            let client = self.client().await?;
            let mut known = self.lasts.lock().await;
            known.refresh(&client).await.map_err(read_error)?;
            Ok(known.lasts().collect())
        })
    }
}

pub(super) async fn queue<C: Session>(client: &C) -> Result<Queue, SessionError> {
    let mut lined_up = LinedUp::read(client).await?;
    if lined_up.leader.is_none() && !lined_up.order.is_empty() {
        // Leadership may have passed on between the reads.
        lined_up = LinedUp::read(client).await?;
    }
    let LinedUp { order, entries, leader } = lined_up;
    let nodes: BTreeMap<_, _> =
        entries.found.iter().map(|(name, data, _)| (name.as_str(), context::node_in(data))).collect();
    let is_there = |name: &str| nodes.contains_key(name) || entries.unread.iter().any(|(unread, _)| unread == name);
    let candidates = order.iter().filter(|name| is_there(name)).map(|name| {
        let node = nodes.get(name.as_str()).cloned().flatten();
        Candidate { candidate: CandidateName(name.clone()), node }
    });
    let (members, drained, places) =
        try_join3(snapshot::members(client), wanted::drained(client), snapshot::places(client)).await?;
    Ok(Queue { candidates: candidates.collect(), leader, members: members.0, drained, places: places.0 })
}

/// The candidates in order, their entries, and which of their nodes leads.
struct LinedUp {
    order: Vec<String>,
    entries: Reads,
    leader: Option<NodeName>,
}

impl LinedUp {
    async fn read<C: Session>(client: &C) -> Result<Self, SessionError> {
        let order = place::ordered(client).await?;
        let entries = context::get_small(client, paths::LEADER, order.clone());
        let (entries, opening) = try_join(entries, place::read_opening(client)).await?;
        let first = order.first().and_then(|first| entries.found.iter().find(|(name, ..)| name == first));
        let leader = match first {
            Some((name, data, stat)) => {
                let entry = place::EntryAhead::new((data.clone(), stat.clone()));
                place::leader_of(client, name, &entry, opening.as_ref()).await?
            }
            None => None,
        };
        Ok(Self { order, entries, leader })
    }
}

/// The record of a run in flight.
async fn in_flight<C: Session>(client: &C, run: &RunId) -> Result<Option<RunRecord>, SessionError> {
    let path = paths::running(run);
    match client.get(&path).await {
        Ok((data, stat)) => {
            let read = snapshot::run_record(paths::name(&path), &data, &stat).map_err(SessionError::Again)?;
            Ok(Some(read.0))
        }
        Err(Error::Missing) => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

/// The history's record of a run. One that cannot be read counts as none.
async fn record<C: Session>(client: &C, run: &RunId) -> Result<Option<HistoryRecord>, SessionError> {
    let path = paths::history(run);
    match client.get(&path).await {
        Ok((data, _)) => Ok(bounded::HISTORY.parse(&data).ok()),
        Err(error) if error.is_of_path() => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

/// Jobs whose records are looked for at the same time: few, because commits share the servers.
pub(super) const MOST_SEARCHES: usize = 8;

/// The newest records that the filter wants, and since when there is every record that it may want.
///
/// Trimming deletes what was written first, and leaves each kind as many records as are kept. Which kind a record is of
/// is known only to the reader, so both count together: the time may be later than it has to be, never earlier. What
/// was written until a store lost commits may be missing as well.
async fn history_since<C: Session>(
    client: &C,
    filter: &Filter,
    window: Window,
    defined: &Defined,
) -> Result<(Newest, Option<Timestamp>), SessionError> {
    let jobs = async {
        match filter.only_job() {
            Some(job) => Ok(JobName::parse(job).into_iter().collect()),
            None => jobs_with_history(client).await,
        }
    };
    let (jobs, (lost_until, _)): (Vec<JobName>, _) = try_join(jobs, snapshot::lost_until(client)).await?;
    let (since, _) = filter.times();
    let (mut gathering, mut complete_since) = (Gathering::new(window), None);
    let jobs = jobs.into_iter().filter(|job| filter.wants_job(job.as_str()));
    let mut listed = stream::iter(jobs)
        .map(|job| async move {
            let records = NewestRecords::of(client, &job).await?;
            let oldest_kept = records.written_at(defined.history_limit(&job).saturating_sub(1));
            Ok::<_, SessionError>((records, oldest_kept))
        })
        .buffer_unordered(MOST_SEARCHES);
    while let Some((mut records, oldest_kept)) = listed.try_next().await? {
        complete_since = complete_since.max(oldest_kept);
        while let Some(more) =
            records.next(client, bounded::HISTORY.count, |at| at < since || gathering.is_complete_before(at)).await?
        {
            gathering.extend(more.into_iter().filter(|(record, _)| filter.matches(record)));
        }
        gathering.note_unreadable(records.unreadable);
    }
    let complete_since = complete_since.and_then(|at| Timestamp::from_millisecond(at).ok());
    Ok((gathering.newest(), complete_since.max(lost_until)))
}

async fn jobs_with_history<C: Session>(client: &C) -> Result<Vec<JobName>, SessionError> {
    let names = context::names(client, paths::HISTORY).await?;
    Ok(names.iter().filter_map(|name| JobName::parse(name).ok()).collect())
}

fn read_error(error: SessionError) -> ReadError {
    ReadError(error.to_string())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use jiff::SignedDuration;

    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::tests_support::Server;
    use crate::test_records::{record, success};
    use cronkeeper_core::ledger::LostCommits;
    use cronkeeper_core::run::RunEnd;

    fn put(server: &Server, second: i64) {
        put_long(server, second, 0);
    }

    /// A run that took this many seconds, written as soon as it had ended.
    fn put_long(server: &Server, second: i64, took: i64) {
        let end = success(record("backup", second, "0x1"));
        let end = RunEnd { ended_at: end.ended_at + SignedDuration::from_secs(took), ..end };
        let id = end.run.id();
        let mut tree = server.tree();
        tree.time_ms = end.ended_at.as_millisecond();
        tree.put(&paths::job_history(id.job()), "");
        tree.put(&paths::history(&id), json(&HistoryRecord::Run(end)));
    }

    fn newest(server: &Server, records: usize) -> Vec<i64> {
        let filter = Filter::of_job(JobName::parse("backup").unwrap());
        let defined = Defined::default();
        let found = history_since(server, &filter, Window::of(records), &defined);
        let (found, _) = found.now_or_never().unwrap().unwrap();
        found.records.iter().map(|record| record.id().scheduled_at().as_second()).collect()
    }

    const MINUTE: i64 = 60;

    #[test]
    fn what_cannot_be_read_of_a_history_is_counted() {
        let server = Server::default();
        (0..3).for_each(|minute| put(&server, minute * MINUTE));
        let name = |minute: i64| paths::history(&record("backup", minute * MINUTE, "s").id());
        server.tree().put(&name(5), "{");
        server.tree().put(&name(6), "x".repeat(900_000));
        let filter = Filter::of_job(JobName::parse("backup").unwrap());
        let defined = Defined::default();
        let found = history_since(&server, &filter, Window::of(10), &defined);
        let (found, _) = found.now_or_never().unwrap().unwrap();
        assert_eq!((found.records.len(), found.unreadable), (3, 2));
    }

    #[test]
    fn a_run_that_ended_last_is_the_newest_however_many_were_due_after_it() {
        let server = Server::default();
        (1..200).for_each(|minute| put(&server, minute * MINUTE));
        put_long(&server, 0, 250 * MINUTE);
        assert_eq!(newest(&server, 3), [0, 199 * MINUTE, 198 * MINUTE]);
        assert!(server.tree().reads < 60, "{}", server.tree().reads);
    }

    #[test]
    fn the_history_is_complete_since_the_oldest_record_of_as_many_as_are_kept() {
        let server = Server::default();
        let since = |defined: &Defined, filter: &Filter| {
            let found = history_since(&server, filter, Window::of(0), defined).now_or_never().unwrap().unwrap();
            found.1.map(Timestamp::as_second)
        };
        let (all, defined) = (Filter::default(), Defined::default());
        assert_eq!(since(&defined, &all), None);
        let written_at = |second| success(record("backup", second, "0x1")).ended_at.as_second();
        (1..20).for_each(|second| put(&server, second));
        assert_eq!(since(&defined, &all), None, "none can have been trimmed");
        (20..31).for_each(|second| put(&server, second));
        assert_eq!(since(&defined, &all), Some(written_at(11)), "the twentieth newest");
        let five = Defined { history_limits: [(JobName::parse("backup").unwrap(), 5)].into(), ..Defined::default() };
        assert_eq!(since(&five, &all), Some(written_at(26)));
        assert_eq!(since(&five, &Filter::of_job(JobName::parse("other").unwrap())), None);
        // Which run was due last says nothing: the one that was written last is the newest.
        put_long(&server, 0, 100);
        assert_eq!(since(&five, &all), Some(written_at(27)));
        // What was trimmed and what is lost count alike, even for a job with few records left.
        let lose = |until: i64| {
            let lost = LostCommits { v: 1, until: Timestamp::from_second(until).unwrap() };
            let mut tree = server.tree();
            tree.time_ms = lost.until.as_millisecond();
            tree.put(paths::REWOUND, serde_json::to_vec(&lost).unwrap());
        };
        lose(10);
        assert_eq!(since(&five, &all), Some(written_at(27)));
        lose(5_000);
        assert_eq!(since(&five, &Filter::of_job(JobName::parse("other").unwrap())), Some(5_000));
    }

    #[test]
    fn of_ten_thousand_records_only_the_wanted_ones_are_read() {
        let server = Server::default();
        (0..10_000).for_each(|second| put(&server, second));
        assert_eq!(newest(&server, 200), (9_800..10_000).rev().collect::<Vec<_>>());
        let tree = server.tree();
        // Besides the wanted ones, those that a node whose clock is a minute ahead may have written.
        assert!(tree.reads <= 200 + 60 + bounded::HISTORY.count, "{}", tree.reads);
        assert_eq!(tree.most_read, bounded::HISTORY.count);
    }
}
