//! What one value must be like, whichever key of a block it stands at: each text as what it means, or why it cannot be.
//!
//! Knows no places and no other values. A key whose values need more has a file of its own.

use std::path::PathBuf;
use std::time::Duration;

use super::raw::TextOrTexts;
use super::schema::shown;
use crate::duration;
use crate::job::{CommandLine, JobName};

/// The kernel takes no longer argument or environment entry (MAX_ARG_STRLEN, its final NUL included).
pub(crate) const LONGEST_STRING: usize = 128 << 10;

/// More would be a loop: who wants a job to be tried for ever gives it a schedule.
const MOST_RETRIES: u32 = 1000;

pub(super) fn expressions(value: TextOrTexts) -> Result<Vec<String>, &'static str> {
    match value {
        TextOrTexts::Text(text) => Ok(vec![text]),
        TextOrTexts::Texts(texts) if texts.is_empty() => Err("the list is empty"),
        TextOrTexts::Texts(texts) => Ok(texts),
    }
}

pub(super) fn shell_command(text: String) -> Result<CommandLine, &'static str> {
    if text.trim().is_empty() {
        return Err("it is empty");
    }
    unfit(&text).map_or(Ok(CommandLine::Shell(text)), Err)
}

/// Why a text cannot be handed to a process.
pub(super) fn unfit(text: &str) -> Option<&'static str> {
    if text.contains('\0') {
        return Some("a NUL character cannot be handed to a process");
    }
    (text.len() >= LONGEST_STRING).then_some("it is longer than the 128 KiB that can be handed to a process")
}

pub(super) fn absolute_path(text: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(&text);
    match unfit(&text) {
        Some(why) => Err(why.to_owned()),
        None if !path.is_absolute() => Err(format!("`{}` is not an absolute path", shown(&text))),
        None => Ok(path),
    }
}

pub(super) fn umask(text: String) -> Result<u32, String> {
    let octal = (1..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mask = u32::from_str_radix(&text, 8).ok().filter(|mask| octal && *mask <= 0o777);
    mask.ok_or_else(|| format!("`{}` is no umask: octal digits from `000` to `777`", shown(&text)))
}

pub(super) fn some_time(text: String) -> Result<Duration, String> {
    match duration::parse(&text) {
        Ok(Duration::ZERO) => Err("must be longer than nothing".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn retry_limit(text: String) -> Result<u32, String> {
    let limit = text.parse::<u32>().ok().filter(|&limit| limit <= MOST_RETRIES && !text.starts_with('+'));
    limit.ok_or_else(|| format!("`{}` is no number of retries: they are 0 to {MOST_RETRIES}", shown(&text)))
}

pub(super) fn backoff(text: String) -> Result<f64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor = text.parse::<f64>().ok().filter(|factor| is_plain && (1.0..=100.0).contains(factor));
    factor.ok_or_else(|| format!("`{}` is no factor: they are 1 to 100", shown(&text)))
}

/// A name as a job's: it is shown in the same places.
pub(super) fn group_name(text: String) -> Result<String, String> {
    let good = JobName::parse(&text).map(|_| text.clone());
    good.map_err(|_| {
        format!("`{}` is no name: a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`", shown(&text))
    })
}

pub(super) fn group_limit(text: String) -> Result<usize, String> {
    let limit = text.parse::<usize>().ok().filter(|&limit| limit > 0 && !text.starts_with('+'));
    limit.ok_or_else(|| format!("`{}` is no whole number from 1", shown(&text)))
}

pub(super) fn misfire_limit(limit: u64) -> Result<usize, String> {
    let limit = usize::try_from(limit).map_err(|error| error.to_string())?;
    if limit == 0 { Err("must be at least 1; to make up nothing, write `misfire: skip`".to_owned()) } else { Ok(limit) }
}
