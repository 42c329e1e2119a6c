//! `last/<job>`: how the runs of each job ended last.
//!
//! Every end also moves its job's record, in the same commit and at the version that was read. So a session reads a
//! record before the first end that it writes for a job, and knows it from then on. If another node has written an end
//! of the job since, the commit is refused, and the record is read again. No end waits for a record that cannot be
//! written: it is written without.
//!
//! Versions of cronkeeper before these records wrote ends without them. Where a job has a history and no record, or a
//! damaged one, what the record would say is found in the history. The leader writes it as it goes through all histories,
//! also where an earlier version has written an end since.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;

use super::bounded;
use super::context::{self, At as _, SessionError, json};
use super::damage::Damage;
use super::newest_records::NewestRecords;
use super::reader::MOST_SEARCHES;
use crate::paths;
use crate::tree::{Life, Op, Revision, Session, Stat, State};
use cronkeeper_core::clock::{Now, Uptime};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{CommitId, Last, LastSuccess};
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd, Version};

/// Records that one session keeps, of some 300 bytes each. With more it forgets all and reads again what it needs.
const MOST_KNOWN: usize = 20_000;
/// How long ends do without a record that cannot be written, before that is tried again.
const CLOSED_FOR: Duration = Duration::from_secs(60);

/// A job's record as read.
#[derive(Clone, Debug)]
pub(super) struct ReadLast {
    /// What it says; what the history says if there is no record, or it is damaged. `None` if no run of the job has ended,
    /// as far as that is known.
    last: Option<Last>,
    /// The record's version; `None` if there is no record.
    at: Option<Version>,
    damage: Option<Damage>,
}

impl ReadLast {
    pub fn success(&self) -> LastSuccess {
        match (&self.last, &self.damage) {
            (Some(last), _) => last.success.into(),
            (None, Some(_)) => LastSuccess::Unreadable,
            (None, None) => LastSuccess::Never,
        }
    }
}

/// Reads the records of these jobs, with a result for each.
pub(super) async fn read<C: Session>(
    client: &C,
    jobs: impl IntoIterator<Item = JobName>,
) -> Result<BTreeMap<JobName, ReadLast>, SessionError> {
    let jobs: BTreeSet<JobName> = jobs.into_iter().collect();
    let names = jobs.iter().map(ToString::to_string).collect();
    let records = context::get_small(client, paths::LAST, names).await?;
    let mut read = BTreeMap::new();
    let mut damaged = BTreeMap::new();
    for (name, data, stat) in records.found {
        let Ok(job) = JobName::parse(&name) else { continue };
        match parse(&job, &data) {
            Ok(last) => drop(read.insert(job, ReadLast { last: Some(last), at: Some(stat.version), damage: None })),
            Err(damage) => drop(damaged.insert(job, (damage, stat.version))),
        }
    }
    // Their content is unknown, but their versions are not.
    let unread = records.unread.iter().map(|(name, _)| name.clone()).collect();
    let versions: BTreeMap<_, _> = context::stats(client, paths::LAST, unread).await?.into_iter().collect();
    for (name, error) in records.unread {
        if let (Ok(job), Some(stat)) = (JobName::parse(&name), versions.get(&name)) {
            let damage = Damage::unread(paths::last(&job), &error);
            damaged.insert(job, (damage, stat.version));
        }
    }
    let others: Vec<JobName> = jobs.into_iter().filter(|job| !read.contains_key(job)).collect();
    let search = |job: JobName| async move { Ok::<_, SessionError>((in_history(client, &job).await?, job)) };
    let found: Vec<_> = stream::iter(others).map(search).buffer_unordered(MOST_SEARCHES).try_collect().await?;
    for (last, job) in found {
        let (damage, at) = damaged.remove(&job).unzip();
        read.insert(job, ReadLast { last, at, damage });
    }
    Ok(read)
}

fn parse(job: &JobName, data: &[u8]) -> Result<Last, Damage> {
    let damage = |why: &str| Damage::new(paths::last(job), why);
    let last: Last = bounded::SMALL.parse(data).map_err(|why| damage(&why))?;
    let is_of_job = last.end.run.job() == job && last.written.run.job() == job;
    if is_of_job { Ok(last) } else { Err(damage("it is about another job")) }
}

/// What the job's record would say, by its history: by the newest records, and by as many older ones as it takes to find a
/// success. A history that cannot be read says nothing: no end waits for that.
async fn in_history<C: Session>(client: &C, job: &JobName) -> Result<Option<Last>, SessionError> {
    match ends_in_history(client, job).await {
        Ok(ends) => Ok(ends.iter().rev().fold(None, |last, end| Some(Last::after(last.as_ref(), end, Timestamp::MAX)))),
        Err(SessionError::SessionOver) => Err(SessionError::SessionOver),
        Err(error) if client.state() != State::Connected => Err(error),
        Err(error) => {
            tracing::debug!(target: TARGET, %job, %error, "cannot read how the runs of a job ended");
            Ok(None)
        }
    }
}

/// The ends that were written last, the newest first: as many as say when a run last succeeded and, of a job on every
/// node, how all shares of its newest occurrence ended.
async fn ends_in_history<C: Session>(client: &C, job: &JobName) -> Result<Vec<RunEnd>, SessionError> {
    let mut records = NewestRecords::of(client, job).await?;
    let mut ends: Vec<RunEnd> = Vec::new();
    while !(ends.iter().any(|end| end.outcome == Outcome::Success) && has_all_shares(&ends))
        && let Some(more) = records.next(client, context::MOST_RECENT, |_| false).await?
    {
        ends.extend(more.into_iter().filter_map(|(record, _)| match record {
            HistoryRecord::Run(end) => Some(RunEnd { tail: String::new(), ..end }),
            HistoryRecord::Skip(_) => None,
        }));
    }
    Ok(ends)
}

/// True if these ends, the newest first, include those of all shares of the newest occurrence.
fn has_all_shares(ends: &[RunEnd]) -> bool {
    let due = || ends.iter().filter(|end| end.run.trigger.is_none()).map(|end| end.run.scheduled_at);
    ends.first().is_none_or(|newest| newest.run.on.is_none()) || due().min() < due().max()
}

/// Writes the record of a job again, from its history, if there is none, if it is damaged, or if a node of an earlier
/// version has written an end since.
pub(super) async fn fill_in<C: Session>(client: &C, job: &JobName) -> Result<(), SessionError> {
    let path = paths::last(job);
    let Some(ReadLast { last: known, at, damage }) = read(client, [job.clone()]).await?.remove(job) else {
        return Ok(());
    };
    let Some(found) = in_history(client, job).await? else { return Ok(()) };
    let is_right = known.as_ref().is_some_and(|known| known.written.run == found.written.run);
    if at.is_some() && damage.is_none() && is_right {
        return Ok(());
    }
    let success = found.success.max(known.and_then(|known| known.success));
    let written = op(job, &Last { success, ..found }, at);
    match client.commit(vec![written]).await {
        // Somebody else has written it.
        Err(failed) if !failed.error.is_of_state() => Err(failed).at(&path),
        _ => Ok(()),
    }
}

/// The writes of the records that the ends of one commit move.
#[derive(Debug, Default)]
pub(super) struct LastWrites {
    writes: BTreeMap<JobName, LastWrite>,
    /// The outcome before each end.
    before: BTreeMap<CommitId, Outcome>,
    /// The outcome that each end is compared with.
    compared: BTreeMap<CommitId, Outcome>,
    /// Ends that the records, as read, say are written already.
    written: BTreeSet<CommitId>,
    /// Jobs whose records are left as they are, because they cannot be written.
    left_out: BTreeSet<JobName>,
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

    /// The outcome that says whether this end is a recovery.
    pub fn compared(&self, end: CommitId) -> Option<Outcome> {
        self.compared.get(&end).copied()
    }

    /// As [`before`](Self::before), for an end that another has written: others may have been written since.
    pub fn before_as_read(&self, end: CommitId) -> Option<Outcome> {
        self.before(end).filter(|_| self.written.contains(&end))
    }
}

fn op(job: &JobName, last: &Last, at: Option<Version>) -> Op {
    let (path, data) = (paths::last(job), json(last));
    match at {
        Some(version) => Op::Set { path, data, at: version.into() },
        None => Op::Create { path, data, life: Life::Lasting },
    }
}

/// What an end does to its job's record.
pub(super) struct Moved {
    pub write: Op,
    /// The outcome before the end.
    pub before: Option<Outcome>,
    /// The outcome that the end is compared with.
    pub compared: Option<Outcome>,
}

/// The write of the record that this end moves.
pub(super) async fn write_of<C: Session>(client: &C, end: &RunEnd, now: Timestamp) -> Result<Moved, SessionError> {
    let job = &end.run.job;
    let read = read(client, [job.clone()]).await?.remove(job);
    let (last, at) = read.map_or((None, None), |read| (read.last, read.at));
    let next = Last::after(last.as_ref(), end, now);
    let compared = Last::compared_with(last.as_ref(), end);
    Ok(Moved { write: op(job, &next, at), before: next.written.before, compared })
}

/// The records as one session has read or written them.
#[derive(Debug, Default)]
pub(super) struct KnownLasts {
    known: BTreeMap<JobName, KnownLast>,
    /// Paths that cannot be written, records or their folder, and until when that is not tried again.
    closed: BTreeMap<String, Uptime>,
}

#[derive(Debug)]
struct KnownLast {
    last: Option<Last>,
    at: Option<Version>,
}

impl KnownLasts {
    pub fn knows(&self, job: &JobName) -> bool {
        self.known.contains_key(job)
    }

    /// Takes what was read. A damaged record is written again with the job's next end.
    pub fn learn(&mut self, read: BTreeMap<JobName, ReadLast>) {
        if self.known.len() + read.len() > MOST_KNOWN {
            self.known.clear();
        }
        for (job, ReadLast { last, at, damage }) in read {
            if let Some(damage) = damage {
                log!(COORDINATION_REPAIRED, path = damage.path, "rewriting the damaged record of a job: {damage}");
            }
            self.known.insert(job, KnownLast { last, at });
        }
    }

    /// The record must be read before it is written again.
    pub fn forget(&mut self, job: &JobName) {
        self.known.remove(job);
    }

    /// All records must be read before they are written again.
    pub fn forget_all(&mut self) {
        self.known.clear();
    }

    /// A record, or their folder, cannot be written: ends do without it for a while.
    pub fn close(&mut self, path: String, now: Uptime) {
        self.closed.insert(path, now + CLOSED_FOR);
    }

    /// The paths that could not be written when that was tried last.
    pub fn closed(&self) -> impl Iterator<Item = &String> {
        self.closed.keys()
    }

    /// What these ends, in their order, write. Each end's job must be known.
    pub fn writes<'a>(&self, ends: impl Iterator<Item = (CommitId, &'a RunEnd)>, now: Now) -> LastWrites {
        let mut writes = LastWrites::default();
        let is_closed = |path: &str| self.closed.get(path).is_some_and(|&until| now.up < until);
        for (id, end) in ends {
            let job = &end.run.job;
            let known = self.known.get(job);
            let previous = writes.writes.get(job).map(|write| &write.last);
            let previous = previous.or(known.and_then(|known| known.last.as_ref()));
            if previous.is_some_and(|last| last.written.run == end.run.id()) {
                writes.written.insert(id);
            }
            let next = Last::after(previous, end, now.wall);
            writes.compared.extend(Last::compared_with(previous, end).map(|before| (id, before)));
            writes.before.extend(next.written.before.map(|before| (id, before)));
            let at = known.and_then(|known| known.at);
            if is_closed(&paths::last(job)) || at.is_none() && is_closed(paths::LAST) {
                writes.left_out.insert(job.clone());
            }
            writes.writes.insert(job.clone(), LastWrite { last: next, at });
        }
        writes.writes.retain(|job, _| !writes.left_out.contains(job));
        writes
    }

    /// Takes what was written. Returns the paths that could not be written before.
    pub fn written(&mut self, writes: LastWrites) -> Vec<String> {
        let mut mended = Vec::new();
        for job in writes.left_out {
            self.forget(&job);
        }
        for (job, LastWrite { last, at }) in writes.writes {
            let folder = at.is_none().then(|| paths::LAST.to_owned());
            let paths = std::iter::once(paths::last(&job)).chain(folder);
            mended.extend(paths.filter(|path| self.closed.remove(path).is_some()));
            let at = Some(at.map_or(Version::FIRST, Version::next));
            self.known.insert(job, KnownLast { last: Some(last), at });
        }
        mended
    }
}

/// The records of all jobs, kept up to date by reading only those that have changed.
#[derive(Debug, Default)]
pub(super) struct AllLasts(BTreeMap<JobName, (Seen, Option<Last>)>);

/// Changes with whatever the record is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Record(Revision),
    /// There is no record, only a history: what created it, and how many records were created and removed in it.
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
        let changed = seen.into_iter().filter(is_changed);
        let (records, histories): (Vec<_>, Vec<_>) = changed.partition(|(_, seen)| matches!(seen, Seen::Record(_)));
        // Histories take long, and what was read of them must be kept if the caller waits no longer.
        let histories = histories.chunks(MOST_SEARCHES);
        for changed in records.chunks(bounded::JOBS.count).chain(histories) {
            let mut read = read(client, changed.iter().map(|(job, _)| job.clone())).await?;
            for (job, seen) in changed {
                let last = read.remove(job).and_then(|read| read.last);
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
