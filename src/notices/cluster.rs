//! Notifications about the cluster: who leads, and which nodes are missing or back. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use cronkeeper_core::clock::Now;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::NoticeKind;
use cronkeeper_core::run::Notice;
use cronkeeper_core::term::{FencingToken, NodeName};

/// How long a node must be gone before it is called missing: longer than a host takes to restart.
const MISSING_AFTER: Duration = Duration::from_secs(300);
/// Most notices that wait for the outbox; of more, the oldest are forgotten.
const MOST_UNSAID: usize = 1_000;

/// The nodes as the leader knows them.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub alive: BTreeSet<NodeName>,
    /// Those that are gone and that somebody waits for, and since when.
    pub missing: BTreeMap<NodeName, Timestamp>,
}

/// What this term has reported so far, and what it still has to.
#[derive(Debug)]
pub(super) struct ClusterNews {
    token: FencingToken,
    has_begun: bool,
    /// The nodes that are gone: when this process noticed, and whether it has reported them.
    missing: BTreeMap<NodeName, (Uptime, bool)>,
    /// What happened and is not in the outbox yet, the oldest first.
    unsaid: VecDeque<Notice>,
}

impl ClusterNews {
    pub fn of_term(token: FencingToken) -> Self {
        Self { token, has_begun: false, missing: BTreeMap::new(), unsaid: VecDeque::new() }
    }

    pub fn is_of(&self, token: FencingToken) -> bool {
        self.token == token
    }

    /// The first that is not said yet.
    pub fn next(&self) -> Option<&Notice> {
        self.unsaid.front()
    }

    /// The first is in the outbox, or nobody wants it.
    pub fn said(&mut self) {
        self.unsaid.pop_front();
    }

    /// Takes what is new.
    pub fn see(&mut self, now: Now, own: &NodeName, nodes: &Nodes) {
        let token = self.token;
        let notice = |kind, node: &NodeName| Notice::of_cluster(kind, node.clone(), token, now.wall);
        if !std::mem::replace(&mut self.has_begun, true) {
            self.unsaid.push_back(notice(NoticeKind::LeaderChanged, own));
        }
        for (node, &since) in &nodes.missing {
            let (seen, is_said) = self.missing.entry(node.clone()).or_insert((now.up, false));
            if !*is_said && now.up >= *seen + MISSING_AFTER {
                *is_said = true;
                // Of two absences in one term, each is said.
                let notice = notice(NoticeKind::NodeMissing, node);
                self.unsaid.push_back(Notice { id: format!("{}/{since}", notice.id), since: Some(since), ..notice });
            }
        }
        let ended = self.missing.extract_if(.., |node, _| !nodes.missing.contains_key(node));
        // One that was forgotten is not back.
        let back = ended.filter(|(node, (_, is_said))| *is_said && nodes.alive.contains(node));
        for (node, _) in back {
            let notice = notice(NoticeKind::NodeBack, &node);
            self.unsaid.push_back(Notice { id: format!("{}/{}", notice.id, now.wall), ..notice });
        }
        let too_many = self.unsaid.len().saturating_sub(MOST_UNSAID);
        self.unsaid.drain(..too_many);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(seconds: u64) -> Now {
        let wall = Timestamp::from_second(1_000 + seconds.cast_signed()).unwrap();
        Now { wall, up: Uptime::ZERO + Duration::from_secs(seconds) }
    }

    fn nodes(alive: &[&str], missing: &[&str]) -> Nodes {
        let node = |name: &&str| NodeName::new(*name);
        let missing = missing.iter().map(|name| (node(name), now(0).wall)).collect();
        Nodes { alive: alive.iter().map(node).collect(), missing }
    }

    /// What is to be said now.
    fn see(news: &mut ClusterNews, seconds: u64, nodes: &Nodes) -> Vec<String> {
        news.see(now(seconds), &NodeName::new("a"), nodes);
        let mut said = Vec::new();
        while let Some(notice) = news.next() {
            said.push(notice.kind.as_str().to_owned());
            news.said();
        }
        said
    }

    #[test]
    fn a_term_is_said_once_and_an_absence_once_it_has_lasted() {
        let mut news = ClusterNews::of_term(FencingToken(7));
        let (all, gone) = (nodes(&["a", "b"], &[]), nodes(&["a"], &["b"]));
        let mut see = |seconds, nodes: &Nodes| see(&mut news, seconds, nodes).join(" ");
        assert_eq!(see(0, &all), "leader_changed");
        assert_eq!([see(1, &gone), see(300, &gone)], ["", ""]);
        assert_eq!(see(301, &gone), "node_missing");
        assert_eq!([see(302, &gone), see(303, &all)], ["", "node_back"]);
        assert_eq!([see(304, &gone), see(305, &all)], ["", ""], "a short absence is not said");
    }

    #[test]
    fn a_node_that_was_forgotten_is_not_back() {
        let mut news = ClusterNews::of_term(FencingToken(7));
        let gone = nodes(&["a"], &["b"]);
        see(&mut news, 0, &gone);
        assert_eq!(see(&mut news, 301, &gone), ["node_missing"]);
        assert_eq!(see(&mut news, 302, &nodes(&["a"], &[])), [""; 0]);
    }

    #[test]
    fn what_is_not_said_stays_until_it_is() {
        let mut news = ClusterNews::of_term(FencingToken(7));
        let all = nodes(&["a"], &[]);
        news.see(now(0), &NodeName::new("a"), &all);
        let first = news.next().cloned();
        news.see(now(1), &NodeName::new("a"), &all);
        assert_eq!(
            (first.map(|it| it.kind), news.next().map(|it| it.at)),
            (Some(NoticeKind::LeaderChanged), Some(now(0).wall))
        );
        news.said();
        assert_eq!(news.next(), None);
    }
}
