//! Hooks when leaders die: the node that ends the run calls them once, with the previous outcome.

use super::cluster::{Place, again, await_begun, give, in_line, job, jobs, once, run_id, soon, usual};
use crate::support::LONG;
use crate::support::node::{Event, Node};
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;

fn is_hook<'a>(hook: &'a str, run: &'a str) -> impl Fn(&Event) -> bool {
    move |event| event.text("hook") == hook && event.text("run") == run
}

fn hooks_of(node: &Node, run: &str) -> usize {
    node.events().named("hook.finished").iter().filter(|event| event.text("run") == run).count()
}

#[test]
fn a_killed_leaders_run_is_ended_by_its_successor_which_runs_the_hook_once() {
    let place = Place::shared();
    let witness = Witness::new();
    let folder = Scratch::new("calls");
    let calls = folder.path().join("calls");
    let hook = format!("echo $CRONKEEPER_RUN_ID $CRONKEEPER_OUTCOME $CRONKEEPER_RUN_NODE >> {}", calls.display());
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let keys = format!("on_lease_end: kill\non_failure: {hook:?}");
    give(&[&a, &b], &jobs(&[once("die", at, &witness.command(&["sleep", "600"]), &keys)]));
    await_begun(&witness, "die", 1);
    let run = run_id("die", at);

    a.kill9();
    let finished = b.await_where("hook.finished", LONG, is_hook("on_failure", &run));
    assert_eq!(finished.text("outcome"), "success");
    let died = a.name().to_owned();
    let a = again(a);
    a.await_event("election.following", LONG);
    a.await_event("run.superseded", LONG);
    assert_eq!((hooks_of(&a, &run), hooks_of(&b, &run)), (0, 1));
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), format!("{run} interrupted {died}\n"));
    witness.assert_fine(&[]);
}

#[test]
fn a_node_that_is_back_before_its_session_ends_runs_the_hook_of_what_its_death_ended() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| place.node(name).option("--session-timeout", "10s")));
    let at = soon();
    let keys = "on_failure: 'true'";
    give(&[&a, &b], &jobs(&[once("die", at, &witness.command(&["sleep", "600"]), keys)]));
    await_begun(&witness, "die", 1);
    let run = run_id("die", at);

    a.kill9();
    let a = again(a);
    a.await_where("hook.finished", LONG, is_hook("on_failure", &run));
    b.await_event("takeover.done", LONG);
    assert_eq!(place.await_end(&run)["outcome"], "interrupted");
    assert_eq!((hooks_of(&a, &run), hooks_of(&b, &run)), (1, 0));
    witness.assert_fine(&[]);
}

#[test]
fn a_success_under_a_new_leader_recovers_from_a_failure_under_the_old_one() {
    let place = Place::shared();
    let witness = Witness::new();
    let folder = Scratch::new("flag");
    let flag = folder.path().join("flag");
    let command = witness.command(&["test", "-e", flag.to_str().unwrap()]);
    let file = jobs(&[job("flaky", "* * * * * *", &command, "on_recovery: 'true'")]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    a.await_where("run.finished", LONG, |event| event.text("outcome") == "failure");
    a.kill9();
    std::fs::write(&flag, "").unwrap();
    let recovered = b.await_where("hook.finished", LONG, |event| event.text("hook") == "on_recovery");
    let run = recovered.text("run").to_owned();
    let first = b.await_where("run.finished", LONG, |event| event.text("outcome") == "success");
    assert_eq!(first.text("run"), run);
    let seen = b.events().len();
    b.await_after(seen, "run.finished", LONG, |event| event.text("outcome") == "success");
    let all = b.events().named("hook.finished");
    assert_eq!(all.len(), 1, "{all:?}");
    witness.assert_fine(&[]);
}
