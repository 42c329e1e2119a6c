//! Jobs that write as fast as they can, beside jobs that have something to do.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::fixture::{await_start, cli_text, get, leading, node, of};
use crate::support::node::{Event, Node};
use crate::support::{LONG, until};

/// Floods of empty, short and endless lines.
const FLOODS: [&str; 3] = ["yes ''", "yes", "tr '\\0' x </dev/zero"];
const MAX_OUTPUT: u64 = 1 << 20;
/// How many runs of the other job are watched.
const TICKS: usize = 5;
/// How many runs are triggered while each of these ends.
const TRIGGERS: usize = 2;
/// Allowed lateness of the other job, on a machine that is also loaded by other tests.
const LATE_MS: i64 = 5_000;
/// Allowed time for `trigger --wait` of `true`, at the best of all times. The aim is 50 ms, which a loaded machine cannot
/// keep, with a program that was built for tests; a trigger that waits for the end of a flood takes longer than this.
const TRIGGER: Duration = Duration::from_secs(1);

/// Jobs that flood again and again, one that is due every other second, and one that is triggered.
fn jobs(floods: usize, first: usize) -> String {
    let mut jobs = "jobs:
  tick: {schedule: '*/2 * * * * *', command: 'true'}
  seldom: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}
"
    .to_owned();
    for (number, command) in FLOODS.into_iter().cycle().skip(first).take(floods).enumerate() {
        jobs.push_str(&format!(
            "  flood-{number}: {{schedule: '*/3 * * * * *', command: {command:?}, timeout: 2s, kill_grace: 1s}}\n"
        ));
    }
    jobs
}

/// The length of the longest file of an attempt in flight; 0 if there is none.
fn longest_live(state: &Path) -> u64 {
    let writers = std::fs::read_dir(state.join("output/live")).into_iter().flatten().flatten();
    let files = writers.flat_map(|writer| std::fs::read_dir(writer.path()).into_iter().flatten().flatten());
    files.filter_map(|file| file.metadata().ok()).map(|facts| facts.len()).max().unwrap_or(0)
}

/// The bytes in the directory of kept output, by run; a file of no run counts for itself.
fn kept(folder: &Path) -> BTreeMap<String, u64> {
    let mut bytes_of = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (facts, name) = (entry.metadata().unwrap(), entry.file_name().into_string().unwrap());
        let run = name.split(".a1.jsonl").next().unwrap_or_default().to_owned();
        let found = if facts.is_dir() { kept(&entry.path()) } else { [(run, facts.len())].into() };
        found.into_iter().for_each(|(run, bytes)| *bytes_of.entry(run).or_default() += bytes);
    }
    bytes_of
}

/// The occurrences that runs of the job have started for, in seconds.
fn occurrences(events: &[Event], job: &str) -> Vec<i64> {
    let started = events.iter().filter(|event| event.name() == "run.started" && event.text("job") == job);
    started.map(|event| event.text("scheduled_at").parse::<jiff::Timestamp>().unwrap().as_second()).collect()
}

fn assert_others_run(floods: usize, first: usize, options: &[(&str, &str)]) -> Node {
    let spec = options.iter().fold(node("flooded"), |spec, (name, value)| spec.option(name, value));
    let a = leading(&spec.jobs(&jobs(floods, first)));
    until("it can be asked", || get(a.spec(), "/healthz").is_some());
    (0..floods).for_each(|number| drop(await_start(&a, 0, &format!("flood-{number}"))));
    let (mut longest, mut seen, mut triggers) = (0, a.events().len(), Vec::new());
    for _ in 0..TICKS {
        let run = await_start(&a, seen, "tick");
        seen = a.events().len();
        longest = longest.max(longest_live(&a.spec().state_dir()));
        a.await_where("run.finished", LONG, |event| event.text("run") == run);
        for _ in 0..TRIGGERS {
            let asked_at = Instant::now();
            cli_text(a.spec(), &["trigger", "seldom", "--wait"]);
            triggers.push(asked_at.elapsed());
            longest = longest.max(longest_live(&a.spec().state_dir()));
        }
    }
    // The floods end, and with them what is moved and compressed.
    a.signal(Signal::TERM);
    a.wait_exit(LONG);
    assert!((1..=2 * MAX_OUTPUT).contains(&longest), "{longest} bytes");
    let kept = kept(&a.spec().state_dir().join("output"));
    assert!(kept.keys().filter(|run| run.starts_with("flood-")).count() >= floods, "{kept:?}");
    assert!(kept.values().all(|bytes| *bytes <= 2 * MAX_OUTPUT), "{kept:?}");
    assert!(triggers.iter().min() < Some(&TRIGGER), "{triggers:?}");
    let all = a.events().all();
    let skips = all.iter().filter(|event| event.name() == "run.skipped" && of("tick")(event));
    assert_eq!(skips.count(), 0, "{}", a.events().tail());
    let ticks = occurrences(&all, "tick");
    assert!(ticks.len() >= TICKS && ticks.windows(2).all(|pair| pair[1] == pair[0] + 2), "{ticks:?}");
    let ticks = all.iter().filter(|event| event.name() == "run.started" && of("tick")(event));
    let late: Vec<_> = ticks.map(|event| event.number("lateness_ms")).collect();
    assert!(late.iter().all(|late| late.is_some_and(|late| late < LATE_MS)), "{late:?}");
    a
}

#[test]
fn a_flood_of_any_kind_keeps_no_other_job_from_its_occurrences() {
    for first in 0..FLOODS.len() {
        assert_others_run(1, first, &[]);
    }
}

#[test]
fn ten_floods_at_once_keep_no_other_job_from_its_occurrences() {
    assert_others_run(10, 0, &[("--log", "cronkeeper=info,cronkeeper::output=off")]);
}

#[test]
fn a_flood_is_worth_a_warning_a_second_in_the_log() {
    let a = assert_others_run(1, 0, &[]);
    let dropped = a.events().named("log.dropped");
    let at = |event: &Event| event.text("timestamp").parse::<jiff::Timestamp>().unwrap();
    let is_close = |pair: &[Event]| at(&pair[1]).duration_since(at(&pair[0])).as_millis() < 900;
    assert!(!dropped.windows(2).any(is_close), "{dropped:?}");
    let started = a.events().named("run.started");
    let floods = started.iter().filter(|event| event.text("job").starts_with("flood-")).count();
    let lines = a.events().count("run.output");
    assert!(lines <= 22_000 * floods, "{lines} lines of at most {floods} floods");
}
