//! Tests of the command line: output on both streams, and the exit code.
//!
//! Each test runs in its own directory, so outputs contain relative paths. Parts that differ between calls are replaced
//! by a word in angle brackets.

mod asking;
mod completions;
mod exec;
mod starting;
mod usage;

use std::path::Path;
use std::process::Command;

use crate::support::command::{command, texts};
use crate::support::scratch::Scratch;

/// The working directory of the commands.
struct WorkingDirectory {
    dir: Scratch,
}

impl WorkingDirectory {
    fn new() -> Self {
        Self { dir: Scratch::new("cli") }
    }

    fn with(name: &str, text: &str) -> Self {
        let context = Self::new();
        context.dir.write(name, text);
        context
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A command that the caller can still change.
    fn line(&self, line: &[&str]) -> Command {
        let mut command = command(line);
        command.current_dir(self.path());
        command
    }

    /// Runs a command and returns its transcript.
    fn enter(&self, line: &[&str]) -> String {
        transcript(&mut self.line(line))
    }
}

/// Runs a command; returns stdout, stderr with a bar before each line, and the exit code.
fn transcript(command: &mut Command) -> String {
    let (code, out, err) = texts(&command.output().expect("the program can be started"));
    let err: String = err.lines().map(|line| format!("| {line}\n")).collect();
    let code = code.map_or("killed".to_owned(), |code| code.to_string());
    format!("{out}{err}exit {code}\n")
}

/// Compares two texts line by line, without indentation.
#[track_caller]
fn assert_printed(printed: &str, expected: &str) {
    let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
    let printed: Vec<&str> = printed.trim().lines().map(str::trim).collect();
    assert_eq!(printed, expected, "printed:\n{}", printed.join("\n"));
}
