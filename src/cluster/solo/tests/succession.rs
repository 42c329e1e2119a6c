//! How a new leader settles what earlier leaders left behind.

use super::*;
use cronkeeper_core::run::{BeginNote, KnownBy, RunState};

/// The job of a reaped run, and its main process if it was recorded.
type Reaped = (String, Option<(i32, u64)>);

/// Leftovers that die at once, and the list of the runs that were reaped.
fn recorded_leftovers() -> (Leftovers, Arc<Mutex<Vec<Reaped>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let leftovers = {
        let seen = seen.clone();
        move |runs: &[RecoveredRun]| {
            seen.lock().unwrap().extend(runs.iter().map(|run| (run.record.job.to_string(), run.pid)));
            Ok(BTreeSet::new())
        }
    };
    (Arc::new(leftovers), seen)
}

#[tokio::test]
async fn ends_that_a_dead_leader_could_not_commit_are_committed_before_the_next_leads() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let (ended, open) = (a.begin_recorded("ended", 60).await, a.begin_recorded("open", 60).await);
    a.solo.journal.started(&open.id(), 1, 4242, 7, &KnownBy::Environment).unwrap();
    a.solo.journal.ended(&success(ended.clone()), Version::FIRST).unwrap();
    drop(a);

    let (leftovers, seen) = recorded_leftovers();
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(*seen.lock().unwrap(), [("ended".to_owned(), None), ("open".to_owned(), Some((4242, 7)))]);
    let running: Vec<_> = snapshot.running.iter().map(|run| (run.record.clone(), run.version, run.owner)).collect();
    assert_eq!(running, [(open, Version::FIRST, OwnerState::Dead)]);
    assert_eq!(b.history("ended").await, [HistoryRecord::Run(success(ended.clone()))]);
    let ended_event = b.until(|event| match event {
        Event::Ledger(ledger::Event::Ended { end, at, .. }) => Some((*end, at)),
        _ => None,
    });
    assert_eq!(ended_event.await, (success(ended), Version::FIRST), "the new leader runs its hooks");
}

#[tokio::test]
async fn a_run_that_a_dead_member_never_handed_to_its_warden_becomes_unstarted() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let (noted, unstarted) = (a.begin_recorded("noted", 60).await, a.begin("unstarted", 60).await);
    drop(a);

    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    let running: Vec<_> = snapshot.running.iter().map(|run| (run.record.clone(), run.version)).collect();
    let released = RunRecord { state: RunState::Unstarted, ..unstarted };
    assert_eq!(running, [(noted, Version::FIRST), (released, Version(1))]);
}

#[tokio::test]
async fn without_its_journal_a_dead_members_runs_count_as_started() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("unstarted", 60).await;
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
async fn no_node_leads_while_a_leftover_process_is_alive() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    a.begin_recorded("j", 60).await;
    drop(a);

    let tries = Arc::new(Mutex::new(0));
    let leftovers: Leftovers = Arc::new({
        let tries = tries.clone();
        move |_: &[RecoveredRun]| {
            let mut tries = tries.lock().unwrap();
            *tries += 1;
            if *tries == 1 { Err(StillAlive("4242".into())) } else { Ok(BTreeSet::new()) }
        }
    });
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    b.request(election::Request::Campaign);
    let unreachable = b.until(|event| match event {
        Event::Election(election::Event::Unreachable { error, .. }) => Some(error),
        Event::Election(election::Event::Elected { .. }) => panic!("leads while a leftover process is alive"),
        _ => None,
    });
    assert!(unreachable.await.contains("4242"));
    b.elected().await;
    assert_eq!(*tries.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_former_leader_that_dies_while_it_drains_is_reported_after_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let (open, ended) = (a.begin_recorded("open", 60).await, a.begin_recorded("ended", 60).await);
    a.request(election::Request::Resign);
    b.lead().await;
    for run in [&open, &ended] {
        b.request_ledger(ledger::Request::Watch(run.id()));
    }
    b.run_event(&ended.id()).await;
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
async fn an_uncommitted_end_of_a_member_that_left_is_committed_by_the_next_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_recorded("j", 60).await;
    a.solo.journal.ended(&success(run.clone()), Version::FIRST).unwrap();
    a.request(election::Request::Leave);
    a.until(|event| matches!(event, Event::Election(election::Event::Left)).then_some(())).await;
    let mut b = Node::start(dir.path(), "b").await;
    assert_eq!(b.lead().await.1.running, []);
    assert_eq!(b.history("j").await, [HistoryRecord::Run(success(run))]);
}

/// Lets a new leader take over after files of a draining former leader with a run were removed.
///
/// Returns the runs it reaped, and the state of the run's owner in its snapshot.
async fn take_over_after_the_loss_of(lost: &[&str]) -> (Vec<Reaped>, OwnerState) {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_recorded("j", 60).await;
    a.solo.journal.started(&run.id(), 1, 4242, 7, &KnownBy::Environment).unwrap();
    a.request(election::Request::Resign);
    a.until(|event| matches!(event, Event::Election(election::Event::Withdrawn)).then_some(())).await;
    for kind in lost {
        std::fs::remove_file(dir.path().join(format!("members/a@{}.{kind}", a.session))).unwrap();
    }
    let (leftovers, seen) = recorded_leftovers();
    let mut b = Node::start_with(dir.path(), "b", leftovers).await;
    let (_, snapshot) = b.lead().await;
    let seen = seen.lock().unwrap().clone();
    (seen, snapshot.running[0].owner)
}

#[tokio::test]
async fn a_removed_lock_file_does_not_prove_that_the_processes_are_dead() {
    let (seen, owner) = take_over_after_the_loss_of(&["lock"]).await;
    assert_eq!((seen, owner), (vec![("j".to_owned(), Some((4242, 7)))], OwnerState::Dead));
}

#[tokio::test]
async fn removed_member_files_do_not_prove_that_the_processes_are_dead() {
    let (seen, owner) = take_over_after_the_loss_of(&["lock", "journal", "json"]).await;
    assert_eq!((seen, owner), (vec![("j".to_owned(), None)], OwnerState::Dead));
}

/// The journal of one dead member may still name an earlier attempt of a run that another one has begun since.
#[tokio::test]
async fn an_attempt_that_did_not_begin_says_nothing_of_the_next_one_on_another_member() {
    let note = |file: &str| BeginNote { file: file.to_owned(), tree: 1 };
    let traces = |file| Traces { begin: Some(note(file)), ..Traces::default() };
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Node::start(dir.path(), "a").await, Node::start(dir.path(), "b").await);
    a.lead().await;
    let run = a.begin("j", 60).await;
    a.solo.journal.begun(&run, Version::FIRST, &traces("begins.a")).unwrap();
    b.solo.journal.begun(&run, Version::FIRST, &traces("begins.b")).unwrap();
    drop((a, b));
    let mut c = Node::start_with(dir.path(), "c", Arc::new(move |_| Ok(BTreeSet::from([note("begins.b")])))).await;
    let (_, snapshot) = c.lead().await;
    let running: Vec<_> = snapshot.running.iter().map(|found| (&found.record, found.owner)).collect();
    assert_eq!(running, [(&run, OwnerState::Dead)]);
}
