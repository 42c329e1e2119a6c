//! Changes of the jobs file while the daemon runs.

use std::fs;

use rustix::process::Signal;

use crate::support::node::{Event, Node};
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

use super::fixture::{Gate, await_end, await_start, await_starts, cli_text, following, leading, node, status};

const TICK: &str = "  tick: {schedule: '* * * * * *', command: 'true'}\n";

fn jobs(more: &str) -> String {
    format!("jobs:\n{TICK}{more}")
}

fn await_loaded(node: &Node, seen: usize) -> Event {
    node.await_after(seen, "jobs.loaded", LONG, |_| true)
}

#[test]
fn a_file_that_is_replaced_or_written_in_place_is_taken_in() {
    let spec = node("only").jobs(&jobs(""));
    let a = leading(&spec);
    let seen = a.events().len();
    spec.write_jobs(&jobs("  more: {schedule: '* * * * * *', command: 'true'}\n"));
    let loaded = await_loaded(&a, seen);
    assert_eq!((loaded.number("added"), loaded.text("added_jobs")), (Some(1), "more"));
    await_start(&a, seen, "more");

    let seen = a.events().len();
    fs::write(spec.jobs_file(), jobs("  other: {schedule: '* * * * * *', command: 'true'}\n")).unwrap();
    // The daemon may first see a half-written file: it then rejects it or loads fewer jobs, and reads it again.
    await_start(&a, seen, "other");
    let loaded = a.events().named("jobs.loaded");
    assert_eq!(loaded.last().unwrap().number("jobs"), Some(2));
}

/// A calendar that leaves out every day, and one that leaves out none.
const CLOSED: &str = "1970-01-01..2100-12-31\n";
const OPEN: &str = "2100-12-31\n";

#[test]
fn a_calendar_that_changes_is_a_change_of_the_jobs_that_have_it() {
    let other = "  other: {schedule: '* * * * * *', command: 'true', calendar: {exclude: closed.txt}}\n";
    let spec = node("only").jobs(&jobs(other));
    let calendar = spec.jobs_file().with_file_name("closed.txt");
    let write = |text: &str| {
        let new = calendar.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &calendar).unwrap();
    };
    write(CLOSED);
    let a = leading(&spec);
    await_start(&a, 0, "tick");
    assert!(a.events().named("run.started").iter().all(|started| started.text("job") != "other"));
    assert!(a.events().named("run.skipped").is_empty(), "a day without occurrences is not a day of skips");
    let seen = a.events().len();
    write(OPEN);
    let loaded = await_loaded(&a, seen);
    assert_eq!((loaded.text("changed_jobs"), loaded.number("added")), ("other", Some(0)));
    await_start(&a, seen, "other");
    let seen = a.events().len();
    write("tomorrow\n");
    let rejected = a.await_after(seen, "jobs.rejected", LONG, |_| true);
    assert!(rejected.text("first").contains("closed.txt:1:1: expected a date"), "{rejected:?}");
    let seen = a.events().len();
    fs::write(&calendar, "").unwrap();
    let rejected = a.await_after(seen, "jobs.rejected", LONG, |_| true);
    assert!(rejected.text("first").contains("closed.txt:1:1: the calendar has no entries"), "{rejected:?}");
    let seen = a.events().len();
    await_start(&a, seen, "other");
}

#[test]
fn files_of_a_folder_are_taken_in_as_they_come_and_go() {
    let spec = node("only");
    let folder = spec.jobs_file();
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), jobs("")).unwrap();
    let a = leading(&spec);
    let seen = a.events().len();
    fs::write(folder.join(".b.yml.new"), "jobs: {b: {schedule: '* * * * * *', command: 'true'}}").unwrap();
    fs::rename(folder.join(".b.yml.new"), folder.join("b.yml")).unwrap();
    assert_eq!(await_loaded(&a, seen).number("added"), Some(1));
    await_start(&a, seen, "b");
    let seen = a.events().len();
    fs::remove_file(folder.join("b.yml")).unwrap();
    assert_eq!(await_loaded(&a, seen).number("removed"), Some(1));
}

#[test]
fn a_link_to_the_file_that_is_turned_elsewhere_is_noticed() {
    let versions = Scratch::new("versions");
    let (one, two) = (versions.write("one/jobs.yaml", &jobs("")), versions.write("two/jobs.yaml", "jobs: {}"));
    let current = versions.path().join("current");
    std::os::unix::fs::symlink(one.parent().unwrap(), &current).unwrap();
    let spec = node("only");
    fs::remove_file(spec.jobs_file()).unwrap();
    std::os::unix::fs::symlink(current.join("jobs.yaml"), spec.jobs_file()).unwrap();
    let a = leading(&spec);
    let seen = a.events().len();
    let new = versions.path().join("new");
    std::os::unix::fs::symlink(two.parent().unwrap(), &new).unwrap();
    fs::rename(new, current).unwrap();
    assert_eq!(await_loaded(&a, seen).number("removed"), Some(1));
}

#[test]
fn a_bad_file_is_refused_with_all_its_errors_and_the_old_set_goes_on() {
    let spec = node("only").jobs(&jobs(""));
    let a = leading(&spec);
    let seen = a.events().len();
    spec.write_jobs("jobs:\n  bad: {schedule: '61 * * * *', comand: 'true'}\n  worse: {schedule: '@daily'}\n");
    let rejected = a.await_after(seen, "jobs.rejected", LONG, |_| true);
    let errors = rejected.number("errors").unwrap();
    assert!(errors >= 3, "{errors} errors");
    let reported = |word: &'static str| {
        a.events().wait(seen, LONG, |event| ["message", "first"].iter().any(|field| event.text(field).contains(word)))
    };
    for word in ["61", "comand", "worse"] {
        assert!(reported(word).is_some(), "nothing of {word} in the log:\n{}", a.events().tail());
    }
    await_starts(&a, "tick", 2);
    until("status shows it", || status(&spec)["jobs_file"]["valid"] == false);
    assert_eq!(status(&spec)["jobs_file"]["errors"].as_array().unwrap().len() as i64, errors);
    assert!(cli_text(&spec, &["status"]).contains("REJECTED"));

    let seen = a.events().len();
    spec.write_jobs(&jobs("  more: {schedule: '* * * * * *', command: 'true'}\n"));
    await_start(&a, seen, "more");
    until("status shows it", || status(&spec)["jobs_file"]["valid"] == true);
}

#[test]
fn a_file_that_is_gone_leaves_the_old_set() {
    let spec = node("only").jobs(&jobs(""));
    let a = leading(&spec);
    let seen = a.events().len();
    fs::remove_file(spec.jobs_file()).unwrap();
    a.await_after(seen, "jobs.rejected", LONG, |_| true);
    await_starts(&a, "tick", 1);
    let seen = a.events().len();
    spec.write_jobs(&jobs(""));
    await_loaded(&a, seen);
}

#[test]
fn a_new_or_edited_schedule_never_fires_for_the_past() {
    let first = node("first").jobs(&jobs("  edited: {schedule: '@yearly', command: 'true'}\n"));
    let a = leading(&first);
    await_starts(&a, "tick", 1);
    let seen = a.events().len();
    // Both have occurrences in the last day, and a misfire window that would allow them to run.
    first.write_jobs(&jobs(concat!(
        "  edited: {schedule: '0 0 * * *', command: 'true', misfire: run-all, misfire_window: 2d}\n",
        "  new: {schedule: '@every 12h', command: 'true', misfire: run-once, misfire_window: 2d}\n",
    )));
    let loaded = await_loaded(&a, seen).text("timestamp").to_owned();
    await_starts(&a, "tick", 2);
    assert_eq!(runs_of_the_past(&a, &loaded), Vec::<Event>::new());

    // Not even after a change of leader.
    let b = following(&node("second").beside(&first));
    a.kill9();
    b.await_event("takeover.done", LONG);
    await_starts(&b, "tick", 2);
    assert_eq!(runs_of_the_past(&b, &loaded), Vec::<Event>::new());
}

/// The runs of jobs other than `tick` for occurrences before an instant.
fn runs_of_the_past(node: &Node, before: &str) -> Vec<Event> {
    let runs = node.events().named("run.started").into_iter().filter(|run| run.text("job") != "tick");
    runs.filter(|run| run.text("scheduled_at") < before).collect()
}

#[test]
fn a_removed_jobs_run_goes_on() {
    let gate = Gate::new();
    let command = gate.command();
    let spec = node("only").jobs(&jobs(&format!("  long: {{schedule: '* * * * * *', command: {command:?}}}\n")));
    let a = leading(&spec);
    let run = await_start(&a, 0, "long");
    let seen = a.events().len();
    spec.write_jobs(&jobs(""));
    assert_eq!(await_loaded(&a, seen).number("removed"), Some(1));
    await_starts(&a, "tick", 2);
    gate.open();
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    let starts = a.events().named("run.started");
    assert_eq!(starts.iter().filter(|start| start.text("job") == "long").count(), 1);
}

#[test]
fn a_disabled_job_does_not_run_and_is_shown() {
    let spec = node("only").jobs(&jobs("  off: {schedule: '* * * * * *', command: 'true', enabled: false}\n"));
    let a = leading(&spec);
    await_starts(&a, "tick", 2);
    assert!(a.events().named("run.started").iter().all(|run| run.text("job") == "tick"));
    assert!(a.events().named("run.skipped").iter().all(|run| run.text("job") == "tick"));
    let jobs = status(&spec)["jobs"].take();
    assert_eq!((&jobs[0]["name"], &jobs[0]["enabled"], &jobs[0]["next"]), (&"off".into(), &false.into(), &().into()));

    let seen = a.events().len();
    spec.write_jobs(&jobs_enabled());
    a.signal(Signal::HUP);
    await_start(&a, seen, "off");
}

fn jobs_enabled() -> String {
    jobs("  off: {schedule: '* * * * * *', command: 'true'}\n")
}
