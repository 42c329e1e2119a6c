//! What operators want, and what jobs that run after others wait for, as it stands in `control` and `triggers`.
//!
//! Who writes a request also sets the data of its folder, so that one watch on each folder tells the leader of all requests, also of a
//! changed one. One damaged record never hides the others.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join_all, try_join};
use uuid::Uuid;

use super::client::{Client, Error, Mode, Op, Stat};
use super::committer::check;
use super::context::{self, At as _, Reads, SessionContext, SessionError};
use super::damage::Damage;
use super::{paths, queue, snapshot};
use crate::clock::Clock;
use crate::job::JobName;
use crate::ledger::{ControlEntry, OperatorRequests, TriggerEntry};
use crate::run::{ControlRecord, HistoryRecord, Note, RunId, TriggerRecord, TriggerSeq, Version};

/// Rings at the leader: to be part of every multi that writes a request.
pub fn ring(folder: &str) -> Op {
    Op::Set { path: folder.to_owned(), data: Vec::new(), version: -1 }
}

/// Gives the folder of the triggers its numbers from the first on, guarded by the own candidate: the servers count what was ever made
/// in a folder, and stop at 2^31 - 1. False: it is not empty.
pub async fn renumber<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    candidate: String,
) -> Result<bool, SessionError> {
    let path = || paths::TRIGGERS.to_owned();
    let ops = vec![
        check(&candidate),
        Op::Delete { path: path(), version: -1 },
        Op::Create { path: path(), data: Vec::new(), mode: Mode::Persistent },
    ];
    match context.line()?.multi(ops).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error == Error::NotEmpty => Ok(false),
        Err(failed) => Err(failed).at(paths::TRIGGERS),
    }
}

/// True where the numbers of the triggers are half used up.
pub fn is_high(requests: &OperatorRequests) -> bool {
    let newest = requests.triggers.keys().chain(requests.links.keys()).max();
    newest.is_some_and(|newest| newest.0 >= queue::HIGH_SEQUENCE.unsigned_abs())
}

/// Jobs whose histories are read at once, for triggers that are new.
const HISTORIES: usize = 16;

/// Whether the history answered a trigger when it was read first: of whom a leader has decided on since, it knows by itself.
pub type Answered = BTreeMap<TriggerSeq, (Uuid, bool)>;

/// What these requests say of that.
pub fn answered_in(requests: &OperatorRequests) -> Answered {
    requests.triggers.iter().map(|(&seq, entry)| (seq, (entry.record.uuid, entry.is_in_history))).collect()
}

/// Reads all requests, no history for those that are `known`, and says what could not be read. Its first request is handed over at
/// once: whoever read the jobs before knows of every pause that they rest on.
pub async fn read<C: Client>(client: &C, known: &Answered) -> Result<(OperatorRequests, Vec<Damage>), SessionError> {
    let (mut damaged, mut more) = (Vec::new(), Vec::new());
    let control = context::children_or_damaged(client, paths::CONTROL, &mut damaged);
    let triggers = context::children_or_damaged(client, paths::TRIGGERS, &mut more);
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

/// One that cannot be read counts as a pause: that is what an operator meant.
async fn control_entries<C: Client>(
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

/// Reads a job's pause.
pub async fn control<C: Client>(client: &C, job: &JobName) -> Result<Option<ControlEntry>, SessionError> {
    let path = paths::control(job);
    match client.get(&path).await {
        Ok((data, stat)) => Ok(Some(control_entry(job.as_str(), &data, stat.version, &mut Vec::new()))),
        Err(Error::NoNode) => Ok(None),
        Err(error) if error.is_of_path() => Ok(client.stat(&path).await.at(&path)?.as_ref().map(unreadable)),
        Err(error) => Err(error).at(&path),
    }
}

fn unreadable(stat: &Stat) -> ControlEntry {
    ControlEntry { record: ControlRecord::unreadable(), version: Version(stat.version) }
}

fn control_entry(name: &str, data: &[u8], version: i32, damaged: &mut Vec<Damage>) -> ControlEntry {
    let record = serde_json::from_slice(data).unwrap_or_else(|error| {
        damaged.push(Damage::new(paths::under(paths::CONTROL, name), error));
        ControlRecord::unreadable()
    });
    ControlEntry { record, version: Version(version) }
}

fn note(name: &str, data: &[u8], stat: &Stat, damaged: &mut Vec<Damage>) -> Option<(TriggerSeq, Note)> {
    let seq = paths::trigger_seq(name).ok_or_else(|| "its name is no number".to_owned());
    let read = seq.and_then(|seq| {
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

/// Says of each trigger whether its job's history answers it. One whose history cannot be read is passed over: it may have led to its
/// run already.
async fn with_history<C: Client>(
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
                    damaged.push(Damage::unread(paths::job_history(job), &Error::NoAuth));
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

async fn uuids<C: Client>(client: &C, job: &JobName) -> Result<Vec<Uuid>, SessionError> {
    let history = triggered(client, job).await?;
    Ok(history.iter().filter_map(|record| Some(record.trigger()?.uuid)).collect())
}

/// What became of a job's triggers, the newest of them: the ids of their records say that they are of triggers. Records that cannot
/// be read are left out.
pub async fn triggered<C: Client>(client: &C, job: &JobName) -> Result<Vec<HistoryRecord>, SessionError> {
    let mut names = context::newest_history(client, job, usize::MAX).await?;
    names.retain(|name| RunId::parse(name).is_ok_and(|run| run.trigger().is_some()));
    let names = names.split_off(names.len().saturating_sub(context::MOST_LOOKED_AT));
    let found = context::get_history(client, &paths::job_history(job), names).await?.found;
    Ok(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()).collect())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::run::tests_support::{record, success};
    use crate::run::{RunRecord, Trigger};
    use crate::zookeeper::context::json;
    use crate::zookeeper::lower::tests::{at, name};
    use crate::zookeeper::tests_support::Server;

    fn request(uuid: u128) -> TriggerRecord {
        TriggerRecord { v: 1, job: name("backup"), uuid: Uuid::from_u128(uuid), at: at(60), by: "root".into() }
    }

    #[test]
    fn a_trigger_is_looked_for_among_the_newest_of_its_jobs_triggers_and_only_once() {
        let server = Server::new();
        server.tree().put("/cronkeeper/history/backup", "");
        for second in 0..10_000_i64 {
            let uuid = Uuid::from_u128(u128::from(second.unsigned_abs()));
            let seq = TriggerSeq(second.unsigned_abs());
            let trigger = (second % 2 == 0).then(|| Trigger { seq, uuid, by: "root".into() });
            let end = success(RunRecord { trigger, ..record("backup", second, "0x1") });
            server.tree().put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
        }
        for (seq, uuid) in [(20_000, 9_998), (20_001, 77_777)] {
            server.tree().put(&paths::trigger(TriggerSeq(seq)), json(&request(uuid)));
        }
        let look = |known: &Answered| read(&server, known).now_or_never().unwrap().unwrap().0;
        let first = look(&Answered::new());
        let is_answered: Vec<_> = first.triggers.values().map(|entry| entry.is_in_history).collect();
        assert_eq!(is_answered, [true, false]);
        let asked = |server: &Server| {
            let tree = server.tree();
            (tree.listings, tree.reads)
        };
        assert_eq!(asked(&server), (3, 2 + context::MOST_LOOKED_AT));
        let again = look(&answered_in(&first));
        assert_eq!((again, asked(&server)), (first, (5, 4 + context::MOST_LOOKED_AT)));
    }
}
