//! Tests of the solo backend, with several nodes in one process.
//!
//! They compete as separate processes would, because their locks belong to open files and not to the process.

mod electing;
mod errors;
mod forgetting;
mod requests;
mod succession;
mod writing;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;

use super::store::Store;
use super::*;
use crate::state_dir::BackendIdentity;
use crate::test_records::{self, record, success};
use cronkeeper_core::coordination::{Event, Request};
use cronkeeper_core::job::{Digest, JobName};
use cronkeeper_core::ledger::{
    Change, Commit, CommitId, LastSuccess, OwnerState, Pipelines, SkipWrite, Snapshot, Window,
};
use cronkeeper_core::run::journal::Journal as _;
use cronkeeper_core::run::{HistoryRecord, JobRecord, Nonce, Outcome, Owner, RunId, RunRecord, Skip, Traces, Version};
use cronkeeper_core::term::{FencingToken, SessionId, Term};
use cronkeeper_core::{clock::Uptime, election, ledger};

/// A timeout that even a busy machine does not reach.
const LONG: Duration = Duration::from_secs(60);

struct Node {
    solo: Solo,
    name: NodeName,
    session: SessionId,
    commits: u64,
    _state: StateDir,
}

impl Node {
    async fn start(dir: &Path, name: &str) -> Self {
        Self::start_with(dir, name, Arc::new(|_| Ok(BTreeSet::new()))).await
    }

    async fn start_with(dir: &Path, name: &str, leftovers: Leftovers) -> Self {
        Self::start_forgetting(dir, name, leftovers, None).await
    }

    async fn start_forgetting(dir: &Path, name: &str, leftovers: Leftovers, after: Option<Duration>) -> Self {
        let node = NodeName::new(name);
        let state = StateDir::open(dir, BackendIdentity::Solo, &node).unwrap();
        let mut solo =
            start(&state, &node, leftovers, after, LocksOfJobs { user: "ada".into(), custody: None }).unwrap();
        let Some(Event::Election(election::Event::Session { id, .. })) = solo.coordination.events.recv().await else {
            panic!("the first event is not a session")
        };
        Self { solo, name: node, session: id, commits: 0, _state: state }
    }

    fn request(&self, request: election::Request) {
        self.solo.coordination.requests.send(Request::Election(request)).unwrap();
    }

    fn request_ledger(&self, request: ledger::Request) {
        self.solo.coordination.requests.send(Request::Ledger(request)).unwrap();
    }

    /// Waits for the first event that `wanted` accepts, and drops all others.
    async fn until<T>(&mut self, wanted: impl Fn(Event) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.solo.coordination.events.recv().await.expect("the backend is running");
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LONG, search).await.expect("the event comes")
    }

    async fn elected(&mut self) -> (Term, Snapshot) {
        self.until(|event| match event {
            Event::Election(election::Event::Elected { term, snapshot, .. }) => Some((term, *snapshot)),
            _ => None,
        })
        .await
    }

    async fn lead(&mut self) -> (Term, Snapshot) {
        self.request(election::Request::Campaign);
        self.elected().await
    }

    fn send(&mut self, change: Change) -> CommitId {
        self.commits += 1;
        let id = CommitId(self.commits);
        self.request_ledger(ledger::Request::Commit { id, change });
        id
    }

    async fn commit(&mut self, change: Change) -> Commit {
        let sent = self.send(change);
        self.until(|event| match event {
            Event::Ledger(ledger::Event::Answered { id, answer, .. }) if id == sent => Some(answer),
            _ => None,
        })
        .await
    }

    async fn read_job(&mut self, job: &str) -> Option<ledger::JobEntry> {
        self.request_ledger(ledger::Request::ReadJob(JobName::parse(job).unwrap()));
        self.until(|event| match event {
            Event::Ledger(ledger::Event::Job(_, entry, _)) => Some(entry),
            _ => None,
        })
        .await
    }

    /// Creates the job's record and begins its run at `second`.
    async fn begin(&mut self, job: &str, second: i64) -> RunRecord {
        assert_eq!(self.commit(advance(job, None, second - 1, None)).await, Commit::Accepted);
        let owner = Owner { node: self.name.clone(), session: self.session.clone() };
        let run = RunRecord { owner, ..record(job, second, "") };
        assert_eq!(self.commit(begin(&run, Version::FIRST)).await, Commit::Accepted);
        run
    }

    /// Begins a run and records it in the journal, as the daemon does.
    async fn begin_recorded(&mut self, job: &str, second: i64) -> RunRecord {
        let run = self.begin(job, second).await;
        self.solo.journal.begun(&run, Version::FIRST, &Traces::default()).unwrap();
        run
    }

    async fn history(&self, job: &str) -> Vec<HistoryRecord> {
        self.solo
            .coordination
            .reader
            .history(ledger::Filter::of_job(JobName::parse(job).unwrap()), Window::of(1000))
            .await
            .unwrap()
            .records
    }

    /// Waits for an event of this run. Returns its record.
    async fn run_event(&mut self, wanted: &RunId) -> Option<(RunRecord, Version)> {
        self.until(|event| match event {
            Event::Ledger(ledger::Event::Run(run, row)) if run == *wanted => Some(row),
            _ => None,
        })
        .await
    }
}

fn job_record(second: i64) -> JobRecord {
    let record = JobRecord::new(Timestamp::from_second(second).unwrap(), Nonce(format!("1-{second}")));
    JobRecord { schedule: Some(Digest::of(b"* * * * *")), ..record }
}

fn advance(job: &str, at: Option<i32>, second: i64, skip: Option<SkipWrite>) -> Change {
    let job = JobName::parse(job).unwrap();
    Change::Advance { job, at: at.map(Version), record: job_record(second), skip }
}

fn begin(run: &RunRecord, at: Version) -> Change {
    Change::Begin { at, record: job_record(run.scheduled_at.as_second()), run: run.clone() }
}

fn end(run: &RunRecord, at: i32, as_leader: bool) -> Change {
    Change::End { at: Version(at), end: success(run.clone()), as_leader }
}

fn skip(job: &str, first: i64, count: u64, at: Option<i32>) -> SkipWrite {
    let last = Timestamp::from_second(first + i64::try_from(count).unwrap() - 1).unwrap();
    let skip = Skip { last, count, decided_at: last, ..test_records::skip(job, first) };
    SkipWrite { at: at.map(Version), skip, links: Vec::new() }
}
