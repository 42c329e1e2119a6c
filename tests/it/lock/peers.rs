//! One queue with the real clients of Curator and kazoo, both ways.

use super::fixture::{Client, printed};
use crate::support::peers::{Kind, Library, Peer};
use crate::support::zookeeper::shared;
use crate::support::{LONG, until};

const PATH: &str = "/locks/shared-with-others";

/// Holds with `options` while the peer waits, and waits while the peer holds.
fn take_turns(library: Library, kind: Kind, options: &[&str]) {
    let connect = shared();
    let line = [options, &[PATH]].concat();
    let ours = Client::start(&connect, &line);
    ours.await_held();
    let Some(peer) = Peer::of_kind_or_skip(library, kind, &connect, PATH) else { return };
    peer.await_connected(LONG);
    until("the peer is in the queue", || entries(&connect) >= 2);
    ours.release();
    peer.await_acquired(LONG);
    let ours = Client::start(&connect, &line);
    assert!(ours.waits(), "{library:?} {kind:?} holds it");
    peer.release(LONG);
    ours.await_held();
    ours.release();
}

/// Entries of all locks, holding or waiting.
fn entries(connect: &str) -> usize {
    printed(connect, &["locks", "--json"]).1.matches("\"role\"").count()
}

#[test]
fn curators_mutex() {
    take_turns(Library::Curator, Kind::Mutex, &[]);
}

#[test]
fn curators_write_lock() {
    take_turns(Library::Curator, Kind::Write, &["--exclusive"]);
}

#[test]
fn curators_read_lock_waits_for_our_writer_and_shares_with_our_reader() {
    take_turns(Library::Curator, Kind::Read, &["--exclusive"]);
    share(Library::Curator, Kind::Read, &["--shared"]);
}

#[test]
fn curators_writer_waits_for_our_reader() {
    take_turns(Library::Curator, Kind::Write, &["--shared"]);
}

#[test]
fn curators_semaphore() {
    take_turns(Library::Curator, Kind::Semaphore(1), &["--permits", "1"]);
    share(Library::Curator, Kind::Semaphore(2), &["--permits", "2"]);
}

#[test]
fn kazoos_lock_with_curators_names() {
    take_turns(Library::Kazoo, Kind::Mutex, &[]);
}

#[test]
fn kazoos_lock_with_its_own_names() {
    take_turns(Library::Kazoo, Kind::Plain, &["--recipe", "kazoo"]);
}

#[test]
fn kazoos_read_and_write_locks() {
    take_turns(Library::Kazoo, Kind::PlainWrite, &["--recipe", "kazoo", "--exclusive"]);
    take_turns(Library::Kazoo, Kind::PlainRead, &["--recipe", "kazoo", "--exclusive"]);
    share(Library::Kazoo, Kind::PlainRead, &["--recipe", "kazoo", "--shared"]);
    take_turns(Library::Kazoo, Kind::Write, &["--shared"]);
}

#[test]
fn kazoos_semaphore() {
    let connect = shared();
    let line = ["--recipe", "kazoo", "--permits", "1", PATH];
    let ours = Client::start(&connect, &line);
    ours.await_held();
    let Some(peer) = Peer::of_kind_or_skip(Library::Kazoo, Kind::Semaphore(1), &connect, PATH) else { return };
    peer.await_connected(LONG);
    until("the peer is in the queue", || entries(&connect) == 2);
    ours.release();
    peer.await_acquired(LONG);
    let ours = Client::start(&connect, &line);
    assert!(ours.waits());
    peer.release(LONG);
    ours.await_held();
    ours.release();
    share(Library::Kazoo, Kind::Semaphore(2), &["--recipe", "kazoo", "--permits", "2"]);
}

/// Both hold at once.
fn share(library: Library, kind: Kind, options: &[&str]) {
    let connect = shared();
    let ours = Client::start(&connect, &[options, &[PATH]].concat());
    ours.await_held();
    let Some(peer) = Peer::of_kind_or_skip(library, kind, &connect, PATH) else { return };
    peer.await_acquired(LONG);
    ours.release();
    peer.release(LONG);
}

#[test]
fn curators_holder_is_asked_to_release() {
    let connect = shared();
    let Some(peer) = Peer::of_kind_or_skip(Library::Curator, Kind::Revocable, &connect, PATH) else { return };
    peer.await_acquired(LONG);
    assert_eq!(printed(&connect, &["lock", "--revoke", PATH]), (Some(0), "asked 1 holder to release".into()));
    peer.await_revoked(LONG);
    peer.release(LONG);
}

#[test]
fn curator_asks_our_holder_to_release() {
    let connect = shared();
    let ours = Client::start(&connect, &[PATH]);
    ours.await_held();
    let text = printed(&connect, &["locks", "--json"]).1;
    let name = text.split("\"name\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it is listed");
    let Some(peer) = Peer::of_kind_or_skip(Library::Curator, Kind::Revoke, &connect, &format!("{PATH}/{name}")) else {
        return;
    };
    peer.await_released(LONG);
    ours.await_line("somebody asks to release the lock");
    ours.release();
}

#[test]
fn others_wait_for_our_latch_as_for_a_barrier() {
    let connect = shared();
    let latch = |action: &'static str| printed(&connect, &["latch", "/latches/a", "--count", "2", action]);
    assert_eq!(latch("down"), (Some(0), "1 to go".into()));
    let wait = |library| Peer::of_kind_or_skip(library, Kind::Barrier, &connect, "/latches/a/closed");
    let peers = [Library::Curator, Library::Kazoo].map(wait);
    peers.iter().flatten().for_each(|peer| peer.await_connected(LONG));
    assert_eq!(latch("down"), (Some(0), "0 to go".into()));
    for peer in peers.iter().flatten() {
        peer.await_acquired(LONG);
    }
}

#[test]
fn others_meet_us_at_a_double_barrier() {
    for library in [Library::Curator, Library::Kazoo] {
        let connect = shared();
        let Some(peer) = Peer::of_kind_or_skip(library, Kind::DoubleBarrier(2), &connect, "/barriers/a") else {
            return;
        };
        peer.await_connected(LONG);
        assert_eq!(printed(&connect, &["barrier", "/barriers/a", "--parties", "2"]), (Some(0), String::new()));
        peer.await_acquired(LONG);
        peer.release(LONG);
    }
}
