//! Nodes that are drained for maintenance, asked of any node.

use std::thread;

use serde_json::{Value, json};

use super::cluster::{Place, again, await_begun, in_line, job, jobs, usual};
use super::control::{ask, asked};
use crate::support::node::{Node, Spec};
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// A job that is never due.
const SELDOM: &str = "@at 2099-01-01T00:00:00Z";

fn three(place: &Place, file: &str) -> [Node; 3] {
    in_line(["a", "b", "c"].map(|name| usual(place.node(name)).jobs(file)))
}

fn status(spec: &Spec) -> Value {
    serde_json::from_str(&asked(spec, &["status", "--json"])).expect("JSON")
}

fn json_of(spec: &Spec, line: &[&str]) -> Value {
    serde_json::from_str(&asked(spec, &[line, &["--json"]].concat())).expect("JSON")
}

#[test]
fn a_drained_leader_gives_way_ends_its_runs_and_stays_drained_when_it_is_restarted() {
    let (place, witness) = (Place::shared(), Witness::new());
    let slow = job("seldom", SELDOM, &witness.command(&["sleep", "3"]), "");
    let [a, b, c] = three(&place, &jobs(&[slow, job("tick", "* * * * * *", &witness.command(&["true"]), "")]));
    let run = asked(c.spec(), &["trigger", "seldom"]);
    await_begun(&witness, "seldom", 1);
    let (spec, name) = (c.spec().clone(), a.name().to_owned());
    let draining = thread::spawn(move || ask(&spec, &["drain", &name, "--reason", "disks", "--wait"]));
    let drained = a.await_event("node.drained", LONG);
    assert_eq!((drained.text("reason"), drained.number("runs").is_some()), ("disks", true));
    assert!(drained.text("by").ends_with(&format!(" on {}", c.name())), "{}", drained.json());
    b.await_event("takeover.done", LONG);
    let output = draining.join().expect("it does not panic");
    assert!(output.status.success(), "{output:?}");
    let ended = a.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!(ended.text("outcome"), "success", "its run went on to its end");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("cronkeeper: waiting for 1 run on {}: {run}", a.name())), "{said}");
    let shown = status(b.spec());
    assert_eq!(shown["drained"][a.name()]["reason"], "disks", "{shown}");
    assert_eq!(place.queue().len(), 2);

    let a = again(a);
    until("it knows that it is drained", || ask(a.spec(), &["status", "--json"]).status.success());
    until("it says so", || status(a.spec())["state"] == "drained");
    assert!(a.events().named("election.joined").is_empty());
    let check = ask(a.spec(), &["status", "--check"]);
    assert_eq!(check.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&check.stdout).contains("was drained by "), "{check:?}");
    assert!(ask(b.spec(), &["status", "--check"]).status.success(), "the others are fine");
    let refused = ask(c.spec(), &["handover", "--to", a.name()]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is drained"), "{refused:?}");

    let undrained = json_of(b.spec(), &["undrain", a.name(), "--wait"]);
    assert_eq!((&undrained["command"], &undrained["done"]), (&json!("undrain"), &json!(true)));
    assert_eq!(undrained["results"][0]["replaced"]["reason"], "disks", "{undrained}");
    a.await_event("election.following", LONG);
    assert_eq!(place.queue().len(), 3);
    assert!(place.zk.children(&place.path("/cronkeeper/wanted")).is_empty());
    witness.assert_fine(&[]);
}

#[test]
fn if_every_node_is_drained_nobody_leads_and_each_node_says_so() {
    let (place, witness) = (Place::shared(), Witness::new());
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&["true"]), "")]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    asked(a.spec(), &["drain", b.name(), "--reason", "disks"]);
    // Whoever drains it once more without a reason does not take that back.
    let again = json_of(a.spec(), &["drain", b.name()]);
    assert_eq!(again["results"][0]["reason"], "disks", "{again}");
    let last = ask(a.spec(), &["drain"]);
    assert!(last.status.success(), "{last:?}");
    assert!(String::from_utf8_lossy(&last.stderr).contains("every node is drained now"), "{last:?}");
    for node in [&a, &b] {
        let said = node.await_event("election.all_drained", LONG);
        assert_eq!((said.text("level"), said.number("nodes")), ("WARN", Some(2)));
        // The last leader's place in the queue may be gone a little later than that is said.
        until("its check says that nobody leads", || {
            let check = ask(node.spec(), &["status", "--check"]);
            assert_eq!(check.status.code(), Some(1));
            String::from_utf8_lossy(&check.stdout).contains("nobody leads: every node is drained")
        });
        assert!(asked(node.spec(), &["status"]).contains("NOBODY LEADS"));
    }
    assert!(place.queue().is_empty());
    asked(a.spec(), &["undrain", b.name()]);
    b.await_event("takeover.done", LONG);
    witness.assert_fine(&[]);
}

#[test]
fn a_handover_asked_of_a_follower_is_the_leaders_and_names_who_leads_then() {
    let (place, witness) = (Place::shared(), Witness::new());
    let [a, b, c] = three(&place, &jobs(&[job("seldom", SELDOM, &witness.command(&["true"]), "")]));
    let handed = json_of(b.spec(), &["handover", "--to", c.name(), "--wait"]);
    assert_eq!(handed["results"][0], json!({ "effect": "resigned", "node": a.name(), "leader": c.name() }));
    c.await_event("takeover.done", LONG);
    assert_eq!(a.events().named("leader.resigned").len(), 1);
    let said = asked(a.spec(), &["handover", "--wait"]);
    assert!(said.starts_with(&format!("{} gave leadership to ", c.name())) && said.ends_with(" leads"), "{said}");
}

#[test]
fn a_run_is_killed_by_the_name_of_its_job_if_it_is_the_only_one() {
    let (place, witness) = (Place::shared(), Witness::new());
    let slow = job("seldom", SELDOM, &witness.command(&["sleep", "600"]), "overlap: allow");
    let [_a, b, _c] = three(&place, &jobs(&[slow]));
    let none = ask(b.spec(), &["kill", "seldom"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("no run of job `seldom` is in flight"), "{none:?}");
    let first = asked(b.spec(), &["trigger", "seldom"]);
    let second = asked(b.spec(), &["trigger", "seldom"]);
    await_begun(&witness, "seldom", 1);
    until("both run", || status(b.spec())["runs"].as_array().is_some_and(|runs| runs.len() == 2));
    let both = ask(b.spec(), &["kill", "seldom"]);
    let said = String::from_utf8(both.stderr).unwrap();
    assert!(both.status.code() == Some(1) && said.contains(&first) && said.contains(&second), "{said}");
    asked(b.spec(), &["kill", &first, "--wait"]);
    let killed = json_of(b.spec(), &["kill", "seldom", "--wait"]);
    assert_eq!((&killed["done"], &killed["results"][0]["run"]), (&json!(true), &json!(second)), "{killed}");
    assert_eq!(killed["results"][0]["record"]["outcome"], "killed", "{killed}");
}

#[test]
fn a_pause_of_many_jobs_ends_by_itself_after_a_failover() {
    let (place, witness) = (Place::shared(), Witness::new());
    let tick = |name| job(name, "* * * * * *", &witness.command(&["true"]), "");
    let [a, b, c] = three(&place, &jobs(&[tick("tick-a"), tick("tick-b"), tick("other")]));
    await_begun(&witness, "tick-a", 1);
    asked(c.spec(), &["pause", "tick-b", "--reason", "first"]);
    let paused = json_of(c.spec(), &["pause", "tick-*", "--for", "8s"]);
    let results = paused["results"].as_array().expect("a list");
    assert_eq!((results.len(), &results[1]["replaced"]["reason"]), (2, &json!("first")), "{paused}");
    assert_eq!((&results[0]["effect"], results[0]["until"].is_string()), (&json!("paused"), true), "{paused}");
    a.kill9();
    b.await_event("takeover.done", LONG);
    for name in ["tick-a", "tick-b"] {
        let resumed = b.await_where("job.resumed", LONG, |resumed| resumed.text("job") == name);
        assert!(resumed.text("by").starts_with("the end of the pause by "), "{}", resumed.json());
        b.await_where("run.started", LONG, |started| started.text("job") == name);
    }
    asked(c.spec(), &["pause", "--all"]);
    assert!(asked(c.spec(), &["resume", "--all", "--wait"]).ends_with("have been resumed"));
    witness.assert_fine(&[]);
}
