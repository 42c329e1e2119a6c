//! More hooks than a node starts at once: which ones come first, and which are dropped.

use super::*;
use crate::engine::hooks::{LARGEST, LONGEST, ROUTINE_AT_ONCE};
use crate::run::Parameters;

/// A job that is due once, with these hooks.
fn due(name: &str, hooks: &[Hook]) -> Job {
    let hooks = hooks.iter().map(|&hook| (hook, CommandLine::Shell(hook.as_str().into()))).collect();
    Job { hooks, ..job(name, "1 0 10 * * *") }
}

/// So many of them, in the order of their names.
fn many(count: usize, hooks: &[Hook]) -> Vec<Job> {
    (0..count).map(|number| due(&format!("j{number:05}"), hooks)).collect()
}

/// A leader with the started runs of these jobs, and their trees.
fn all_started(jobs: Vec<Job>) -> (Fixture, Vec<TreeId>) {
    let mut fixture = Fixture::settled("10:00:00", jobs);
    fixture.pass(1);
    let (_, tree_ids) = fixture.start_all();
    (fixture, tree_ids)
}

/// The names of the started hooks.
fn names(calls: &[HookStart]) -> Vec<&'static str> {
    calls.iter().map(|start| start.call.name()).collect()
}

#[test]
fn starts_and_successes_have_half_of_the_places_and_a_failure_does_not_wait_behind_them() {
    let mut jobs = many(40, &[Hook::Start, Hook::Success]);
    jobs.push(due("z", &[Hook::Failure]));
    let (mut fixture, tree_ids) = all_started(jobs);
    let mut open = fixture.calls();
    assert_eq!(names(&open), ["on_start"; ROUTINE_AT_ONCE]);
    fixture.ended(tree_ids[40], Exit::Code(1), None);
    fixture.accept_all();
    assert_eq!(names(&fixture.calls()), ["on_failure"]);
    tree_ids[..40].iter().for_each(|&tree_id| fixture.ended(tree_id, Exit::Code(0), None));
    fixture.accept_all();
    assert!(fixture.calls().is_empty());
    let mut seen = Vec::new();
    while let Some(start) = open.pop() {
        fixture.ended(start.tree_id, Exit::Code(0), None);
        seen.push(in_words(&start));
        open.extend(fixture.calls());
        assert!(open.len() <= ROUTINE_AT_ONCE);
    }
    assert_eq!(seen.len(), 80);
    let place = |words: &str| seen.iter().position(|one| one == words).unwrap();
    for number in 0..40 {
        let run = format!("j{number:05}.20261120T100001Z");
        assert!(place(&format!("on_start {run} attempt 1")) < place(&format!("on_success {run} success")));
    }
}

#[test]
fn a_failure_overtakes_the_start_of_its_run_which_is_then_not_told() {
    let (mut fixture, tree_ids) = all_started(many(20, &[Hook::Start, Hook::Failure]));
    let open = fixture.calls();
    fixture.ended(tree_ids[19], Exit::Code(1), None);
    fixture.accept_all();
    assert_eq!(fixture.finished(), [("on_start", HookOutcome::Dropped)]);
    assert_eq!(fixture.hooks(), ["on_failure j00019.20261120T100001Z failure"]);
    fixture.ended(tree_ids[0], Exit::Code(1), None);
    assert!(fixture.hooks_of_all().is_empty(), "its start is being reported");
    fixture.ended(open[0].tree_id, Exit::Code(0), None);
    let next = fixture.hooks();
    assert_eq!(next, ["on_failure j00000.20261120T100001Z failure", "on_start j00008.20261120T100001Z attempt 1"]);
}

/// The names of the hooks that were dropped.
fn dropped(fixture: &Fixture) -> Vec<&'static str> {
    fixture.finished().into_iter().filter(|(_, how)| *how == HookOutcome::Dropped).map(|(hook, _)| hook).collect()
}

#[test]
fn a_full_queue_drops_starts_and_successes_before_anything_else() {
    let mut jobs = many(LONGEST + ROUTINE_AT_ONCE, &[Hook::Start]);
    jobs.push(due("y", &[Hook::Success]));
    jobs.extend(["z1", "z2"].map(|name| due(name, &[Hook::Failure])));
    let (mut fixture, tree_ids) = all_started(jobs);
    assert_eq!(fixture.calls().len(), ROUTINE_AT_ONCE);
    fixture.ended(tree_ids[LONGEST + ROUTINE_AT_ONCE], Exit::Code(0), None);
    fixture.accept_all();
    assert_eq!((dropped(&fixture), fixture.hooks()), (vec!["on_success"], vec![]));
    tree_ids[tree_ids.len() - 2..].iter().for_each(|&tree_id| fixture.ended(tree_id, Exit::Code(1), None));
    fixture.accept_all();
    assert_eq!(dropped(&fixture), ["on_start"], "the first needed room, and had started before the second");
    assert_eq!(names(&fixture.calls()), ["on_failure"; 2]);
}

#[test]
fn what_waiting_hooks_hold_is_bounded_in_bytes_too() {
    let parameters = (0..7).map(|number| (format!("P{number}"), "x".repeat(1000)));
    let parameters: std::collections::BTreeMap<String, String> = parameters.collect();
    let allowed = parameters.keys().cloned().collect();
    let parameters = Parameters::check("a", &allowed, parameters).unwrap();
    let minutely = Job { misfire: Misfire::Skip, ..minutely() };
    let count = LARGEST / 7000 + 1000;
    let running: Vec<_> = (0..count)
        .map(|number| {
            let job = Job { name: name(&format!("j{number:05}")), ..minutely.clone() };
            let mut running = running(&job, at("10:00:00"), OwnerState::Gone);
            running.record = running.record.with(parameters.clone());
            (job, running)
        })
        .collect();
    let (jobs, running): (Vec<Job>, Vec<_>) = running.into_iter().unzip();
    let entries = jobs.iter().map(|job| entry(job, at("10:00:00"), 1)).collect();
    let snapshot = Snapshot { jobs: entries, running, ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:30", set(jobs), snapshot);
    fixture.accept_all();
    fixture.pass(30);
    fixture.accept_all();
    let ended = fixture.reports().iter().filter(|report| matches!(report, Report::Recorded(_))).count();
    assert_eq!(ended, count);
    let waiting = ended - AT_ONCE - dropped(&fixture).len();
    assert!(waiting * 7000 < LARGEST && waiting * 9000 > LARGEST, "{waiting}");
}
