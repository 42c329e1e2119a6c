//! A node that ends while nobody can record its runs' ends: the runs go on, and their outcomes are not lost.

use rustix::process::Signal;

use super::cluster::{Lines, Place, jobs, node, once, shared, soon, usual};
use crate::support::command;
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

/// A node with a run that goes on until it is released.
struct HeldRun {
    place: Place,
    lines: Lines,
    gate: Scratch,
    node: Node,
    run: String,
}

impl HeldRun {
    fn start(options: impl Fn(Spec) -> Spec) -> Self {
        let place = Place::shared();
        let lines = Lines::new(shared(), &place);
        let gate = Scratch::new("gate");
        let wait = format!("'until [ -e {} ]; do sleep 0.1; done'", gate.path().join("open").display());
        let spec = options(node("a", &lines.connect())).jobs(&jobs(&[once("slow", soon(), &wait, "")]));
        let node = spec.start();
        let run = node.await_event("run.started", LONG).text("run").to_owned();
        Self { place, lines, gate, node, run }
    }

    fn finish_run(&self) {
        self.gate.write("open", "");
        let finished = self.node.await_event("run.finished", LONG);
        assert_eq!((finished.text("run"), finished.text("outcome")), (self.run.as_str(), "success"));
    }

    /// Does what ExecStopPost does.
    fn release(&self) {
        let state = self.node.spec().state_dir();
        let connect = self.place.connect();
        let line =
            ["release", "--node", self.node.name(), "--state-dir", state.to_str().unwrap(), "--zookeeper", &connect];
        let (code, out, err) = command::texts(&command::run(&line));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("released everything"), "{out}");
    }

    fn member(&self) -> String {
        self.place.path(&format!("/cronkeeper/nodes/{}", self.node.name()))
    }

    fn assert_written(&self) {
        assert_eq!(self.place.await_end(&self.run)["outcome"], "success");
    }
}

#[test]
fn a_node_that_drains_while_zookeeper_is_away_does_not_wait_for_it_and_release_sends_the_end() {
    let held = HeldRun::start(|spec| spec.option("--session-timeout", "10s").option("--drain-timeout", "10m"));
    held.lines.part();
    held.node.await_event("coordination.suspended", LONG);
    held.node.signal(Signal::TERM);
    held.node.await_event("node.draining", LONG);
    held.finish_run();
    assert_eq!(held.node.wait_exit(LONG).code(), Some(0));
    assert!(held.place.running(&held.run).is_some(), "its end is not recorded yet");
    let member = held.member();
    assert!(held.place.zk.json(&member).is_some(), "the member stays: it covers the run");
    held.release();
    held.assert_written();
    assert!(held.place.zk.json(&member).is_none());
}

#[test]
fn a_node_whose_name_is_taken_meanwhile_ends_when_its_runs_have() {
    let held = HeldRun::start(usual);
    held.lines.part();
    held.node.await_event("coordination.expired", LONG);
    let member = held.member();
    until("its session is gone", || held.place.zk.json(&member).is_none());
    held.place.zk.create(&member);
    held.lines.pass();
    held.node.await_event("node.draining", LONG);
    assert!(held.node.events().tail().contains("is already in use"), "{}", held.node.events().tail());
    assert!(!held.node.job_processes().is_empty(), "what nobody else can start goes on");
    held.finish_run();
    assert_eq!(held.node.wait_exit(LONG).code(), Some(78));
    held.place.zk.remove(&member);
    held.release();
    held.assert_written();
}
