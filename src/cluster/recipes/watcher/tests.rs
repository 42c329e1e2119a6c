//! Tests of the events for runs with and without a watch, and of the requests and memory they cost.

use futures_util::FutureExt;

use super::*;
use crate::recipes::context::json;
use crate::recipes::tests_support::{ByHand, OWNER, Right, Server};
use crate::test_records::record;
use cronkeeper_core::job::JobName;

const MEMBER: &str = "/cronkeeper/nodes/n";

struct Fixture {
    server: Server,
    clock: ByHand,
    watcher: Watcher<Server, ByHand>,
}

impl Fixture {
    fn new() -> Self {
        let (server, clock) = (Server::default(), ByHand::default());
        server.tree().put_ephemeral(MEMBER, OWNER);
        let watcher = Watcher::new(server.context(clock.clone()));
        Self { server, clock, watcher }
    }

    fn put(&self, second: i64, attempt: u32) -> RunId {
        let run = RunRecord { attempt, ..record("backup", second, &crate::zookeeper::session_id(OWNER).0) };
        self.server.tree().put(&paths::running(&run.id()), json(&run));
        run.id()
    }

    fn remove(&self, run: &RunId) {
        self.server.tree().remove(&paths::running(run));
    }

    /// The events that come without time passing.
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..100_000 {
            self.watcher.start_next(self.clock.now().up);
            match self.watcher.step().now_or_never().flatten() {
                Some(step) => events.extend(self.watcher.complete(step, self.clock.now().up).into_iter().flatten()),
                None => return events,
            }
        }
        panic!("the watcher did not settle");
    }

    /// Watches this many runs. The last of many get no watch.
    fn watching(&mut self, runs: i64) -> Vec<RunId> {
        let runs: Vec<_> = (0..runs).map(|second| self.put(second, 1)).collect();
        runs.iter().for_each(|run| self.watcher.watch(run.clone()));
        let events = self.events();
        assert_eq!(events.len(), runs.len());
        assert!(events.iter().all(|event| matches!(event, Event::Run(_, Some(_)))));
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
    assert!(fixture.server.tree().most_read <= bounded::RUNS.count);

    fixture.put(9_999, 2);
    fixture.put(0, 2);
    assert!(matches!(&fixture.events()[..], [Event::Run(run, Some(_))] if *run == runs[0]), "the one with a watch");
    assert_eq!(fixture.watcher.wake(), Some(fixture.clock.now().up + POLL_EVERY));
    fixture.clock.pass(POLL_EVERY);
    let events = fixture.events();
    assert!(matches!(&events[..], [Event::Run(run, Some((now, _)))] if *run == runs[9_999] && now.attempt == 2));

    fixture.remove(&runs[9_998]);
    fixture.clock.pass(POLL_EVERY);
    assert_eq!(fixture.events(), [Event::Run(runs[9_998].clone(), None)]);
    fixture.clock.pass(POLL_EVERY);
    assert_eq!(fixture.events(), [], "it is no longer watched");
}

#[test]
fn an_owners_end_is_reported_at_once_for_runs_with_and_without_a_watch() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(10_000);
    // The watcher learns the owners of unwatched runs with the next poll.
    fixture.clock.pass(POLL_EVERY);
    assert_eq!(fixture.events(), []);
    fixture.server.tree().remove(MEMBER);
    let events = fixture.events();
    let gone = events.iter().filter(|event| matches!(event, Event::OwnerGone(_, OwnerState::Gone, Some(_))));
    assert_eq!((gone.count(), events.len()), (runs.len(), runs.len()));
    fixture.clock.pass(POLL_EVERY);
    assert_eq!(fixture.events(), [], "each is reported once");
}

#[test]
fn a_run_that_is_requested_again_is_reported_again_and_watched_once() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(1);
    for _ in 0..100 {
        fixture.watcher.watch(runs[0].clone());
        assert_eq!(fixture.events().len(), 1);
    }
    assert_eq!((fixture.server.tree().watches(), fixture.watcher.steps.len()), (2, 2));
}

#[test]
fn members_without_a_run_are_dropped() {
    let mut fixture = Fixture::new();
    for number in 0..1_000 {
        let owner = Owner { node: NodeName::new(format!("host-{number}")), session: SessionId("0x9".into()) };
        let run = RunRecord { owner, ..record("backup", number, "") };
        fixture.server.tree().put(&paths::running(&run.id()), json(&run));
        fixture.watcher.watch(run.id());
        fixture.events();
        fixture.remove(&run.id());
        assert_eq!(fixture.events().last(), Some(&Event::Run(run.id(), None)));
        assert!(fixture.watcher.members.len() <= IDLE_MEMBERS + 1, "{}", fixture.watcher.members.len());
        assert!(fixture.server.tree().watches() <= IDLE_MEMBERS + 1);
    }
}

#[test]
fn an_unanswered_read_is_repeated_after_a_pause() {
    let mut fixture = Fixture::new();
    let runs = fixture.watching(10_000);
    fixture.server.tree().is_silent = true;
    fixture.clock.pass(POLL_EVERY);
    assert_eq!(fixture.events(), []);
    fixture.server.tree().is_silent = false;
    fixture.remove(&runs[9_999]);
    assert_eq!(fixture.events(), []);
    fixture.clock.pass(PAUSE);
    assert_eq!(fixture.events(), [Event::Run(runs[9_999].clone(), None)]);
}

#[test]
fn a_run_that_must_not_be_read_is_reported_once_it_may() {
    let mut fixture = Fixture::new();
    let run = fixture.put(60, 1);
    fixture.server.tree().close(&paths::running(&run), Right::Read);
    fixture.watcher.watch(run.clone());
    assert_eq!(fixture.events(), []);
    fixture.clock.pass(POLL_EVERY);
    assert_eq!(fixture.events(), []);
    fixture.server.tree().open(&paths::running(&run), Right::Read);
    fixture.clock.pass(POLL_EVERY);
    assert!(matches!(&fixture.events()[..], [Event::Run(reported, Some(_))] if *reported == run));
}

#[test]
fn a_followed_run_is_read_after_a_while_and_watched_if_it_is_still_there() {
    let mut fixture = Fixture::new();
    let (short, long) = (fixture.put(0, 1), fixture.put(60, 1));
    for run in [&short, &long] {
        fixture.watcher.follow(run.clone(), fixture.clock.now().up);
    }
    assert_eq!(fixture.events(), []);
    let costs = |fixture: &Fixture| {
        let tree = fixture.server.tree();
        (tree.watches(), tree.reads)
    };
    assert_eq!(costs(&fixture), (0, 0));
    assert_eq!(fixture.watcher.wake(), Some(fixture.clock.now().up + FIRST_READ));

    fixture.remove(&short);
    fixture.clock.pass(FIRST_READ);
    let events = fixture.events();
    let [Event::Run(gone, None), Event::Run(there, Some(_))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((gone, there), (&short, &long));
    assert_eq!(fixture.server.tree().watches(), 2, "of the run and of its owner's member");

    fixture.put(60, 2);
    let events = fixture.events();
    assert!(matches!(&events[..], [Event::Run(run, Some((now, _)))] if *run == long && now.attempt == 2), "{events:?}");
    fixture.server.tree().remove(MEMBER);
    assert!(matches!(&fixture.events()[..], [Event::OwnerGone(run, OwnerState::Gone, Some(_))] if *run == long));
}

#[test]
fn a_run_that_is_followed_again_while_it_is_read_is_read_once_more() {
    let mut fixture = Fixture::new();
    let run = fixture.put(0, 1);
    fixture.watcher.follow(run.clone(), fixture.clock.now().up);
    fixture.clock.pass(FIRST_READ);
    fixture.watcher.start_next(fixture.clock.now().up);
    fixture.watcher.follow(run.clone(), fixture.clock.now().up);
    assert_eq!(fixture.events(), [], "the answer is to the request before");
    fixture.clock.pass(FIRST_READ);
    assert!(matches!(&fixture.events()[..], [Event::Run(read, Some(_))] if *read == run));
}

#[test]
fn the_leaders_bell_has_runs_without_a_watch_read_at_once() {
    let mut fixture = Fixture::new();
    fixture.watcher.start_term();
    let runs = [fixture.put(0, 1), fixture.put(60, 1)];
    runs.iter().for_each(|run| fixture.watcher.follow(run.clone(), fixture.clock.now().up));
    assert_eq!(fixture.events(), []);
    let ring = |fixture: &Fixture, runs: &[&RunId]| {
        let names: Vec<_> = runs.iter().map(ToString::to_string).collect();
        fixture.server.tree().put(paths::RUNNING, json(&names));
    };
    ring(&fixture, &[&runs[1]]);
    let events = fixture.events();
    assert!(matches!(&events[..], [Event::Run(run, Some(_))] if *run == runs[1]), "{events:?}");

    // What is not read here, such as an attempt that its node has refused, is for the leader to read.
    let other = RunId::scheduled(JobName::parse("other").unwrap(), runs[1].scheduled_at());
    ring(&fixture, &[&runs[1], &other]);
    let events = fixture.events();
    assert!(matches!(&events[..], [Event::Rung(rung)] if *rung == BTreeSet::from([other])), "{events:?}");

    // It has rung twice before it was read: nobody knows for which runs the first time.
    fixture.put(60, 2);
    ring(&fixture, &[&runs[1]]);
    ring(&fixture, &[]);
    assert_eq!(fixture.events().len(), 2);

    fixture.remove(&runs[0]);
    ring(&fixture, &[&runs[0]]);
    assert_eq!(fixture.events(), [Event::Run(runs[0].clone(), None)]);
    fixture.clock.pass(FIRST_READ);
    assert_eq!(fixture.events(), [], "it is read, and nothing is new");
    assert!(!fixture.watcher.watched.contains_key(&runs[0]));
}
