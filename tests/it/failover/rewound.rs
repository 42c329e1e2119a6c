//! Servers that have lost what they had acknowledged.

use super::cluster::{Lines, Place, again, jobs, node, once, shared, soon, usual};
use crate::support::scratch::Scratch;
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
