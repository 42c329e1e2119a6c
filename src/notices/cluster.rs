//! Notifications about the cluster: who leads, and which nodes are missing or back. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use cronkeeper_core::clock::Now;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::NoticeKind;
use cronkeeper_core::run::Notice;
use cronkeeper_core::term::{FencingToken, NodeName};

/// Most notices that wait for the outbox; of more, the oldest are forgotten.
const MOST_UNSAID: usize = 1_000;

/// The nodes as the leader knows them.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub alive: BTreeSet<NodeName>,
    /// Those that are gone and that somebody waits for, and since when.
    pub missing: BTreeMap<NodeName, Timestamp>,
}

/// A node that is gone.
#[derive(Debug)]
struct Absence {
    /// When the process noticed it.
    since: Timestamp,
    /// How long that was ago when it was first taken into account here, and when that was: from then on a set clock does
    /// not matter.
    before: Duration,
    seen: Uptime,
    is_said: bool,
}

impl Absence {
    fn begin(since: Timestamp, now: Now) -> Self {
        let before = now.wall.duration_since(since).try_into().unwrap_or_default();
        Self { since, before, seen: now.up, is_said: false }
    }

    fn lasted(&self, now: Uptime) -> Duration {
        self.before + now.since(self.seen)
    }
}

/// What this process has reported so far as the leader, and what it still has to. It outlives a term: in a cluster whose
/// leadership is lost again and again, a node that stays away is still reported, and only once by each leader.
#[derive(Debug)]
pub(super) struct ClusterNews {
    token: FencingToken,
    has_begun: bool,
    /// How long a node must be gone before it is called missing.
    missing_after: Duration,
    missing: BTreeMap<NodeName, Absence>,
    /// What happened and is not in the outbox yet, the oldest first.
    unsaid: VecDeque<Notice>,
}

impl ClusterNews {
    pub fn of_term(token: FencingToken, missing_after: Duration) -> Self {
        Self { token, has_begun: false, missing_after, missing: BTreeMap::new(), unsaid: VecDeque::new() }
    }

    /// Goes on in this term. It may be the same one again: the jobs file can lose its channels and get them back.
    pub fn go_on(&mut self, token: FencingToken) {
        if self.token != token {
            (self.token, self.has_begun) = (token, false);
        }
    }

    /// The term began while nobody wanted to know: a channel that is added later is not about that.
    pub fn began_unheard(&mut self) {
        self.has_begun = true;
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
            let absence = self.missing.entry(node.clone()).or_insert_with(|| Absence::begin(since, now));
            if absence.since != since {
                // It was back while another node led.
                *absence = Absence::begin(since, now);
            }
            if !absence.is_said && absence.lasted(now.up) >= self.missing_after {
                absence.is_said = true;
                // Of two absences in one term, each is said.
                let notice = notice(NoticeKind::NodeMissing, node);
                self.unsaid.push_back(Notice { id: format!("{}/{since}", notice.id), since: Some(since), ..notice });
            }
        }
        let ended = self.missing.extract_if(.., |node, _| !nodes.missing.contains_key(node));
        // One that was forgotten is not back.
        let back = ended.filter(|(node, absence)| absence.is_said && nodes.alive.contains(node));
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

    const MISSING_AFTER: Duration = Duration::from_secs(300);

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
        let mut news = ClusterNews::of_term(FencingToken(7), MISSING_AFTER);
        let (all, gone) = (nodes(&["a", "b"], &[]), nodes(&["a"], &["b"]));
        let mut see = |seconds, nodes: &Nodes| see(&mut news, seconds, nodes).join(" ");
        assert_eq!(see(0, &all), "leader_changed");
        assert_eq!([see(1, &gone), see(299, &gone)], ["", ""]);
        assert_eq!(see(300, &gone), "node_missing");
        assert_eq!([see(302, &gone), see(303, &all)], ["", "node_back"]);
        let gone_again = Nodes { missing: [(NodeName::new("b"), now(304).wall)].into(), ..nodes(&["a"], &[]) };
        assert_eq!([see(304, &gone_again), see(305, &all)], ["", ""], "a short absence is not said");
    }

    #[test]
    fn an_absence_counts_from_when_it_was_noticed_whoever_led_meanwhile() {
        let mut news = ClusterNews::of_term(FencingToken(7), MISSING_AFTER);
        let (all, gone) = (nodes(&["a", "b"], &[]), nodes(&["a"], &["b"]));
        assert_eq!(see(&mut news, 200, &gone), ["leader_changed"]);
        news.go_on(FencingToken(8));
        assert_eq!(see(&mut news, 299, &gone), ["leader_changed"]);
        assert_eq!(see(&mut news, 300, &gone), ["node_missing"]);
        news.go_on(FencingToken(9));
        assert_eq!(see(&mut news, 700, &gone), ["leader_changed"], "it is said once");
        assert_eq!(see(&mut news, 701, &all), ["node_back"]);
        let mut news = ClusterNews::of_term(FencingToken(10), Duration::from_secs(15));
        assert_eq!(see(&mut news, 15, &gone), ["leader_changed", "node_missing"]);
    }

    #[test]
    fn a_channel_that_is_added_hears_of_the_next_term_and_not_of_the_beginning_of_this_one() {
        let mut news = ClusterNews::of_term(FencingToken(7), MISSING_AFTER);
        news.began_unheard();
        let all = nodes(&["a", "b"], &[]);
        assert_eq!(see(&mut news, 0, &all), [""; 0]);
        news.go_on(FencingToken(8));
        assert_eq!(see(&mut news, 1, &all), ["leader_changed"]);
    }

    #[test]
    fn a_node_that_was_forgotten_is_not_back() {
        let mut news = ClusterNews::of_term(FencingToken(7), MISSING_AFTER);
        let gone = nodes(&["a"], &["b"]);
        see(&mut news, 0, &gone);
        assert_eq!(see(&mut news, 301, &gone), ["node_missing"]);
        assert_eq!(see(&mut news, 302, &nodes(&["a"], &[])), [""; 0]);
    }

    #[test]
    fn what_is_not_said_stays_until_it_is() {
        let mut news = ClusterNews::of_term(FencingToken(7), MISSING_AFTER);
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
