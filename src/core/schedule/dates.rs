//! The dates of a calendar file: one entry a line, for days from 1970 to 2100, as schedules have them.
//!
//! ```text
//! 2026-12-25 Christmas Day          a date; what follows it is a name
//! 2026-12-28..2027-01-03            a range, both ends included
//! 05-01                             this day of every year     # a comment
//! ```
//! What is written but not understood is refused, because a date that is silently left out is found too late. So is a
//! file without entries or with an unfinished last line: it is being written, or was cut off.

use jiff::civil::{Date, date};

use super::day::DAY;
use super::zone::start_of;

/// Most entries of a file.
const MOST_ENTRIES: usize = 10_000;
/// Most faults, and most doubts, that are reported of a file.
const MOST_FAULTS: usize = 20;

const FIRST: Date = date(1970, 1, 1);
const LAST: Date = date(2100, 12, 31);
/// The number of days from `FIRST` to `LAST`.
pub(super) const DAYS: i64 = 47_847;
const WORDS: usize = (DAYS as usize).div_ceil(64);

/// A set of days: bit 0 is 1970-01-01.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DaySet(Box<[u64]>);

impl DaySet {
    pub(super) fn none() -> Self {
        Self(vec![0; WORDS].into())
    }

    pub(super) fn all() -> Self {
        let mut all = Self::none();
        all.add(0, DAYS - 1);
        all
    }

    /// Adds the days from `first` to `last`, both included and in range.
    fn add(&mut self, first: i64, last: i64) {
        let begin = first.div_euclid(64);
        let words = self.0.iter_mut().skip(usize::try_from(begin).unwrap_or(0));
        for (word, bits) in (begin..=last.div_euclid(64)).zip(words) {
            let from = (first - word * 64).clamp(0, 64);
            let to = (last + 1 - word * 64).clamp(0, 64);
            *bits |= below(to) & !below(from);
        }
    }

    pub(super) fn unite(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, others)| *bits |= others);
    }

    pub(super) fn remove(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, others)| *bits &= !others);
    }

    pub(super) fn has(&self, day: i64) -> bool {
        let word = usize::try_from(day.div_euclid(64)).ok().and_then(|word| self.0.get(word));
        word.is_some_and(|bits| bits >> day.rem_euclid(64) & 1 == 1)
    }

    /// The first day from `day` on that is in the set, or, if `held` is false, that is not. `day` is in range.
    pub(super) fn next(&self, day: i64, held: bool) -> Option<i64> {
        let words = (0_i64..).zip(&self.0).skip(usize::try_from(day / 64).ok()?);
        let wanted =
            words.map(|(word, bits)| (word, if held { *bits } else { !bits } & !below((day - word * 64).clamp(0, 64))));
        let (word, bits) = wanted.into_iter().find(|(_, bits)| *bits != 0)?;
        Some(word * 64 + i64::from(bits.trailing_zeros())).filter(|day| *day < DAYS)
    }

    /// The last day up to `day` that is in the set. `day` is in range.
    pub(super) fn previous(&self, day: i64) -> Option<i64> {
        let words = self.0.get(..=usize::try_from(day / 64).ok()?)?;
        let wanted = (0..=day / 64).rev().zip(words.iter().rev());
        let mut wanted = wanted.map(|(word, bits)| (word, bits & below((day + 1 - word * 64).clamp(0, 64))));
        let (word, bits) = wanted.find(|(_, bits)| *bits != 0)?;
        Some(word * 64 + i64::from(bits.ilog2()))
    }

    pub(super) fn bytes(&self) -> impl Iterator<Item = [u8; 8]> {
        self.0.iter().map(|bits| bits.to_le_bytes())
    }
}

/// The bits below `end`, which is 0 to 64.
fn below(end: i64) -> u64 {
    if end >= 64 { u64::MAX } else { (1 << end) - 1 }
}

/// The number of a date, counted from 1970-01-01.
pub(super) fn number(date: Date) -> i64 {
    start_of(date).div_euclid(DAY)
}

/// The days that a calendar file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dates {
    pub(super) days: DaySet,
    newest: Option<(Date, usize)>,
    doubts: Vec<DateFault>,
}

/// An error in a calendar file, or what is valid there but hardly meant. It does not quote the file, which may be a
/// wrong one and secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DateFault {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: &'static str,
}

impl Dates {
    /// Parses the lines of a file.
    ///
    /// # Errors
    /// Every line that is not understood, up to a limit.
    pub fn parse(text: &str) -> Result<Self, Vec<DateFault>> {
        let mut dates = Self { days: DaySet::none(), newest: None, doubts: Vec::new() };
        let (mut faults, mut entries) = (Vec::new(), 0);
        for (line, text) in (1..).zip(text.lines()) {
            let entry = text.trim_start();
            if entry.is_empty() || entry.starts_with('#') {
                continue;
            }
            entries += 1;
            let read = match entries > MOST_ENTRIES {
                true => Err("more than 10000 entries; write consecutive days as a range"),
                false => dates.take(entry, line),
            };
            let before = text.chars().take_while(|c| c.is_whitespace()).count();
            if let Some(offset) = second_date(entry).filter(|_| dates.doubts.len() < MOST_FAULTS) {
                dates.doubts.push(DateFault { line, column: 1 + before + offset, message: SECOND_DATE });
            }
            if let Err(message) = read {
                let column = 1 + before;
                faults.push(DateFault { line, column, message });
                if entries > MOST_ENTRIES || faults.len() == MOST_FAULTS {
                    break;
                }
            }
        }
        if faults.len() < MOST_FAULTS {
            faults.extend(unfinished(text));
        }
        if faults.is_empty() && entries == 0 {
            faults.push(DateFault { line: 1, column: 1, message: NO_ENTRIES });
        }
        if faults.is_empty() { Ok(dates) } else { Err(faults) }
    }

    /// The last date that is written with its year, and its line.
    pub fn newest(&self) -> Option<(Date, usize)> {
        self.newest
    }

    /// Dates that were taken for names.
    pub fn doubts(&self) -> &[DateFault] {
        &self.doubts
    }

    fn take(&mut self, entry: &str, line: usize) -> Result<(), &'static str> {
        let (written, name) = parts(entry);
        if is_rest_of_range(name) {
            return Err("a range is written without spaces: `2026-12-24..2027-01-06`");
        }
        if let Some((first, last)) = written.split_once("..") {
            let (first, last) = (dated(first)?, dated(last)?);
            if last < first {
                return Err("the range ends before it begins");
            }
            self.days.add(number(first), number(last));
            self.newest = self.newest.max(Some((last, line)));
        } else if written.len() == "12-25".len() {
            let (month, day) = yearly(written)?;
            self.add_yearly(month, day);
        } else {
            let date = dated(written)?;
            self.days.add(number(date), number(date));
            self.newest = self.newest.max(Some((date, line)));
        }
        Ok(())
    }

    fn add_yearly(&mut self, month: i8, day: i8) {
        for date in (FIRST.year()..=LAST.year()).filter_map(|year| Date::new(year, month, day).ok()) {
            self.days.add(number(date), number(date));
        }
    }
}

const EXPECTED: &str = "expected a date such as `2026-12-25`, a range such as `2026-12-24..2027-01-06`, or a day of \
                        every year such as `12-25`";
const SECOND_DATE: &str = "this date does not count, because it is read as the name of the date before it; write each \
    date on its own line, or `#` before a name";
const NO_SUCH_DAY: &str = "there is no such day";
const NO_ENTRIES: &str = "the calendar has no entries; write at least one date, or remove the file from the `calendar` \
                          of all jobs";
const UNFINISHED: &str = "the last line has no line end: is the file complete? If it is, end the line";

/// The fault of a last line that does not end: more of it may be missing than its end.
fn unfinished(text: &str) -> Option<DateFault> {
    let last = text.rsplit('\n').next().filter(|last| !last.is_empty())?;
    let line = 1 + text.matches('\n').count();
    Some(DateFault { line, column: 1 + last.chars().count(), message: UNFINISHED })
}

/// What is written of an entry, and its name.
fn parts(entry: &str) -> (&str, &str) {
    entry.split_at(entry.find(|c: char| c.is_whitespace() || c == '#').unwrap_or(entry.len()))
}

/// Where, in characters, the name of an entry begins with something that would be an entry itself.
fn second_date(entry: &str) -> Option<usize> {
    let name = parts(entry).1.trim_start_matches(|c: char| c.is_whitespace() || ",;&+-–—".contains(c));
    let word = name.strip_prefix("and ").unwrap_or(name).trim_start();
    let second = parts(word).0.trim_end_matches([',', ';']);
    let is_entry = match second.split_once("..") {
        Some((first, last)) => dated(first).is_ok() && dated(last).is_ok(),
        None => dated(second).is_ok() || yearly(second).is_ok(),
    };
    is_entry.then(|| entry[..entry.len() - word.len()].chars().count())
}

/// A day of every year, such as 12-25.
fn yearly(text: &str) -> Result<(i8, i8), &'static str> {
    let parts = text.split_once('-').filter(|_| text.len() == "12-25".len());
    let Some((month, day)) = parts.and_then(|(month, day)| Some((digits(month)?, digits(day)?))) else {
        return Err(EXPECTED);
    };
    let (Ok(month), Ok(day)) = (i8::try_from(month), i8::try_from(day)) else { return Err(EXPECTED) };
    // 2000 was a leap year, so it had every day that any year has.
    Date::new(2000, month, day).map(|_| (month, day)).map_err(|_| NO_SUCH_DAY)
}

/// A date such as 2026-12-25.
fn dated(text: &str) -> Result<Date, &'static str> {
    let mut parts = text.split('-');
    let (Some(year), Some(month), Some(day), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(EXPECTED);
    };
    let is_written_out = [(year, 4), (month, 2), (day, 2)].into_iter().all(|(part, length)| part.len() == length);
    let (true, Some(year), Some(month), Some(day)) = (is_written_out, digits(year), digits(month), digits(day)) else {
        return Err(EXPECTED);
    };
    let (Ok(month), Ok(day)) = (i8::try_from(month), i8::try_from(day)) else { return Err(EXPECTED) };
    let date = Date::new(year, month, day).map_err(|_| NO_SUCH_DAY)?;
    if (FIRST..=LAST).contains(&date) { Ok(date) } else { Err("only years from 1970 to 2100 are known here") }
}

fn digits(text: &str) -> Option<i16> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// True if what follows a date makes it the begin of a range rather than a named day.
fn is_rest_of_range(name: &str) -> bool {
    let name = name.trim_start();
    let behind = ["..", "-", "–", "—", "to ", "until "].iter().find_map(|separator| name.strip_prefix(separator));
    let word = behind.and_then(|behind| behind.split_whitespace().next());
    name.starts_with("..") || word.is_some_and(|word| dated(word).is_ok())
}
