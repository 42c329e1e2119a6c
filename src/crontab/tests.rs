//! Tests of the import: whole files, times, commands, and arbitrary input.

mod fuzz;
mod golden;
mod hostile;
mod keys;
mod shells;
mod times;

use super::*;
use crate::config;
use cronkeeper_core::job::JobSet;

fn origin(system: bool) -> Origin<'static> {
    Origin { name: "crontab", system, zone: "Europe/Berlin", owner: None, missing: |_| None }
}

/// Imports a valid crontab, and loads the resulting jobs.
#[track_caller]
fn imported(text: &str) -> (Imported, JobSet) {
    let imported = import(text.as_bytes(), &origin(false)).unwrap_or_else(|error| panic!("{error}: {text}"));
    let jobs = valid(&imported.yaml);
    (imported, jobs)
}

/// Loads jobs that must be valid, without `user` and `group`, which only a daemon of root accepts.
#[track_caller]
fn valid(yaml: &str) -> JobSet {
    let is_for_root = |line: &&str| ["user: ", "group: "].iter().any(|key| line.trim_start().starts_with(key));
    let rest: Vec<&str> = yaml.lines().filter(|line| !is_for_root(line)).collect();
    match config::parse("jobs.yaml", (rest.join("\n") + "\n").as_bytes()) {
        Ok((jobs, _)) => jobs,
        Err(problems) => panic!("{problems:?}\n{yaml}"),
    }
}
