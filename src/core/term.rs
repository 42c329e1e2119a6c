//! Names and tokens of an election: node, session, candidate, term.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::escape::short;

/// How many characters of a rejected name an error quotes; the name may have any length.
const SHOWN: usize = 100;

/// The name of a node, that is, of one running `cronkeeper run`. Deserializing checks it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Takes a name that is known to be valid, without a check. Use [`NodeName::parse`] for external input.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Checks a name: letters, digits, `.`, `_` and `-`, at most 253 bytes, not starting with a dot.
    ///
    /// The rule makes it safe to use the name as a path component.
    ///
    /// # Errors
    /// A message that names the rule.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.chars().all(Self::may_contain) {
            return Err(format!(
                "`{}` is not a node name: expected 1 to 253 letters, digits, `.`, `_` and `-`, not starting with a dot",
                short(name, SHOWN)
            ));
        }
        Ok(Self(name.to_owned()))
    }

    /// True if a node with this name can be given shares of jobs on every node: the ids of shares have its name, and name
    /// files.
    pub fn may_have_shares(&self) -> bool {
        self.0.len() <= Self::LONGEST_WITH_SHARES
    }

    /// Most characters of the name of a node that is given shares.
    pub const LONGEST_WITH_SHARES: usize = 64;

    /// True if a name may contain this character.
    pub fn may_contain(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
    }

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

/// The id of a session with the coordination service. A node's entries exist as long as its session.
///
/// Deserializing checks the form: ZooKeeper's ids are hexadecimal numbers, those of a single host are uuids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(pub String);

impl TryFrom<String> for SessionId {
    type Error = String;
    fn try_from(id: String) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || id.len() > 64 || !id.chars().all(plain) {
            return Err(format!(
                "`{}` is not a session id: expected 1 to 64 letters, digits and `-`",
                short(&id, SHOWN)
            ));
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

/// A number that orders all terms of a cluster. A later term has a larger token, so a resource can reject an older one.
/// On ZooKeeper it is the creation zxid of the leader's candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct FencingToken(pub i64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A candidate's name in the queue, without its parent znode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct CandidateName(pub String);

impl fmt::Display for CandidateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The period during which one candidate leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub token: FencingToken,
    /// The candidate that holds the leadership.
    pub candidate: CandidateName,
}

/// The reason why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermEnd {
    /// The node gave up leadership, because an operator stopped it or requested a handover.
    Resigned,
    /// The lease expired: no quorum write was acknowledged in time.
    LeaseOver,
    /// The node's candidate or member is gone or belongs to another session.
    EntryGone,
    SessionExpired,
    /// A write failed because the candidate was gone.
    Fenced,
    /// The daemon's loop is stuck.
    Stalled,
}

impl TermEnd {
    /// The `reason` field of the events `leader.resigned` and `leader.lost`.
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
    fn an_invalid_node_name_is_rejected() {
        let long = "a".repeat(254);
        for bad in ["", ".", "..", "../../x", "a/b", "a b", "a\u{7}", "knoten-ä", &long] {
            let read = serde_json::from_value::<NodeName>(bad.into());
            assert!(read.unwrap_err().to_string().contains("is not a node name"), "{bad}");
        }
        for good in ["a", "host-a.example", "0", "a_b"] {
            let read: NodeName = serde_json::from_value(good.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), good);
        }
    }

    #[test]
    fn an_invalid_session_id_is_rejected() {
        for bad in ["", "0x1/2", "..", "0x1\n"] {
            assert!(serde_json::from_value::<SessionId>(bad.into()).is_err(), "{bad}");
        }
        for good in ["0x10001a2b3c40000", "5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11"] {
            let read: SessionId = serde_json::from_value(good.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), good);
        }
    }

    #[test]
    fn an_error_quotes_a_long_name_only_in_part() {
        assert!(NodeName::parse(&"/".repeat(100_000)).unwrap_err().len() < 300);
    }
}
