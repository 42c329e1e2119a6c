//! Conversion of an expression's local times to instants, across clock shifts.
//!
//! A forward shift leaves a gap of local times that do not exist. A backward shift makes an overlap of local times that
//! occur twice. Between two shifts, local time is UTC plus an offset, so each span between shifts is searched
//! separately. Far from any shift, a search costs one query of the pattern and one of the zone.

use std::sync::Arc;

use super::Dst;
use super::pattern::Pattern;
use super::zone::{OffsetSpan, Zone};

/// The occurrences of one expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timeline {
    pattern: Arc<Pattern>,
    /// Times in a gap give one occurrence, at the first instant after it.
    makes_up: bool,
    /// Times in an overlap count only in its first pass.
    first_pass_only: bool,
}

/// Longer than any shift in seconds. Farther than this from a shift, later instants have later local times.
pub(super) const LONGEST_SHIFT: i64 = 3 * 86_400;
/// The bounds of the years of patterns, extended by a shift on both sides.
pub(super) const EARLIEST: i64 = -LONGEST_SHIFT;
pub(super) const LATEST: i64 = 4_133_980_800 + LONGEST_SHIFT;

impl Timeline {
    pub(super) fn new(pattern: Arc<Pattern>, dst: Dst) -> Self {
        let fixed = !pattern.fields.is_wildcard();
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
            // Shortly before a backward shift, an earlier local time can still occur again.
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

    /// The first local time of a span that counts.
    pub(super) fn first_local(&self, span: &OffsetSpan) -> i64 {
        let offset = if self.first_pass_only { span.offset.max(span.before) } else { span.offset };
        span.start.saturating_add(offset)
    }

    /// The first matching local time in the gap at the start of a span, if gaps are made up for.
    pub(super) fn gap_before(&self, span: &OffsetSpan) -> Option<i64> {
        if !self.makes_up || span.before >= span.offset {
            return None;
        }
        let named = self.pattern.at_or_after(span.start + span.before)?;
        (named < span.start + span.offset).then_some(named)
    }

    /// True if the pattern matches this local time, so that the occurrence was not moved.
    pub(super) fn names(&self, local: i64) -> bool {
        self.pattern.at_or_after(local) == Some(local)
    }
}
