//! Stalls that wait for their moment: an important write is just being handed to the ensemble.
//!
//! The request itself shows the moment, so waiting costs nothing.

use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;

use super::faults::Fault;
use super::targeted_fault::TargetedFault;
use super::world::{Event, World};
use super::zookeeper::ClientId;
use super::zookeeper::wire::Request;

/// The write that triggers a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The begin of a run.
    Begin,
    /// The begin of another attempt.
    Again,
    /// The opening write of a term, whose node has just been elected.
    Opening,
}

/// The part that stalls then, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The server that leads the ensemble.
    LeadingServer,
    /// The server to which the node is connected.
    OwnServer,
    /// The disks of all servers.
    Disks,
    /// The loop of the node's daemon.
    Loop,
}

/// A stall, the write that triggers it, its latest time, and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriggeredStall {
    pub moment: Moment,
    pub stall: Stall,
    pub until: Uptime,
    pub lasts: Duration,
}

#[derive(Default)]
pub struct TriggeredStalls(Vec<TriggeredStall>);

impl Moment {
    fn of(ops: &[Op]) -> Option<Self> {
        const RUNNING: &str = "/cronkeeper/running/";
        let is_fenced = matches!(ops.first(), Some(Op::Check { path, .. }) if path.starts_with("/leader/"));
        let moment = |op: &Op| match op {
            Op::Create { path, .. } if path.starts_with(RUNNING) => Some(Self::Begin),
            Op::Set { path, .. } if path == "/leader" => Some(Self::Opening),
            Op::Set { path, .. } if is_fenced && path.starts_with(RUNNING) => Some(Self::Again),
            _ => None,
        };
        ops.iter().find_map(moment)
    }
}

impl World {
    pub fn set_triggered_stall(&mut self, stall: TriggeredStall) {
        self.triggered_stalls.0.push(stall);
    }

    /// Called when a client hands over a request. If a stall waits for it, it comes while the request or its
    /// answer is under way.
    pub fn look_at(&mut self, client: ClientId, request: &Request) {
        let (Request::Write(ops), false) = (request, self.triggered_stalls.0.is_empty()) else { return };
        let now = self.env.now();
        self.triggered_stalls.0.retain(|waiting| now < waiting.until);
        let moment = Moment::of(ops);
        let Some(place) = self.triggered_stalls.0.iter().position(|waiting| Some(waiting.moment) == moment) else {
            return;
        };
        let TriggeredStall { stall, lasts, .. } = self.triggered_stalls.0.swap_remove(place);
        let Some(node) = self.clients.node(client) else { return };
        let server = match stall {
            Stall::LeadingServer => self.ensemble.leader().map(|server| server.id()),
            Stall::OwnServer => self.clients.server(client),
            Stall::Disks | Stall::Loop => None,
        };
        let at = now + Duration::from_micros(self.env.rng.u64(..4_000));
        for (fault, cure) in stalled(stall, node, server) {
            self.env.queue.at(at, Event::Fault(fault));
            self.env.queue.at(at + lasts, Event::Fault(cure));
        }
    }

    /// Makes the server that leads the ensemble now hang for a while.
    pub fn pause_leading_server(&mut self, lasts: Duration) {
        if let Some(server) = self.ensemble.leader().map(|server| server.id()) {
            self.env.queue.after(Duration::ZERO, Event::Fault(Fault::PauseServer { server }));
            self.env.queue.after(lasts, Event::Fault(Fault::ResumeServer { server }));
        }
    }
}

fn stalled(stall: Stall, node: usize, server: Option<usize>) -> Vec<(Fault, Fault)> {
    match (stall, server) {
        (Stall::Disks, _) => vec![(Fault::StallDisks, Fault::ResumeDisks)],
        (Stall::Loop, _) => vec![(Fault::StallLoop { node }, Fault::ResumeLoop { node })],
        (_, Some(server)) => vec![(Fault::PauseServer { server }, Fault::ResumeServer { server })],
        (_, None) => Vec::new(),
    }
}

impl From<TriggeredStall> for Fault {
    fn from(stall: TriggeredStall) -> Self {
        Self::TargetedFault(TargetedFault::TriggeredStall(stall))
    }
}
