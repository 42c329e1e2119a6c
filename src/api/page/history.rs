//! The history with filters, and the rows in which records are shown.

use axum::http::StatusCode;
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::times::Clock;
use super::words::{self, counted};
use crate::api::RefusedRequest;
use crate::api::history::{History, MissingNode, gap_in_words};
use crate::status::{EndedRun, HistoryEntry, Skipped, Status, shown};
use cronkeeper_core::ledger::Filter as Records;
use cronkeeper_core::ledger::filter::{Ending, JobPattern, Position, instant};
use cronkeeper_core::run::Reason;
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
    /// From when on: a date and time in the visitor's zone, or an instant or duration as on the command line.
    #[serde(default)]
    pub since: String,
    /// Until when, in the same forms.
    #[serde(default)]
    pub until: String,
    /// Only what is older than this place in the history.
    #[serde(default)]
    pub before: String,
}

/// Spans of time that are one click away: what `since` is, and how it is worded.
const SPANS: [(&str, &str); 4] = [("1h", "last hour"), ("24h", "24 hours"), ("7d", "7 days"), ("", "all")];

/// The values of `outcome`, and how the form words them.
const OUTCOMES: [(&str, &str); 9] = [
    ("", "any outcome"),
    ("failed", "anything but success"),
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
    /// If no name can contain a text, a text is not a time, or an outcome is unknown.
    pub fn records(&self, clock: &Clock) -> Result<Records, RefusedRequest> {
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
        let before = Some(&*self.before).filter(|before| !before.is_empty());
        let before = before.map(Position::parse).transpose().map_err(bad)?;
        let [since, until] = [&self.since, &self.until].map(|text| time(text, clock).map_err(bad));
        Ok(Records { jobs, endings, node, since: since?, until: until?, before, ..Records::default() })
    }

    /// The address of the records that this selects, with another value for one of its fields.
    fn link(&self, name: &str, value: &str) -> String {
        let fields = [
            ("job", &*self.job),
            ("outcome", &*self.outcome),
            ("node", &*self.node),
            ("since", &*self.since),
            ("until", &*self.until),
        ];
        let kept = fields.into_iter().filter(|(field, value)| *field != name && !value.is_empty());
        let pairs = kept.chain(Some((name, value)).filter(|(_, value)| !value.is_empty()));
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        format!("/history?{}", pairs.join("&"))
    }
}

/// A text as a part of an address.
pub(super) fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The instant that a field means; `None` if it is empty.
fn time(text: &str, clock: &Clock) -> Result<Option<Timestamp>, String> {
    match text.trim() {
        "" => Ok(None),
        text => clock.of_field(text).map_or_else(|| instant(text, clock.now), Ok).map(Some),
    }
}

/// The page's content: these records, and what they lack.
pub(super) fn page(filter: &Filter, found: &History, status: &Status, clock: &Clock) -> Markup {
    html! {
        h1 { "History" }
        (form(filter, status, clock))
        section #records data-live="" aria-label="Records" {
            (lacks(found, clock))
            p.quiet {
                @if found.records.is_empty() { "Nothing found" } @else { (counted(found.records.len(), "record")) }
                (of_archives(found)) "."
            }
            (table(found, false, clock))
            @if let Some(next) = &found.next { p { a.button href=(filter.link("before", next)) { "Older" } } }
            @else if found.cut { p { "There are older records: choose a shorter time range." } }
        }
    }
}

/// Says from which archives alone the records come, while the ledger is not known.
fn of_archives(found: &History) -> &'static str {
    match (&found.ledger_error, &*found.nodes) {
        (None, _) => "",
        (Some(_), [] | [_]) => " of this node's archive",
        (Some(_), _) => " of these archives",
    }
}

/// Says what was not reachable, and which nodes' records are missing.
pub(super) fn lacks(found: &History, clock: &Clock) -> Markup {
    html! {
        @if found.ledger_error.is_some() {
            p.warning role="alert" {
                "The ledger was not reachable. This is what the archive of " (archives(&found.nodes)) " has."
            }
        }
        @if found.unreadable > 0 {
            p.warning role="alert" {
                (counted(found.unreadable, "record"))
                " of the ledger cannot be read, and are missing unless an archive has them."
            }
        }
        @if let Some(before) = found.gap().filter(|_| !found.missing.is_empty()) {
            div.warning {
                p { "Records of these nodes from before " (clock.short(before)) " may be missing:" }
                ul {
                    @for MissingNode { node, why } in &found.missing { li { (node) ": " (why) } }
                    @if found.missing_more > 0 { li { (found.missing_more) " more" } }
                }
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

fn form(filter: &Filter, status: &Status, clock: &Clock) -> Markup {
    let field = |text: &str| time(text, clock).ok().flatten().map(|at| clock.field(at)).unwrap_or_default();
    html! {
        form.filter role="search" method="get" action="/history" {
            label { "Job " input #filter-job type="search" name="job" maxlength="100" value=(filter.job)
                placeholder="part of a name"; }
            label { "Outcome " select #filter-outcome name="outcome" {
                @for (value, words) in OUTCOMES { option value=(value) selected[filter.outcome == value] { (words) } }
            } }
            label { "Node " select #filter-node name="node" {
                option value="" { "all nodes" }
                @for node in nodes(filter, status) { option value=(node) selected[filter.node == node] { (node) } }
            } }
            label { "Since "
                input #filter-since type="datetime-local" name="since" step="1" value=(field(&filter.since)); }
            label { "Until "
                input #filter-until type="datetime-local" name="until" step="1" value=(field(&filter.until)); }
            button.main type="submit" { "Show" }
        }
        p.spans {
            @for (span, words) in SPANS {
                @let current = (filter.since == span).then_some("true");
                a.chip href=(filter.link("since", span)) aria-current=[current] { (words) }
                " "
            }
            span.quiet { "Times are in " (clock.zone.name()) "." }
        }
    }
}

/// The nodes that can be chosen: those that are or were in the cluster, and the one that is chosen.
fn nodes(filter: &Filter, status: &Status) -> std::collections::BTreeSet<String> {
    let members = status.members.iter().map(|member| &member.node);
    let missing = status.missing.iter().map(|missing| &missing.node);
    let known = members.chain(missing).chain(status.places.keys()).chain([&status.node]);
    let chosen = Some(&filter.node).filter(|node| !node.is_empty()).cloned();
    known.map(ToString::to_string).chain(chosen).collect()
}

/// Records of a job that are shown at once.
const AT_ONCE: usize = 10;

/// A table of records, with a line where they begin to have gaps. Those of one job do not name it, and most are folded.
pub(super) fn table(found: &History, is_of_job: bool, clock: &Clock) -> Markup {
    let gap = found.gap();
    let complete = found.records.iter().take_while(|entry| gap.is_none_or(|before| entry.at() >= before)).count();
    let mut rows: Vec<Markup> = found.records.iter().map(|entry| row(entry, is_of_job, clock)).collect();
    if let Some(before) = gap {
        let words = gap_in_words(clock.short(before), &found.nodes);
        rows.insert(complete, html! { tr.gap data-key="gap" { td colspan="5" { (words) } } });
    }
    let at_once = if is_of_job { AT_ONCE } else { rows.len() };
    let (first, folded) = rows.split_at(at_once.min(rows.len()));
    html! {
        @if !found.records.is_empty() {
            (rows_of(first, is_of_job))
            @if !folded.is_empty() {
                details #more-records {
                    summary { (words::number(folded.len())) " more" }
                    (rows_of(folded, is_of_job))
                }
            }
        }
    }
}

fn rows_of(rows: &[Markup], is_of_job: bool) -> Markup {
    html! {
        table.records {
            thead { tr {
                th scope="col" { @if is_of_job { "Due" } @else { "Job, due" } }
                th scope="col" { "Outcome" } th scope="col" { "Ended" }
                th scope="col" { "Took" } th scope="col" { "Node" }
            } }
            tbody { @for row in rows { (row) } }
        }
    }
}

fn row(entry: &HistoryEntry, is_of_job: bool, clock: &Clock) -> Markup {
    match entry {
        HistoryEntry::Run(run) => html! {
            tr data-key={ "end-" (run.run) } class=[(words::class(run.outcome) == "bad").then_some("failing")] {
                th scope="row" {
                    a href={ "/runs/" (run.run) } title=(run.run) {
                        @if !is_of_job { span.name { (run.job) } " " }
                        span.at { (clock.short(run.scheduled_at)) }
                    }
                }
                td data-label="Outcome" {
                    (outcome(run))
                    @if let Some(detail) = start_detail(run) { ": " code { (detail) } }
                }
                td data-label="Ended" { (clock.both(run.ended_at)) }
                td data-label="Took" { (time_taken(run)) }
                td data-label="Node" { (run.node) }
            }
        },
        HistoryEntry::Skip(skip) => html! {
            tr data-key={ "skip-" (skip.run) } {
                th scope="row" {
                    @if !is_of_job { a.name href={ "/jobs/" (skip.job) } { (skip.job) } " " }
                    span.at { (clock.short(skip.first)) }
                }
                td data-label="Outcome" { (skipped(skip, clock)) }
                td data-label="Decided" { (clock.both(skip.decided_at)) }
                td data-label="Took" { span.quiet { "–" } }
                td data-label="Node" { (entry.about()) }
            }
        },
    }
}

/// How long a run took, if it has started.
pub(super) fn time_taken(run: &EndedRun) -> Markup {
    html! {
        @if run.reason.and_then(Reason::prevented_start).is_some() { "did not start" }
        @else if run.duration_ms.is_none() { span.unknown { "not known" } }
        @else { (words::took(run.duration_ms)) }
    }
}

/// What a start failed over: `/etc/passwd: Permission denied`.
pub(super) fn start_detail(run: &EndedRun) -> Option<&str> {
    let has_not_started = run.reason.and_then(Reason::prevented_start).is_some();
    run.detail.as_deref().and_then(shown).filter(|_| has_not_started || run.why_abandoned().is_none())
}

pub(super) fn outcome(run: &EndedRun) -> Markup {
    html! {
        (words::outcome(run.outcome, &words::why(run.reason, run.exit_code, run.signal)))
        @if let Some(why) = run.why_abandoned() { ", " (why) }
        @if run.attempt > 1 { ", attempt " (run.attempt) }
        @if let Some(by) = run.triggered_by.as_deref().and_then(shown) { ", triggered by " (by) }
        @if let Some(by) = run.killed_by.as_deref().and_then(shown) { ", killed by " (by) }
    }
}

fn skipped(skip: &Skipped, clock: &Clock) -> Markup {
    html! {
        span.mark.odd { span aria-hidden="true" { "»" } " skipped" } ", " (skip.explained())
        @if skip.count > 1 { ", " (skip.count) " times until " (clock.short(skip.last)) }
        @if let Some(by) = skip.triggered_by.as_deref().and_then(shown) { ", triggered by " (by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::sample;
    use crate::test_records::{record, skip, success};
    use cronkeeper_core::run::{HistoryRecord, Outcome};

    fn clock() -> Clock {
        Clock::new(sample::at("2026-11-20T03:00:00Z"), Zone::parse("Europe/Berlin").expect("a zone"))
    }

    #[test]
    fn a_filter_selects_by_job_node_and_outcome() {
        let record = HistoryRecord::Skip(skip("load", 0));
        let accepts = |job: &str, outcome: &str, node: &str| {
            let filter = Filter { job: job.into(), outcome: outcome.into(), node: node.into(), ..Filter::default() };
            filter.records(&clock()).map(|records| records.matches(&record)).ok()
        };
        assert_eq!([accepts("oa", "", ""), accepts("", "skipped", "")], [Some(true), Some(true)]);
        assert_eq!([accepts("x", "", ""), accepts("", "success", "")], [Some(false), Some(false)]);
        assert_eq!(accepts("", "failed", ""), Some(false), "a skip is no failure");
        assert_eq!(accepts("", "", "elsewhere"), Some(false));
        assert_eq!([accepts("a b", "", ""), accepts("", "odd", ""), accepts("", "", "../x")], [None, None, None]);
    }

    #[test]
    fn times_are_in_the_visitors_zone_or_as_on_the_command_line() {
        let since = |since: &str| {
            Filter { since: since.into(), ..Filter::default() }.records(&clock()).map(|records| records.since).ok()
        };
        assert_eq!(since("2026-11-20T02:30"), Some(Some(sample::at("2026-11-20T01:30:00Z"))));
        assert_eq!(since("2h"), Some(Some(sample::at("2026-11-20T01:00:00Z"))));
        assert_eq!(since("2026-11-20T02:30:00Z"), Some(Some(sample::at("2026-11-20T02:30:00Z"))));
        assert_eq!((since(" "), since("soon")), (Some(None), None));
    }

    #[test]
    fn a_link_keeps_the_rest_of_the_filter() {
        let filter = Filter { job: "a&b".into(), since: "1h".into(), before: "5.run.x".into(), ..Filter::default() };
        assert_eq!(filter.link("since", "7d"), "/history?job=a%26b&since=7d");
        assert_eq!(filter.link("before", "6.run.y"), "/history?job=a%26b&since=1h&before=6.run.y");
        assert_eq!(filter.link("since", ""), "/history?job=a%26b");
    }

    #[test]
    fn of_a_job_ten_are_shown_at_once_and_a_gap_keeps_its_place() {
        let records =
            |count: i64| (0..count).rev().map(|second| HistoryRecord::Run(success(record("load", second, "s"))));
        let records: Vec<HistoryEntry> = records(14).map(HistoryEntry::from).collect();
        let incomplete_before = records.get(11).map(HistoryEntry::at);
        let found = History { records, incomplete_before, nodes: vec![NodeName::new("host-a")], ..History::default() };
        let text = table(&found, true, &clock()).into_string();
        let (at_once, folded) = text.split_once("<details").expect("some are folded");
        let rows = |text: &str| (text.matches("/runs/").count(), text.matches("data-key=\"gap\"").count());
        assert_eq!((rows(at_once), rows(folded)), ((10, 0), (4, 1)), "{text}");
        assert!(folded.contains("only what host-a ran itself"), "{text}");
        assert!(!table(&found, false, &clock()).into_string().contains("<details"));
    }

    #[test]
    fn all_nodes_can_be_chosen_and_older_records_are_one_click_away() {
        let mut end = success(record("load", 0, "s"));
        (end.outcome, end.reason, end.duration_ms) = (Outcome::Failure, Some(Reason::NotExecutable), None);
        end.detail = Some("/etc/passwd: Permission denied".into());
        let records = vec![HistoryRecord::Run(end).into()];
        let found = History { records, next: Some("5.run.x".into()), ..History::default() };
        let text = page(&Filter::default(), &found, &sample::leader(), &clock()).into_string();
        for shown in [
            "all nodes",
            ">host-b<",
            "/history?before=5.run.x",
            "its program cannot be executed",
            ": <code>/etc/passwd: ",
        ] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
    }
}
