//! The page of one run: what it does or how it ended, who asked for it, and the end of its output.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::history::time_taken;
use super::output::NewestOutput;
use super::times::Clock;
use super::{output, words};
use crate::status::{EndedRun, RunStatus, shown};
use cronkeeper_core::job::Job;
use cronkeeper_core::run::{Attempt, RunId, RunState};

/// What is known of a run.
#[derive(Debug)]
pub(super) enum Known<'a> {
    InFlight(&'a InFlight),
    Ended(&'a EndedRun),
    /// Each node has its own share of it: these.
    Shared(&'a BTreeSet<RunId>),
    /// It was triggered, and no leader has begun it yet; or its record is gone.
    Not,
    /// The history has no record of it, and whether it is in flight was not read.
    Unread,
}

/// A run in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub run: RunStatus,
    /// What it does or waits for.
    pub state: Markup,
    /// It was in flight when the ledger was last read.
    pub is_old: bool,
    /// Other runs of its job that are in flight, for which it may wait.
    pub others: Vec<RunId>,
}

/// What the page shows of a run.
#[derive(Debug)]
pub(super) struct RunPage<'a> {
    pub run: &'a RunId,
    pub known: Known<'a>,
    pub newest: Option<&'a NewestOutput>,
    /// Its job as this node has loaded it, for those who see everything.
    pub defined: Option<&'a Job>,
    pub note: Markup,
    /// What jobs write is shown.
    pub may_see: bool,
    pub may_act: bool,
    pub clock: &'a Clock,
}

impl RunPage<'_> {
    /// The first words of the title.
    pub fn title(&self) -> String {
        let state = match &self.known {
            Known::InFlight(in_flight) if in_flight.is_old => "was in flight",
            Known::InFlight(in_flight) => words::run_state(in_flight.run.state),
            Known::Ended(ended) => ended.outcome.as_str(),
            Known::Shared(_) => "on every node",
            Known::Not => "not in flight",
            Known::Unread => "not known",
        };
        format!("{} {state}", self.run.job())
    }

    pub fn markup(&self) -> Markup {
        html! {
            (self.note)
            p.crumbs {
                a href={ "/jobs/" (self.run.job()) } { (self.run.job()) } " " span aria-hidden="true" { "›" } " run"
            }
            h1 { (self.run.job()) " " span.quiet { "due " (self.clock.short(self.run.scheduled_at())) } }
            div.columns.side {
                section #facts.card data-live="" aria-label="Facts" { (self.facts()) }
                @if self.may_act { (self.actions()) }
            }
            (output::section(self.run, &self.known, self.newest, self.may_see))
        }
    }

    fn facts(&self) -> Markup {
        html! {
            @match &self.known {
                Known::InFlight(in_flight) => (self.in_flight(in_flight)),
                Known::Ended(ended) => (self.ended(ended)),
                Known::Shared(shares) => {
                    p { "Each node has its own share of it:" }
                    ul { @for share in *shares { li { a href={ "/runs/" (share) } { (share) } } } }
                }
                Known::Not => p { "It is not in flight, and the history has no record of it (any more)." },
                Known::Unread => p.unknown {
                    "It is not known whether it is in flight; the history has no record of it (any more)."
                },
            }
            p.quiet { code { (self.run) } }
        }
    }

    fn in_flight(&self, InFlight { run, state, is_old, others }: &InFlight) -> Markup {
        let clock = self.clock;
        html! {
            dl.flow {
                div.wide { dt { "State" } dd {
                    strong role="status" { (state) } " on " (run.place())
                    @if *is_old || run.ended.is_some() { ", since " (clock.short(run.since)) }
                    @else { ", for " (clock.since(run.since)) }
                } }
                @if run.state == RunState::Queued && run.ended.is_none() {
                    div.wide { dt { "Waits for" } dd { (self.awaited(others)) } }
                }
                @if let Some(until) = run.keep_until.filter(|_| run.state == RunState::CutOff) {
                    (fact("May continue until", &html! { (clock.short(until)) }))
                }
                @if let Some(by) = run.triggered_by.as_deref().and_then(shown) {
                    (fact("Triggered by", &html! { (by) }))
                }
                @if let Some(by) = run.killed_by.as_deref().and_then(shown) {
                    (fact("Kill requested by", &html! { (by) }))
                }
            }
        }
    }

    /// What may keep a queued run from its start: the ledger does not say which of it does.
    fn awaited(&self, others: &[RunId]) -> Markup {
        let locks = self.defined.map(|job| job.lock.as_slice()).unwrap_or_default();
        let group = self.defined.and_then(|job| job.concurrency_group.as_ref());
        html! {
            @for (place, run) in others.iter().enumerate() {
                @if place > 0 { ", " }
                "the end of " a href={ "/runs/" (run) } { (run) }
            }
            @if let Some(group) = group {
                @if !others.is_empty() { ", or " }
                "room in the group " code { (group.name) } " (at most " (words::counted(group.limit, "run")) ")"
            }
            @if !locks.is_empty() {
                @if !others.is_empty() || group.is_some() { ", or " }
                "the lock" @if locks.len() > 1 { "s" } @for lock in locks { " " code { (lock) } }
            }
            @if others.is_empty() && group.is_none() && locks.is_empty() { "other runs, or a lock" }
        }
    }

    fn ended(&self, run: &EndedRun) -> Markup {
        let clock = self.clock;
        html! {
            dl.flow {
                div.wide { dt { "Outcome" } dd role="status" {
                    (words::outcome(run.outcome, &words::why(run.reason, run.exit_code, run.signal)))
                    @if let Some(detail) = run.detail.as_deref().and_then(shown) { ": " code { (detail) } }
                } }
                @if let Some(started) = run.started_at { (fact("Started", &clock.both(started))) }
                (fact("Ended", &clock.both(run.ended_at)))
                (fact("Took", &time_taken(run)))
                (fact("Node", &html! { (run.node) }))
                @if let Some(by) = run.triggered_by.as_deref().and_then(shown) {
                    (fact("Triggered by", &html! { (by) }))
                }
                @if let Some(at) = run.triggered_for { (fact("Triggered for", &html! { (clock.short(at)) })) }
                @if let Some(by) = run.killed_by.as_deref().and_then(shown) { (fact("Killed by", &html! { (by) })) }
                @for (name, value) in &run.parameters {
                    div { dt { code { (name) } } dd { code { (value) } } }
                }
                @if run.leftovers > 0 {
                    (fact("Left behind", &html! {
                        @if run.leftovers == 1 { "1 process, which was killed" }
                        @else { (run.leftovers) " processes, which were killed" }
                    }))
                }
                @if run.attempt > 1 { (fact("Attempt", &html! { (run.attempt) })) }
                @for past in &run.earlier_attempts { (fact(&format!("Attempt {}", past.attempt), &earlier(past))) }
            }
        }
    }

    fn actions(&self) -> Markup {
        html! {
            section #actions.card data-live="" aria-label="Actions" {
                div.action {
                    @let path = format!("/jobs/{}/trigger", self.run.job());
                    button.main #trigger form="act-run" formaction=(path) { "Run the job now" }
                }
                @if matches!(self.known, Known::InFlight(..)) {
                    details #kill {
                        summary { "Kill this run…" }
                        p { "Its processes get SIGTERM, and after the job's grace period SIGKILL." }
                        button.danger #kill-now form="act" formaction={ "/runs/" (self.run) "/kill" } { "Kill it" }
                    }
                }
            }
        }
    }
}

fn fact(name: &str, value: &Markup) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

fn earlier(past: &Attempt) -> Markup {
    html! {
        (words::outcome(past.outcome, &words::why(past.reason, past.exit_code, past.signal)))
        @if past.duration_ms.is_some() { ", after " (words::took(past.duration_ms)) }
        " on " (past.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::{HistoryEntry, sample};
    use crate::test_records::{record, success};
    use cronkeeper_core::run::{HistoryRecord, Outcome, Reason};

    fn page(known: Known<'_>, defined: Option<&Job>) -> (String, String) {
        let run = sample::leader().runs[0].run.clone();
        let clock = Clock::new(sample::at("2026-11-20T03:00:00Z"), Zone::utc());
        let page = RunPage {
            run: &run,
            known,
            newest: None,
            defined,
            note: html! {},
            may_see: false,
            may_act: true,
            clock: &clock,
        };
        (page.title(), page.markup().into_string())
    }

    #[test]
    fn a_start_that_failed_says_over_what() {
        let mut end = success(record("load", 0, "s"));
        (end.outcome, end.reason, end.duration_ms) = (Outcome::Failure, Some(Reason::NotExecutable), None);
        end.detail = Some("/etc/passwd: Permission denied".into());
        let HistoryEntry::Run(ended) = HistoryRecord::Run(end).into() else { unreachable!("it is a run") };
        let (title, page) = page(Known::Ended(&ended), None);
        assert_eq!(title, "load failure");
        assert!(page.contains("its program cannot be executed") && page.contains("did not start"), "{page}");
        assert!(page.contains("<code>/etc/passwd: Permission denied</code>") && !page.contains("unknown"), "{page}");
    }

    #[test]
    fn what_nobody_has_looked_up_is_not_nothing() {
        let mut end = success(record("load", 0, "s"));
        (end.outcome, end.duration_ms) = (Outcome::Abandoned, None);
        assert!(end.tail.is_empty());
        let HistoryEntry::Run(ended) = HistoryRecord::Run(end).into() else { unreachable!("it is a run") };
        let (_, page) = page(Known::Ended(&ended), None);
        assert!(page.contains("after signing in") && !page.contains("It wrote nothing"), "{page}");
        let all = output::section(&ended.run, &Known::Ended(&ended), None, true).into_string();
        assert!(all.contains("It could not be read") && !all.contains("It wrote nothing"), "{all}");
    }

    #[test]
    fn a_queued_run_says_what_it_may_wait_for_and_who_asked() {
        let yaml = "jobs:\n  load: {schedule: '0 5 * * *', command: x, concurrency_group: {name: heavy, limit: 1}}\n";
        let (set, _) = crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap();
        let mut run = sample::leader().runs[0].clone();
        run.state = RunState::Queued;
        run.triggered_by = Some("uid 1000 (alice) on host-a".into());
        run.killed_by = Some("uid 0 (root) on host-b".into());
        let others = vec![run.run.clone()];
        let in_flight = InFlight { run, state: html! { "queued" }, is_old: false, others };
        let (title, page) = page(Known::InFlight(&in_flight), set.jobs.values().next().map(|job| &**job));
        assert_eq!(title, "load queued");
        for shown in
            ["the end of <a", "room in the group <code>heavy</code> (at most 1 run)", "alice", "Kill requested by"]
        {
            assert!(page.contains(shown), "{shown}: {page}");
        }
    }

    #[test]
    fn what_may_be_over_has_no_duration() {
        let run = sample::leader().runs[0].clone();
        let in_flight = InFlight { run, state: html! { "was running" }, is_old: true, others: Vec::new() };
        let (title, page) = page(Known::InFlight(&in_flight), None);
        assert_eq!(title, "load was in flight");
        assert!(page.contains(", since 02:59:00") && !page.contains("<time"), "{page}");
    }
}
