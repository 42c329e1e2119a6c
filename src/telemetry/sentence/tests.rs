use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use cronkeeper_core::log_event::{EVENTS, Event};

/// Placeholders that only the place has that logs the line.
const OF_THE_PLACE: &str = "message";

fn scene() -> Scene {
    Scene { service: "ZooKeeper", now: || "2026-11-22T03:38:00.004567Z".parse().unwrap() }
}

/// A typical value of a field.
fn sample(field: &str) -> Value {
    let text = match field {
        "job" => "backup",
        "run" => "backup.20261122T033000Z",
        "version" => "0.1.0",
        "backend" => "zookeeper",
        "path" => "/etc/cronkeeper/jobs.yaml",
        "waits_for" | "added_jobs" | "changed_jobs" | "removed_jobs" => "backup, report and 3 more",
        "first" => "2026-11-21T23:00:00Z",
        "since" | "scheduled_at" | "started_at" | "raised_at" | "last_good" | "gone_since" | "last_seen" | "mark"
        | "found" | "from" => "2026-11-22T03:30:00Z",
        "last" | "until" | "keep_until" => "2026-11-22T03:45:00Z",
        "other" | "to" | "predecessor_node" | "after" | "owner" => "host-b",
        "leader_node" => "host-c",
        "by" => "uid 1000 (ann) on host-a",
        "reason" => "drain",
        "outcome" => "failure",
        "error" => "connection refused",
        "service" => "PostgreSQL 15.9",
        "durability" => "commits are on its disk",
        "why" => "host-b: it lacks the label `gpu`",
        "parameters" => "REGION",
        "stream" => "stdout",
        "line" => "3 rows",
        "request" => "drain",
        "caller" => "10.0.0.9",
        "address" => "0.0.0.0:7475",
        "hook" => "on_failure",
        "alarm" => "late",
        "place" => "src/main.rs:1",
        "detail" => "/usr/bin/backup: No such file or directory",
        "tzdata" => "2026a",
        "other_tzdata" => "2026b",
        _ => "",
    };
    match text {
        "" if field.ends_with("_ms") => Value::Unsigned(5_300),
        "" => Value::Unsigned(2),
        text => Value::Text(text.to_owned()),
    }
}

/// The event with samples of these fields.
fn line(event: &Event, has: impl Fn(&str) -> bool) -> Line {
    let fields = event.fields.iter().filter(|field| has(field)).map(|&field| match (event.name, field) {
        ("jobs.rejected", "first") => (field, Value::Text("line 3: `shedule` is not a key".into())),
        ("run.moved", "from") => (field, Value::Text("host-a".into())),
        ("run.skipped", "reason") => (field, Value::Text("overlap".into())),
        ("run.refused", "reason") => (field, Value::Text("not-defined".into())),
        ("run.moved", "reason") => (field, Value::Text("overdue".into())),
        ("leader.lost", "reason") => (field, Value::Text("lease".into())),
        ("leader.handing_over", "reason") => (field, Value::Text("priority".into())),
        ("job.paused" | "node.drained" | "operator.requested", "reason") => (field, Value::Text("new disk".into())),
        ("operator.refused" | "leader.handover_failed", "reason") => (field, Value::Text("host-b is drained".into())),
        ("run.killed" | "run.unstarted", "reason") => (field, Value::Text("lease".into())),
        ("run.finished" | "run.retrying", "reason") => (field, Value::Text("not-found".into())),
        ("node.stopped", "reason") => (field, Value::Text("asked to".into())),
        _ => (field, sample(field)),
    });
    Line {
        event: event.name.into(),
        message: event.sentence.contains("{message}").then(|| "MESSAGE".to_owned()),
        fields: fields.collect(),
        ..Line::default()
    }
}

fn whole(line: &Line) -> String {
    Sentence::of(line, &scene()).whole()
}

/// The placeholders of a template, those of optional parts too.
fn placeholders(template: &str) -> Vec<&str> {
    let starts = template.match_indices('{').map(|(at, _)| &template[at + 1..]);
    starts.map(|rest| rest.split_once('}').expect("a placeholder ends").0).collect()
}

fn field_of(placeholder: &str) -> &str {
    placeholder.trim_start_matches('@').split(':').next().unwrap()
}

#[test]
fn every_placeholder_is_a_field_of_its_event_or_a_word() {
    for event in EVENTS {
        for placeholder in placeholders(event.sentence) {
            let field = field_of(placeholder);
            let is_word = words::WORDS.iter().any(|(word, _)| *word == field);
            assert!(event.fields.contains(&field) || is_word || field == OF_THE_PLACE, "{}: {placeholder}", event.name);
        }
        let count = |c| event.sentence.matches(c).count();
        assert_eq!((count('{'), count('[')), (count('}'), count(']')), "{}", event.name);
    }
}

#[test]
fn every_word_is_used() {
    for (word, _) in words::WORDS {
        let uses = |event: &Event| placeholders(event.sentence).contains(word);
        assert!(EVENTS.iter().any(uses), "{word}");
    }
}

/// The sentences of all events in `sentences.txt`: with all fields, and without those that may be missing.
///
/// `GOLDEN_WRITE=1 cargo test --lib golden` writes the file anew. Read it aloud: it is what people are woken by.
#[test]
fn golden_sentences_of_all_events() {
    let mut said = String::new();
    for event in EVENTS {
        let levels: Vec<_> = event.levels.iter().map(ToString::to_string).collect();
        let full = whole(&line(event, |_| true));
        writeln!(said, "{} ({})\n    {full}", event.name, levels.join(", ")).unwrap();
        let optional: String = event.sentence.split('[').skip(1).filter_map(|part| part.split(']').next()).collect();
        let optional: Vec<_> = placeholders(&optional).into_iter().map(field_of).collect();
        let bare = whole(&line(event, |field| !optional.contains(&field)));
        if bare != full {
            writeln!(said, "    {bare}").unwrap();
        }
        assert!(!full.contains(['{', '[', '?']) && !bare.contains('?'), "{full} {bare}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/telemetry/sentence/tests/sentences.txt");
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(&path, &said).unwrap();
    }
    assert_eq!(said, std::fs::read_to_string(&path).unwrap_or_default(), "see the test's comment");
}

fn of(event: &str, fields: &[(&'static str, Value)]) -> String {
    let fields = [&[("job", text("slow"))][..], fields].concat();
    whole(&Line { event: event.into(), fields, ..Line::default() })
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn runs_say_what_went_wrong_and_nothing_else() {
    let number = Value::Unsigned;
    for (event, fields, words) in [
        (log_event::RUN_STARTED, vec![("attempt", number(1)), ("lateness_ms", number(80))], "slow started"),
        (
            log_event::RUN_STARTED,
            vec![("attempt", number(1)), ("lateness_ms", number(2_345))],
            "slow started, 2.3 s late",
        ),
        // A later attempt is late by intention.
        (
            log_event::RUN_STARTED,
            vec![("attempt", number(2)), ("lateness_ms", number(2_345))],
            "slow started, attempt 2",
        ),
        (
            log_event::RUN_FINISHED,
            vec![("outcome", text("success")), ("exit_code", number(0)), ("duration_ms", number(40_000))],
            "slow success in 40 s",
        ),
        (
            log_event::RUN_FINISHED,
            vec![("outcome", text("failure")), ("exit_code", number(3)), ("duration_ms", number(61_200))],
            "slow failure, exit code 3, after 1m1s",
        ),
        (
            log_event::RUN_FINISHED,
            vec![
                ("outcome", text("killed")),
                ("reason", text("operator")),
                ("signal", number(15)),
                ("by", text("root")),
            ],
            "slow killed by root, signal 15",
        ),
        (
            log_event::RUN_FINISHED,
            vec![("outcome", text("success")), ("leftovers", number(0)), ("dropped_bytes", number(77))],
            "slow success; dropped 77 bytes of output over `max_output`",
        ),
        (
            log_event::RUN_FINISHED,
            vec![("outcome", text("success")), ("leftovers", number(2))],
            "slow success; killed 2 processes that it left behind",
        ),
        (
            log_event::RUN_SKIPPED,
            vec![("scheduled_at", text("2026-11-22T03:38:15Z")), ("reason", text("overlap"))],
            "slow skipped 03:38:15Z: the run before it is still in flight",
        ),
        (
            log_event::RUN_SKIPPED,
            vec![
                ("run", text("slow.20261122T033815Z.m14")),
                ("scheduled_at", text("2026-11-22T03:38:15Z")),
                ("reason", text("overlap")),
            ],
            "slow skipped slow.20261122T033815Z.m14: the run before it is still in flight",
        ),
        (
            log_event::RUN_STARTED,
            vec![("run", text("slow.20261122T033815Z.m14")), ("attempt", number(1)), ("lateness_ms", number(3_300))],
            "slow started as slow.20261122T033815Z.m14, 3.3 s late",
        ),
        (
            log_event::RUN_SKIPPED,
            vec![
                ("reason", text("missed")),
                ("count", number(18)),
                ("first", text("2026-11-21T23:00:00Z")),
                ("last", text("2026-11-22T03:00:00Z")),
            ],
            "slow skipped 18 times, 2026-11-21 23:00:00Z to 03:00:00Z: it was not started in time",
        ),
        (log_event::JOB_RESUMED, vec![("by", text("root"))], "slow resumed by root"),
        (
            log_event::JOB_RESUMED,
            vec![("by", text("the end of the pause by root"))],
            "slow resumed: the pause of root is over",
        ),
        (
            log_event::RUN_OUTPUT,
            vec![("stream", text("on_failure")), ("line", text("sent")), ("continues", Value::Bool(true))],
            "slow on_failure | sent …",
        ),
    ] {
        assert_eq!(of(event, &fields), words);
    }
}

#[test]
fn clocks_are_compared_in_words() {
    let of = |event: &str, by_ms| {
        whole(&Line { event: event.into(), fields: vec![("by_ms", Value::Signed(by_ms))], ..Line::default() })
    };
    assert_eq!(of(log_event::CLOCK_STEPPED, -3_600_000), "the clock of this host was set back by 1h");
    assert_eq!(of(log_event::CLOCK_SKEWED, 2_000), "the clock of this host is 2 s ahead of ZooKeeper's");
    assert_eq!(of(log_event::CLOCK_SKEWED, -90_000), "the clock of this host is 1m30s behind ZooKeeper's");
    assert_eq!(of(log_event::CLOCK_SKEWED, 12), "the clock of this host agrees again with ZooKeeper's");
}

#[test]
fn what_is_no_event_is_its_message_and_fields() {
    let library = Line {
        event: "log".into(),
        source: Some("zookeeper_client".into()),
        message: Some("lost".into()),
        fields: vec![("server", text("zk 1"))],
    };
    assert_eq!(whole(&library), "zookeeper_client: lost server=\"zk 1\"");
    let unknown = Line { event: "run.new".into(), fields: vec![("n", Value::Signed(1))], ..Line::default() };
    assert_eq!(whole(&unknown), "run.new:  n=1");
}

#[test]
fn an_outage_keeps_its_reason_and_names_fewer_servers() {
    let said = |error: &str| {
        let fields = vec![("error", text(error)), ("retry_ms", Value::Unsigned(500))];
        whole(&Line { event: log_event::COORDINATION_UNREACHABLE.into(), fields, ..Line::default() })
    };
    let quorum = "is ZooKeeper without a quorum, or cut off from it";
    let all = "127.0.0.1:36181, 127.0.0.1:36182, 127.0.0.1:36183: connection refused".to_owned();
    for (error, brief) in [
        (all.clone(), all),
        (format!("127.0.0.1:36181, 127.0.0.1:36183: {quorum}"), format!("127.0.0.1:36181 and 1 more: {quorum}")),
        (
            format!("zk1:2181: connection refused; zk2:2181, zk3:2181: {quorum}"),
            format!("zk2:2181 and 1 more: {quorum}; …"),
        ),
        (
            format!("zk1.region-1.example.com:2181, zk2.region-1.example.com:2181: {quorum}"),
            format!("2 servers: {quorum}"),
        ),
    ] {
        assert_eq!(said(&error), format!("ZooKeeper is unavailable: {brief}; next try in 500 ms"));
    }
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn an_outage_takes_a_line_of_at_most_160_characters(error in "\\PC{0,600}|(h{1,40}:1, ){0,4}h:1: \\PC{0,90}(; h:2: x{0,90})?", at in 0_usize..3) {
        let event = [
            log_event::COORDINATION_UNREACHABLE,
            log_event::COORDINATION_SUSPENDED,
            log_event::COORDINATION_RESTORED,
        ][at];
        let fields = vec![("error", text(&error)), ("retry_ms", Value::Unsigned(500)), ("away_ms", Value::Unsigned(1))];
        let said = whole(&Line { event: event.into(), fields, ..Line::default() });
        // The time and the level of a text line come before it.
        let escaped = error.chars().any(cronkeeper_core::escape::is_harmful);
        prop_assert!(escaped || "2026-11-22T03:38:00.004Z WARN  ".len() + said.chars().count() <= 160, "{said}");
    }
}
