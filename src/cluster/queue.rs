//! Order of the queue in `/leader`, from names alone wherever they suffice.
//!
//! As in the lock recipe, the order is that of the sequence suffixes, whatever the prefix. So entries of Curator and
//! kazoo share the queue; a child without a suffix does not count. A parent whose counter has reached its end gives out
//! equal or negative sequence numbers; these are ordered by creation. Pure: uses no client.

use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    pub name: String,
    /// When it was created, among all of the service's writes; 0 if it was not read because [`needs_age`] was false.
    pub created: i64,
}

/// A session's position in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePosition {
    /// This session's entry: the lowest with its prefix.
    pub ours: Option<String>,
    /// Further entries of this session, left by creates without an answer. The caller must remove them.
    pub surplus: Vec<String>,
    /// The entry just ahead of this session's.
    pub predecessor: Option<String>,
    /// The first entry of all.
    pub first: Option<String>,
}

/// The prefix of a session's entries: Curator's protection prefix and lock name.
pub fn prefix(uuid: Uuid) -> String {
    format!("_c_{uuid}-lock-")
}

/// The sequence number at the end of a name; `None` if the name is not a queue entry's.
pub fn sequence(name: &str) -> Option<i64> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let dashes = name[..name.len() - digits].bytes().rev().take_while(|&byte| byte == b'-').count();
    // The server formats with "%010d": ten characters, including the sign of a negative number.
    if digits == 9 && dashes > 0 {
        return name[name.len() - 9..].parse().ok().map(|number: i64| -number);
    }
    if digits < 10 {
        return None;
    }
    let number: i64 = name[name.len() - 10..].parse().ok()?;
    let is_signed = digits == 10 && (dashes > 1 || (dashes == 1 && number > i64::from(i32::MAX)));
    Some(if is_signed { -number } else { number })
}

/// True if names alone do not give the order, so that the entries' creation transactions must be read.
pub fn needs_age(names: &[String]) -> bool {
    let mut sequences: Vec<i64> = names.iter().filter_map(|name| sequence(name)).collect();
    sequences.sort_unstable();
    sequences.first().is_some_and(|&lowest| lowest < 0) || sequences.windows(2).any(|pair| pair[0] == pair[1])
}

/// Sorts the entries, the leader first. Drops names that are not queue entries'.
pub fn order(entries: Vec<QueueEntry>) -> Vec<String> {
    let mut keyed: Vec<_> = entries
        .into_iter()
        .filter_map(|entry| {
            let sequence = sequence(&entry.name)?;
            // Negative numbers come after the largest positive one; only the creation orders them among themselves.
            Some(((sequence < 0, sequence.max(0), entry.created), entry.name))
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, name)| name).collect()
}

/// The position of the entry with this prefix in a sorted queue.
pub fn place(ordered: &[String], prefix: &str) -> QueuePosition {
    let mut own = ordered.iter().enumerate().filter(|(_, name)| name.starts_with(prefix));
    let first = ordered.first().cloned();
    let Some((at, ours)) = own.next() else {
        return QueuePosition { first, ..QueuePosition::default() };
    };
    QueuePosition {
        ours: Some(ours.clone()),
        surplus: own.map(|(_, name)| name.clone()).collect(),
        predecessor: at.checked_sub(1).map(|before| ordered[before].clone()),
        first,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{Fuzz, text};

    fn ordered(names: &[&str]) -> Vec<String> {
        order(names.iter().map(|&name| QueueEntry { name: name.into(), created: 0 }).collect())
    }

    const CURATOR: &str = "_c_5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11-lock-0000000002";
    const KAZOO: &str = "4b0ad6dbd1f14a4c8e8e3d6c2b0d7f11__lock__0000000001";

    #[test]
    fn curators_and_kazoos_names_are_ordered_by_sequence_whatever_their_prefix() {
        assert_eq!(ordered(&[CURATOR, KAZOO, "zz-lock-0000000000"]), ["zz-lock-0000000000", KAZOO, CURATOR]);
    }

    #[test]
    fn a_child_without_a_sequence_number_does_not_count() {
        assert_eq!(ordered(&["config", "lock-123", KAZOO, ""]), [KAZOO]);
    }

    #[test]
    fn the_suffix_is_read_as_the_server_writes_it() {
        assert_eq!(sequence("lock-0000000007"), Some(7));
        assert_eq!(sequence("lock-2147483647"), Some(2_147_483_647));
        assert_eq!(sequence("lock--2147483648"), Some(-2_147_483_648));
        assert_eq!(sequence("lock-2147483648"), Some(-2_147_483_648), "no positive number is that large");
        assert_eq!(sequence("lock--000000001"), Some(-1));
        assert_eq!(sequence("lock--1234567890"), Some(-1_234_567_890));
        assert_eq!(sequence("x440000000007"), Some(7), "a prefix may end in digits");
    }

    #[test]
    fn equal_and_negative_sequences_are_ordered_by_age() {
        let entry = |name: &str, created| QueueEntry { name: name.into(), created };
        let stuck = vec![entry("b-2147483647", 9), entry("a-2147483647", 10), entry("c-2147483646", 8)];
        assert!(needs_age(&stuck.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>()));
        assert_eq!(order(stuck), ["c-2147483646", "b-2147483647", "a-2147483647"]);
        let wrapped = vec![entry("a--2147483647", 12), entry("b--2147483648", 11), entry("c-2147483647", 10)];
        assert_eq!(order(wrapped), ["c-2147483647", "b--2147483648", "a--2147483647"]);
    }

    #[test]
    fn of_several_own_entries_the_lowest_counts_and_the_others_are_surplus() {
        let queue = ordered(&["me-lock-0000000005", "other-0000000003", "me-lock-0000000004", "last-0000000009"]);
        let place = place(&queue, "me-lock-");
        assert_eq!(place.ours.as_deref(), Some("me-lock-0000000004"));
        assert_eq!(place.surplus, ["me-lock-0000000005"]);
        assert_eq!(place.predecessor.as_deref(), Some("other-0000000003"));
        assert_eq!(place.first.as_deref(), Some("other-0000000003"));
    }

    #[test]
    fn the_first_has_no_predecessor_and_an_absent_one_no_position() {
        let queue = ordered(&["me-0000000001", "other-0000000003"]);
        assert_eq!(place(&queue, "me-").predecessor, None);
        assert_eq!(place(&queue, "stranger-").ours, None);
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn the_order_does_not_depend_on_the_listing(sequences in prop::collection::vec((any::<i32>(), "[a-z]{1,4}-"), 0..30), seed in any::<u64>()) {
            let entries: Vec<QueueEntry> = sequences.iter().enumerate()
                .map(|(age, (sequence, prefix))| QueueEntry { name: format!("{prefix}{sequence:010}"), created: age as i64 })
                .collect();
            let mut shuffled = entries.clone();
            shuffled.sort_by_key(|entry| (entry.created as u64).wrapping_mul(seed | 1));
            prop_assert_eq!(order(entries), order(shuffled));
        }

        #[test]
        fn every_sequence_is_read_back(number in any::<i32>(), prefix in "[a-z_]{0,8}-lock-") {
            let name = format!("{prefix}{number:010}");
            prop_assert_eq!(sequence(&name), Some(i64::from(number)));
        }

        #[test]
        fn each_but_the_first_waits_for_exactly_one_other(count in 1usize..20) {
            let queue: Vec<String> = (0..count).map(|at| format!("n{at:02}-lock-{at:010}")).collect();
            let mut awaited: Vec<_> = (0..count).filter_map(|at| place(&queue, &format!("n{at:02}-lock-")).predecessor).collect();
            awaited.dedup();
            prop_assert_eq!(awaited.len(), count - 1);
        }

        #[test]
        fn no_name_panics(name in ".*") {
            let _ = sequence(&name);
        }
    }

    /// Each line is a name. The order must not depend on the order of the listing.
    #[test]
    fn fuzz_names_in_the_queue() {
        let words =
            &["-lock-", "_c_", "__lock__", "0000000001", "2147483647", "-2147483648", "-", "\n", "me-lock-0000000005"];
        Fuzz { longest: 16 << 10, ..Fuzz::of("queue-names", words) }.run(|input| {
            let text = text(input);
            let entry = |(age, name): (usize, &str)| QueueEntry { name: name.to_owned(), created: age as i64 };
            let entries: Vec<QueueEntry> = text.lines().enumerate().map(entry).collect();
            let listed: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
            let _ = needs_age(&listed);
            let ordered = order(entries.clone());
            assert_eq!(order(entries.into_iter().rev().collect()), ordered);
            assert_eq!(ordered.len(), listed.iter().filter(|name| sequence(name).is_some()).count());
            let place = place(&ordered, "me-lock-");
            assert_eq!(place.first.as_ref(), ordered.first());
            place.ours.is_some()
        });
    }
}
