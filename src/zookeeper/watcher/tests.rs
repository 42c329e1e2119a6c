//! What is told of runs with and without a watch, and how much is asked and kept for it.

use futures_util::FutureExt;

use super::*;
use crate::run::tests_support::record;
use crate::zookeeper::desk::json;
use crate::zookeeper::tests_support::{ByHand, OWNER, Server};

const MEMBER: &str = "/cronkeeper/nodes/n";

struct Bench {
    server: Server,
    clock: ByHand,
    watcher: Watcher<Server, ByHand>,
}

impl Bench {
    fn new() -> Self {
        let (server, clock) = (Server::new(), ByHand::default());
        server.tree().put_ephemeral(MEMBER, OWNER);
        let watcher = Watcher::new(server.desk(clock.clone()));
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
            self.watcher.pump(self.clock.now().up);
            match self.watcher.step().now_or_never().flatten() {
                Some(step) => events.extend(self.watcher.land(step, self.clock.now().up).into_iter().flatten()),
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
    let mut bench = Bench::new();
    let runs = bench.watching(10_000);
    let with_watch = bench.server.tree().watches() - 1;
    assert!(with_watch * paths::running(&runs[0]).len() <= MOST_BYTES && with_watch > 2_000, "{with_watch}");
    assert_eq!(bench.watcher.steps.len(), with_watch + 1, "one for each watch, one for the member");
    assert!(bench.server.tree().most_read <= desk::SMALL);

    bench.put(9_999, 2);
    bench.put(0, 2);
    assert!(matches!(&bench.told()[..], [Event::Run(run, Some(_))] if *run == runs[0]), "the one with a watch");
    assert_eq!(bench.watcher.wake(), Some(bench.clock.now().up + LOOK_EVERY));
    bench.clock.pass(LOOK_EVERY);
    let told = bench.told();
    assert!(matches!(&told[..], [Event::Run(run, Some((now, _)))] if *run == runs[9_999] && now.attempt == 2));

    bench.remove(&runs[9_998]);
    bench.clock.pass(LOOK_EVERY);
    assert_eq!(bench.told(), [Event::Run(runs[9_998].clone(), None)]);
    bench.clock.pass(LOOK_EVERY);
    assert_eq!(bench.told(), [], "it is watched no more");
}

#[test]
fn an_owners_end_is_told_at_once_of_runs_with_and_without_a_watch() {
    let mut bench = Bench::new();
    let runs = bench.watching(10_000);
    // Whose members they are is known once they were read again.
    bench.clock.pass(LOOK_EVERY);
    assert_eq!(bench.told(), []);
    bench.server.tree().remove(MEMBER);
    let told = bench.told();
    let gone = told.iter().filter(|event| matches!(event, Event::OwnerGone(_, OwnerState::Gone, Some(_))));
    assert_eq!((gone.count(), told.len()), (runs.len(), runs.len()));
    bench.clock.pass(LOOK_EVERY);
    assert_eq!(bench.told(), [], "each once");
}

#[test]
fn a_run_that_is_asked_for_again_is_told_again_and_watched_once() {
    let mut bench = Bench::new();
    let runs = bench.watching(1);
    for _ in 0..100 {
        bench.watcher.watch(runs[0].clone());
        assert_eq!(bench.told().len(), 1);
    }
    assert_eq!((bench.server.tree().watches(), bench.watcher.steps.len()), (2, 2));
}

#[test]
fn members_without_a_run_are_given_up() {
    let mut bench = Bench::new();
    for number in 0..1_000 {
        let owner = Owner { node: NodeName::new(format!("host-{number}")), session: SessionId("0x9".into()) };
        let run = RunRecord { owner, ..record("backup", number, "") };
        bench.server.tree().put(&paths::running(&run.id()), json(&run));
        bench.watcher.watch(run.id());
        bench.told();
        bench.remove(&run.id());
        assert_eq!(bench.told().last(), Some(&Event::Run(run.id(), None)));
        assert!(bench.watcher.members.len() <= IDLE_MEMBERS + 1, "{}", bench.watcher.members.len());
        assert!(bench.server.tree().watches() <= IDLE_MEMBERS + 1);
    }
}

#[test]
fn what_was_not_answered_is_read_again_after_a_pause() {
    let mut bench = Bench::new();
    let runs = bench.watching(10_000);
    bench.server.tree().is_silent = true;
    bench.clock.pass(LOOK_EVERY);
    assert_eq!(bench.told(), []);
    bench.server.tree().is_silent = false;
    bench.remove(&runs[9_999]);
    assert_eq!(bench.told(), []);
    bench.clock.pass(PAUSE);
    assert_eq!(bench.told(), [Event::Run(runs[9_999].clone(), None)]);
}

#[test]
fn a_run_that_may_not_be_read_is_told_once_it_may() {
    let mut bench = Bench::new();
    let run = bench.put(60, 1);
    bench.server.tree().forbidden = Some(paths::running(&run));
    bench.watcher.watch(run.clone());
    assert_eq!(bench.told(), []);
    bench.clock.pass(LOOK_EVERY);
    assert_eq!(bench.told(), []);
    bench.server.tree().forbidden = None;
    bench.clock.pass(LOOK_EVERY);
    assert!(matches!(&bench.told()[..], [Event::Run(told, Some(_))] if *told == run));
}
