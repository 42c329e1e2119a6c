//! The lines of a crontab, parsed one by one.

use super::entry::{self, CrontabEntry};
use super::setting::{self, Setting};
use super::{Remark, not_utf8};

#[derive(Debug)]
pub(super) struct Line {
    /// From 1.
    pub number: usize,
    /// The line without its end; invalid UTF-8 is replaced.
    pub text: String,
    pub kind: LineKind,
    /// What was changed to parse the line.
    pub remarks: Vec<Remark>,
}

#[derive(Debug)]
pub(super) enum LineKind {
    Blank,
    /// The text after `#`.
    Comment(String),
    Setting(Setting),
    Entry(Box<CrontabEntry>),
    /// Neither a setting nor an entry; the text is the reason.
    Refused(String),
}

pub(super) fn read(bytes: &[u8], system: bool) -> Vec<Line> {
    // A newline at the end of the file does not begin another line.
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    bytes.split(|byte| *byte == b'\n').enumerate().map(|(index, line)| one(index + 1, line, system)).collect()
}

fn one(number: usize, bytes: &[u8], system: bool) -> Line {
    let (bytes, remarks) = match bytes.strip_suffix(b"\r") {
        Some(bytes) if !is_blank_or_comment(bytes) => (
            bytes,
            vec![Remark::loss(
                "dropped the carriage return at the end of the line, which cron treats as part of the line",
            )],
        ),
        Some(bytes) => (bytes, Vec::new()),
        None => (bytes, Vec::new()),
    };
    let text = String::from_utf8_lossy(bytes).into_owned();
    let kind = match std::str::from_utf8(bytes) {
        _ if is_blank_or_comment(bytes) => blank_or_comment(&text),
        Ok(line) => setting_or_entry(line, system),
        Err(error) => LineKind::Refused(not_utf8(error)),
    };
    Line { number, text, kind, remarks }
}

fn is_blank_or_comment(bytes: &[u8]) -> bool {
    matches!(bytes.trim_ascii_start().first(), None | Some(b'#'))
}

fn blank_or_comment(text: &str) -> LineKind {
    match text.trim_ascii_start().strip_prefix('#') {
        Some(comment) => LineKind::Comment(comment.to_owned()),
        None => LineKind::Blank,
    }
}

fn setting_or_entry(line: &str, system: bool) -> LineKind {
    if let Some(setting) = setting::read(line) {
        return LineKind::Setting(setting);
    }
    match entry::read(line, system) {
        Ok(entry) => LineKind::Entry(Box::new(entry)),
        Err(_) if setting::is_empty(line) => LineKind::Refused(
            "a setting without a value, which cron refuses; for an empty value write `\"\"`".to_owned(),
        ),
        Err(why) => LineKind::Refused(why),
    }
}
