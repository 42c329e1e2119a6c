//! What a status says of each node as a place to run jobs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{MissingMember, NodeState, RunStatus, Status, shown};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::{Member, Place};
use cronkeeper_core::job::Labels;
use cronkeeper_core::run::RunState;
use cronkeeper_core::term::NodeName;

/// A node as a place to run jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeStatus {
    pub node: NodeName,
    /// Empty also for those who see only the outline.
    pub labels: Labels,
    /// Its share of what is spread over nodes; 0: none.
    pub weight: u32,
    /// Runs that have a process there, or are about to get one; of a node that is gone, those that may still be running
    /// there.
    pub running: usize,
    /// Runs that are placed there and that it has not accepted yet.
    pub placed: usize,
    pub alive: bool,
    pub drained: bool,
    /// True if it never leads, and only runs what is placed there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_leads: bool,
    /// True while it shuts down.
    pub draining: bool,
    /// True if it has not accepted in time what was placed there. Only the leader knows that: ask it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspect: bool,
    /// False if its jobs file is not the leader's; absent if that is not known.
    pub same_jobs: Option<bool>,
    /// When it was noticed to be gone; absent if it is alive, or the node that answers has not seen it.
    pub away_since: Option<Timestamp>,
    /// When it was last seen alive, if it may have gone well before that was noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
}

/// What a node is as a place to run jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceState {
    Available,
    Suspect,
    ShuttingDown,
    Drained,
    Away,
}

impl PlaceState {
    /// From the one that takes most to the one that takes nothing.
    pub const ALL: [Self; 5] = [Self::Available, Self::Suspect, Self::ShuttingDown, Self::Drained, Self::Away];

    /// As the metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Suspect => "suspect",
            Self::ShuttingDown => "shutting-down",
            Self::Drained => "drained",
            Self::Away => "away",
        }
    }
}

/// How many runs a node has.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    running: usize,
    placed: usize,
}

/// The document of `GET /v1/nodes` and `cronkeeper nodes --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodesDocument {
    pub v: u32,
    pub at: Timestamp,
    /// By name; empty without a cluster.
    pub nodes: Vec<NodeStatus>,
    /// Why the nodes could not be read: they are as they were at `read_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Timestamp>,
}

impl From<&Status> for NodesDocument {
    fn from(status: &Status) -> Self {
        let Status { at, unread, read_at, .. } = status;
        Self { v: 1, at: *at, nodes: status.nodes(), unread: unread.clone(), read_at: *read_at }
    }
}

impl Status {
    /// The nodes as places to run jobs, by name.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let leader = self.role.leader_node.as_ref().and_then(|leader| self.member(leader));
        let mut loads = BTreeMap::<&NodeName, Load>::new();
        for run in self.runs.iter().filter(|run| run.ended.is_none()) {
            let load = loads.entry(&run.node).or_default();
            match run.state {
                RunState::Running | RunState::CutOff => load.running += 1,
                RunState::Placed => load.placed += 1,
                RunState::Queued | RunState::Retrying | RunState::Unstarted => {}
            }
        }
        let load = |node| loads.get(node).copied().unwrap_or_default();
        self.places.iter().map(|(node, place)| self.node_status(node, place, leader, load(node))).collect()
    }

    /// All nodes that this node knows.
    pub fn known_nodes(&self) -> BTreeSet<NodeName> {
        let members = self.members.iter().map(|member| &member.node);
        let missing = self.missing.iter().map(|missing| &missing.node);
        let others = members.chain(missing).chain(self.drained.keys()).chain(self.places.keys());
        others.chain([&self.node]).cloned().collect()
    }

    /// The node that a run waits for, and why that does not take it: `host-c: away since …`, `a node: no node has gpu (…)`.
    /// `None` if it waits for no node, or for one that could take it.
    pub fn awaited_node(&self, run: &RunStatus) -> Option<String> {
        let waits = match run.state {
            RunState::Queued => true,
            RunState::Retrying | RunState::Unstarted => run.retry_at.is_none_or(|at| at <= self.at),
            RunState::Running | RunState::Placed | RunState::CutOff => false,
        };
        if !waits || run.ended.is_some() {
            return None;
        }
        match run.run.node() {
            Some(node) => {
                let leader = self.role.leader_node.as_ref().and_then(|leader| self.member(leader));
                // What it has does not keep it from more.
                let status = self.node_status(node, self.places.get(node)?, leader, Load::default());
                let notes = status.notes(away_in_words);
                (!notes.is_empty()).then(|| format!("{node}: {notes}"))
            }
            None => {
                let job = self.jobs.iter().find(|job| job.name == *run.run.job())?;
                let why = job.unplaceable.as_deref()?;
                Some(shown(why).map_or("a node".to_owned(), |why| format!("a node: {why}")))
            }
        }
    }

    fn node_status(&self, node: &NodeName, place: &Place, leader: Option<&Member>, load: Load) -> NodeStatus {
        let Place { v: _, labels, weight, stopped: _ } = place;
        let Load { running, placed } = load;
        let member = self.member(node);
        let gone = self.missing.iter().find(|missing| missing.node == *node).filter(|_| member.is_none());
        NodeStatus {
            node: node.clone(),
            labels: labels.clone(),
            weight: *weight,
            running,
            placed,
            alive: member.is_some(),
            drained: self.drained.contains_key(node),
            never_leads: member.is_some_and(|member| member.published.never_leads),
            draining: member.is_some_and(|member| member.published.draining),
            suspect: member.is_some() && self.suspects.contains(node),
            same_jobs: leader.zip(member).map(|(leader, member)| leader.published.digest == member.published.digest),
            away_since: gone.map(|gone| gone.gone_since),
            last_seen: gone.and_then(MissingMember::seen_well_before),
        }
    }

    fn member(&self, node: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.node == *node)
    }
}

/// `away since 2026-11-20 02:57:00Z`; or `away, last seen at …` if it may have gone well before that was noticed.
pub fn away_in_words(since: Timestamp, last_seen: Option<Timestamp>) -> String {
    away_at(since, last_seen, |at| format!("{}Z", stamp(at)))
}

/// The same, with the instant as `shown` words it.
pub fn away_at(since: Timestamp, last_seen: Option<Timestamp>, shown: impl FnOnce(Timestamp) -> String) -> String {
    match last_seen {
        Some(seen) => format!("away, last seen at {}", shown(seen)),
        None => format!("away since {}", shown(since)),
    }
}

impl NodeStatus {
    /// What keeps it from being given runs, or distinguishes it otherwise; empty if nothing does. `away` says since when it
    /// is gone, or when it was last seen.
    pub fn notes(&self, away: impl FnOnce(Timestamp, Option<Timestamp>) -> String) -> String {
        let gone = |since| away(since, self.last_seen);
        let gone = (!self.alive).then(|| self.away_since.map_or("away".to_owned(), gone));
        let drained = self.drained.then(|| "drained".to_owned());
        let never_leads = self.never_leads.then(|| "never leads".to_owned());
        let draining = self.draining.then(|| NodeState::Draining.in_words().to_owned());
        let suspect = self.suspect.then(|| "does not accept in time".to_owned());
        let other = (self.same_jobs == Some(false)).then(|| "different jobs file".to_owned());
        let most = NodeName::LONGEST_WITH_SHARES;
        let long_name = (!self.node.may_have_shares())
            .then(|| format!("no jobs with `run_on: every`: its name has more than {most} characters"));
        let all = [gone, drained, never_leads, draining, suspect, other, long_name];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// What it is as a place to run jobs.
    pub fn state(&self) -> PlaceState {
        match self {
            Self { alive: false, .. } => PlaceState::Away,
            Self { drained: true, .. } => PlaceState::Drained,
            Self { draining: true, .. } => PlaceState::ShuttingDown,
            Self { suspect: true, .. } => PlaceState::Suspect,
            _ => PlaceState::Available,
        }
    }

    /// Its labels as they are given to `--label`.
    pub fn labels_in_words(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(ToString::to_string).collect();
        if labels.is_empty() { "-".to_owned() } else { labels.join(",") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    #[test]
    fn a_run_that_no_node_can_take_names_the_node_that_it_waits_for_and_why() {
        let mut status = sample::leader();
        (status.places, status.drained) = (sample::places(), sample::drained("host-b"));
        status.missing.push(sample::missing("host-c"));
        let share = |node: &str, state| {
            let run = status.runs[0].run.clone().on(Some(NodeName::new(node)));
            RunStatus { run, state, ..status.runs[0].clone() }
        };
        let away = Some("host-c: away since 2026-11-20 02:57:00Z".to_owned());
        let mut vague = status.clone();
        vague.missing[0].last_seen = Some(sample::at("2026-11-20T02:56:40Z"));
        let last_seen = "host-c: away, last seen at 2026-11-20 02:56:40Z";
        assert_eq!(vague.awaited_node(&share("host-c", RunState::Queued)).as_deref(), Some(last_seen));
        assert_eq!(status.awaited_node(&share("host-c", RunState::Queued)), away);
        assert_eq!(status.awaited_node(&share("host-c", RunState::Unstarted)), away);
        assert_eq!(status.awaited_node(&share("host-c", RunState::Running)), None);
        let later =
            RunStatus { retry_at: Some(sample::at("2026-11-20T03:05:00Z")), ..share("host-c", RunState::Retrying) };
        assert_eq!(status.awaited_node(&later), None, "it waits for its time");
        assert_eq!(
            status.awaited_node(&share("host-b", RunState::Queued)).as_deref(),
            Some("host-b: drained, different jobs file")
        );
        assert_eq!(status.awaited_node(&share("host-a", RunState::Queued)), None, "it waits for something else");

        let queued = RunStatus { state: RunState::Queued, ..status.runs[0].clone() };
        assert_eq!(status.awaited_node(&queued), None);
        status.jobs[1].unplaceable = Some("no node has gpu (host-a: none)".into());
        assert_eq!(status.awaited_node(&queued).as_deref(), Some("a node: no node has gpu (host-a: none)"));
        assert_eq!(status.outlined().awaited_node(&queued).as_deref(), Some("a node"));
    }

    #[test]
    fn each_place_has_what_runs_there_and_what_keeps_it_from_more() {
        let mut status = sample::leader();
        assert!(status.nodes().is_empty(), "on the solo backend, and where nothing has been read");
        let mut queue = sample::queue();
        queue.places = sample::places();
        queue.drained = sample::drained("host-b");
        status.put_queue(&queue);
        status.suspects.insert(NodeName::new("host-a"));
        let mut placed = status.runs[0].clone();
        (placed.node, placed.state) = (NodeName::new("host-b"), RunState::Placed);
        status.runs.push(placed);
        let nodes = status.nodes();
        let facts = |node: &NodeStatus| (node.running, node.placed, node.alive, node.drained, node.same_jobs);
        assert_eq!(
            nodes.iter().map(facts).collect::<Vec<_>>(),
            [(1, 0, true, false, Some(true)), (0, 1, true, true, Some(false)), (0, 0, false, false, None),]
        );
        let notes: Vec<_> = nodes.iter().map(|node| node.notes(away_in_words)).collect();
        assert_eq!(notes, ["does not accept in time", "drained, different jobs file", "away"]);
        let long_name = NodeStatus { node: NodeName::new("n".repeat(65)), suspect: false, ..nodes[0].clone() };
        let note = "no jobs with `run_on: every`: its name has more than 64 characters";
        assert_eq!(long_name.notes(|at, _| at.to_string()), note);
        let short_name = NodeStatus { node: NodeName::new("n".repeat(64)), ..long_name };
        assert_eq!(short_name.notes(|at, _| at.to_string()), "");
        let states: Vec<&str> = nodes.iter().map(|node| node.state().as_str()).collect();
        assert_eq!(states, ["suspect", "drained", "away"]);
        assert_eq!(nodes[0].labels_in_words(), "gpu,zone=eu");
    }
}
