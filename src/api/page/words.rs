//! Times, outcomes and states as the page words them. No meaning is carried by colour alone: each has its own sign and
//! its own word.

use jiff::Timestamp;
use maud::{Markup, html};

use crate::status::{LastRun, ending_details};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::duration;
use cronkeeper_core::run::{Outcome, RunState};

/// An instant in UTC, and how far away it is.
pub(super) fn time(at: Timestamp, now: Timestamp) -> Markup {
    let machine = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    html! {
        time datetime=(machine) title=(distance(at, now)) { (stamp(at)) }
    }
}

/// Formats the distance of an instant from now: `in 4 min`, `2 h ago`.
///
/// It is coarse, so that it seldom changes: each change makes open pages fetch anew.
pub(super) fn distance(at: Timestamp, now: Timestamp) -> String {
    let seconds = at.as_second() - now.as_second();
    let amount = match seconds.unsigned_abs() {
        0..60 => return if seconds >= 0 { "in less than a minute" } else { "less than a minute ago" }.to_owned(),
        size @ 60..3_600 => format!("{} min", size / 60),
        size @ 3_600..172_800 => format!("{} h", size / 3_600),
        size => format!("{} days", size / 86_400),
    };
    if seconds >= 0 { format!("in {amount}") } else { format!("{amount} ago") }
}

/// Formats a measured duration: `950ms`, `2.3s`, `1m 5s`.
pub(super) fn took(ms: Option<u64>) -> String {
    match ms {
        None => "unknown".to_owned(),
        Some(ms @ 0..1_000) => format!("{ms}ms"),
        Some(ms @ 1_000..60_000) => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        Some(ms) => duration::format(std::time::Duration::from_secs(ms / 1_000)),
    }
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
        @if !details.is_empty() { ", " (details) }
    }
}

/// How a job's last run ended.
pub(super) fn last(last: &LastRun) -> Markup {
    outcome(last.outcome, &ending_details(last.reason, last.exit_code, last.signal))
}

pub(super) fn run_state(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Placed => "placed there, waits for the node to accept it",
        RunState::Retrying => "waits for its next attempt",
        RunState::Unstarted => "not started yet",
        RunState::CutOff => "cut off from its node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample::at;

    #[test]
    fn distances_and_durations_read_naturally() {
        let now = at("2026-11-20T03:00:00Z");
        let shown = [30, -30, 61, -7_300, 3 * 86_400].map(|s| distance(now + jiff::SignedDuration::from_secs(s), now));
        assert_eq!(shown, ["in less than a minute", "less than a minute ago", "in 1 min", "2 h ago", "in 3 days"]);
        assert_eq!([Some(950), Some(2_340), Some(65_000), None].map(took), ["950ms", "2.3s", "1m5s", "unknown"]);
    }
}
