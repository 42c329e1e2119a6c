//! The rules for single values: each function parses a text or returns the error.
//!
//! The functions know neither positions nor other values. Keys that need more have a module of their own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::parameters;
use super::raw::TextOrTexts;
use super::schema::{shown, shown_key};
use cronkeeper_core::duration;
use cronkeeper_core::environment_file::{EnvironmentFile, LONGEST_STRING, is_variable_name};
use cronkeeper_core::job::{CommandLine, JobName, MOST_LABELS, Requirement};
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::run::Parameters;

/// Maximum number of locks of a job: they are created in one transaction.
const MOST_LOCKS: usize = 100;

/// Maximum number of parts of a job's `run_where`: a node has at most as many labels.
pub(super) const MOST_REQUIREMENTS: usize = MOST_LABELS;

/// Maximum number of environment files of a job.
const MOST_FILES: usize = 32;

/// Maximum of `retries.limit`. A job that should be tried forever needs a schedule instead.
const MOST_RETRIES: u32 = 1000;

pub(super) fn expressions(value: TextOrTexts) -> Result<Vec<String>, &'static str> {
    match value {
        TextOrTexts::Text(text) => Ok(vec![text]),
        TextOrTexts::Texts(texts) if texts.is_empty() => Err("the list is empty"),
        TextOrTexts::Texts(texts) => Ok(texts),
    }
}

/// The paths of locks, each once.
pub(super) fn locks(value: TextOrTexts) -> Result<Vec<LockPath>, String> {
    let texts = match value {
        TextOrTexts::Text(text) => vec![text],
        TextOrTexts::Texts(texts) => texts,
    };
    if texts.len() > MOST_LOCKS {
        return Err(format!("a job has at most {MOST_LOCKS} locks"));
    }
    let mut paths = Vec::new();
    for text in texts {
        let path = LockPath::parse(&text).map_err(|why| format!("`{text}`: {why}"))?;
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// A part of a `run_where`.
pub(super) fn requirement(text: &str) -> Result<Requirement, String> {
    let are_several = text.trim() != text || text.contains(',');
    Requirement::parse(text).map_err(|why| {
        let hint = if are_several { "; several labels are a list, without spaces in them" } else { "" };
        format!("{why}{hint}")
    })
}

/// The names of the variables that a trigger may set, each once.
pub(super) fn parameters(value: TextOrTexts) -> Result<BTreeSet<String>, String> {
    let names: BTreeSet<String> = match value {
        TextOrTexts::Text(text) => [text].into(),
        TextOrTexts::Texts(texts) => texts.into_iter().collect(),
    };
    if names.len() > Parameters::MOST {
        return Err(format!("a job has at most {} parameters", Parameters::MOST));
    }
    for name in &names {
        if !is_variable_name(name) {
            return Err(format!("`{}` is not a variable name", shown_key(name)));
        }
        if parameters::is_refused(name) {
            return Err(format!(
                "`{name}` cannot be a parameter: anyone who sets it decides what the job runs; use another name, and \
                 set `{name}` in the job's command"
            ));
        }
    }
    Ok(names)
}

pub(super) fn shell_command(text: String) -> Result<CommandLine, &'static str> {
    if text.trim().is_empty() {
        return Err("must not be empty");
    }
    not_passable(&text).map_or(Ok(CommandLine::Shell(text)), Err)
}

/// The program and arguments of a shell that is given by its program alone.
pub(super) fn shell(program: String) -> Result<Vec<String>, &'static str> {
    if program.trim().is_empty() {
        return Err("must name a program");
    }
    not_passable(&program).map_or_else(|| Ok(vec![program.clone(), "-c".to_owned()]), Err)
}

/// The reason why a text cannot be passed to a process.
pub(super) fn not_passable(text: &str) -> Option<&'static str> {
    if text.contains('\0') {
        return Some("a NUL character cannot be passed to a process");
    }
    (text.len() >= LONGEST_STRING).then_some("it is longer than the 128 KiB that can be passed to a process")
}

pub(super) fn absolute_path(text: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(&text);
    match not_passable(&text) {
        Some(why) => Err(why.to_owned()),
        None if !path.is_absolute() => Err(format!("`{}` is not an absolute path", shown_key(&text))),
        None => Ok(path),
    }
}

/// The file of a secret. What is no path may be the secret itself, so it is not quoted.
pub(super) fn file_of_secret(text: String) -> Result<PathBuf, &'static str> {
    absolute_path(text).map_err(|_| "must be the absolute path of a file that has the secret")
}

/// Environment files. Their paths are absolute: the daemon has no directory that they could be relative to.
pub(super) fn environment_files(value: TextOrTexts) -> Result<Vec<EnvironmentFile>, String> {
    let texts = match value {
        TextOrTexts::Text(text) => vec![text],
        TextOrTexts::Texts(texts) => texts,
    };
    if texts.len() > MOST_FILES {
        return Err(format!("a job has at most {MOST_FILES} environment files"));
    }
    let file = |text: String| {
        let file = EnvironmentFile::of(&text);
        absolute_path(file.path.to_string_lossy().into_owned()).map(|path| EnvironmentFile { path, ..file })
    };
    texts.into_iter().map(file).collect()
}

pub(super) fn umask(text: String) -> Result<u32, String> {
    let octal = (1..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mask = u32::from_str_radix(&text, 8).ok().filter(|mask| octal && *mask <= 0o777);
    mask.ok_or_else(|| format!("`{}` is not a umask: expected octal digits from `000` to `777`", shown(&text)))
}

pub(super) fn positive_duration(text: String) -> Result<Duration, String> {
    duration::parse_positive(&text)
}

pub(super) fn retry_limit(text: String) -> Result<u32, String> {
    let limit = text.parse::<u32>().ok().filter(|&limit| limit <= MOST_RETRIES && !text.starts_with('+'));
    limit.ok_or_else(|| format!("`{}` is not a number of retries: expected 0 to {MOST_RETRIES}", shown(&text)))
}

pub(super) fn backoff(text: String) -> Result<f64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor = text.parse::<f64>().ok().filter(|factor| is_plain && (1.0..=100.0).contains(factor));
    factor.ok_or_else(|| format!("`{}` is not a backoff factor: expected 1 to 100", shown(&text)))
}

/// Checks a group's name. The rules are those of job names, because both are displayed in the same places.
pub(super) fn group_name(text: String) -> Result<String, String> {
    let good = JobName::parse(&text).map(|_| text.clone());
    good.map_err(|_| {
        format!(
            "`{}` is not a group name: expected a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`",
            shown(&text)
        )
    })
}

pub(super) fn group_limit(text: String) -> Result<usize, String> {
    let limit = text.parse::<usize>().ok().filter(|&limit| limit > 0 && !text.starts_with('+'));
    limit.ok_or_else(|| format!("`{}` is not a whole number of at least 1", shown(&text)))
}

/// How many records of a kind a job may keep in the ledger. Fewer would weaken what relies on them: a repeated trigger is
/// recognized by the record of its run, and a run that the service has lost by later ones. Each is a znode, which every
/// ZooKeeper server keeps in memory.
const HISTORY: std::ops::RangeInclusive<u64> = 5..=1_000;

pub(super) fn history_limit(limit: u64) -> Result<u16, String> {
    let fitting = u16::try_from(limit).ok().filter(|_| HISTORY.contains(&limit));
    let why = || format!("must be {} to {}; older records are in each node's archive", HISTORY.start(), HISTORY.end());
    fitting.ok_or_else(why)
}

pub(super) fn misfire_limit(limit: u64) -> Result<usize, String> {
    let limit = usize::try_from(limit).map_err(|error| error.to_string())?;
    if limit == 0 {
        Err("must be at least 1; to run no missed occurrences, write `misfire: skip`".to_owned())
    } else {
        Ok(limit)
    }
}
