//! Reads for operators, on borrowed sessions: never on the session that renews the lease.

use std::collections::{BTreeMap, BTreeSet};

use super::client::{Client, ConnectError, Lend, State};
use super::context::{self, SessionError};
use super::{paths, place, snapshot};
use crate::coordination::{ReadError, ReadFuture, Reader};
use crate::election::{Candidate, Queue};
use crate::job::JobName;
use crate::ledger::{Gathering, LastEnd, Newest, Snapshot, Window};
use crate::run::{HistoryRecord, Outcome, RunId};
use crate::term::CandidateName;

/// Reads the ledger on sessions borrowed from a lender. The caller bounds the wait.
pub struct LedgerReader<L>(L);

impl<L: Lend> LedgerReader<L> {
    pub fn new(lender: L) -> Self {
        Self(lender)
    }

    /// A connected session; an error if no server answers now.
    pub(super) async fn line(&self) -> Result<L::Client, SessionError> {
        let none = |why: &str| SessionError::Again(format!("no ZooKeeper server answers{why}"));
        match self.0.session().await {
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

    fn history(&self, job: Option<JobName>, window: Window) -> ReadFuture<'_, Newest> {
        Box::pin(async move { history(&self.client().await?, job, window).await.map_err(read_error) })
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, LastEnd>> {
        Box::pin(async move { lasts(&self.client().await?).await.map_err(read_error) })
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
    Ok(Queue { candidates: candidates.collect(), members: snapshot::members(client).await?.0 })
}

async fn history<C: Client>(client: &C, job: Option<JobName>, window: Window) -> Result<Newest, SessionError> {
    let jobs = match job {
        Some(job) => vec![job],
        None => jobs_with_history(client).await?,
    };
    let mut gathering = Gathering::new(window);
    for job in jobs {
        let most = window.records.max(context::MOST_RECENT);
        each_of_history(client, &job, most, |records| gathering.extend(records)).await?;
    }
    Ok(gathering.newest())
}

/// Drops each record's output as soon as it is read, to save memory.
async fn lasts<C: Client>(client: &C) -> Result<BTreeMap<JobName, LastEnd>, SessionError> {
    let mut lasts = BTreeMap::new();
    for job in jobs_with_history(client).await? {
        let mut last: Option<LastEnd> = None;
        let newest = |records: Vec<(HistoryRecord, usize)>| {
            let ends = records.iter().filter_map(|(record, _)| match record {
                HistoryRecord::Run(end) => Some(LastEnd::from(end)),
                HistoryRecord::Skip(_) => None,
            });
            last = ends.chain(last.take()).max_by_key(|end| end.at);
        };
        each_of_history(client, &job, context::MOST_RECENT, newest).await?;
        lasts.extend(last.map(|last| (job, last)));
    }
    Ok(lasts)
}

async fn jobs_with_history<C: Client>(client: &C) -> Result<Vec<JobName>, SessionError> {
    let names = context::children(client, paths::HISTORY).await?;
    Ok(names.iter().filter_map(|name| JobName::parse(name).ok()).collect())
}

/// Passes a job's newest records to `take`, a few at a time, each with its size in bytes.
///
/// Leaves out records that cannot be read: the node that has to write to them reports them.
async fn each_of_history<C: Client>(
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
    fn of_ten_thousand_records_only_the_wanted_ones_are_read() {
        let server = Server::new();
        (0..10_000).for_each(|second| drop(put(&server, second, Outcome::Success)));
        let window = Window::of(200);
        let found = history(&server, Some(JobName::parse("backup").unwrap()), window).now_or_never().unwrap().unwrap();
        let times: Vec<_> = found.records.iter().map(|record| record.id().scheduled_at().as_second()).collect();
        assert_eq!(times, (9_800..10_000).rev().collect::<Vec<_>>());
        let tree = server.tree();
        assert_eq!((tree.reads, tree.most_read), (200, context::HISTORY_CHUNK));
    }
}
