//! The words that keys with a fixed choice take.

use cronkeeper_core::job::{Interrupted, Misfire, OnLeaseEnd, Overlap, RunOn};
use cronkeeper_core::schedule::Dst;

/// Each word with its meaning.
pub(super) type Words<T> = &'static [(&'static str, T)];

pub(super) const DST: Words<Dst> = &[("once", Dst::Once), ("skip", Dst::Skip), ("twice", Dst::Twice)];
pub(super) const OVERLAP: Words<Overlap> =
    &[("skip", Overlap::Skip), ("queue", Overlap::Queue), ("allow", Overlap::Allow), ("replace", Overlap::Replace)];
pub(super) const MISFIRE: Words<Misfire> =
    &[("skip", Misfire::Skip), ("run-once", Misfire::RunOnce), ("run-all", Misfire::RunAll)];
pub(super) const INTERRUPTED: Words<Interrupted> = &[("skip", Interrupted::Skip), ("rerun", Interrupted::Rerun)];
pub(super) const ON_LEASE_END: Words<OnLeaseEnd> = &[("keep", OnLeaseEnd::Keep), ("kill", OnLeaseEnd::Kill)];
/// `every` is not offered yet: nothing places it.
pub(super) const RUN_ON: Words<RunOn> = &RunOn::ALL;

pub(super) const OF_DST: &[&str] = &names::<_, 3>(DST);
pub(super) const OF_OVERLAP: &[&str] = &names::<_, 4>(OVERLAP);
pub(super) const OF_MISFIRE: &[&str] = &names::<_, 3>(MISFIRE);
pub(super) const OF_INTERRUPTED: &[&str] = &names::<_, 2>(INTERRUPTED);
pub(super) const OF_ON_LEASE_END: &[&str] = &names::<_, 2>(ON_LEASE_END);
pub(super) const OF_RUN_ON: &[&str] = &names::<_, 3>(RUN_ON);

/// The words without their meanings. Fails to compile if there are not `N`.
const fn names<T: Copy, const N: usize>(words: Words<T>) -> [&'static str; N] {
    assert!(words.len() == N);
    let (mut names, mut next) = ([""; N], 0);
    while next < N {
        names[next] = words[next].0;
        next += 1;
    }
    names
}
