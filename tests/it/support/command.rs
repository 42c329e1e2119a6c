//! Calls of the program as a user makes them: arguments in, exit code and output back.

use std::process::{Command, Output, Stdio};

/// The program under test.
pub const CRONKEEPER: &str = env!("CARGO_BIN_EXE_cronkeeper");

/// The program with these arguments, in an environment without settings of cronkeeper or systemd.
pub fn command(line: &[&str]) -> Command {
    let mut command = Command::new(CRONKEEPER);
    let foreign = |key: &str| key.starts_with("CRONKEEPER_") || key.ends_with("_DIRECTORY") || key == "NOTIFY_SOCKET";
    for (key, _) in std::env::vars().filter(|(key, _)| foreign(key)) {
        command.env_remove(key);
    }
    command.args(line).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub fn run(line: &[&str]) -> Output {
    command(line).output().expect("the program can be started")
}

/// Exit code, stdout and stderr.
pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
