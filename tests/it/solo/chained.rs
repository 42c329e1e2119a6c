//! Chained jobs (`after`), run by one leader and by the next.

use crate::support::LONG;
use crate::support::witness::Witness;

use super::fixture::{
    Gate, await_end, await_record, await_run, await_start, cli, cli_text, following, leading, node, of, status,
};

/// The id of another job's run in the same chain.
fn behind(run: &str, job: &str) -> String {
    format!("{job}.{}", run.split_once('.').unwrap().1)
}

#[test]
fn a_chain_runs_in_its_order_and_what_wants_success_is_skipped_after_a_failure() {
    let witness = Witness::new();
    let job = |name: &str, due: &str, command: &str| {
        format!("  {name}: {{{due}, command: {}}}\n", witness.command(&["sh", "-c", command]))
    };
    let jobs = [
        job("extract", "schedule: '@every 3s'", "exit 0"),
        job("check", "after: {extract: success}", "exit 3"),
        job("load", "after: {extract: success, check: success}", "exit 0"),
        job("clean", "after: {load: always, check: always}", "exit 0"),
    ];
    let spec = node("only").jobs(&format!("jobs:\n{}", jobs.concat()));
    let a = leading(&spec);
    let first = await_start(&a, 0, "extract");
    await_run(&spec, &behind(&first, "clean"));
    assert_eq!(await_run(&spec, &behind(&first, "check"))["outcome"], "failure");
    let skipped = await_record(&spec, "load", |record| record["kind"] == "skip");
    assert_eq!(skipped["reason"], "upstream");
    let skipped = a.await_where("run.skipped", LONG, of("load"));
    assert_eq!((skipped.text("run"), skipped.text("reason")), (behind(&first, "load").as_str(), "upstream"));
    let place = |job: &str| {
        let run = behind(&first, job);
        witness.entries().iter().position(|entry| entry.run == run).unwrap()
    };
    assert!(place("extract") < place("check") && place("check") < place("clean"));
    witness.assert_fine(&[]);
}

#[test]
fn a_run_that_ends_on_a_former_leader_sets_off_the_next_on_the_present_one() {
    let (gate, witness) = (Gate::new(), Witness::new());
    let (long, short) = (witness.command(&["sh", "-c", &gate.command()]), witness.command(&["true"]));
    let jobs = format!(
        "jobs:\n  long: {{schedule: '* * * * * *', command: {long}}}\n  next: {{after: {{long: success}}, command: {short}}}\n"
    );
    let first = node("first").option("--drain-timeout", "2m").jobs(&jobs);
    let a = leading(&first);
    let second = node("second").beside(&first);
    let b = following(&second);
    let run = await_start(&a, 0, "long");
    a.signal(rustix::process::Signal::TERM);
    b.await_event("takeover.done", LONG);
    gate.open();
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    assert_eq!(await_start(&b, 0, "next"), behind(&run, "next"));
    // The first one may be gone at any moment now.
    assert_eq!(await_run(&second, &behind(&run, "next"))["outcome"], "success");
    a.wait_exit(LONG);
    witness.assert_fine(&[]);
}

#[test]
fn a_triggered_job_sets_off_those_behind_it_and_people_are_shown_what_hangs_on_what() {
    let spec = node("only").jobs(
        "jobs:\n  first: {schedule: '@yearly', command: 'true'}\n  second: {after: {first: success}, command: 'true'}\n",
    );
    let a = leading(&spec);
    // As soon as the daemon answers.
    status(&spec);
    assert!(cli_text(&spec, &["trigger", "first", "--wait"]).contains("first."));
    let run = await_start(&a, 0, "second");
    assert!(run.contains(".m"), "{run}");
    await_triggered_run(&spec, &run);
    let shown = cli_text(&spec, &["status"]);
    assert!(shown.lines().any(|line| line.starts_with("second") && line.contains("after first")), "{shown}");
    let status = status(&spec);
    let job = status["jobs"].as_array().unwrap().iter().find(|job| job["name"] == "second").unwrap().clone();
    assert_eq!(job["after"], serde_json::json!({"first": "success"}));
    // A trigger runs it like any other job.
    assert!(cli(&spec, &["trigger", "second", "--wait"]).status.success());
}

fn await_triggered_run(spec: &crate::support::node::Spec, run: &str) {
    await_record(spec, "second", |record| record["kind"] == "run" && record["run"] == run);
}
