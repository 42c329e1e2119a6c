//! The ledger's current content, read by a new leader and for operators.
//!
//! Runs are read before members, so an owner found alive was alive after its run was read. A damaged record does not
//! affect the others; the result names it.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{try_join, try_join_all, try_join3};
use jiff::{SignedDuration, Timestamp};

use super::bounded;
use super::context::{self, At as _, Reads, SessionError, SizedRecords};
use super::damage::{self, Damage};
use super::newest_records::NewestRecords;
use super::{requests, strays};
use crate::paths;
use crate::tree::{Error, Session, Stat};
use cronkeeper_core::clock::{AHEAD, later};
use cronkeeper_core::election::{Member, Place};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{
    JobEntry, LostCommits, MOST_LOOKED_UP, OwnerState, RECORDS_LOOKED_UP, Running, Snapshot, unreadable,
};
use cronkeeper_core::run::{JobRecord, RunId, RunRecord, Version};
use cronkeeper_core::term::{NodeName, SessionId};

/// Reads jobs, runs and the owners' state, and names what could not be read. `dead` are the sessions of processes known
/// to be dead.
///
/// A takeover waits for this. So requests that do not depend on each other's answers are sent together: first the
/// names, then the sizes of the records, then the records, then, if there are runs, their owners.
pub async fn read<C: Session>(client: &C, dead: &BTreeSet<SessionId>) -> Result<(Snapshot, Vec<Damage>), SessionError> {
    let mut snapshot = Snapshot::default();
    let (mut damaged, mut more) = (Vec::new(), Vec::new());
    let jobs = context::names_or_damaged(client, paths::JOBS, &mut damaged);
    let runs = context::names_or_damaged(client, paths::RUNNING, &mut more);
    let (jobs, runs) = try_join(jobs, runs).await?;
    let jobs = SizedRecords::of(client, paths::JOBS, jobs);
    let runs = SizedRecords::of(client, paths::RUNNING, runs);
    let (jobs, runs) = try_join(jobs, runs).await?;
    let (jobs, runs) = (jobs.get(client), runs.get(client));
    // Read the requests after the jobs' records. A pause changes the job's record too: if these reads miss a pause, the
    // version read is stale, and the next write at that version fails.
    let none_known = requests::Answered::new();
    let requests = requests::read(client, &none_known);
    let (jobs, found, (requests, damaged_requests)) = try_join3(jobs, runs, requests).await?;
    damaged.extend(more.into_iter().chain(damaged_requests));
    snapshot.requests = requests;
    snapshot.jobs = job_entries(client, jobs, &mut damaged).await?;
    let mut runs = Vec::new();
    for (name, data, stat) in found.or_damaged(paths::RUNNING, &mut damaged) {
        match run_record(&name, &data, &stat) {
            Ok(run) => runs.push(run),
            Err(why) => damaged.push(strays::no_run(client, &name, &why)),
        }
    }
    let living = living_owners(client, &runs).await?;
    snapshot.running = runs
        .into_iter()
        .map(|(record, version)| Running { owner: owner_state(&record, &living, dead), record, version })
        .collect();
    Ok((snapshot, damaged))
}

/// What [`read`] reads, and the newest history of jobs whose records are damaged: only a new leader needs that.
pub async fn read_for_takeover<C: Session>(
    client: &C,
    dead: &BTreeSet<SessionId>,
) -> Result<(Snapshot, Vec<Damage>), SessionError> {
    let ((mut snapshot, mut damaged), (lost_until, damage)) = try_join(read(client, dead), lost_until(client)).await?;
    snapshot.lost_until = lost_until;
    damaged.extend(damage);
    let unreadable: Vec<JobName> = unreadable(&snapshot.jobs).take(MOST_LOOKED_UP).cloned().collect();
    let newest = unreadable.iter().map(async |job| {
        let mut records = NewestRecords::of(client, job).await?;
        records.next(client, RECORDS_LOOKED_UP, |_| false).await
    });
    for (job, records) in unreadable.iter().zip(try_join_all(newest).await?) {
        snapshot.note_decided(job, records.into_iter().flatten().map(|(record, _)| record));
    }
    Ok((snapshot, damaged))
}

/// Until when commits may have begun something that the store has lost. Not before that was written, by the store's own
/// clock, and not long after: the clock of whoever wrote it may be wrong.
pub async fn lost_until<C: Session>(client: &C) -> Result<(Option<Timestamp>, Option<Damage>), SessionError> {
    let path = || paths::REWOUND.to_owned();
    let found = bounded::get(client, vec![path()], bounded::SMALL).await.at(paths::REWOUND)?.pop();
    Ok(match found {
        None | Some(Err(Error::Missing)) => (None, None),
        // Whoever cannot read it must take everything for lost that may be.
        Some(Err(error)) => (Some(Timestamp::MAX), Some(Damage::unread(path(), &error))),
        Some(Ok((data, stat))) => {
            let latest = later(stat.changed_at, AHEAD.unsigned_abs());
            match bounded::SMALL.parse::<LostCommits>(&data) {
                Ok(lost) if stat.changed_at > Timestamp::UNIX_EPOCH => {
                    (Some(lost.until.max(stat.changed_at).min(latest)), None)
                }
                Ok(lost) => (Some(lost.until), None),
                Err(why) => (Some(latest), Some(Damage::new(path(), why))),
            }
        }
    })
}

async fn job_entries<C: Session>(
    client: &C,
    jobs: Reads,
    damaged: &mut Vec<Damage>,
) -> Result<BTreeMap<JobName, JobEntry>, SessionError> {
    let mut entries = BTreeMap::new();
    let unread: Vec<String> = jobs.unread.iter().map(|(name, _)| name.clone()).collect();
    // Their content is unknown, but their versions are not.
    let versions = context::stats(client, paths::JOBS, unread).await?;
    let versions = versions.into_iter().map(|(name, stat)| (name, stat.version));
    let unread = versions.filter_map(|(name, version)| Some((JobName::parse(&name).ok()?, version)));
    entries.extend(unread.map(|(job, version)| (job, JobEntry { record: None, version })));
    for (name, data, stat) in jobs.or_damaged(paths::JOBS, damaged) {
        match JobName::parse(&name) {
            Ok(job) => drop(entries.insert(job, job_entry(&name, &data, &stat, damaged))),
            Err(bad) => damaged.push(Damage::new(paths::under(paths::JOBS, &name), bad)),
        }
    }
    Ok(entries)
}

/// The sessions that are alive among those of the nodes that own these runs, by node.
async fn living_owners<C: Session>(
    client: &C,
    runs: &[(RunRecord, Version)],
) -> Result<BTreeMap<String, SessionId>, SessionError> {
    let nodes: BTreeSet<&NodeName> = runs.iter().map(|(record, _)| &record.owner.node).collect();
    let names = nodes.into_iter().map(|node| node.as_str().to_owned()).collect();
    let found = context::stats(client, paths::NODES, names).await?;
    Ok(found.into_iter().filter_map(|(name, stat)| Some((name, stat.session?))).collect())
}

/// The members, which are the nodes that are alive, and those of them that cannot be read.
pub async fn members<C: Session>(client: &C) -> Result<(Vec<Member>, Vec<Damage>), SessionError> {
    let mut damaged = Vec::new();
    let names = context::names_or_damaged(client, paths::NODES, &mut damaged).await?;
    let found = context::get_small(client, paths::NODES, names).await?.or_damaged(paths::NODES, &mut damaged);
    let mut members = Vec::with_capacity(found.len());
    for (name, data, stat) in found {
        match member(&name, &data, &stat) {
            Ok(member) => members.push(member),
            Err(why) => damaged.push(Damage::new(paths::under(paths::NODES, &name), why)),
        }
    }
    Ok((members, damaged))
}

/// The places that the cluster knows, and those that cannot be read.
pub async fn places<C: Session>(client: &C) -> Result<(BTreeMap<NodeName, Place>, Vec<Damage>), SessionError> {
    let mut damaged = Vec::new();
    let names = context::names_or_damaged(client, paths::PLACES, &mut damaged).await?;
    let found = context::get_small(client, paths::PLACES, names).await?.or_damaged(paths::PLACES, &mut damaged);
    let mut places = BTreeMap::new();
    for (name, data, _) in found {
        let node = NodeName::parse(&name).map_err(|bad| bad.to_string());
        match node.and_then(|node| Ok((node, bounded::NODES.parse::<Place>(&data)?))) {
            Ok((node, place)) => _ = places.insert(node, place),
            Err(why) => damaged.push(Damage::new(paths::under(paths::PLACES, &name), why)),
        }
    }
    Ok((places, damaged))
}

fn member(name: &str, data: &[u8], stat: &Stat) -> Result<Member, String> {
    if stat.session.is_none() {
        return Err("it is not ephemeral, so it is not the member of a living node".to_owned());
    }
    let member: Member = bounded::SMALL.parse(data)?;
    if member.node.as_str() != name {
        return Err(format!("it names a different node, `{}`", member.node));
    }
    Ok(Member { session: stat.session.clone(), ..member })
}

/// Parses a run's record and checks that it belongs under this name.
pub fn run_record(name: &str, data: &[u8], stat: &Stat) -> Result<(RunRecord, Version), String> {
    RunId::parse(name).map_err(|bad| bad.to_string())?;
    bounded::RUNS.check(data.len()).map_err(|error| error.to_string())?;
    let record = RunRecord::read(data).map_err(|error| damage::reason(&error))?;
    not_ahead(record.scheduled_at, stat)?;
    let id = record.id().to_string();
    if id != name {
        return Err(format!("it holds the record of another run, `{id}`"));
    }
    Ok((record, stat.version))
}

/// Rejects records whose time is more than a day ahead of the servers' time of the write.
///
/// No leader decides more than a minute ahead of the servers' clock, so such a record was not written by a leader.
pub fn not_ahead(at: Timestamp, stat: &Stat) -> Result<(), String> {
    const A_DAY: SignedDuration = SignedDuration::from_hours(24);
    if stat.changed_at > Timestamp::UNIX_EPOCH && at.duration_since(stat.changed_at) > A_DAY {
        return Err(format!("its time, {at}, is more than a day after it was written"));
    }
    Ok(())
}

/// Parses a job's record. If that fails, adds the path to `damaged`.
pub fn job_entry(name: &str, data: &[u8], stat: &Stat, damaged: &mut Vec<Damage>) -> JobEntry {
    let read = |data| {
        let record: JobRecord = bounded::SMALL.parse(data)?;
        not_ahead(record.counted.unwrap_or(record.last_scheduled), stat)?;
        Ok(record)
    };
    let record =
        read(data).inspect_err(|why: &String| damaged.push(Damage::new(paths::under(paths::JOBS, name), why))).ok();
    JobEntry { record, version: stat.version }
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::tests_support::Server;
    use crate::test_records::{record, skip, success};
    use cronkeeper_core::run::{HistoryRecord, Skip};

    /// A write in the first second of 1970, or a moment after.
    fn stamp() -> Stat {
        Stat { changed_at: Timestamp::from_second(1).unwrap(), ..Stat::default() }
    }

    #[test]
    fn a_run_under_another_runs_name_or_far_in_the_future_is_rejected() {
        let run = record("backup", 60, "0x7");
        let name = run.id().to_string();
        assert_eq!(run_record(&name, &json(&run), &stamp()), Ok((run.clone(), Version(0))));
        assert!(run_record("backup.19700101T000200Z", &json(&run), &stamp()).unwrap_err().contains("another run"));
        let ahead = record("backup", 200_000, "0x7");
        assert!(run_record(&ahead.id().to_string(), &json(&ahead), &stamp()).unwrap_err().contains("more than a day"));
    }

    #[test]
    fn of_a_damaged_mark_the_newest_decided_occurrence_is_looked_up() {
        let server = Server::default();
        let name = |job: &str| JobName::parse(job).unwrap();
        {
            let mut tree = server.tree();
            tree.time_ms = 1_000_000;
            for job in ["damaged", "new", "fine"] {
                tree.put(&paths::job(&name(job)), b"{".to_vec());
            }
            let mark = crate::recipes::transaction::tests::mark(60, "1-0");
            tree.put(&paths::job(&name("fine")), json(&mark));
            for second in [60, 120] {
                let run = record("damaged", second, "0x1");
                tree.put(&paths::history(&run.id()), json(&HistoryRecord::Run(success(run))));
            }
            let missed = Skip { last: Timestamp::from_second(240).unwrap(), count: 2, ..skip("damaged", 180) };
            tree.put(&paths::history(&missed.id()), json(&HistoryRecord::Skip(missed)));
            tree.put(&paths::history(&RunId::parse("fine.19700101T000100Z").unwrap()), b"{".to_vec());
        }
        let read = || read_for_takeover(&server, &BTreeSet::new()).now_or_never().unwrap().unwrap().0;
        assert_eq!(read().decided, [(name("damaged"), Timestamp::from_second(240).unwrap())].into());
        let run = record("damaged", 300, "0x1");
        server.tree().put(&paths::running(&run.id()), json(&run));
        assert_eq!(read().decided, [(name("damaged"), run.scheduled_at)].into());
    }

    #[test]
    fn a_mark_far_ahead_of_its_own_stamp_is_rejected() {
        let mut damaged = Vec::new();
        let mut entry = |second| {
            let record = crate::recipes::transaction::tests::mark(second, "1-0");
            job_entry("backup", &json(&record), &stamp(), &mut damaged).record
        };
        assert!(entry(60).is_some());
        assert!(entry(200_000).is_none());
        assert_eq!(damaged.len(), 1);
    }
}
