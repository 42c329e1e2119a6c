//! The jobs that somebody should look at, each with the reason and with what it wrote last.

use maud::{Markup, html};

use super::bar_cache::Recents;
use super::jobs::{self, alarm_words};
use super::times::Clock;
use super::words;
use crate::status::{Activity, AlarmStatus, JobStatus, LastRun, Status, shown};
use cronkeeper_core::job::Alarm;

/// Most jobs that are listed; a link leads to all of them.
pub(super) const MOST: usize = 8;

/// The jobs to list, those that ended last first, and how many there are in all.
pub(super) fn listed(status: &Status) -> (Vec<&JobStatus>, usize) {
    let mut failing: Vec<&JobStatus> = status.jobs.iter().filter(|job| job.is_failing()).collect();
    let count = failing.len();
    failing.sort_by_key(|job| std::cmp::Reverse(job.telling_end().map(|last| last.at)));
    failing.truncate(MOST);
    (failing, count)
}

/// The list; nothing if no job needs attention.
pub(super) fn section(status: &Status, recents: &Recents, clock: &Clock) -> Markup {
    let (listed, count) = listed(status);
    html! {
        section #attention .old[status.unread.is_some()] data-live="" aria-labelledby="attention-title" {
            @if !listed.is_empty() {
                h2 #attention-title {
                    @if status.unread.is_some() { "Needed attention when last known" } @else { "Needs attention" }
                }
                ul.attention {
                    @for job in &listed { (entry(job, status, recents, clock)) }
                }
                @if count > listed.len() {
                    p { a href="/?only=failing#jobs" { "All " (words::number(count)) } " that need attention" }
                }
            }
        }
    }
}

fn entry(job: &JobStatus, status: &Status, recents: &Recents, clock: &Clock) -> Markup {
    let end = job.telling_end().filter(|last| last.outcome != cronkeeper_core::run::Outcome::Success);
    let line = end.and_then(|last| recents.get(&job.name)?.last_line(&last.run));
    html! {
        li data-key={ "attention-" (job.name) } {
            p.what {
                a.name href={ "/jobs/" (job.name) } { (job.name) } " "
                @if let Some(last) = end { (ended(job, last, clock)) }
                @for alarm in &job.alarms { " " (alarmed(alarm, clock)) }
                @if let Some(why) = &job.unplaceable {
                    " " span.fact.bad { (shown(why).unwrap_or("no node can run it")) }
                }
                @if let Some(why) = &job.error {
                    " " span.fact.bad { (shown(why).unwrap_or("has a problem, which the leader's status names")) }
                }
                @for run in &job.cut_off { " " a.fact.bad href={ "/runs/" (run) } { "a run is cut off from its node" } }
                @if let Some(activity) = status.activity_of(job) {
                    @let words = if activity == Activity::Running { "running again" } else { activity.in_words() };
                    " " (jobs::doing(activity, words))
                }
                @if job.paused.is_some() { " " span.fact.odd { "paused" } }
                span.next {
                    @if job.next.is_some() && job.paused.is_none() && job.enabled { "next " }
                    (jobs::next(job, status, clock))
                }
            }
            @if let (Some(line), Some(last)) = (line, end) {
                p.line { a href={ "/runs/" (last.run) } { code { (line) } } }
            }
        }
    }
}

fn ended(job: &JobStatus, last: &LastRun, clock: &Clock) -> Markup {
    html! {
        a.end href={ "/runs/" (last.run) } { (words::last(last)) } " "
        span.quiet {
            (clock.distance(last.at))
            " on " @if let Some(shares) = &job.shares { (shares.nodes_in_words()) ", " (shares.in_words()) }
            @else { (last.node) }
        }
    }
}

/// What an alarm says, and since when it is so.
fn alarmed(AlarmStatus { alarm, since, raised_at: _, run }: &AlarmStatus, clock: &Clock) -> Markup {
    html! {
        @match run {
            Some(run) => a.fact.bad href={ "/runs/" (run) } { (alarm_words(*alarm)) },
            None => span.fact.bad { (alarm_words(*alarm)) },
        }
        " "
        span.quiet {
            @match alarm {
                Alarm::Late => { "was due " (clock.distance(*since)) },
                Alarm::Long => { "for " (clock.since(*since)) },
                Alarm::Stale => { "last success " (clock.distance(*since)) },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::bar_cache::Recent;
    use crate::api::page::times::Zone;
    use crate::status::sample;
    use cronkeeper_core::run::Outcome;

    fn text(status: &Status, recents: &Recents) -> String {
        section(status, recents, &Clock::new(status.at, Zone::utc())).into_string()
    }

    fn failing() -> Status {
        let mut status = sample::leader();
        let last = status.jobs[0].last.as_mut().expect("it has run");
        (last.outcome, last.exit_code) = (Outcome::Failure, Some(7));
        status
    }

    #[test]
    fn a_failing_job_shows_why_when_and_what_it_wrote_last() {
        let status = failing();
        let run = status.jobs[0].last.as_ref().expect("it has run").run.clone();
        let recent = Recent { bars: Vec::new(), last_lines: vec![(run, "cannot connect to <db>".into())] };
        let text = text(&status, &[(status.jobs[0].name.clone(), recent)].into());
        for shown in ["failure", "exit 7", "48 min ago", "host-b", "cannot connect to &lt;db&gt;", "in 22 h"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
    }

    #[test]
    fn a_job_whose_run_waits_for_a_node_is_not_running_again() {
        let mut status = sample::leader();
        status.jobs[1].unplaceable = Some("no node is alive and not drained".into());
        assert!(text(&status, &Recents::new()).contains("running again"));
        status.runs[0].state = cronkeeper_core::run::RunState::Unstarted;
        let text = text(&status, &Recents::new());
        assert!(text.contains(">waiting<") && !text.contains("running"), "{text}");
    }

    #[test]
    fn what_another_run_wrote_is_not_shown() {
        let status = failing();
        let other = status.runs[0].run.clone();
        let recent = Recent { bars: Vec::new(), last_lines: vec![(other, "another run".into())] };
        let text = text(&status, &[(status.jobs[0].name.clone(), recent)].into());
        assert!(!text.contains("another run") && text.contains("exit 7"), "{text}");
    }

    #[test]
    fn a_late_job_says_since_when() {
        let mut status = sample::leader();
        let since = sample::at("2026-11-20T02:58:00Z");
        status.jobs[1].alarms = vec![AlarmStatus { alarm: Alarm::Late, since, raised_at: status.at, run: None }];
        let text = text(&status, &Recents::new());
        assert!(text.contains("late") && text.contains("was due ") && text.contains("2 min ago"), "{text}");
    }

    #[test]
    fn of_many_the_newest_are_listed_and_the_rest_is_counted() {
        let mut status = failing();
        let one = status.jobs[0].clone();
        status.jobs = (0..30)
            .map(|number| {
                let mut job = JobStatus { name: sample::job(&format!("job-{number:02}")), ..one.clone() };
                job.last.as_mut().expect("it has run").at = status.at - jiff::SignedDuration::from_mins(30 - number);
                job
            })
            .collect();
        let (first, count) = listed(&status);
        assert_eq!((first[0].name.as_str(), first.len(), count), ("job-29", MOST, 30));
        assert!(text(&status, &Recents::new()).contains("All 30"));
        status.jobs.iter_mut().for_each(|job| job.last.as_mut().expect("it has run").outcome = Outcome::Success);
        assert!(!text(&status, &Recents::new()).contains("Needs attention"));
    }
}
