//! Nodes that never lead and run what is placed on them.

use serde_json::Value;

use super::cluster::{Place, in_line, job, jobs, usual};
use super::control::{ask, asked};
use crate::solo::fixture::Gate;
use crate::support::command::texts;
use crate::support::{LONG, until};

/// A job that is never due.
const SELDOM: &str = "@at 2099-01-01T00:00:00Z";

#[test]
fn a_node_that_never_leads_runs_what_it_has_accepted_when_the_leader_dies_and_what_the_next_one_places() {
    let (place, gate) = (Place::shared(), Gate::new());
    let file = jobs(&[job("there", SELDOM, &format!("{:?}", gate.command()), "run_on: any\nrun_where: worker")]);
    let [a] = in_line([usual(place.node("a")).jobs(&file)]);
    let worker = usual(place.node("b")).option("--label", "worker").option("--lead", "false").jobs(&file).start();
    let sees = |leader: &str| {
        worker.await_where("election.observing", LONG, |seen| seen.text("leader_node") == leader);
    };
    sees(a.name());
    until("it is ready", || ask(worker.spec(), &["status", "--check"]).status.success());
    let text = asked(worker.spec(), &["status"]);
    assert!(text.contains("following, never leads"), "{text}");
    until("the leader shows it as a place", || {
        let nodes: Value = serde_json::from_str(&asked(a.spec(), &["nodes", "--json"])).expect("JSON");
        let of_worker = nodes["nodes"].as_array().and_then(|nodes| nodes.iter().find(|it| it["node"] == worker.name()));
        of_worker.is_some_and(|it| it["never_leads"] == true && it["alive"] == true)
    });
    let (code, _, err) = texts(&ask(a.spec(), &["handover", "--to", worker.name()]));
    assert!(code == Some(1) && err.contains(&format!("{} never leads", worker.name())), "{err}");

    let run = asked(worker.spec(), &["trigger", "there"]);
    worker.await_where("run.started", LONG, |started| started.text("run") == run);
    a.kill9();
    drop(a);
    let said = worker.await_event("election.nobody_may_lead", LONG);
    assert_eq!((said.text("level"), said.number("nodes")), ("ERROR", Some(1)));
    let (code, out, _) = texts(&ask(worker.spec(), &["status", "--check"]));
    assert!(code == Some(1) && out.contains("nobody leads: no node that may lead is alive"), "{out}");
    let text = asked(worker.spec(), &["status"]);
    assert!(text.contains("LEADER   nobody") && text.contains("NOBODY LEADS"), "{text}");
    gate.open();
    assert_eq!(place.await_end(&run)["outcome"], "success", "nobody leads, and its runs go on");
    assert!(place.queue().is_empty());

    let [c] = in_line([usual(place.node("c")).jobs(&file)]);
    sees(c.name());
    let (code, _, err) = texts(&ask(c.spec(), &["trigger", "there", "--wait"]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(worker.events().count("election.nobody_may_lead"), 1);
    for event in ["election.joined", "leader.elected"] {
        assert_eq!(worker.events().count(event), 0, "{event}");
    }
}
