//! All jobs by name, a page at a time, and how to add the first one.

use maud::{Markup, html};
use serde::Deserialize;

use super::bar_cache::{Recent, Recents};
use super::bars;
use super::times::Clock;
use super::words::{self, counted, number};
use crate::status::{Activity, JobStatus, LedgerPart, SharesStatus, Status, shown};
use cronkeeper_core::job::{Alarm, JobName};

/// Most jobs on one page, so that a page stays small however many jobs there are.
pub(super) const PAGE: usize = 100;

/// Which jobs to show: the query of `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Selection {
    /// Part of the name.
    #[serde(default)]
    pub job: String,
    /// Only those that need attention, if this is `failing`.
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

    /// The jobs that it selects, by name, so that none moves while somebody reads.
    pub fn of<'a>(&self, status: &'a Status) -> Selected<'a> {
        let is_wanted =
            |job: &&JobStatus| job.name.as_str().contains(&self.job) && (self.only != "failing" || job.is_failing());
        let jobs: Vec<_> = status.jobs.iter().filter(is_wanted).collect();
        let matching = jobs.len();
        let page = self.page.clamp(1, matching.div_ceil(PAGE).max(1));
        Selected { jobs: jobs.into_iter().skip((page - 1) * PAGE).take(PAGE).collect(), matching, page }
    }

    /// The address of another page of the same selection.
    fn link(&self, page: usize) -> String {
        // A name has only characters that need no escaping in a URL; anything else selects no job.
        let job: String = self.job.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
        let only = if self.only == "failing" { "failing" } else { "" };
        format!("/?job={job}&only={only}&page={page}#jobs")
    }
}

/// The table of the jobs.
pub(super) fn table(
    status: &Status,
    selection: &Selection,
    selected: &Selected<'_>,
    recents: &Recents,
    clock: &Clock,
) -> Markup {
    html! {
        section #jobs .old[status.unread.is_some()] data-live="" aria-labelledby="jobs-title" {
            h2 #jobs-title { "Jobs" @if !status.jobs.is_empty() { " " span.count { (number(status.jobs.len())) } } }
            @if status.jobs.is_empty() { (how_to_add(status)) } @else {
                (filter(selection))
                @if let Some(count) = count(status, selection, selected) { p.quiet { (count) } }
            }
            @if !selected.jobs.is_empty() {
                table.jobs {
                    thead { tr {
                        th scope="col" { "Job" } th scope="col" { "Last run" } th scope="col" { "Last 20 runs" }
                        th scope="col" { "Next" }
                    } }
                    tbody { @for job in &selected.jobs { (row(job, recents.get(&job.name), status, clock)) } }
                }
                (pages(selection, selected))
            }
        }
    }
}

/// Says how to add the first job, where the visitor may see where the jobs file is.
fn how_to_add(status: &Status) -> Markup {
    let path = shown(&status.jobs_file.path).unwrap_or("/etc/cronkeeper/jobs.yaml");
    html! {
        div.empty {
            p { strong { "No jobs yet." } " Add one to " code { (path) } " on every node:" }
            pre tabindex="0" aria-label="An example of a jobs file" {
                "jobs:\n  greeting:\n    schedule: \"*/5 * * * *\"\n    command: echo \"hello from $(hostname)\"\n"
            }
            p { "Then " code { "cronkeeper check " (path) } " checks it, and "
                code { "systemctl reload cronkeeper" } " loads it. "
                code { "cronkeeper import" } " converts a crontab." }
        }
    }
}

fn filter(selection: &Selection) -> Markup {
    html! {
        form.filter role="search" method="get" action="/#jobs" {
            label { "Name " input #filter-job type="search" name="job" maxlength="100" value=(selection.job)
                placeholder="part of a name"; }
            label.check { input #filter-only type="checkbox" name="only" value="failing"
                checked[selection.only == "failing"]; " needs attention" }
            button type="submit" { "Filter" }
            @if !selection.is_default() { a href="/#jobs" { "Show all" } }
        }
    }
}

/// How many jobs a filter has found, and what cannot be known of that.
fn count(status: &Status, selection: &Selection, selected: &Selected<'_>) -> Option<String> {
    if selected.matching == status.jobs.len() && selection.only != "failing" {
        return None;
    }
    let found = format!("{} of {}", number(selected.matching), counted(status.jobs.len(), "job"));
    let doubt = match (selection.only == "failing", status.knows_who_fails(), status.unread.is_some()) {
        (true, false, _) => "; for the others it is not known",
        (true, true, true) => ", as it was when the ledger was last read",
        _ => "",
    };
    Some(format!("{found}{doubt}."))
}

fn row(job: &JobStatus, recent: Option<&Recent>, status: &Status, clock: &Clock) -> Markup {
    html! {
        tr data-key={ "job-" (job.name) } class=[job.is_failing().then_some("failing")] {
            th scope="row" {
                a href={ "/jobs/" (job.name) } { (job.name) }
                (notes(job, status))
            }
            td data-label="Last run" {
                @match job.telling_end() {
                    None if !status.knows(LedgerPart::Ends) => span.unknown { "not known" },
                    None => span.quiet { "has not run" },
                    Some(last) => {
                        a.end href={ "/runs/" (last.run) } { (words::last(last)) } " "
                        span.quiet {
                            (clock.distance(last.at))
                            // Unless the badge says it.
                            @if job.running.contains(&last.run) && status.activity_of(job) != Some(Activity::Unrecorded) {
                                ", not recorded yet"
                            }
                            @if let Some(shares) = &job.shares { ", " (shares_in_words(shares)) }
                        }
                    },
                }
            }
            td.bars-of data-label="Last 20 runs" {
                @match recent {
                    _ if job.last.is_none() && !status.knows(LedgerPart::Ends) => span.unknown { "not known" },
                    _ if job.last.is_none() => "",
                    Some(recent) => (bars::picture(&recent.bars)),
                    None => span.unknown { "not read yet" },
                }
            }
            td data-label="Next" { (next(job, status, clock)) }
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
pub(super) fn notes(job: &JobStatus, status: &Status) -> Markup {
    html! {
        @if let Some(activity) = status.activity_of(job) { " " (doing(activity, activity.in_words())) }
        @if !job.cut_off.is_empty() { " " span.fact.bad { "a run is cut off from its node" } }
        @if let Some(paused) = &job.paused {
            " " span.fact.odd { "paused" }
            @if let Some(reason) = paused.reason.as_deref().and_then(shown) { " " span.reason { (reason) } }
        }
        @for alarm in &job.alarms { " " span.fact.bad { (alarm_words(alarm.alarm)) } }
        @if !job.waits_for.is_empty() { " " span.fact { "waits for " (names(&job.waits_for)) } }
        @if let Some(why) = &job.unplaceable {
            " " span.fact.bad { (shown(why).unwrap_or("no node can run it")) }
        }
        @if let Some(error) = &job.error {
            " " span.fact.bad { (shown(error).unwrap_or("has a problem, which the leader's status names")) }
        }
    }
}

/// A badge with what the runs of a job do.
pub(super) fn doing(activity: Activity, words: &str) -> Markup {
    html! {
        @match activity {
            Activity::Running => span.fact.live { (words) },
            Activity::WasRunning | Activity::WasWaiting => span.fact.unknown { (words) },
            Activity::Waiting | Activity::Unrecorded => span.fact { (words) },
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
pub(super) fn next(job: &JobStatus, status: &Status, clock: &Clock) -> Markup {
    html! {
        @match job.next {
            _ if !job.enabled => span.quiet { "disabled" },
            _ if job.paused.is_some() => {
                "paused"
                @if let Some(until) = job.paused.as_ref().and_then(|paused| paused.until) {
                    " until " (clock.short(until))
                }
            },
            // It does not come nearer: without a leader nothing starts.
            Some(next) if status.role.leader_node.is_none() => {
                (clock.short(next)) " " span.unknown { "if a node leads by then" }
            },
            Some(next) => (clock.due(next)),
            None if !job.after.is_empty() => {
                "after " @for (place, (upstream, condition)) in job.after.iter().enumerate() {
                    @if place > 0 { ", " }
                    a href={ "/jobs/" (upstream) } { (upstream) } " (" (condition) ")"
                }
            },
            None => span.quiet { "never" },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::{RunStatus, sample};
    use cronkeeper_core::run::{Outcome, RunId, RunState};

    fn many(count: usize) -> Status {
        let mut status = sample::leader();
        let one = status.jobs[0].clone();
        status.jobs =
            (0..count).map(|n| JobStatus { name: sample::job(&format!("job-{n:04}")), ..one.clone() }).collect();
        status
    }

    fn clock(status: &Status) -> Clock {
        Clock::new(status.at, Zone::utc())
    }

    #[test]
    fn jobs_are_in_order_and_a_page_has_at_most_a_hundred() {
        let mut status = many(250);
        status.jobs[249].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        let all = Selection::default();
        let selected = all.of(&status);
        assert_eq!((selected.jobs.len(), selected.jobs[0].name.as_str()), (PAGE, "job-0000"));
        let beyond = Selection { page: 9, ..Selection::default() };
        assert_eq!((beyond.of(&status).jobs.len(), beyond.of(&status).page), (50, 3));
        let failing = Selection { only: "failing".into(), ..Selection::default() };
        assert_eq!(failing.of(&status).jobs.len(), 1);
        let named = Selection { job: "-001".into(), ..Selection::default() };
        assert_eq!(named.of(&status).jobs.len(), 10);
        let text = table(&status, &all, &selected, &Recents::new(), &clock(&status)).into_string();
        assert!(text.contains("Page 1 of 3") && text.contains("/?job=&amp;only=&amp;page=2#jobs"), "{text}");
    }

    #[test]
    fn a_paused_job_has_no_next_time_and_without_a_leader_none_comes_nearer() {
        let mut status = sample::leader();
        let next = |status: &Status| next(&status.jobs[0], status, &clock(status)).into_string();
        assert!(next(&status).contains(">in 22 h<"), "{}", next(&status));
        status.role.leader_node = None;
        assert!(!next(&status).contains("<time") && next(&status).contains("Nov 21 01:30:00"), "{}", next(&status));
        let until = sample::at("2026-11-20T05:00:00Z");
        let pause =
            |until| cronkeeper_core::run::Pause { by: "alice".into(), at: until, reason: None, until: Some(until) };
        status.jobs[0].paused = Some(Box::new(pause(until)));
        assert!(next(&status).contains("05:00:00") && !next(&status).contains("01:30"), "{}", next(&status));
    }

    #[test]
    fn what_a_filter_has_found_is_counted_as_far_as_it_is_known() {
        let mut status = sample::leader();
        let failing = Selection { only: "failing".into(), ..Selection::default() };
        let counted = |status: &Status, selection: &Selection| count(status, selection, &selection.of(status));
        assert_eq!(counted(&status, &Selection::default()), None);
        assert_eq!(counted(&status, &failing).as_deref(), Some("0 of 3 jobs."));
        status.unread = Some("away".into());
        let old = "0 of 3 jobs, as it was when the ledger was last read.";
        assert_eq!(counted(&status, &failing).as_deref(), Some(old));
        status.unknown = LedgerPart::ALL.to_vec();
        assert_eq!(counted(&status, &failing).as_deref(), Some("0 of 3 jobs; for the others it is not known."));
    }

    #[test]
    fn without_jobs_it_says_how_to_add_one() {
        let mut status = sample::leader();
        status.jobs.clear();
        let all = Selection::default();
        let text =
            |status: &Status| table(status, &all, &all.of(status), &Recents::new(), &clock(status)).into_string();
        assert!(text(&status).contains("cronkeeper check /etc/cronkeeper/jobs.yaml"), "{}", text(&status));
        status.jobs_file.path = "/srv/jobs.yaml".into();
        assert!(text(&status).contains("/srv/jobs.yaml") && !text(&status.outlined()).contains("/srv"));
    }

    #[test]
    fn a_job_on_every_node_shows_the_worst_of_its_shares() {
        let mut status = sample::leader();
        let last = status.jobs[0].last.as_deref().cloned().expect("it has run");
        let ends = [("host-a", Outcome::Success), ("host-b", Outcome::Timeout), ("host-c", Outcome::Failure)];
        status.jobs[0].shares = Some(Box::new(sample::shares(&last, &ends)));
        let text = row(&status.jobs[0], None, &status, &clock(&status)).into_string();
        assert!(text.contains("failing") && text.contains(", on host-b and 1 more; 1 of 3 ok"), "{text}");
        assert!(text.contains("href=\"/runs/nightly-backup.20261120T013000Z@host-b\""), "{text}");
    }

    #[test]
    fn the_badge_of_a_job_says_what_its_runs_do() {
        let mut status = sample::leader();
        let badge = |status: &Status| notes(&status.jobs[1], status).into_string();
        assert!(badge(&status).contains(">running<"), "{}", badge(&status));
        status.runs[0].state = RunState::Retrying;
        assert!(badge(&status).contains(">waiting<"), "{}", badge(&status));
        status.runs[0].state = RunState::Running;
        status.runs[0].ended = Some(Outcome::Success);
        let mut last = status.jobs[0].last.clone().expect("it has run");
        last.run = status.runs[0].run.clone();
        status.jobs[1].last = Some(last);
        let text = row(&status.jobs[1], None, &status, &clock(&status)).into_string();
        assert_eq!(text.matches("not recorded yet").count(), 1, "{text}");
        assert!(!text.contains("running"), "{text}");
        // The end of one share does not hide that another runs.
        let other = RunId::scheduled(status.jobs[1].name.clone(), status.at);
        status.jobs[1].running.push(other.clone());
        status.runs.push(RunStatus { run: other, ended: None, ..status.runs[0].clone() });
        let text = row(&status.jobs[1], None, &status, &clock(&status)).into_string();
        assert!(text.contains(">running<") && text.contains(", not recorded yet"), "{text}");
    }

    #[test]
    fn what_no_node_can_run_says_why() {
        let mut status = sample::leader();
        status.jobs[1].unplaceable = Some("no node has gpu (host-a: none)".into());
        let job = row(&status.jobs[1], None, &status, &clock(&status)).into_string();
        assert!(job.contains("failing") && job.contains("no node has gpu (host-a: none)"), "{job}");
        let outline = status.outlined();
        let job = row(&outline.jobs[1], None, &outline, &clock(&outline)).into_string();
        assert!(job.contains("no node can run it"), "{job}");
    }

    #[test]
    fn a_job_with_a_run_that_is_cut_off_needs_attention() {
        let mut status = sample::leader();
        let mut runs = status.runs.clone();
        runs[0].state = cronkeeper_core::run::RunState::CutOff;
        status.put_runs(&runs);
        let failing = Selection { only: "failing".into(), ..Selection::default() };
        let text = table(&status, &failing, &failing.of(&status), &Recents::new(), &clock(&status)).into_string();
        assert!(text.contains("1 of 3 jobs."), "{text}");
        assert!(text.contains("a run is cut off from its node") && !text.contains(">running<"), "{text}");
    }
}
