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
    let (bytes, is_complete) = bytes.strip_suffix(b"\n").map_or((bytes, false), |bytes| (bytes, true));
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let mut lines: Vec<Line> = lines.map(|(index, line)| one(index + 1, line, system)).collect();
    if let Some(last) = lines.last_mut().filter(|_| !is_complete) {
        last.remarks.extend(without_newline(&last.kind));
    }
    lines
}

/// cron reads a line up to its newline, so it does not take the last one without.
fn without_newline(kind: &LineKind) -> Option<Remark> {
    let (is_ignored, here) = match kind {
        LineKind::Entry(_) => ("does not run this entry", "it is imported"),
        LineKind::Setting(_) => ("ignores this setting", "it is used"),
        LineKind::Blank | LineKind::Comment(_) | LineKind::Refused(_) => return None,
    };
    Some(Remark::loss(format!(
        "no newline at the end of the last line: cronie {is_ignored}, and Debian's cron ignores the whole crontab; \
         here {here}"
    )))
}

fn one(number: usize, bytes: &[u8], system: bool) -> Line {
    let without_return = bytes.strip_suffix(b"\r");
    let bytes = without_return.unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes).into_owned();
    let kind = match std::str::from_utf8(bytes) {
        _ if is_blank_or_comment(bytes) => blank_or_comment(&text),
        Ok(line) => setting_or_entry(line, system),
        Err(error) => LineKind::Refused(not_utf8(error)),
    };
    let mut remarks = Vec::new();
    if without_return.is_some() && !is_blank_or_comment(bytes) {
        remarks.push(Remark::loss(
            "dropped the carriage return at the end of the line, which cron treats as part of the line",
        ));
    }
    remarks.extend(about_backslash(&kind, &text));
    if let LineKind::Setting(Setting { name, .. }) = &kind
        && setting::is_bare(&text)
    {
        remarks.push(Remark::loss(format!(
            "{name}=: empty from here on, as in cronie since 2017; Debian's cron ignores the whole crontab"
        )));
    }
    Line { number, text, kind, remarks }
}

/// A backslash at the end of a line, which a shell's script and an anacrontab would continue on the next.
fn about_backslash(kind: &LineKind, text: &str) -> Option<Remark> {
    let what = match kind {
        LineKind::Entry(_) => "the command",
        LineKind::Setting(_) => "the value",
        LineKind::Blank | LineKind::Comment(_) | LineKind::Refused(_) => return None,
    };
    let text = text.trim_end();
    // Two backslashes are one that is escaped.
    let is_continued = (text.len() - text.trim_end_matches('\\').len()) % 2 == 1;
    is_continued.then(|| {
        Remark::loss(format!("cron does not join lines: {what} ends with the backslash, and the next line is its own"))
    })
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
        Err(why) => LineKind::Refused(why),
    }
}
