//! The Debian package on three hosts, as the README says: installed, upgraded while a job runs, removed.
//!
//! `.ci/package --test` builds two versions and names them in CRONKEEPER_PACKAGES; without them nothing is tested.

use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use super::SESSION;
use super::host::Host;
use crate::support::node::Event;
use crate::support::{Facility, skipped, until};

const UNIT: &str = "cronkeeper.service";

/// Each host keeps its own list of the occurrences that it started. All that were missed are made up.
const TICKER: &str = "\
jobs:
  ticker:
    schedule: '@every 1s'
    misfire: run-all
    misfire_window: 1h
    command: echo $CRONKEEPER_SCHEDULED_AT >>/tmp/ran
";

/// The files of the packages: the older version, then the newer one.
fn packages() -> Option<[PathBuf; 2]> {
    let files = std::env::var("CRONKEEPER_PACKAGES").ok()?;
    files.split_whitespace().map(PathBuf::from).collect::<Vec<_>>().try_into().ok()
}

fn install(host: &Host, package: &Path) {
    host.copy(package, "/tmp/cronkeeper.deb");
    // The triggers of other packages, such as the index of manual pages, take longer than the rest.
    host.done(&["dpkg", "--no-triggers", "--install", "/tmp/cronkeeper.deb"]);
}

fn version(host: &Host) -> String {
    host.done(&["dpkg-query", "--show", "--showformat=${Version}", "cronkeeper"])
}

/// Settings, jobs and start, as in the README.
fn start(host: &Host, servers: &str) {
    let settings = host.read("/etc/cronkeeper/cronkeeper.env");
    assert!(settings.contains("CRONKEEPER_DRAIN_TIMEOUT"), "{settings}");
    let own = format!("CRONKEEPER_ZOOKEEPER={servers}\nCRONKEEPER_LOG_FORMAT=json\n");
    host.write("/etc/cronkeeper/cronkeeper.env", &format!("{settings}{own}"));
    host.done(&["cronkeeper", "check"]);
    host.write("/etc/cronkeeper/jobs.yaml", TICKER);
    host.done(&["cronkeeper", "check"]);
    host.done(&["systemctl", "daemon-reload"]);
    host.done(&["systemctl", "enable", "--now", "cronkeeper"]);
}

/// The instants whose runs were started, on all hosts, in order.
fn ran(hosts: &[Host]) -> Vec<Timestamp> {
    let lists: Vec<String> = hosts.iter().map(|host| host.read("/tmp/ran")).collect();
    // The last line may be half written.
    let lines = lists.iter().flat_map(|list| list.split_inclusive('\n')).filter_map(|line| line.strip_suffix('\n'));
    let mut instants: Vec<Timestamp> = lines.map(|line| line.parse().expect("an instant")).collect();
    instants.sort();
    instants
}

fn await_runs(hosts: &[Host], more: usize) {
    let wanted = ran(hosts).len() + more;
    until("the job runs", || ran(hosts).len() >= wanted);
}

#[test]
fn three_hosts_are_upgraded_in_turn_and_no_occurrence_is_lost_doubled_or_late() {
    let Some([older, newer]) = packages() else {
        let why = "CRONKEEPER_PACKAGES names no packages; .ci/package --test builds and tests them";
        return skipped(Facility::Packages, why);
    };
    let hosts: Vec<Host> = ["first", "second", "third"].into_iter().map_while(Host::bare_or_skip).collect();
    if hosts.len() < 3 {
        return;
    }
    let servers = super::shared();
    for (at, host) in hosts.iter().enumerate() {
        install(host, &older);
        assert!(!host.run(&["systemctl", "is-active", UNIT]).status.success(), "installing starts nothing");
        assert!(!host.run(&["systemctl", "is-enabled", UNIT]).status.success(), "installing enables nothing");
        start(host, &servers);
        let role = if at == 0 { "leader.elected" } else { "election.following" };
        host.await_event(0, &host.node(None), role);
    }
    await_runs(&hosts, 3);

    let before = version(&hosts[0]);
    for host in &hosts {
        let seen = host.seen();
        install(host, &newer);
        assert_ne!(version(host), before);
        host.await_event(seen, &host.node(None), "node.started");
        host.await_event(seen, &host.node(None), "election.following");
        assert!(host.read("/etc/cronkeeper/jobs.yaml").contains("ticker"), "the configuration is kept");
        await_runs(&hosts, 3);
    }
    for host in &hosts {
        host.done(&["systemctl", "stop", UNIT]);
    }

    let ran = ran(&hosts);
    for (earlier, later) in ran.iter().zip(&ran[1..]) {
        assert_eq!(later.duration_since(*earlier), SignedDuration::from_secs(1), "after {earlier}: {ran:#?}");
    }
    let events: Vec<Event> = hosts.iter().flat_map(Host::events).collect();
    assert_eq!(events.iter().filter(|event| event.name() == "run.skipped").count(), 0);
    let late =
        events.iter().filter(|event| event.name() == "run.started").filter_map(|event| event.number("lateness_ms"));
    let latest = late.max().expect("runs have a lateness");
    eprintln!("{} occurrences, each started once; the latest start was {latest} ms late", ran.len());
    // On a quiet machine it is less than 100 ms; a loaded one must still not wait for a session to expire.
    assert!(u128::try_from(latest).is_ok_and(|latest| latest < SESSION.as_millis() / 2), "{latest} ms");

    let there = |path: &str| hosts[0].run(&["test", "-e", path]).status.success();
    hosts[0].done(&["dpkg", "--no-triggers", "--remove", "cronkeeper"]);
    let left = ["/usr/bin/cronkeeper", "/etc/cronkeeper/jobs.yaml", "/var/lib/cronkeeper"].map(there);
    assert_eq!(left, [false, true, true], "a removal keeps configuration and state");
    hosts[0].done(&["dpkg", "--no-triggers", "--purge", "cronkeeper"]);
    assert_eq!(["/etc/cronkeeper", "/var/lib/cronkeeper"].map(there), [false, false], "a purge removes both");
}
