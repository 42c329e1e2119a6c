//! Paths that others have closed, overwritten or removed: each must harm only itself.

use std::time::Duration;

use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::coordination::Event as BackendEvent;
use cronkeeper_core::election::{BLOCKED, Event, Request, TransferError};
use cronkeeper_core::ledger::{self, Commit};
use cronkeeper_core::run::{TriggerRecord, Version};
use cronkeeper_core::term::{NodeName, SessionId, TermEnd};
use uuid::Uuid;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use super::fixture::{Fixture, TIMEOUT, admin, at, begin, end, first_mark, job, leader, mark, run};
use crate::support::LONG;
use crate::support::zookeeper::shared;

/// A foreign client that closes paths to everybody else.
struct Stranger(Client);

impl Stranger {
    async fn at(connect: &str) -> Self {
        let connector = Client::connector().with_auth("digest", b"stranger:secret");
        Self(connector.connect(connect).await.expect("the server serves"))
    }

    /// Leaves everybody else only these rights.
    async fn leave(&self, path: &str, others: Permission) {
        let own = Acl::new(Permission::ALL, AuthId::authed());
        let acl = [own, Acl::new(others, AuthId::anyone())];
        let acl = if others == Permission::NONE { &acl[..1] } else { &acl[..] };
        self.0.set_acl(path, acl, None).await.expect("it was open to all");
    }

    async fn close(&self, path: &str) {
        self.leave(path, Permission::NONE).await;
    }

    async fn open(&self, path: &str) {
        self.leave(path, Permission::ALL).await;
    }

    async fn create(&self, path: &str, data: &[u8]) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        self.0.create(path, data, &options).await.expect("it is not there yet");
    }
}

/// Waits until a path is reported as damaged.
async fn named(fixture: &mut Fixture, path: &str) {
    let is_it =
        |event: &Event| matches!(event, Event::Damaged { new, .. } if new.iter().any(|new| new.starts_with(path)));
    if fixture.seen_election(is_it) {
        return;
    }
    fixture.election(path, |event| is_it(event).then_some(())).await;
}

#[tokio::test]
async fn a_member_that_cannot_be_read_or_is_none_ends_nobody_and_hides_nobody() {
    let connect = shared();
    let (first, ..) = leader(&connect).await;
    let stranger = Stranger::at(&connect).await;
    stranger.create("/cronkeeper/nodes/ghost", b"boo").await;
    stranger.close("/cronkeeper/nodes/ghost").await;
    stranger.create("/cronkeeper/nodes/other", br#"{"v":1,"node":"a"}"#).await;
    let mut second = Fixture::start(&connect, "b");
    second.ask(Request::Campaign);
    named(&mut second, "/cronkeeper/nodes/ghost").await;
    named(&mut second, "/cronkeeper/nodes/other").await;
    let members = second
        .election("the members", |event| match event {
            Event::Members(members) => Some(members.iter().map(|member| member.node.to_string()).collect::<Vec<_>>()),
            _ => None,
        })
        .await;
    assert_eq!(members, ["a", "b"]);
    drop(first);
}

#[tokio::test]
async fn a_takeover_reads_what_it_can_and_names_the_rest() {
    let connect = shared();
    let (mut first, term, session) = leader(&connect).await;
    for name in ["good", "closed", "gone"] {
        first.commit(first_mark(name, "1")).await;
        let run = run(name, 60, "a", &session, term.token);
        assert_eq!(first.commit(begin(0, &run)).await, Commit::Accepted);
    }
    let stranger = Stranger::at(&connect).await;
    let bad = run("good", 120, "../../zookeeper", &SessionId("0x1".into()), term.token);
    let bad_path = format!("/cronkeeper/running/{}", bad.id());
    stranger.create(&bad_path, &serde_json::to_vec(&bad).unwrap()).await;
    let swapped = "/cronkeeper/running/good.20200101T000000Z";
    stranger.create(swapped, &serde_json::to_vec(&run("good", 60, "a", &session, term.token)).unwrap()).await;
    for (path, data) in [("/cronkeeper/control/closed", "{}"), ("/cronkeeper/triggers/0000000099", "{}")] {
        stranger.create(path, data.as_bytes()).await;
    }
    let closed = [
        "/cronkeeper/jobs/closed",
        "/cronkeeper/running/closed.19700101T000100Z",
        "/cronkeeper/control/closed",
        "/cronkeeper/triggers/0000000099",
    ];
    for path in closed {
        stranger.close(path).await;
    }
    first.crash();

    let (mut second, _, snapshot) = Fixture::leading(&connect, "b").await;
    for path in closed.into_iter().chain([bad_path.as_str(), swapped]) {
        named(&mut second, path).await;
    }
    let found: Vec<_> = snapshot.running.iter().map(|found| found.record.job.as_str()).collect();
    assert_eq!(found, ["gone", "good"]);
    assert_eq!(snapshot.jobs[&job("closed")].record, None);
    assert_eq!(snapshot.jobs[&job("closed")].version, Version(1));
    assert_eq!(snapshot.jobs[&job("good")].record, Some(mark(60, &format!("{}-good-60", term.token))));
    assert!(snapshot.requests.control[&job("closed")].record.resume.is_none(), "it counts as a pause");
    assert_eq!(second.commit(first_mark("new", "1")).await, Commit::Accepted);

    // Once readable again, the next read finds it and reports it.
    stranger.open("/cronkeeper/running/closed.19700101T000100Z").await;
    let is_found = |event: &ledger::Event| match event {
        ledger::Event::Run(run, Some(_)) => (run.job().as_str() == "closed").then_some(()),
        _ => None,
    };
    second.ledger("the run that can be read again", is_found).await;
}

#[tokio::test]
async fn an_entry_before_the_own_one_that_cannot_be_read_is_watched_all_the_same() {
    let connect = shared();
    // The first node creates the paths.
    drop(leader(&connect).await);
    let stranger = Stranger::at(&connect).await;
    let options = CreateMode::Persistent.with_acls(Acls::creator_all());
    stranger.0.create("/leader/x-0000000000", b"", &options).await.unwrap();
    let mut fixture = Fixture::start(&connect, "b");
    fixture.ask(Request::Campaign);
    fixture.following(None).await;
    // Also by the one that does not wait for it directly.
    let mut last = Fixture::start(&connect, "c");
    last.ask(Request::Campaign);
    for node in [&mut fixture, &mut last] {
        named(node, &format!("/leader/x-0000000000: {BLOCKED}: `deleteall /leader/x-0000000000`")).await;
    }
    stranger.0.delete("/leader/x-0000000000", None).await.unwrap();
    fixture.elected().await;
    let is_mended = |event: &Event| matches!(event, Event::Damaged { all, .. } if all.is_empty());
    assert!(fixture.seen_election(is_mended));
    last.election("mended", |event| is_mended(event).then_some(())).await;
}

#[tokio::test]
async fn an_end_that_may_not_be_written_is_put_off_until_it_may_and_the_term_goes_on() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    for name in ["bad", "good"] {
        fixture.commit(first_mark(name, "1")).await;
    }
    let runs = ["bad", "good"].map(|name| run(name, 60, "a", &session, term.token));
    for run in &runs {
        fixture.commit(begin(0, run)).await;
    }
    let stranger = Stranger::at(&connect).await;
    stranger.create("/cronkeeper/history/bad", b"").await;
    stranger.close("/cronkeeper/history/bad").await;
    let ends = [fixture.request(end(0, &runs[0])), fixture.request(end(0, &runs[1]))];
    assert_eq!(fixture.answer(ends[1]).await, Commit::Accepted);
    named(&mut fixture, "/cronkeeper/history/bad").await;
    let deferred = BackendEvent::Ledger(ledger::Event::Deferred(ends[0]));
    assert_eq!(fixture.seen.iter().filter(|&event| *event == deferred).count(), 1);
    assert_eq!(fixture.commit(first_mark("other", "1")).await, Commit::Accepted);
    stranger.open("/cronkeeper/history/bad").await;
    assert_eq!(fixture.answer(ends[0]).await, Commit::Accepted);
    assert!(!fixture.seen_election(|event| matches!(event, Event::Over { .. } | Event::Failed(_))));
}

#[tokio::test]
async fn the_lease_is_renewed_and_the_time_read_though_the_members_folder_may_not_be_written() {
    let connect = shared();
    drop(leader(&connect).await);
    let stranger = Stranger::at(&connect).await;
    stranger.leave("/cronkeeper/nodes", Permission::READ | Permission::CREATE | Permission::DELETE).await;
    stranger.leave("/leader", Permission::READ | Permission::CREATE | Permission::DELETE).await;
    let mut fixture = Fixture::start(&connect, "b");
    fixture.ask(Request::Campaign);
    fixture.elected().await;
    assert!(fixture.seen_election(|event| matches!(event, Event::Time(_))), "nothing is decided without");
    named(&mut fixture, "/leader").await;
    let from = uptime();
    let later = |event: &Event| match event {
        Event::Lease { until } => (*until > from + TIMEOUT).then_some(()),
        _ => None,
    };
    fixture.election("the lease", later).await;
}

#[tokio::test]
async fn a_leader_whose_member_or_candidate_is_closed_to_it_makes_them_anew() {
    let connect = shared();
    let (mut fixture, term, _) = leader(&connect).await;
    let stranger = Stranger::at(&connect).await;
    stranger.close("/cronkeeper/nodes/a").await;
    assert_eq!(fixture.over().await.1, TermEnd::EntryGone);
    let (next, _) = fixture.elected().await;
    assert!(next.token > term.token);
    stranger.close(&format!("/leader/{}", next.candidate)).await;
    assert_eq!(fixture.commit(first_mark("backup", "1")).await, Commit::Fenced);
    let (last, _) = fixture.elected().await;
    assert!(last.token > next.token);
    assert_eq!(fixture.commit(first_mark("backup", "1")).await, Commit::Accepted);
}

#[tokio::test]
async fn whatever_is_put_in_the_place_of_a_member_ends_nobody() {
    let connect = shared();
    let (mut fixture, ..) = leader(&connect).await;
    let member = "/cronkeeper/nodes/a";
    let admin = admin(&connect).await;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let below = format!("{member}/below");
    let stranger = Stranger::at(&connect).await;
    // What is nobody's is replaced, unless something is below it; what belongs to a session is waited for.
    for (options, has_below, in_the_way) in
        [(&persistent, false, None), (&persistent, true, Some(below.as_str())), (&ephemeral, false, Some(member))]
    {
        let mut replace = stranger.0.new_multi_writer();
        replace.add_delete(member, None).unwrap();
        replace.add_create(member, b"garbage", options).unwrap();
        if has_below {
            replace.add_create(&below, b"", options).unwrap();
        }
        replace.commit().await.expect("all is open");
        assert_eq!(fixture.over().await.1, TermEnd::EntryGone);
        if let Some(in_the_way) = in_the_way {
            named(&mut fixture, member).await;
            admin.delete(in_the_way, None).await.unwrap();
        }
        fixture.elected().await;
        fixture.seen.clear();
    }
}

#[tokio::test]
async fn a_transfer_of_an_impossible_node_is_refused_and_the_term_goes_on() {
    let connect = shared();
    let (mut fixture, ..) = leader(&connect).await;
    for to in ["", "../../x", "a/b"] {
        fixture.ask(Request::Transfer(NodeName::new(to)));
        let refused = |event: &Event| match event {
            Event::NotTransferred { to: of, why } => (of.as_str() == to).then(|| why.clone()),
            _ => None,
        };
        assert_eq!(fixture.election("refused", refused).await, TransferError::NotQueued);
    }
    assert_eq!(fixture.commit(first_mark("backup", "1")).await, Commit::Accepted);
}

#[tokio::test]
async fn a_clusters_id_that_was_removed_or_overwritten_is_written_anew_by_who_knows_it() {
    let connect = shared();
    let admin = admin(&connect).await;
    let (first, ..) = leader(&connect).await;
    let (id, _) = admin.get_data("/cronkeeper/cluster").await.unwrap();
    let memory = first.memory.clone();
    first.crash();
    for is_removed in [true, false] {
        match is_removed {
            true => admin.delete("/cronkeeper/cluster", None).await.unwrap(),
            false => drop(admin.set_data("/cronkeeper/cluster", b"\xffgarbage", None).await.unwrap()),
        }
        let mut again = Fixture::remembering(&connect, "a", memory.clone());
        again.ask(Request::Campaign);
        tokio::time::timeout(Duration::from_secs(60), again.elected()).await.expect("it takes part");
        assert_eq!(admin.get_data("/cronkeeper/cluster").await.unwrap().0, id);
        again.crash();
    }
}

/// The servers count all children ever created in a parent, and stop at 2^31 - 1.
#[tokio::test]
async fn the_triggers_are_numbered_anew_once_half_of_the_numbers_are_used_and_none_is_left() {
    let connect = shared();
    let (mut fixture, ..) = leader(&connect).await;
    let stranger = Stranger::at(&connect).await;
    let folder = "/cronkeeper/triggers";
    let trigger = TriggerRecord::new(Uuid::from_u128(1), job("backup"), "alice".into(), at(60));
    let high = format!("{folder}/1073741824");
    stranger.create(&high, &serde_json::to_vec(&trigger).unwrap()).await;
    let ring = || stranger.0.set_data(folder, b"", None);
    ring().await.unwrap();
    let has_the_trigger = |event: &ledger::Event| match event {
        ledger::Event::OperatorRequests(requests) => (requests.triggers.len() == 1).then_some(()),
        _ => None,
    };
    fixture.ledger("the trigger", has_the_trigger).await;
    let made = stranger.0.check_stat(folder).await.unwrap().unwrap().czxid;
    stranger.0.delete(&high, None).await.unwrap();
    ring().await.unwrap();
    tokio::time::timeout(LONG, async {
        // The parent never disappears: one transaction deletes and recreates it.
        while stranger.0.check_stat(folder).await.unwrap().unwrap().czxid == made {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it is made anew");
    let request = TriggerRecord { uuid: Uuid::from_u128(2), ..trigger };
    let run = fixture.operator().trigger(request).await.unwrap();
    assert_eq!(run.trigger().map(|seq| seq.0), Some(0));
    fixture.ledger("the next trigger", has_the_trigger).await;
}
