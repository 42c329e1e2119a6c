//! Requests that an operator writes at any node and the leader carries out.

use cronkeeper_core::election::{Event, Request};
use cronkeeper_core::ledger::{Change, Commit, Followed, OperatorRequests, SkipWrite};
use cronkeeper_core::run::{
    Drain, HandoverRequest, HistoryRecord, KillRequest, NodeControl, NotRecounted, Pause, Reason, RecountRequest,
    Resume, RunRecord, RunState, SkipReason,
};
use cronkeeper_core::run::{TriggerRecord, Version};
use cronkeeper_core::term::NodeName;
use jiff::Timestamp;
use uuid::Uuid;

use super::cluster::{Cluster, Node};
use crate::port::records::{at, begin, end, first_mark, job, mark, run_id, success};

on_every_backend! {
    a_begin_that_a_pause_overtook_is_superseded,
    a_job_that_nobody_decided_on_can_be_paused,
    the_leaders_own_operator_is_heeded_at_once,
    the_leader_receives_a_pause_and_ends_it_when_asked_to,
    the_next_leader_finds_a_pause,
    a_trigger_leads_to_one_run_and_its_end_is_reported,
    a_skipped_trigger_is_reported_and_its_uuid_stays_known,
    a_kill_request_is_in_the_runs_record_and_only_force_replaces_it,
    a_run_that_nobody_knows_of_is_gone,
    a_drained_node_is_told_so_before_it_could_join_and_joins_once_it_is_not,
    a_leader_is_told_that_it_is_drained_and_who_else_is,
    a_handover_is_requested_of_the_leader_by_its_candidate,
    many_jobs_are_paused_and_resumed_together,
    a_job_is_recounted_and_the_leader_is_notified,
    a_job_that_needs_no_recount_is_left_as_it_is,
}

fn pause(reason: &str) -> Pause {
    Pause { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()), until: None }
}

fn request(name: &str, uuid: u128) -> TriggerRecord {
    TriggerRecord::new(Uuid::from_u128(uuid), job(name), "alice".into(), at(60))
}

/// The leader, and a follower that takes the requests.
async fn two(cluster: &mut Cluster) -> (Node, Node) {
    (cluster.leader("a").await, cluster.follower("b", "a").await)
}

async fn a_begin_that_a_pause_overtook_is_superseded(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    leader.mark("j").await;
    follower.operator().pause(job("j"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    let run = leader.run("j", 60);
    assert_eq!(leader.commit(begin(0, &run)).await, Commit::Superseded);
    // The pause has made the version that the next change expects.
    assert_eq!(leader.commit(begin(1, &run)).await, Commit::Superseded);
    let (entry, control) = leader.read_job("j").await;
    let (entry, control) = (entry.unwrap(), control.unwrap());
    assert_eq!((entry.version, entry.record), (Version(1), Some(mark(0, "1"))), "the mark stands as it stood");
    assert_eq!((control.version, control.record.paused), (Version(0), pause("disks")));
    assert_eq!(leader.commit(begin(1, &run)).await, Commit::Accepted);
}

async fn a_job_that_nobody_decided_on_can_be_paused(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    follower.operator().pause(job("new"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    let requests = leader.requests(|requests| !requests.control.is_empty()).await;
    assert_eq!(requests.control.keys().collect::<Vec<_>>(), [&job("new")]);
    assert_eq!(leader.read_job("new").await.1.map(|control| control.record.paused), Some(pause("disks")));
}

/// Without another node, nothing but the operator's request itself can make the leader read it.
async fn the_leaders_own_operator_is_heeded_at_once(mut cluster: Cluster) {
    let mut leader = cluster.leader("a").await;
    leader.mark("j").await;
    leader.operator().pause(job("j"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    leader.requests(|requests| requests.control.contains_key(&job("j"))).await;
    let resume = Resume { by: "bob".into(), at: Timestamp::UNIX_EPOCH };
    leader.operator().request_resume(job("j"), resume).await.unwrap();
    leader.requests(|all| all.control.values().any(|entry| entry.record.resume.is_some())).await;
    leader.read_job("j").await;
    let write = SkipWrite { at: None, skip: leader.skip("j", 60, SkipReason::Paused), links: Vec::new() };
    let lift = |control| Change::Resume {
        job: job("j"),
        control: Version(control),
        mark: Some((Some(Version(1)), mark(60, "2"))),
        skip: Some(write.clone()),
    };
    assert_eq!(leader.commit(lift(0)).await, Commit::Superseded);
    assert_eq!(leader.history("j").await, [], "a refused change writes nothing");
    leader.read_job("j").await;
    assert_eq!(leader.commit(lift(1)).await, Commit::Accepted);
    assert_eq!(leader.history("j").await, [HistoryRecord::Skip(write.skip.clone())]);
}

async fn the_leader_receives_a_pause_and_ends_it_when_asked_to(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    leader.mark("j").await;
    let operator = follower.operator();
    operator.pause(job("j"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    operator.pause(job("j"), Uuid::from_u128(2), pause("more disks")).await.unwrap();
    let is_second = |version| version == Version(1);
    let requests = leader.requests(|all| all.control.values().any(|entry| is_second(entry.version))).await;
    let control = &requests.control[&job("j")];
    assert_eq!((control.record.id, &control.record.paused), (Uuid::from_u128(1), &pause("more disks")));
    let resume = Resume { by: "bob".into(), at: Timestamp::UNIX_EPOCH };
    let id = operator.request_resume(job("j"), resume.clone()).await;
    assert_eq!(id, Ok(Some(Uuid::from_u128(1))));
    leader.requests(|all| all.control.values().any(|entry| entry.record.resume.is_some())).await;
    let lift = |control| Change::Resume {
        job: job("j"),
        control: Version(control),
        mark: Some((Some(Version(2)), mark(120, "2"))),
        skip: None,
    };
    assert_eq!(leader.commit(lift(1)).await, Commit::Superseded);
    leader.read_job("j").await;
    let resumed = operator.resumed(job("j"), Uuid::from_u128(1));
    let (resumed, answer) = futures_util::join!(resumed, leader.commit(lift(2)));
    assert_eq!((resumed, answer), (Ok(()), Commit::Accepted));
    assert_eq!(operator.request_resume(job("j"), resume).await, Ok(None));
}

async fn the_next_leader_finds_a_pause(mut cluster: Cluster) {
    let (leader, mut follower) = two(&mut cluster).await;
    follower.operator().pause(job("j"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    leader.crash();
    let (_, snapshot) = follower.elected().await;
    assert_eq!(snapshot.requests.control[&job("j")].record.paused, pause("disks"));
}

async fn a_trigger_leads_to_one_run_and_its_end_is_reported(mut cluster: Cluster) {
    let mut leader = cluster.leader("a").await;
    let operator = leader.operator();
    let id = operator.trigger(request("j", 7)).await.unwrap();
    assert_eq!(operator.trigger(request("j", 7)).await, Ok(id.clone()), "the same request again");
    let seq = id.trigger().expect("the run is triggered");
    let requests = leader.requests(|requests| requests.triggers.contains_key(&seq)).await;
    assert_eq!((requests.triggers.len(), requests.triggers[&seq].is_in_history), (1, false));
    assert_eq!(requests.triggers[&seq].record, request("j", 7));
    let run = RunRecord { trigger: Some(request("j", 7).numbered(seq)), ..leader.run("j", 60) };
    assert_eq!(run.id(), id);
    assert_eq!(leader.commit(Change::BeginTriggered { run: run.clone() }).await, Commit::Accepted);
    assert_eq!(leader.commit(Change::BeginTriggered { run: run.clone() }).await, Commit::Superseded);
    assert_eq!(operator.trigger(request("j", 7)).await, Ok(id.clone()), "it runs");
    let (followed, answer) = futures_util::join!(operator.followed(id.clone()), leader.commit(end(0, &run)));
    let ended = Followed::Ended(Box::new(HistoryRecord::Run(success(&run))));
    assert_eq!((followed, answer), (Ok(ended), Commit::Accepted));
    assert_eq!(operator.trigger(request("j", 7)).await, Ok(id.clone()), "it has ended");
    assert_eq!(operator.triggered(job("j"), request("j", 7).uuid).await, Ok(Some(id.clone())));
    assert_eq!(operator.triggered(job("j"), request("j", 8).uuid).await, Ok(None));
    let other = operator.trigger(request("j", 8)).await.unwrap();
    assert!(other.trigger() > id.trigger(), "numbers are never used again");
}

async fn a_skipped_trigger_is_reported_and_its_uuid_stays_known(mut cluster: Cluster) {
    let mut leader = cluster.leader("a").await;
    let operator = leader.operator();
    let id = operator.trigger(request("j", 7)).await.unwrap();
    let seq = id.trigger().expect("the run is triggered");
    let mut skip = leader.skip("j", 60, SkipReason::Overlap);
    skip.trigger = Some(request("j", 7).numbered(seq));
    let change = Change::DropTrigger { job: job("j"), seq, skip: Some(skip.clone()), links: Vec::new() };
    assert_eq!(leader.commit(change.clone()).await, Commit::Accepted);
    assert_eq!(leader.commit(change).await, Commit::Superseded);
    let expected = Followed::Ended(Box::new(HistoryRecord::Skip(skip)));
    assert_eq!(operator.followed(id.clone()).await, Ok(expected));
    assert_eq!(operator.trigger(request("j", 7)).await, Ok(id));
}

async fn a_kill_request_is_in_the_runs_record_and_only_force_replaces_it(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    let run = leader.begin("j", 60).await;
    let operator = follower.operator();
    let ask = |by: &str, force| KillRequest { reason: Reason::Operator, by: by.into(), at: run.begun_at, force };
    let found = async |expected: &str| {
        let snapshot = follower.reader().snapshot().await.expect("the ledger can be read");
        let kill = snapshot.running[0].record.kill.as_ref().expect("it is to end");
        assert_eq!(kill.by, expected);
    };
    assert_eq!(operator.kill(run.id(), ask("alice", false)).await, Ok(Some(RunState::Running)));
    found("alice").await;
    assert_eq!(operator.kill(run.id(), ask("bob", false)).await, Ok(Some(RunState::Running)));
    found("alice").await;
    assert_eq!(operator.kill(run.id(), ask("carol", true)).await, Ok(Some(RunState::Running)));
    found("carol").await;
    assert_eq!(operator.kill(run_id("other", 60), ask("alice", true)).await, Ok(None));
    assert_eq!(leader.commit(first_mark("the-term-goes-on", "1")).await, Commit::Accepted);
}

async fn a_run_that_nobody_knows_of_is_gone(mut cluster: Cluster) {
    let (_leader, follower) = two(&mut cluster).await;
    assert_eq!(follower.operator().followed(run_id("j", 60)).await, Ok(Followed::Gone));
}

fn drain(reason: &str) -> Drain {
    Drain { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()) }
}

/// Waits until a node has received this.
async fn wanted<T>(node: &mut Node, mut wanted: impl FnMut(&NodeControl) -> Option<T>) -> T {
    node.election("what is wanted", |event| match event {
        Event::Wanted(control) => wanted(control),
        _ => None,
    })
    .await
}

async fn a_drained_node_is_told_so_before_it_could_join_and_joins_once_it_is_not(mut cluster: Cluster) {
    let leader = cluster.leader("a").await;
    let operator = leader.operator();
    assert_eq!(operator.drain(NodeName::new("b"), drain("disks")).await.unwrap(), None, "it is not alive yet");
    let mut drained = cluster.start("b").await;
    drained.ask(Request::Campaign);
    assert_eq!(wanted(&mut drained, |control| control.drained.clone()).await, drain("disks"));
    assert!(!drained.seen_election(|event| matches!(event, Event::Joined { .. })));
    assert_eq!(leader.queue().await, [NodeName::new("a")]);
    assert_eq!(operator.undrain(NodeName::new("b")).await.unwrap(), Some(drain("disks")));
    drained.following(Some("a")).await;
    assert_eq!(operator.undrain(NodeName::new("b")).await.unwrap(), None);
}

async fn a_leader_is_told_that_it_is_drained_and_who_else_is(mut cluster: Cluster) {
    let (mut leader, mut follower) = two(&mut cluster).await;
    let operator = follower.operator();
    operator.drain(NodeName::new("a"), drain("disks")).await.unwrap();
    let replaced = operator.drain(NodeName::new("a"), drain("cables")).await.unwrap();
    assert_eq!(replaced, Some(drain("disks")));
    wanted(&mut leader, |control| (control.drained == Some(drain("cables"))).then_some(())).await;
    let read = follower.reader().queue().await.unwrap();
    assert_eq!(read.drained, [(NodeName::new("a"), drain("cables"))].into());
    // To resign is the daemon's part; it stays a member.
    leader.ask(Request::Resign);
    leader.over().await;
    follower.elected().await;
    leader.ask(Request::Campaign);
    assert_eq!(follower.queue().await, [NodeName::new("b")]);
    operator.undrain(NodeName::new("a")).await.unwrap();
    leader.following(Some("b")).await;
}

async fn a_handover_is_requested_of_the_leader_by_its_candidate(mut cluster: Cluster) {
    let (mut leader, term, _) = cluster.leading("a").await;
    let follower = cluster.follower("b", "a").await;
    let request = HandoverRequest {
        id: Uuid::from_u128(1),
        candidate: term.candidate,
        to: Some(NodeName::new("b")),
        by: "alice".into(),
        at: Timestamp::UNIX_EPOCH,
    };
    follower.operator().request_handover(NodeName::new("a"), request.clone()).await.unwrap();
    assert_eq!(wanted(&mut leader, |control| control.handover.clone()).await, request);
}

async fn many_jobs_are_paused_and_resumed_together(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    leader.mark("j0").await;
    let operator = follower.operator();
    operator.pause(job("j7"), Uuid::from_u128(7), pause("disks")).await.unwrap();
    let jobs: Vec<_> = (0..120).map(|n| job(&format!("j{n}"))).collect();
    let asked = jobs.iter().map(|job| (job.clone(), Uuid::new_v4())).collect();
    let each = operator.pause_all(asked, pause("night")).await.unwrap();
    let replaced: Vec<_> = each.done.iter().filter(|(_, was)| was.is_some()).collect();
    assert_eq!((each.done.len(), replaced), (120, vec![(&job("j7"), &Some(pause("disks")))]));
    leader.requests(|requests| requests.control.len() == 120).await;
    let run = leader.run("j0", 60);
    assert_eq!(leader.commit(begin(0, &run)).await, Commit::Superseded, "its record was touched");
    let paused = operator.pauses().await.unwrap();
    assert_eq!((paused.len(), &paused[&job("j0")].record.paused), (120, &pause("night")));
    let resume = Resume { by: "bob".into(), at: Timestamp::UNIX_EPOCH };
    let each = operator.request_resumes([jobs, vec![job("other")]].concat(), resume).await.unwrap();
    assert_eq!((each.done.len(), each.done[&job("other")]), (121, None));
    let is_asked = |requests: &OperatorRequests| requests.control.values().all(|entry| entry.record.resume.is_some());
    leader.requests(is_asked).await;
}

fn recount(second: i64, history_limit: usize) -> RecountRequest {
    RecountRequest { id: Uuid::from_u128(1), by: "alice".into(), at: at(second), history_limit }
}

/// A run has ended at 10,000, and another is in flight there.
async fn a_job_is_recounted_and_the_leader_is_notified(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    let ended = leader.begin("j", 10_000).await;
    leader.end(&ended).await;
    let in_flight = leader.run("j", 10_060);
    assert_eq!(leader.commit(begin(1, &in_flight)).await, Commit::Accepted);
    let operator = follower.operator();
    let refused = operator.recount(job("j"), recount(1_000, 1)).await.unwrap();
    assert!(matches!(refused, Err(NotRecounted::Trimmed { .. })), "{refused:?}");
    let done = operator.recount(job("j"), recount(1_000, 20)).await.unwrap().unwrap();
    assert_eq!((done.from, &done.listed), (at(1_000), &vec![at(10_000), at(10_060)]));
    assert_eq!(done.in_flight, [in_flight.id()]);
    leader.requests(|_| true).await;
    let late = leader.run("j", 10_120);
    assert_eq!(leader.commit(begin(2, &late)).await, Commit::Superseded, "it does not know of the recount");
    let (entry, control) = leader.read_job("j").await;
    let entry = entry.unwrap();
    let record = entry.record.unwrap();
    assert_eq!((entry.version, control), (Version(3), None));
    assert_eq!((record.last_scheduled, record.count()), (at(10_060), at(1_000)));
    assert_eq!(
        record.fresh_recount().map(|recount| (&recount.listed, recount.until)),
        Some((&done.listed, at(10_060)))
    );
    let again = operator.recount(job("j"), recount(1_000, 20)).await.unwrap();
    assert_eq!(again, Err(NotRecounted::NotAhead(at(1_000))));
}

async fn a_job_that_needs_no_recount_is_left_as_it_is(mut cluster: Cluster) {
    let (mut leader, follower) = two(&mut cluster).await;
    let operator = follower.operator();
    assert_eq!(operator.recount(job("j"), recount(1_000, 20)).await.unwrap(), Err(NotRecounted::Uncounted));
    let run = leader.begin("j", 60).await;
    let refused = operator.recount(job("j"), recount(1_000, 20)).await.unwrap();
    assert_eq!(refused, Err(NotRecounted::NotAhead(at(60))));
    leader.end(&run).await;
    let next = leader.run("j", 120);
    assert_eq!(leader.commit(begin(1, &next)).await, Commit::Accepted, "nothing has changed its record");
}
