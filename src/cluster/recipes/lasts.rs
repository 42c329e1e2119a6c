//! `last/<job>`: how the runs of each job ended last.
//!
//! Every end also moves its job's record, in the same commit and at the version that was read. So a session reads a
//! record before the first end that it writes for a job, and knows it from then on. If another node has written an end
//! of the job since, the commit is refused, and the record is read again.
//!
//! Versions of cronkeeper before these records wrote ends without them. Where a job has a history and no record, what the
//! record would say is found in the history; the leader writes it as it goes through all histories.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;

use super::bounded;
use super::context::{self, At as _, SessionError, json};
use super::damage::Damage;
use super::newest_records::NewestRecords;
use crate::paths;
use crate::tree::{Life, Op, Revision, Session, Stat};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{CommitId, Last, LastSuccess};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd, Version};

/// Records that one session keeps, of some 300 bytes each. With more it forgets all and reads again what it needs.
const MOST_KNOWN: usize = 20_000;
/// Jobs whose histories are searched at the same time: few, because commits share the servers.
const MOST_SEARCHES: usize = 8;

/// A job's record as read.
#[derive(Clone, Debug)]
pub(super) struct ReadLast {
    /// `None` if no run of the job has ended.
    last: Result<Option<Last>, Damage>,
    /// Absent if there is no record.
    at: Option<Version>,
}

impl ReadLast {
    pub fn success(&self) -> LastSuccess {
        match &self.last {
            Ok(last) => last.as_ref().and_then(|last| last.success).into(),
            Err(_) => LastSuccess::Unreadable,
        }
    }
}

/// Reads the records of these jobs, each of which has a result.
pub(super) async fn read<C: Session>(
    client: &C,
    jobs: impl IntoIterator<Item = JobName>,
) -> Result<BTreeMap<JobName, ReadLast>, SessionError> {
    let jobs: BTreeSet<JobName> = jobs.into_iter().collect();
    let names = jobs.iter().map(ToString::to_string).collect();
    let records = context::get_small(client, paths::LAST, names).await?;
    let mut read = BTreeMap::new();
    for (name, data, stat) in records.found {
        if let Ok(job) = JobName::parse(&name) {
            let last = parse(&job, &data);
            read.insert(job, ReadLast { last: last.map(Some), at: Some(stat.version) });
        }
    }
    // Their content is unknown, but their versions are not.
    let unread = records.unread.iter().map(|(name, _)| name.clone()).collect();
    let versions: BTreeMap<_, _> = context::stats(client, paths::LAST, unread).await?.into_iter().collect();
    for (name, error) in records.unread {
        if let (Ok(job), Some(stat)) = (JobName::parse(&name), versions.get(&name)) {
            let damage = Damage::unread(paths::last(&job), &error);
            read.insert(job, ReadLast { last: Err(damage), at: Some(stat.version) });
        }
    }
    let absent: Vec<JobName> = jobs.into_iter().filter(|job| !read.contains_key(job)).collect();
    let search = |job: JobName| async move {
        let last = in_history(client, &job).await?;
        Ok::<_, SessionError>((job, ReadLast { last: Ok(last), at: None }))
    };
    let found: Vec<_> = stream::iter(absent).map(search).buffer_unordered(MOST_SEARCHES).try_collect().await?;
    read.extend(found);
    Ok(read)
}

fn parse(job: &JobName, data: &[u8]) -> Result<Last, Damage> {
    let damage = |why: &str| Damage::new(paths::last(job), why);
    let last: Last = bounded::SMALL.parse(data).map_err(|why| damage(&why))?;
    let is_of_job = last.end.run.job() == job && last.written.run.job() == job;
    if is_of_job { Ok(last) } else { Err(damage("it is about another job")) }
}

/// What the job's record would say, by the newest records of its history.
async fn in_history<C: Session>(client: &C, job: &JobName) -> Result<Option<Last>, SessionError> {
    let mut records = NewestRecords::of(client, job).await?;
    let newest = records.next(client, context::MOST_RECENT, |_| false).await?.unwrap_or_default();
    // Those written last come first.
    Ok(newest.iter().rev().fold(None, |last, (record, _)| match record {
        HistoryRecord::Run(end) => Some(Last::after(last.as_ref(), end, Timestamp::MAX)),
        HistoryRecord::Skip(_) => last,
    }))
}

/// Writes the record of a job that has none, by what its history says.
pub(super) async fn fill_in<C: Session>(client: &C, job: &JobName) -> Result<(), SessionError> {
    let path = paths::last(job);
    if client.stat(&path).await.at(&path)?.is_some() {
        return Ok(());
    }
    let Some(last) = in_history(client, job).await? else { return Ok(()) };
    match client.create(&path, json(&last), Life::Lasting).await {
        Err(error) if !error.is_of_state() => Err(error).at(&path),
        // Somebody else has written it.
        _ => Ok(()),
    }
}

/// The writes of the records that the ends of one commit move.
#[derive(Debug, Default)]
pub(super) struct LastWrites {
    writes: BTreeMap<JobName, LastWrite>,
    /// The outcome before each end.
    before: BTreeMap<CommitId, Outcome>,
}

#[derive(Debug)]
struct LastWrite {
    last: Last,
    /// The version of the record that is replaced; absent if there is none.
    at: Option<Version>,
}

impl LastWrites {
    /// The operations, at most one for each end, in the order of [`jobs`](Self::jobs).
    pub fn ops(&self) -> impl Iterator<Item = Op> {
        self.writes.iter().map(|(job, write)| op(job, &write.last, write.at))
    }

    /// The jobs whose records are moved.
    pub fn jobs(&self) -> impl Iterator<Item = &JobName> {
        self.writes.keys()
    }

    /// The outcome of the end that was written before this one.
    pub fn before(&self, end: CommitId) -> Option<Outcome> {
        self.before.get(&end).copied()
    }
}

fn op(job: &JobName, last: &Last, at: Option<Version>) -> Op {
    let (path, data) = (paths::last(job), json(last));
    match at {
        Some(version) => Op::Set { path, data, at: version.into() },
        None => Op::Create { path, data, life: Life::Lasting },
    }
}

/// The write of the record that this end moves, and the outcome before it.
pub(super) async fn write_of<C: Session>(
    client: &C,
    end: &RunEnd,
    now: Timestamp,
) -> Result<(Op, Option<Outcome>), SessionError> {
    let job = &end.run.job;
    let read = read(client, [job.clone()]).await?.remove(job);
    let (last, at) = read.map_or((None, None), |read| (read.last.ok().flatten(), read.at));
    let next = Last::after(last.as_ref(), end, now);
    Ok((op(job, &next, at), next.written.before))
}

/// The records as one session has read or written them.
#[derive(Debug, Default)]
pub(super) struct KnownLasts(BTreeMap<JobName, KnownLast>);

#[derive(Debug)]
struct KnownLast {
    last: Option<Last>,
    at: Option<Version>,
}

impl KnownLasts {
    pub fn knows(&self, job: &JobName) -> bool {
        self.0.contains_key(job)
    }

    /// Takes what was read. A damaged record is written anew with the job's next end.
    pub fn learn(&mut self, read: BTreeMap<JobName, ReadLast>) {
        if self.0.len() + read.len() > MOST_KNOWN {
            self.0.clear();
        }
        for (job, ReadLast { last, at }) in read {
            let last = last.unwrap_or_else(|damage| {
                let event = log_event::COORDINATION_REPAIRED;
                tracing::warn!(target: TARGET, event, path = damage.path, "rewriting the damaged record of a job: {damage}");
                None
            });
            self.0.insert(job, KnownLast { last, at });
        }
    }

    /// The record must be read before it is written again.
    pub fn forget(&mut self, job: &JobName) {
        self.0.remove(job);
    }

    /// What these ends, in their order, write. Each end's job must be known.
    pub fn writes<'a>(&self, ends: impl Iterator<Item = (CommitId, &'a RunEnd)>, now: Timestamp) -> LastWrites {
        let mut writes = LastWrites::default();
        for (id, end) in ends {
            let job = &end.run.job;
            let known = self.0.get(job);
            let previous = writes.writes.get(job).map(|write| &write.last);
            let next = Last::after(previous.or(known.and_then(|known| known.last.as_ref())), end, now);
            writes.before.extend(next.written.before.map(|before| (id, before)));
            writes.writes.insert(job.clone(), LastWrite { last: next, at: known.and_then(|known| known.at) });
        }
        writes
    }

    /// Takes what was written.
    pub fn written(&mut self, writes: LastWrites) {
        for (job, LastWrite { last, at }) in writes.writes {
            let at = Some(at.map_or(Version::FIRST, Version::next));
            self.0.insert(job, KnownLast { last: Some(last), at });
        }
    }
}

/// The records of all jobs, kept up to date by reading only those that have changed.
#[derive(Debug, Default)]
pub(super) struct AllLasts(BTreeMap<JobName, (Seen, Option<Last>)>);

/// Changes with whatever the record is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Record(Revision),
    /// There is no record, but a history, created and last grown or trimmed like this.
    History(Revision, i64),
}

impl AllLasts {
    /// Reads the records that have changed, and forgets those that are gone.
    ///
    /// If this future is dropped or fails, what was read until then is kept: each entry is complete.
    pub async fn refresh<C: Session>(&mut self, client: &C) -> Result<(), SessionError> {
        let mut seen = BTreeMap::new();
        for (job, stat) in stats(client, paths::LAST, |_| true).await? {
            seen.insert(job, Seen::Record(stat.changed));
        }
        for (job, stat) in stats(client, paths::HISTORY, |job| !seen.contains_key(job)).await? {
            seen.insert(job, Seen::History(stat.created, stat.below));
        }
        self.0.retain(|job, _| seen.contains_key(job));
        let is_changed = |(job, seen): &(JobName, Seen)| self.0.get(job).is_none_or(|(known, _)| known != seen);
        let changed: Vec<_> = seen.into_iter().filter(is_changed).collect();
        for changed in changed.chunks(bounded::JOBS.count) {
            let mut read = read(client, changed.iter().map(|(job, _)| job.clone())).await?;
            for (job, seen) in changed {
                let last = read.remove(job).and_then(|read| read.last.ok().flatten());
                self.0.insert(job.clone(), (*seen, last));
            }
        }
        Ok(())
    }

    pub fn lasts(&self) -> impl Iterator<Item = (JobName, Last)> {
        self.0.iter().filter_map(|(job, (_, last))| Some((job.clone(), last.clone()?)))
    }
}

/// The metadata of the children that are named after a wanted job.
async fn stats<C: Session>(
    client: &C,
    parent: &str,
    is_wanted: impl Fn(&JobName) -> bool,
) -> Result<Vec<(JobName, Stat)>, SessionError> {
    let mut names = context::names(client, parent).await?;
    names.retain(|name| JobName::parse(name).is_ok_and(|job| is_wanted(&job)));
    let found = context::stats(client, parent, names).await?;
    Ok(found.into_iter().filter_map(|(name, stat)| Some((JobName::parse(&name).ok()?, stat))).collect())
}
