//! The page of one job: when it runs, how it ran, and what it waits for.

use jiff::Timestamp;
use maud::{Markup, html};

use super::bars::Bar;
use super::{bars, cluster, history, jobs, timeline, words};
use crate::api::history::History;
use crate::status::{JobStatus, LedgerPart, Status, shown};
use cronkeeper_core::job::Job;

/// Coming occurrences that are shown.
const COMING: usize = 10;

/// What the page shows of a job.
#[derive(Debug)]
pub(super) struct JobPage<'a> {
    pub status: &'a Status,
    pub job: &'a JobStatus,
    /// Absent while the node reloads its jobs.
    pub defined: Option<&'a Job>,
    pub bars: &'a [Bar],
    pub history: &'a History,
    pub may_act: bool,
}

impl JobPage<'_> {
    pub fn markup(&self) -> Markup {
        let Self { job, status, .. } = self;
        let is_old = status.unread.is_some();
        let is_unread = self.history.ledger_error.is_some();
        html! {
            (cluster::unread_note(status))
            h1 { "Job " (job.name) }
            @if let Some(description) = &job.description { p { (description) } }
            section #facts .old[is_old] data-live="" aria-label="Facts" {
                p { (jobs::notes(job)) }
                dl {
                    dt { "Schedule" } dd { (self.schedule()) }
                    dt { "Next" } dd { (jobs::next(job, status)) }
                    dt { "Last runs" } dd {
                        @if self.bars.is_empty() && is_unread { span.unknown { "not known" } } @else {
                            (bars::picture(self.bars)) " " (bars::summary(self.bars))
                        }
                    }
                    @if let Some(shares) = &job.shares {
                        dt { "Nodes" } dd {
                            (shares.in_words())
                            @for failed in &shares.failed {
                                ", " a href={ "/runs/" (failed.run) } { (words::last(failed)) } " on " (failed.node)
                            }
                            @for node in &shares.also_failed { ", failed on " (node) }
                        }
                    }
                    @if !status.knows(LedgerPart::Runs) {
                        dt { "Running" } dd.unknown { "on other nodes: not known" }
                    }
                    @if !job.running.is_empty() {
                        dt { "Running" } dd { @for run in &job.running { a href={ "/runs/" (run) } { (run) } " " } }
                    }
                    @for alarm in &job.alarms {
                        dt { "Alarm" } dd {
                            (jobs::alarm_words(alarm.alarm)) ", since " (words::time(alarm.since, status.at)) " UTC"
                            @if let Some(run) = &alarm.run { " " a href={ "/runs/" (run) } { (run) } }
                        }
                    }
                    @if let Some(paused) = &job.paused {
                        dt { "Paused" } dd {
                            @if let Some(by) = shown(&paused.by) { "by " (by) ", " }
                            @match paused.since() {
                                Some(at) => { (words::time(at, status.at)) " UTC" }
                                None => { "at an unknown time" }
                            }
                            @if let Some(until) = paused.until { ", until " (words::time(until, status.at)) " UTC" }
                            @if let Some(reason) = paused.reason.as_deref().and_then(shown) { ": " (reason) }
                        }
                    }
                }
            }
            @if self.may_act { (self.actions()) }
            (self.coming())
            section #records data-live="" aria-labelledby="records-title" {
                h2 #records-title { "History" }
                (history::lacks(self.history))
                @if self.history.records.is_empty() {
                    p { @if is_unread { "No archive that was read has a run of this job." }
                        @else { "No run of this job is recorded." } }
                }
                (history::table(self.history, status.at))
            }
        }
    }

    fn schedule(&self) -> Markup {
        let described = self.defined.and_then(|job| job.schedule()).map(|schedule| schedule.describe());
        html! {
            @if self.job.schedule.is_empty() { "none: it runs after other jobs" } @else {
                @for expression in &self.job.schedule { code { (expression) } " " }
                @if let Some(described) = described { (described) ", " }
                (self.job.timezone)
            }
        }
    }

    /// The next occurrences in the job's own zone, with what clock shifts do to them.
    fn coming(&self) -> Markup {
        let Some(job) = self.defined.filter(|job| job.enabled && job.schedule().is_some()) else { return html! {} };
        let paused_until = self.job.paused.as_ref().map(|paused| paused.until);
        // What is due during a pause does not come.
        let from = match paused_until {
            None => Some(self.status.at),
            Some(until) => until.map(|until| until.max(self.status.at)),
        };
        // Nothing is due before the job's next time, which is later than usual if its mark is in the future.
        let first = from.and_then(|from| {
            let next = job.next_after(from)?;
            Some(self.job.next.map_or(next, |shown| next.max(shown)))
        });
        let times: Vec<Timestamp> = std::iter::successors(first, |at| job.next_after(*at)).take(COMING).collect();
        html! {
            section #coming data-live="" aria-labelledby="coming-title" {
                h2 #coming-title { "Coming" }
                @if self.status.role.leader_node.is_none() { p.unknown { "Nothing of this starts while no node leads." } }
                @if from.is_none() { p { "The job is paused: nothing comes until somebody resumes it." } }
                @else if times.is_empty() { p { "It has no further occurrences." } } @else {
                    table {
                        caption { "The next " (times.len())
                            @if paused_until.is_some() { " after the end of the pause" } ", in the job's time zone" }
                        thead { tr {
                            th scope="col" { "Local time" } th scope="col" { "UTC" } th scope="col" { "Clock shift" }
                        } }
                        tbody { @for at in times { (self.coming_row(job, at)) } }
                    }
                }
            }
        }
    }

    fn coming_row(&self, job: &Job, at: Timestamp) -> Markup {
        let local = job.schedule().map(|schedule| schedule.local(at).strftime("%a %Y-%m-%d %H:%M:%S %Z").to_string());
        html! {
            tr {
                th scope="row" { (local.unwrap_or_default()) }
                td data-label="UTC" { (words::time(at, self.status.at)) }
                td data-label="Clock shift" { (timeline::shift(job, at).unwrap_or_else(|| "none".to_owned())) }
            }
        }
    }

    fn actions(&self) -> Markup {
        let path = |action: &str| format!("/jobs/{}/{action}", self.job.name);
        html! {
            section #actions data-live="" aria-labelledby="actions-title" {
                h2 #actions-title { "Actions" }
                p.actions {
                    button #trigger form="act" formaction=(path("trigger")) { "Run now" }
                    " "
                    @if self.job.paused.is_some() {
                        button #resume form="act" formaction=(path("resume")) { "Resume" }
                    } @else {
                        button #pause form="act" formaction=(path("pause")) { "Pause" }
                        " "
                        label { "for the reason " input #reason form="act" name="reason" maxlength="1000"; }
                    }
                }
            }
        }
    }
}
