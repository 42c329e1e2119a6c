//! Nodes that are cut off or hang: what dies at half a session, what goes on, and what the node does when it is back.

use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::cluster::{
    Lines, Place, TIMEOUT, await_begun, give, in_line, is_long, job, jobs, living, node, once, run_id, shared, soon,
    token, usual,
};
use crate::support::node::Node;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

const RERUN: &str = "interrupted: rerun";
const KILL: &str = "on_lease_end: kill";

/// Two nodes, with a run of each kind in flight on the first, whose lines can be cut.
struct Scene {
    place: Place,
    lines: Lines,
    witness: Witness,
    a: Node,
    b: Node,
    at: Timestamp,
    gate: crate::support::scratch::Scratch,
}

impl Scene {
    fn new() -> Self {
        let place = Place::shared();
        let lines = Lines::new(shared(), &place);
        let witness = Witness::new();
        let [a, b] = in_line([usual(node("a", &lines.connect())), usual(place.node("b"))]);
        let at = soon();
        let gate = crate::support::scratch::Scratch::new("gate");
        let wait = format!("until [ -e {}/open ]; do sleep 0.1; done", gate.path().display());
        let (forever, gated) = (witness.command(&["sleep", "600"]), witness.command(&["sh", "-c", &wait]));
        let tick = job("tick", "* * * * * *", &witness.command(&[]), "");
        let each =
            [once("again", at, &forever, RERUN), once("die", at, &forever, KILL), once("keep", at, &gated, ""), tick];
        give(&[&a, &b], &jobs(&each));
        ["again", "die", "keep"].iter().for_each(|job| await_begun(&witness, job, 1));
        Self { place, lines, witness, a, b, at, gate }
    }

    /// At half a session the warden kills the runs that another node may start again, and nothing else.
    fn await_killed(&self) {
        until("the runs that another may start again are killed", || {
            living(&self.witness, "again").is_empty() && living(&self.witness, "die").is_empty()
        });
        assert_eq!(living(&self.witness, "keep").len(), 1, "this one may go on");
    }

    /// The next leader begins one run again, ends one, and leaves the third alone.
    fn await_taken_over(&self) {
        self.b.await_event("takeover.done", LONG);
        await_begun(&self.witness, "again", 2);
        self.place.await_end(&run_id("die", self.at));
        assert_eq!(living(&self.witness, "keep").len(), 1);
    }

    /// The first node rejoins, starts nothing, and owns its surviving run again.
    fn await_back(&self, seen: usize) {
        let old = self.a.events().named("election.joined").remove(0);
        let joined = self.a.await_after(seen, "election.joined", LONG, |_| true);
        assert_ne!(joined.text("candidate"), old.text("candidate"));
        self.a.await_after(seen, "election.following", LONG, |_| true);
        let keep = run_id("keep", self.at);
        let is_running = || self.place.running(&keep).is_some_and(|run| run["state"] == "running");
        until("the run that went on is taken over again", is_running);
    }

    fn finish(self) {
        std::fs::write(self.gate.path().join("open"), "").expect("a file can be written");
        let finished = self.a.await_where("run.finished", LONG, |event| event.text("job") == "keep");
        assert_eq!(finished.text("outcome"), "success");
        let end = self.place.await_end(&run_id("keep", self.at));
        assert_eq!((&end["outcome"], &end["run"]["node"]), (&"success".into(), &self.a.name().into()));
        assert_eq!(self.place.history("keep").len(), 1);
        assert!(token(&self.b) > token(&self.a));
        self.witness.assert_fine(&[]);
        let of_a = |after: &str| self.a.events().named(after).len();
        assert_eq!(of_a("leader.elected"), 1, "it has not led since");
    }
}

#[test]
fn a_node_cut_off_for_longer_than_its_session() {
    let scene = Scene::new();
    let seen = scene.a.events().len();
    scene.lines.part();
    let lost = scene.a.await_event("leader.lost", LONG);
    assert_eq!(lost.text("reason"), "lease");
    scene.await_killed();
    scene.await_taken_over();
    assert_eq!(scene.b.await_event("run.cut_off", LONG).text("job"), "keep");
    scene.lines.pass();
    scene.await_back(seen);
    scene.finish();
}

#[test]
fn a_node_cut_off_for_longer_than_its_lease_and_less_than_its_session() {
    let scene = Scene::new();
    let seen = scene.a.events().len();
    scene.lines.part();
    scene.a.await_event("leader.lost", LONG);
    scene.lines.pass();
    scene.await_killed();
    scene.await_taken_over();
    scene.await_back(seen);
    scene.finish();
}

#[test]
fn a_daemon_that_hangs_for_longer_than_its_session() {
    let scene = Scene::new();
    let seen = scene.a.events().len();
    scene.a.stop();
    scene.await_killed();
    scene.await_taken_over();
    scene.a.cont();
    scene.a.await_after(seen, "leader.lost", LONG, |_| true);
    scene.await_back(seen);
    assert_eq!(scene.a.events().named("run.outlived"), [], "the warden has killed all in time");
    scene.finish();
}

#[test]
fn a_daemon_that_hangs_for_longer_than_its_lease_and_less_than_its_session() {
    let scene = Scene::new();
    let seen = scene.a.events().len();
    scene.a.stop();
    let stopped = Instant::now();
    scene.await_killed();
    // The warden may kill before the lease ends as known to the test, never after: an answer that the daemon has not
    // read yet can give it a lease of up to 0.85 of the session.
    thread::sleep((TIMEOUT * 35 / 40).saturating_sub(stopped.elapsed()));
    scene.a.cont();
    scene.a.await_after(seen, "leader.lost", LONG, |_| true);
    scene.await_taken_over();
    scene.await_back(seen);
    scene.finish();
}

/// The run may last until its next occurrence: its node kills it first, then the next leader begins that occurrence.
#[test]
fn a_cut_off_run_is_never_beside_the_next_of_its_job() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let witness = Witness::new();
    let every = if is_long() { 40 } else { 15 };
    let file = jobs(&[job("keep", &format!("@every {every}s"), &witness.command(&["sleep", "600"]), "")]);
    let specs = [usual(node("a", &lines.connect())), usual(place.node("b"))];
    let [a, b] = in_line(specs.map(|spec| spec.jobs(&file)));
    await_begun(&witness, "keep", 1);

    lines.part();
    b.await_event("takeover.done", Duration::from_secs(every) + LONG);
    let first = witness.entries().remove(0);
    let end = place.await_end(&first.run);
    assert_eq!(end["outcome"], "abandoned");
    until("the next one begins elsewhere", || witness.entries().iter().any(|entry| entry.node == b.name()));
    witness.assert_fine(&[]);
    lines.pass();
    a.await_event("run.superseded", LONG);
    assert_eq!(place.await_end(&first.run)["outcome"], "abandoned", "what was settled stays settled");
}
