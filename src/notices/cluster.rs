//! Notifications about the cluster: who leads, and which nodes are missing or back. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use cronkeeper_core::clock::Now;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::NoticeKind;
use cronkeeper_core::run::Notice;
use cronkeeper_core::term::{FencingToken, NodeName};

/// How long a node must be gone before it is called missing: longer than a host takes to restart.
const MISSING_AFTER: Duration = Duration::from_secs(300);

/// What this term has reported so far.
#[derive(Debug)]
pub(super) struct ClusterNews {
    token: FencingToken,
    has_begun: bool,
    /// The nodes that are gone: when this process noticed, and whether it has reported them.
    missing: BTreeMap<NodeName, (Uptime, bool)>,
}

impl ClusterNews {
    pub fn of_term(token: FencingToken) -> Self {
        Self { token, has_begun: false, missing: BTreeMap::new() }
    }

    /// What is new. `missing`: the nodes that are gone, and since when.
    pub fn see(&mut self, now: Now, own: &NodeName, missing: &BTreeMap<NodeName, Timestamp>) -> Vec<Notice> {
        let mut news = Vec::new();
        let notice = |kind, node: &NodeName| Notice::of_cluster(kind, node.clone(), self.token, now.wall);
        if !std::mem::replace(&mut self.has_begun, true) {
            news.push(notice(NoticeKind::LeaderChanged, own));
        }
        for (node, &since) in missing {
            let (seen, is_said) = self.missing.entry(node.clone()).or_insert((now.up, false));
            if !*is_said && now.up >= *seen + MISSING_AFTER {
                *is_said = true;
                // Of two absences in one term, each is said.
                let notice = notice(NoticeKind::NodeMissing, node);
                news.push(Notice { id: format!("{}/{since}", notice.id), since: Some(since), ..notice });
            }
        }
        let back: Vec<NodeName> = self.missing.keys().filter(|node| !missing.contains_key(node)).cloned().collect();
        for node in back {
            if self.missing.remove(&node).is_some_and(|(_, is_said)| is_said) {
                let notice = notice(NoticeKind::NodeBack, &node);
                news.push(Notice { id: format!("{}/{}", notice.id, now.wall), ..notice });
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_said_once_and_an_absence_once_it_has_lasted() {
        let (own, gone) = (NodeName::new("a"), NodeName::new("b"));
        let mut news = ClusterNews::of_term(FencingToken(7));
        let now = |seconds: u64| Now {
            wall: Timestamp::from_second(1_000 + seconds.cast_signed()).unwrap(),
            up: Uptime::ZERO + Duration::from_secs(seconds),
        };
        let (none, missing) = (BTreeMap::new(), BTreeMap::from([(gone, now(0).wall)]));
        let mut see = |seconds, missing: &BTreeMap<NodeName, Timestamp>| {
            let said = news.see(now(seconds), &own, missing);
            said.iter().map(|notice| notice.kind.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(see(0, &none), ["leader_changed"]);
        assert_eq!((see(1, &missing), see(300, &missing)), (vec![], vec![]));
        assert_eq!(see(301, &missing), ["node_missing"]);
        assert_eq!((see(302, &missing), see(303, &none)), (vec![], vec!["node_back"]));
        assert_eq!((see(304, &missing), see(305, &none)), (vec![], vec![]), "a short absence is not said");
    }
}
