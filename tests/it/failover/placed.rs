//! Jobs that run on other nodes than the leader, as their operators see them.

use serde_json::Value;

use super::cluster::{Place, in_line, job, jobs};
use super::control::{ask, asked};
use super::logs::{TOKEN, listening};
use crate::solo::fixture::Gate;
use crate::support::LONG;
use crate::support::command::texts;
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::until;

/// A job that is never due.
const SELDOM: &str = "@at 2099-01-01T00:00:00Z";

/// A leader and another node, with these jobs, each with its label. They fetch output from each other.
fn labelled(place: &Place, each: &[String]) -> [Node; 2] {
    let dir = Scratch::new("token");
    let probe = job("probe", SELDOM, "\"true\"", "run_on: any");
    let file = jobs(&[each, &[probe]].concat());
    let [a, b] =
        in_line(["a", "b"].map(|name| listening(place.node(name), &dir, TOKEN).option("--label", name).jobs(&file)));
    // A share of a node that has just joined is skipped.
    until("the leader knows the other node", || {
        typed(a.spec(), &["trigger", "probe", "--on", b.name(), "--wait"]).0 == Some(0)
    });
    [a, b]
}

fn typed(spec: &Spec, line: &[&str]) -> (Option<i32>, String, String) {
    texts(&ask(spec, line))
}

#[test]
fn whoever_waits_for_a_run_on_every_node_sees_each_share_and_gets_the_worst_code() {
    let place = Place::shared();
    let command = "\"echo $CRONKEEPER_NODE; case $CRONKEEPER_NODE in b*) exit 3;; esac\"";
    let [a, b] = labelled(&place, &[job("each", SELDOM, command, "run_on: every\noverlap: allow")]);
    let (code, out, err) = typed(b.spec(), &["trigger", "each", "--wait"]);
    assert_eq!(code, Some(3), "{out}{err}");
    let run = out.lines().next().unwrap().to_owned();
    let mut lines: Vec<&str> = out.lines().skip(1).collect();
    lines.sort_unstable();
    assert_eq!(lines.iter().filter(|line| **line == a.name()).count(), 1, "{out}{err}");
    for node in [&a, &b] {
        assert!(err.contains(&format!("cronkeeper: on {}:\n", node.name())), "{err}");
    }
    let failed = format!("cronkeeper: run `{run}@{}` on {}: failure, exit 3\n", b.name(), b.name());
    assert!(err.contains(&failed), "{err}");

    // By its id, the run is its shares.
    let (code, out, err) = typed(a.spec(), &["logs", &run]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.starts_with(&format!("cronkeeper: run `{run}` has 2 shares; name one:\nSHARE ")), "{err}");
    assert!(err.contains(&format!("{run}@{}  success\n", a.name())), "{err}");
    assert!(err.contains(&format!("{run}@{}  failure, exit 3\n", b.name())), "{err}");
    let shown = typed(a.spec(), &["logs", &format!("{run}@{}", a.name())]);
    assert_eq!(shown, (Some(0), format!("{}\n", a.name()), String::new()));
    let (code, out, err) = typed(a.spec(), &["kill", &run]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "as of any run that has ended");
    assert!(err.contains(&format!("run `{run}` is not in flight")), "{err}");

    let (code, out, _) = typed(a.spec(), &["trigger", "each", "--wait", "--json"]);
    let effects: Value = serde_json::from_str(&out).unwrap();
    let outcome = |index: usize| (&effects["results"][index]["node"], &effects["results"][index]["record"]["outcome"]);
    assert_eq!((code, outcome(0)), (Some(3), (&a.name().into(), &"success".into())), "{out}");
    assert_eq!(outcome(1), (&b.name().into(), &"failure".into()), "{out}");
}

#[test]
fn a_run_on_every_node_is_killed_by_its_id_and_shares_of_drained_nodes_are_skipped() {
    let (place, gate) = (Place::shared(), Gate::new());
    let [a, b] = labelled(&place, &[job("each", SELDOM, &format!("{:?}", gate.command()), "run_on: every")]);
    let run = asked(b.spec(), &["trigger", "each"]);
    for node in [&a, &b] {
        node.await_where("run.started", LONG, |started| started.text("run") == format!("{run}@{}", node.name()));
    }
    let out = asked(b.spec(), &["kill", &run]);
    let mut killed: Vec<&str> = out.lines().collect();
    killed.sort_unstable();
    assert_eq!(killed, [&a, &b].map(|node| format!("{run}@{} is being stopped", node.name())));
    let ended = format!("{run}@{}", a.name());
    assert_eq!(place.await_end(&ended)["outcome"], "killed");
    place.await_end(&format!("{run}@{}", b.name()));

    asked(a.spec(), &["drain", b.name()]);
    gate.open();
    let (code, out, err) = typed(a.spec(), &["trigger", "each", "--wait", "--json"]);
    assert_eq!(code, Some(75), "a skip counts more than a success: {err}");
    let effects: Value = serde_json::from_str(&out).unwrap();
    let result = |index: usize, key: &str| effects["results"][index][key].clone();
    assert_eq!((result(0, "effect"), result(0, "node")), ("ended".into(), a.name().into()), "{out}");
    assert_eq!((result(1, "effect"), result(1, "node")), ("skipped".into(), b.name().into()), "{out}");
    assert_eq!(result(1, "record")["reason"], "drained");
    until("the skip is in the history of its node", || {
        let history = asked(a.spec(), &["history", "each", "--node", b.name(), "--outcome", "skipped", "--json"]);
        history.lines().count() == 1 && history.contains(result(1, "run").as_str().unwrap())
    });
}

#[test]
fn a_trigger_names_the_node_that_runs_the_job() {
    let place = Place::shared();
    let here = |name: &str, more: &str| job(name, SELDOM, "\"echo $CRONKEEPER_NODE\"", more);
    let [a, b] =
        labelled(&place, &[here("any", "run_on: any"), here("of-a", "run_on: any\nrun_where: a"), here("leads", "")]);
    let (code, out, err) = typed(a.spec(), &["trigger", "any", "--on", b.name(), "--wait"]);
    assert_eq!((code, out.lines().last()), (Some(0), Some(b.name())), "{out}{err}");
    let refused_with = |expected: i32, line: &[&str]| {
        let (code, out, err) = typed(b.spec(), line);
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{err}");
        err
    };
    let refused = |line: &[&str]| refused_with(1, line);
    let err = refused(&["trigger", "of-a", "--on", b.name()]);
    assert!(
        err.contains(&format!("job `of-a` does not run on node `{}`, only on nodes with a; its labels: b", b.name())),
        "{err}"
    );
    for line in [
        &["trigger", "any", "--on", "elsewhere"][..],
        &["drain", "elsewhere"],
        &["undrain", "elsewhere"],
        &["forget", "elsewhere"],
        &["handover", "--to", "elsewhere"],
    ] {
        let err = refused_with(2, line);
        assert!(err.contains("the cluster knows no node `elsewhere`"), "{line:?}: {err}");
    }
    let err = refused(&["trigger", "leads", "--on", b.name()]);
    assert!(err.contains("job `leads` runs on the leader") && err.contains("`cronkeeper exec leads`"), "{err}");
}

#[test]
fn what_waits_for_a_node_that_is_gone_is_said_everywhere_until_it_is_forgotten() {
    let place = Place::shared();
    let each = job("each", SELDOM, "\"echo $CRONKEEPER_NODE\"", "run_on: every\nmisfire_window: 1h");
    let [a, b] = labelled(&place, &[each]);
    let missing = || asked(a.spec(), &["status"]).contains(&format!("\nMISSING  {}, its session ended ", b.name()));
    b.kill9();
    let gone = a.await_event("member.gone", LONG);
    assert_eq!(gone.text("other"), b.name());
    until("it is missing", missing);

    let (code, out, err) = typed(a.spec(), &["trigger", "each"]);
    assert_eq!(code, Some(0), "{err}");
    let run = out.trim();
    let away = format!("cronkeeper: {} has been away since ", b.name());
    assert!(err.starts_with(&away) && err.contains("Z: its share waits for it until "), "{err}");
    place.await_end(&format!("{run}@{}", a.name()));
    let waits = format!("run `{run}@{}` has no output yet: waits for {}: away since ", b.name(), b.name());
    until("the share that waits is named", || typed(a.spec(), &["logs", "each"]).2.contains(&waits));
    let (code, out, err) = typed(a.spec(), &["logs", "each"]);
    assert_eq!((code, out), (Some(0), format!("{}\n", a.name())), "{err}");
    assert!(err.contains(&format!("; showing run `{run}@{}`\n", a.name())), "{err}");
    let others =
        format!("cronkeeper: showing the share of {}; `cronkeeper logs {run}` has those of all nodes\n", a.name());
    assert!(err.ends_with(&others), "{err}");
    let (code, out, err) = typed(a.spec(), &["logs", &format!("{run}@{}", b.name())]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert!(err.contains(&waits), "{err}");

    // The daemon has a jobs file, wherever that is.
    let (code, out, err) = typed(a.spec(), &["next", "each"]);
    assert!(code == Some(0) && out.contains("2099-01-01 00:00:00"), "{out}{err}");
    let where_to = format!("job `each` runs on every: {}; not now: {} [away since ", a.name(), b.name());
    assert!(err.contains(&where_to), "{err}");
    let (code, _, err) = typed(a.spec(), &["history", "--node", "elsewhere"]);
    assert!(code == Some(1) && err.contains("the cluster knows no node `elsewhere`"), "{code:?} {err}");
    assert_eq!(typed(a.spec(), &["history", "each", "--node", b.name()]).0, Some(0), "it has none, but is known");

    asked(a.spec(), &["forget", b.name()]);
    assert!(!missing(), "it is forgotten");
    until("nothing waits for it", || !asked(a.spec(), &["status"]).contains(" waits for "));
}
