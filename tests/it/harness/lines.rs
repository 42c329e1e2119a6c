//! The proxy: it can delay and mute a connection, and cut it at a chosen reply.

use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::support::LONG;
use crate::support::proxy::{At, Proxy, opcode};
use crate::support::zookeeper::Ensemble;

/// Long enough that the session of a cut-off client does not expire before the test has checked.
const SESSION: Duration = Duration::from_secs(8);

async fn client(connect: &str) -> Client {
    Client::connector().with_session_timeout(SESSION).connect(connect).await.unwrap()
}

fn persistent() -> zookeeper_client::CreateOptions<'static> {
    CreateMode::Persistent.with_acls(Acls::anyone_all())
}

#[tokio::test]
async fn a_multi_whose_reply_is_cut_was_carried_out_and_its_client_does_not_know() {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::to(ensemble.address_of(0));
    let cut = client(&proxy.connect_string()).await;
    let mut writer = cut.new_multi_writer();
    writer.add_create("/a", b"", &persistent()).unwrap();

    proxy.refuse();
    proxy.cut_at(At::ReplyTo(opcode::MULTI));
    let answer = writer.commit().await;
    assert!(format!("{:?}", answer.unwrap_err()).contains("ConnectionLoss"));
    assert!(proxy.await_cuts(1, LONG));
    let other = client(&ensemble.connect_string()).await;
    assert!(other.check_stat("/a").await.unwrap().is_some(), "the server had carried it out");

    proxy.pass();
    // The client reconnects by itself, with the same session.
    let mut states = cut.state_watcher();
    while cut.state() != zookeeper_client::SessionState::SyncConnected {
        tokio::time::timeout(LONG, states.changed()).await.unwrap();
    }
    assert!(cut.check_stat("/a").await.unwrap().is_some());
}

#[tokio::test]
async fn the_second_reply_from_now_is_the_one_that_is_cut() {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::to(ensemble.address_of(0));
    let cut = client(&proxy.connect_string()).await;
    proxy.cut_at(At::Reply(2));
    cut.create("/a", b"", &persistent()).await.unwrap();
    assert_eq!(cut.create("/b", b"", &persistent()).await.unwrap_err(), Error::ConnectionLoss);
    assert!(proxy.await_cuts(1, LONG));
}

#[tokio::test]
async fn a_client_behind_a_muted_line_loses_the_connection_and_its_writes_arrive() {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::to(ensemble.address_of(0));
    let deaf = client(&proxy.connect_string()).await;
    proxy.swallow_replies();
    assert!(deaf.create("/a", b"", &persistent()).await.is_err());
    let other = client(&ensemble.connect_string()).await;
    assert!(other.check_stat("/a").await.unwrap().is_some());
}

#[tokio::test]
async fn delays_of_both_directions_add_up() {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::to(ensemble.address_of(0));
    let slow = client(&proxy.connect_string()).await;
    proxy.delay_requests(Duration::from_millis(150));
    proxy.delay_replies(Duration::from_millis(150));
    let sent = Instant::now();
    slow.check_stat("/").await.unwrap();
    assert!(sent.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn nobody_connects_to_a_server_that_is_cut_off() {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::opaque(ensemble.address_of(0));
    let before = client(&proxy.connect_string()).await;
    proxy.part();
    assert!(before.check_stat("/").await.is_err());
    let connector = Client::connector().with_session_timeout(Duration::from_secs(1)).with_fail_eagerly();
    assert!(connector.connect(&proxy.connect_string()).await.is_err());
}
