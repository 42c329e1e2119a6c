//! Who leads, for how long, and by which token: the words of an election.
//!
//! Knows nothing of how an election is held.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node: one running `cronkeeper run`, by the name its operator knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(String);

impl NodeName {
    /// Takes a name as it is; [`NodeName::parse`] checks what people type.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// A name that can stand in a path: letters, digits, `.`, `_` and `-`, at most 253 bytes, not starting with a dot.
    ///
    /// # Errors
    /// The broken rule, in words.
    pub fn parse(name: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(format!(
                "`{name}` is no node name: 1 to 253 letters, digits, `.`, `_` and `-`, not starting with a dot"
            ));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A session with the coordination service, as its backend names it: what a node's entries live and die with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub String);

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
