//! A crontab written anew as jobs.yaml: the same commands at the same times.
//!
//! ```text
//! bytes ── line ──▶ settings, entries, comments ── write ──▶ jobs.yaml
//!           setting: crontab(5)'s NAME=VALUE      name: a job's name out of its command
//!           when:    the five fields and macros   yaml: quoting
//!           input:   what `%` stands for
//! ```
//!
//! Read as cron reads it (Debian's and cronie's; FreeBSD's and OpenBSD's flags where they say more). What cron would
//! refuse, or cronkeeper cannot do, stays as a comment at its place and is told with its line: nothing is dropped in
//! silence. Knows nothing of files and hosts; whoever calls says where the crontab is from.

mod entry;
mod environment;
mod input;
mod job;
mod line;
mod name;
mod setting;
mod when;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

use std::str::Utf8Error;

use line::{Line, What};

/// No crontab is larger; the bound keeps everything that is made of one small.
pub const LARGEST: usize = 1 << 20;

/// What an import is told about the crontab.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// What it is called in the result.
    pub name: &'a str,
    /// The sixth word of an entry is a user, as in /etc/crontab and /etc/cron.d.
    pub system: bool,
    /// The time zone of its host, an IANA name.
    pub zone: &'a str,
    /// Whose crontab it is, where that is known.
    pub owner: Option<&'a str>,
}

/// A crontab as jobs.yaml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The whole file.
    pub yaml: String,
    /// What is not as it was, by line.
    pub notes: Vec<Note>,
}

/// Something that could not be carried over, or not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line of the crontab, from 1.
    pub line: usize,
    /// What, in words.
    pub text: String,
}

/// Why a text is no crontab, or none that can be written as jobs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It holds what no text holds.
    #[error("line {line} holds a NUL byte")]
    Binary {
        /// From 1.
        line: usize,
    },
    /// See [`LARGEST`].
    #[error("it is larger than {} MiB", LARGEST >> 20)]
    TooLarge,
    /// Not one of its lines is an entry or a setting.
    #[error("none of its lines is an entry or a setting; line {line}: {why}")]
    NoLine {
        /// The first that is none, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Its settings, repeated for every entry, are larger than a jobs file may be.
    #[error("up to line {line} the jobs are larger than a jobs file may be; split the crontab")]
    TooMuch {
        /// From 1.
        line: usize,
    },
}

/// Writes a crontab as jobs.yaml.
///
/// # Errors
/// When it is no crontab at all, or too large.
pub fn import(bytes: &[u8], origin: &Origin<'_>) -> Result<Imported, ImportError> {
    if bytes.len() > LARGEST {
        return Err(ImportError::TooLarge);
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let line = 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        return Err(ImportError::Binary { line });
    }
    let lines = line::read(bytes, origin.system);
    must_be_a_crontab(&lines)?;
    write::jobs(&lines, origin)
}

fn must_be_a_crontab(lines: &[Line]) -> Result<(), ImportError> {
    let is_known = |line: &Line| matches!(line.what, What::Entry(_) | What::Setting(_));
    let refused = lines.iter().find_map(|line| match &line.what {
        What::Refused(why) => Some((line.number, why.clone())),
        _ => None,
    });
    match refused {
        Some((line, why)) if !lines.iter().any(is_known) => Err(ImportError::NoLine { line, why }),
        _ => Ok(()),
    }
}

/// A remark at a place in the result; told on stderr too where something is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remark {
    text: String,
    is_loss: bool,
}

impl Remark {
    /// Something is not as it was.
    fn loss(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_loss: true }
    }

    /// Something looks different and is the same.
    fn same(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_loss: false }
    }
}

fn not_utf8(_: Utf8Error) -> String {
    "the line is not UTF-8, as a jobs file must be".to_owned()
}
