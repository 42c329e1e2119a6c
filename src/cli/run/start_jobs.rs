//! The jobs that a node starts with: those of its file, or the last good ones if the file is wrong or missing.

use std::path::Path;

use jiff::Timestamp;

use crate::cli::Error;
use crate::cli::jobs::JobsFile;
use crate::config::last_good::{Copy, CopyError, LastGood};
use crate::config::{self, Content, LoadError, Loaded};
use crate::daemon::reload::StartedWith;

/// Valid jobs to start with.
pub(super) struct StartJobs {
    pub loaded: Loaded,
    pub started_with: StartedWith,
    /// Why these are not the jobs of the file; absent if they are.
    pub rejected: Option<Rejected>,
}

/// A jobs file that was rejected at the start.
pub(super) struct Rejected {
    pub error: LoadError,
    /// When the copy was made that is used instead.
    pub copied_at: Timestamp,
}

/// Why the last good jobs are not used.
#[derive(Debug, thiserror::Error)]
pub enum NotUsed {
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// They were valid once, but not for this version, host or user.
    #[error("they are no longer valid: {0}")]
    Invalid(LoadError),
}

impl StartJobs {
    /// Loads the jobs file, or without `is_strict` the copy in the state directory.
    ///
    /// # Errors
    /// If the file is wrong or missing, and there is no copy to use.
    pub fn load(file: &JobsFile, state_dir: &Path, is_strict: bool) -> Result<Self, Error> {
        let copy = LastGood::new(state_dir, &file.path);
        let read = Content::read(&file.path);
        let fingerprint = config::fingerprint_of(&read);
        let error = match read.and_then(|content| file.load_content(&content).map(|loaded| (loaded, content))) {
            Ok((loaded, content)) => {
                let started_with = StartedWith { fingerprint, accepted: Some(content), copy };
                return Ok(Self { loaded, started_with, rejected: None });
            }
            Err(error) if is_strict => return Err(error.into()),
            Err(error) => error,
        };
        match last_good(&copy) {
            Ok((loaded, copied_at)) => {
                let started_with = StartedWith { fingerprint, accepted: None, copy };
                Ok(Self { loaded, started_with, rejected: Some(Rejected { error, copied_at }) })
            }
            Err(NotUsed::Copy(CopyError::Missing(_))) => Err(error.into()),
            Err(why) => Err(Error::NoGoodJobs { source: error, why }),
        }
    }
}

fn last_good(copy: &LastGood) -> Result<(Loaded, Timestamp), NotUsed> {
    let Copy { content, at } = copy.read()?;
    Ok((content.load().map_err(NotUsed::Invalid)?, at))
}
