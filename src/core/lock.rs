//! Locks that scripts and jobs take: paths, kinds, and the key that makes a lock reentrant.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid};

/// Paths that hold cronkeeper's own records and ZooKeeper's. A foreign entry in `/leader` would take part in the
/// election.
const RESERVED: [&str; 3] = ["/leader", "/cronkeeper", "/zookeeper"];
/// Most bytes of a path.
const LONGEST: usize = 500;
/// Most permits of a semaphore, counts of a latch and parties of a barrier: that many names fit in one listing.
pub const MOST: u32 = 10_000;
/// Most keys that a process takes from its environment: the depth of nested locks.
const MOST_KEYS: usize = 64;

/// The path of a lock: absolute, below the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct LockPath(String);

impl LockPath {
    /// Checks a path: absolute, with components other than `.` and `..`, without control characters, and not one that
    /// cronkeeper or ZooKeeper uses.
    ///
    /// # Errors
    /// A message that names the rule.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(components) = text.strip_prefix('/') else {
            return Err("a path begins with `/`".to_owned());
        };
        if text.len() > LONGEST {
            return Err(format!("a path has at most {LONGEST} bytes"));
        }
        if components.is_empty() {
            return Err("the root is not for locks".to_owned());
        }
        check_components(components)?;
        if let Some(reserved) = RESERVED.iter().find(|reserved| is_at_or_below(text, reserved)) {
            return Err(format!("`{reserved}` is not for locks"));
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of a child.
    pub fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

/// Checks what is behind the first slash of a path in ZooKeeper: the components, and their characters.
///
/// # Errors
/// A message that names the rule.
pub fn check_components(components: &str) -> Result<(), &'static str> {
    if components.split('/').any(|component| matches!(component, "" | "." | "..")) {
        return Err("a path has no empty components, and none that is `.` or `..`");
    }
    if components.chars().any(is_refused) {
        return Err("a path has no control characters");
    }
    Ok(())
}

/// ZooKeeper refuses these characters in paths; a newline separates paths in the environment of a command.
fn is_refused(c: char) -> bool {
    c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || ('\u{fff0}'..='\u{ffff}').contains(&c)
}

fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True if no lock can be at this path or below it.
pub fn is_reserved(path: &str) -> bool {
    RESERVED.iter().any(|reserved| is_at_or_below(path, reserved))
}

impl AsRef<str> for LockPath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for LockPath {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who may hold a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// One holder.
    Mutex,
    /// A read-write lock, as a reader: together with other readers.
    Shared,
    /// A read-write lock, as the only writer.
    Exclusive,
    /// A semaphore.
    Permits {
        /// Permits of the semaphore. All its users must name the same number.
        of: u32,
        /// Permits to take.
        count: u32,
    },
}

impl LockKind {
    /// True if a process that holds the lock as `self` may take it again as `inner` without waiting.
    pub fn covers(self, inner: Self) -> bool {
        match (self, inner) {
            (Self::Permits { .. }, _) | (_, Self::Permits { .. }) => false,
            (Self::Shared, inner) => inner == Self::Shared,
            (Self::Mutex | Self::Exclusive, _) => true,
        }
    }
}

/// A secret that the holder of a lock hands to its command.
///
/// The name of the holder's entry contains a uuid made from the key, so that everybody can check a key and nobody can
/// guess one. A command that has the key of a holder holds the lock too.
#[derive(Clone, PartialEq, Eq)]
pub struct LockKey(String);

impl LockKey {
    /// Draws a key: 244 random bits from the system.
    pub fn draw() -> Self {
        Self::of(Uuid::new_v4(), Uuid::new_v4())
    }

    /// The key of two random numbers that nobody else knows.
    pub fn of(first: Uuid, second: Uuid) -> Self {
        Self(format!("{}{}", first.simple(), second.simple()))
    }

    /// The keys in the text that [`LockKey::with`] made. Leaves out what no key can be.
    pub fn in_text(text: &str) -> Vec<Self> {
        let is_key = |word: &&str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        text.split(' ').filter(is_key).take(MOST_KEYS).map(|word| Self(word.to_owned())).collect()
    }

    /// This key and those of the outer locks, for the environment of the command.
    pub fn with(&self, outer: &[Self]) -> String {
        let keys: Vec<&str> = std::iter::once(self).chain(outer).take(MOST_KEYS).map(|key| key.0.as_str()).collect();
        keys.join(" ")
    }

    /// What only somebody with the key can say about this text.
    pub fn proof(&self, of: &str) -> String {
        let digest = Sha256::new().chain_update(&self.0).chain_update(" ").chain_update(of).finalize();
        digest.iter().take(16).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// The uuid in the names of the holder's entries.
    pub fn uuid(&self) -> Uuid {
        let digest = Sha256::digest(self.0.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Builder::from_random_bytes(bytes).into_uuid()
    }
}

/// Does not show the secret.
impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key of {}", self.uuid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    #[test]
    fn a_path_is_absolute_and_leads_to_no_record_of_others() {
        for good in ["/locks/orders", "/a", "/leaders", "/cronkeeper-locks/x", "/ä b"] {
            assert_eq!(LockPath::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "/", "orders", "/a/", "//a", "/a/../b", "/./a", "/a\nb", "/a\0", "/a\u{e000}"] {
            assert!(LockPath::parse(bad).is_err(), "{bad:?}");
        }
        for reserved in ["/leader", "/leader/x", "/cronkeeper/jobs", "/zookeeper"] {
            assert!(LockPath::parse(reserved).unwrap_err().contains("is not for locks"), "{reserved}");
        }
        assert!(LockPath::parse(&format!("/{}", "a".repeat(LONGEST))).is_err());
    }

    #[test]
    fn a_writer_may_read_and_a_reader_may_not_write() {
        let permit = LockKind::Permits { of: 2, count: 1 };
        for outer in [LockKind::Mutex, LockKind::Exclusive] {
            for inner in [LockKind::Mutex, LockKind::Exclusive, LockKind::Shared] {
                assert!(outer.covers(inner));
            }
            assert!(!outer.covers(permit));
        }
        assert!(LockKind::Shared.covers(LockKind::Shared));
        assert!(!LockKind::Shared.covers(LockKind::Exclusive) && !LockKind::Shared.covers(LockKind::Mutex));
        assert!(!permit.covers(permit));
    }

    #[test]
    fn keys_survive_the_environment_and_give_away_nothing() {
        let (outer, inner) = (LockKey::draw(), LockKey::draw());
        let text = inner.with(std::slice::from_ref(&outer));
        assert_eq!(LockKey::in_text(&text), [inner.clone(), outer.clone()]);
        assert_ne!(inner.uuid(), outer.uuid());
        assert_eq!(inner.uuid(), LockKey::in_text(&text)[0].uuid());
        assert!(!format!("{inner:?}").contains(&inner.0));
        assert_eq!(LockKey::in_text("short nonsense"), []);
        assert_eq!(inner.proof("a"), inner.proof("a"));
        assert_ne!(inner.proof("a"), inner.proof("b"));
        assert_ne!(inner.proof("a"), LockKey::draw().proof("a"));
        let many = vec![outer; 200];
        assert_eq!(LockKey::in_text(&inner.with(&many)).len(), MOST_KEYS);
    }

    #[test]
    fn fuzz_lock_paths() {
        let words = &["/locks/orders", "/leader", "/cronkeeper", "/", "..", ".", "\n", "\u{e000}", "/a b/c"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("lock-paths", words) }.run(|input| {
            let text = text(input);
            let path = LockPath::parse(&text);
            assert!(path.as_ref().is_ok_and(|path| path.as_str() == text) || path.is_err());
            let _ = LockKey::in_text(&text);
            path.is_ok()
        });
    }
}
