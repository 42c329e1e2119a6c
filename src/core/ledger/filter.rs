//! Which records of the history a caller wants, and the order of records.
//!
//! Every place that reads history applies the same [`Filter`] and the same order, so that records of different places
//! can be merged, and a caller can continue after the last record it has seen ([`Filter::before`]).

mod pattern;

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

pub use self::pattern::{BadPattern, JobPattern};
use crate::duration;
use crate::job::JobName;
use crate::run::{HistoryRecord, Outcome};
use crate::term::NodeName;

/// Which records are wanted: those that meet every condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Only records of this job.
    pub job: Option<JobName>,
    /// Only records of jobs that match one of these; empty: of all jobs.
    pub jobs: Vec<JobPattern>,
    /// With one of these endings; empty: with any.
    pub endings: Vec<Ending>,
    /// Runs that this node owned, skips of its shares, and other skips that it decided.
    pub node: Option<NodeName>,
    /// Only what ended, or was skipped, at this time or later.
    pub since: Option<Timestamp>,
    /// Only what ended, or was skipped, at this time or earlier.
    pub until: Option<Timestamp>,
    /// Older than this record.
    pub before: Option<Position>,
}

/// How a record ends: a run with its outcome, or a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Run(Outcome),
    Skipped,
}

/// Kind of a history record. A run and a skip record may have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Run,
    Skip,
}

/// A record's place in the history, and its identity. The order is from old to new, and total: records of one
/// microsecond are ordered by their id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// When the run ended, or the skip was decided, in microseconds since 1970.
    pub at: i64,
    /// The id of the run.
    pub run: String,
    pub kind: Kind,
}

impl Filter {
    /// All records of a job.
    pub fn of_job(job: JobName) -> Self {
        Self { job: Some(job), ..Self::default() }
    }

    /// True if it refuses any record at all, apart from those of other jobs.
    pub fn is_restricted(&self) -> bool {
        let is_of_time = self.since.is_some() || self.until.is_some() || self.before.is_some();
        !self.endings.is_empty() || self.node.is_some() || is_of_time
    }

    pub fn wants_job(&self, job: &str) -> bool {
        self.job.as_ref().is_none_or(|wanted| wanted.as_str() == job)
            && (self.jobs.is_empty() || self.jobs.iter().any(|pattern| pattern.matches(job)))
    }

    /// The only job that it can match, if there is just one.
    pub fn only_job(&self) -> Option<&str> {
        match (&self.job, self.jobs.as_slice()) {
            (Some(job), _) => Some(job.as_str()),
            (None, [pattern]) => pattern.as_name(),
            (None, _) => None,
        }
    }

    /// The endings as in logs and history.
    pub fn wants_ending(&self, ending: &str) -> bool {
        self.endings.is_empty() || self.endings.iter().any(|wanted| wanted.as_str() == ending)
    }

    pub fn wants_node(&self, node: &str) -> bool {
        self.node.as_ref().is_none_or(|wanted| wanted.as_str() == node)
    }

    /// The times of wanted records, in microseconds, both included.
    pub fn times(&self) -> (i64, i64) {
        let until = self.until.map_or(i64::MAX, Timestamp::as_microsecond);
        let before = self.before.as_ref().map_or(i64::MAX, |before| before.at);
        (self.since.map_or(i64::MIN, ceiling), until.min(before))
    }

    /// True if records at this position may be wanted, by their time alone.
    pub fn wants_position(&self, position: &Position) -> bool {
        let (since, until) = self.times();
        (since..=until).contains(&position.at) && self.before.as_ref().is_none_or(|before| position < before)
    }

    pub fn matches(&self, record: &HistoryRecord) -> bool {
        self.wants_job(record.job().as_str())
            && self.wants_ending(Ending::of(record).as_str())
            && self.wants_node(record.about().as_str())
            && self.wants_position(&Position::of(record))
    }
}

/// The first microsecond that is not before `at`.
fn ceiling(at: Timestamp) -> i64 {
    let floor = at.as_microsecond();
    if at.as_nanosecond() > i128::from(floor) * 1_000 { floor.saturating_add(1) } else { floor }
}

impl Ending {
    pub const ALL: [Self; 7] = [
        Self::Run(Outcome::Success),
        Self::Run(Outcome::Failure),
        Self::Run(Outcome::Timeout),
        Self::Run(Outcome::Killed),
        Self::Run(Outcome::Interrupted),
        Self::Run(Outcome::Abandoned),
        Self::Skipped,
    ];

    /// The endings of runs that did not succeed. Skips are not among them: no run failed.
    pub fn failed() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|ending| !matches!(ending, Self::Run(Outcome::Success) | Self::Skipped))
    }

    pub fn of(record: &HistoryRecord) -> Self {
        match record {
            HistoryRecord::Run(end) => Self::Run(end.outcome),
            HistoryRecord::Skip(_) => Self::Skipped,
        }
    }

    /// The ending with this name.
    ///
    /// # Errors
    /// If there is none; the error lists them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|ending| ending.as_str() == text);
        let names = || Self::ALL.map(Self::as_str).join(", ");
        found.ok_or_else(|| format!("`{}` is not an outcome: expected one of {}", shown(text), names()))
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run(outcome) => outcome.as_str(),
            Self::Skipped => "skipped",
        }
    }
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Skip => "skip",
        }
    }
}

impl Position {
    pub fn of(record: &HistoryRecord) -> Self {
        let kind = match record {
            HistoryRecord::Run(_) => Kind::Run,
            HistoryRecord::Skip(_) => Kind::Skip,
        };
        Self { at: record.at().as_microsecond(), run: record.id().to_string(), kind }
    }

    /// Reads what `Display` wrote.
    ///
    /// # Errors
    /// If it is not a position.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '.');
        let (at, kind, run) = (parts.next(), parts.next(), parts.next());
        let kind = match kind {
            Some("run") => Some(Kind::Run),
            Some("skip") => Some(Kind::Skip),
            _ => None,
        };
        let read = || Some(Self { at: at?.parse().ok()?, kind: kind?, run: run?.to_owned() });
        read().ok_or_else(|| format!("`{}` is not a position in the history: use `next` of an answer", shown(text)))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.at, self.kind.as_str(), self.run)
    }
}

/// Reads an instant: RFC 3339, a date or date and time in UTC as the tables show it, or how long ago, such as `2d`.
///
/// # Errors
/// If it is not one of these.
pub fn instant(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    if let Ok(at) = text.parse::<DateTime>() {
        return at.to_zoned(TimeZone::UTC).map(|at| at.timestamp()).map_err(|error| error.to_string());
    }
    let ago = duration::parse(text).map_err(|_| {
        format!(
            "`{}` is not a time: expected for example `2026-11-20T18:00:00+01:00`, `2026-11-20` (UTC), or `2d` for \
             two days ago",
            shown(text)
        )
    })?;
    now.checked_sub(ago).map_err(|error| error.to_string())
}

fn shown(text: &str) -> String {
    crate::escape::short(text, 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Skip;
    use crate::test_records::{record, skip, success};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_time_is_an_instant_a_date_or_how_long_ago() {
        let now = at("2026-11-20T12:00:00Z");
        for (text, wanted) in [
            ("2026-11-20T10:00:00+01:00", "2026-11-20T09:00:00Z"),
            ("2026-11-20", "2026-11-20T00:00:00Z"),
            ("2026-11-20 09:30:05.250", "2026-11-20T09:30:05.25Z"),
            ("2d", "2026-11-18T12:00:00Z"),
            ("1h30m", "2026-11-20T10:30:00Z"),
        ] {
            assert_eq!(instant(text, now), Ok(at(wanted)), "{text}");
        }
        for bad in ["", "yesterday", "2026-13-01", "90"] {
            assert!(instant(bad, now).unwrap_err().contains("is not a time"), "{bad}");
        }
    }

    #[test]
    fn a_position_is_read_back_and_nonsense_is_refused() {
        let position = Position::of(&HistoryRecord::Run(success(record("a.b", 60, "s"))));
        assert_eq!(Position::parse(&position.to_string()), Ok(position));
        for bad in ["", "1", "1.run", "x.run.a", "1.walk.a", "99999999999999999999.run.a"] {
            assert!(Position::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn failed_means_runs_that_did_not_succeed() {
        let failed: Vec<_> = Ending::failed().map(Ending::as_str).collect();
        assert_eq!(failed, ["failure", "timeout", "killed", "interrupted", "abandoned"]);
    }

    #[test]
    fn every_condition_must_hold() {
        let run = HistoryRecord::Run(success(record("load", 60, "s")));
        let missed = HistoryRecord::Skip(skip("load", 60));
        let is_wanted = |filter: &Filter| (filter.matches(&run), filter.matches(&missed));
        assert_eq!(is_wanted(&Filter::default()), (true, true));
        let skipped = Filter { endings: vec![Ending::Skipped], ..Filter::default() };
        assert_eq!(is_wanted(&skipped), (false, true));
        let other = Filter { jobs: vec![JobPattern::parse("b*").unwrap()], ..Filter::default() };
        assert_eq!(is_wanted(&other), (false, false));
        let at = run.at();
        let exactly = Filter { since: Some(at), until: Some(at), ..Filter::of_job(run.job().clone()) };
        assert!(exactly.matches(&run));
        let later = Filter { since: Some(at + std::time::Duration::from_nanos(1)), ..Filter::default() };
        assert!(!later.matches(&run));
        let before = Filter { before: Some(Position::of(&run)), ..Filter::default() };
        assert!(!before.matches(&run));
    }

    #[test]
    fn a_skipped_share_is_its_nodes_and_not_that_of_the_leader_who_skipped_it() {
        let by_leader = Skip { node: NodeName::new("host-a"), ..skip("load", 60) };
        let of_share = Skip { on: Some(NodeName::new("host-b")), ..by_leader.clone() };
        let of = |node: &str| Filter { node: Some(NodeName::new(node)), ..Filter::default() };
        let wanted =
            |skip: &Skip| ["host-a", "host-b"].map(|node| of(node).matches(&HistoryRecord::Skip(skip.clone())));
        assert_eq!((wanted(&by_leader), wanted(&of_share)), ([true, false], [false, true]));
    }
}
