use proptest::prelude::*;
use tracing::Level;

use super::super::line::Value;
use super::*;
use cronkeeper_core::escape::is_harmful;
use cronkeeper_core::log_event::{self, EVENTS};

fn terminal() -> Terminal {
    Terminal { now: || "2026-11-22T03:38:00.004567Z".parse().unwrap(), ..Terminal::new(&NodeName::new("host-a")) }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn line(event: &str, fields: &[(&'static str, Value)]) -> Line {
    Line { event: event.into(), fields: fields.to_vec(), ..Line::default() }
}

fn written(terminal: &Terminal, level: Level, line: &Line) -> String {
    let mut out = String::new();
    terminal.write(&mut out, Paint { on: false }, level, line).unwrap();
    out
}

/// What an event says, after the time and the level.
fn said(event: &str, fields: &[(&'static str, Value)]) -> String {
    let terminal = terminal();
    terminal.day.store(20_779, Relaxed);
    let line = written(&terminal, Level::INFO, &line(event, fields));
    line.trim_end_matches('\n').strip_prefix("03:38:00.004 INFO  ").expect("time and level come first").to_owned()
}

fn of_job(event: &str, mut fields: Vec<(&'static str, Value)>) -> String {
    fields.insert(0, ("job", text("slow")));
    let said = said(event, &fields);
    said.strip_prefix("slow      ").expect("the job comes first").to_owned()
}

#[test]
fn a_run_reads_as_a_story() {
    let terminal = terminal();
    let job = ("job", text("heartbeat"));
    let started =
        line(log_event::RUN_STARTED, &[job.clone(), ("attempt", Value::Unsigned(1)), ("pid", Value::Signed(42))]);
    let output =
        line(log_event::RUN_OUTPUT, &[job.clone(), ("stream", text("stdout")), ("line", text("hello\u{1b}[2J"))]);
    let ended = [("outcome", text("success")), ("exit_code", Value::Signed(0)), ("duration_ms", Value::Unsigned(1))];
    let finished = line(log_event::RUN_FINISHED, &[&[job][..], &ended].concat());
    let elected = line(log_event::LEADER_ELECTED, &[("token", Value::Signed(3)), ("took_ms", Value::Unsigned(1))]);
    let listening = line(log_event::API_LISTENING, &[("path", text("/run/a b/api.sock"))]);
    let lines = [started, output, finished, elected, listening.clone(), listening];
    let all: String = lines.iter().map(|line| written(&terminal, Level::INFO, line)).collect();
    assert_eq!(
        all,
        "\
2026-11-22 (UTC), node host-a
03:38:00.004 INFO  heartbeat  started
03:38:00.004 INFO  heartbeat  | hello\\u{1b}[2J
03:38:00.004 INFO  heartbeat  success in 1 ms
03:38:00.004 INFO  leads (token 3, 1 ms)
03:38:00.004 INFO  serves the API at /run/a b/api.sock
See who leads and what runs: cronkeeper status --runtime-dir \"/run/a b\"
03:38:00.004 INFO  serves the API at /run/a b/api.sock
"
    );
}

#[test]
fn runs_say_what_went_wrong_and_nothing_else() {
    let number = Value::Unsigned;
    for (event, fields, words) in [
        (
            log_event::RUN_STARTED,
            vec![("attempt", number(2)), ("lateness_ms", number(2_345))],
            "started, attempt 2, 2.3 s late",
        ),
        (
            log_event::RUN_FINISHED,
            vec![("outcome", text("failure")), ("exit_code", number(3)), ("duration_ms", number(61_200))],
            "failure, exit code 3, after 1m1s",
        ),
        (
            log_event::RUN_FINISHED,
            vec![
                ("outcome", text("killed")),
                ("reason", text("operator")),
                ("signal", number(15)),
                ("by", text("root")),
            ],
            "killed (an operator asked for it), signal 15, by root",
        ),
        (
            log_event::RUN_FINISHED,
            vec![("outcome", text("success")), ("exit_code", number(0)), ("dropped_bytes", number(77))],
            "success; 77 bytes of output over `max_output` were not logged",
        ),
        (
            log_event::RUN_SKIPPED,
            vec![("scheduled_at", text("2026-11-22T03:38:15Z")), ("reason", text("overlap"))],
            "skipped 03:38:15: the run before is still in flight",
        ),
        (
            log_event::RUN_SKIPPED,
            vec![
                ("reason", text("missed")),
                ("count", number(18)),
                ("first", text("2026-11-21T23:00:00Z")),
                ("last", text("2026-11-22T03:00:00Z")),
            ],
            "skipped 18 times, 2026-11-21 23:00:00 to 03:00:00: it was too late to start it",
        ),
        (log_event::JOB_PAUSED, vec![("by", text("root")), ("reason", text("works"))], "paused by root: works"),
    ] {
        assert_eq!(of_job(event, fields), words);
    }
}

#[test]
fn a_drain_names_the_runs_and_how_to_stop_at_once() {
    let runs = [
        ("runs", Value::Unsigned(1)),
        ("waits_for", text("slow.20261122T033830Z")),
        ("timeout_ms", Value::Unsigned(30_000)),
    ];
    assert_eq!(
        said(log_event::NODE_DRAINING, &runs),
        "stops, but waits up to 30 s for 1 run: slow.20261122T033830Z; press Ctrl-C again to stop now"
    );
}

#[test]
fn a_loaded_file_names_what_it_changed() {
    let fields = [("path", text("j.yaml")), ("jobs", Value::Unsigned(3)), ("added_jobs", text("a, b"))];
    assert_eq!(said(log_event::JOBS_LOADED, &fields), "loaded 3 jobs from j.yaml: added a, b");
}

#[test]
fn every_event_has_words_of_its_own() {
    for event in EVENTS {
        let bare = words::of(&line(event.name, &[]), Timestamp::UNIX_EPOCH);
        assert!(!bare.text.is_empty() && !bare.text.contains(event.name), "{}: {bare:?}", event.name);
        let fields: Vec<_> = event.fields.iter().map(|&field| (field, text("x"))).collect();
        let full = words::of(&line(event.name, &fields), Timestamp::UNIX_EPOCH);
        assert!(!full.text.contains('='), "{}: {full:?}", event.name);
    }
}

#[test]
fn what_is_no_event_is_its_message_and_fields() {
    let library = Line {
        source: Some("zookeeper_client".into()),
        message: Some("lost".into()),
        ..line("log", &[("server", text("zk 1"))])
    };
    assert_eq!(words::of(&library, Timestamp::UNIX_EPOCH).text, "zookeeper_client: lost server=\"zk 1\"");
    assert_eq!(words::of(&line("run.new", &[("n", Value::Signed(1))]), Timestamp::UNIX_EPOCH).text, "run.new:  n=1");
}

#[test]
fn the_day_is_given_when_it_changes() {
    let terminal = terminal();
    let stopped = line(log_event::NODE_STOPPED, &[]);
    assert!(written(&terminal, Level::INFO, &stopped).starts_with("2026-11-22 (UTC), node host-a\n"));
    assert_eq!(written(&terminal, Level::INFO, &stopped), "03:38:00.004 INFO  stopped\n");
    let tomorrow = Terminal { now: || "2026-11-23T00:00:00Z".parse().unwrap(), ..terminal };
    assert!(written(&tomorrow, Level::INFO, &stopped).starts_with("2026-11-23 (UTC)"));
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn no_text_of_an_event_reaches_the_terminal_unescaped(at in 0..EVENTS.len(), hostile in "\\PC*|.*", job in ".*") {
        let mut fields = vec![("job", text(&job))];
        fields.extend(EVENTS[at].fields.iter().filter(|field| **field != "job").map(|&field| (field, text(&hostile))));
        let line = Line { message: Some(hostile.clone()), ..line(EVENTS[at].name, &fields) };
        let out = written(&terminal(), Level::WARN, &line);
        prop_assert!(!out.contains(|c| c != '\n' && is_harmful(c)), "{out:?}");
        // The line itself, the day, and the command that shows the status.
        let expected = 2 + usize::from(out.contains("\nSee who leads"));
        prop_assert_eq!(out.lines().count(), expected);
    }
}
