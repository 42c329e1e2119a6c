//! What operators want, and what jobs that run after others wait for, as it stands in `control` and `triggers`.
//!
//! Who writes a wish also sets the data of its folder, so that one watch on each folder tells the leader of all wishes, also of a
//! changed one. One damaged record never hides the others.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join_all, try_join};
use uuid::Uuid;

use super::client::{Client, Error, Op, Stat};
use super::damage::Damage;
use super::desk::{self, At as _, Reads, Trouble};
use super::paths;
use crate::job::JobName;
use crate::ledger::{ControlEntry, TriggerEntry, Wishes};
use crate::run::{ControlRecord, HistoryRecord, Note, TriggerRecord, TriggerSeq, Version};

const CHUNK: usize = 500;

/// Rings at the leader: to be part of every multi that writes a wish.
pub fn ring(folder: &str) -> Op {
    Op::Set { path: folder.to_owned(), data: Vec::new(), version: -1 }
}

/// Reads all wishes, and says what could not be read. Its first request is handed over at once: whoever read the jobs before knows
/// of every pause that they rest on.
pub async fn read<C: Client>(client: &C) -> Result<(Wishes, Vec<Damage>), Trouble> {
    let (mut damaged, mut more) = (Vec::new(), Vec::new());
    let control = desk::children_or_damaged(client, paths::CONTROL, &mut damaged);
    let triggers = desk::children_or_damaged(client, paths::TRIGGERS, &mut more);
    let (jobs, numbers) = try_join(control, triggers).await?;
    damaged.append(&mut more);
    if jobs.is_empty() && numbers.is_empty() {
        return Ok((Wishes::default(), damaged));
    }
    let control = desk::get_all(client, paths::CONTROL, jobs, CHUNK);
    let triggers = desk::get_all(client, paths::TRIGGERS, numbers, CHUNK);
    let (control, triggers) = try_join(control, triggers).await?;
    let control = control_entries(client, control, &mut damaged).await?;
    let (mut wanted, mut links) = (BTreeMap::new(), BTreeMap::new());
    for (name, data, _) in triggers.or_damaged(paths::TRIGGERS, &mut damaged) {
        match note(&name, &data, &mut damaged) {
            Some((seq, Note::Trigger(record))) => drop(wanted.insert(seq, record)),
            Some((seq, Note::Link(link))) => drop(links.insert(seq, link)),
            None => {}
        }
    }
    let triggers = with_history(client, wanted, &mut damaged).await?;
    Ok((Wishes { control, triggers, links }, damaged))
}

/// One that cannot be read counts as a pause: that is what an operator meant.
async fn control_entries<C: Client>(
    client: &C,
    mut control: Reads,
    damaged: &mut Vec<Damage>,
) -> Result<BTreeMap<JobName, ControlEntry>, Trouble> {
    let unread: Vec<String> = control.unread.iter().map(|(name, _)| name.clone()).collect();
    let mut found: Vec<_> = desk::stats(client, paths::CONTROL, unread)
        .await?
        .into_iter()
        .map(|(name, stat)| (name, unreadable(&stat)))
        .collect();
    for (name, data, stat) in std::mem::take(&mut control).or_damaged(paths::CONTROL, damaged) {
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
pub async fn control<C: Client>(client: &C, job: &JobName) -> Result<Option<ControlEntry>, Trouble> {
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

fn note(name: &str, data: &[u8], damaged: &mut Vec<Damage>) -> Option<(TriggerSeq, Note)> {
    let seq = paths::trigger_seq(name).ok_or_else(|| "its name is no number".to_owned());
    let read = seq.and_then(|seq| Ok((seq, Note::read(data).map_err(|error| error.to_string())?)));
    read.inspect_err(|why| damaged.push(Damage::new(paths::under(paths::TRIGGERS, name), why))).ok()
}

/// Says of each trigger whether its job's history answers it. One whose history cannot be read is passed over: it may have led to its
/// run already.
async fn with_history<C: Client>(
    client: &C,
    mut triggers: BTreeMap<TriggerSeq, TriggerRecord>,
    damaged: &mut Vec<Damage>,
) -> Result<BTreeMap<TriggerSeq, TriggerEntry>, Trouble> {
    let jobs: BTreeSet<JobName> = triggers.values().map(|wish| wish.job.clone()).collect();
    let histories = join_all(jobs.iter().map(|job| answered(client, job))).await;
    let mut uuids = BTreeSet::new();
    for (job, answered) in jobs.iter().zip(histories) {
        match answered {
            Ok(answered) => uuids.extend(answered),
            Err(Trouble::NoAuth(_)) => {
                damaged.push(Damage::unread(paths::job_history(job), &Error::NoAuth));
                triggers.retain(|_, wish| wish.job != *job);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    let entry = |record: TriggerRecord| TriggerEntry { is_in_history: uuids.contains(&record.uuid), record };
    Ok(triggers.into_iter().map(|(seq, record)| (seq, entry(record))).collect())
}

async fn answered<C: Client>(client: &C, job: &JobName) -> Result<Vec<Uuid>, Trouble> {
    let history = history(client, job).await?;
    Ok(history.iter().filter_map(|record| Some(record.trigger()?.uuid)).collect())
}

/// A job's whole history. Records that cannot be read are left out.
pub async fn history<C: Client>(client: &C, job: &JobName) -> Result<Vec<HistoryRecord>, Trouble> {
    let folder = paths::job_history(job);
    let names = desk::children(client, &folder).await?;
    let found = desk::get_history(client, &folder, names).await?.found;
    Ok(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()).collect())
}
