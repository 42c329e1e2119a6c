//! The problems of jobs files as text: a line for each, a summary, and at a terminal the lines that they are in.

use std::collections::BTreeSet;
use std::io;

use super::Io;
use super::caret::underlined;
use crate::config::{Excerpt, Problem};
use crate::suggest::counted;

/// Prints errors and warnings, ordered by position, and how many there are.
pub(super) fn print(errors: &[Problem], warnings: &[Problem], io: &mut Io<'_>) -> io::Result<()> {
    print_each(errors, warnings, io)?;
    writeln!(io.err, "{}", summary(errors, warnings))
}

/// Prints errors and warnings, ordered by position.
pub(in crate::cli) fn print_each(errors: &[Problem], warnings: &[Problem], io: &mut Io<'_>) -> io::Result<()> {
    let errors = errors.iter().map(|problem| (problem, ""));
    let mut all: Vec<_> = errors.chain(warnings.iter().map(|problem| (problem, "warning: "))).collect();
    all.sort();
    for (problem, level) in all {
        let Problem { file, line, column, message, place } = problem;
        writeln!(io.err, "{}:{line}:{column}: {level}{message}", file.display())?;
        if let Some(Excerpt { text, offset, length }) = place.excerpt.as_ref().filter(|_| io.is_watched) {
            writeln!(io.err, "{}", underlined(text, *offset, *length))?;
        }
    }
    Ok(())
}

/// `3 errors, 1 warning in 2 files`.
fn summary(errors: &[Problem], warnings: &[Problem]) -> String {
    let files: BTreeSet<_> = errors.iter().chain(warnings).map(|problem| &problem.file).collect();
    let mut counts = counted(errors.len(), "error");
    if !warnings.is_empty() {
        counts.push_str(&format!(", {}", counted(warnings.len(), "warning")));
    }
    format!("{counts} in {}", counted(files.len(), "file"))
}
