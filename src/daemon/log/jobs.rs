//! Log lines about the jobs file.

use std::path::Path;

use jiff::Timestamp;
use tracing::{error, info, warn};

use super::names;
use crate::config::{LoadError, Loaded, Problem};
use cronkeeper_cluster::state_dir::StateDirError;
use cronkeeper_core::clock::instant;
use cronkeeper_core::job::Difference;
use cronkeeper_core::log_event::{self, TARGET};

/// Logs that a jobs file was loaded, and each of its warnings. The first load names no jobs: all of them are new.
pub(in crate::daemon) fn loaded(loaded: &Loaded, difference: &Difference, is_first: bool) {
    let names = |jobs| names::of_jobs(jobs).filter(|_| !is_first);
    info!(
        target: TARGET,
        event = log_event::JOBS_LOADED,
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
        warn!(target: TARGET, event = log_event::JOBS_WARNING, path = %path.display(), "{warning}");
    }
}

/// Logs that a jobs file was rejected: its first problem with the event, the others in lines of their own. `last_good`
/// is the time of the copy that the node started with, if it still uses it.
pub(in crate::daemon) fn rejected(path: &str, error: &LoadError, last_good: Option<Timestamp>) {
    let problems = error.lines();
    let (errors, first) = (problems.len(), problems.first().cloned().unwrap_or_default());
    match last_good.map(|at| instant(at).to_string()) {
        None => error!(target: TARGET, event = log_event::JOBS_REJECTED, path, errors, first),
        Some(last_good) => error!(
            target: TARGET,
            event = log_event::JOBS_REJECTED,
            path,
            errors,
            first,
            last_good,
            "the jobs file is invalid; using the last good jobs, of {last_good}",
        ),
    }
    for problem in problems.iter().skip(1) {
        error!(target: TARGET, event = log_event::JOBS_ERROR, path, "{problem}");
    }
}

/// Logs that accepted jobs were not copied to the state directory.
pub(in crate::daemon) fn not_copied(path: &Path, error: &StateDirError) {
    let reason = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    error!(target: TARGET, event = log_event::JOBS_UNCOPIED, path = %path.display(), error = format!("{error}{reason}"));
}
