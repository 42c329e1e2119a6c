//! Jobs that misbehave, and the guarantees that a job can rely on.

mod environment;
mod output;
mod processes;
mod times;

use serde_json::Value;

use crate::solo::fixture::{await_run, kib, leading, node, warden_of};
use crate::support::node::{Event, Node, Spec};
use crate::support::{Facility, LONG, skipped};

/// Allowed memory growth of daemon and warden, whatever a job does, in KiB: on a loaded machine the queue of output that
/// is to be kept may fill up to its 16 MiB, and the log's to its 2 MiB.
const GROWTH: u64 = 24 << 10;

/// A node with one job per second, and the first end of that job.
///
/// When it is dropped, it checks that the history agrees with the log, that daemon and warden are as small as before,
/// and (in the node) that no process is left.
struct Trial {
    node: Node,
    end: Event,
    before: [u64; 2],
}

impl Trial {
    /// Starts a job with these keys, each on a line of its own.
    fn of(keys: &str) -> Self {
        Self::on(node("torture"), keys)
    }

    fn on(spec: Spec, keys: &str) -> Self {
        let node = leading(&spec.jobs(&job(keys)));
        let before = resident(&node);
        let end = node.await_event("run.finished", LONG);
        Self { node, end, before }
    }

    fn run(&self) -> &str {
        self.end.text("run")
    }

    fn outcome(&self) -> (&str, Option<i64>) {
        (self.end.text("outcome"), self.end.number("exit_code"))
    }

    fn failure(&self) -> (&str, &str) {
        (self.end.text("outcome"), self.end.text("reason"))
    }

    /// The output of the run, line by line.
    fn lines(&self) -> Vec<String> {
        let lines = self.node.events().named("run.output").into_iter();
        lines.filter(|line| line.text("run") == self.run()).map(|line| line.text("line").to_owned()).collect()
    }

    /// The record of the run in the history.
    fn record(&self) -> Value {
        await_run(self.node.spec(), self.run())
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let record = self.record();
        let field = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        assert_eq!((field("outcome").as_str(), field("reason").as_str()), self.failure());
        assert_eq!(
            (record["exit_code"].as_i64(), record["signal"].as_i64()),
            (self.outcome().1, self.end.number("signal"))
        );
        for (before, after) in self.before.into_iter().zip(resident(&self.node)) {
            assert!(after < before + GROWTH, "from {before} to {after} KiB");
        }
    }
}

/// The anonymous memory of daemon and warden, in KiB; pages of the program are loaded as it is used.
fn resident(node: &Node) -> [u64; 2] {
    [node.pid(), warden_of(node)].map(|pid| kib(pid, "RssAnon"))
}

/// Only root runs jobs as other users.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(Facility::Root, "only root runs jobs as other users");
    }
    is_root
}

/// A jobs file with one job that is due every second.
fn job(keys: &str) -> String {
    let keys: String = keys.trim().lines().map(|key| format!("    {}\n", key.trim_start())).collect();
    format!("jobs:\n  trial:\n    schedule: '* * * * * *'\n{keys}")
}

/// A shell command as a YAML value.
fn sh(command: &str) -> String {
    format!("command: {}", serde_json::to_string(command).unwrap())
}
