//! The links between the hosts and their faults: nftables rules on the hosts themselves.
//!
//! Several rules of a host add up. Each has the number of the fault that it belongs to, and is removed with it.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::support::host::Host;

#[cfg(test)]
mod tests;

/// Percentage of lost packets, in either direction.
const LOST: u32 = 15;

/// A rule for a host's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkRule {
    /// Nothing from these addresses comes in.
    Deaf(Vec<Ipv4Addr>),
    /// Nothing to these addresses gets out.
    Mute(Vec<Ipv4Addr>),
    /// Neither direction works.
    Cut(Vec<Ipv4Addr>),
    /// Some packets are lost on the way.
    Lossy,
    /// The servers are reached through the slow links.
    Slow,
}

/// A server, and the address where the slow link to it begins.
#[derive(Clone, Copy, Debug)]
pub struct SlowLine {
    pub server: SocketAddr,
    pub begins: SocketAddr,
}

/// All links.
pub struct Network {
    link_rules: Vec<(usize, Arc<Host>, LinkRule)>,
    slow: Vec<SlowLine>,
}

impl Network {
    pub fn new(slow: Vec<SlowLine>) -> Self {
        Self { link_rules: Vec::new(), slow }
    }

    /// Adds a rule to a host's link.
    pub fn inject(&mut self, fault: usize, host: &Arc<Host>, rule: LinkRule) {
        self.link_rules.push((fault, Arc::clone(host), rule));
        self.enforce(host).expect("nftables took such rules before");
    }

    /// Removes what this fault did.
    pub fn heal(&mut self, fault: usize) {
        let (healed, left) = std::mem::take(&mut self.link_rules).into_iter().partition(|(of, ..)| *of == fault);
        self.link_rules = left;
        let healed: Vec<(usize, Arc<Host>, LinkRule)> = healed;
        for (_, host, _) in healed {
            self.enforce(&host).expect("nftables took such rules before");
        }
    }

    /// How many packets the rules that cut a host off from others have dropped there.
    #[cfg(test)]
    pub fn dropped(&self, host: &Host) -> usize {
        let rules = host.output(&["nft", "list", "ruleset"], "").expect("nftables lists its rules");
        let counted =
            rules.split("counter packets ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        counted.sum()
    }

    /// Checks that nftables supports everything the tests need.
    pub fn is_possible_on(&self, host: &Arc<Host>) -> Result<(), String> {
        let some = vec![host.address()];
        let all = [LinkRule::Cut(some), LinkRule::Lossy, LinkRule::Slow];
        host.run(&["nft", "-f", "-"], &rules(&all.iter().collect::<Vec<_>>(), &self.slow))?;
        self.enforce(host)
    }

    fn enforce(&self, host: &Arc<Host>) -> Result<(), String> {
        let of_host = self.link_rules.iter().filter(|(_, of, _)| Arc::ptr_eq(of, host));
        let link_rules: Vec<&LinkRule> = of_host.map(|(.., rule)| rule).collect();
        host.run(&["nft", "-f", "-"], &rules(&link_rules, &self.slow))
    }
}

/// The complete rule set, which replaces the previous one atomically.
fn rules(link_rules: &[&LinkRule], slow: &[SlowLine]) -> String {
    let (mut incoming, mut outgoing, mut detours) = (String::new(), String::new(), String::new());
    for rule in link_rules {
        match rule {
            LinkRule::Deaf(from) => drop_all(&mut incoming, "saddr", from),
            LinkRule::Mute(to) => drop_all(&mut outgoing, "daddr", to),
            LinkRule::Cut(others) => {
                drop_all(&mut incoming, "saddr", others);
                drop_all(&mut outgoing, "daddr", others);
            }
            LinkRule::Lossy => {
                for (chain, way) in [(&mut incoming, "iifname"), (&mut outgoing, "oifname")] {
                    line(chain, &format!("{way} != \"lo\" numgen random mod 100 < {LOST} drop"));
                }
            }
            LinkRule::Slow => {
                for SlowLine { server, begins } in slow {
                    let port = server.port();
                    // Existing connections must be made again.
                    line(&mut outgoing, &format!("ip daddr {} tcp dport {port} reject with tcp reset", server.ip()));
                    line(&mut detours, &format!("ip daddr {} tcp dport {port} dnat to {begins}", server.ip()));
                }
            }
        }
    }
    let mut rules = String::from("flush ruleset\n");
    chain(&mut rules, "inet link_fault", "in", "filter hook input priority 0", &incoming);
    chain(&mut rules, "inet link_fault", "out", "filter hook output priority 0", &outgoing);
    chain(&mut rules, "ip detour", "out", "nat hook output priority -100", &detours);
    rules
}

fn drop_all(chain: &mut String, which: &str, addresses: &[Ipv4Addr]) {
    for address in addresses {
        line(chain, &format!("ip {which} {address} counter drop"));
    }
}

fn chain(rules: &mut String, table: &str, name: &str, hook: &str, body: &str) {
    if !body.is_empty() {
        write!(rules, "table {table} {{\n chain {name} {{\n  type {hook}; policy accept;\n{body} }}\n}}\n")
            .expect("a string takes all");
    }
}

fn line(chain: &mut String, rule: &str) {
    writeln!(chain, "  {rule}").expect("a string takes all");
}
