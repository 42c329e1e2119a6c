//! What is told of runs with and without a watch, and how much is asked and kept for it.

use futures_util::FutureExt;

use super::*;
use crate::run::tests_support::record;
use crate::zookeeper::context::json;
use crate::zookeeper::tests_support::{ByHand, OWNER, Server};

const MEMBER: &str = "/cronkeeper/nodes/n";

struct Fixture {
    server: Server,
    clock: ByHand,
    watcher: Watcher<Server, ByHand>,
}

impl Fixture {
    fn new() -> Self {
        let (server, clock) = (Server::new(), ByHand::default());
        server.tree().put_ephemeral(MEMBER, OWNER);
        let watcher = Watcher::new(server.context(clock.clone()));
        Self { server, clock, watcher }
    }

    fn put(&self, second: i64, attempt: u32) -> RunId {
        let run = RunRecord { attempt, ..record("backup", second, &session_id(OWNER).0) };
        self.server.tree().put(&paths::running(&run.id()), json(&run));
        run.id()
    }

    fn remove(&self, run: &RunId) {
        self.server.tree().remove(&paths::running(run));
    }

    /// What is told without any time passing.
    fn told(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..100_000 {
            self.watcher.start_next(self.clock.now().up);
            match self.watcher.step().now_or_never().flatten() {
                Some(step) => events.extend(self.watcher.complete(step, self.clock.now().up).into_iter().flatten()),
                None => return events,
            }
        }
        panic!("it never came to rest");
    }

    /// Watched runs, the last of which have no watch.
    fn watching(&mut self, runs: i64) -> Vec<RunId> {
        let runs: Vec<_> = (0..runs).map(|second| self.put(second, 1)).collect();
        runs.iter().for_each(|run| self.watcher.watch(run.clone()));
        let told = self.told();
        assert_eq!(told.len(), runs.len());
        assert!(told.iter().all(|event| matches!(event, Event::Run(_, Some(_)))));
        runs
    }
}

#[test]
fn runs_beyond_what_a_reconnect_can_carry_are_read_together() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(10_000);
    let with_watch = fixture.server.tree().watches() - 1;
    assert!(with_watch * paths::running(&runs[0]).len() <= MOST_BYTES && with_watch > 2_000, "{with_watch}");
    assert_eq!(fixture.watcher.steps.len(), with_watch + 1, "one for each watch, one for the member");
    assert!(fixture.server.tree().most_read <= context::SMALL);

    fixture.put(9_999, 2);
    fixture.put(0, 2);
    assert!(matches!(&fixture.told()[..], [Event::Run(run, Some(_))] if *run == runs[0]), "the one with a watch");
    assert_eq!(fixture.watcher.wake(), Some(fixture.clock.now().up + LOOK_EVERY));
    fixture.clock.pass(LOOK_EVERY);
    let told = fixture.told();
    assert!(matches!(&told[..], [Event::Run(run, Some((now, _)))] if *run == runs[9_999] && now.attempt == 2));

    fixture.remove(&runs[9_998]);
    fixture.clock.pass(LOOK_EVERY);
    assert_eq!(fixture.told(), [Event::Run(runs[9_998].clone(), None)]);
    fixture.clock.pass(LOOK_EVERY);
    assert_eq!(fixture.told(), [], "it is watched no more");
}

#[test]
fn an_owners_end_is_told_at_once_of_runs_with_and_without_a_watch() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(10_000);
    // Whose members they are is known once they were read again.
    fixture.clock.pass(LOOK_EVERY);
    assert_eq!(fixture.told(), []);
    fixture.server.tree().remove(MEMBER);
    let told = fixture.told();
    let gone = told.iter().filter(|event| matches!(event, Event::OwnerGone(_, OwnerState::Gone, Some(_))));
    assert_eq!((gone.count(), told.len()), (runs.len(), runs.len()));
    fixture.clock.pass(LOOK_EVERY);
    assert_eq!(fixture.told(), [], "each once");
}

#[test]
fn a_run_that_is_asked_for_again_is_told_again_and_watched_once() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(1);
    for _ in 0..100 {
        fixture.watcher.watch(runs[0].clone());
        assert_eq!(fixture.told().len(), 1);
    }
    assert_eq!((fixture.server.tree().watches(), fixture.watcher.steps.len()), (2, 2));
}

#[test]
fn members_without_a_run_are_given_up() {
    let mut fixture = Fixture::new();
    for number in 0..1_000 {
        let owner = Owner { node: NodeName::new(format!("host-{number}")), session: SessionId("0x9".into()) };
        let run = RunRecord { owner, ..record("backup", number, "") };
        fixture.server.tree().put(&paths::running(&run.id()), json(&run));
        fixture.watcher.watch(run.id());
        fixture.told();
        fixture.remove(&run.id());
        assert_eq!(fixture.told().last(), Some(&Event::Run(run.id(), None)));
        assert!(fixture.watcher.members.len() <= IDLE_MEMBERS + 1, "{}", fixture.watcher.members.len());
        assert!(fixture.server.tree().watches() <= IDLE_MEMBERS + 1);
    }
}

#[test]
fn what_was_not_answered_is_read_again_after_a_pause() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(10_000);
    fixture.server.tree().is_silent = true;
    fixture.clock.pass(LOOK_EVERY);
    assert_eq!(fixture.told(), []);
    fixture.server.tree().is_silent = false;
    fixture.remove(&runs[9_999]);
    assert_eq!(fixture.told(), []);
    fixture.clock.pass(PAUSE);
    assert_eq!(fixture.told(), [Event::Run(runs[9_999].clone(), None)]);
}

#[test]
fn a_run_that_may_not_be_read_is_told_once_it_may() {
    let mut fixture = Fixture::new();
    let run = fixture.put(60, 1);
    fixture.server.tree().forbidden = Some(paths::running(&run));
    fixture.watcher.watch(run.clone());
    assert_eq!(fixture.told(), []);
    fixture.clock.pass(LOOK_EVERY);
    assert_eq!(fixture.told(), []);
    fixture.server.tree().forbidden = None;
    fixture.clock.pass(LOOK_EVERY);
    assert!(matches!(&fixture.told()[..], [Event::Run(told, Some(_))] if *told == run));
}
