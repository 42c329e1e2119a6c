//! Servers that have lost what they had acknowledged.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;

use super::cluster::{Lines, Place, again, job, jobs, node, once, shared, soon, usual};
use crate::support::scratch::Scratch;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, poll, until};

/// The transaction with the run's end is gone: the run is in flight again, under a session that is over.
#[test]
fn a_run_whose_end_the_servers_have_lost_gets_it_again_and_is_not_run_twice() {
    for (name, more) in [("plain", ""), ("rerun", "interrupted: rerun")] {
        let place = Place::shared();
        let files = Scratch::new("files");
        let (begun, gate) = (files.path().join("begun"), files.path().join("gate"));
        let wait = format!("'echo begun >> {}; until [ -e {} ]; do sleep 0.1; done'", begun.display(), gate.display());
        let more = format!("misfire_window: 1h\n{more}");
        let spec = usual(place.node("a")).jobs(&jobs(&[once(name, soon(), &wait, &more)]));
        let node = spec.start();
        let run = node.await_event("run.started", LONG).text("run").to_owned();
        // The server that is asked may be behind.
        let in_flight = poll(LONG, || place.running(&run)).expect("it is in flight");
        files.write("gate", "");
        assert_eq!(place.await_end(&run)["outcome"], "success");
        until("it is no longer in flight", || place.running(&run).is_none());
        node.kill9();
        node.wait_exit(LONG);

        place.zk.remove(&place.path(&format!("/cronkeeper/history/{name}/{run}")));
        let record = serde_json::to_vec(&in_flight).expect("it was JSON");
        place.zk.make(&place.path(&format!("/cronkeeper/running/{run}")), &record);
        let node = again(node);
        node.await_event("takeover.done", LONG);
        assert_eq!(place.await_end(&run)["outcome"], "success");
        until("it is no longer in flight", || place.running(&run).is_none());
        assert!(node.events().named("run.started").is_empty(), "{name}");
        assert_eq!(std::fs::read_to_string(&begun).expect("it ran"), "begun\n", "{name}");
    }
}

/// The transaction with the run's begin is gone, and with it the job's mark.
#[test]
fn a_run_and_a_mark_that_the_servers_have_lost_are_written_again_and_nothing_runs_twice() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let files = Scratch::new("files");
    let (begun, gate) = (files.path().join("begun"), files.path().join("gate"));
    let wait = format!("'echo begun >> {}; until [ -e {} ]; do sleep 0.1; done'", begun.display(), gate.display());
    let spec = usual(node("a", &lines.connect()));
    let node = spec.jobs(&jobs(&[once("plain", soon(), &wait, "misfire_window: 1h")])).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    let mark = place.path("/cronkeeper/jobs/plain");
    let marked = place.zk.json(&mark).expect("its mark is written");

    place.zk.remove(&place.path(&format!("/cronkeeper/running/{run}")));
    node.await_where("coordination.rewound", LONG, |event| event.json()["run"] == run.as_str());
    until("it is in flight again", || place.running(&run).is_some());

    let mut old = marked.clone();
    old["last_scheduled"] = "2026-01-01T00:00:00Z".into();
    place.zk.remove(&mark);
    place.zk.make(&mark, &serde_json::to_vec(&old).expect("it was JSON"));
    lines.cut();
    node.await_where("coordination.rewound", LONG, |event| event.json()["mark"].is_string());
    until("its mark is written again", || {
        place.zk.json(&mark).is_some_and(|now| now["last_scheduled"] == marked["last_scheduled"])
    });
    files.write("gate", "");
    assert_eq!(place.await_end(&run)["outcome"], "success");
    until("it is no longer in flight", || place.running(&run).is_none());
    assert_eq!(node.events().named("run.started").len(), 1);
    assert_eq!(std::fs::read_to_string(&begun).expect("it ran"), "begun\n");
}

/// Copies the files of a server, which is not running.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for file in std::fs::read_dir(from).expect("the server has files") {
        let file = file.expect("it can be listed");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("it can be copied");
    }
}

/// Also of jobs whose runs nobody alive knows: their node is gone for good.
#[test]
fn what_is_restored_from_a_backup_is_noted_and_nothing_that_may_have_run_is_begun() {
    let ensemble = Ensemble::start(1);
    let mut place = Place::on(&ensemble);
    let files = Scratch::new("files");
    let begun = files.path().join("begun");
    let spec = |name: &str| {
        let append = format!("'echo $CRONKEEPER_RUN_ID >> {}'", begun.display());
        usual(place.node(name)).jobs(&jobs(&[job("each", "* * * * * *", &append, "misfire: run-all")]))
    };
    let runs = || std::fs::read_to_string(&begun).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let await_more = || {
        let known = runs().len();
        until("three more have run", || runs().len() >= known + 3);
    };
    let gone = spec("gone").start();
    gone.await_event("takeover.done", LONG);
    await_more();

    ensemble.kill(0);
    let (data, backup) = (ensemble.data_of(0), files.path().join("backup"));
    copy(&data, &backup);
    ensemble.restart(0);
    ensemble.await_serving();
    await_more();
    gone.kill9();
    gone.wait_exit(LONG);
    let knows = spec("knows").start();
    knows.await_event("takeover.done", LONG);
    await_more();

    ensemble.kill(0);
    let restored_at = Timestamp::now();
    std::fs::remove_dir_all(&data).expect("it can be removed");
    copy(&backup, &data);
    ensemble.restart(0);
    ensemble.await_serving();
    knows.await_event("coordination.rewound", LONG);
    place.reconnect();
    let marker = place.path("/cronkeeper/rewound");
    until("it is noted", || place.zk.json(&marker).is_some());
    let until_when = place.zk.json(&marker).expect("it is there")["until"].as_str().map(str::to_owned);
    let until_when: Timestamp = until_when.and_then(|at| at.parse().ok()).expect("it is a time");
    assert!(until_when > restored_at, "{until_when}");
    await_more();
    let (all, once_each) = (runs(), runs().into_iter().collect::<BTreeSet<_>>());
    assert_eq!(all.len(), once_each.len(), "{all:?}");
}
