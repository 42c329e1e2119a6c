//! The loader of jobs.yaml: a [`JobSet`], or all errors.
//!
//! ```text
//!  files ─ bytes ─► source ─ text ─► marked ─► schema ─► raw (serde_yaml) ─► settings ─► validate ─► JobSet
//!  who may write    UTF-8, size      positions keys,     the file as         values      relations
//!    └─ calendars: the dates in files that they name     written                         (`after`: over all files)
//! ```
//! One pass finds every error, each once and with its position. `cronkeeper check`, the start and a reload all use this
//! path. The module does not depend on the running daemon: a reload is just another `JobSet`.

mod after;
mod calendars;
mod channels;
mod content;
pub mod definition;
mod files;
mod hints;
mod host;
pub mod json_schema;
mod keys;
pub mod last_good;
mod lint;
mod parameters;
mod place;
mod process;
mod raw;
mod schema;
mod settings;
pub(crate) mod size;
mod source;
mod spanned;
mod syntax;
#[cfg(test)]
mod tests;
mod validate;
mod values;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use calendars::CalendarFiles;
use channels::{Defined, Mention, unknown};
use cronkeeper_core::escape;
use cronkeeper_core::job::{Channel, ChannelName, Digest, Group, Job, JobName, JobSet};
use files::Source;
use host::Host;
use spanned::{Fault, Position};

pub(crate) use channels::{
    MOST_CHANNELS, MOST_RECIPIENTS, address, bare_host, is_own_header, is_this_host, mail_address,
};
pub use content::Content;
pub(crate) use lint::GIVEN_TO_JOBS;
pub use place::{Excerpt, Place};
pub(crate) use source::LARGEST;

/// An error or warning with its position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as the caller named it.
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: String,
    /// Empty until [`Content::locate`] has found it.
    pub place: Place,
}

impl Problem {
    fn new(file: &Path, fault: Fault) -> Self {
        let Position { line, column } = fault.at;
        Self { file: file.to_owned(), line, column, message: legible(&fault.message), place: Place::default() }
    }

    /// A problem of the file as a whole.
    fn of_file(file: &Path, message: impl Into<String>) -> Self {
        Self::new(file, Fault::new(Position::START, message))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file.display(), self.line, self.column, self.message)
    }
}

/// Escapes and shortens a message.
///
/// A message may quote the file, so it must stay on one line, must not control a terminal, and must have a limited
/// length.
fn legible(message: &str) -> String {
    escape::short(message, 600)
}

/// Valid jobs, read from a path.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub set: JobSet,
    /// Settings that are valid but probably a mistake.
    pub warnings: Vec<Problem>,
    pub path: PathBuf,
}

/// The reason why jobs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or directory could not be read.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// All errors, ordered by file and position.
    #[error("{}", first_of(problems))]
    Invalid {
        /// Never empty.
        problems: Vec<Problem>,
        /// The warnings of what could be checked.
        warnings: Vec<Problem>,
    },
}

impl LoadError {
    /// One line for each error.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Unreadable { source, .. } => vec![format!("{self}: {source}")],
            Self::Invalid { problems, .. } => problems.iter().map(Problem::to_string).collect(),
        }
    }
}

/// A digest of the content at `path`, valid or not, to detect changes.
pub fn fingerprint(path: &Path) -> Digest {
    fingerprint_of(&Content::read(path))
}

/// The fingerprint of what was read.
pub fn fingerprint_of(content: &Result<Content, LoadError>) -> Digest {
    match content {
        Ok(content) => content.digest(),
        Err(error) => Digest::of(error.to_string().as_bytes()),
    }
}

fn first_of(problems: &[Problem]) -> String {
    let first = problems.first().map(Problem::to_string).unwrap_or_default();
    if problems.len() > 1 { format!("{first} (and {} more)", problems.len() - 1) } else { first }
}

/// Loads a file, or all `*.yaml` and `*.yml` of a directory, to run on this host as this user.
///
/// # Errors
/// If anything is wrong with the jobs; the error lists every problem.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    Content::read(path)?.load()
}

/// Loads a file or directory without the checks that depend on the host.
///
/// # Errors
/// If anything is wrong with the jobs; the error lists every problem.
pub fn load_for_any_host(path: &Path) -> Result<Loaded, LoadError> {
    Content::read(path)?.load_for_any_host()
}

/// Parses one file from memory, without the checks that depend on the host. Returns the jobs and the warnings.
///
/// # Errors
/// Every problem of the file.
pub fn parse(file_name: &str, text: &[u8]) -> Result<(JobSet, Vec<Problem>), Vec<Problem>> {
    parse_for(file_name, text, Host::any())
}

fn parse_for(file_name: &str, text: &[u8], host: Host) -> Result<(JobSet, Vec<Problem>), Vec<Problem>> {
    let sources = [Source { path: file_name.into(), bytes: text.to_owned() }];
    let (set, warnings) = join(&sources, &CalendarFiles::default(), host);
    Ok((set?, warnings))
}

/// Joins files into one set, in which every job name must be unique.
fn join(
    sources: &[Source],
    calendar_files: &CalendarFiles,
    mut host: Host,
) -> (Result<JobSet, Vec<Problem>>, Vec<Problem>) {
    let mut jobs = BTreeMap::new();
    let mut positions: BTreeMap<JobName, (&Path, usize)> = BTreeMap::new();
    let mut groups: BTreeMap<String, (usize, JobName)> = BTreeMap::new();
    let mut calendars = calendar_files.parse(host.now);
    let mut problems = std::mem::take(&mut calendars.problems);
    let mut warnings = std::mem::take(&mut calendars.doubts);
    warnings.append(&mut calendars.ends);
    let mut outlines = after::Outlines::default();
    let mut notify = Channels::default();
    for Source { path, bytes } in sources {
        let checked = validate::file(bytes, calendars.of(path), &mut host);
        outlines.add(path, checked.names, checked.outlines);
        problems.extend(notify.add(path, checked.channels, checked.mentions, checked.has_lost_channels));
        problems.extend(checked.faults.into_iter().map(|fault| Problem::new(path, fault)));
        warnings.extend(checked.warnings.into_iter().map(|fault| Problem::new(path, fault)));
        for (at, job) in checked.jobs {
            if let Some((file, line)) = positions.get(&job.name) {
                let message = format!("job `{}` is already defined in {}:{line}", job.name, file.display());
                problems.push(Problem::new(path, Fault::new(at, message)));
                continue;
            }
            positions.insert(job.name.clone(), (path, at.line));
            if let Some(message) = conflicting_limit(&job, &mut groups) {
                problems.push(Problem::new(path, Fault::new(at, message)));
            }
            jobs.insert(job.name.clone(), job);
        }
    }
    problems.extend(notify.unknown());
    let found = outlines.check();
    problems.extend(found.problems);
    warnings.extend(found.warnings);
    // A fault in an alias or a default affects several jobs but has one position; report it once.
    let in_order = |problems: &mut Vec<Problem>| {
        problems.sort();
        problems.dedup();
    };
    in_order(&mut problems);
    in_order(&mut warnings);
    let reading = match problems.is_empty() {
        true => Ok(JobSet::new(jobs, digest(sources, calendar_files)).with_channels(notify.known)),
        false => Err(problems),
    };
    (reading, warnings)
}

/// The channels of all files, and where jobs name them.
#[derive(Default)]
struct Channels<'a> {
    known: BTreeMap<ChannelName, Channel>,
    positions: BTreeMap<ChannelName, (&'a Path, usize)>,
    mentions: Vec<(&'a Path, Mention)>,
    /// A channel is left out because of an error that is reported.
    is_incomplete: bool,
}

impl<'a> Channels<'a> {
    /// Adds those of a file. Returns an error for each that another file has too.
    fn add(
        &mut self,
        path: &'a Path,
        channels: Vec<Defined>,
        mentions: Vec<Mention>,
        is_incomplete: bool,
    ) -> Vec<Problem> {
        self.is_incomplete |= is_incomplete;
        self.mentions.extend(mentions.into_iter().map(|mention| (path, mention)));
        let mut twice = Vec::new();
        for Defined { at, name, channel } in channels {
            if let Some((file, line)) = self.positions.get(&name) {
                let message = format!("channel `{name}` is already defined in {}:{line}", file.display());
                twice.push(Problem::new(path, Fault::new(at, message)));
                continue;
            }
            self.positions.insert(name.clone(), (path, at.line));
            self.known.insert(name, channel);
        }
        twice
    }

    /// An error for each channel that a job names and no file has.
    fn unknown(&self) -> Vec<Problem> {
        let mentions = self.mentions.iter().filter(|_| !self.is_incomplete);
        let wrong = |(path, mention): &(&Path, Mention)| Some(Problem::new(path, unknown(mention, &self.known)?));
        mentions.filter_map(wrong).collect()
    }
}

/// An error message if the job's group has a different limit in an earlier job.
fn conflicting_limit(job: &Job, groups: &mut BTreeMap<String, (usize, JobName)>) -> Option<String> {
    let Group { name, limit } = job.concurrency_group.clone()?;
    let (first, by) = groups.entry(name.clone()).or_insert_with(|| (limit, job.name.clone()));
    let differs = format!(
        "job `{}`: `concurrency_group`: `{name}` has the limit {limit} here, but {first} in job `{by}`",
        job.name
    );
    (limit != *first).then_some(differs)
}

/// Digest of the names and bytes of all files. The directory is excluded, because nodes may keep the same jobs in
/// different directories, and so is the name of a jobs file that is the only one.
fn digest(sources: &[Source], calendars: &CalendarFiles) -> Digest {
    let mut all = Vec::new();
    let name = |path: &Path| path.file_name().map(std::os::unix::ffi::OsStrExt::as_bytes).unwrap_or_default().to_vec();
    let is_only = sources.len() == 1;
    let of_source = |path: &Path| if is_only { Vec::new() } else { name(path) };
    let sources = sources.iter().map(|Source { path, bytes }| (of_source(path), bytes.as_slice()));
    // Why a calendar cannot be read matters too: it may be readable later.
    let calendars =
        calendars.0.iter().map(|(path, read)| (name(path), read.as_deref().unwrap_or_else(|why| why.as_bytes())));
    for (name, bytes) in sources.chain(calendars) {
        for part in [&*name, bytes] {
            // The length in front of each part makes the boundaries between parts unambiguous.
            all.extend((part.len() as u64).to_le_bytes());
            all.extend(part);
        }
    }
    Digest::of(&all)
}
