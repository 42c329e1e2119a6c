//! Timeouts and overlaps of runs.

use crate::solo::fixture::{await_start, await_starts, leading, node};
use crate::support::LONG;
use crate::support::witness::{Mark, Witness};

use super::{Trial, job, sh};

#[test]
fn a_job_that_ignores_sigterm_is_killed_after_its_grace() {
    let keys = format!("{}\ntimeout: 2s\nkill_grace: 300ms", sh(r#"trap "" TERM; while :; do sleep 0.05; done"#));
    let trial = Trial::of(&keys);
    assert_eq!((trial.end.text("outcome"), trial.end.number("signal")), ("timeout", Some(9)));
    assert!(trial.end.number("duration_ms").unwrap() >= 2300);
    assert_eq!(trial.record()["outcome"], "timeout");
}

#[test]
fn a_job_that_obeys_sigterm_has_timed_out_all_the_same() {
    let keys =
        format!("{}\ntimeout: 2s\nkill_grace: 1h", sh(r#"trap "echo bye; exit 0" TERM; while :; do sleep 0.05; done"#));
    let trial = Trial::of(&keys);
    assert_eq!(trial.outcome(), ("timeout", Some(0)));
    assert!(trial.lines().contains(&"bye".to_owned()));
}

#[test]
fn a_job_that_stops_itself_is_ended_by_its_timeout() {
    let trial = Trial::of(&format!("{}\ntimeout: 300ms\nkill_grace: 300ms", sh("kill -STOP $$")));
    assert_eq!(trial.end.text("outcome"), "timeout");
}

#[test]
fn a_job_in_time_is_not_touched() {
    let trial = Trial::of(&format!("{}\ntimeout: 1h", sh("exit 0")));
    assert_eq!(trial.outcome(), ("success", Some(0)));
}

#[test]
fn an_occurrence_that_would_overlap_is_skipped() {
    let witness = Witness::new();
    let a = leading(&node("torture").jobs(&job(&format!("command: {}", witness.command(&["sleep", "1.5"])))));
    let run = await_start(&a, 0, "trial");
    let skip = a.await_event("run.skipped", LONG);
    assert_eq!(skip.text("reason"), "overlap");
    assert!(skip.text("run") > run.as_str());
    await_starts(&a, "trial", 2);
    witness.assert_fine(&[]);
}

#[test]
fn overlapping_runs_are_allowed_where_the_job_says_so() {
    let witness = Witness::new();
    let keys = format!("command: {}\noverlap: allow", witness.command(&["sleep", "1000"]));
    let a = leading(&node("torture").jobs(&job(&keys)));
    await_starts(&a, "trial", 3);
    crate::support::until("the runs see each other", || {
        witness.entries().iter().any(|entry| entry.mark == Mark::Overlap)
    });
    assert!(a.events().named("run.skipped").is_empty());
    witness.assert_fine(&["trial"]);
}
