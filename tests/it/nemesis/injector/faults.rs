//! The effect of each kind of fault on nodes, links and servers.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use jiff::Timestamp;

use super::super::admin::Target;
use super::super::history::Span;
use super::super::net::LinkFault;
use super::super::plan::{Fault, Kind, Part, SentSignal};
use super::super::supervisors::Supervisors;
use super::super::testbed::SERVERS;
use super::{Cure, FaultInjector, Health, Still};

impl FaultInjector<'_> {
    /// Applies the fault, and returns the repairs to do later; none if the victim was already down.
    pub(super) fn inject(&mut self, fault: &Fault, i: usize) -> Vec<Cure> {
        match fault.kind {
            Kind::Signal(signal, part) => self.signal(i, signal, part),
            Kind::Suspended => self.stand_still(i, Part::Both, Supervisors::suspend),
            Kind::HostLost => self.supervisors.kill_all(i).map(|_| Cure::Revive(i)).into_iter().collect(),
            Kind::CutOff => self.upon(i, LinkFault::Cut(self.servers_and_middle(None))),
            Kind::Deaf => self.upon(i, LinkFault::Deaf(self.servers_and_middle(None))),
            Kind::Mute => self.upon(i, LinkFault::Mute(self.servers_and_middle(None))),
            Kind::Lossy => self.upon(i, LinkFault::Lossy),
            Kind::Slow => self.upon(i, LinkFault::Slow),
            Kind::CutOffWithItsServer => self.part_with(i, self.server_of(i)),
            Kind::CutOffWithTheEnsemblesLeader => self.part_with(i, self.leading_server()),
            Kind::ServerKilled | Kind::RollingRestart => self.hurt(&[self.server(fault)], Health::Killed),
            Kind::ServerPaused => self.hurt(&[self.server(fault)], Health::Paused),
            Kind::NoQuorum => {
                let spared = self.server(fault);
                let others: Vec<usize> = (0..SERVERS).filter(|&server| server != spared).collect();
                self.hurt(&others, if spared == 0 { Health::Paused } else { Health::Killed })
            }
            Kind::Blackout => self.hurt(&[0, 1, 2], Health::Killed),
            Kind::DiskFull => {
                self.supervisors.fill_disk(i);
                vec![Cure::MakeRoom(i)]
            }
            Kind::CandidateDeleted => vec![Cure::Delete(Target::Candidate(self.supervisors.name(i).to_owned()))],
            Kind::MemberDeleted => vec![Cure::Delete(Target::Member(self.supervisors.name(i).to_owned()))],
            Kind::QueueDeleted => vec![Cure::Delete(Target::Queue)],
        }
    }

    fn signal(&mut self, i: usize, signal: SentSignal, part: Part) -> Vec<Cure> {
        if signal == SentSignal::Stop {
            return self.stand_still(i, part, |supervisors, i| supervisors.signal(i, signal, part));
        }
        let hit = self.supervisors.signal(i, signal, part);
        hit.map(|_| Cure::Revive(i)).into_iter().collect()
    }

    fn stand_still(
        &mut self,
        i: usize,
        part: Part,
        stop: impl FnOnce(&mut Supervisors, usize) -> Option<Vec<OwnedFd>>,
    ) -> Vec<Cure> {
        let Some(stopped) = stop(self.supervisors, i) else { return Vec::new() };
        self.stood_still.push(Still { i, part, span: Span { from: Timestamp::now(), to: Timestamp::MAX } });
        vec![Cure::Continue(stopped, self.stood_still.len() - 1)]
    }

    fn upon(&mut self, i: usize, link_fault: LinkFault) -> Vec<Cure> {
        self.count += 1;
        self.testbed.network.inject(self.count, &self.testbed.nodes[i], link_fault);
        vec![Cure::Network(self.count)]
    }

    /// Separates a node and a server from all others. The middle host reaches that server, but forwards nothing to it.
    fn part_with(&mut self, i: usize, server: usize) -> Vec<Cure> {
        let cures = self.upon(i, LinkFault::Cut(self.servers_and_middle(Some(server))));
        let is_other = |host: &&Arc<_>| {
            !Arc::ptr_eq(host, &self.testbed.nodes[i]) && !Arc::ptr_eq(host, &self.testbed.servers[server])
        };
        let others = self
            .testbed
            .servers
            .iter()
            .chain(&self.testbed.nodes)
            .filter(is_other)
            .map(|host| host.address())
            .collect();
        self.testbed.network.inject(self.count, &self.testbed.servers[server], LinkFault::Cut(others));
        cures
    }

    /// The addresses of all servers, except `but`, and of the middle host.
    fn servers_and_middle(&self, but: Option<usize>) -> Vec<Ipv4Addr> {
        let servers = self.testbed.servers.iter().enumerate().filter(|(i, _)| Some(*i) != but);
        servers.map(|(_, host)| host.address()).chain([self.testbed.middle.address()]).collect()
    }

    fn server(&self, fault: &Fault) -> usize {
        fault.server.unwrap_or_else(|| self.leading_server())
    }

    fn leading_server(&self) -> usize {
        (0..SERVERS).find(|&i| self.testbed.ensemble.mode(i).as_deref() == Some("leader")).unwrap_or(0)
    }

    /// The server that a node is connected to.
    fn server_of(&self, i: usize) -> usize {
        let connected = format!("/{}:", self.testbed.nodes[i].address());
        (0..SERVERS).find(|&server| self.testbed.ensemble.four_letter(server, "cons").contains(&connected)).unwrap_or(0)
    }

    fn hurt(&mut self, servers: &[usize], how: Health) -> Vec<Cure> {
        let mut cures = Vec::new();
        for &i in servers.iter().filter(|&&i| self.servers[i] == Health::Serves).collect::<Vec<_>>() {
            match how {
                Health::Killed => self.testbed.ensemble.kill(i),
                Health::Paused => self.testbed.ensemble.pause(i),
                Health::Serves => {}
            }
            self.servers[i] = how;
            cures.push(Cure::Server(i, how));
        }
        cures
    }
}
