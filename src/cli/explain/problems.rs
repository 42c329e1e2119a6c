//! The problems of jobs files as text: a line for each, a summary, and at a terminal the lines that they are in.

use std::collections::BTreeSet;
use std::io;

use super::Io;
use super::caret::underlined;
use crate::config::{Excerpt, Problem};
use cronkeeper_core::suggest::counted;

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Content, LoadError};

    const TEXT: &str =
        "jobs:\n  a:\n    schedule: 0 61 * * *\n    command: [ls, ~]\n    environment: {A: hunter2, A B: hunter2}\n";

    fn printed(is_watched: bool) -> String {
        let content = Content::of_files(Path::new("j"), [("j".into(), TEXT.as_bytes().to_owned())]);
        let Err(LoadError::Invalid { mut problems, mut warnings }) = content.load_for_any_host() else { panic!() };
        content.locate(&mut problems);
        content.locate(&mut warnings);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        print(&problems, &warnings, &mut Io { out: &mut out, err: &mut err, is_watched }).unwrap();
        String::from_utf8(err).unwrap()
    }

    #[test]
    fn each_problem_is_a_line_and_they_are_counted() {
        let text = printed(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0], "j:3:17: job `a`: `schedule`: hour: 61 is out of range; allowed: 0 to 23");
        assert!(lines[1].starts_with("j:4:19: warning: job `a`: `~`"), "{text}");
        assert_eq!(lines[3], "2 errors, 1 warning in 1 file");
    }

    #[test]
    fn at_a_terminal_a_caret_marks_the_place_and_no_secret_is_shown() {
        let text = printed(true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1..3], ["  schedule: 0 61 * * *", "              ^^"], "{text}");
        assert_eq!(lines[7..9], ["  environment: {A: …, A B: …}", "                      ^"], "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
