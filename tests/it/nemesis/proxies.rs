//! The links of nodes on this machine: each node reaches each server through a proxy of its own.
//!
//! Nodes and servers share one network here, so only what passes between a node and the servers can fail: no packet is
//! lost, and nothing separates a server from the others.

use std::sync::Arc;

use super::plan::LinkFault;
use super::testbed::{Links, NODES, SLOW};
use crate::failover::cluster::Lines;
use crate::support::host::Host;
use crate::support::zookeeper::Ensemble;

/// The proxies of all nodes.
pub struct Proxies {
    /// One per node.
    lines: Vec<Lines>,
    link_faults: Vec<(usize, usize, LinkFault)>,
}

impl Proxies {
    pub fn new(ensemble: &Ensemble) -> Self {
        Self { lines: (0..NODES).map(|_| Lines::to(ensemble)).collect(), link_faults: Vec::new() }
    }

    fn of(&self, node: usize) -> impl Iterator<Item = LinkFault> {
        self.link_faults.iter().filter(move |(_, of, _)| *of == node).map(|(.., link_fault)| *link_fault)
    }
}

impl Links for Proxies {
    fn host(&self, _node: usize) -> Option<&Arc<Host>> {
        None
    }

    fn connect(&self, _ensemble: &Ensemble, node: usize) -> String {
        self.lines[node].connect()
    }

    fn inject(&mut self, _ensemble: &Ensemble, fault: usize, node: usize, link_fault: LinkFault) {
        self.link_faults.push((fault, node, link_fault));
        apply(&self.lines[node], link_fault);
    }

    fn heal(&mut self, fault: usize) {
        let Some(at) = self.link_faults.iter().position(|(number, ..)| *number == fault) else { return };
        let node = self.link_faults[at].1;
        let lines = &self.lines[node];
        if self.of(node).any(|link_fault| matches!(link_fault, LinkFault::Deaf | LinkFault::Mute)) {
            // TCP would send again what was lost. A connection with a gap exists nowhere else.
            lines.part();
        }
        lines.pass();
        self.link_faults.remove(at);
        self.of(node).for_each(|link_fault| apply(&self.lines[node], link_fault));
    }
}

fn apply(lines: &Lines, link_fault: LinkFault) {
    match link_fault {
        LinkFault::CutOff => lines.part(),
        LinkFault::Deaf => lines.swallow_replies(),
        LinkFault::Mute => lines.swallow_requests(),
        LinkFault::Slow => lines.delay_requests(SLOW),
        LinkFault::CutOffWithItsServer | LinkFault::CutOffWithTheEnsemblesLeader | LinkFault::Lossy => {
            unreachable!("{link_fault:?} takes hosts, and is left out")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use zookeeper_client::Client;

    use super::*;

    const SESSION: Duration = Duration::from_secs(2);

    /// How long a node takes to ask a server something; `None` if it reaches none.
    async fn answered(proxies: &Proxies, ensemble: &Ensemble, node: usize) -> Option<Duration> {
        let connector = Client::connector().with_session_timeout(SESSION).with_fail_eagerly();
        let client = connector.connect(&proxies.connect(ensemble, node)).await.ok()?;
        let asked = Instant::now();
        client.check_stat("/").await.ok()?;
        Some(asked.elapsed())
    }

    #[tokio::test]
    async fn a_fault_hits_one_node_and_leaves_with_its_repair_alone() {
        let ensemble = Ensemble::start(1);
        let mut proxies = Proxies::new(&ensemble);
        proxies.inject(&ensemble, 1, 0, LinkFault::Slow);
        proxies.inject(&ensemble, 2, 0, LinkFault::CutOff);
        assert_eq!(answered(&proxies, &ensemble, 0).await, None);
        assert!(answered(&proxies, &ensemble, 1).await.is_some());
        proxies.heal(2);
        assert!(answered(&proxies, &ensemble, 0).await.is_some_and(|took| took >= SLOW));
        for (fault, one_way) in [(3, LinkFault::Deaf), (4, LinkFault::Mute)] {
            proxies.inject(&ensemble, fault, 0, one_way);
            assert_eq!(answered(&proxies, &ensemble, 0).await, None, "{one_way:?}");
            proxies.heal(fault);
            assert!(answered(&proxies, &ensemble, 0).await.is_some_and(|took| took >= SLOW));
        }
    }
}
