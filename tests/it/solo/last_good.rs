//! A start without a valid jobs file: the node uses the copy of the last good jobs.

use std::fs;

use rustix::process::Signal;

use crate::support::node::{Node, Spec};
use crate::support::{LONG, until};

use super::fixture::{await_start, cli, cli_text, following, leading, node, status};

const TICK: &str = "jobs: {tick: {schedule: '* * * * * *', command: 'true'}}";
const OTHER: &str = "jobs: {other: {schedule: '* * * * * *', command: 'true'}}";
const BAD: &str = "jobs: {bad: {schedule: '61 * * * *', command: x}}";

/// The text of the copy in a node's state directory.
fn copy(spec: &Spec) -> String {
    fs::read_to_string(spec.state_dir().join("last-good.json")).unwrap_or_default()
}

/// Runs a node until it has copied jobs with this word.
fn run_once(spec: &Spec, word: &str) {
    let node = leading(spec);
    until("the jobs are copied", || copy(spec).contains(word));
    stop(node);
}

fn stop(node: Node) {
    node.signal(Signal::TERM);
    node.wait_exit(LONG);
}

#[test]
fn a_node_without_a_valid_file_starts_with_the_last_good_jobs_until_the_file_is_fixed() {
    let spec = node("only").jobs(TICK);
    run_once(&spec, "tick");
    spec.write_jobs(BAD);
    let a = leading(&spec);
    let rejected = a.await_event("jobs.rejected", LONG);
    assert_eq!((rejected.text("level"), rejected.number("errors")), ("ERROR", Some(1)));
    let used = rejected.text("last_good").to_owned();
    assert!(rejected.text("message").contains("(the copy of "), "{rejected:?}");
    assert!(used.ends_with('Z'), "{used}");
    assert!(rejected.text("first").contains("61"), "{rejected:?}");
    await_start(&a, 0, "tick");
    until("status shows it", || status(&spec)["jobs_file"]["last_good"] == true);
    assert!(cli_text(&spec, &["status"]).contains("REJECTED, using the last good jobs, of 20"));
    let checked = cli(&spec, &["status", "--check"]);
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(1));
    assert!(printed.contains("was rejected (using the last good jobs, of 20"), "{printed}");
    assert_eq!(a.events().named("jobs.loaded").len(), 0, "nothing was loaded from the file");
    assert!(copy(&spec).contains("tick"), "a rejected file is not copied");

    let seen = a.events().len();
    spec.write_jobs(OTHER);
    await_start(&a, seen, "other");
    until("status shows it", || status(&spec)["jobs_file"]["valid"] == true);
    assert!(status(&spec)["jobs_file"]["last_good"].is_null());
    until("the new jobs are copied", || copy(&spec).contains("other"));
    stop(a);

    fs::remove_file(spec.jobs_file()).unwrap();
    let b = leading(&spec);
    await_start(&b, 0, "other");
    stop(b);
}

#[test]
fn the_last_good_jobs_have_their_calendar() {
    let spec = node("only").jobs(
        "jobs: {tick: {schedule: '* * * * * *', command: 'true', calendar: {only: days.txt}}, \
         never: {schedule: '* * * * * *', command: 'true', calendar: {exclude: days.txt}}}",
    );
    let calendar = spec.jobs_file().with_file_name("days.txt");
    fs::write(&calendar, "1970-01-01..2100-12-31\n").unwrap();
    run_once(&spec, "1970-01-01..2100-12-31");
    fs::remove_file(&calendar).unwrap();
    let a = leading(&spec);
    let rejected = a.await_event("jobs.rejected", LONG);
    assert!(rejected.text("first").contains("`days.txt`: cannot read"), "{rejected:?}");
    await_start(&a, 0, "tick");
    assert!(a.events().named("run.started").iter().all(|started| started.text("job") == "tick"));
    stop(a);
}

#[test]
fn with_strict_a_node_does_not_start_without_a_valid_file() {
    let spec = node("only").jobs(TICK);
    run_once(&spec, "tick");
    spec.write_jobs(BAD);
    let a = spec.env("CRONKEEPER_STRICT", "true").start();
    assert_eq!(a.wait_exit(LONG).code(), Some(78));
}

#[test]
fn a_damaged_copy_is_named_and_the_node_does_not_start() {
    let spec = node("only").jobs(TICK);
    run_once(&spec, "tick");
    spec.write_jobs(BAD);
    fs::write(spec.state_dir().join("last-good.json"), "{").unwrap();
    let a = spec.start();
    assert_eq!(a.wait_exit(LONG).code(), Some(78));
    let printed = a.events().tail();
    assert!(printed.contains("the last good jobs are not used: "), "{printed}");
    assert!(printed.contains("last-good.json` is damaged"), "{printed}");
}

#[test]
fn the_copy_of_another_path_does_not_count() {
    let spec = node("only").jobs(TICK);
    run_once(&spec, "tick");
    spec.write_jobs(BAD);
    // As if another replica had copied its own jobs last.
    fs::write(spec.state_dir().join("last-good.json"), copy(&spec).replacen("/jobs.yaml", "/others.yaml", 1)).unwrap();
    let a = spec.start();
    assert_eq!(a.wait_exit(LONG).code(), Some(78));
    let printed = a.events().tail();
    let expected = format!("/others.yaml`, and not those of `{}`", spec.jobs_file().display());
    assert!(printed.contains(&expected), "{printed}");
}

#[test]
fn files_of_a_folder_and_replicas_of_one_directory_share_a_copy() {
    let first = node("first");
    let folder = first.jobs_file();
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), TICK).unwrap();
    fs::write(folder.join("b.yml"), OTHER).unwrap();
    let second = node("second").beside(&first);
    let (a, b) = (leading(&first), following(&second));
    until("both files are copied", || ["tick", "other"].iter().all(|word| copy(&first).contains(word)));
    stop(b);
    stop(a);
    fs::write(folder.join("b.yml"), BAD).unwrap();
    let (a, b) = (leading(&first), following(&second));
    await_start(&a, 0, "other");
    await_start(&a, 0, "tick");
    b.await_event("jobs.rejected", LONG);
    stop(b);
    stop(a);
}
