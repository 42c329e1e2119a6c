//! Trims history: keeps each job's newest run records and newest skip records, `history_limit` of each kind.
//!
//! A session that makes a history grow also trims it, beside the commits and never as part of one. It lists a job's
//! records when that history first grows under the session. From then on it knows them, because what it writes itself
//! needs no reading: each further end costs one delete. Deletes of many jobs share a multi, first come first served,
//! without a pause as long as there are more.
//!
//! ```text
//! grew ──▶ listed ──▶ known ──▶ too many ──▶ multi ──▶ gone
//!            ▲                                 │
//!            └───── another trims it too ──────┘
//! ```
//!
//! Nothing guards the deletes: a surplus record stays surplus, whoever leads. If two nodes trim the same job, a leader
//! and its draining predecessor, both delete the same records; the later one finds them gone and lists the job again.
//! What a service has lost it may have counted: after each reconnect everything is listed again before it is trimmed.
//! If a session is lost before it has trimmed a job, the rest is found when the job grows next, or by the leader, which
//! checks one job's history per second while there is nothing else to trim.
//!
//! The limits are those of this node's jobs file. A node with another file only trims differently: what it leaves, the
//! leader finds in its round, and what it has deleted is in the archives. A job whose limit was lowered is trimmed when
//! it grows, or as the next one of that round.
//!
//! A job that runs on every node has this many records of each node. For nodes that the cluster has forgotten, they
//! count together: containers have a new name each time, and would leave records forever. Only the leader knows the
//! nodes, so this is done when it trims the job anyway, and in its round.
//!
//! Three things are bounded: the requests in flight ([`MOST_LISTINGS`], [`MOST_MULTIS`]), the size of each, and the
//! number of known records ([`MOST_KNOWN`]). Beyond that number, the job that has not grown for the longest time is
//! forgotten, and listed again when it grows. Of a waiting job only the name is stored, once.

mod history;
mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::bounded;
use super::context::{self, MOST_DELETES, SessionContext, SessionError};
use super::lasts;
use crate::paths;
use crate::tree::{AtVersion, CommitError, Error, Op, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Defined;
use cronkeeper_core::job::JobName;
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use history::{JobHistory, ListedRecord, RecordKey};
pub use history::{RecordKind, Roster, WrittenRecord};
use line::JobLine;

/// Listings in flight at once.
const MOST_LISTINGS: usize = 8;
/// Multis in flight at once: enough to keep the servers busy, few enough that a commit never waits long behind them.
const MOST_MULTIS: usize = 3;
/// Most deletes of one job in a multi, so that other jobs get their turn.
const MOST_OF_A_JOB: usize = 25;
/// Most known records, of about forty bytes each.
const MOST_KNOWN: usize = 200_000;
/// How long the first delete waits for others to share its multi.
const GATHER: Duration = Duration::from_millis(100);
/// Pause after a request without an answer.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a job is left alone after its history could not be trimmed.
const LEFT_ALONE: Duration = Duration::from_secs(3600);
/// How long the leader waits before it checks all histories: first after its election, then after each completed round.
const SWEEP_AFTER: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
/// How long the leader waits between two histories of a round.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The result of one of the trimmer's requests.
pub struct CompletedTrim(TrimResult);

enum TrimResult {
    Listed {
        job: JobName,
        result: Result<Vec<ListedRecord>, SessionError>,
    },
    Deleted(Vec<(Delete, Result<(), Error>)>),
    /// The jobs that have a history, by name.
    Jobs(Result<Vec<String>, SessionError>),
    /// Number of records found in a job's history. Its `last/<job>` is as it says.
    Swept {
        job: JobName,
        result: Result<usize, SessionError>,
    },
}

#[derive(Clone, Debug)]
struct Delete {
    job: JobName,
    key: RecordKey,
    at: AtVersion,
}

/// The leader's slow round through the histories of all jobs.
enum Sweep {
    /// This node does not lead.
    Off,
    /// When the next history is due, and the jobs that remain.
    Next(Uptime, VecDeque<JobName>),
    /// A request is in flight.
    Checking(VecDeque<JobName>),
}

/// Trims histories under one session.
pub struct Trimmer<C, K> {
    context: SessionContext<C, K>,
    /// The limits. The daemon sends them before it campaigns.
    defined: Arc<Defined>,
    roster: Roster,
    known: BTreeMap<JobName, JobHistory>,
    /// The known jobs in the order in which they last grew.
    by_growth: BTreeMap<u64, JobName>,
    growths: u64,
    /// Number of known records, and its limit.
    records: usize,
    most_known: usize,
    unlisted: JobLine,
    /// Jobs being listed, with the records written meanwhile.
    listing: BTreeMap<JobName, Vec<WrittenRecord>>,
    /// Those of them whose listing may have what the service has lost since.
    outdated: BTreeSet<JobName>,
    surplus: JobLine,
    /// Until this time waiting deletes let others join their multi.
    gather_until: Uptime,
    deleting: usize,
    /// Jobs whose history cannot be trimmed, and until when they are left alone. Each is logged once.
    refused: BTreeMap<JobName, Uptime>,
    /// No request is sent before this time.
    from: Uptime,
    sweep: Sweep,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = CompletedTrim> + Send>>>,
}

impl<C: Session, K: Clock> Trimmer<C, K> {
    pub fn new(context: SessionContext<C, K>) -> Self {
        Self {
            context,
            defined: Arc::default(),
            roster: Roster::default(),
            known: BTreeMap::new(),
            by_growth: BTreeMap::new(),
            growths: 0,
            records: 0,
            most_known: MOST_KNOWN,
            unlisted: JobLine::default(),
            listing: BTreeMap::new(),
            outdated: BTreeSet::new(),
            surplus: JobLine::default(),
            gather_until: Uptime::ZERO,
            deleting: 0,
            refused: BTreeMap::new(),
            from: Uptime::ZERO,
            sweep: Sweep::Off,
            steps: FuturesUnordered::new(),
        }
    }

    /// Applies the limits of newly loaded jobs. Costs nothing if they are the same as before.
    pub fn define(&mut self, defined: &Arc<Defined>, now: Uptime) {
        if Arc::ptr_eq(&self.defined, defined) {
            return;
        }
        let before = std::mem::replace(&mut self.defined, Arc::clone(defined));
        let lowered = self.defined.lowered(&before);
        let (known, unknown): (Vec<_>, Vec<_>) = lowered.into_iter().partition(|job| self.known.contains_key(job));
        known.into_iter().for_each(|job| self.note_surplus(job, now));
        if let Sweep::Next(_, left) | Sweep::Checking(left) = &mut self.sweep {
            let waiting: BTreeSet<JobName> = left.iter().cloned().collect();
            left.extend(unknown.into_iter().filter(|job| !waiting.contains(job)));
        }
        // A round that has not begun, or is over, finds all jobs anyway: these only make it begin now.
        if let Sweep::Next(at, left) = &mut self.sweep
            && !left.is_empty()
        {
            *at = (*at).min(now + SWEEP_EVERY);
        }
    }

    /// Which nodes there are, as the leader has read; nobody else knows.
    pub fn know_nodes(&mut self, roster: Roster) {
        self.roster = roster;
    }

    fn is_too_long(&self, job: &JobName) -> bool {
        let kept = self.defined.history_limit(job);
        self.known.get(job).is_some_and(|history| history.is_longer_than(kept, &self.roster))
    }

    /// Notes a record that this session has written.
    pub fn grew(&mut self, written: WrittenRecord, now: Uptime) {
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

    /// The service may have lost records that are known here. By those, others would be deleted that are not surplus, so
    /// each job is listed again when it grows; what is about to be deleted or listed, at once.
    pub fn list_again(&mut self) {
        self.known.clear();
        self.by_growth.clear();
        self.records = 0;
        self.outdated.extend(self.listing.keys().cloned());
        while let Some(job) = self.surplus.pop() {
            if !self.listing.contains_key(&job) {
                self.unlisted.push(job);
            }
        }
    }

    /// Forgets the records of a job, for instance one that no node defines any more.
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
            // A job whose deletes are due makes room by itself.
            let mut oldest = self.by_growth.values().take(MOST_DELETES).filter(|oldest| *oldest != job);
            let Some(oldest) = oldest.find(|oldest| !self.surplus.has(oldest)).cloned() else { return };
            self.forget(&oldest);
        }
    }

    fn note_surplus(&mut self, job: JobName, now: Uptime) {
        if self.is_too_long(&job) {
            if self.surplus.is_empty() {
                self.gather_until = now + GATHER;
            }
            self.surplus.push(job);
        }
    }

    /// Starts waiting requests if the session is connected. Only a leader checks histories that did not grow here.
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
        let is_gathered = now >= self.gather_until || self.surplus.len() >= self.context.most_deletes();
        while is_gathered && self.deleting < MOST_MULTIS && !self.surplus.is_empty() {
            self.delete();
        }
        self.sweep_next(now);
    }

    /// False while the known records exceed the limit and some are waiting to be deleted: deletes come first.
    fn has_room(&self) -> bool {
        self.records <= self.most_known || self.surplus.is_empty()
    }

    /// When the next request is due, not counting those that wait for another to complete.
    pub fn wake(&self) -> Option<Uptime> {
        let listing = !self.unlisted.is_empty() && self.listing.len() < MOST_LISTINGS && self.has_room();
        let listing = listing.then_some(self.from);
        let has_deletes = !self.surplus.is_empty() && self.deleting < MOST_MULTIS;
        let deletes = has_deletes.then(|| self.from.max(self.gather_until));
        let sweep = match &self.sweep {
            Sweep::Next(at, _) => Some(self.from.max(*at)),
            Sweep::Off | Sweep::Checking(_) => None,
        };
        [listing, deletes, sweep].into_iter().flatten().min()
    }

    /// The next result; `None` at once if nothing is in flight. Cancel safe.
    pub async fn step(&mut self) -> Option<CompletedTrim> {
        self.steps.next().await
    }

    /// Applies a result.
    pub fn complete(&mut self, step: CompletedTrim, now: Uptime) {
        match step.0 {
            TrimResult::Listed { job, result } => self.listed(job, result, now),
            TrimResult::Deleted(deletes) => self.deleted(deletes, now),
            TrimResult::Jobs(result) => self.found_jobs(result, now),
            TrimResult::Swept { job, result } => self.swept(job, result, now),
        }
    }

    fn list(&mut self, job: JobName) {
        self.listing.insert(job.clone(), Vec::new());
        let context = self.context.clone();
        self.steps.push(Box::pin(async move {
            let result = list(&context, &job).await;
            CompletedTrim(TrimResult::Listed { job, result })
        }));
    }

    fn listed(&mut self, job: JobName, result: Result<Vec<ListedRecord>, SessionError>, now: Uptime) {
        let meanwhile = self.listing.remove(&job).unwrap_or_default();
        let is_outdated = self.outdated.remove(&job);
        match result {
            Ok(_) if is_outdated => self.unlisted.push(job),
            Ok(listed) => {
                let mut history = JobHistory::new(listed);
                meanwhile.iter().for_each(|written| history.grew(written));
                self.forget(&job);
                self.records += history.len();
                self.known.insert(job.clone(), history);
                self.note_growth(&job);
                self.note_surplus(job, now);
            }
            Err(SessionError::NoAuth(why)) => self.refuse(job, &why, now),
            Err(_) => self.retry(job, now),
        }
    }

    /// Sends one multi of deletes, for the jobs that have waited longest.
    fn delete(&mut self) {
        let (mut deletes, most) = (Vec::new(), self.context.most_deletes());
        while deletes.len() < most
            && let Some(job) = self.surplus.pop()
        {
            // A job no longer known is being listed again.
            let Some(history) = self.known.get_mut(&job) else { continue };
            let room = MOST_OF_A_JOB.min(most - deletes.len());
            let before = history.len();
            let kept = self.defined.history_limit(&job);
            let taken =
                history.take_surplus(kept, room, &self.roster).map(|(key, at)| Delete { job: job.clone(), key, at });
            deletes.extend(taken);
            self.records -= before - history.len();
            if history.is_longer_than(kept, &self.roster) {
                self.surplus.push(job);
            }
        }
        if deletes.is_empty() {
            return;
        }
        self.deleting += 1;
        let context = self.context.clone();
        // Hand the multi over now, so that commits requested later are carried out after it.
        let multi = context.line().ok().map(|client| client.commit(deletes.iter().map(Delete::op).collect()));
        self.steps.push(Box::pin(async move {
            let answer = match multi {
                Some(multi) => multi.await.map(drop),
                None => Err(unanswered()),
            };
            CompletedTrim(TrimResult::Deleted(delete_singly(&context, deletes, answer).await))
        }));
    }

    fn deleted(&mut self, deletes: Vec<(Delete, Result<(), Error>)>, now: Uptime) {
        self.deleting -= 1;
        for (Delete { job, .. }, result) in deletes {
            match result {
                Ok(()) => drop(self.refused.remove(&job)),
                // Another node trims it too, or a skip record has grown: our knowledge of the job is stale.
                Err(Error::Missing | Error::Changed) => {
                    self.forget(&job);
                    if !self.listing.contains_key(&job) {
                        self.unlisted.push(job);
                    }
                }
                Err(Error::Unanswered(_) | Error::SessionOver) => self.retry(job, now),
                Err(error) => self.refuse(job, &error.to_string(), now),
            }
        }
    }

    fn retry(&mut self, job: JobName, now: Uptime) {
        self.forget(&job);
        self.from = now + PAUSE;
        if !self.listing.contains_key(&job) {
            self.unlisted.push(job);
        }
    }

    /// Leaves a job alone for a while. The only harm is that this job's history grows.
    fn refuse(&mut self, job: JobName, why: &str, now: Uptime) {
        self.forget(&job);
        if !self.refused.contains_key(&job) {
            log!(HISTORY_UNTRIMMED, %job, "{why}");
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

    /// Checks the next job's history if there is nothing else to do.
    fn sweep_next(&mut self, now: Uptime) {
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
            None => Box::pin(async move { CompletedTrim(TrimResult::Jobs(jobs(&context).await)) }),
            Some(job) => Box::pin(async move {
                let result = sweep(&context, &job).await;
                CompletedTrim(TrimResult::Swept { job, result })
            }),
        });
        self.sweep = Sweep::Checking(left);
    }

    fn found_jobs(&mut self, result: Result<Vec<String>, SessionError>, now: Uptime) {
        let names = result.unwrap_or_default();
        let left: VecDeque<JobName> = names.iter().filter_map(|name| JobName::parse(name).ok()).collect();
        let next = if left.is_empty() { SWEEP_AFTER[1] } else { SWEEP_EVERY };
        self.sweep = Sweep::Next(now + next, left);
    }

    fn swept(&mut self, job: JobName, result: Result<usize, SessionError>, now: Uptime) {
        let left = match std::mem::replace(&mut self.sweep, Sweep::Off) {
            Sweep::Checking(left) | Sweep::Next(_, left) => left,
            Sweep::Off => VecDeque::new(),
        };
        let next = if left.is_empty() { SWEEP_AFTER[1] } else { SWEEP_EVERY };
        self.sweep = Sweep::Next(now + next, left);
        let is_known = |found| self.known.get(&job).is_some_and(|history| history.len() == found);
        let is_open = self.listing.contains_key(&job) || self.refused.get(&job).is_some_and(|&until| until > now);
        match result {
            // A node may have been forgotten since it grew.
            Ok(found) if is_known(found) => self.note_surplus(job, now),
            Ok(found) if found > self.defined.history_limit(&job) && !is_open => {
                self.forget(&job);
                self.unlisted.push(job);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

impl Delete {
    fn op(&self) -> Op {
        Op::Delete { path: self.path(), at: self.at }
    }

    fn path(&self) -> String {
        paths::history(&self.key.of(&self.job))
    }
}

fn unanswered() -> CommitError {
    CommitError { index: None, error: Error::Unanswered("the connection is lost".into()) }
}

/// Returns the result of each delete. One that fails makes the whole multi fail, so each is then sent alone.
async fn delete_singly<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    deletes: Vec<Delete>,
    answer: Result<(), CommitError>,
) -> Vec<(Delete, Result<(), Error>)> {
    let error = match answer {
        Ok(()) => return deletes.into_iter().map(|delete| (delete, Ok(()))).collect(),
        Err(CommitError { error, .. }) => error,
    };
    let client = match context.line() {
        Ok(client) if !matches!(error, Error::Unanswered(_) | Error::SessionOver) => client,
        _ => return deletes.into_iter().map(|delete| (delete, Err(unanswered().error))).collect(),
    };
    let paths: Vec<String> = deletes.iter().map(Delete::path).collect();
    let answers = join_all(deletes.iter().zip(&paths).map(|(delete, path)| client.delete(path, delete.at))).await;
    deletes.into_iter().zip(answers).collect()
}

/// Lists a job's records, in no order. Keeps only names, kinds and transaction ids of what it reads.
async fn list<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    job: &JobName,
) -> Result<Vec<ListedRecord>, SessionError> {
    let names = record_names(context, job).await?;
    let mut listed = Vec::with_capacity(names.len());
    let parent = paths::job_history(job);
    for names in names.chunks(bounded::HISTORY.count) {
        let found = context::get_history(context.line()?, &parent, names.to_vec()).await?;
        listed.extend(found.found.iter().filter_map(|(name, data, stat)| ListedRecord::new(job, name, data, stat)));
    }
    Ok(listed)
}

/// Counts a job's records, and writes `last/<job>` if it is not what they say.
async fn sweep<C: Session, K: Clock>(context: &SessionContext<C, K>, job: &JobName) -> Result<usize, SessionError> {
    let records = record_names(context, job).await?.len();
    if records > 0
        && let Err(error) = lasts::fill_in(context.line()?, job).await
    {
        tracing::debug!(target: TARGET, %job, %error, "cannot write how the runs of a job ended");
    }
    Ok(records)
}

/// The names of a job's records. Nodes with any other name are not cronkeeper's and must not be removed.
async fn record_names<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    job: &JobName,
) -> Result<Vec<String>, SessionError> {
    let mut names = context::names(context.line()?, &paths::job_history(job)).await?;
    names.retain(|name| RecordKey::in_name(job, name).is_some());
    Ok(names)
}

async fn jobs<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<Vec<String>, SessionError> {
    context::names(context.line()?, paths::HISTORY).await
}
