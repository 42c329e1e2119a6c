//! Output of jobs: bounded, complete as far as promised, and without effect on other jobs.

use crate::solo::fixture::{await_start, cli_text, kib, leading, node, warden_of};
use crate::support::LONG;

use super::{Trial, job, sh};

#[test]
fn output_is_logged_line_by_line_up_to_the_limit_and_its_tail_is_kept() {
    let trial = Trial::of(&format!("{}\nmax_output: 1KiB", sh("seq 1000 9999; exit 1")));
    let lines = trial.lines();
    assert_eq!(lines[..3], ["1000", "1001", "1002"]);
    let logged: usize = lines.iter().map(|line| line.len() + 1).sum();
    assert!(logged <= 1025, "{logged} bytes logged");
    let record = trial.record();
    assert_eq!(record["dropped_bytes"], 45_000 - 1024);
    let finished = trial.node.await_event("run.finished", LONG);
    assert_eq!(finished.number("dropped_bytes"), Some(45_000 - 1024));
    let tail = record["tail"].as_str().unwrap();
    assert!(tail.ends_with("9998\n9999\n") && tail.len() > 4000, "{tail}");
    let shown = cli_text(trial.node.spec(), &["history", "trial", "--output"]);
    assert!(shown.contains("9999") && shown.contains("max_output"), "{shown}");
}

#[test]
fn both_streams_are_distinguished() {
    let trial = Trial::of(&sh("echo out; echo err >&2; printf unfinished"));
    let stream = |line: &str| {
        let lines = trial.node.events().named("run.output");
        lines.iter().find(|event| event.text("line") == line).unwrap().text("stream").to_owned()
    };
    assert_eq!([stream("out"), stream("err"), stream("unfinished")], ["stdout", "stderr", "stdout"]);
}

#[test]
fn a_long_line_continues_in_the_next_event() {
    let trial = Trial::of(&sh("head -c 150000 /dev/zero | tr '\\0' x; echo end"));
    let lines = trial.node.events().named("run.output").into_iter();
    let of_run = lines.filter(|line| line.text("run") == trial.run());
    let parts: Vec<_> = of_run.map(|line| (line.text("line").to_owned(), line.json()["continues"] == true)).collect();
    let (last, before) = parts.split_last().unwrap();
    assert!(!last.1 && before.iter().all(|(_, continues)| *continues));
    assert!(parts.iter().all(|(part, _)| part.len() < 8_000));
    let whole: String = parts.into_iter().map(|(part, _)| part).collect();
    assert!(whole == format!("{}end", "x".repeat(150_000)), "{} bytes", whole.len());
}

#[test]
fn bytes_that_are_not_utf_8_are_shown_as_such() {
    let trial = Trial::of(&sh(r"printf 'a\000b\377\376c\033[31m\nnext\n'"));
    assert_eq!(trial.lines(), ["a\0b\u{fffd}\u{fffd}c\u{1b}[31m", "next"]);
    assert!(trial.record()["tail"].as_str().unwrap().ends_with("next\n"));
    let shown = cli_text(trial.node.spec(), &["history", "trial", "--output"]);
    assert!(!shown.contains('\u{1b}') && !shown.contains('\0'), "a terminal must not obey it: {shown:?}");
    let random = Trial::of("command: [head, -c, 100k, /dev/urandom]");
    assert_eq!(random.outcome(), ("success", Some(0)));
}

#[test]
fn a_gigabyte_without_a_line_end_takes_no_memory() {
    const MORE: u64 = 5 << 10;
    let a = leading(&node("torture").jobs(&job(&format!("{}\nmax_output: 1KiB", sh("head -c 1K /dev/zero")))));
    a.await_event("run.finished", LONG);
    let (daemon, warden) = (a.pid(), warden_of(&a));
    let before = [daemon, warden].map(|pid| kib(pid, "VmHWM"));

    let seen = a.events().len();
    a.spec().write_jobs(&job(&format!("{}\nmax_output: 1KiB", sh("head -c 1G /dev/zero"))));
    a.await_after(seen, "jobs.loaded", LONG, |_| true);
    let seen = a.events().len();
    let run = await_start(&a, seen, "trial");
    let end = a.await_where("run.finished", LONG * 3, |end| end.text("run") == run);
    assert_eq!(end.text("outcome"), "success");
    let after = [daemon, warden].map(|pid| kib(pid, "VmHWM"));
    for (before, after) in before.iter().zip(after) {
        assert!(after < before + MORE, "from {before} to {after} KiB");
    }
}

#[test]
fn a_flood_that_is_logged_in_full_takes_no_memory_either() {
    let flood = sh("head -c 9M /dev/zero | tr '\\0' x | fold -w 1000");
    let a = leading(&node("torture").jobs(&job(&format!("{flood}\nmax_output: 8MiB"))));
    a.await_event("run.finished", LONG);
    let warden = warden_of(&a);
    let before = kib(warden, "VmHWM");
    let seen = a.events().len();
    a.await_after(seen, "run.finished", LONG, |_| true);
    let after = kib(warden, "VmHWM");
    assert!(after < before + (5 << 10), "from {before} to {after} KiB");
}

#[test]
fn the_tail_of_a_success_is_short_and_of_a_failure_long() {
    let record = |code: u8| Trial::of(&sh(&format!("seq 1000 9999; exit {code}"))).record();
    let length = |code: u8| record(code)["tail"].as_str().unwrap().len();
    assert_eq!((length(0), length(1)), (512, 4096));
}
