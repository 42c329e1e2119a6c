//! Which jobs to show, and in which order.

use std::collections::BTreeSet;

use crate::api::client::{AskError, Said};
use crate::api::pauses::no_job_matches;
use crate::status::Status;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::filter::JobPattern;

/// The jobs to show.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Selection {
    /// Show only jobs whose last run did not succeed, that have a run that is cut off, or that have another problem
    #[arg(long)]
    pub failing: bool,
    /// Show only jobs whose name matches this pattern, such as 'backup-*'; may be given several times
    #[arg(long = "job", value_name = "PATTERN", value_parser = JobPattern::parse)]
    pub patterns: Vec<JobPattern>,
}

impl Selection {
    /// The status with the selected jobs and their runs only.
    pub(super) fn of(&self, mut status: Status) -> Status {
        if self.failing || !self.patterns.is_empty() {
            status.jobs.retain(|job| self.includes(&job.name) && (!self.failing || job.is_failing()));
            let names: BTreeSet<&JobName> = status.jobs.iter().map(|job| &job.name).collect();
            status.runs.retain(|run| names.contains(run.run.job()));
        }
        status
    }

    /// # Errors
    /// If no job is named so: a misspelt name must not look like a job without problems.
    pub(in crate::cli) fn check(&self, status: &Status) -> Result<(), AskError> {
        if status.jobs.iter().any(|job| self.includes(&job.name)) || self.patterns.is_empty() {
            return Ok(());
        }
        let wanted = self.patterns.iter().map(JobPattern::as_str);
        let known = status.jobs.iter().map(|job| &job.name);
        Err(AskError::NotFound(Said::of(no_job_matches(wanted, known))))
    }

    /// True if the job is among those that are named; all are if none is.
    pub(super) fn includes(&self, job: &JobName) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(job.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::run::{Outcome, RunState};

    #[test]
    fn a_job_with_a_run_that_is_cut_off_is_among_those_that_fail() {
        let mut status = sample::leader();
        let mut runs = status.runs.clone();
        runs[0].state = RunState::CutOff;
        status.put_runs(&runs);
        let selected = Selection { failing: true, ..Selection::default() }.of(status);
        assert_eq!(selected.jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["load"]);
        assert_eq!(selected.runs, runs);
    }

    fn names(selection: &Selection) -> Vec<String> {
        let mut status = sample::leader();
        status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        status.jobs[2].error = Some("its mark is in the future".into());
        let status = selection.of(status);
        assert!(status.runs.iter().all(|run| status.jobs.iter().any(|job| job.name == *run.run.job())));
        status.jobs.iter().map(|job| job.name.to_string()).collect()
    }

    #[test]
    fn a_name_that_no_job_has_is_an_error() {
        let check = |pattern: &str| {
            let patterns = vec![JobPattern::parse(pattern).unwrap()];
            Selection { patterns, ..Selection::default() }.check(&sample::leader()).map_err(|error| error.to_string())
        };
        assert_eq!(check("*-report"), Ok(()), "one of them is enough");
        assert_eq!(check("laod"), Err("no job matches, did you mean `load`?".to_owned()));
        assert_eq!(check("foo*"), Err("no job matches".to_owned()));
        assert!(Selection::default().check(&sample::leader()).is_ok());
    }

    #[test]
    fn jobs_are_selected_by_name_and_by_trouble() {
        let patterns = |patterns: &[&str]| patterns.iter().map(|pattern| JobPattern::parse(pattern).unwrap()).collect();
        let all = Selection::default();
        assert_eq!(names(&all), ["nightly-backup", "load", "old-report"]);
        let failing = Selection { failing: true, ..all };
        assert_eq!(names(&failing), ["nightly-backup", "old-report"]);
        let named = Selection { patterns: patterns(&["*-report", "lo?d"]), failing: false };
        assert_eq!(names(&named), ["load", "old-report"]);
        assert_eq!(names(&Selection { patterns: patterns(&["*a*"]), ..failing }), ["nightly-backup"]);
    }
}
