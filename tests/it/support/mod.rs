//! Support for tests and benches: real servers and processes, a proxy that can cut connections, witnesses.
//!
//! It does not depend on the rest of the test crate, so that benches can include it by `#[path]`. Waits are limited by
//! [`LONG`] unless a test passes its own limit; no helper here checks how fast anything is.
//!
//! ```text
//! scratch    directories that are removed when the test process ends
//! process    a child that ends with the test process
//! host       a separate network and mount namespace
//! zookeeper  servers            tls      certificates for them
//! postgres   a server, and databases in it
//! port       a port that nobody else gets
//! proxy      delays, mutes or cuts the connection to a server
//! node       `cronkeeper run`   witness  what its jobs saw
//! command    one call of the program
//! cgroup     a cgroup for the nodes of one test
//! burst      many jobs due at the same time
//! browser    a real browser
//! peers      kazoo and Curator in the same queue
//! ```
#![allow(dead_code, reason = "each test and bench that includes the support uses a part of it")]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

pub mod browser;
pub mod burst;
pub mod cgroup;
pub mod command;
pub mod etcd;
pub mod host;
pub mod kept;
pub mod node;
pub mod peers;
pub mod port;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod scratch;
#[path = "../../support/skips.rs"]
mod skips;
pub mod tls;
pub mod witness;
pub mod zookeeper;

pub use self::skips::{Facility, skipped, test_name};

/// A timeout that no successful operation reaches, even on a heavily loaded machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Polls until there is a result; `None` after `timeout`.
///
/// Only for things that cannot be waited for: other processes, their files, a server's statistics.
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

/// Where to keep what explains the failure of this thread's test; `None` while it has not failed, or if nobody wants it.
/// `TESTS_FAILED` names the directory for all tests.
pub fn evidence() -> Option<PathBuf> {
    let all = std::env::var_os("TESTS_FAILED").filter(|_| thread::panicking())?;
    let folder = PathBuf::from(all).join(test_name().replace("::", "__"));
    std::fs::create_dir_all(&folder).is_ok().then_some(folder)
}

/// Polls until a condition is true, and fails the test if it never is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(poll(LONG, || is_so().then_some(())).is_some(), "not in time: {what}");
}
