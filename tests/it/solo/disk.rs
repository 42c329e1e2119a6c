//! A state directory that cannot be written: no run starts unrecorded, and the log says why.
//!
//! The node runs in a mount namespace of its own, so that no mount is left however the test ends. This needs root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use jiff::Timestamp;

use crate::support::node::{Node, Spec};
use crate::support::scratch::{Scratch, fill};
use crate::support::witness::Witness;
use crate::support::{Facility, LONG, skipped, until};

use super::fixture::{PROGRAM, await_starts, cli, cli_text, get, leading};

/// A node whose state directory is a separate file system, mounted with `options`. `None` if mounting is not allowed.
fn on_own_file_system(options: &str) -> Option<(Scratch, Spec)> {
    let allowed = Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|output| output.status.success());
    if !allowed {
        skipped(Facility::Namespaces, "mounting takes root");
        return None;
    }
    let dir = Scratch::new("mounting");
    let script = format!(
        r#"#!/bin/sh
for state; do [ "$before" = --state-dir ] && break; before=$state; done
export state
exec unshare -m --propagation private sh -c 'mount -t tmpfs -o mode=700,{options} tmpfs "$state" && unset state && exec "$@"' sh {PROGRAM} "$@"
"#
    );
    let path = dir.program("cronkeeper", &script);
    let spec = Spec::new(path.to_str().unwrap(), "only");
    Some((dir, spec))
}

/// A path in the node's state directory, as the node sees it.
fn inside(a: &Node, name: &str) -> PathBuf {
    let state = a.spec().state_dir();
    PathBuf::from(format!("/proc/{}/root{}", a.pid(), state.display())).join(name)
}

#[test]
fn nothing_starts_while_the_disk_is_full_and_all_goes_on_when_there_is_room() {
    let Some((_dir, spec)) = on_own_file_system("size=2m") else { return };
    let witness = Witness::new();
    let command = witness.command(&[]);
    let job = format!("{{schedule: '* * * * * *', command: {command}, misfire: run-all, misfire_window: 5m}}");
    let a = leading(&spec.jobs(&format!("jobs: {{tick: {job}}}")));
    await_starts(&a, "tick", 1);

    let filler = fill(&inside(&a, "filler"));
    let seen = a.events().len();
    let unreachable = a.await_after(seen, "coordination.unreachable", LONG, |_| true);
    let (said, state) = (unreachable.text("error"), a.spec().state_dir());
    assert!(said.contains("full") && said.contains(state.to_str().unwrap()), "{:?}", unreachable.json());
    // The error is logged again after the pause that the line names: longer than the time to the next occurrences.
    let started = a.events().named("run.started").len();
    let seen = a.events().len();
    a.await_after(seen, "coordination.unreachable", LONG, |_| true);
    let reports = a.events().named("coordination.unreachable");
    let at = |index: usize| reports[index].text("timestamp").parse::<Timestamp>().unwrap();
    let pause = reports[0].number("repeat_ms").expect("the pause is named");
    assert!(pause >= 5_000 && at(1).duration_since(at(0)).as_millis() + 50 >= i128::from(pause), "{reports:?}");
    assert!(a.events().named("run.started").len() <= started + 1, "runs begin though they cannot be recorded");
    assert!(cli_text(a.spec(), &["status"]).contains("tick"));

    fs::remove_file(filler).unwrap();
    a.await_event("coordination.resumed", LONG);
    await_starts(&a, "tick", 3);
    witness.assert_fine(&[]);
}

/// A job that is due by hand alone, and writes two million bytes.
const NOISE: &str = "jobs: {noise: {schedule: '@at 2099-01-01T00:00:00Z', max_output: 4MiB, \
    command: 'head -c 1500000 /dev/urandom | base64 -w 99'}}";

fn make_noise(a: &Node) {
    let output = cli(a.spec(), &["trigger", "noise", "--wait"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// The number of attempts whose output is kept.
fn kept(a: &Node) -> usize {
    fs::read_dir(inside(a, "output/ended/noise")).map_or(0, Iterator::count)
}

/// The number of attempts whose output still has its uncompressed file.
fn unfinished(a: &Node) -> usize {
    let files = |folder: PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
    fs::read_dir(inside(a, "output/live"))
        .map_or(0, |writers| writers.flatten().map(|writer| files(writer.path())).sum())
}

/// True while the node has files open that it has removed. They still take their space.
fn has_removed_files(a: &Node) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", a.pid())).expect("the node runs");
    let links = open.flatten().filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    links.map(|link| link.display().to_string()).any(|link| link.contains("/output/") && link.ends_with(" (deleted)"))
}

#[test]
fn kept_output_leaves_room_for_the_records_of_runs() {
    let Some((_dir, spec)) = on_own_file_system("size=8m") else { return };
    let a = leading(&spec.jobs(NOISE));
    until("it can be asked", || get(a.spec(), "/healthz").is_some());
    let mut runs = 0;
    until("the oldest had to go, and some are kept", || {
        make_noise(&a);
        runs += 1;
        // The file of the last run may still be on its way.
        let kept = kept(&a);
        kept > 0 && kept + 1 < runs
    });
    assert!(a.events().named("coordination.unreachable").is_empty(), "{}", a.events().tail());
}

#[test]
fn kept_output_gives_way_when_something_else_fills_the_disk() {
    let Some((_dir, spec)) = on_own_file_system("size=16m") else { return };
    let a = leading(&spec.jobs(NOISE));
    until("it can be asked", || get(a.spec(), "/healthz").is_some());
    make_noise(&a);
    // Until the uncompressed file is removed and closed: what that frees would be room enough for the kept one.
    until("its output is kept, compressed", || kept(&a) == 1 && unfinished(&a) == 0 && !has_removed_files(&a));
    let filler = fill(&inside(&a, "filler"));
    until("its output is gone", || kept(&a) == 0);
    let failed = a.await_event("output.failed", LONG);
    let folder = a.spec().state_dir().join("output");
    assert_eq!((failed.text("path"), failed.text("error").contains("full")), (folder.to_str().unwrap(), true));
    make_noise(&a);
    assert_eq!(a.events().named("output.failed").len(), 1, "not for every write");

    fs::remove_file(filler).unwrap();
    until("output is kept again", || {
        make_noise(&a);
        !a.events().named("output.recovered").is_empty()
    });
}

#[test]
fn an_archive_that_the_disk_has_no_room_for_is_told_of_once_until_it_is_written_again() {
    let Some((_dir, spec)) = on_own_file_system("size=96m") else { return };
    let a = leading(&spec.jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}"));
    await_starts(&a, "tick", 2);
    assert!(a.events().named("archive.failed").is_empty(), "{}", a.events().tail());
    let filler = inside(&a, "filler");
    fs::write(&filler, vec![0; 48 << 20]).unwrap();
    let failed = a.await_event("archive.failed", LONG);
    let path = a.spec().state_dir().join("archive.db");
    assert_eq!((failed.text("path"), failed.text("error").is_empty()), (path.to_str().unwrap(), false));
    let runs = a.events().named("run.finished").len();
    until("more runs end", || a.events().named("run.finished").len() > runs + 3);
    assert_eq!(a.events().named("archive.failed").len(), 1, "not for every record");
    fs::remove_file(filler).unwrap();
    let recovered = a.await_event("archive.recovered", LONG);
    assert!(recovered.number("lost").is_some_and(|lost| lost > 0), "{}", recovered.json());
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named() {
    let Some((_dir, spec)) = on_own_file_system("ro") else { return };
    let a = spec.start();
    assert_eq!(a.wait_exit(LONG).code(), Some(1));
    // Its last lines may be read shortly after its end is noticed.
    until("the directory is named, and what is wrong with it", || {
        let log = a.events().tail();
        log.contains(spec.state_dir().to_str().unwrap()) && log.contains("Read-only")
    });
}
