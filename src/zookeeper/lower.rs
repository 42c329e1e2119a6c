//! A [`Change`] as operations of a multi, and how to know afterwards that it was written.
//!
//! Pure. The fence, a check of the own candidate, is not among the operations: a group of changes shares one.

use serde::de::DeserializeOwned;

use super::client::{Mode, Op};
use super::desk::json;
use super::{paths, wishes};
use crate::ledger::Change;
use crate::run::{HistoryRecord, JobRecord, Link, Nonce, RunRecord, RunState, Skip, TriggerSeq, Version};

/// The operations of a change, in order.
pub fn ops(change: &Change) -> Vec<Op> {
    let mut ops = own_ops(change);
    ops.extend(leave(&change.links()));
    ops
}

/// Words for jobs that run after others, and the sign that there are some.
fn leave(links: &[Link]) -> impl Iterator<Item = Op> {
    let path = || paths::under(paths::TRIGGERS, "");
    let create = move |link| Op::Create { path: path(), data: json(link), mode: Mode::PersistentSequential };
    links.iter().map(create).chain((!links.is_empty()).then(|| wishes::ring(paths::TRIGGERS)))
}

fn own_ops(change: &Change) -> Vec<Op> {
    match change {
        Change::Advance { job, at, record, skip } => {
            let mut ops = vec![write(paths::job(job), json(record), *at)];
            ops.extend(skip.as_ref().map(|skip| say(&skip.skip, skip.at)));
            ops
        }
        Change::Begin { at, record, run } => {
            vec![
                write(paths::job(&run.job), json(record), Some(*at)),
                write(paths::running(&run.id()), json(run), None),
            ]
        }
        Change::Fulfil { run } => {
            let mut ops = vec![write(paths::running(&run.id()), json(run), None)];
            ops.extend(run.trigger.as_ref().map(|trigger| take_away(trigger.seq)));
            ops
        }
        Change::Dismiss { seq, skip, .. } => {
            std::iter::once(take_away(*seq)).chain(skip.as_ref().map(|skip| say(skip, None))).collect()
        }
        Change::Follow { mark, run, links } => {
            let mark = mark.as_ref().map(|(at, record)| write(paths::job(&run.job), json(record), Some(*at)));
            let begin = write(paths::running(&run.id()), json(run), None);
            mark.into_iter().chain([begin]).chain(links.iter().copied().map(take_away)).collect()
        }
        Change::Forgo { links, skip, .. } => {
            let taken = links.iter().copied().map(take_away);
            taken.chain(skip.as_ref().map(|skip| say(skip, None))).collect()
        }
        Change::Resume { job, control, mark, skip } => {
            let mark = mark.as_ref().map(|(at, record)| write(paths::job(job), json(record), *at));
            let lift = Op::Delete { path: paths::control(job), version: control.0 };
            mark.into_iter().chain([lift]).chain(skip.as_ref().map(|skip| say(&skip.skip, skip.at))).collect()
        }
        Change::Settle { at, run } | Change::Reown { at, run } | Change::Kill { at, run } => {
            vec![write(paths::running(&run.id()), json(run), Some(*at))]
        }
        Change::End { at, end, .. } => vec![
            Op::Delete { path: paths::running(&end.run.id()), version: at.0 },
            write(paths::history(&end.run.id()), json(&HistoryRecord::Run(end.clone())), None),
        ],
    }
}

fn take_away(trigger: TriggerSeq) -> Op {
    Op::Delete { path: paths::trigger(trigger), version: -1 }
}

fn say(skip: &Skip, at: Option<Version>) -> Op {
    write(paths::history(&skip.id()), json(&HistoryRecord::Skip(skip.clone())), at)
}

fn write(path: String, data: Vec<u8>, at: Option<Version>) -> Op {
    match at {
        Some(Version(version)) => Op::Set { path, data, version },
        None => Op::Create { path, data, mode: Mode::Persistent },
    }
}

/// True when the change was decided in a term other than that of `token`: it says which by the token in its record.
pub fn is_of_another_term(change: &Change, token: i64) -> bool {
    match change {
        Change::Begin { run, .. } | Change::Fulfil { run } | Change::Follow { run, .. } => run.token.0 != token,
        Change::Settle { run, .. } => run.state == RunState::Running && run.token.0 != token,
        Change::Advance { .. }
        | Change::Dismiss { .. }
        | Change::Forgo { .. }
        | Change::Resume { .. }
        | Change::Reown { .. }
        | Change::Kill { .. }
        | Change::End { .. } => false,
    }
}

/// What an own write leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Where.
    pub path: String,
    /// What.
    pub mark: Mark,
    /// The version it was written at, where what stands at the path is never removed and made again; absent: nothing follows
    /// from what stands there otherwise.
    pub base: Option<Base>,
}

/// What a write rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// That there is nothing yet.
    Absent,
    /// This version.
    Version(Version),
}

/// How an own write is told from another's.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// A nonce, drawn for this one decision: it proves the whole multi.
    Nonce(Nonce),
    /// The record as written. Another may have written the same, so it proves this change alone.
    Record(Vec<u8>),
}

/// Where to look for a change, each place enough by itself.
pub fn traces(change: &Change) -> Vec<Trace> {
    let nonce = |path, nonce: &Nonce, base| Trace { path, mark: Mark::Nonce(nonce.clone()), base };
    let record = |path, record, base| Trace { path, mark: Mark::Record(record), base };
    match change {
        Change::Advance { job, at, record, .. } => {
            let base = at.map_or(Base::Absent, Base::Version);
            vec![nonce(paths::job(job), &record.nonce, Some(base))]
        }
        Change::Begin { at, record, run } => vec![
            nonce(paths::job(&run.job), &record.nonce, Some(Base::Version(*at))),
            nonce(paths::running(&run.id()), &run.nonce, None),
            nonce(paths::history(&run.id()), &run.nonce, None),
        ],
        Change::Fulfil { run } => {
            vec![nonce(paths::running(&run.id()), &run.nonce, None), nonce(paths::history(&run.id()), &run.nonce, None)]
        }
        Change::Follow { mark, run, .. } => {
            let mark =
                mark.iter().map(|(at, record)| nonce(paths::job(&run.job), &record.nonce, Some(Base::Version(*at))));
            let run_at = [paths::running(&run.id()), paths::history(&run.id())];
            mark.chain(run_at.map(|path| nonce(path, &run.nonce, None))).collect()
        }
        Change::Dismiss { skip, .. } | Change::Forgo { skip, .. } => {
            let skip = skip.iter().map(|skip| (paths::history(&skip.id()), HistoryRecord::Skip(skip.clone())));
            skip.map(|(path, skip)| record(path, json(&skip), None)).collect()
        }
        Change::Resume { job, mark, .. } => {
            let mark = mark.iter().map(|(at, written)| (written, at.map_or(Base::Absent, Base::Version)));
            mark.map(|(written, base)| nonce(paths::job(job), &written.nonce, Some(base))).collect()
        }
        Change::Settle { at, run } | Change::Reown { at, run } | Change::Kill { at, run } => {
            vec![record(paths::running(&run.id()), json(run), Some(Base::Version(*at)))]
        }
        Change::End { end, .. } => {
            vec![record(paths::history(&end.run.id()), json(&HistoryRecord::Run(end.clone())), None)]
        }
    }
}

impl Base {
    /// True when what stands, and is not the own write, shows that the own one was never carried out: the version it would have made
    /// was not reached, or is another's. A later version shows nothing, the own write may be under it.
    pub fn is_unwritten(self, found: Option<Version>) -> bool {
        match (self, found) {
            (Self::Absent, None) => true,
            (Self::Absent, Some(found)) => found == Version::FIRST,
            (Self::Version(at), Some(found)) => found <= at.next(),
            (Self::Version(_), None) => false,
        }
    }
}

impl Mark {
    /// True when what was found is the own write.
    pub fn is_in(&self, data: &[u8]) -> bool {
        match self {
            Self::Record(record) => record == data,
            Self::Nonce(nonce) => nonces(data).contains(nonce),
        }
    }
}

fn nonces(data: &[u8]) -> Vec<Nonce> {
    fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
        serde_json::from_slice(data).ok()
    }
    let job = read::<JobRecord>(data).map(|record| record.nonce);
    let run = read::<RunRecord>(data).map(|record| record.nonce);
    let ended = match read::<HistoryRecord>(data) {
        Some(HistoryRecord::Run(end)) => Some(end.run.nonce),
        Some(HistoryRecord::Skip(_)) | None => None,
    };
    [job, run, ended].into_iter().flatten().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;

    use uuid::Uuid;

    use super::*;
    use crate::job::JobName;
    use crate::ledger::SkipWrite;
    use crate::run::{Answer, Note, OnLoss, Outcome, Owner, Past, RunEnd, SkipReason, Trigger};
    use crate::term::{FencingToken, NodeName, SessionId};

    pub fn name(job: &str) -> JobName {
        JobName::parse(job).unwrap()
    }

    pub fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    pub fn mark(second: i64, nonce: &str) -> JobRecord {
        JobRecord { v: 1, last_scheduled: at(second), counted: None, schedule: None, nonce: Nonce(nonce.into()) }
    }

    pub fn run(job: &str, second: i64, nonce: &str) -> RunRecord {
        RunRecord {
            v: 1,
            job: name(job),
            scheduled_at: at(second),
            trigger: None,
            state: RunState::Running,
            owner: Owner { node: NodeName::new("host-a"), session: SessionId("0x1".into()) },
            token: FencingToken(7),
            attempt: 1,
            nonce: Nonce(nonce.into()),
            begun_at: at(second),
            on_loss: OnLoss::CutOff,
            keep_until: None,
            retry_at: None,
            past: Past::default(),
            dependents: Vec::new(),
            kill: None,
        }
    }

    pub fn begin(job: &str, version: i32, second: i64, nonce: &str) -> Change {
        Change::Begin { at: Version(version), record: mark(second, nonce), run: run(job, second, nonce) }
    }

    pub fn end(job: &str, version: i32, second: i64, nonce: &str) -> Change {
        let end = RunEnd {
            v: 1,
            run: run(job, second, nonce),
            outcome: Outcome::Success,
            reason: None,
            exit_code: Some(0),
            signal: None,
            ended_at: at(second + 1),
            duration_ms: Some(1000),
            leftovers: 0,
            tail: String::new(),
            dropped_bytes: 0,
        };
        Change::End { at: Version(version), end, as_leader: false }
    }

    pub fn skip(job: &str, second: i64) -> Skip {
        Skip {
            v: 1,
            job: name(job),
            reason: SkipReason::Missed,
            first: at(second),
            last: at(second),
            count: 1,
            trigger: None,
            token: FencingToken(7),
            node: NodeName::new("host-a"),
            decided_at: at(second),
        }
    }

    fn shape(op: &Op) -> String {
        match op {
            Op::Check { path, version } => format!("check {path} {version}"),
            Op::Create { path, .. } => format!("create {path}"),
            Op::Set { path, version, .. } => format!("set {path} {version}"),
            Op::Delete { path, version } => format!("delete {path} {version}"),
        }
    }

    fn shapes(change: &Change) -> Vec<String> {
        ops(change).iter().map(shape).collect()
    }

    #[test]
    fn begin_moves_the_mark_and_makes_the_run() {
        let expected = ["set /cronkeeper/jobs/backup 4", "create /cronkeeper/running/backup.19700101T000100Z"];
        assert_eq!(shapes(&begin("backup", 4, 60, "7-1")), expected);
    }

    #[test]
    fn end_removes_the_run_at_its_version_and_makes_its_history() {
        let expected = [
            "delete /cronkeeper/running/backup.19700101T000100Z 2",
            "create /cronkeeper/history/backup/backup.19700101T000100Z",
        ];
        assert_eq!(shapes(&end("backup", 2, 60, "7-1")), expected);
    }

    #[test]
    fn a_skip_and_the_mark_that_covers_it_share_a_multi() {
        let write = |at| SkipWrite { at, skip: skip("backup", 60), links: Vec::new() };
        let first = Change::Advance { job: name("backup"), at: None, record: mark(60, "7-1"), skip: Some(write(None)) };
        let expected = ["create /cronkeeper/jobs/backup", "create /cronkeeper/history/backup/backup.19700101T000100Z"];
        assert_eq!(shapes(&first), expected);
        let later = Change::Advance {
            job: name("backup"),
            at: Some(Version(3)),
            record: mark(120, "7-2"),
            skip: Some(write(Some(Version::FIRST))),
        };
        let expected = ["set /cronkeeper/jobs/backup 3", "set /cronkeeper/history/backup/backup.19700101T000100Z 0"];
        assert_eq!(shapes(&later), expected);
    }

    #[test]
    fn settle_and_reown_set_the_run_at_its_version() {
        let run = run("backup", 60, "7-1");
        let expected = ["set /cronkeeper/running/backup.19700101T000100Z 5"];
        assert_eq!(shapes(&Change::Settle { at: Version(5), run: run.clone() }), expected);
        assert_eq!(shapes(&Change::Kill { at: Version(5), run: run.clone() }), expected);
        assert_eq!(shapes(&Change::Reown { at: Version(5), run }), expected);
    }

    fn fulfil(job: &str, second: i64, nonce: &str) -> Change {
        let trigger = Trigger { seq: TriggerSeq(3), uuid: Uuid::from_u128(1), by: "alice".into() };
        Change::Fulfil { run: RunRecord { trigger: Some(trigger), ..run(job, second, nonce) } }
    }

    #[test]
    fn a_triggers_run_is_made_in_the_triggers_place_and_moves_no_mark() {
        let expected =
            ["create /cronkeeper/running/backup.19700101T000100Z.m3", "delete /cronkeeper/triggers/0000000003 -1"];
        assert_eq!(shapes(&fulfil("backup", 60, "7-1")), expected);
    }

    #[test]
    fn a_triggers_run_is_known_by_its_nonce_in_the_run_and_the_history() {
        let ours = fulfil("backup", 60, "7-1");
        let Change::Fulfil { run } = &ours else { unreachable!() };
        let end = RunEnd::unseen(run, Outcome::Success, None, at(61));
        let ended = Change::End { at: Version::FIRST, end, as_leader: false };
        for trace in traces(&ours) {
            let source = if trace.path.contains("history") { &ended } else { &ours };
            assert!(trace.mark.is_in(&written(source, &trace.path)), "{}", trace.path);
            assert!(!trace.mark.is_in(&json(&self::run("backup", 60, "9-1"))));
        }
        assert!(is_of_another_term(&ours, 9) && !is_of_another_term(&ours, 7));
    }

    #[test]
    fn a_trigger_that_leads_to_no_run_leaves_its_reason() {
        let seq = TriggerSeq(3);
        let skip =
            Skip { trigger: Some(Trigger { seq, uuid: Uuid::from_u128(1), by: "alice".into() }), ..skip("backup", 60) };
        let expected = [
            "delete /cronkeeper/triggers/0000000003 -1",
            "create /cronkeeper/history/backup/backup.19700101T000100Z.m3",
        ];
        assert_eq!(
            shapes(&Change::Dismiss { job: name("backup"), seq, skip: Some(skip), links: Vec::new() }),
            expected
        );
        assert_eq!(shapes(&Change::Dismiss { job: name("backup"), seq, skip: None, links: Vec::new() }), expected[..1]);
    }

    #[test]
    fn a_resume_moves_the_mark_takes_the_pause_away_and_says_what_passed() {
        let resume = |mark, skip| Change::Resume { job: name("backup"), control: Version(2), mark, skip };
        let whole = resume(
            Some((Some(Version(4)), mark(120, "7-1"))),
            Some(SkipWrite { at: Some(Version(5)), skip: skip("backup", 60), links: Vec::new() }),
        );
        let expected = [
            "set /cronkeeper/jobs/backup 4",
            "delete /cronkeeper/control/backup 2",
            "set /cronkeeper/history/backup/backup.19700101T000100Z 5",
        ];
        assert_eq!(shapes(&whole), expected);
        assert!(traces(&whole)[0].mark.is_in(&written(&whole, "/cronkeeper/jobs/backup")));
        assert_eq!(shapes(&resume(None, None)), expected[1..2]);
    }

    #[test]
    fn an_end_leaves_a_word_for_each_job_that_runs_after_it_and_rings() {
        let Change::End { at, mut end, .. } = end("backup", 2, 60, "7-1") else { unreachable!() };
        end.run.dependents = vec![name("check"), name("report")];
        let change = Change::End { at, end, as_leader: false };
        let expected = [
            "delete /cronkeeper/running/backup.19700101T000100Z 2",
            "create /cronkeeper/history/backup/backup.19700101T000100Z",
            "create /cronkeeper/triggers/",
            "create /cronkeeper/triggers/",
            "set /cronkeeper/triggers -1",
        ];
        assert_eq!(shapes(&change), expected);
        let Op::Create { data, mode: Mode::PersistentSequential, .. } = &ops(&change)[3] else { panic!("{change:?}") };
        let Ok(Note::Link(link)) = Note::read(data) else { panic!("{data:?}") };
        assert_eq!(link.run().to_string(), "report.19700101T000100Z");
        assert_eq!((link.upstream, link.answer), (name("backup"), Answer::Success));
    }

    #[test]
    fn a_run_that_follows_others_is_made_in_the_place_of_their_words_and_known_by_its_nonce() {
        let links = vec![TriggerSeq(3), TriggerSeq(4)];
        let mark = Some((Version(4), mark(60, "7-1")));
        let follow = |mark| Change::Follow { mark, run: run("report", 60, "7-1"), links: links.clone() };
        let expected = [
            "set /cronkeeper/jobs/report 4",
            "create /cronkeeper/running/report.19700101T000100Z",
            "delete /cronkeeper/triggers/0000000003 -1",
            "delete /cronkeeper/triggers/0000000004 -1",
        ];
        assert_eq!(shapes(&follow(mark.clone())), expected);
        assert_eq!(shapes(&follow(None)), expected[1..]);
        let follow = follow(mark);
        for trace in traces(&follow).iter().take(2) {
            assert!(trace.mark.is_in(&written(&follow, &trace.path)), "{}", trace.path);
        }
        assert!(is_of_another_term(&follow, 9) && !is_of_another_term(&follow, 7));
    }

    #[test]
    fn a_run_that_is_given_up_says_why_and_tells_those_behind() {
        let skip = skip("report", 60);
        let onward = Link::of_skip(&skip, skip.first, 1, Answer::Skipped, &[name("mail")]);
        let links = vec![TriggerSeq(3)];
        let expected = [
            "delete /cronkeeper/triggers/0000000003 -1",
            "create /cronkeeper/history/report/report.19700101T000100Z",
            "create /cronkeeper/triggers/",
            "set /cronkeeper/triggers -1",
        ];
        assert_eq!(shapes(&Change::Forgo { job: name("report"), links, skip: Some(skip), onward }), expected);
    }

    #[test]
    fn the_largest_step_of_a_chain_fits_a_multi() {
        let many: Vec<_> = (0..64).map(|number| name(&format!("job-{number}"))).collect();
        let links = (0..64).map(TriggerSeq).collect();
        let skip = skip("report", 60);
        let onward = Link::of_skip(&skip, skip.first, 1, Answer::Skipped, &many);
        let largest = Change::Forgo { job: name("report"), links, skip: Some(skip), onward };
        assert!(ops(&largest).len() < 200);
    }

    fn written(change: &Change, path: &str) -> Vec<u8> {
        ops(change)
            .into_iter()
            .find_map(|op| match op {
                Op::Create { path: at, data, .. } | Op::Set { path: at, data, .. } if at == path => Some(data),
                _ => None,
            })
            .unwrap()
    }

    #[test]
    fn a_begin_is_known_by_its_nonce_in_the_mark_the_run_and_the_history() {
        let begun = begin("backup", 4, 60, "7-1");
        let ended = end("backup", 0, 60, "7-1");
        for trace in traces(&begun) {
            let source = if trace.path.contains("history") { &ended } else { &begun };
            assert!(trace.mark.is_in(&written(source, &trace.path)), "{}", trace.path);
        }
    }

    #[test]
    fn another_terms_decision_on_the_same_occurrence_is_not_ours() {
        let (ours, other) = (begin("backup", 4, 60, "7-1"), begin("backup", 4, 60, "9-1"));
        for trace in traces(&ours).iter().take(2) {
            assert!(!trace.mark.is_in(&written(&other, &trace.path)), "{}", trace.path);
        }
    }

    #[test]
    fn an_end_is_known_by_its_whole_record() {
        let (ours, other) = (end("backup", 0, 60, "7-1"), end("backup", 0, 60, "7-2"));
        let trace = &traces(&ours)[0];
        assert!(trace.mark.is_in(&written(&ours, &trace.path)));
        assert!(!trace.mark.is_in(&written(&other, &trace.path)));
    }

    #[test]
    fn a_begin_of_an_earlier_term_is_told_by_its_token() {
        assert!(!is_of_another_term(&begin("backup", 4, 60, "7-1"), 7));
        assert!(is_of_another_term(&begin("backup", 4, 60, "7-1"), 9));
        assert!(!is_of_another_term(&end("backup", 4, 60, "7-1"), 9), "an end stands by itself");
    }
}
