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
//! proxy      delays, mutes or cuts the connection to a server
//! node       `cronkeeper run`   witness  what its jobs saw
//! command    one call of the program
//! cgroup     a cgroup for the nodes of one test
//! burst      many jobs due at the same time
//! browser    a real browser
//! peers      kazoo and Curator in the same queue
//! ```
#![allow(dead_code, reason = "each test and bench that includes the support uses a part of it")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

pub mod browser;
pub mod burst;
pub mod cgroup;
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

/// What some tests need and not every machine has. `tests/run.sh` finds out, by these names, what the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facility {
    /// The rights of root.
    Root,
    /// Namespaces of processes, mounts and networks.
    Namespaces,
    /// Hosts of their own: namespaces with links between them, and rules that cut the links.
    Hosts,
    /// Cgroups of version 2 below that of the tests.
    Cgroups,
    /// The controllers of memory and processes in those cgroups.
    Controllers,
    /// A systemd in namespaces.
    Systemd,
    /// A program or library that `tests/run.sh` installs.
    Installed,
    /// The packages of cronkeeper that `CRONKEEPER_PACKAGES` names.
    Packages,
    /// Something of the kernel, or a right that containers withhold, that only the test itself can find out.
    Kernel,
}

/// Reports that a test, or a part of it, is skipped, what it lacks, and why. The test must then leave that out.
///
/// The report goes to stderr, past the test runner's capture, and to the file that `TESTS_SKIPPED` names.
pub fn skipped(lacks: Facility, why: &str) {
    // Not `eprintln!`: the test runner captures its output and hides it for tests that pass.
    drop(writeln!(std::io::stderr(), "SKIPPED: {why}"));
    let Some(path) = std::env::var_os("TESTS_SKIPPED") else { return };
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{}\t{lacks:?}\t{why}\n", test_name());
    let file = OpenOptions::new().append(true).create(true).open(&path);
    // In one write, because other tests append at the same time. A skip that nobody learns of is an error.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The name of the test that runs on this thread, or of whatever else the thread is for.
pub fn test_name() -> String {
    thread::current().name().unwrap_or("unnamed").to_owned()
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
