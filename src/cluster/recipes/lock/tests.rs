//! Round trips that locks take. What they promise is shown by the simulation and on real servers.

use super::queue::make_queues;
use super::*;
use crate::recipes::tests_support::{ByHand, Server};

fn request(count: usize) -> LockRequest {
    let paths = (0..count).map(|number| format!("/locks/{number}").parse().unwrap()).collect();
    let uuid = LockKey::draw().uuid();
    LockRequest { paths, kind: LockKind::Exclusive, recipe: Recipe::Curator, uuid, data: Vec::new(), waits: false }
}

fn queues(request: &LockRequest) -> Vec<String> {
    request.paths.iter().map(LockPath::to_string).collect()
}

#[test]
fn many_paths_take_few_round_trips() {
    let (server, request) = (Server::default(), request(1_500));
    let (made, rounds) = server.round_trips(make_queues(&server, queues(&request)));
    assert_eq!((made, rounds), (Ok(()), 1 + 15), "the folder, then a hundred paths at a time");
    let contender = Contender::new(server.clone(), ByHand::default());
    let (held, rounds) = server.round_trips(contender.acquire(&request));
    let held: Vec<LockPath> = held.unwrap().into_iter().map(|held| held.path).collect();
    assert_eq!(held, request.paths);
    assert!(
        rounds <= 1 + 15 + 15,
        "{rounds}: the transaction, a hundred queues at a time, a hundred entries at a time"
    );
}

#[test]
fn of_many_paths_one_that_is_held_is_named() {
    let (server, request) = (Server::default(), request(250));
    let (made, _) = server.round_trips(make_queues(&server, queues(&request)));
    made.unwrap();
    let held = &request.paths[180];
    server.tree().put(&held.child("_c_00000000-0000-0000-0000-000000000000-lock-0000000000"), "");
    let contender = Contender::new(server.clone(), ByHand::default());
    let (refused, _) = server.round_trips(contender.acquire(&request));
    assert_eq!(refused, Err(LockError::Busy { path: held.clone() }));
}
