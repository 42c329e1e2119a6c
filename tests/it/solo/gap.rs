//! A time without a leader: occurrences due in it are settled according to each job's `misfire`.

use jiff::Timestamp;
use serde_json::Value;

use crate::support::witness::Witness;
use crate::support::{LONG, poll};

use super::fixture::{await_end, await_record, await_run, await_start, await_starts, history, leading, node};

fn instant(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[test]
fn missed_occurrences_are_made_up_once_all_or_not_at_all() {
    let witness = Witness::new();
    let command = witness.command(&[]);
    let job = |name: &str, more: &str| {
        format!("  {name}: {{schedule: '* * * * * *', command: {command}, misfire_window: 5m, misfire: {more}}}\n")
    };
    let jobs = format!("jobs:\n{}{}{}", job("all", "run-all"), job("once", "run-once"), job("never", "skip"));
    let spec = node("only").jobs(&jobs);
    let a = leading(&spec);
    let mut last = Vec::new();
    for job in ["all", "once", "never"] {
        let run = await_start(&a, 0, job);
        await_end(&a, &run);
        last.push(await_run(&spec, &run));
    }
    a.kill9();
    drop(a);
    // Lets time pass: a job of another node counts the seconds.
    let other = leading(&node("clock").jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}"));
    await_starts(&other, "tick", 5);
    let again = leading(&spec);
    let back: Timestamp = again.await_event("leader.elected", LONG).text("timestamp").parse().unwrap();
    assert!(again.await_event("takeover.done", LONG).number("missed").unwrap() >= 3);

    let of_gap = |record: &Value| record["kind"] == "skip" && record["reason"] == "missed";
    let never = await_record(&spec, "never", of_gap);
    assert!(never["count"].as_i64().unwrap() >= 3, "{never}");
    let once = await_record(&spec, "once", of_gap);
    // The newest missed occurrence is run, with its own scheduled time.
    let made_up = instant(&once["last"]) + std::time::Duration::from_secs(1);
    let made_up = await_record(&spec, "once", |run| run["kind"] == "run" && instant(&run["scheduled_at"]) == made_up);
    assert_eq!(made_up["outcome"], "success");

    let is_missed = |at: &&Timestamp| **at > instant(&last[0]["scheduled_at"]) && **at < back;
    let runs = poll(LONG, || {
        let runs: Vec<Timestamp> = history(&spec, "all")
            .iter()
            .filter(|record| record["kind"] == "run")
            .map(|run| instant(&run["scheduled_at"]))
            .collect();
        (runs.iter().filter(is_missed).count() >= 4).then_some(runs)
    });
    let runs = runs.unwrap_or_else(|| panic!("not all are made up: {:#?}", history(&spec, "all")));
    assert!(runs.is_sorted_by(|later, earlier| later > earlier), "oldest first: {runs:?}");
    witness.assert_fine(&[]);
}
