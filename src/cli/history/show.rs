//! Formats history records as text.

use std::io::{self, Write};

use super::super::ask::{stamp, took};
use super::super::table::Table;
use crate::escape;
use crate::run::{Attempt, Outcome, Reason};
use crate::status::{EndedRun, HistoryEntry, Skipped};

const HEADING: [&str; 4] = ["ENDED (UTC)", "RUN", "OUTCOME", "TOOK"];

pub(super) fn write(records: &[HistoryEntry], with_output: bool, out: &mut dyn Write) -> io::Result<()> {
    if with_output {
        return records.iter().try_for_each(|record| write_with_output(record, out));
    }
    let mut table = Table::new(&HEADING);
    for record in records {
        table.row(cells(record));
    }
    table.write(out)
}

fn cells(record: &HistoryEntry) -> [String; 4] {
    match record {
        HistoryEntry::Run(run) => {
            [stamp(run.ended_at), run.run.to_string(), outcome(run), run.duration_ms.map_or_else(|| "-".into(), took)]
        }
        HistoryEntry::Skip(skip) => [stamp(skip.decided_at), skip.run.to_string(), skipped(skip), "-".into()],
    }
}

fn outcome(run: &EndedRun) -> String {
    let mut text = ending(run.outcome, run.reason, run.exit_code, run.signal);
    if run.attempt > 1 {
        text.push_str(&format!(", attempt {}", run.attempt));
    }
    text
}

/// Formats how an attempt ended: `failure, exit 3`, `interrupted, lease`, `killed, signal 9`.
fn ending(outcome: Outcome, reason: Option<Reason>, exit_code: Option<i32>, signal: Option<i32>) -> String {
    let mut text = outcome.as_str().to_owned();
    if let Some(reason) = reason {
        text.push_str(&format!(", {}", reason.as_str()));
    }
    match (exit_code, signal) {
        (Some(code), _) if code != 0 => text.push_str(&format!(", exit {code}")),
        (_, Some(signal)) => text.push_str(&format!(", signal {signal}")),
        _ => {}
    }
    text
}

/// Formats an earlier attempt: `attempt 1 on host-a: failure, exit 3  2.3s`.
fn earlier(past: &Attempt) -> String {
    let ending = ending(past.outcome, past.reason, past.exit_code, past.signal);
    let took = past.duration_ms.map_or_else(|| "-".into(), took);
    format!("attempt {} on {}: {ending}  {took}", past.attempt, past.node)
}

fn skipped(skip: &Skipped) -> String {
    match skip.count {
        1 => format!("skipped, {}", skip.reason.as_str()),
        count => format!("skipped, {}, {count} of them", skip.reason.as_str()),
    }
}

fn write_with_output(record: &HistoryEntry, out: &mut dyn Write) -> io::Result<()> {
    let [ended, run, outcome, took] = cells(record);
    writeln!(out, "{ended}Z  {run}  {outcome}  {took}")?;
    let HistoryEntry::Run(run) = record else { return Ok(()) };
    for past in &run.earlier_attempts {
        writeln!(out, "    ({})", earlier(past))?;
    }
    if run.dropped_bytes > 0 {
        writeln!(out, "    ({} bytes over `max_output` were not logged)", run.dropped_bytes)?;
    }
    run.tail.lines().try_for_each(|line| writeln!(out, "    {}", escape::plain(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, is_read_back};
    use crate::run::fuzz::WORDS;
    use crate::run::{RunId, SkipReason};
    use crate::status::sample::{at, job};
    use crate::term::{FencingToken, NodeName};

    fn records() -> Vec<HistoryEntry> {
        let ended = |minute: &str, outcome| EndedRun {
            job: job("load"),
            run: RunId::scheduled(job("load"), at(minute)),
            scheduled_at: at(minute),
            triggered_by: None,
            node: NodeName::new("host-a"),
            token: FencingToken(42),
            attempt: 1,
            begun_at: at(minute),
            ended_at: at(minute) + std::time::Duration::from_millis(2_340),
            duration_ms: Some(2_340),
            outcome,
            reason: None,
            exit_code: Some(0),
            signal: None,
            leftovers: 0,
            dropped_bytes: 0,
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
        (failed.dropped_bytes, failed.tail) = (77, "no route\u{1b}[2J\nto host".into());
        let mut cut = ended("2026-11-20T02:58:00Z", Outcome::Interrupted);
        (cut.exit_code, cut.reason, cut.duration_ms) = (None, Some(Reason::NodeDied), None);
        let skip = Skipped {
            job: job("load"),
            run: RunId::scheduled(job("load"), at("2026-11-20T02:40:00Z")),
            reason: SkipReason::Missed,
            first: at("2026-11-20T02:40:00Z"),
            triggered_by: None,
            last: at("2026-11-20T02:57:00Z"),
            count: 18,
            node: NodeName::new("host-b"),
            token: FencingToken(43),
            decided_at: at("2026-11-20T02:57:20Z"),
        };
        vec![
            HistoryEntry::Run(Box::new(ended("2026-11-20T03:00:00Z", Outcome::Success))),
            HistoryEntry::Run(Box::new(failed)),
            HistoryEntry::Run(Box::new(cut)),
            HistoryEntry::Skip(skip),
        ]
    }

    fn shown(with_output: bool) -> String {
        let mut out = Vec::new();
        write(&records(), with_output, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn runs_and_skips_are_in_one_table() {
        assert_eq!(shown(false), include_str!("plain.txt"));
    }

    #[test]
    fn the_kept_output_is_below_its_run_and_escaped() {
        assert_eq!(shown(true), include_str!("output.txt"));
    }

    #[test]
    fn fuzz_history_of_a_daemon() {
        Fuzz { longest: 32 << 10, ..Fuzz::of("history", WORDS) }.run(|input| {
            let read = serde_json::from_slice::<super::super::History>(input);
            if let Ok(history) = &read {
                is_read_back(&history.records);
                for with_output in [false, true] {
                    let mut out = Vec::new();
                    write(&history.records, with_output, &mut out).unwrap();
                    let shown = String::from_utf8(out).unwrap();
                    assert!(!shown.contains(|c| c != '\n' && escape::is_harmful(c)), "{shown:?}");
                }
            }
            read.is_ok()
        });
    }
}
