//! Latches and barriers.

use std::thread;

use super::fixture::printed;
use crate::support::zookeeper::shared;

/// Runs calls at the same time. Returns their results.
fn together(connect: &str, lines: &[&[&str]]) -> Vec<(Option<i32>, String)> {
    thread::scope(|scope| {
        let running: Vec<_> = lines.iter().map(|line| scope.spawn(|| printed(connect, line))).collect();
        running.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

#[test]
fn a_latch_opens_with_the_last_count_and_stays_open() {
    let connect = shared();
    let latch = |action: &'static str| ["latch", "/latches/a", "--count", "3", action];
    let (wait, down) = (latch("wait"), latch("down"));
    let (code, text) = printed(&connect, &[&wait[..], &["--timeout", "300ms"]].concat());
    assert_eq!((code, text.as_str()), (Some(75), "cronkeeper: `/latches/a` did not open within 300ms"));
    assert_eq!(printed(&connect, &down), (Some(0), "2 to go".into()));
    let results = together(&connect, &[&wait, &wait, &down, &down]);
    assert!(results.iter().all(|(code, _)| *code == Some(0)), "{results:?}");
    assert_eq!(printed(&connect, &wait).0, Some(0), "it stays open");
    assert_eq!(printed(&connect, &down), (Some(0), "0 to go".into()), "a further count changes nothing");
    let (code, text) = printed(&connect, &["latch", "/latches/a", "--count", "4", "wait"]);
    assert!(code == Some(2) && text.contains("has the count 3"), "{code:?} {text}");
    assert_eq!(printed(&connect, &["latch", "/latches/a", "--reset"]).0, Some(0));
    assert_eq!(printed(&connect, &["latch", "/latches/a", "--count", "4", "down"]), (Some(0), "3 to go".into()));
}

#[test]
fn a_lock_is_no_latch() {
    let connect = shared();
    assert_eq!(printed(&connect, &["lock", "--permits", "2", "/x", "--", "true"]).0, Some(0));
    let (code, text) = printed(&connect, &["latch", "/x", "--count", "2"]);
    assert!(code == Some(2) && text.contains("is not a latch"), "{code:?} {text}");
}

#[test]
fn a_barrier_opens_when_all_have_arrived_again_and_again() {
    let connect = shared();
    let line: &[&str] = &["barrier", "/barriers/a", "--parties", "3"];
    for _ in 0..3 {
        let early = printed(&connect, &[line, &["--timeout", "300ms"]].concat());
        assert_eq!(early, (Some(75), "cronkeeper: `/barriers/a` did not open within 300ms".into()));
        let results = together(&connect, &[line, line, line]);
        assert!(results.iter().all(|(code, _)| *code == Some(0)), "{results:?}");
    }
}
