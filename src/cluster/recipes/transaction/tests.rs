//! Tests of the operations of each change, and of the traces that prove it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::recipes::bounded;
use crate::test_records::{self, record, success};
use cronkeeper_core::job::{Digest, JobName};
use cronkeeper_core::ledger::SkipWrite;
use cronkeeper_core::run::{
    Link, Note, OnLoss, Outcome, Owner, Parameters, Past, Placement, RunEnd, RunState, Skip, Trigger, TriggerSeq,
    UpstreamResult,
};
use cronkeeper_core::term::{FencingToken, NodeName, SessionId};

pub fn name(job: &str) -> JobName {
    JobName::parse(job).unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn mark(second: i64, nonce: &str) -> JobRecord {
    JobRecord::new(at(second), Nonce(nonce.into()))
}

pub fn run(job: &str, second: i64, nonce: &str) -> RunRecord {
    let session = "0x1";
    RunRecord {
        owner: Owner { node: NodeName::new("host-a"), session: SessionId(session.into()) },
        token: FencingToken(7),
        nonce: Nonce(nonce.into()),
        on_loss: OnLoss::CutOff,
        ..record(job, second, session)
    }
}

pub fn begin(job: &str, version: i32, second: i64, nonce: &str) -> Change {
    Change::Begin { at: Version(version), record: mark(second, nonce), run: run(job, second, nonce) }
}

pub fn end(job: &str, version: i32, second: i64, nonce: &str) -> Change {
    let end = success(run(job, second, nonce));
    Change::End { at: Version(version), end, as_leader: false }
}

pub fn skip(job: &str, second: i64) -> Skip {
    Skip { token: FencingToken(7), node: NodeName::new("host-a"), ..test_records::skip(job, second) }
}

fn version(at: AtVersion) -> String {
    match at {
        AtVersion::Any => "any".to_owned(),
        AtVersion::Version(version) => version.0.to_string(),
    }
}

fn shape(op: &Op) -> String {
    match op {
        Op::Check { path, at } => format!("check {path} {}", version(*at)),
        Op::Create { path, .. } => format!("create {path}"),
        Op::Append { folder, prefix, .. } => format!("append {folder}/{prefix}"),
        Op::Set { path, at, .. } => format!("set {path} {}", version(*at)),
        Op::Delete { path, at } => format!("delete {path} {}", version(*at)),
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
fn settle_and_change_owner_set_the_run_at_its_version() {
    let run = run("backup", 60, "7-1");
    let expected = ["set /cronkeeper/running/backup.19700101T000100Z 5"];
    assert_eq!(shapes(&Change::UpdateRun { at: Version(5), run: run.clone(), taken_from: None }), expected);
    assert_eq!(shapes(&Change::Kill { at: Version(5), run: run.clone() }), expected);
    assert_eq!(shapes(&Change::ChangeOwner { at: Version(5), run }), expected);
}

fn begin_triggered(job: &str, second: i64, nonce: &str) -> Change {
    let trigger = Trigger { seq: TriggerSeq(3), uuid: Uuid::from_u128(1), by: "alice".into(), scheduled_at: None };
    Change::BeginTriggered { run: RunRecord { trigger: Some(trigger), ..run(job, second, nonce) } }
}

#[test]
fn a_triggers_run_is_made_in_the_triggers_place_and_moves_no_mark() {
    // It has not ended before: see `Write::NotEnded`.
    let expected = [
        "create /cronkeeper/running/backup.19700101T000100Z.m3",
        "create /cronkeeper/history/backup/backup.19700101T000100Z.m3",
        "delete /cronkeeper/history/backup/backup.19700101T000100Z.m3 any",
        "delete /cronkeeper/triggers/0000000003 any",
    ];
    assert_eq!(shapes(&begin_triggered("backup", 60, "7-1")), expected);
}

#[test]
fn a_triggers_run_is_known_by_its_nonce_in_the_run_and_the_history() {
    let ours = begin_triggered("backup", 60, "7-1");
    let Change::BeginTriggered { run } = &ours else { unreachable!() };
    let end = RunEnd::unseen(run, Outcome::Success, None, at(61));
    let ended = Change::End { at: Version::FIRST, end, as_leader: false };
    for trace in traces(&ours) {
        let source = if trace.path.contains("history") { &ended } else { &ours };
        assert!(trace.mark.is_in(&written(source, &trace.path)), "{}", trace.path);
        assert!(!trace.mark.is_in(&json(&self::run("backup", 60, "9-1"))));
    }
    assert!(ours.is_of_another_term(FencingToken(9)) && !ours.is_of_another_term(FencingToken(7)));
}

#[test]
fn a_trigger_that_leads_to_no_run_leaves_its_reason() {
    let seq = TriggerSeq(3);
    let skip = Skip {
        trigger: Some(Trigger { seq, uuid: Uuid::from_u128(1), by: "alice".into(), scheduled_at: None }),
        ..skip("backup", 60)
    };
    let expected =
        ["delete /cronkeeper/triggers/0000000003 any", "create /cronkeeper/history/backup/backup.19700101T000100Z.m3"];
    assert_eq!(
        shapes(&Change::DropTrigger { job: name("backup"), seq, skip: Some(skip), links: Vec::new() }),
        expected
    );
    assert_eq!(shapes(&Change::DropTrigger { job: name("backup"), seq, skip: None, links: Vec::new() }), expected[..1]);
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
fn an_end_leaves_a_link_for_each_job_that_runs_after_it_and_rings() {
    let Change::End { at, mut end, .. } = end("backup", 2, 60, "7-1") else { unreachable!() };
    end.run.dependents = vec![name("check"), name("report")];
    let change = Change::End { at, end, as_leader: false };
    let expected = [
        "delete /cronkeeper/running/backup.19700101T000100Z 2",
        "create /cronkeeper/history/backup/backup.19700101T000100Z",
        "append /cronkeeper/triggers/",
        "append /cronkeeper/triggers/",
        "set /cronkeeper/triggers any",
    ];
    assert_eq!(shapes(&change), expected);
    let Op::Append { data, .. } = &ops(&change)[3] else { panic!("{change:?}") };
    let Ok(Note::Link(link)) = Note::read(data) else { panic!("{data:?}") };
    assert_eq!(link.run().to_string(), "report.19700101T000100Z");
    assert_eq!((link.upstream, link.result), (name("backup"), UpstreamResult::Success));
}

#[test]
fn a_run_that_follows_others_is_made_in_the_place_of_their_links_and_known_by_its_nonce() {
    let links = vec![TriggerSeq(3), TriggerSeq(4)];
    let mark = Some((Version(4), mark(60, "7-1")));
    let follow = |mark| Change::BeginDownstream { mark, run: run("report", 60, "7-1"), links: links.clone() };
    let expected = [
        "set /cronkeeper/jobs/report 4",
        "create /cronkeeper/running/report.19700101T000100Z",
        // It has not ended before: see `Write::NotEnded`.
        "create /cronkeeper/history/report/report.19700101T000100Z",
        "delete /cronkeeper/history/report/report.19700101T000100Z any",
        "delete /cronkeeper/triggers/0000000003 any",
        "delete /cronkeeper/triggers/0000000004 any",
    ];
    assert_eq!(shapes(&follow(mark.clone())), expected);
    assert_eq!(shapes(&follow(None)), expected[1..]);
    let follow = follow(mark);
    for trace in traces(&follow).iter().take(2) {
        assert!(trace.mark.is_in(&written(&follow, &trace.path)), "{}", trace.path);
    }
    assert!(follow.is_of_another_term(FencingToken(9)) && !follow.is_of_another_term(FencingToken(7)));
}

#[test]
fn a_run_that_is_given_up_records_why_and_leaves_links_for_its_dependents() {
    let skip = skip("report", 60);
    let dependents = Link::of_skip(&skip, skip.first, 1, UpstreamResult::Skipped, &[name("mail")]);
    let links = vec![TriggerSeq(3)];
    let expected = [
        "delete /cronkeeper/triggers/0000000003 any",
        "create /cronkeeper/history/report/report.19700101T000100Z",
        "append /cronkeeper/triggers/",
        "set /cronkeeper/triggers any",
    ];
    assert_eq!(shapes(&Change::DropLinks { job: name("report"), links, skip: Some(skip), dependents }), expected);
}

#[test]
fn an_attempt_is_placed_with_an_offer_and_accepted_at_the_version_that_its_node_has_read() {
    let placement = Placement { is_awaited: true, ..Placement::new(Digest::of(b"jobs")) };
    let placement = Some(Box::new(placement));
    let placed = RunRecord { state: RunState::Placed, placement, ..run("backup", 60, "7-1") };
    let (set, offer) =
        ("set /cronkeeper/running/backup.19700101T000100Z 5", "/cronkeeper/offers/host-a/backup.19700101T000100Z");
    let update = |taken_from| Change::UpdateRun { at: Version(5), run: placed.clone(), taken_from };
    assert_eq!(shapes(&update(None)), [set.to_owned(), format!("create {offer}")]);
    let other = Some(NodeName::new("host-b"));
    let of_other = "delete /cronkeeper/offers/host-b/backup.19700101T000100Z any".to_owned();
    assert_eq!(shapes(&update(other)), [set.to_owned(), of_other, format!("create {offer}")]);
    let same = Some(NodeName::new("host-a"));
    assert_eq!(shapes(&update(same)), [set.to_owned(), format!("set {offer} any")], "it stays where it is");
    assert!(update(None).is_of_another_term(FencingToken(9)) && !update(None).is_of_another_term(FencingToken(7)));

    let again = Change::RewriteRun { at: Version(5), run: placed.clone(), taken_from: None };
    assert_eq!(shapes(&again), shapes(&update(None)));
    assert!(!again.is_of_another_term(FencingToken(9)), "also what an earlier leader has placed");

    let accepted = RunRecord { state: RunState::Running, ..placed.clone() };
    let accept = Change::Accept { at: Version(5), run: accepted.clone() };
    assert_eq!(shapes(&accept), [set.to_owned(), format!("delete {offer} any")]);
    let planned = Planned::of(&accept);
    assert_eq!((planned.member.as_deref(), planned.rung), (Some("/cronkeeper/nodes/host-a"), Vec::new()));
    assert!(!accept.is_of_another_term(FencingToken(9)), "it needs no term");

    assert_eq!(Planned::of(&update(None)).rung, [Rung::Node(NodeName::new("host-a"))]);
    let refuse = Change::Refuse { at: Version(5), run: RunRecord { state: RunState::Unstarted, ..placed.clone() } };
    let end = Change::End { at: Version(5), end: success(accepted), as_leader: false };
    for change in [refuse, end] {
        assert_eq!(Planned::of(&change).rung, [Rung::Leader(placed.id())], "{change:?}");
    }
}

#[test]
fn the_largest_step_of_a_chain_fits_a_multi() {
    let many: Vec<_> = (0..64).map(|number| name(&format!("job-{number}"))).collect();
    let links = (0..64).map(TriggerSeq).collect();
    let skip = skip("report", 60);
    let dependents = Link::of_skip(&skip, skip.first, 1, UpstreamResult::Skipped, &many);
    let largest = Change::DropLinks { job: name("report"), links, skip: Some(skip), dependents };
    assert!(ops(&largest).len() < 200);
}

#[test]
fn records_with_the_largest_parameters_fit_the_requests_that_write_and_read_them() {
    const MOST: usize = 1 << 20;
    let names: BTreeSet<String> = (0..8).map(|number| format!("V{number}")).collect();
    let with = |characters: usize| {
        let variables = names.iter().map(|name| (name.clone(), "\u{1}".repeat(characters))).collect();
        Parameters::check("backup", &names, variables)
    };
    assert!(with(171).is_err(), "larger than allowed, where each character is escaped");
    let mut run = run("backup", 60, "7-1").with(with(169).unwrap());
    run.dependents = (0..64).map(|number| name(&format!("{number:0>100}"))).collect();
    run.owner.node = NodeName::new("n".repeat(253));
    for attempt in 1..=10 {
        run.past.note(&success(RunRecord { attempt, past: Past::default(), ..run.clone() }));
    }
    let in_flight = json(&run).len();
    assert!((16_000..MOST / bounded::RUNS.count).contains(&in_flight), "{in_flight}");
    assert_eq!(bounded::RUNS.check(in_flight), Ok(()));
    let end = RunEnd { tail: "\u{1}".repeat(4 << 10), detail: Some("\u{1}".repeat(300)), ..success(run) };
    let ended = json(&HistoryRecord::Run(end.clone())).len();
    assert!((40_000..MOST / bounded::HISTORY.count).contains(&ended), "{ended}");
    assert_eq!(bounded::HISTORY.check(ended), Ok(()));
    let end = ops(&Change::End { at: Version(0), end, as_leader: false });
    let bytes: usize = end.iter().map(op_bytes).sum();
    assert!((ended..128_000).contains(&bytes), "{bytes}");
}

fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Create { path, data, .. } | Op::Set { path, data, .. } => path.len() + data.len(),
        Op::Append { folder, prefix, data, .. } => folder.len() + prefix.len() + data.len(),
        Op::Check { path, .. } | Op::Delete { path, .. } => path.len(),
    }
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
fn a_begin_of_an_earlier_term_is_recognized_by_its_token() {
    assert!(!begin("backup", 4, 60, "7-1").is_of_another_term(FencingToken(7)));
    assert!(begin("backup", 4, 60, "7-1").is_of_another_term(FencingToken(9)));
    assert!(!end("backup", 4, 60, "7-1").is_of_another_term(FencingToken(9)), "an end stands by itself");
}
