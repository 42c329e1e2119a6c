//! The `--jobs` option, and the lookup of a job by name.

use std::path::PathBuf;
use std::sync::Arc;

use super::{DEFAULT_JOBS, Error};
use crate::config::{Content, LoadError, Loaded};
use cronkeeper_core::job::{Job, JobSet};
use cronkeeper_core::suggest::nearest;

#[derive(Clone, Debug, clap::Args)]
pub struct JobsFile {
    /// Jobs file, or directory whose *.yaml and *.yml files are joined
    #[arg(long = "jobs", value_name = "PATH", env = "CRONKEEPER_JOBS", default_value = DEFAULT_JOBS)]
    pub path: PathBuf,
}

impl JobsFile {
    /// Loads the jobs to run them on this host.
    pub(super) fn load(&self) -> Result<Loaded, LoadError> {
        self.load_content(&Content::read(&self.path)?)
    }

    /// Parses the jobs to run them on this host.
    pub(super) fn load_content(&self, content: &Content) -> Result<Loaded, LoadError> {
        located(content, content.load())
    }

    /// Loads the jobs to show them, without the checks that depend on this host.
    pub(super) fn load_to_show(&self) -> Result<Loaded, LoadError> {
        let content = Content::read(&self.path)?;
        located(&content, content.load_for_any_host())
    }
}

/// Adds to the problems where they are, for people.
pub(super) fn located(content: &Content, loaded: Result<Loaded, LoadError>) -> Result<Loaded, LoadError> {
    loaded.map_err(|mut error| {
        if let LoadError::Invalid { problems, warnings } = &mut error {
            content.locate(problems);
            content.locate(warnings);
        }
        error
    })
}

pub(super) fn find<'a>(set: &'a JobSet, name: &str) -> Result<&'a Arc<Job>, Error> {
    let found = set.jobs.iter().find(|(known, _)| known.as_str() == name).map(|(_, job)| job);
    found.ok_or_else(|| Error::NoSuchJob {
        name: name.to_owned(),
        nearest: nearest(name, set.jobs.keys().map(|name| name.as_str())).map(str::to_owned),
    })
}
