//! The content of jobs files as read, before it is parsed.
//!
//! It is read once and then used for everything that has to be about the same bytes: the set of jobs, its digest, the
//! place of a problem, and the copy that a node keeps of the last good jobs.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::calendars::CalendarFiles;
use super::files::{self, Source};
use super::host::Host;
use super::{LoadError, Loaded, Problem, digest, join};
use crate::config::source::LARGEST;
use cronkeeper_core::job::Digest;

/// The jobs files at a path, and the calendars that they name.
#[derive(Clone, Debug)]
pub struct Content {
    path: PathBuf,
    pub(super) sources: Vec<Source>,
    calendars: CalendarFiles,
    /// Files that were not read, because other users may change them.
    refused: Vec<Problem>,
}

impl Content {
    /// Reads a file, or all `*.yaml` and `*.yml` of a directory, that no other user can change.
    ///
    /// # Errors
    /// If a file or the directory cannot be read. Files that are not safe from other users are reported by
    /// [`Content::load`], with everything else that is wrong.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let found = files::read(path)?;
        let calendars = CalendarFiles::read(&found.sources);
        Ok(Self { path: path.to_owned(), sources: found.sources, calendars, refused: found.problems })
    }

    /// Like [`Content::read`], whoever owns the files and may change them: to check them where they will not run.
    ///
    /// # Errors
    /// If a file or the directory cannot be read.
    pub fn read_untrusted(path: &Path) -> Result<Self, LoadError> {
        let found = files::read_untrusted(path)?;
        let calendars = CalendarFiles::read_untrusted(&found.sources);
        Ok(Self { path: path.to_owned(), sources: found.sources, calendars, refused: found.problems })
    }

    /// Content of known files, for example of a copy; `path` is what they were read from.
    pub fn of_files(path: &Path, files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Self {
        let sources = files.into_iter().map(|(path, bytes)| Source { path, bytes }).collect();
        Self { path: path.to_owned(), sources, calendars: CalendarFiles::default(), refused: Vec::new() }
    }

    /// The same files with known calendars in place of those that they had.
    pub fn with_calendars(self, calendars: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Self {
        let calendars = calendars.into_iter().map(|(path, bytes)| (path, Ok(bytes))).collect();
        Self { calendars: CalendarFiles(calendars), ..self }
    }

    /// The same files with the calendars that they name, read by the rules of [`Content::read`].
    pub fn reading_calendars(self) -> Self {
        Self { calendars: CalendarFiles::read(&self.sources), ..self }
    }

    /// Like [`Content::reading_calendars`], by the rules of [`Content::read_untrusted`].
    pub fn reading_untrusted_calendars(self) -> Self {
        Self { calendars: CalendarFiles::read_untrusted(&self.sources), ..self }
    }

    /// Reads one file from a stream, without calendars; messages call it `name`.
    ///
    /// # Errors
    /// If the stream cannot be read.
    pub fn of_stream(name: &str, stream: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        // One byte more than allowed, to detect a file that is too large.
        stream.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Self::of_files(Path::new(name), [(name.into(), bytes)]))
    }

    /// What was read: a file or a directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The calendars that the files name and that could be read, each with its bytes.
    pub fn calendars(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.calendars.0.iter().filter_map(|(path, read)| Some((path.as_path(), read.as_deref().ok()?)))
    }

    /// True if the files name calendars, whether or not these can be read.
    pub fn has_calendars(&self) -> bool {
        !self.calendars.0.is_empty()
    }

    /// The warnings that valid files get with time: about calendars whose dates end.
    pub fn warnings_of_time(&self, now: Timestamp) -> Vec<Problem> {
        self.calendars.parse(now).ends
    }

    /// The jobs files, each with its bytes.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, &[u8])> {
        self.sources.iter().map(|source| (source.path.as_path(), source.bytes.as_slice()))
    }

    /// Changes with the names and bytes of the files and of their calendars.
    pub fn digest(&self) -> Digest {
        digest(&self.sources, &self.calendars)
    }

    /// Parses the jobs, to run them on this host as this user.
    ///
    /// # Errors
    /// If anything is wrong with the jobs; the error lists every problem.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        self.load_for(Host::this())
    }

    /// Like [`Content::load`], and warns about files on this host that the jobs could not be given. It may block.
    ///
    /// # Errors
    /// If anything is wrong with the jobs; the error lists every problem.
    pub fn check(&self) -> Result<Loaded, LoadError> {
        self.load_for(Host::this_with_files())
    }

    /// Parses the jobs without the checks that depend on the host.
    ///
    /// # Errors
    /// If anything is wrong with the jobs; the error lists every problem.
    pub fn load_for_any_host(&self) -> Result<Loaded, LoadError> {
        self.load_for(Host::any())
    }

    fn load_for(&self, host: Host) -> Result<Loaded, LoadError> {
        let (mut reading, warnings) = join(&self.sources, &self.calendars, host);
        if let Err(problems) = &mut reading {
            problems.extend(self.refused.iter().cloned());
            problems.sort();
        } else if !self.refused.is_empty() {
            reading = Err(self.refused.clone());
        }
        let set = reading.map_err(|problems| LoadError::Invalid { problems, warnings: warnings.clone() })?;
        Ok(Loaded { set, warnings, path: self.path.clone() })
    }
}
