//! What happens to the cluster as this node sees it, for the hooks of the node.
//!
//! | hook | called by | when |
//! |---|---|---|
//! | `on_leader_change` | the new leader | at the beginning of its term |
//! | `on_no_leader` | every node | it has known of no leader for `no_leader_after`; once until it knows of one |
//! | `on_node_missing` | the leader | a node has been gone for `node_missing_after`; once a term until it is back |
//! | `on_jobs_rejected` | the node | its jobs file was rejected; once until it is accepted |
//! | `on_jobs_drift` | the leader | other nodes have had other jobs or time zones for `jobs_drift_after`; once for each |
//!
//! A drained node is not in the queue and does not learn who leads. It calls `on_no_leader` only if all nodes are drained.
//!
//! A pure state machine: the daemon tells it what it sees, and asks the engine to call what it returns. Unlike the
//! alarms of jobs nothing of it is recorded: a new process or a new leader may call a hook again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use cronkeeper_core::clock::instant;
use cronkeeper_core::clock::{Now, Uptime};
use cronkeeper_core::engine::hooks::NodeHookCall;
use cronkeeper_core::job::{CommandLine, NodeHook};
use cronkeeper_core::term::{FencingToken, NodeName};

/// The hooks of a node, and after how long they are called.
#[derive(Clone, Debug)]
pub struct NodeHooks {
    pub commands: BTreeMap<NodeHook, CommandLine>,
    pub no_leader_after: Duration,
    pub node_missing_after: Duration,
    /// Longer than a change of the jobs file takes from host to host.
    pub jobs_drift_after: Duration,
}

impl Default for NodeHooks {
    fn default() -> Self {
        let [no_leader_after, node_missing_after, jobs_drift_after] = [60, 300, 300].map(Duration::from_secs);
        Self { commands: BTreeMap::new(), no_leader_after, node_missing_after, jobs_drift_after }
    }
}

/// What a node sees of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The leader, if the node knows it for sure: it is connected and has read who leads.
    pub leader: Option<NodeName>,
    /// The node is drained, so it does not learn who leads. Nodes that learn it are alive, and tell if nobody does.
    pub others_tell: bool,
    /// Token of the node's own term.
    pub token: Option<FencingToken>,
    /// The nodes that are gone, and since when.
    pub missing: BTreeMap<NodeName, Timestamp>,
    /// The first error of the node's jobs file, if it was rejected.
    pub rejected: Option<String>,
    /// The nodes that differ from the leader.
    pub drift: BTreeSet<NodeName>,
}

/// Follows what the node sees, and remembers what was called.
#[derive(Debug)]
pub(super) struct ClusterWatch {
    hooks: NodeHooks,
    leadership: Leadership,
    /// The newest own term whose beginning was called.
    called_term: Option<FencingToken>,
    missing: Lasting,
    is_rejection_called: bool,
    drift: Lasting,
}

/// What is the case for some nodes, since when, and for which of them the hook was called in this term.
#[derive(Debug, Default)]
struct Lasting(BTreeMap<NodeName, (Uptime, bool)>);

impl Lasting {
    /// Takes the nodes for which it is the case now.
    fn see<'a>(&mut self, now: Uptime, nodes: impl Iterator<Item = &'a NodeName>) {
        let before = std::mem::take(&mut self.0);
        let since = |node: &NodeName| before.get(node).copied().unwrap_or((now, false));
        self.0 = nodes.map(|node| (node.clone(), since(node))).collect();
    }

    /// The nodes for which it has lasted for `limit` and the hook was not called; from now on it was.
    fn call(&mut self, now: Uptime, limit: Duration) -> Vec<NodeName> {
        let due = self.0.iter_mut().filter(|(_, (since, called))| !called && now >= *since + limit);
        due.map(|(node, (_, called))| {
            *called = true;
            node.clone()
        })
        .collect()
    }

    /// When the hook is next called.
    fn next_at(&self, limit: Duration) -> Option<Uptime> {
        self.0.values().filter(|(_, called)| !called).map(|(since, _)| *since + limit).min()
    }

    /// In a new term it is again the leader that tells.
    fn begin_term(&mut self) {
        self.0.values_mut().for_each(|(_, called)| *called = false);
    }
}

/// Whether the node knows of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leadership {
    Known,
    /// It has known of none since then.
    Unknown {
        since: Uptime,
    },
    /// The hook was called. It is not called again before there is a leader.
    Called,
}

impl ClusterWatch {
    pub fn new(hooks: NodeHooks, now: Now) -> Self {
        Self {
            hooks,
            leadership: Leadership::Unknown { since: now.up },
            called_term: None,
            missing: Lasting::default(),
            is_rejection_called: false,
            drift: Lasting::default(),
        }
    }

    /// True if there are no hooks, so that nothing needs to be followed.
    pub fn is_off(&self) -> bool {
        self.hooks.commands.is_empty()
    }

    /// Takes what the node sees now. Returns the hooks to call.
    pub fn see(&mut self, now: Now, seen: &Seen) -> Vec<NodeHookCall> {
        let mut calls = Vec::new();
        self.see_leader(now, seen, &mut calls);
        self.see_term(seen, &mut calls);
        self.see_nodes(now, seen, &mut calls);
        self.see_file(seen, &mut calls);
        calls
    }

    /// When the passing of time alone leads to a call; `None`: never.
    pub fn next_at(&self) -> Option<Uptime> {
        let no_leader = match self.leadership {
            Leadership::Unknown { since } => Some(since + self.hooks.no_leader_after),
            Leadership::Known | Leadership::Called => None,
        };
        let missing = self.missing.next_at(self.hooks.node_missing_after);
        let drift = self.drift.next_at(self.hooks.jobs_drift_after);
        let of_leaders = missing.into_iter().chain(drift).filter(|_| self.called_term.is_some());
        of_leaders.chain(no_leader).min()
    }

    fn see_leader(&mut self, now: Now, seen: &Seen, calls: &mut Vec<NodeHookCall>) {
        self.leadership = match (self.leadership, seen.leader.is_some() || seen.others_tell) {
            (_, true) => Leadership::Known,
            (Leadership::Known, false) => Leadership::Unknown { since: now.up },
            (Leadership::Unknown { since }, false) if now.up >= since + self.hooks.no_leader_after => {
                let for_ms = cronkeeper_core::run::millis(now.up.since(since)).to_string();
                self.call(NodeHook::NoLeader, vec![("FOR_MS", for_ms)], calls);
                Leadership::Called
            }
            (unchanged, false) => unchanged,
        };
    }

    fn see_term(&mut self, seen: &Seen, calls: &mut Vec<NodeHookCall>) {
        if seen.token == self.called_term {
            return;
        }
        self.missing.begin_term();
        self.drift.begin_term();
        self.called_term = seen.token;
        if let Some(token) = seen.token {
            self.call(NodeHook::LeaderChange, vec![("FENCING_TOKEN", token.to_string())], calls);
        }
    }

    fn see_nodes(&mut self, now: Now, seen: &Seen, calls: &mut Vec<NodeHookCall>) {
        self.missing.see(now.up, seen.missing.keys());
        self.drift.see(now.up, seen.drift.iter());
        if seen.token.is_none() {
            return;
        }
        for node in self.missing.call(now.up, self.hooks.node_missing_after) {
            let since = seen.missing.get(&node).map(|&since| instant(since).to_string()).unwrap_or_default();
            self.call(NodeHook::NodeMissing, vec![("OTHER_NODE", node.to_string()), ("SINCE", since)], calls);
        }
        for node in self.drift.call(now.up, self.hooks.jobs_drift_after) {
            self.call(NodeHook::JobsDrift, vec![("OTHER_NODE", node.to_string())], calls);
        }
    }

    fn see_file(&mut self, seen: &Seen, calls: &mut Vec<NodeHookCall>) {
        match &seen.rejected {
            None => self.is_rejection_called = false,
            Some(first) if !self.is_rejection_called => {
                self.is_rejection_called = true;
                self.call(NodeHook::JobsRejected, vec![("ERROR", first.clone())], calls);
            }
            Some(_) => {}
        }
    }

    fn call(&self, hook: NodeHook, variables: Vec<(&'static str, String)>, calls: &mut Vec<NodeHookCall>) {
        let command = self.hooks.commands.get(&hook).cloned();
        calls.extend(command.map(|command| NodeHookCall { hook, command, variables }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Watched {
        watch: ClusterWatch,
        now: Now,
        seen: Seen,
    }

    impl Watched {
        fn new() -> Self {
            let commands = NodeHook::ALL.map(|hook| (hook, CommandLine::Shell("true".into()))).into();
            let now = Now { wall: Timestamp::from_second(1_000_000).unwrap(), up: Uptime::ZERO };
            let watch = ClusterWatch::new(NodeHooks { commands, ..NodeHooks::default() }, now);
            Self { watch, now, seen: Seen::default() }
        }

        /// What is called after this many seconds, with the first fact.
        fn after(&mut self, seconds: u64) -> Vec<String> {
            let by = Duration::from_secs(seconds);
            self.now = Now { wall: self.now.wall + by, up: self.now.up + by };
            let calls = self.watch.see(self.now, &self.seen);
            calls.iter().map(|call| format!("{} {}", call.hook.as_str(), call.variables[0].1)).collect()
        }

        fn next_in(&self) -> Option<u64> {
            self.watch.next_at().map(|at| at.since(self.now.up).as_secs())
        }

        fn leads(&mut self, token: i64) {
            (self.seen.leader, self.seen.token) = (Some(NodeName::new("a")), Some(FencingToken(token)));
        }
    }

    #[test]
    fn no_leader_is_told_once_after_its_time_and_again_only_after_there_was_one() {
        let mut watched = Watched::new();
        assert_eq!(watched.next_in(), Some(60));
        assert_eq!(watched.after(59), [""; 0]);
        assert_eq!(watched.after(1), ["on_no_leader 60000"]);
        assert_eq!((watched.after(600), watched.next_in()), (vec![], None));
        watched.seen.leader = Some(NodeName::new("b"));
        assert_eq!(watched.after(1), [""; 0]);
        watched.seen.leader = None;
        assert_eq!((watched.after(1), watched.next_in()), (vec![], Some(60)));
        assert_eq!(watched.after(60), ["on_no_leader 60000"]);
    }

    #[test]
    fn a_drained_node_leaves_it_to_others_to_tell_of_no_leader_while_there_are_others() {
        let mut watched = Watched::new();
        watched.seen.leader = Some(NodeName::new("b"));
        watched.after(1);
        (watched.seen.leader, watched.seen.others_tell) = (None, true);
        assert_eq!((watched.after(600), watched.next_in()), (vec![], None));
        watched.seen.others_tell = false;
        assert_eq!((watched.after(1), watched.next_in()), (vec![], Some(60)));
        assert_eq!(watched.after(60), ["on_no_leader 60000"]);
    }

    #[test]
    fn the_new_leader_tells_of_each_of_its_terms() {
        let mut watched = Watched::new();
        watched.leads(7);
        assert_eq!(watched.after(1), ["on_leader_change 7"]);
        assert_eq!(watched.after(1), [""; 0]);
        watched.seen.token = None;
        assert_eq!(watched.after(1), [""; 0]);
        watched.leads(9);
        assert_eq!(watched.after(1), ["on_leader_change 9"]);
    }

    #[test]
    fn a_missing_node_is_told_by_the_leader_once_a_term_until_it_is_back() {
        let mut watched = Watched::new();
        watched.seen.leader = Some(NodeName::new("b"));
        let gone = NodeName::new("c");
        watched.seen.missing = [(gone.clone(), watched.now.wall)].into();
        assert_eq!((watched.after(1), watched.after(400)), (vec![], vec![]), "a follower does not tell");
        assert_eq!(watched.next_in(), None);
        watched.leads(7);
        assert_eq!(watched.after(0), ["on_leader_change 7", "on_node_missing c"]);
        assert_eq!(watched.after(400), [""; 0]);
        watched.seen.missing.clear();
        assert_eq!(watched.after(1), [""; 0]);
        watched.seen.missing = [(gone, watched.now.wall)].into();
        assert_eq!((watched.after(0), watched.next_in()), (vec![], Some(300)));
        assert_eq!(watched.after(300), ["on_node_missing c"]);
    }

    #[test]
    fn a_rejected_file_is_told_once_and_nodes_that_differ_for_long_once_each() {
        let mut watched = Watched::new();
        watched.leads(7);
        watched.after(0);
        watched.seen.rejected = Some("jobs.yaml:1: no".into());
        watched.seen.drift = [NodeName::new("b")].into();
        assert_eq!(watched.after(1), ["on_jobs_rejected jobs.yaml:1: no"]);
        watched.seen.drift.insert(NodeName::new("c"));
        assert_eq!(watched.after(1), [""; 0]);
        watched.seen.drift.remove(&NodeName::new("c"));
        assert_eq!(watched.after(298), [""; 0]);
        assert_eq!(watched.after(1), ["on_jobs_drift b"]);
        (watched.seen.rejected, watched.seen.drift) = (None, [NodeName::new("b"), NodeName::new("c")].into());
        assert_eq!(watched.after(1), [""; 0]);
        assert_eq!(watched.after(300), ["on_jobs_drift c"]);
        watched.seen.rejected = Some("again".into());
        assert_eq!(watched.after(1), ["on_jobs_rejected again"]);
    }
}
