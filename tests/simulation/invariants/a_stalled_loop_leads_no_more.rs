//! Invariant: a node whose loop stalls gives its lease up, and no node with a stalled loop is elected.
//!
//! The loop that decides feeds the lease.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;

use super::super::facts::Fact;
use super::Invariant;

pub struct AStalledLoopLeadsNoMore {
    /// The latest end of a lease, counted from the time at which the loop stalled.
    longest: Duration,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Default)]
struct Node {
    leads: bool,
    stalled: Option<Uptime>,
}

impl AStalledLoopLeadsNoMore {
    /// A term ends half a timeout after its loop stalled. Until then the lease is renewed for 0.85 timeouts at most, and on
    /// ZooKeeper for less, because a write there proves only that the one before it was heard of.
    pub fn new(nodes: usize, timeout: Duration, on_store: bool) -> Self {
        let longest = timeout.mul_f64(if on_store { 1.37 } else { 1.25 });
        Self { longest, nodes: vec![Node::default(); nodes] }
    }

    fn judge(&self, node: usize, until: Uptime) -> Result<(), String> {
        let Node { leads, stalled } = self.nodes[node];
        match stalled {
            Some(stalled) if leads && stalled + self.longest < until => {
                Err(format!("node-{node} leads until {until:?}, and its loop stands still since {stalled:?}"))
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for AStalledLoopLeadsNoMore {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::LoopStalled { node } => self.nodes[*node].stalled = Some(at),
            Fact::LoopResumed { node } => self.nodes[*node].stalled = None,
            Fact::Died { node } => self.nodes[*node] = Node::default(),
            Fact::Over { node, .. } => self.nodes[*node].leads = false,
            Fact::Elected { node, lease_until, .. } => {
                self.nodes[*node].leads = true;
                return self.judge(*node, *lease_until);
            }
            Fact::Lease { node, until } => return self.judge(*node, *until),
            _ => {}
        }
        Ok(())
    }
}
