//! Attempts that the leader places on nodes: who is notified of them, and who may write what becomes of them.

use std::collections::BTreeSet;

use cronkeeper_core::coordination;
use cronkeeper_core::election::{Event as ElectionEvent, Member, Request};
use cronkeeper_core::job::Digest;
use cronkeeper_core::ledger::{Change, Commit, Event, Followed, ForgetNode, Request as LedgerRequest};
use cronkeeper_core::run::{
    Owner, Placement, Refusal, RefusalReason, RunId, RunRecord, RunState, TriggerRecord, Version,
};
use cronkeeper_core::term::{FencingToken, NodeName};
use uuid::Uuid;

use super::cluster::{Cluster, Node};
use crate::port::records::{at, begin, end, job};

on_every_cluster! {
    of_an_acceptance_and_a_taking_back_one_is_written,
    an_acceptance_counts_only_under_the_nodes_own_session,
    a_placed_attempt_is_accepted_once_and_by_a_node_that_does_not_lead,
    an_attempt_that_was_accepted_later_has_a_larger_token,
    an_offer_is_delivered_to_its_node_and_to_no_other,
    an_offer_waits_for_the_next_session_of_its_node,
    an_attempt_that_is_placed_again_where_it_was_is_offered_again,
    a_refusal_reaches_the_leader,
    the_end_of_an_awaited_run_reaches_the_leader,
    shares_replace_their_run_in_one_commit,
    a_share_that_is_there_or_has_ended_prevents_the_others,
    a_triggered_run_is_followed_to_its_shares_and_keeps_its_id,
    places_of_nodes_that_are_away_are_known,
    a_node_that_is_gone_is_forgotten_and_one_that_is_alive_is_not,
    each_term_begins_with_the_places_and_then_the_members,
    a_node_that_leaves_because_it_was_asked_to_is_distinguished_from_one_that_dies,
}

/// An attempt of a run that this leader places on a node.
fn placed(leader: &Node, on: &Node, job: &str) -> RunRecord {
    let placement = Placement { is_awaited: true, ..Placement::new(Digest::of(b"jobs")) };
    let run = leader.run(job, 60);
    RunRecord { state: RunState::Placed, owner: on.owner(), placement: Some(Box::new(placement)), ..run }
        .in_its_format()
}

async fn place(leader: &mut Node, on: &Node, job: &str) -> RunRecord {
    let run = placed(leader, on, job);
    leader.mark(job).await;
    assert_eq!(leader.commit(begin(0, &run)).await, Commit::Accepted);
    run
}

fn running(run: &RunRecord, by: &Node) -> RunRecord {
    RunRecord { state: RunState::Running, owner: by.owner(), ..run.clone() }
}

fn accept(run: &RunRecord, by: &Node) -> Change {
    Change::Accept { at: Version::FIRST, run: running(run, by) }
}

/// The answer to the node's acceptance of a placed run.
async fn accepts(node: &mut Node, run: &RunRecord) -> Commit {
    let change = accept(run, node);
    node.commit(change).await
}

/// Ends a run that the node has accepted.
async fn ends(node: &mut Node, run: &RunRecord) {
    let change = end(1, &running(run, node));
    assert_eq!(node.commit(change).await, Commit::Accepted);
}

/// Waits until the node is notified that these runs, and no others, are offered. Returns the records that come with it.
async fn offered(node: &mut Node, runs: &[&RunRecord]) -> Vec<(RunRecord, Version)> {
    let wanted: BTreeSet<RunId> = runs.iter().map(|run| run.id()).collect();
    let of = |event: &Event| match event {
        Event::Offers { listed, found } if *listed == wanted => Some(found.clone()),
        _ => None,
    };
    node.ledger("the offers", of).await
}

async fn open_offers(node: &mut Node, of: &'static str) -> BTreeSet<RunId> {
    node.ask_ledger(LedgerRequest::ReadOpenOffers(NodeName::new(of)));
    node.ledger("the open offers", |event| match event {
        Event::OpenOffers(node, open) if *node == NodeName::new(of) => Some(open.clone()),
        _ => None,
    })
    .await
}

async fn of_an_acceptance_and_a_taking_back_one_is_written(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    let taken = RunRecord { state: RunState::Unstarted, ..run.clone() };
    let take_back = Change::UpdateRun { at: Version::FIRST, run: taken, taken_from: Some(NodeName::new("b")) };
    let acceptance = accept(&run, &b);
    let ids = (b.request(acceptance), a.request(take_back));
    let answers = [b.answer(ids.0).await, a.answer(ids.1).await];
    assert!(answers.contains(&Commit::Accepted) && answers.contains(&Commit::Superseded), "{answers:?}");
    while !open_offers(&mut a, "b").await.is_empty() {}
}

async fn an_acceptance_counts_only_under_the_nodes_own_session(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    let before = accept(&run, &b);
    b.crash();
    let mut b = cluster.start("b").await;
    assert_eq!(b.commit(before).await, Commit::Superseded);
    assert_eq!(accepts(&mut b, &run).await, Commit::Accepted);
}

async fn a_placed_attempt_is_accepted_once_and_by_a_node_that_does_not_lead(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    assert_eq!(accepts(&mut b, &run).await, Commit::Accepted);
    let again = RunRecord { attempt: 2, ..running(&run, &b) };
    assert_eq!(b.commit(Change::Accept { at: Version::FIRST, run: again }).await, Commit::Superseded);
    ends(&mut b, &run).await;
    while !open_offers(&mut a, "b").await.is_empty() {}
}

async fn an_attempt_that_was_accepted_later_has_a_larger_token(mut cluster: Cluster) {
    let (mut a, term, _) = cluster.leading("a").await;
    let mut b = cluster.follower("b", "a").await;
    let mut tokens = vec![term.token];
    for job in ["j", "k"] {
        let run = place(&mut a, &b, job).await;
        tokens.push(accepted_token(&mut b, &run).await);
    }
    let own = place(&mut a, &b, "l").await;
    let own = RunRecord { owner: a.owner(), ..own };
    tokens.push(accepted_token(&mut a, &own).await);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

async fn accepted_token(node: &mut Node, run: &RunRecord) -> FencingToken {
    let change = accept(run, node);
    let id = node.request(change);
    let (answer, token) = node.answer_with_token(id).await;
    assert_eq!(answer, Commit::Accepted);
    token.expect("its answer was not lost")
}

async fn an_offer_is_delivered_to_its_node_and_to_no_other(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let mut c = cluster.follower("c", "b").await;
    let of_b = place(&mut a, &b, "j").await;
    assert_eq!(offered(&mut b, &[&of_b]).await, [(of_b.clone(), Version::FIRST)]);
    let of_c = place(&mut a, &c, "k").await;
    assert_eq!(offered(&mut c, &[&of_c]).await, [(of_c.clone(), Version::FIRST)]);
    assert_eq!(open_offers(&mut a, "b").await, [of_b.id()].into());
    let is_of_b = |event: &coordination::Event| match event {
        coordination::Event::Ledger(Event::Offers { listed, .. }) => listed.contains(&of_b.id()),
        _ => false,
    };
    assert!(!c.seen.iter().any(is_of_b));
}

async fn an_offer_waits_for_the_next_session_of_its_node(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    b.crash();
    let mut b = cluster.start("b").await;
    assert_eq!(offered(&mut b, &[&run]).await, [(run, Version::FIRST)]);
}

async fn an_attempt_that_is_placed_again_where_it_was_is_offered_again(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    offered(&mut b, &[&run]).await;
    let next = RunRecord { attempt: 2, ..run.clone() };
    let change = Change::UpdateRun { at: Version::FIRST, run: next.clone(), taken_from: Some(NodeName::new("b")) };
    assert_eq!(a.commit(change).await, Commit::Accepted);
    let found = |event: &Event| match event {
        Event::Offers { found, .. } => found.contains(&(next.clone(), Version(1))).then_some(()),
        _ => None,
    };
    b.ledger("the next attempt", found).await;
    assert_eq!(accepts(&mut b, &run).await, Commit::Superseded);
}

async fn a_refusal_reaches_the_leader(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    a.ask_ledger(LedgerRequest::Follow(run.id()));
    let mut refused = RunRecord { state: RunState::Unstarted, ..run.clone() };
    let refusal = Refusal { node: NodeName::new("b"), reason: RefusalReason::Labels, digest: None };
    refused.placement.as_mut().expect("it is placed").refused = Some(refusal);
    assert_eq!(b.commit(Change::Refuse { at: Version::FIRST, run: refused.clone() }).await, Commit::Accepted);
    // It may have been read before.
    while a.run_event(&run.id()).await != Some((refused.clone(), Version(1))) {}
    while !open_offers(&mut a, "b").await.is_empty() {}
}

async fn the_end_of_an_awaited_run_reaches_the_leader(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let run = place(&mut a, &b, "j").await;
    assert_eq!(accepts(&mut b, &run).await, Commit::Accepted);
    a.ask_ledger(LedgerRequest::Follow(run.id()));
    ends(&mut b, &run).await;
    while a.run_event(&run.id()).await.is_some() {}
}

async fn places_of_nodes_that_are_away_are_known(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let b = cluster.follower("b", "a").await;
    let of_b = NodeName::new("b");
    let knows = |event: &ElectionEvent| match event {
        ElectionEvent::Places(places) => places.get(&of_b).cloned(),
        _ => None,
    };
    let place = a.election("the places", knows).await;
    assert_eq!(place.v, 1);
    b.crash();
    let mut c = cluster.start("c").await;
    c.ask(Request::Campaign);
    a.ask(Request::Leave);
    c.elected().await;
    assert_eq!(c.election("the places", knows).await, place);
}

async fn a_node_that_is_gone_is_forgotten_and_one_that_is_alive_is_not(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let b = cluster.follower("b", "a").await;
    let of_b = NodeName::new("b");
    let has_b = |wanted: bool| {
        let of_b = of_b.clone();
        move |event: &ElectionEvent| match event {
            ElectionEvent::Places(places) => (places.contains_key(&of_b) == wanted).then_some(()),
            _ => None,
        }
    };
    a.election("the places", has_b(true)).await;
    let operator = a.operator();
    assert_eq!(operator.forget_node(of_b.clone()).await.unwrap(), ForgetNode::Alive);
    assert_eq!(operator.forget_node(NodeName::new("c")).await.unwrap(), ForgetNode::Unknown);
    b.crash();
    let is_gone = |event: &ElectionEvent| match event {
        ElectionEvent::Members(members) => members.iter().all(|member| member.node != of_b).then_some(()),
        _ => None,
    };
    a.election("the members", is_gone).await;
    assert_eq!(operator.forget_node(of_b.clone()).await.unwrap(), ForgetNode::Forgotten);
    a.election("the places", has_b(false)).await;
    assert_eq!(operator.forget_node(of_b.clone()).await.unwrap(), ForgetNode::Unknown);
    let b = cluster.start("b").await;
    b.ask(Request::Campaign);
    a.election("the places", has_b(true)).await;
}

async fn each_term_begins_with_the_places_and_then_the_members(mut cluster: Cluster) {
    let (mut a, ..) = cluster.leading("a").await;
    for _ in 0..2 {
        let first = |event: &ElectionEvent| match event {
            ElectionEvent::Places(places) => Some(places.contains_key(&NodeName::new("a"))),
            ElectionEvent::Members(_) => panic!("the places come first"),
            _ => None,
        };
        a.election("the places", first).await;
        let session = a.owner().session;
        let own = |event: &ElectionEvent| match event {
            ElectionEvent::Members(members) => members.iter().find_map(|member| member.session.clone()),
            _ => None,
        };
        assert_eq!(a.election("the members", own).await, session);
        a.ask(Request::Resign);
        a.over().await;
        a.ask(Request::Campaign);
        a.elected().await;
    }
}

async fn a_node_that_leaves_because_it_was_asked_to_is_distinguished_from_one_that_dies(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let of_b = NodeName::new("b");
    let has_b = |members: &[Member]| members.iter().any(|member| member.node == of_b);
    for is_asked in [true, false, true] {
        let b = cluster.follower("b", "a").await;
        let is_seen = |event: &ElectionEvent| match event {
            ElectionEvent::Members(members) => has_b(members).then_some(()),
            _ => None,
        };
        a.election("the members with b", is_seen).await;
        if is_asked {
            b.ask(Request::Leave)
        } else {
            b.crash()
        }
        let is_gone = |event: &ElectionEvent| match event {
            ElectionEvent::Stopped(node) => (*node == of_b).then_some(true),
            ElectionEvent::Members(members) => (!has_b(members)).then_some(false),
            _ => None,
        };
        assert_eq!(a.election("the end of b", is_gone).await, is_asked, "it is said before the members are without it");
    }
}

/// A run that is to be shared out among these nodes.
async fn to_share(leader: &mut Node, job: &str, nodes: &[NodeName]) -> RunRecord {
    let share_among = Some(Box::new(nodes.iter().cloned().collect()));
    let run = RunRecord { state: RunState::Queued, attempt: 0, share_among, ..leader.run(job, 60) }.in_its_format();
    leader.mark(job).await;
    assert_eq!(leader.commit(begin(0, &run)).await, Commit::Accepted);
    run
}

/// The share of the node, placed there.
fn share(run: &RunRecord, leader: &Node, owner: Owner) -> RunRecord {
    let placement = Some(Box::new(Placement::new(Digest::of(b"jobs"))));
    let on = Some(owner.node.clone());
    let state = RunState::Placed;
    RunRecord { on, share_among: None, state, owner, attempt: 1, placement, ..leader.run(run.job.as_str(), 60) }
        .in_its_format()
}

async fn shares_replace_their_run_in_one_commit(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    // As many as a leader gives out at once.
    let others = (0..18).map(|number| Owner { node: NodeName::new(format!("n{number}")), ..b.owner() });
    let owners: Vec<Owner> = [a.owner(), b.owner()].into_iter().chain(others).collect();
    let nodes: Vec<NodeName> = owners.iter().map(|owner| owner.node.clone()).collect();
    let run = to_share(&mut a, "j", &nodes).await;
    let shares: Vec<RunRecord> = owners.into_iter().map(|owner| share(&run, &a, owner)).collect();
    let change =
        Change::ShareOut { at: Version::FIRST, run: run.id(), rest: None, shares: shares.clone(), skips: Vec::new() };
    assert_eq!(a.commit(change).await, Commit::Accepted);
    assert_eq!(offered(&mut a, &[&shares[0]]).await, [(shares[0].clone(), Version::FIRST)]);
    assert_eq!(offered(&mut b, &[&shares[1]]).await, [(shares[1].clone(), Version::FIRST)]);
    assert_eq!(accepts(&mut b, &shares[1]).await, Commit::Accepted);
    assert_eq!(read(&mut a, &run).await, None, "its shares have replaced it");
}

async fn a_share_that_is_there_or_has_ended_prevents_the_others(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let nodes = [a.owner().node, b.owner().node];
    let run = to_share(&mut a, "j", &nodes).await;
    let (of_a, of_b) = (share(&run, &a, a.owner()), share(&run, &a, b.owner()));
    let rest = RunRecord { share_among: Some(Box::new([b.owner().node].into())), ..run.clone() };
    let give = |at, rest: Option<&RunRecord>, shares: &[&RunRecord]| Change::ShareOut {
        at: Version(at),
        run: run.id(),
        rest: rest.map(|rest| Box::new(rest.clone())),
        shares: shares.iter().map(|&share| share.clone()).collect(),
        skips: Vec::new(),
    };
    assert_eq!(a.commit(give(0, Some(&rest), &[&of_a])).await, Commit::Accepted);
    assert_eq!(a.commit(give(1, None, &[&of_a, &of_b])).await, Commit::Superseded, "it is in flight");
    assert_eq!(accepts(&mut a, &of_a).await, Commit::Accepted);
    ends(&mut a, &of_a).await;
    assert_eq!(a.commit(give(1, None, &[&of_a, &of_b])).await, Commit::Superseded, "it has ended");
    assert_eq!(read(&mut a, &run).await.map(|(record, _)| record.share_among), Some(rest.share_among.clone()));
    assert_eq!(a.commit(give(1, None, &[&of_b])).await, Commit::Accepted);
    assert_eq!(offered(&mut b, &[&of_b]).await, [(of_b.clone(), Version::FIRST)]);
}

async fn a_triggered_run_is_followed_to_its_shares_and_keeps_its_id(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let operator = b.operator();
    let request = TriggerRecord::new(Uuid::from_u128(7), job("j"), "alice".into(), at(60));
    let id = operator.trigger(request.clone()).await.unwrap();
    let trigger = Some(request.numbered(id.trigger().expect("it is triggered")));
    let nodes = [a.owner().node, b.owner().node];
    let share_among = Some(Box::new(nodes.iter().cloned().collect()));
    let run = RunRecord { state: RunState::Queued, attempt: 0, share_among, ..a.run("j", 60) };
    let run = RunRecord { trigger: trigger.clone(), ..run }.in_its_format();
    assert_eq!((run.id(), a.commit(Change::BeginTriggered { run: run.clone() }).await), (id.clone(), Commit::Accepted));
    let shares = [a.owner(), b.owner()].map(|owner| RunRecord { trigger: trigger.clone(), ..share(&run, &a, owner) });
    let shares_out =
        Change::ShareOut { at: Version::FIRST, run: run.id(), rest: None, shares: shares.to_vec(), skips: Vec::new() };
    let (followed, answer) = futures_util::join!(operator.followed(id.clone()), a.commit(shares_out));
    let ids = Followed::Shared(shares.iter().map(RunRecord::id).collect());
    assert_eq!((followed, answer), (Ok(ids.clone()), Commit::Accepted));
    assert_eq!(operator.trigger(request.clone()).await, Ok(id.clone()), "they are in flight");
    for (node, share) in [(&mut a, &shares[0]), (&mut b, &shares[1])] {
        assert_eq!(accepts(node, share).await, Commit::Accepted);
        ends(node, share).await;
        assert_eq!(operator.followed(id.clone()).await, Ok(ids.clone()), "whether in flight or ended");
    }
    assert_eq!(operator.trigger(request).await, Ok(id), "they have ended");
    assert!(matches!(operator.followed(shares[0].id()).await, Ok(Followed::Ended(_))));
}

/// The record of the run, as the ledger has it now.
async fn read(node: &mut Node, run: &RunRecord) -> Option<(RunRecord, Version)> {
    let id = run.id();
    node.ask_ledger(LedgerRequest::ReadRun(id.clone()));
    node.ledger("the run", |event| match event {
        Event::Run(run, found) if *run == id => Some(found.clone()),
        _ => None,
    })
    .await
}
