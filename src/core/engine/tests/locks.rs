//! Jobs with locks: a run begins only while it holds them.

use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::election;
use crate::engine::{Command, Event, Report};
use crate::job::{Group, Job, OnLeaseEnd, Overlap, Retries};
use crate::ledger::{self, Change, Commit, OwnerState};
use crate::lock::{LockKey, LockPath};
use crate::process::{EndedBy, Exit, Order, TreeId};
use crate::run::{KillRequest, Outcome, Reason, RunState, Version};
use crate::run_lock::{self, LockGrant, LockRequestId};
use crate::term::{FencingToken, SessionId, TermEnd};

fn path(text: &str) -> LockPath {
    LockPath::parse(text).unwrap()
}

fn with(overlap: Overlap, paths: &[&str]) -> Job {
    let lock = paths.iter().map(|text| path(text)).collect();
    Job { overlap, lock, on_lease_end: OnLeaseEnd::Kill, ..job("a", "* * * * * *") }
}

fn orders(overlap: Overlap) -> Job {
    with(overlap, &["/locks/orders"])
}

fn grant(paths: &[LockPath]) -> LockGrant {
    let held = paths.iter().map(|path| (path.clone(), FencingToken(77))).collect();
    LockGrant { key: LockKey::of(uuid::Uuid::nil(), uuid::Uuid::nil()), held }
}

impl Fixture {
    /// The requests about locks among the commands, which it drops: runs that want locks, and ids that are released.
    fn lock_requests(&mut self) -> Vec<run_lock::Request> {
        let mut requests = Vec::new();
        self.commands.retain(|command| match command {
            Command::Ask(Request::Lock(request)) => {
                requests.push(request.clone());
                false
            }
            _ => true,
        });
        requests
    }

    /// The only request for locks among the commands.
    fn wanted(&mut self) -> (LockRequestId, Vec<LockPath>, bool) {
        match self.lock_requests().as_slice() {
            [run_lock::Request::Acquire { id, paths, waits, .. }] => (*id, paths.clone(), *waits),
            other => panic!("{other:?}"),
        }
    }

    fn hold(&mut self, id: LockRequestId, paths: &[LockPath]) {
        self.handle(Event::Lock(run_lock::Event::Held { id, grant: grant(paths) }));
    }

    fn lose(&mut self, id: LockRequestId) {
        self.handle(Event::Lock(run_lock::Event::Lost { id, path: path("/locks/orders") }));
    }

    fn end_term(&mut self, why: TermEnd) {
        self.handle(Event::Election(election::Event::Over { term: Self::term(9), why }));
    }
}

/// A leader whose run of `job` waits for its locks.
fn waiting_one(job: Job) -> (Fixture, LockRequestId) {
    let mut fixture = Fixture::settled("10:00:00", vec![job.clone()]);
    fixture.pass(1);
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::Begin { run, .. }] if run.state == RunState::Queued), "{changes:?}");
    let (id, paths, waits) = fixture.wanted();
    assert_eq!((paths, waits), (job.lock, job.overlap != Overlap::Skip));
    (fixture, id)
}

/// A leader whose run of `job` holds its locks and has just started.
fn holding_one(job: Job) -> (Fixture, LockRequestId, TreeId) {
    let (mut fixture, id) = waiting_one(job.clone());
    fixture.hold(id, &job.lock);
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::UpdateRun { run, .. }] if run.attempt == 1), "{changes:?}");
    let start = fixture.starts().remove(0);
    assert_eq!(start.lock, Some(grant(&job.lock)));
    fixture.started(start.tree_id);
    fixture.commands.clear();
    (fixture, id, start.tree_id)
}

fn skips(changes: &[Change]) -> Vec<&str> {
    let reasons = changes.iter().filter_map(|change| match change {
        Change::SkipRun { skip, .. } => Some(skip.reason.as_str()),
        _ => None,
    });
    reasons.collect()
}

fn is_killed(fixture: &Fixture, tree_id: TreeId) -> bool {
    fixture.commands.contains(&Command::Order(Order::Kill { tree_id }))
}

fn finished(fixture: &Fixture) -> Vec<(Outcome, Option<Reason>)> {
    let ends = fixture.reports().into_iter().filter_map(|report| match report {
        Report::Finished(end) => Some((end.outcome, end.reason)),
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_run_holds_its_locks_from_before_its_begin_until_its_processes_are_dead() {
    let job = with(Overlap::Queue, &["/locks/orders", "/locks/stock"]);
    let (mut fixture, id, tree_id) = holding_one(job);
    fixture.handle(Event::Tick);
    assert_eq!(fixture.lock_requests(), []);
    fixture.ended(tree_id, Exit::Code(0), None);
    // Whether the ledger has the end already does not matter to others.
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    assert!(matches!(&fixture.accept_all()[..], [Change::End { .. }]));
}

#[test]
fn what_may_not_wait_for_its_locks_is_skipped() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Skip));
    fixture.handle(Event::Lock(run_lock::Event::Busy { id, path: path("/locks/orders") }));
    assert_eq!(skips(&fixture.accept_all()), ["locked"]);
    assert_eq!(fixture.lock_requests(), []);
    fixture.pass(1);
    fixture.accept_all();
    assert!(!fixture.wanted().2, "the next occurrence asks again");
}

#[test]
fn what_may_wait_waits_and_the_next_is_judged_by_its_overlap() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    fixture.pass(1);
    assert_eq!(skipped(&fixture.accept_all()).len(), 1, "one waits already");
    fixture.hold(id, &orders(Overlap::Queue).lock);
    fixture.accept_all();
    assert_eq!(fixture.starts().len(), 1);
}

#[test]
fn a_run_that_lost_a_lock_is_killed_and_keeps_the_others_until_it_is_dead() {
    for (interrupted, expected) in [(crate::job::Interrupted::Skip, 1), (crate::job::Interrupted::Rerun, 0)] {
        let job = Job { interrupted, ..with(Overlap::Skip, &["/locks/orders", "/locks/stock"]) };
        let (mut fixture, id, tree_id) = holding_one(job);
        fixture.lose(id);
        assert!(is_killed(&fixture, tree_id));
        assert_eq!(fixture.lock_requests(), []);
        fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
        assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
        assert_eq!(finished(&fixture), vec![(Outcome::Interrupted, Some(Reason::Lock)); expected]);
        fixture.accept_all();
        // With `interrupted: rerun` the next attempt waits, because the run has begun.
        let wanted: Vec<_> = fixture.lock_requests();
        let waits = matches!(wanted[..], [run_lock::Request::Acquire { waits: true, .. }]);
        assert_eq!(waits, expected == 0, "{wanted:?}");
    }
}

#[test]
fn a_lock_lost_before_the_start_means_no_start() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    fixture.hold(id, &orders(Overlap::Queue).lock);
    let begun = fixture.commits();
    fixture.lose(id);
    fixture.answer(begun[0].0, Commit::Accepted);
    assert!(fixture.starts().is_empty());
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    let unstarted = |report: &Report| matches!(report, Report::Unstarted { reason: Some(Reason::Lock), .. });
    fixture.accept_all();
    assert!(fixture.reports().iter().any(unstarted));
    assert!(fixture.wanted().2, "the next attempt waits for the lock");
}

#[test]
fn who_no_longer_leads_gives_up_what_waits_and_keeps_what_runs() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    fixture.end_term(TermEnd::Resigned);
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    // Granted before the release arrived.
    fixture.hold(id, &orders(Overlap::Queue).lock);
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);

    let (mut fixture, id, tree_id) = holding_one(orders(Overlap::Queue));
    fixture.end_term(TermEnd::Resigned);
    assert_eq!(fixture.lock_requests(), []);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
}

#[test]
fn locks_end_with_the_session_and_so_do_their_runs() {
    let (mut fixture, id, tree_id) = holding_one(orders(Overlap::Queue));
    fixture.handle(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    assert!(is_killed(&fixture, tree_id));
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    assert_eq!(fixture.lock_requests(), [], "there is nothing to release");
    // An answer that belongs to no request of this session.
    fixture.hold(id, &orders(Overlap::Queue).lock);
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
}

#[test]
fn a_run_that_is_killed_while_it_waits_gives_up() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    let run = crate::run::RunId::scheduled(name("a"), at("10:00:01"));
    let kill = KillRequest { reason: Reason::Operator, by: "uid 0".into(), at: at("10:00:02"), force: false };
    let mut record = running(&orders(Overlap::Queue), run.scheduled_at(), OwnerState::Alive).record;
    (record.state, record.attempt, record.kill) = (RunState::Queued, 0, Some(Box::new(kill)));
    fixture.handle(Event::Ledger(ledger::Event::Run(run, Some((record, Version(1))))));
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    assert!(matches!(&fixture.accept_all()[..], [Change::End { end, .. }] if end.outcome == Outcome::Killed));
}

#[test]
fn between_two_attempts_others_may_hold_the_lock() {
    let retries = Retries { limit: 1, delay: Duration::from_secs(5), ..Retries::default() };
    let (mut fixture, id, tree_id) = holding_one(Job { retries, ..orders(Overlap::Skip) });
    fixture.ended(tree_id, Exit::Code(1), None);
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    fixture.accept_all();
    assert_eq!(fixture.lock_requests(), []);
    fixture.pass(4);
    fixture.pass(4);
    fixture.accept_all();
    let (id, paths, waits) = fixture.wanted();
    assert!(waits, "a run that has begun is not skipped");
    fixture.hold(id, &paths);
    fixture.accept_all();
    assert_eq!(fixture.starts()[0].run.attempt, 2);
}

#[test]
fn of_many_that_wait_only_a_few_are_in_the_queue() {
    let mut fixture = Fixture::settled("10:00:00", vec![orders(Overlap::Allow)]);
    let mut wanted = Vec::new();
    for _ in 0..20 {
        fixture.pass(1);
        fixture.accept_all();
        wanted.extend(fixture.lock_requests());
    }
    assert_eq!(wanted.len(), 8);
    let paths = orders(Overlap::Allow).lock;
    for round in 0..15 {
        let run_lock::Request::Acquire { id, run, .. } = wanted.remove(0) else { panic!("{wanted:?}") };
        assert_eq!(run.scheduled_at(), at("10:00:01") + jiff::SignedDuration::from_secs(round), "the oldest first");
        fixture.hold(id, &paths);
        fixture.accept_all();
        let tree_id = fixture.starts()[0].tree_id;
        fixture.commands.clear();
        fixture.started(tree_id);
        fixture.ended(tree_id, Exit::Code(0), None);
        fixture.accept_all();
        fixture.commands.retain(|command| !matches!(command, Command::Start(_)));
        let requests = fixture.lock_requests();
        assert_eq!(requests[0], run_lock::Request::Release { id });
        wanted.extend_from_slice(&requests[1..]);
        assert!(wanted.len() <= 8, "{wanted:?}");
    }
}

#[test]
fn a_changed_job_waits_for_its_new_locks() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    fixture.handle(Event::Loaded(set([with(Overlap::Queue, &["/locks/stock"])])));
    let requests = fixture.lock_requests();
    assert_eq!(requests[0], run_lock::Request::Release { id });
    assert!(matches!(&requests[1], run_lock::Request::Acquire { paths, .. } if *paths == [path("/locks/stock")]));
    fixture.handle(Event::Loaded(set([with(Overlap::Queue, &[])])));
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::UpdateRun { run, .. }] if run.attempt == 1), "{changes:?}");
    assert!(matches!(fixture.lock_requests()[..], [run_lock::Request::Release { .. }]));
}

#[test]
fn requests_to_release_and_refusals_are_reported() {
    let (mut fixture, id, _) = holding_one(orders(Overlap::Queue));
    fixture.handle(Event::Lock(run_lock::Event::RevokeRequested { id, path: path("/locks/orders") }));
    assert!(matches!(fixture.reports()[..], [Report::LockRevokeRequested { .. }]));
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    fixture.handle(Event::Lock(run_lock::Event::Refused { id, why: "no rights".into() }));
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::LockRefused { .. })));
}

/// Two jobs of one group with one position and one lock. The first has the only position and fails.
fn failing_beside_one_that_waits() -> (Fixture, LockRequestId) {
    let concurrency_group = Some(Group { name: "disk".into(), limit: 1 });
    let retries = Retries { limit: 1, delay: Duration::from_secs(5), ..Retries::default() };
    let first = Job { retries, concurrency_group, ..orders(Overlap::Queue) };
    let second = Job { name: name("b"), retries: Retries::default(), ..first.clone() };
    let mut fixture = Fixture::settled("10:00:00", vec![first.clone(), second]);
    fixture.pass(1);
    fixture.accept_all();
    let [run_lock::Request::Acquire { id: of_first, .. }, run_lock::Request::Acquire { id: of_second, .. }] =
        fixture.lock_requests()[..]
    else {
        panic!("both may have the position")
    };
    fixture.hold(of_first, &first.lock);
    fixture.accept_all();
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id: of_second }], "the group is full");
    let tree_id = fixture.starts()[0].tree_id;
    fixture.commands.clear();
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    (fixture, of_first)
}

#[test]
fn what_waits_for_a_position_in_its_group_holds_no_lock_that_its_holder_needs() {
    let (mut fixture, id) = failing_beside_one_that_waits();
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    fixture.accept_all();
    assert_eq!(fixture.lock_requests(), [], "the first has the position until its end");
    fixture.pass(4);
    fixture.pass(4);
    fixture.accept_all();
    let requests = fixture.lock_requests();
    assert!(
        matches!(&requests[..], [run_lock::Request::Acquire { run, .. }] if run.job().as_str() == "a"),
        "{requests:?}"
    );
}

#[test]
fn a_run_whose_job_is_removed_gives_its_lock_up_and_takes_it_again_when_the_job_is_back() {
    let (mut fixture, id) = waiting_one(orders(Overlap::Queue));
    fixture.handle(Event::Loaded(set([])));
    assert_eq!(fixture.lock_requests(), [run_lock::Request::Release { id }]);
    fixture.handle(Event::Loaded(set([orders(Overlap::Queue)])));
    let (id, paths, _) = fixture.wanted();
    fixture.hold(id, &paths);
    fixture.accept_all();
    assert_eq!(fixture.starts().len(), 1);
}
