//! Runs on every node: who gets a share, once, and what becomes of the shares of nodes that are away.

use proptest::prelude::{prop_assert_eq, proptest};

use super::*;
use crate::election;
use crate::engine::{Event, Report};
use crate::job::JobName;
use crate::ledger::{self, OperatorRequests, TriggerEntry};
use crate::run::{Drain, HistoryRecord, NodeControl, RunId, Trigger, TriggerRecord, TriggerSeq};
use crate::term::NodeName;

/// A job that every node runs, every second.
fn every(name: &str) -> Job {
    Job { run_on: RunOn::Every, ..job(name, "* * * * * *") }
}

/// The same, due once at 10:00:01.
fn once(name: &str) -> Job {
    Job { run_on: RunOn::Every, ..job(name, "1 0 10 * * *") }
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

#[test]
fn each_node_gets_one_share_at_its_time() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![once("a")]);
    cluster.run_for(SECOND - 5 * MS);
    assert_eq!(cluster.started.len(), 0);
    assert_eq!(cluster.ledger.running.len(), 3, "they are prepared");
    cluster.run_for(5 * MS);
    assert_eq!(sorted(cluster.started_on("a")), ["host-a", "host-b", "host-c"]);
    let ids: Vec<String> = cluster.ledger.running.keys().map(ToString::to_string).collect();
    assert_eq!(ids, ["host-a", "host-b", "host-c"].map(|node| format!("a.20261120T100001Z@{node}")));
    for index in 0..3 {
        assert!(cluster.end_one(index, Exit::Code(0)));
    }
    cluster.run_for(2 * SECOND);
    assert_eq!((cluster.ledger.history.len(), cluster.ledger.running.len(), cluster.started.len()), (3, 0, 3));
}

#[test]
fn only_nodes_with_the_labels_get_one_also_those_of_weight_0() {
    let jobs = vec![on(&["db"], once("a"))];
    let mut cluster = Cluster::led(3, "10:00:00", jobs.clone());
    cluster.become_node(1, jobs.clone(), &["db"], 0);
    cluster.become_node(2, jobs, &["db"], 4);
    cluster.run_for(2 * SECOND);
    assert_eq!(sorted(cluster.started_on("a")), ["host-b", "host-c"]);
}

#[test]
fn a_job_that_no_node_fits_is_skipped() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![on(&["db"], once("a"))]);
    cluster.run_for(2 * SECOND);
    assert_eq!((cluster.skipped(), cluster.started.len()), (vec!["a no-node".to_owned()], 0));
}

#[test]
fn more_nodes_than_fit_a_commit_get_theirs_too() {
    let mut cluster = Cluster::led(26, "10:00:00", vec![once("a")]);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 26);
    assert_eq!(cluster.ledger.running.len(), 26);
}

#[test]
fn a_new_leader_gives_the_rest_their_shares_and_a_node_that_joined_later_gets_none() {
    let mut cluster = Cluster::led(25, "10:00:00", vec![once("a")]);
    while cluster.ledger.running.len() < 2 {
        cluster.pass(5 * MS);
        while cluster.ledger.running.len() < 2 && (cluster.answer_one(0) || cluster.start_one(0)) {}
    }
    assert_eq!(cluster.ledger.running.len(), 21, "twenty have theirs");
    cluster.crash(0);
    cluster.become_node(25, vec![once("a")], &[], 1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 19);
    cluster.lose(0);
    cluster.elect(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 24);
    assert!(!cluster.started_on("a").contains(&name(25).to_string()));
    cluster.restart(0);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 25);
}

#[test]
fn the_share_of_a_node_that_is_away_waits_for_it() {
    let window = Some(Duration::from_secs(60));
    let mut cluster = Cluster::led(3, "10:00:00", vec![Job { misfire_window: window, ..once("a") }]);
    cluster.crash(2);
    cluster.lose(2);
    cluster.run_for(30 * SECOND);
    assert_eq!(sorted(cluster.started_on("a")), ["host-a", "host-b"]);
    cluster.restart(2);
    cluster.run_for(SECOND);
    assert_eq!(sorted(cluster.started_on("a")), ["host-a", "host-b", "host-c"]);
    assert_eq!(cluster.skipped(), Vec::<String>::new());
}

#[test]
fn its_window_goes_on_whoever_leads() {
    let window = Some(Duration::from_secs(60));
    let mut cluster = Cluster::led(3, "10:00:00", vec![Job { misfire_window: window, ..once("a") }]);
    cluster.crash(2);
    cluster.lose(2);
    cluster.run_for(40 * SECOND);
    cluster.expire(0);
    cluster.elect(1);
    cluster.join(0);
    cluster.run_for(25 * SECOND);
    assert_eq!(cluster.skipped(), ["a@host-c no-node"]);
    cluster.restart(2);
    cluster.run_for(SECOND);
    assert_eq!(sorted(cluster.started_on("a")), ["host-a", "host-b"]);
}

#[test]
fn its_window_is_over_although_nobody_led_then() {
    let window = Some(Duration::from_secs(60));
    let jobs = vec![Job { misfire_window: window, ..once("a") }, Job { run_on: RunOn::Any, ..once("b") }];
    let jobs: Vec<Job> = jobs.into_iter().map(|job| on(&["node=host-c"], job)).collect();
    let mut cluster = Cluster::led(3, "10:00:00", jobs);
    cluster.crash(2);
    cluster.lose(2);
    cluster.run_for(2 * SECOND);
    assert_eq!(cluster.ledger.running.len(), 2, "both wait");
    cluster.expire(0);
    cluster.expire(1);
    cluster.pass(Duration::from_secs(13 * 3600));
    cluster.join(0);
    cluster.restart(2);
    cluster.elect(0);
    cluster.run_for(SECOND);
    assert_eq!(sorted(cluster.skipped()), ["a@host-c no-node", "b no-node"]);
    assert_eq!(cluster.started.len(), 0);
}

#[test]
fn what_waits_for_others_has_no_window_even_if_its_node_was_away_before() {
    let group = Some(Group { name: "g".into(), limit: 1 });
    let window = Some(Duration::from_secs(60));
    let grouped = Job { concurrency_group: group, misfire_window: window, ..once("a") };
    let mut cluster = Cluster::led(2, "10:00:00", vec![grouped]);
    cluster.crash(1);
    cluster.lose(1);
    cluster.run_for(30 * SECOND);
    cluster.restart(1);
    // The other has its position for longer than the window.
    cluster.run_for(90 * SECOND);
    assert!(cluster.end_one(0, Exit::Code(0)));
    cluster.run_for(SECOND);
    assert_eq!((sorted(cluster.started_on("a")), cluster.skipped()), (vec!["host-a".into(), "host-b".into()], vec![]));
}

#[test]
fn it_is_skipped_when_the_window_is_over_and_the_newest_is_the_one_that_waits() {
    let window = Some(Duration::from_secs(60));
    let minutely = Job { misfire_window: window, run_on: RunOn::Every, ..job("a", "*/10 * * * * *") };
    let mut cluster =
        Cluster::led(2, "10:00:00", vec![Job { misfire_window: Some(3 * SECOND), ..once("b") }, minutely]);
    cluster.crash(1);
    cluster.lose(1);
    for _ in 0..4 {
        cluster.run_for(8 * SECOND);
        while cluster.end_one(0, Exit::Code(0)) {}
    }
    assert_eq!(sorted(cluster.skipped()), ["a@host-b no-node", "a@host-b no-node", "b@host-b no-node"]);
    cluster.restart(1);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a").iter().filter(|node| *node == "host-b").count(), 1);
    assert_eq!(cluster.shares(&JobName::parse("a").unwrap(), &name(1)).len(), 3);
}

#[test]
fn a_drained_node_gets_none_and_its_skips_are_one_record() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![every("a")]);
    let drained = |is_drained: bool| {
        let drain = Drain { by: "alice".into(), at: at("10:00:00"), reason: None };
        let wanted = NodeControl { drained: is_drained.then_some(drain), ..NodeControl::default() };
        Event::Election(election::Event::Wanted(wanted))
    };
    cluster.handle(1, drained(true));
    cluster.tell_members();
    for _ in 0..5 {
        cluster.run_for(SECOND);
        while cluster.end_one(0, Exit::Code(0)) {}
    }
    cluster.run_for(100 * MS);
    assert_eq!(cluster.skipped(), ["a@host-b drained"]);
    assert!(!cluster.started_on("a").contains(&"host-b".to_owned()));
    cluster.handle(1, drained(false));
    cluster.tell_members();
    cluster.run_for(2 * SECOND);
    assert!(cluster.started_on("a").contains(&"host-b".to_owned()));
}

#[test]
fn a_long_share_has_only_its_own_nodes_next_one_skipped() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![every("a")]);
    cluster.run_for(SECOND);
    for _ in 0..3 {
        assert!(cluster.end_one(0, Exit::Code(0)));
        cluster.run_for(SECOND);
    }
    assert_eq!(cluster.started_on("a").iter().filter(|node| *node == "host-a").count(), 4);
    assert_eq!(cluster.started_on("a").iter().filter(|node| *node == "host-b").count(), 1);
    assert_eq!(cluster.skipped(), ["a@host-b overlap"]);
}

#[test]
fn a_group_of_one_runs_on_one_node_after_the_other_and_passes_over_those_that_are_away() {
    let group = Some(Group { name: "g".into(), limit: 1 });
    let mut cluster = Cluster::led(3, "10:00:00", vec![Job { concurrency_group: group, ..once("a") }]);
    cluster.crash(1);
    cluster.lose(1);
    cluster.run_for(2 * SECOND);
    for index in [0, 2] {
        let running: Vec<usize> = (0..3).filter(|&index| !cluster.node(index).running.is_empty()).collect();
        assert_eq!(running, [index]);
        assert!(cluster.end_one(index, Exit::Code(0)));
        cluster.run_for(50 * MS);
    }
    cluster.restart(1);
    cluster.run_for(100 * MS);
    assert_eq!(cluster.node(1).running.len(), 1);
}

#[test]
fn a_retry_stays_on_its_node() {
    let retries = crate::job::Retries { limit: 2, delay: 100 * MS, ..Default::default() };
    let mut cluster = Cluster::led(3, "10:00:00", vec![Job { retries, ..once("a") }]);
    cluster.run_for(SECOND);
    assert!(cluster.end_one(1, Exit::Code(1)));
    cluster.run_for(SECOND);
    assert!(cluster.end_one(1, Exit::Code(1)));
    cluster.run_for(SECOND);
    assert_eq!(cluster.started_on("a").iter().filter(|node| *node == "host-b").count(), 3);
    assert_eq!(cluster.started.len(), 5);
}

#[test]
fn a_rerun_waits_for_its_node_and_ends_when_the_cluster_forgets_that() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once("a") };
    let mut cluster = Cluster::led(2, "10:00:00", vec![Job { misfire_window: Some(SECOND), ..rerun }]);
    cluster.run_for(2 * SECOND);
    cluster.crash(1);
    cluster.lose(1);
    cluster.run_for(5 * SECOND);
    assert_eq!((cluster.started.len(), cluster.skipped().len()), (2, 0));
    let share = cluster.ledger.running.keys().find(|run| run.node() == Some(&name(1))).cloned();
    assert!(share.is_some(), "it had a process, so it is not skipped");
    cluster.forget(1);
    cluster.run_for(SECOND);
    let outcomes: Vec<&str> = cluster
        .ledger
        .history
        .iter()
        .filter_map(|record| match record {
            HistoryRecord::Run(end) if end.run.on.is_some() => Some(end.outcome.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, ["interrupted"]);
}

#[test]
fn a_leader_that_does_not_know_the_nodes_waits_for_them_and_does_nothing_meanwhile() {
    let mut cluster = Cluster::led(2, "10:00:00", vec![every("a")]);
    while cluster.ledger.running.is_empty() {
        cluster.pass(5 * MS);
        cluster.answer_one(0);
    }
    assert!(cluster.ledger.running.values().all(|(record, _)| record.share_among.is_some()), "it is to be shared out");
    cluster.crash(0);
    cluster.lose(0);
    cluster.hides_members = true;
    cluster.elect(1);
    for _ in 0..3 {
        cluster.run_for(SECOND);
        assert!(cluster.is_at_rest(1));
    }
    assert_eq!(cluster.started.len(), 0);
    cluster.hides_members = false;
    cluster.tell_members();
    cluster.run_for(SECOND);
    assert!(!cluster.started_on("a").is_empty());
}

#[test]
fn a_share_whose_node_is_back_waits_for_its_group_and_not_for_its_node() {
    let group = Some(Group { name: "g".into(), limit: 1 });
    let grouped = Job { concurrency_group: group, run_on: RunOn::Every, ..job("a", "*/10 * * * * *") };
    let mut cluster = Cluster::led(3, "10:00:05", vec![grouped]);
    cluster.crash(1);
    cluster.lose(1);
    cluster.run_for(6 * SECOND);
    assert!(cluster.end_one(0, Exit::Code(0)));
    cluster.run_for(100 * MS);
    assert_eq!(cluster.node(2).running.len(), 1, "it passes over the one that is away");
    cluster.restart(1);
    cluster.run_for(10 * SECOND);
    let running: Vec<usize> = (0..3).map(|index| cluster.node(index).running.len()).collect();
    assert_eq!(
        (running, cluster.skipped()),
        (vec![0, 0, 1], vec!["a@host-b overlap".to_owned(), "a@host-c overlap".into()])
    );
    assert!(cluster.end_one(2, Exit::Code(0)));
    cluster.run_for(100 * MS);
    assert_eq!(cluster.node(1).running.len(), 1);
}

fn triggered(cluster: &mut Cluster, job: &str, on: &[usize]) {
    triggered_as(cluster, job, on, 7);
}

fn triggered_as(cluster: &mut Cluster, job: &str, on: &[usize], seq: u64) {
    let at = at("10:00:00");
    let record =
        TriggerRecord::new(uuid::Uuid::from_u128(seq.into()), JobName::parse(job).unwrap(), "alice".into(), at)
            .on(on.iter().map(|&index| name(index)).collect());
    let entry = TriggerEntry { record, is_in_history: false };
    let triggers = [(TriggerSeq(seq), entry)].into();
    let requests = OperatorRequests { triggers, ..OperatorRequests::default() };
    cluster.handle(0, Event::Ledger(ledger::Event::OperatorRequests(requests)));
    cluster.settle();
}

#[test]
fn a_trigger_runs_on_every_node_or_on_those_that_it_names() {
    let never = |run_on| Job { run_on, ..job("a", "0 0 0 1 1 *") };
    for (run_on, on, expected) in [
        (RunOn::Every, &[][..], &["host-a", "host-b", "host-c"][..]),
        (RunOn::Every, &[1], &["host-b"]),
        (RunOn::Any, &[0, 2], &["host-a", "host-c"]),
    ] {
        let mut cluster = Cluster::led(3, "10:00:00", vec![never(run_on)]);
        triggered(&mut cluster, "a", on);
        cluster.run_for(100 * MS);
        assert_eq!(sorted(cluster.started_on("a")), expected);
        assert!(cluster.ledger.running.keys().all(|run| run.trigger() == Some(TriggerSeq(7))));
        // The list is outdated: the leader has decided on it.
        triggered(&mut cluster, "a", on);
        cluster.run_for(100 * MS);
        assert_eq!(cluster.started.len(), expected.len());
    }
}

/// The service has lost that the trigger was removed. What it led to is shared out, and may be over.
#[test]
fn a_trigger_that_is_listed_again_begins_nothing_once_its_run_is_shared_out() {
    for is_over in [false, true] {
        let a = Job { run_on: RunOn::Every, ..job("a", "0 0 0 1 1 *") };
        let mut cluster = Cluster::led(3, "10:00:00", vec![a]);
        triggered(&mut cluster, "a", &[]);
        cluster.run_for(100 * MS);
        assert_eq!(cluster.started.len(), 3);
        if is_over {
            (0..3).for_each(|index| assert!(cluster.end_one(index, Exit::Code(0))));
        }
        cluster.reconnect();
        triggered(&mut cluster, "a", &[]);
        cluster.run_for(10 * SECOND);
        let begun = cluster.node(0).reports.iter().filter(|report| matches!(report, Report::Triggered { .. }));
        assert_eq!((begun.count(), cluster.started.len()), (1, 3), "is over: {is_over}");
    }
}

/// The same for links.
#[test]
fn a_link_that_is_listed_again_begins_and_skips_nothing_once_its_run_is_shared_out() {
    let seven = Trigger { seq: TriggerSeq(7), uuid: uuid::Uuid::from_u128(7), by: "alice".into(), scheduled_at: None };
    for trigger in [Some(seven), None] {
        let after = crate::job::Due::After([(JobName::parse("a").unwrap(), crate::job::Condition::Success)].into());
        let b = Job { due: after, run_on: RunOn::Every, ..job("b", "0 0 0 1 1 *") };
        let mut cluster = Cluster::led(3, "10:00:00", vec![job("a", "0 0 0 1 1 *"), b]);
        let at = at("10:00:01");
        let link = crate::run::Link {
            v: 1,
            upstream: JobName::parse("a").unwrap(),
            job: JobName::parse("b").unwrap(),
            scheduled_at: at,
            span: crate::run::Span { last: at, count: 1 },
            trigger,
            result: crate::run::UpstreamResult::Success,
            at,
            since: None,
        };
        let links = OperatorRequests { links: [(TriggerSeq(8), link)].into(), ..OperatorRequests::default() };
        let listed = Event::Ledger(ledger::Event::OperatorRequests(links));
        cluster.run_for(SECOND);
        cluster.handle(0, listed.clone());
        cluster.run_for(SECOND);
        assert_eq!((cluster.started.len(), cluster.skipped()), (3, Vec::new()));
        (0..3).for_each(|index| assert!(cluster.end_one(index, Exit::Code(0))));
        cluster.reconnect();
        cluster.handle(0, listed);
        cluster.run_for(10 * SECOND);
        let begun = cluster.ledger.running.len();
        assert_eq!((begun, cluster.started.len(), cluster.skipped()), (0, 3, Vec::new()));
    }
}

#[test]
fn a_node_that_a_trigger_names_may_have_joined_just_now() {
    let never = Job { run_on: RunOn::Any, ..job("a", "0 0 0 1 1 *") };
    let mut cluster = Cluster::led(2, "10:00:00", vec![never.clone()]);
    cluster.forget(1);
    cluster.lose(1);
    triggered(&mut cluster, "a", &[1]);
    cluster.run_for(100 * MS);
    assert_eq!((cluster.started.len(), cluster.skipped().len()), (0, 0));
    cluster.become_node(1, vec![never], &[], 1);
    cluster.run_for(100 * MS);
    assert_eq!(cluster.started_on("a"), ["host-b"]);
}

#[test]
fn what_a_trigger_has_left_for_a_node_that_is_forgotten_is_skipped_whoever_leads() {
    let never = Job { run_on: RunOn::Every, ..job("a", "0 0 0 1 1 *") };
    for is_led_by_another in [false, true] {
        let mut cluster = Cluster::led(3, "10:00:00", vec![never.clone()]);
        cluster.lose(1);
        triggered(&mut cluster, "a", &[1]);
        cluster.run_for(100 * MS);
        assert_eq!((cluster.started.len(), cluster.skipped().len()), (0, 0), "it waits for the node");
        if is_led_by_another {
            cluster.lose(0);
            cluster.hides_members = true;
        }
        cluster.forget(1);
        cluster.hides_members = false;
        if is_led_by_another {
            cluster.elect(2);
        }
        cluster.run_for(100 * MS);
        assert_eq!(cluster.skipped(), ["a@host-b no-node"], "{is_led_by_another}");
        assert!(cluster.ledger.running.is_empty());
    }
}

#[test]
fn a_trigger_right_after_the_end_of_a_run_on_another_node_does_not_overlap_with_it() {
    let never = Job { run_on: RunOn::Any, ..job("a", "0 0 0 1 1 *") };
    let mut cluster = Cluster::led(2, "10:00:00", vec![never]);
    triggered(&mut cluster, "a", &[1]);
    cluster.run_for(600 * MS);
    // Its watch has not fired yet.
    cluster.node(0).watched.clear();
    assert!(cluster.end_one(1, Exit::Code(0)));
    while cluster.answer_one(1) {}
    triggered_as(&mut cluster, "a", &[1], 8);
    cluster.run_for(100 * MS);
    assert_eq!((cluster.started.len(), cluster.skipped()), (2, vec![]));
}

#[test]
fn what_runs_after_a_job_follows_a_trigger_on_one_node_and_not_one_on_several() {
    let never = Job { run_on: RunOn::Any, ..job("a", "0 0 0 1 1 *") };
    let after = Job {
        due: crate::job::Due::After([(JobName::parse("a").unwrap(), crate::job::Condition::Success)].into()),
        ..job("b", "0 0 0 1 1 *")
    };
    for (on, dependents) in [(&[1][..], 1), (&[1, 2], 0)] {
        let mut cluster = Cluster::led(3, "10:00:00", vec![never.clone(), after.clone()]);
        triggered(&mut cluster, "a", on);
        cluster.run_for(100 * MS);
        let of_a = cluster.ledger.running.values().filter(|(record, _)| record.job.as_str() == "a");
        let found: Vec<usize> = of_a.map(|(record, _)| record.dependents.len()).collect();
        assert_eq!(found, vec![dependents; on.len()]);
    }
}

#[test]
fn a_share_that_is_there_already_is_not_made_again_and_the_others_are() {
    let mut cluster = Cluster::led(3, "10:00:00", vec![once("a")]);
    cluster.run_for(SECOND);
    let share = |index: usize| -> RunId { format!("a.20261120T100001Z@{}", name(index)).try_into().unwrap() };
    for index in 0..3 {
        assert!(cluster.end_one(index, Exit::Code(0)));
    }
    cluster.settle();
    // The service has lost the mark, and one of the ends.
    cluster.ledger.jobs.values_mut().for_each(|(record, _)| record.last_scheduled = at("10:00:00"));
    cluster.ledger.history.retain(|record| record.id() != share(2));
    cluster.crash(0);
    cluster.lose(0);
    cluster.elect(1);
    cluster.run_for(SECOND);
    let starts: Vec<String> = cluster.started_on("a").into_iter().skip(3).collect();
    assert_eq!(starts, Vec::<String>::new(), "host-c knows that its share is over");
    cluster.restart(0);
    cluster.run_for(SECOND);
    assert_eq!(cluster.started.len(), 3, "the history has the share of host-a");
}

fn shares_of_all_kinds() -> Vec<Job> {
    let retries = crate::job::Retries { limit: 1, delay: SECOND, ..Default::default() };
    vec![
        every("skip"),
        Job { overlap: Overlap::Allow, ..every("allow") },
        Job { overlap: Overlap::Queue, retries, ..every("queue") },
        Job { overlap: Overlap::Replace, ..every("replace") },
        Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..every("rerun") },
        Job { concurrency_group: Some(Group { name: "g".into(), limit: 1 }), ..every("group") },
        on(&["!node=host-a"], every("some")),
        any("any"),
    ]
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever happens, no share is started twice, tokens grow, and once there is peace every node that fits has a share of
    /// every occurrence, or a skip.
    #[test]
    fn every_node_has_its_share_of_each_occurrence(fates in fates()) {
        let mut cluster = Cluster::led(3, "10:00:00", shares_of_all_kinds());
        for fate in fates {
            befall(&mut cluster, fate);
        }
        let until = peace(&mut cluster);
        for job in shares_of_all_kinds().iter().filter(|job| job.run_on == RunOn::Every) {
            let nodes: Vec<NodeName> = (0..3).map(name).collect();
            for node in nodes.iter().filter(|node| job.run_where.is_met_by(node, &Default::default())) {
                let shares = cluster.shares(&job.name, node);
                for at in occurrences(until) {
                    prop_assert_eq!(shares.get(&at), Some(&1), "{}@{} at {}", job.name, node, at);
                }
            }
        }
        let to_share = cluster.ledger.running.values().filter(|(record, _)| {
            record.share_among.is_some() && until.duration_since(record.scheduled_at) > jiff::SignedDuration::from_secs(2)
        });
        prop_assert_eq!(to_share.count(), 0, "all are shared out");
    }
}
