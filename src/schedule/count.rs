//! How many occurrences a span has, without walking them.
//!
//! ```text
//! instants named = multiples of periods + seconds named by fields and no multiples + what stands alone
//! ```
//!
//! An instant that several expressions name counts once. Between two shifts of the zone's clock, what the fields name is
//! counted by days; days on which the same expressions match are alike, so each kind is counted once. The work grows with
//! the days of the span, of which patterns have 131 years, and never with the occurrences.

use std::collections::{BTreeMap, BTreeSet};

use super::day::{DAY, Days, Seconds};
use super::parse::{Fields, Meaning};
use super::timeline::{EARLIEST, LATEST, Timeline};
use super::zone::{OffsetSpan, Zone, civil};
use super::{Expression, Occurrences};

/// The occurrences from second `from` to second `to`, both included.
pub(super) fn count(expressions: &[Expression], zone: &Zone, from: i64, to: i64) -> u64 {
    if from > to { 0 } else { Count::of(expressions).total(zone, from, to) }
}

/// A list of expressions, sorted by how their instants are counted.
#[derive(Default)]
struct Count<'a> {
    patterns: Vec<Counted<'a>>,
    periods: Vec<i64>,
    /// Instants that come by themselves: those of `@at`, and those that make up for a gap.
    alone: BTreeSet<i64>,
    /// What whole days hold, by where in them the periods begin and by the patterns that match.
    whole_days: BTreeMap<Vec<i64>, u64>,
}

struct Counted<'a> {
    timeline: &'a Timeline,
    days: Days,
    seconds: Seconds,
}

impl<'a> Counted<'a> {
    fn new(timeline: &'a Timeline, fields: &Fields) -> Self {
        Self { timeline, days: Days::of(fields), seconds: Seconds::of(fields) }
    }
}

impl<'a> Count<'a> {
    fn of(expressions: &'a [Expression]) -> Self {
        let mut count = Self::default();
        for Expression { meaning, occurrences, .. } in expressions {
            match (occurrences, meaning) {
                (Occurrences::Local(timeline), Meaning::Fields(fields)) => {
                    count.patterns.push(Counted::new(timeline, fields));
                }
                (Occurrences::Every(period), _) => count.periods.push(*period),
                (Occurrences::At(at), _) => drop(count.alone.insert(*at)),
                (Occurrences::Local(_), _) => {}
            }
        }
        count
    }

    fn total(mut self, zone: &Zone, from: i64, to: i64) -> u64 {
        let mut total = multiples(&self.periods, from, to);
        let (mut at, last) = (from.max(EARLIEST), to.min(LATEST));
        while at <= last && !self.patterns.is_empty() {
            let span = zone.span_at(at);
            if at == span.start && self.patterns.iter().any(|one| one.timeline.gap_before(&span).is_some()) {
                self.alone.insert(at);
            }
            total += self.span(&span, at, last.min(span.end - 1));
            at = span.end;
        }
        let alone = self.alone.range(from..=to).filter(|&&at| !self.is_counted(zone, at));
        total + alone.count() as u64
    }

    /// What patterns name from `first` to `last`, which are in the stretch. Its beginning may be the second pass of local times.
    fn span(&mut self, span: &OffsetSpan, first: i64, last: i64) -> u64 {
        let (first, last) = (first + span.offset, last + span.offset);
        let fresh = span.start.saturating_add(span.offset.max(span.before));
        self.local(span, first, last.min(fresh.saturating_sub(1))) + self.local(span, first.max(fresh), last)
    }

    /// The same in local time; all of it counts alike.
    fn local(&mut self, span: &OffsetSpan, first: i64, last: i64) -> u64 {
        if first > last {
            return 0;
        }
        let counts: Vec<bool> = self.patterns.iter().map(|one| one.timeline.first_local(span) <= first).collect();
        let mut date = civil(first).date();
        let mut total = 0;
        let mut kind = Vec::new();
        for day in first.div_euclid(DAY)..=last.div_euclid(DAY) {
            let start = day * DAY;
            kind.clear();
            kind.extend(self.periods.iter().map(|period| (span.offset - start).rem_euclid(*period)));
            let matching =
                (0..).zip(&self.patterns).zip(&counts).filter(|((_, one), counts)| **counts && one.days.holds(date));
            kind.extend(matching.map(|((index, _), _)| index));
            if kind.len() > self.periods.len() {
                total += self.day(&kind, (first - start).max(0), (last - start).min(DAY - 1));
            }
            let Ok(next) = date.tomorrow() else { break };
            date = next;
        }
        total
    }

    /// What a day of a kind holds from its second `first` to its second `last`.
    fn day(&mut self, kind: &[i64], first: i64, last: i64) -> u64 {
        if (first, last) != (0, DAY - 1) {
            return self.seconds(kind).count(first, last);
        }
        if let Some(&known) = self.whole_days.get(kind) {
            return known;
        }
        let counted = self.seconds(kind).count(first, last);
        self.whole_days.insert(kind.to_vec(), counted);
        counted
    }

    fn seconds(&self, kind: &[i64]) -> Seconds {
        let (begins, matching) = kind.split_at(self.periods.len());
        let mut seconds = Seconds::none();
        for pattern in matching.iter().filter_map(|&index| self.patterns.get(usize::try_from(index).ok()?)) {
            seconds.add(&pattern.seconds);
        }
        for (&first, &period) in begins.iter().zip(&self.periods) {
            seconds.remove(first, period);
        }
        seconds
    }

    /// True for an instant that a period or a pattern names.
    fn is_counted(&self, zone: &Zone, at: i64) -> bool {
        let span = zone.span_at(at);
        let local = at + span.offset;
        let names = |timeline: &Timeline| timeline.first_local(&span) <= local && timeline.names(local);
        self.periods.iter().any(|period| at % period == 0) || self.patterns.iter().any(|one| names(one.timeline))
    }
}

/// How many seconds from `from` to `to` are a multiple of at least one period: those of each, less those of each two, and so on.
/// Sets of periods with one least common multiple are taken together, or many periods would make too many sets.
fn multiples(periods: &[i64], from: i64, to: i64) -> u64 {
    let of = |period: i64| to.div_euclid(period) - (from - 1).div_euclid(period);
    // The empty set, which is taken out again at the end.
    let mut signs = BTreeMap::from([(1, -1)]);
    for &period in periods {
        for (multiple, sign) in signs.clone() {
            *signs.entry(common_multiple(multiple, period)).or_insert(0) -= sign;
        }
    }
    let sum: i64 = signs.into_iter().map(|(multiple, sign)| sign * of(multiple)).sum();
    u64::try_from(sum + of(1)).unwrap_or_default()
}

/// The least; the largest number, where it is beyond it.
fn common_multiple(a: i64, b: i64) -> i64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).checked_mul(b).unwrap_or(i64::MAX)
}
