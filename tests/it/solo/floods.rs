//! Jobs that write as fast as they can, beside jobs that have something to do.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Signal;

use super::fixture::{await_start, cli_text, get, leading, node};
use crate::support::node::{Event, Node};
use crate::support::{LONG, until};

/// Floods of empty, short and endless lines.
const FLOODS: [&str; 3] = ["yes ''", "yes", "tr '\\0' x </dev/zero"];
const MAX_OUTPUT: u64 = 1 << 20;
/// How many runs of the other job are watched.
const TICKS: usize = 5;
/// Floods again and again.
const REPEATED: &str = "schedule: '*/3 * * * * *', timeout: 2s, kill_grace: 1s";
/// Floods until it is killed, and all of it is wanted.
const ENDLESS: &str = "schedule: '@at 2099-01-01T00:00:00Z', max_output: 1TiB";
/// Without the output in the log.
const QUIET: (&str, &str) = ("--log", "cronkeeper=info,cronkeeper::output=off");

/// Jobs that flood, one that is due every other second, and one that is triggered.
fn jobs(floods: usize, first: usize, flood: &str) -> String {
    let mut jobs = "jobs:
  tick: {schedule: '*/2 * * * * *', command: 'true'}
  seldom: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}
"
    .to_owned();
    for (number, command) in FLOODS.into_iter().cycle().skip(first).take(floods).enumerate() {
        jobs.push_str(&format!("  flood-{number}: {{{flood}, command: {command:?}}}\n"));
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
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // It may be moved meanwhile.
        let Ok(facts) = entry.metadata() else { continue };
        let name = entry.file_name().into_string().unwrap();
        let run = name.split(".a1.jsonl").next().unwrap_or_default().to_owned();
        let found = if facts.is_dir() { kept(&entry.path()) } else { [(run, facts.len())].into() };
        found.into_iter().for_each(|(run, bytes)| *bytes_of.entry(run).or_default() += bytes);
    }
    bytes_of
}

/// Beside floods that end, and begin again, others run; and no flood takes more room than it may.
fn assert_room_is_bounded(floods: usize, first: usize, options: &[(&str, &str)]) -> Node {
    let spec = options.iter().fold(node("flooded"), |spec, (name, value)| spec.option(name, value));
    let a = leading(&spec.jobs(&jobs(floods, first, REPEATED)));
    until("it can be asked", || get(a.spec(), "/healthz").is_some());
    (0..floods).for_each(|number| drop(await_start(&a, 0, &format!("flood-{number}"))));
    let (mut longest, mut seen) = (0, a.events().len());
    for _ in 0..TICKS {
        let run = await_start(&a, seen, "tick");
        seen = a.events().len();
        longest = longest.max(longest_live(&a.spec().state_dir()));
        a.await_where("run.finished", LONG, |event| event.text("run") == run);
        cli_text(a.spec(), &["trigger", "seldom", "--wait"]);
        longest = longest.max(longest_live(&a.spec().state_dir()));
    }
    let folder = a.spec().state_dir().join("output");
    let is_flood = |run: &String| run.starts_with("flood-");
    // A node that stops does not wait forever until all is written.
    until("something of each is kept", || kept(&folder).into_keys().filter(is_flood).count() >= floods);
    // The floods end, and with them what is moved and compressed.
    a.signal(Signal::TERM);
    a.wait_exit(LONG);
    assert!((1..=2 * MAX_OUTPUT).contains(&longest), "{longest} bytes");
    let kept = kept(&folder);
    assert!(kept.values().all(|bytes| *bytes <= 2 * MAX_OUTPUT), "{kept:?}");
    a
}

#[test]
fn a_flood_of_any_kind_takes_no_more_room_than_it_may() {
    for first in 0..FLOODS.len() {
        assert_room_is_bounded(1, first, &[]);
    }
}

#[test]
fn ten_floods_at_once_take_no_more_room_than_they_may() {
    assert_room_is_bounded(10, 0, &[QUIET]);
}

/// What waited until no more output comes would wait forever: no start and no end does, however slow the machine is.
fn assert_others_run(floods: usize, first: usize) {
    let spec = node("flooded").option(QUIET.0, QUIET.1).option("--output-retention", "none");
    let a = leading(&spec.jobs(&jobs(floods, first, ENDLESS)));
    until("it can be asked", || get(a.spec(), "/healthz").is_some());
    for job in (0..floods).map(|number| format!("flood-{number}")) {
        cli_text(a.spec(), &["trigger", &job]);
        await_start(&a, 0, &job);
    }
    for _ in 0..2 {
        let tick = await_start(&a, a.events().len(), "tick");
        let seldom = cli_text(a.spec(), &["trigger", "seldom"]);
        for run in [tick.as_str(), seldom.trim()] {
            let ended = a.await_where("run.finished", LONG, |event| event.text("run") == run);
            assert_eq!(ended.text("outcome"), "success");
        }
    }
    let ended = a.events().named("run.finished").into_iter().filter(|event| event.text("job").starts_with("flood-"));
    assert_eq!(ended.count(), 0, "all that beside floods");
}

#[test]
fn a_flood_of_any_kind_that_does_not_end_keeps_no_other_run_from_its_end() {
    for first in 0..FLOODS.len() {
        assert_others_run(1, first);
    }
}

#[test]
fn ten_floods_that_do_not_end_keep_no_other_run_from_its_end() {
    assert_others_run(10, 0);
}

#[test]
fn a_flood_is_worth_a_warning_a_second_in_the_log() {
    let a = assert_room_is_bounded(1, 0, &[]);
    let dropped = a.events().named("log.dropped");
    let at = |event: &Event| event.text("timestamp").parse::<jiff::Timestamp>().unwrap();
    let is_close = |pair: &[Event]| at(&pair[1]).duration_since(at(&pair[0])).as_millis() < 900;
    assert!(!dropped.windows(2).any(is_close), "{dropped:?}");
    let started = a.events().named("run.started");
    let floods = started.iter().filter(|event| event.text("job").starts_with("flood-")).count();
    let lines = a.events().count("run.output");
    assert!(lines <= 22_000 * floods, "{lines} lines of at most {floods} floods");
}
