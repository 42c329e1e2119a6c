//! The nodes that are alive, and those that were.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::status::MissingMember;
use cronkeeper_core::election::Member;
use cronkeeper_core::term::NodeName;

/// How long a node that is gone is shown.
const SHOWN: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Most missing nodes that are kept.
const MOST: usize = 1_000;

/// The members as last read, and which nodes this one has seen that are missing now.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub alive: Vec<Member>,
    /// Sorted by name.
    pub missing: Vec<MissingMember>,
}

impl Members {
    /// Replaces the members by those read at `now`.
    pub fn seen(&mut self, now: Timestamp, members: &[Member]) {
        let before = std::mem::replace(&mut self.alive, members.to_vec());
        // The node is notified of each change, so the others were there until now.
        let gone =
            before.into_iter().map(|member| MissingMember { node: member.node, host: member.host, gone_since: now });
        let missing = self.missing.drain(..).chain(gone).map(|missing| (missing.node.clone(), missing));
        let mut missing: BTreeMap<NodeName, MissingMember> = missing.collect();
        missing.retain(|_, missing| now.duration_since(missing.gone_since) < SHOWN);
        for member in members {
            missing.remove(&member.node);
        }
        self.missing = missing.into_values().take(MOST).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    fn names(members: &Members) -> Vec<(&str, Timestamp)> {
        members.missing.iter().map(|missing| (missing.node.as_str(), missing.gone_since)).collect()
    }

    #[test]
    fn a_node_is_missing_from_when_it_was_noticed_until_it_returns() {
        let (all, mut members) = (sample::queue().members, Members::default());
        let at = |minute: i64| Timestamp::from_second(60 * minute).unwrap();
        members.seen(at(0), &all);
        members.seen(at(1), &all[..1]);
        members.seen(at(2), &all[..1]);
        assert_eq!(names(&members), [("host-b", at(1))]);
        members.seen(at(3), &all);
        assert_eq!(names(&members), []);
        members.seen(at(4), &all[..1]);
        members.seen(at(8 * 24 * 60), &all[..1]);
        assert_eq!(names(&members), [], "it is no longer expected after a week");
    }
}
