//! Servers that have lost what they had acknowledged.

use super::cluster::{Place, again, jobs, once, soon, usual};
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

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
        let in_flight = place.running(&run).expect("it is in flight");
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
