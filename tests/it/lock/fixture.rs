//! Runs `cronkeeper lock` and talks to the command under it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::LONG;
use crate::support::command::{CRONKEEPER, command};
use crate::support::process::Process;

/// A call of `cronkeeper`, connected to these servers; to none if there is no text.
pub fn call(connect: &str, line: &[&str]) -> Command {
    let mut command = command(line);
    if !connect.is_empty() {
        command.env("CRONKEEPER_ZOOKEEPER", connect).env("CRONKEEPER_SESSION_TIMEOUT", "4s");
    }
    command
}

/// Runs a call to its end.
pub fn run(connect: &str, line: &[&str]) -> Output {
    call(connect, line).output().expect("the program can be started")
}

/// Runs a call to its end. Returns its exit code and its output without the last line end.
pub fn printed(connect: &str, line: &[&str]) -> (Option<i32>, String) {
    let output = run(connect, line);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).trim_end().to_owned())
}

/// What a command does under its lock: print `held`, its path and its token, and end with the next line on its input.
const SCRIPT: &str =
    r#"echo "held $(echo $CRONKEEPER_LOCK_PATH) $(echo $CRONKEEPER_FENCING_TOKEN)"; read line; echo "$line""#;

/// A running `cronkeeper lock`. Dropping it kills it.
pub struct Client {
    process: Process,
    stdin: Mutex<Option<ChildStdin>>,
    lines: Mutex<Receiver<String>>,
}

impl Client {
    /// Starts `cronkeeper lock` with these options and paths. The command holds until [`Client::release`].
    pub fn start(connect: &str, options: &[&str]) -> Self {
        Self::start_with(connect, options, SCRIPT)
    }

    /// The same, with a shell script as the command. Its standard error arrives as lines too.
    pub fn start_with(connect: &str, options: &[&str], script: &str) -> Self {
        Self::start_as(CRONKEEPER, connect, options, script)
    }

    /// The same, by another name of the program.
    pub fn start_as(program: &str, connect: &str, options: &[&str], script: &str) -> Self {
        let line = [&["lock"], options, &["--", "sh", "-c", script]].concat();
        let prepared = call(connect, &line);
        let process = Process::spawn("env", |command| {
            // A test that runs in the background is started with signals ignored, and the program keeps that. The shell
            // joins both streams and becomes the program.
            command.args(["--default-signal", "sh", "-c", "exec \"$@\" 2>&1", "sh", program]).args(prepared.get_args());
            for (key, value) in prepared.get_envs() {
                match value {
                    Some(value) => command.env(key, value),
                    None => command.env_remove(key),
                };
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let mut process = process.expect("cronkeeper can be started");
        let stdin = process.take(|child| child.stdin.take());
        let stdout = process.take(|child| child.stdout.take());
        let (sender, lines) = channel();
        // Ends at the end of the output, or when the receiver is dropped.
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { process, stdin: Mutex::new(Some(stdin)), lines: Mutex::new(lines) }
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until the command runs. Returns its token.
    pub fn await_held(&self) -> i64 {
        let line = self.await_line("held");
        line.split(' ').next_back().and_then(|token| token.parse().ok()).expect("a token is a number")
    }

    /// Waits for a line that contains this text.
    #[track_caller]
    pub fn await_line(&self, text: &str) -> String {
        let end = Instant::now() + LONG;
        let lines = self.lines.lock().expect("no thread panicked with it");
        let mut before = Vec::new();
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("no line contains `{text}`: {before:?}"),
            }
        }
    }

    /// True if the command has not begun within a moment. It can only be proven that it has.
    pub fn waits(&self) -> bool {
        let lines = self.lines.lock().expect("no thread panicked with it");
        lines.recv_timeout(Duration::from_millis(200)).is_err()
    }

    /// Lets the command end.
    pub fn finish(&self) {
        let stdin = self.stdin.lock().expect("no thread panicked with it").take();
        stdin.expect("it ends once").write_all(b"done\n").expect("the command reads");
    }

    /// Lets the command end and waits until the lock is released.
    #[track_caller]
    pub fn release(&self) {
        self.finish();
        assert_eq!(self.await_exit(), Some(0));
    }

    /// Waits for the end. Returns the exit code; `None` after a signal.
    pub fn await_exit(&self) -> Option<i32> {
        self.process.wait_exit(LONG).expect("it ends").code()
    }
}
