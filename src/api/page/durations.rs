//! How long the runs of a job took: a bar for each, oldest first, and the median and the 95th percentile as numbers.

use maud::{Markup, html};

use super::times::Clock;
use super::words;
use crate::status::{EndedRun, HistoryEntry};
use cronkeeper_core::run::Outcome;

/// Height of the picture, and the width of a bar with its gap.
const HEIGHT: u64 = 100;
const WIDTH: usize = 10;
/// Fewer bars than this do not fill the picture.
const LEAST: usize = 20;

/// The durations of the runs that succeeded, shortest first: others may have ended early.
fn durations(records: &[HistoryEntry]) -> Vec<u64> {
    let mut durations: Vec<u64> =
        runs(records).filter(|run| run.outcome == Outcome::Success).filter_map(|run| run.duration_ms).collect();
    durations.sort_unstable();
    durations
}

fn runs(records: &[HistoryEntry]) -> impl DoubleEndedIterator<Item = &EndedRun> {
    records.iter().filter_map(|entry| match entry {
        HistoryEntry::Run(run) => Some(&**run),
        HistoryEntry::Skip(_) => None,
    })
}

/// The value below which this percentage lies; by the nearest rank.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// The picture and the numbers; nothing without a run.
pub(super) fn section(records: &[HistoryEntry], clock: &Clock) -> Markup {
    let durations = durations(records);
    let shown: Vec<&EndedRun> = runs(records).rev().collect();
    let longest = shown.iter().filter_map(|run| run.duration_ms).max().unwrap_or(0).max(1);
    let number = |percent| words::took(percentile(&durations, percent));
    html! {
        @if !shown.is_empty() {
            div.durations {
                @if !durations.is_empty() {
                    dl.numbers {
                        div { dt { "median" } dd { (number(50)) } }
                        div { dt { "95th percentile" } dd { (number(95)) } }
                        div { dt { "longest" } dd { (words::took(durations.last().copied())) } }
                    }
                    p.quiet { "of the last " (words::counted(durations.len(), "run")) " that succeeded" }
                }
                (picture(&shown, longest, clock))
                p.ends aria-hidden="true" {
                    span { (shown.first().map(|run| clock.short(run.ended_at)).unwrap_or_default()) }
                    span { "longest: " (words::took(Some(longest))) }
                    span { (shown.last().map(|run| clock.short(run.ended_at)).unwrap_or_default()) }
                }
            }
        }
    }
}

fn picture(runs: &[&EndedRun], longest: u64, clock: &Clock) -> Markup {
    let width = runs.len().max(LEAST) * WIDTH;
    let first = width / WIDTH - runs.len();
    html! {
        svg.history viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" role="img"
            aria-label={ "How long the last " (words::counted(runs.len(), "run")) " took, oldest first" } {
            @for (place, run) in runs.iter().enumerate() {
                @let height = 3 + run.duration_ms.unwrap_or(0) * (HEIGHT - 3) / longest;
                a href={ "/runs/" (run.run) } tabindex="-1" {
                    title { (clock.full(run.ended_at)) ": " (run.outcome.as_str()) ", " (words::took(run.duration_ms)) }
                    rect.hit x=((first + place) * WIDTH) y="0" width=(WIDTH) height=(HEIGHT) {}
                    rect class=(words::class(run.outcome)) x=((first + place) * WIDTH + 1) y=(HEIGHT - height)
                        width=(WIDTH - 2) height=(height) {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::test_records::{record, success};
    use cronkeeper_core::run::HistoryRecord;

    fn run(second: i64, ms: u64, outcome: Outcome) -> HistoryEntry {
        let mut end = success(record("load", second, "s"));
        (end.duration_ms, end.outcome) = (Some(ms), outcome);
        HistoryRecord::Run(end).into()
    }

    #[test]
    fn numbers_are_those_of_runs_that_succeeded() {
        let mut records: Vec<_> = (1..=20).map(|n| run(n as i64 * 60, n * 1_000, Outcome::Success)).collect();
        records.push(run(0, 90_000, Outcome::Timeout));
        let durations = durations(&records);
        assert_eq!((percentile(&durations, 50), percentile(&durations, 95)), (Some(10_000), Some(19_000)));
        assert_eq!((percentile(&durations[..1], 95), percentile(&[], 50)), (Some(1_000), None));
        let clock = Clock::new(crate::status::sample::at("2026-11-20T03:00:00Z"), Zone::utc());
        let text = section(&records, &clock).into_string();
        assert!(text.contains("10.0 s") && text.contains("19.0 s") && text.contains("of the last 20 runs"), "{text}");
        assert!(text.contains("timeout, 1 min 30 s") && text.contains("longest: 1 min 30 s"), "{text}");
        assert_eq!(section(&[], &clock).into_string(), "");
    }
}
