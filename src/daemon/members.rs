//! The nodes that are alive, and those that were.

use std::collections::{BTreeMap, BTreeSet};

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
    /// When they were read; absent before the first time.
    pub read_at: Option<Timestamp>,
    /// Sorted by name.
    pub missing: Vec<MissingMember>,
    /// Those of the missing nodes that were reported.
    reported: BTreeSet<NodeName>,
}

/// A member that has gone, or is back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberNews {
    Gone(MissingMember),
    Back(MissingMember),
}

impl Members {
    /// Replaces the members by those read at `now`. Returns what has changed, for the log.
    ///
    /// `is_settled`: false while the others may not have had the time to come back after an outage. Who is missing then
    /// is reported by a later call, if at all. `is_watched`: true of a node that was there until now if it is gone,
    /// because its end would have been noticed.
    pub fn seen(
        &mut self,
        now: Timestamp,
        members: &[Member],
        is_settled: bool,
        is_watched: impl Fn(&NodeName) -> bool,
    ) -> Vec<MemberNews> {
        let read_at = self.read_at.replace(now);
        let before = std::mem::replace(&mut self.alive, members.to_vec());
        let gone = before.into_iter().map(|member| {
            let last_seen = if is_watched(&member.node) { Some(now) } else { read_at };
            MissingMember::of(member, now, last_seen)
        });
        let missing = self.missing.drain(..).chain(gone).map(|missing| (missing.node.clone(), missing));
        let mut missing: BTreeMap<NodeName, MissingMember> = missing.collect();
        missing.retain(|_, missing| now.duration_since(missing.gone_since) < SHOWN);
        let back: Vec<_> = members.iter().filter_map(|member| missing.remove(&member.node)).collect();
        self.missing = missing.into_values().take(MOST).collect();
        let is_missing = |node: &NodeName| self.missing.binary_search_by(|it| it.node.cmp(node)).is_ok();
        let back = back.into_iter().filter(|it| self.reported.contains(&it.node)).map(MemberNews::Back).collect();
        self.reported.retain(is_missing);
        if is_settled { self.report_gone(back) } else { back }
    }

    /// A node was asked to stop and has left the cluster: if it was seen alive, it is shown as stopped, not as missing.
    pub fn stopped(&mut self, node: &NodeName) {
        if let Some(member) = self.alive.iter_mut().find(|member| member.node == *node) {
            member.published.draining = true;
        }
    }

    /// Adds those to the news that are missing and were not reported yet.
    fn report_gone(&mut self, mut news: Vec<MemberNews>) -> Vec<MemberNews> {
        for missing in &self.missing {
            if self.reported.insert(missing.node.clone()) {
                news.push(MemberNews::Gone(missing.clone()));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(60 * minute).unwrap()
    }

    fn seen(members: &mut Members, minute: i64, alive: &[Member], is_settled: bool) -> Vec<MemberNews> {
        members.seen(at(minute), alive, is_settled, |_| false)
    }

    fn names(members: &Members) -> Vec<(&str, Timestamp)> {
        members.missing.iter().map(|missing| (missing.node.as_str(), missing.gone_since)).collect()
    }

    /// What the news say: `gone host-b`.
    fn said(news: Vec<MemberNews>) -> Vec<String> {
        let said = |news| match news {
            MemberNews::Gone(missing) if missing.stopped => format!("stopped {}", missing.node),
            MemberNews::Gone(missing) => format!("gone {}", missing.node),
            MemberNews::Back(missing) => format!("back {}", missing.node),
        };
        news.into_iter().map(said).collect()
    }

    #[test]
    fn a_node_is_missing_from_when_it_was_noticed_until_it_returns() {
        let (all, mut members) = (sample::queue().members, Members::default());
        seen(&mut members, 0, &all, true);
        seen(&mut members, 1, &all[..1], true);
        seen(&mut members, 2, &all[..1], true);
        assert_eq!(names(&members), [("host-b", at(1))]);
        assert_eq!(members.missing[0].last_seen, Some(at(0)), "it went between the two");
        seen(&mut members, 3, &all, true);
        assert_eq!(names(&members), []);
        seen(&mut members, 4, &all[..1], true);
        seen(&mut members, 8 * 24 * 60, &all[..1], true);
        assert_eq!(names(&members), [], "it is no longer expected after a week");
        seen(&mut members, 9 * 24 * 60, &all, true);
        members.seen(at(9 * 24 * 60 + 1), &all[..1], true, |node| node.as_str() == "host-b");
        assert_eq!(members.missing[0].seen_well_before(), None, "its end was noticed at once");
    }

    #[test]
    fn who_goes_and_who_comes_back_is_reported_once() {
        let (mut all, mut members) = (sample::queue().members, Members::default());
        assert_eq!(said(seen(&mut members, 0, &all, true)), [""; 0], "they were there");
        assert_eq!(said(seen(&mut members, 1, &all[..1], true)), ["gone host-b"]);
        assert_eq!(said(seen(&mut members, 2, &all[..1], true)), [""; 0]);
        assert_eq!(said(seen(&mut members, 3, &all, true)), ["back host-b"]);
        all[1].published.draining = true;
        seen(&mut members, 4, &all, true);
        assert_eq!(said(seen(&mut members, 5, &all[..1], true)), ["stopped host-b"]);
        all[1].published.draining = false;
        seen(&mut members, 6, &all, true);
        assert_eq!(said(seen(&mut members, 7, &all[..1], true)), ["gone host-b"], "this time nobody had stopped it");
    }

    /// One without runs in flight is gone before another node sees that it is stopping.
    #[test]
    fn a_node_that_says_as_it_leaves_that_it_was_stopped_is_not_gone() {
        let (all, mut members) = (sample::queue().members, Members::default());
        seen(&mut members, 0, &all, true);
        members.stopped(&NodeName::new("host-b"));
        assert_eq!(said(seen(&mut members, 1, &all[..1], true)), ["stopped host-b"]);
        members.stopped(&NodeName::new("host-b"));
        assert!(members.missing[0].stopped, "it is not alive any more");
        seen(&mut members, 2, &all, true);
        assert_eq!(said(seen(&mut members, 3, &all[..1], true)), ["gone host-b"], "this time nobody had stopped it");
    }

    #[test]
    fn after_an_outage_only_those_are_reported_that_do_not_come_back_in_time() {
        let (all, mut members) = (sample::queue().members, Members::default());
        seen(&mut members, 0, &all, true);
        assert_eq!(said(seen(&mut members, 1, &all[..1], false)), [""; 0]);
        assert_eq!(names(&members), [("host-b", at(1))], "it is missing all the same");
        assert_eq!(said(seen(&mut members, 2, &all, false)), [""; 0]);
        seen(&mut members, 3, &all[..1], false);
        assert_eq!(said(seen(&mut members, 4, &all[..1], true)), ["gone host-b"]);
    }
}
