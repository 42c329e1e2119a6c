//! Fuzz tests of jobs files.

use super::*;
use crate::fuzz::{Fuzz, text};
use cronkeeper_core::escape::is_harmful;

const WORDS: &[&str] = &[
    "jobs:",
    "defaults:",
    "\n  ",
    "\n    ",
    "\n      ",
    "schedule: ",
    "\"0 0 * * *\"",
    "* * * * *",
    "@daily",
    "@every 5m",
    "after: {b: success}",
    "always",
    "timezone: ",
    "Europe/Berlin",
    "Europe/Berlni",
    "dst: twice",
    "splay: ",
    "calendar: {exclude: x, only: [y]}",
    "command: ",
    "[/bin/echo, x]",
    "enabled: false",
    "environment: {A: b}",
    "user: nobody",
    "group: ",
    "nice: -20",
    "limits: {memory: 1GiB, processes: 10, open_files: 5, cpu_time: 5s}",
    "working_directory: /",
    "umask: \"077\"",
    "timeout: ",
    "kill_grace: ",
    "retries: {limit: 3, delay: 1s, backoff: 1.5, max_delay: 1h}",
    "overlap: queue",
    "concurrency_group: {name: g, limit: 2}",
    "run_on: any",
    "run_where: [gpu, zone=eu, \"!old\"]",
    "run_where: ",
    "misfire: run-all",
    "misfire_window: 1h",
    "misfire_limit: 5",
    "interrupted: rerun",
    "on_lease_end: keep",
    "success_exit_codes: [0, 3]",
    "max_output: 1MiB",
    "history_limit: 50",
    "on_failure: ",
    "on_success: ",
    "on_recovery: ",
    "on_start: ",
    "parameters: ",
    "on_missed: ",
    "null",
    "~",
    "true",
    "NO",
    ".nan",
    "1.5",
    "100y",
    "36525d",
    "[",
    "]",
    "{",
    "}",
    ", ",
    ": ",
    "- ",
    "? ",
    "&x ",
    "*x",
    "!!str ",
    "!t ",
    "|\n",
    ">-\n",
    "'",
    "\"",
    "\\u202e",
    "\\U0010FFFF",
    "\\x1b",
    " # ",
    "<<: ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "\t",
    "\r\n",
    "ä",
];

/// Each problem has a position, is on one line, has a limited length, and does not control a terminal.
fn assert_legible(problems: &[Problem]) {
    for problem in problems {
        let reported = problem.to_string();
        assert!(problem.line > 0 && problem.column > 0, "{reported}");
        assert!(!reported.contains(is_harmful) && reported.len() < 8_000, "{reported:?}");
    }
}

#[test]
fn fuzz_jobs_file() {
    Fuzz::of("jobs-file", WORDS).run(|input| match parse("j", input) {
        Ok((set, warnings)) => {
            assert_legible(&warnings);
            editors::assert_valid(input);
            assert_eq!(parse("j", input).map(|(again, _)| again.jobs), Ok(set.jobs));
            true
        }
        Err(mut problems) => {
            assert!(!problems.is_empty());
            assert_legible(&problems);
            Content::of_files(Path::new("j"), [("j".into(), input.to_owned())]).locate(&mut problems);
            for Excerpt { text, offset, .. } in problems.iter().filter_map(|problem| problem.place.excerpt.as_ref()) {
                assert!(*offset <= text.chars().count() && text.chars().count() <= 400, "{text}");
            }
            false
        }
    });
}

/// The first pass writes the same tree that it read, and the second pass reads the same from it. The second pass reads
/// this output in place of a file with faults.
#[test]
fn fuzz_jobs_file_in_both_passes() {
    Fuzz::of("jobs-file", WORDS).run(|input| {
        // With a final line break, because without it one of the parsers adds one to a last `|` block.
        let text = text(input) + "\n";
        let Ok(text) = source::text(text.as_bytes()) else { return false };
        let spanned::Spanned { root: Some(root), mut faults, .. } = spanned::read(text) else { return false };
        let written = |node: &spanned::Node| {
            let mut written = String::new();
            spanned::write(node, &mut written);
            written
        };
        let whole = written(&root);
        let again = spanned::read(&whole);
        assert_eq!((again.root.as_deref().map(written), again.faults), (Some(whole), Vec::new()));
        let Some(sound) = schema::sound_part(&root, keys::KEYS, &mut faults) else { return false };
        let second = |text: &str| serde_yaml::from_str::<keys::File>(text).map(|file| format!("{file:?}")).ok();
        let sound = second(&written(&sound));
        if faults.is_empty() && second(text).is_some() {
            assert_eq!(sound, second(text));
        }
        sound.is_some()
    });
}

#[test]
fn fuzz_size() {
    Fuzz { longest: 1 << 10, ..Fuzz::of("size", &["B", "KiB", "MiB", "GiB", "TiB", "M", "0"]) }.run(|input| {
        let text = text(input);
        let read = size::parse(&text);
        let known = |bytes: u64| assert_eq!(size::parse(&format!("{bytes}B")), Ok(bytes));
        read.as_ref().map_or_else(|refused| drop(refused.to_string()), |&bytes| known(bytes));
        read.is_ok()
    });
}
