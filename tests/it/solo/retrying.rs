//! Retries of failed jobs, by the leader at the time of the retry.

use crate::support::LONG;
use crate::support::witness::Witness;

use super::fixture::{await_run, await_start, cli_text, following, leading, node, of};

#[test]
fn a_failing_run_is_tried_again_and_its_history_names_all_attempts() {
    let command = r#"echo "try $CRONKEEPER_ATTEMPT"; [ $CRONKEEPER_ATTEMPT = 3 ] || exit $((10 + CRONKEEPER_ATTEMPT))"#;
    let retries = "{limit: 5, delay: 200ms, backoff: 1}";
    let spec = node("only")
        .jobs(&format!("jobs: {{flaky: {{schedule: '* * * * * *', command: {command:?}, retries: {retries}}}}}"));
    let a = leading(&spec);
    let run = await_start(&a, 0, "flaky");
    let record = await_run(&spec, &run);
    assert_eq!((&record["outcome"], &record["attempt"]), (&"success".into(), &3.into()), "{record}");
    let codes: Vec<_> = record["earlier_attempts"].as_array().unwrap().iter().map(|past| &past["exit_code"]).collect();
    assert_eq!(codes, [11, 12]);
    let retried = a.events().named("run.retrying");
    let first = retried.iter().find(|event| event.text("run") == run).unwrap();
    assert_eq!((first.number("attempt"), first.number("exit_code")), (Some(1), Some(11)));
    assert!((180..=220).contains(&first.number("delay_ms").unwrap()), "{first:?}");
    let ends = a.events().named("run.finished");
    assert_eq!(ends.iter().filter(|event| event.text("run") == run).count(), 1, "a run ends once");
    assert!(cli_text(&spec, &["history", "flaky", "--output"]).contains("(attempt 2 on "));
}

#[test]
fn a_retry_that_waits_when_its_leader_is_killed_is_made_by_the_next() {
    let witness = Witness::new();
    let command = witness.command(&["sh", "-c", "[ $CRONKEEPER_ATTEMPT -gt 1 ]"]);
    let retries = "{limit: 1, delay: 3s}";
    let first = node("first")
        .jobs(&format!("jobs: {{flaky: {{schedule: '* * * * * *', command: {command}, retries: {retries}}}}}"));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = a.await_where("run.retrying", LONG, of("flaky")).text("run").to_owned();
    assert_eq!(b.events().named("run.started").len(), 0);
    a.kill9();
    let again = b.await_where("run.started", LONG, |event| event.text("run") == run);
    assert_eq!(again.number("attempt"), Some(2));
    let record = await_run(&first, &run);
    assert_eq!((&record["outcome"], &record["attempt"]), (&"success".into(), &2.into()));
    assert_eq!(record["earlier_attempts"][0]["node"], a.name());
    witness.assert_fine(&[]);
}
