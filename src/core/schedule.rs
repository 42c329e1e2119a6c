//! Schedules: cron expressions in a time zone, with a DST policy.
//!
//! ```text
//! text ── parse, item ──▶ fields ── pattern (crate `cron`) ──▶ local times ── timeline, zone ──▶ instants
//! ```
//!
//! The crate `cron` evaluates the fields on naive local time. The code around it defines what an expression means: the
//! fields follow crontab(5), and daylight saving time follows cron(8). The time zones come from jiff. This module reads
//! no clock; it reads a zone's data when it parses a schedule.

mod calendar;
mod count;
mod dates;
mod day;
mod day_rule;
mod describe;
mod either_day;
mod error;
mod field;
mod item;
mod local;
mod nearby;
mod parse;
mod pattern;
mod piece;
mod rule_item;
mod timeline;
mod tzdata;
mod zone;

#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;

pub use calendar::{Calendar, DatesFile};
pub use dates::{DateFault, Dates};
pub use either_day::EitherDay;
pub use error::{Fault, FaultPosition, ScheduleError};
pub use field::Field;
pub(crate) use item::hash;
pub use pattern::Patterns;
pub use tzdata::tzdata_version;

use parse::{ExpressionError, Meaning};
use timeline::Timeline;
use zone::{Zone, second_of};

/// The times at which a job is due. Cheap to clone.
///
/// ```
/// use cronkeeper_core::schedule::{Dst, Schedule};
///
/// let schedule = Schedule::parse(&["30 2 * * *"], "Europe/Berlin", Dst::Once, "nightly-backup")?;
/// let next = schedule.next_after("2026-11-20T00:00:00Z".parse()?);
/// assert_eq!(next, Some("2026-11-20T01:30:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Schedule(Arc<Inner>);

#[derive(Clone, PartialEq)]
struct Inner {
    expressions: Box<[Expression]>,
    zone: Zone,
    dst: Dst,
    /// Leaves out days, as if no expression had matched.
    calendar: Option<Calendar>,
    /// No occurrence is later. Without it, each search that finds none would try every year.
    end: Timestamp,
}

/// One expression, as written and as parsed.
#[derive(Clone, Debug, PartialEq)]
struct Expression {
    text: Box<str>,
    meaning: Meaning,
    occurrences: Occurrences,
}

/// How to find an expression's occurrences.
#[derive(Clone, Debug, PartialEq)]
enum Occurrences {
    Local(Timeline),
    /// Every this many seconds since the epoch.
    Every(i64),
    /// At this second since the epoch.
    At(i64),
}

/// The policy for local times that do not exist or occur twice, because the clock is shifted.
///
/// A wildcard is a minute or hour field that begins with `*`. An expression with a wildcard runs by elapsed time,
/// unless the policy is [`Dst::Skip`]: no occurrence is made up for, and none is suppressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dst {
    /// Times in a gap give one occurrence, at the first instant after it. In an overlap, only the first pass counts.
    #[default]
    Once,
    /// No occurrence for a gap, only the first pass in an overlap. Applies to wildcards too.
    Skip,
    /// Like `Once` for a gap; both passes in an overlap.
    Twice,
}

impl Dst {
    /// The value in the jobs file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Skip => "skip",
            Self::Twice => "twice",
        }
    }
}

/// The effect of a clock shift on an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DstEffect {
    /// It replaces local times that a forward shift skipped; this is the first of them.
    MovedOutOfGap(DateTime),
    /// Its local time occurs again later.
    FirstPass,
    /// Its local time has occurred before.
    SecondPass,
}

impl Schedule {
    /// Parses a list of expressions; each adds its occurrences. `job` determines the value of `H`; `zone` is an IANA
    /// name.
    ///
    /// # Errors
    /// If an expression is invalid or never occurs, if there is none, or if the zone is unknown.
    pub fn parse(expressions: &[&str], zone: &str, dst: Dst, job: &str) -> Result<Self, ScheduleError> {
        Self::parse_sharing(&mut Patterns::default(), expressions, zone, dst, job)
    }

    /// Like [`Schedule::parse`], for many schedules: equal expressions of theirs share what they were parsed to.
    ///
    /// # Errors
    /// As [`Schedule::parse`].
    pub fn parse_sharing(
        patterns: &mut Patterns,
        expressions: &[&str],
        zone: &str,
        dst: Dst,
        job: &str,
    ) -> Result<Self, ScheduleError> {
        if expressions.is_empty() {
            return Err(ScheduleError::NoExpression);
        }
        let zone = Zone::find(zone)?;
        let read = |(index, text): (usize, &&str)| {
            Expression::parse(patterns, text, &zone, dst, job).map_err(|error| ScheduleError::Expression {
                position: FaultPosition { expression: index, offset: error.offset, length: error.length },
                fault: error.fault,
            })
        };
        let expressions = expressions.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Inner { expressions, zone, dst, calendar: None, end: Timestamp::MAX })))
    }

    /// The same schedule without the occurrences on days that a calendar leaves out.
    pub fn with_calendar(&self, calendar: Option<Calendar>) -> Self {
        let mut inner = Inner { calendar, end: Timestamp::MAX, ..self.0.as_ref().clone() };
        if inner.calendar.is_some() {
            let whole = Self(Arc::new(inner.clone()));
            inner.end = whole.last_before_or_at(Timestamp::MAX, Timestamp::MIN).unwrap_or(Timestamp::MIN);
        }
        Self(Arc::new(inner))
    }

    pub fn calendar(&self) -> Option<&Calendar> {
        self.0.calendar.as_ref()
    }

    /// The first occurrence later than `after`. Occurrences are whole seconds.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        if after >= self.0.end {
            return None;
        }
        let mut from = second_of(after) + 1;
        loop {
            let next = self.match_at_or_after(from)?;
            let Some(calendar) = &self.0.calendar else { return instant(next) };
            // Each turn moves to a later run of days that count, so it ends with the last of them.
            from = calendar.seek(&self.0.zone, next, true)?;
            if from == next {
                return instant(next);
            }
        }
    }

    /// The newest occurrence later than `not_before` and not later than `at`. The cost does not depend on how many
    /// there are.
    pub fn last_before_or_at(&self, at: Timestamp, not_before: Timestamp) -> Option<Timestamp> {
        let mut to = second_of(at);
        loop {
            let last = self.match_at_or_before(to)?;
            if instant(last)? <= not_before {
                return None;
            }
            let Some(calendar) = &self.0.calendar else { return instant(last) };
            to = calendar.seek_back(&self.0.zone, last)?;
            if to == last {
                return instant(last);
            }
        }
    }

    /// The first instant that an expression names, whatever the calendar says.
    fn match_at_or_after(&self, from: i64) -> Option<i64> {
        self.0.expressions.iter().filter_map(|one| one.occurrences.at_or_after(&self.0.zone, from)).min()
    }

    fn match_at_or_before(&self, to: i64) -> Option<i64> {
        self.0.expressions.iter().filter_map(|one| one.occurrences.at_or_before(&self.0.zone, to)).max()
    }

    /// The occurrences later than `after` and not later than `until`, in order.
    pub fn occurrences(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let next = |at: &Timestamp| self.next_after(*at);
        std::iter::successors(self.next_after(after), next).take_while(move |at| *at <= until)
    }

    /// The number of occurrences later than `after` and not later than `until`. The cost does not depend on this
    /// number.
    pub fn count(&self, after: Timestamp, until: Timestamp) -> u64 {
        let Inner { expressions, zone, calendar, .. } = self.0.as_ref();
        let (from, to) = (second_of(after) + 1, second_of(until));
        match calendar {
            Some(calendar) => count::count_by(calendar, true, expressions, zone, from, to),
            None => count::count(expressions, zone, from, to),
        }
    }

    /// The instants later than `after` and not later than `until` that are no occurrences because of the calendar:
    /// their number, and the first of them, at least one and at most `most`, each with the file.
    pub fn left_out(&self, after: Timestamp, until: Timestamp, most: NonZeroUsize) -> (u64, Vec<(Timestamp, String)>) {
        let Inner { expressions, zone, calendar: Some(calendar), .. } = self.0.as_ref() else { return (0, Vec::new()) };
        let (mut from, to) = (second_of(after) + 1, second_of(until));
        let mut first = Vec::new();
        while first.len() < most.get()
            && let Some(next) = self.match_at_or_after(from).filter(|next| *next <= to)
        {
            match (calendar.left_out_by(next + zone.offset_at(next)), instant(next)) {
                (Some(file), Some(at)) => {
                    first.push((at, file));
                    from = next + 1;
                }
                _ => match calendar.seek(zone, next, false) {
                    Some(other) => from = other,
                    None => break,
                },
            }
        }
        // Mostly these are all; counting is not needed then.
        let more = match first.len() == most.get() {
            true => count::count_by(calendar, false, expressions, zone, from, to),
            false => 0,
        };
        (first.len() as u64 + more, first)
    }

    /// What the calendar leaves out next, with the file, if nothing that an expression names later than `after` counts
    /// before it.
    pub fn next_left_out(&self, after: Timestamp) -> Option<(Timestamp, String)> {
        let next = self.match_at_or_after(second_of(after) + 1)?;
        let file = self.0.calendar.as_ref()?.left_out_by(next + self.0.zone.offset_at(next))?;
        Some((instant(next)?, file))
    }

    /// A canonical text of expressions, zone and DST policy, for a digest. Schedules with the same meaning have the same
    /// text. The calendar is not part of it.
    pub fn canonical(&self) -> String {
        let mut meanings: Vec<String> = self.0.expressions.iter().map(|one| one.meaning.canonical()).collect();
        meanings.sort_unstable();
        meanings.dedup();
        format!("{} | {} | {}", meanings.join("; "), self.zone_name(), self.0.dst.as_str())
    }

    pub fn zone_name(&self) -> &str {
        self.0.zone.name()
    }

    pub fn dst(&self) -> Dst {
        self.0.dst
    }

    /// The expressions as written.
    pub fn expressions(&self) -> impl Iterator<Item = &str> {
        self.0.expressions.iter().map(|expression| &*expression.text)
    }

    /// A description in English, in local time.
    pub fn describe(&self) -> String {
        let words: Vec<String> = self.0.expressions.iter().map(|one| describe::meaning(&one.meaning)).collect();
        words.join("; also ")
    }

    /// The effect of a clock shift on the occurrence `at`, if any.
    pub fn dst_effect(&self, at: Timestamp) -> Option<DstEffect> {
        let at = second_of(at);
        let span = self.0.zone.span_at(at);
        let local = at + span.offset;
        let skipped = || self.timelines().filter_map(|timeline| timeline.gap_before(&span)).min();
        let is_named = || self.timelines().any(|timeline| timeline.names(local));
        if at == span.start
            && !is_named()
            && let Some(first) = skipped()
        {
            return Some(DstEffect::MovedOutOfGap(zone::civil(first)));
        }
        if local < span.start.saturating_add(span.before) {
            return Some(DstEffect::SecondPass);
        }
        let next_offset = if span.end == i64::MAX { span.offset } else { self.0.zone.offset_at(span.end) };
        (local >= span.end.saturating_add(next_offset)).then_some(DstEffect::FirstPass)
    }

    fn timelines(&self) -> impl Iterator<Item = &Timeline> {
        self.0.expressions.iter().filter_map(|expression| match &expression.occurrences {
            Occurrences::Local(timeline) => Some(timeline),
            Occurrences::Every(_) | Occurrences::At(_) => None,
        })
    }
}

/// A time zone's name as the IANA database spells it; `None` if there is no such zone.
pub fn known_zone(name: &str) -> Option<String> {
    Zone::known(name).map(|zone| zone.name().to_owned())
}

/// A short form, because a job is printed with its schedule.
impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calendar = self.0.calendar.as_ref().map(Calendar::digest);
        f.debug_tuple("Schedule").field(&self.canonical()).field(&calendar).finish()
    }
}

/// `None` if the second is out of range.
fn instant(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}

impl Expression {
    fn parse(patterns: &mut Patterns, text: &str, zone: &Zone, dst: Dst, job: &str) -> Result<Self, ExpressionError> {
        let text = text.trim_end();
        let meaning = parse::parse(text, job)?;
        // A fault of the expression as a whole is reported for its whole text.
        let start = text.chars().take_while(|c| c.is_whitespace()).count();
        let length = text.chars().count() - start;
        let error = |fault| ExpressionError { offset: start, length, fault };
        let (meaning, occurrences) = match meaning {
            Meaning::Fields(fields) => {
                let pattern = patterns.of(&fields).map_err(error)?;
                // That of the pattern, which all equal expressions share.
                let meaning = Meaning::Fields(Arc::clone(&pattern.fields));
                (meaning, Occurrences::Local(Timeline::new(pattern, dst)))
            }
            Meaning::Every(period) => (meaning, Occurrences::Every(period)),
            Meaning::At(at) => (meaning, Occurrences::At(at)),
        };
        if occurrences.at_or_after(zone, i64::MIN).is_none() {
            let why = describe::missing_days(&meaning);
            return Err(error(Fault::Impossible { zone: zone.name().to_owned(), why }));
        }
        Ok(Self { text: text.trim_start().into(), meaning, occurrences })
    }
}

impl Occurrences {
    fn at_or_after(&self, zone: &Zone, from: i64) -> Option<i64> {
        match self {
            Self::Local(timeline) => timeline.at_or_after(zone, from),
            // Starting at the minimum timestamp keeps the products below within `i64`.
            Self::Every(period) => {
                let from = from.max(second_of(Timestamp::MIN));
                Some((from + period - 1).div_euclid(*period) * period)
            }
            Self::At(at) => (*at >= from).then_some(*at),
        }
    }

    fn at_or_before(&self, zone: &Zone, to: i64) -> Option<i64> {
        match self {
            Self::Local(timeline) => timeline.at_or_before(zone, to),
            Self::Every(period) => Some(to.div_euclid(*period) * period),
            Self::At(at) => (*at <= to).then_some(*at),
        }
    }
}
