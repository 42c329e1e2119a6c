//! What becomes of crontabs: to the letter, by their times, and whatever they hold.

mod fuzz;
mod golden;
mod hostile;
mod keys;
mod shells;
mod times;

use super::*;
use crate::config;
use crate::job::JobSet;

fn origin(system: bool) -> Origin<'static> {
    Origin { name: "crontab", system, zone: "Europe/Berlin", owner: None }
}

/// The jobs of a crontab that is one; `check` takes them without a warning of its own.
#[track_caller]
fn imported(text: &str) -> (Imported, JobSet) {
    let imported = import(text.as_bytes(), &origin(false)).unwrap_or_else(|error| panic!("{error}: {text}"));
    let jobs = valid(&imported.yaml);
    (imported, jobs)
}

/// Without the keys that only root's daemon takes.
#[track_caller]
fn valid(yaml: &str) -> JobSet {
    let is_for_root = |line: &&str| ["user: ", "group: "].iter().any(|key| line.trim_start().starts_with(key));
    let rest: Vec<&str> = yaml.lines().filter(|line| !is_for_root(line)).collect();
    match config::parse("jobs.yaml", (rest.join("\n") + "\n").as_bytes()) {
        Ok((jobs, _)) => jobs,
        Err(problems) => panic!("{problems:?}\n{yaml}"),
    }
}
