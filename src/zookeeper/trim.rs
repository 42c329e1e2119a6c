//! Old history goes: the newest twenty runs by end stay, and apart from them the newest twenty skip records.
//!
//! Whoever makes a history grow trims it, beside the commits and never as part of one. A job's records are listed when its history
//! first grows under this session. After that they are known, for what this session writes needs no reading: a further end costs
//! one delete. Deletes of many jobs share a multi, first come first served, and there is no pause while there are more.
//!
//! ```text
//! grew ──▶ listed ──▶ known ──▶ too many ──▶ multi ──▶ gone
//!            ▲                                 │
//!            └───── another trims it too ──────┘
//! ```
//!
//! Nothing guards the deletes: what is surplus stays surplus, whoever leads. Two nodes that trim one job, a leader and its predecessor
//! that drains, delete the same records; the later one finds them gone and lists the job again. What a lost session left untrimmed is
//! found when the job grows next, or by the leader, which looks into one folder a second while there is nothing else to trim.
//!
//! Bounded are the requests under way ([`MOST_LISTINGS`], [`MOST_MULTIS`]), what one of them may hold, and the records known
//! ([`MOST_KNOWN`]): beyond that the job that did not grow for the longest time is listed again when it does. What waits is a
//! job's name, once.

mod history;
mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, Error, MultiError, Op};
use super::context::{self, SessionContext, SessionError};
use super::paths;
use crate::clock::{Clock, Uptime};
use crate::job::JobName;
use history::{History, Key, Listed};
pub use history::{Kind, Written};
use line::Line;

/// How many records of a kind stay.
const KEPT: usize = 20;
/// Listings under way at once.
const MOST_LISTINGS: usize = 8;
/// Multis under way at once: enough to keep the servers busy, few enough that a commit never waits for long behind them.
const MOST_MULTIS: usize = 3;
/// Deletes that share a multi.
const MOST_DELETES: usize = 100;
/// Of one job, where others wait.
const MOST_OF_A_JOB: usize = 25;
/// Records that are known, of some forty bytes each.
const MOST_KNOWN: usize = 200_000;
/// How long the first delete waits for others to share its multi.
const GATHER: Duration = Duration::from_millis(100);
/// After a request that was not answered.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a job is left alone whose history cannot be trimmed.
const LEFT_ALONE: Duration = Duration::from_secs(3600);
/// The leader looks into the first folder so long after it was elected, or into all was done,
const SWEEP_AFTER: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
/// and into the next one after that.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// What a request brought.
pub struct Step(Brought);

enum Brought {
    Listed { job: JobName, result: Result<Vec<Listed>, SessionError> },
    Deleted(Vec<(Delete, Result<(), Error>)>),
    Folders(Result<Vec<String>, SessionError>),
    Swept { job: JobName, result: Result<usize, SessionError> },
}

#[derive(Clone, Debug)]
struct Delete {
    job: JobName,
    key: Key,
    version: i32,
}

/// The leader's slow look at every folder of the history.
enum Sweep {
    /// It does not lead.
    Off,
    /// The next folder is due then; those that are left.
    Next(Uptime, VecDeque<JobName>),
    /// A look is under way.
    Looking(VecDeque<JobName>),
}

/// Trims under one session.
pub struct Trimmer<C, K> {
    context: SessionContext<C, K>,
    known: BTreeMap<JobName, History>,
    /// The known jobs by when they grew last, for a count of growths.
    by_growth: BTreeMap<u64, JobName>,
    growths: u64,
    /// Records known in all, and the most there may be.
    records: usize,
    most_known: usize,
    unlisted: Line,
    /// What was written while they were listed.
    listing: BTreeMap<JobName, Vec<Written>>,
    surplus: Line,
    /// Until then the deletes that wait are joined by others.
    gather_until: Uptime,
    deleting: usize,
    /// Jobs whose history cannot be trimmed, and until when they are left alone. Said once of each.
    refused: BTreeMap<JobName, Uptime>,
    /// Nothing is asked before.
    from: Uptime,
    sweep: Sweep,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = Step> + Send>>>,
}

impl<C: Client, K: Clock> Trimmer<C, K> {
    /// Nothing to trim yet.
    pub fn new(context: SessionContext<C, K>) -> Self {
        Self {
            context,
            known: BTreeMap::new(),
            by_growth: BTreeMap::new(),
            growths: 0,
            records: 0,
            most_known: MOST_KNOWN,
            unlisted: Line::default(),
            listing: BTreeMap::new(),
            surplus: Line::default(),
            gather_until: Uptime::ZERO,
            deleting: 0,
            refused: BTreeMap::new(),
            from: Uptime::ZERO,
            sweep: Sweep::Off,
            steps: FuturesUnordered::new(),
        }
    }

    /// This session has written a record.
    pub fn grew(&mut self, written: Written, now: Uptime) {
        let job = written.job.clone();
        if let Some(meanwhile) = self.listing.get_mut(&job) {
            meanwhile.push(written);
        } else if let Some(history) = self.known.get_mut(&job) {
            self.records -= history.len();
            history.grew(&written);
            self.records += history.len();
            self.note_growth(&job);
            self.note_surplus(job, now);
        } else if self.refused.get(&job).is_none_or(|&until| until <= now) {
            self.unlisted.push(job);
        }
    }

    /// The job is no longer any node's: nothing is known of it.
    pub fn forget(&mut self, job: &JobName) {
        if let Some(history) = self.known.remove(job) {
            self.records -= history.len();
            self.by_growth.remove(&history.grown);
        }
    }

    fn note_growth(&mut self, job: &JobName) {
        let Some(history) = self.known.get_mut(job) else { return };
        self.by_growth.remove(&history.grown);
        self.growths += 1;
        history.grown = self.growths;
        self.by_growth.insert(self.growths, job.clone());
        while self.records > self.most_known {
            // What is about to be deleted makes room by itself.
            let mut oldest = self.by_growth.values().take(MOST_DELETES).filter(|oldest| *oldest != job);
            let Some(oldest) = oldest.find(|oldest| !self.surplus.has(oldest)).cloned() else { return };
            self.forget(&oldest);
        }
    }

    fn note_surplus(&mut self, job: JobName, now: Uptime) {
        if self.known.get(&job).is_some_and(History::is_too_long) {
            if self.surplus.is_empty() {
                self.gather_until = now + GATHER;
            }
            self.surplus.push(job);
        }
    }

    /// Starts what waits, if a server answers. Only a leader looks into folders that did not grow here.
    pub fn start_next(&mut self, now: Uptime, leads: bool) {
        self.lead(now, leads);
        if now < self.from || self.context.line().is_err() {
            return;
        }
        while self.listing.len() < MOST_LISTINGS
            && self.has_room()
            && let Some(job) = self.unlisted.pop()
        {
            self.list(job);
        }
        let is_gathered = now >= self.gather_until || self.surplus.len() >= MOST_DELETES;
        while is_gathered && self.deleting < MOST_MULTIS && !self.surplus.is_empty() {
            self.delete();
        }
        self.look(now);
    }

    /// More is known only once what is surplus of it was deleted.
    fn has_room(&self) -> bool {
        self.records <= self.most_known || self.surplus.is_empty()
    }

    /// When something is to be started that is not for want of room.
    pub fn wake(&self) -> Option<Uptime> {
        let listing = !self.unlisted.is_empty() && self.listing.len() < MOST_LISTINGS && self.has_room();
        let listing = listing.then_some(self.from);
        let has_deletes = !self.surplus.is_empty() && self.deleting < MOST_MULTIS;
        let deletes = has_deletes.then(|| self.from.max(self.gather_until));
        let look = match &self.sweep {
            Sweep::Next(at, _) => Some(self.from.max(*at)),
            Sweep::Off | Sweep::Looking(_) => None,
        };
        [listing, deletes, look].into_iter().flatten().min()
    }

    /// The next answer; `None` at once where nothing is under way. Cancel safe.
    pub async fn step(&mut self) -> Option<Step> {
        self.steps.next().await
    }

    /// Takes an answer.
    pub fn complete(&mut self, step: Step, now: Uptime) {
        match step.0 {
            Brought::Listed { job, result } => self.listed(job, result, now),
            Brought::Deleted(deletes) => self.deleted(deletes, now),
            Brought::Folders(result) => self.found_folders(result, now),
            Brought::Swept { job, result } => self.swept(job, result, now),
        }
    }

    fn list(&mut self, job: JobName) {
        self.listing.insert(job.clone(), Vec::new());
        let context = self.context.clone();
        self.steps.push(Box::pin(async move {
            let result = list(&context, &job).await;
            Step(Brought::Listed { job, result })
        }));
    }

    fn listed(&mut self, job: JobName, result: Result<Vec<Listed>, SessionError>, now: Uptime) {
        let meanwhile = self.listing.remove(&job).unwrap_or_default();
        match result {
            Ok(listed) => {
                let mut history = History::new(listed);
                meanwhile.iter().for_each(|written| history.grew(written));
                self.forget(&job);
                self.records += history.len();
                self.known.insert(job.clone(), history);
                self.note_growth(&job);
                self.note_surplus(job, now);
            }
            Err(SessionError::NoAuth(why)) => self.refuse(job, &why, now),
            Err(_) => self.again(job, now),
        }
    }

    /// One multi of what is surplus, from the jobs that have waited longest.
    fn delete(&mut self) {
        let mut deletes = Vec::new();
        while deletes.len() < MOST_DELETES
            && let Some(job) = self.surplus.pop()
        {
            // It is listed anew.
            let Some(history) = self.known.get_mut(&job) else { continue };
            let room = MOST_OF_A_JOB.min(MOST_DELETES - deletes.len());
            let before = history.len();
            let taken = history.take_surplus(room).map(|(key, version)| Delete { job: job.clone(), key, version });
            deletes.extend(taken);
            self.records -= before - history.len();
            if history.is_too_long() {
                self.surplus.push(job);
            }
        }
        if deletes.is_empty() {
            return;
        }
        self.deleting += 1;
        let context = self.context.clone();
        // Handed over now: the commits that are requested later come later.
        let multi = context.line().ok().map(|client| client.multi(deletes.iter().map(Delete::op).collect()));
        self.steps.push(Box::pin(async move {
            let answer = match multi {
                Some(multi) => multi.await.map(drop),
                None => Err(unanswered()),
            };
            Step(Brought::Deleted(delete_singly(&context, deletes, answer).await))
        }));
    }

    fn deleted(&mut self, deletes: Vec<(Delete, Result<(), Error>)>, now: Uptime) {
        self.deleting -= 1;
        for (Delete { job, .. }, result) in deletes {
            match result {
                Ok(()) => drop(self.refused.remove(&job)),
                // Another trims it too, or a skip record has grown: what is known of the job is old.
                Err(Error::NoNode | Error::BadVersion) => {
                    self.forget(&job);
                    if !self.listing.contains_key(&job) {
                        self.unlisted.push(job);
                    }
                }
                Err(Error::Unanswered(_) | Error::SessionOver) => self.again(job, now),
                Err(error) => self.refuse(job, &error.to_string(), now),
            }
        }
    }

    fn again(&mut self, job: JobName, now: Uptime) {
        self.forget(&job);
        self.from = now + PAUSE;
        if !self.listing.contains_key(&job) {
            self.unlisted.push(job);
        }
    }

    /// Only this job's history grows for it; it is tried again later.
    fn refuse(&mut self, job: JobName, why: &str, now: Uptime) {
        self.forget(&job);
        if !self.refused.contains_key(&job) {
            tracing::warn!("the history of job `{job}` cannot be trimmed: {why}");
        }
        self.refused.insert(job, now + LEFT_ALONE);
    }

    fn lead(&mut self, now: Uptime, leads: bool) {
        match (&self.sweep, leads) {
            (Sweep::Off, true) => self.sweep = Sweep::Next(now + SWEEP_AFTER[0], VecDeque::new()),
            (Sweep::Next(..), false) => self.sweep = Sweep::Off,
            _ => {}
        }
    }

    /// Looks into the next folder where there is nothing else to do.
    fn look(&mut self, now: Uptime) {
        let is_idle = self.steps.is_empty() && self.surplus.is_empty();
        let Sweep::Next(at, left) = &mut self.sweep else { return };
        if now < *at {
            return;
        }
        let mut left = std::mem::take(left);
        if !is_idle {
            self.sweep = Sweep::Next(now + SWEEP_EVERY, left);
            return;
        }
        let context = self.context.clone();
        self.steps.push(match left.pop_front() {
            None => Box::pin(async move { Step(Brought::Folders(folders(&context).await)) }),
            Some(job) => Box::pin(async move {
                let result = ours(&context, &job).await.map(|names| names.len());
                Step(Brought::Swept { job, result })
            }),
        });
        self.sweep = Sweep::Looking(left);
    }

    fn found_folders(&mut self, result: Result<Vec<String>, SessionError>, now: Uptime) {
        let names = result.unwrap_or_default();
        let left: VecDeque<JobName> = names.iter().filter_map(|name| JobName::parse(name).ok()).collect();
        let next = if left.is_empty() { SWEEP_AFTER[1] } else { SWEEP_EVERY };
        self.sweep = Sweep::Next(now + next, left);
    }

    fn swept(&mut self, job: JobName, result: Result<usize, SessionError>, now: Uptime) {
        let left = match std::mem::replace(&mut self.sweep, Sweep::Off) {
            Sweep::Looking(left) | Sweep::Next(_, left) => left,
            Sweep::Off => VecDeque::new(),
        };
        let next = if left.is_empty() { SWEEP_AFTER[1] } else { SWEEP_EVERY };
        self.sweep = Sweep::Next(now + next, left);
        let is_known = |found| self.known.get(&job).is_some_and(|history| history.len() == found);
        let is_open = self.listing.contains_key(&job) || self.refused.get(&job).is_some_and(|&until| until > now);
        if let Ok(found) = result
            && found > KEPT
            && !is_known(found)
            && !is_open
        {
            self.forget(&job);
            self.unlisted.push(job);
        }
    }
}

impl Delete {
    fn op(&self) -> Op {
        Op::Delete { path: self.path(), version: self.version }
    }

    fn path(&self) -> String {
        paths::history(&self.key.of(&self.job))
    }
}

fn unanswered() -> MultiError {
    MultiError { index: None, error: Error::Unanswered("the connection is lost".into()) }
}

/// What became of each delete. One that fails a multi fails it for all, so then each goes by itself.
async fn delete_singly<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    deletes: Vec<Delete>,
    answer: Result<(), MultiError>,
) -> Vec<(Delete, Result<(), Error>)> {
    let error = match answer {
        Ok(()) => return deletes.into_iter().map(|delete| (delete, Ok(()))).collect(),
        Err(MultiError { error, .. }) => error,
    };
    let client = match context.line() {
        Ok(client) if !matches!(error, Error::Unanswered(_) | Error::SessionOver) => client,
        _ => return deletes.into_iter().map(|delete| (delete, Err(unanswered().error))).collect(),
    };
    let paths: Vec<String> = deletes.iter().map(Delete::path).collect();
    let answers = join_all(deletes.iter().zip(&paths).map(|(delete, path)| client.delete(path, delete.version))).await;
    deletes.into_iter().zip(answers).collect()
}

/// A job's records as they stand, of no order. Only names, kinds and stamps are kept of what is read.
async fn list<C: Client, K: Clock>(context: &SessionContext<C, K>, job: &JobName) -> Result<Vec<Listed>, SessionError> {
    let names = ours(context, job).await?;
    let mut listed = Vec::with_capacity(names.len());
    let folder = paths::job_history(job);
    for names in names.chunks(context::HISTORY_CHUNK) {
        let found = context::get_history(context.line()?, &folder, names.to_vec()).await?;
        listed.extend(found.found.iter().filter_map(|(name, data, stat)| Listed::new(job, name, data, stat)));
    }
    Ok(listed)
}

/// The names of a job's records. What is called otherwise is not ours to remove.
async fn ours<C: Client, K: Clock>(context: &SessionContext<C, K>, job: &JobName) -> Result<Vec<String>, SessionError> {
    let mut names = context::children(context.line()?, &paths::job_history(job)).await?;
    names.retain(|name| Key::in_name(job, name).is_some());
    Ok(names)
}

async fn folders<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<Vec<String>, SessionError> {
    context::children(context.line()?, paths::HISTORY).await
}
