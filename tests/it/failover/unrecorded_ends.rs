//! A node that ends while nobody can record its runs' ends: the runs go on, and their outcomes are not lost.

use jiff::{SignedDuration, Timestamp};
use rustix::process::Signal;

use super::cluster::{Lines, Place, give, in_line, jobs, node, once, run_id, shared, soon, usual};
use crate::solo::fixture::Gate;
use crate::support::command;
use crate::support::node::{Event, Node, Spec};
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
fn a_node_whose_name_is_taken_meanwhile_waits_for_it_and_its_runs_go_on() {
    let held = HeldRun::start(usual);
    let member = held.member();
    let data = held.place.zk.data(&member).expect("it is there");
    held.lines.part();
    held.node.await_event("coordination.expired", LONG);
    until("its session is gone", || held.place.zk.json(&member).is_none());
    // As another daemon of that name would.
    held.place.zk.make_ephemeral(&member, &data);
    held.lines.pass();
    let stalled = held.node.await_event("coordination.stalled", LONG);
    assert!(stalled.json().to_string().contains("still held by"), "{stalled:?}");
    assert!(!held.node.job_processes().is_empty(), "what nobody else can start goes on");
    held.finish_run();
    assert_eq!(held.node.status(), None, "it may have its name again");
    held.place.zk.remove(&member);
    held.assert_written();
}

/// The time at which a node logged an event.
fn logged_at(event: &Event) -> Timestamp {
    event.text("timestamp").parse().expect("it is a time")
}

/// A run succeeds while nobody can record it, and can be kept no longer when its node is back, a moment after the next
/// leader. Returns whether it was recorded as it ended; `None` if its node was back too late to be heard.
fn is_success_recorded() -> Option<bool> {
    let place = Place::shared();
    let (lines_of_a, lines_of_b) = (Lines::new(shared(), &place), Lines::new(shared(), &place));
    let gate = Gate::new();
    let long = |spec: Spec| spec.option("--session-timeout", "10s");
    let [a, b] = in_line([long(node("a", &lines_of_a.connect())), long(node("b", &lines_of_b.connect()))]);
    let at = soon();
    let next = at + SignedDuration::from_secs(15);
    let twice = format!("  twice:\n    schedule: ['@at {at}', '@at {next}']\n    command: {:?}\n", gate.command());
    give(&[&a, &b], &jobs(&[twice]));
    let run = run_id("twice", at);
    a.await_where("run.started", LONG, |started| started.text("run") == run);
    [&lines_of_a, &lines_of_b].iter().for_each(|lines| lines.part());
    gate.open();
    let ended = a.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!(ended.text("outcome"), "success");
    [&a, &b].iter().for_each(|node| drop(node.await_event("coordination.expired", LONG)));
    until("the run can be kept no longer", || Timestamp::now() > next);
    assert!(place.running(&run).is_some(), "its end is not recorded yet");

    let (seen_by_a, seen_by_b) = (a.events().len(), b.events().len());
    lines_of_b.pass();
    b.await_after(seen_by_b, "election.joined", LONG, |_| true);
    lines_of_a.pass();
    let end = place.await_end(&run);
    let led = b.await_after(seen_by_b, "leader.elected", LONG, |_| true);
    let back = a.await_after(seen_by_a, "election.joined", LONG, |_| true);
    let is_success = end["outcome"] == "success" && end["run"]["node"] == a.name();
    let was_back = logged_at(&back) + SignedDuration::from_secs(1) < logged_at(&led);
    (is_success || was_back).then_some(is_success)
}

/// Its next occurrence has come, so the next leader gives it up as `abandoned`, unless its node is heard before. Nobody
/// leads before a quarter of the session timeout has passed since it came back, which is enough for that, except on a
/// machine that is very busy.
#[test]
fn a_success_that_nobody_could_record_is_recorded_before_the_next_leader_gives_the_run_up() {
    const TRIALS: usize = 3;
    let recorded = (0..TRIALS).find_map(|_| is_success_recorded());
    assert_eq!(recorded, Some(true), "its node was back in time, if it could be at all");
}
