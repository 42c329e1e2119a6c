//! The lines of a crontab, each read by itself.

use super::entry::{self, Entry};
use super::setting::{self, Setting};
use super::{Remark, not_utf8};

/// One line.
#[derive(Debug)]
pub(super) struct Line {
    /// From 1.
    pub number: usize,
    /// As written, without its end; what is not UTF-8 is replaced.
    pub text: String,
    pub what: What,
    /// What was changed to read it.
    pub remarks: Vec<Remark>,
}

/// What a line is.
#[derive(Debug)]
pub(super) enum What {
    Blank,
    /// Without its `#`.
    Comment(String),
    Setting(Setting),
    Entry(Box<Entry>),
    /// Neither, and why.
    Refused(String),
}

/// Reads all lines.
pub(super) fn read(bytes: &[u8], system: bool) -> Vec<Line> {
    // The end of the last line begins no other.
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    bytes.split(|byte| *byte == b'\n').enumerate().map(|(index, line)| one(index + 1, line, system)).collect()
}

fn one(number: usize, bytes: &[u8], system: bool) -> Line {
    let (bytes, remarks) = match bytes.strip_suffix(b"\r") {
        Some(bytes) if !is_blank_or_comment(bytes) => {
            (bytes, vec![Remark::loss("the carriage return at the end of the line, which cron takes as part of it")])
        }
        Some(bytes) => (bytes, Vec::new()),
        None => (bytes, Vec::new()),
    };
    let text = String::from_utf8_lossy(bytes).into_owned();
    let what = match std::str::from_utf8(bytes) {
        _ if is_blank_or_comment(bytes) => blank_or_comment(&text),
        Ok(line) => setting_or_entry(line, system),
        Err(error) => What::Refused(not_utf8(error)),
    };
    Line { number, text, what, remarks }
}

fn is_blank_or_comment(bytes: &[u8]) -> bool {
    matches!(bytes.trim_ascii_start().first(), None | Some(b'#'))
}

fn blank_or_comment(text: &str) -> What {
    match text.trim_ascii_start().strip_prefix('#') {
        Some(comment) => What::Comment(comment.to_owned()),
        None => What::Blank,
    }
}

fn setting_or_entry(line: &str, system: bool) -> What {
    if let Some(setting) = setting::read(line) {
        return What::Setting(setting);
    }
    match entry::read(line, system) {
        Ok(entry) => What::Entry(Box::new(entry)),
        Err(_) if setting::is_empty(line) => {
            What::Refused("a setting without a value, which cron refuses; an empty one is `\"\"`".to_owned())
        }
        Err(why) => What::Refused(why),
    }
}
