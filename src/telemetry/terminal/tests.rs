use proptest::prelude::*;
use tracing::Level;

use super::super::line::Value;
use super::*;
use cronkeeper_core::escape::is_harmful;
use cronkeeper_core::log_event::{self, EVENTS};

fn terminal() -> Terminal {
    let scene = Scene { service: "ZooKeeper", now: || "2026-11-22T03:38:00.004567Z".parse().unwrap() };
    Terminal::new(&NodeName::new("host-a"), scene)
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
03:38:00.004 INFO  now the leader (token 3, 1 ms)
03:38:00.004 INFO  serving the API at /run/a b/api.sock
See who leads and what runs: cronkeeper status --runtime-dir \"/run/a b\"
03:38:00.004 INFO  serving the API at /run/a b/api.sock
"
    );
}

#[test]
fn the_day_is_given_when_it_changes() {
    let terminal = terminal();
    let stopped = line(log_event::NODE_STOPPED, &[]);
    assert!(written(&terminal, Level::INFO, &stopped).starts_with("2026-11-22 (UTC), node host-a\n"));
    assert_eq!(written(&terminal, Level::INFO, &stopped), "03:38:00.004 INFO  stopped\n");
    let scene = Scene { now: || "2026-11-23T00:00:00Z".parse().unwrap(), ..terminal.scene };
    let tomorrow = Terminal { scene, ..terminal };
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
