//! Requests of operators: triggers, pauses and resumes.

use std::time::Duration;

use uuid::Uuid;

use super::fixture::*;
use crate::coordination::Request;
use crate::engine::{Command, Event, Report};
use crate::job::{Job, JobName, Misfire, Overlap};
use crate::ledger::{
    self, Change, Commit, ControlEntry, JobEntry, OperatorRequests, OwnerState, RunLookup, Snapshot, TriggerEntry,
};
use crate::process::Exit;
use crate::run::{
    ControlRecord, JobRecord, Nonce, Pause, Resume, RunRecord, RunState, Trigger, TriggerRecord, TriggerSeq, Version,
};

fn request(job: &str, at_text: &str, uuid: u128) -> TriggerEntry {
    let record = TriggerRecord::new(Uuid::from_u128(uuid), name(job), "alice".into(), at(at_text));
    TriggerEntry { record, is_in_history: false }
}

fn requests(triggers: impl IntoIterator<Item = (u64, TriggerEntry)>) -> OperatorRequests {
    let triggers = triggers.into_iter().map(|(seq, entry)| (TriggerSeq(seq), entry)).collect();
    OperatorRequests { triggers, ..OperatorRequests::default() }
}

fn paused(id: u128, version: i32, resume: bool) -> ControlEntry {
    let pause = Pause { by: "alice".into(), at: at("09:00:00"), reason: Some("works".into()), until: None };
    let resume = resume.then(|| Resume { by: "bob".into(), at: at("09:30:00") });
    let record = ControlRecord { resume, ..ControlRecord::new(Uuid::from_u128(id), pause) };
    ControlEntry { record, version: Version(version) }
}

fn pause_of(job: &str, entry: ControlEntry) -> OperatorRequests {
    OperatorRequests { control: [(name(job), entry)].into(), ..OperatorRequests::default() }
}

impl Fixture {
    fn receive(&mut self, requests: OperatorRequests) {
        self.handle(Event::Ledger(ledger::Event::OperatorRequests(requests)));
    }

    fn read_job(&mut self, entry: (JobName, JobEntry), control: Option<ControlEntry>) {
        self.handle(Event::Ledger(ledger::Event::Job(entry.0, Some(entry.1), control)));
    }

    fn asks_for_job(&self) -> bool {
        self.commands
            .iter()
            .any(|command| matches!(command, Command::Ask(Request::Ledger(ledger::Request::ReadJob(_)))))
    }
}

/// The effect of each change on triggers, in one word.
fn done(changes: &[Change]) -> Vec<String> {
    let done = changes.iter().filter_map(|change| match change {
        Change::BeginTriggered { run } => Some(format!("run {}", run.id())),
        Change::DropTrigger { seq, skip: Some(skip), .. } => Some(format!("skip {seq} {}", skip.reason.as_str())),
        Change::DropTrigger { seq, skip: None, .. } => Some(format!("drop {seq}")),
        _ => None,
    });
    done.collect()
}

#[test]
fn the_lateness_of_a_triggered_run_counts_from_its_begin_and_not_from_the_whole_second() {
    let mut fixture = Fixture::settled("10:00:00.8", vec![job("backup", "30 2 * * *")]);
    fixture.receive(requests([(7, request("backup", "10:00:00", 1))]));
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.pass_by(Duration::from_millis(3));
    fixture.started(tree_id);
    let lateness = fixture.reports().into_iter().find_map(|report| match report {
        Report::Started { lateness, .. } => lateness,
        _ => None,
    });
    assert!(lateness.is_some_and(|lateness| lateness <= Duration::from_millis(3)), "{lateness:?}");
}

#[test]
fn a_trigger_starts_a_run_once_it_is_begun_in_the_triggers_place() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("backup", "30 2 * * *")]);
    fixture.receive(requests([(7, request("backup", "10:00:00", 1))]));
    assert!(fixture.starts().is_empty());
    assert_eq!(done(&fixture.accept_all()), ["run backup.20261120T100000Z.m7"]);
    let starts = fixture.starts();
    assert_eq!(starts.len(), 1);
    assert_eq!(starts[0].run.trigger.as_ref().map(|trigger| trigger.by.as_str()), Some("alice"));
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Triggered { by, .. } if by == "alice")));
}

#[test]
fn a_trigger_reported_again_is_decided_on_once() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("backup", "30 2 * * *")]);
    let read = requests([(7, request("backup", "10:00:00", 1))]);
    fixture.receive(read.clone());
    fixture.receive(read.clone());
    assert_eq!(done(&fixture.accept_all()).len(), 1);
    fixture.receive(read);
    assert!(fixture.accept_all().is_empty());
}

#[test]
fn a_second_trigger_of_one_uuid_leads_to_nothing() {
    let mut allow = job("backup", "30 2 * * *");
    allow.overlap = Overlap::Allow;
    let mut fixture = Fixture::settled("10:00:00", vec![allow]);
    let both = [(7, request("backup", "10:00:00", 1)), (8, request("backup", "10:00:00", 1))];
    fixture.receive(requests(both));
    assert_eq!(done(&fixture.accept_all()), ["run backup.20261120T100000Z.m7", "drop 8"]);
}

#[test]
fn a_uuid_that_an_earlier_term_saw_leads_to_nothing() {
    let backup = job("backup", "30 2 * * *");
    let mut found = running(&backup, at("09:59:00"), OwnerState::Alive);
    found.record.trigger =
        Some(Trigger { seq: TriggerSeq(6), uuid: Uuid::from_u128(1), by: "alice".into(), scheduled_at: None });
    let jobs = [entry(&backup, at("10:00:00"), 0)].into();
    let in_history = TriggerEntry { is_in_history: true, ..request("backup", "10:00:00", 2) };
    let requests = requests([(7, request("backup", "10:00:00", 1)), (8, in_history)]);
    let mut fixture = Fixture::leading(
        "10:00:00",
        set([backup]),
        Snapshot { jobs, running: vec![found], requests, ..Snapshot::default() },
    );
    assert_eq!(done(&fixture.accept_all()), ["drop 7", "drop 8"]);
}

#[test]
fn a_trigger_left_by_the_last_leader_is_run_by_this_one() {
    let backup = job("backup", "30 2 * * *");
    let jobs = [entry(&backup, at("10:00:00"), 0)].into();
    let requests = requests([(7, request("backup", "09:59:30", 1))]);
    let mut fixture = Fixture::leading("10:00:00", set([backup]), Snapshot { jobs, requests, ..Snapshot::default() });
    assert_eq!(done(&fixture.accept_all()), ["run backup.20261120T095930Z.m7"]);
}

#[test]
fn a_trigger_beside_a_run_in_flight_is_skipped_where_overlap_says_so() {
    for (overlap, expected) in [(Overlap::Skip, "skip 7 overlap"), (Overlap::Allow, "run tick.20261120T100001Z.m7")] {
        let mut tick = job("tick", "1 0 10 * * *");
        tick.overlap = overlap;
        let mut fixture = Fixture::settled("10:00:00", vec![tick]);
        fixture.pass(1);
        fixture.accept_all();
        fixture.receive(requests([(7, request("tick", "10:00:01", 1))]));
        assert_eq!(done(&fixture.accept_all()), [expected]);
    }
}

/// The service had lost that the trigger was removed, and its run waits for its turn, which comes at once.
#[test]
fn a_trigger_whose_run_is_on_record_and_just_being_begun_is_removed() {
    let backup = Job { overlap: Overlap::Queue, ..job("backup", "30 2 * * *") };
    let trigger = Trigger { seq: TriggerSeq(7), uuid: Uuid::from_u128(1), by: "alice".into(), scheduled_at: None };
    for state in [RunState::Queued, RunState::Unstarted] {
        let mut found = running(&backup, at("10:00:00"), OwnerState::Gone);
        (found.record.trigger, found.record.state) = (Some(trigger.clone()), state);
        found.record.attempt = u32::from(state != RunState::Queued);
        let jobs = [entry(&backup, at("10:00:00"), 0)].into();
        let requests = requests([(7, request("backup", "10:00:00", 1))]);
        let snapshot = Snapshot { jobs, running: vec![found], requests, ..Snapshot::default() };
        let mut fixture = Fixture::leading("10:00:00", set([backup.clone()]), snapshot);
        let changes = fixture.accept_all();
        let begun = changes.iter().filter(|change| matches!(change, Change::UpdateRun { .. })).count();
        assert_eq!((begun, done(&changes)), (1, vec!["drop 7".to_owned()]), "{changes:?}");
    }
}

/// The service had lost that the trigger was removed. The new leader's file lacks the job for now.
#[test]
fn a_trigger_is_removed_whose_run_was_on_record_and_is_over_when_it_is_decided_on() {
    let backup = job("backup", "30 2 * * *");
    let mut found = running(&backup, at("10:00:00"), OwnerState::Alive);
    let trigger = Trigger { seq: TriggerSeq(7), uuid: Uuid::from_u128(1), by: "alice".into(), scheduled_at: None };
    found.record.trigger = Some(trigger);
    let run = found.record.id();
    let jobs = [entry(&backup, at("10:00:00"), 0)].into();
    let requests = requests([(7, request("backup", "10:00:00", 1))]);
    let snapshot = Snapshot { jobs, running: vec![found], requests, ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:00", set([job("other", "@daily")]), snapshot);
    assert_eq!(done(&fixture.accept_all()), Vec::<String>::new());
    fixture.handle(Event::Ledger(ledger::Event::Run(run, None)));
    fixture.pass(120);
    assert_eq!(done(&fixture.accept_all()), ["drop 7"]);
}

/// The service had lost that the trigger was removed, and another node has restored its run.
#[test]
fn a_trigger_whose_begin_is_rejected_because_its_run_is_on_record_is_removed() {
    for (found, expected) in [(RunLookup::Ended, vec!["drop 7"]), (RunLookup::Absent(None), Vec::new())] {
        let mut fixture = Fixture::settled("10:00:00", vec![job("a", "@daily")]);
        fixture.receive(requests([(7, request("a", "10:00:00", 1))]));
        let commits = fixture.commits();
        let [(id, Change::BeginTriggered { run })] = &commits[..] else { panic!("{commits:?}") };
        fixture.answer(*id, Commit::Superseded);
        fixture.looked_up(&run.id(), found);
        assert_eq!(done(&fixture.accept_all()), expected);
        fixture.pass(60);
        assert!(fixture.accept_all().is_empty() && fixture.starts().is_empty());
    }
}

#[test]
fn an_occurrence_beside_a_manual_run_is_skipped() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("tick", "1 0 10 * * *")]);
    fixture.receive(requests([(7, request("tick", "10:00:00", 1))]));
    fixture.accept_all();
    fixture.pass(1);
    let passed = skipped(&fixture.accept_all());
    assert_eq!(passed, ["overlap 2026-11-20T10:00:01Z 2026-11-20T10:00:01Z 1"]);
}

#[test]
fn a_trigger_older_than_the_window_is_missed() {
    let with = |window: Option<u64>, schedule: &str| {
        let mut job = job("a", schedule);
        job.misfire_window = window.map(Duration::from_secs);
        job
    };
    let cases = [
        // A trigger records the second of its creation, and may have been created at the end of it.
        (with(Some(60), "30 2 * * *"), "09:58:59", "run a.20261120T095859Z.m7"),
        (with(Some(60), "30 2 * * *"), "09:58:58", "skip 7 missed"),
        (with(Some(0), "30 2 * * *"), "09:59:58", "run a.20261120T095958Z.m7"),
        (with(Some(0), "30 2 * * *"), "09:59:57", "skip 7 missed"),
        (with(None, "30 2 * * *"), "03:00:00", "run a.20261120T030000Z.m7"),
        (with(None, "30 2 * * *"), "02:00:00", "skip 7 missed"),
        // A trigger is valid for a minute, to survive a failover, even if the next occurrence has passed meanwhile.
        (with(None, "* * * * * *"), "09:58:59", "run a.20261120T095859Z.m7"),
        (with(None, "* * * * * *"), "09:58:58", "skip 7 missed"),
        // Created by a host whose clock is ahead.
        (with(Some(60), "30 2 * * *"), "10:05:00", "run a.20261120T100500Z.m7"),
    ];
    for (job, made, expected) in cases {
        let mut fixture = Fixture::settled("10:00:00", vec![job]);
        fixture.receive(requests([(7, request("a", made, 1))]));
        assert_eq!(done(&fixture.accept_all()), [expected], "made at {made}");
    }
}

#[test]
fn a_trigger_of_a_job_that_the_leader_does_not_know_is_skipped_as_not_defined_after_a_minute() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "@daily")]);
    fixture.receive(requests([(7, request("other", "10:00:00", 1))]));
    assert!(fixture.accept_all().is_empty());
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(at("10:01:00")));
    fixture.pass(60);
    assert_eq!(done(&fixture.accept_all()), ["skip 7 not-defined"]);
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Skipped { .. })));
}

/// Found by the fuzz test: the leader's loop hung on a trigger that had to wait.
#[test]
fn the_trigger_with_the_largest_number_waits_like_any_other() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "@daily")]);
    fixture.receive(requests([(u64::MAX, request("other", "10:00:00", 1))]));
    assert!(fixture.accept_all().is_empty());
    fixture.pass(60);
    assert_eq!(done(&fixture.accept_all()), [format!("skip {} not-defined", u64::MAX)]);
}

#[test]
fn a_trigger_of_a_job_that_is_away_from_the_file_for_a_moment_leads_to_its_run() {
    let both = || set([job("a", "@daily"), job("other", "@daily")]);
    let mut fixture = Fixture::leading("10:00:00", both(), Snapshot::default());
    fixture.accept_all();
    fixture.handle(Event::Loaded(set([job("a", "@daily")])));
    fixture.accept_all();
    fixture.receive(requests([(7, request("other", "10:00:00", 1))]));
    assert!(fixture.accept_all().is_empty());
    fixture.handle(Event::Loaded(both()));
    assert!(done(&fixture.accept_all()).contains(&"run other.20261120T100000Z.m7".to_owned()));
}

#[test]
fn a_disabled_job_and_a_paused_one_can_be_triggered() {
    let disabled = Job { enabled: false, ..job("a", "* * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![disabled, job("b", "@daily")]);
    fixture.receive(pause_of("b", paused(1, 0, false)));
    fixture.receive(requests([(7, request("a", "10:00:00", 1)), (8, request("b", "10:00:00", 2))]));
    assert_eq!(done(&fixture.accept_all()), ["run a.20261120T100000Z.m7", "run b.20261120T100000Z.m8"]);
}

#[test]
fn a_trigger_waits_for_the_end_of_a_run_that_is_being_settled() {
    let backup = job("backup", "30 2 * * *");
    let dead = running(&backup, at("09:59:00"), OwnerState::Dead);
    let jobs = [entry(&backup, at("10:00:00"), 0)].into();
    let requests = requests([(7, request("backup", "10:00:00", 1))]);
    let mut fixture = Fixture::leading(
        "10:00:00",
        set([backup]),
        Snapshot { jobs, running: vec![dead], requests, ..Snapshot::default() },
    );
    let commits = fixture.commits();
    let [(end, Change::End { .. })] = commits.as_slice() else { panic!("{commits:?}") };
    fixture.answer(*end, Commit::Accepted);
    assert_eq!(done(&fixture.accept_all()), ["run backup.20261120T100000Z.m7"]);
}

#[test]
fn a_manual_run_whose_node_died_is_settled_by_its_own_rule() {
    let backup = Job { interrupted: crate::job::Interrupted::Rerun, ..job("backup", "30 2 * * *") };
    let trigger = Trigger { seq: TriggerSeq(7), uuid: Uuid::from_u128(1), by: "alice".into(), scheduled_at: None };
    let mut found = running(&backup, at("09:59:00"), OwnerState::Dead);
    found.record = RunRecord { trigger: Some(trigger.clone()), ..found.record };
    let jobs = [entry(&backup, at("10:00:00"), 0)].into();
    let mut fixture =
        Fixture::leading("10:00:00", set([backup]), Snapshot { jobs, running: vec![found], ..Snapshot::default() });
    fixture.accept_all();
    let starts = fixture.starts();
    assert_eq!((starts[0].run.attempt, starts[0].run.trigger.as_ref()), (2, Some(&trigger)));
}

#[test]
fn nothing_wanted_is_decided_on_once_the_lease_has_ended() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "@daily")]);
    fixture.pass_cut_off(LEASE.as_secs());
    fixture.receive(requests([(7, request("a", "10:00:00", 1))]));
    assert!(fixture.commits().is_empty());
    fixture.pass(1);
    assert_eq!(done(&fixture.accept_all()).len(), 1, "it waits for the lease");
}

#[test]
fn while_paused_every_occurrence_passes_and_neighbours_share_a_record() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("tick", "* * * * * *")]);
    fixture.receive(pause_of("tick", paused(1, 0, false)));
    let mut changes = Vec::new();
    for _ in 0..3 {
        fixture.pass(1);
        changes.extend(fixture.accept_all());
    }
    assert!(begun(&changes).is_empty());
    assert_eq!(skipped(&changes).last().unwrap(), "paused 2026-11-20T10:00:01Z 2026-11-20T10:00:03Z 3");
}

#[test]
fn a_begin_that_a_pause_overtook_is_not_decided_on_again() {
    let tick = job("tick", "* * * * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![tick.clone()]);
    fixture.pass(1);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    assert!(fixture.asks_for_job());
    // The pause changed the job's record, and is read after it.
    fixture.read_job(entry(&tick, at("10:00:00"), 1), Some(paused(1, 0, false)));
    let changes = fixture.accept_all();
    assert!(begun(&changes).is_empty() && fixture.starts().is_empty());
    assert_eq!(skipped(&changes), ["paused 2026-11-20T10:00:01Z 2026-11-20T10:00:01Z 1"]);
}

#[test]
fn what_was_missed_before_a_takeover_passes_where_the_job_is_paused() {
    let mut all = job("tick", "* * * * *");
    all.misfire = Misfire::RunAll;
    all.misfire_window = Some(Duration::from_secs(3600));
    let jobs = [entry(&all, at("09:57:00"), 4)].into();
    let requests = pause_of("tick", paused(1, 0, false));
    let mut fixture = Fixture::leading("10:00:30", set([all]), Snapshot { jobs, requests, ..Snapshot::default() });
    let changes = fixture.accept_all();
    assert!(begun(&changes).is_empty());
    assert_eq!(skipped(&changes), ["paused 2026-11-20T09:58:00Z 2026-11-20T10:00:00Z 3"]);
}

#[test]
fn a_resume_moves_the_mark_to_now_and_nothing_that_passed_is_made_up() {
    let tick = job("tick", "* * * * *");
    let jobs = [entry(&tick, at("09:57:00"), 4)].into();
    let requests = pause_of("tick", paused(1, 2, true));
    let mut fixture = Fixture::leading("10:00:30", set([tick]), Snapshot { jobs, requests, ..Snapshot::default() });
    let changes = fixture.accept_all();
    let [Change::Resume { control, mark: Some((version, record)), skip: Some(skip), .. }] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!((*control, *version, record.last_scheduled), (Version(2), Some(Version(4)), at("10:00:30")));
    assert_eq!((skip.skip.reason.as_str(), skip.skip.count), ("paused", 3));
    assert!(fixture.reports().contains(&Report::Resumed { job: name("tick"), by: "bob".into() }));
    fixture.pass(30);
    assert_eq!(begun(&fixture.accept_all()), ["tick.20261120T100100Z"]);
}

#[test]
fn old_news_of_a_pause_that_was_ended_changes_nothing() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("tick", "* * * * *")]);
    fixture.receive(pause_of("tick", paused(1, 0, false)));
    fixture.receive(pause_of("tick", paused(1, 1, true)));
    assert_eq!(fixture.accept_all().len(), 1);
    fixture.receive(pause_of("tick", paused(1, 0, false)));
    fixture.pass(60);
    assert_eq!(begun(&fixture.accept_all()).len(), 1);
    fixture.receive(pause_of("tick", paused(2, 0, false)));
    fixture.pass(60);
    assert!(begun(&fixture.accept_all()).is_empty(), "another pause counts");
}

#[test]
fn a_resume_that_another_pause_overtook_leaves_the_job_paused() {
    let tick = job("tick", "* * * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![tick.clone()]);
    fixture.receive(pause_of("tick", paused(1, 1, true)));
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    assert!(fixture.asks_for_job());
    fixture.read_job(entry(&tick, at("10:00:00"), 1), Some(paused(1, 2, false)));
    let paused_reports = fixture.reports().into_iter().filter(|report| matches!(report, Report::Paused { .. }));
    assert_eq!(paused_reports.count(), 0, "it was reported before");
    fixture.pass(60);
    let changes = fixture.accept_all();
    assert!(begun(&changes).is_empty());
    assert_eq!(skipped(&changes).len(), 1);
}

#[test]
fn a_resume_that_the_service_loses_with_earlier_marks_skips_nothing_that_was_begun() {
    let tick = Job { overlap: Overlap::Allow, ..job("tick", "* * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![tick.clone()]);
    for _ in 0..3 {
        fixture.pass(1);
        fixture.accept_all();
    }
    fixture.receive(pause_of("tick", paused(1, 1, true)));
    let commits = fixture.commits();
    assert!(matches!(&commits[..], [(_, Change::Resume { .. })]), "{commits:?}");
    fixture.answer(commits[0].0, Commit::Superseded);
    fixture.read_job(entry(&tick, at("10:00:01"), 1), None);
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::Advance { at: Some(Version(1)), skip: None, .. }]), "{changes:?}");
    fixture.pass(1);
    let changes = fixture.accept_all();
    assert_eq!((begun(&changes), skipped(&changes)), (vec!["tick.20261120T100004Z".to_owned()], Vec::new()));
}

#[test]
fn a_paused_job_without_occurrences_here_is_resumed_all_the_same() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "@daily")]);
    fixture.receive(pause_of("gone", paused(1, 0, true)));
    let changes = fixture.accept_all();
    assert!(matches!(changes.as_slice(), [Change::Resume { mark: None, skip: None, .. }]), "{changes:?}");
}

#[test]
fn a_record_that_a_pause_made_counts_from_now() {
    let tick = job("tick", "* * * * *");
    let undecided = JobRecord::new(jiff::Timestamp::UNIX_EPOCH, Nonce("pause".into()));
    let jobs = [(name("tick"), JobEntry { record: Some(undecided), version: Version(0) })].into();
    let requests = pause_of("tick", paused(1, 0, false));
    let mut fixture = Fixture::leading("10:00:30", set([tick]), Snapshot { jobs, requests, ..Snapshot::default() });
    assert!(skipped(&fixture.accept_all()).is_empty());
    fixture.pass(30);
    assert_eq!(skipped(&fixture.accept_all()), ["paused 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

#[test]
fn a_pause_is_reported_once() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("tick", "* * * * *")]);
    fixture.receive(pause_of("tick", paused(1, 0, false)));
    fixture.receive(pause_of("tick", paused(1, 0, false)));
    fixture.receive(pause_of("tick", paused(1, 1, false)));
    let paused_reports = fixture.reports().into_iter().filter(|report| matches!(report, Report::Paused { .. }));
    assert_eq!(paused_reports.count(), 1);
}

#[test]
fn a_trigger_whose_begin_was_refused_is_taken_up_when_it_is_reported_again() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "@daily")]);
    let read = requests([(7, request("a", "10:00:00", 1))]);
    fixture.receive(read.clone());
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    fixture.receive(read);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert!(matches!(fixture.accept_all().as_slice(), [Change::End { .. }]));
}

/// A pause that ends by itself.
fn paused_until(until: &str) -> ControlEntry {
    let mut entry = paused(1, 0, false);
    entry.record.paused.until = Some(at(until));
    entry
}

#[test]
fn a_pause_ends_by_itself_at_its_time() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("tick", "* * * * * *")]);
    fixture.receive(pause_of("tick", paused_until("10:00:02")));
    fixture.pass(1);
    assert_eq!(skipped(&fixture.accept_all()), ["paused 2026-11-20T10:00:01Z 2026-11-20T10:00:01Z 1"]);
    fixture.pass(1);
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::Resume { skip: Some(_), .. }]), "{changes:?}");
    let by = "the end of the pause by alice".to_owned();
    assert!(fixture.reports().contains(&Report::Resumed { job: name("tick"), by }));
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["tick.20261120T100003Z"]);
}

#[test]
fn the_end_of_a_pause_wakes_the_leader_if_nothing_else_does() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("seldom", "@yearly")]);
    fixture.receive(pause_of("seldom", paused_until("11:00:00")));
    fixture.accept_all();
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(at("11:00:00")));
    fixture.receive(pause_of("seldom", ControlEntry { version: Version(1), ..paused(1, 1, false) }));
    assert!(fixture.engine.wake(fixture.now).wall > Some(at("11:00:00")), "another pause replaced it");
}

#[test]
fn what_was_due_after_the_end_of_a_pause_was_missed_and_not_paused() {
    let tick = Job {
        misfire: Misfire::RunAll,
        misfire_window: Some(Duration::from_secs(3600)),
        overlap: Overlap::Allow,
        ..job("tick", "* * * * *")
    };
    let jobs = [entry(&tick, at("09:57:00"), 4)].into();
    let requests = pause_of("tick", paused_until("09:58:30"));
    let mut fixture = Fixture::leading("10:00:30", set([tick]), Snapshot { jobs, requests, ..Snapshot::default() });
    let changes = fixture.accept_all();
    let Some(Change::Resume { mark: Some((_, record)), skip: Some(skip), .. }) = changes.first() else {
        panic!("{changes:?}")
    };
    assert_eq!((record.last_scheduled, skip.skip.count, skip.skip.first), (at("09:58:30"), 1, at("09:58:00")));
    assert_eq!(begun(&changes), ["tick.20261120T095900Z", "tick.20261120T100000Z"]);
}
