//! Tests that the model behaves as was measured on real servers and read in the client crate's source.

use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{Client, Connect, Error, Mode, Op, State, Watch};

use super::super::faults::Fault;
use super::super::network::Host;
use super::super::testbed::{T, TICK, Testbed};
use super::SERVERS;
use super::port::SimClient;
use super::server::Health;

fn connect(testbed: &mut Testbed, node: usize) -> SimClient {
    let connector = testbed.connector(node);
    testbed.on(node, async move { connector.connect().await }).unwrap()
}

/// A client of `node` that is connected to a follower, or to the leader of the ensemble.
fn connect_to(testbed: &mut Testbed, node: usize, leader: bool) -> (SimClient, usize) {
    for _ in 0..50 {
        let client = connect(testbed, node);
        let server = server_of(testbed, node);
        if testbed.executor.world.lock().ensemble.servers[server].is_leading() == leader {
            return (client, server);
        }
        drop(client);
        testbed.run(T);
    }
    panic!("chance never chose such a server");
}

fn server_of(testbed: &Testbed, node: usize) -> usize {
    testbed.executor.world.lock().clients.server_of(node).unwrap()
}

fn fault(testbed: &mut Testbed, fault: Fault) {
    testbed.executor.fault(fault);
}

fn cut_off(testbed: &mut Testbed, server: usize) {
    for other in (0..SERVERS).filter(|other| *other != server) {
        fault(testbed, Fault::Cut { from: Host::Server(server), to: Host::Server(other) });
        fault(testbed, Fault::Cut { from: Host::Server(other), to: Host::Server(server) });
    }
}

fn rejoin(testbed: &mut Testbed, server: usize) {
    for other in (0..SERVERS).filter(|other| *other != server) {
        fault(testbed, Fault::Heal { from: Host::Server(server), to: Host::Server(other) });
        fault(testbed, Fault::Heal { from: Host::Server(other), to: Host::Server(server) });
    }
}

/// True if the znode exists, as the ensemble has it.
fn exists(testbed: &Testbed, path: &str) -> bool {
    let world = testbed.executor.world.lock();
    world.ensemble.leader().is_some_and(|leader| leader.tree().stat(path).is_some())
}

#[test]
fn a_session_reads_what_it_has_written() {
    for seed in 0..20 {
        let mut testbed = Testbed::new(seed, 1);
        let (client, _) = connect_to(&mut testbed, 0, false);
        let seen = testbed.on(0, async move {
            client.create("/a", vec![1], Mode::Persistent).await.unwrap();
            client.get("/a").await.map(|(data, _)| data)
        });
        assert_eq!(seen, Ok(vec![1]), "seed {seed}");
    }
}

/// As when all of them wait for fsync.
#[test]
fn writes_wait_for_disks_that_stand_still_and_reads_do_not() {
    let mut testbed = Testbed::new(1, 2);
    let (writes, reads) = (connect(&mut testbed, 0), connect(&mut testbed, 1));
    fault(&mut testbed, Fault::StallDisks);
    let written = testbed.begin(0, async move { writes.create("/a", Vec::new(), Mode::Persistent).await });
    testbed.run(T / 4);
    assert!(written.lock().unwrap().is_none());
    let children = testbed.on(1, async move { reads.children("/").await });
    assert_eq!(children, Ok(Vec::new()));
    fault(&mut testbed, Fault::ResumeDisks);
    testbed.run_until(|_| matches!(&*written.lock().unwrap(), Some(Ok(_))));
}

#[test]
fn a_server_cut_off_from_the_others_answers_reads_and_pings_but_no_writes() {
    let mut testbed = Testbed::new(1, 2);
    let (client, server) = connect_to(&mut testbed, 0, false);
    let reader = client.clone();
    testbed.on(0, async move { reader.create("/a", vec![], Mode::Ephemeral).await }).unwrap();
    cut_off(&mut testbed, server);
    // Longer than the session: others have long seen the znode disappear, and this server still returns it.
    testbed.run(T + TICK / 2);
    let reader = client.clone();
    assert_eq!(client.state(), State::Connected);
    assert!(testbed.on(0, async move { reader.get("/a").await }).is_ok());
    let writer = client.clone();
    let written = testbed.begin(0, async move { writer.create("/b", vec![], Mode::Persistent).await });
    testbed.run(TICK / 2);
    assert!(written.lock().unwrap().is_none());
    testbed.run_until(|_| written.lock().unwrap().is_some());
    assert!(matches!(written.lock().unwrap().take(), Some(Err(Error::Unanswered(_)))));
}

#[test]
fn the_cut_off_leader_of_the_ensemble_answers_reads_after_others_elected_another() {
    let mut testbed = Testbed::new(2, 1);
    let (client, server) = connect_to(&mut testbed, 0, true);
    let writer = client.clone();
    testbed.on(0, async move { writer.create("/a", vec![], Mode::Persistent).await }).unwrap();
    cut_off(&mut testbed, server);
    testbed.run(3 * TICK);
    assert!(testbed.on(0, async move { client.get("/a").await }).is_ok());
    testbed.run_until(|testbed| {
        let world = testbed.executor.world.lock();
        world.ensemble.leader().is_some_and(|leader| leader.host() != Host::Server(server))
    });
}

#[test]
fn what_was_handed_over_while_disconnected_commits_after_the_reconnect_though_given_up() {
    let mut testbed = Testbed::new(3, 1);
    let client = connect(&mut testbed, 0);
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::Cut { from: Host::Node(0), to: Host::Server(server) });
    }
    testbed.run_until(|_| client.state() == State::Disconnected);
    drop(client.create("/a", vec![], Mode::Persistent));
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::Heal { from: Host::Node(0), to: Host::Server(server) });
    }
    testbed.run_until(|testbed| exists(testbed, "/a"));
}

#[test]
fn a_write_can_commit_after_a_read_over_a_new_connection_did_not_see_it() {
    let mut testbed = Testbed::new(4, 1);
    let (client, server) = connect_to(&mut testbed, 0, true);
    // The leader proposes, and receives no answer.
    for other in (0..SERVERS).filter(|other| *other != server) {
        fault(&mut testbed, Fault::Cut { from: Host::Server(other), to: Host::Server(server) });
    }
    let writer = client.clone();
    let written = testbed.begin(0, async move { writer.create("/a", vec![], Mode::Persistent).await });
    testbed.run(Duration::from_millis(50));
    for other in (0..SERVERS).filter(|other| *other != server) {
        fault(&mut testbed, Fault::Cut { from: Host::Node(0), to: Host::Server(other) });
    }
    fault(&mut testbed, Fault::Cut { from: Host::Server(server), to: Host::Node(0) });
    testbed.run_until(|_| written.lock().unwrap().is_some());
    assert!(matches!(written.lock().unwrap().take(), Some(Err(Error::Unanswered(_)))));
    fault(&mut testbed, Fault::Heal { from: Host::Server(server), to: Host::Node(0) });
    testbed.run_until(|testbed| testbed.executor.world.lock().clients.server_of(0) == Some(server));
    assert_eq!(testbed.on(0, async move { client.get("/a").await }), Err(Error::NoNode));
    rejoin(&mut testbed, server);
    testbed.run_until(|testbed| exists(testbed, "/a"));
}

#[test]
fn a_write_left_on_an_old_connection_does_not_commit_once_the_session_has_moved() {
    let mut testbed = Testbed::new(5, 1);
    let (client, server) = connect_to(&mut testbed, 0, false);
    for other in (0..SERVERS).filter(|other| *other != server) {
        fault(&mut testbed, Fault::Cut { from: Host::Server(server), to: Host::Server(other) });
    }
    let writer = client.clone();
    drop(testbed.begin(0, async move { writer.create("/a", vec![], Mode::Persistent).await }));
    testbed.run(Duration::from_millis(50));
    fault(&mut testbed, Fault::Cut { from: Host::Server(server), to: Host::Node(0) });
    testbed.run_until(|testbed| testbed.executor.world.lock().clients.server_of(0).is_some_and(|now| now != server));
    rejoin(&mut testbed, server);
    testbed.run(2 * T);
    assert!(!exists(&testbed, "/a"));
}

#[test]
fn a_vanished_host_loses_its_entries_within_the_timeout_and_a_tick_and_a_half() {
    for seed in 0..100 {
        let mut testbed = Testbed::new(seed, 2);
        let client = connect(&mut testbed, 0);
        let writer = client.clone();
        testbed.on(0, async move { writer.create("/e", vec![], Mode::Ephemeral).await }).unwrap();
        let acknowledged = testbed.now();
        fault(&mut testbed, Fault::Kill { node: 0, with_host: true });
        testbed.run_until(|testbed| !exists(testbed, "/e"));
        let took = testbed.now().since(acknowledged);
        let slack = Duration::from_secs(2);
        assert!(took > T - TICK / 2, "seed {seed}: {took:?}");
        assert!(took < T + TICK * 3 / 2 + slack, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_client_without_any_server_gives_its_session_up_by_its_own_clock() {
    let mut testbed = Testbed::new(6, 1);
    let client = connect(&mut testbed, 0);
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::CrashServer { server, with_host: true });
    }
    let cut = testbed.now();
    testbed.run_until(|_| client.state() == State::Expired);
    let took = testbed.now().since(cut);
    assert!(took > T && took < 2 * T, "{took:?}");
    assert_eq!(testbed.on(0, async move { client.get("/").await.map(|_| ()) }), Err(Error::SessionOver));
}

#[test]
fn a_session_survives_a_full_outage_shorter_than_its_clients_timeout() {
    let mut testbed = Testbed::new(7, 1);
    let client = connect(&mut testbed, 0);
    let writer = client.clone();
    testbed.on(0, async move { writer.create("/e", vec![], Mode::Ephemeral).await }).unwrap();
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::CrashServer { server, with_host: false });
    }
    testbed.run(T / 2);
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::StartServer { server });
    }
    testbed.run_until(|_| client.state() == State::Connected);
    testbed.run(3 * T);
    assert!(exists(&testbed, "/e"));
    assert_eq!(client.state(), State::Connected);
}

#[test]
fn watches_are_set_again_at_a_reconnect_and_fire_for_what_was_missed() {
    let mut testbed = Testbed::new(8, 2);
    let (watcher, writer) = (connect(&mut testbed, 0), connect(&mut testbed, 1));
    let (a, b) = testbed.on(0, async move {
        watcher.create("/a", vec![], Mode::Persistent).await.unwrap();
        let (_, a) = watcher.stat_and_watch("/a").await.unwrap();
        let (_, b) = watcher.stat_and_watch("/b").await.unwrap();
        (a, b)
    });
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::Cut { from: Host::Server(server), to: Host::Node(0) });
    }
    let other = writer.clone();
    testbed.on(1, async move { other.delete("/a", -1).await }).unwrap();
    let fired = (testbed.begin(0, a.fired()), testbed.begin(0, b.fired()));
    testbed.run(T * 3 / 5);
    assert!(fired.0.lock().unwrap().is_none());
    for server in 0..SERVERS {
        fault(&mut testbed, Fault::Heal { from: Host::Server(server), to: Host::Node(0) });
    }
    testbed.run_until(|_| fired.0.lock().unwrap().is_some());
    testbed.run(T);
    assert!(fired.1.lock().unwrap().is_none());
    testbed.on(1, async move { writer.create("/b", vec![], Mode::Persistent).await }).unwrap();
    testbed.run_until(|_| fired.1.lock().unwrap().is_some());
}

#[test]
fn a_proposal_that_died_with_its_leader_is_gone() {
    let mut testbed = Testbed::new(9, 1);
    let (client, server) = connect_to(&mut testbed, 0, true);
    cut_off(&mut testbed, server);
    let written = testbed.begin(0, async move { client.create("/a", vec![], Mode::Persistent).await });
    testbed.run(Duration::from_millis(100));
    fault(&mut testbed, Fault::CrashServer { server, with_host: true });
    rejoin(&mut testbed, server);
    testbed.run(10 * TICK);
    fault(&mut testbed, Fault::StartServer { server });
    testbed.run(10 * TICK);
    assert!(!exists(&testbed, "/a"));
    assert!(matches!(*written.lock().unwrap(), Some(Err(_))));
    let world = testbed.executor.world.lock();
    assert_eq!(world.ensemble.servers[server].health(), Health::Running);
    assert!(world.ensemble.servers[server].tree().stat("/a").is_none());
}

#[test]
fn every_client_is_disconnected_when_the_ensemble_changes_its_leader_and_keeps_its_session() {
    let mut testbed = Testbed::new(10, 1);
    let (client, _) = connect_to(&mut testbed, 0, false);
    let leader = (0..SERVERS).find(|id| testbed.executor.world.lock().ensemble.servers[*id].is_leading()).unwrap();
    fault(&mut testbed, Fault::CrashServer { server: leader, with_host: false });
    testbed.run_until(|_| client.state() == State::Disconnected);
    testbed.run_until(|_| client.state() == State::Connected);
    let id = client.id();
    testbed.run(2 * T);
    assert_eq!((client.state(), client.id()), (State::Connected, id));
}

#[test]
fn a_multi_is_carried_out_whole_or_not_at_all_and_names_what_failed() {
    let mut testbed = Testbed::new(11, 1);
    let client = connect(&mut testbed, 0);
    let ops = vec![
        Op::Create { path: "/a".into(), data: vec![], mode: Mode::Persistent },
        Op::Check { path: "/none".into(), version: -1 },
    ];
    let failed = testbed.on(0, async move { client.multi(ops).await }).unwrap_err();
    assert_eq!((failed.index, failed.error), (Some(1), Error::NoNode));
    assert!(!exists(&testbed, "/a"));
}
