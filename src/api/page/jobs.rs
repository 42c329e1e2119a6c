//! The jobs: those that fail first, a page at a time, and what runs now.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde::Deserialize;

use super::bars::{self, Bar};
use super::words;
use crate::status::{JobStatus, LedgerPart, RunStatus, SharesStatus, Status, shown};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::job::{Alarm, JobName};
use cronkeeper_core::run::RunState;
use cronkeeper_core::suggest::counted;

/// Most jobs on one page, so that a page stays small however many jobs there are.
pub(super) const PAGE: usize = 100;
/// Most runs in flight that are shown.
const MOST_RUNS: usize = 100;

/// Which jobs to show: the query of `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Selection {
    /// Part of the name.
    #[serde(default)]
    pub job: String,
    /// Only those that fail, if this is `failing`.
    #[serde(default)]
    pub only: String,
    /// From 1.
    #[serde(default)]
    pub page: usize,
}

/// The selected jobs of one page.
#[derive(Debug)]
pub(super) struct Selected<'a> {
    pub jobs: Vec<&'a JobStatus>,
    matching: usize,
    page: usize,
}

impl Selection {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Sorts those that fail first, else by name.
    pub fn of<'a>(&self, status: &'a Status) -> Selected<'a> {
        let is_wanted =
            |job: &&JobStatus| job.name.as_str().contains(&self.job) && (self.only != "failing" || job.is_failing());
        let mut jobs: Vec<_> = status.jobs.iter().filter(is_wanted).collect();
        jobs.sort_by_key(|job| !job.is_failing());
        let matching = jobs.len();
        let page = self.page.clamp(1, matching.div_ceil(PAGE).max(1));
        Selected { jobs: jobs.into_iter().skip((page - 1) * PAGE).take(PAGE).collect(), matching, page }
    }

    /// The address of another page of the same selection.
    fn link(&self, page: usize) -> String {
        // A name has only characters that need no escaping in a URL; anything else selects no job.
        let job: String = self.job.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
        let only = if self.only == "failing" { "failing" } else { "" };
        format!("/?job={job}&only={only}&page={page}")
    }
}

/// The table of the jobs.
pub(super) fn table(
    status: &Status,
    selection: &Selection,
    selected: &Selected<'_>,
    bars: &BTreeMap<JobName, Vec<Bar>>,
) -> Markup {
    html! {
        section #jobs .old[status.unread.is_some()] data-live="" aria-labelledby="jobs-title" {
            h2 #jobs-title { "Jobs" }
            (filter(selection))
            p { (count(status, selected)) }
            @if !selected.jobs.is_empty() {
                table.jobs {
                    caption { "Those that fail come first; times in UTC" }
                    thead { tr {
                        th scope="col" { "Job" } th scope="col" { "Last run" } th scope="col" { "Last 20 runs" }
                        th scope="col" { "Next" }
                    } }
                    tbody { @for job in &selected.jobs { (row(job, bars.get(&job.name), status)) } }
                }
                (pages(selection, selected))
            }
        }
    }
}

fn filter(selection: &Selection) -> Markup {
    html! {
        form.filter role="search" method="get" action="/" {
            label { "Name contains " input #filter-job type="search" name="job" maxlength="100" value=(selection.job); }
            label { input #filter-only type="checkbox" name="only" value="failing"
                checked[selection.only == "failing"]; " only those that fail" }
            button type="submit" { "Show" }
        }
    }
}

fn count(status: &Status, selected: &Selected<'_>) -> String {
    let failing = status.jobs.iter().filter(|job| job.is_failing()).count();
    let failing = match (status.knows_who_fails(), status.unread.is_some(), failing) {
        (true, false, 0) => ", none fails".to_owned(),
        (true, false, _) => format!(", {failing} of them not in order"),
        (true, true, 0) => "; none failed when the ledger was last read".to_owned(),
        (true, true, _) => format!("; {failing} of them not in order when the ledger was last read"),
        (false, _, 0) => "; whether they fail is not known".to_owned(),
        (false, ..) => format!("; at least {failing} of them not in order, whether others fail is not known"),
    };
    let selected = (selected.matching != status.jobs.len()).then(|| format!("; {} selected", selected.matching));
    format!("{}{failing}{}.", counted(status.jobs.len(), "job"), selected.unwrap_or_default())
}

fn row(job: &JobStatus, bars: Option<&Vec<Bar>>, status: &Status) -> Markup {
    html! {
        tr data-key={ "job-" (job.name) } class=[job.is_failing().then_some("failing")] {
            th scope="row" {
                a href={ "/jobs/" (job.name) } { (job.name) }
                (notes(job))
            }
            td data-label="Last run" {
                @match job.telling_end() {
                    None if !status.knows(LedgerPart::Ends) => span.unknown { "not known" },
                    None => "none",
                    Some(last) => {
                        a href={ "/runs/" (last.run) } { (words::last(last)) } " " (words::time(last.at, status.at))
                        @if job.running.contains(&last.run) { ", not recorded yet" }
                        @if let Some(shares) = &job.shares { "; " (shares_in_words(shares)) }
                    },
                }
            }
            td data-label="Last 20 runs" {
                @match bars {
                    _ if job.last.is_none() && !status.knows(LedgerPart::Ends) => span.unknown { "not known" },
                    Some(bars) => (bars::picture(bars)),
                    None => "not read yet",
                }
            }
            td data-label="Next" { (next(job, status)) }
        }
    }
}

/// How many shares of a job on every node succeeded, and where one did not.
pub(super) fn shares_in_words(shares: &SharesStatus) -> String {
    match shares.has_failed() {
        true => format!("on {}; {}", shares.nodes_in_words(), shares.in_words()),
        false => shares.in_words(),
    }
}

/// What is special about a job.
pub(super) fn notes(job: &JobStatus) -> Markup {
    html! {
        @if job.running.len() > job.cut_off.len() { " " span.fact { "running" } }
        @if !job.cut_off.is_empty() { " " span.fact.bad { "a run is cut off from its node" } }
        @if let Some(paused) = &job.paused {
            " " span.fact { "paused" }
            @if let Some(reason) = paused.reason.as_deref().and_then(shown) { " " span.reason { (reason) } }
        }
        @for alarm in &job.alarms { " " span.fact.bad { (alarm_words(alarm.alarm)) } }
        @if !job.waits_for.is_empty() { " " span.fact { "waits for " (names(&job.waits_for)) } }
        @if let Some(why) = &job.unplaceable {
            " " span.fact.bad { (shown(why).unwrap_or("no node can run it")) }
        }
        @if let Some(error) = &job.error {
            " " span.fact.bad { (shown(error).unwrap_or("has a problem that its leader knows")) }
        }
    }
}

/// What an alarm says of its job.
pub(super) fn alarm_words(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::Late => "late",
        Alarm::Long => "runs long",
        Alarm::Stale => "no success for too long",
    }
}

fn names(names: &[JobName]) -> String {
    names.iter().map(JobName::as_str).collect::<Vec<_>>().join(", ")
}

/// When the job runs next, or what it runs after.
pub(super) fn next(job: &JobStatus, status: &Status) -> Markup {
    html! {
        @match job.next {
            _ if !job.enabled => "disabled",
            _ if job.paused.is_some() => {
                "paused"
                @if let Some(until) = job.paused.as_ref().and_then(|paused| paused.until) {
                    " until " (words::time(until, status.at))
                }
            },
            // It does not come nearer: without a leader nothing starts.
            Some(next) if status.role.leader_node.is_none() => {
                (stamp(next)) " " span.unknown { "if a node leads by then" }
            },
            Some(next) => (words::time(next, status.at)),
            None if !job.after.is_empty() => {
                "after " @for (place, (upstream, condition)) in job.after.iter().enumerate() {
                    @if place > 0 { ", " }
                    a href={ "/jobs/" (upstream) } { (upstream) } " (" (condition) ")"
                }
            },
            None => "never",
        }
    }
}

fn pages(selection: &Selection, selected: &Selected<'_>) -> Markup {
    let last = selected.matching.div_ceil(PAGE);
    html! {
        @if last > 1 {
            nav.pages aria-label="Pages of jobs" {
                @if selected.page > 1 { a href=(selection.link(selected.page - 1)) { "Previous" } " " }
                "Page " (selected.page) " of " (last)
                @if selected.page < last { " " a href=(selection.link(selected.page + 1)) { "Next" } }
            }
        }
    }
}

/// The runs in flight.
pub(super) fn running(status: &Status) -> Markup {
    html! {
        section #running .old[status.has_old_runs()] data-live="" aria-labelledby="running-title" {
            h2 #running-title { "Running now" }
            @if !status.knows(LedgerPart::Runs) { p.unknown { "What runs on other nodes is not known." } }
            @else if status.runs.is_empty() {
                p { @if status.has_old_runs() { "Nothing ran when the ledger was last read." } @else { "Nothing runs." } }
            }
            @if !status.runs.is_empty() {
                table {
                    caption { (in_flight(status)) "; times in UTC" }
                    thead { tr {
                        th scope="col" { "Run" } th scope="col" { "Node" } th scope="col" { "State" }
                        th scope="col" { "Since" }
                    } }
                    tbody { @for run in status.runs.iter().take(MOST_RUNS) { (run_row(run, status)) } }
                }
                @if status.runs.len() > MOST_RUNS { p { "and " (status.runs.len() - MOST_RUNS) " more" } }
            }
        }
    }
}

fn in_flight(status: &Status) -> String {
    let runs = counted(status.runs.len(), "run");
    match status.knows(LedgerPart::Runs) {
        false => format!("{runs} in flight on this node"),
        true if status.has_old_runs() => format!("{runs} in flight when the ledger was last read"),
        true => format!("{runs} in flight"),
    }
}

fn run_row(run: &RunStatus, status: &Status) -> Markup {
    html! {
        tr data-key={ "run-" (run.run) } {
            th scope="row" { a href={ "/runs/" (run.run) } { (run.run) } }
            td data-label="Node" { (run.place()) }
            td data-label="State" { (run_state(run, status)) }
            td data-label="Since" { (words::time(run.since, status.at)) }
        }
    }
}

/// What a run in flight does or waits for.
pub(super) fn run_state(run: &RunStatus, status: &Status) -> Markup {
    let (is_old, awaited) = (status.is_old(run), status.awaited_node(run));
    html! {
        @match run.ended {
            Some(outcome) => { (words::outcome(outcome, "")) ", not recorded yet" },
            None if run.unconfirmed => "not begun yet, waits for the ledger",
            None if is_old && run.state == RunState::Running => "was running",
            None => @match awaited {
                Some(node) => { "waits for " (node) },
                None => (words::run_state(run.state)),
            },
        }
        @if run.attempt > 1 { ", attempt " (run.attempt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::run::Outcome;

    fn many(count: usize) -> Status {
        let mut status = sample::leader();
        let one = status.jobs[0].clone();
        status.jobs =
            (0..count).map(|n| JobStatus { name: sample::job(&format!("job-{n:04}")), ..one.clone() }).collect();
        status
    }

    #[test]
    fn jobs_that_fail_come_first_and_a_page_has_at_most_a_hundred() {
        let mut status = many(250);
        status.jobs[249].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        let all = Selection::default();
        let selected = all.of(&status);
        assert_eq!((selected.jobs.len(), selected.jobs[0].name.as_str()), (PAGE, "job-0249"));
        let beyond = Selection { page: 9, ..Selection::default() };
        assert_eq!((beyond.of(&status).jobs.len(), beyond.of(&status).page), (50, 3));
        let failing = Selection { only: "failing".into(), ..Selection::default() };
        assert_eq!(failing.of(&status).jobs.len(), 1);
        let named = Selection { job: "-001".into(), ..Selection::default() };
        assert_eq!(named.of(&status).jobs.len(), 10);
        let text = table(&status, &all, &selected, &BTreeMap::new()).into_string();
        assert!(text.contains("Page 1 of 3") && text.contains("/?job=&amp;only=&amp;page=2"), "{text}");
    }

    #[test]
    fn a_paused_job_has_no_next_time_and_without_a_leader_none_comes_nearer() {
        let mut status = sample::leader();
        let next = |status: &Status| next(&status.jobs[0], status).into_string();
        assert!(next(&status).contains("title=\"in 22 h\""), "{}", next(&status));
        status.role.leader_node = None;
        assert!(!next(&status).contains("<time") && next(&status).contains("2026-11-21 01:30:00"), "{}", next(&status));
        let until = sample::at("2026-11-20T05:00:00Z");
        let pause =
            |until| cronkeeper_core::run::Pause { by: "alice".into(), at: until, reason: None, until: Some(until) };
        status.jobs[0].paused = Some(Box::new(pause(until)));
        assert!(next(&status).contains("2026-11-20 05:00:00") && !next(&status).contains("01:30"), "{}", next(&status));
    }

    #[test]
    fn totals_are_given_as_far_as_they_are_known() {
        let mut status = sample::leader();
        let counted = |status: &Status| count(status, &Selection::default().of(status));
        assert_eq!(counted(&status), "3 jobs, none fails.");
        status.unread = Some("away".into());
        assert_eq!(counted(&status), "3 jobs; none failed when the ledger was last read.");
        status.unknown = LedgerPart::ALL.to_vec();
        assert_eq!(counted(&status), "3 jobs; whether they fail is not known.");
        status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        let least = "3 jobs; at least 1 of them not in order, whether others fail is not known.";
        assert_eq!(counted(&status), least);
        status.unknown = vec![LedgerPart::Queue];
        assert_eq!(counted(&status), "3 jobs; 1 of them not in order when the ledger was last read.");
    }

    #[test]
    fn a_job_on_every_node_shows_the_worst_of_its_shares() {
        let mut status = sample::leader();
        let last = status.jobs[0].last.as_deref().cloned().expect("it has run");
        let ends = [("host-a", Outcome::Success), ("host-b", Outcome::Timeout), ("host-c", Outcome::Failure)];
        status.jobs[0].shares = Some(Box::new(sample::shares(&last, &ends)));
        let text = row(&status.jobs[0], None, &status).into_string();
        assert!(text.contains("failing") && text.contains("; on host-b and 1 more; 1 of 3 ok"), "{text}");
        assert!(text.contains("href=\"/runs/nightly-backup.20261120T013000Z@host-b\""), "{text}");
    }

    #[test]
    fn what_waits_for_a_node_says_why() {
        let mut status = sample::leader();
        status.jobs[1].unplaceable = Some("no node has gpu (host-a: none)".into());
        status.runs[0].state = RunState::Queued;
        let job = row(&status.jobs[1], None, &status).into_string();
        assert!(job.contains("failing") && job.contains("no node has gpu (host-a: none)"), "{job}");
        let run = run_row(&status.runs[0], &status).into_string();
        assert!(run.contains("waits for a node: no node has gpu"), "{run}");
        let outline = status.outlined();
        assert!(row(&outline.jobs[1], None, &outline).into_string().contains("no node can run it"));
    }

    #[test]
    fn a_job_with_a_run_that_is_cut_off_is_not_in_order() {
        let mut status = sample::leader();
        let mut runs = status.runs.clone();
        runs[0].state = RunState::CutOff;
        status.put_runs(&runs);
        let failing = Selection { only: "failing".into(), ..Selection::default() };
        let text = table(&status, &failing, &failing.of(&status), &BTreeMap::new()).into_string();
        assert!(text.contains("3 jobs, 1 of them not in order; 1 selected."), "{text}");
        assert!(text.contains("a run is cut off from its node") && !text.contains(">running<"), "{text}");
    }
}
