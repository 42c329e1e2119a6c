//! Tests of the committer against an in-memory server that loses requests and answers on schedule.

mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::ledger::{Commit, CommitId};
use crate::run::{JobRecord, Version};
use crate::term::NodeName;
use crate::zookeeper::context::{LocalNode, json};
use crate::zookeeper::transaction::tests::{begin, end, mark, name, skip};
use server::{Fate, Right, Server, Ticks, Tree};

const CANDIDATE: &str = "/leader/_c_1-lock-0000000001";

struct Fixture {
    tree: Arc<Mutex<Tree>>,
    committer: Committer<Server, Ticks>,
    answers: BTreeMap<CommitId, Commit>,
    is_fenced: bool,
    deferred: Vec<CommitId>,
    refused: Vec<Damage>,
    mended: Vec<String>,
    last: u64,
}

impl Fixture {
    fn new() -> Self {
        let tree = Arc::new(Mutex::new(Tree::default()));
        for parent in paths::PARENTS.into_iter().chain([CANDIDATE]) {
            tree.lock().unwrap().nodes.insert(parent.into(), (Vec::new(), 0));
        }
        let me = LocalNode {
            node: NodeName::new("host-a"),
            owner: 1,
            prefix: "_c_1-lock-".into(),
            candidate_data: Vec::new(),
        };
        let context = SessionContext::new(Server(Arc::clone(&tree)), Ticks::default(), me);
        Self {
            tree,
            committer: Committer::new(context),
            answers: BTreeMap::new(),
            is_fenced: false,
            deferred: Vec::new(),
            refused: Vec::new(),
            mended: Vec::new(),
            last: 0,
        }
    }

    fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.tree.lock().unwrap().fates.extend(fates);
    }

    fn put(&self, path: String, record: &JobRecord) {
        self.tree.lock().unwrap().nodes.insert(path, (json(record), 0));
    }

    fn request(&mut self, change: Change) -> CommitId {
        self.last += 1;
        let fence = change.is_fenced().then(|| CANDIDATE.to_owned());
        self.answers.extend(self.committer.request(CommitId(self.last), change, fence));
        CommitId(self.last)
    }

    /// Sends what is due and completes one request; false if nothing is in flight.
    fn turn(&mut self) -> bool {
        self.committer.start_next();
        let Some(completed) = self.committer.completed().now_or_never().flatten() else { return false };
        let outcome = self.committer.complete(completed);
        self.is_fenced |= outcome.is_fenced;
        self.deferred.extend(outcome.deferred);
        self.refused.extend(outcome.refused);
        self.mended.extend(outcome.mended);
        for (id, answer) in outcome.answers {
            assert!(self.answers.insert(id, answer).is_none(), "{id:?} was answered twice");
        }
        true
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the commits did not settle");
    }

    fn commit(&mut self, change: Change) -> Commit {
        let id = self.request(change);
        self.settle();
        self.answers[&id]
    }

    fn version(&self, path: &str) -> Option<i32> {
        self.tree.lock().unwrap().version(path)
    }
}

#[test]
fn a_begin_whose_answer_was_lost_began_then() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    assert_eq!(fixture.commit(begin("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/jobs/backup"), Some(1));
}

#[test]
fn an_end_whose_answer_was_lost_ended_then_and_is_counted_once() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.commit(begin("backup", 0, 60, "7-1"));
    fixture.fates([Fate::AnswerLost, Fate::RequestLost, Fate::AnswerLost]);
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/history/backup/backup.19700101T000100Z"), Some(0));
}

#[test]
fn an_end_that_an_earlier_process_had_written_is_accepted() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.commit(begin("backup", 0, 60, "7-1"));
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/history/backup/backup.19700101T000100Z"), Some(0));
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-2")), Commit::Superseded, "another end was written");
}

#[test]
fn a_lost_begin_that_another_leader_forestalled_is_superseded() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::RequestLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    // Another leader begins the same occurrence under its own nonce.
    fixture.tree.lock().unwrap().apply(&crate::zookeeper::transaction::ops(&begin("backup", 0, 60, "9-1"))).unwrap();
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Superseded);
}

#[test]
fn a_written_begin_is_accepted_though_the_candidate_went_before_its_answer() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    fixture.tree.lock().unwrap().nodes.remove(CANDIDATE);
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Accepted, "it is on record, so its owner must end it");
}

#[test]
fn a_begin_whose_answer_was_lost_and_that_others_overwrote_is_unknown() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    // The next term has settled the run, trimmed its history record, and moved the mark.
    {
        let mut tree = fixture.tree.lock().unwrap();
        tree.nodes.remove(CANDIDATE);
        tree.nodes.remove("/cronkeeper/running/backup.19700101T000100Z");
        tree.apply(&crate::zookeeper::transaction::ops(&begin("backup", 1, 120, "9-1"))).unwrap();
    }
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Unknown);
    assert!(fixture.is_fenced, "the term is over nevertheless");
}

/// Found by the simulation: the committer reported it as superseded, and nobody recorded what it skipped.
#[test]
fn a_written_mark_that_others_overwrote_is_unknown_even_if_its_version_failed_first() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(advance("7-1"));
    fixture.turn();
    // The second try fails on the version that the first has made. Its trace is overwritten before the committer looks
    // for it.
    fixture.tree.lock().unwrap().apply(&crate::zookeeper::transaction::ops(&begin("backup", 1, 120, "9-1"))).unwrap();
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Unknown);
}

fn advance(nonce: &str) -> Change {
    Change::Advance { job: name("backup"), at: Some(Version(0)), record: mark(60, nonce), skip: None }
}

#[test]
fn a_begin_that_was_lost_before_the_next_term_moved_the_mark_is_fenced() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::RequestLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    {
        let mut tree = fixture.tree.lock().unwrap();
        tree.nodes.remove(CANDIDATE);
        tree.apply(&crate::zookeeper::transaction::ops(&begin("backup", 0, 60, "9-1"))).unwrap();
    }
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Fenced);
}

#[test]
fn without_the_candidate_the_leaders_changes_are_fenced_and_the_owners_are_written() {
    let mut fixture = Fixture::new();
    for job in ["backup", "other"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    fixture.commit(begin("backup", 0, 60, "7-1"));
    fixture.tree.lock().unwrap().nodes.remove(CANDIDATE);
    let fenced = fixture.request(begin("other", 0, 60, "7-2"));
    let ended = fixture.request(end("backup", 0, 60, "7-1"));
    fixture.settle();
    assert_eq!((fixture.answers[&fenced], fixture.answers[&ended]), (Commit::Fenced, Commit::Accepted));
    assert!(fixture.is_fenced);
    assert_eq!(fixture.version("/cronkeeper/jobs/other"), Some(0));
}

#[test]
fn of_changes_that_share_a_multi_only_the_failed_one_and_its_followers_fail() {
    let mut fixture = Fixture::new();
    for job in ["a", "b", "c"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    let ids = [
        fixture.request(begin("a", 0, 60, "7-1")),
        fixture.request(begin("b", 5, 60, "7-2")),
        fixture.request(begin("b", 6, 120, "7-3")),
        fixture.request(begin("c", 0, 60, "7-4")),
    ];
    fixture.settle();
    let expected = [Commit::Accepted, Commit::Superseded, Commit::Superseded, Commit::Accepted];
    assert_eq!(ids.map(|id| fixture.answers[&id]), expected);
    assert_eq!(fixture.tree.lock().unwrap().multis, 2);
}

/// A pause also changes the job's record, and so can produce the version that a later decision of the chain expects.
#[test]
fn what_depends_on_a_refused_decision_is_refused_although_its_version_exists() {
    let mut fixture = Fixture::new();
    let paused = (json(&mark(0, "1-0")), 1);
    fixture.tree.lock().unwrap().nodes.insert(paths::job(&name("a")), paused);
    let ids = [fixture.request(begin("a", 0, 60, "7-1")), fixture.request(begin("a", 1, 120, "7-2"))];
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Superseded; 2]);
    assert_eq!(fixture.commit(begin("a", 1, 120, "7-3")), Commit::Superseded, "the leader does not know of it yet");
    fixture.committer.read(&name("a"));
    assert_eq!(fixture.commit(begin("a", 1, 180, "7-4")), Commit::Accepted);
}

#[test]
fn waiting_changes_share_a_multi_of_at_most_two_hundred_operations() {
    let mut fixture = Fixture::new();
    for at in 0..500 {
        fixture.put(paths::job(&name(&format!("job-{at}"))), &mark(0, "1-0"));
        fixture.request(begin(&format!("job-{at}"), 0, 60, &format!("7-{at}")));
    }
    fixture.settle();
    assert!(fixture.answers.values().all(|&answer| answer == Commit::Accepted));
    assert_eq!(fixture.tree.lock().unwrap().multis, 6, "500 begins of two operations, 99 per multi besides its fence");
}

#[test]
fn a_trimmed_skip_record_is_recreated() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    let grow = Change::Advance {
        job: name("backup"),
        at: Some(Version(0)),
        record: mark(60, "7-1"),
        skip: Some(crate::ledger::SkipWrite { at: Some(Version(4)), skip: skip("backup", 60), links: Vec::new() }),
    };
    assert_eq!(fixture.commit(grow), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/history/backup/backup.19700101T000100Z"), Some(0));
}

#[test]
fn after_its_term_a_change_is_not_sent_until_the_candidate_is_removed() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::RequestLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    fixture.committer.fence_off(Some(CANDIDATE.into()));
    assert!(!fixture.turn());
    fixture.tree.lock().unwrap().nodes.remove(CANDIDATE);
    fixture.committer.release();
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Fenced);
    assert_eq!(fixture.version("/cronkeeper/jobs/backup"), Some(0));
}

#[test]
fn the_loss_of_the_session_leaves_what_was_sent_unknown_and_keeps_what_was_not() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("a", 0, 60, "7-1"));
    fixture.turn();
    fixture.request(begin("b", 0, 60, "7-2"));
    fixture.request(end("c", 0, 60, "7-3"));
    let (answers, unsent) = fixture.committer.into_rest();
    assert_eq!(answers, [(CommitId(1), Commit::Unknown), (CommitId(2), Commit::Fenced)]);
    assert_eq!(unsent.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [CommitId(3)]);
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Answered), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::RequestLost)]
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever is lost on the way, chains of begins and ends are written once each and answered so.
    #[test]
    fn every_commit_is_written_exactly_once(
        jobs in 1usize..6,
        runs in 1i32..6,
        fates in prop::collection::vec(fate(), 0..60),
        pauses in prop::collection::vec(0usize..4, 0..40),
    ) {
        let mut fixture = Fixture::new();
        let jobs: Vec<String> = (0..jobs).map(|at| format!("job-{at}")).collect();
        for job in &jobs {
            fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        }
        fixture.fates(fates);
        let mut pauses = pauses.into_iter();
        for round in 0..runs {
            for job in &jobs {
                let (second, nonce) = (60 * (i64::from(round) + 1), format!("7-{job}-{round}"));
                fixture.request(begin(job, round, second, &nonce));
                fixture.request(end(job, 0, second, &nonce));
                for _ in 0..pauses.next().unwrap_or(0) {
                    fixture.turn();
                }
            }
        }
        fixture.settle();
        prop_assert_eq!(fixture.answers.len() as u64, fixture.last);
        for (id, answer) in &fixture.answers {
            prop_assert_eq!(*answer, Commit::Accepted, "{:?}", id);
        }
        for job in &jobs {
            prop_assert_eq!(fixture.version(&paths::job(&name(job))), Some(runs));
            let tree = fixture.tree.lock().unwrap();
            let folder = format!("{}/", paths::job_history(&name(job)));
            let ended: Vec<_> = tree.nodes.iter().filter(|(path, _)| path.starts_with(&folder)).collect();
            prop_assert_eq!(ended.len() as i32, runs);
            prop_assert!(ended.iter().all(|(_, (_, version))| *version == 0), "an end was written twice");
        }
    }

    /// An answer always reports what is on record, even if another writer touches the jobs meanwhile.
    #[test]
    fn an_answer_reports_what_is_on_record(
        fates in prop::collection::vec(fate(), 0..40),
        touched in prop::collection::vec((0usize..6, 0usize..5), 0..6),
    ) {
        let mut fixture = Fixture::new();
        let jobs: Vec<String> = (0..6).map(|at| format!("job-{at}")).collect();
        for job in &jobs {
            fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        }
        fixture.fates(fates);
        let ids: Vec<_> = jobs.iter().map(|job| fixture.request(begin(job, 0, 60, &format!("7-{job}")))).collect();
        for (job, turns) in touched {
            for _ in 0..turns {
                fixture.turn();
            }
            let path = paths::job(&name(&jobs[job]));
            if let Some((_, version)) = fixture.tree.lock().unwrap().nodes.get_mut(&path) {
                *version += 1;
            }
        }
        fixture.settle();
        for (job, id) in jobs.iter().zip(ids) {
            let is_there = fixture.version(&format!("/cronkeeper/running/{job}.19700101T000100Z")).is_some();
            let expected = if is_there { Commit::Accepted } else { Commit::Superseded };
            prop_assert_eq!(fixture.answers[&id], expected, "{}", job);
        }
    }
}

impl Fixture {
    fn close(&self, path: &str, right: Right) {
        self.tree.lock().unwrap().closed.insert((path.to_owned(), right));
    }

    fn open(&self, path: &str, right: Right) {
        self.tree.lock().unwrap().closed.remove(&(path.to_owned(), right));
    }

    /// Settles repeatedly, as time passes, until this change is answered.
    fn await_answer(&mut self, id: CommitId) -> Option<Commit> {
        for _ in 0..200 {
            self.settle();
            if let Some(&answer) = self.answers.get(&id) {
                return Some(answer);
            }
        }
        None
    }
}

#[test]
fn a_change_that_the_server_refuses_is_deferred_and_holds_up_its_own_job_only() {
    let mut fixture = Fixture::new();
    for job in ["a", "b", "c"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    fixture.close("/cronkeeper/jobs/b", Right::Write);
    let ids = [
        fixture.request(begin("a", 0, 60, "7-1")),
        fixture.request(begin("b", 0, 60, "7-2")),
        fixture.request(begin("b", 1, 120, "7-3")),
        fixture.request(begin("c", 0, 60, "7-4")),
    ];
    fixture.settle();
    let accepted = Some(&Commit::Accepted);
    assert_eq!(ids.map(|id| fixture.answers.get(&id)), [accepted, None, None, accepted]);
    assert_eq!(fixture.deferred, [ids[1]], "it is reported once");
    assert_eq!(fixture.refused.iter().map(|damage| damage.path.as_str()).next(), Some("/cronkeeper/jobs/b"));
    assert_eq!(fixture.commit(begin("a", 1, 120, "7-5")), Commit::Accepted, "other jobs go on");

    fixture.open("/cronkeeper/jobs/b", Right::Write);
    assert_eq!(fixture.await_answer(ids[2]), Some(Commit::Accepted));
    assert_eq!((fixture.answers[&ids[1]], fixture.version("/cronkeeper/jobs/b")), (Commit::Accepted, Some(2)));
    assert_eq!(fixture.mended, ["/cronkeeper/jobs/b"]);
}

#[test]
fn a_refused_change_is_retried_after_growing_pauses() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.close("/cronkeeper/running", Right::Write);
    let id = fixture.request(begin("a", 0, 60, "7-1"));
    assert_eq!(fixture.await_answer(id), None);
    let (multis, seconds) = (fixture.tree.lock().unwrap().multis, fixture.committer.context.clock.now().up);
    assert!(multis < 15, "{multis} tries in {seconds:?}");
    assert!(fixture.refused.iter().all(|damage| damage.path == "/cronkeeper/running"), "{:?}", fixture.refused);
}

#[test]
fn many_refused_jobs_leave_room_for_the_others() {
    let mut fixture = Fixture::new();
    let jobs: Vec<String> = (0..20).map(|at| format!("job-{at}")).collect();
    for job in &jobs {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        fixture.close(&format!("/cronkeeper/jobs/{job}"), Right::Write);
        fixture.request(begin(job, 0, 60, &format!("7-{job}")));
    }
    fixture.settle();
    fixture.put(paths::job(&name("other")), &mark(0, "1-0"));
    assert_eq!(fixture.commit(begin("other", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.answers.len(), 1);
}

#[test]
fn a_written_begin_is_accepted_though_its_path_was_closed_before_its_answer() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("a", 0, 60, "7-1"));
    fixture.turn();
    fixture.close("/cronkeeper/jobs/a", Right::Write);
    fixture.close("/cronkeeper/jobs/a", Right::Read);
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Accepted, "the run's own record proves it");
}

/// If the fate of a group cannot be found out, it stays unknown for each of its changes, also for one that was deferred
/// meanwhile.
#[test]
fn changes_split_off_a_group_of_unknown_fate_stay_unknown() {
    let mut fixture = Fixture::new();
    for job in ["a", "b"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    fixture.fates([Fate::AnswerLost]);
    let ids = [fixture.request(begin("a", 0, 60, "7-1")), fixture.request(begin("b", 0, 60, "7-2"))];
    fixture.turn();
    for job in ["a", "b"] {
        let mut tree = fixture.tree.lock().unwrap();
        tree.nodes.remove(&format!("/cronkeeper/running/{job}.19700101T000100Z"));
        tree.apply(&crate::zookeeper::transaction::ops(&begin(job, 1, 120, "9-1"))).unwrap();
    }
    fixture.close("/cronkeeper/jobs/a", Right::Write);
    fixture.settle();
    assert_eq!((fixture.answers.get(&ids[0]), fixture.answers.get(&ids[1])), (None, Some(&Commit::Unknown)));
    fixture.open("/cronkeeper/jobs/a", Right::Write);
    assert_eq!(fixture.await_answer(ids[0]), Some(Commit::Unknown));
}

#[test]
fn the_end_of_a_term_does_not_wait_for_refused_changes() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.close("/cronkeeper/jobs/a", Right::Write);
    let ids = [fixture.request(begin("a", 0, 60, "7-1")), fixture.request(begin("a", 1, 120, "7-2"))];
    fixture.settle();
    assert!(!fixture.committer.has_fenced());
    let answers = fixture.committer.fence_off(Some(CANDIDATE.into()));
    assert_eq!(answers, ids.map(|id| (id, Commit::Fenced)));
}

#[test]
fn a_refused_change_is_given_up_before_too_many_wait_behind_it() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.close("/cronkeeper/jobs/a", Right::Write);
    for at in 0..300 {
        fixture.request(begin("a", at, 60 + i64::from(at), &format!("7-{at}")));
        fixture.settle();
    }
    assert!(fixture.answers.values().all(|&answer| answer == Commit::Superseded));
    assert_eq!(fixture.answers.len(), 300, "and all that depend on it, until the job is read");
    assert!(fixture.committer.waiting.iter().next().is_none() && fixture.committer.deferred.is_empty());
}

#[test]
fn a_candidate_that_is_closed_to_its_own_node_ends_the_term() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.close(CANDIDATE, Right::Read);
    assert_eq!(fixture.commit(begin("a", 0, 60, "7-1")), Commit::Fenced);
    assert!(fixture.is_fenced);
}

/// After 2^31 - 1 the servers stop counting and answer that the node exists.
#[test]
fn a_parent_without_free_sequence_numbers_causes_no_busy_loop_of_ends_that_leave_links() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.commit(begin("a", 0, 60, "7-1"));
    let stuck = paths::under(paths::TRIGGERS, "");
    fixture.tree.lock().unwrap().nodes.insert(stuck.clone(), (Vec::new(), 0));
    let mut change = end("a", 0, 60, "7-1");
    if let Change::End { end, .. } = &mut change {
        end.run.dependents = vec![name("b")];
    }
    let id = fixture.request(change);
    fixture.settle();
    assert_eq!(fixture.answers.get(&id), None);
    assert_eq!(fixture.deferred, [id]);
    fixture.tree.lock().unwrap().nodes.remove(&stuck);
    assert_eq!(fixture.await_answer(id), Some(Commit::Accepted));
}
