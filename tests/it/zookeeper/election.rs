//! Queue and terms.

use cronkeeper_cluster::zookeeper::session::{Auth, ConnectionSettings};
use cronkeeper_core::coordination::Event as BackendEvent;
use cronkeeper_core::election::{Event, Failure, Published, Request, TransferError};
use cronkeeper_core::term::{CandidateName, NodeName, TermEnd};
use zookeeper_client::{Acls, CreateMode};

use super::fixture::{Fixture, Memory, TIMEOUT, admin};
use crate::support::until;
use crate::support::zookeeper::{Ensemble, shared};

#[tokio::test]
async fn a_follower_watches_its_predecessor_alone() {
    let ensemble = Ensemble::start(1);
    let connect = ensemble.connect_string();
    let (_leader, term, _) = Fixture::leading(&connect, "a").await;
    let mut followers = Vec::new();
    for (node, before) in [("b", "a"), ("c", "b"), ("d", "c")] {
        let mut fixture = Fixture::start(&connect, node);
        fixture.ask(Request::Campaign);
        fixture.following(Some(before)).await;
        followers.push(fixture);
    }
    // The leader watches its own candidate and member, the requests of operators, and its bell; each follower watches
    // one candidate; and each node watches what is wanted of it and offered to it. (The servers do not list the
    // leader's watch on which members there are.)
    until("sixteen watches", || ensemble.watch_count(0) == 16);
    let watches = ensemble.watches(0);
    assert_eq!(watches.get(&format!("/leader/{}", term.candidate)).map(Vec::len), Some(2), "{watches:?}");
    assert!(watches.keys().all(|path| path != "/leader"), "{watches:?}");
}

#[tokio::test]
async fn a_candidate_removed_by_hand_ends_the_term_and_the_node_joins_anew() {
    let connect = shared();
    let (mut fixture, term, _) = Fixture::leading(&connect, "a").await;
    admin(&connect).await.delete(&format!("/leader/{}", term.candidate), None).await.unwrap();
    assert_eq!(fixture.over().await, (term.clone(), TermEnd::EntryGone));
    let (next, _) = fixture.elected().await;
    assert!(next.token > term.token);
}

#[tokio::test]
async fn a_member_removed_by_hand_ends_the_term_and_the_node_comes_back() {
    let connect = shared();
    let (mut fixture, term, _) = Fixture::leading(&connect, "a").await;
    let admin = admin(&connect).await;
    admin.delete("/cronkeeper/nodes/a", None).await.unwrap();
    assert_eq!(fixture.over().await, (term.clone(), TermEnd::EntryGone));
    let (next, _) = fixture.elected().await;
    assert!(next.token > term.token);
    assert!(admin.check_stat("/cronkeeper/nodes/a").await.unwrap().is_some());
    assert_eq!(admin.list_children("/leader").await.unwrap(), [next.candidate.0]);
}

#[tokio::test]
async fn a_followers_removed_candidate_is_made_again_at_the_end_of_the_queue() {
    let connect = shared();
    let (_leader, ..) = Fixture::leading(&connect, "a").await;
    let mut fixture = Fixture::start(&connect, "b");
    fixture.ask(Request::Campaign);
    fixture.ask(Request::Busy(true));
    let joined = |event: &Event| match event {
        Event::Joined { candidate } => Some(candidate.clone()),
        _ => None,
    };
    let first = fixture.election("joined", joined).await;
    fixture.following(Some("a")).await;
    let admin = admin(&connect).await;
    admin.delete(&format!("/leader/{first}"), None).await.unwrap();
    // Only a successor would watch it, and there is none: the removal of the member makes the node check.
    admin.delete("/cronkeeper/nodes/b", None).await.unwrap();
    let second = fixture.election("joined again", joined).await;
    assert_ne!(first, second);
    fixture.following(Some("a")).await;
}

#[tokio::test]
async fn foreign_entries_hold_their_place_in_the_queue() {
    let connect = shared();
    let (mut fixture, ..) = Fixture::leading(&connect, "a").await;
    let admin = admin(&connect).await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = admin.create("/leader/4b0ad6db__lock__", b"kazoo", &options).await.unwrap();
    fixture.ask(Request::Resign);
    fixture.over().await;
    fixture.election("withdrawn", |event| (*event == Event::Withdrawn).then_some(())).await;
    fixture.ask(Request::Campaign);
    fixture.following(None).await;
    admin.delete(&format!("/leader/4b0ad6db__lock__{sequence}"), None).await.unwrap();
    fixture.elected().await;
}

/// Starts followers one after the other, so that they queue in this order.
async fn followers<const N: usize>(connect: &str, nodes: [&str; N]) -> [Fixture; N] {
    let mut fixtures = Vec::new();
    for node in nodes {
        let mut fixture = Fixture::start(connect, node);
        fixture.ask(Request::Campaign);
        fixture.election("following", |event| matches!(event, Event::Following { .. }).then_some(())).await;
        fixtures.push(fixture);
    }
    fixtures.try_into().unwrap_or_else(|_| unreachable!("one for each"))
}

#[tokio::test]
async fn a_transferred_node_leads_next_and_those_between_join_again_behind_it() {
    let connect = shared();
    let (mut leader, term, _) = Fixture::leading(&connect, "a").await;
    let [mut next, mut successor] = followers(&connect, ["b", "c"]).await;

    leader.ask(Request::Transfer(NodeName::new("c")));
    assert_eq!(leader.over().await, (term.clone(), TermEnd::Resigned));
    leader.election("withdrawn", |event| (*event == Event::Withdrawn).then_some(())).await;
    let (new, _) = successor.elected().await;
    assert!(new.token > term.token);
    next.following(Some("c")).await;
    leader.ask(Request::Campaign);
    leader.following(Some("b")).await;
}

#[tokio::test]
async fn a_transfer_that_cannot_be_made_is_refused_and_the_term_goes_on() {
    let connect = shared();
    let (mut leader, term, _) = Fixture::leading(&connect, "a").await;
    let admin = admin(&connect).await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = admin.create("/leader/4b0ad6db__lock__", b"kazoo", &options).await.unwrap();
    let [mut follower] = followers(&connect, ["b"]).await;

    for (to, expected) in [
        ("b", TransferError::Foreign { entry: CandidateName(format!("4b0ad6db__lock__{sequence}")) }),
        ("c", TransferError::NotQueued),
        ("a", TransferError::Leads),
    ] {
        leader.ask(Request::Transfer(NodeName::new(to)));
        let refused = |event: &Event| match event {
            Event::NotTransferred { to, why } => Some((to.clone(), why.clone())),
            _ => None,
        };
        assert_eq!(leader.election("refused", refused).await, (NodeName::new(to), expected));
    }
    assert!(!leader.seen.iter().any(|event| matches!(event, BackendEvent::Election(Event::Over { .. }))));
    admin.delete(&format!("/leader/4b0ad6db__lock__{sequence}"), None).await.unwrap();
    leader.ask(Request::Transfer(NodeName::new("b")));
    assert_eq!(leader.over().await, (term, TermEnd::Resigned));
    follower.elected().await;
}

#[tokio::test]
async fn a_node_that_never_leads_sees_who_does_and_does_not_join() {
    let connect = shared();
    let mut fixture = Fixture::start(&connect, "b");
    fixture.ask(Request::Publish(Published { never_leads: true, ..Published::default() }));
    fixture.ask(Request::Campaign);
    let seen = |leader: Option<&'static str>| {
        move |event: &Event| match event {
            Event::Observing { leader_node } => (leader_node.as_ref().map(NodeName::as_str) == leader).then_some(()),
            _ => None,
        }
    };
    fixture.election("nobody leads", seen(None)).await;
    let (_leader, ..) = Fixture::leading(&connect, "a").await;
    fixture.election("the leader", seen(Some("a"))).await;
    assert!(!fixture.seen_election(|event| matches!(event, Event::Joined { .. } | Event::Elected { .. })));
}

#[tokio::test]
async fn a_chroot_that_does_not_exist_is_refused_by_name() {
    let connect = shared() + "/absent";
    let mut fixture = Fixture::start(&connect, "a");
    let failure = fixture.election("failed", failed).await;
    assert!(matches!(failure, Failure::NoRoot { ref root, .. } if root.ends_with("/absent")), "{failure}");
}

#[tokio::test]
async fn a_name_that_another_living_node_has_is_refused_by_its_holder() {
    let connect = shared();
    let (_holder, ..) = Fixture::leading(&connect, "a").await;
    let mut fixture = Fixture::start(&connect, "a");
    let failure = fixture.election("failed", failed).await;
    assert!(
        matches!(failure, Failure::NameTaken { ref node, ref holder } if *node == NodeName::new("a") && holder.contains("localhost")),
        "{failure}"
    );
}

/// A host that lost power comes back with a shorter session timeout than its old session had.
#[tokio::test]
async fn a_name_is_waited_for_as_long_as_its_holders_session_lasts() {
    let connect = shared();
    let with = |session_timeout| {
        let settings =
            ConnectionSettings { connect: connect.clone(), session_timeout, ..ConnectionSettings::default() };
        Fixture::with(settings, "a", Memory::default())
    };
    let mut first = with(TIMEOUT * 2);
    first.ask(Request::Campaign);
    let (term, _) = first.elected().await;
    first.crash();
    let mut second = with(TIMEOUT / 4);
    second.ask(Request::Campaign);
    let (next, _) = second.elected().await;
    assert!(next.token > term.token);
}

#[tokio::test]
async fn entries_of_a_dead_process_go_at_once_when_its_sessions_are_known_dead() {
    let connect = shared();
    let (first, term, _) = Fixture::leading(&connect, "a").await;
    let sessions = first.memory.with(|remembered| remembered.sessions.clone());
    first.crash();
    let memory = Memory::default();
    memory.with(|remembered| remembered.removable = sessions);
    let settings =
        ConnectionSettings { connect: connect.clone(), session_timeout: TIMEOUT, ..ConnectionSettings::default() };
    let mut second = Fixture::with(settings, "a", memory);
    second.ask(Request::Campaign);
    let (next, _) = second.elected().await;
    assert!(next.token > term.token);
    let was_refused = second.seen.iter().any(|event| format!("{event:?}").contains("Unreachable"));
    assert!(!was_refused, "it waited for the old session: {:?}", second.seen);
}

#[tokio::test]
async fn another_cluster_than_the_state_directorys_is_refused() {
    let memory = Memory::default();
    memory.with(|remembered| remembered.cluster = Some("another".into()));
    let settings = ConnectionSettings { connect: shared(), session_timeout: TIMEOUT, ..ConnectionSettings::default() };
    let mut fixture = Fixture::with(settings, "a", memory);
    let failure = fixture.election("failed", failed).await;
    assert!(matches!(failure, Failure::OtherCluster { ref ours, .. } if ours == "another"), "{failure}");
}

#[tokio::test]
async fn with_a_credential_only_its_holders_may_take_part() {
    let connect = shared();
    let auth = digest(["cron:secret"], false);
    let settings = ConnectionSettings {
        connect: connect.clone(),
        session_timeout: TIMEOUT,
        auth,
        ..ConnectionSettings::default()
    };
    let mut fixture = Fixture::with(settings, "a", Memory::default());
    fixture.ask(Request::Campaign);
    let (term, _) = fixture.elected().await;
    let refused = admin(&connect).await.delete(&format!("/leader/{}", term.candidate), None).await;
    assert_eq!(refused, Err(zookeeper_client::Error::NoAuth));
    let failure = Fixture::start(&connect, "b").election("failed", failed).await;
    assert!(matches!(failure, Failure::Refused { .. }), "{failure}");
}

fn digest<const N: usize>(credentials: [&str; N], with_world: bool) -> Auth {
    let identities = credentials.map(|credential| ("digest".to_owned(), credential.as_bytes().to_vec()));
    Auth { identities: identities.into(), with_world }
}

fn failed(event: &Event) -> Option<Failure> {
    match event {
        Event::Failed(failure) => Some(failure.clone()),
        _ => None,
    }
}
