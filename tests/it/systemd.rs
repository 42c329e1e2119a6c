//! The unit files under a real systemd: daemons that die or hang, stops, and reloads.
//!
//! Each test has a simulated host of its own, on which the three nodes of a cluster run as three units; ZooKeeper runs
//! outside. The nodes have the default session timeout, so anything that takes far less time did not wait for
//! ZooKeeper.

use std::process::Output;
use std::time::Duration;

use jiff::Timestamp;

use self::host::Host;
use crate::support::node::Event;
use crate::support::zookeeper::shared;
use crate::support::{Facility, skipped};

mod host;
mod journal;
mod package;

/// The session timeout of the nodes: the default.
const SESSION: Duration = Duration::from_secs(10);

const SLEEPER: &str = "jobs: {sleeper: {schedule: '@every 1s', command: [sleep, '1000']}}";

/// A job that runs until it is asked to end.
const WAITER: &str = "jobs: {waiter: {schedule: '@every 1s', command: 'until [ -e /tmp/done ]; do sleep 0.1; done'}}";

const TICKER: &str = "jobs: {ticker: {schedule: '@every 1s', command: ['true']}}";

/// The unit of the first node, which becomes the leader.
const FIRST: &str = "cronkeeper.service";

/// A cluster whose nodes are units of one host.
struct Cluster {
    host: Host,
    servers: String,
}

impl Cluster {
    /// Starts a cluster; the first node leads, `others` follow. `None` if this machine cannot run systemd.
    fn or_skip(name: &'static str, jobs: &str, others: &[&str]) -> Option<Self> {
        let cluster = Self { host: Host::or_skip(name)?, servers: shared() };
        cluster.set_up("cronkeeper", "jobs", jobs);
        cluster.host.done(&["systemd-sysusers", "/etc/sysusers.d/cronkeeper.conf"]);
        cluster.host.done(&["systemctl", "enable", "--now", FIRST]);
        cluster.host.await_event(0, &cluster.host.node(None), "leader.elected");
        for other in others {
            cluster.set_up(other, other, jobs);
            cluster.host.done(&["systemctl", "enable", "--now", &format!("cronkeeper@{other}")]);
            cluster.host.await_event(0, &cluster.host.node(Some(other)), "election.following");
        }
        Some(cluster)
    }

    /// Writes the packaged settings with the necessary additions, and the jobs file.
    fn set_up(&self, settings: &str, jobs: &str, yaml: &str) {
        let packaged = include_str!("../../systemd/cronkeeper.env");
        let own = format!("CRONKEEPER_ZOOKEEPER={}\nCRONKEEPER_LOG_FORMAT=json\n", self.servers);
        self.host.write(&format!("/etc/cronkeeper/{settings}.env"), &format!("{packaged}{own}"));
        self.host.write(&format!("/etc/cronkeeper/{jobs}.yaml"), yaml);
    }

    fn leader(&self) -> String {
        self.host.node(None)
    }

    /// The record of a run in the history, as this instance's node returns it.
    fn history(&self, instance: &str, run: &str) -> serde_json::Value {
        let runtime = format!("/run/cronkeeper/{instance}");
        let all = self.host.done(&["cronkeeper", "history", "--json", "--runtime-dir", &runtime]);
        let records =
            all.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object a line"));
        records.into_iter().find(|record| record["run"] == run).unwrap_or_else(|| panic!("{run} is not in {all}"))
    }
}

fn instant(event: &Event) -> Timestamp {
    event.text("timestamp").parse().expect("each line has its instant")
}

fn since(at: Timestamp, before: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(before)).expect("it was later")
}

#[track_caller]
fn assert_refused(output: &Output) {
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn when_a_daemon_is_killed_the_next_leads_at_once_and_systemd_restarts_it() {
    let Some(cluster) = Cluster::or_skip("killed", SLEEPER, &["east", "west"]) else { return };
    let (host, leader) = (&cluster.host, cluster.leader());
    let run = host.await_event(0, &leader, "run.started").text("run").to_owned();
    let (seen, killed) = (host.seen(), Timestamp::now());
    host.done(&["systemctl", "kill", "--kill-whom=main", "--signal=KILL", FIRST]);

    let elected = instant(&host.await_event(seen, &host.node(Some("east")), "leader.elected"));
    assert!(since(elected, killed) < SESSION / 2, "the session was waited for: {:?}", since(elected, killed));
    let said = format!("released everything that node `{leader}` held");
    host.await_line(seen, "release says what it gave up", |event| event.plain() == said);
    let started = instant(&host.await_event(seen, &leader, "node.started"));
    assert!(elected < started, "it was `release`, and not the restart, that gave leadership up");
    host.await_event(seen, &leader, "election.following");
    assert_eq!(host.property(FIRST, "NRestarts"), "1");
    let record = cluster.history("east", &run);
    assert_eq!((&record["outcome"], &record["reason"]), (&"interrupted".into(), &"node-died".into()));
}

/// The memory of the daemon has its token and the secrets of jobs. A job may raise its own limit.
#[test]
fn both_units_keep_the_daemon_from_dumping_core() {
    for unit in [include_str!("../../systemd/cronkeeper.service"), include_str!("../../systemd/cronkeeper@.service")] {
        assert!(unit.lines().any(|line| line == "LimitCORE=0:infinity"), "{unit}");
    }
}

#[test]
fn when_a_daemon_hangs_the_watchdog_ends_it_before_its_session_ends() {
    let Some(cluster) = Cluster::or_skip("hung", SLEEPER, &["east"]) else { return };
    let (host, leader) = (&cluster.host, cluster.leader());
    host.await_event(0, &leader, "run.started");
    let (seen, stopped) = (host.seen(), Timestamp::now());
    host.done(&["systemctl", "kill", "--kill-whom=main", "--signal=STOP", FIRST]);

    let elected = instant(&host.await_event(seen, &host.node(Some("east")), "leader.elected"));
    assert!(since(elected, stopped) < SESSION, "the session was waited for: {:?}", since(elected, stopped));
    host.await_event(seen, &leader, "election.following");
    assert_eq!(host.property(FIRST, "NRestarts"), "1");
}

#[test]
fn a_stop_hands_leadership_over_and_waits_for_running_jobs() {
    let Some(cluster) = Cluster::or_skip("stopped", WAITER, &["east"]) else { return };
    let (host, leader) = (&cluster.host, cluster.leader());
    let run = host.await_event(0, &leader, "run.started").text("run").to_owned();
    let seen = host.seen();
    host.done(&["systemctl", "stop", "--no-block", FIRST]);

    let resigned = instant(&host.await_event(seen, &leader, "leader.resigned"));
    let elected = instant(&host.await_event(seen, &host.node(Some("east")), "leader.elected"));
    assert!(since(elected, resigned) < SESSION / 2);
    assert_eq!(host.property(FIRST, "ActiveState"), "deactivating");
    host.write("/tmp/done", "");
    let end = host.await_event(seen, &leader, "run.finished");
    assert_eq!((end.text("run"), end.text("outcome")), (run.as_str(), "success"));
    host.await_property(FIRST, "ActiveState", "inactive");
    let how = ["Result", "ExecMainCode", "ExecMainStatus"].map(|property| host.property(FIRST, property));
    assert_eq!(how, ["success", "1", "0"], "it ended by itself, with 0");
}

#[test]
fn a_reload_with_an_invalid_file_is_refused_and_the_jobs_go_on() {
    let Some(cluster) = Cluster::or_skip("reloaded", TICKER, &[]) else { return };
    let (host, leader) = (&cluster.host, cluster.leader());
    host.write("/etc/cronkeeper/jobs.yaml", "jobs: {ticker: {schedule: '61 * * * *', command: ['true']}}");
    let seen = host.seen();
    assert_refused(&host.run(&["systemctl", "reload", FIRST]));
    host.await_line(seen, "what is wrong, and where", |line| line.plain().contains("/etc/cronkeeper/jobs.yaml:1:"));
    host.await_event(host.seen(), &leader, "run.started");
    assert_eq!(host.property(FIRST, "ActiveState"), "active");

    host.write("/etc/cronkeeper/jobs.yaml", &TICKER.replace("ticker", "other"));
    host.done(&["systemctl", "reload", FIRST]);
    host.await_line(seen, "the other job runs", |event| event.name() == "run.started" && event.text("job") == "other");
}

#[test]
fn settings_that_protect_the_daemon_do_not_restrict_jobs() {
    let look = "umask; cat /proc/self/oom_score_adj; grep ^NoNewPrivs: /proc/self/status; echo done";
    let jobs = format!("jobs: {{looker: {{schedule: '@every 1s', command: '{look}'}}}}");
    let Some(cluster) = Cluster::or_skip("kept", &jobs, &[]) else { return };
    let (host, leader) = (&cluster.host, cluster.leader());
    let run = host.await_event(0, &leader, "run.started").text("run").to_owned();
    let of_run = |event: &Event, name: &str| event.name() == name && event.text("run") == run;
    host.await_line(0, "the run's end", |event| of_run(event, "run.finished"));
    for line in ["0022", "0", "NoNewPrivs:\t0"] {
        host.await_line(0, line, |event| of_run(event, "run.output") && event.text("line") == line);
    }
    let daemon = format!("/proc/{}/status", host.property(FIRST, "MainPID"));
    assert_eq!(host.done(&["grep", "^Umask:", &daemon]), "Umask:\t0077");
    assert_eq!(host.done(&["stat", "-c", "%a", "/run/cronkeeper"]), "711");
    assert_eq!(host.done(&["stat", "-c", "%a %U %G", "/run/cronkeeper/api.sock"]), "660 root cronkeeper");
}

#[test]
fn all_jobs_together_have_fewer_processes_than_the_unit() {
    let Some(cluster) = Cluster::or_skip("crowded", SLEEPER, &[]) else { return };
    let host = &cluster.host;
    let of_jobs = "cat /sys/fs/cgroup/system.slice/cronkeeper.service/cronkeeper.*/jobs/pids.max";
    let of_jobs = host.run(&["sh", "-c", of_jobs]);
    if !of_jobs.status.success() {
        return skipped(Facility::Controllers, "the controllers of memory and processes are not in use here");
    }
    let of_unit: u64 = host.property(FIRST, "TasksMax").parse().expect("the unit has a limit");
    let of_jobs: u64 = String::from_utf8_lossy(&of_jobs.stdout).trim().parse().expect("jobs have one too");
    assert_eq!(of_unit - of_jobs, 128);
}

#[test]
fn nothing_is_left_of_a_dropped_host() {
    let Some(host) = Host::or_skip("dropped") else { return };
    let (process, cgroup) = (host.process(), host.cgroup());
    // If nobody reaps orphans, zombies remain: they have no program.
    let is_there = || (std::fs::read_link(process.join("exe")).is_ok(), cgroup.exists());
    assert_eq!(is_there(), (true, true), "{process:?}, {cgroup:?}");
    drop(host);
    assert_eq!(is_there(), (false, false), "{process:?}, {cgroup:?}");
}

#[test]
fn without_servers_in_its_settings_the_unit_fails_and_is_not_restarted() {
    let Some(host) = Host::or_skip("unset") else { return };
    host.write("/etc/cronkeeper/jobs.yaml", TICKER);
    assert_refused(&host.run(&["systemctl", "start", FIRST]));
    let how = ["ActiveState", "ExecMainStatus", "NRestarts"].map(|property| host.property(FIRST, property));
    assert_eq!(how, ["failed", "2", "0"]);
}
