//! Tests of placing attempts on nodes: bells, offers, the node's own member, and the tokens of acceptances.

use futures_util::FutureExt as _;

use super::*;
use crate::recipes::tests_support::{OWNER, Right};
use cronkeeper_core::job::Digest;
use cronkeeper_core::run::{Placement, RunState};
use cronkeeper_core::term::NodeName;

const MEMBER: &str = "/cronkeeper/nodes/host-a";
const OFFERS: &str = "/cronkeeper/offers/host-a";

fn placed(job: &str, nonce: &str) -> RunRecord {
    let placement = Placement::new(Digest::of(b"jobs"));
    let run = transaction::tests::run(job, 60, nonce);
    RunRecord { state: RunState::Placed, placement: Some(Box::new(placement)), ..run }.in_its_format()
}

fn place(job: &str, nonce: &str) -> Change {
    Change::Begin { at: Version(0), record: mark(60, nonce), run: placed(job, nonce) }
}

fn accept(job: &str) -> Change {
    Change::Accept { at: Version(0), run: RunRecord { state: RunState::Running, ..placed(job, "7-1") } }
}

fn refuse(job: &str) -> Change {
    Change::Refuse { at: Version(0), run: RunRecord { state: RunState::Unstarted, ..placed(job, "7-1") } }
}

fn path(job: &str) -> String {
    paths::running(&placed(job, "7-1").id())
}

fn offer(job: &str) -> String {
    paths::offer(&NodeName::new("host-a"), &placed(job, "7-1").id())
}

/// A node that is a member, and on which these jobs' attempts are placed.
fn with_offers(jobs: &[&str]) -> Fixture {
    let fixture = Fixture::new();
    {
        let mut tree = fixture.server.tree();
        tree.put_ephemeral(MEMBER, OWNER);
        tree.put(OFFERS, "");
        for job in jobs {
            tree.put(&path(job), json(&placed(job, "7-1")));
            tree.put(&offer(job), "");
        }
    }
    fixture
}

#[test]
fn the_changes_of_a_group_ring_each_bell_once() {
    let mut fixture = with_offers(&[]);
    for (job, nonce) in [("a", "7-1"), ("b", "7-2"), ("c", "7-3")] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        fixture.request(place(job, nonce));
    }
    fixture.settle();
    assert!(fixture.answers.values().all(|answer| *answer == Commit::Accepted), "{:?}", fixture.answers);
    assert_eq!(fixture.server.tree().multis, [1 + 3 * 3 + 1], "the fence, the changes, the bell");
    assert_eq!(fixture.version(OFFERS), Some(1));
    assert!(["a", "b", "c"].iter().all(|job| fixture.version(&offer(job)).is_some()));
}

#[test]
fn the_leaders_bell_names_the_runs_it_is_rung_for() {
    let mut fixture = with_offers(&["a", "b"]);
    let ids = [fixture.request(refuse("a")), fixture.request(refuse("b"))];
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Accepted; 2]);
    let (data, stat) = fixture.server.get("/cronkeeper/running").now_or_never().unwrap().unwrap();
    let runs = ["a", "b"].map(|job| placed(job, "7-1").id());
    assert_eq!((transaction::rung_for(&data), stat.version), (Some(runs.into()), Version(1)));
    assert_eq!(transaction::rung_for(b"[\"no run\"]"), None);
}

#[test]
fn a_placing_makes_the_folder_of_a_node_that_has_none() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    assert_eq!(fixture.commit(place("a", "7-1")), Commit::Accepted);
    assert!(fixture.version(OFFERS).is_some() && fixture.version(&offer("a")).is_some());
}

#[test]
fn a_bell_that_cannot_be_rung_holds_up_nothing() {
    let mut fixture = with_offers(&["a", "b"]);
    fixture.server.tree().close("/cronkeeper/running", Right::Write);
    assert_eq!(fixture.commit(refuse("a")), Commit::Accepted);
    assert_eq!(fixture.refused.iter().map(|damage| damage.path.as_str()).collect::<Vec<_>>(), ["/cronkeeper/running"]);
    fixture.server.tree().open("/cronkeeper/running", Right::Write);
    assert_eq!(fixture.commit(refuse("b")), Commit::Accepted);
    assert_eq!(fixture.mended, ["/cronkeeper/running"]);
}

#[test]
fn an_offer_that_was_removed_or_made_by_hand_blocks_nothing() {
    let mut fixture = with_offers(&["a", "b"]);
    fixture.server.tree().remove(&offer("a"));
    let ids = [fixture.request(accept("a")), fixture.request(accept("b"))];
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Accepted; 2]);
    assert_eq!(fixture.version(&offer("b")), None);

    fixture.put(paths::job(&name("c")), &mark(0, "1-0"));
    fixture.server.tree().put(&offer("c"), "by hand");
    assert_eq!(fixture.commit(place("c", "7-1")), Commit::Accepted);

    let again = RunRecord { attempt: 2, ..placed("c", "7-1") };
    fixture.server.tree().remove(&offer("c"));
    let again = Change::UpdateRun { at: Version(0), run: again, taken_from: Some(NodeName::new("host-a")) };
    assert_eq!(fixture.commit(again), Commit::Accepted);
    assert!(fixture.version(&offer("c")).is_some(), "it is made again");
}

#[test]
fn without_the_member_no_attempt_is_accepted_and_other_changes_are_written() {
    let mut fixture = with_offers(&["a", "b"]);
    fixture.put(paths::job(&name("c")), &mark(0, "1-0"));
    fixture.server.tree().remove(MEMBER);
    let ids = [fixture.request(accept("a")), fixture.request(begin("c", 0, 60, "7-9")), fixture.request(refuse("b"))];
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Superseded, Commit::Accepted, Commit::Superseded]);
    assert!(fixture.is_member_gone && !fixture.is_fenced);
    assert_eq!((fixture.version(&path("a")), fixture.version(&offer("a"))), (Some(0), Some(0)));
    assert!(fixture.tokens.is_empty());
}

#[test]
fn the_token_of_an_acceptance_is_its_place_among_all_writes() {
    let mut fixture = with_offers(&["a", "b", "c"]);
    let first = fixture.request(accept("a"));
    fixture.settle();
    fixture.fates([Fate::AnswerLost]);
    let ids = [fixture.request(accept("b")), fixture.request(accept("c"))];
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Accepted; 2]);
    let written = |job: &str| FencingToken(fixture.server.tree().stat(&path(job)).unwrap().mzxid);
    assert_eq!(fixture.tokens[&first], written("a"));
    assert_eq!(ids.map(|id| fixture.tokens[&id]), [written("b"), written("c")], "of what was found on record");
    assert!(written("a") < written("b") && written("b") == written("c"));
}

#[test]
fn a_lost_acceptance_that_was_overwritten_has_no_token() {
    let mut fixture = with_offers(&["a"]);
    fixture.fates([Fate::AnswerLost]);
    let id = fixture.request(accept("a"));
    fixture.turn();
    let killed = RunRecord { attempt: 9, ..placed("a", "7-1") };
    fixture.server.tree().apply(ops(&Change::Kill { at: Version(1), run: killed }));
    fixture.settle();
    assert_eq!((fixture.answers[&id], fixture.tokens.get(&id)), (Commit::Unknown, None));
}
