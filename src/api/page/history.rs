//! The history with filters, and the rows in which records are shown.

use axum::http::StatusCode;
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::words;
use crate::api::RefusedRequest;
use crate::api::history::{History, MissingNode, gap_in_words};
use crate::status::{EndedRun, HistoryEntry, Skipped, ending_details, shown};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::ledger::Filter as Records;
use cronkeeper_core::ledger::filter::{Ending, JobPattern};
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

/// Which records to show: the query of `/history`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Filter {
    /// Part of the job's name.
    #[serde(default)]
    pub job: String,
    /// An outcome, `failed` for all but success, or `skipped`.
    #[serde(default)]
    pub outcome: String,
    /// The node's name.
    #[serde(default)]
    pub node: String,
}

/// The values of `outcome`, and how the form words them.
const OUTCOMES: [(&str, &str); 9] = [
    ("", "any"),
    ("failed", "all but success"),
    ("success", "success"),
    ("failure", "failure"),
    ("timeout", "timeout"),
    ("killed", "killed"),
    ("interrupted", "interrupted"),
    ("abandoned", "abandoned"),
    ("skipped", "skipped"),
];

impl Filter {
    /// The records that it selects.
    ///
    /// # Errors
    /// If a text can be in no name, or an outcome is unknown.
    pub fn records(&self) -> Result<Records, RefusedRequest> {
        let bad = |why: String| RefusedRequest::new(StatusCode::BAD_REQUEST, why);
        let jobs = match self.job.as_str() {
            "" => Vec::new(),
            part => vec![JobPattern::parse(&format!("*{part}*")).map_err(|why| bad(why.to_string()))?],
        };
        let endings = match self.outcome.as_str() {
            "" => Vec::new(),
            "failed" => Ending::failed().collect(),
            outcome => vec![Ending::parse(outcome).map_err(bad)?],
        };
        let node = match self.node.as_str() {
            "" => None,
            node => Some(NodeName::parse(node).map_err(bad)?),
        };
        Ok(Records { jobs, endings, node, ..Records::default() })
    }
}

/// The page's content: these records, and what they lack.
pub(super) fn page(filter: &Filter, found: &History, now: Timestamp) -> Markup {
    let has_more = found.next.is_some() || found.cut;
    html! {
        h1 { "History" }
        (form(filter))
        section #records data-live="" aria-label="Records" {
            (lacks(found))
            p {
                (counted(found.records.len(), "record")) (of_archives(found)) ", the newest first"
                @if has_more { "; for older ones ask " code { "cronkeeper history --until" } }
                "."
            }
            (table(found, now))
        }
    }
}

/// Says of which archives alone the records are, while the ledger is not known.
fn of_archives(found: &History) -> &'static str {
    match (&found.ledger_error, &*found.nodes) {
        (None, _) => "",
        (Some(_), [] | [_]) => " of this node's archive",
        (Some(_), _) => " of these archives",
    }
}

/// Says what was not reachable, and which nodes' records are missing.
pub(super) fn lacks(found: &History) -> Markup {
    html! {
        @if found.ledger_error.is_some() {
            p role="alert" { "The ledger was not reachable. This is what the archive of " (archives(&found.nodes)) " has." }
        }
        @if found.unreadable > 0 {
            p role="alert" {
                (counted(found.unreadable, "record")) " of the ledger cannot be read, and are missing unless an archive has them."
            }
        }
        @if let Some(before) = found.gap().filter(|_| !found.missing.is_empty()) {
            p { "Of what ended before " (stamp(before)) " UTC, the records of these nodes may be missing:" }
            ul {
                @for MissingNode { node, why } in &found.missing { li { (node) ": " (why) } }
                @if found.missing_more > 0 { li { (found.missing_more) " more" } }
            }
        }
    }
}

fn archives(nodes: &[NodeName]) -> String {
    match nodes {
        [] => "this node".to_owned(),
        nodes => nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", "),
    }
}

fn form(filter: &Filter) -> Markup {
    html! {
        form.filter role="search" method="get" action="/history" {
            label { "Job contains " input #filter-job type="search" name="job" maxlength="100" value=(filter.job); }
            label { "Node " input #filter-node type="search" name="node" maxlength="100" value=(filter.node); }
            label { "Outcome " select #filter-outcome name="outcome" {
                @for (value, words) in OUTCOMES { option value=(value) selected[filter.outcome == value] { (words) } }
            } }
            button type="submit" { "Show" }
        }
    }
}

/// A table of records, with a line where they begin to have gaps.
pub(super) fn table(found: &History, now: Timestamp) -> Markup {
    let gap = found.gap();
    let complete = found.records.iter().take_while(|entry| gap.is_none_or(|before| entry.at() >= before)).count();
    let (complete, rest) = found.records.split_at(complete);
    html! {
        @if !found.records.is_empty() {
            table {
                caption { "Newest first; times in UTC" }
                thead { tr {
                    th scope="col" { "Run" } th scope="col" { "Outcome" } th scope="col" { "Ended" }
                    th scope="col" { "Took" } th scope="col" { "Node" }
                } }
                tbody {
                    @for entry in complete { (row(entry, now)) }
                    @if let Some(before) = gap {
                        tr data-key="gap" { td colspan="5" { (gap_in_words(before, &found.nodes)) } }
                    }
                    @for entry in rest { (row(entry, now)) }
                }
            }
        }
    }
}

fn row(entry: &HistoryEntry, now: Timestamp) -> Markup {
    match entry {
        HistoryEntry::Run(run) => html! {
            tr data-key={ "end-" (run.run) } {
                th scope="row" { a href={ "/runs/" (run.run) } { (run.run) } }
                td data-label="Outcome" { (outcome(run)) }
                td data-label="Ended" { (words::time(run.ended_at, now)) }
                td data-label="Took" { (words::took(run.duration_ms)) }
                td data-label="Node" { (run.node) }
            }
        },
        HistoryEntry::Skip(skip) => html! {
            tr data-key={ "skip-" (skip.run) } {
                th scope="row" { a href={ "/jobs/" (skip.job) } { (skip.job) } " of " (stamp(skip.first)) }
                td data-label="Outcome" { (skipped(skip)) }
                td data-label="Ended" { (words::time(skip.decided_at, now)) }
                td data-label="Took" { "–" }
                td data-label="Node" { (skip.node) }
            }
        },
    }
}

pub(super) fn outcome(run: &EndedRun) -> Markup {
    html! {
        (words::outcome(run.outcome, &ending_details(run.reason, run.exit_code, run.signal)))
        @if let Some(why) = run.why_abandoned() { ", " (why) }
        @if run.attempt > 1 { ", attempt " (run.attempt) }
        @if let Some(by) = run.triggered_by.as_deref().and_then(shown) { ", for " (by) }
        @if let Some(by) = run.killed_by.as_deref().and_then(shown) { ", killed by " (by) }
    }
}

fn skipped(skip: &Skipped) -> Markup {
    html! {
        span.mark.odd { span aria-hidden="true" { "»" } " skipped" } ", " (skip.explained())
        @if skip.count > 1 { ", " (skip.count) " times until " (stamp(skip.last)) }
        @if let Some(by) = skip.triggered_by.as_deref().and_then(shown) { ", for " (by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::skip;
    use cronkeeper_core::run::HistoryRecord;

    #[test]
    fn a_filter_selects_by_job_node_and_outcome() {
        let record = HistoryRecord::Skip(skip("load", 0));
        let accepts = |job: &str, outcome: &str, node: &str| {
            let filter = Filter { job: job.into(), outcome: outcome.into(), node: node.into() };
            filter.records().map(|records| records.matches(&record)).ok()
        };
        assert_eq!([accepts("oa", "", ""), accepts("", "skipped", "")], [Some(true), Some(true)]);
        assert_eq!([accepts("x", "", ""), accepts("", "success", "")], [Some(false), Some(false)]);
        assert_eq!(accepts("", "failed", ""), Some(false), "a skip is no failure");
        assert_eq!(accepts("", "", "elsewhere"), Some(false));
        assert_eq!([accepts("a b", "", ""), accepts("", "odd", ""), accepts("", "", "../x")], [None, None, None]);
    }
}
