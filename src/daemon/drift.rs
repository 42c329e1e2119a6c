//! Drift: nodes whose jobs or time zone data differ, so that they may disagree about what is due.

use cronkeeper_core::election::{Member, Published};
use cronkeeper_core::job::Digest;
use cronkeeper_core::term::NodeName;

/// A difference between this node and another one; one of the two leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The two have different jobs.
    Jobs { other: NodeName, digest: Digest, other_digest: Digest },
    /// The two have different releases of the time zone data, and can disagree about when a job is due.
    Zones { other: NodeName, tzdata: String, other_tzdata: String },
}

/// What has become of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriftNews {
    Begun(Drift),
    /// The two agree again.
    Ended(Drift),
}

impl Drift {
    /// True if the other difference is of the same kind and from the same node.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.other() == other.other()
    }

    /// The differences between a member and what this node has published, as far as both have published it.
    pub(super) fn of(own: &Published, member: &Member) -> impl Iterator<Item = Self> + use<> {
        let (other, theirs) = (&member.node, &member.published);
        let jobs = theirs.has_other_jobs_than(own).then(|| Self::Jobs {
            other: other.clone(),
            digest: own.digest.clone(),
            other_digest: theirs.digest.clone(),
        });
        let zones = theirs.has_other_zones_than(own).then(|| Self::Zones {
            other: other.clone(),
            tzdata: own.tzdata.clone(),
            other_tzdata: theirs.tzdata.clone(),
        });
        jobs.into_iter().chain(zones)
    }

    pub(super) fn other(&self) -> &NodeName {
        match self {
            Self::Jobs { other, .. } | Self::Zones { other, .. } => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn jobs_and_time_zone_data_are_compared_where_both_nodes_publish_them() {
        let published = |jobs: &str, tzdata: &str| Published {
            digest: Digest::of(jobs.as_bytes()),
            tzdata: tzdata.into(),
            ..Published::default()
        };
        let differs = |own: &Published, published: Published| {
            let member = Member {
                v: 1,
                node: NodeName::new("host-b"),
                host: "b".into(),
                pid: 1,
                version: "0".into(),
                started_at: Timestamp::UNIX_EPOCH,
                session_timeout_ms: None,
                published,
                opened: None,
                session: None,
            };
            let found = Drift::of(own, &member).map(|drift| match drift {
                Drift::Jobs { .. } => "jobs",
                Drift::Zones { .. } => "zones",
            });
            found.collect::<Vec<_>>()
        };
        let own = published("one", "2026a");
        assert_eq!(differs(&own, published("one", "2026a")), [""; 0]);
        assert_eq!(differs(&own, published("two", "2026b")), ["jobs", "zones"]);
        assert_eq!(differs(&own, published("one", "2025b")), ["zones"]);
        for silent in ["", "unknown"] {
            assert_eq!(differs(&own, published("one", silent)), [""; 0]);
            assert_eq!(differs(&published("one", silent), published("one", "2026b")), [""; 0]);
        }
        assert_eq!(differs(&own, Published::default()), [""; 0], "nothing is published yet");
    }
}
