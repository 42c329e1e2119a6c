//! The effect of each kind of fault on nodes, links and servers.

use std::os::fd::OwnedFd;

use jiff::Timestamp;

use super::super::admin::Target;
use super::super::history::Span;
use super::super::plan::{Fault, Kind, LinkFault, Part, SentSignal};
use super::super::supervisors::Supervisors;
use super::super::testbed::{SERVERS, leading_server};
use super::{Cure, FaultInjector, Health, Still};

impl FaultInjector<'_> {
    /// Applies the fault, and returns the repairs to do later; none if the victim was already down.
    pub(super) fn inject(&mut self, fault: &Fault, i: usize) -> Vec<Cure> {
        match fault.kind {
            Kind::Signal(signal, part) => self.signal(i, signal, part),
            Kind::Suspended => self.stand_still(i, Part::Both, Supervisors::suspend),
            Kind::HostLost => self.supervisors.kill_all(i).map(|_| Cure::Revive(i)).into_iter().collect(),
            Kind::Link(link_fault) => self.upon_link(i, link_fault),
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

    fn upon_link(&mut self, i: usize, link_fault: LinkFault) -> Vec<Cure> {
        self.count += 1;
        self.testbed.links.inject(&self.testbed.ensemble, self.count, i, link_fault);
        vec![Cure::Links(self.count)]
    }

    fn server(&self, fault: &Fault) -> usize {
        fault.server.unwrap_or_else(|| leading_server(&self.testbed.ensemble))
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
