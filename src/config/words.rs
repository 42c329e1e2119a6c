//! The words that keys with a fixed choice take.

use crate::job::{Interrupted, Misfire, OnLeaseEnd, Overlap};
use crate::schedule::Dst;

/// Each word with its meaning.
pub(super) type Words<T> = &'static [(&'static str, T)];

pub(super) const DST: Words<Dst> = &[("once", Dst::Once), ("skip", Dst::Skip), ("twice", Dst::Twice)];
pub(super) const OVERLAP: Words<Overlap> =
    &[("skip", Overlap::Skip), ("queue", Overlap::Queue), ("allow", Overlap::Allow), ("replace", Overlap::Replace)];
pub(super) const MISFIRE: Words<Misfire> =
    &[("skip", Misfire::Skip), ("run-once", Misfire::RunOnce), ("run-all", Misfire::RunAll)];
pub(super) const INTERRUPTED: Words<Interrupted> = &[("skip", Interrupted::Skip), ("rerun", Interrupted::Rerun)];
pub(super) const ON_LEASE_END: Words<OnLeaseEnd> = &[("keep", OnLeaseEnd::Keep), ("kill", OnLeaseEnd::Kill)];
