//! A job's last runs as bars: one bar a run, oldest first, as high as the run was long.
//!
//! A run that failed hangs below the line, and any other end is short and above it: the shape tells them apart
//! without the colour.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{ansi, words};
use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd, RunId};

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

/// The facts in words: `of the last 20 runs 18 succeeded and 2 failed; the newest failed`.
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
    let counts = all.map(|outcome| (outcome, bars.iter().filter(|bar| bar.outcome == outcome).count()));
    let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    match (&*counts, bars.len()) {
        (_, 1) => format!("the only run so far {}", ended(newest.outcome, 1)),
        ([(outcome, count)], _) => format!("all of the last {count} runs {}", ended(*outcome, *count)),
        (counts, count) => {
            let each = counts.iter().map(|(outcome, count)| format!("{count} {}", ended(*outcome, *count)));
            let each: Vec<String> = each.collect();
            let each = match &*each {
                [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
                each => each.join(", "),
            };
            format!("of the last {count} runs {each}; the newest {}", ended(newest.outcome, 1))
        }
    }
}

/// What is said of that many runs that ended so.
fn ended(outcome: Outcome, count: usize) -> String {
    let verb = if count == 1 { "was" } else { "were" };
    match outcome {
        Outcome::Success => "succeeded".to_owned(),
        Outcome::Failure => "failed".to_owned(),
        Outcome::Timeout => "timed out".to_owned(),
        Outcome::Killed | Outcome::Interrupted | Outcome::Abandoned => format!("{verb} {}", outcome.as_str()),
    }
}

/// The most ends whose last line is kept, and the most characters of it.
const MOST_LINES: usize = 3;
const LONGEST_LINE: usize = 240;

/// What the runs that ended last without success wrote last, or why their programs did not start.
pub(super) fn last_lines(records: &[HistoryRecord]) -> Vec<(RunId, String)> {
    let ends = records.iter().filter_map(|record| match record {
        HistoryRecord::Run(end) if end.outcome != Outcome::Success => Some(end),
        HistoryRecord::Run(_) | HistoryRecord::Skip(_) => None,
    });
    ends.take(MOST_LINES).filter_map(|end| Some((end.run.id(), last_line(end)?))).collect()
}

fn last_line(end: &RunEnd) -> Option<String> {
    let written = || end.tail.lines().rev().map(ansi::plain).find(|line| !line.trim().is_empty());
    let line = end.detail.clone().or_else(written)?;
    Some(line.trim().chars().take(LONGEST_LINE).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};

    #[test]
    fn a_failure_is_told_by_shape_and_words_and_not_only_by_colour() {
        let bars = [Bar { outcome: Outcome::Success, ms: 100 }, Bar { outcome: Outcome::Failure, ms: 50 }];
        assert_eq!(summary(&bars), "of the last 2 runs 1 succeeded and 1 failed; the newest failed");
        assert_eq!(summary(&[bars[1]; 16]), "all of the last 16 runs failed");
        assert_eq!(summary(&bars[..1]), "the only run so far succeeded");
        assert_eq!(path(&bars, 100, "good"), "M111 16V0");
        assert!(path(&bars, 100, "bad").starts_with("M117 24V"));
        assert_eq!(summary(&[]), "no runs yet");
    }

    #[test]
    fn the_last_line_is_what_was_written_last_or_why_nothing_started() {
        let mut end = success(record("load", 0, "s"));
        end.tail = "begins\n\u{1b}[31mno disk\u{1b}[0m\n\n".into();
        let lines = |end: &RunEnd| {
            last_lines(&[HistoryRecord::Run(end.clone())]).into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        assert_eq!(lines(&end), [""; 0], "it succeeded");
        end.outcome = Outcome::Failure;
        assert_eq!(lines(&end), ["no disk"]);
        end.detail = Some("/etc/passwd: Permission denied".into());
        assert_eq!(lines(&end), ["/etc/passwd: Permission denied"]);
    }
}
