//! Tests of `logs` and `trigger --wait` against a solo daemon: live, whole, after a restart, and what is said.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use super::fixture::{Gate, PROGRAM, await_record, cli, cli_text, get, leading, node};
use crate::support::command::texts;
use crate::support::node::{Node, Spec};
use crate::support::{LONG, until};

/// A job that is never due.
const SELDOM: &str = r#""@at 2099-01-01T00:00:00Z""#;

fn spec(command: &str, more: &str) -> Spec {
    node("logs").jobs(&format!("jobs:\n  seldom: {{schedule: {SELDOM}, command: {command:?}{more}}}\n"))
}

fn serving(spec: &Spec) -> Node {
    let node = leading(spec);
    until("it can be asked", || get(spec, "/healthz").is_some());
    node
}

/// A command that goes on, with its output. Ctrl-C reaches it, also where the tests were started in the background.
fn started(spec: &Spec, arguments: &[&str]) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", PROGRAM]).args(arguments).arg("--runtime-dir").arg(spec.runtime_dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Reads this many lines of what a command prints; then more of it can still be read.
fn lines(child: &mut Child, count: usize) -> (Vec<String>, BufReader<ChildStdout>) {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut read = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line
    };
    let lines = (0..count).map(|_| read()).collect();
    (lines, out)
}

#[test]
fn output_is_followed_while_the_run_goes_on_and_kept_after_it() {
    let gate = Gate::new();
    let spec = spec(&format!("echo one; echo two >&2; {}; echo three", gate.command()), "");
    let _node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]).trim().to_owned();
    let mut following = started(&spec, &["logs", &run, "-f"]);
    let (live, mut rest) = lines(&mut following, 2);
    let mut live = live.concat();
    // The streams are two pipes, so their order is not determined.
    assert!(live.contains("one\n") && live.contains("two\n"), "{live}");
    gate.open();
    rest.read_to_string(&mut live).unwrap();
    assert!(live.ends_with("three\n"), "{live}");
    assert_eq!(following.wait().unwrap().code(), Some(0));
    assert_eq!(cli_text(&spec, &["logs", &run]), live);
    assert_eq!(cli_text(&spec, &["logs", "seldom", "--since", "1d"]), live);
    assert_eq!(cli_text(&spec, &["logs", "seldom", "--since", "2099-01-01T00:00:00Z"]), "");
    let json = cli_text(&spec, &["logs", &run, "--json"]);
    let streams: Vec<_> = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    assert!(streams.iter().any(|line| line["stream"] == "stderr" && line["line"] == "two" && line["attempt"] == 1));
    assert!(cli_text(&spec, &["logs", &run, "--timestamps"]).contains("Z stderr two\n"));
}

#[test]
fn the_whole_of_a_long_output_is_kept_over_a_restart() {
    let each = "x".repeat(97);
    let command = format!("for i in $(seq 1000 9999); do echo $i {each}; done");
    let spec = spec(&command, "");
    let a = serving(&spec);
    let whole: String = (1_000..10_000).map(|number| format!("{number} {each}\n")).collect();
    let output = cli(&spec, &["trigger", "seldom", "--wait"]);
    let (run, streamed) = std::str::from_utf8(&output.stdout).unwrap().split_once('\n').unwrap();
    assert!(streamed == whole, "{} of {}", streamed.len(), whole.len());
    assert!(cli_text(&spec, &["logs", run]) == whole);
    let a = a.again();
    a.await_event("takeover.done", LONG);
    until("it can be asked", || get(&spec, "/healthz").is_some());
    assert!(cli_text(&spec, &["logs", "seldom"]) == whole);
    let kept = std::fs::read_dir(spec.state_dir().join("output/ended/seldom")).unwrap();
    let sizes: Vec<u64> = kept.map(|file| file.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.len() == 1 && sizes[0] < 100_000, "{sizes:?}");
}

#[test]
fn each_attempt_has_its_output_and_of_what_exceeds_max_output_the_end() {
    let spec = spec(
        "echo attempt $CRONKEEPER_ATTEMPT; seq 1 5000; echo FATAL the real cause; exit 3",
        ", retries: {limit: 1, delay: 0s}, max_output: 12B",
    );
    let _node = serving(&spec);
    let (code, out, err) = texts(&cli(&spec, &["trigger", "seldom", "--wait"]));
    let (run, streamed) = out.split_once('\n').unwrap();
    assert_eq!(code, Some(3), "{err}");
    let (one, two) = streamed.split_once("attempt 2\n").unwrap();
    for (begin, attempt) in [("attempt 1\n1\n", one), ("1\n", two)] {
        assert!(attempt.starts_with(begin) && attempt.ends_with("\n4999\n5000\nFATAL the real cause\n"), "{attempt}");
        assert!((1_000..5_000).contains(&attempt.len()), "{attempt}");
    }
    for saved in [&err, &out] {
        assert_eq!(saved.matches(" bytes left out: over `max_output`]").count(), 2, "{saved}");
    }
    assert!(err.contains("cronkeeper: attempt 2:\n"), "{err}");
    let (code, kept, _) = texts(&cli(&spec, &["logs", "seldom"]));
    assert_eq!((code, kept.as_str()), (Some(1), streamed));
    let (_, page) = get(&spec, &format!("/runs/{run}")).unwrap();
    assert!(page.contains("left out: over `max_output`]") && page.contains("FATAL the real cause"), "{page}");
}

#[test]
fn of_a_few_bytes_over_max_output_nothing_is_left_out() {
    let spec = spec("echo attempt; echo more", ", max_output: 8B");
    let _node = serving(&spec);
    let (_, out, err) = texts(&cli(&spec, &["trigger", "seldom", "--wait"]));
    assert_eq!(out.lines().skip(1).collect::<Vec<_>>(), ["attempt", "more"], "{err}");
    assert_eq!(texts(&cli(&spec, &["logs", "seldom"])), (Some(0), "attempt\nmore\n".into(), String::new()));
}

#[test]
fn after_ctrl_c_the_run_goes_on_and_the_command_says_how_to_end_it() {
    let gate = Gate::new();
    let spec = spec(&format!("echo begun; {}", gate.command()), "");
    let a = serving(&spec);
    let mut waiting = started(&spec, &["trigger", "seldom", "--wait"]);
    let (first, _rest) = lines(&mut waiting, 2);
    let run = first[0].trim().to_owned();
    assert_eq!(first[1], "begun\n");
    kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
    let output = waiting.wait_with_output().unwrap();
    let (code, _, err) = texts(&output);
    assert_eq!(code, Some(130), "{err}");
    assert!(
        err.contains(&format!("cronkeeper logs {run} -f")) && err.contains(&format!("cronkeeper kill {run}")),
        "{err}"
    );
    gate.open();
    let ended = a.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!(ended.text("outcome"), "success");
}

#[test]
fn a_program_that_was_not_found_is_told_in_history_and_logs() {
    let spec = node("logs").jobs(&format!("jobs: {{seldom: {{schedule: {SELDOM}, command: [/no/such/program]}}}}\n"));
    let _node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]).trim().to_owned();
    await_record(&spec, "seldom", |record| record["run"] == run);
    let why = "its program was not found";
    assert!(cli_text(&spec, &["history", "--output"]).contains(&format!("(no output: {why})")));
    let (code, out, err) = texts(&cli(&spec, &["logs", "seldom"]));
    assert_eq!((code, out.as_str(), err), (Some(0), "", format!("cronkeeper: run `{run}`: {why}\n")));
}

#[test]
fn an_unknown_run_is_1_and_an_unknown_job_2() {
    let spec = spec("true", "");
    let _node = serving(&spec);
    let (code, _, err) = texts(&cli(&spec, &["logs", "seldom.20261120T023000Z"]));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.starts_with("cronkeeper: the ledger has no record of run `seldom.20261120T023000Z`"), "{err}");
    assert_eq!(texts(&cli(&spec, &["logs", "seldom"])).0, Some(1), "it never ran");
    let (code, _, err) = texts(&cli(&spec, &["logs", "seldon"]));
    assert_eq!((code, err.as_str()), (Some(2), "cronkeeper: there is no job `seldon`, did you mean `seldom`?\n"));
}

#[test]
fn without_retention_only_the_end_is_there() {
    let spec = spec("seq 1 9", "").option("--output-retention", "none");
    let _node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]).trim().to_owned();
    await_record(&spec, "seldom", |record| record["run"] == run);
    let (code, out, err) = texts(&cli(&spec, &["logs", &run]));
    assert_eq!((code, out.as_str()), (Some(0), "1\n2\n3\n4\n5\n6\n7\n8\n9\n"));
    assert!(err.contains("--output-retention"), "{err}");
    assert!(!spec.state_dir().join("output").exists());
}

#[test]
fn runs_in_flight_of_many_followers_are_served_at_once() {
    let gate = Gate::new();
    let spec = spec(&format!("echo here; {}", gate.command()), "");
    let _node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]).trim().to_owned();
    let followers: Vec<_> = (0..12).map(|_| started(&spec, &["logs", &run, "-f"])).collect();
    let waiting = followers.into_iter().map(|mut child| {
        let (first, _rest) = lines(&mut child, 1);
        assert_eq!(first, ["here\n"]);
        thread::spawn(move || child.wait().unwrap().code())
    });
    let waiting: Vec<_> = waiting.collect();
    assert!(cli_text(&spec, &["status"]).contains("seldom"));
    gate.open();
    waiting.into_iter().for_each(|ended| assert_eq!(ended.join().unwrap(), Some(0)));
}
