//! What a status says of each node as a place to run jobs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{MissingMember, RunStatus, Status};
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
    /// Runs that have a process there, or are about to get one; of a node that is gone, those that may go on there.
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
    /// False if its jobs file is not the leader's; absent if that is not known.
    pub same_jobs: Option<bool>,
    /// When it was noticed to be gone; absent if it is alive, or the node that answers has not seen it.
    pub away_since: Option<Timestamp>,
}

impl Status {
    /// The nodes as places to run jobs, by name.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let leader = self.role.leader_node.as_ref().and_then(|leader| self.member(leader));
        self.places.iter().map(|(node, place)| self.node_status(node, place, leader)).collect()
    }

    fn node_status(&self, node: &NodeName, place: &Place, leader: Option<&Member>) -> NodeStatus {
        let Place { v: _, labels, weight } = place;
        let member = self.member(node);
        let is_there = |run: &&RunStatus| run.node == *node && run.ended.is_none();
        let count = |is_wanted: fn(RunState) -> bool| {
            self.runs.iter().filter(is_there).filter(|run| is_wanted(run.state)).count()
        };
        let gone = |missing: &MissingMember| (missing.node == *node).then_some(missing.gone_since);
        NodeStatus {
            node: node.clone(),
            labels: labels.clone(),
            weight: *weight,
            running: count(|state| matches!(state, RunState::Running | RunState::CutOff)),
            placed: count(|state| state == RunState::Placed),
            alive: member.is_some(),
            drained: self.drained.contains_key(node),
            never_leads: member.is_some_and(|member| member.published.never_leads),
            draining: member.is_some_and(|member| member.published.draining),
            same_jobs: leader.zip(member).map(|(leader, member)| leader.published.digest == member.published.digest),
            away_since: self.missing.iter().find_map(gone).filter(|_| member.is_none()),
        }
    }

    fn member(&self, node: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.node == *node)
    }
}

impl NodeStatus {
    /// What keeps it from being given runs, or distinguishes it otherwise; empty if nothing does. `away` says since when it
    /// is gone.
    pub fn notes(&self, away: impl FnOnce(Timestamp) -> String) -> String {
        let gone = (!self.alive).then(|| self.away_since.map_or("away".to_owned(), away));
        let drained = self.drained.then(|| "drained".to_owned());
        let never_leads = self.never_leads.then(|| "never leads".to_owned());
        let draining = self.draining.then(|| "shutting down".to_owned());
        let other = (self.same_jobs == Some(false)).then(|| "another jobs file".to_owned());
        gone.into_iter().chain(drained).chain(never_leads).chain(draining).chain(other).collect::<Vec<_>>().join(", ")
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
    fn each_place_has_what_runs_there_and_what_keeps_it_from_more() {
        let mut status = sample::leader();
        assert!(status.nodes().is_empty(), "on the solo backend, and where nothing has been read");
        let mut queue = sample::queue();
        queue.places = sample::places();
        queue.drained = sample::drained("host-b");
        status.put_queue(&queue);
        let mut placed = status.runs[0].clone();
        (placed.node, placed.state) = (NodeName::new("host-b"), RunState::Placed);
        status.runs.push(placed);
        let nodes = status.nodes();
        let facts = |node: &NodeStatus| (node.running, node.placed, node.alive, node.drained, node.same_jobs);
        assert_eq!(
            nodes.iter().map(facts).collect::<Vec<_>>(),
            [(1, 0, true, false, Some(true)), (0, 1, true, true, Some(false)), (0, 0, false, false, None),]
        );
        let notes: Vec<_> = nodes.iter().map(|node| node.notes(|at| format!("away since {at}"))).collect();
        assert_eq!(notes, ["", "drained, another jobs file", "away"]);
        assert_eq!(nodes[0].labels_in_words(), "gpu,zone=eu");
    }
}
