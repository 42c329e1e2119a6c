//! Alarms: raised once, whoever leads, and seen on every node until the job has recovered.

use std::fs;

use super::cluster::{Place, in_line, job, jobs, usual};
use crate::monitoring::{await_value, scrape};
use crate::solo::fixture::get_json;
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

#[test]
fn a_job_without_success_is_told_once_over_a_failover_until_it_succeeds() {
    let place = Place::shared();
    let witness = Witness::new();
    let folder = Scratch::new("alarms");
    let (flag, calls) = (folder.path().join("flag"), folder.path().join("calls"));
    let called = || fs::read_to_string(&calls).unwrap_or_default();
    let command = witness.command(&["test", "-e", flag.to_str().unwrap()]);
    let hook = format!("echo $CRONKEEPER_HOOK $CRONKEEPER_ALARM of $CRONKEEPER_JOB >> {}", calls.display());
    let keys = format!("stale_after: 2s\non_stale: {hook:?}");
    let file = jobs(&[job("flaky", "* * * * * *", &command, &keys)]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));

    let raised = a.await_event("alarm.stale", LONG);
    assert_eq!(raised.text("job"), "flaky");
    a.await_where("hook.finished", LONG, |event| event.text("hook") == "on_stale");
    assert_eq!(called(), "on_stale stale of flaky\n");
    for node in [&a, &b] {
        until("every node shows the alarm", || {
            let status = get_json(node.spec(), "/v1/status");
            status["jobs"][0]["alarms"][0]["alarm"] == "stale"
        });
    }
    await_value(a.spec(), "job_alarm{job=\"flaky\",alarm=\"stale\"}", |value| value > 0.0);
    assert_eq!(scrape(b.spec()).value("job_alarm{job=\"flaky\",alarm=\"stale\"}"), None);

    a.kill9();
    b.await_event("takeover.done", LONG);
    for _ in 0..3 {
        let seen = b.events().len();
        b.await_after(seen, "run.finished", LONG, |event| event.text("outcome") == "failure");
    }
    await_value(b.spec(), "job_alarm{job=\"flaky\",alarm=\"stale\"}", |value| value > 0.0);
    fs::write(&flag, "").unwrap();
    let cleared = b.await_event("alarm.cleared", LONG);
    assert_eq!((cleared.text("job"), cleared.text("alarm")), ("flaky", "stale"));
    assert!(b.events().named("alarm.stale").is_empty());
    assert_eq!(called(), "on_stale stale of flaky\n");
    until("the alarm is gone", || scrape(b.spec()).value("job_alarm{job=\"flaky\",alarm=\"stale\"}").is_none());
}
