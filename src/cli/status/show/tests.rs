//! The text of whole statuses.

use super::*;
use crate::fuzz::{Fuzz, LEDGER_WORDS, is_read_back};
use crate::status::{AlarmStatus, FailingChannel, JobStatus, RunStatus, sample};
use cronkeeper_core::job::{Alarm, JobName};
use cronkeeper_core::run::{Link, Outcome, RunId, RunState, Span, UpstreamResult};

fn text_of(status: &Status) -> String {
    written(status, status.jobs.len(), Screen { width: Some(80), ..Screen::default() })
}

/// A status with all, or some, of so many jobs.
fn written(status: &Status, all: usize, screen: Screen) -> String {
    let mut out = Vec::new();
    let nodes = crate::cli::nodes::table(status);
    write(Shown { status, all, counted: all, nodes }, screen, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_leader_shows_the_whole_cluster_in_80_columns() {
    let shown = text_of(&sample::leader());
    assert_eq!(shown, include_str!("../leader.txt"));
    assert!(shown.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn problems_are_at_the_top() {
    let shown = text_of(&sample::cut_off());
    assert_eq!(shown, include_str!("../cut_off.txt"));
    let may_be_longer = |line: &str| ["jobs.yaml:", "CUT OFF"].iter().any(|text| line.contains(text));
    assert!(shown.lines().all(|line| line.chars().count() <= 80 || may_be_longer(line)));
}

#[test]
fn a_paused_job_is_shown_with_who_paused_it_since_when_and_why() {
    let mut status = sample::leader();
    status.jobs[0].paused = Some(Box::new(cronkeeper_core::run::Pause {
        by: "uid 1000 (alice) on host-b".into(),
        at: sample::at("2026-11-19T17:00:00Z"),
        reason: Some("new disks\u{7}".into()),
        until: None,
    }));
    let shown = text_of(&status);
    let expected = [
        "PAUSED          SINCE (UTC)          BY                          WHY",
        "nightly-backup  2026-11-19 17:00:00  uid 1000 (alice) on host-b  new disks\\u{7}",
        "nightly-backup  success  host-b  48m 51s ago  paused",
    ];
    for line in expected {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{shown}");
    }
}

#[test]
fn alarms_are_shown_with_their_run_and_since_when() {
    let mut status = sample::leader();
    let since = sample::at("2026-11-20T02:40:00Z");
    let alarm = |alarm, run| AlarmStatus { alarm, since, raised_at: since, run };
    let late = RunId::scheduled(sample::job("load"), since);
    status.jobs[0].alarms = vec![alarm(Alarm::Stale, None)];
    status.jobs[1].alarms = vec![alarm(Alarm::Late, Some(late))];
    let shown = text_of(&status);
    let expected = [
        "ALARM  JOB             RUN                    SINCE (UTC)          FOR",
        "stale  nightly-backup  -                      2026-11-20 02:40:00  20m",
        "late   load            load.20261120T024000Z  2026-11-20 02:40:00  20m",
        "! nightly-backup  success; stale  host-b  48m 51s ago  2026-11-21 01:30:00",
        "! load            late            -       -            2026-11-20 03:01:00",
    ];
    for line in expected {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{shown}");
    }
}

#[test]
fn members_show_priority_draining_and_an_invalid_jobs_file() {
    let mut status = sample::leader();
    let next = |status: &Status| text_of(status).lines().find(|line| line.starts_with("NEXT")).map(str::to_owned);
    assert_eq!(next(&status), None, "all have the same priority");
    status.members[0].published.draining = true;
    status.members[1].published.priority = 10;
    let expected = "NEXT     host-b, higher priority: takes over once it has been fit for a while";
    assert_eq!(next(&status).as_deref(), Some(expected));
    status.members[1].published.jobs_invalid = true;
    assert_eq!(next(&status), None, "a node with an invalid jobs file is not handed leadership");
    let shown = text_of(&status);
    for line in ["2d  stopping", "2d  priority 10, jobs file INVALID"] {
        assert!(shown.lines().any(|shown| shown.ends_with(line)), "{shown}");
    }
    status.members[0].published.priority = 10;
    assert_eq!(next(&status), None, "the leader has the same priority");
}

fn failing() -> Status {
    let mut status = sample::leader();
    let mut last = status.jobs[0].last.clone().expect("it has run");
    (last.outcome, last.exit_code) = (Outcome::Failure, Some(3));
    status.jobs[1].last = Some(last);
    status
}

fn shown_on(screen: Screen, status: &Status) -> Vec<String> {
    written(status, status.jobs.len(), screen).lines().map(str::to_owned).collect()
}

#[test]
fn of_how_many_the_shown_jobs_are_is_said() {
    let mut status = failing();
    let all = status.jobs.len();
    let text = |status: &Status| written(status, all, Screen::default());
    status.jobs.retain(|job| job.is_failing());
    let expected = format!("FAILING  1 of {all} jobs: ");
    assert!(text(&status).contains(&expected), "{}", text(&status));
    status.jobs.clear();
    assert!(text(&status).ends_with(&format!("none of {all} jobs is selected\n")), "{}", text(&status));
}

#[test]
fn a_failing_job_comes_first_and_is_marked() {
    let lines = shown_on(Screen { has_colours: true, ..Screen::default() }, &failing());
    assert!(lines.iter().any(|line| line.starts_with("FAILING  1 of 3 jobs")), "{lines:#?}");
    let jobs = lines.iter().position(|line| line.starts_with("JOB ")).expect("the jobs are shown");
    let row = "\u{1b}[31m! load          failure, exit 3  host-b  48m 51s ago  2026-11-20 03:01:00  1m\u{1b}[0m";
    assert_eq!(lines[jobs + 1], row);
    assert!(lines[jobs + 2].starts_with("nightly-backup  success "), "{lines:#?}");
}

#[test]
fn a_job_on_every_node_shows_the_worst_of_its_shares() {
    let mut status = sample::leader();
    let last = status.jobs[0].last.as_deref().cloned().expect("it has run");
    let ends = |failed| [("host-a", Outcome::Success), ("host-b", Outcome::Success), ("host-c", failed)];
    status.jobs[0].shares = Some(Box::new(sample::shares(&last, &ends(Outcome::Failure))));
    let row = |status: &Status| shown_on(Screen::default(), status).into_iter().find(|line| line.contains("backup "));
    let failed = "! nightly-backup  failure, exit 1; 2 of 3 ok  host-c  48m 51s ago";
    assert!(row(&status).is_some_and(|row| row.starts_with(failed)), "{:?}", row(&status));
    status.jobs[0].shares = Some(Box::new(sample::shares(&last, &ends(Outcome::Success))));
    let well = "nightly-backup  success; 3 of 3 ok  3 nodes  48m 51s ago";
    assert!(row(&status).is_some_and(|row| row.starts_with(well)), "{:?}", row(&status));
}

#[test]
fn a_job_with_a_run_that_is_cut_off_is_marked() {
    let mut status = sample::leader();
    let mut runs = status.runs.clone();
    runs[0].state = RunState::CutOff;
    status.put_runs(&runs);
    let shown = text_of(&status);
    let expected = [
        "FAILING  1 of 3 jobs: load",
        "load.20261120T025900Z  host-a  1        1m   CUT OFF, given up at 2026-11-20 03:00:59Z unless its node is back",
        "! load          a run is cut off  -       -            2026-11-20 03:01:00",
    ];
    for line in expected {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{shown}");
    }
}

#[test]
fn an_end_that_is_not_recorded_yet_is_shown_as_such_in_both_tables() {
    let mut status = sample::leader();
    let run = status.runs[0].run.clone();
    let mut last = status.jobs[0].last.clone().expect("it has run");
    last.run = run;
    status.jobs[1].last = Some(last);
    status.runs[0].ended = Some(Outcome::Success);
    let shown = text_of(&status);
    let lines: Vec<&str> = shown.lines().filter(|line| line.contains("success, not yet recorded")).collect();
    assert_eq!(lines.len(), 2, "{shown}");
}

#[test]
fn a_terminal_shows_what_fits() {
    let mut status = failing();
    let job = status.jobs[0].clone();
    let more = (0..100).map(|n| JobStatus { name: JobName::parse(&format!("job-{n}")).unwrap(), ..job.clone() });
    status.jobs.extend(more);
    let lines = shown_on(Screen { width: Some(60), height: Some(30), has_colours: false }, &status);
    assert_eq!(lines.len(), 29);
    assert!(lines.iter().any(|line| line.starts_with("! load ")), "{lines:#?}");
    assert!(lines[28].contains(" more: --failing or --job PATTERN shows fewer"), "{lines:#?}");
    let table = lines.iter().skip_while(|line| !line.starts_with("JOB "));
    assert!(table.clone().count() > 1 && table.clone().all(|line| line.chars().count() <= 60), "{lines:#?}");
}

#[test]
fn a_node_that_was_there_is_missing() {
    let mut status = sample::leader();
    status.missing.push(sample::missing("host-c"));
    assert!(text_of(&status).contains("\nMISSING  host-c, its session ended 3m ago\n"));
    status.missing[0].last_seen = Some(sample::at("2026-11-20T02:56:59Z"));
    assert!(text_of(&status).contains("\nMISSING  host-c, its session ended 3m ago\n"), "it was noticed at once");
    status.missing[0].last_seen = Some(sample::at("2026-11-20T02:56:45Z"));
    assert!(text_of(&status).contains("\nMISSING  host-c, its session ended between 3m and 3m 15s ago\n"));
}

#[test]
fn nobody_leads_where_no_node_is_alive_that_may_although_the_last_leader_is_known() {
    let mut status = sample::leader();
    status.members.iter_mut().for_each(|member| member.published.never_leads = true);
    let shown = text_of(&status);
    assert!(shown.contains("LEADER   nobody, no node that may lead is alive\n"), "{shown}");
    assert!(shown.contains("NOBODY LEADS"), "{shown}");
}

#[test]
fn where_all_nodes_are_drained_it_is_known_that_nobody_leads() {
    let mut status = sample::leader();
    status.drained = ["host-a", "host-b"].into_iter().flat_map(sample::drained).collect();
    status.role = Role::default();
    assert!(text_of(&status).contains("LEADER   nobody, every node is drained\n"), "{}", text_of(&status));
    status.unread = Some("no answer within 3 s".into());
    assert!(text_of(&status).contains("LEADER   none known\n"), "one may have been undrained since");
}

#[test]
fn a_retry_is_counted_down_only_while_somebody_leads_and_then_is_overdue() {
    let mut status = sample::leader();
    let state = |status: &Status, seconds: i64| {
        let retry_at = Some(status.at + jiff::SignedDuration::from_secs(seconds));
        tables::run_state(&RunStatus { state: RunState::Retrying, retry_at, ..status.runs[0].clone() }, status)
    };
    let said = [9, 0, -6].map(|seconds| state(&status, seconds));
    assert_eq!(said, ["retrying in 9s", "retrying now", "retry overdue by 6s"]);
    status.role = Role::default();
    assert_eq!(state(&status, 9), "retry planned for 2026-11-20 03:00:09Z");
}

#[test]
fn a_node_that_was_asked_to_stop_is_not_missing() {
    let mut status = sample::leader();
    status.missing.push(sample::missing("host-c"));
    status.missing[0].stopped = true;
    let shown = text_of(&status);
    assert!(shown.contains("\nSTOPPED  host-c, 3m ago\n") && !shown.contains("MISSING"), "{shown}");
}

#[test]
fn what_could_be_read_last_is_shown_as_old() {
    let mut status = sample::leader();
    let read_at = sample::at("2026-11-20T02:59:30Z");
    status.role = Role::default();
    status.unread = Some("no answer within 3 s".into());
    status.read_at = Some(read_at);
    status.parts_read_at = [(LedgerPart::Queue, read_at), (LedgerPart::Ends, read_at)].into();
    status.put_old_queue(&sample::queue(), read_at, sample::at("2026-11-20T02:59:31Z"));
    let shown = text_of(&status);
    for line in [
        "LEADER   unknown since 2026-11-20 02:59:31Z (host-a until then)",
        "LEDGER   NOT READ, showing what it held at 2026-11-20 02:59:30Z: no answer within 3 s",
        "1      host-a              - (was first)       …-lock-0000000007",
        "host-a  host-a.example  4242  0.1.0    11507a0e2f5e69d5  2d",
        "load            -        -       -            2026-11-20 03:01:00  no leader",
    ] {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{line}\n{shown}");
    }
    assert!(!shown.contains("leads"), "{shown}");
    let outlined = text_of(&status.clone().outlined());
    assert!(outlined.contains("\nLEDGER   NOT READ, showing what it held at 2026-11-20 02:59:30Z\n"), "{outlined}");
    status.parts_read_at.insert(LedgerPart::Ends, sample::at("2026-11-20T02:50:00Z"));
    let shown = text_of(&status);
    let parts = "the queue and nodes as of 2026-11-20 02:59:30Z, the ends as of 2026-11-20 02:50:00Z";
    assert!(shown.contains(&format!("NOT READ, showing {parts}: no answer")), "{shown}");
}

/// They may have ended since, unlike what the node runs itself.
#[test]
fn what_other_nodes_ran_when_the_ledger_was_last_read_was_running_then() {
    let mut status = sample::leader();
    status.state = NodeState::Joining;
    let own = status.runs[0].clone();
    status.runs.push(RunStatus { node: NodeName::new("host-z"), ..own });
    (status.unread, status.read_at) = (Some("no answer within 3 s".into()), Some(sample::at("2026-11-20T02:59:30Z")));
    let shown = text_of(&status);
    let states = shown.lines().skip_while(|line| !line.starts_with("RUNNING")).skip(1).take(2);
    let states: Vec<Vec<&str>> = states.map(|line| line.split_whitespace().skip(1).collect()).collect();
    assert_eq!(states, [vec!["host-a", "1", "1m", "running"], vec!["host-z", "1", "30s", "was", "running"]]);
}

#[test]
fn how_jobs_ended_that_was_never_read_is_not_shown_as_nothing() {
    let mut status = sample::leader();
    status.unknown = LedgerPart::ALL.to_vec();
    let shown = text_of(&status);
    for line in [
        "UNKNOWN  who is in the queue",
        "         how the jobs ended last",
        "nightly-backup  success    host-b  48m 51s ago  2026-11-21 01:30:00  22h 30m",
        "load            not known                       2026-11-20 03:01:00  1m",
    ] {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{line}\n{shown}");
    }
}

#[test]
fn what_is_left_out_of_the_outline_leaves_no_half_sentences() {
    let mut status = sample::cut_off();
    let drain = cronkeeper_core::run::Drain { by: "alice".into(), at: status.at, reason: Some("disks".into()) };
    status.drained.insert(NodeName::new("host-c"), drain);
    status.put_queue(&sample::queue());
    let shown = text_of(&status.outlined());
    assert!(shown.contains("\nLEDGER   NOT READ\n"), "{shown}");
    assert!(!shown.contains("by shown only") && !shown.contains(": shown only"), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("host-a  -     -    0.1.0")), "{shown}");
}

#[test]
fn a_dependent_job_names_its_upstreams_and_those_it_waits_for() {
    let name = |job: &str| JobName::parse(job).unwrap();
    let mut status = sample::leader();
    let job = &mut status.jobs[1];
    (job.next, job.after) = (None, ["extract", "clean"].map(|job| (name(job), "success".to_owned())).into());
    assert!(
        text_of(&status)
            .lines()
            .any(|line| line.starts_with("load ") && line.trim_end().ends_with("after clean, extract"))
    );
    let at = sample::at("2026-11-20T03:00:00Z");
    let link = Link {
        v: 1,
        upstream: name("clean"),
        job: name("load"),
        scheduled_at: at,
        span: Span { last: at, count: 1 },
        trigger: None,
        result: UpstreamResult::Success,
        at,
        since: None,
    };
    status.put_links([link].iter());
    let shown = text_of(&status);
    let waits = |line: &str| line.starts_with("load ") && line.trim_end().ends_with("waits for extract");
    assert!(shown.lines().any(waits), "{shown}");
}

#[test]
fn damaged_records_are_named_with_their_path() {
    let mut status = sample::leader();
    status.damaged = vec!["/cronkeeper/history/a: it cannot be written: not authorized".into()];
    let expected = "DAMAGED  /cronkeeper/history/a: it cannot be written: not authorized\n";
    assert!(text_of(&status).contains(expected));
}

#[test]
fn a_channel_that_gets_nothing_is_named_with_the_reason() {
    let mut status = sample::leader();
    let since = "2026-11-20T10:00:00Z".parse().unwrap();
    let channel = cronkeeper_core::job::ChannelName::parse("ops").unwrap();
    let error = "HTTP status 503".to_owned();
    status.failing_channels = vec![FailingChannel { channel, since, waiting: 3, error }];
    let expected =
        "CHANNEL  ops: nothing delivered since 2026-11-20 10:00:00Z, 3 notifications waiting: HTTP status 503\n";
    assert!(text_of(&status).contains(expected), "{}", text_of(&status));
    let withheld = text_of(&status.outlined());
    assert!(withheld.contains("3 notifications waiting") && !withheld.contains("503"), "{withheld}");
}

#[test]
fn a_hostile_message_cannot_paint_the_screen() {
    let mut status = sample::cut_off();
    status.jobs_file.errors = vec!["x\u{1b}[2J\ny".into()];
    assert!(text_of(&status).contains("x\\u{1b}[2J\\ny"));
}

/// The daemon may be of another version, and its answer may contain text that somebody wrote into the ledger.
#[test]
fn fuzz_status_of_a_daemon() {
    Fuzz { longest: 32 << 10, ..Fuzz::of("status", LEDGER_WORDS) }.run(|input| {
        let read = serde_json::from_slice::<Status>(input);
        if let Ok(status) = &read {
            is_read_back(status);
            assert!(!text_of(status).contains(|c| c != '\n' && escape::is_harmful(c)));
        }
        read.is_ok()
    });
}

#[test]
fn a_placed_run_waits_for_its_node_to_accept_it_and_a_refused_one_says_why() {
    let mut status = sample::leader();
    status.runs[0].state = RunState::Placed;
    assert_eq!(tables::run_state(&status.runs[0], &status), "placed on host-a, waits for it to accept");
    status.runs[0].state = RunState::Unstarted;
    let reason = cronkeeper_core::run::RefusalReason::Labels;
    status.runs[0].refused =
        Some(cronkeeper_core::run::Refusal { node: NodeName::new("host-b"), reason, digest: None });
    let expected = "not started yet; host-b refused it: its labels do not fit the job";
    assert_eq!(tables::run_state(&status.runs[0], &status), expected);
}

#[test]
fn a_job_that_no_node_can_run_is_marked_with_the_reason() {
    let mut status = sample::leader();
    status.jobs[1].unplaceable = Some("no node has gpu (host-a: db)".into());
    let shown = text_of(&status);
    assert!(shown.contains("\nNO NODE  load: no node has gpu (host-a: db)\n"), "{shown}");
    assert!(shown.contains("\n! load "), "{shown}");
    assert!(!text_of(&status.outlined()).contains("gpu"), "labels are not public");
}

#[test]
fn a_share_whose_node_is_away_says_so() {
    let mut status = sample::leader();
    status.places = sample::places();
    status.runs[0].run = status.runs[0].run.clone().on(Some(NodeName::new("host-c")));
    (status.runs[0].state, status.runs[0].attempt) = (RunState::Queued, 0);
    assert_eq!(tables::run_state(&status.runs[0], &status), "waits for host-c: away");
}

#[test]
fn a_share_that_waits_is_shown_with_its_node_and_waits_for_no_other_nodes_share() {
    let mut status = sample::leader();
    let share = |node: &str, state| {
        let run = status.runs[0].run.clone().on(Some(NodeName::new(node)));
        crate::status::RunStatus { run, state, attempt: 0, ..status.runs[0].clone() }
    };
    let (begun, waits) = (share("host-a", RunState::Running), share("host-c.example.org", RunState::Queued));
    let next = crate::status::RunStatus { run: begun.run.clone().of(sample::job("load")), ..waits.clone() };
    status.runs = vec![begun.clone(), waits.clone()];
    let state = "waits for host-c.example.org, its group or its locks";
    assert_eq!(tables::run_state(&waits, &status), state);
    assert_eq!(tables::run_state(&next, &status), format!("waits for {}", begun.run));
    let mut out = Vec::new();
    tables::runs(&status).write(&mut out).unwrap();
    let shown = String::from_utf8(out).unwrap();
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect()).collect();
    assert_eq!((rows[2][1], rows[2][4]), ("host-c.example.org", state), "{shown}");
    let node = shown.find("NODE").unwrap();
    assert!(shown.lines().skip(1).all(|line| line[node..].starts_with("host-")), "{shown}");
}
