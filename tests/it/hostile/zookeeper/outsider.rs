//! A client without rights to a cluster's tree: every operation on every znode is refused.

use zookeeper_client::Client;

use crate::failover::cluster::{Zk, in_line, job, jobs, node, usual};
use crate::failover::records::{SELDOM, await_ticks};
use crate::failover::start::with_credential;
use crate::support::command::run;
use crate::support::node::Node;
use crate::support::until;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;

const CREDENTIAL: &str = "cron:secret";
const CHROOT: &str = "/secured";

/// Parent znodes that must have children. Triggers are not among them because they disappear too quickly.
const FOLDERS: [&str; 6] = [
    "/leader",
    "/cronkeeper/nodes",
    "/cronkeeper/jobs",
    "/cronkeeper/running",
    "/cronkeeper/history/tick",
    "/cronkeeper/control",
];

fn ask(node: &Node, line: &[&str]) {
    let directory = node.spec().runtime_dir();
    let output = run(&[line, &["--runtime-dir", directory.to_str().expect("a text")]].concat());
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_client_without_rights_is_refused_whatever_it_tries_on_whatever_path() {
    let ensemble = Ensemble::start(1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be had");
    let place = runtime.block_on(ensemble.secured(CREDENTIAL));
    let witness = Witness::new();
    let file = jobs(&[
        job("tick", "* * * * * *", &witness.command(&[]), ""),
        job("long", "* * * * * *", "[sleep, '3600']", ""),
        job("paused", SELDOM, "['true']", ""),
    ]);
    let specs = ["a", "b"].map(|name| with_credential(usual(node(name, &place)).jobs(&file), "digest:cron:secret"));
    let [leader, follower] = in_line(specs.each_ref().map(|(_, spec)| spec.clone()));
    ask(&follower, &["pause", "paused"]);
    ask(&follower, &["trigger", "paused"]);

    let connect = ensemble.connect_string();
    let owner = Zk::with(Client::connector().with_auth("digest", CREDENTIAL.as_bytes()), &connect);
    let holds = |folder: &str| !owner.children(&format!("{CHROOT}{folder}")).is_empty();
    until("every folder holds something", || FOLDERS.iter().all(|folder| holds(folder)));
    // Without the chroot itself: it cannot be deleted while it has children, and its parent znode decides who may try.
    let paths: Vec<String> = owner.walk(CHROOT).split_off(1);
    let strangers = [
        ("without an identity", Client::connector()),
        ("with another", Client::connector().with_auth("digest", b"other:secret")),
        ("with the user's name alone", Client::connector().with_auth("digest", b"cron:guess")),
    ];
    for (who, connector) in strangers {
        let stranger = Zk::with(connector, &connect);
        let allowed = paths.iter().map(|path| (path, stranger.may(path))).filter(|(_, what)| !what.is_empty());
        let allowed: Vec<_> = allowed.collect();
        assert!(allowed.is_empty(), "{who} it may {allowed:#?}");
    }
    // Otherwise the test would also pass if the operations failed for other reasons.
    let own = owner.may(&format!("{CHROOT}/cronkeeper/jobs/tick"));
    assert!(own.contains(&"read") && own.contains(&"write") && own.contains(&"set the access list of"), "{own:?}");
    await_ticks(&witness, &[&leader, &follower]);
    for node in [&leader, &follower] {
        assert!(node.events().named("coordination.damaged").is_empty(), "{}", node.events().tail());
    }
    witness.assert_fine(&[]);
}
