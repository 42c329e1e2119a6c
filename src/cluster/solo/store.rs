//! The ledger in SQLite: its tables, and the backend's connection that writes them.
//!
//! It uses WAL with `synchronous=FULL`, so that a commit is on the disk before it is answered. With `NORMAL` a host
//! that loses power would forget the last commits, and after a reboot run their occurrences a second time. Commits that
//! wait together share one transaction, and so the cost of writing to the disk. Several processes write to the ledger:
//! each transaction takes the write lock at its beginning, so that what it checks still holds when it writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::commit;
use super::forget;
use super::last;
use super::outbox;
use super::read::{self, Rows};
use super::reap::DeadMember;
use super::requests;
use super::wanted;
use crate::sqlite;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{
    Change, Commit, ControlEntry, Event, JobEntry, LastSuccess, OperatorRequests, Pipelines,
};
use cronkeeper_core::run::{NodeControl, Outcome, RunEnd, RunId, RunRecord, Version};
use cronkeeper_core::term::{FencingToken, NodeName};

/// Version of the tables, in `user_version`.
const SCHEMA: i64 = 2;

/// How long to wait for the write lock, which other processes hold for one transaction at a time.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Store {
    db: Connection,
}

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The file is unsafe or cannot be created.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// A newer version of cronkeeper has written it.
    #[error("it has format {found}, but this version of cronkeeper reads format {known}")]
    Format {
        found: i64,
        /// The format of this version.
        known: i64,
    },
}

impl StoreError {
    /// True if a retry cannot help.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::Sqlite(error) => !sqlite::may_pass(error),
            Self::Format { .. } => true,
            Self::File(_) => false,
        }
    }
}

type Result<T> = std::result::Result<T, StoreError>;

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self> {
        sqlite::make_file(path)?;
        let mut db = sqlite::connect(path, BUSY_TIMEOUT)?;
        // Without the write lock if it is not needed: a leader that was stopped while it wrote keeps it, and the nodes
        // that wait behind that leader have nothing to write.
        if !is_complete(&db)? {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            make_tables(&tx)?;
            forget::make_table(&tx)?;
            wanted::make_table(&tx)?;
            last::make_table(&tx)?;
            outbox::make_tables(&tx)?;
            tx.commit()?;
        }
        Ok(Self { db })
    }

    /// Writes the changes in order, each as a whole or not at all. On an error none is written. Of an end that was written,
    /// also returns the outcome of the end before it.
    pub(super) fn commit<'a>(
        &mut self,
        term: Option<FencingToken>,
        pipelines: &mut Pipelines,
        changes: impl IntoIterator<Item = &'a Change>,
    ) -> Result<Vec<(Commit, Option<Outcome>)>> {
        let tx = self.write()?;
        let leads = term.is_some() && term == Some(newest_token(&tx)?);
        let answers = changes
            .into_iter()
            .map(|change| {
                let answer = match (leads || !change.is_fenced(), pipelines.is_broken(change)) {
                    (false, _) => (Commit::Fenced, None),
                    (true, true) => (Commit::Superseded, None),
                    (true, false) => commit::apply(&tx, change)?,
                };
                pipelines.answered(change, answer.0);
                Ok(answer)
            })
            .collect::<rusqlite::Result<_>>()?;
        tx.commit()?;
        Ok(answers)
    }

    /// Opens a term in one transaction: takes a new token, settles the dead members, and reads the ledger.
    ///
    /// Returns the events of the ends that were written.
    pub(super) fn open_term(&mut self, dead: &[DeadMember]) -> Result<(FencingToken, Rows, Vec<Event>)> {
        let tx = self.write()?;
        let token = FencingToken(newest_token(&tx)?.0 + 1);
        tx.execute("UPDATE term SET token = ?1", [token.0])?;
        let ended = settle_dead(&tx, dead)?;
        let rows = read::rows_for_takeover(&tx)?;
        tx.commit()?;
        Ok((token, rows, ended))
    }

    /// Writes the ends that dead members left, and releases the runs they never started. Returns events of the ends.
    pub(super) fn settle_dead(&mut self, dead: &[DeadMember]) -> Result<Vec<Event>> {
        let tx = self.write()?;
        let ended = settle_dead(&tx, dead)?;
        tx.commit()?;
        Ok(ended)
    }

    /// Deletes the oldest history of these jobs, each with the number of records of a kind to keep. Returns those with
    /// more to delete.
    pub(super) fn trim(&mut self, jobs: impl Iterator<Item = (JobName, usize)>) -> Result<Vec<JobName>> {
        let tx = self.write()?;
        let mut unfinished = Vec::new();
        for (job, kept) in jobs {
            if !commit::trim(&tx, &job, kept)? {
                unfinished.push(job);
            }
        }
        tx.commit()?;
        Ok(unfinished)
    }

    /// Removes the records of jobs that are gone, see [`forget::all`]. Does nothing if a newer term has begun.
    pub(super) fn forget(
        &mut self,
        term: FencingToken,
        defined: &BTreeSet<JobName>,
        now: Timestamp,
        after: Duration,
    ) -> Result<Vec<(JobName, usize)>> {
        let tx = self.write()?;
        if newest_token(&tx)? != term {
            return Ok(Vec::new());
        }
        let forgotten = forget::all(&tx, defined, now, after)?;
        tx.commit()?;
        Ok(forgotten)
    }

    pub(super) fn job(&self, job: &JobName) -> Result<Option<JobEntry>> {
        Ok(read::job(&self.db, job)?)
    }

    pub(super) fn control(&self, job: &JobName) -> Result<Option<ControlEntry>> {
        Ok(requests::control(&self.db, job)?)
    }

    pub(super) fn wanted(&self, node: &NodeName) -> Result<NodeControl> {
        Ok(wanted::of(&self.db, node)?)
    }

    pub(super) fn requests(&self) -> Result<OperatorRequests> {
        Ok(requests::read(&self.db, &mut Vec::new())?)
    }

    pub(super) fn run(&self, run: &RunId) -> Result<Option<(RunRecord, Version)>> {
        Ok(read::run(&self.db, run)?)
    }

    /// The version of each run in flight.
    pub(super) fn run_versions(&self) -> Result<BTreeMap<String, Version>> {
        Ok(read::run_versions(&self.db)?)
    }

    /// The runs and skips that the history has of a job.
    pub(super) fn recorded(&self, job: &JobName) -> Result<Vec<RunId>> {
        Ok(read::recorded(&self.db, job)?)
    }

    pub(super) fn last_success(&self, job: &JobName) -> Result<LastSuccess> {
        Ok(last::success(&self.db, job)?)
    }

    /// A number that changes when another connection has written. Reading it is cheap: it is in shared memory.
    pub(super) fn data_version(&self) -> Result<i64> {
        Ok(self.db.pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    /// Simulates a disk with room for this many pages.
    #[cfg(test)]
    pub(super) fn limit_pages(&self, pages: Option<i64>) {
        self.db.pragma_update(None, "max_page_count", pages.unwrap_or(1 << 30)).unwrap();
    }

    fn write(&mut self) -> Result<Transaction<'_>> {
        Ok(self.db.transaction_with_behavior(TransactionBehavior::Immediate)?)
    }
}

fn settle_dead(tx: &Transaction<'_>, dead: &[DeadMember]) -> rusqlite::Result<Vec<Event>> {
    let ended = |end: &RunEnd| {
        let written = commit::end_left_open(tx, end).transpose()?;
        Some(written.map(|(at, before)| Event::Ended { end: Box::new(end.clone()), at, before }))
    };
    let events = dead.iter().flat_map(|member| &member.ends).filter_map(ended).collect::<rusqlite::Result<_>>()?;
    if dead.iter().all(|member| member.noted.is_none()) {
        return Ok(events);
    }
    // Unreadable runs are reported when the term's records are read.
    for (run, at) in read::running(tx, &mut Vec::new())? {
        let member = dead.iter().find(|member| member.name == read::owner(&run));
        let noted = member.and_then(|member| member.noted.as_ref());
        if noted.is_some_and(|noted| noted.never_started(&run)) {
            commit::release_unstarted(tx, run, at)?;
        }
    }
    Ok(events)
}

fn newest_token(tx: &Transaction<'_>) -> rusqlite::Result<FencingToken> {
    tx.query_row("SELECT token FROM term", [], |row| row.get(0)).map(FencingToken)
}

/// True if all tables are there, in the format of this version.
fn is_complete(db: &Connection) -> rusqlite::Result<bool> {
    let format: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(format == SCHEMA
        && forget::has_table(db)?
        && wanted::has_table(db)?
        && last::has_table(db)?
        && outbox::has_tables(db)?)
}

fn make_tables(tx: &Transaction<'_>) -> Result<()> {
    match tx.pragma_query_value(None, "user_version", |row| row.get(0))? {
        SCHEMA => return Ok(()),
        0 => make_first_tables(tx)?,
        1 => {}
        found => return Err(StoreError::Format { found, known: SCHEMA }),
    }
    // AUTOINCREMENT, because a trigger's number is part of a run's id and must never be used again.
    tx.execute_batch(
        "CREATE TABLE control (job TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
         CREATE TABLE triggers (seq INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL);",
    )?;
    Ok(tx.pragma_update(None, "user_version", SCHEMA)?)
}

fn make_first_tables(tx: &Transaction<'_>) -> Result<()> {
    tx.execute_batch(
        "CREATE TABLE term (token INTEGER NOT NULL);
         INSERT INTO term VALUES (0);
         CREATE TABLE jobs (job TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
         CREATE TABLE running (run TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
         CREATE TABLE history (
             run TEXT PRIMARY KEY, job TEXT NOT NULL, kind TEXT NOT NULL, at INTEGER NOT NULL, -- microseconds
             version INTEGER NOT NULL, record TEXT NOT NULL
         );
         CREATE INDEX history_of_job ON history (job, kind, at);
         CREATE INDEX history_by_time ON history (at);",
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rusqlite::params;

    use super::*;
    use crate::fuzz::{Fuzz, LEDGER_WORDS, text};
    use cronkeeper_core::ledger::{Filter, Window};
    use cronkeeper_core::run::{KillRequest, Note, Pause, Reason, Resume};

    fn in_memory() -> Store {
        let mut db = Connection::open_in_memory().unwrap();
        let tx = db.transaction().unwrap();
        make_tables(&tx).unwrap();
        forget::make_table(&tx).unwrap();
        wanted::make_table(&tx).unwrap();
        last::make_table(&tx).unwrap();
        outbox::make_tables(&tx).unwrap();
        tx.commit().unwrap();
        Store { db }
    }

    /// Inserts a line `TABLE/KEY RECORD` into its table. Returns false if there is no such table.
    fn put(tx: &Transaction<'_>, line: &str) -> bool {
        let Some((path, record)) = line.split_once(' ') else { return false };
        let Some((table, key)) = path.split_once('/') else { return false };
        let written = match table {
            "jobs" => tx.execute("INSERT OR REPLACE INTO jobs VALUES (?1, -1, ?2)", params![key, record]),
            "control" => tx.execute("INSERT OR REPLACE INTO control VALUES (?1, 7, ?2)", params![key, record]),
            "running" => tx.execute("INSERT OR REPLACE INTO running VALUES (?1, 2147483647, ?2)", params![key, record]),
            "triggers" => tx.execute("INSERT INTO triggers (record) VALUES (?1)", params![record]),
            "history" => {
                let job = key.split(['/', '.']).next();
                let sql = "INSERT OR REPLACE INTO history VALUES (?1, ?2, 'run', 1, 0, ?3)";
                tx.execute(sql, params![key.rsplit('/').next(), job, record])
            }
            "last" => tx.execute("INSERT OR REPLACE INTO last VALUES (?1, ?2)", params![key, record]),
            _ => Ok(0),
        };
        written.unwrap() > 0
    }

    thread_local! {
        static STORE: RefCell<Store> = RefCell::new(in_memory());
    }

    /// A ledger into which somebody has written anything: each line of the input is a record.
    #[test]
    fn fuzz_ledger_of_one_host() {
        Fuzz { longest: 16 << 10, ..Fuzz::of("ledger", LEDGER_WORDS) }.run(|input| {
            // The transaction is rolled back, so that the next input finds empty tables.
            STORE.with_borrow_mut(|store| is_read(&store.db.transaction().unwrap(), &text(input)))
        });
    }

    fn is_read(tx: &Transaction<'_>, text: &str) -> bool {
        let lines = text.lines().filter(|line| put(tx, line)).count();
        let (rows, runs) = (read::rows_for_takeover(tx).unwrap(), read::running(tx, &mut Vec::new()).unwrap());
        let (_, _) = (read::history(tx, &Filter::default(), Window::of(10)).unwrap(), last::all(tx).unwrap());
        let (by, at) = ("root".to_owned(), Timestamp::MAX);
        for (run, version) in &runs {
            last::success(tx, &run.job).unwrap();
            last::note(tx, &RunEnd::unseen(run, Outcome::Failure, None, at)).unwrap();
            let request = KillRequest { reason: Reason::Operator, by: by.clone(), at, force: true };
            requests::kill(tx, &run.id(), request).unwrap();
            commit::release_unstarted(tx, run.clone(), *version).unwrap();
        }
        for note in text.lines().filter_map(|line| Note::read(line.split_once(' ')?.1.as_bytes()).ok()) {
            if let Note::Trigger(request) = &note {
                requests::trigger(tx, request).unwrap();
            }
            let job = note.into_job();
            requests::pause(tx, &job, uuid::Uuid::nil(), Pause { by: by.clone(), at, reason: None, until: None })
                .unwrap();
            assert!(requests::request_resume(tx, &job, Resume { by: by.clone(), at }).unwrap().is_some());
            commit::trim(tx, &job, 20).unwrap();
        }
        forget::all(tx, &BTreeSet::new(), Timestamp::MAX, Duration::MAX).unwrap();
        let snapshot = rows.with_owners(&crate::solo::members::Members::new("/nowhere".into()));
        lines > snapshot.damaged.len()
    }
}
