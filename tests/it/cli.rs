//! Commands as a user types them: what is said, on which stream, and the exit code.
//!
//! Each test runs in a directory of its own, which outputs call by relative names; what differs from call to call is
//! replaced by a word in angle brackets.

mod asking;
mod exec;
mod starting;
mod usage;

use std::path::Path;
use std::process::Command;

use crate::support::command::{command, texts};
use crate::support::scratch::Scratch;

/// A directory to type in.
struct SessionContext {
    dir: Scratch,
}

impl SessionContext {
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

    /// A line, to be changed before it is entered.
    fn line(&self, line: &[&str]) -> Command {
        let mut command = command(line);
        command.current_dir(self.path());
        command
    }

    /// What comes of a line.
    fn enter(&self, line: &[&str]) -> String {
        transcript(&mut self.line(line))
    }
}

/// What comes of a command: stdout as it is, stderr with a bar before each line, the exit code.
fn transcript(command: &mut Command) -> String {
    let (code, out, err) = texts(&command.output().expect("the program can be started"));
    let err: String = err.lines().map(|line| format!("| {line}\n")).collect();
    let code = code.map_or("killed".to_owned(), |code| code.to_string());
    format!("{out}{err}exit {code}\n")
}

/// Both texts, a line each, without the indentation of the source.
#[track_caller]
fn assert_said(said: &str, expected: &str) {
    let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
    let said: Vec<&str> = said.trim().lines().map(str::trim).collect();
    assert_eq!(said, expected, "said:\n{}", said.join("\n"));
}
