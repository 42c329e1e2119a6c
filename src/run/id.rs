//! A run's id: `<job>.<20261120T023000Z>`, from the job and the scheduled time, so that repeating a commit is harmless.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::job::JobName;

const FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// Which occurrence of which job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId {
    job: JobName,
    scheduled_at: Timestamp,
}

/// A text that is no run id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no run id: they read `<job>.<20261120T023000Z>`")]
pub struct BadRunId(pub String);

impl RunId {
    /// The run of `job`'s occurrence at `scheduled_at`. Occurrences are whole seconds.
    pub fn scheduled(job: JobName, scheduled_at: Timestamp) -> Self {
        Self { job, scheduled_at }
    }

    /// The job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// The occurrence.
    pub fn scheduled_at(&self) -> Timestamp {
        self.scheduled_at
    }

    /// Reads an id.
    ///
    /// # Errors
    /// When the text is none.
    pub fn parse(text: &str) -> Result<Self, BadRunId> {
        let bad = || BadRunId(text.to_owned());
        let (job, time) = text.rsplit_once('.').ok_or_else(bad)?;
        let job = JobName::parse(job).map_err(|_| bad())?;
        let civil = DateTime::strptime(FORMAT, time).map_err(|_| bad())?;
        let scheduled_at = civil.to_zoned(TimeZone::UTC).map_err(|_| bad())?.timestamp();
        Ok(Self { job, scheduled_at })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.scheduled_at.strftime(FORMAT))
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

    proptest! {
        #[test]
        fn every_id_is_read_back(job in "[A-Za-z0-9][A-Za-z0-9._-]{0,99}", second in 0i64..4_102_444_800) {
            let id = RunId::scheduled(JobName::parse(&job).unwrap(), Timestamp::from_second(second).unwrap());
            prop_assert_eq!(RunId::parse(&id.to_string()), Ok(id));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = RunId::parse(&text);
        }
    }
}
