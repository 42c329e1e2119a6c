//! The number of occurrences in a span, without iterating over them.
//!
//! ```text
//! occurrences = multiples of periods + seconds matched by fields that are no multiples + other single instants
//! ```
//!
//! An instant that several expressions match counts once. Between two shifts of the zone's clock, the matches of fields
//! are counted day by day. Days on which the same expressions match are equal, so each kind of day is computed only
//! once. The cost grows with the number of days (patterns cover 131 years), and never with the number of occurrences.

use std::collections::{BTreeMap, BTreeSet};

use super::calendar::Calendar;
use super::day::{DAY, Days, Seconds};
use super::parse::{Fields, Meaning};
use super::timeline::{EARLIEST, LATEST, Timeline};
use super::zone::{OffsetSpan, Zone, civil};
use super::{Expression, Occurrences};

/// The number of occurrences from second `from` to second `to`, both included.
pub(super) fn count(expressions: &[Expression], zone: &Zone, from: i64, to: i64) -> u64 {
    Count::of(expressions).total(zone, from, to)
}

/// The same, of the instants alone whose date counts, or, if `counting` is false, does not count.
pub(super) fn count_by(
    calendar: &Calendar,
    counting: bool,
    expressions: &[Expression],
    zone: &Zone,
    from: i64,
    to: i64,
) -> u64 {
    let mut count = Count::of(expressions);
    // Between two days that the calendar leaves out, it has no effect.
    let (mut total, mut from) = (0, from);
    while let Some(first) = calendar.seek(zone, from, counting).filter(|first| *first <= to) {
        let end = calendar.seek(zone, first, !counting).filter(|end| *end <= to);
        total += count.total(zone, first, end.map_or(to, |end| end - 1));
        let Some(end) = end else { break };
        from = end;
    }
    total
}

/// A list of expressions, grouped by how their occurrences are counted.
#[derive(Default)]
struct Count<'a> {
    patterns: Vec<CountedPattern<'a>>,
    periods: Vec<i64>,
    /// Single instants: those of `@at`, and those that make up for a gap.
    singles: BTreeSet<i64>,
    /// Cache of counts for whole days. The key is the kind of the day: the offsets of the periods in it and the
    /// matching patterns.
    whole_days: BTreeMap<Vec<i64>, u64>,
}

struct CountedPattern<'a> {
    timeline: &'a Timeline,
    days: Days,
    seconds: Seconds,
}

impl<'a> CountedPattern<'a> {
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
                    count.patterns.push(CountedPattern::new(timeline, fields));
                }
                (Occurrences::Every(period), _) => count.periods.push(*period),
                (Occurrences::At(at), _) => drop(count.singles.insert(*at)),
                (Occurrences::Local(_), _) => {}
            }
        }
        count
    }

    fn total(&mut self, zone: &Zone, from: i64, to: i64) -> u64 {
        if from > to {
            return 0;
        }
        let mut total = multiples(&self.periods, from, to);
        let (mut at, last) = (from.max(EARLIEST), to.min(LATEST));
        while at <= last && !self.patterns.is_empty() {
            let span = zone.span_at(at);
            if at == span.start && self.patterns.iter().any(|one| one.timeline.gap_before(&span).is_some()) {
                self.singles.insert(at);
            }
            total += self.span(&span, at, last.min(span.end - 1));
            at = span.end;
        }
        let singles = self.singles.range(from..=to).filter(|&&at| !self.is_counted(zone, at));
        total + singles.count() as u64
    }

    /// Counts the matches from `first` to `last`, which lie within `span`. The beginning of the span may be the second
    /// pass of local times, in which fewer patterns count.
    fn span(&mut self, span: &OffsetSpan, first: i64, last: i64) -> u64 {
        let (first, last) = (first + span.offset, last + span.offset);
        let fresh = span.start.saturating_add(span.offset.max(span.before));
        self.local(span, first, last.min(fresh.saturating_sub(1))) + self.local(span, first.max(fresh), last)
    }

    /// Counts the matches in local time. The same patterns count in the whole range.
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

    /// Counts the matches of a kind of day from its second `first` to its second `last`.
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

    /// True if a period or a pattern matches the instant.
    fn is_counted(&self, zone: &Zone, at: i64) -> bool {
        let span = zone.span_at(at);
        let local = at + span.offset;
        let names = |timeline: &Timeline| timeline.first_local(&span) <= local && timeline.names(local);
        self.periods.iter().any(|period| at % period == 0) || self.patterns.iter().any(|one| names(one.timeline))
    }
}

/// The number of seconds from `from` to `to` that are a multiple of at least one period.
///
/// It uses inclusion and exclusion. Sets of periods with the same least common multiple are combined, because the
/// number of sets is exponential in the number of periods.
fn multiples(periods: &[i64], from: i64, to: i64) -> u64 {
    let of = |period: i64| to.div_euclid(period) - (from - 1).div_euclid(period);
    // The empty set. The last line removes its contribution.
    let mut signs = BTreeMap::from([(1, -1)]);
    for &period in periods {
        for (multiple, sign) in signs.clone() {
            *signs.entry(common_multiple(multiple, period)).or_insert(0) -= sign;
        }
    }
    let sum: i64 = signs.into_iter().map(|(multiple, sign)| sign * of(multiple)).sum();
    u64::try_from(sum + of(1)).unwrap_or_default()
}

/// The least common multiple; `i64::MAX` on overflow, which has no multiples in range.
fn common_multiple(a: i64, b: i64) -> i64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).checked_mul(b).unwrap_or(i64::MAX)
}
