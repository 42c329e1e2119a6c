//! Replicas of one host that are drained.

use serde_json::json;

use super::fixture::{Gate, await_end, await_start, cli, cli_text, following, get, leading, node, status};
use crate::support::{LONG, until};

#[test]
fn a_drained_leader_gives_way_to_the_other_and_its_run_goes_on() {
    let gate = Gate::new();
    let first =
        node("first").jobs(&format!("jobs:\n  slow: {{schedule: '* * * * * *', command: {:?}}}\n", gate.command()));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = await_start(&a, 0, "slow");
    until("it can be asked", || get(&first, "/healthz").is_some());
    cli_text(&first, &["drain", a.name(), "--reason", "disks"]);
    b.await_event("takeover.done", LONG);
    assert_eq!(status(&first)["drained"][a.name()]["reason"], "disks");
    gate.open();
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    await_start(&b, 0, "slow");
    assert_eq!(a.events().named("leader.elected").len(), 1);
}

#[test]
fn a_host_whose_replicas_are_all_drained_can_be_asked_to_undrain_one() {
    let first = node("first");
    let (a, b) = (leading(&first), following(&node("second").beside(&first)));
    until("it can be asked", || get(&first, "/healthz").is_some());
    cli_text(&first, &["drain", b.name()]);
    b.await_event("node.drained", LONG);
    cli_text(&first, &["drain", a.name()]);
    a.await_event("node.drained", LONG);
    for node in [&a, &b] {
        node.await_event("election.all_drained", LONG);
    }
    let check = cli(&first, &["status", "--check"]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let a = {
        let spec = a.spec().clone();
        a.kill9();
        drop(a);
        spec.start()
    };
    until("one of them serves the socket", || get(&first, "/healthz").is_some());
    until("it is still drained", || status(&first)["drained"][a.name()].is_object());
    let undrained = cli_text(&first, &["undrain", b.name(), "--json"]);
    let undrained: serde_json::Value = serde_json::from_str(&undrained).expect("JSON");
    assert_eq!(undrained["results"][0]["effect"], json!("undrained"));
    b.await_event("takeover.done", LONG);
    assert!(a.events().named("leader.elected").len() <= 1, "only before it was drained");
}

#[test]
fn a_node_that_nobody_knows_is_not_drained() {
    let first = node("first");
    let a = leading(&first);
    until("it can be asked", || get(&first, "/healthz").is_some());
    let refused = cli(&first, &["drain", &a.name()[1..]]);
    assert_eq!(refused.status.code(), Some(2));
    let meant = format!("did you mean `{}`?", a.name());
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&meant), "{refused:?}");
}
