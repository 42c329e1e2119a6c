//! A line of output, as it is kept on disk and shown by the API: one object of JSON.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use cronkeeper_core::process::Stream;

/// A line of a run's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Line {
    /// When the daemon received it.
    pub at: Timestamp,
    /// The attempt that wrote it, from 1.
    pub attempt: u32,
    pub stream: Source,
    /// Without the line end; bytes that are not UTF-8 are replaced.
    pub line: String,
    /// True if the line continues in the next one of its stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// Who wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Stdout,
    Stderr,
    /// cronkeeper itself: what is missing here, and why.
    Note,
}

impl From<Stream> for Source {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}

impl Line {
    /// A note about this many lines that are not kept.
    pub(super) fn not_kept(at: Timestamp, attempt: u32, lines: u64, why: impl fmt::Display) -> Self {
        let were = if lines == 1 { "line was" } else { "lines were" };
        Self::note(at, attempt, format!("{} {were} not kept: {why}", grouped(lines)))
    }

    pub(super) fn note(at: Timestamp, attempt: u32, line: String) -> Self {
        Self { at, attempt, stream: Source::Note, line, continues: false }
    }
}

/// A number with commas between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, is_read_back};

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_line_is_one_object_and_omits_what_is_false() {
        let at = "2026-11-20T02:30:00.5Z".parse().unwrap();
        let line = Line { at, attempt: 2, stream: Source::Stderr, line: "a\nb".into(), continues: false };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"at":"2026-11-20T02:30:00.5Z","attempt":2,"stream":"stderr","line":"a\nb"}"#);
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        assert_eq!(
            Line::not_kept(at, 1, 1_234, "the disk was too slow").line,
            "1,234 lines were not kept: the disk was too slow"
        );
    }

    #[test]
    fn fuzz_lines_of_output() {
        let words =
            &["\"at\":\"2026-11-20T02:30:00Z\"", "\"attempt\":1", "\"stream\":\"note\"", "\"line\":\"\\u0000\"", ","];
        Fuzz { longest: 1 << 10, ..Fuzz::of("output-lines", words) }.run(|input| {
            let read = serde_json::from_slice::<Line>(input);
            read.as_ref().map(is_read_back).is_ok()
        });
    }
}
