//! Six hosts on one network: three with a server each, three for nodes. The test runs on a seventh, in the middle.
//!
//! ```text
//!  s0 s1 s2   a  b  c        10.77.0.1 to 3, 10.77.0.11 to 13: addresses that exist nowhere else
//!   │  │  │   │  │  │
//!   └──┴──┴─┬─┴──┴──┘
//!        the middle          10.77.0.254: a bridge, the slow links, and the test's own clients
//! ```

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::net::{Network, SlowLine};
use crate::support::host::Host;
use crate::support::proxy::Proxy;
use crate::support::zookeeper::Ensemble;

/// Number of servers, and number of hosts for nodes.
pub const SERVERS: usize = 3;
pub const NODES: usize = 3;

/// Delay of the slow links to the servers.
const SLOW: Duration = Duration::from_millis(200);

/// The hosts, the servers, and the links between them.
pub struct Testbed {
    // Dropped in this order: processes on the hosts before the hosts.
    pub network: Network,
    _slow: Vec<Proxy>,
    pub ensemble: Ensemble,
    pub servers: Vec<Arc<Host>>,
    pub nodes: Vec<Arc<Host>>,
    pub middle: Host,
}

impl Testbed {
    /// Builds it, starts the servers and moves the calling thread to the middle host, for good.
    ///
    /// # Errors
    /// The reason why this machine cannot build it, for people.
    pub fn new() -> Result<Self, String> {
        let middle = Host::new(address(254))?;
        let several =
            |first: u8, count: usize| (first..).take(count).map(|last| Host::new(address(last)).map(Arc::new));
        let servers: Vec<Arc<Host>> = several(1, SERVERS).collect::<Result<_, _>>()?;
        let nodes: Vec<Arc<Host>> = several(11, NODES).collect::<Result<_, _>>()?;
        join(&middle, servers.iter().chain(&nodes))?;
        Network::new(some_line()).is_possible_on(&nodes[0])?;
        middle.connect_thread();
        // The tests read whole transaction logs again and again, so these must not consist mostly of preallocated
        // space.
        let ensemble = Ensemble::builder(SERVERS).on(&servers).property("preAllocSize", "512").start();
        let slow: Vec<Proxy> = (0..SERVERS).map(|i| Proxy::at(middle.address(), ensemble.address_of(i))).collect();
        slow.iter().for_each(|line| line.delay_requests(SLOW));
        let network = Network::new(slow.iter().enumerate().map(|(i, line)| slow_line(&ensemble, i, line)).collect());
        Ok(Self { network, _slow: slow, ensemble, servers, nodes, middle })
    }
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn slow_line(ensemble: &Ensemble, i: usize, line: &Proxy) -> SlowLine {
    SlowLine { server: ensemble.address_of(i), begins: line.address() }
}

/// Sufficient to test the rules.
fn some_line() -> Vec<SlowLine> {
    vec![SlowLine { server: (address(1), 2181).into(), begins: (address(254), 1).into() }]
}

/// Links each host to the bridge in the middle.
pub fn join<'a>(middle: &Host, hosts: impl Iterator<Item = &'a Arc<Host>>) -> Result<(), String> {
    let mut lines = vec!["link add bridge type bridge".to_owned(), "link set bridge up".to_owned()];
    lines.push(format!("address add {}/24 dev bridge", middle.address()));
    let hosts: Vec<&Arc<Host>> = hosts.collect();
    for (i, host) in hosts.iter().enumerate() {
        lines.push(format!("link add line{i} type veth peer name eth0 netns {}", host.pid()));
        lines.push(format!("link set line{i} master bridge up"));
    }
    middle.configure(&lines)?;
    for host in hosts {
        host.configure(&[format!("address add {}/24 dev eth0", host.address()), "link set eth0 up".to_owned()])?;
    }
    Ok(())
}
