//! Where a command reads the jobs, and how it finds one of them.

use std::path::PathBuf;
use std::sync::Arc;

use super::{DEFAULT_JOBS, Error};
use crate::config::{self, LoadError, Loaded};
use crate::job::{Job, JobSet};
use crate::suggest::nearest;

/// The jobs file.
#[derive(Clone, Debug, clap::Args)]
pub struct JobsFile {
    /// A jobs file, or a folder whose *.yaml and *.yml are joined
    #[arg(long = "jobs", value_name = "PATH", env = "CRONKEEPER_JOBS", default_value = DEFAULT_JOBS)]
    pub path: PathBuf,
}

impl JobsFile {
    /// Reads them, to be run here.
    pub(super) fn load(&self) -> Result<Loaded, LoadError> {
        config::load(&self.path)
    }

    /// Reads them, to be looked at only.
    pub(super) fn load_to_look(&self) -> Result<Loaded, LoadError> {
        config::load_for_any_host(&self.path)
    }
}

/// The job of this name.
pub(super) fn find<'a>(set: &'a JobSet, name: &str) -> Result<&'a Arc<Job>, Error> {
    let found = set.jobs.iter().find(|(known, _)| known.as_str() == name).map(|(_, job)| job);
    found.ok_or_else(|| Error::NoSuchJob {
        name: name.to_owned(),
        nearest: nearest(name, set.jobs.keys().map(|name| name.as_str())).map(str::to_owned),
    })
}
