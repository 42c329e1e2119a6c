//! What is said about jobs files, to the letter.

mod after;
mod folders;
mod fuzz;
mod hooks;
mod hostile;
mod positions;
mod values;

use super::*;

/// The problems of one file, a line each.
fn said(text: impl AsRef<[u8]>) -> String {
    match parse("j", text.as_ref()) {
        Ok((_, warnings)) => lines(&warnings),
        Err(problems) => lines(&problems),
    }
}

/// The problems of one job that has these keys and otherwise all it needs; the keys begin in line 5, column 5.
fn said_of(keys: &str) -> String {
    let keys = keys.replace('\n', "\n    ");
    said(format!("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    command: [true]\n    {keys}\n"))
}

/// The only job of a file that is valid.
fn job(text: &str) -> crate::job::Job {
    let (set, _) = parse("j", text.as_bytes()).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let (_, job) = set.jobs.into_iter().next().unwrap_or_else(|| panic!("no job"));
    std::sync::Arc::unwrap_or_clone(job)
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// Compares line by line, so that a difference can be read.
#[track_caller]
fn same(is: &str, should: &str) {
    let should: Vec<&str> = should.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(is.lines().collect::<Vec<_>>(), should, "\n{is}\n");
}
