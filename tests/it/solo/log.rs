//! The log on stderr, in the formats for people and for programs.

use std::io::{BufRead, BufReader, Write as _};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::witness::{Mark, Witness};
use crate::support::{LONG, until};

use super::fixture::PROGRAM;

/// A daemon with a job due every second, and the lines of its log.
fn lines(format: &str) -> (Scratch, Process, Receiver<String>) {
    lines_with(format, "jobs: {tick: {schedule: '* * * * * *', command: 'echo said'}}")
}

/// A daemon with these jobs, and the lines of its log.
pub fn lines_with(format: &str, jobs: &str) -> (Scratch, Process, Receiver<String>) {
    let home = Scratch::new("log");
    let jobs = home.write("jobs.yaml", jobs);
    let mut process = Process::spawn(PROGRAM, |command| {
        command.args(["run", "--node", "logger", "--log-format", format]).arg("--jobs").arg(jobs);
        command.arg("--state-dir").arg(home.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    })
    .unwrap();
    let stderr = process.take(|child| child.stderr.take());
    let (sender, lines) = channel();
    thread::spawn(move || {
        BufReader::new(stderr).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
    });
    (home, process, lines)
}

/// Reads lines until one contains `word`. Returns that line.
pub fn until_line(lines: &Receiver<String>, word: &str) -> String {
    loop {
        let line = lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("no line with {word}"));
        if line.contains(word) {
            return line;
        }
    }
}

#[test]
fn text_is_a_line_an_event_with_time_zone_level_and_sentence() {
    let (_home, process, log) = lines("text");
    for said in ["now the leader (token 1, ", "tick started", "tick | said", "tick success in "] {
        let line = until_line(&log, said);
        let (time, rest) = line.split_once(' ').expect("the time comes first");
        assert!(time.ends_with('Z') && time.parse::<jiff::Timestamp>().is_ok(), "{line}");
        assert!(rest.starts_with(&format!("INFO  {said}")), "{line}");
    }
    process.signal(Signal::TERM);
    until_line(&log, "stopped on request");
    assert_eq!(process.wait_exit(LONG).and_then(|status| status.code()), Some(0));
}

/// script(1) runs a command on a terminal. What the terminal shows comes out of it, and what is typed goes in.
#[test]
fn a_terminal_gets_sentences_and_ctrl_c_ends_the_node() {
    let home = Scratch::new("log");
    let jobs = home.write("jobs.yaml", "jobs: {tick: {schedule: '* * * * * *', command: 'echo said'}}");
    let (jobs, state) = (jobs.display(), home.path().display());
    // The shell stays until it gets its signal: script(1) waits only 10 ms for output once its command has ended, which
    // is too short for the last lines on a loaded machine.
    let command = format!(
        "trap : INT; {PROGRAM} run --node logger --jobs {jobs} --state-dir {state}; echo \"ended with $?\"; read line"
    );
    let mut process = Process::spawn("script", |script| {
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "dumb").env("SHELL", "/bin/sh");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    })
    .unwrap();
    let mut typed = process.take(|child| child.stdin.take());
    let shown = process.take(|child| child.stdout.take());
    let (sender, lines) = channel();
    thread::spawn(move || {
        BufReader::new(shown).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
    });
    assert!(until_line(&lines, "node").ends_with(" (UTC), node logger"));
    let status = format!("cronkeeper status --runtime-dir {state}");
    assert!(until_line(&lines, "See who leads").ends_with(&status));
    for word in ["started", "| said", "success in "] {
        let line = until_line(&lines, word);
        let (time, rest) = line.split_at("00:00:00.000".len());
        assert!(time.ends_with(|c: char| c.is_ascii_digit()) && rest.starts_with(" INFO  tick      "), "{line}");
    }
    typed.write_all(b"\x03").unwrap();
    until_line(&lines, "stopped on request");
    assert!(until_line(&lines, "ended with").ends_with("with 0"));
    typed.write_all(b"\n").unwrap();
    assert_eq!(process.wait_exit(LONG).and_then(|status| status.code()), Some(0));
}

#[test]
fn json_is_an_object_a_line_with_the_promised_fields() {
    let (_home, process, log) = lines("json");
    let parse = |line: String| -> Value { serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}")) };
    let started = parse(until_line(&log, "run.started"));
    for field in ["timestamp", "level", "event", "message", "node", "job", "run", "scheduled_at"] {
        assert!(started[field].is_string(), "{field} of {started}");
    }
    for field in ["attempt", "token", "pid", "lateness_ms"] {
        assert!(started[field].is_number(), "{field} of {started}");
    }
    let finished = parse(until_line(&log, "run.finished"));
    for field in ["attempt", "exit_code", "duration_ms", "leftovers"] {
        assert!(finished[field].is_number(), "{field} of {finished}");
    }
    assert_eq!(finished["outcome"], "success");
    process.signal(Signal::INT);
    assert_eq!(parse(until_line(&log, "node.stopped"))["reason"], "asked to");
}

#[test]
fn a_log_that_nobody_reads_holds_up_neither_the_jobs_nor_the_end() {
    let witness = Witness::new();
    let home = Scratch::new("log");
    // Each run writes far more than a pipe takes.
    let command = witness.command(&["head", "-c", "300k", "/dev/zero"]);
    let jobs = home.write("jobs.yaml", &format!("jobs: {{tick: {{schedule: '* * * * * *', command: {command}}}}}"));
    let mut process = Process::spawn(PROGRAM, |command| {
        command.args(["run", "--node", "logger", "--log-format", "json"]).arg("--jobs").arg(jobs);
        command.arg("--state-dir").arg(home.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    })
    .unwrap();
    let _unread = process.take(|child| child.stderr.take());
    until("five runs have ended", || witness.entries().iter().filter(|entry| entry.mark == Mark::End).count() >= 5);
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit(LONG).and_then(|status| status.code()), Some(0));
}
