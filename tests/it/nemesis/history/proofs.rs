//! Tests that every violation of a promise is detected: the sound history of a small cluster, and variants of it.

use cronkeeper_cluster::zookeeper::client::Mode;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{JobRecord, Nonce, RunId};
use cronkeeper_core::term::{FencingToken, SessionId};
use serde::Serialize;

use super::*;
use crate::ledger::txn::Change;
use crate::zookeeper::fixture;

/// The time at which the first term opens.
const BEGIN: i64 = 1_795_132_800;
/// The zxids of the writes that create the candidates, which are the tokens.
const FIRST: i64 = 1;
const SECOND: i64 = 2;

/// Two terms. In each, `tick` runs once; the second run begins two seconds after the first.
struct SoundHistory {
    work: Work,
    seen: Vec<Entry>,
    committed: Vec<Txn>,
    still: Vec<Span>,
}

impl SoundHistory {
    fn new() -> Self {
        let mut history = Self { work: Work::new(), seen: Vec::new(), committed: Vec::new(), still: Vec::new() };
        history.commit(0, vec![create("/leader/a", &())]);
        history.commit(0, vec![create("/leader/b", &())]);
        history.commit(0, vec![check("a"), set("/leader", &())]);
        history.commit(0, vec![check("a"), create("/cronkeeper/jobs/tick", &history.mark(0))]);
        history.begin("a", FIRST, 1);
        history.start(FIRST, 1);
        history.end(FIRST, 1);
        history.commit(2_500, vec![check("b"), set("/leader", &())]);
        history.skip(2, SkipReason::Overlap);
        history.begin("b", SECOND, 3);
        history.start(SECOND, 3);
        history.end(SECOND, 3);
        history
    }

    fn broken(self) -> Vec<String> {
        self.judged().that_counts(false)
    }

    fn judged(self) -> Broken {
        let horizon = at(10);
        History::new(self.seen, self.committed, self.still, horizon).broken(&self.work)
    }

    fn assert_broken(self, by: &str) {
        let broken = self.broken();
        assert!(broken.iter().any(|what| what.contains(by)), "{broken:#?}");
    }

    fn commit(&mut self, after_ms: i64, ops: Vec<Op>) {
        let zxid = self.committed.len() as i64 + 1;
        let time_ms = BEGIN * 1_000 + after_ms;
        self.committed.push(Txn { zxid, time_ms, session: 1, change: Change::Ops(ops) });
    }

    fn begin(&mut self, candidate: &str, token: i64, second: i64) {
        let record = create(&running(second), &record(token, second));
        let mark = set("/cronkeeper/jobs/tick", &self.mark(second));
        self.commit(second * 1_000, vec![check(candidate), mark, record]);
    }

    fn end(&mut self, token: i64, second: i64) {
        let end = RunEnd::unseen(&record(token, second), Outcome::Success, None, at(second));
        self.seen.push(line(Mark::End, token, second, 400));
        let history = format!("/cronkeeper/history/tick/{}", id(second));
        let delete = Op::Delete { path: running(second), version: 0 };
        self.commit(second * 1_000 + 500, vec![delete, create(&history, &HistoryRecord::Run(end))]);
    }

    fn skip(&mut self, second: i64, reason: SkipReason) {
        let skip = fixture::skip("tick", BEGIN + second, reason, "b", FencingToken(SECOND));
        let mark = set("/cronkeeper/jobs/tick", &self.mark(second));
        let history = format!("/cronkeeper/history/tick/{}.skip", id(second));
        self.commit(second * 1_000 + 600, vec![check("b"), mark, create(&history, &HistoryRecord::Skip(skip))]);
    }

    fn start(&mut self, token: i64, second: i64) {
        self.seen.push(line(Mark::Start, token, second, 100));
    }

    fn mark(&self, second: i64) -> JobRecord {
        let schedule = Some(self.work.jobs.jobs[&tick()].schedule_digest(at(second)));
        JobRecord { schedule, ..JobRecord::new(at(second), Nonce(second.to_string())) }
    }

    /// The line of the first run's begin.
    fn first_start(&mut self) -> &mut Entry {
        &mut self.seen[0]
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(BEGIN + second).unwrap()
}

fn tick() -> JobName {
    JobName::parse("tick").unwrap()
}

fn id(second: i64) -> RunId {
    RunId::scheduled(tick(), at(second))
}

fn running(second: i64) -> String {
    format!("/cronkeeper/running/{}", id(second))
}

fn check(candidate: &str) -> Op {
    Op::Check { path: format!("/leader/{candidate}"), version: 0 }
}

fn create(path: &str, data: &impl Serialize) -> Op {
    Op::Create { path: path.into(), data: serde_json::to_vec(data).unwrap(), mode: Mode::Persistent }
}

fn set(path: &str, data: &impl Serialize) -> Op {
    Op::Set { path: path.into(), data: serde_json::to_vec(data).unwrap(), version: -1 }
}

fn record(token: i64, second: i64) -> RunRecord {
    let run = fixture::run("tick", BEGIN + second, "node", &SessionId("0x1".into()), FencingToken(token));
    RunRecord { nonce: Nonce(format!("{token}-{second}")), ..run }
}

fn line(mark: Mark, token: i64, second: i64, after_ms: i64) -> Entry {
    Entry {
        mark,
        job: "tick".into(),
        run: id(second).to_string(),
        attempt: 1,
        scheduled_at: at(second).to_string(),
        node: "node".into(),
        token,
        pid: 1,
        at_ns: (i128::from(BEGIN + second) * 1_000 + i128::from(after_ms)) * 1_000_000,
    }
}

#[test]
fn nothing_is_wrong_with_a_sound_history() {
    assert_eq!(SoundHistory::new().broken(), [""; 0]);
}

#[test]
fn an_attempt_that_begins_twice_is_seen() {
    let mut history = SoundHistory::new();
    history.start(FIRST, 1);
    history.assert_broken("Twice");
}

#[test]
fn an_occurrence_that_is_begun_twice_on_record_is_seen() {
    let mut history = SoundHistory::new();
    history.commit(4_000, vec![check("b"), create(&running(3), &record(SECOND, 3))]);
    history.assert_broken("begun a second time");
}

#[test]
fn an_overlap_is_seen_and_excused_only_while_a_whole_node_stood_still() {
    let overlapping = |still: Vec<Span>| {
        let mut history = SoundHistory::new();
        history.seen.push(line(Mark::Overlap, SECOND, 3, 50));
        history.still = still;
        history
    };
    overlapping(Vec::new()).assert_broken("Overlap");
    overlapping(vec![Span { from: at(0), to: at(0) }]).assert_broken("Overlap");
    assert_eq!(overlapping(vec![Span { from: at(0), to: at(2) }]).broken(), [""; 0]);
}

#[test]
fn an_occurrence_without_run_and_without_word_is_seen() {
    let mut history = SoundHistory::new();
    history.begin("b", SECOND, 5);
    history.end(SECOND, 5);
    history.assert_broken("passes 2 occurrences");
}

#[test]
fn a_run_without_end_is_seen() {
    let mut history = SoundHistory::new();
    history.begin("b", SECOND, 4);
    history.assert_broken("has 0 ends");
}

#[test]
fn a_run_with_two_ends_is_seen() {
    let mut history = SoundHistory::new();
    history.end(SECOND, 3);
    history.assert_broken("has 2 ends");
}

/// A node has written the end again, and no log tells which of the two was lost.
#[test]
fn of_what_the_servers_have_lost_only_the_jobs_can_tell() {
    let mut history = SoundHistory::new();
    history.end(SECOND, 3);
    assert_eq!(history.judged().that_counts(true), [""; 0]);
    let mut history = SoundHistory::new();
    history.start(SECOND, 3);
    assert!(!history.judged().that_counts(true).is_empty(), "an attempt began twice");
}

#[test]
fn what_is_missed_though_it_was_to_be_made_up_for_is_seen() {
    let mut history = SoundHistory::new();
    history.skip(4, SkipReason::Missed);
    history.assert_broken("missed within its window");
}

#[test]
fn a_token_that_goes_back_at_the_resource_is_seen() {
    let mut history = SoundHistory::new();
    history.seen.rotate_left(2);
    history.assert_broken("TokenWentBack");
}

#[test]
fn a_write_of_a_former_leader_is_seen() {
    let mut history = SoundHistory::new();
    history.begin("a", FIRST, 4);
    history.assert_broken("fenced by the token 1");
}

#[test]
fn a_start_after_the_end_of_its_nodes_lease_is_seen() {
    let mut history = SoundHistory::new();
    let in_time = 2_500 + 1_900;
    history.first_start().at_ns = line(Mark::Start, FIRST, 0, in_time).at_ns;
    assert_eq!(history.broken(), [""; 0]);
    let mut history = SoundHistory::new();
    history.first_start().at_ns = line(Mark::Start, FIRST, 0, in_time + 200).at_ns;
    history.assert_broken("then began");
}

#[test]
fn a_program_that_stood_still_before_its_first_line_is_no_late_start_unless_it_was_due_only_then() {
    let late = 2_500 + 6_000;
    for (stood_from, is_fine) in [(500, true), (-500, false)] {
        let mut history = SoundHistory::new();
        let begin = |ms: i64| at(FIRST) + SignedDuration::from_millis(ms);
        history.still.push(Span { from: begin(stood_from), to: begin(late - 10) });
        history.first_start().at_ns = line(Mark::Start, FIRST, 0, late).at_ns;
        let starts = history.broken().into_iter().filter(|what| what.contains("then began"));
        assert_eq!(starts.count() == 0, is_fine, "{stood_from}");
    }
}

#[test]
fn a_start_that_is_not_on_record_is_seen() {
    type Change = fn(&mut Entry);
    let changes: [Change; 4] = [
        |start| start.run = id(9).to_string(),
        |start| start.node = "another".into(),
        |start| start.attempt = 2,
        |start| start.at_ns = line(Mark::Start, FIRST, 0, 0).at_ns,
    ];
    for change in changes {
        let mut history = SoundHistory::new();
        change(history.first_start());
        history.assert_broken("not on record as it began");
    }
}

#[test]
fn a_success_that_nobody_saw_is_seen() {
    for mark in [Mark::Start, Mark::End] {
        let mut history = SoundHistory::new();
        history.seen.retain(|entry| (entry.mark, entry.token) != (mark, FIRST));
        history.assert_broken("was not seen");
    }
}
