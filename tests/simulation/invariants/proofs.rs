//! Tests that every invariant detects the violations it is meant for, on facts made by hand. That of `last/<job>` has its
//! own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{Mode, Op};
use cronkeeper_cluster::zookeeper::session_id;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Place;
use cronkeeper_core::job::{Alarm, Digest, JobName};
use cronkeeper_core::ledger::Commit;
use cronkeeper_core::run::{
    Attempt, HistoryRecord, JobRecord, Link, Nonce, OnLoss, Outcome, Owner, Parameters, Past, Placement, RaisedAlarm,
    RunEnd, RunId, RunRecord, RunState, Skip, SkipReason, StandingAlarms, Trigger, TriggerRecord, TriggerSeq,
};
use cronkeeper_core::term::{FencingToken, NodeName, SessionId};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use uuid::Uuid;

use super::super::backend::node_name;
use super::super::facts::Fact;
use super::super::jobs::{PARAMETER, sets};
use super::super::warden::Process;
use super::super::world::wall_at;
use super::super::zookeeper::Change;
use super::every_node_has_its_share::EveryNodeHasItsShare;
use super::no_program_begins_early::NoProgramBeginsEarly;
use super::no_two_processes_of_a_run::NoTwoProcesses;
use super::nothing_known_is_lost::NothingKnownIsLost;
use super::parameters_stay_with_the_run::ParametersStayWithTheRun;
use super::placed_runs_follow_their_acceptance::PlacedRunsFollowTheirAcceptance;
use super::{Invariant, Successors, besides_lasts};
use crate::ledger::txn::Txn;

/// The verdict of all invariants on these facts, in order.
fn verdict(facts: Vec<Fact>) -> Result<(), String> {
    let mut invariants = besides_lasts(2, Duration::from_secs(4), Successors::Never, false);
    facts.iter().try_for_each(|fact| invariants.iter_mut().try_for_each(|one| one.observe(Uptime::from_nanos(1), fact)))
}

fn assert_broken(facts: Vec<Fact>, by: &str) {
    let broken = verdict(facts).expect_err("it is broken");
    assert!(broken.contains(by), "{broken}");
}

/// 2026-11-20T00:00:00Z, when the runs of these tests are due.
const DUE_MS: i64 = 1_795_132_800_000;

fn committed(zxid: i64, ops: Vec<Op>, touched: &[&str]) -> Fact {
    committed_at(DUE_MS, zxid, ops, touched)
}

fn committed_at(time_ms: i64, zxid: i64, ops: Vec<Op>, touched: &[&str]) -> Fact {
    let txn = Txn { zxid, time_ms, session: 1, change: Change::Ops(ops) };
    let touched = touched.iter().map(|path| (*path).to_owned()).collect();
    Fact::Committed { txn: Arc::new(txn), touched }
}

fn set(path: &str, data: Vec<u8>) -> Op {
    Op::Set { path: path.into(), data, version: -1 }
}

fn create(path: &str, data: Vec<u8>) -> Op {
    Op::Create { path: path.into(), data, mode: Mode::Persistent }
}

fn mark(second: i64, nonce: &str) -> Fact {
    let last_scheduled = Timestamp::from_second(second).unwrap();
    let record = JobRecord::new(last_scheduled, Nonce(nonce.into()));
    committed(second, vec![set("/cronkeeper/jobs/a", serde_json::to_vec(&record).unwrap())], &[])
}

const RUN: &str = "a.20261120T000000Z";
const NEXT: &str = "a.20261120T000100Z";

fn record(attempt: u32, nonce: &str) -> Vec<u8> {
    record_of(1, attempt, nonce)
}

/// The record as one that this node has, with a larger token than before.
fn on(node: usize, record: Vec<u8>) -> Vec<u8> {
    let mut record: RunRecord = serde_json::from_slice(&record).unwrap();
    record.owner.node = node_name(node);
    serde_json::to_vec(&record).unwrap()
}

fn record_of(token: i64, attempt: u32, nonce: &str) -> Vec<u8> {
    let record = RunRecord {
        v: 1,
        job: JobName::parse("a").unwrap(),
        scheduled_at: "2026-11-20T00:00:00Z".parse().unwrap(),
        trigger: None,
        on: None,
        share_among: None,
        parameters: Parameters::default(),
        state: RunState::Running,
        owner: Owner { node: NodeName::new("node-0"), session: SessionId("0x1".into()) },
        token: FencingToken(token),
        attempt,
        nonce: Nonce(nonce.into()),
        begun_at: "2026-11-20T00:00:00Z".parse().unwrap(),
        on_loss: OnLoss::Rerun,
        keep_until: None,
        ready_at: None,
        no_node_since: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        notify: std::collections::BTreeSet::new(),
        placement: None,
        kill: None,
    };
    serde_json::to_vec(&record).unwrap()
}

fn path(run: &str) -> String {
    format!("/cronkeeper/running/{run}")
}

fn begun(zxid: i64, run: &str) -> Fact {
    committed(zxid, vec![create(&path(run), record(1, &format!("n{zxid}")))], &[])
}

fn process(node: usize, pid: i32, run: &str, attempt: u32) -> Process {
    let scheduled_at = RunId::parse(run).unwrap().scheduled_at().to_string();
    Process { node, pid, run: run.into(), attempt, token: 1, scheduled_at, parameter: None, definition: String::new() }
}

#[test]
fn two_nodes_that_act_at_once_are_seen() {
    let elected =
        |node, until| Fact::Elected { node, token: FencingToken(node as i64), lease_until: Uptime::from_nanos(until) };
    assert_eq!(verdict(vec![elected(0, 1), elected(1, 9)]), Ok(()));
    assert_eq!(verdict(vec![elected(0, 9), Fact::Died { node: 0 }, elected(1, 9)]), Ok(()));
    assert_broken(vec![elected(0, 9), elected(1, 9)], "acts in the term");
    assert_broken(
        vec![elected(0, 1), elected(1, 9), Fact::Lease { node: 0, until: Uptime::from_nanos(9) }],
        "acts in the term",
    );
}

#[test]
fn a_write_of_an_older_term_after_a_newer_one_opened_is_seen() {
    let candidate = |zxid, path: &str| committed(zxid, vec![], &[path]);
    let check = |path: &str| Op::Check { path: path.into(), version: 0 };
    let facts = vec![
        candidate(1, "/leader/a"),
        candidate(2, "/leader/b"),
        committed(3, vec![check("/leader/b"), set("/leader", vec![])], &[]),
        committed(4, vec![check("/leader/a")], &[]),
    ];
    assert_broken(facts, "fenced by the token 1");
}

#[test]
fn an_attempt_begun_behind_no_candidate_or_another_than_its_own_is_seen() {
    let candidate = committed(1, vec![], &["/leader/a"]);
    let check = || Op::Check { path: "/leader/a".into(), version: 0 };
    let opening = committed(2, vec![check(), set("/leader", vec![])], &[]);
    let begins = |ops| vec![candidate.clone(), opening.clone(), committed(3, ops, &[])];
    assert_eq!(verdict(begins(vec![check(), create(&path(RUN), record(1, "n1"))])), Ok(()));
    assert_broken(begins(vec![create(&path(RUN), record(1, "n1"))]), "fenced by None");
    assert_broken(begins(vec![check(), create(&path(RUN), record_of(7, 1, "n1"))]), "fenced by Some(1)");
}

#[test]
fn a_process_that_starts_after_its_nodes_lease_is_seen() {
    let leads = |until| Fact::Elected { node: 0, token: FencingToken(1), lease_until: Uptime::from_nanos(until) };
    let start = || Fact::Spawned(process(0, 1, RUN, 1));
    assert_eq!(verdict(vec![begun(1, RUN), leads(2), start()]), Ok(()));
    assert_broken(vec![begun(1, RUN), leads(1), start()], "after its lease");
    let renewed = Fact::Lease { node: 0, until: Uptime::from_nanos(2) };
    assert_eq!(verdict(vec![begun(1, RUN), leads(1), renewed, start()]), Ok(()));
}

#[test]
fn a_mark_that_goes_back_is_seen() {
    assert_eq!(verdict(vec![mark(5, "1"), mark(5, "2"), mark(6, "3")]), Ok(()));
    assert_broken(vec![mark(5, "1"), mark(4, "2")], "went back");
    let gone = Op::Delete { path: "/cronkeeper/jobs/a".into(), version: -1 };
    assert_broken(vec![mark(5, "1"), committed(6, vec![gone], &[])], "was removed");
}

#[test]
fn a_program_that_begins_before_its_time_is_seen() {
    let run = |seconds: i64| RunId::scheduled(JobName::parse("a").unwrap(), wall_at(Uptime::ZERO) + seconds.seconds());
    let begun = |seconds: i64| {
        let mut record: RunRecord = serde_json::from_slice(&record(1, "n")).unwrap();
        (record.scheduled_at, record.begun_at) = (run(seconds).scheduled_at(), Timestamp::UNIX_EPOCH);
        committed(1, vec![create(&path(&run(seconds).to_string()), json(&record))], &[])
    };
    let spawned = |seconds: i64| Fact::Spawned(process(0, 1, &run(seconds).to_string(), 1));
    let set = |seconds: i64| Fact::ClockSet { node: 0, by: SignedDuration::from_secs(seconds) };
    let verdict = |facts: Vec<Fact>| {
        let mut invariant = NoProgramBeginsEarly::default();
        facts.iter().try_for_each(|fact| invariant.observe(Uptime::from_nanos(1), fact))
    };
    assert_eq!(verdict(vec![begun(0), spawned(0)]), Ok(()));
    assert_eq!(verdict(vec![set(60), begun(60), spawned(60)]), Ok(()));
    assert_eq!(verdict(vec![set(60), begun(60), set(-60), spawned(60)]), Ok(()), "it was held when the clock was set");
    assert_eq!(verdict(vec![spawned(60)]), Ok(()), "it was not begun ahead");
    assert!(verdict(vec![begun(1), spawned(1)]).is_err_and(|broken| broken.contains("began when it was")));
    assert!(verdict(vec![set(-60), begun(1), spawned(1)]).is_err());
}

#[test]
fn a_run_begun_ahead_of_the_servers_time_is_seen() {
    let begun_at = |time_ms| committed_at(time_ms, 1, vec![create(&path(RUN), record(1, "n1"))], &[]);
    assert_eq!(verdict(vec![begun_at(DUE_MS - 60_000)]), Ok(()));
    assert_broken(vec![begun_at(DUE_MS - 60_002)], "at the servers");
}

#[test]
fn a_run_begun_twice_is_seen() {
    let end = |zxid| committed(zxid, vec![Op::Delete { path: path(RUN), version: -1 }], &[]);
    let again = |attempt, nonce| committed(9, vec![set(&path(RUN), record(attempt, nonce))], &[]);
    assert_eq!(verdict(vec![begun(1, RUN), again(1, "n1"), again(2, "x"), end(3)]), Ok(()));
    assert_broken(vec![begun(1, RUN), end(2), begun(3, RUN)], "begun a second time");
    let by_another_term = committed(9, vec![set(&path(RUN), record_of(8, 1, "other"))], &[]);
    assert_broken(vec![begun(1, RUN), by_another_term], "begun a second time");
    assert_broken(vec![begun(1, RUN), again(3, "x")], "went from attempt 1 to 3");
    assert_broken(vec![begun(1, RUN), end(2), end(3)], "ended twice");
}

#[test]
fn attempts_that_are_not_accounted_for_are_seen() {
    let after = |attempt, failures, listed: &[u32]| {
        let mut run: RunRecord = serde_json::from_slice(&record(attempt, "n1")).unwrap();
        let end = |attempt| RunEnd::unseen(&RunRecord { attempt, ..run.clone() }, Outcome::Failure, None, run.begun_at);
        let attempts = listed.iter().map(|&attempt| Attempt::of(&end(attempt))).collect();
        run.past = Past { failures, attempts };
        let started = Fact::Spawned(process(0, 1, RUN, 1));
        vec![begun(1, RUN), started, committed(2, vec![set(&path(RUN), serde_json::to_vec(&run).unwrap())], &[])]
    };
    assert_eq!(verdict(after(2, 1, &[1])), Ok(()));
    assert_broken(after(2, 0, &[1]), "miscounted");
    assert_broken(after(2, 1, &[3]), "not in order");
    assert_broken(after(2, 3, &[0, 1, 2]), "too often");
}

#[test]
fn two_processes_of_a_run_or_of_a_job_are_seen() {
    let spawned = |node, pid, run, attempt: u32| {
        Fact::Spawned(Process { token: attempt.into(), ..process(node, pid, run, attempt) })
    };
    let gone = |node, pid, run| Fact::Gone(process(node, pid, run, 1));
    let rerun = committed(2, vec![set(&path(RUN), on(1, record(2, "x")))], &[]);
    assert_broken(vec![spawned(0, 1, RUN, 1)], "without a record");
    assert_broken(vec![begun(1, RUN), spawned(0, 1, RUN, 1), gone(0, 1, RUN), spawned(0, 2, RUN, 1)], "started twice");
    assert_broken(vec![begun(1, RUN), spawned(0, 1, RUN, 1), rerun.clone(), spawned(1, 2, RUN, 2)], "two processes");
    assert_broken(vec![begun(1, RUN), begun(2, NEXT), spawned(0, 1, RUN, 1), spawned(1, 2, NEXT, 1)], "two processes");
    let frozen = vec![begun(1, RUN), spawned(0, 1, RUN, 1), Fact::Frozen { node: 0 }, rerun, spawned(1, 2, RUN, 2)];
    assert_eq!(verdict(frozen), Ok(()));
}

#[test]
fn a_placed_run_that_is_not_what_the_leader_decided_is_seen() {
    let decided = Digest::of(b"decided");
    let accepted = |node: usize, attempt, run: &str| {
        let mut record: RunRecord = serde_json::from_slice(&on(node, record(attempt, "n1"))).unwrap();
        record.placement = Some(Box::new(Placement::new(decided.clone())));
        committed(attempt.into(), vec![set(&path(run), serde_json::to_vec(&record).unwrap())], &[])
    };
    let by = |definition: &Digest, node, attempt: u32, token| {
        let definition = definition.to_string();
        Fact::Spawned(Process { token, definition, ..process(node, attempt.cast_signed(), RUN, attempt) })
    };
    let is_decided = |node, attempt, token| by(&decided, node, attempt, token);
    let gone = Fact::Gone(process(1, 1, RUN, 1));
    let twice = |token| {
        vec![accepted(1, 1, RUN), is_decided(1, 1, 5), gone.clone(), accepted(0, 2, RUN), is_decided(0, 2, token)]
    };
    let judge = |facts: Vec<Fact>| {
        let mut invariant = PlacedRunsFollowTheirAcceptance::default();
        facts.iter().try_for_each(|fact| invariant.observe(Uptime::ZERO, fact))
    };
    let is_broken = |facts, by: &str| {
        let broken = judge(facts).expect_err("it is broken");
        assert!(broken.contains(by), "{broken}");
    };
    assert_eq!(judge(twice(6)), Ok(()));
    is_broken(twice(5), "has the token 5, and attempt 1 had 5");
    is_broken(vec![accepted(1, 1, RUN), is_decided(0, 1, 5)], "is started on node-0");
    is_broken(vec![accepted(1, 1, RUN), is_decided(1, 2, 5)], "no record has it as running");
    is_broken(vec![accepted(1, 1, RUN), by(&Digest::of(b"another"), 1, 1, 5)], "the leader decided on");
    let labelled = "any-where.20261120T000000Z";
    let on_node = |node: usize| {
        let definition = decided.to_string();
        let process = Process { definition, ..process(node, 1, labelled, 1) };
        judge(vec![accepted(node, 1, labelled), Fact::Spawned(process)])
    };
    assert_eq!(on_node(1), Ok(()));
    assert!(on_node(0).is_err_and(|broken| broken.contains("lacks the labels")));
}

#[test]
fn jobs_that_allow_it_may_have_two_runs_at_a_time() {
    let mut invariant = NoTwoProcesses::new(2, Successors::Named(&["a"]));
    let facts =
        [begun(1, RUN), begun(2, NEXT), Fact::Spawned(process(0, 1, RUN, 1)), Fact::Spawned(process(1, 2, NEXT, 1))];
    assert_eq!(facts.iter().try_for_each(|fact| invariant.observe(Uptime::ZERO, fact)), Ok(()));
}

#[test]
fn an_untrue_answer_is_seen() {
    let answered = |answer| Fact::Answered { node: 0, nonce: "0-1-1".into(), answer };
    assert_broken(vec![answered(Commit::Accepted)], "is written, and it is not");
    assert_broken(vec![mark(1, "0-1-1"), answered(Commit::Fenced)], "which is written");
    assert_broken(vec![answered(Commit::Superseded), mark(1, "0-1-1")], "after its answer");
    assert_broken(vec![mark(1, "0-1-1"), mark(2, "1-1-1"), answered(Commit::Fenced)], "which is written");
}

fn ended(zxid: i64, run: &str, outcome: Outcome) -> Fact {
    let mut record: RunRecord = serde_json::from_slice(&record(1, "n1")).unwrap();
    record.scheduled_at = RunId::parse(run).unwrap().scheduled_at();
    let end = RunEnd::unseen(&record, outcome, None, record.begun_at);
    let data = serde_json::to_vec(&HistoryRecord::Run(end)).unwrap();
    committed(zxid, vec![create(&format!("/cronkeeper/history/a/{run}"), data)], &[])
}

fn hooked(hook: &str, run: &str) -> Fact {
    Fact::Hooked { node: 0, hook: hook.into(), job: "a".into(), run: run.into() }
}

#[test]
fn a_hook_before_its_end_is_written_or_a_second_time_is_seen() {
    let ended = || ended(1, RUN, Outcome::Failure);
    assert_eq!(verdict(vec![ended(), hooked("on_failure", RUN)]), Ok(()));
    assert_broken(vec![hooked("on_failure", RUN), ended()], "before its end is written");
    assert_broken(vec![ended(), hooked("on_failure", RUN), hooked("on_failure", RUN)], "a second time");
}

#[test]
fn a_hook_of_a_start_without_a_process_or_a_second_time_is_seen() {
    let spawned = |attempt| Fact::Spawned(process(0, 1, RUN, attempt));
    let begun = || vec![begun(1, RUN), spawned(1)];
    let after = |more: Vec<Fact>| begun().into_iter().chain(more).collect();
    assert_eq!(verdict(after(vec![hooked("on_start", RUN)])), Ok(()));
    assert_broken(after(vec![hooked("on_start", RUN), hooked("on_start", RUN)]), "a second time");
    assert_broken(vec![hooked("on_start", RUN)], "which has had no process");
}

#[test]
fn a_hook_of_another_outcome_is_seen() {
    let (failed, succeeded) = (|| ended(1, RUN, Outcome::Abandoned), || ended(2, NEXT, Outcome::Success));
    let both = vec![hooked("on_success", NEXT), hooked("on_recovery", NEXT)];
    assert_eq!(verdict([failed(), succeeded()].into_iter().chain(both).collect()), Ok(()));
    assert_broken(vec![succeeded(), hooked("on_failure", NEXT)], "which ended Success");
    assert_broken(vec![failed(), hooked("on_success", RUN)], "which ended Abandoned");
    assert_broken(vec![succeeded(), hooked("on_recovery", NEXT)], "after [Success]");
    assert_broken(vec![hooked("on_missed", RUN)], "which is not missed");
}

#[test]
fn an_alarm_that_is_told_again_while_it_stands_is_seen() {
    let written = |zxid, stands: bool| {
        let mut alarms = StandingAlarms::default();
        let raised = RaisedAlarm { raised_at: Timestamp::UNIX_EPOCH, since: Timestamp::UNIX_EPOCH, run: None };
        alarms.set(Alarm::Stale, stands.then_some(raised));
        let last_scheduled = Timestamp::UNIX_EPOCH;
        let nonce = Nonce(format!("n{zxid}"));
        let record = JobRecord { alarms, ..JobRecord::new(last_scheduled, nonce) };
        committed(zxid, vec![set("/cronkeeper/jobs/a", serde_json::to_vec(&record).unwrap())], &[])
    };
    let reported = || hooked("on_stale", "");
    assert_eq!(verdict(vec![written(1, true), reported(), written(2, false), written(3, true), reported()]), Ok(()));
    assert_broken(vec![reported(), written(1, true)], "more often than it was raised");
    assert_broken(vec![written(1, true), reported(), written(2, true), reported()], "more often than it was raised");
}

fn request(zxid: i64, number: &str, uuid: u128) -> Fact {
    let record =
        TriggerRecord::new(Uuid::from_u128(uuid), JobName::parse("a").unwrap(), "alice".into(), Timestamp::UNIX_EPOCH);
    let (folder, name) = ("/cronkeeper/triggers", format!("/cronkeeper/triggers/{number}"));
    let ops = vec![create("/cronkeeper/triggers/", serde_json::to_vec(&record).unwrap()), set(folder, vec![])];
    committed(zxid, ops, &[&name, folder])
}

fn taken_away(number: &str) -> Op {
    Op::Delete { path: format!("/cronkeeper/triggers/{number}"), version: -1 }
}

fn manual(seq: u64, uuid: u128) -> Op {
    let mut run: RunRecord = serde_json::from_slice(&record(1, &format!("n{seq}"))).unwrap();
    run.trigger =
        Some(Trigger { seq: TriggerSeq(seq), uuid: Uuid::from_u128(uuid), by: "alice".into(), scheduled_at: None });
    create(&path(&run.id().to_string()), serde_json::to_vec(&run).unwrap())
}

#[test]
fn an_attempt_that_finds_other_parameters_than_its_trigger_set_is_seen() {
    let variables = BTreeMap::from([(PARAMETER.to_owned(), "x".to_owned())]);
    let parameters = Parameters::check("a", &[PARAMETER.to_owned()].into(), variables).unwrap();
    let job = JobName::parse("a").unwrap();
    let record = TriggerRecord::new(Uuid::from_u128(1), job.clone(), "alice".into(), Timestamp::UNIX_EPOCH);
    let data = serde_json::to_vec(&record.with(parameters, None)).unwrap();
    let made =
        || committed(1, vec![create("/cronkeeper/triggers/", data.clone())], &["/cronkeeper/triggers/0000000007"]);
    let run = RunId::manual(job, Timestamp::UNIX_EPOCH, TriggerSeq(7)).to_string();
    let spawned = |parameter: Option<&str>, scheduled_at: &str| {
        let (parameter, scheduled_at) = (parameter.map(str::to_owned), scheduled_at.to_owned());
        Fact::Spawned(Process { parameter, scheduled_at, ..process(0, 1, &run, 2) })
    };
    let verdict = |spawned: Fact| {
        let mut invariant = ParametersStayWithTheRun::default();
        [made(), spawned].iter().try_for_each(|fact| invariant.observe(Uptime::from_nanos(1), fact))
    };
    assert_eq!(verdict(spawned(Some("x"), "1970-01-01T00:00:00Z")), Ok(()));
    for (parameter, time) in [(None, "1970-01-01T00:00:00Z"), (Some("x"), "1970-01-02T00:00:00Z")] {
        assert!(verdict(spawned(parameter, time)).unwrap_err().contains("does not find"));
    }
}

#[test]
fn a_request_that_is_run_twice_is_seen() {
    let done = |zxid, seq| committed(zxid, vec![manual(seq, 1), taken_away(&format!("{seq:010}"))], &[]);
    let requests = || vec![request(1, "0000000001", 1), request(2, "0000000002", 1), done(3, 1)];
    let dropped = committed(4, vec![taken_away("0000000002")], &[]);
    assert_eq!(verdict(requests().into_iter().chain([dropped]).collect()), Ok(()));
    assert_broken(requests().into_iter().chain([done(4, 2)]).collect(), "and now to");
}

#[test]
fn a_request_that_vanishes_is_seen() {
    assert_broken(vec![request(1, "0000000001", 1), committed(2, vec![taken_away("0000000001")], &[])], "vanished");
}

#[test]
fn a_name_that_comes_again_is_another_candidate() {
    let made = |zxid, name: &str| committed(zxid, vec![create(name, vec![])], &[name]);
    let gone = |zxid, name: &str| committed(zxid, vec![Op::Delete { path: name.into(), version: -1 }], &[name]);
    let opening = |zxid, name: &str| {
        let check = Op::Check { path: name.into(), version: 0 };
        committed(zxid, vec![check, set("/leader", vec![])], &["/leader"])
    };
    let (a, b) = ("/leader/a-0000000001", "/leader/b-0000000002");
    let two_terms = || vec![made(1, a), opening(2, a), made(3, b), gone(4, a), opening(5, b), gone(6, b)];
    assert_eq!(verdict(two_terms().into_iter().chain([made(7, a), opening(8, a)]).collect()), Ok(()));
    assert_broken(vec![made(1, a), made(3, b), opening(5, b), opening(8, a)], "after the term 3 opened");
}

#[test]
fn a_begin_of_a_paused_job_is_seen() {
    let pause = || committed(1, vec![create("/cronkeeper/control/a", vec![]), set("/cronkeeper/control", vec![])], &[]);
    let resume = committed(2, vec![Op::Delete { path: "/cronkeeper/control/a".into(), version: 0 }], &[]);
    assert_eq!(verdict(vec![pause(), committed(3, vec![manual(1, 1)], &[])]), Ok(()), "what is triggered runs");
    assert_eq!(verdict(vec![pause(), resume, begun(3, RUN)]), Ok(()));
    assert_broken(vec![pause(), begun(3, RUN)], "while its job is paused");
}

/// The record of a run of the chain.
fn chain_run(job: &str) -> RunRecord {
    let mut run: RunRecord = serde_json::from_slice(&record(1, &format!("n-{job}"))).unwrap();
    run.job = JobName::parse(job).unwrap();
    run
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// The end of `job`, with or without a link for the job after it.
fn chain_end(zxid: i64, job: &str, behind: &str, has_link: bool) -> Fact {
    let mut run = chain_run(job);
    run.dependents = vec![JobName::parse(behind).unwrap()];
    let end = RunEnd::unseen(&run, Outcome::Success, None, run.begun_at);
    let link = Link::of_end(&end).next().unwrap();
    let (name, id) = (format!("/cronkeeper/triggers/{zxid:010}"), run.id().to_string());
    let mut ops = vec![
        Op::Delete { path: path(&id), version: 0 },
        create(&format!("/cronkeeper/history/{job}/{id}"), json(&HistoryRecord::Run(end))),
    ];
    ops.extend(has_link.then(|| create("/cronkeeper/triggers/", json(&link))));
    committed(zxid, ops, &[&name])
}

fn chain_begin(zxid: i64, job: &str, taken: &[i64]) -> Fact {
    let run = chain_run(job);
    let taken = taken.iter().map(|number| taken_away(&format!("{number:010}")));
    let ops = std::iter::once(create(&path(&run.id().to_string()), json(&run))).chain(taken).collect();
    committed(zxid, ops, &[])
}

#[test]
fn a_chain_that_does_not_go_on_or_runs_ahead_is_seen() {
    let linked = || chain_end(1, "chain-a", "chain-b", true);
    assert_eq!(verdict(vec![linked(), chain_begin(2, "chain-b", &[1])]), Ok(()));
    assert_broken(vec![chain_end(1, "chain-a", "chain-b", false)], "has no link of it");
    assert_broken(vec![chain_begin(1, "chain-b", &[])], "before all that it runs after had ended");
    assert_broken(vec![linked(), committed(2, vec![taken_away("0000000001")], &[])], "vanished");
    let only_one = vec![chain_end(1, "chain-b", "chain-d", true), chain_begin(2, "chain-d", &[1])];
    assert_eq!(verdict(only_one), Ok(()), "as the edited jobs have it");
    let other_one = vec![chain_end(1, "chain-c", "chain-d", true), chain_begin(2, "chain-d", &[1])];
    assert_broken(other_one, "before all that it runs after had ended");
}

#[test]
fn a_link_that_nobody_takes_is_seen_at_the_end() {
    let mut invariants = besides_lasts(2, Duration::from_secs(4), Successors::Never, false);
    let late = Uptime::from_nanos(3_600_000_000_000);
    for (at, fact) in
        [(Uptime::from_nanos(1), chain_end(1, "chain-a", "chain-b", true)), (late, Fact::Died { node: 0 })]
    {
        invariants.iter_mut().try_for_each(|one| one.observe(at, &fact)).unwrap();
    }
    let broken = invariants.iter_mut().try_for_each(|one| one.conclude()).expect_err("it waits");
    assert!(broken.contains("waits since"), "{broken}");
}

/// The end of a run's first attempt, written by a node under this session.
fn over(session: i64, outcome: Outcome) -> Fact {
    let run: RunRecord = serde_json::from_slice(&record(1, "n1")).unwrap();
    let end = RunEnd::unseen(&run, outcome, None, run.begun_at);
    let ops = vec![
        Op::Delete { path: path(RUN), version: 0 },
        create(&format!("/cronkeeper/history/a/{RUN}"), json(&HistoryRecord::Run(end))),
    ];
    let txn = Txn { zxid: 9, time_ms: DUE_MS, session, change: Change::Ops(ops) };
    Fact::Committed { txn: Arc::new(txn), touched: Vec::new() }
}

#[test]
fn an_attempt_that_ends_without_a_process_is_seen() {
    let connected = |node, session| Fact::Connected { node, session, id: session_id(session) };
    let after = |facts: Vec<Fact>| [connected(0, 1), connected(1, 2), begun(1, RUN)].into_iter().chain(facts).collect();
    let ended = |session| over(session, Outcome::Interrupted);
    assert_broken(after(vec![ended(1)]), "no process was ever started");
    assert_broken(after(vec![ended(2)]), "no process was ever started");
    assert_eq!(verdict(after(vec![Fact::Spawned(process(0, 1, RUN, 1)), ended(1)])), Ok(()));
    assert_eq!(verdict(after(vec![over(1, Outcome::Killed)])), Ok(()), "somebody wanted it");
    let died = || Fact::Died { node: 0 };
    assert_eq!(verdict(after(vec![Fact::HostDied { node: 0 }, died(), ended(1)])), Ok(()), "it may have been started");
    assert_eq!(verdict(after(vec![died(), ended(2)])), Ok(()), "another cannot know");
    assert_broken(after(vec![died(), ended(1)]), "no process was ever started");
}

/// The outcome is in the list of past attempts in the run's record.
#[test]
fn an_attempt_that_counts_as_interrupted_without_a_process_is_seen() {
    let mut run: RunRecord = serde_json::from_slice(&record(2, "n2")).unwrap();
    let first = RunRecord { attempt: 1, ..run.clone() };
    run.past.note(&RunEnd::unseen(&first, Outcome::Interrupted, None, run.begun_at));
    let again = || committed(2, vec![set(&path(RUN), json(&run))], &[]);
    let connected = || Fact::Connected { node: 0, session: 1, id: session_id(1) };
    assert_broken(vec![connected(), begun(1, RUN), again()], "no process was ever started");
    assert_eq!(verdict(vec![connected(), begun(1, RUN), Fact::Spawned(process(0, 1, RUN, 1)), again()]), Ok(()));
}

/// A skip of a job that is due every four seconds.
fn keep(reason: SkipReason, after: i64) -> Skip {
    let due: Timestamp = "2026-11-20T00:00:00Z".parse().unwrap();
    let job = JobName::parse("keep").unwrap();
    let (token, node) = (FencingToken(1), NodeName::new("node-0"));
    let decided_at = due + jiff::SignedDuration::from_secs(after);
    Skip {
        v: 1,
        job,
        reason,
        first: due,
        last: due,
        count: 1,
        trigger: None,
        on: None,
        detail: None,
        token,
        node,
        decided_at,
    }
}

fn skipped(skip: Skip) -> Op {
    create(&format!("/cronkeeper/history/keep/{}", skip.id()), json(&HistoryRecord::Skip(skip)))
}

#[test]
fn a_reason_that_is_not_true_is_seen() {
    let skipped = |reason, after| committed(2, vec![skipped(keep(reason, after))], &[]);
    assert_eq!(verdict(vec![skipped(SkipReason::Missed, 5)]), Ok(()));
    assert_broken(vec![skipped(SkipReason::Missed, 3)], "not why it was skipped");
    assert_broken(vec![skipped(SkipReason::Overlap, 0)], "not why it was skipped");
    assert_broken(vec![skipped(SkipReason::Paused, 0)], "not why it was skipped");
    let pause = committed(1, vec![create("/cronkeeper/control/keep", vec![])], &[]);
    assert_eq!(verdict(vec![pause, skipped(SkipReason::Paused, 0)]), Ok(()));
}

#[test]
fn a_run_that_is_missed_before_its_window_is_over_is_seen() {
    let run = keep(SkipReason::Missed, 0).id().to_string();
    let begun = || committed(1, vec![create(&path(&run), record(1, "n1"))], &[]);
    let missed = |skip| {
        let ops = vec![Op::Delete { path: path(&run), version: 0 }, skipped(skip)];
        vec![begun(), committed(2, ops, &[])]
    };
    assert_eq!(verdict(missed(keep(SkipReason::Missed, 5))), Ok(()));
    assert_broken(missed(keep(SkipReason::Missed, 3)), "still in its window");
    assert_broken(missed(keep(SkipReason::Overlap, 5)), "and is skipped for overlap");
}

fn conclusion(facts: Vec<(u64, Fact)>) -> Result<(), String> {
    let mut invariants = besides_lasts(2, Duration::from_secs(4), Successors::Never, false);
    for (second, fact) in facts {
        let at = Uptime::ZERO + Duration::from_secs(second);
        invariants.iter_mut().try_for_each(|one| one.observe(at, &fact)).unwrap();
    }
    invariants.iter_mut().try_for_each(|one| one.conclude())
}

#[test]
fn what_is_due_and_not_decided_on_is_seen_in_the_end() {
    let job = &sets()[0].jobs[&JobName::parse("keep").unwrap()];
    let last_scheduled = "2026-11-20T00:00:00Z".parse().unwrap();
    let schedule = Some(job.schedule_digest(last_scheduled));
    let record = JobRecord { schedule, ..JobRecord::new(last_scheduled, Nonce("n1".into())) };
    let marked = committed(1, vec![set("/cronkeeper/jobs/keep", json(&record))], &[]);
    let later = |seconds: i64| committed_at(DUE_MS + seconds * 1000, 2, vec![], &[]);
    assert_eq!(conclusion(vec![(0, marked.clone()), (9, later(9))]), Ok(()));
    let broken = conclusion(vec![(0, marked), (11, later(11))]).expect_err("it was due at the fourth second");
    assert!(broken.contains("nobody has decided on `keep`"), "{broken}");
}

#[test]
fn a_run_that_is_never_started_is_seen_in_the_end() {
    let later = || committed_at(DUE_MS + 10_000, 2, vec![], &[]);
    let broken = conclusion(vec![(0, begun(1, RUN)), (10, later())]).expect_err("nothing was started");
    assert!(broken.contains("without a process"), "{broken}");
    let started = Fact::Spawned(process(0, 1, RUN, 1));
    assert_eq!(conclusion(vec![(0, begun(1, RUN)), (1, started), (10, later())]), Ok(()));
}

#[test]
fn a_leader_whose_loop_stands_still_is_seen() {
    let until = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
    let leads = |seconds| Fact::Elected { node: 0, token: FencingToken(1), lease_until: until(seconds) };
    let lease = |seconds| Fact::Lease { node: 0, until: until(seconds) };
    let stalled = || Fact::LoopStalled { node: 0 };
    assert_eq!(verdict(vec![leads(2), stalled(), lease(5)]), Ok(()));
    assert_broken(vec![leads(2), stalled(), lease(6)], "its loop stands still");
    assert_broken(vec![stalled(), leads(6)], "its loop stands still");
    assert_eq!(verdict(vec![leads(2), stalled(), Fact::LoopResumed { node: 0 }, lease(6)]), Ok(()));
}

#[test]
fn a_misordered_event_is_found() {
    assert_broken(vec![Fact::Misordered { node: 1, rule: "tokens grow" }], "node-1: the order of events is broken");
}

/// A record of a run on every node: to be shared out to these, or the share of one that is placed on another.
fn of_every_node(among: Option<&[usize]>, share: Option<(usize, usize)>) -> RunRecord {
    let run: RunRecord = serde_json::from_slice(&record(u32::from(share.is_some()), "n1")).unwrap();
    let (on, owner) = (share.map(|(on, _)| node_name(on)), share.map_or(0, |(_, owner)| owner));
    RunRecord {
        job: JobName::parse("every-skip").unwrap(),
        state: if share.is_some() { RunState::Placed } else { RunState::Queued },
        owner: Owner { node: node_name(owner), ..run.owner.clone() },
        share_among: among.map(|among| Box::new(among.iter().map(|&node| node_name(node)).collect())),
        on,
        ..run
    }
}

#[test]
fn shares_that_are_missing_or_too_many_or_not_their_nodes_are_seen() {
    let of_run = |run: &RunRecord| path(&run.id().to_string());
    let whole = of_every_node(Some(&[0, 1]), None);
    let places = [0, 1, 2].map(|node| {
        let place = Place::default();
        create(&format!("/cronkeeper/places/{}", node_name(node)), json(&place))
    });
    let begun =
        || vec![committed(1, places.to_vec(), &[]), committed(2, vec![create(&of_run(&whole), json(&whole))], &[])];
    let share = |on, owner| of_every_node(None, Some((on, owner)));
    let made = |share: &RunRecord| create(&of_run(share), json(share));
    let shared = |version, shares: &[RunRecord]| {
        let over = Op::Delete { path: of_run(&whole), version };
        committed(3, std::iter::once(over).chain(shares.iter().map(made)).collect(), &[])
    };
    let verdict = |facts: Vec<Fact>| {
        let mut invariant = EveryNodeHasItsShare::default();
        let begun = begun().into_iter().chain(facts);
        begun.into_iter().try_for_each(|fact| invariant.observe(Uptime::ZERO, &fact))?;
        invariant.observe(Uptime::ZERO + Duration::from_secs(7), &Fact::Died { node: 0 })?;
        invariant.conclude()
    };
    let assert_broken = |facts: Vec<Fact>, by: &str| {
        let broken = verdict(facts).expect_err("it is broken");
        assert!(broken.contains(by), "{broken}");
    };
    let both = || [share(0, 0), share(1, 1)];
    assert_eq!(verdict(vec![shared(0, &both())]), Ok(()));
    assert_broken(vec![], "is not shared out");
    assert_broken(vec![shared(0, &[share(0, 0)])], "is not for node-1 any more");
    assert_broken(vec![shared(1, &both())], "is not changed at its version 0");
    assert_broken(vec![committed(3, vec![made(&share(0, 0))], &[])], "is not changed at its version 0");
    assert_broken(
        vec![shared(0, &[share(0, 0), share(1, 1), share(2, 2)])],
        "and `every-skip.20261120T000000Z` was for",
    );
    assert_broken(vec![shared(0, &both()), shared(0, &both())], "is not to be shared out");
    assert_broken(vec![shared(0, &[share(0, 0), share(1, 0)])], "is node-1's share, and node-0 has it");
    let started = |node| Fact::Spawned(process(node, 1, &share(1, 1).id().to_string(), 1));
    assert_eq!(verdict(vec![shared(0, &both()), started(1)]), Ok(()));
    assert_broken(vec![shared(0, &both()), started(0)], "is started on node-0");
}

#[test]
fn a_node_whose_loop_stands_still_writes_nothing_that_it_knows_even_if_it_is_connected() {
    let stalled = Fact::LoopStalled { node: 0 };
    let back = Fact::InTouch { node: 0, is: true };
    for (first, is_broken) in [(Fact::InTouch { node: 0, is: false }, true), (stalled, false)] {
        let facts = [Fact::Spawned(process(0, 1, RUN, 1)), first, back.clone(), Fact::Spawned(process(1, 2, RUN, 1))];
        let mut invariant = NothingKnownIsLost::default();
        let mut seconds = (0..).map(|second| Uptime::ZERO + Duration::from_secs(2 * second));
        let checked = facts.iter().try_for_each(|fact| invariant.observe(seconds.next().unwrap(), fact));
        assert_eq!(checked.is_err(), is_broken, "{checked:?}");
    }
}
