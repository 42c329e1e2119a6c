//! A database that is restored from a backup.

use rustix::process::Signal;

use crate::support::LONG;
use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::node::Spec;
use crate::support::postgres::Server;
use crate::support::witness::Witness;

#[test]
fn a_restored_backup_is_noticed_by_running_nodes_and_by_those_that_were_stopped_and_nothing_runs_twice() {
    let (server, witness) = (Server::start(&["fsync = on"], &[]), Witness::new());
    let database = server.database();
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let node = |name| {
        let spec = Spec::new(CRONKEEPER, name).postgres(&database.connect_string()).jobs(&jobs);
        spec.option("--session-timeout", "4s")
    };
    let a = node("a").start();
    a.await_event("leader.elected", LONG);
    let b = node("b").start();
    b.await_event("election.following", LONG);
    witness.await_more(2);
    let backup = database.back_up();
    // These runs are in commits that the backup does not have.
    witness.await_more(3);
    database.restore(&backup);
    for node in [&a, &b] {
        let event = node.await_event("coordination.rewound", LONG);
        let event = event.json();
        assert!(event["until"].is_string() && event["revision"].is_i64(), "it is named: {event}");
    }
    witness.await_more(2);
    let skipped = || {
        let runtime = a.spec().runtime_dir();
        let runtime = runtime.to_str().expect("the path is text");
        let (_, out, _) = texts(&run(&["history", "tick", "-n", "1000", "--json", "--runtime-dir", runtime]));
        out.matches(r#""reason":"rewound""#).count()
    };
    assert!(skipped() > 0, "what may have run is skipped");
    // Once more, while nobody runs: the state directories remember.
    let backup = database.back_up();
    witness.await_more(3);
    let stopped = [b, a].map(|node| {
        node.signal(Signal::TERM);
        assert_eq!(node.wait_exit(LONG).code(), Some(0));
        node
    });
    database.restore(&backup);
    let started = stopped.map(|node| node.again());
    for node in &started {
        node.await_event("coordination.rewound", LONG);
    }
    witness.await_more(2);
    witness.assert_fine(&[]);
}
