//! From the local times that an expression names to instants, across the shifts of a zone's clock.
//!
//! A shift forwards leaves a gap of local times that never come; a shift backwards makes an overlap of
//! local times that come twice. Between two shifts local time is UTC and an offset, so each stretch is
//! searched by itself. What is far from any shift costs one look at the pattern and one at the zone.

use super::Dst;
use super::parse::Fields;
use super::pattern::Pattern;
use super::zone::{OffsetSpan, Zone};

/// One expression's instants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timeline {
    pattern: Pattern,
    /// Times in a gap make one occurrence, at the first instant after it.
    makes_up: bool,
    /// Times in an overlap count in its first pass only.
    first_pass_only: bool,
}

/// Longer than any shift, so that outside it local times only grow.
const LONGEST_SHIFT: i64 = 3 * 86_400;
/// The years of the patterns, wider by a shift on both sides.
pub(super) const EARLIEST: i64 = -LONGEST_SHIFT;
pub(super) const LATEST: i64 = 4_133_980_800 + LONGEST_SHIFT;

impl Timeline {
    pub(super) fn new(fields: &Fields, pattern: Pattern, dst: Dst) -> Self {
        let fixed = !fields.is_wildcard();
        let (makes_up, first_pass_only) = match dst {
            Dst::Once => (fixed, fixed),
            Dst::Skip => (false, true),
            Dst::Twice => (fixed, false),
        };
        Self { pattern, makes_up, first_pass_only }
    }

    /// The first occurrence at `from` or later.
    pub(super) fn at_or_after(&self, zone: &Zone, from: i64) -> Option<i64> {
        let mut from = from.max(EARLIEST);
        loop {
            let span = zone.span_at(from);
            if from == span.start && self.gap_before(&span).is_some() {
                return Some(span.start);
            }
            let local = self.pattern.at_or_after(self.first_local(&span).max(from + span.offset));
            if let Some(at) = local.map(|local| local - span.offset).filter(|at| *at < span.end) {
                return Some(at);
            }
            // Shortly before a shift backwards, an earlier local time can still come again.
            from = if span.end.saturating_sub(from) <= LONGEST_SHIFT {
                span.end
            } else {
                span.end.max(local? - span.offset - LONGEST_SHIFT)
            };
        }
    }

    /// The last occurrence at `to` or earlier.
    pub(super) fn at_or_before(&self, zone: &Zone, to: i64) -> Option<i64> {
        let mut to = to.min(LATEST);
        loop {
            let span = zone.span_at(to);
            let local = self.pattern.at_or_before(to + span.offset);
            if let Some(local) = local.filter(|local| *local >= self.first_local(&span)) {
                return Some(local - span.offset);
            }
            if self.gap_before(&span).is_some() {
                return Some(span.start);
            }
            let before = span.start.saturating_sub(1);
            to = if to.saturating_sub(span.start) <= LONGEST_SHIFT {
                before
            } else {
                before.min(local? - span.offset + LONGEST_SHIFT)
            };
        }
    }

    /// The first local time of a stretch that counts.
    pub(super) fn first_local(&self, span: &OffsetSpan) -> i64 {
        let offset = if self.first_pass_only { span.offset.max(span.before) } else { span.offset };
        span.start.saturating_add(offset)
    }

    /// The first local time that the gap at the start of a stretch swallowed, if one is made up for.
    pub(super) fn gap_before(&self, span: &OffsetSpan) -> Option<i64> {
        if !self.makes_up || span.before >= span.offset {
            return None;
        }
        let named = self.pattern.at_or_after(span.start + span.before)?;
        (named < span.start + span.offset).then_some(named)
    }

    /// True when local time itself names the instant, so that nothing was moved.
    pub(super) fn names(&self, local: i64) -> bool {
        self.pattern.at_or_after(local) == Some(local)
    }
}
