//! One entry as a job: its keys, line by line.

use std::collections::BTreeMap;

use super::entry::Entry;
use super::environment::{Environment, delay};
use super::yaml::{block, quoted, scalar};
use crate::config;

/// An indented block of keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub text: String,
    indent: usize,
}

impl Keys {
    pub fn new(indent: usize) -> Self {
        Self { text: String::new(), indent }
    }

    /// A line of it.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(&" ".repeat(self.indent));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// What the variables of a block bring with them: themselves, and what cron does by them.
    pub fn environment(&mut self, environment: &Environment) {
        if let Some(home) = environment.get("HOME").filter(|home| home.starts_with('/')) {
            self.line(&format!("working_directory: {}", quoted(home)));
        }
        if let Some(minutes) = environment.get("RANDOM_DELAY").and_then(|value| delay(value)) {
            self.line(&format!("splay: {}", if minutes == 0 { "0s".to_owned() } else { format!("{minutes}m") }));
        }
        if !environment.is_empty() {
            self.line("environment:");
        }
        for (name, value) in environment {
            self.line(&format!("  {}: {}", scalar(name), quoted(value)));
        }
    }

    /// What is started, and how.
    pub fn command(&mut self, command: &Command) {
        match command {
            Command::Text(text) => self.line(&format!("command: {}", scalar(text))),
            Command::Script(text) => self.line(&format!("command: {}", block(text, self.indent + 2))),
            Command::Argv(argv) => {
                let items: Vec<String> = argv.iter().map(|item| scalar(item)).collect();
                self.line(&format!("command: [{}]", items.join(", ")));
            }
        }
    }
}

/// An entry's command as a job's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// For /bin/sh.
    Text(String),
    /// For /bin/sh, of several lines.
    Script(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

impl Command {
    pub fn of(entry: &Entry, environment: &BTreeMap<String, String>) -> Self {
        const CRONS_SHELL: &str = "/bin/sh";
        let shell = environment.get("SHELL").map_or(CRONS_SHELL, String::as_str);
        match &entry.input {
            Some(input) => Self::Script(with_input(shell, &entry.command, input)),
            None if shell == CRONS_SHELL => Self::Text(entry.command.clone()),
            None => Self::Argv(vec![shell.to_owned(), "-c".to_owned(), entry.command.clone()]),
        }
    }

    /// Longer than any process may be given.
    pub fn is_too_long(&self) -> bool {
        match self {
            Self::Text(text) | Self::Script(text) => text.len() >= config::LONGEST_STRING,
            Self::Argv(argv) => argv.iter().any(|item| item.len() >= config::LONGEST_STRING),
        }
    }
}

/// A here-document whose end is quoted, so that the shell changes nothing in it. A shell of its own for the command: it
/// reads all of the input, whatever the command is made of.
fn with_input(shell: &str, command: &str, input: &str) -> String {
    let mut end = "INPUT".to_owned();
    while input.lines().any(|line| line == end) {
        end.push('_');
    }
    format!("exec {} -c {} <<'{end}'\n{input}{end}\n", in_shell(shell), in_shell(command))
}

/// A word of a shell's command line.
fn in_shell(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-');
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
