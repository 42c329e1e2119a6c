//! What a new leader finds of those before it.

use super::*;
use crate::run::{KillRequest, KnownBy, Reason, RunState};

/// The job of a run that was seen dead, and the process that was known of it.
type Seen = (String, Option<(i32, u64)>);

/// Leftovers that die at once, and of which runs they were.
fn watched() -> (Leftovers, Arc<Mutex<Vec<Seen>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let leftovers = {
        let seen = seen.clone();
        move |runs: &[RecoveredRun]| {
            seen.lock().unwrap().extend(runs.iter().map(|run| (run.record.job.to_string(), run.pid)));
            Ok(())
        }
    };
    (Arc::new(leftovers), seen)
}

#[tokio::test]
async fn ends_that_a_dead_leader_could_not_commit_are_committed_before_the_next_leads() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let (ended, open) = (a.begin_noted("ended", 60).await, a.begin_noted("open", 60).await);
    a.solo.journal.started(&open.id(), 1, 4242, 7, &KnownBy::Environment).unwrap();
    a.solo.journal.ended(&success(ended.clone()), Version::FIRST).unwrap();
    drop(a);

    let (leftovers, seen) = watched();
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(*seen.lock().unwrap(), [("ended".to_owned(), None), ("open".to_owned(), Some((4242, 7)))]);
    let running: Vec<_> = snapshot.running.iter().map(|run| (run.record.clone(), run.version, run.owner)).collect();
    assert_eq!(running, [(open, Version::FIRST, OwnerState::Dead)]);
    assert_eq!(b.history("ended").await, [HistoryRecord::Run(success(ended.clone()))]);
    let told = b.until(|event| match event {
        Event::Ledger(ledger::Event::Ended { end, at }) => Some((*end, at)),
        _ => None,
    });
    assert_eq!(told.await, (success(ended), Version::FIRST), "whoever leads runs its hooks");
}

#[tokio::test]
async fn a_run_that_a_dead_member_never_handed_to_its_warden_goes_back_to_be_started() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let (noted, unheard) = (a.begin_noted("noted", 60).await, a.begin("unheard", 60).await);
    drop(a);

    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    let running: Vec<_> = snapshot.running.iter().map(|run| (run.record.clone(), run.version)).collect();
    let let_go = RunRecord { state: RunState::Unstarted, ..unheard };
    assert_eq!(running, [(noted, Version::FIRST), (let_go, Version(1))]);
}

#[tokio::test]
async fn what_a_dead_member_handed_over_is_unknown_without_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("unheard", 60).await;
    drop(a);
    for file in std::fs::read_dir(dir.path().join("members")).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "journal") {
            std::fs::remove_file(file).unwrap();
        }
    }
    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(snapshot.running.iter().map(|run| run.record.clone()).collect::<Vec<_>>(), [run]);
}

#[tokio::test]
async fn nobody_leads_while_a_leftover_lives() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    a.begin_noted("j", 60).await;
    drop(a);

    let tries = Arc::new(Mutex::new(0));
    let leftovers: Leftovers = Arc::new({
        let tries = tries.clone();
        move |_: &[RecoveredRun]| {
            let mut tries = tries.lock().unwrap();
            *tries += 1;
            if *tries == 1 { Err(StillAlive("4242".into())) } else { Ok(()) }
        }
    });
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    b.ask(election::Request::Campaign);
    let told = b.until(|event| match event {
        Event::Election(election::Event::Unreachable { error, .. }) => Some(error),
        Event::Election(election::Event::Elected { .. }) => panic!("leads beside a living process"),
        _ => None,
    });
    assert!(told.await.contains("4242"));
    b.elected().await;
    assert_eq!(*tries.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_former_leader_that_drains_is_alive_and_ends_its_run_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let run = a.begin("j", 60).await;
    a.ask(election::Request::Resign);
    let (_, snapshot) = b.lead().await;
    assert_eq!(snapshot.running[0].owner, OwnerState::Alive);
    b.ask_ledger(ledger::Request::Watch(run.id()));
    assert!(b.run_told(&run.id()).await.is_some());
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    assert_eq!(b.run_told(&run.id()).await, None);
}

#[tokio::test]
async fn a_former_leader_hears_what_is_wanted_of_its_run_and_of_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let run = a.begin("j", 60).await;
    a.ask_ledger(ledger::Request::WatchOwn(run.id()));
    assert_eq!(a.run_told(&run.id()).await, Some((run.clone(), Version::FIRST)));
    a.ask(election::Request::Resign);
    b.lead().await;
    let mut wanted = run.clone();
    let request = KillRequest { reason: Reason::Replaced, by: "b".into(), at: run.begun_at, force: false };
    assert!(wanted.request_to_end(request));
    assert_eq!(b.commit(Change::Kill { at: Version::FIRST, run: wanted.clone() }).await, Commit::Accepted);
    assert_eq!(a.run_told(&run.id()).await, Some((wanted.clone(), Version(1))));
    assert_eq!(b.commit(Change::Kill { at: Version::FIRST, run: wanted }).await, Commit::Superseded);
}

#[tokio::test]
async fn a_former_leader_that_dies_while_it_drains_is_reported_after_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let (open, ended) = (a.begin_noted("open", 60).await, a.begin_noted("ended", 60).await);
    a.ask(election::Request::Resign);
    b.lead().await;
    for run in [&open, &ended] {
        b.ask_ledger(ledger::Request::Watch(run.id()));
    }
    b.run_told(&ended.id()).await;
    a.solo.journal.ended(&success(ended.clone()), Version::FIRST).unwrap();
    drop(a);
    let gone = b.until({
        let ended = ended.id();
        move |event| match event {
            Event::Ledger(event @ ledger::Event::OwnerGone(..)) => Some(event),
            Event::Ledger(event @ ledger::Event::Run(_, None)) => Some(event),
            Event::Ledger(ledger::Event::Run(run, _)) if run == ended => panic!("nothing changed yet"),
            _ => None,
        }
    });
    let first = gone.await;
    assert_eq!(first, ledger::Event::Run(ended.id(), None));
    let owner_gone = b.until(|event| match event {
        Event::Ledger(ledger::Event::OwnerGone(run, ledger::OwnerState::Dead, row)) => Some((run, row)),
        _ => None,
    });
    assert_eq!(owner_gone.await, (open.id(), Some((open, Version::FIRST))));
    assert_eq!(b.history("ended").await, [HistoryRecord::Run(success(ended))]);
}

#[tokio::test]
async fn who_leaves_with_an_open_end_leaves_it_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_noted("j", 60).await;
    a.solo.journal.ended(&success(run.clone()), Version::FIRST).unwrap();
    a.ask(election::Request::Leave);
    a.until(|event| matches!(event, Event::Election(election::Event::Left)).then_some(())).await;
    let mut b = Node::start(dir.path(), "b").await;
    assert_eq!(b.lead().await.1.running, []);
    assert_eq!(b.history("j").await, [HistoryRecord::Run(success(run))]);
}

/// What a new leader makes of a drained one's live run whose files went while it drained: the runs whose processes it has seen
/// dead, and what it takes their owner for.
async fn led_after_the_loss_of(lost: &[&str]) -> (Vec<Seen>, OwnerState) {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_noted("j", 60).await;
    a.solo.journal.started(&run.id(), 1, 4242, 7, &KnownBy::Environment).unwrap();
    a.ask(election::Request::Resign);
    a.until(|event| matches!(event, Event::Election(election::Event::Withdrawn)).then_some(())).await;
    for kind in lost {
        std::fs::remove_file(dir.path().join(format!("members/a@{}.{kind}", a.session))).unwrap();
    }
    let (leftovers, seen) = watched();
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    let (_, snapshot) = b.lead().await;
    let seen = seen.lock().unwrap().clone();
    (seen, snapshot.running[0].owner)
}

#[tokio::test]
async fn a_removed_lock_file_is_no_proof_of_death() {
    let (seen, owner) = led_after_the_loss_of(&["lock"]).await;
    assert_eq!((seen, owner), (vec![("j".to_owned(), Some((4242, 7)))], OwnerState::Dead));
}

#[tokio::test]
async fn nor_is_it_when_all_files_of_a_member_are_removed() {
    let (seen, owner) = led_after_the_loss_of(&["lock", "journal", "json"]).await;
    assert_eq!((seen, owner), (vec![("j".to_owned(), None)], OwnerState::Dead));
}
