//! The program as a user calls it: a line of arguments, then exit code and what was said.

use std::process::{Command, Output, Stdio};

/// The program under test.
pub const CRONKEEPER: &str = env!("CARGO_BIN_EXE_cronkeeper");

/// A line of arguments, in an environment without settings of cronkeeper's or systemd's.
pub fn command(line: &[&str]) -> Command {
    let mut command = Command::new(CRONKEEPER);
    let foreign = |key: &str| key.starts_with("CRONKEEPER_") || key.ends_with("_DIRECTORY") || key == "NOTIFY_SOCKET";
    for (key, _) in std::env::vars().filter(|(key, _)| foreign(key)) {
        command.env_remove(key);
    }
    command.args(line).stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn run(line: &[&str]) -> Output {
    command(line).output().expect("the program can be started")
}

/// Exit code, stdout and stderr.
pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
