//! What tests and benches stand on: real servers, real processes, lines that can be cut, witnesses.
//!
//! Relies on nothing else of the test crate, so that benches can take it by `#[path]`. Waiting is bounded by [`LONG`]
//! wherever a test does not name a bound of its own; no helper here judges how fast anything is.
//!
//! ```text
//! scratch    directories that go with the test process
//! process    a child that goes with the test process
//! host       network and mounts that are a process's own
//! zookeeper  servers            tls      certificates for them
//! proxy      the line to a server, delayed, muted or cut
//! node       `cronkeeper run`   witness  what its jobs saw
//! command    the program, called once
//! burst      many jobs of one instant
//! peers      kazoo and Curator in the same queue
//! ```
#![allow(dead_code, reason = "each test and bench that includes the support uses a part of it")]

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

pub mod burst;
pub mod command;
pub mod host;
pub mod node;
pub mod peers;
pub mod process;
pub mod proxy;
pub mod scratch;
pub mod tls;
pub mod witness;
pub mod zookeeper;

/// Longer than anything takes that will happen at all, also on a heavily loaded machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Asks again until there is an answer; `None` after `timeout`. Only for what offers nothing to wait on: other processes,
/// their files, a server's figures.
pub fn poll<T>(timeout: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + timeout;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() > end {
            return answer;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Says that a test is not run, and why: on stderr, past the test runner's capture. The test is to return.
pub fn skipped(why: &str) {
    // Not a macro: those write where the runner shows nothing of a test that passes.
    drop(writeln!(std::io::stderr(), "SKIPPED: {why}"));
}

/// Waits until something is so, asking again and again; fails the test when it never is.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    assert!(poll(LONG, || is_so().then_some(())).is_some(), "not in time: {what}");
}
