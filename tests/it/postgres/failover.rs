//! Servers that take over from others: with every commit, or without the newest ones.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::monitoring::await_value;
use crate::support::LONG;
use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::node::{Event, Node, Spec};
use crate::support::postgres::Server;
use crate::support::scratch::Scratch;
use crate::support::until;
use crate::support::witness::Witness;

/// A database on two servers, of which the second one follows the first.
pub struct Pair {
    pub primary: Server,
    pub standby: Server,
}

impl Pair {
    pub fn start() -> Self {
        let primary = Server::start(&["fsync = on"], &[]);
        let standby = primary.standby();
        Self { primary, standby }
    }

    fn connect_string(&self) -> String {
        let (first, second) = (self.primary.port(), self.standby.port());
        format!("host=127.0.0.1,127.0.0.1 port={first},{second} dbname=postgres user=postgres")
    }

    pub fn node(&self, name: &str, witness: &Witness) -> Spec {
        let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
        let spec = Spec::new(CRONKEEPER, name).postgres(&self.connect_string()).jobs(&jobs);
        spec.option("--session-timeout", "4s")
    }
}

/// Ends all connections of nodes.
const DISCONNECT: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cronkeeper'";

/// How many skips with this reason the history has on a server.
fn skipped(server: &Server, reason: &str) -> usize {
    let sql = format!(
        "SELECT count(*) FROM cronkeeper.record \
         WHERE parent = '/cronkeeper/history/tick' AND convert_from(data, 'UTF8') LIKE '%\"reason\":\"{reason}\"%'"
    );
    server.sql("postgres", &sql).parse().expect("it is a number")
}

#[test]
fn a_server_whose_failover_loses_commits_is_refused_unless_that_is_accepted() {
    let (pair, dir) = (Pair::start(), Scratch::new("refused"));
    let (jobs, state) = (dir.write("jobs.yaml", "jobs: {}\n"), dir.path().join("state"));
    let connect = pair.connect_string();
    let line = ["run", "--postgres", &connect, "--log", "off", "--jobs", jobs.to_str().unwrap(), "--state-dir"];
    let (code, _, err) = texts(&run(&[&line[..], &[state.to_str().unwrap()]].concat()));
    assert_eq!(code, Some(78), "{err}");
    for part in ["standbys that no commit waits for", "`synchronous_standby_names`", "--accept-rewind"] {
        assert!(err.contains(part), "{err}");
    }
    let accepted = pair.node("a", &Witness::new()).start();
    let examined = accepted.await_event("coordination.examined", LONG);
    assert_eq!(examined.json()["may_rewind"], true, "{:?}", examined.json());
    pair.primary.set("synchronous_standby_names", "*");
    let waiting = pair.node("b", &Witness::new()).start();
    let examined = waiting.await_event("coordination.examined", LONG);
    assert_eq!(examined.json()["may_rewind"], false, "{:?}", examined.json());
}

#[test]
fn while_the_server_is_dead_the_log_has_a_line_for_each_reason() {
    let mut server = Server::start(&[], &[]);
    let connect = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", server.port());
    let spec = Spec::new(CRONKEEPER, "a").postgres(&connect).jobs("jobs: {}").option("--session-timeout", "4s");
    let node = spec.start();
    node.await_event("takeover.done", LONG);
    server.kill();
    // A change of the reason is reported once per session timeout, and by then the session may have expired.
    let is_refused = |event: &Event| event.text("error").contains("refused");
    let lines = ["coordination.suspended", "coordination.unreachable"];
    until("the node says why", || lines.iter().any(|name| node.events().named(name).iter().any(is_refused)));
    server.start_again();
    // Whether the session survives depends on how long the server needs.
    let count = |name| node.events().count(name);
    until("the node leads again", || count("coordination.resumed") > 0 || count("leader.elected") == 2);
    let (events, mut reasons) = (node.events(), BTreeSet::new());
    assert_eq!(events.count("log"), 0, "no library speaks: {}", events.tail());
    for event in events.named("coordination.suspended") {
        assert!(event.text("message").chars().count() <= 160, "{:?}", event.json());
        assert!(reasons.insert(event.text("error").to_owned()), "{}", events.tail());
    }
}

#[test]
fn a_commit_is_worth_as_much_as_it_waits_for_of_the_standbys_that_may_take_over() {
    let primary = Server::start(&["fsync = on"], &[]);
    let standbys = [primary.standby(), primary.standby()];
    let connect = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", primary.port());
    for (setting, waits, is_safe) in [
        ("*", "1 of 2", false),
        ("FIRST 1 (*)", "1 of 2", false),
        ("ANY 1 (walreceiver)", "1 of 2", false),
        ("ANY 2 (*)", "2 of 2", true),
        ("FIRST 2 (a, walreceiver)", "2 of 3", false),
    ] {
        primary.set("synchronous_standby_names", setting);
        let (code, out, err) = texts(&run(&["check", "--service", "--postgres", &connect]));
        assert_eq!(code, Some(if is_safe { 0 } else { 78 }), "{setting}: {out}{err}");
        let said = format!("each commit waits for {waits} standbys (`{setting}`)");
        assert!(format!("{out}{err}").contains(&said), "{setting}: {out}{err}");
        assert!(is_safe || err.contains("set `synchronous_standby_names` to `FIRST "), "{setting}: {err}");
    }
    drop(standbys);
}

#[test]
fn what_a_commit_is_worth_is_examined_again_after_a_reconnect() {
    let (pair, witness) = (Pair::start(), Witness::new());
    pair.primary.set("synchronous_standby_names", "*");
    let node = pair.node("a", &witness).start();
    let examined = node.await_event("coordination.examined", LONG);
    assert_eq!(examined.json()["may_rewind"], false, "{:?}", examined.json());
    node.await_event("leader.elected", LONG);
    pair.primary.set("synchronous_standby_names", "");
    pair.primary.sql("postgres", DISCONNECT);
    let begun = Instant::now();
    node.await_where("coordination.examined", LONG, |event| event.json()["may_rewind"] == true);
    assert!(begun.elapsed() < Duration::from_secs(50), "it waits for the look of each minute");
    await_value(node.spec(), "coordination_may_rewind", |value| value > 0.5);
    assert_eq!(node.events().count("coordination.expired"), 0, "the session has lasted");
}

#[test]
fn a_node_that_is_not_told_any_more_what_a_commit_is_worth_says_so_and_goes_on() {
    let (pair, witness) = (Pair::start(), Witness::new());
    pair.primary.set("synchronous_standby_names", "*");
    let node = pair.node("a", &witness).start();
    node.await_event("leader.elected", LONG);
    pair.primary.sql("postgres", "COMMENT ON SCHEMA cronkeeper IS 'of others'");
    until("it is said", || {
        pair.primary.sql("postgres", DISCONNECT);
        witness.await_more(2);
        node.events().count("coordination.unexamined") > 0
    });
    let said = node.await_event("coordination.unexamined", LONG);
    let error = said.json()["error"].as_str().unwrap_or_default();
    assert!(error.contains("is not cronkeeper's"), "{:?}", said.json());
    assert_eq!(node.events().count("coordination.examined"), 1, "what was found before stands");
    witness.await_more(2);
    witness.assert_fine(&[]);
}

#[test]
fn a_promoted_standby_without_the_newest_commits_is_noticed_and_nothing_runs_twice() {
    let (pair, witness) = (Pair::start(), Witness::new());
    let node = |name| pair.node(name, &witness).start();
    let a = node("a");
    a.await_event("leader.elected", LONG);
    let b = node("b");
    b.await_event("election.following", LONG);
    witness.await_more(2);
    pair.standby.cut_off();
    // These runs are in commits that the standby does not have.
    witness.await_more(3);
    let Pair { primary, standby } = pair;
    drop(primary);
    standby.promote();
    let rewound = |node: &Node| node.events().count("coordination.rewound") > 0;
    until("the loss is noticed", || rewound(&a) || rewound(&b));
    until("what may have begun is skipped", || skipped(&standby, "rewound") > 0);
    witness.await_more(2);
    witness.assert_fine(&[]);
}

#[test]
fn a_promoted_standby_that_each_commit_waited_for_has_lost_nothing() {
    let (pair, witness) = (Pair::start(), Witness::new());
    pair.primary.set("synchronous_standby_names", "*");
    let a = pair.node("a", &witness).start();
    a.await_event("leader.elected", LONG);
    let b = pair.node("b", &witness).start();
    b.await_event("election.following", LONG);
    witness.await_more(3);
    let Pair { primary, standby } = pair;
    drop(primary);
    standby.promote();
    witness.await_more(3);
    witness.assert_fine(&[]);
    assert_eq!(skipped(&standby, "rewound"), 0);
    for node in [&a, &b] {
        assert_eq!(node.events().count("coordination.rewound"), 0);
    }
}
