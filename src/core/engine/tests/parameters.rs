//! Parameters of a triggered run: all its attempts have them, and it never runs with fewer, nor with any that the job
//! does not take.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::fixture::*;
use crate::engine::hooks::HookCall;
use crate::engine::{Command, Event, Report};
use crate::job::{CommandLine, Condition, Due, Hook, Interrupted, Job, OnLeaseEnd, Overlap, Retries};
use crate::ledger::{self, Change, OperatorRequests, OwnerState, Running, Snapshot, TriggerEntry};
use crate::process::Exit;
use crate::run::{Link, Outcome, Parameters, Reason, RunEnd, RunRecord, RunState, TriggerRecord, TriggerSeq};

/// A job that takes the parameter `DAY`.
fn load() -> Job {
    Job { parameters: ["DAY".to_owned()].into(), ..job("load", "30 2 * * *") }
}

fn day() -> Parameters {
    let variables = BTreeMap::from([("DAY".to_owned(), "2026-11-01".to_owned())]);
    Parameters::check("load", &load().parameters, variables).unwrap()
}

/// A trigger for the first of the month, with the parameter `DAY`, made at 10:00:00.
fn request() -> OperatorRequests {
    let record = TriggerRecord::new(Uuid::from_u128(1), name("load"), "alice".into(), at("10:00:00"));
    let record = record.with(day(), Some("2026-11-01T00:00:00Z".parse().unwrap()));
    let triggers = [(TriggerSeq(7), TriggerEntry { record, is_in_history: false })].into();
    OperatorRequests { triggers, ..OperatorRequests::default() }
}

impl Fixture {
    fn receive_trigger(&mut self) {
        self.handle(Event::Ledger(ledger::Event::OperatorRequests(request())));
    }

    /// The record of the attempt that is to be started.
    fn attempt(&self) -> RunRecord {
        self.starts().remove(0).run
    }
}

/// Parameters as somebody who may write to the ledger puts them into a record.
fn forged(variables: &[(&str, &str)]) -> Parameters {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    serde_json::from_value(serde_json::json!(variables)).unwrap()
}

/// A leader that finds a run of this job in the ledger, with these parameters.
fn finding(job: &Job, state: RunState, parameters: Parameters) -> Fixture {
    let mut found = running(job, at("09:59:00"), OwnerState::Dead);
    found.record = RunRecord { state, ..found.record.with(parameters) };
    let jobs = [entry(job, at("10:00:00"), 0)].into();
    Fixture::leading("10:00:00", set([job.clone()]), Snapshot { jobs, running: vec![found], ..Snapshot::default() })
}

fn ended(changes: &[Change]) -> RunEnd {
    let [Change::End { end, .. }] = changes else { panic!("{changes:?}") };
    end.clone()
}

impl Fixture {
    /// The hooks that were started, each with the parameters that it gets.
    fn called(&self) -> Vec<(HookCall, String)> {
        let starts = self.commands.iter().filter_map(|command| match command {
            Command::RunHook(start) => Some((start.call.clone(), start.call.parameters().names())),
            _ => None,
        });
        starts.collect()
    }
}

/// Triggers that are dropped with a record, by the reason.
fn dropped(changes: &[Change]) -> Vec<&'static str> {
    let reasons = changes.iter().filter_map(|change| match change {
        Change::DropTrigger { skip: Some(skip), .. } => Some(skip.reason.as_str()),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn every_attempt_has_them_and_the_log_has_their_names() {
    let retries = Retries { limit: 1, delay: std::time::Duration::from_secs(1), ..Retries::default() };
    let mut fixture = Fixture::settled("10:00:00", vec![Job { retries, ..load() }]);
    fixture.receive_trigger();
    fixture.accept_all();
    let named = |report: &Report| matches!(report, Report::Triggered { parameters, .. } if parameters == "DAY");
    assert!(fixture.reports().iter().any(named));
    let first = fixture.attempt();
    assert_eq!((first.v, &first.parameters, first.scheduled_at), (2, &day(), at("10:00:00")));
    assert_eq!(first.made_for().to_string(), "2026-11-01T00:00:00Z");
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    fixture.commands.clear();
    fixture.pass(5);
    fixture.accept_all();
    let second = fixture.attempt();
    assert_eq!((second.attempt, second.v, &second.parameters, second.made_for()), (2, 2, &day(), first.made_for()));
}

#[test]
fn a_run_that_waits_for_another_keeps_them() {
    let queue = Job { overlap: Overlap::Queue, ..load() };
    let before = running(&queue, at("09:59:00"), OwnerState::Alive);
    let jobs = [entry(&queue, at("10:00:00"), 0)].into();
    let snapshot = Snapshot { jobs, running: vec![before.clone()], requests: request(), ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:00", set([queue]), snapshot);
    fixture.accept_all();
    assert!(fixture.starts().is_empty());
    fixture.handle(Event::Ledger(ledger::Event::Run(before.record.id(), None)));
    fixture.accept_all();
    assert_eq!((fixture.attempt().attempt, fixture.attempt().parameters), (1, day()));
}

#[test]
fn the_attempt_after_the_death_of_a_node_has_them() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..load() };
    let mut first = Fixture::settled("10:00:00", vec![rerun.clone()]);
    first.receive_trigger();
    first.accept_all();
    let record = first.attempt();
    let jobs = [entry(&rerun, at("10:00:00"), 0)].into();
    let running = vec![Running { record, version: crate::run::Version(0), owner: OwnerState::Dead }];
    let snapshot = Snapshot { jobs, running, ..Snapshot::default() };
    let mut second = Fixture::leading("10:00:10", set([rerun]), snapshot);
    second.accept_all();
    assert_eq!((second.attempt().attempt, second.attempt().parameters), (2, day()));
}

#[test]
fn a_leader_whose_file_does_not_list_one_waits_a_minute_and_then_skips_the_trigger() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("load", "30 2 * * *")]);
    fixture.receive_trigger();
    assert!(fixture.accept_all().is_empty());
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(at("10:01:00")));
    fixture.pass(60);
    assert_eq!(dropped(&fixture.accept_all()), ["parameters"]);
    assert!(fixture.starts().is_empty());
}

#[test]
fn a_leader_that_gets_the_right_file_within_that_minute_runs_it() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("load", "30 2 * * *")]);
    fixture.receive_trigger();
    fixture.pass(30);
    assert!(fixture.starts().is_empty());
    fixture.handle(Event::Loaded(set([load()])));
    fixture.accept_all();
    assert_eq!(fixture.attempt().parameters, day());
}

#[test]
fn the_jobs_after_it_get_its_time_and_not_its_parameters() {
    let after = Job { due: Due::After([(name("load"), Condition::Success)].into()), ..job("report", "@daily") };
    let mut fixture = Fixture::settled("10:00:00", vec![load(), after]);
    fixture.receive_trigger();
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    let ends = fixture.accept_all();
    let end = ends.iter().find_map(|change| match change {
        Change::End { end, .. } => Some(end),
        _ => None,
    });
    let links: Vec<Link> = Link::of_end(end.unwrap()).collect();
    let time = links[0].trigger.as_ref().unwrap().scheduled_at;
    assert_eq!((links.len(), links[0].v, time.unwrap().to_string().as_str()), (1, 2, "2026-11-01T00:00:00Z"));
    assert!(!serde_json::to_string(&links).unwrap().contains("DAY"));
}

#[test]
fn an_attempt_with_parameters_that_the_job_does_not_take_fails_without_a_process_in_every_state() {
    let hooks = [(Hook::Failure, CommandLine::Shell("tell".into()))].into();
    let mut job = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, hooks, ..load() };
    job.retries.limit = 3;
    let (long, nul) = ("x".repeat(1025), "a\0b");
    let refused = [
        (forged(&[("LD_PRELOAD", "/tmp/own.so"), ("DAY", "1")]), "DAY", "does not take the parameter `LD_PRELOAD`"),
        (forged(&[("DAY", &long)]), "", "the value of parameter `DAY` has more than 1024 bytes"),
        (forged(&[("DAY", nul)]), "", "the value of parameter `DAY` has a NUL character"),
        (forged(&[(&"N".repeat(1 << 20), "1")]), "", "NNNN"),
    ];
    for state in [RunState::Running, RunState::Retrying, RunState::Unstarted, RunState::Queued] {
        for (parameters, kept, why) in &refused {
            let mut fixture = finding(&job, state, parameters.clone());
            let end = ended(&fixture.accept_all());
            assert!(fixture.starts().is_empty());
            assert_eq!((end.outcome, end.reason, end.run.attempt), (Outcome::Failure, Some(Reason::Parameters), 2));
            assert_eq!((end.run.parameters.names().as_str(), end.run.owner.node.as_str()), (*kept, "host-a"));
            let detail = end.detail.clone().unwrap();
            assert!(detail.contains(why) && detail.chars().count() <= 301, "{state:?}: {detail}");
            let is_end = |report: &Report| matches!(report, Report::Finished(finished) if **finished == end);
            assert!(fixture.reports().iter().any(is_end));
            let [(hook, names)] = &fixture.called()[..] else { panic!("{:?}", fixture.called()) };
            assert_eq!((hook.name(), names.as_str()), ("on_failure", *kept));
        }
    }
}

#[test]
fn the_hook_of_a_run_that_is_ended_gets_only_the_parameters_that_the_job_takes() {
    let hooks = [(Hook::Failure, CommandLine::Shell("tell".into()))].into();
    let job = Job { on_lease_end: OnLeaseEnd::Kill, hooks, ..load() };
    let mut fixture = finding(&job, RunState::Running, forged(&[("PATH", "/tmp"), ("DAY", "1")]));
    assert_eq!(ended(&fixture.accept_all()).reason, Some(Reason::NodeDied));
    let hooks = fixture.called();
    assert_eq!(hooks.iter().map(|(_, names)| names.as_str()).collect::<Vec<_>>(), ["DAY"]);
}

#[test]
fn a_run_whose_job_no_longer_takes_them_is_not_tried_again() {
    let retries = Retries { limit: 1, delay: std::time::Duration::from_secs(1), ..Retries::default() };
    let retried = Job { retries, ..load() };
    let mut fixture = Fixture::settled("10:00:00", vec![retried.clone()]);
    fixture.receive_trigger();
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    fixture.handle(Event::Loaded(set([Job { parameters: Default::default(), ..retried }])));
    fixture.commands.clear();
    fixture.pass(5);
    let end = ended(&fixture.accept_all());
    assert_eq!((end.reason, end.run.attempt, end.run.past.attempts.len()), (Some(Reason::Parameters), 2, 1));
    assert!(fixture.starts().is_empty());
}
