//! Names of entries, and which of them hold the lock. Pure: uses no client.
//!
//! The order is that of the sequence numbers, whatever the prefix: see [`queue`](crate::queue).

use uuid::Uuid;

use cronkeeper_core::lock::LockKind;

/// Whose names and layout of entries a lock uses. Clients that use the same share a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recipe {
    /// Apache Curator's, for Java.
    #[default]
    Curator,
    /// kazoo's, for Python.
    Kazoo,
}

/// Ends of the names that readers have, before the sequence number.
const SHARED: [&str; 2] = ["__READ__", "__rlock__"];
/// Characters of a sequence number, the sign of a negative one included.
const SEQUENCE: usize = 10;

impl Recipe {
    /// The name of a new entry, to which the server appends the sequence number.
    pub fn prefix(self, kind: LockKind, uuid: Uuid) -> String {
        match (self, kind) {
            (Self::Curator, LockKind::Mutex | LockKind::Permits { .. }) => format!("_c_{uuid}-lock-"),
            (Self::Curator, LockKind::Shared) => format!("_c_{uuid}-__READ__"),
            (Self::Curator, LockKind::Exclusive) => format!("_c_{uuid}-__WRIT__"),
            (Self::Kazoo, LockKind::Shared) => format!("{}__rlock__", uuid.simple()),
            (Self::Kazoo, _) => format!("{}__lock__", uuid.simple()),
        }
    }
}

/// True if a client with this uuid has made the entry.
pub fn is_of(name: &str, uuid: Uuid) -> bool {
    let name = name.strip_prefix("_c_").unwrap_or(name);
    name.starts_with(&uuid.to_string()) || name.starts_with(&uuid.simple().to_string())
}

/// True if the entry is a reader's, which may hold the lock together with other readers.
pub fn is_shared(name: &str) -> bool {
    let kind = name.len().checked_sub(SEQUENCE).and_then(|end| name.get(..end)).unwrap_or_default();
    SHARED.iter().any(|shared| kind.ends_with(shared))
}

/// What an entry's position in the queue means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It holds the lock.
    Held,
    /// It waits for this entry.
    Behind(String),
    /// It is not in the queue.
    Gone,
}

/// The turn of the entry `own` in a sorted queue.
///
/// A reader waits for the last writer ahead of it, every other entry for the one just ahead of it.
pub fn turn(ordered: &[String], own: &str) -> Turn {
    let Some(at) = ordered.iter().position(|name| name == own) else { return Turn::Gone };
    let ahead = &ordered[..at];
    let awaited = if is_shared(own) { ahead.iter().rfind(|name| !is_shared(name)) } else { ahead.last() };
    awaited.map_or(Turn::Held, |name| Turn::Behind(name.clone()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    const READ: &str = "_c_5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11-__READ__";
    const WRITE: &str = "_c_5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a12-__WRIT__";

    fn entry(prefix: &str, sequence: i32) -> String {
        format!("{prefix}{sequence:010}")
    }

    #[test]
    fn readers_of_both_libraries_are_recognized() {
        let kazoo = entry("4b0ad6dbd1f14a4c8e8e3d6c2b0d7f11__rlock__", 1);
        assert!(is_shared(&entry(READ, 1)) && is_shared(&entry(READ, -1)) && is_shared(&kazoo));
        for exclusive in [WRITE, "_c_5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11-lock-", "4b0ad6db__lock__", "x-"] {
            assert!(!is_shared(&entry(exclusive, 1)), "{exclusive}");
        }
        assert!(!is_shared("") && !is_shared("__READ__"));
    }

    #[test]
    fn an_entry_is_known_by_the_uuid_of_its_client() {
        let uuid = Uuid::new_v4();
        for recipe in [Recipe::Curator, Recipe::Kazoo] {
            for kind in [LockKind::Mutex, LockKind::Shared, LockKind::Exclusive] {
                let name = entry(&recipe.prefix(kind, uuid), 7);
                assert!(is_of(&name, uuid) && !is_of(&name, Uuid::new_v4()), "{name}");
                assert_eq!(is_shared(&name), kind == LockKind::Shared, "{name}");
            }
        }
    }

    #[test]
    fn readers_hold_side_by_side_and_a_writer_waits_for_the_one_ahead() {
        let queue = names(&[&entry(READ, 1), &entry(READ, 2), &entry(WRITE, 3), &entry(READ, 4), &entry(WRITE, 5)]);
        assert_eq!(turn(&queue, &queue[0]), Turn::Held);
        assert_eq!(turn(&queue, &queue[1]), Turn::Held);
        assert_eq!(turn(&queue, &queue[2]), Turn::Behind(queue[1].clone()));
        assert_eq!(turn(&queue, &queue[3]), Turn::Behind(queue[2].clone()), "no reader overtakes a writer");
        assert_eq!(turn(&queue, &queue[4]), Turn::Behind(queue[3].clone()));
        assert_eq!(turn(&queue, "absent-0000000009"), Turn::Gone);
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn a_writer_never_holds_beside_anybody(kinds in prop::collection::vec(any::<bool>(), 1..20)) {
            let queue: Vec<String> = kinds.iter().zip(1..)
                .map(|(&shared, sequence)| entry(if shared { READ } else { WRITE }, sequence)).collect();
            let holders: Vec<&String> = queue.iter().filter(|name| turn(&queue, name) == Turn::Held).collect();
            prop_assert!(!holders.is_empty(), "the first holds");
            prop_assert!(holders.len() == 1 || holders.iter().all(|name| is_shared(name)));
        }

        #[test]
        fn whoever_waits_waits_for_one_ahead_of_it(kinds in prop::collection::vec(any::<bool>(), 1..20)) {
            let queue: Vec<String> = kinds.iter().zip(1..)
                .map(|(&shared, sequence)| entry(if shared { READ } else { WRITE }, sequence)).collect();
            for (at, name) in queue.iter().enumerate() {
                if let Turn::Behind(awaited) = turn(&queue, name) {
                    prop_assert!(queue.iter().position(|name| *name == awaited).unwrap() < at);
                }
            }
        }

        #[test]
        fn no_name_panics(name in ".*", uuid in any::<u128>()) {
            let _ = (is_shared(&name), is_of(&name, Uuid::from_u128(uuid)));
        }
    }
}
