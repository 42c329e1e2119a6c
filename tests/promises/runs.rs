//! Runs in flight: whose they are, and who is notified of what becomes of them.

use cronkeeper_core::election::Request;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Change, Commit, Event, LastSuccess, OwnerState, Request as LedgerRequest, RunLookup};
use cronkeeper_core::run::{HistoryRecord, KillRequest, Outcome, Reason, RunId, RunRecord, RunState, Version};

use super::cluster::{Cluster, Node};
use crate::port::records::{begin, end, end_as, job};

on_every_backend! {
    a_killed_leaders_run_is_settled_once_by_the_next,
    a_former_leader_is_alive_and_ends_its_run_itself,
    a_former_leader_is_notified_that_its_run_is_to_end,
    the_death_of_an_owner_is_reported_with_its_run,
    an_owner_that_leaves_its_run_behind_is_reported,
    a_run_is_read_as_it_is,
    an_accepted_end_says_how_the_one_written_before_ended,
    ends_that_are_written_at_the_same_time_follow_one_another,
    how_the_runs_of_each_job_ended_last_is_on_record,
    a_run_that_is_not_on_record_can_be_restored_once,
    only_one_of_two_writers_changes_a_run,
}

/// A leader with a run of `j`, and the node that leads after it resigned.
async fn drained(cluster: &mut Cluster) -> (Node, RunRecord, Node, OwnerState) {
    let mut a = cluster.leader("a").await;
    let run = a.begin("j", 60).await;
    a.ask(Request::Resign);
    a.over().await;
    let (b, _, snapshot) = cluster.leading("b").await;
    (a, run, b, snapshot.running[0].owner)
}

fn asked_to_end(run: &RunRecord, force: bool) -> RunRecord {
    let mut wanted = run.clone();
    let request = KillRequest { reason: Reason::Replaced, by: "b".into(), at: run.begun_at, force };
    assert!(wanted.request_to_end(request));
    wanted
}

async fn a_killed_leaders_run_is_settled_once_by_the_next(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = a.begin("j", 60).await;
    let mut b = cluster.follower("b", "a").await;
    let _c = cluster.follower("c", "b").await;
    a.crash();
    let (_, snapshot) = b.elected().await;
    assert_eq!((&snapshot.running[0].record, snapshot.running.len()), (&run, 1));
    assert_ne!(snapshot.running[0].owner, OwnerState::Alive);
    let Change::End { at, end, .. } = end(0, &run) else { unreachable!("it is an end") };
    let mut another = end.clone();
    another.run.nonce.0.push_str("-another");
    let settle = |end| Change::End { at, end, as_leader: true };
    assert_eq!(b.commit(settle(end)).await, Commit::Accepted);
    assert_eq!(b.commit(settle(another)).await, Commit::Superseded);
    assert_eq!(b.history("j").await.len(), 1);
    let next = b.run("j", 120);
    assert_eq!(b.commit(begin(1, &next)).await, Commit::Accepted);
}

async fn a_former_leader_is_alive_and_ends_its_run_itself(mut cluster: Cluster) {
    let (mut a, run, mut b, owner) = drained(&mut cluster).await;
    assert_eq!(owner, OwnerState::Alive);
    b.ask_ledger(LedgerRequest::Watch(run.id()));
    assert_eq!(b.run_event(&run.id()).await, Some((run.clone(), Version::FIRST)));
    a.end(&run).await;
    assert_eq!(b.run_event(&run.id()).await, None);
}

async fn a_former_leader_is_notified_that_its_run_is_to_end(mut cluster: Cluster) {
    let (mut a, run, mut b, _) = drained(&mut cluster).await;
    a.ask_ledger(LedgerRequest::WatchOwn(run.id()));
    let wanted = asked_to_end(&run, false);
    let kill = Change::Kill { at: Version::FIRST, run: wanted.clone() };
    assert_eq!(b.commit(kill.clone()).await, Commit::Accepted);
    assert_eq!(b.commit(kill).await, Commit::Superseded, "it was written before");
    let mut known = a.run_event(&run.id()).await;
    while known == Some((run.clone(), Version::FIRST)) {
        known = a.run_event(&run.id()).await;
    }
    assert_eq!(known, Some((wanted.clone(), Version(1))));
    assert_eq!(a.commit(end(0, &run)).await, Commit::Superseded, "the request came between");
    assert_eq!(a.commit(end(1, &wanted)).await, Commit::Accepted);
}

async fn the_death_of_an_owner_is_reported_with_its_run(mut cluster: Cluster) {
    let (a, run, mut b, _) = drained(&mut cluster).await;
    b.ask_ledger(LedgerRequest::Watch(run.id()));
    a.crash();
    owner_gone(&mut b, &run).await;
}

async fn an_owner_that_leaves_its_run_behind_is_reported(mut cluster: Cluster) {
    let (a, run, mut b, _) = drained(&mut cluster).await;
    b.ask_ledger(LedgerRequest::Watch(run.id()));
    a.ask(Request::Leave);
    owner_gone(&mut b, &run).await;
}

/// Waits until the leader knows that the owner of this run is gone.
async fn owner_gone(leader: &mut Node, run: &RunRecord) {
    let (id, owner, entry) = leader
        .ledger("the owner's end", |event| match event {
            Event::OwnerGone(id, owner, entry) => Some((id.clone(), *owner, entry.clone())),
            _ => None,
        })
        .await;
    assert_ne!(owner, OwnerState::Alive);
    assert_eq!((id, entry), (run.id(), Some((run.clone(), Version::FIRST))));
}

async fn a_run_is_read_as_it_is(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = a.begin("j", 60).await;
    a.ask_ledger(LedgerRequest::ReadRun(run.id()));
    assert_eq!(a.run_event(&run.id()).await, Some((run.clone(), Version::FIRST)));
    assert_eq!(in_flight(&mut a).await, [run.id()]);
    a.end(&run).await;
    a.ask_ledger(LedgerRequest::ReadRun(run.id()));
    assert_eq!(a.run_event(&run.id()).await, None);
    assert_eq!(in_flight(&mut a).await, []);
}

async fn in_flight(node: &mut Node) -> Vec<RunId> {
    node.ask_ledger(LedgerRequest::ReadInFlight);
    let found = |event: &Event| match event {
        Event::InFlight(all, _) => Some(all.clone()),
        _ => None,
    };
    node.ledger("the runs in flight", found).await
}

/// Also if another node has ended a run since this one did.
async fn an_accepted_end_says_how_the_one_written_before_ended(mut cluster: Cluster) {
    let (mut a, left, mut b, _) = drained(&mut cluster).await;
    let mut version = 0;
    let mut begun = async |b: &mut Node| {
        version += 1;
        let run = b.run("j", 60 * (i64::from(version) + 1));
        assert_eq!(b.commit(begin(version, &run)).await, Commit::Accepted);
        run
    };
    let (first, second, third) = (begun(&mut b).await, begun(&mut b).await, begun(&mut b).await);
    assert_eq!(b.end_as(&first, Outcome::Failure).await, None);
    assert_eq!(b.end_as(&second, Outcome::Killed).await, Some(Outcome::Failure));
    assert_eq!(a.end_as(&left, Outcome::Success).await, Some(Outcome::Killed));
    assert_eq!(b.end_as(&third, Outcome::Timeout).await, Some(Outcome::Success));
}

async fn ends_that_are_written_at_the_same_time_follow_one_another(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    a.mark("j").await;
    let mut runs = Vec::new();
    for version in 0..20 {
        let run = a.run("j", 60 * (i64::from(version) + 1));
        assert_eq!(a.commit(begin(version, &run)).await, Commit::Accepted);
        runs.push(run);
    }
    let outcome = |place: usize| if place.is_multiple_of(2) { Outcome::Failure } else { Outcome::Success };
    let ids: Vec<_> = (0..).zip(&runs).map(|(place, run)| a.request(end_as(run, outcome(place)))).collect();
    for (place, id) in (0..).zip(ids) {
        let before = (place > 0).then(|| outcome(place - 1));
        assert_eq!(a.answer_with_before(id).await, (Commit::Accepted, before), "end {place}");
    }
    let last = a.reader().lasts().await.expect("they can be read").remove(&job("j")).expect("runs of it have ended");
    assert_eq!((last.end.run, last.end.outcome), (runs[19].id(), Outcome::Success));
}

async fn how_the_runs_of_each_job_ended_last_is_on_record(mut cluster: Cluster) {
    let (mut a, left, mut b, _) = drained(&mut cluster).await;
    let run = b.run("j", 120);
    assert_eq!(b.commit(begin(1, &run)).await, Commit::Accepted);
    b.end_as(&run, Outcome::Failure).await;
    let failed = b.begin("k", 60).await;
    b.end_as(&failed, Outcome::Failure).await;
    assert_eq!(last_success(&mut b, "j").await, LastSuccess::Never);
    // It was due before the other and is written after it.
    a.end(&left).await;
    for node in [&mut a, &mut b] {
        let lasts = node.reader().lasts().await.expect("they can be read");
        assert_eq!(lasts.keys().map(JobName::as_str).collect::<Vec<_>>(), ["j", "k"]);
        let of_j = &lasts[&job("j")];
        assert_eq!((of_j.end.run.clone(), of_j.end.outcome), (run.id(), Outcome::Failure));
        assert_eq!(of_j.success, Some(left.begun_at));
        assert_eq!(lasts[&job("k")].success, None);
    }
    assert_eq!(last_success(&mut b, "j").await, LastSuccess::At(left.begun_at));
    assert_eq!(last_success(&mut b, "unknown").await, LastSuccess::Never);
    let history = b.history("j").await;
    assert!(matches!(&history[..], [HistoryRecord::Run(newest), _] if newest.run == run), "{history:?}");
}

async fn last_success(node: &mut Node, of: &str) -> LastSuccess {
    node.ask_ledger(LedgerRequest::ReadLastSuccesses([job(of)].into()));
    node.ledger("the last success", |event| match event {
        Event::LastSuccesses(found) => found.get(&job(of)).copied(),
        _ => None,
    })
    .await
}

/// A run that is gone looks like one that was never begun.
async fn a_run_that_is_not_on_record_can_be_restored_once(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let (run, later) = (a.run("j", 60), a.run("j", 120));
    assert_eq!(a.look_up(&run).await, RunLookup::Absent(None));
    assert_eq!(a.commit(Change::Restore { run: run.clone(), mark: None }).await, Commit::Accepted);
    assert_eq!(a.look_up(&run).await, RunLookup::InFlight(Box::new(run.clone()), Version::FIRST));
    let again = RunRecord { attempt: 2, ..run.clone() };
    assert_eq!(a.commit(Change::Restore { run: again, mark: None }).await, Commit::Superseded);
    assert_eq!(a.commit(end(0, &run)).await, Commit::Accepted);
    assert_eq!(a.look_up(&run).await, RunLookup::Ended);
    assert_eq!(a.look_up(&later).await, RunLookup::Absent(None));
}

async fn only_one_of_two_writers_changes_a_run(mut cluster: Cluster) {
    let (mut a, run, mut b, _) = drained(&mut cluster).await;
    let released = RunRecord { state: RunState::Unstarted, ..run.clone() };
    let change = Change::ChangeOwner { at: Version::FIRST, run: released.clone() };
    assert_eq!(a.commit(change).await, Commit::Accepted);
    let kill = Change::Kill { at: Version::FIRST, run: asked_to_end(&run, false) };
    assert_eq!(b.commit(kill).await, Commit::Superseded);
    b.ask_ledger(LedgerRequest::ReadRun(run.id()));
    assert_eq!(b.run_event(&run.id()).await, Some((released, Version(1))));
}
