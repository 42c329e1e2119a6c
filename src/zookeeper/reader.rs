//! Reads for operators, on borrowed sessions: never on the session that renews the lease.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use tokio::sync::Mutex;

use super::client::{Client, ConnectError, Error, Lend, State};
use super::context::{self, At as _, SessionError};
use super::lasts::KnownEnds;
use super::{paths, place, snapshot, wanted};
use crate::coordination::{ReadError, ReadFuture, Reader};
use crate::election::{Candidate, Queue};
use crate::job::JobName;
use crate::ledger::{Filter, Gathering, LastEnd, Newest, Snapshot, Window};
use crate::run::{HistoryRecord, Outcome, RunId, RunRecord};
use crate::term::CandidateName;

/// Reads the ledger on sessions borrowed from a lender. The caller bounds the wait.
pub struct LedgerReader<L> {
    lender: L,
    /// The last ends as of the last read, so that the next one reads only what has changed.
    lasts: Mutex<KnownEnds>,
}

impl<L: Lend> LedgerReader<L> {
    pub fn new(lender: L) -> Self {
        Self { lender, lasts: Mutex::default() }
    }

    /// A connected session; an error if no server answers now.
    pub(super) async fn line(&self) -> Result<L::Client, SessionError> {
        let none = |why: &str| SessionError::Again(format!("no ZooKeeper server answers{why}"));
        match self.lender.session().await {
            Ok(session) if session.state() == State::Connected => Ok(session),
            Ok(_) => Err(none("")),
            Err(ConnectError::Unreachable(why)) => Err(none(&format!(": {why}"))),
            Err(ConnectError::AuthFailed(why)) => {
                Err(SessionError::Again(format!("authentication was refused: {why}")))
            }
        }
    }

    async fn client(&self) -> Result<L::Client, ReadError> {
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
            Ok(Snapshot { damaged: damaged.iter().map(ToString::to_string).collect(), ..snapshot })
        })
    }

    fn run(&self, run: RunId) -> ReadFuture<'_, Option<RunRecord>> {
        Box::pin(async move { in_flight(&self.client().await?, &run).await.map_err(read_error) })
    }

    fn history(&self, filter: Filter, window: Window) -> ReadFuture<'_, Newest> {
        Box::pin(async move { history(&self.client().await?, &filter, window).await.map_err(read_error) })
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, LastEnd>> {
        Box::pin(async move {
            let client = self.client().await?;
            let mut known = self.lasts.lock().await;
            known.refresh(&client).await.map_err(read_error)?;
            Ok(known.ends().collect())
        })
    }

    fn last_successes(&self, jobs: Vec<JobName>) -> ReadFuture<'_, BTreeMap<JobName, Timestamp>> {
        Box::pin(async move { last_successes(&self.client().await?, jobs).await.map_err(read_error) })
    }
}

async fn queue<C: Client>(client: &C) -> Result<Queue, SessionError> {
    let order = place::ordered(client).await?;
    let entries = context::get_small(client, paths::LEADER, order.clone()).await?;
    let nodes: BTreeMap<_, _> =
        entries.found.iter().map(|(name, data, _)| (name.as_str(), context::node_in(data))).collect();
    let is_there = |name: &str| nodes.contains_key(name) || entries.unread.iter().any(|(unread, _)| unread == name);
    let candidates = order.iter().filter(|name| is_there(name)).map(|name| {
        let node = nodes.get(name.as_str()).cloned().flatten();
        Candidate { candidate: CandidateName(name.clone()), node }
    });
    let (members, drained) = try_join(snapshot::members(client), wanted::drained(client)).await?;
    Ok(Queue { candidates: candidates.collect(), members: members.0, drained })
}

/// The record of a run in flight.
async fn in_flight<C: Client>(client: &C, run: &RunId) -> Result<Option<RunRecord>, SessionError> {
    let path = paths::running(run);
    match client.get(&path).await {
        Ok((data, stat)) => {
            let read = snapshot::run_record(paths::name(&path), &data, &stat).map_err(SessionError::Again)?;
            Ok(Some(read.0))
        }
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

/// Most records of a job that are read if not just the newest are wanted: as many as trimming leaves at most.
const MOST_FILTERED: usize = 2_100;

async fn history<C: Client>(client: &C, filter: &Filter, window: Window) -> Result<Newest, SessionError> {
    let jobs = match filter.only_job() {
        Some(job) => JobName::parse(job).into_iter().collect(),
        None => jobs_with_history(client).await?,
    };
    let newest = window.records.max(context::MOST_RECENT);
    let most = if filter.is_selective() { newest.max(MOST_FILTERED) } else { newest };
    let mut gathering = Gathering::new(window);
    for job in jobs.iter().filter(|job| filter.wants_job(job.as_str())) {
        let wanted = |(record, _): &(HistoryRecord, usize)| filter.matches(record);
        each_of_history(client, job, most, |records| gathering.extend(records.into_iter().filter(wanted))).await?;
    }
    Ok(gathering.newest())
}

/// Jobs whose last success is looked for at the same time: few, because commits share the servers.
const MOST_SEARCHES: usize = 8;
/// Records of a job to read at a time, after the newest, which is nearly always enough.
const NEXT_RECORDS: usize = 8;

async fn last_successes<C: Client>(
    client: &C,
    jobs: Vec<JobName>,
) -> Result<BTreeMap<JobName, Timestamp>, SessionError> {
    let search = |job: JobName| async { last_success(client, &job).await.map(|at| at.map(|at| (job, at))) };
    let found = stream::iter(jobs).map(search).buffer_unordered(MOST_SEARCHES);
    found.try_filter_map(|found| std::future::ready(Ok(found))).try_collect().await
}

/// The end of the newest run that succeeded, searched from the newest record on.
async fn last_success<C: Client>(client: &C, job: &JobName) -> Result<Option<Timestamp>, SessionError> {
    let parent = paths::job_history(job);
    let mut names = context::or_none(context::newest_history(client, job, context::MOST_RECENT).await)?;
    let mut next = 1;
    while !names.is_empty() {
        let chunk = names.split_off(names.len().saturating_sub(next));
        let found = context::get_all(client, &parent, chunk, NEXT_RECORDS).await?.found;
        let success = |(_, data, _): context::Found| match serde_json::from_slice(&data) {
            Ok(HistoryRecord::Run(end)) if end.outcome == Outcome::Success => Some(end.ended_at),
            _ => None,
        };
        if let Some(at) = found.into_iter().filter_map(success).max() {
            return Ok(Some(at));
        }
        next = NEXT_RECORDS;
    }
    Ok(None)
}

pub(super) async fn jobs_with_history<C: Client>(client: &C) -> Result<Vec<JobName>, SessionError> {
    let names = context::children(client, paths::HISTORY).await?;
    Ok(names.iter().filter_map(|name| JobName::parse(name).ok()).collect())
}

/// Passes a job's newest records to `take`, a few at a time, each with its size in bytes.
///
/// Leaves out records that cannot be read: the node that has to write to them reports them.
pub(super) async fn each_of_history<C: Client>(
    client: &C,
    job: &JobName,
    most: usize,
    mut take: impl FnMut(Vec<(HistoryRecord, usize)>),
) -> Result<(), SessionError> {
    let parent = paths::job_history(job);
    let names = context::or_none(context::newest_history(client, job, most).await)?;
    for names in names.chunks(context::HISTORY_CHUNK) {
        let found = context::get_all(client, &parent, names.to_vec(), context::HISTORY_CHUNK).await?.found;
        let read = |(_, data, _): context::Found| Some((serde_json::from_slice(&data).ok()?, data.len()));
        take(found.into_iter().filter_map(read).collect());
    }
    Ok(())
}

/// The outcome of the run whose end was written just before this one's.
///
/// The servers' order of writes decides, not the nodes' clocks. In an untrimmed history only the newest records are
/// considered.
pub(super) async fn outcome_before<C: Client>(client: &C, run: &RunId) -> Result<Option<Outcome>, SessionError> {
    let parent = paths::job_history(run.job());
    let mut names = context::or_none(context::newest_history(client, run.job(), context::MOST_RECENT).await)?;
    let own = run.to_string();
    if !names.contains(&own) {
        names.push(own);
    }
    let found = context::get_history(client, &parent, names).await?.found;
    let ends = found.into_iter().filter_map(|(_, data, stat)| match serde_json::from_slice(&data) {
        // Ends written in the same transaction are ordered by their time.
        Ok(HistoryRecord::Run(end)) => Some(((stat.czxid, end.ended_at), end)),
        _ => None,
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by_key(|(order, _)| *order);
    let own = ends.iter().position(|(_, end)| end.run.id() == *run);
    Ok(own.and_then(|own| own.checked_sub(1)).map(|before| ends[before].1.outcome))
}

fn read_error(error: SessionError) -> ReadError {
    ReadError(error.to_string())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::run::RunEnd;
    use crate::run::tests_support::{record, success};
    use crate::zookeeper::context::json;
    use crate::zookeeper::tests_support::Server;

    fn put(server: &Server, second: i64, outcome: Outcome) -> RunId {
        let end = RunEnd { outcome, ..success(record("backup", second, "0x1")) };
        let id = end.run.id();
        let mut tree = server.tree();
        tree.put(&paths::job_history(id.job()), "");
        tree.put(&paths::history(&id), json(&HistoryRecord::Run(end)));
        id
    }

    #[test]
    fn the_end_before_is_found_among_the_newest_of_ten_thousand() {
        let server = Server::new();
        (0..9_998).for_each(|second| drop(put(&server, second, Outcome::Success)));
        put(&server, 20_000, Outcome::Failure);
        let own = put(&server, 10_000, Outcome::Success);
        let old = put(&server, 9_999, Outcome::Success);
        let before = |run: &RunId| outcome_before(&server, run).now_or_never().unwrap().unwrap();
        assert_eq!(before(&own), Some(Outcome::Failure));
        assert_eq!(before(&old), Some(Outcome::Success));
        let tree = server.tree();
        assert!(tree.reads <= 2 * (context::MOST_RECENT + 1), "{}", tree.reads);
    }

    #[test]
    fn the_last_success_is_found_behind_failures_and_skips_without_reading_the_rest() {
        let server = Server::new();
        (0..30).for_each(|second| drop(put(&server, second, Outcome::Success)));
        let search =
            || last_successes(&server, vec![JobName::parse("backup").unwrap(), JobName::parse("none").unwrap()]);
        let newest = || search().now_or_never().unwrap().unwrap().into_values().collect::<Vec<_>>();
        let found = newest();
        assert_eq!((found.len(), server.tree().reads), (1, 1));
        (30..35).for_each(|second| drop(put(&server, second, Outcome::Failure)));
        let skip = HistoryRecord::Skip(crate::run::tests_support::skip("backup", 40));
        server.tree().put(&paths::history(&skip.id()), json(&skip));
        assert_eq!((newest(), server.tree().reads), (found, 1 + 1 + NEXT_RECORDS));
    }

    #[test]
    fn of_ten_thousand_records_only_the_wanted_ones_are_read() {
        let server = Server::new();
        (0..10_000).for_each(|second| drop(put(&server, second, Outcome::Success)));
        let window = Window::of(200);
        let found = history(&server, &Filter::of_job(JobName::parse("backup").unwrap()), window)
            .now_or_never()
            .unwrap()
            .unwrap();
        let times: Vec<_> = found.records.iter().map(|record| record.id().scheduled_at().as_second()).collect();
        assert_eq!(times, (9_800..10_000).rev().collect::<Vec<_>>());
        let tree = server.tree();
        assert_eq!((tree.reads, tree.most_read), (200, context::HISTORY_CHUNK));
    }
}
