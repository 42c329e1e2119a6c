//! Parameters: variables that a trigger sets for its run.
//!
//! They are in the records of the trigger and of its run, so that every attempt has them, whichever node makes it. The
//! job names the variables that a trigger may set. Jobs that run after the triggered one do not get them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Trigger;
use crate::job::Job;

/// Most bytes of a value.
const LONGEST: usize = 1 << 10;
/// Most bytes of all names and values of a run, as its record has them: in JSON, where a character can take six bytes.
const LARGEST: usize = 8 << 10;

/// The variables that a trigger sets for its run, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters(BTreeMap<String, String>);

/// Why a trigger's parameters are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadParameters {
    #[error("a run has at most {} parameters", Parameters::MOST)]
    TooMany,
    #[error("the value of parameter `{0}` has more than {LONGEST} bytes")]
    TooLong(String),
    #[error("the names and values of the parameters have more than {LARGEST} bytes as JSON")]
    TooLarge,
    #[error("the value of parameter `{0}` has a NUL character, which cannot be passed to a process")]
    Nul(String),
    #[error("job `{job}` does not take the parameter {unknown}: {}", taken(.allowed))]
    NotAllowed { job: String, unknown: String, allowed: BTreeSet<String> },
}

fn taken(allowed: &BTreeSet<String>) -> String {
    match allowed.is_empty() {
        true => "it takes none; its key `parameters` lists those that a trigger may set".to_owned(),
        false => format!("its key `parameters` lists {}", quoted(allowed)),
    }
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(|name| format!("`{}`", crate::escape::short(name, 60))).collect::<Vec<_>>().join(", ")
}

impl Parameters {
    /// Most parameters of a run.
    pub const MOST: usize = 16;

    /// Checks the variables of a request about a job that takes the `allowed` ones.
    ///
    /// # Errors
    /// If the job does not take one of them, or if they are too large for a record or a process.
    pub fn check(
        job: &str,
        allowed: &BTreeSet<String>,
        variables: BTreeMap<String, String>,
    ) -> Result<Self, BadParameters> {
        let unknown: Vec<&String> = variables.keys().filter(|name| !allowed.contains(*name)).take(Self::MOST).collect();
        if !unknown.is_empty() {
            let (job, unknown, allowed) = (job.to_owned(), quoted(unknown), allowed.clone());
            return Err(BadParameters::NotAllowed { job, unknown, allowed });
        }
        if variables.len() > Self::MOST {
            return Err(BadParameters::TooMany);
        }
        variables.iter().try_for_each(|(name, value)| check_value(name, value))?;
        let parameters = Self(variables);
        if serde_json::to_vec(&parameters).is_ok_and(|json| json.len() > LARGEST) {
            return Err(BadParameters::TooLarge);
        }
        Ok(parameters)
    }

    /// Checks parameters from a record against the job as it is now. Whoever can write to the ledger can put any into a
    /// record, so this decides before a process gets them. No job can list CRONKEEPER_* or LD_*.
    ///
    /// # Errors
    /// If no run of the job may have them.
    pub fn fit(&self, job: &Job) -> Result<(), BadParameters> {
        if self.is_empty() {
            return Ok(());
        }
        Self::check(job.name.as_str(), &job.parameters, self.0.clone()).map(drop)
    }

    /// Those that a run of the job may have.
    #[must_use]
    pub fn fitting(&self, job: &Job) -> Self {
        let may_be =
            |(name, value): &(&String, &String)| job.parameters.contains(*name) && check_value(name, value).is_ok();
        let some = self.0.iter().filter(may_be).map(|(name, value)| (name.clone(), value.clone())).collect();
        Self::check(job.name.as_str(), &job.parameters, some).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Their names, with commas between.
    pub fn names(&self) -> String {
        self.0.keys().map(String::as_str).collect::<Vec<_>>().join(",")
    }
}

fn check_value(name: &str, value: &str) -> Result<(), BadParameters> {
    if value.len() > LONGEST {
        return Err(BadParameters::TooLong(name.to_owned()));
    }
    if value.contains('\0') {
        return Err(BadParameters::Nul(name.to_owned()));
    }
    Ok(())
}

impl From<Parameters> for BTreeMap<String, String> {
    fn from(parameters: Parameters) -> Self {
        parameters.0
    }
}

/// The format of records with parameters. Records that need nothing new have format 1, so that nodes of older versions
/// read them.
const FORMAT: u32 = 2;

/// The newest format of the records of triggers, links and runs.
const NEWEST: u32 = super::placement::FORMAT;

/// The format of a record with these parts: a node that does not know parameters must not run it without them.
pub(super) fn format_of(trigger: Option<&Trigger>, parameters: &Parameters) -> u32 {
    let is_plain = parameters.is_empty() && trigger.is_none_or(|trigger| trigger.scheduled_at.is_none());
    if is_plain { 1 } else { FORMAT }
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableRecord {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A newer version of cronkeeper has written it, with something that this version would ignore.
    #[error("it has format {0}, but this version of cronkeeper reads at most format {NEWEST}")]
    Format(u32),
}

/// Refuses a record of a format that this version does not know.
pub(super) fn known_format(found: u32) -> Result<(), UnreadableRecord> {
    if found <= NEWEST { Ok(()) } else { Err(UnreadableRecord::Format(found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allowed: &[&str], given: &[(&str, &str)]) -> Result<Parameters, String> {
        let allowed = allowed.iter().map(|&name| name.to_owned()).collect();
        let given = given.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Parameters::check("load", &allowed, given).map_err(|bad| bad.to_string())
    }

    #[test]
    fn a_job_takes_only_the_parameters_that_it_lists() {
        assert_eq!(check(&["DAY", "HOST"], &[("DAY", "a 'b' \"c\"\n$d")]).unwrap().names(), "DAY");
        assert_eq!(
            check(&["DAY", "HOST"], &[("DAY", "1"), ("PATH", "/tmp")]).unwrap_err(),
            "job `load` does not take the parameter `PATH`: its key `parameters` lists `DAY`, `HOST`"
        );
        assert_eq!(
            check(&[], &[("DAY", "1")]).unwrap_err(),
            "job `load` does not take the parameter `DAY`: it takes none; its key `parameters` lists those that a trigger may set"
        );
        assert!(check(&[], &[]).unwrap().is_empty());
    }

    #[test]
    fn records_without_parameters_are_as_they_were_and_newer_formats_are_refused() {
        use crate::run::{Note, RunRecord, TriggerRecord};
        use crate::test_records::record;
        let run = record("load", 60, "s");
        let (old, at) = (serde_json::to_string(&run).unwrap(), run.scheduled_at);
        assert!(old.starts_with(r#"{"v":1,"#) && !old.contains("parameters"));
        assert_eq!(RunRecord::read(old.as_bytes()).unwrap(), run);
        let with = run.with(check(&["DAY"], &[("DAY", "1")]).unwrap());
        let new = serde_json::to_string(&with).unwrap();
        assert_eq!((with.v, RunRecord::read(new.as_bytes()).unwrap()), (2, with.clone()));
        let newer = new.replacen(r#"{"v":2,"#, r#"{"v":4,"#, 1);
        let refused = "it has format 4, but this version of cronkeeper reads at most format 3";
        assert_eq!(RunRecord::read(newer.as_bytes()).unwrap_err().to_string(), refused);

        let request = TriggerRecord::new(uuid::Uuid::nil(), with.job, "alice".into(), at);
        let old = serde_json::to_string(&request).unwrap();
        assert!(!old.contains("parameters") && !old.contains("scheduled_at") && old.starts_with(r#"{"v":1,"#));
        assert_eq!(Note::read(old.as_bytes()).unwrap(), Note::Trigger(request.clone()));
        let for_a_time = request.with(Parameters::default(), Some(at));
        assert_eq!(for_a_time.v, 2);
        let newer = serde_json::to_string(&TriggerRecord { v: 4, ..for_a_time }).unwrap();
        assert_eq!(Note::read(newer.as_bytes()).unwrap_err().to_string(), refused);
    }

    #[test]
    fn of_the_parameters_in_a_record_only_those_fit_that_a_trigger_may_set() {
        let parameters = ["DAY", "HOST", "NOTE"].map(str::to_owned).into();
        let job = &Job { parameters, ..crate::test_records::job("load", "0 0 * * *") };
        let too_long = "x".repeat(LONGEST + 1);
        let in_record = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
            Parameters(variables.collect())
        };
        let fine = in_record(&[("DAY", "1"), ("HOST", "a")]);
        assert_eq!((fine.fit(job), fine.fitting(job)), (Ok(()), fine));
        let forged = in_record(&[("DAY", "1"), ("HOST", "a\0"), ("LD_PRELOAD", "/x"), ("NOTE", &too_long)]);
        assert!(forged.fit(job).is_err());
        assert_eq!(forged.fitting(job), in_record(&[("DAY", "1")]));
    }

    #[test]
    fn values_are_bounded_and_can_be_passed_to_a_process() {
        let names: Vec<String> = (0..=Parameters::MOST).map(|number| format!("V{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = |count: usize, value: &str| {
            check(&names, &names.iter().take(count).map(|&name| (name, value)).collect::<Vec<_>>())
        };
        let (longest, too_long) = ("x".repeat(LONGEST), "x".repeat(LONGEST + 1));
        assert!(all(Parameters::MOST, "x").is_ok() && all(7, &longest).is_ok());
        for (refused, message) in [
            (all(Parameters::MOST + 1, "x"), "a run has at most 16 parameters"),
            (all(1, &too_long), "the value of parameter `V0` has more than 1024 bytes"),
            (all(8, &longest), "the names and values of the parameters have more than 8192 bytes as JSON"),
            (all(2, &"\u{1}".repeat(700)), "the names and values of the parameters have more than 8192 bytes as JSON"),
            (all(1, "a\0"), "the value of parameter `V0` has a NUL character, which cannot be passed to a process"),
        ] {
            assert_eq!(refused.unwrap_err(), message);
        }
    }
}
