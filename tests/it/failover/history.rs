//! The history of a cluster: the ledger's newest records, and below them what the archives of all nodes have.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cluster::{Place, in_line, usual};
use super::logs::{TOKEN, listening};
use crate::support::command::{run, texts};
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

const TICK: &str = "jobs:
  tick:
    schedule: '* * * * * *'
    command: 'true'
    history_limit: 5
";

/// The exit code, and what is on stdout and stderr.
fn asked(spec: &Spec, arguments: &[&str]) -> (Option<i32>, String, String) {
    let folder = spec.runtime_dir();
    texts(&run(&[&["history"], arguments, &["--runtime-dir", folder.to_str().unwrap()]].concat()))
}

/// The runs that a node shows, each with the node that ran it.
fn shown(spec: &Spec) -> Vec<(String, String)> {
    let (_, out, _) = asked(spec, &["tick", "-n", "1000", "--json", "--outcome", "success"]);
    let records = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.map(|record| (record["run"].as_str().unwrap().into(), record["node"].as_str().unwrap().into())).collect()
}

fn ran(node: &Node) -> BTreeSet<String> {
    let ended = node.events().named("run.finished");
    ended.iter().filter(|event| event.text("outcome") == "success").map(|event| event.text("run").to_owned()).collect()
}

/// Waits until a node shows these runs, each once.
fn await_shown(spec: &Spec, wanted: &BTreeSet<String>) {
    until("they are all shown there", || {
        let shown = shown(spec);
        let runs: BTreeSet<_> = shown.iter().map(|(run, _)| run.clone()).collect();
        assert_eq!(runs.len(), shown.len(), "each once");
        wanted.is_subset(&runs)
    });
}

#[test]
fn any_node_shows_the_runs_of_all_and_says_whose_are_missing() {
    let (place, dir) = (Place::shared(), Scratch::new("token"));
    let [a, b] = in_line(["a", "b"].map(|name| listening(place.node(name), &dir, TOKEN).jobs(TICK)));
    until("the first node has run more than the ledger keeps", || ran(&a).len() >= 12);
    let of_a = ran(&a);
    await_shown(b.spec(), &of_a);
    let (code, _, err) = asked(b.spec(), &["tick", "-n", "1000", "--since", "1d"]);
    assert_eq!((code, err.contains("missing")), (Some(0), false), "{err}");
    let (code, own, _) = asked(b.spec(), &["tick", "-n", "1000", "--json", "--local"]);
    assert_eq!((code, own.as_str()), (Some(0), ""), "it has run nothing itself");

    a.kill9();
    a.wait_exit(LONG);
    until("the second node has run more than the ledger keeps", || ran(&b).len() >= 8);
    let away = format!("that only {} has may be missing: {} is away", a.name(), a.name());
    until("it is said that the first node's runs are missing", || {
        let (code, out, err) = asked(b.spec(), &["tick", "-n", "1000", "--since", "1d"]);
        let line = format!("only what {} ran itself ---", b.name());
        code == Some(1)
            && out.lines().any(|shown| shown.starts_with("--- before ") && shown.ends_with(&line))
            && err.contains(&away)
    });
    let (code, newest, err) = asked(b.spec(), &["tick", "-n", "2"]);
    assert!(code == Some(0) && !newest.contains("---") && !err.contains("missing"), "{newest} {err}");

    let (of_b, a) = (ran(&b), a.again());
    a.await_event("election.following", LONG);
    let incomplete = a.await_event("archive.incomplete", LONG);
    assert!(incomplete.text("since") < incomplete.text("until"), "{}", incomplete.json());
    let all: BTreeSet<_> = of_a.union(&of_b).cloned().collect();
    [&a, &b].into_iter().for_each(|node| await_shown(node.spec(), &all));
}

#[test]
fn either_node_shows_its_own_runs_and_the_newest_of_the_cluster() {
    let place = Place::shared();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(TICK)));
    until("the first node has run more than the ledger keeps", || ran(&a).len() >= 8);
    let until_then = ran(&a);
    until("they are all shown there", || {
        let shown: BTreeSet<_> = shown(a.spec()).into_iter().map(|(run, _)| run).collect();
        until_then.is_subset(&shown)
    });
    assert!(shown(b.spec()).len() < 8, "a follower has only what the ledger keeps");
    let (code, _, err) = asked(b.spec(), &["tick", "-n", "1000", "--since", "1d"]);
    assert!(code == Some(1) && err.contains("set `--listen` and `--api-token-file`"), "{err}");

    a.kill9();
    a.wait_exit(LONG);
    until("the second node has run more than the ledger keeps", || ran(&b).len() >= 8);
    let of_b = ran(&b);
    until("they are all shown there", || {
        let shown: BTreeSet<_> = shown(b.spec()).into_iter().map(|(run, _)| run).collect();
        of_b.is_subset(&shown)
    });

    let a = a.again();
    a.await_event("election.following", LONG);
    until("the first node shows its old runs and the newest of the second", || {
        let shown = shown(a.spec());
        let runs: BTreeSet<_> = shown.iter().map(|(run, _)| run.clone()).collect();
        assert_eq!(runs.len(), shown.len(), "each once");
        until_then.is_subset(&runs) && shown.iter().any(|(_, node)| node == b.name())
    });
    let (_, own, _) = asked(a.spec(), &["tick", "-n", "1000", "--node", a.name(), "--csv"]);
    assert!(own.lines().skip(1).count() >= 8 && !own.contains(b.name()), "{own}");
}

#[test]
fn while_zookeeper_is_away_a_node_shows_its_own_history_and_says_what_is_wrong() {
    let ensemble = Ensemble::start(1);
    let [node] = in_line([usual(Place::on(&ensemble).node("a")).jobs(TICK)]);
    until("it has run a few", || ran(&node).len() >= 3);
    let before = ran(&node);
    let shows_them = || {
        let shown: BTreeSet<_> = shown(node.spec()).into_iter().map(|(run, _)| run).collect();
        before.is_subset(&shown)
    };
    until("they are all shown", shows_them);

    ensemble.kill(0);
    let says_so = || asked(node.spec(), &["tick"]).2.contains("the ledger cannot be reached");
    until("the answer says that it is the archive's", says_so);
    assert!(shows_them());
    assert_eq!(asked(node.spec(), &["tick"]).0, Some(0));
    assert_eq!(asked(node.spec(), &["tick", "--failed"]).0, Some(1), "what failed elsewhere is not known");
    let refused = format!("{}: connection refused", ensemble.connect_string());
    until("the log names the server and the cause", || {
        node.events().named("coordination.unreachable").iter().any(|event| event.text("error").contains(&refused))
    });
}

#[test]
fn a_killed_node_copies_what_the_ledger_accepted_from_it_last() {
    let a = Place::shared().node("a").jobs(TICK).start();
    until("it has run something", || ran(&a).len() >= 2);
    let before = ran(&a).len();
    until("another run has just ended", || ran(&a).len() > before);
    a.kill9();
    let ended = ran(&a);
    a.wait_exit(LONG);
    let a = a.again();
    until("its archive has the last run too", || {
        let (_, out, _) = asked(a.spec(), &["tick", "-n", "1000", "--json", "--local", "--outcome", "success"]);
        ended.iter().all(|run| out.contains(run.as_str()))
    });
    assert!(a.events().named("archive.incomplete").is_empty(), "{}", a.events().tail());
}
