//! The ports on one host: several nodes in one process, which contend as processes do, for their locks belong to open files.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;

use super::*;
use crate::coordination::{Event, Request};
use crate::job::{Digest, JobName};
use crate::ledger::{Change, Commit, CommitId, OwnerState, SkipWrite, Snapshot};
use crate::run::journal::Journal as _;
use crate::run::tests_support::{record, success};
use crate::run::{
    HistoryRecord, JobRecord, Nonce, Outcome, Owner, RunEnd, RunId, RunRecord, Skip, SkipReason, Version,
};
use crate::state_dir::Belongs;
use crate::term::{FencingToken, SessionId, Term, TermEnd};
use crate::{clock::Uptime, election, ledger};

/// Longer than any machine is busy.
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
        Self::start_with(dir, name, Arc::new(|_| Ok(()))).await
    }

    async fn start_with(dir: &Path, name: &str, leftovers: Leftovers) -> Self {
        let node = NodeName::new(name);
        let state = StateDir::open(dir, Belongs::Solo, &node).unwrap();
        let mut solo = start(&state, &node, leftovers).unwrap();
        let Some(Event::Election(election::Event::Session { id, .. })) = solo.coordination.events.recv().await else {
            panic!("no session first")
        };
        Self { solo, name: node, session: id, commits: 0, _state: state }
    }

    fn ask(&self, request: election::Request) {
        self.solo.coordination.requests.send(Request::Election(request)).unwrap();
    }

    fn ask_ledger(&self, request: ledger::Request) {
        self.solo.coordination.requests.send(Request::Ledger(request)).unwrap();
    }

    /// The first event that `wanted` picks; others are passed over.
    async fn until<T>(&mut self, wanted: impl Fn(Event) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.solo.coordination.events.recv().await.expect("the backend lives");
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
        self.ask(election::Request::Campaign);
        self.elected().await
    }

    /// Whom this node waits behind.
    async fn following(&mut self) -> (NodeName, NodeName) {
        self.until(|event| match event {
            Event::Election(election::Event::Following { predecessor_node, leader_node, .. }) => {
                predecessor_node.zip(leader_node)
            }
            _ => None,
        })
        .await
    }

    fn send(&mut self, change: Change) -> CommitId {
        self.commits += 1;
        let id = CommitId(self.commits);
        self.ask_ledger(ledger::Request::Commit { id, change });
        id
    }

    async fn commit(&mut self, change: Change) -> Commit {
        let sent = self.send(change);
        self.until(|event| match event {
            Event::Ledger(ledger::Event::Answered { id, answer }) if id == sent => Some(answer),
            _ => None,
        })
        .await
    }

    /// Makes the job's record, and begins its run at `second`.
    async fn begin(&mut self, job: &str, second: i64) -> RunRecord {
        assert_eq!(self.commit(advance(job, None, second - 1, None)).await, Commit::Accepted);
        let owner = Owner { node: self.name.clone(), session: self.session.clone() };
        let run = RunRecord { owner, ..record(job, second, "") };
        assert_eq!(self.commit(begin(&run, Version::FIRST)).await, Commit::Accepted);
        run
    }

    async fn history(&self, job: &str) -> Vec<HistoryRecord> {
        self.solo.coordination.reader.history(Some(JobName::parse(job).unwrap()), 1000).await.unwrap()
    }

    async fn run_told(&mut self, wanted: &RunId) -> Option<(RunRecord, Version)> {
        self.until(|event| match event {
            Event::Ledger(ledger::Event::Run(run, row)) if run == *wanted => Some(row),
            _ => None,
        })
        .await
    }
}

fn job_record(second: i64) -> JobRecord {
    JobRecord {
        v: 1,
        last_scheduled: Timestamp::from_second(second).unwrap(),
        schedule: Some(Digest::of(b"* * * * *")),
        nonce: Nonce(format!("1-{second}")),
    }
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
    let time = |second| Timestamp::from_second(second).unwrap();
    let last = time(first + i64::try_from(count).unwrap() - 1);
    let skip = Skip {
        job: JobName::parse(job).unwrap(),
        reason: SkipReason::Missed,
        first: time(first),
        last,
        count,
        token: FencingToken(1),
        node: NodeName::new("a"),
        decided_at: last,
    };
    SkipWrite { at: at.map(Version), skip }
}

#[tokio::test]
async fn the_first_leads_and_the_others_follow_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let (term, snapshot) = a.lead().await;
    assert_eq!((term.token, snapshot), (FencingToken(1), Snapshot::default()));
    let mut b = Node::start(dir.path(), "b").await;
    b.ask(election::Request::Campaign);
    assert_eq!(b.following().await, (NodeName::new("a"), NodeName::new("a")));
    let mut c = Node::start(dir.path(), "c").await;
    c.ask(election::Request::Campaign);
    assert_eq!(c.following().await, (NodeName::new("b"), NodeName::new("a")));
    drop(b);
    assert_eq!(c.following().await, (NodeName::new("a"), NodeName::new("a")));
    let queue = a.solo.coordination.reader.queue().await.unwrap();
    let nodes: Vec<_> = queue.candidates.into_iter().filter_map(|candidate| candidate.node).collect();
    assert_eq!(nodes, [NodeName::new("a"), NodeName::new("c")]);
}

#[tokio::test]
async fn a_dropped_leader_is_followed_under_a_larger_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let mut b = Node::start(dir.path(), "b").await;
    let (first, _) = a.lead().await;
    b.ask(election::Request::Campaign);
    b.following().await;
    drop(a);
    let (second, _) = b.elected().await;
    assert!(second.token > first.token && second.candidate != first.candidate);
}

#[tokio::test]
async fn a_resigned_leader_hands_over_and_can_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let mut b = Node::start(dir.path(), "b").await;
    let (first, _) = a.lead().await;
    b.ask(election::Request::Campaign);
    b.following().await;
    a.ask(election::Request::Resign);
    let over = a.until(|event| match event {
        Event::Election(election::Event::Over { term, why }) => Some((term, why)),
        _ => None,
    });
    assert_eq!(over.await, (first, TermEnd::Resigned));
    b.elected().await;
    a.ask(election::Request::Campaign);
    assert_eq!(a.following().await.0, NodeName::new("b"));
    b.ask(election::Request::Leave);
    assert_eq!(a.elected().await.0.token, FencingToken(3));
}

#[tokio::test]
async fn the_lease_never_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let until = a.until(|event| match event {
        Event::Election(election::Event::Lease { until }) => Some(until),
        _ => None,
    });
    assert_eq!(until.await, Uptime::NEVER);
}

#[tokio::test]
async fn a_name_that_lives_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let a = Node::start(dir.path(), "a").await;
    let state = StateDir::open(dir.path(), Belongs::Solo, &NodeName::new("a")).unwrap();
    let refused = start(&state, &NodeName::new("a"), Arc::new(|_| Ok(()))).err().unwrap();
    assert!(matches!(refused, SoloError::Refused(Failure::NameTaken { .. })), "{refused}");
    drop(a);
}

#[tokio::test]
async fn a_change_rests_on_the_versions_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    assert_eq!(a.commit(advance("j", Some(0), 10, None)).await, Commit::Superseded);
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Accepted);
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Superseded);
    assert_eq!(a.commit(advance("j", Some(0), 20, None)).await, Commit::Accepted);
    a.ask_ledger(ledger::Request::ReadJob(JobName::parse("j").unwrap()));
    let entry = a.until(|event| match event {
        Event::Ledger(ledger::Event::Job(_, entry)) => Some(entry),
        _ => None,
    });
    let entry = entry.await.unwrap();
    assert_eq!((entry.version, entry.record), (Version(1), Some(job_record(20))));
}

#[tokio::test]
async fn a_run_begins_once_and_ends_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("j", 60).await;
    assert_eq!(a.commit(begin(&run, Version::FIRST)).await, Commit::Superseded);
    assert_eq!(a.commit(begin(&run, Version(1))).await, Commit::Superseded);
    // Whole or not at all: the refused begins have not moved the mark.
    assert_eq!(a.commit(advance("j", Some(1), 61, None)).await, Commit::Accepted);
    assert_eq!(a.commit(Change::Settle { at: Version(0), run: run.clone() }).await, Commit::Accepted);
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Superseded);
    assert_eq!(a.commit(end(&run, 1, false)).await, Commit::Accepted);
    assert_eq!(a.commit(end(&run, 1, false)).await, Commit::Superseded);
    assert_eq!(a.history("j").await, [HistoryRecord::Run(success(run))]);
}

#[tokio::test]
async fn changes_requested_together_see_each_other_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let ids = [None, Some(0), Some(0), Some(1)].map(|at| a.send(advance("j", at, 10, None)));
    let mut answers = Vec::new();
    for _ in ids {
        answers.push(
            a.until(|event| match event {
                Event::Ledger(ledger::Event::Answered { answer, .. }) => Some(answer),
                _ => None,
            })
            .await,
        );
    }
    assert_eq!(answers, [Commit::Accepted, Commit::Accepted, Commit::Superseded, Commit::Accepted]);
}

#[tokio::test]
async fn who_does_not_lead_decides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
}

#[tokio::test]
async fn a_leader_whose_lock_file_was_removed_is_fenced_and_joins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let (first, _) = a.lead().await;
    std::fs::remove_file(dir.path().join("leader.lock")).unwrap();
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
    assert!(a.elected().await.0.token > first.token);
}

#[tokio::test]
async fn a_leader_with_an_old_token_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute("UPDATE term SET token = 7", []).unwrap();
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
    assert_eq!(a.elected().await.0.token, FencingToken(8));
}

#[tokio::test]
async fn ends_that_a_dead_leader_could_not_commit_are_committed_before_the_next_leads() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let (ended, open) = (a.begin("ended", 60).await, a.begin("open", 60).await);
    for run in [&ended, &open] {
        a.solo.journal.begun(run, Version::FIRST).unwrap();
    }
    a.solo.journal.started(&open.id(), 1, 4242, 7).unwrap();
    a.solo.journal.ended(&success(ended.clone())).unwrap();
    drop(a);

    let seen = Arc::new(Mutex::new(Vec::new()));
    let leftovers: Leftovers = Arc::new({
        let seen = seen.clone();
        move |runs: &[RecoveredRun]| {
            seen.lock().unwrap().extend(runs.iter().map(|run| (run.record.job.to_string(), run.pid)));
            Ok(())
        }
    });
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(*seen.lock().unwrap(), [("ended".to_owned(), None), ("open".to_owned(), Some((4242, 7)))]);
    let running: Vec<_> = snapshot.running.iter().map(|run| (run.record.clone(), run.version, run.owner)).collect();
    assert_eq!(running, [(open, Version::FIRST, OwnerState::Dead)]);
    assert_eq!(b.history("ended").await, [HistoryRecord::Run(success(ended))]);
}

#[tokio::test]
async fn nobody_leads_while_a_leftover_lives() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("j", 60).await;
    a.solo.journal.begun(&run, Version::FIRST).unwrap();
    drop(a);

    let tries = Arc::new(Mutex::new(0));
    let leftovers: Leftovers = Arc::new({
        let tries = tries.clone();
        move |_: &[RecoveredRun]| {
            let mut tries = tries.lock().unwrap();
            *tries += 1;
            if *tries == 1 { Err(StillAlive("4242".into())) } else { Ok(()) }
        }
    });
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    b.ask(election::Request::Campaign);
    let told = b.until(|event| match event {
        Event::Election(election::Event::Unreachable { error, .. }) => Some(error),
        Event::Election(election::Event::Elected { .. }) => panic!("leads beside a living process"),
        _ => None,
    });
    assert!(told.await.contains("4242"));
    b.elected().await;
    assert_eq!(*tries.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_former_leader_that_drains_is_alive_and_ends_its_run_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let run = a.begin("j", 60).await;
    a.ask(election::Request::Resign);
    let (_, snapshot) = b.lead().await;
    assert_eq!(snapshot.running[0].owner, OwnerState::Alive);
    b.ask_ledger(ledger::Request::Watch(run.id()));
    assert!(b.run_told(&run.id()).await.is_some());
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    assert_eq!(b.run_told(&run.id()).await, None);
}

#[tokio::test]
async fn a_former_leader_that_dies_while_it_drains_is_reported_after_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let (open, ended) = (a.begin("open", 60).await, a.begin("ended", 60).await);
    for run in [&open, &ended] {
        a.solo.journal.begun(run, Version::FIRST).unwrap();
    }
    a.ask(election::Request::Resign);
    b.lead().await;
    for run in [&open, &ended] {
        b.ask_ledger(ledger::Request::Watch(run.id()));
    }
    b.run_told(&ended.id()).await;
    a.solo.journal.ended(&success(ended.clone())).unwrap();
    drop(a);
    let gone = b.until({
        let ended = ended.id();
        move |event| match event {
            Event::Ledger(event @ ledger::Event::OwnerGone(..)) => Some(event),
            Event::Ledger(event @ ledger::Event::Run(_, None)) => Some(event),
            Event::Ledger(ledger::Event::Run(run, _)) if run == ended => panic!("nothing changed yet"),
            _ => None,
        }
    });
    let first = gone.await;
    assert_eq!(first, ledger::Event::Run(ended.id(), None));
    let owner_gone = b.until(|event| match event {
        Event::Ledger(ledger::Event::OwnerGone(run, row)) => Some((run, row)),
        _ => None,
    });
    assert_eq!(owner_gone.await, (open.id(), Some((open, Version::FIRST))));
    assert_eq!(b.history("ended").await, [HistoryRecord::Run(success(ended))]);
}

#[tokio::test]
async fn neighbouring_skips_are_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    assert_eq!(a.commit(advance("j", None, 60, Some(skip("j", 60, 1, None)))).await, Commit::Accepted);
    assert_eq!(a.commit(advance("j", Some(0), 61, Some(skip("j", 60, 2, Some(0))))).await, Commit::Accepted);
    assert_eq!(a.commit(advance("j", Some(1), 62, Some(skip("j", 60, 3, Some(0))))).await, Commit::Superseded);
    assert_eq!(a.commit(advance("j", Some(1), 62, Some(skip("j", 60, 3, None)))).await, Commit::Superseded);
    assert_eq!(a.history("j").await, [HistoryRecord::Skip(skip("j", 60, 2, None).skip)]);
}

#[test]
fn the_newest_twenty_runs_and_apart_from_them_the_newest_twenty_skips_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    let mut store = store::Store::open(&path).unwrap();
    let (token, _) = store.open_term(std::iter::empty::<&RunEnd>()).unwrap();
    let mut changes = vec![advance("j", None, 0, None)];
    for n in 0..30 {
        let run = record("j", 1000 + n, "s");
        changes.push(begin(&run, Version(2 * n as i32)));
        changes.push(end(&run, 0, true));
        changes.push(advance("j", Some(2 * n as i32 + 1), 2000 + n, Some(skip("j", 2000 + n, 1, None))));
    }
    let answers = store.commit(Some(token), &changes).unwrap();
    assert!(answers.iter().all(|answer| *answer == Commit::Accepted), "{answers:?}");
    store.trim([JobName::parse("j").unwrap()].iter()).unwrap();
    let kept = read::history(&Connection::open(&path).unwrap(), None, 1000).unwrap();
    let seconds = |kind: fn(&HistoryRecord) -> Option<Timestamp>| {
        kept.iter().filter_map(kind).map(Timestamp::as_second).collect::<Vec<_>>()
    };
    let runs = seconds(|record| match record {
        HistoryRecord::Run(end) if end.outcome == Outcome::Success => Some(end.run.scheduled_at),
        _ => None,
    });
    let skips = seconds(|record| match record {
        HistoryRecord::Skip(skip) => Some(skip.first),
        HistoryRecord::Run(_) => None,
    });
    assert_eq!(runs, (1010..1030).rev().collect::<Vec<_>>());
    assert_eq!(skips, (2010..2030).rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_damaged_record_is_named_and_blocks_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let good = a.begin("good", 60).await;
    a.begin("bad", 60).await;
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute("UPDATE running SET record = '{' WHERE run LIKE 'bad%'", []).unwrap();
    drop(a);
    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(snapshot.running.iter().map(|run| run.record.clone()).collect::<Vec<_>>(), [good]);
    assert_eq!(snapshot.damaged.len(), 1);
    assert!(snapshot.damaged[0].starts_with("running/bad.19700101T000100Z"), "{:?}", snapshot.damaged);
}

#[test]
fn a_file_that_is_no_ledger_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    std::fs::write(&path, "this is no database, and long enough to be looked at as one".repeat(40)).unwrap();
    let refused = store::Store::open(&path).unwrap_err();
    assert!(refused.is_lasting() && refused.to_string().contains("not a database"), "{refused}");
}

#[test]
fn a_ledger_of_a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    drop(store::Store::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    let refused = store::Store::open(&path).unwrap_err();
    assert!(matches!(refused, store::StoreError::Format { found: 2, known: 1 }));
}

#[test]
fn a_full_disk_takes_a_group_of_changes_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = store::Store::open(&dir.path().join("ledger.db")).unwrap();
    let (token, _) = store.open_term(std::iter::empty::<&RunEnd>()).unwrap();
    let changes: Vec<_> = (0..2000).map(|n| advance(&format!("j{n}"), None, 10, None)).collect();
    store.limit_pages(Some(20));
    let full = store.commit(Some(token), &changes).unwrap_err();
    assert!(!full.is_lasting() && full.to_string().contains("full"), "{full}");
    assert_eq!(store.job(&JobName::parse("j0").unwrap()).unwrap(), None);
    store.limit_pages(None);
    let answers = store.commit(Some(token), &changes).unwrap();
    assert!(answers.iter().all(|answer| *answer == Commit::Accepted));
}

#[tokio::test]
async fn what_cannot_be_written_for_now_is_not_answered_until_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    // Another connection that holds the write lock for longer than any of ours does.
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let sent = a.send(advance("j", None, 10, None));
    a.until(|event| match event {
        Event::Election(election::Event::Suspended { .. }) => Some(()),
        Event::Ledger(ledger::Event::Answered { .. }) => panic!("answered without being written"),
        _ => None,
    })
    .await;
    db.execute_batch("ROLLBACK").unwrap();
    let answer = a.until(|event| match event {
        Event::Ledger(ledger::Event::Answered { id, answer }) if id == sent => Some(answer),
        _ => None,
    });
    assert_eq!(answer.await, Commit::Accepted);
    a.until(|event| matches!(event, Event::Election(election::Event::Resumed { .. })).then_some(())).await;
}

#[tokio::test]
async fn a_ledger_that_cannot_be_used_ends_the_term_loudly() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    Connection::open(dir.path().join("ledger.db")).unwrap().execute_batch("DROP TABLE jobs").unwrap();
    let sent = a.send(advance("j", None, 10, None));
    a.until(|event| matches!(event, Event::Election(election::Event::Over { .. })).then_some(())).await;
    let failure = a.until(|event| match event {
        Event::Election(election::Event::Failed(failure)) => Some(failure),
        _ => None,
    });
    assert!(matches!(failure.await, Failure::StateDir(_)));
    let answer = a.until(|event| match event {
        Event::Ledger(ledger::Event::Answered { id, answer }) if id == sent => Some(answer),
        _ => None,
    });
    assert_eq!(answer.await, Commit::Unknown);
    a.ask(election::Request::Leave);
    a.until(|event| matches!(event, Event::Election(election::Event::Left)).then_some(())).await;
}

#[tokio::test]
async fn a_node_whose_member_was_removed_gives_all_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    std::fs::remove_dir_all(dir.path().join("members")).unwrap();
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Unknown);
}

#[tokio::test]
async fn who_leaves_in_order_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    a.ask(election::Request::Leave);
    a.until(|event| matches!(event, Event::Election(election::Event::Left)).then_some(())).await;
    for folder in ["members", "queue"] {
        assert_eq!(std::fs::read_dir(dir.path().join(folder)).unwrap().count(), 0, "{folder}");
    }
}

#[tokio::test]
async fn who_leaves_with_an_open_end_leaves_it_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("j", 60).await;
    a.solo.journal.begun(&run, Version::FIRST).unwrap();
    a.solo.journal.ended(&success(run.clone())).unwrap();
    a.ask(election::Request::Leave);
    a.until(|event| matches!(event, Event::Election(election::Event::Left)).then_some(())).await;
    let mut b = Node::start(dir.path(), "b").await;
    assert_eq!(b.lead().await.1.running, []);
    assert_eq!(b.history("j").await, [HistoryRecord::Run(success(run))]);
}
