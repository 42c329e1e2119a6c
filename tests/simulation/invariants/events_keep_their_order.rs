//! Invariant: the backends keep the contract on the order of events.

use cronkeeper_core::clock::Uptime;

use super::super::facts::Fact;
use super::Invariant;

pub struct EventsKeepTheirOrder;

impl Invariant for EventsKeepTheirOrder {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Misordered { node, rule } => Err(format!("node-{node}: the order of events is broken: {rule}")),
            _ => Ok(()),
        }
    }
}
