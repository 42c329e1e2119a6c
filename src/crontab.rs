//! Converter from crontabs to jobs.yaml: the same commands at the same times.
//!
//! ```text
//! bytes ── line ──▶ settings, entries, comments ── write ──▶ jobs.yaml
//!           setting: crontab(5)'s NAME=VALUE      name: a job's name out of its command
//!           when:    the five fields and macros   yaml: quoting
//!           mail:    channels out of MAILTO
//!           input:   the meaning of `%`
//! ```
//!
//! A crontab is read as Debian's cron and cronie read it, and with the additional flags of FreeBSD and OpenBSD. An
//! entry that cron refuses, or that cronkeeper cannot run, stays as a comment at its place and is reported with its
//! line number: nothing is dropped silently. This module does not know files and hosts; the caller passes the origin of
//! the crontab, which also knows the users of this host.

mod entry;
mod environment;
mod host_work;
mod input;
mod job;
mod kind;
mod line;
mod mail;
mod name;
mod setting;
mod when;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

use std::str::Utf8Error;

use cronkeeper_core::job::RunAs;

use line::{Line, LineKind};

/// Most bytes of a crontab. The bound keeps the result small, too.
pub const LARGEST: usize = 1 << 20;

/// The origin of a crontab, which its text does not contain.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The crontab's name in the result.
    pub name: &'a str,
    /// The sixth field of each entry is a user, as in /etc/crontab and /etc/cron.d.
    pub system: bool,
    /// The IANA time zone of the crontab's host.
    pub zone: &'a str,
    /// The user whose crontab it is, if known.
    pub owner: Option<&'a str>,
    /// Says which of them does not exist on this host, if one does not: a user, or a group.
    pub missing: fn(&RunAs) -> Option<String>,
}

impl Kind {
    /// What to do if a crontab is of this kind, and is imported as the other.
    pub fn hint(self) -> &'static str {
        match self {
            Self::System => "this looks like a system crontab, with a user in each entry; if it is one, add --system",
            Self::User => {
                "this looks like a user's crontab, without a user in each entry; if it is one, leave out --system"
            }
        }
    }
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The whole jobs file.
    pub yaml: String,
    /// Everything that was lost or changed, by line.
    pub notes: Vec<ImportNote>,
    /// The kind that the crontab looks like, if that is not the kind it was imported as.
    pub looks_like: Option<Kind>,
}

/// Whose crontab it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each entry names a user.
    System,
    /// All entries are of one user.
    User,
}

/// A report that something was lost or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportNote {
    /// The line of the crontab, from 1.
    pub line: usize,
    pub text: String,
}

/// Why a file cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("line {line} contains a NUL byte")]
    Binary {
        /// From 1.
        line: usize,
    },
    /// The file is larger than [`LARGEST`].
    #[error("it is larger than {} MiB", LARGEST >> 20)]
    TooLarge,
    #[error("none of its lines is an entry or a setting; line {line}: {why}")]
    NoLine {
        /// The first line that is neither, from 1.
        line: usize,
        why: String,
        /// The kind of crontab that has entries in these lines.
        looks_like: Option<Kind>,
    },
    /// The settings, which are repeated in every job, make the result larger than a jobs file may be.
    #[error("the lines up to {line} make a jobs file that is too large; split the crontab")]
    TooMuch {
        /// From 1.
        line: usize,
    },
}

/// Converts a crontab to jobs.yaml.
///
/// # Errors
/// When the file is not a crontab at all, or is too large.
pub fn import(bytes: &[u8], origin: &Origin<'_>) -> Result<Imported, ImportError> {
    if bytes.len() > LARGEST {
        return Err(ImportError::TooLarge);
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let line = 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        return Err(ImportError::Binary { line });
    }
    let lines = line::read(bytes, origin.system);
    must_be_a_crontab(bytes, &lines, origin.system)?;
    let imported = write::jobs(&lines, origin)?;
    Ok(Imported { looks_like: kind::other(bytes, &lines, origin), ..imported })
}

fn must_be_a_crontab(bytes: &[u8], lines: &[Line], system: bool) -> Result<(), ImportError> {
    let is_known = |line: &Line| matches!(line.kind, LineKind::Entry(_) | LineKind::Setting(_));
    let refused = lines.iter().find_map(|line| match &line.kind {
        LineKind::Refused(why) => Some((line.number, why.clone())),
        _ => None,
    });
    match refused {
        Some((line, why)) if !lines.iter().any(is_known) => {
            let looks_like = kind::other_of_refused(bytes, lines, system);
            Err(ImportError::NoLine { line, why, looks_like })
        }
        _ => Ok(()),
    }
}

/// A comment in the result. If it is about a loss, it is also a note of the import.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remark {
    text: String,
    is_loss: bool,
}

impl Remark {
    /// Something is lost or changed.
    fn loss(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_loss: true }
    }

    /// Something looks different, but behaves the same.
    fn same(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_loss: false }
    }
}

fn not_utf8(_: Utf8Error) -> String {
    "the line is not UTF-8, which a jobs file must be".to_owned()
}
