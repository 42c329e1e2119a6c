//! Faults that wait for the worst moment: they watch the world and then strike.
//!
//! Chance hits the critical moments of a session too seldom: the last half tick before its end, when the ensemble's
//! leader has not been notified of the newest writes, or the time in which an answer is under way. These faults wait
//! for such a moment.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;

use super::faults::Fault;
use super::network::Host;
use super::triggered_stall::TriggeredStall;
use super::world::{Event, Health, World};
use super::zookeeper::SERVERS;

/// How often a waiting fault checks.
const LOOK_EVERY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetedFault {
    /// The leader dies, and the next in line hangs until shortly before the end of its own session: its next request is
    /// the first after a silence. Then it is cut off.
    Doze,
    /// A node hangs.
    Dozing { node: usize },
    /// The leader hangs while an answer is on its way to it, nearly as long as its connection survives. Afterwards
    /// nobody receives what it sends.
    Echo { until: Uptime },
    /// The leader's socket to its warden accepts nothing more.
    Clog { until: Uptime },
    /// The daemon hangs with an attempt that it has not sent, until its lease is over.
    Clogged { node: usize, until: Uptime },
    /// A stall at the worst moment.
    TriggeredStall(TriggeredStall),
    /// The leader is cut off together with its server, just after a write was answered if it writes at all.
    Island { until: Uptime },
}

impl World {
    pub fn targeted_fault(&mut self, targeted_fault: TargetedFault) {
        match targeted_fault {
            TargetedFault::Doze => self.doze(),
            TargetedFault::Dozing { node } => self.wake_late(node),
            TargetedFault::Echo { until } => self.echo(until),
            TargetedFault::Clog { until } => self.clog(until),
            TargetedFault::Clogged { node, until } => self.clogged(node, until),
            TargetedFault::TriggeredStall(stall) => self.set_triggered_stall(stall),
            TargetedFault::Island { until } => self.island(until),
        }
    }

    /// The nodes in the queue, the leader first.
    fn in_line(&self) -> Vec<usize> {
        let Some(tree) = self.tree() else { return Vec::new() };
        let names = tree.children("/leader").unwrap_or_default();
        let owners =
            names.iter().filter_map(|name| tree.stat(&format!("/leader/{name}"))).map(|stat| stat.ephemeral_owner);
        owners.filter_map(|session| self.node_of_session(session)).collect()
    }

    fn later(&mut self, delay: Duration, fault: Fault) {
        self.env.queue.after(delay, Event::Fault(fault));
    }

    fn share(&mut self, of: Duration) -> Duration {
        of.mul_f64(self.env.rng.f64())
    }

    fn doze(&mut self) {
        let [leader, next, ..] = self.in_line()[..] else { return };
        let (tick, timeout) = (self.env.timing.tick, self.env.timing.session_timeout);
        self.later(Duration::ZERO, Fault::Kill { node: leader, with_host: true });
        // The dead leader is back by then, so that some node besides `next` can always take over.
        self.later(timeout / 4, Fault::Start { node: leader });
        let pause = tick.mul_f64(0.5 + 0.6 * self.env.rng.f64());
        self.later(pause, Fault::Pause { node: next });
        self.later(pause + tick, Fault::TargetedFault(TargetedFault::Dozing { node: next }));
    }

    fn wake_late(&mut self, node: usize) {
        let end = self.clients.newest_session(node).and_then(|session| self.ensemble.leader()?.session_end(session));
        let Some(end) = end.filter(|_| self.nodes[node].health == Health::Paused) else {
            return self.later(Duration::ZERO, Fault::Resume { node });
        };
        let (tick, timeout) = (self.env.timing.tick, self.env.timing.session_timeout);
        let before = Duration::from_millis(5) + self.share(tick / 2);
        let awake = end.since(self.env.now() + before);
        self.later(awake, Fault::Resume { node });
        let mute = awake + Duration::from_millis(4) + self.share(tick / 4);
        self.later(mute, Fault::Pause { node });
        let again = mute + timeout.mul_f64(0.3 + self.env.rng.f64());
        self.later(again, Fault::Resume { node });
    }

    fn echo(&mut self, until: Uptime) {
        let Some(&leader) = self.in_line().first() else { return };
        if self.nodes[leader].health != Health::Running || !self.clients.awaits_write(leader) {
            return self.look_again(TargetedFault::Echo { until }, until);
        }
        let timeout = self.env.timing.session_timeout;
        let arrived = Duration::from_millis(2);
        self.later(arrived, Fault::Pause { node: leader });
        let back = arrived + timeout.mul_f64(0.3 + 0.2 * self.env.rng.f64());
        self.later(back, Fault::Resume { node: leader });
        for server in (0..SERVERS).map(Host::Server) {
            let way = (Host::Node(leader), server);
            self.later(arrived, Fault::Cut { from: way.0, to: way.1 });
            self.later(back + timeout * 2, Fault::Heal { from: way.0, to: way.1 });
        }
    }

    fn clog(&mut self, until: Uptime) {
        let Some(&node) = self.in_line().first() else { return };
        self.wardens.clog(node);
        self.later(LOOK_EVERY, Fault::TargetedFault(TargetedFault::Clogged { node, until }));
    }

    fn clogged(&mut self, node: usize, until: Uptime) {
        if self.wardens.has_unsent_start(node) {
            let lasts = self.env.timing.session_timeout.mul_f64(0.5 + self.env.rng.f64());
            self.later(Duration::ZERO, Fault::Pause { node });
            self.later(lasts, Fault::Unclog { node });
            self.later(lasts, Fault::Resume { node });
        } else if self.env.now() < until {
            self.later(LOOK_EVERY, Fault::TargetedFault(TargetedFault::Clogged { node, until }));
        } else {
            self.later(Duration::ZERO, Fault::Unclog { node });
        }
    }

    fn island(&mut self, until: Uptime) {
        let Some(&leader) = self.in_line().first() else { return };
        let server = self.clients.server_of(leader);
        let is_time = self.env.now() >= until || self.clients.awaits_write(leader);
        let Some(server) = server.filter(|_| is_time) else {
            return self.look_again(TargetedFault::Island { until }, until);
        };
        let inside = [Host::Node(leader), Host::Server(server)];
        let outside = (0..SERVERS).filter(|&other| other != server).map(Host::Server);
        let answered = Duration::from_millis(3) + self.share(Duration::from_millis(10));
        let lasts = self.env.timing.session_timeout.mul_f64(1.0 + self.env.rng.f64());
        for (a, b) in outside.flat_map(|b| inside.map(|a| (a, b))) {
            for (from, to) in [(a, b), (b, a)] {
                self.later(answered, Fault::Cut { from, to });
                self.later(answered + lasts, Fault::Heal { from, to });
            }
        }
    }

    /// Schedules the next check; after `until` the fault is given up.
    fn look_again(&mut self, targeted_fault: TargetedFault, until: Uptime) {
        if self.env.now() < until {
            self.later(LOOK_EVERY, Fault::TargetedFault(targeted_fault));
        }
    }
}
