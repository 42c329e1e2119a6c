//! The text of a jobs file: check of its bytes, and its lines.
//!
//! Both YAML parsers must see the same characters, so characters that they treat differently are rejected first: NUL
//! ends the input for one of them, and U+0085, U+2028 and U+2029 are line breaks only for the other.

use super::spanned::{Fault, Position};

/// Maximum size of a file in bytes.
pub(crate) const LARGEST: usize = 4 << 20;

/// Returns the text of a file without its byte order mark, or the reason why it is not valid text.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Fault> {
    if bytes.len() > LARGEST {
        return Err(Fault::new(Position::START, format!("the file is larger than {} MiB", LARGEST >> 20)));
    }
    let text = utf8(bytes)?;
    match text.char_indices().find(|(_, c)| !is_allowed(*c)) {
        None => Ok(text),
        Some((index, c)) => Err(Fault::new(position_behind(&text[..index]), not_allowed(bytes, c))),
    }
}

fn not_allowed(bytes: &[u8], c: char) -> String {
    match (c, bytes) {
        // The text has two bytes for each character, and no mark that says so.
        ('\0', [0, 1..=0xff, ..] | [1..=0xff, 0, ..]) => UTF_16.to_owned(),
        ('\0', _) => "a NUL byte (U+0000), which no jobs file has; the file is damaged, restore it".to_owned(),
        ('\u{feff}', _) => "a byte order mark (U+FEFF) inside the file; delete it".to_owned(),
        _ => format!(
            "the character U+{:04X} is not allowed in a jobs file; in double quotes write `\\u{0:04x}`",
            u32::from(c)
        ),
    }
}

const UTF_16: &str = "the file is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 FILE`";
const UTF_32: &str = "the file is UTF-32; convert it with `iconv -f UTF-32 -t UTF-8 FILE`";

/// The text without its byte order mark.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn not_utf8(bytes: &[u8], valid: usize) -> Fault {
    let before = String::from_utf8_lossy(&bytes[..valid]);
    let before = before.strip_prefix('\u{feff}').unwrap_or(&before);
    let (at, message) = match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => (Position::START, UTF_32),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => (Position::START, UTF_16),
        [0x1f, 0x8b, ..] => (Position::START, "the file is compressed; unpack it with `gunzip`"),
        _ => (
            position_behind(before),
            "the file is not UTF-8 from here on; if it is Latin-1, convert it with `iconv -f ISO-8859-1 -t UTF-8 FILE`",
        ),
    };
    Fault::new(at, message)
}

fn is_allowed(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' | ' '..='~' => true,
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        c => c >= '\u{a0}',
    }
}

/// The position of the character after `before`.
fn position_behind(before: &str) -> Position {
    let breaks = before.replace("\r\n", "\n").replace('\r', "\n");
    let line_start = breaks.rfind('\n').map_or(0, |index| index + 1);
    Position { line: 1 + breaks.matches('\n').count(), column: 1 + breaks[line_start..].chars().count() }
}

/// Lines longer than this were not written by hand. They are not searched, so that the cost of a file cannot grow with
/// its size times its number of jobs.
const LONGEST_LINE: usize = 16 << 10;

/// The lines of a text.
pub(super) struct Lines<'a>(Vec<&'a str>);

impl<'a> Lines<'a> {
    /// The number of the last line.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn of(text: &'a str) -> Self {
        let mut lines = Vec::new();
        let mut rest = text;
        while let Some(index) = rest.find(['\n', '\r']) {
            let width = if rest[index..].starts_with("\r\n") { 2 } else { 1 };
            lines.push(&rest[..index]);
            rest = &rest[index + width..];
        }
        lines.push(rest);
        Self(lines)
    }

    /// The line with this number, from 1, without its break.
    pub fn line(&self, number: usize) -> &'a str {
        let line = number.checked_sub(1).and_then(|index| self.0.get(index)).copied().unwrap_or_default();
        if line.len() > LONGEST_LINE { "" } else { line }
    }

    /// The text from a position to the end of its line.
    pub fn from(&self, at: Position) -> &'a str {
        let line = self.line(at.line);
        line.char_indices().nth(at.column - 1).map_or("", |(index, _)| &line[index..])
    }

    /// The position of character `offset` inside the value `value` at `at`. Returns the value's own position if the
    /// value is written differently in the file, because of escapes or line breaks.
    pub fn inside(&self, at: Position, value: &str, offset: usize) -> Position {
        let written = self.from(at);
        let quote = usize::from(written.starts_with(['"', '\'']));
        let same = written.chars().skip(quote).take(offset).eq(value.chars().take(offset));
        if same { Position { column: at.column + quote + offset, ..at } } else { at }
    }
}
