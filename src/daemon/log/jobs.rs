//! Log lines about the jobs file and about jobs.

use std::path::Path;

use jiff::Timestamp;
use tracing::field::display;

use super::names;
use crate::config::{LoadError, Loaded, Problem};
use cronkeeper_cluster::state_dir::StateDirError;
use cronkeeper_core::clock::instant;
use cronkeeper_core::engine::Report;
use cronkeeper_core::job::Difference;
use cronkeeper_core::log;

/// Logs that a jobs file was loaded, and each of its warnings. The first load names no jobs: all of them are new.
pub(in crate::daemon) fn loaded(loaded: &Loaded, difference: &Difference, is_first: bool) {
    let names = |jobs| names::of_jobs(jobs).filter(|_| !is_first);
    log!(
        JOBS_LOADED,
        path = %loaded.path.display(),
        jobs = loaded.set.jobs.len(),
        digest = %loaded.set.digest,
        added = difference.added.len(),
        changed = difference.changed.len(),
        removed = difference.removed.len(),
        added_jobs = names(&difference.added),
        changed_jobs = names(&difference.changed),
        removed_jobs = names(&difference.removed),
    );
    warnings(&loaded.path, &loaded.warnings);
}

/// Logs what is valid in the jobs at a path, but probably a mistake.
pub(in crate::daemon) fn warnings(path: &Path, warnings: &[Problem]) {
    for warning in warnings {
        log!(JOBS_WARNING, path = %path.display(), "{warning}");
    }
}

/// Logs that a jobs file was rejected: its first problem with the event, the others in lines of their own. `last_good`
/// is the time of the copy that the node started with, if it still uses it.
pub(in crate::daemon) fn rejected(path: &str, error: &LoadError, last_good: Option<Timestamp>) {
    let problems = error.lines();
    let (errors, first) = (problems.len(), problems.first().cloned().unwrap_or_default());
    log!(JOBS_REJECTED, path, errors, first, last_good = last_good.map(instant).map(display));
    for problem in problems.iter().skip(1) {
        log!(JOBS_ERROR, path, "{problem}");
    }
}

/// Logs that accepted jobs were not copied to the state directory.
pub(in crate::daemon) fn not_copied(path: &Path, error: &StateDirError) {
    let reason = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    log!(JOBS_UNCOPIED, path = %path.display(), error = format!("{error}{reason}"));
}

/// Logs what became of a job.
pub(super) fn news(report: &Report) {
    match report {
        Report::Triggered { run, by, parameters } => {
            let parameters = Some(parameters).filter(|names| !names.is_empty());
            log!(JOB_TRIGGERED, job = %run.job(), %run, by, parameters);
        }
        Report::Paused { job, pause } => log!(JOB_PAUSED, %job, by = pause.by, reason = pause.reason),
        Report::Resumed { job, by } => log!(JOB_RESUMED, %job, by),
        Report::Forgotten { job, records } => log!(JOB_FORGOTTEN, %job, records),
        Report::Edited { job, since, until } => {
            log!(JOB_EDITED, %job, since = %instant(*since), until = %instant(*until));
        }
        Report::MarkAhead { job, ahead } => log!(JOB_MARK_AHEAD, %job, "{ahead}"),
        Report::Recounted { job, by, from, listed } => {
            log!(JOB_RECOUNTED, %job, by, from = %instant(*from), listed);
        }
        Report::MarkRewound { job, found, mark } => {
            let (mark, found) = (instant(*mark), found.map(instant).map(display));
            log!(
                COORDINATION_REWOUND,
                %job,
                %mark,
                found,
                "that the occurrences of {job} until {mark} are decided; writing it again",
            );
        }
        _ => {}
    }
}
