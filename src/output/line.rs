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

/// Lines of one stream of an attempt that arrived together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    /// When the daemon received them.
    pub at: Timestamp,
    pub stream: Source,
    /// Without the line ends.
    pub texts: Vec<String>,
    /// True if the last continues in the next one of its stream.
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

impl Lines {
    /// A note about this many lines that are not kept.
    pub(super) fn not_kept(at: Timestamp, lines: u64, why: impl fmt::Display) -> Self {
        let were = if lines == 1 { "line was" } else { "lines were" };
        Self::note(at, format!("{} {were} not kept: {why}", grouped(lines)))
    }

    pub(super) fn note(at: Timestamp, text: String) -> Self {
        Self { at, stream: Source::Note, texts: vec![text], continues: false }
    }

    /// The lines one by one, as those of this attempt.
    pub(super) fn each(self, attempt: u32) -> impl Iterator<Item = Line> {
        let Self { at, stream, texts, continues } = self;
        let count = texts.len();
        (1..).zip(texts).map(move |(number, line)| Line {
            at,
            attempt,
            stream,
            line,
            continues: continues && number == count,
        })
    }
}

/// A number with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{Fuzz, is_read_back};
    use cronkeeper_core::process::line_cost;

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
            Lines::not_kept(at, 1_234, "the disk was too slow").texts,
            ["1,234 lines were not kept: the disk was too slow"]
        );
    }

    #[test]
    fn of_lines_that_arrived_together_only_the_last_may_continue() {
        let texts = ["one", "two"].map(String::from).to_vec();
        let lines = Lines { at: Timestamp::UNIX_EPOCH, stream: Source::Stdout, texts, continues: true };
        let each: Vec<_> = lines.each(3).map(|line| (line.attempt, line.line, line.continues)).collect();
        assert_eq!(each, [(3, "one".to_owned(), false), (3, "two".to_owned(), true)]);
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        /// `max_output` bounds the disk space of an attempt by these prices.
        #[test]
        fn a_line_takes_no_more_space_than_it_costs(
            text in "(\\PC|[\\x00-\\x1f]|[\"\\\\]){0,80}",
            attempt in 0u32..1_000,
            at in 0i64..253_402_207_200_000_000,
            continues: bool,
        ) {
            let at = Timestamp::from_microsecond(at).unwrap() + Duration::from_nanos(1);
            let line = Line { at, attempt, stream: Source::Stderr, line: text, continues };
            let space = serde_json::to_vec(&line).unwrap().len() + 1;
            prop_assert!(space as u64 <= line_cost(&line.line), "{} bytes", space);
        }
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
