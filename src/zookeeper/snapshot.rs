//! The ledger as it stands: read by a new leader, and for the operator's eyes.
//!
//! Runs are read before the members, so that an owner found alive was alive after its run was read. One
//! damaged record never hides the others: it is told by name.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{try_join, try_join3};

use super::client::{Client, Stat};
use super::desk::{self, Trouble};
use super::{paths, session_id, wishes};
use crate::election::Member;
use crate::job::JobName;
use crate::ledger::{JobEntry, OwnerState, Running, Snapshot};
use crate::run::{RunRecord, Version};
use crate::term::{NodeName, SessionId};

const CHUNK: usize = 500;

/// Reads jobs, runs and the owners' state. `dead` are sessions whose processes were seen dead.
///
/// A takeover waits for this, so what need not wait for an answer is asked together: the names, then the records, then
/// the owners, where there are runs at all.
pub async fn read<C: Client>(client: &C, dead: &BTreeSet<SessionId>) -> Result<Snapshot, Trouble> {
    let mut snapshot = Snapshot::default();
    let (jobs, runs) = try_join(desk::children(client, paths::JOBS), desk::children(client, paths::RUNNING)).await?;
    let jobs = desk::get_all(client, paths::JOBS, jobs, CHUNK);
    let runs = desk::get_all(client, paths::RUNNING, runs, CHUNK);
    let (mut damaged, none_known) = (Vec::new(), wishes::Answered::new());
    // Handed over after the jobs' records: a pause changes them too, so of one that came later the versions read tell.
    let wishes = wishes::read(client, &none_known, &mut damaged);
    let (jobs, found, wishes) = try_join3(jobs, runs, wishes).await?;
    (snapshot.wishes, snapshot.damaged) = (wishes, damaged);
    for (name, data, stat) in jobs {
        match JobName::parse(&name) {
            Ok(job) => drop(snapshot.jobs.insert(job, job_entry(&name, &data, &stat, &mut snapshot.damaged))),
            Err(bad) => snapshot.damaged.push(format!("{}/{name}: {bad}", paths::JOBS)),
        }
    }
    let mut runs = Vec::new();
    for (name, data, stat) in found {
        match run_record(&data) {
            Ok(record) => runs.push((record, Version(stat.version))),
            Err(error) => snapshot.damaged.push(format!("{}/{name}: {error}", paths::RUNNING)),
        }
    }
    let living = living_owners(client, &runs).await?;
    snapshot.running = runs
        .into_iter()
        .map(|(record, version)| Running { owner: owner_state(&record, &living, dead), record, version })
        .collect();
    Ok(snapshot)
}

/// The sessions under which the nodes live that own these runs.
async fn living_owners<C: Client>(
    client: &C,
    runs: &[(RunRecord, Version)],
) -> Result<BTreeMap<String, SessionId>, Trouble> {
    let nodes: BTreeSet<&NodeName> = runs.iter().map(|(record, _)| &record.owner.node).collect();
    let names = nodes.into_iter().map(|node| node.as_str().to_owned()).collect();
    let found = desk::get_all(client, paths::NODES, names, CHUNK).await?;
    Ok(found.into_iter().map(|(name, _, stat)| (name, session_id(stat.ephemeral_owner))).collect())
}

/// The nodes that live.
pub async fn members<C: Client>(client: &C) -> Result<Vec<Member>, Trouble> {
    let found = all(client, paths::NODES).await?;
    Ok(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()).collect())
}

/// Reads a run's record.
pub fn run_record(data: &[u8]) -> Result<RunRecord, serde_json::Error> {
    serde_json::from_slice(data)
}

/// Reads a job's record, naming it among the damaged if it cannot be read.
pub fn job_entry(name: &str, data: &[u8], stat: &Stat, damaged: &mut Vec<String>) -> JobEntry {
    let record =
        serde_json::from_slice(data).inspect_err(|error| damaged.push(format!("{}/{name}: {error}", paths::JOBS))).ok();
    JobEntry { record, version: Version(stat.version) }
}

async fn all<C: Client>(client: &C, folder: &str) -> Result<Vec<desk::Found>, Trouble> {
    let names = desk::children(client, folder).await?;
    desk::get_all(client, folder, names, CHUNK).await
}

fn owner_state(record: &RunRecord, living: &BTreeMap<String, SessionId>, dead: &BTreeSet<SessionId>) -> OwnerState {
    if living.get(record.owner.node.as_str()) == Some(&record.owner.session) {
        OwnerState::Alive
    } else if dead.contains(&record.owner.session) {
        OwnerState::Dead
    } else {
        OwnerState::Gone
    }
}
