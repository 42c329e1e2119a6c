//! Looks up jobs in the order of their names.
//!
//! A status of ten thousand jobs is put together again and again. A search from the root of a map for each of them would
//! take most of that time.

use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;

use cronkeeper_core::job::JobName;

/// A map that is read from its first job to its last, for questions that mostly come in the same order.
#[derive(Debug)]
pub(crate) struct InOrder<'a, V> {
    map: &'a BTreeMap<JobName, V>,
    ahead: Peekable<btree_map::Iter<'a, JobName, V>>,
    /// The last job that was read.
    passed: Option<&'a JobName>,
}

impl<'a, V> InOrder<'a, V> {
    pub(crate) fn of(map: &'a BTreeMap<JobName, V>) -> Self {
        Self { map, ahead: map.iter().peekable(), passed: None }
    }

    /// The value of this job. A job whose place was passed before is searched.
    pub(crate) fn get(&mut self, job: &JobName) -> Option<&'a V> {
        if self.passed.is_some_and(|passed| job <= passed) {
            return self.map.get(job);
        }
        while let Some((other, value)) = self.ahead.next_if(|(other, _)| *other <= job) {
            self.passed = Some(other);
            if other == job {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn each_job_gets_what_a_search_would_find(
            known in prop::collection::btree_map("[a-c]{1,3}", any::<u8>(), 0..20),
            mut asked in prop::collection::vec("[a-c]{1,3}", 0..20),
            is_in_order in any::<bool>(),
        ) {
            if is_in_order {
                asked.sort();
            }
            let name = |text: &String| JobName::parse(text).unwrap();
            let known: BTreeMap<JobName, u8> = known.iter().map(|(job, value)| (name(job), *value)).collect();
            let mut in_order = InOrder::of(&known);
            for job in asked.iter().map(name) {
                prop_assert_eq!(in_order.get(&job), known.get(&job));
            }
        }
    }
}
