//! The page of one run: in flight, or how it ended, with the end of its output.

use std::collections::BTreeSet;

use jiff::Timestamp;
use maud::{Markup, html};

use super::output::NewestOutput;
use super::{history, output, words};
use crate::status::{EndedRun, RunStatus, ending_details};
use cronkeeper_core::run::{Attempt, RunId};

/// What is known of a run.
#[derive(Debug)]
pub(super) enum Known<'a> {
    /// The second is what it does or waits for.
    InFlight(&'a RunStatus, &'a Markup),
    Ended(&'a EndedRun),
    /// Each node has its own share of it: these.
    Shared(&'a BTreeSet<RunId>),
    /// It was triggered, and no leader has begun it yet; or its record is gone.
    Not,
    /// The history has no record of it, and whether it is in flight was not read.
    Unread,
}

pub(super) fn page(
    run: &RunId,
    known: &Known<'_>,
    newest: Option<&NewestOutput>,
    note: &Markup,
    (now, may_act): (Timestamp, bool),
) -> Markup {
    html! {
        (note)
        h1 { "Run " (run) }
        p { "of the job " a href={ "/jobs/" (run.job()) } { (run.job()) }
            ", for " (words::time(run.scheduled_at(), now)) " UTC" }
        section #facts data-live="" aria-label="Facts" role="status" aria-live="polite" {
            @match known {
                Known::InFlight(status, state) => {
                    p { strong { (state) } " on " (status.place()) ", since "
                        (words::time(status.since, now)) " UTC." }
                }
                Known::Ended(ended) => (facts(ended, now)),
                Known::Shared(shares) => {
                    p { "Each node has its own share of it:" }
                    ul { @for share in *shares { li { a href={ "/runs/" (share) } { (share) } } } }
                }
                Known::Not => p { "It is not in flight, and the history has no record of it (any more)." },
                Known::Unread => p.unknown {
                    "Whether it is in flight is not known; the history has no record of it (any more)."
                },
            }
        }
        @if may_act { (actions(run, known)) }
        (output::section(run, known, newest))
    }
}

fn facts(run: &EndedRun, now: Timestamp) -> Markup {
    html! {
        dl {
            dt { "Outcome" } dd { (history::outcome(run)) }
            dt { "Ended" } dd { (words::time(run.ended_at, now)) " UTC, after " (words::took(run.duration_ms)) }
            dt { "Node" } dd { (run.node) ", with token " (run.token) }
            @if run.leftovers > 0 { dt { "Left behind" } dd { (run.leftovers) " processes, which were killed" } }
            @for past in &run.earlier_attempts { dt { "Attempt " (past.attempt) } dd { (earlier(past)) } }
        }
    }
}

fn earlier(past: &Attempt) -> Markup {
    html! {
        (words::outcome(past.outcome, &ending_details(past.reason, past.exit_code, past.signal)))
        ", after " (words::took(past.duration_ms)) " on " (past.node)
    }
}

fn actions(run: &RunId, known: &Known<'_>) -> Markup {
    html! {
        section #actions data-live="" aria-labelledby="actions-title" {
            h2 #actions-title { "Actions" }
            p.actions {
                button #trigger form="act" formaction={ "/jobs/" (run.job()) "/trigger" } { "Run the job now" }
            }
            @if matches!(known, Known::InFlight(..)) {
                details #kill {
                    summary { "Kill this run…" }
                    p { "Its processes get SIGTERM, and after the job's grace period SIGKILL. "
                        button #kill-now form="act" formaction={ "/runs/" (run) "/kill" } { "Kill it" } }
                }
            }
        }
    }
}
