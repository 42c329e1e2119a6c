//! The servers, and the links from the nodes to them, in the best form that this machine has.

use std::sync::Arc;
use std::time::Duration;

use super::hosts::Hosts;
use super::plan::{Kind, LinkFault};
use super::proxies::Proxies;
use crate::support::host::Host;
use crate::support::zookeeper::{Builder, Ensemble};
use crate::support::{Facility, skipped};

/// Number of servers, and number of nodes.
pub const SERVERS: usize = 3;
pub const NODES: usize = 3;

/// Delay of the slow links to the servers.
pub const SLOW: Duration = Duration::from_millis(200);

/// The links between the nodes and the servers. Several faults of a node's links add up. Each has the number of its
/// fault in the plan, and is removed with it.
pub trait Links {
    /// The host that a node runs on; `None`: this machine.
    fn host(&self, node: usize) -> Option<&Arc<Host>>;

    /// The servers' addresses for a node.
    fn connect(&self, ensemble: &Ensemble, node: usize) -> String;

    /// Adds a fault to a node's links.
    fn inject(&mut self, ensemble: &Ensemble, fault: usize, node: usize, link_fault: LinkFault);

    /// Removes what this fault did.
    fn heal(&mut self, fault: usize);
}

pub struct Testbed {
    // Dropped in this order: processes on the hosts before the hosts, which belong to the links.
    pub ensemble: Ensemble,
    pub links: Box<dyn Links>,
}

impl Testbed {
    /// Starts the servers, each on a host of its own; the calling thread moves to their network for good. Without such
    /// hosts everything is on this machine, and the report says which faults are left out for that.
    pub fn new() -> Self {
        Hosts::new().map(Self::with_hosts).unwrap_or_else(|why| {
            let left_out: Vec<String> = Kind::of_hosts().map(|kind| format!("{kind:?}")).collect();
            skipped(
                Facility::Hosts,
                &format!("the faults {}, which take hosts of their own: {why}", left_out.join(", ")),
            );
            Self::without_hosts()
        })
    }

    fn with_hosts(mut hosts: Hosts) -> Self {
        hosts.connect_thread();
        let ensemble = servers().on(hosts.of_servers()).start();
        hosts.add_slow_lines(&ensemble);
        Self { ensemble, links: Box::new(hosts) }
    }

    fn without_hosts() -> Self {
        let ensemble = servers().start();
        let links = Box::new(Proxies::new(&ensemble));
        Self { ensemble, links }
    }

    /// Whether such a fault can be injected here.
    pub fn allows(&self, kind: Kind) -> bool {
        !kind.takes_hosts() || self.links.host(0).is_some()
    }
}

fn servers() -> Builder {
    // The tests read whole transaction logs again and again, so these must not consist mostly of preallocated space.
    Ensemble::builder(SERVERS).property("preAllocSize", "512")
}

/// The server that leads the ensemble.
pub fn leading_server(ensemble: &Ensemble) -> usize {
    (0..SERVERS).find(|&i| ensemble.mode(i).as_deref() == Some("leader")).unwrap_or(0)
}
