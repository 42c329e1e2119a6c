//! The id of a run: `<job>.<20261120T023000Z>`.
//!
//! It consists of the job and the scheduled time, so that repeating a commit is harmless. The id of a manual run ends
//! with the number of its trigger: `<job>.<20261120T023000Z>.m<seq>`. Job names may contain dots and may look like the
//! rest of an id. The last part distinguishes the two forms, because a time ends in `Z`. The share of one node of a run on
//! every node has the node's name after an `@`, which no job's and no node's name contains.

use std::fmt;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::TriggerSeq;
use crate::job::JobName;
use crate::term::NodeName;

/// The years in UTC that an occurrence may fall in: those of patterns (1970 to 2100), in any time zone.
const YEARS: std::ops::RangeInclusive<i16> = 1969..=2101;

const FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// Identifies a run by its job and its occurrence or trigger. Ordered by job, then by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct RunId {
    job: JobName,
    scheduled_at: Timestamp,
    manual: Option<TriggerSeq>,
    on: Option<NodeName>,
}

/// The error for a text that is not a run id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a run id: expected `<job>.<20261120T023000Z>`, followed by `.m<number>` for a triggered run and by \
     `@<node>` for one node's share of a run on every node"
)]
pub struct BadRunId(pub String);

impl RunId {
    /// The id of `job`'s run for the occurrence at `scheduled_at`, which must be a whole second.
    pub fn scheduled(job: JobName, scheduled_at: Timestamp) -> Self {
        Self { job, scheduled_at, manual: None, on: None }
    }

    /// The id of `job`'s run for the trigger `seq`, which was created at `scheduled_at`.
    pub fn manual(job: JobName, scheduled_at: Timestamp, seq: TriggerSeq) -> Self {
        Self { job, scheduled_at, manual: Some(seq), on: None }
    }

    /// The range of all possible run ids of `job`.
    pub fn all_of(job: &JobName) -> RangeInclusive<Self> {
        let last = Self::manual(job.clone(), Timestamp::MAX, TriggerSeq(u64::MAX));
        Self::scheduled(job.clone(), Timestamp::MIN)..=last
    }

    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// The id of another job's run in the same chain.
    pub fn of(&self, job: JobName) -> Self {
        Self { job, ..self.clone() }
    }

    /// The id of a node's share of this run.
    #[must_use]
    pub fn on(self, node: Option<NodeName>) -> Self {
        Self { on: node, ..self }
    }

    /// The node whose share it is; `None` for a run that is not one.
    pub fn node(&self) -> Option<&NodeName> {
        self.on.as_ref()
    }

    /// True if it is one node's share of this run.
    pub fn is_share_of(&self, run: &Self) -> bool {
        self.on.is_some() && self.clone().on(None) == *run
    }

    /// The trigger that requested the run; `None` for a scheduled run.
    pub fn trigger(&self) -> Option<TriggerSeq> {
        self.manual
    }

    /// The occurrence, or the time of the trigger.
    pub fn scheduled_at(&self) -> Timestamp {
        self.scheduled_at
    }

    /// Parses an id.
    ///
    /// # Errors
    /// If the text is not an id in its only valid spelling.
    pub fn parse(text: &str) -> Result<Self, BadRunId> {
        let bad = || BadRunId(text.to_owned());
        let (run, on) = match text.rsplit_once('@') {
            Some((run, node)) => (run, Some(NodeName::parse(node).map_err(|_| bad())?)),
            None => (text, None),
        };
        let (rest, last) = run.rsplit_once('.').ok_or_else(bad)?;
        let (job, time, manual) = match last.strip_prefix('m') {
            Some(number) => {
                let (job, time) = rest.rsplit_once('.').ok_or_else(bad)?;
                (job, time, Some(sequence(number).ok_or_else(bad)?))
            }
            None => (rest, last, None),
        };
        let job = JobName::parse(job).map_err(|_| bad())?;
        let civil = DateTime::strptime(FORMAT, time).map_err(|_| bad())?;
        // Schedules are not computed beyond these years, so no run can have such an id.
        if !YEARS.contains(&civil.year()) {
            return Err(bad());
        }
        let scheduled_at = civil.to_zoned(TimeZone::UTC).map_err(|_| bad())?.timestamp();
        // `strptime` also accepts fewer digits, but an id names a record and so must have one spelling only.
        Some(Self { job, scheduled_at, manual, on }).filter(|id| id.to_string() == text).ok_or_else(bad)
    }
}

/// Deserializes a time that becomes part of a run id, and rejects one outside [`YEARS`].
///
/// An id with such a time cannot be parsed, and one unparsable id would make a client reject a whole list of runs.
pub(super) fn occurrence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let at = Timestamp::deserialize(deserializer)?;
    match YEARS.contains(&TimeZone::UTC.to_datetime(at).year()) {
        true => Ok(at),
        false => Err(D::Error::custom(format_args!("{at} is outside the years 1969 to 2101 that schedules cover"))),
    }
}

/// Parses a number without sign or leading zeros, so that it has one spelling only.
fn sequence(text: &str) -> Option<TriggerSeq> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(TriggerSeq(number))
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.scheduled_at.strftime(FORMAT))?;
        self.manual.map_or(Ok(()), |seq| write!(f, ".m{seq}"))?;
        self.on.as_ref().map_or(Ok(()), |node| write!(f, "@{node}"))
    }
}

impl TryFrom<String> for RunId {
    type Error = BadRunId;
    fn try_from(text: String) -> Result<Self, BadRunId> {
        Self::parse(&text)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_reads_as_the_job_and_its_scheduled_second() {
        let at = "2026-11-20T02:30:00Z".parse().unwrap();
        let id = RunId::scheduled(JobName::parse("nightly.backup").unwrap(), at);
        assert_eq!(id.to_string(), "nightly.backup.20261120T023000Z");
        assert_eq!(RunId::parse("nightly.backup.20261120T023000Z"), Ok(id));
    }

    fn made(job: &str, second: i64, seq: Option<u64>) -> RunId {
        let (job, at) = (JobName::parse(job).unwrap(), Timestamp::from_second(second).unwrap());
        match seq {
            Some(seq) => RunId::manual(job, at, TriggerSeq(seq)),
            None => RunId::scheduled(job, at),
        }
    }

    #[test]
    fn a_manual_run_carries_its_triggers_number() {
        let id = made("backup", 60, Some(7));
        assert_eq!(id.to_string(), "backup.19700101T000100Z.m7");
        assert_eq!((id.trigger(), RunId::parse("backup.19700101T000100Z.m7")), (Some(TriggerSeq(7)), Ok(id)));
    }

    #[test]
    fn a_share_carries_its_nodes_name() {
        let share = |seq| made("backup", 60, seq).on(Some(NodeName::new("host-a.example")));
        assert_eq!(share(None).to_string(), "backup.19700101T000100Z@host-a.example");
        assert_eq!(share(Some(7)).to_string(), "backup.19700101T000100Z.m7@host-a.example");
        for bad in ["@", "@.a", "@a@b", "@a b"] {
            assert!(RunId::parse(&format!("backup.19700101T000100Z{bad}")).is_err(), "{bad}");
        }
        assert!(share(Some(7)).is_share_of(&made("backup", 60, Some(7))));
        for other in [made("backup", 60, None), made("backup", 61, Some(7)), share(Some(7))] {
            assert!(!share(Some(7)).is_share_of(&other), "{other}");
        }
        assert!(!made("backup", 60, None).is_share_of(&made("backup", 60, None)), "a whole run is no share of itself");
    }

    #[test]
    fn a_time_outside_the_years_of_schedules_is_rejected() {
        for time in ["99991230T220000Z", "19681231T235959Z", "21020101T000000Z"] {
            assert!(RunId::parse(&format!("backup.{time}")).is_err(), "{time}");
        }
        assert!(RunId::parse("backup.21010101T000000Z").is_ok());
    }

    #[test]
    fn a_record_with_such_a_time_is_rejected() {
        let skip = serde_json::to_string(&crate::test_records::skip("backup", 0)).unwrap();
        let run = serde_json::to_string(&crate::test_records::record("backup", 0, "0x1")).unwrap();
        let of = |json: &str, time| json.replace("1970-01-01T00:00:00Z", time);
        for time in ["3026-11-20T09:58:00Z", "-009999-01-02T01:59:59Z"] {
            assert!(serde_json::from_str::<crate::run::Skip>(&of(&skip, time)).is_err(), "{time}");
            assert!(serde_json::from_str::<crate::run::RunRecord>(&of(&run, time)).is_err(), "{time}");
        }
        assert!(serde_json::from_str::<crate::run::Skip>(&of(&skip, "2026-11-20T09:58:00Z")).is_ok());
    }

    #[test]
    fn a_number_has_one_spelling() {
        for text in ["m07", "m+7", "m", "m-1", "m99999999999999999999", "7"] {
            let text = format!("backup.19700101T000100Z.{text}");
            assert_eq!(RunId::parse(&text), Err(BadRunId(text.clone())));
        }
    }

    #[test]
    fn a_time_has_one_spelling() {
        for time in ["19700101T00010Z", "1970101T000100Z", "19700101T0001 0Z", "+19700101T000100Z", "19700101T000100z"]
        {
            let text = format!("backup.{time}");
            assert_eq!(RunId::parse(&text), Err(BadRunId(text.clone())));
        }
    }

    #[test]
    fn the_runs_of_a_job_lie_together_by_time() {
        let mut ids = [made("b", 0, None), made("a", 60, Some(1)), made("a", 60, None), made("a", 0, Some(2))];
        ids.sort();
        let texts = ids.map(|id| id.to_string());
        let expected = ["a.19700101T000000Z.m2", "a.19700101T000100Z", "a.19700101T000100Z.m1", "b.19700101T000000Z"];
        assert_eq!(texts, expected);
    }

    /// Job names, including ones that look like the end of an id.
    fn names() -> impl Strategy<Value = String> {
        "[A-Za-z0-9][A-Za-z0-9._-]{0,79}(\\.19700101T000100Z|\\.m[0-9]{1,3}|)"
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn every_id_is_read_back(
            job in names(),
            second in 0i64..4_102_444_800,
            seq: Option<u64>,
            node in proptest::option::of("[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}"),
        ) {
            let id = made(&job, second, seq).on(node.map(NodeName::new));
            prop_assert_eq!(RunId::parse(&id.to_string()), Ok(id));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = RunId::parse(&text);
        }
    }
}
