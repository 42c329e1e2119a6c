//! `cronkeeper history`: lists runs and skips, newest first.
//!
//! The daemon answers at most 1,000 records at a time; the command asks again until it has what was wanted.

mod csv;
mod query;
pub(super) mod show;

use std::io::Write;

use jiff::Timestamp;
use serde::Deserialize;

use super::ask::{AskFailure, ClientArgs};
use super::{Io, json};
use crate::api::client::Client;
use crate::status::HistoryEntry;
use cronkeeper_core::clock::system;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::filter::{self, Ending, JobPattern};
use cronkeeper_core::term::NodeName;

/// Most records of one answer.
const PAGE: usize = 1_000;

#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArgs {
    /// Show this job only
    #[arg(value_parser = JobName::parse)]
    pub job: Option<JobName>,
    /// Show these jobs only: a name, or a pattern with `*` and `?`; may be repeated
    #[arg(long = "job", value_name = "PATTERN", value_parser = JobPattern::parse)]
    pub jobs: Vec<JobPattern>,
    /// Show only runs that did not succeed
    #[arg(long)]
    pub failed: bool,
    /// Show only this outcome, or `skipped`; may be repeated
    #[arg(long = "outcome", value_name = "OUTCOME", value_parser = Ending::parse)]
    pub outcomes: Vec<Ending>,
    /// Show only runs of this node, and skips that it decided
    #[arg(long, value_name = "NODE", value_parser = NodeName::parse)]
    pub node: Option<NodeName>,
    /// Show only what ended at this time or later: `2d` for two days ago, `2026-11-20` (UTC), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub since: Option<Timestamp>,
    /// Show only what ended at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub until: Option<Timestamp>,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values, with a heading; the parameters of a trigger are a JSON object
    #[arg(long, conflicts_with = "output")]
    pub csv: bool,
    /// Maximum number of records
    #[arg(short = 'n', value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub number: u32,
    /// Also print the end of each run's output, as far as it was kept
    #[arg(long)]
    pub output: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// A time on the command line: an instant, a date, or how long ago.
pub(super) fn instant(text: &str) -> Result<Timestamp, String> {
    filter::instant(text, system::now().wall)
}

/// The daemon's answer.
#[derive(Deserialize)]
struct History {
    records: Vec<HistoryEntry>,
    #[serde(default)]
    next: Option<String>,
    #[serde(default)]
    older_elsewhere: bool,
    #[serde(default)]
    archive_error: Option<String>,
    #[serde(default)]
    ledger_error: Option<String>,
}

/// # Errors
/// When no daemon answers, there is no such job, or the output cannot be written.
pub fn run(args: &HistoryArgs, io: &mut Io<'_>) -> Result<(), AskFailure> {
    let client = args.client.client()?;
    if args.csv {
        writeln!(io.out, "{}", csv::HEADING)?;
    }
    let mut records = Vec::new();
    let (mut left, mut before, mut ledger_error) = (args.number as usize, None, None);
    let last = loop {
        let mut page = ask(&client, args, left.min(PAGE), before.as_deref())?;
        left = left.saturating_sub(page.records.len());
        ledger_error = page.ledger_error.take().or(ledger_error);
        match (args.csv, args.json) {
            (true, _) => page.records.iter().try_for_each(|record| csv::write(record, io.out))?,
            (_, true) => page.records.iter().try_for_each(|record| json::line(record, io.out))?,
            _ => records.append(&mut page.records),
        }
        // A daemon that repeats itself would be asked for ever.
        if left == 0 || page.next.is_none() || page.next == before {
            break page;
        }
        before = page.next;
    };
    if !args.csv && !args.json {
        show::write(&records, args.output, io.out)?;
    }
    io.out.flush()?;
    Ok(write_notes(&History { ledger_error, ..last }, io.err)?)
}

fn ask(client: &Client, args: &HistoryArgs, limit: usize, before: Option<&str>) -> Result<History, AskFailure> {
    Ok(client.get(&query::path(args, limit, before))?)
}

/// Says what was not shown.
fn write_notes(last: &History, err: &mut dyn Write) -> std::io::Result<()> {
    if let Some(error) = &last.ledger_error {
        let error = cronkeeper_core::escape::plain(error);
        writeln!(
            err,
            "cronkeeper: the ledger was not reachable, so only what this node's archive has is shown: {error}"
        )?;
    }
    if let Some(error) = &last.archive_error {
        let error = cronkeeper_core::escape::plain(error);
        writeln!(err, "cronkeeper: this node's archive cannot be read, so only the newest records are shown: {error}")?;
    }
    if last.next.is_some() {
        writeln!(err, "cronkeeper: there are older records: see more with `-n`, or older ones with `--until`")?;
    } else if last.older_elsewhere {
        writeln!(err, "cronkeeper: older records of other nodes are in their archives: ask on those hosts")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_the_ledger_is_told_from_a_whole_one() {
        let notes = |answer: &str| {
            let mut text = Vec::new();
            write_notes(&serde_json::from_str(answer).unwrap(), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(notes(r#"{"records": []}"#), "");
        let without = notes(r#"{"records": [], "ledger_error": "no answer within 3 s", "older_elsewhere": true}"#);
        let first = "cronkeeper: the ledger was not reachable, so only what this node's archive has is shown: no answer within 3 s";
        assert_eq!(without.lines().next(), Some(first));
    }
}
