//! Invariant: while a node reports that it leads and its lease holds, no other node does.
//!
//! A hanging node is judged too, because its lease expires by itself. A dead node does not act any more.

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::term::FencingToken;

use super::super::facts::Fact;
use super::Invariant;

pub struct OneActingTerm {
    nodes: Vec<Option<Acting>>,
}

#[derive(Clone, Copy, Debug)]
struct Acting {
    token: FencingToken,
    until: Uptime,
}

impl OneActingTerm {
    pub fn new(nodes: usize) -> Self {
        Self { nodes: vec![None; nodes] }
    }

    fn judge(&self, at: Uptime, node: usize) -> Result<(), String> {
        let Some(own) = self.nodes[node].filter(|acting| at < acting.until) else { return Ok(()) };
        for (other, acting) in self.nodes.iter().enumerate() {
            if let Some(acting) = acting.filter(|acting| other != node && at < acting.until) {
                return Err(format!(
                    "node-{node} acts in the term {} until {:?}, and node-{other} in the term {} until {:?}",
                    own.token, own.until, acting.token, acting.until
                ));
            }
        }
        Ok(())
    }
}

impl Invariant for OneActingTerm {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Elected { node, token, lease_until } => {
                self.nodes[node] = Some(Acting { token, until: lease_until });
                self.judge(at, node)
            }
            Fact::Lease { node, until } => {
                if let Some(acting) = &mut self.nodes[node] {
                    acting.until = until;
                }
                self.judge(at, node)
            }
            Fact::Over { node, .. } | Fact::Died { node } => {
                self.nodes[node] = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
