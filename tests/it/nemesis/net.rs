//! The lines between the hosts, and what is wrong with them: rules of nftables on the hosts themselves.
//!
//! Several troubles of a host add up; each has the number of the stroke that brought it, and goes with it.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::support::host::Host;

#[cfg(test)]
mod tests;

/// Of the packets in either direction, in percent.
const LOST: u32 = 15;

/// What is wrong with a host's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing comes in from these.
    Deaf(Vec<Ipv4Addr>),
    /// Nothing gets out to these.
    Mute(Vec<Ipv4Addr>),
    /// Neither.
    Parted(Vec<Ipv4Addr>),
    /// Some packets are lost on the way.
    Lossy,
    /// The servers are reached by the slow lines.
    Slow,
}

/// A server, and where the slow line to it begins.
#[derive(Clone, Copy, Debug)]
pub struct SlowLine {
    pub server: SocketAddr,
    pub begins: SocketAddr,
}

/// All lines.
pub struct Network {
    troubles: Vec<(usize, Arc<Host>, Trouble)>,
    slow: Vec<SlowLine>,
}

impl Network {
    pub fn new(slow: Vec<SlowLine>) -> Self {
        Self { troubles: Vec::new(), slow }
    }

    /// A host's line gets worse.
    pub fn suffer(&mut self, fault: usize, host: &Arc<Host>, trouble: Trouble) {
        self.troubles.push((fault, Arc::clone(host), trouble));
        self.enforce(host).expect("nftables took such rules before");
    }

    /// What a stroke brought goes.
    pub fn heal(&mut self, fault: usize) {
        let (healed, left) = std::mem::take(&mut self.troubles).into_iter().partition(|(of, ..)| *of == fault);
        self.troubles = left;
        let healed: Vec<(usize, Arc<Host>, Trouble)> = healed;
        for (_, host, _) in healed {
            self.enforce(&host).expect("nftables took such rules before");
        }
    }

    /// Whether nftables knows all that will be asked of it.
    pub fn is_possible_on(&self, host: &Arc<Host>) -> Result<(), String> {
        let some = vec![host.address()];
        let all = [Trouble::Parted(some), Trouble::Lossy, Trouble::Slow];
        host.run(&["nft", "-f", "-"], &rules(&all.iter().collect::<Vec<_>>(), &self.slow))?;
        self.enforce(host)
    }

    fn enforce(&self, host: &Arc<Host>) -> Result<(), String> {
        let of_host = self.troubles.iter().filter(|(_, of, _)| Arc::ptr_eq(of, host));
        let troubles: Vec<&Trouble> = of_host.map(|(.., trouble)| trouble).collect();
        host.run(&["nft", "-f", "-"], &rules(&troubles, &self.slow))
    }
}

/// The whole set, which replaces the one before in one step.
fn rules(troubles: &[&Trouble], slow: &[SlowLine]) -> String {
    let (mut incoming, mut outgoing, mut detours) = (String::new(), String::new(), String::new());
    for trouble in troubles {
        match trouble {
            Trouble::Deaf(from) => drop_all(&mut incoming, "saddr", from),
            Trouble::Mute(to) => drop_all(&mut outgoing, "daddr", to),
            Trouble::Parted(others) => {
                drop_all(&mut incoming, "saddr", others);
                drop_all(&mut outgoing, "daddr", others);
            }
            Trouble::Lossy => {
                for (chain, way) in [(&mut incoming, "iifname"), (&mut outgoing, "oifname")] {
                    line(chain, &format!("{way} != \"lo\" numgen random mod 100 < {LOST} drop"));
                }
            }
            Trouble::Slow => {
                for SlowLine { server, begins } in slow {
                    let port = server.port();
                    // What is connected already shall connect anew.
                    line(&mut outgoing, &format!("ip daddr {} tcp dport {port} reject with tcp reset", server.ip()));
                    line(&mut detours, &format!("ip daddr {} tcp dport {port} dnat to {begins}", server.ip()));
                }
            }
        }
    }
    let mut rules = String::from("flush ruleset\n");
    chain(&mut rules, "inet trouble", "in", "filter hook input priority 0", &incoming);
    chain(&mut rules, "inet trouble", "out", "filter hook output priority 0", &outgoing);
    chain(&mut rules, "ip detour", "out", "nat hook output priority -100", &detours);
    rules
}

fn drop_all(chain: &mut String, which: &str, addresses: &[Ipv4Addr]) {
    for address in addresses {
        line(chain, &format!("ip {which} {address} drop"));
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
