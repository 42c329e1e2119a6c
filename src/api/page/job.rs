//! The page of one job: how it is, why it failed last, how long it takes, what it is, and when it comes.

use jiff::Timestamp;
use maud::{Markup, html};

use super::times::Clock;
use super::view::Sight;
use super::{bars, cluster, durations, history, jobs, output, running, timeline, words};
use crate::api::history::History;
use crate::api::network::Visibility;
use crate::config::definition::Definition;
use crate::status::{EndedRun, HistoryEntry, JobStatus, LedgerPart, Skipped, Status, shown};
use cronkeeper_core::job::{Job, JobName};
use cronkeeper_core::run::{Outcome, RunId, SkipReason};

/// Coming occurrences that are shown.
const COMING: usize = 10;
/// Most jobs after this one that are drawn.
const MOST_NEXT: usize = 12;
/// Most lines of the last failure's output.
const LINES: usize = 12;

/// What the page shows of a job.
#[derive(Debug)]
pub(super) struct JobPage<'a> {
    pub status: &'a Status,
    pub job: &'a JobStatus,
    /// Absent while the node reloads its jobs.
    pub defined: Option<&'a Job>,
    pub bars: &'a [bars::Bar],
    pub history: &'a History,
    pub sight: Sight,
    pub clock: &'a Clock,
}

impl JobPage<'_> {
    /// The first words of the title: how the job is.
    pub fn title(&self) -> String {
        format!("{} {}", self.job.name, self.state().1)
    }

    pub fn markup(&self) -> Markup {
        let Self { job, status, .. } = self;
        let (class, state) = self.state();
        html! {
            (cluster::unread_note(status, self.clock))
            h1 { (job.name) " " span #state.badge.(class) data-live="" { (state) } }
            @if let Some(description) = &job.description { p.lead { (description) } }
            // In the order of a phone, where the reason comes before the buttons.
            div.columns.side {
                (self.facts())
                (self.last_failure())
                @if self.sight.may_act { (self.actions()) }
            }
            (self.chain())
            (self.records())
            @if self.sight.visibility == Visibility::All { (self.definition()) }
            (self.coming())
        }
    }

    fn state(&self) -> (&'static str, &'static str) {
        match (state(self.job, self.status), self.newest_skip()) {
            (("good", _), Some(_)) => ("odd", "skipped"),
            (state, _) => state,
        }
    }

    /// The skip of the newest occurrence on record, unless an operator wanted it.
    fn newest_skip(&self) -> Option<&Skipped> {
        let due = |entry: &HistoryEntry| match entry {
            HistoryEntry::Run(run) => run.scheduled_at,
            HistoryEntry::Skip(skip) => skip.last,
        };
        let newest = self.history.records.iter().map(due).max()?;
        self.history.records.iter().find_map(|entry| match entry {
            HistoryEntry::Skip(skip) if skip.last == newest => {
                Some(&**skip).filter(|skip| !matches!(skip.reason, SkipReason::Paused | SkipReason::Drained))
            }
            HistoryEntry::Skip(_) | HistoryEntry::Run(_) => None,
        })
    }

    /// The jobs that this one runs after, and those that run after it.
    fn chain(&self) -> Markup {
        let Self { job, status, .. } = self;
        let of = |name: &JobName| status.jobs.iter().find(|other| other.name == *name);
        let next: Vec<_> = status.jobs.iter().filter(|other| other.after.contains_key(&job.name)).collect();
        html! {
            section #chain data-live="" aria-label="Chain" {
                @if !job.after.is_empty() || !next.is_empty() {
                    h2 { "Chain" }
                    div.chain {
                        @if !job.after.is_empty() {
                            ul.queue role="list" aria-label="Runs after" {
                                @for (upstream, condition) in &job.after {
                                    (link_of_chain(upstream, of(upstream), condition, status))
                                }
                            }
                        }
                        strong.this { (job.name) }
                        @if !next.is_empty() {
                            ul.queue role="list" aria-label="Then run" {
                                @for other in next.iter().take(MOST_NEXT) {
                                    @let condition = other.after.get(&job.name).map_or("", String::as_str);
                                    (link_of_chain(&other.name, Some(other), condition, status))
                                }
                                @if let Some(more) = next.len().checked_sub(MOST_NEXT).filter(|&more| more > 0) {
                                    li { "and " (words::number(more)) " more" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn facts(&self) -> Markup {
        let Self { job, status, clock, .. } = self;
        let is_unread = self.history.ledger_error.is_some();
        html! {
            section #facts.card .old[status.unread.is_some()] data-live="" aria-label="Facts" {
                p.notes { (jobs::notes(job, status)) }
                dl {
                    dt { "Next" } dd {
                        (jobs::next(job, status, clock))
                        @let comes = job.paused.is_none() && status.role.leader_node.is_some();
                        @if let Some(next) = job.next.filter(|_| comes) {
                            " " span.quiet { (clock.short(next)) }
                        }
                    }
                    dt { "Schedule" } dd { (self.schedule()) }
                    dt { "Last runs" } dd {
                        @if self.bars.is_empty() && is_unread { span.unknown { "not known" } }
                        @else { (bars::summary(self.bars)) }
                    }
                    @if let Some(skip) = self.newest_skip() {
                        dt { "Skipped" } dd {
                            (skip.explained()) ", " (clock.both(skip.last))
                            @if let Some(node) = skip.run.node() { ", on " (node) }
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
                        dt { "In flight" } dd { @for run in &job.running { div { (self.in_flight(run)) } } }
                    }
                    @for alarm in &job.alarms {
                        dt { "Alarm" } dd {
                            (jobs::alarm_words(alarm.alarm)) ", since " (clock.both(alarm.since))
                            @if let Some(run) = &alarm.run { " " a href={ "/runs/" (run) } { (run) } }
                        }
                    }
                    @if let Some(paused) = &job.paused {
                        dt { "Paused" } dd {
                            @if let Some(by) = shown(&paused.by) { "by " (by) ", " }
                            @match paused.since() {
                                Some(at) => (clock.both(at)),
                                None => { "at an unknown time" }
                            }
                            @if let Some(until) = paused.until { ", until " (clock.short(until)) }
                            @if let Some(reason) = paused.reason.as_deref().and_then(shown) { ": " (reason) }
                        }
                    }
                }
            }
        }
    }

    /// A run in flight, with what it does.
    fn in_flight(&self, run: &RunId) -> Markup {
        let known = self.status.runs.iter().find(|known| known.run == *run);
        html! {
            a href={ "/runs/" (run) } { (run) }
            @if let Some(known) = known { ": " (running::state(known, self.status, self.clock)) }
        }
    }

    fn schedule(&self) -> Markup {
        let described = self.defined.and_then(|job| job.schedule()).map(|schedule| schedule.describe());
        html! {
            @if self.job.schedule.is_empty() { "none: it runs after other jobs" } @else {
                @for expression in &self.job.schedule { code { (expression) } " " }
                span.quiet { @if let Some(described) = described { (described) ", " } (self.job.timezone) }
            }
        }
    }

    fn newest_failure(&self) -> Option<&EndedRun> {
        self.history.records.iter().find_map(|entry| match entry {
            HistoryEntry::Run(run) if run.outcome != Outcome::Success => Some(&**run),
            HistoryEntry::Run(_) | HistoryEntry::Skip(_) => None,
        })
    }

    /// Why the newest run that did not succeed ended so, and the end of what it wrote.
    fn last_failure(&self) -> Markup {
        let failure = self.newest_failure();
        html! {
            section #failure data-live="" aria-label="Last failure" {
                @if let Some(run) = failure {
                    div.card.failed[self.job.is_failing()] {
                        h2 {
                            @if run.outcome.is_failed() { "Last failure" } @else { "Last run without success" }
                            // What was not read may have a later one.
                            @if self.history.ledger_error.is_some() { ", as far as is known" }
                            " " span.quiet { (self.clock.both(run.ended_at)) }
                        }
                        p {
                            a.end href={ "/runs/" (run.run) } { (history::outcome(run)) }
                            " on " (run.node)
                            @if run.duration_ms.is_some() { ", after " (words::took(run.duration_ms)) }
                        }
                        @if let Some(detail) = history::start_detail(run) { p.line { code { (detail) } } }
                        @if let Some(tail) = shown(&run.tail).filter(|tail| !tail.is_empty()) {
                            @let skipped = tail.lines().count().saturating_sub(LINES);
                            @let end: Vec<&str> = tail.lines().skip(skipped).collect();
                            pre.tail tabindex="0" aria-label="The end of its output" {
                                (output::end_of(&end.join("\n")))
                            }
                            p { a href={ "/runs/" (run.run) } { "Its whole output" } }
                        }
                    }
                }
            }
        }
    }

    fn records(&self) -> Markup {
        let is_unread = self.history.ledger_error.is_some();
        html! {
            section #records data-live="" aria-labelledby="records-title" {
                h2 #records-title { "History" }
                (history::lacks(self.history, self.clock))
                @if self.history.records.is_empty() {
                    p.quiet { @if is_unread { "No archive that was read has a run of this job." }
                        @else { "No run of this job is recorded." } }
                }
                (durations::section(&self.history.records, self.clock))
                (history::table(self.history, true, self.clock))
                @if self.history.next.is_some() || self.history.cut {
                    p { a href={ "/history?job=" (self.job.name) } { "Older runs" } }
                }
            }
        }
    }

    /// The job as this node has loaded it, without the values that may be secret.
    fn definition(&self) -> Markup {
        let Some(job) = self.defined else { return html! {} };
        let Definition { mut keys, hidden } = Definition::of(job, "");
        let command = keys.remove("command");
        keys.remove("description");
        html! {
            section #definition data-live="" aria-labelledby="definition-title" {
                h2 #definition-title { "Definition" }
                @if let Some(command) = command { pre.command tabindex="0" aria-label="The command" { (command) } }
                dl {
                    @for (key, value) in &keys { dt { code { (key) } } dd { code { (value) } } }
                    @for key in hidden.keys() { dt { code { (key) } } dd.quiet { "set, not shown" } }
                }
                p.quiet { "As " (self.status.node) " has loaded it. Every other key has its default." }
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
                @if self.status.role.leader_node.is_none() {
                    p.unknown { "None of these start while no node leads." }
                }
                @if from.is_none() { p { "The job is paused: it does not run until somebody resumes it." } }
                @else if times.is_empty() { p { "It has no further occurrences." } } @else {
                    @if paused_until.is_some() { p.quiet { "After the end of the pause:" } }
                    ol.coming { @for at in times { (self.coming_row(job, at)) } }
                }
            }
        }
    }

    fn coming_row(&self, job: &Job, at: Timestamp) -> Markup {
        let local = job.schedule().map(|schedule| {
            let [at, now] = [at, self.status.at].map(|at| schedule.local(at));
            let format = if at.date() == now.date() { "%H:%M:%S %Z" } else { "%a %b %-d %H:%M:%S %Z" };
            at.strftime(format).to_string()
        });
        html! {
            li {
                span.at { (local.unwrap_or_default()) } " "
                // Without a leader it does not come nearer.
                @if self.status.role.leader_node.is_some() { span.quiet { (self.clock.due(at)) } }
                @if let Some(shift) = timeline::shift(job, at) { " " span.fact.odd { (shift) } }
            }
        }
    }

    fn actions(&self) -> Markup {
        let path = |action: &str| format!("/jobs/{}/{action}", self.job.name);
        html! {
            section #actions.card data-live="" aria-label="Actions" {
                div.action {
                    @for name in &self.job.parameters {
                        label { code { (name) } " "
                            input id={ "parameter-" (name) } form="act-run" name={ "parameter." (name) }
                                maxlength="1024" placeholder="not set"; }
                    }
                    button.main #trigger form="act-run" formaction=(path("trigger")) { "Run now" }
                }
                div.action {
                    @if self.job.paused.is_some() {
                        button #resume form="act" formaction=(path("resume")) { "Resume" }
                    } @else {
                        label { "Reason " input #reason form="act-pause" name="reason" maxlength="1000"
                            placeholder="why it is paused"; }
                        button #pause form="act-pause" formaction=(path("pause")) { "Pause" }
                    }
                }
            }
        }
    }
}

/// How a job is, with its class, as far as that is known.
fn state(job: &JobStatus, status: &Status) -> (&'static str, &'static str) {
    match job.telling_end() {
        _ if !job.is_failing() && job.paused.is_some() => ("odd", "paused"),
        Some(last) if job.is_failing() && last.outcome.is_failed() => match status.unread.is_some() {
            true => ("bad", "failed when last known"),
            false => ("bad", "failing"),
        },
        _ if job.is_failing() => ("bad", "needs attention"),
        _ if !status.knows_who_fails() => ("unknown", "not known"),
        _ if status.unread.is_some() => ("unknown", "fine when last known"),
        _ if !job.enabled => ("plain", "disabled"),
        None => ("plain", "has not run"),
        Some(_) => ("good", "fine"),
    }
}

/// A job before or behind another, and on which end of the one before it the one behind it runs.
fn link_of_chain(name: &JobName, job: Option<&JobStatus>, condition: &str, status: &Status) -> Markup {
    html! {
        li {
            a.name href={ "/jobs/" (name) } { (name) }
            span.role { "on " (condition) }
            @match job.map(|job| state(job, status)) {
                Some((class, state)) => span.badge.(class) { (state) },
                None => span.badge.unknown { "not defined here" },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::sample;
    use crate::test_records::{record, success};
    use cronkeeper_core::run::{HistoryRecord, Reason};

    fn shown_of(status: &Status, history: &History, yaml: &str, may_act: bool) -> (String, String) {
        let (set, _) = crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap();
        let job = &status.jobs[1];
        let defined = set.jobs.get(&job.name).map(std::sync::Arc::as_ref);
        let clock = Clock::new(status.at, Zone::utc());
        let visibility = if may_act { Visibility::All } else { Visibility::Outline };
        let sight = Sight { visibility, may_act };
        let page = JobPage { status, job, defined, bars: &[], history, sight, clock: &clock };
        (page.title(), page.markup().into_string())
    }

    const LOAD: &str = "jobs:\n  load: {schedule: '0 5 * * *', command: 'psql <load.sql', environment: {PASS: x}, \
                        timeout: 1m, parameters: [REGION]}\n";

    #[test]
    fn the_last_failure_comes_before_the_history_with_the_end_of_its_output() {
        let mut status = sample::leader();
        let mut end = success(record("load", 0, "s"));
        (end.outcome, end.exit_code) = (Outcome::Failure, Some(7));
        end.tail = "one\n\u{1b}[31mcannot connect\u{1b}[0m\n".into();
        let last = status.jobs[0].last.as_deref().cloned().expect("it has run");
        let failed = crate::status::LastRun { run: end.run.id(), outcome: end.outcome, exit_code: Some(7), ..last };
        status.jobs[1].last = Some(Box::new(failed));
        let records = vec![HistoryRecord::Run(end).into()];
        let (title, page) = shown_of(&status, &History { records, ..History::default() }, LOAD, true);
        assert_eq!(title, "load failing");
        assert!(page.contains("exit 7") && page.contains("<span class=\"c1\">cannot connect</span>"), "{page}");
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
        assert!(place("Last failure") < place(">History<") && place(">Definition<") < place(">Coming<"), "{page}");
    }

    #[test]
    fn a_job_whose_newest_occurrence_was_skipped_is_not_fine() {
        let mut status = sample::leader();
        status.jobs[1].last = status.jobs[0].last.clone();
        let ended = HistoryRecord::Run(success(record("load", 60, "s")));
        let mut skip = crate::test_records::skip("load", 120);
        (skip.reason, skip.on) = (SkipReason::NoNode, Some(cronkeeper_core::term::NodeName::new("host-b")));
        let of = |skip| {
            let records = vec![HistoryRecord::Skip(skip).into(), ended.clone().into()];
            shown_of(&status, &History { records, ..History::default() }, LOAD, true)
        };
        let (title, page) = of(skip.clone());
        assert_eq!(title, "load skipped");
        assert!(page.contains("no-node: host-b could not take it in time"), "{page}");
        assert!(page.contains("data-label=\"Node\">host-b<"), "{page}");
        skip.reason = SkipReason::Paused;
        assert_eq!(of(skip.clone()).0, "load fine", "an operator wanted it");
        skip.reason = SkipReason::Upstream;
        (skip.first, skip.last) = Default::default();
        assert_eq!(of(skip).0, "load fine", "it has run since");
    }

    #[test]
    fn a_start_that_failed_says_over_what() {
        let mut end = success(record("load", 0, "s"));
        (end.outcome, end.reason, end.duration_ms) = (Outcome::Failure, Some(Reason::NotExecutable), None);
        end.detail = Some("/etc/passwd: Permission denied".into());
        let records = vec![HistoryRecord::Run(end).into()];
        let (_, page) = shown_of(&sample::leader(), &History { records, ..History::default() }, LOAD, true);
        assert!(page.contains("its program cannot be executed"), "{page}");
        assert!(page.contains("/etc/passwd: Permission denied") && !page.contains(", after "), "{page}");
    }

    #[test]
    fn the_definition_is_for_those_who_see_everything_and_has_no_values_of_variables() {
        let status = sample::leader();
        let (_, page) = shown_of(&status, &History::default(), LOAD, true);
        assert!(page.contains("psql &lt;load.sql") && page.contains("<code>timeout</code>"), "{page}");
        assert!(page.contains("environment.PASS") && page.contains("set, not shown"), "{page}");
        let (_, page) = shown_of(&status.outlined(), &History::default(), LOAD, false);
        assert!(!page.contains("load.sql") && !page.contains("PASS") && !page.contains("REGION"), "{page}");
    }

    #[test]
    fn the_jobs_before_and_after_are_linked_with_how_they_are() {
        let mut status = sample::leader();
        let name = |text: &str| JobName::parse(text).unwrap();
        let (first, load) = (status.jobs[0].name.clone(), status.jobs[1].name.clone());
        let (_, page) = shown_of(&status, &History::default(), LOAD, false);
        assert!(!page.contains("Chain</h2>"), "{page}");
        status.jobs[1].after = [(first.clone(), "success".to_owned()), (name("gone"), "any".to_owned())].into();
        status.jobs[0].after = [(load, "failure".to_owned())].into();
        let (_, page) = shown_of(&status, &History::default(), LOAD, false);
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
        assert!(place("aria-label=\"Runs after\"") < place("not defined here"), "{page}");
        assert!(place("not defined here") < place("aria-label=\"Then run\"") && page.contains("on failure"), "{page}");
        assert_eq!(page.matches(&format!("href=\"/jobs/{first}\"")).count(), 2, "before and behind: {page}");
    }

    #[test]
    fn the_parameters_that_the_job_lists_can_be_given() {
        let mut status = sample::leader();
        status.jobs[1].parameters = vec!["REGION".into()];
        let (_, page) = shown_of(&status, &History::default(), LOAD, true);
        assert!(page.contains("form=\"act-run\" name=\"parameter.REGION\""), "{page}");
    }

    #[test]
    fn how_a_job_is_is_said_as_far_as_it_is_known() {
        let mut status = sample::leader();
        let title = |status: &Status| shown_of(status, &History::default(), LOAD, false).0;
        assert_eq!(title(&status), "load has not run");
        status.unread = Some("away".into());
        assert_eq!(title(&status), "load fine when last known");
        status.unknown = LedgerPart::ALL.to_vec();
        assert_eq!(title(&status), "load not known");
    }
}
