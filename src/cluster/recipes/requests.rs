//! Requests of operators, and links to downstream jobs, as recorded under `control` and `triggers`.
//!
//! Every multi that writes a request also sets the data of the request's parent. So one watch on each parent notifies
//! the leader of all requests, including changed ones. A damaged record does not affect the others.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join_all, try_join};
use uuid::Uuid;

use super::bounded;
use super::context::{self, At as _, Reads, SessionContext, SessionError};
use super::damage::Damage;
use super::snapshot;
use crate::paths;
use crate::tree::{AtVersion, CommitError, Committed, Error, Life, Limits, Op, Session, Stat};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{ControlEntry, OperatorRequests, TriggerEntry};
use cronkeeper_core::run::{ControlRecord, HistoryRecord, Note, RunId, TriggerRecord, TriggerSeq, Version};

/// Notifies the leader. Every multi that writes a request must include this operation.
pub fn notify_leader(parent: &str) -> Op {
    Op::Set { path: parent.to_owned(), data: Vec::new(), at: AtVersion::Any }
}

/// Writes a record of a node, and notifies the leader of its places. The leader reads them from time to time anyway, so
/// nothing waits for a notice that cannot be written.
pub async fn write_of_node<C: Session>(client: &C, write: Op) -> Result<Committed, CommitError> {
    match client.commit(vec![write.clone(), notify_leader(paths::PLACES)]).await {
        Err(failed) if failed.index == Some(1) && failed.error.is_of_path() => client.commit(vec![write]).await,
        done => done,
    }
}

/// Recreates the parent of the triggers, so that their sequence numbers start again at zero.
///
/// Some services count all records ever made in a folder, and their numbers end. The own candidate guards the write. Returns false
/// if the parent is not empty.
pub async fn renumber<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    candidate: String,
) -> Result<bool, SessionError> {
    let path = || paths::TRIGGERS.to_owned();
    let ops = vec![
        context::fence(&candidate),
        Op::Delete { path: path(), at: AtVersion::Any },
        Op::Create { path: path(), data: Vec::new(), life: Life::Lasting },
    ];
    match context.line()?.commit(ops).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error == Error::NotEmpty => Ok(false),
        Err(failed) => Err(failed).at(paths::TRIGGERS),
    }
}

/// True if half of the triggers' sequence numbers are used up.
pub fn is_high(requests: &OperatorRequests, limits: Limits) -> bool {
    let newest = requests.triggers.keys().chain(requests.links.keys()).max();
    newest.is_some_and(|newest| limits.is_high(i64::try_from(newest.0).unwrap_or(i64::MAX)))
}

/// Histories to read at once when looking up new triggers.
const HISTORIES: usize = 16;

/// For each trigger, by number and uuid: whether the history answered it when it was first read. A leader knows its own
/// later decisions by itself.
pub type Answered = BTreeMap<TriggerSeq, (Uuid, bool)>;

/// Extracts from requests whether the history answers their triggers.
pub fn answered_in(requests: &OperatorRequests) -> Answered {
    requests.triggers.iter().map(|(&seq, entry)| (seq, (entry.record.uuid, entry.is_in_history))).collect()
}

/// Reads all requests, and names what could not be read. Reads no history for triggers that are `known`.
///
/// Call it after the jobs' records were read: then every pause that their versions reflect is among the requests.
pub async fn read<C: Session>(client: &C, known: &Answered) -> Result<(OperatorRequests, Vec<Damage>), SessionError> {
    let (mut damaged, mut more) = (Vec::new(), Vec::new());
    let control = context::names_or_damaged(client, paths::CONTROL, &mut damaged);
    let triggers = context::names_or_damaged(client, paths::TRIGGERS, &mut more);
    let (jobs, numbers) = try_join(control, triggers).await?;
    damaged.append(&mut more);
    if jobs.is_empty() && numbers.is_empty() {
        return Ok((OperatorRequests::default(), damaged));
    }
    let control = context::get_small(client, paths::CONTROL, jobs);
    let triggers = context::get_small(client, paths::TRIGGERS, numbers);
    let (control, triggers) = try_join(control, triggers).await?;
    let control = control_entries(client, control, &mut damaged).await?;
    let (mut wanted, mut links) = (BTreeMap::new(), BTreeMap::new());
    for (name, data, stat) in triggers.or_damaged(paths::TRIGGERS, &mut damaged) {
        match note(&name, &data, &stat, &mut damaged) {
            Some((seq, Note::Trigger(record))) => drop(wanted.insert(seq, record)),
            Some((seq, Note::Link(link))) => drop(links.insert(seq, link)),
            None => {}
        }
    }
    let triggers = with_history(client, known, wanted, &mut damaged).await?;
    Ok((OperatorRequests { control, triggers, links }, damaged))
}

/// Parses pauses. One that cannot be read or parsed still counts as a pause, because that is what an operator meant.
async fn control_entries<C: Session>(
    client: &C,
    control: Reads,
    damaged: &mut Vec<Damage>,
) -> Result<BTreeMap<JobName, ControlEntry>, SessionError> {
    let unread: Vec<String> = control.unread.iter().map(|(name, _)| name.clone()).collect();
    let mut found: Vec<_> = context::stats(client, paths::CONTROL, unread)
        .await?
        .into_iter()
        .map(|(name, stat)| (name, unreadable(&stat)))
        .collect();
    for (name, data, stat) in control.or_damaged(paths::CONTROL, damaged) {
        let entry = control_entry(&name, &data, stat.version, damaged);
        found.push((name, entry));
    }
    let entries = found.into_iter().filter_map(|(name, entry)| {
        let bad = |bad: &_| damaged.push(Damage::new(paths::under(paths::CONTROL, &name), bad));
        Some((JobName::parse(&name).inspect_err(bad).ok()?, entry))
    });
    Ok(entries.collect())
}

/// Reads the pauses of all jobs.
pub async fn pauses<C: Session>(client: &C) -> Result<BTreeMap<JobName, ControlEntry>, SessionError> {
    let names = context::names(client, paths::CONTROL).await?;
    pauses_of(client, names).await
}

/// Reads the pauses of these jobs, as far as they are paused.
pub async fn pauses_of<C: Session>(
    client: &C,
    names: Vec<String>,
) -> Result<BTreeMap<JobName, ControlEntry>, SessionError> {
    let control = context::get_small(client, paths::CONTROL, names).await?;
    control_entries(client, control, &mut Vec::new()).await
}

/// Reads a job's pause.
pub async fn control<C: Session>(client: &C, job: &JobName) -> Result<Option<ControlEntry>, SessionError> {
    let path = paths::control(job);
    match client.get(&path).await {
        Ok((data, stat)) => Ok(Some(control_entry(job.as_str(), &data, stat.version, &mut Vec::new()))),
        Err(Error::Missing) => Ok(None),
        Err(error) if error.is_of_path() => Ok(client.stat(&path).await.at(&path)?.as_ref().map(unreadable)),
        Err(error) => Err(error).at(&path),
    }
}

fn unreadable(stat: &Stat) -> ControlEntry {
    ControlEntry { record: ControlRecord::unreadable(), version: stat.version }
}

fn control_entry(name: &str, data: &[u8], version: Version, damaged: &mut Vec<Damage>) -> ControlEntry {
    let record = bounded::SMALL.parse(data).unwrap_or_else(|error| {
        damaged.push(Damage::new(paths::under(paths::CONTROL, name), error));
        ControlRecord::unreadable()
    });
    ControlEntry { record, version }
}

fn note(name: &str, data: &[u8], stat: &Stat, damaged: &mut Vec<Damage>) -> Option<(TriggerSeq, Note)> {
    let seq = paths::trigger_seq(name).ok_or_else(|| "its name is not one that a server makes".to_owned());
    let read = seq.and_then(|seq| {
        bounded::RUNS.check(data.len()).map_err(|error| error.to_string())?;
        let note = Note::read(data).map_err(|error| error.to_string())?;
        let at = match &note {
            Note::Trigger(request) => request.at,
            Note::Link(link) => link.scheduled_at,
        };
        snapshot::not_ahead(at, stat)?;
        Ok((seq, note))
    });
    read.inspect_err(|why| damaged.push(Damage::new(paths::under(paths::TRIGGERS, name), why))).ok()
}

/// Finds out for each trigger whether its job's history answers it.
///
/// Leaves out triggers whose history cannot be read: they may have led to a run already.
async fn with_history<C: Session>(
    client: &C,
    known: &Answered,
    mut triggers: BTreeMap<TriggerSeq, TriggerRecord>,
    damaged: &mut Vec<Damage>,
) -> Result<BTreeMap<TriggerSeq, TriggerEntry>, SessionError> {
    let known_of = |seq: &TriggerSeq, record: &TriggerRecord| {
        known.get(seq).filter(|(uuid, _)| *uuid == record.uuid).map(|&(_, is_in_history)| is_in_history)
    };
    let new = triggers.iter().filter(|(seq, record)| known_of(seq, record).is_none());
    let jobs: BTreeSet<JobName> = new.map(|(_, record)| record.job.clone()).collect();
    let jobs: Vec<JobName> = jobs.into_iter().collect();
    let mut answered = BTreeSet::new();
    for jobs in jobs.chunks(HISTORIES) {
        let histories = join_all(jobs.iter().map(|job| uuids(client, job))).await;
        for (job, found) in jobs.iter().zip(histories) {
            match found {
                Ok(found) => answered.extend(found),
                Err(SessionError::NoAuth(_)) => {
                    damaged.push(Damage::unread(paths::job_history(job), &Error::Denied));
                    triggers.retain(|seq, request| request.job != *job || known_of(seq, request).is_some());
                }
                Err(error) => return Err(error),
            }
        }
    }
    let entry = |(seq, record): (TriggerSeq, TriggerRecord)| {
        let is_in_history = known_of(&seq, &record).unwrap_or_else(|| answered.contains(&record.uuid));
        (seq, TriggerEntry { is_in_history, record })
    };
    Ok(triggers.into_iter().map(entry).collect())
}

async fn uuids<C: Session>(client: &C, job: &JobName) -> Result<Vec<Uuid>, SessionError> {
    let history = triggered(client, job).await?;
    Ok(history.iter().filter_map(|record| Some(record.trigger()?.uuid)).collect())
}

/// The newest history records of a job that come from triggers; their ids say so. Leaves out records that cannot be
/// read.
pub async fn triggered<C: Session>(client: &C, job: &JobName) -> Result<Vec<HistoryRecord>, SessionError> {
    let mut names = context::newest_history(client, job, usize::MAX).await?;
    names.retain(|name| RunId::parse(name).is_ok_and(|run| run.trigger().is_some()));
    let names = names.split_off(names.len().saturating_sub(context::MOST_RECENT));
    let found = context::get_history(client, &paths::job_history(job), names).await?.found;
    Ok(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()).collect())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::tests_support::Server;
    use crate::recipes::transaction::tests::{at, name};
    use crate::test_records::{record, success};
    use cronkeeper_core::run::{RunRecord, Trigger};

    fn request(uuid: u128) -> TriggerRecord {
        TriggerRecord::new(Uuid::from_u128(uuid), name("backup"), "root".into(), at(60))
    }

    #[test]
    fn a_trigger_is_searched_once_and_only_among_the_newest_of_its_jobs_triggers() {
        let server = Server::default();
        server.tree().put("/cronkeeper/history/backup", "");
        for second in 0..10_000_i64 {
            let uuid = Uuid::from_u128(u128::from(second.unsigned_abs()));
            let seq = TriggerSeq(second.unsigned_abs());
            let trigger = (second % 2 == 0).then(|| Trigger { seq, uuid, by: "root".into(), scheduled_at: None });
            let end = success(RunRecord { trigger, ..record("backup", second, "0x1") });
            server.tree().put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
        }
        for (seq, uuid) in [(20_000, 9_998), (20_001, 77_777)] {
            server.tree().put(&paths::trigger(TriggerSeq(seq)), json(&request(uuid)));
        }
        let requests = |known: &Answered| read(&server, known).now_or_never().unwrap().unwrap().0;
        let first = requests(&Answered::new());
        let is_answered: Vec<_> = first.triggers.values().map(|entry| entry.is_in_history).collect();
        assert_eq!(is_answered, [true, false]);
        let costs = |server: &Server| {
            let tree = server.tree();
            (tree.listings, tree.reads)
        };
        assert_eq!(costs(&server), (3, 2 + context::MOST_RECENT));
        let again = requests(&answered_in(&first));
        assert_eq!((again, costs(&server)), (first, (5, 4 + context::MOST_RECENT)));
    }
}
