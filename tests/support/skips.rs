//! Tests that this machine cannot run. `tests/run.sh` lists them at its end.
#![allow(dead_code, reason = "each crate that includes this uses a part of it")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;

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
