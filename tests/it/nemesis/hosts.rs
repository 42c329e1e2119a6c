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

use super::net::{LinkRule, Network, SlowLine};
use super::plan::LinkFault;
use super::testbed::{Links, NODES, SERVERS, SLOW, leading_server};
use crate::support::host::Host;
use crate::support::proxy::Proxy;
use crate::support::zookeeper::Ensemble;

/// The hosts, and the links between them.
pub struct Hosts {
    network: Network,
    slow: Vec<Proxy>,
    servers: Vec<Arc<Host>>,
    nodes: Vec<Arc<Host>>,
    middle: Host,
}

impl Hosts {
    /// # Errors
    /// The reason why this machine cannot have them, for people.
    pub fn new() -> Result<Self, String> {
        let middle = Host::new(address(254))?;
        let several =
            |first: u8, count: usize| (first..).take(count).map(|last| Host::new(address(last)).map(Arc::new));
        let servers: Vec<Arc<Host>> = several(1, SERVERS).collect::<Result<_, _>>()?;
        let nodes: Vec<Arc<Host>> = several(11, NODES).collect::<Result<_, _>>()?;
        join(&middle, servers.iter().chain(&nodes))?;
        let network = Network::new(some_line());
        network.is_possible_on(&nodes[0])?;
        Ok(Self { network, slow: Vec::new(), servers, nodes, middle })
    }

    /// Moves the calling thread to the middle host, for good.
    pub fn connect_thread(&self) {
        self.middle.connect_thread();
    }

    pub fn of_servers(&self) -> &[Arc<Host>] {
        &self.servers
    }

    /// Adds the slow links to the servers.
    pub fn add_slow_lines(&mut self, ensemble: &Ensemble) {
        self.slow = (0..SERVERS).map(|i| Proxy::at(self.middle.address(), ensemble.address_of(i))).collect();
        self.slow.iter().for_each(|line| line.delay_requests(SLOW));
        let lines = self.slow.iter().enumerate();
        let lines = lines.map(|(i, line)| SlowLine { server: ensemble.address_of(i), begins: line.address() });
        self.network = Network::new(lines.collect());
    }

    /// Separates a node and a server from all others. The middle host reaches that server, but forwards nothing to it.
    fn part_with(&mut self, fault: usize, node: usize, server: usize) {
        let (node, server) = (&self.nodes[node], &self.servers[server]);
        let is_other = |host: &&Arc<Host>| !Arc::ptr_eq(host, node) && !Arc::ptr_eq(host, server);
        let others = self.servers.iter().chain(&self.nodes).filter(is_other).map(|host| host.address()).collect();
        let others_of_node = self.servers_and_middle(Some(server.address()));
        self.network.inject(fault, node, LinkRule::Cut(others_of_node));
        self.network.inject(fault, server, LinkRule::Cut(others));
    }

    /// The addresses of all servers, except `but`, and of the middle host.
    fn servers_and_middle(&self, but: Option<Ipv4Addr>) -> Vec<Ipv4Addr> {
        let servers = self.servers.iter().map(|host| host.address()).filter(|address| Some(*address) != but);
        servers.chain([self.middle.address()]).collect()
    }

    /// The server that a node is connected to.
    fn server_of(&self, ensemble: &Ensemble, node: usize) -> usize {
        let connected = format!("/{}:", self.nodes[node].address());
        (0..SERVERS).find(|&server| ensemble.four_letter(server, "cons").contains(&connected)).unwrap_or(0)
    }
}

impl Links for Hosts {
    fn host(&self, node: usize) -> Option<&Arc<Host>> {
        self.nodes.get(node)
    }

    fn connect(&self, ensemble: &Ensemble, _node: usize) -> String {
        ensemble.connect_string()
    }

    fn inject(&mut self, ensemble: &Ensemble, fault: usize, node: usize, link_fault: LinkFault) {
        let rule = match link_fault {
            LinkFault::CutOff => LinkRule::Cut(self.servers_and_middle(None)),
            LinkFault::CutOffWithItsServer => return self.part_with(fault, node, self.server_of(ensemble, node)),
            LinkFault::CutOffWithTheEnsemblesLeader => return self.part_with(fault, node, leading_server(ensemble)),
            LinkFault::Deaf => LinkRule::Deaf(self.servers_and_middle(None)),
            LinkFault::Mute => LinkRule::Mute(self.servers_and_middle(None)),
            LinkFault::Lossy => LinkRule::Lossy,
            LinkFault::Slow => LinkRule::Slow,
        };
        self.network.inject(fault, &self.nodes[node], rule);
    }

    fn heal(&mut self, fault: usize) {
        self.network.heal(fault);
    }
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
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
