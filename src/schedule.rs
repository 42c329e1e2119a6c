//! Schedules: cron expressions in a time zone, with a DST policy.
//!
//! ```text
//! text ── parse, item ──▶ fields ── pattern (crate `cron`) ──▶ local times ── timeline, zone ──▶ instants
//! ```
//!
//! The crate `cron` evaluates the fields on naive local time. The code around it defines what an expression means: the
//! fields follow crontab(5), and daylight saving time follows cron(8). The time zones come from jiff. This module reads
//! no clock; it reads a zone's data when it parses a schedule.

mod count;
mod day;
mod day_rule;
mod describe;
mod error;
mod field;
mod item;
mod local;
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
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;

pub use error::{Fault, FaultPosition, ScheduleError};
pub use field::Field;
pub(crate) use item::hash;
pub use tzdata::tzdata_version;

use parse::{ExpressionError, Meaning};
use pattern::Pattern;
use timeline::Timeline;
use zone::{Zone, second_of};

/// The times at which a job is due. Cheap to clone.
///
/// ```
/// use cronkeeper::schedule::{Dst, Schedule};
///
/// let schedule = Schedule::parse(&["30 2 * * *"], "Europe/Berlin", Dst::Once, "nightly-backup")?;
/// let next = schedule.next_after("2026-11-20T00:00:00Z".parse()?);
/// assert_eq!(next, Some("2026-11-20T01:30:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Schedule(Arc<Inner>);

#[derive(PartialEq)]
struct Inner {
    expressions: Box<[Expression]>,
    zone: Zone,
    dst: Dst,
}

/// One expression, as written and as parsed.
#[derive(Clone, Debug, PartialEq)]
struct Expression {
    text: String,
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
        if expressions.is_empty() {
            return Err(ScheduleError::NoExpression);
        }
        let zone = Zone::find(zone)?;
        let read = |(index, text): (usize, &&str)| {
            Expression::parse(text, &zone, dst, job).map_err(|error| ScheduleError::Expression {
                position: FaultPosition { expression: index, offset: error.offset, length: error.length },
                fault: error.fault,
            })
        };
        let expressions = expressions.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Inner { expressions, zone, dst })))
    }

    /// The first occurrence later than `after`. Occurrences are whole seconds.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let from = second_of(after) + 1;
        let next = |expression: &Expression| expression.occurrences.at_or_after(&self.0.zone, from);
        instant(self.0.expressions.iter().filter_map(next).min()?)
    }

    /// The newest occurrence later than `not_before` and not later than `at`. The cost does not depend on how many
    /// there are.
    pub fn last_before_or_at(&self, at: Timestamp, not_before: Timestamp) -> Option<Timestamp> {
        let to = second_of(at);
        let last = |expression: &Expression| expression.occurrences.at_or_before(&self.0.zone, to);
        instant(self.0.expressions.iter().filter_map(last).max()?).filter(|last| *last > not_before)
    }

    /// The occurrences later than `after` and not later than `until`, in order.
    pub fn occurrences(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let next = |at: &Timestamp| self.next_after(*at);
        std::iter::successors(self.next_after(after), next).take_while(move |at| *at <= until)
    }

    /// The number of occurrences later than `after` and not later than `until`. The cost does not depend on this
    /// number.
    pub fn count(&self, after: Timestamp, until: Timestamp) -> u64 {
        count::count(&self.0.expressions, &self.0.zone, second_of(after) + 1, second_of(until))
    }

    /// A canonical text of expressions, zone and DST policy, for a digest. Schedules with the same meaning have the
    /// same text.
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
        self.0.expressions.iter().map(|expression| expression.text.as_str())
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
        f.debug_tuple("Schedule").field(&self.canonical()).finish()
    }
}

/// `None` if the second is out of range.
fn instant(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}

impl Expression {
    fn parse(text: &str, zone: &Zone, dst: Dst, job: &str) -> Result<Self, ExpressionError> {
        let text = text.trim_end();
        let meaning = parse::parse(text, job)?;
        // A fault of the expression as a whole is reported for its whole text.
        let start = text.chars().take_while(|c| c.is_whitespace()).count();
        let length = text.chars().count() - start;
        let error = |fault| ExpressionError { offset: start, length, fault };
        let occurrences = match &meaning {
            Meaning::Fields(fields) => {
                Occurrences::Local(Timeline::new(fields, Pattern::new(fields).map_err(error)?, dst))
            }
            Meaning::Every(period) => Occurrences::Every(*period),
            Meaning::At(at) => Occurrences::At(*at),
        };
        if occurrences.at_or_after(zone, i64::MIN).is_none() {
            let why = describe::missing_days(&meaning);
            return Err(error(Fault::Impossible { zone: zone.name().to_owned(), why }));
        }
        Ok(Self { text: text.trim_start().to_owned(), meaning, occurrences })
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
