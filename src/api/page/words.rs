//! Outcomes, states, durations and numbers as the page words them. No meaning is carried by colour alone: each has its
//! own sign and its own word.

use maud::{Markup, html};

use super::times::amount;
use crate::output::grouped;
use crate::status::{LastRun, ending_details};
use cronkeeper_core::run::{Outcome, Reason, RunState};

/// Formats a measured duration: `950 ms`, `2.3 s`, `1 min 5 s`, `3 h 20 min`.
pub(super) fn took(ms: Option<u64>) -> String {
    match ms {
        None => "not known".to_owned(),
        Some(ms @ 0..1_000) => format!("{ms} ms"),
        Some(ms @ 1_000..60_000) => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        Some(ms @ 60_000..3_600_000) if ms % 60_000 >= 1_000 => {
            format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000)
        }
        Some(ms) => amount((ms / 1_000).cast_signed()),
    }
}

/// Formats a count for people: `1,000`.
pub(super) fn number(count: usize) -> String {
    grouped(count as u64)
}

/// Formats a count with its noun: `1 job`, `1,000 jobs`.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{} {what}{}", number(count), if count == 1 { "" } else { "s" })
}

/// The class of an outcome in the style sheet.
pub(super) fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "good",
        Outcome::Failure | Outcome::Timeout => "bad",
        Outcome::Killed | Outcome::Interrupted | Outcome::Abandoned => "odd",
    }
}

fn sign(outcome: Outcome) -> &'static str {
    match class(outcome) {
        "good" => "✓",
        "bad" => "✗",
        _ => "!",
    }
}

/// An outcome with its sign.
pub(super) fn outcome(outcome: Outcome, details: &str) -> Markup {
    html! {
        span class={ "mark " (class(outcome)) } { span aria-hidden="true" { (sign(outcome)) } " " (outcome.as_str()) }
        @if !details.is_empty() { " " span.details { (details) } }
    }
}

/// How a job's last run ended.
pub(super) fn last(last: &LastRun) -> Markup {
    outcome(last.outcome, &why(last.reason, last.exit_code, last.signal))
}

/// What an outcome does not say: `exit 3`, `its program was not found`; empty if there is nothing.
pub(super) fn why(reason: Option<Reason>, exit_code: Option<i32>, signal: Option<i32>) -> String {
    match reason.and_then(Reason::prevented_start) {
        Some(prevented) => prevented.to_owned(),
        None => ending_details(reason, exit_code, signal),
    }
}

pub(super) fn run_state(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Placed => "placed, not accepted yet",
        RunState::Retrying => "waits for its next attempt",
        RunState::Unstarted => "not started yet",
        RunState::CutOff => "cut off from its node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_numbers_read_naturally() {
        assert_eq!(
            [Some(950), Some(2_340), Some(65_000), Some(12_000_000), None].map(took),
            ["950 ms", "2.3 s", "1 min 5 s", "3 h 20 min", "not known"]
        );
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([counted(1, "job"), counted(1_000, "job")], ["1 job", "1,000 jobs"]);
    }

    #[test]
    fn a_failed_start_says_what_prevented_it() {
        assert_eq!(why(Some(Reason::NotFound), Some(127), None), "its program was not found");
        assert_eq!(why(None, Some(3), None), "exit 3");
    }
}
