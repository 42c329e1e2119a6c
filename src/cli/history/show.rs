//! Formats history records as text. They are in the order of their ends; a table shows when they were due and started.

use std::io::{self, Write};

use jiff::Timestamp;

use super::super::ask::{exact_stamp, took};
use super::super::table::Table;
use crate::api::history::gap_in_words;
use crate::status::{EndedRun, HistoryEntry, Skipped, ending_details};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::escape;
use cronkeeper_core::run::{Attempt, Outcome, Reason};
use cronkeeper_core::term::NodeName;

const HEADING: [&str; 8] = ["DUE (UTC)", "STARTED (UTC)", "TOOK", "NODE", "RUN", "ATTEMPT", "OUTCOME", "BY"];

/// Where the history may have gaps.
pub(super) struct Gap {
    /// Something that ended before this may be missing.
    pub before: Timestamp,
    /// The nodes whose records are there all the same.
    pub nodes: Vec<NodeName>,
}

impl Gap {
    fn line(&self) -> String {
        format!("--- {} ---", gap_in_words(stamp(self.before), &self.nodes))
    }
}

/// Writes the records, with a line where they begin to have gaps.
pub(super) fn write(
    records: &[HistoryEntry],
    gap: Option<&Gap>,
    with_output: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let is_complete = |record: &&HistoryEntry| gap.is_none_or(|gap| record.at() >= gap.before);
    let (complete, rest) = records.split_at(records.iter().take_while(is_complete).count());
    if with_output {
        complete.iter().try_for_each(|record| write_with_output(record, out))?;
        gap.map_or(Ok(()), |gap| writeln!(out, "{}", gap.line()))?;
        return rest.iter().try_for_each(|record| write_with_output(record, out));
    }
    let mut table = Table::new(&HEADING);
    complete.iter().for_each(|record| table.row(cells(record)));
    if let Some(gap) = gap {
        table.line(&gap.line());
    }
    rest.iter().for_each(|record| table.row(cells(record)));
    table.write(out)
}

fn cells(record: &HistoryEntry) -> [String; 8] {
    match record {
        HistoryEntry::Run(run) => [
            stamp(run.scheduled_at),
            started(run),
            run.duration_ms.map_or_else(unknown, took),
            record.about().to_string(),
            run.run.to_string(),
            run.attempt.to_string(),
            outcome(run),
            by(run),
        ],
        HistoryEntry::Skip(skip) => [
            stamp(skip.first),
            unknown(),
            unknown(),
            record.about().to_string(),
            skip.run.to_string(),
            unknown(),
            skipped(skip),
            requested(skip.triggered_by.as_ref(), skip.triggered_for),
        ],
    }
}

/// Most characters of a parameter's value.
const MOST_OF_VALUE: usize = 20;

/// Who triggered the run, and who killed it; `-` if nobody did either.
fn by(run: &EndedRun) -> String {
    match (triggered(run), &run.killed_by) {
        (triggered, None) => triggered,
        (triggered, Some(by)) if triggered == unknown() => format!("killed by {by}"),
        (triggered, Some(by)) => format!("{triggered}, killed by {by}"),
    }
}

/// Who triggered the run, for what time, and with what parameters.
fn triggered(run: &EndedRun) -> String {
    let by = requested(run.triggered_by.as_ref(), run.triggered_for);
    let parameters = run.parameters.iter().map(|(name, value)| {
        let start: String = value.chars().take(MOST_OF_VALUE).collect();
        let more = if start.len() < value.len() { "…" } else { "" };
        format!(" {}={}{more}", escape::short(name, MOST_OF_VALUE), escape::value(&start))
    });
    std::iter::once(by).chain(parameters).collect()
}

fn requested(by: Option<&String>, made_for: Option<Timestamp>) -> String {
    match (by, made_for) {
        (Some(by), Some(time)) => format!("{by}, for {} UTC", stamp(time)),
        (Some(by), None) => by.clone(),
        (None, _) => unknown(),
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// When the last attempt started, with its date only if it was due on another day; `-` if it had no process.
fn started(run: &EndedRun) -> String {
    let Some(text) = run.started_at.map(exact_stamp) else { return unknown() };
    let due = stamp(run.scheduled_at);
    match (text.split_once(' '), due.split_once(' ')) {
        (Some((day, time)), Some((due_day, _))) if day == due_day => time.to_owned(),
        _ => text,
    }
}

fn outcome(run: &EndedRun) -> String {
    let text = ending(run.outcome, run.reason, run.exit_code, run.signal);
    match run.why_abandoned() {
        Some(why) => format!("{text}, {why}"),
        None => text,
    }
}

/// Formats how an attempt ended: `failure, exit 3`, `interrupted, lease`, `killed, signal 9`.
pub(in crate::cli) fn ending(
    outcome: Outcome,
    reason: Option<Reason>,
    exit_code: Option<i32>,
    signal: Option<i32>,
) -> String {
    match ending_details(reason, exit_code, signal) {
        details if details.is_empty() => outcome.as_str().to_owned(),
        details => format!("{}, {details}", outcome.as_str()),
    }
}

/// Formats an earlier attempt: `attempt 1 on host-a: failure, exit 3  2.3s`.
fn earlier(past: &Attempt) -> String {
    let ending = ending(past.outcome, past.reason, past.exit_code, past.signal);
    let took = past.duration_ms.map_or_else(|| "-".into(), took);
    format!("attempt {} on {}: {ending}  {took}", past.attempt, past.node)
}

/// Formats how a run ended, or why it was skipped.
pub(in crate::cli) fn ending_of(record: &HistoryEntry) -> String {
    match record {
        HistoryEntry::Run(run) => outcome(run),
        HistoryEntry::Skip(skip) => skipped(skip),
    }
}

fn skipped(skip: &Skipped) -> String {
    match skip.count {
        1 => format!("skipped, {}", skip.briefly()),
        count => format!("skipped, {}, {count} of them", skip.briefly()),
    }
}

/// The first line begins with the time of the end, by which the records are ordered.
fn write_with_output(record: &HistoryEntry, out: &mut dyn Write) -> io::Result<()> {
    let [_, _, took, node, run, attempt, outcome, by] = cells(record);
    let ended = match record {
        HistoryEntry::Run(run) => run.ended_at,
        HistoryEntry::Skip(skip) => skip.decided_at,
    };
    let attempt = if matches!(&*attempt, "-" | "0" | "1") { String::new() } else { format!(", attempt {attempt}") };
    // `killed by` follows a comma as it is.
    let by = match (&*by, record) {
        ("-", _) => String::new(),
        (by, HistoryEntry::Run(run)) if run.killed_by.is_some() && triggered(run) == unknown() => format!(", {by}"),
        (by, _) => format!(", by {by}"),
    };
    writeln!(
        out,
        "{}Z  {run}  {outcome}{attempt}  {took}  on {}{}",
        exact_stamp(ended),
        escape::plain(&node),
        escape::plain(&by)
    )?;
    let HistoryEntry::Run(run) = record else { return Ok(()) };
    for past in &run.earlier_attempts {
        writeln!(out, "    ({})", earlier(past))?;
    }
    match &run.detail {
        // The outcome says it already.
        Some(_) if run.outcome == Outcome::Abandoned => {}
        Some(detail) => writeln!(out, "    (not started: {})", escape::plain(detail))?,
        None => {}
    }
    if run.dropped_bytes > 0 {
        let (dropped, tail) = (run.dropped_bytes, run.tail.len());
        writeln!(out, "    ({dropped} bytes over `max_output` were not logged; these are the last {tail} bytes)")?;
    }
    if let Some(why) = run.reason.and_then(Reason::prevented_start) {
        writeln!(out, "    (no output: {why})")?;
    }
    run.tail.lines().try_for_each(|line| writeln!(out, "    {}", escape::plain(line)))
}

#[cfg(test)]
mod tests {
    use super::super::csv;
    use super::*;
    use crate::fuzz::{Fuzz, LEDGER_WORDS, is_read_back};
    use crate::status::sample::{at, job};
    use cronkeeper_core::run::{RunId, SkipReason};
    use cronkeeper_core::term::FencingToken;

    fn records() -> Vec<HistoryEntry> {
        let ended = |minute: &str, outcome| EndedRun {
            job: job("load"),
            run: RunId::scheduled(job("load"), at(minute)),
            scheduled_at: at(minute),
            triggered_by: None,
            triggered_for: None,
            parameters: Default::default(),
            killed_by: None,
            node: NodeName::new("host-a"),
            token: FencingToken(42),
            attempt: 1,
            begun_at: at(minute),
            started_at: Some(at(minute) + std::time::Duration::from_millis(12)),
            ended_at: at(minute) + std::time::Duration::from_millis(2_340),
            duration_ms: Some(2_340),
            outcome,
            reason: None,
            exit_code: Some(0),
            signal: None,
            leftovers: 0,
            dropped_bytes: 0,
            detail: None,
            tail: "3 rows\n".into(),
            earlier_attempts: Vec::new(),
        };
        let mut failed = ended("2026-11-20T02:59:00Z", Outcome::Failure);
        (failed.exit_code, failed.attempt) = (Some(3), 2);
        failed.earlier_attempts = vec![Attempt {
            attempt: 1,
            node: NodeName::new("host-b"),
            outcome: Outcome::Timeout,
            reason: None,
            exit_code: None,
            signal: Some(15),
            ended_at: at("2026-11-20T02:59:01Z"),
            duration_ms: Some(61_000),
        }];
        failed.detail = Some("/opt/load: Permission denied\u{1b}".into());
        (failed.dropped_bytes, failed.tail) = (77, "no route\u{1b}[2J\nto host".into());
        let mut cut = ended("2026-11-20T02:58:00Z", Outcome::Interrupted);
        (cut.exit_code, cut.reason, cut.duration_ms) = (None, Some(Reason::NodeDied), None);
        cut.started_at = None;
        cut.begun_at = at("2026-11-21T00:00:00Z");
        cut.triggered_by = Some("uid 0 (Jo \"x\", root)".into());
        let skip = Skipped {
            job: job("load"),
            run: RunId::scheduled(job("load"), at("2026-11-20T02:40:00Z")),
            reason: SkipReason::Missed,
            first: at("2026-11-20T02:40:00Z"),
            triggered_by: None,
            triggered_for: None,
            last: at("2026-11-20T02:57:00Z"),
            count: 18,
            detail: None,
            node: NodeName::new("host-b"),
            token: FencingToken(43),
            decided_at: at("2026-11-20T02:57:20Z"),
        };
        vec![
            HistoryEntry::Run(Box::new(ended("2026-11-20T03:00:00Z", Outcome::Success))),
            HistoryEntry::Run(Box::new(failed)),
            HistoryEntry::Run(Box::new(cut)),
            HistoryEntry::Skip(Box::new(skip)),
        ]
    }

    fn shown(with_output: bool) -> String {
        let mut out = Vec::new();
        write(&records(), None, with_output, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_skip_because_no_node_took_it_says_what_kept_the_nodes() {
        let mut records = records();
        let Some(HistoryEntry::Skip(skip)) = records.last_mut() else { panic!("it is a skip") };
        (skip.reason, skip.count, skip.detail) = (SkipReason::NoNode, 1, Some("no node has gpu (host-a: db)".into()));
        assert_eq!(skipped(skip), "skipped, no-node: no node has gpu (host-a: db)");
        assert_eq!(skip.explained(), "no-node: no node has gpu (host-a: db)");
        let outlined = records.pop().unwrap().outlined();
        assert_eq!(ending_of(&outlined), "skipped, no-node", "labels are not public");
    }

    #[test]
    fn a_skipped_share_is_shown_with_its_node_and_the_columns_stay_straight() {
        let mut records = records();
        let Some(HistoryEntry::Skip(skip)) = records.last_mut() else { panic!("it is a skip") };
        skip.run = skip.run.clone().on(Some(NodeName::new("host-c.example.org")));
        let mut out = Vec::new();
        write(&records, None, false, &mut out).unwrap();
        let shown = String::from_utf8(out).unwrap();
        let column = |heading: &str| shown.find(heading).unwrap();
        let cells = |at: usize| shown.lines().map(move |line| line[at..].split("  ").next().unwrap_or_default());
        let nodes: Vec<&str> = cells(column("NODE")).collect();
        assert_eq!(nodes, ["NODE", "host-a", "host-a", "host-a", "host-c.example.org"]);
        assert_eq!(cells(column("RUN ")).next_back(), Some("load.20261120T024000Z@host-c.example.org"));
        assert_eq!(cells(column("OUTCOME")).next_back(), Some("skipped, missed, 18 of them"));
    }

    #[test]
    fn what_a_trigger_set_is_shown_in_short_and_escaped() {
        let Some(HistoryEntry::Run(mut run)) = records().into_iter().next() else { panic!("it is a run") };
        run.triggered_by = Some("root on host-a".into());
        run.triggered_for = Some(at("2026-11-01T02:30:00Z"));
        let variables = [("DAY", "1"), ("NOTE", "a b\u{1b}[2J\n and much more than that")];
        run.parameters = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let expected = r#"root on host-a, for 2026-11-01 02:30:00 UTC DAY=1 NOTE="a b\u{1b}[2J\n and much mo"…"#;
        assert_eq!(triggered(&run), expected);
    }

    #[test]
    fn who_killed_a_run_is_beside_who_triggered_it() {
        let Some(HistoryEntry::Run(mut run)) = records().into_iter().next() else { panic!("it is a run") };
        (run.outcome, run.reason, run.exit_code) = (Outcome::Killed, Some(Reason::Operator), None);
        run.killed_by = Some("root on host3".into());
        let shown = |run: &EndedRun| {
            let mut out = Vec::new();
            write(&[HistoryEntry::Run(Box::new(run.clone()))], None, true, &mut out).unwrap();
            (by(run), String::from_utf8(out).unwrap().lines().next().unwrap_or_default().to_owned())
        };
        let (cell, line) = shown(&run);
        assert_eq!(cell, "killed by root on host3");
        assert!(line.ends_with("killed, operator  2.3s  on host-a, killed by root on host3"), "{line}");
        run.triggered_by = Some("jo on host2".into());
        let (cell, line) = shown(&run);
        assert_eq!(cell, "jo on host2, killed by root on host3");
        assert!(line.ends_with("on host-a, by jo on host2, killed by root on host3"), "{line}");
    }

    #[test]
    fn runs_and_skips_are_in_one_table() {
        assert_eq!(shown(false), include_str!("plain.txt"));
    }

    #[test]
    fn where_the_records_begin_to_have_gaps_is_a_line_between_them() {
        let gap = |before: &str| Gap { before: at(before), nodes: vec![NodeName::new("host-a")] };
        let lines = |gap: &Gap, with_output| {
            let mut out = Vec::new();
            write(&records(), Some(gap), with_output, &mut out).unwrap();
            String::from_utf8(out).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let line = "--- before 2026-11-20 02:59:00 only what host-a ran itself ---";
        // Below the heading and the records that ended at 03:00:02 and at 02:59:02.
        assert_eq!(lines(&gap("2026-11-20T02:59:00Z"), false)[3], line);
        assert!(lines(&gap("2026-11-20T02:59:00Z"), true).iter().any(|shown| shown == line));
        assert!(lines(&gap("2026-11-20T04:00:00Z"), false)[1].starts_with("--- before 2026-11-20 04:00:00"));
        let last = lines(&gap("2026-11-20T01:00:00Z"), false);
        assert!(last.last().is_some_and(|line| line.starts_with("--- before 2026-11-20 01:00:00")), "{last:?}");
    }

    #[test]
    fn in_csv_each_record_is_a_line_with_a_field_for_each_heading() {
        let mut out = format!("{}\n", csv::HEADING).into_bytes();
        let mut records = records();
        let made_for = Some(at("2026-11-01T02:30:00Z"));
        if let [_, HistoryEntry::Run(triggered), .., HistoryEntry::Skip(skipped)] = &mut *records {
            triggered.parameters = [("REGION".to_owned(), "eu, \"north\"".to_owned())].into();
            (triggered.triggered_for, skipped.triggered_for) = (made_for, made_for);
        }
        records.iter().for_each(|record| csv::write(record, &mut out).unwrap());
        assert_eq!(String::from_utf8(out).unwrap(), include_str!("records.csv"));
    }

    #[test]
    fn the_kept_output_is_below_its_run_and_escaped() {
        assert_eq!(shown(true), include_str!("output.txt"));
    }

    #[test]
    fn fuzz_history_of_a_daemon() {
        Fuzz { longest: 32 << 10, ..Fuzz::of("history", LEDGER_WORDS) }.run(|input| {
            let read = serde_json::from_slice::<crate::api::history::History>(input);
            if let Ok(history) = &read {
                is_read_back(&history.records);
                for with_output in [false, true] {
                    let mut out = Vec::new();
                    let gap = history.incomplete_before.map(|before| Gap { before, nodes: history.nodes.clone() });
                    write(&history.records, gap.as_ref(), with_output, &mut out).unwrap();
                    let shown = String::from_utf8(out).unwrap();
                    assert!(!shown.contains(|c| c != '\n' && escape::is_harmful(c)), "{shown:?}");
                }
            }
            read.is_ok()
        });
    }
}
