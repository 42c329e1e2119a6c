//! Cut connections and lost sessions.

use cronkeeper_cluster::zookeeper::session::ConnectionSettings;
use cronkeeper_core::coordination;
use cronkeeper_core::election::{Event, Request};
use cronkeeper_core::ledger::{Commit, OwnerState};
use cronkeeper_core::run::Version;
use cronkeeper_core::term::TermEnd;

use super::fixture::{self, Fixture, Memory, begin, end, first_mark, job, lasting_leader, leader, run};
use crate::support::LONG;
use crate::support::proxy::{At, Proxy, opcode};
use crate::support::zookeeper::Ensemble;

struct Line {
    _ensemble: Ensemble,
    direct: String,
    proxy: Proxy,
}

fn line() -> Line {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::to(ensemble.address_of(0));
    Line { direct: ensemble.connect_string(), proxy, _ensemble: ensemble }
}

#[tokio::test]
async fn a_begin_whose_reply_was_lost_is_accepted_once_and_stands_once() {
    let line = line();
    let (mut fixture, term, session) = lasting_leader(&line.proxy.connect_string()).await;
    fixture.commit(first_mark("backup", "1")).await;
    for (version, second) in [(0, 60), (1, 120), (2, 180)] {
        line.proxy.cut_at(At::ReplyTo(opcode::MULTI));
        let run = run("backup", second, "a", &session, term.token);
        assert_eq!(fixture.commit(begin(version, &run)).await, Commit::Accepted);
        line.proxy.cut_at(At::ReplyTo(opcode::MULTI));
        assert_eq!(fixture.commit(end(0, &run)).await, Commit::Accepted);
    }
    assert!(line.proxy.await_cuts(3, LONG));
    let snapshot = fixture.reader().snapshot();
    let marks = snapshot.await;
    if let Ok(found) = marks {
        assert_eq!(found.jobs[&job("backup")].version, Version(3));
        assert!(found.running.is_empty());
    }
    let ended = fixture.seen.iter().any(|event| matches!(event, coordination::Event::Election(Event::Over { .. })));
    assert!(!ended, "a short loss of the line ends no term");
}

#[tokio::test]
async fn many_commits_under_way_when_the_line_is_cut_are_all_accepted() {
    let line = line();
    let (mut fixture, term, session) = lasting_leader(&line.proxy.connect_string()).await;
    let names: Vec<String> = (0..300).map(|at| format!("job-{at}")).collect();
    for round in 0..5 {
        line.proxy.cut_at(At::Reply(2));
        let ids: Vec<_> = names
            .iter()
            .map(|name| match round {
                0 => fixture.request(first_mark(name, "1")),
                _ => fixture.request(begin(round - 1, &run(name, 60 * i64::from(round), "a", &session, term.token))),
            })
            .collect();
        for id in ids {
            assert_eq!(fixture.answer(id).await, Commit::Accepted, "round {round}");
        }
    }
}

#[tokio::test]
async fn cut_off_the_term_ends_with_the_lease_and_the_session_with_its_timeout() {
    let line = line();
    let (mut fixture, term, session) = leader(&line.proxy.connect_string()).await;
    fixture.commit(first_mark("backup", "1")).await;
    let run = run("backup", 60, "a", &session, term.token);
    fixture.commit(begin(0, &run)).await;
    let mut other = Fixture::start(&line.direct, "b");
    other.ask(Request::Campaign);
    other.following(Some("a")).await;

    line.proxy.part();
    assert_eq!(fixture.over().await, (term.clone(), TermEnd::LeaseOver));
    let late = fixture.request(end(0, &run));
    let (next, snapshot) = other.elected().await;
    assert!(next.token > term.token);
    assert_eq!(snapshot.running[0].owner, OwnerState::Gone);
    fixture.election("expired", |event| matches!(event, Event::Expired { .. }).then_some(())).await;
    line.proxy.pass();
    let back = fixture.session().await;
    assert_ne!(back, session);
    assert_eq!(fixture.answer(late).await, Commit::Accepted, "an end waits for the next session");
}

#[tokio::test]
async fn back_within_the_session_but_after_the_lease_the_node_joins_anew() {
    let line = line();
    let (mut fixture, term, _) = Fixture::leading(&line.proxy.connect_string(), "a").await;
    line.proxy.part();
    assert_eq!(fixture.over().await, (term.clone(), TermEnd::LeaseOver));
    line.proxy.pass();
    let (next, _) = fixture.elected().await;
    assert!(next.token > term.token);
}

#[tokio::test]
async fn an_unclear_create_leaves_one_candidate() {
    let line = line();
    let mut fixture = Fixture::start(&line.proxy.connect_string(), "a");
    fixture.session().await;
    line.proxy.cut_at(At::ReplyTo(opcode::CREATE2));
    fixture.ask(Request::Campaign);
    let (term, _) = fixture.elected().await;
    assert!(line.proxy.await_cuts(1, LONG));
    let names = super::fixture::admin(&line.direct).await.list_children("/leader").await.unwrap();
    assert_eq!(names, [term.candidate.0]);
}

#[tokio::test]
async fn a_silent_server_ends_the_term_with_the_lease_and_the_node_comes_back() {
    let ensemble = Ensemble::start(1);
    let (mut fixture, term, _) = Fixture::leading(&ensemble.connect_string(), "a").await;
    ensemble.pause(0);
    assert_eq!(fixture.over().await, (term.clone(), TermEnd::LeaseOver));
    ensemble.cont(0);
    let (next, _) = fixture.elected().await;
    assert!(next.token > term.token);
}

#[tokio::test]
async fn the_loss_of_the_connected_server_costs_no_term() {
    let ensemble = Ensemble::start(3);
    let follower = ensemble.followers()[0];
    let proxy = Proxy::to(ensemble.address_of(follower));
    let others: Vec<_> = (0..3).filter(|&i| i != follower).map(|i| ensemble.connect_string_of(i)).collect();
    // The crate tries its servers in its own order. Whichever server it uses, two others are left.
    let connect = format!("{},{}", proxy.connect_string(), others.join(","));
    let (mut fixture, term, session) = leader(&connect).await;
    fixture.commit(first_mark("backup", "1")).await;
    ensemble.kill(follower);
    proxy.part();
    let run = run("backup", 60, "a", &session, term.token);
    assert_eq!(fixture.commit(begin(0, &run)).await, Commit::Accepted);
    assert_eq!(fixture.commit(end(0, &run)).await, Commit::Accepted);
    let lost = fixture.seen.iter().any(|event| matches!(event, coordination::Event::Election(Event::Over { .. })));
    assert!(!lost, "{:?}", fixture.seen);
}

#[tokio::test]
async fn resigning_over_a_join_whose_answer_was_lost_leaves_no_candidate() {
    let line = line();
    let mut fixture = Fixture::start(&line.proxy.connect_string(), "a");
    fixture.session().await;
    line.proxy.cut_at(At::ReplyTo(opcode::CREATE2));
    fixture.ask(Request::Campaign);
    fixture.ask(Request::Resign);
    fixture.election("withdrawn", |event| (*event == Event::Withdrawn).then_some(())).await;
    let names = super::fixture::admin(&line.direct).await.list_children("/leader").await.unwrap();
    assert_eq!(names, [""; 0]);
}

#[tokio::test]
async fn after_an_outage_the_own_old_entries_do_not_block_the_queue() {
    let line = line();
    let (mut fixture, term, _) = Fixture::leading(&line.proxy.connect_string(), "a").await;
    // After the restart the server keeps the session alive for a while, but the client has given it up by its own
    // clock.
    line.proxy.part();
    fixture.election("expired", |event| matches!(event, Event::Expired { .. }).then_some(())).await;
    line.proxy.pass();
    let (next, _) = fixture.elected().await;
    assert!(next.token > term.token);
}

async fn await_full_disk_report(fixture: &mut Fixture) {
    fixture
        .election("unreachable", |event| match event {
            Event::Unreachable { error, .. } => error.contains("no space left").then_some(()),
            _ => None,
        })
        .await;
}

#[tokio::test]
async fn a_full_disk_is_waited_out_before_anything_is_made_under_a_session() {
    let ensemble = Ensemble::start(1);
    let memory = Memory::default();
    memory.with(|remembered| remembered.is_full = true);
    let settings = ConnectionSettings {
        connect: ensemble.connect_string(),
        session_timeout: fixture::TIMEOUT,
        ..ConnectionSettings::default()
    };
    let mut fixture = Fixture::with(settings, "a", memory.clone());
    fixture.ask(Request::Campaign);
    await_full_disk_report(&mut fixture).await;
    await_full_disk_report(&mut fixture).await;
    let client = zookeeper_client::Client::connect(&ensemble.connect_string()).await.unwrap();
    assert!(client.check_stat("/leader").await.unwrap().is_none(), "nothing is made");

    memory.with(|remembered| remembered.is_full = false);
    fixture.session().await;
    fixture.elected().await;
    assert_eq!(memory.with(|remembered| remembered.sessions.len()), 1);
}

#[tokio::test]
async fn a_disk_that_is_full_when_the_cluster_is_first_seen_is_waited_out() {
    let ensemble = Ensemble::start(1);
    let memory = Memory::default();
    let settings = ConnectionSettings {
        connect: ensemble.connect_string(),
        session_timeout: fixture::TIMEOUT,
        ..ConnectionSettings::default()
    };
    memory.with(|remembered| remembered.is_claim_refused = true);
    let mut fixture = Fixture::with(settings, "a", memory.clone());
    await_full_disk_report(&mut fixture).await;
    memory.with(|remembered| remembered.is_claim_refused = false);
    fixture.session().await;
}
