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
    let entries = desk::get_all(client, paths::LEADER, order.clone(), 500).await?;
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
    let folders = match job {
        Some(job) => vec![paths::job_history(&job)],
        None => {
            let jobs = desk::children(client, paths::HISTORY).await?;
            jobs.iter().map(|job| paths::under(paths::HISTORY, job)).collect()
        }
    };
    let mut records = Vec::new();
    for folder in folders {
        // What cannot be read is named by whoever has to write to it.
        let names = desk::children_or_damaged(client, &folder, &mut Vec::new()).await?;
        let found = desk::get_history(client, &folder, names).await?.found;
        records.extend(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()));
        newest(&mut records, limit);
    }
    Ok(records)
}

/// How the run ended whose end was written before that of this one: the servers' order of writes says which, not the nodes' clocks.
pub(super) async fn outcome_before<C: Client>(client: &C, run: &RunId) -> Result<Option<Outcome>, Trouble> {
    let folder = paths::job_history(run.job());
    let names = desk::children_or_damaged(client, &folder, &mut Vec::new()).await?;
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
