//! Attempts that the leader places on nodes: where, when, how often, and what becomes of those that are not accepted.

mod cluster;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use self::cluster::{Cluster, name};
use super::fixture::{LEASE, at, job, running};
use crate::clock::server::ServerTime;
use crate::election;
use crate::engine::{Event, Report};
use crate::job::{Group, Interrupted, Job, JobName, OnLeaseEnd, Overlap, Requirement, RunOn, RunWhere, Splay};
use crate::ledger::{self, Change, ControlEntry, OwnerState};
use crate::process::Exit;
use crate::run::{ControlRecord, Drain, NodeControl, Pause, RefusalReason, RunId, RunState, Version};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A job that any node may run, every second.
fn any(name: &str) -> Job {
    Job { run_on: RunOn::Any, ..job(name, "* * * * * *") }
}

/// The same, due once at 10:00:01.
fn once(name: &str) -> Job {
    Job { run_on: RunOn::Any, ..job(name, "1 0 10 * * *") }
}

fn on(parts: &[&str], job: Job) -> Job {
    let run_where = RunWhere(parts.iter().map(|part| Requirement::parse(part).unwrap()).collect());
    Job { run_where, ..job }
}

/// An operator drains the node, which knows it before the others do.
fn drain(cluster: &mut Cluster, index: usize) {
    let drain = Drain { by: "alice".into(), at: at("10:00:00"), reason: None };
    let wanted = NodeControl { drained: Some(drain), ..NodeControl::default() };
    cluster.handle(index, Event::Election(election::Event::Wanted(wanted)));
}

fn counts(cluster: &Cluster) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, _, node, _) in &cluster.started {
        *counts.entry(node.to_string()).or_default() += 1;
    }
    counts
}

#[test]
fn an_occurrence_is_placed_accepted_and_started_at_its_time_on_one_node() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![once("a")]);
    cluster.run_for(SECOND - 5 * MS);
    assert_eq!(cluster.started_on("a"), Vec::<String>::new());
    let held: Vec<usize> = (0..3).map(|index| cluster.node(index).running.len()).collect();
    assert_eq!(held.iter().sum::<usize>(), 1, "it is prepared: {held:?}");
    cluster.run_for(5 * MS);
    assert_eq!(cluster.started_on("a").len(), 1);
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    assert_eq!((record.state, record.attempt, record.v), (RunState::Running, 1, 3));
    let own = record.owner.node.clone();
    let index = (0..3).find(|&index| name(index) == own).unwrap();
    assert!(cluster.end_one(index, Exit::Code(0)));
    cluster.run_for(2 * SECOND);
    assert!(cluster.ledger.running.is_empty() && cluster.ledger.offers.is_empty());
    assert_eq!((cluster.ledger.history.len(), cluster.started.len()), (1, 1));
}

#[test]
fn a_burst_is_spread_evenly_and_by_weight() {
    let jobs: Vec<Job> = (0..100).map(|number| once(&format!("j{number}"))).collect();
    let mut cluster = Cluster::led(5, "10:00:00", jobs.clone());
    cluster.run_for(2 * SECOND);
    let even = counts(&cluster);
    assert!(even.values().all(|&count| count == 20), "{even:?}");
    let mut cluster = Cluster::new(3, "10:00:00", jobs.clone());
    for (index, weight) in [(0, 1), (1, 2), (2, 4)] {
        cluster.become_node(index, jobs.clone(), &[], weight);
    }
    cluster.elect(0);
    cluster.run_for(2 * SECOND);
    let weighed = counts(&cluster);
    assert!((13..=16).contains(&weighed["host-a"]) && (27..=30).contains(&weighed["host-b"]), "{weighed:?}");
}

#[test]
fn more_than_nodes_accept_at_once_waits_for_room_and_blocks_no_other_job() {
    let mut jobs: Vec<Job> = (0..600).map(|number| once(&format!("j{number}"))).collect();
    jobs.push(job("own", "1 0 10 * * *"));
    let mut cluster = Cluster::led(2, "10:00:00", jobs);
    cluster.node(1).is_frozen = true;
    cluster.run_for(SECOND);
    let open = cluster.ledger.offers.iter().filter(|(node, _)| *node == name(1)).count();
    assert_eq!(open, 128, "it accepts nothing");
    assert_eq!(cluster.started_on("own"), ["host-a"]);
    cluster.run_for(10 * SECOND);
    assert_eq!(cluster.started.len(), 601, "the other node has taken them all");
}

#[test]
fn only_a_node_with_the_labels_gets_it() {
    let jobs = vec![on(&["gpu", "!old"], once("a")), on(&["node=host-b"], once("b"))];
    let mut cluster = Cluster::new(3, "10:00:00", jobs.clone());
    cluster.become_node(1, jobs.clone(), &["gpu", "old"], 1);
    cluster.become_node(2, jobs.clone(), &["gpu"], 1);
    cluster.elect(0);
    cluster.run_for(2 * SECOND);
    assert_eq!((cluster.started_on("a"), cluster.started_on("b")), (vec!["host-c".into()], vec!["host-b".into()]));
}

#[test]
fn a_node_with_another_definition_refuses_and_is_not_asked_again() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![any("a")]);
    cluster.become_node(1, vec![Job { umask: 0o077, ..any("a") }], &[], 8);
    for _ in 0..3 {
        cluster.run_for(SECOND);
        cluster.end_one(0, Exit::Code(0));
    }
    assert_eq!(cluster.started_on("a"), ["host-a", "host-a", "host-a"]);
    let refused = |report: &Report| matches!(report, Report::Refused { reason: RefusalReason::Definition, .. });
    assert_eq!(cluster.node(1).reports.iter().filter(|report| refused(report)).count(), 1);
}

#[test]
fn what_a_node_does_not_accept_is_moved_and_it_gets_nothing_more() {
    let mut cluster = Cluster::led(3, "10:00:00", (0..9).map(|number| once(&format!("j{number}"))).collect());
    cluster.node(1).is_frozen = true;
    cluster.run_for(SECOND + 400 * MS);
    assert_eq!(cluster.started.len(), 6);
    cluster.run_for(300 * MS);
    assert_eq!(cluster.started.len(), 9, "half a second after their time");
    assert!(cluster.started.iter().all(|(_, _, node, _)| *node != name(1)));
    let moved =
        cluster.node(0).reports.iter().filter(|report| matches!(report, Report::Moved { reason: "overdue", .. }));
    assert_eq!(moved.count(), 3);
    let suspected = cluster.node(0).reports.iter().filter(|report| matches!(report, Report::Suspect { .. }));
    assert_eq!(suspected.count(), 1);
    // It wakes up, and finds that they are not its own any more.
    cluster.node(1).is_frozen = false;
    cluster.offer(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 9);
}

#[test]
fn an_offer_that_somebody_has_removed_is_made_again() {
    let jobs = vec![on(&["node=host-b"], once("a")), Job { run_on: RunOn::Every, ..once("b") }];
    let mut cluster = Cluster::led(2, "10:00:00", jobs);
    // Placed ahead of its time, and not read by its node.
    cluster.node(1).is_frozen = true;
    cluster.run_for(SECOND);
    assert_eq!(cluster.ledger.offers.len(), 2, "{:?}", cluster.ledger.offers);
    cluster.ledger.lose_offers();
    cluster.node(1).is_frozen = false;
    cluster.run_for(10 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
    assert_eq!(BTreeSet::from_iter(cluster.started_on("b")), BTreeSet::from(["host-a".into(), "host-b".into()]));
    let made_again = |report: &&Report| matches!(report, Report::Moved { reason: "offer-removed", .. });
    assert_eq!(cluster.node(0).reports.iter().filter(made_again).count(), 2);
}

#[test]
fn an_offer_that_is_there_is_left_to_a_node_that_takes_its_time() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    cluster.node(1).is_frozen = true;
    cluster.run_for(30 * SECOND);
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    assert_eq!((record.attempt, record.state), (1, RunState::Placed));
    let asked = cluster.node(0).requests.len();
    assert_eq!(asked, 0);
}

#[test]
fn a_host_that_can_start_nothing_is_left_alone_for_a_while() {
    let mut cluster = Cluster::led(3, "10:00:00", (0..20).map(|number| any(&format!("j{number}"))).collect());
    cluster.node(1).has_no_means = true;
    for _ in 0..30 {
        cluster.run_for(SECOND);
        [0, 2].into_iter().for_each(|node| while cluster.end_one(node, Exit::Code(0)) {});
    }
    assert_eq!(cluster.started.len(), 30 * 20, "{:?}", counts(&cluster));
    let failed = |report: &&Report| matches!(report, Report::NotStarted { .. });
    let failed = cluster.node(1).reports.iter().filter(failed).count();
    // It is tried at first, and after 1, 2, 4, 8, ... seconds, each time with its part of what is due.
    assert!((1..=6 * 8).contains(&failed), "{failed} starts have failed");
    cluster.node(1).has_no_means = false;
    for _ in 0..60 {
        cluster.run_for(SECOND);
        (0..3).for_each(|node| while cluster.end_one(node, Exit::Code(0)) {});
    }
    assert!(counts(&cluster)["host-b"] > 100, "it is tried again: {:?}", counts(&cluster));
}

#[test]
fn a_share_is_tried_again_after_a_pause_where_its_host_can_start_nothing() {
    let window = Some(Duration::from_secs(300));
    let mut cluster =
        Cluster::led(2, "10:00:00", vec![Job { run_on: RunOn::Every, misfire_window: window, ..once("a") }]);
    cluster.node(1).has_no_means = true;
    cluster.run_for(30 * SECOND);
    let share = cluster.ledger.running.values().map(|(record, _)| record).find(|record| record.owner.node == name(1));
    let attempts = share.expect("it waits").attempt;
    assert!((2..=10).contains(&attempts), "{attempts}");
    cluster.node(1).has_no_means = false;
    cluster.run_for(60 * SECOND);
    assert_eq!(counts(&cluster)["host-b"], 1);
}

#[test]
fn a_node_whose_clock_is_right_again_is_tried_again() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    // The service's clock, as the node reads it.
    let read = |cluster: &mut Cluster, behind: Duration| {
        let (wall, up) = (cluster.now.wall - behind, cluster.now.up);
        let time = ServerTime::new(wall.as_millisecond(), up, up).unwrap();
        cluster.handle(1, Event::Election(election::Event::Time(time)));
    };
    read(&mut cluster, Duration::from_secs(600));
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.started.len(), 0);
    read(&mut cluster, Duration::ZERO);
    cluster.run_for(10 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
}

#[test]
fn an_old_refusal_says_nothing_about_a_node_that_has_other_files_since() {
    let jobs = vec![Job { misfire_window: Some(60 * SECOND), ..on(&["node=host-b"], once("a")) }];
    let mut cluster = Cluster::led(2, "10:00:00", jobs.clone());
    cluster.become_node(1, vec![Job { umask: 0o077, ..jobs[0].clone() }], &[], 1);
    cluster.run_for(2 * SECOND);
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    assert!(record.placement.as_ref().unwrap().refused.is_some(), "{record:?}");
    // The leader finds the refusal in its takeover, when the files are the same already.
    cluster.become_node(1, jobs, &[], 1);
    cluster.expire(0);
    cluster.elect(1);
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
}

#[test]
fn what_no_node_accepts_within_its_window_is_taken_back_and_skipped() {
    let here = |name: &str, job: Job| Job { name: JobName::parse(name).unwrap(), ..on(&["node=host-b"], job) };
    let window = Some(20 * SECOND);
    let jobs = vec![
        here("any", Job { misfire_window: window, ..once("a") }),
        here("share", Job { misfire_window: window, run_on: RunOn::Every, ..once("a") }),
        here("long", once("a")),
    ];
    let mut cluster = Cluster::led(2, "10:00:00", jobs);
    // It has a session, and accepts nothing.
    cluster.node(1).is_frozen = true;
    cluster.run_for(40 * SECOND);
    let mut skipped = cluster.skipped();
    skipped.sort();
    assert_eq!(skipped, ["any missed", "share@host-b missed"]);
    cluster.node(1).is_frozen = false;
    cluster.offer(1);
    cluster.run_for(10 * SECOND);
    assert_eq!(cluster.started.len(), 1, "{:?}", cluster.started);
    assert_eq!(cluster.started_on("long"), ["host-b"], "it may be up to the next occurrence late");
}

#[test]
fn a_node_refuses_what_is_too_late() {
    let mut cluster =
        Cluster::led(2, "10:00:00", vec![Job { misfire_window: Some(20 * SECOND), ..on(&["node=host-b"], once("a")) }]);
    // Neither of them does anything for a while, and the other gets there first.
    (cluster.node(0).is_frozen, cluster.node(1).is_frozen) = (false, true);
    cluster.run_for(SECOND);
    cluster.node(0).is_frozen = true;
    cluster.run_for(30 * SECOND);
    cluster.node(1).is_frozen = false;
    cluster.offer(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 0);
    let late = |report: &Report| matches!(report, Report::Refused { reason: RefusalReason::Late, .. });
    assert!(cluster.node(1).reports.iter().any(late));
}

/// A job that starts more than two minutes after its occurrence at 10:00:01.
fn splayed(job: Job) -> Job {
    let splay = Splay::new(300 * SECOND, "report");
    assert!(splay.delay() > 120 * SECOND);
    Job { splay, ..job }
}

/// Until a second before the splayed job starts, and then until it is placed ahead of that.
fn run_until_splayed_is_placed(cluster: &mut Cluster, job: &Job) {
    let due = at("10:00:01") + job.splay.delay();
    while cluster.now.wall < due - SECOND {
        cluster.pass(SECOND / 2);
        cluster.settle();
    }
    while cluster.ledger.offers.is_empty() {
        cluster.run_for(5 * MS);
    }
    assert!(cluster.now.wall < due, "ahead of its time");
}

#[test]
fn the_window_of_what_is_taken_back_counts_from_when_its_splay_is_over() {
    for run_on in [RunOn::Any, RunOn::Every] {
        let job = splayed(Job { misfire_window: Some(20 * SECOND), run_on, ..on(&["node=host-b"], once("a")) });
        let mut cluster = Cluster::led(2, "10:00:00", vec![job.clone()]);
        cluster.node(1).is_frozen = true;
        run_until_splayed_is_placed(&mut cluster, &job);
        cluster.lose(1);
        cluster.run_for(15 * SECOND);
        assert_eq!(cluster.skipped(), Vec::<String>::new(), "its node may come back");
        cluster.restart(1);
        cluster.run_for(SECOND);
        assert_eq!(cluster.started_on("a"), ["host-b"]);
    }
}

#[test]
fn what_is_placed_is_late_by_its_splay_too() {
    let job = splayed(Job { misfire: crate::job::Misfire::Skip, ..on(&["node=host-b"], once("a")) });
    let mut cluster = Cluster::led(2, "10:00:00", vec![job.clone()]);
    cluster.node(1).is_frozen = true;
    run_until_splayed_is_placed(&mut cluster, &job);
    cluster.run_for(3 * SECOND);
    cluster.node(1).is_frozen = false;
    cluster.offer(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"], "a few seconds late, as without splay");
}

#[test]
fn room_on_a_node_goes_to_what_fits_there() {
    let of = |prefix: &str, node: &str| -> Vec<Job> {
        (0..300).map(|number| on(&[node], once(&format!("{prefix}{number}")))).collect()
    };
    // By name and by time, those of the node that takes nothing come first.
    let jobs = [of("a", "node=host-b"), of("z", "node=host-c")].concat();
    let mut cluster = Cluster::led(3, "10:00:00", jobs);
    (cluster.node(1).is_frozen, cluster.node(2).is_frozen) = (true, true);
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.ledger.offers.len(), 256, "both are full");
    cluster.node(2).is_frozen = false;
    cluster.offer(2);
    cluster.run_for(2 * SECOND);
    assert_eq!(counts(&cluster), BTreeMap::from([("host-c".to_owned(), 300)]));
    assert_eq!(cluster.ledger.offers.len(), 128);
}

#[test]
fn what_a_node_refuses_by_files_that_the_leader_has_not_seen_is_not_placed_there_again_and_again() {
    let jobs = vec![Job { misfire_window: Some(60 * SECOND), ..on(&["node=host-b"], once("a")) }];
    let mut cluster = Cluster::led(2, "10:00:00", jobs.clone());
    let changed = vec![Job { umask: 0o077, ..jobs[0].clone() }];
    cluster.hides_members = true;
    cluster.redefine(1, changed);
    cluster.run_for(10 * SECOND);
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    assert_eq!((record.attempt, record.state), (1, RunState::Unstarted));
    cluster.redefine(1, jobs);
    cluster.hides_members = false;
    cluster.tell_members();
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
}

#[test]
fn a_node_whose_clock_is_ahead_is_left_alone_for_a_while_if_everything_is_late_there() {
    let jobs = vec![Job { misfire_window: Some(10 * SECOND), ..on(&["node=host-b"], once("a")) }];
    let mut cluster = Cluster::led(2, "10:00:00", jobs);
    cluster.node(1).ahead = 30 * SECOND;
    cluster.run_for(6 * SECOND);
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    assert!((2..=4).contains(&record.attempt), "{record:?}");
    cluster.node(1).ahead = Duration::ZERO;
    cluster.run_for(5 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
}

#[test]
fn a_backlog_of_a_placed_job_waits_for_no_room_on_the_leaders_own_node() {
    let run_all = Job { misfire: crate::job::Misfire::RunAll, misfire_window: Some(600 * SECOND), ..any("z") };
    let run_all = Job { misfire_limit: 10, ..run_all };
    let placed = on(&["node=host-b"], run_all);
    let own = (0..200).map(|number| job(&format!("own{number}"), "2 0 10 * * *"));
    let mut cluster = Cluster::led(2, "10:00:00", own.chain([placed]).collect());
    // Nobody leads for a while.
    cluster.expire(0);
    cluster.run_for(5 * SECOND);
    cluster.join(0);
    cluster.node(0).starts_nothing = true;
    cluster.elect(0);
    let before = cluster.started_on("z").len();
    for _ in 0..8 {
        cluster.run_for(50 * MS);
        while cluster.end_one(1, Exit::Code(0)) {}
    }
    let made_up = cluster.started_on("z").len() - before;
    assert!(made_up >= 5, "one after the other: {made_up}");
}

/// Jobs that are due once at 10:00:01, as many as a node may have open, all for this one.
fn enough_for(node: &str, count: usize) -> Vec<Job> {
    (0..count).map(|number| on(&[node], once(&format!("f{number:03}")))).collect()
}

fn due_with_window(name: &str, node: &str) -> Job {
    Job { misfire_window: Some(20 * SECOND), ..on(&[node], once(name)) }
}

#[test]
fn what_waits_for_room_on_a_node_that_refuses_it_is_seen_and_skipped_in_the_end() {
    let x = Job { overlap: Overlap::Allow, misfire_window: Some(10 * SECOND), ..on(&["node=host-b"], any("a")) };
    let fill = enough_for("node=host-b", 127);
    let mut cluster = Cluster::led(2, "10:00:00", [vec![x.clone()], fill.clone()].concat());
    cluster.become_node(1, [vec![Job { umask: 0o077, ..x }], fill].concat(), &[], 1);
    cluster.node(1).is_frozen = true;
    cluster.run_for(3 * SECOND);
    assert_eq!(cluster.ledger.offers.len(), 128, "the next occurrences wait for room");
    cluster.node(1).is_frozen = false;
    cluster.offer(1);
    cluster.run_for(60 * SECOND);
    let recorded = cluster.recorded(&JobName::parse("a").unwrap());
    let missing = occurrences(cluster.now.wall).find(|at| recorded.get(at) != Some(&1));
    assert_eq!(missing, None);
    assert!(cluster.skipped().contains(&"a no-node".to_owned()), "{:?}", cluster.skipped());
}

#[test]
fn a_job_that_is_late_by_the_file_of_a_node_keeps_no_other_job_from_it() {
    let a = Job { misfire_window: Some(300 * SECOND), ..on(&["node=host-b"], once("a")) };
    let c = Job { overlap: Overlap::Allow, ..on(&["node=host-b"], any("c")) };
    let mut cluster = Cluster::led(2, "10:00:00", vec![a.clone(), c.clone()]);
    cluster.become_node(1, vec![Job { misfire_window: Some(2 * SECOND), ..a }, c], &[], 1);
    cluster.node(1).is_frozen = true;
    cluster.run_for(4 * SECOND);
    cluster.node(1).is_frozen = false;
    cluster.offer(1);
    for _ in 0..60 {
        cluster.run_for(SECOND);
        while cluster.end_one(1, Exit::Code(0)) {}
    }
    assert_eq!(cluster.started_on("c").len(), 64);
    let (record, _) = cluster.ledger.running.values().find(|(record, _)| record.job.as_str() == "a").unwrap();
    assert!((5..=8).contains(&record.attempt), "it is placed again after pauses: {record:?}");
}

#[test]
fn what_some_nodes_cannot_start_or_refuse_begins_at_once_on_one_that_can() {
    let job = Job { misfire: crate::job::Misfire::Skip, ..on(&["!node=host-a"], once("a")) };
    let mut cluster = Cluster::led(5, "10:00:00", vec![job.clone()]);
    (1..4).for_each(|node| cluster.node(node).has_no_means = true);
    assert!(lateness_of_the_first(&mut cluster) <= 100 * MS);
    assert_eq!(cluster.started_on("a"), ["host-e"]);
    // Three refuse it, and a process dies.
    let mut cluster = Cluster::led(6, "10:00:00", vec![job]);
    (1..4).for_each(|node| drain(&mut cluster, node));
    cluster.node(4).deadly = Some(JobName::parse("a").unwrap());
    assert!(lateness_of_the_first(&mut cluster) <= 100 * MS);
    assert_eq!(cluster.started_on("a"), ["host-f"]);
}

#[test]
fn the_window_of_what_waits_for_room_counts() {
    let fill = enough_for("node=host-c", 128);
    let mut cluster = Cluster::led(3, "10:00:00", [fill, vec![due_with_window("a", "!node=host-a")]].concat());
    (cluster.node(1).is_frozen, cluster.node(2).is_frozen) = (true, true);
    cluster.run_for(3 * SECOND);
    // The other node that fits is full.
    cluster.lose(1);
    cluster.run_for(30 * SECOND);
    assert_eq!(cluster.skipped(), ["a missed"]);
    // The same of a node's share.
    let share = Job { run_on: RunOn::Every, ..due_with_window("z", "node=host-b") };
    let mut cluster = Cluster::led(2, "10:00:00", [enough_for("node=host-b", 128), vec![share]].concat());
    cluster.node(1).is_frozen = true;
    cluster.run_for(40 * SECOND);
    assert_eq!(cluster.skipped(), ["z@host-b no-node"]);
}

#[test]
fn the_window_of_what_has_waited_for_others_counts_from_when_it_waits_for_room() {
    let group = Some(Group { name: "g".into(), limit: 1 });
    let at_ten = |name: &str, node: &str| Job { run_on: RunOn::Any, ..on(&[node], job(name, "0 0 10 * * *")) };
    let first = Job { concurrency_group: group.clone(), ..at_ten("a", "node=host-a") };
    let window = Some(20 * SECOND);
    let second = Job { concurrency_group: group, misfire_window: window, ..at_ten("b", "node=host-b") };
    let mut cluster = Cluster::led(2, "09:59:59", [enough_for("node=host-b", 128), vec![first, second]].concat());
    cluster.run_for(SECOND + 500 * MS);
    cluster.node(1).is_frozen = true;
    cluster.run_for(30 * SECOND);
    assert_eq!(cluster.skipped(), Vec::<String>::new(), "it waits for the other of its group");
    assert!(cluster.end_one(0, Exit::Code(0)));
    cluster.run_for(15 * SECOND);
    assert_eq!(cluster.skipped(), Vec::<String>::new());
    cluster.run_for(15 * SECOND);
    assert_eq!(cluster.skipped(), ["b no-node"]);
}

#[test]
fn a_run_is_replaced_also_while_it_is_written_that_it_waits_for_its_locks() {
    let lock = vec![crate::lock::LockPath::parse("/locks/orders").unwrap()];
    let twice = Job { run_on: RunOn::Any, ..job("a", "1,2 0 10 * * *") };
    let replace = Job { overlap: Overlap::Replace, on_lease_end: OnLeaseEnd::Kill, lock, ..twice };
    let jobs = vec![Job { misfire_window: Some(600 * SECOND), ..on(&["node=host-a"], replace) }];
    let mut cluster = Cluster::led(2, "10:00:00", jobs);
    let is_note = |request: &ledger::Request| {
        matches!(request, ledger::Request::Commit { change: Change::ChangeOwner { .. }, .. })
    };
    while !cluster.node(0).requests.iter().any(is_note) {
        cluster.pass(5 * MS);
        if !cluster.node(0).requests.iter().any(is_note) {
            cluster.settle();
        }
    }
    // Everything else is answered until the next occurrence is due and has been queued.
    while cluster.now.wall < at("10:00:02") + 100 * MS {
        cluster.pass(5 * MS);
        while let Some(other) = cluster.node(0).requests.iter().position(|request| !is_note(request)) {
            cluster.node(0).requests.rotate_left(other);
            cluster.answer_one(0);
        }
    }
    cluster.run_for(2 * SECOND);
    let left: Vec<String> = cluster.ledger.running.keys().map(|run| run.to_string()).collect();
    assert_eq!(left, ["a.20261120T100002Z"]);
}

#[test]
fn a_job_whose_processes_die_before_their_program_keeps_no_other_job_from_a_node() {
    let bad = Job { overlap: Overlap::Allow, misfire_window: Some(300 * SECOND), ..any("bad") };
    let mut cluster = Cluster::led(3, "10:00:00", vec![bad, any("good")]);
    (0..3).for_each(|node| cluster.node(node).deadly = Some(JobName::parse("bad").unwrap()));
    for _ in 0..30 {
        cluster.run_for(SECOND);
        (0..3).for_each(|node| while cluster.end_one(node, Exit::Code(0)) {});
    }
    assert_eq!(cluster.started_on("good").len(), 30, "{:?}", cluster.skipped());
    let bad: Vec<u32> = cluster.ledger.running.values().map(|(record, _)| record.attempt).collect();
    // At once elsewhere, and after 1, 2, 4, 8, ... seconds.
    assert!(bad.iter().all(|attempts| (1..=8).contains(attempts)) && bad.iter().max() >= Some(&6), "{bad:?}");
}

#[test]
fn what_waits_for_its_locks_on_a_node_is_taken_back_once_it_is_too_late() {
    let lock = vec![crate::lock::LockPath::parse("/locks/orders").unwrap()];
    let queue = Job { overlap: Overlap::Queue, on_lease_end: OnLeaseEnd::Kill, lock, ..once("a") };
    let jobs = vec![Job { misfire_window: Some(20 * SECOND), ..on(&["node=host-b"], queue) }];
    // Nobody answers who has the locks.
    let mut cluster = Cluster::led(2, "10:00:00", jobs.clone());
    cluster.run_for(15 * SECOND);
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    assert!(record.placement.as_ref().unwrap().awaits_locks, "{record:?}");
    cluster.run_for(15 * SECOND);
    assert_eq!(cluster.skipped(), ["a missed"]);
    let suspected = |report: &Report| matches!(report, Report::Suspect { .. });
    assert!(!cluster.node(0).reports.iter().any(suspected), "its node has answered");
    // Its node leads.
    let own = jobs.iter().map(|job| Job { run_where: RunWhere::default(), ..job.clone() });
    let mut cluster = Cluster::led(1, "10:00:00", own.collect());
    cluster.run_for(30 * SECOND);
    assert_eq!(cluster.skipped(), ["a missed"]);
    // Somebody has deleted its offer meanwhile.
    let mut cluster = Cluster::led(2, "10:00:00", jobs);
    cluster.run_for(8 * SECOND);
    cluster.ledger.lose_offers();
    cluster.run_for(11 * SECOND);
    assert_eq!(cluster.ledger.offers.len(), 1, "it is made again");
}

#[test]
fn a_run_is_replaced_also_while_it_is_written_that_it_waits_for_a_node() {
    let replace = Job { overlap: Overlap::Replace, misfire_window: Some(60 * SECOND), ..on(&["gpu"], once("a")) };
    let mut cluster = Cluster::new(2, "10:00:00", vec![replace.clone()]);
    for second in ["09:59:58", "09:59:59"] {
        let mut found = running(&replace, at(second), OwnerState::Gone);
        (found.record.state, found.record.attempt, found.record.keep_until) = (RunState::Queued, 0, None);
        cluster.ledger.running.insert(found.record.id(), (found.record, found.version));
    }
    cluster.elect(0);
    cluster.run_for(100 * MS);
    let left: Vec<String> = cluster.ledger.running.keys().map(|run| run.to_string()).collect();
    assert_eq!(left, ["a.20261120T095959Z"]);
}

#[test]
fn what_is_placed_on_a_node_that_is_gone_is_moved_at_once() {
    let mut cluster = Cluster::led(2, "10:00:00", (0..4).map(|number| once(&format!("j{number}"))).collect());
    cluster.run_for(SECOND - 100 * MS);
    cluster.crash(1);
    cluster.run_for(100 * MS);
    let before = cluster.started.len();
    assert!(before < 4);
    cluster.lose(1);
    cluster.run_for(10 * MS);
    assert_eq!(cluster.started_on("j0").len() + cluster.started.len() - cluster.started_on("j0").len(), 4);
}

#[test]
fn an_accepted_run_of_a_node_that_is_gone_is_rerun_elsewhere_with_a_larger_token() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once("a") };
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["!node=host-a"], rerun.clone())]);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
    cluster.run_for(SECOND);
    cluster.crash(1);
    cluster.lose(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"], "nobody else fits");
    cluster.restart(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b", "host-b"]);
    let tokens: Vec<i64> = cluster.started.iter().map(|(_, _, _, token)| token.0).collect();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn what_a_drained_node_may_have_accepted_by_a_lost_commit_is_left_to_it() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once("a") };
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], rerun)]);
    cluster.run_for(2 * SECOND);
    let runs_on = (1..3).find(|&index| !cluster.node(index).running.is_empty()).expect("it runs");
    drain(&mut cluster, runs_on);
    // It takes its time to restore what the store has lost.
    cluster.node(runs_on).is_frozen = true;
    cluster.ledger.lose_acceptances();
    cluster.lost_until = Some(cluster.now.wall);
    cluster.crash(0);
    cluster.lose(0);
    cluster.elect(3 - runs_on);
    cluster.run_for(5 * SECOND);
    assert_eq!(cluster.started.len(), 1, "{:?}", cluster.started);
    // Once it is gone, nothing of it runs any more.
    cluster.crash(runs_on);
    cluster.lose(runs_on);
    cluster.run_for(5 * SECOND);
    assert_eq!(cluster.started.len(), 2);
}

#[test]
fn a_new_leader_goes_on_with_what_is_placed() {
    let mut cluster = Cluster::led(3, "10:00:00", (0..9).map(|number| once(&format!("j{number}"))).collect());
    cluster.run_for(SECOND - 30 * MS);
    assert_eq!(cluster.ledger.running.len(), 9, "all are placed ahead");
    cluster.crash(0);
    cluster.run_for(40 * MS);
    assert_eq!(cluster.started.len(), 6, "on time, and nobody leads");
    cluster.lose(0);
    cluster.elect(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 9);
}

#[test]
fn what_no_node_can_take_waits_is_seen_and_is_skipped_at_last() {
    let window = Some(Duration::from_secs(3));
    let gpu = Job { misfire_window: window, ..on(&["gpu"], once("a")) };
    let late = on(&["gpu"], Job { misfire_window: Some(Duration::from_secs(60)), ..once("b") });
    let mut cluster = Cluster::led(2, "10:00:00", vec![gpu.clone(), late.clone()]);
    cluster.run_for(2 * SECOND);
    let why = cluster.node(0).reports.iter().find_map(|report| match report {
        Report::Unplaced { why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("no node has gpu (host-a: none; host-b: none)"));
    assert!(cluster.ledger.running.values().all(|(record, _)| record.state == RunState::Queued));
    cluster.run_for(3 * SECOND);
    assert_eq!(cluster.skipped(), ["a no-node"]);
    cluster.become_node(1, vec![gpu, late], &["gpu"], 1);
    cluster.run_for(100 * MS);
    assert_eq!(cluster.started_on("b"), ["host-b"]);
}

#[test]
fn a_job_that_no_node_can_run_is_reported_before_it_is_due_and_when_that_is_over() {
    let gpu = on(&["gpu"], Job { run_on: RunOn::Any, ..job("a", "0 0 0 * * *") });
    let mut cluster = Cluster::led(2, "10:00:00", vec![gpu.clone(), any("b")]);
    let reported = |cluster: &mut Cluster| -> Vec<String> {
        let reports = cluster.node(0).reports.iter().filter_map(|report| match report {
            Report::Unplaceable { job, why } => Some(format!("{job}: {why}")),
            Report::Placeable { job } => Some(format!("{job} again")),
            _ => None,
        });
        reports.collect()
    };
    cluster.run_for(2 * SECOND);
    let nobody = "a: no node has gpu (host-a: none; host-b: none)";
    assert_eq!(reported(&mut cluster).join("\n"), nobody, "once, and of no other job");
    let known = |cluster: &mut Cluster| -> Vec<String> {
        cluster.node(0).engine.unplaceable().map(|(job, why)| format!("{job}: {why}")).collect()
    };
    assert_eq!(known(&mut cluster), [nobody], "and it is known as long as that lasts");
    cluster.become_node(1, vec![gpu, any("b")], &["gpu"], 1);
    cluster.run_for(100 * MS);
    assert_eq!(reported(&mut cluster), [nobody, "a again"]);
    assert!(known(&mut cluster).is_empty());
    cluster.lose(1);
    cluster.run_for(SECOND);
    let seen = reported(&mut cluster);
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[2].starts_with("a: no node"), "{seen:?}");
}

#[test]
fn a_group_counts_the_runs_of_all_nodes() {
    let group = Some(Group { name: "g".into(), limit: 2 });
    let jobs = (0..6).map(|number| Job { concurrency_group: group.clone(), ..once(&format!("j{number}")) }).collect();
    let mut cluster = Cluster::led(3, "10:00:00", jobs);
    cluster.run_for(2 * SECOND);
    for _ in 0..3 {
        let running: usize = (0..3).map(|index| cluster.node(index).running.len()).sum();
        assert_eq!(running, 2);
        for index in 0..3 {
            while cluster.end_one(index, Exit::Code(0)) {}
        }
        cluster.run_for(50 * MS);
    }
    assert_eq!(cluster.started.len(), 6);
}

#[test]
fn a_short_run_on_another_node_does_not_have_the_next_occurrence_skipped() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], any("a"))]);
    for _ in 0..5 {
        cluster.run_for(SECOND);
        assert!(cluster.end_one(1, Exit::Code(0)));
        cluster.settle();
    }
    assert_eq!((cluster.started.len(), cluster.skipped()), (5, vec![]));
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.started.len(), 6, "but one that goes on does");
    assert_eq!(cluster.skipped(), ["a overlap"]);
}

#[test]
fn what_was_accepted_stays_where_it_is_however_long_it_takes() {
    let mut cluster = Cluster::led(3, "10:00:00", (0..3).map(|number| once(&format!("j{number}"))).collect());
    cluster.run_for(20 * SECOND);
    assert_eq!(cluster.started.len(), 3);
    assert!(
        cluster.ledger.running.values().all(|(record, _)| (record.state, record.attempt) == (RunState::Running, 1))
    );
}

#[test]
fn a_node_that_was_just_drained_refuses_what_was_placed_there_before() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    cluster.run_for(SECOND - 30 * MS);
    assert_eq!(cluster.ledger.offers.len(), 1);
    drain(&mut cluster, 1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), Vec::<String>::new());
    let refused = |report: &Report| matches!(report, Report::Refused { reason: RefusalReason::Drained, .. });
    assert_eq!(cluster.node(1).reports.iter().filter(|report| refused(report)).count(), 1);
}

/// How long after 10:00:01 the first program begins.
fn lateness_of_the_first(cluster: &mut Cluster) -> Duration {
    while cluster.started.is_empty() {
        cluster.run_for(5 * MS);
    }
    cluster.now.wall.duration_since(at("10:00:01")).unsigned_abs()
}

#[test]
fn what_a_node_has_refused_or_could_not_start_is_placed_elsewhere_at_once() {
    for is_drained in [true, false] {
        let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], once("a"))]);
        while cluster.ledger.offers.is_empty() {
            cluster.run_for(5 * MS);
        }
        let (record, _) = cluster.ledger.running.values().next().unwrap();
        let placed_on = (1..3).find(|&index| name(index) == record.owner.node).unwrap();
        if is_drained {
            drain(&mut cluster, placed_on);
        } else {
            cluster.node(placed_on).has_no_means = true;
        }
        let late = lateness_of_the_first(&mut cluster);
        assert_eq!(cluster.started_on("a"), [name(3 - placed_on).as_str()], "drained: {is_drained}");
        assert!(late <= 30 * MS, "drained: {is_drained}, {late:?}");
    }
}

#[test]
fn what_is_placed_on_a_node_is_moved_at_once_when_that_is_drained_and_answers_nothing() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], once("a"))]);
    while cluster.ledger.offers.is_empty() {
        cluster.run_for(5 * MS);
    }
    let (record, _) = cluster.ledger.running.values().next().unwrap();
    let placed_on = (1..3).find(|&index| name(index) == record.owner.node).unwrap();
    drain(&mut cluster, placed_on);
    cluster.node(placed_on).is_frozen = true;
    cluster.tell_members();
    assert!(lateness_of_the_first(&mut cluster) <= 30 * MS);
    assert_eq!(cluster.started_on("a"), [name(3 - placed_on).as_str()]);
}

#[test]
fn an_attempt_that_was_accepted_is_not_started_after_the_lease() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    cluster.run_for(SECOND - 50 * MS);
    while cluster.node(1).ordered.is_empty() {
        cluster.pass(MS);
        while cluster.answer_one(0) || cluster.answer_one(1) {}
    }
    cluster.node(1).is_frozen = true;
    cluster.pass(LEASE);
    cluster.node(1).is_frozen = false;
    assert!(cluster.start_one(1));
    cluster.pass(SECOND);
    assert_eq!(cluster.started_on("a"), Vec::<String>::new());
}

#[test]
fn an_acceptance_that_is_on_its_way_counts_for_a_node_that_becomes_leader() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    let accepts = |node: &cluster::Node| node.requests.iter().any(is_acceptance);
    while !accepts(cluster.node(1)) {
        cluster.pass(MS);
        while cluster.answer_one(0) {}
    }
    assert!(cluster.node(1).ordered.is_empty(), "nothing is started before it is answered");
    cluster.crash(0);
    cluster.lose(0);
    cluster.elect(1);
    cluster.run_for(SECOND);
    let started: Vec<u32> = cluster.started.iter().map(|(_, attempt, ..)| *attempt).collect();
    assert_eq!(started, [1]);
}

/// The node would take it for an offer that is gone, and the run would be in flight there for ever, without a process.
#[test]
fn a_list_from_before_an_acceptance_does_not_make_it_an_offer_again() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    while !cluster.node(1).requests.iter().any(is_acceptance) {
        cluster.pass(MS);
        while cluster.answer_one(0) {}
    }
    let (run, placed) = cluster.ledger.running.first_key_value().unwrap();
    let (listed, found) = ([run.clone()].into(), vec![placed.clone()]);
    // What crosses a reconnect may have been taken back since, so it is read what became of it.
    let session = cluster.node(1).session.clone().expect("it has one");
    let lost = election::Event::Suspended { session: session.clone(), error: None };
    cluster.handle(1, Event::Election(lost));
    cluster.handle(1, Event::Election(election::Event::Resumed { session }));
    while cluster.node(1).requests.iter().any(is_acceptance) {
        assert!(cluster.answer_one(1));
    }
    cluster.handle(1, Event::Ledger(ledger::Event::Offers { listed, found }));
    cluster.offer(1);
    cluster.run_for(5 * SECOND);
    assert_eq!((cluster.started_on("a"), cluster.node(1).running.len()), (vec!["host-b".to_owned()], 1));
}

#[test]
fn a_node_does_not_accept_what_was_placed_elsewhere_since_it_was_offered() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![once("a")]);
    cluster.run_for(SECOND - 50 * MS);
    let (run, (record, version)) = cluster.ledger.running.first_key_value().unwrap();
    assert_eq!(record.state, RunState::Placed);
    let other = (1..3).find(|&index| name(index) != record.owner.node).unwrap();
    let (listed, found) = ([run.clone()].into(), vec![(record.clone(), *version)]);
    cluster.handle(other, Event::Ledger(ledger::Event::Offers { listed, found }));
    while cluster.started.is_empty() {
        cluster.pass(MS);
        assert!(!cluster.node(other).requests.iter().any(is_acceptance), "it names another node");
        cluster.settle();
    }
}

fn is_acceptance(request: &ledger::Request) -> bool {
    matches!(request, ledger::Request::Commit { change: Change::Accept { .. }, .. })
}

#[test]
fn a_waiting_run_that_the_service_has_lost_is_written_again_before_it_is_placed() {
    let queue = Job { overlap: Overlap::Queue, ..on(&["node=host-b"], any("a")) };
    let mut cluster = Cluster::led(2, "10:00:00", vec![queue]);
    cluster.run_for(2 * SECOND + 500 * MS);
    cluster.ledger.running.retain(|_, (record, _)| record.state != RunState::Queued);
    assert!(cluster.end_one(1, Exit::Code(0)));
    cluster.run_for(300 * MS);
    assert_eq!(cluster.started_on("a"), ["host-b", "host-b"]);
}

/// Loses the last writes that put one of the records into this state, and reconnects all nodes.
fn lose_what_made(cluster: &mut Cluster, is: impl Fn(&cluster::Ledger) -> bool) {
    assert!(is(&cluster.ledger));
    while is(&cluster.ledger) {
        cluster.rewind(1);
    }
}

#[test]
fn a_placed_run_whose_begin_the_service_loses_is_placed_again() {
    for (job, is_frozen) in [(once("a"), true), (once("a"), false), (Job { run_on: RunOn::Every, ..once("a") }, true)] {
        let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], job.clone())]);
        (1..3).for_each(|index| cluster.node(index).is_frozen = is_frozen);
        cluster.run_for(SECOND - 30 * MS);
        (1..3).for_each(|index| cluster.node(index).is_frozen = false);
        cluster.is_forgetful = true;
        lose_what_made(&mut cluster, |ledger| !ledger.running.is_empty());
        // At once, and not only when it is overdue.
        for time in [SECOND, 9 * SECOND] {
            cluster.run_for(time);
            let mut started = cluster.started_on("a");
            started.sort();
            match job.run_on {
                RunOn::Every => assert_eq!(started, ["host-b", "host-c"]),
                _ => assert_eq!(started.len(), 1, "{started:?}"),
            }
        }
    }
}

/// A run that one of two nodes has accepted, before the service loses anything.
fn with_an_accepted_run() -> Cluster {
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], once("a"))]);
    cluster.run_for(SECOND + 5 * MS);
    assert_eq!(cluster.started.len(), 1);
    cluster.is_forgetful = true;
    cluster
}

fn is_accepted(ledger: &cluster::Ledger) -> bool {
    ledger.running.values().any(|(run, _)| run.state == RunState::Running)
}

#[test]
fn an_acceptance_that_the_service_loses_is_written_again_before_the_run_is_moved() {
    let mut cluster = with_an_accepted_run();
    lose_what_made(&mut cluster, is_accepted);
    // At once, and not only when it looks what is in flight.
    for time in [500 * MS, 3 * SECOND] {
        cluster.run_for(time);
        assert!(is_accepted(&cluster.ledger), "{:?}", cluster.ledger.running);
    }
    let runs_on = (1..3).find(|&index| !cluster.node(index).running.is_empty()).expect("it runs");
    assert!(cluster.end_one(runs_on, Exit::Code(0)));
    cluster.run_for(SECOND);
    assert_eq!((cluster.started.len(), cluster.ledger.running.len(), cluster.ledger.history.len()), (1, 0, 1));
}

/// The service answers nobody for longer than the nodes have to write what they have: that time has not begun yet.
#[test]
fn the_nodes_can_write_what_they_have_once_the_service_answers() {
    let mut cluster = with_an_accepted_run();
    lose_what_made(&mut cluster, is_accepted);
    (0..5).for_each(|_| cluster.pass(500 * MS));
    // The leader is answered first.
    cluster.run_for(SECOND);
    assert!(is_accepted(&cluster.ledger), "{:?}", cluster.ledger.running);
    assert_eq!(
        (cluster.started.len(), cluster.ledger.running.values().next().map(|(run, _)| run.attempt)),
        (1, Some(1))
    );
}

/// What is in flight takes several requests to read, and a run one.
#[test]
fn nothing_is_moved_while_the_leader_does_not_know_what_is_in_flight() {
    let mut cluster = with_an_accepted_run();
    let slow = (1..3).find(|&index| !cluster.node(index).running.is_empty()).expect("it runs");
    cluster.node(slow).is_frozen = true;
    lose_what_made(&mut cluster, is_accepted);
    cluster.node(0).requests.retain(|request| *request != ledger::Request::ReadInFlight);
    cluster.run_for(4 * SECOND);
    let attempt = |cluster: &Cluster| cluster.ledger.running.values().next().map(|(run, _)| run.attempt);
    assert_eq!(attempt(&cluster), Some(1));
    cluster.node(0).requests.push_back(ledger::Request::ReadInFlight);
    cluster.settle();
    cluster.thaw(slow);
    cluster.run_for(SECOND);
    assert!(is_accepted(&cluster.ledger), "{:?}", cluster.ledger.running);
    assert_eq!((cluster.started.len(), attempt(&cluster)), (1, Some(1)));
}

/// The service answers only after the time that the nodes have to write what they have, and the node is slower still.
#[test]
fn what_was_accepted_by_a_lost_commit_is_not_moved_before_the_leader_has_read_what_is_lost() {
    let jobs = ["a", "b"].map(|name| on(&["!node=host-a"], once(name)));
    let mut cluster = Cluster::led(3, "10:00:00", jobs.to_vec());
    cluster.run_for(SECOND + 5 * MS);
    assert_eq!(cluster.started.len(), 2);
    cluster.is_forgetful = true;
    let is_of = |job: &str, run: &RunId| run.job().as_str() == job;
    let runs_a = |node: &cluster::Node| node.running.iter().any(|start| is_of("a", &start.run.id()));
    let slow = (1..3).find(|&index| runs_a(cluster.node(index))).expect("it runs");
    cluster.node(slow).is_frozen = true;
    lose_what_made(&mut cluster, |ledger| ledger.running.keys().any(|run| is_of("b", run)));
    let a = |cluster: &Cluster| {
        let (_, (record, _)) = cluster.ledger.running.iter().find(|(run, _)| is_of("a", run)).expect("it is in flight");
        (record.state, record.attempt)
    };
    assert_eq!(a(&cluster), (RunState::Placed, 1));
    (0..5).for_each(|_| cluster.pass(500 * MS));
    cluster.run_for(SECOND);
    assert_eq!(a(&cluster), (RunState::Placed, 1));
    cluster.thaw(slow);
    cluster.run_for(SECOND);
    assert_eq!(a(&cluster), (RunState::Running, 1));
    assert_eq!(cluster.started.len(), 2);
}

/// It lost its lease, and so the others saw it leave; its session lasts.
#[test]
fn a_node_that_left_and_is_back_in_its_session_writes_nothing_over_what_was_placed_since() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once("a") };
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], rerun)]);
    cluster.run_for(2 * SECOND);
    let left = (1..3).find(|&index| !cluster.node(index).running.is_empty()).expect("it runs");
    let other = 3 - left;
    // The one accepts nothing, and the other is cut off.
    (1..3).for_each(|index| cluster.node(index).is_frozen = true);
    cluster.lose(left);
    cluster.run_for(SECOND);
    let placed = |cluster: &Cluster| {
        let (record, _) = cluster.ledger.running.values().next().expect("it is in flight");
        (record.state, record.attempt, record.owner.node.clone())
    };
    assert_eq!(placed(&cluster), (RunState::Placed, 2, name(other)));
    cluster.rejoin(left);
    assert!(cluster.end_one(left, Exit::Code(0)));
    cluster.run_for(SECOND);
    assert_eq!(placed(&cluster), (RunState::Placed, 2, name(other)));
    cluster.thaw(other);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a"), [left, other].map(|index| name(index).to_string()));
}

/// The leader finds that the run waits, as it did before it was placed.
#[test]
fn what_waited_before_the_service_lost_where_it_was_placed_is_left_to_the_node_that_runs_it() {
    let jobs = vec![Job { misfire_window: Some(60 * SECOND), ..on(&["gpu"], once("a")) }];
    let mut cluster = Cluster::led(3, "10:00:00", jobs.clone());
    cluster.run_for(2 * SECOND);
    let is_queued = |ledger: &cluster::Ledger| ledger.running.values().all(|(run, _)| run.state == RunState::Queued);
    assert!(cluster.ledger.running.len() == 1 && is_queued(&cluster.ledger), "{:?}", cluster.ledger.running);
    cluster.become_node(1, jobs.clone(), &["gpu"], 1);
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
    cluster.become_node(2, jobs, &["gpu"], 1);
    cluster.run_for(SECOND);
    cluster.is_forgetful = true;
    lose_what_made(&mut cluster, |ledger| !is_queued(ledger));
    cluster.node(1).is_frozen = true;
    cluster.run_for(5 * SECOND);
    cluster.thaw(1);
    cluster.run_for(5 * SECOND);
    assert!(cluster.end_one(1, Exit::Code(0)));
    cluster.run_for(SECOND);
    assert_eq!((cluster.started.len(), cluster.ledger.running.len(), cluster.ledger.history.len()), (1, 0, 1));
}

/// Its node has forgotten it, and takes it for new: at once, or after it has waited long for an answer.
#[test]
fn an_offer_that_was_taken_back_and_returns_by_a_loss_is_not_accepted() {
    for is_late in [false, true] {
        let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], once("a"))]);
        (1..3).for_each(|index| cluster.node(index).is_frozen = true);
        cluster.run_for(SECOND + 100 * MS);
        let (to, _) = cluster.ledger.offers.first().cloned().expect("it is placed");
        let (slow, other) = if to == name(1) { (1, 2) } else { (2, 1) };
        cluster.thaw(other);
        cluster.run_for(2 * SECOND);
        assert_eq!(cluster.started_on("a"), [name(other).to_string()]);
        cluster.thaw(slow);
        cluster.run_for(SECOND);
        cluster.is_forgetful = true;
        let is_placed_there = |ledger: &cluster::Ledger| {
            ledger.running.values().all(|(run, _)| run.state == RunState::Placed && run.owner.node == to)
        };
        cluster.hides_offers = is_late;
        lose_what_made(&mut cluster, |ledger| !is_placed_there(ledger));
        (0..3).filter(|&index| index != slow).for_each(|index| cluster.node(index).is_frozen = true);
        if is_late {
            cluster.run_for(3 * SECOND);
            cluster.hides_offers = false;
            cluster.offer(slow);
        }
        cluster.run_for(SECOND);
        (0..3).for_each(|index| cluster.thaw(index));
        cluster.run_for(5 * SECOND);
        assert!(cluster.end_one(other, Exit::Code(0)));
        cluster.run_for(SECOND);
        assert_eq!((cluster.started.len(), cluster.ledger.running.len(), cluster.ledger.history.len()), (1, 0, 1));
    }
}

#[test]
fn a_run_whose_leader_has_seen_its_end_is_not_begun_again_when_all_but_its_begin_is_lost() {
    let jobs = vec![Job { misfire_window: Some(60 * SECOND), ..on(&["gpu"], once("a")) }];
    let mut cluster = Cluster::led(3, "10:00:00", jobs.clone());
    cluster.run_for(2 * SECOND);
    (1..3).for_each(|index| cluster.become_node(index, jobs.clone(), &["gpu"], 1));
    cluster.run_for(2 * SECOND);
    let ran_on = (1..3).find(|&index| cluster.end_one(index, Exit::Code(0))).expect("it runs");
    cluster.run_for(SECOND);
    assert_eq!((cluster.ledger.running.len(), cluster.ledger.history.len()), (0, 1));
    cluster.is_forgetful = true;
    let is_queued = |ledger: &cluster::Ledger| ledger.running.values().any(|(run, _)| run.state == RunState::Queued);
    lose_what_made(&mut cluster, |ledger| !is_queued(ledger));
    cluster.node(ran_on).is_frozen = true;
    cluster.run_for(SECOND);
    cluster.thaw(ran_on);
    cluster.run_for(10 * SECOND);
    assert_eq!((cluster.started.len(), cluster.ledger.running.len(), cluster.ledger.history.len()), (1, 0, 1));
}

/// The store has noted the loss, of which the leader itself can see nothing.
#[test]
fn what_a_node_that_is_gone_may_have_accepted_before_a_noted_loss_is_not_begun_elsewhere() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], once("a"))]);
    (1..3).for_each(|index| cluster.node(index).is_frozen = true);
    cluster.run_for(SECOND - 30 * MS);
    let (to, _) = cluster.ledger.offers.first().cloned().expect("it is placed");
    let to = if to == name(1) { 1 } else { 2 };
    cluster.node(0).is_frozen = true;
    (1..3).for_each(|index| cluster.thaw(index));
    cluster.run_for(100 * MS);
    assert_eq!(cluster.started_on("a"), [name(to).to_string()]);
    cluster.is_forgetful = true;
    cluster.lost_until = Some(cluster.now.wall + SECOND);
    cluster.crash(to);
    lose_what_made(&mut cluster, |ledger| ledger.running.values().all(|(run, _)| run.state == RunState::Running));
    cluster.thaw(0);
    cluster.run_for(100 * MS);
    cluster.lose(to);
    cluster.run_for(10 * SECOND);
    let states: Vec<RunState> = cluster.ledger.running.values().map(|(run, _)| run.state).collect();
    assert_eq!((cluster.started.len(), states), (1, vec![RunState::CutOff]));
}

#[test]
fn a_share_that_its_node_restores_leaves_the_shares_of_others_to_the_next_leader() {
    let every = Job { run_on: RunOn::Every, ..on(&["!node=host-a"], once("a")) };
    let mut cluster = Cluster::led(3, "10:00:00", vec![every]);
    cluster.node(2).is_frozen = true;
    cluster.run_for(SECOND + 5 * MS);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
    cluster.is_forgetful = true;
    cluster.crash(0);
    lose_what_made(&mut cluster, |ledger| !ledger.running.is_empty());
    cluster.run_for(SECOND);
    cluster.lose(0);
    cluster.thaw(2);
    cluster.elect(1);
    cluster.run_for(5 * SECOND);
    let mut started = cluster.started_on("a");
    started.sort();
    assert_eq!(started, ["host-b", "host-c"]);
}

#[test]
fn what_waits_is_begun_once_the_nodes_have_had_the_time_to_write_what_they_have() {
    let queued = Job { overlap: Overlap::Queue, misfire_window: Some(60 * SECOND), ..job("a", "1,2 0 10 * * *") };
    let mut cluster = Cluster::led(2, "10:00:00", vec![queued]);
    cluster.run_for(3 * SECOND);
    assert_eq!(cluster.started.len(), 1);
    cluster.reconnect();
    assert!(cluster.end_one(0, Exit::Code(0)));
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 1);
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.started.len(), 2);
}

#[test]
fn starts_that_hang_on_the_leader_delay_no_share_of_another_node() {
    let mut jobs: Vec<Job> = (0..200).map(|number| job(&format!("own{number}"), "1 0 10 * * *")).collect();
    jobs.push(Job { run_on: RunOn::Every, ..job("every", "5 0 10 * * *") });
    let mut cluster = Cluster::led(3, "10:00:00", jobs);
    cluster.node(0).starts_nothing = true;
    cluster.run_for(7 * SECOND);
    let mut started = cluster.started_on("every");
    started.sort();
    assert_eq!(started, ["host-b", "host-c"]);
}

/// Whoever leads is in doubt about its own acceptance, and finds nothing.
#[test]
fn a_run_on_the_leaders_own_node_whose_begin_is_lost_while_it_is_accepted_is_placed_again() {
    let mut cluster = Cluster::led(1, "10:00:00", vec![once("a")]);
    cluster.is_forgetful = true;
    while !cluster.node(0).requests.iter().any(is_acceptance) {
        if !cluster.answer_one(0) {
            assert!(cluster.now.wall < at("10:00:01"));
            cluster.pass(MS);
        }
    }
    cluster.rewind(1);
    assert!(cluster.ledger.running.is_empty() && cluster.lose_one(0));
    cluster.run_for(5 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-a"]);
}

/// It was accepted by a write whose answer is lost. The service lost that, and the leader, which had read it, wrote it again.
#[test]
fn what_a_node_is_on_record_to_have_accepted_is_given_back_if_it_was_not_answered() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    cluster.is_forgetful = true;
    while !cluster.node(1).requests.iter().any(is_acceptance) {
        if !cluster.answer_one(0) && !cluster.answer_one(1) {
            assert!(cluster.now.wall < at("10:00:01"));
            cluster.pass(MS);
        }
    }
    cluster.ledger.accept_all();
    cluster.reconnect();
    cluster.run_for(5 * SECOND);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
}

/// Others were accepted there, so the leader takes all that is not listed for accepted.
#[test]
fn a_lost_acceptance_that_the_leader_only_presumed_moves_nothing() {
    let jobs: Vec<Job> = (0..300).map(|number| on(&["!node=host-a"], once(&format!("j{number}")))).collect();
    let mut cluster = Cluster::led(3, "10:00:00", jobs);
    cluster.is_forgetful = true;
    let is_running =
        |ledger: &cluster::Ledger| ledger.running.values().filter(|(run, _)| run.state == RunState::Running).count();
    while is_running(&cluster.ledger) < 100 {
        cluster.pass(5 * MS);
        cluster.settle();
    }
    cluster.run_for(30 * MS);
    let before = cluster.started.len();
    cluster.rewind(8);
    assert!(before > 8);
    cluster.run_for(10 * SECOND);
    assert_eq!(cluster.started.len(), 300);
}

#[test]
fn what_the_leader_has_taken_back_because_the_service_lost_its_acceptance_is_claimed_by_who_runs_it() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    cluster.run_for(SECOND + 5 * MS);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
    cluster.is_forgetful = true;
    cluster.ledger.take_back();
    cluster.reconnect();
    cluster.run_for(SECOND);
    assert_eq!(cluster.ledger.running.values().map(|(run, _)| run.state).collect::<Vec<_>>(), [RunState::Running]);
    assert!(cluster.end_one(1, Exit::Code(0)));
    cluster.run_for(SECOND);
    assert_eq!((cluster.started.len(), cluster.ledger.running.len(), cluster.ledger.history.len()), (1, 0, 1));
}

#[test]
fn a_new_leader_watches_what_was_offered_to_it_and_is_another_nodes_now() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once("a") };
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["!node=host-a"], rerun)]);
    while cluster.ledger.offers.is_empty() {
        cluster.pass(MS);
        cluster.answer_one(0);
    }
    let (to, _) = cluster.ledger.offers.first().cloned().unwrap();
    let offered = (1..3).find(|&index| name(index) == to).unwrap();
    cluster.node(offered).is_frozen = true;
    cluster.run_for(3 * SECOND);
    assert_eq!(cluster.started_on("a"), [name(3 - offered).to_string()]);
    cluster.crash(0);
    cluster.lose(0);
    cluster.node(offered).is_frozen = false;
    cluster.elect(offered);
    cluster.run_for(SECOND);
    cluster.crash(3 - offered);
    cluster.lose(3 - offered);
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.started_on("a").len(), 2, "{:?}", cluster.started);
}

#[test]
fn what_may_have_been_accepted_by_a_lost_commit_is_offered_again_if_its_offer_is_removed() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![on(&["node=host-b"], once("a"))]);
    cluster.node(1).is_frozen = true;
    cluster.run_for(SECOND);
    assert_eq!(cluster.ledger.offers.len(), 1);
    cluster.ledger.lose_offers();
    cluster.lost_until = Some(cluster.now.wall);
    cluster.crash(0);
    cluster.lose(0);
    cluster.elect(2);
    cluster.node(1).is_frozen = false;
    cluster.run_for(10 * SECOND);
    let attempts: Vec<(u32, String)> = cluster.started.iter().map(|(_, n, node, _)| (*n, node.to_string())).collect();
    assert_eq!(attempts, [(1, "host-b".to_owned())]);
}

#[test]
fn a_pause_takes_back_what_is_placed_ahead_of_its_time_also_on_the_leaders_own_node() {
    for node in ["host-a", "host-b"] {
        for is_written in [true, false] {
            let mut cluster = Cluster::led(2, "10:00:00", vec![on(&[&format!("node={node}")], once("a"))]);
            let is_begin = |request: &ledger::Request| {
                matches!(request, ledger::Request::Commit { change: Change::Begin { .. }, .. })
            };
            while !cluster.node(0).requests.iter().any(is_begin) {
                cluster.pass(MS);
            }
            assert!(cluster.now.wall < at("10:00:01"));
            if is_written {
                assert!(cluster.answer_one(0));
            }
            let pause = Pause { by: "alice".into(), at: at("10:00:00"), reason: None, until: None };
            let record = ControlRecord::new(uuid::Uuid::from_u128(7), pause);
            let control = [(JobName::parse("a").unwrap(), ControlEntry { record, version: Version(1) })].into();
            let requests = ledger::OperatorRequests { control, ..ledger::OperatorRequests::default() };
            cluster.handle(0, Event::Ledger(ledger::Event::OperatorRequests(requests)));
            cluster.run_for(3 * SECOND);
            assert_eq!(cluster.started_on("a"), Vec::<String>::new(), "{node}, {is_written}");
            assert_eq!(cluster.skipped(), ["a paused"], "{node}, {is_written}");
        }
    }
}

/// What may happen to a cluster.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass(u16),
    Answer(usize),
    Start(usize),
    End(usize, bool),
    Freeze(usize),
    Thaw(usize),
    Expire(usize),
    Join(usize),
    Crash(usize),
    Restart(usize),
    Elect(usize),
    /// The oldest request is carried out, and its answer is lost.
    LoseAnswer(usize),
    /// Somebody deletes all offers.
    RemoveOffers,
    /// The service loses so many of its last writes.
    Rewind(usize),
    Settle,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let node = 0usize..3;
    let fate = prop_oneof![
        6 => (1u16..600).prop_map(Fate::Pass),
        12 => node.clone().prop_map(Fate::Answer),
        6 => node.clone().prop_map(Fate::Start),
        4 => (node.clone(), prop::bool::ANY).prop_map(|(node, is_good)| Fate::End(node, is_good)),
        1 => node.clone().prop_map(Fate::Freeze),
        2 => node.clone().prop_map(Fate::Thaw),
        1 => node.clone().prop_map(Fate::Expire),
        2 => node.clone().prop_map(Fate::Join),
        1 => node.clone().prop_map(Fate::Crash),
        2 => node.clone().prop_map(Fate::Restart),
        1 => node.clone().prop_map(Fate::Elect),
        1 => node.prop_map(Fate::LoseAnswer),
        1 => Just(Fate::RemoveOffers),
        3 => Just(Fate::Settle),
    ];
    prop::collection::vec(fate, 1..120)
}

fn jobs_of_all_kinds() -> Vec<Job> {
    let retries = crate::job::Retries { limit: 1, delay: SECOND, ..Default::default() };
    vec![
        any("skip"),
        Job { overlap: Overlap::Allow, ..any("allow") },
        Job { overlap: Overlap::Queue, retries, ..any("queue") },
        Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..any("rerun") },
        Job { concurrency_group: Some(Group { name: "g".into(), limit: 1 }), ..any("group") },
        on(&["!node=host-a"], any("some")),
        job("own", "* * * * * *"),
    ]
}

/// Applies a fate, as far as it is possible. A leading node is elected again only after its term is over.
fn befall(cluster: &mut Cluster, fate: Fate) {
    match fate {
        Fate::Pass(ms) => cluster.pass(Duration::from_millis(ms.into())),
        Fate::Answer(node) => drop(cluster.answer_one(node)),
        Fate::Start(node) => drop(cluster.start_one(node)),
        Fate::End(node, is_good) => drop(cluster.end_one(node, Exit::Code(i32::from(!is_good)))),
        Fate::Freeze(node) => cluster.node(node).is_frozen = true,
        Fate::Thaw(node) if !cluster.is_crashed(node) => cluster.thaw(node),
        Fate::Expire(node) if !cluster.node(node).is_frozen => cluster.expire(node),
        Fate::Join(node) if cluster.node(node).session.is_none() && !cluster.node(node).is_frozen => cluster.join(node),
        Fate::Crash(node) => cluster.crash(node),
        Fate::Restart(node) if cluster.is_crashed(node) => {
            cluster.lose(node);
            cluster.restart(node);
        }
        Fate::Elect(node) if cluster.may_lead(node) => cluster.elect(node),
        Fate::LoseAnswer(node) => drop(cluster.lose_one(node)),
        Fate::RemoveOffers => cluster.ledger.lose_offers(),
        Fate::Rewind(writes) => cluster.rewind(writes),
        Fate::Settle => cluster.settle(),
        _ => {}
    }
}

/// Lets everything run and end that is due in eight seconds of peace. Returns when they are over.
fn peace(cluster: &mut Cluster) -> jiff::Timestamp {
    cluster.make_peace();
    for _ in 0..40 {
        cluster.run_for(200 * MS);
        for node in 0..3 {
            while cluster.end_one(node, Exit::Code(0)) {}
        }
    }
    cluster.now.wall
}

/// Those of a job that is due every second, before this time.
fn occurrences(until: jiff::Timestamp) -> impl Iterator<Item = jiff::Timestamp> {
    let seconds = at("10:00:01").as_second()..until.as_second();
    seconds.map(|second| jiff::Timestamp::from_second(second).unwrap())
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever happens, no attempt is started twice, tokens grow, and once there is peace every occurrence has run or was
    /// skipped.
    #[test]
    fn nothing_is_started_twice_and_nothing_vanishes(fates in fates()) {
        let mut cluster = Cluster::led(3, "10:00:00", jobs_of_all_kinds());
        for fate in fates {
            befall(&mut cluster, fate);
        }
        let until = peace(&mut cluster);
        for job in jobs_of_all_kinds() {
            let recorded = cluster.recorded(&job.name);
            for at in occurrences(until) {
                prop_assert_eq!(recorded.get(&at), Some(&1), "{} at {}", job.name, at);
            }
        }
        let old = cluster.ledger.running.values().filter(|(record, _)| {
            let age = until.duration_since(record.scheduled_at);
            record.state == RunState::Placed && age > jiff::SignedDuration::from_secs(3)
        });
        prop_assert_eq!(old.count(), 0, "nothing waits in vain");
    }

    /// What the service loses while all nodes live, however slow they are: no run has two processes, at a time or one
    /// after the other, and every occurrence is on record in the end.
    #[test]
    fn what_the_service_loses_is_not_started_again_and_does_not_vanish(fates in fates_of_the_service()) {
        let own = Job { overlap: Overlap::Allow, ..job("own-allow", "* * * * * *") };
        let without_retries = jobs_of_all_kinds().into_iter().filter(|job| job.retries.limit == 0);
        let jobs: Vec<Job> = without_retries.chain([own]).collect();
        let mut cluster = Cluster::led(3, "10:00:00", jobs.clone());
        cluster.is_forgetful = true;
        let mut frozen = [Duration::ZERO; 3];
        for fate in fates {
            keep_leases(&mut cluster, &mut frozen, &fate);
            befall(&mut cluster, fate);
        }
        let until = peace(&mut cluster);
        for job in &jobs {
            let recorded = cluster.recorded(&job.name);
            for at in occurrences(until) {
                // The record of a skip can be lost; the log has it.
                let logged = || usize::from(cluster.has_reported_skip(&job.name, at));
                let known = recorded.get(&at).copied().unwrap_or_else(logged);
                prop_assert_eq!(known, 1, "{} at {}", job.name, at);
            }
        }
        let mut runs: Vec<_> = cluster.started.iter().map(|(run, ..)| run).collect();
        runs.sort();
        let twice = runs.windows(2).find(|pair| pair[0] == pair[1]);
        prop_assert_eq!(twice, None, "{:?}", cluster.started);
    }
}

/// Thaws the nodes that would be frozen for as long as a lease. Otherwise their runs would be killed, and begun again if
/// they are to be: whatever the service has lost. `frozen`: how long each node has been frozen.
fn keep_leases(cluster: &mut Cluster, frozen: &mut [Duration; 3], fate: &Fate) {
    let Fate::Pass(ms) = fate else { return };
    for (node, frozen) in frozen.iter_mut().enumerate() {
        *frozen =
            if cluster.node(node).is_frozen { *frozen + Duration::from_millis((*ms).into()) } else { Duration::ZERO };
        if *frozen >= LEASE {
            cluster.thaw(node);
            *frozen = Duration::ZERO;
        }
    }
}

fn fates_of_the_service() -> impl Strategy<Value = Vec<Fate>> {
    let node = 0usize..3;
    let fate = prop_oneof![
        6 => (1u16..600).prop_map(Fate::Pass),
        12 => node.clone().prop_map(Fate::Answer),
        6 => node.clone().prop_map(Fate::Start),
        4 => (node.clone(), prop::bool::ANY).prop_map(|(node, is_good)| Fate::End(node, is_good)),
        1 => node.clone().prop_map(Fate::Freeze),
        3 => node.clone().prop_map(Fate::Thaw),
        1 => node.prop_map(Fate::LoseAnswer),
        2 => (1usize..8).prop_map(Fate::Rewind),
        3 => Just(Fate::Settle),
    ];
    prop::collection::vec(fate, 1..80)
}
