//! Reads for the operator's eyes, on whatever session the node has at the moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use super::client::{Client, State};
use super::desk::{self, Trouble};
use super::{paths, place, snapshot};
use crate::election::{Candidate, Queue};
use crate::job::JobName;
use crate::ledger::{ReadError, Reader, Reading, Snapshot};
use crate::run::{HistoryRecord, Outcome, RunId};
use crate::term::CandidateName;

/// Reads by the node's own session; without one that is connected it says so at once. Whoever asks bounds the wait.
pub struct LedgerReader<C>(Mutex<Option<C>>);

impl<C> Default for LedgerReader<C> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<C: Client> LedgerReader<C> {
    /// Reads by this session from now on.
    pub(super) fn read_by(&self, client: C) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
    }

    /// The session, if a server answers now.
    pub(super) fn line(&self) -> Result<C, Trouble> {
        let client = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        client
            .filter(|client| client.state() == State::Connected)
            .ok_or_else(|| Trouble::Again("no ZooKeeper server answers".into()))
    }

    fn client(&self) -> Result<C, ReadError> {
        self.line().map_err(read_error)
    }
}

impl<C: Client> Reader for LedgerReader<C> {
    fn queue(&self) -> Reading<'_, Queue> {
        Box::pin(async { queue(&self.client()?).await.map_err(read_error) })
    }

    fn snapshot(&self) -> Reading<'_, Snapshot> {
        Box::pin(async {
            let (snapshot, damaged) = snapshot::read(&self.client()?, &BTreeSet::new()).await.map_err(read_error)?;
            Ok(Snapshot { damaged: damaged.iter().map(ToString::to_string).collect(), ..snapshot })
        })
    }

    fn history(&self, job: Option<JobName>, limit: usize) -> Reading<'_, Vec<HistoryRecord>> {
        Box::pin(async move { history(&self.client()?, job, limit).await.map_err(read_error) })
    }
}

async fn queue<C: Client>(client: &C) -> Result<Queue, Trouble> {
    let order = place::ordered(client).await?;
    let entries = desk::get_small(client, paths::LEADER, order.clone()).await?;
    let nodes: BTreeMap<_, _> =
        entries.found.iter().map(|(name, data, _)| (name.as_str(), desk::node_in(data))).collect();
    let is_there = |name: &str| nodes.contains_key(name) || entries.unread.iter().any(|(unread, _)| unread == name);
    let candidates = order.iter().filter(|name| is_there(name)).map(|name| {
        let node = nodes.get(name.as_str()).cloned().flatten();
        Candidate { candidate: CandidateName(name.clone()), node }
    });
    Ok(Queue { candidates: candidates.collect(), members: snapshot::members(client).await?.0 })
}

async fn history<C: Client>(client: &C, job: Option<JobName>, limit: usize) -> Result<Vec<HistoryRecord>, Trouble> {
    let jobs = match job {
        Some(job) => vec![job],
        None => {
            let names = desk::children(client, paths::HISTORY).await?;
            names.iter().filter_map(|name| JobName::parse(name).ok()).collect()
        }
    };
    let mut records = Vec::new();
    for job in jobs {
        // What cannot be read is named by whoever has to write to it.
        let names = desk::newest_history(client, &job, limit.max(desk::MOST_LOOKED_AT)).await;
        let names = desk::or_none(names)?;
        let found = desk::get_history(client, &paths::job_history(&job), names).await?.found;
        records.extend(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()));
        newest(&mut records, limit);
    }
    Ok(records)
}

/// How the run ended whose end was written before that of this one: the servers' order of writes says which, not the nodes' clocks. In
/// a history that nobody trimmed it is looked for among the newest.
pub(super) async fn outcome_before<C: Client>(client: &C, run: &RunId) -> Result<Option<Outcome>, Trouble> {
    let folder = paths::job_history(run.job());
    let mut names = desk::or_none(desk::newest_history(client, run.job(), desk::MOST_LOOKED_AT).await)?;
    let own = run.to_string();
    if !names.contains(&own) {
        names.push(own);
    }
    let found = desk::get_history(client, &folder, names).await?.found;
    let ends = found.into_iter().filter_map(|(_, data, stat)| match serde_json::from_slice(&data) {
        // What shares a write is told apart by its time.
        Ok(HistoryRecord::Run(end)) => Some(((stat.czxid, end.ended_at), end)),
        _ => None,
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by_key(|(place, _)| *place);
    let own = ends.iter().position(|(_, end)| end.run.id() == *run);
    Ok(own.and_then(|own| own.checked_sub(1)).map(|before| ends[before].1.outcome))
}

/// Newest first, and no more than asked for.
fn newest(records: &mut Vec<HistoryRecord>, limit: usize) {
    records.sort_by_key(|record: &HistoryRecord| std::cmp::Reverse(record.at()));
    records.truncate(limit);
}

fn read_error(trouble: Trouble) -> ReadError {
    ReadError(trouble.to_string())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::run::RunEnd;
    use crate::run::tests_support::{record, success};
    use crate::zookeeper::desk::json;
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
    fn what_ended_before_is_found_among_the_newest_of_ten_thousand() {
        let server = Server::new();
        (0..9_998).for_each(|second| drop(put(&server, second, Outcome::Success)));
        put(&server, 20_000, Outcome::Failure);
        let own = put(&server, 10_000, Outcome::Success);
        let old = put(&server, 9_999, Outcome::Success);
        let before = |run: &RunId| outcome_before(&server, run).now_or_never().unwrap().unwrap();
        assert_eq!(before(&own), Some(Outcome::Failure));
        assert_eq!(before(&old), Some(Outcome::Success));
        let tree = server.tree();
        assert!(tree.reads <= 2 * (desk::MOST_LOOKED_AT + 1), "{}", tree.reads);
    }

    #[test]
    fn of_ten_thousand_records_as_many_are_read_as_are_wanted() {
        let server = Server::new();
        (0..10_000).for_each(|second| drop(put(&server, second, Outcome::Success)));
        let found = history(&server, Some(JobName::parse("backup").unwrap()), 200).now_or_never().unwrap().unwrap();
        let times: Vec<_> = found.iter().map(|record| record.id().scheduled_at().as_second()).collect();
        assert_eq!(times, (9_800..10_000).rev().collect::<Vec<_>>());
        let tree = server.tree();
        assert_eq!((tree.reads, tree.most_read), (200, desk::HISTORY_CHUNK));
    }
}
