//! What the view shows of the election, other nodes and drains.

use super::*;
use crate::status::sample;
use cronkeeper_core::run::NodeControl;
use cronkeeper_core::term::SessionId;

const NOW: Now = Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::ZERO };

fn view() -> (View, Engine) {
    let (node, jobs) = (NodeName::new("host-a"), JobSet::default());
    (View::new(node.clone(), "zookeeper", "jobs.yaml".into(), &jobs, NOW), Engine::new(node, jobs))
}

#[test]
fn the_summary_shows_what_the_node_waits_for_and_that_the_jobs_file_is_invalid() {
    let (mut view, engine) = view();
    assert_eq!(view.summary(&engine), "waiting for a session with zookeeper");
    view.reloaded(NOW, &Err(LoadError::Invalid { problems: Vec::new(), warnings: Vec::new() }));
    let expected = "waiting for a session with zookeeper; the jobs file is INVALID, keeping the jobs loaded before";
    assert_eq!(view.summary(&engine), expected);
}

#[test]
fn a_node_without_term_and_runs_shows_no_lease() {
    let (mut view, engine) = view();
    let session = Election::Session { id: SessionId("1".into()), timeout: std::time::Duration::from_secs(10) };
    view.elected(NOW, &session, engine.jobs());
    view.lease(Uptime::ZERO);
    assert_eq!(view.lease_until(&engine), None);
}

#[test]
fn a_leader_whose_lease_ends_without_a_connection_waits_for_the_connection() {
    let (mut view, engine) = view();
    let session = Election::Session { id: SessionId("1".into()), timeout: std::time::Duration::from_secs(10) };
    view.elected(NOW, &session, engine.jobs());
    let session = SessionId("1".into());
    for (error, awaited) in [
        (None, "the connection to zookeeper"),
        (Some("it is full".to_owned()), "the connection to zookeeper: it is full"),
    ] {
        for event in [Election::Suspended { session: session.clone(), error }, Election::Withdrawn] {
            view.elected(NOW, &event, engine.jobs());
            assert_eq!(view.status(NOW, &engine).awaiting.as_deref(), Some(awaited));
        }
    }
    view.elected(NOW, &Election::Resumed { session }, engine.jobs());
    assert_eq!(view.status(NOW, &engine).awaiting.as_deref(), Some(QUEUE_POSITION));
}

#[test]
fn a_node_without_a_connection_knows_who_led_and_since_when_it_does_not_know_who_leads() {
    let (mut view, engine) = view();
    let id = SessionId("1".into());
    let candidate = |name: &str| cronkeeper_core::term::CandidateName(name.into());
    let following = Election::Following {
        candidate: candidate("b"),
        predecessor: candidate("a"),
        predecessor_node: None,
        leader_node: Some(NodeName::new("host-b")),
    };
    let timeout = std::time::Duration::from_secs(10);
    for event in [Election::Session { id: id.clone(), timeout }, following.clone()] {
        view.elected(NOW, &event, engine.jobs());
    }
    let later = Now { wall: NOW.wall + std::time::Duration::from_secs(5), ..NOW };
    view.elected(later, &Election::Suspended { session: id.clone(), error: None }, engine.jobs());
    let even_later = Now { wall: later.wall + std::time::Duration::from_secs(5), ..NOW };
    view.elected(even_later, &Election::Expired { session: id.clone() }, engine.jobs());
    let role = view.status(even_later, &engine).role;
    let last = LastLeader { node: NodeName::new("host-b"), unknown_since: later.wall };
    assert_eq!((role.leader_node, role.last_leader), (None, Some(last)));
    for event in [Election::Session { id, timeout }, following] {
        view.elected(even_later, &event, engine.jobs());
    }
    let role = view.status(even_later, &engine).role;
    assert_eq!((role.leader_node, role.last_leader), (Some(NodeName::new("host-b")), None));
}

fn following(predecessor: &str, leader: &str) -> Election {
    let candidate = |name: &str| cronkeeper_core::term::CandidateName(name.into());
    Election::Following {
        candidate: candidate("own"),
        predecessor: candidate(predecessor),
        predecessor_node: Some(NodeName::new(predecessor)),
        leader_node: Some(NodeName::new(leader)),
    }
}

#[test]
fn a_node_that_is_first_shows_nobody_as_the_leader_until_it_leads() {
    let (mut view, engine) = view();
    let session = Election::Session { id: SessionId("1".into()), timeout: Duration::from_secs(10) };
    for event in [session, following("host-b", "host-b")] {
        view.elected(NOW, &event, engine.jobs());
    }
    assert_eq!(view.summary(&engine), "following, the leader is host-b");
    view.elected(NOW, &Election::First, engine.jobs());
    let role = view.status(NOW, &engine).role;
    let last = LastLeader { node: NodeName::new("host-b"), unknown_since: NOW.wall };
    assert_eq!((role.leader_node, role.last_leader), (None, Some(last)), "its entry is gone");
    assert_eq!((view.summary(&engine), view.seen().leader), ("following, no node leads now".into(), None));
    view.elected(NOW, &elected(), engine.jobs());
    assert_eq!(view.led_before(), Some(&NodeName::new("host-b")));
    assert_eq!(view.status(NOW, &engine).role.leader_node, Some(NodeName::new("host-a")));
}

#[test]
fn a_node_that_never_leads_is_ready_once_it_has_looked_who_does_unless_it_is_drained() {
    let (mut view, engine) = view();
    view.never_leads();
    let (id, timeout) = (SessionId("1".into()), Duration::from_secs(10));
    view.elected(NOW, &Election::Session { id: id.clone(), timeout }, engine.jobs());
    assert!(!view.status(NOW, &engine).ready);
    let observing = |leader: Option<&str>| Election::Observing { leader_node: leader.map(NodeName::new) };
    view.elected(NOW, &observing(None), engine.jobs());
    assert_eq!(view.summary(&engine), "never leads, and no other node leads now");
    view.elected(NOW, &observing(Some("host-b")), engine.jobs());
    assert_eq!(view.summary(&engine), "never leads, the leader is host-b");
    let facts = |status: Status| (status.state, status.ready, status.role.leader_node.is_some());
    assert_eq!(facts(view.status(NOW, &engine)), (NodeState::Following, true, true));
    for event in [Election::Suspended { session: id.clone(), error: None }, Election::Resumed { session: id }] {
        view.elected(NOW, &event, engine.jobs());
    }
    assert_eq!(facts(view.status(NOW, &engine)), (NodeState::Following, true, true));
    let drain = sample::drained("host-a").into_values().next();
    for event in [Election::Wanted(NodeControl { drained: drain, ..NodeControl::default() }), Election::Withdrawn] {
        view.elected(NOW, &event, engine.jobs());
    }
    assert_eq!(facts(view.status(NOW, &engine)), (NodeState::Drained, false, true));
}

fn elected() -> Election {
    let candidate = cronkeeper_core::term::CandidateName("own".into());
    let term = cronkeeper_core::term::Term { token: cronkeeper_core::term::FencingToken(1), candidate };
    Election::Elected { term, lease_until: Uptime::NEVER, snapshot: Box::default(), took: Duration::ZERO }
}

#[test]
fn a_leader_says_after_whom_it_leads() {
    let (mut view, engine) = view();
    let session = Election::Session { id: SessionId("1".into()), timeout: Duration::from_secs(10) };
    for event in [session.clone(), following("host-b", "host-c"), elected()] {
        view.elected(NOW, &event, engine.jobs());
    }
    assert_eq!(view.led_before(), None, "host-b may have left without a term of its own, as for a handover");
    let expired = Election::Expired { session: SessionId("1".into()) };
    for event in [expired.clone(), session.clone(), elected()] {
        view.elected(NOW, &event, engine.jobs());
    }
    assert_eq!(view.led_before(), None, "it led itself");
    for event in [following("host-b", "host-b"), expired, session, elected()] {
        view.elected(NOW, &event, engine.jobs());
    }
    assert_eq!(view.led_before(), Some(&NodeName::new("host-b")));
}

/// Its watch says at once who goes, but not while it has no connection.
#[test]
fn a_leader_that_was_cut_off_does_not_claim_to_have_seen_a_node_until_now() {
    let at = |second| Now { wall: Timestamp::from_second(second).unwrap(), ..NOW };
    let members = sample::queue().members;
    for (is_cut_off, last_seen) in [(false, 30), (true, 10)] {
        let (mut view, engine) = view();
        let id = SessionId("1".into());
        let session = Election::Session { id: id.clone(), timeout: Duration::from_secs(10) };
        for event in [session, elected(), Election::Members(members.clone())] {
            view.elected(at(10), &event, engine.jobs());
        }
        if is_cut_off {
            view.elected(at(15), &Election::Suspended { session: id.clone(), error: None }, engine.jobs());
            view.elected(at(29), &Election::Resumed { session: id }, engine.jobs());
        }
        view.elected(at(30), &Election::Members(members[..1].to_vec()), engine.jobs());
        let missing = view.status(at(30), &engine).missing;
        assert_eq!(missing[0].last_seen, Some(at(last_seen).wall), "{is_cut_off}");
    }
}

#[test]
fn the_end_of_a_difference_is_news_too() {
    let (mut view, engine) = view();
    let session = Election::Session { id: SessionId("1".into()), timeout: Duration::from_secs(10) };
    for event in [session, following("host-b", "host-b")] {
        view.elected(NOW, &event, engine.jobs());
    }
    let mut members = sample::queue().members;
    for member in &mut members {
        member.published = Published { digest: engine.jobs().digest.clone(), ..Published::default() };
    }
    let mut news = |digest: &cronkeeper_core::job::Digest, members: &[Member]| {
        let mut members = members.to_vec();
        if let Some(other) = members.get_mut(1) {
            other.published.digest = digest.clone();
        }
        view.elected(NOW, &Election::Members(members), engine.jobs())
    };
    let (same, other) = (engine.jobs().digest.clone(), cronkeeper_core::job::Digest::of(b"other"));
    assert!(news(&same, &members).is_empty());
    let begun = news(&other, &members);
    let [NodeNews::Drift(DriftNews::Begun(drift))] = begun.as_slice() else { panic!("{begun:?}") };
    assert!(news(&other, &members).is_empty(), "it is known");
    assert_eq!(news(&same, &members), [NodeNews::Drift(DriftNews::Ended(drift.clone()))]);
    news(&other, &members);
    let gone = news(&other, &members[..1]);
    assert!(!gone.iter().any(|news| matches!(news, NodeNews::Drift(_))), "who is gone does not agree: {gone:?}");
}

#[test]
fn a_node_is_not_ready_while_an_operation_is_stalled() {
    let (mut view, engine) = view();
    let following = Election::Following {
        candidate: cronkeeper_core::term::CandidateName("b".into()),
        predecessor: cronkeeper_core::term::CandidateName("a".into()),
        predecessor_node: None,
        leader_node: Some(NodeName::new("host-b")),
    };
    let stalled = "taking over, which has failed for 6 s: /leader: not authorized";
    for event in [following, Election::Stalled(Some(stalled.into()))] {
        view.elected(NOW, &event, engine.jobs());
    }
    let status = view.status(NOW, &engine);
    assert_eq!((status.ready, status.awaiting.as_deref()), (false, Some(stalled)));
    assert_eq!(view.summary(&engine), format!("waiting for {stalled}"));
    view.elected(NOW, &Election::Stalled(None), engine.jobs());
    assert!(view.status(NOW, &engine).ready);
}

#[test]
fn a_drained_node_leaves_it_to_others_to_tell_that_nobody_leads_while_one_is_not_drained() {
    let (mut view, engine) = view();
    let session = Election::Session { id: SessionId("1".into()), timeout: std::time::Duration::from_secs(10) };
    let drain = Drain { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: None };
    let wanted = NodeControl { drained: Some(drain), ..NodeControl::default() };
    let mut members = sample::queue().members;
    for event in [session, Election::Wanted(wanted), Election::Members(members.clone())] {
        view.elected(NOW, &event, engine.jobs());
    }
    let status = view.status(NOW, &engine);
    assert_eq!(status.awaiting.as_deref(), Some("`cronkeeper undrain host-a` by an operator"));
    assert!(view.seen().others_tell);
    assert!(view.seen().missing.is_empty());
    members[1].published.drained = true;
    view.elected(NOW, &Election::Members(members), engine.jobs());
    assert!(!view.seen().others_tell, "each tells that all are drained");
    view.elected(NOW, &Election::Members(sample::queue().members), engine.jobs());
    view.elected(NOW, &Election::Wanted(NodeControl::default()), engine.jobs());
    assert!(!view.seen().others_tell);
}

#[test]
fn counts_come_with_singular_or_plural() {
    assert_eq!((counted(1, "run"), counted(2, "run")), ("1 run".to_owned(), "2 runs".to_owned()));
}
