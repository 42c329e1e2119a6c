//! Who leads, for how long, and by which token: the words of an election.
//!
//! Knows nothing of how an election is held.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::suggest::shown;

/// Characters of what is refused that are enough to know it again: it may be of any length.
const SHOWN: usize = 100;

/// A node: one running `cronkeeper run`, by the name its operator knows. Whatever is read, from wherever, is checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Takes a name as it is, where it is known to be good; [`NodeName::parse`] checks what comes from outside.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// A name that can stand in a path: letters, digits, `.`, `_` and `-`, at most 253 bytes, not starting with a dot.
    ///
    /// # Errors
    /// The broken rule, in words.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.chars().all(Self::may_contain) {
            return Err(format!(
                "`{}` is no node name: 1 to 253 letters, digits, `.`, `_` and `-`, not starting with a dot",
                shown(name, SHOWN)
            ));
        }
        Ok(Self(name.to_owned()))
    }

    /// True for what may stand in a name.
    pub fn may_contain(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        Self::parse(&name)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A session with the coordination service, as its backend names it: what a node's entries live and die with. What is read is
/// checked for looking like the name of one: ZooKeeper's are hexadecimal numbers, those on one host uuids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(pub String);

impl TryFrom<String> for SessionId {
    type Error = String;
    fn try_from(id: String) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || id.len() > 64 || !id.chars().all(plain) {
            return Err(format!("`{}` is no session: 1 to 64 letters, digits and `-`", shown(&id, SHOWN)));
        }
        Ok(Self(id))
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Orders all terms of a cluster: a later term has a larger token, so a resource can refuse an older one.
/// On ZooKeeper the creation zxid of the leader's candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub i64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A candidate's name in the queue, without its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CandidateName(pub String);

impl fmt::Display for CandidateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One candidate's time as leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Orders this term among all.
    pub token: FencingToken,
    /// The entry in the queue that it rests on.
    pub candidate: CandidateName,
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermEnd {
    /// The node gave leadership up: the operator stopped it, or asked it to hand over.
    Resigned,
    /// No quorum write was acknowledged in time.
    LeaseOver,
    /// The candidate or the member is gone, or belongs to another session.
    EntryGone,
    /// The session is gone.
    SessionExpired,
    /// A write found the candidate gone.
    Fenced,
    /// The loop that decides stands still.
    Stalled,
}

impl TermEnd {
    /// The `reason` of `leader.resigned` and `leader.lost`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resigned => "asked",
            Self::LeaseOver => "lease",
            Self::EntryGone => "entry-gone",
            Self::SessionExpired => "session-expired",
            Self::Fenced => "fenced",
            Self::Stalled => "stalled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_one_is_not_read() {
        let long = "a".repeat(254);
        for bad in ["", ".", "..", "../../x", "a/b", "a b", "a\u{7}", "knoten-ä", &long] {
            let read = serde_json::from_value::<NodeName>(bad.into());
            assert!(read.unwrap_err().to_string().contains("is no node name"), "{bad}");
        }
        for good in ["a", "host-a.example", "0", "a_b"] {
            let read: NodeName = serde_json::from_value(good.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), good);
        }
    }

    #[test]
    fn a_session_that_cannot_be_one_is_not_read() {
        for bad in ["", "0x1/2", "..", "0x1\n"] {
            assert!(serde_json::from_value::<SessionId>(bad.into()).is_err(), "{bad}");
        }
        for good in ["0x10001a2b3c40000", "5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11"] {
            let read: SessionId = serde_json::from_value(good.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), good);
        }
    }

    #[test]
    fn what_is_refused_is_not_repeated_at_any_length() {
        assert!(NodeName::parse(&"/".repeat(100_000)).unwrap_err().len() < 300);
    }
}
