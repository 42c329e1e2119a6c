//! The runs in flight: the first of them at once, the rest folded.

use maud::{Markup, html};

use super::times::Clock;
use super::words;
use crate::status::{LedgerPart, RunStatus, Status};
use cronkeeper_core::run::{Refusal, RunState};

/// Runs that are shown at once, and most that can be unfolded.
const AT_ONCE: usize = 10;
const MOST: usize = 100;

pub(super) fn section(status: &Status, clock: &Clock) -> Markup {
    let (first, rest) = status.runs.split_at(status.runs.len().min(AT_ONCE));
    // The table has also those that wait, are cut off, or are over.
    let running = status.running();
    html! {
        section #running .old[status.has_old_runs()] data-live="" aria-labelledby="running-title" {
            h2 #running-title {
                "Running" @if running > 0 { " " span.count { (words::number(running)) } }
            }
            @if !status.knows(LedgerPart::Runs) { p.unknown { "What runs on other nodes is not known." } }
            @else if status.has_old_runs() { p.unknown { "Of other nodes: as it was when the ledger was last read." } }
            @if status.runs.is_empty() && status.knows(LedgerPart::Runs) {
                p.quiet { @if status.has_old_runs() { "Nothing ran then, and nothing runs here." } @else { "Nothing is running." } }
            }
            @if !first.is_empty() { (table(first, status, clock)) }
            @if !rest.is_empty() {
                details #more-running {
                    summary { (words::number(rest.len())) " more" }
                    (table(rest.get(..MOST).unwrap_or(rest), status, clock))
                    @if rest.len() > MOST { p.quiet { "and " (words::number(rest.len() - MOST)) " more" } }
                }
            }
        }
    }
}

fn table(runs: &[RunStatus], status: &Status, clock: &Clock) -> Markup {
    html! {
        table.runs {
            thead { tr {
                th scope="col" { "Job" } th scope="col" { "State" } th scope="col" { "Node" }
                th scope="col" { "For" }
            } }
            tbody { @for run in runs { (row(run, status, clock)) } }
        }
    }
}

fn row(run: &RunStatus, status: &Status, clock: &Clock) -> Markup {
    html! {
        tr data-key={ "run-" (run.run) } {
            th scope="row" { a href={ "/runs/" (run.run) } title=(run.run) { (run.run.job()) } }
            td { (state(run, status, clock)) }
            td { (run.place()) }
            td { (lasts(run, status, clock)) }
        }
    }
}

/// For how long it runs, as far as anybody knows that it still does.
fn lasts(run: &RunStatus, status: &Status, clock: &Clock) -> Markup {
    html! {
        @if status.is_old(run) || run.ended.is_some() { "since " (clock.short(run.since)) }
        @else { (clock.since(run.since)) }
    }
}

/// What a run in flight does or waits for.
pub(super) fn state(run: &RunStatus, status: &Status, clock: &Clock) -> Markup {
    let (is_old, awaited) = (status.is_old(run), status.awaited_node(run));
    let awaits_time = awaited.is_none();
    html! {
        @match run.ended {
            Some(outcome) => { (words::outcome(outcome, "")) ", not recorded yet" },
            None if run.unconfirmed => "not begun yet, waits for the ledger",
            None if is_old && run.state == RunState::Running => span.unknown { "was running" },
            None => {
                @match awaited {
                    Some(node) => { "waits for " (node) },
                    None => span.live[run.state == RunState::Running] .bad[run.state == RunState::CutOff] {
                        (words::run_state(run.state))
                    },
                }
                // What waits for a node is due as soon as one can take it.
                @if let Some(at) = run.retry_at.filter(|at| run.state.is_released() && (*at > status.at || awaits_time)) {
                    @if status.role.leader_node.is_some() && !is_old { ", " (clock.due(at)) }
                    @else { ", planned for " (clock.short(at)) }
                }
                @if let Some(Refusal { node, reason, .. }) = &run.refused {
                    ", " (node) " refused it: " (reason.explained())
                }
            },
        }
        @if run.attempt > 1 { ", attempt " (run.attempt) }
        @if run.killed_by.is_some() && run.ended.is_none() { " " span.fact.odd { "being killed" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::sample;
    use cronkeeper_core::run::RunId;
    use cronkeeper_core::term::NodeName;

    fn text(status: &Status) -> String {
        section(status, &Clock::new(status.at, Zone::utc())).into_string()
    }

    #[test]
    fn ten_are_shown_at_once_and_the_rest_is_folded() {
        let mut status = sample::leader();
        let one = status.runs[0].clone();
        let job = |number| sample::job(&format!("job-{number:03}"));
        let run = |number| RunStatus { run: RunId::scheduled(job(number), one.since), ..one.clone() };
        status.runs = (0..14).map(run).collect();
        let whole = text(&status);
        let (at_once, folded) = whole.split_once("<details").expect("some are folded");
        assert_eq!((at_once.matches("/runs/").count(), folded.matches("/runs/").count()), (10, 4));
        assert!(folded.contains("4 more") && at_once.contains("1 min"), "{whole}");
        status.runs = (0..114).map(run).collect();
        assert!(text(&status).contains("and 4 more"));
    }

    #[test]
    fn what_may_be_over_has_no_duration() {
        let mut status = sample::leader();
        (status.node, status.state) = (NodeName::new("host-b"), crate::status::NodeState::Following);
        status.unread = Some("away".into());
        let text = text(&status);
        assert!(text.contains("was running") && text.contains("since 02:59:00") && !text.contains("<time"), "{text}");
    }

    #[test]
    fn what_waits_for_a_node_or_its_next_attempt_says_so() {
        let mut status = sample::leader();
        status.jobs[1].unplaceable = Some("no node has gpu (host-a: none)".into());
        status.runs[0].state = RunState::Queued;
        assert!(text(&status).contains("waits for a node: no node has gpu"), "{}", text(&status));
        status.jobs[1].unplaceable = None;
        status.runs[0].state = RunState::Retrying;
        status.runs[0].retry_at = Some(status.at + jiff::SignedDuration::from_secs(9));
        assert!(text(&status).contains("in 9 s"), "{}", text(&status));
        status.role.leader_node = None;
        assert!(
            text(&status).contains("planned for 03:00:09") && !text(&status).contains("in 9 s"),
            "{}",
            text(&status)
        );
    }
}
