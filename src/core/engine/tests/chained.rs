//! Jobs that run after others, on a fake ledger: chains go on, or end with a reason, under any leader.

mod cluster;

use std::time::Duration;

use super::fixture::*;
use crate::engine::{Command, Event};
use crate::job::{Condition, Due, Job, Overlap};
use crate::ledger::{self, OperatorRequests};
use crate::process::Exit;
use crate::run::{Link, TriggerSeq};
use cluster::Cluster;

use Condition::{Always, Success};

fn after(job_name: &str, upstreams: &[(&str, Condition)]) -> Job {
    let upstreams = upstreams.iter().map(|(upstream, condition)| (name(upstream), *condition)).collect();
    Job { due: Due::After(upstreams), ..job(job_name, "* * * * * *") }
}

/// A job that is due every ten seconds.
fn root() -> Job {
    job("a", "*/10 * * * * *")
}

const AT: &str = "20261120T100010Z";

/// `"begin b"` as it is logged for the chain of 10:00:10.
fn lines(log: &[&str]) -> Vec<String> {
    let line = |log: &&str| match log.split_once(' ').map(|(what, rest)| (what, rest.split_once(' '))) {
        Some((what, Some((job, why)))) => format!("{what} {job}.{AT} {why}"),
        _ => format!("{log}.{AT}"),
    };
    log.iter().map(line).collect()
}

#[test]
fn a_job_begins_when_the_one_before_it_has_succeeded_under_the_roots_time() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pass(10);
    assert_eq!(cluster.take_log(), lines(&["begin a"]));
    cluster.end("a", 0);
    assert_eq!(cluster.take_log(), lines(&["begin b"]));
    assert_eq!(cluster.ledger.jobs[&name("b")].0.last_scheduled, at("10:00:10"));
    assert!(cluster.ledger.links.is_empty());
    cluster.end("b", 0);
    assert_eq!((cluster.take_log(), cluster.ledger.running.len()), (vec![], 0));
}

#[test]
fn a_failure_skips_what_wants_success_and_what_wants_that_in_turn() {
    let jobs = [root(), after("b", &[("a", Success)]), after("c", &[("b", Success)]), after("d", &[("b", Always)])];
    let mut cluster = Cluster::new(jobs);
    cluster.pass(10);
    cluster.end("a", 1);
    assert_eq!(cluster.take_log(), lines(&["begin a", "skip b upstream", "skip c upstream", "begin d"]));
}

#[test]
fn a_job_with_several_upstreams_waits_for_all_and_runs_once() {
    let diamond = [
        root(),
        after("b", &[("a", Success)]),
        after("c", &[("a", Success)]),
        after("d", &[("b", Success), ("c", Always)]),
    ];
    let mut cluster = Cluster::new(diamond);
    cluster.pass(10);
    cluster.end("a", 0);
    cluster.end("c", 1);
    assert_eq!(cluster.take_log(), lines(&["begin a", "begin b", "begin c"]));
    let links: Vec<_> = cluster.fixture.engine.links().map(|link| link.upstream.to_string()).collect();
    assert_eq!(links, ["c"], "status names what is missing");
    cluster.end("b", 0);
    assert_eq!(cluster.take_log(), lines(&["begin d"]));
}

#[test]
fn an_occurrence_that_is_skipped_begins_no_chain_and_disturbs_none() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Always)]), after("c", &[("b", Always)])]);
    cluster.pass(10);
    cluster.pass(10);
    let later = |what: &str, job: &str| format!("{what} {job}.20261120T100020Z");
    let skips = ["a", "b", "c"].map(|job| later("skip", job));
    let log = cluster.take_log();
    assert_eq!(log[0], format!("begin a.{AT}"));
    assert_eq!(
        log[1..],
        [format!("{} overlap", skips[0]), format!("{} upstream", skips[1]), format!("{} upstream", skips[2])]
    );
    cluster.end("a", 0);
    assert_eq!(cluster.take_log(), lines(&["begin b"]));
}

#[test]
fn what_was_missed_is_skipped_behind_too_in_one_record() {
    let mut never = root();
    never.misfire = crate::job::Misfire::Skip;
    let mut cluster = Cluster::new([never, after("b", &[("a", Always)])]);
    cluster.pass(35);
    let skips = [format!("skip a.{AT} missed x3"), format!("skip b.{AT} upstream x3")];
    assert_eq!(cluster.take_log(), skips);
}

#[test]
fn overlap_and_pause_hold_for_a_job_that_runs_after_others() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pass(10);
    cluster.end("a", 0);
    cluster.pass(10);
    cluster.end("a", 0);
    assert_eq!(cluster.take_log().last().unwrap(), "skip b.20261120T100020Z overlap");
    cluster.end("b", 0);
    cluster.pause("b");
    cluster.receive();
    cluster.pass(10);
    cluster.end("a", 0);
    assert_eq!(cluster.take_log().last().unwrap(), "skip b.20261120T100030Z paused");
}

#[test]
fn a_pause_that_comes_between_refuses_the_begin() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pass(10);
    cluster.pause("b");
    cluster.end("a", 0);
    assert_eq!(cluster.take_log(), lines(&["begin a", "skip b paused"]));
}

#[test]
fn a_triggered_chain_goes_on_also_where_a_job_is_paused_and_moves_no_mark() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pause("b");
    let before = cluster.ledger.jobs[&name("b")].0.clone();
    cluster.trigger("a");
    cluster.end("a", 0);
    assert_eq!(cluster.take_log(), ["begin a.20261120T100000Z.m7", "begin b.20261120T100000Z.m7"]);
    assert_eq!(cluster.ledger.jobs[&name("b")].0, before);
    cluster.end("b", 0);
    assert!(cluster.ledger.links.is_empty());
}

/// The run has been begun already, for the upstreams that its job has since the edit.
#[test]
fn a_link_of_a_job_after_which_a_triggered_run_ran_before_an_edit_leads_to_nothing() {
    let jobs = |upstreams: &[(&str, Condition)]| {
        [root(), after("b", &[("a", Success)]), after("c", &[("a", Success)]), after("d", upstreams)]
    };
    for ends_before in [false, true] {
        let mut cluster = Cluster::new(jobs(&[("b", Success), ("c", Success)]));
        cluster.trigger("a");
        cluster.end("a", 0);
        cluster.end("b", 0);
        cluster.load(jobs(&[("b", Success)]));
        cluster.take_log();
        if ends_before {
            cluster.end("d", 0);
        }
        cluster.end("c", 0);
        assert_eq!(cluster.take_log(), [""; 0]);
        assert!(cluster.ledger.links.is_empty());
    }
}

#[test]
fn a_chain_that_was_overtaken_is_missed() {
    let mut beside = root();
    beside.overlap = Overlap::Allow;
    let mut cluster = Cluster::new([beside, after("b", &[("a", Success)])]);
    cluster.pass(10);
    let first = cluster.tree_ids.remove("a").unwrap();
    cluster.pass(10);
    cluster.end("a", 0);
    cluster.fixture.ended(first, Exit::Code(0), None);
    cluster.work();
    let log = cluster.take_log();
    assert_eq!(log[2..], ["begin b.20261120T100020Z".to_owned(), format!("skip b.{AT} missed")]);
}

#[test]
fn a_link_that_nobody_can_leave_is_waited_for_for_a_minute() {
    let jobs = [root(), after("b", &[("a", Success)]), after("d", &[("a", Success), ("b", Success)])];
    let mut cluster = Cluster::new(jobs);
    // The chain of 10:00:00 was begun before `b` ran after `a`: `b` has no link in it and gets none.
    cluster.ledger.jobs.get_mut(&name("d")).unwrap().0.last_scheduled = at("09:00:00");
    cluster.ledger.links.insert(TriggerSeq(99), link("a", "d", "10:00:00"));
    cluster.replace_leader();
    cluster.fixture.pass(59);
    assert_eq!(
        cluster.fixture.engine.wake(cluster.fixture.now).up,
        Some(cluster.fixture.now.up + Duration::from_secs(1))
    );
    cluster.work();
    assert!(cluster.ledger.links.contains_key(&TriggerSeq(99)));
    cluster.pass(1);
    assert!(!cluster.ledger.links.contains_key(&TriggerSeq(99)));
    assert!(cluster.take_log().contains(&"skip d.20261120T100000Z upstream".to_owned()));
}

#[test]
fn the_minute_for_a_link_goes_on_under_the_next_leader() {
    let jobs = [root(), after("b", &[("a", Success)]), after("d", &[("a", Success), ("b", Success)])];
    let mut cluster = Cluster::new(jobs);
    cluster.ledger.jobs.get_mut(&name("d")).unwrap().0.last_scheduled = at("09:00:00");
    cluster.ledger.links.insert(TriggerSeq(99), link("a", "d", "10:00:00"));
    cluster.fixture.pass(45);
    cluster.replace_leader();
    cluster.fixture.pass(14);
    cluster.work();
    assert!(cluster.ledger.links.contains_key(&TriggerSeq(99)));
    cluster.fixture.pass(1);
    cluster.work();
    assert!(!cluster.ledger.links.contains_key(&TriggerSeq(99)));
}

fn link(upstream: &str, job: &str, time: &str) -> Link {
    let span = crate::run::Span { last: at(time), count: 1 };
    Link {
        v: 1,
        upstream: name(upstream),
        job: name(job),
        scheduled_at: at(time),
        span,
        trigger: None,
        result: crate::run::UpstreamResult::Success,
        at: at(time),
        since: None,
    }
}

#[test]
fn a_job_that_is_gone_or_runs_after_others_now_leaves_a_reason() {
    let jobs = || [root(), after("b", &[("a", Success)]), after("c", &[("b", Success)])];
    let mut gone = Cluster::new(jobs());
    gone.pass(10);
    gone.load([job("a", "10 0 10 * * *")]);
    gone.end("a", 0);
    assert_eq!(gone.take_log(), lines(&["begin a"]), "it may be away from the file for a moment");
    gone.pass(59);
    assert_eq!(gone.take_log(), [""; 0]);
    gone.pass(1);
    assert_eq!(gone.take_log(), lines(&["skip b not-defined"]));
    let mut edited = Cluster::new(jobs());
    edited.pass(10);
    edited.load([root(), after("b", &[("a", Always)]), after("c", &[("b", Always)])]);
    edited.end("a", 0);
    // Defined again during its chain: it counts from now, like a job with an edited schedule.
    assert_eq!(edited.take_log(), lines(&["begin a", "skip b missed", "skip c missed"]));
}

#[test]
fn a_disabled_job_is_passed_in_silence_and_what_always_runs_after_it_runs() {
    let mut off = after("b", &[("a", Success)]);
    off.enabled = false;
    let jobs = [root(), off, after("c", &[("b", Always)]), after("d", &[("b", Success)])];
    let mut cluster = Cluster::new(jobs);
    cluster.pass(10);
    cluster.end("a", 0);
    assert_eq!(cluster.take_log(), lines(&["begin a", "begin c", "skip d upstream"]));
}

#[test]
fn a_link_that_nobody_took_in_time_leads_to_a_missed_run() {
    let mut cluster = Cluster::new([
        job("a", "0 0 * * * *"),
        Job { misfire_window: Some(Duration::from_secs(120)), ..after("b", &[("a", Success)]) },
    ]);
    let old = Link { at: at("09:57:00"), ..link("a", "b", "09:57:00") };
    cluster.ledger.jobs.get_mut(&name("b")).unwrap().0.last_scheduled = at("09:00:00");
    cluster.ledger.links.insert(TriggerSeq(1), old);
    cluster.replace_leader();
    assert_eq!(cluster.take_log(), ["skip b.20261120T095700Z missed"]);
}

/// The link was left by a node whose clock was a minute behind.
#[test]
fn a_link_that_was_left_before_its_occurrence_counts_from_that() {
    let window = Some(Duration::from_secs(30));
    let jobs = [job("a", "0 0 * * * *"), Job { misfire_window: window, ..after("b", &[("a", Success)]) }];
    let mut cluster = Cluster::new(jobs);
    let early = Link { at: at("09:58:50"), ..link("a", "b", "09:59:50") };
    cluster.ledger.jobs.get_mut(&name("b")).unwrap().0.last_scheduled = at("09:00:00");
    cluster.ledger.links.insert(TriggerSeq(1), early);
    cluster.replace_leader();
    assert_eq!(cluster.take_log(), ["begin b.20261120T095950Z"]);
}

#[test]
fn a_run_is_kept_while_cut_off_until_its_root_is_due_again() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pass(10);
    cluster.end("a", 0);
    let (run, _) = cluster.ledger.running.values().next().unwrap();
    assert_eq!((run.job.as_str(), run.keep_until), ("b", Some(at("10:00:19"))));
}

#[test]
fn a_start_is_not_late_for_the_time_that_its_upstreams_took() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pass(10);
    cluster.pass(5);
    let tree_id = cluster.tree_ids.remove("a").unwrap();
    cluster.fixture.ended(tree_id, Exit::Code(0), None);
    let mut late = Vec::new();
    for _ in 0..20 {
        let commands = cluster.fixture.take();
        let links = cluster.ledger.links.clone();
        for command in commands {
            if let Command::Report(crate::engine::Report::Started { run, lateness, .. }) = &command {
                late.push((run.job().to_string(), lateness.unwrap()));
            }
            cluster.apply_kill(command);
        }
        if cluster.ledger.links != links {
            cluster.receive();
        }
    }
    assert_eq!(late, [("b".to_owned(), Duration::ZERO)]);
}

/// Runs the chain of 10:00:10 with a leader that dies after `answers` commits, and a successor that does the rest.
fn interrupted_after(answers: usize, condition: Condition) -> Cluster {
    let second = ("b", condition);
    let jobs = [root(), after("b", &[("a", condition)]), after("c", &[("a", condition)])];
    let mut cluster = Cluster::new(jobs.into_iter().chain([after("d", &[second, ("c", condition)])]));
    cluster.answers = answers;
    cluster.pass(10);
    let finish = |cluster: &mut Cluster| {
        for job in ["a", "b", "c", "d"] {
            if cluster.tree_ids.contains_key(job) {
                cluster.end(job, 0);
            }
        }
    };
    finish(&mut cluster);
    if cluster.answers == 0 {
        cluster.replace_leader();
        finish(&mut cluster);
    }
    cluster
}

#[test]
fn whenever_the_leader_changes_each_step_of_a_chain_is_run_or_skipped_once() {
    let whole = interrupted_after(usize::MAX, Always).commits;
    assert!(whole > 8, "{whole}");
    for condition in [Always, Success] {
        // The first commits are those of the jobs' records.
        for answers in 0..=whole {
            let mut cluster = interrupted_after(answers, condition);
            let log = cluster.take_log();
            for job in ["a", "b", "c", "d"] {
                let decided = log.iter().filter(|line| line.contains(&format!(" {job}.{AT}"))).count();
                assert_eq!(decided, 1, "`{job}` after {answers} commits: {log:?}");
            }
            assert!(cluster.ledger.links.is_empty() && cluster.ledger.running.is_empty(), "after {answers}: {log:?}");
            let is_in_order = |first: &str, second: &str| {
                let place = |job: &str| log.iter().position(|line| line.contains(&format!(" {job}.")));
                place(first) < place(second)
            };
            assert!(is_in_order("a", "b") && is_in_order("b", "d") && is_in_order("c", "d"), "{log:?}");
        }
    }
}

#[test]
fn a_link_reported_again_leads_to_no_second_run() {
    let mut cluster = Cluster::new([root(), after("b", &[("a", Success)])]);
    cluster.pass(10);
    let tree_id = cluster.tree_ids.remove("a").unwrap();
    cluster.fixture.ended(tree_id, Exit::Code(0), None);
    cluster.work();
    let stale =
        OperatorRequests { links: [(TriggerSeq(1), link("a", "b", "10:00:10"))].into(), ..OperatorRequests::default() };
    cluster.fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(stale)));
    cluster.work();
    cluster.end("b", 0);
    cluster.work();
    assert_eq!(cluster.take_log(), lines(&["begin a", "begin b"]));
}
