//! Tests of the exact error messages for jobs files.

mod after;
mod calendars;
mod editors;
mod folders;
mod fuzz;
mod given_files;
mod hooks;
mod hostile;
mod meant;
mod notify;
mod positions;
mod reference;
mod shells;
mod syntax;
mod values;

use super::*;

/// The errors of a file, or its warnings if it is valid, one per line.
fn reported(text: impl AsRef<[u8]>) -> String {
    match parse("j", text.as_ref()) {
        Ok((_, warnings)) => lines(&warnings),
        Err(problems) => lines(&problems),
    }
}

/// The problems of a job with these keys in addition to the required ones. The keys begin in line 5, column 5.
fn reported_for_keys(keys: &str) -> String {
    let keys = keys.replace('\n', "\n    ");
    reported(format!("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    command: [true]\n    {keys}\n"))
}

/// The only job of a valid file.
fn job(text: &str) -> cronkeeper_core::job::Job {
    let (set, _) = parse("j", text.as_bytes()).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let (_, job) = set.jobs.into_iter().next().unwrap_or_else(|| panic!("no job"));
    std::sync::Arc::unwrap_or_clone(job)
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// Compares line by line, so that a difference is readable.
#[track_caller]
fn same(is: &str, should: &str) {
    let should: Vec<&str> = should.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(is.lines().collect::<Vec<_>>(), should, "\n{is}\n");
}
