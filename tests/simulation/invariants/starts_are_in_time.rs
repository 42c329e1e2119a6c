//! Invariant: no process starts after its node's lease has ended, however late the warden receives the order.
//!
//! The limit is the latest lease that the node ever received: withdrawing a lease kills runs, but a start that was
//! decided under it may just be under way. A node that received none is not judged.

use std::collections::BTreeMap;

use cronkeeper_core::clock::Uptime;

use super::super::facts::Fact;
use super::Invariant;

#[derive(Default)]
pub struct StartsAreInTime {
    until: BTreeMap<usize, Uptime>,
}

impl Invariant for StartsAreInTime {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Elected { node, lease_until: lease_end, .. } | Fact::Lease { node, until: lease_end } => {
                let until = self.until.entry(*node).or_insert(*lease_end);
                *until = (*until).max(*lease_end);
                Ok(())
            }
            Fact::Spawned(process) => match self.until.get(&process.node) {
                Some(&until) if until <= at => {
                    Err(format!("node-{} starts {process:?} after its lease, which was until {until:?}", process.node))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
