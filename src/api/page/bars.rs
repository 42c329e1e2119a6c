//! A job's last runs as bars: one bar a run, oldest first, as high as the run was long.
//!
//! A run that failed hangs below the line, and any other end is short and above it: the shape tells them apart
//! without the colour.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::words;
use cronkeeper_core::run::{HistoryRecord, Outcome};
use cronkeeper_core::suggest::counted;

/// Most bars of a job.
pub(super) const MOST: usize = 20;
const WIDTH: usize = 6;
/// Height above the line, and depth below it.
const HEIGHT: u64 = 16;

/// What a bar shows of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::api) struct Bar {
    pub(super) outcome: Outcome,
    /// 0 if it is not known.
    pub(super) ms: u64,
}

/// The bars of these records, which are newest first.
pub(super) fn of(records: &[HistoryRecord]) -> Vec<Bar> {
    let run = |record: &HistoryRecord| match record {
        HistoryRecord::Run(end) => Some(Bar { outcome: end.outcome, ms: end.duration_ms.unwrap_or(0) }),
        HistoryRecord::Skip(_) => None,
    };
    let mut bars: Vec<Bar> = records.iter().filter_map(run).take(MOST).collect();
    bars.reverse();
    bars
}

/// The picture, with the same facts in words.
pub(super) fn picture(bars: &[Bar]) -> Markup {
    let longest = bars.iter().map(|bar| bar.ms).max().unwrap_or(0).max(1);
    html! {
        svg.bars role="img" aria-label=(summary(bars)) viewBox={ "0 0 " (MOST * WIDTH) " " (HEIGHT * 3 / 2) }
            width=(MOST * WIDTH) height=(HEIGHT * 3 / 2) {
            path.line d={ "M0 " (HEIGHT) "h" (MOST * WIDTH) } {}
            @for class in ["good", "bad", "odd"] {
                @let drawn = path(bars, longest, class);
                @if !drawn.is_empty() { path class=(class) d=(drawn) {} }
            }
        }
    }
}

/// The outline of the bars of one class. One path for all of them keeps a page with a hundred jobs small.
fn path(bars: &[Bar], longest: u64, class: &str) -> String {
    let mut path = String::new();
    let first = MOST.saturating_sub(bars.len());
    for (place, bar) in bars.iter().enumerate().filter(|(_, bar)| words::class(bar.outcome) == class) {
        let x = (first + place) * WIDTH + WIDTH / 2;
        // A root, so that a run of a second can still be seen beside one of an hour.
        let share = (bar.ms as f64 / longest as f64).sqrt();
        let height = 2 + (share * (HEIGHT - 2) as f64) as u64;
        let (top, bottom) = match class {
            "good" => (HEIGHT - height, HEIGHT),
            "bad" => (HEIGHT - height, HEIGHT * 3 / 2),
            _ => (HEIGHT - 4, HEIGHT + 4),
        };
        // Writing to a text cannot fail.
        let _ = write!(path, "M{x} {bottom}V{top}");
    }
    path
}

/// The facts in words: `last 20 runs: 18 success, 2 failure; the newest: failure`.
pub(super) fn summary(bars: &[Bar]) -> String {
    let Some(newest) = bars.last() else { return "no runs yet".to_owned() };
    let all = [
        Outcome::Success,
        Outcome::Failure,
        Outcome::Timeout,
        Outcome::Killed,
        Outcome::Interrupted,
        Outcome::Abandoned,
    ];
    let count = |outcome| bars.iter().filter(|bar| bar.outcome == outcome).count();
    let counts = all.map(|outcome| (outcome, count(outcome)));
    let counts = counts.iter().filter(|(_, count)| *count > 0).map(|(outcome, n)| format!("{n} {}", outcome.as_str()));
    let counts: Vec<String> = counts.collect();
    format!("last {}: {}; the newest: {}", counted(bars.len(), "run"), counts.join(", "), newest.outcome.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_by_shape_and_words_and_not_only_by_colour() {
        let bars = [Bar { outcome: Outcome::Success, ms: 100 }, Bar { outcome: Outcome::Failure, ms: 50 }];
        assert_eq!(summary(&bars), "last 2 runs: 1 success, 1 failure; the newest: failure");
        assert_eq!(path(&bars, 100, "good"), "M111 16V0");
        assert!(path(&bars, 100, "bad").starts_with("M117 24V"));
        assert_eq!(summary(&[]), "no runs yet");
    }
}
