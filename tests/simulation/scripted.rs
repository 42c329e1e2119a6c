//! Single moments of the real backend, staged by hand: cases that invariants cannot see or chance never brings.

use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{Client, Connect, Mode};
use cronkeeper_core::coordination::{Coordination, Event, Request};
use cronkeeper_core::election;
use cronkeeper_core::ledger;
use cronkeeper_core::run::RunId;
use cronkeeper_core::run::journal::Recovered;
use cronkeeper_core::term::TermEnd;
use fastrand::Rng;

use super::backend::{NodeProcess, backend, node_name};
use super::faults::Fault;
use super::network::Host;
use super::testbed::{T, Testbed};
use super::zookeeper::SERVERS;

/// Longest time for an answer when nothing fails.
const SOON: Duration = Duration::from_millis(60);

/// Starts a process of `node` that takes part through the real backend.
fn join(testbed: &mut Testbed, node: usize) -> Coordination {
    let rng = Rng::with_seed(node as u64);
    let (world, name, disk) = (&testbed.executor.world, node_name(node), Default::default());
    let (disk, recovered) = (&disk, &Recovered::default());
    let (task, coordination) = backend(NodeProcess { world, node, name, disk, recovered, rng });
    testbed.executor.spawn(node, task);
    ask(&coordination, election::Request::Campaign);
    coordination
}

fn ask(coordination: &Coordination, request: election::Request) {
    coordination.requests.send(Request::Election(request)).unwrap();
}

/// Runs until the node emits a wanted event.
fn await_event<T>(
    testbed: &mut Testbed,
    from: &mut Coordination,
    mut wanted: impl FnMut(election::Event) -> Option<T>,
) -> T {
    let mut found = None;
    testbed.run_until(|_| {
        while found.is_none()
            && let Ok(event) = from.events.try_recv()
        {
            if let Event::Election(event) = event {
                found = wanted(event);
            }
        }
        found.is_some()
    });
    found.unwrap()
}

fn elected(testbed: &mut Testbed, node: &mut Coordination) -> String {
    await_event(testbed, node, |event| match event {
        election::Event::Elected { term, .. } => Some(format!("/leader/{}", term.candidate.0)),
        _ => None,
    })
}

/// A leader, and others in line behind it.
fn in_line(testbed: &mut Testbed, nodes: usize) -> Vec<Coordination> {
    let mut line = vec![join(testbed, 0)];
    elected(testbed, &mut line[0]);
    for node in 1..nodes {
        let mut next = join(testbed, node);
        await_event(testbed, &mut next, |event| matches!(event, election::Event::Following { .. }).then_some(()));
        line.push(next);
    }
    line
}

fn operator(testbed: &mut Testbed, node: usize) -> impl Client + use<> {
    let connector = testbed.connector(node);
    testbed.on(node, async move { connector.connect().await }).unwrap()
}

#[test]
fn each_waits_for_the_one_before_it_and_the_end_of_a_leader_wakes_one() {
    let mut testbed = Testbed::new(1, 6);
    let line = in_line(&mut testbed, 6);
    testbed.run(T);
    let watched = testbed.executor.world.lock().clients.watched("/leader/");
    assert!(watched.values().all(|&nodes| nodes <= 2), "besides its own node one watches a candidate: {watched:?}");
    assert_eq!(watched.len(), 5, "all but the last are waited for: {watched:?}");
    let woken = testbed.executor.world.lock().clients.woken;
    ask(&line[0], election::Request::Resign);
    testbed.run(SOON);
    let woken = testbed.executor.world.lock().clients.woken - woken;
    assert!(woken <= 2, "the former leader and its successor are notified: {woken}");
}

/// Nobody notifies it, because one watch of all nodes on the leader would wake the whole queue.
#[test]
fn who_does_not_watch_the_leader_knows_of_another_within_seconds() {
    const NODES: usize = 8;
    const LATEST: Duration = Duration::from_secs(2);
    let mut testbed = Testbed::new(1, NODES);
    let mut line = in_line(&mut testbed, NODES);
    // Long after the last change, when the queue is seldom read.
    testbed.run(Duration::from_secs(60));
    let counts = |testbed: &Testbed| {
        let clients = &testbed.executor.world.lock().clients;
        (clients.woken, clients.reads_of_queue)
    };
    let (woken, reads) = counts(&testbed);
    let resigned = testbed.now();
    ask(&line[0], election::Request::Resign);
    for follower in &mut line[2..] {
        await_event(&mut testbed, follower, |event| match event {
            election::Event::Following { leader_node, .. } => (leader_node == Some(node_name(1))).then_some(()),
            _ => None,
        });
        let took = testbed.now().since(resigned);
        assert!(took < LATEST + SOON, "another leads for {took:?}");
    }
    let (woken, reads) = (counts(&testbed).0 - woken, counts(&testbed).1 - reads);
    assert!(woken <= 2, "the former leader and its successor are notified: {woken}");
    assert!(reads <= 6 * NODES, "each follower looks, lists the queue and reads two entries: {reads}");
}

#[test]
fn a_node_that_runs_jobs_is_notified_at_once_that_its_member_is_gone_though_it_leads_no_more() {
    for seed in 0..10 {
        let mut testbed = Testbed::new(seed, 2);
        let mut line = in_line(&mut testbed, 1);
        ask(&line[0], election::Request::Busy(true));
        ask(&line[0], election::Request::Resign);
        await_event(&mut testbed, &mut line[0], |event| matches!(event, election::Event::Withdrawn).then_some(()));
        let admin = operator(&mut testbed, 1);
        testbed.executor.world.lock().env.network.calm();
        testbed.run(T);
        testbed.on(1, async move { admin.delete("/cronkeeper/nodes/node-0", -1).await }).unwrap();
        let gone = testbed.now();
        await_event(&mut testbed, &mut line[0], |event| match event {
            election::Event::Lease { until } => (until == cronkeeper_core::clock::Uptime::ZERO).then_some(()),
            _ => None,
        });
        let took = testbed.now().since(gone);
        assert!(took < SOON, "seed {seed}: what it runs is killed {took:?} after its member went");
    }
}

/// All connections of a node, both ways.
fn lines_of(node: usize) -> impl Iterator<Item = (Host, Host)> {
    (0..SERVERS).flat_map(move |server| {
        let (node, server) = (Host::Node(node), Host::Server(server));
        [(node, server), (server, node)]
    })
}

/// Others that come back a little later write first what the servers have lost.
#[test]
fn a_node_that_has_just_come_back_leads_a_quarter_of_the_session_later() {
    let mut testbed = Testbed::new(1, 2);
    let mut line = in_line(&mut testbed, 2);
    testbed.run(T);
    lines_of(1).for_each(|(from, to)| testbed.executor.fault(Fault::Cut { from, to }));
    await_event(&mut testbed, &mut line[1], |event| matches!(event, election::Event::Suspended { .. }).then_some(()));
    ask(&line[0], election::Request::Resign);
    await_event(&mut testbed, &mut line[0], |event| matches!(event, election::Event::Withdrawn).then_some(()));
    lines_of(1).for_each(|(from, to)| testbed.executor.fault(Fault::Heal { from, to }));
    await_event(&mut testbed, &mut line[1], |event| matches!(event, election::Event::Resumed { .. }).then_some(()));
    let back = testbed.now();
    elected(&mut testbed, &mut line[1]);
    let took = testbed.now().since(back);
    assert!((T / 4..T / 4 + SOON).contains(&took), "it leads {took:?} after it was back");
}

#[test]
fn a_follower_whose_member_was_removed_while_it_was_away_reports_that_it_is_back() {
    let mut testbed = Testbed::new(1, 3);
    let mut line = in_line(&mut testbed, 2);
    let admin = operator(&mut testbed, 2);
    testbed.run(T);
    lines_of(1).for_each(|(from, to)| testbed.executor.fault(Fault::Cut { from, to }));
    await_event(&mut testbed, &mut line[1], |event| matches!(event, election::Event::Suspended { .. }).then_some(()));
    testbed.on(2, async move { admin.delete("/cronkeeper/nodes/node-1", -1).await }).unwrap();
    lines_of(1).for_each(|(from, to)| testbed.executor.fault(Fault::Heal { from, to }));
    await_event(&mut testbed, &mut line[1], |event| match event {
        election::Event::Expired { .. } => panic!("the session lasts longer than the outage"),
        event => matches!(event, election::Event::Session { .. }).then_some(()),
    });
    await_event(&mut testbed, &mut line[1], |event| matches!(event, election::Event::Resumed { .. }).then_some(()));
}

/// The data of `/leader`, as the ensemble has it.
fn leader_data(testbed: &Testbed) -> String {
    let world = testbed.executor.world.lock();
    let data = world.ensemble.leader().and_then(|leader| leader.tree().get("/leader")).map(|(data, _)| data);
    String::from_utf8_lossy(&data.unwrap_or_default()).into_owned()
}

#[test]
fn a_successor_with_a_lease_leads_without_waiting_for_its_opening_write() {
    let mut testbed = Testbed::new(1, 2);
    let mut line = in_line(&mut testbed, 2);
    testbed.run(T);
    ask(&line[0], election::Request::Resign);
    elected(&mut testbed, &mut line[1]);
    assert!(leader_data(&testbed).contains("node-0"), "what it wrote is not yet committed");
    testbed.run_until(|testbed| leader_data(testbed).contains("node-1"));
}

#[test]
fn a_successor_without_a_lease_leads_only_once_a_quorum_has_answered_it() {
    for seed in 0..10 {
        let mut testbed = Testbed::new(seed, 2);
        let mut line = in_line(&mut testbed, 2);
        testbed.run(T);
        testbed.executor.fault(Fault::Pause { node: 1 });
        ask(&line[0], election::Request::Resign);
        // Its session is alive, its lease is not.
        testbed.run(T.mul_f64(0.88));
        testbed.executor.fault(Fault::Resume { node: 1 });
        elected(&mut testbed, &mut line[1]);
        assert!(leader_data(&testbed).contains("node-1"), "seed {seed}: it said that it leads before it was answered");
    }
}

/// Without this a leader that watched a run before it led would know only the state at the time when it read the
/// ledger.
#[test]
fn a_watched_run_is_reported_as_it_is_to_whoever_asks_again() {
    let mut testbed = Testbed::new(1, 2);
    let mut nodes = in_line(&mut testbed, 1);
    let admin = operator(&mut testbed, 1);
    let run = RunId::parse("backup.20261120T023000Z").unwrap();
    let record = serde_json::json!({
        "v": 1, "job": "backup", "scheduled_at": "2026-11-20T02:30:00Z", "state": "running",
        "node": "node-1", "session": "0x1", "token": 7, "attempt": 1, "nonce": "7-1",
        "begun_at": "2026-11-20T02:30:00Z", "on_loss": "rerun",
    });
    let path = format!("/cronkeeper/running/{run}");
    testbed.on(1, async move { admin.create(&path, record.to_string().into_bytes(), Mode::Persistent).await }).unwrap();
    for _ in 0..2 {
        nodes[0].requests.send(Request::Ledger(ledger::Request::WatchOwn(run.clone()))).unwrap();
        let mut reported = None;
        testbed.run_until(|_| {
            while reported.is_none()
                && let Ok(event) = nodes[0].events.try_recv()
            {
                if let Event::Ledger(ledger::Event::Run(of, found)) = event {
                    reported = Some((of, found.is_some()));
                }
            }
            reported.is_some()
        });
        assert_eq!(reported, Some((run.clone(), true)));
    }
}

#[test]
fn a_candidate_that_bears_the_own_name_under_another_session_is_not_the_own() {
    let mut testbed = Testbed::new(1, 2);
    let mut leader = join(&mut testbed, 0);
    let candidate = elected(&mut testbed, &mut leader);
    let admin = operator(&mut testbed, 1);
    let links = || (0..SERVERS).map(Host::Server).flat_map(|server| [(server, Host::Node(0)), (Host::Node(0), server)]);
    links().for_each(|(from, to)| testbed.executor.fault(Fault::Cut { from, to }));
    // Kept, because its session must stay alive.
    let theirs = admin.clone();
    testbed.on(1, async move {
        theirs.delete(&candidate, -1).await.unwrap();
        theirs.create(&candidate, Vec::new(), Mode::Ephemeral).await.unwrap();
    });
    testbed.run(T / 4);
    links().for_each(|(from, to)| testbed.executor.fault(Fault::Heal { from, to }));
    testbed.run(SOON);
    let mut ends = std::iter::from_fn(|| leader.events.try_recv().ok()).filter_map(|event| match event {
        Event::Election(election::Event::Over { why, .. }) => Some(why),
        _ => None,
    });
    assert_eq!(ends.next(), Some(TermEnd::EntryGone));
}
