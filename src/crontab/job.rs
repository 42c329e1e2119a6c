//! The YAML keys of one job, line by line.

use super::entry::CrontabEntry;
use super::environment::{Environment, delay};
use super::yaml::{block, quoted, scalar};
use cronkeeper_core::environment_file::LONGEST_STRING;

/// An indented block of keys.
#[derive(Debug, Default)]
pub(super) struct YamlKeys {
    pub text: String,
    indent: usize,
}

impl YamlKeys {
    pub fn new(indent: usize) -> Self {
        Self { text: String::new(), indent }
    }

    /// Appends an indented line.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(&" ".repeat(self.indent));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes `environment`, and the keys for variables that have a meaning for cron: `shell`, `working_directory` and
    /// `splay`.
    pub fn environment(&mut self, environment: &Environment) {
        let mut variables = environment.clone();
        if let Some(shell) = variables.remove("SHELL").filter(|shell| *shell != CRONS_SHELL) {
            self.line(&format!("shell: {}", scalar(&shell)));
        }
        self.variables(&variables);
    }

    /// The same for the variables of a job, all of them and those that it does not share.
    pub fn environment_of_a_job(&mut self, all: &Environment, mut own: Environment, command: &JobCommand) {
        let shell = shell_in(all);
        if matches!(command, JobCommand::Text(_)) || shell == CRONS_SHELL {
            return self.environment(&own);
        }
        // /bin/sh runs the script, although the command in it has another SHELL.
        self.line(&format!("shell: {CRONS_SHELL}"));
        own.insert("SHELL".to_owned(), shell.to_owned());
        self.variables(&own);
    }

    fn variables(&mut self, environment: &Environment) {
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

    pub fn command(&mut self, command: &JobCommand) {
        match command {
            JobCommand::Text(text) => self.line(&format!("command: {}", scalar(text))),
            JobCommand::Script(text) => self.line(&format!("command: {}", block(text, self.indent + 2))),
        }
    }
}

/// The command of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JobCommand {
    /// One line for the shell of the crontab.
    Text(String),
    /// Several lines for /bin/sh.
    Script(String),
}

/// The shell of a crontab that sets none.
const CRONS_SHELL: &str = "/bin/sh";

/// The shell that runs the commands of a crontab with these variables.
fn shell_in(environment: &Environment) -> &str {
    environment.get("SHELL").map_or(CRONS_SHELL, String::as_str)
}

impl JobCommand {
    pub fn of(entry: &CrontabEntry, environment: &Environment) -> Self {
        match &entry.input {
            Some(input) => Self::Script(with_input(shell_in(environment), &entry.command, input)),
            None => Self::Text(entry.command.clone()),
        }
    }

    /// True if the kernel would not accept the command as an argument.
    pub fn is_too_long(&self) -> bool {
        match self {
            Self::Text(text) | Self::Script(text) => text.len() >= LONGEST_STRING,
        }
    }
}

/// Writes the input as a here-document for the command.
///
/// Its delimiter is quoted, so that the shell expands nothing in it. The command runs in a shell of its own, so that
/// all parts of a compound command read from the same input.
fn with_input(shell: &str, command: &str, input: &str) -> String {
    let mut end = "INPUT".to_owned();
    while input.lines().any(|line| line == end) {
        end.push('_');
    }
    format!("exec {} -c {} <<'{end}'\n{input}{end}\n", shell_word(shell), shell_word(command))
}

/// Quotes a word for a shell's command line.
fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-');
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
