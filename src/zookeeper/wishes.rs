//! What operators want, and what jobs that run after others wait for, as it stands in `control` and `triggers`.
//!
//! Who writes a wish also sets the data of its folder, so that one watch on each folder tells the leader of all wishes, also of a
//! changed one. One damaged record never hides the others.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join_all, try_join};
use uuid::Uuid;

use super::client::{Client, Error, Op};
use super::desk::{self, Trouble};
use super::paths;
use crate::job::JobName;
use crate::ledger::{ControlEntry, TriggerEntry, Wishes};
use crate::run::{ControlRecord, HistoryRecord, Note, TriggerRecord, TriggerSeq, Version};

const CHUNK: usize = 500;

/// Rings at the leader: to be part of every multi that writes a wish.
pub fn ring(folder: &str) -> Op {
    Op::Set { path: folder.to_owned(), data: Vec::new(), version: -1 }
}

/// Reads all wishes. Its first request is handed over at once: whoever read the jobs before knows of every pause that they
/// rest on.
pub async fn read<C: Client>(client: &C, damaged: &mut Vec<String>) -> Result<Wishes, Trouble> {
    let names = try_join(desk::children(client, paths::CONTROL), desk::children(client, paths::TRIGGERS));
    let (jobs, numbers) = names.await?;
    if jobs.is_empty() && numbers.is_empty() {
        return Ok(Wishes::default());
    }
    let control = desk::get_all(client, paths::CONTROL, jobs, CHUNK);
    let triggers = desk::get_all(client, paths::TRIGGERS, numbers, CHUNK);
    let (control, triggers) = try_join(control, triggers).await?;
    let control = control.into_iter().filter_map(|(name, data, stat)| {
        let job = JobName::parse(&name).inspect_err(|bad| damaged.push(format!("{}/{name}: {bad}", paths::CONTROL)));
        Some((job.ok()?, control_entry(&name, &data, stat.version, damaged)))
    });
    let control: BTreeMap<_, _> = control.collect();
    let (mut wanted, mut links) = (BTreeMap::new(), BTreeMap::new());
    for (name, data, _) in triggers {
        match note(&name, &data, damaged) {
            Some((seq, Note::Trigger(record))) => drop(wanted.insert(seq, record)),
            Some((seq, Note::Link(link))) => drop(links.insert(seq, link)),
            None => {}
        }
    }
    Ok(Wishes { control, triggers: with_history(client, wanted).await?, links })
}

/// Reads a job's pause.
pub async fn control<C: Client>(client: &C, job: &JobName) -> Result<Option<ControlEntry>, Trouble> {
    match client.get(&paths::control(job)).await {
        Ok((data, stat)) => Ok(Some(control_entry(job.as_str(), &data, stat.version, &mut Vec::new()))),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn control_entry(name: &str, data: &[u8], version: i32, damaged: &mut Vec<String>) -> ControlEntry {
    let record = serde_json::from_slice(data).unwrap_or_else(|error| {
        damaged.push(format!("{}/{name}: {error}", paths::CONTROL));
        ControlRecord::unreadable()
    });
    ControlEntry { record, version: Version(version) }
}

fn note(name: &str, data: &[u8], damaged: &mut Vec<String>) -> Option<(TriggerSeq, Note)> {
    let seq = paths::trigger_seq(name).ok_or_else(|| "its name is no number".to_owned());
    let read = seq.and_then(|seq| Ok((seq, Note::read(data).map_err(|error| error.to_string())?)));
    read.inspect_err(|why| damaged.push(format!("{}/{name}: {why}", paths::TRIGGERS))).ok()
}

/// Says of each trigger whether its job's history answers it.
async fn with_history<C: Client>(
    client: &C,
    triggers: BTreeMap<TriggerSeq, TriggerRecord>,
) -> Result<BTreeMap<TriggerSeq, TriggerEntry>, Trouble> {
    let jobs: BTreeSet<&JobName> = triggers.values().map(|wish| &wish.job).collect();
    let histories = join_all(jobs.into_iter().map(|job| answered(client, job))).await;
    let answered: BTreeSet<Uuid> =
        histories.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let entry = |record: TriggerRecord| TriggerEntry { is_in_history: answered.contains(&record.uuid), record };
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
    let found = desk::get_history(client, &folder, names).await?;
    Ok(found.into_iter().filter_map(|(_, data, _)| serde_json::from_slice(&data).ok()).collect())
}
