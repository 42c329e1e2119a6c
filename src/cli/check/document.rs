//! The document of `check --json`. Programs depend on its fields: docs/contract.md.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::STDIN;
use super::compare::Comparison;
use crate::config::{LoadError, Loaded, Problem};
use cronkeeper_core::job::Digest;

#[derive(Serialize)]
pub(super) struct Document<'a> {
    v: u32,
    path: String,
    valid: bool,
    /// Counts of problems, and of the files that have some.
    errors: usize,
    warnings: usize,
    files_with_problems: usize,
    /// How many files were read; null if they could not be.
    files: Option<usize>,
    /// Null, like the next two, if the jobs are not valid.
    jobs: Option<usize>,
    disabled: Option<usize>,
    digest: Option<&'a Digest>,
    problems: Vec<Entry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<&'a Comparison>,
}

#[derive(Serialize)]
struct Entry<'a> {
    level: &'static str,
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    job: Option<&'a str>,
    key: Option<&'a str>,
    message: String,
}

impl<'a> Document<'a> {
    pub fn of(
        path: &Path,
        files: Option<usize>,
        loaded: &'a Result<Loaded, LoadError>,
        diff: Option<&'a Comparison>,
    ) -> Self {
        let (errors, warnings): (&[Problem], &[Problem]) = match loaded {
            Ok(loaded) => (&[], &loaded.warnings),
            Err(LoadError::Invalid { problems, warnings }) => (problems, warnings),
            Err(LoadError::Unreadable { .. }) => (&[], &[]),
        };
        let mut all: Vec<_> = errors.iter().map(|problem| (problem, "error")).collect();
        all.extend(warnings.iter().map(|problem| (problem, "warning")));
        all.sort();
        let mut problems: Vec<Entry<'_>> = all.into_iter().map(|(problem, level)| entry(problem, level)).collect();
        problems.extend(loaded.as_ref().err().and_then(unreadable));
        let with_problems: BTreeSet<&str> = problems.iter().map(|problem| problem.file.as_str()).collect();
        let jobs = loaded.as_ref().ok().map(|loaded| &loaded.set);
        Self {
            v: 1,
            path: path.display().to_string(),
            valid: jobs.is_some(),
            errors: problems.len() - warnings.len(),
            warnings: warnings.len(),
            files_with_problems: with_problems.len(),
            files,
            jobs: jobs.map(|set| set.jobs.len()),
            disabled: jobs.map(|set| set.jobs.values().filter(|job| !job.enabled).count()),
            // It depends on the name of the file, which the standard input does not have.
            digest: jobs.map(|set| &set.digest).filter(|_| path.as_os_str() != STDIN),
            problems,
            diff,
        }
    }
}

fn entry<'a>(problem: &'a Problem, level: &'static str) -> Entry<'a> {
    Entry {
        level,
        file: problem.file.display().to_string(),
        line: Some(problem.line),
        column: Some(problem.column),
        job: problem.place.job.as_deref(),
        key: problem.place.key.as_deref(),
        message: problem.message.clone(),
    }
}

/// A file or directory that could not be read has no lines.
fn unreadable(error: &LoadError) -> Option<Entry<'static>> {
    let LoadError::Unreadable { path, source } = error else { return None };
    let (file, message) = (path.display().to_string(), format!("{error}: {source}"));
    Some(Entry { level: "error", file, line: None, column: None, job: None, key: None, message })
}
