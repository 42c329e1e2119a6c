//! Hooks of the node: the node that has to report what happens to the cluster does so.

use std::fs;
use std::path::Path;

use super::cluster::{Place, in_line, job, jobs, token, usual};
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::until;
use crate::support::zookeeper::Ensemble;

const HOOKS: [&str; 5] =
    ["--on-leader-change", "--on-no-leader", "--on-node-missing", "--on-jobs-rejected", "--on-jobs-drift"];

/// A node whose hooks write a line each.
fn reporting(spec: Spec, calls: &Path) -> Spec {
    let line = "$CRONKEEPER_NODE $CRONKEEPER_HOOK $CRONKEEPER_FENCING_TOKEN $CRONKEEPER_OTHER_NODE";
    let command = format!("echo {line} >> {}", calls.display());
    let spec = HOOKS.iter().fold(spec, |spec, hook| spec.option(hook, &command));
    spec.option("--no-leader-after", "2s").option("--node-missing-after", "1s").option("--jobs-drift-after", "1s")
}

#[test]
fn each_change_of_the_cluster_is_told_once() {
    let ensemble = Ensemble::start(1);
    let place = Place::on(&ensemble);
    let folder = Scratch::new("calls");
    let calls = folder.path().join("calls");
    let calls_with = |line: &str| {
        let text = fs::read_to_string(&calls).unwrap_or_default();
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|call| call == line)
            .count()
    };
    let await_call = |line: String| until(&line, || calls_with(&line) > 0);
    let file = jobs(&[job("tick", "@hourly", "true", "")]);
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| reporting(usual(place.node(name)).jobs(&file), &calls)));
    let (name_a, name_b, name_c) = (a.name().to_owned(), b.name().to_owned(), c.name().to_owned());
    await_call(format!("{name_a} on_leader_change {}", token(&a)));

    b.spec().write_jobs("jobs: {tick: {}}");
    await_call(format!("{name_b} on_jobs_rejected"));
    b.spec().write_jobs(&jobs(&[job("tock", "@hourly", "true", "")]));
    await_call(format!("{name_a} on_jobs_drift {name_b}"));
    b.spec().write_jobs(&file);

    c.kill9();
    await_call(format!("{name_a} on_node_missing {name_c}"));
    a.kill9();
    until("the next leads", || !b.events().named("takeover.done").is_empty());
    let change = format!("{name_b} on_leader_change {}", token(&b));
    await_call(change.clone());
    await_call(format!("{name_b} on_node_missing {name_a}"));
    assert_eq!(calls_with(&change), 1);
    let text = fs::read_to_string(&calls).unwrap();
    assert!(!text.contains("on_no_leader"), "{text}");

    ensemble.kill(0);
    await_call(format!("{name_b} on_no_leader"));
}
