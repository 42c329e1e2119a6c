//! Jobs that misbehave, and what a job may rely on.

mod environment;
mod output;
mod processes;
mod times;

use serde_json::Value;

use crate::solo::rig::{await_run, leading, node};
use crate::support::LONG;
use crate::support::node::{Event, Node, Spec};

/// A node with one job a second, and that job's first end.
struct Trial {
    node: Node,
    end: Event,
}

impl Trial {
    /// Of a job with these keys, each on a line of its own.
    fn of(keys: &str) -> Self {
        Self::on(node("torture"), keys)
    }

    fn on(spec: Spec, keys: &str) -> Self {
        let node = leading(&spec.jobs(&job(keys)));
        let end = node.await_event("run.finished", LONG);
        Self { node, end }
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

    /// What the run wrote, line by line.
    fn lines(&self) -> Vec<String> {
        let lines = self.node.events().named("run.output").into_iter();
        lines.filter(|line| line.text("run") == self.run()).map(|line| line.text("line").to_owned()).collect()
    }

    /// Its record in the history.
    fn record(&self) -> Value {
        await_run(self.node.spec(), self.run())
    }
}

/// A jobs file with one job of every second.
fn job(keys: &str) -> String {
    let keys: String = keys.trim().lines().map(|key| format!("    {}\n", key.trim_start())).collect();
    format!("jobs:\n  trial:\n    schedule: '* * * * * *'\n{keys}")
}

/// A shell command as a YAML value.
fn sh(command: &str) -> String {
    format!("command: {}", serde_json::to_string(command).unwrap())
}
