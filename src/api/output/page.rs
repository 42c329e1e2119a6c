//! The answer: a page of output, and what follows it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::is_default;
use crate::output::Line;
use cronkeeper_core::run::RunId;
use cronkeeper_core::term::NodeName;

/// A page of a run's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OutputPage {
    pub run: RunId,
    pub lines: Vec<Line>,
    /// Bytes before the lines that were left out, because only the last are wanted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skipped: u64,
    /// The `from` of the next page.
    pub next: Cursor,
    pub state: OutputState,
    /// What should be between this page's `from` and `next`, or after it, but is not here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
    /// The end of the last attempt's output as the ledger has it, if the output itself is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
    /// That end is all that the attempt has written, so nothing is missing. `note` says why it is not from its node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tail_is_whole: bool,
    /// Why there is no output, unless the job just wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The attempts whose output this node keeps; only for `local=true`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<u32>,
    /// The shares of a run on every node. Each has its own output.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub shares: BTreeSet<RunId>,
}

/// What follows a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OutputState {
    /// More of it is known: ask again at once.
    More,
    /// Nothing yet: the run is in flight.
    Open,
    /// Nothing: the run has ended, or, for `local=true`, the attempt.
    End,
    /// The node has no output of the attempt; only for `local=true`.
    Absent,
}

/// Output that cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Missing {
    /// Absent if it is unknown whether the node has output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    pub node: NodeName,
    /// The reason, with what to do about it.
    pub why: String,
}

/// A place in the output of a run: `<attempt>.<offset>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    pub attempt: u32,
    /// Bytes of the attempt's file, which is not the same on another node.
    pub offset: u64,
}

impl Cursor {
    pub const START: Self = Self { attempt: 1, offset: 0 };

    /// # Errors
    /// A description of the expected format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.').and_then(|(a, o)| Some((a.parse().ok()?, o.parse().ok()?)));
        let (attempt, offset) = parts.ok_or_else(|| "`from` must be the `next` of another page".to_owned())?;
        Ok(Self { attempt, offset })
    }

    /// The beginning of the next attempt.
    pub(super) fn next_attempt(attempt: u32) -> Self {
        Self { attempt: attempt.saturating_add(1), offset: 0 }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.attempt, self.offset)
    }
}

impl TryFrom<String> for Cursor {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

impl OutputPage {
    /// # Errors
    /// If the next page would begin where this one does, or before it: asking for more would then never end.
    pub fn check_progress(&self, from: Cursor) -> Result<(), String> {
        let goes_on = !self.lines.is_empty() || self.state == OutputState::More;
        let is_fine = if goes_on { self.next > from } else { self.next >= from };
        let error = || format!("its page of output from {from} on is followed by one from {} on", self.next);
        is_fine.then_some(()).ok_or_else(error)
    }

    pub(super) fn empty(run: &RunId, next: Cursor, state: OutputState) -> Self {
        Self {
            run: run.clone(),
            lines: Vec::new(),
            skipped: 0,
            next,
            state,
            missing: Vec::new(),
            tail: None,
            tail_is_whole: false,
            note: None,
            attempts: Vec::new(),
            shares: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_anything_else_is_refused() {
        let cursor = Cursor { attempt: 2, offset: 10_342 };
        assert_eq!((cursor.to_string().as_str(), Cursor::parse("2.10342")), ("2.10342", Ok(cursor)));
        for bad in ["", "2", "2.", ".2", "2.x", "-1.0", "1.99999999999999999999"] {
            assert!(Cursor::parse(bad).is_err(), "{bad}");
        }
        assert!(Cursor { attempt: 1, offset: 9 } < Cursor::next_attempt(1));
    }

    #[test]
    fn a_page_that_has_something_is_followed_by_one_behind_it() {
        let from = Cursor { attempt: 2, offset: 10 };
        let page = |attempt, offset, state| {
            let run = RunId::parse("load.20261120T024000Z").unwrap();
            OutputPage::empty(&run, Cursor { attempt, offset }, state)
        };
        let with_line = |page: OutputPage| {
            let (at, stream, line) = (jiff::Timestamp::UNIX_EPOCH, crate::output::Source::Stdout, "x".to_owned());
            OutputPage { lines: vec![Line { at, attempt: 2, stream, line, continues: false }], ..page }
        };
        for fine in [
            page(2, 10, OutputState::Open),
            page(2, 10, OutputState::End),
            page(2, 11, OutputState::More),
            page(3, 0, OutputState::More),
            with_line(page(2, 11, OutputState::Open)),
        ] {
            assert_eq!(fine.check_progress(from), Ok(()), "{fine:?}");
        }
        for bad in [
            page(2, 10, OutputState::More),
            page(2, 9, OutputState::Open),
            page(1, 99, OutputState::End),
            with_line(page(2, 10, OutputState::Open)),
            with_line(page(2, 10, OutputState::End)),
        ] {
            assert!(bad.check_progress(from).is_err(), "{bad:?}");
        }
    }
}
