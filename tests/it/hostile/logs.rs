//! A job whose output imitates the daemon's own log lines.

use rustix::process::Signal;
use serde_json::Value;

use crate::solo::log::{lines_with, until_line};
use crate::support::LONG;

/// A text that would look like a line of the daemon to a reader that cuts lines at 48 KiB, as the journal does.
const FORGED: &str = "<3>ERROR leader.lost        node=logger token=42 reason=lease";
/// Number of bytes that puts `FORGED` at the beginning of the second part.
const PADDING: usize = 49_050;
/// Upper bound of the length of a line, line end included.
const LONGEST: usize = 8_000;

/// A job that prints the long line, invisible characters, and control characters, which become longer when escaped.
fn jobs() -> String {
    let command = [
        format!("head -c {PADDING} /dev/zero | tr '\\0' A"),
        format!("echo '{FORGED}'"),
        r"printf 'b\342\200\213a\330\234c\363\240\201\201\n'".to_owned(),
        r"head -c 20000 /dev/zero | tr '\0' '\033'".to_owned(),
        "echo".to_owned(),
    ];
    let command = serde_json::to_string(&command.join("; ")).unwrap();
    format!("jobs: {{forger: {{schedule: '* * * * * *', command: {command}}}}}")
}

/// All lines up to the end of the first run, and until the node has stopped.
fn log(format: &str, ended: &str, stopped: &str) -> Vec<String> {
    let (_home, process, log) = lines_with(format, &jobs());
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.contains(ended)) {
        lines.push(log.recv_timeout(LONG).expect("the run ends"));
    }
    process.signal(Signal::TERM);
    until_line(&log, stopped);
    assert_eq!(process.wait_exit(LONG).and_then(|status| status.code()), Some(0));
    lines
}

#[test]
fn no_line_of_text_is_so_long_that_a_part_of_it_could_be_taken_for_another() {
    let lines = log("text", "INFO  forger success", "stopped on request");
    for line in &lines {
        assert!(line.len() < LONGEST, "{} bytes: {line}", line.len());
        assert!(line.starts_with("20") && line.contains("Z INFO  "), "not the daemon's own: {line}");
        assert!(line.chars().all(|c| !c.is_control()), "{line:?}");
    }
    let forged: Vec<_> = lines.iter().filter(|line| line.contains("leader.lost")).collect();
    assert_eq!(forged.len(), 1, "{forged:?}");
    assert!(forged[0].contains("Z INFO  forger | ") && !forged[0].ends_with('…'), "{forged:?}");
    let hidden = lines.iter().find(|line| line.contains("200b")).unwrap();
    assert!(hidden.ends_with(r"| b\u{200b}a\u{61c}c\u{e0041}"), "{hidden}");
}

#[test]
fn a_long_line_of_json_is_several_objects_that_say_so() {
    let lines = log("json", "run.finished", "node.stopped");
    let mut outputs = Vec::new();
    let mut open = String::new();
    for line in &lines {
        assert!(line.len() < LONGEST, "{} bytes: {line}", line.len());
        let object: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        if object["event"] == "run.output" {
            open.push_str(object["line"].as_str().unwrap());
            if object["continues"] != true {
                outputs.push(std::mem::take(&mut open));
            }
        }
    }
    let expected =
        [format!("{}{FORGED}", "A".repeat(PADDING)), "b\u{200b}a\u{61c}c\u{e0041}".to_owned(), "\u{1b}".repeat(20_000)];
    assert_eq!(outputs, expected);
}
