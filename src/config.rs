//! jobs.yaml read as a [`JobSet`], or everything that is wrong with it.
//!
//! ```text
//!  files ─ bytes ─► source ─ text ─► marked ─► schema ─► raw (serde_yaml) ─► settings ─► validate ─► JobSet
//!  who may write    UTF-8, size      places    keys,     the file as         values      relations
//!                                              forms     written                         (`after`: of all files)
//! ```
//! Every error is found in one go and has its place; none is found twice. `check`, the start and a reload share
//! this path. Knows nothing of the running daemon: a reload is just another `JobSet`.

mod lint;
mod after;
mod files;
mod hooks;
mod host;
mod spanned;
mod process;
mod raw;
mod schema;
mod settings;
mod size;
mod source;
#[cfg(test)]
mod tests;
mod validate;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::job::{Digest, Group, Job, JobName, JobSet};
use crate::telemetry::escape::is_harmful;
use files::Source;
use host::Host;
use spanned::{Fault, Position};

pub(crate) use lint::GIVEN_TO_JOBS;
pub(crate) use source::LARGEST;
pub(crate) use values::LONGEST_STRING;

/// Something wrong, or worth a warning, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named.
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl Problem {
    fn new(file: &Path, fault: Fault) -> Self {
        let Position { line, column } = fault.at;
        Self { file: file.to_owned(), line, column, message: legible(&fault.message) }
    }

    /// About the file rather than something in it.
    fn of_file(file: &Path, message: impl Into<String>) -> Self {
        Self::new(file, Fault::new(Position::START, message))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file.display(), self.line, self.column, self.message)
    }
}

/// A message may quote the file: it stays on its line, does nothing to a terminal, and ends.
fn legible(message: &str) -> String {
    const LONGEST: usize = 600;
    let escaped = |c: char| if is_harmful(c) { c.escape_default().to_string() } else { c.to_string() };
    let mut text: String = message.chars().take(LONGEST).map(escaped).collect();
    if message.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    text
}

/// Valid jobs, as read from a path.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The jobs.
    pub set: JobSet,
    /// What is valid and hardly meant.
    pub warnings: Vec<Problem>,
    /// Where they were read from.
    pub path: PathBuf,
}

/// Why there are no jobs.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder could not be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Errors, all of them, by file and place.
    #[error("{}", first_of(problems))]
    Invalid {
        /// Never empty.
        problems: Vec<Problem>,
    },
}

impl LoadError {
    /// A line for each error.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Unreadable { source, .. } => vec![format!("{self}: {source}")],
            Self::Invalid { problems } => problems.iter().map(Problem::to_string).collect(),
        }
    }
}

/// Tells the content at `path` from every other, valid or not.
pub fn fingerprint(path: &Path) -> Digest {
    match files::read(path) {
        Ok(found) => digest(&found.sources),
        Err(error) => Digest::of(error.to_string().as_bytes()),
    }
}

fn first_of(problems: &[Problem]) -> String {
    let first = problems.first().map(Problem::to_string).unwrap_or_default();
    if problems.len() > 1 { format!("{first} (and {} more)", problems.len() - 1) } else { first }
}

/// Reads the jobs of a file, or of all `*.yaml` and `*.yml` of a folder, to be run on this host as this user.
///
/// # Errors
/// When anything about them is wrong: then all that is.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    load_for(path, Host::this())
}

/// The same, to be run on whatever host.
///
/// # Errors
/// When anything about them is wrong: then all that is.
pub fn load_for_any_host(path: &Path) -> Result<Loaded, LoadError> {
    load_for(path, Host::any())
}

fn load_for(path: &Path, host: Host) -> Result<Loaded, LoadError> {
    let found = files::read(path)?;
    let (mut reading, warnings) = join(&found.sources, host);
    if let Err(problems) = &mut reading {
        problems.extend(found.problems);
        problems.sort();
    } else if !found.problems.is_empty() {
        return Err(LoadError::Invalid { problems: found.problems });
    }
    let set = reading.map_err(|problems| LoadError::Invalid { problems })?;
    Ok(Loaded { set, warnings, path: path.to_owned() })
}

/// Reads one file from memory, for whatever host: the jobs and the warnings.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(file_name: &str, text: &[u8]) -> Result<(JobSet, Vec<Problem>), Vec<Problem>> {
    parse_for(file_name, text, Host::any())
}

fn parse_for(file_name: &str, text: &[u8], host: Host) -> Result<(JobSet, Vec<Problem>), Vec<Problem>> {
    let (set, warnings) = join(&[Source { path: file_name.into(), bytes: text.to_owned() }], host);
    Ok((set?, warnings))
}

/// Joins files to one set, in which every name is unique.
fn join(sources: &[Source], mut host: Host) -> (Result<JobSet, Vec<Problem>>, Vec<Problem>) {
    let mut jobs = BTreeMap::new();
    let mut places: BTreeMap<JobName, (&Path, usize)> = BTreeMap::new();
    let mut groups: BTreeMap<String, (usize, JobName)> = BTreeMap::new();
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let mut outlines = after::Outlines::default();
    for Source { path, bytes } in sources {
        let checked = validate::file(bytes, &mut host);
        outlines.add(path, checked.names, checked.outlines);
        problems.extend(checked.faults.into_iter().map(|fault| Problem::new(path, fault)));
        warnings.extend(checked.warnings.into_iter().map(|fault| Problem::new(path, fault)));
        for (at, job) in checked.jobs {
            if let Some((file, line)) = places.get(&job.name) {
                let message = format!("job `{}` is already defined in {}:{line}", job.name, file.display());
                problems.push(Problem::new(path, Fault::new(at, message)));
                continue;
            }
            places.insert(job.name.clone(), (path, at.line));
            if let Some(message) = other_limit(&job, &mut groups) {
                problems.push(Problem::new(path, Fault::new(at, message)));
            }
            jobs.insert(job.name.clone(), job);
        }
    }
    let found = outlines.judge();
    problems.extend(found.problems);
    warnings.extend(found.warnings);
    // What an alias or a default brings to several jobs stands in one place.
    let in_order = |problems: &mut Vec<Problem>| {
        problems.sort();
        problems.dedup();
    };
    in_order(&mut problems);
    in_order(&mut warnings);
    let reading = if problems.is_empty() { Ok(JobSet::new(jobs, digest(sources))) } else { Err(problems) };
    (reading, warnings)
}

/// All jobs of a group have to agree on how many of them may run at once.
fn other_limit(job: &Job, groups: &mut BTreeMap<String, (usize, JobName)>) -> Option<String> {
    let Group { name, limit } = job.concurrency_group.clone()?;
    let (first, by) = groups.entry(name.clone()).or_insert_with(|| (limit, job.name.clone()));
    let differs = format!(
        "job `{}`: `concurrency_group`: `{name}` has the limit {limit} here, and {first} in job `{by}`",
        job.name
    );
    (limit != *first).then_some(differs)
}

/// Over the names and bytes of all files. Not over their folder: nodes may keep the same jobs in different places.
fn digest(sources: &[Source]) -> Digest {
    let mut all = Vec::new();
    for Source { path, bytes } in sources {
        let name = path.file_name().map(std::os::unix::ffi::OsStrExt::as_bytes).unwrap_or_default();
        for part in [name, bytes] {
            // With its length in front, no part can pass for the end of another.
            all.extend((part.len() as u64).to_le_bytes());
            all.extend(part);
        }
    }
    Digest::of(&all)
}
