//! The faults of a cluster and their times: a plan that follows from the seed alone.
//!
//! Chance chooses the victim, the time and the duration. The kinds of faults are shuffled and then shared out: every
//! [`ROUND`] seeds, from a multiple of that number on, contain each kind once.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use super::testbed::SERVERS;

/// The session timeout of the nodes, on servers with a tick of 500 ms.
pub const TIMEOUT: Duration = Duration::from_secs(4);

/// Number of kinds of faults in a seed. What is left over is in the last seed of a round.
const KINDS_PER_SEED: usize = 3;

/// The shuffle of the first round, which the ordinary run uses. With this one, nearly everything that can hit the
/// leader does.
const FIRST_SHUFFLE: u64 = 9;

/// Number of seeds that contain every kind once.
pub const ROUND: u64 = (ALL_KINDS.len() / KINDS_PER_SEED) as u64;

/// A signal, sent from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentSignal {
    Kill,
    Term,
    /// Followed by SIGCONT, once the session is over.
    Stop,
    /// Hands leadership over.
    Usr2,
}

/// The process of a node that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Daemon,
    Warden,
    Both,
}

/// A fault of the links between a node and the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// A node reaches no server.
    CutOff,
    /// A node and the server that it is connected to are separated from all others.
    CutOffWithItsServer,
    /// A node and the leader of the ensemble are separated from all others.
    CutOffWithTheEnsemblesLeader,
    /// A node receives nothing from the servers, while they receive its packets.
    Deaf,
    /// The servers receive nothing from a node, while it receives their packets.
    Mute,
    /// Some packets are lost on the way.
    Lossy,
    Slow,
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Signal(SentSignal, Part),
    /// All processes of a host are stopped, jobs included.
    Suspended,
    /// All processes of a host are killed at once.
    HostLost,
    Link(LinkFault),
    ServerKilled,
    ServerPaused,
    NoQuorum,
    RollingRestart,
    /// All servers are dead, for longer than the session.
    Blackout,
    DiskFull,
    /// Deleted by hand, as are all of the following.
    CandidateDeleted,
    MemberDeleted,
    QueueDeleted,
}

impl Kind {
    /// The kinds that only nodes and servers on hosts of their own can suffer.
    pub fn of_hosts() -> impl Iterator<Item = Self> {
        ALL_KINDS.into_iter().filter(|kind| kind.takes_hosts())
    }

    pub fn takes_hosts(self) -> bool {
        use LinkFault::{CutOffWithItsServer, CutOffWithTheEnsemblesLeader, Lossy};
        matches!(self, Self::Link(CutOffWithItsServer | CutOffWithTheEnsemblesLeader | Lossy) | Self::DiskFull)
    }
}

const ALL_KINDS: [Kind; 28] = {
    use Kind::*;
    [
        Signal(SentSignal::Kill, Part::Daemon),
        Signal(SentSignal::Kill, Part::Warden),
        Signal(SentSignal::Kill, Part::Both),
        Signal(SentSignal::Term, Part::Daemon),
        Signal(SentSignal::Term, Part::Warden),
        Signal(SentSignal::Term, Part::Both),
        Signal(SentSignal::Stop, Part::Daemon),
        Signal(SentSignal::Stop, Part::Warden),
        Signal(SentSignal::Stop, Part::Both),
        Suspended,
        HostLost,
        Link(LinkFault::CutOff),
        Link(LinkFault::CutOffWithItsServer),
        Link(LinkFault::CutOffWithTheEnsemblesLeader),
        Link(LinkFault::Deaf),
        Link(LinkFault::Mute),
        Link(LinkFault::Lossy),
        Link(LinkFault::Slow),
        ServerKilled,
        ServerPaused,
        NoQuorum,
        RollingRestart,
        Blackout,
        DiskFull,
        CandidateDeleted,
        MemberDeleted,
        QueueDeleted,
        Signal(SentSignal::Usr2, Part::Daemon),
    ]
};

/// The choice of the node, made when the fault's time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    Leader,
    /// One of the nodes that do not lead.
    Other(usize),
}

/// A fault of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Time since the beginning.
    pub at: Duration,
    pub lasts: Duration,
    pub kind: Kind,
    pub node: Pick,
    /// `None`: the server that leads the ensemble at that time.
    pub server: Option<usize>,
}

/// The faults of a seed, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub faults: Vec<Fault>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // By then runs of all jobs are in flight.
        let mut at = TIMEOUT.mul_f64(0.6);
        let mut faults = Vec::new();
        for kind in kinds_of(seed) {
            faults.extend(faults_of(kind, at, &mut rng));
            // Mostly while the previous fault lasts, or while the cluster recovers from it.
            at += TIMEOUT.mul_f64(1.6 * rng.f64());
        }
        faults.sort_by_key(|fault| fault.at);
        Self { seed, faults }
    }
}

/// The kinds of faults in a seed.
fn kinds_of(seed: u64) -> Vec<Kind> {
    let mut kinds = ALL_KINDS;
    Rng::with_seed(FIRST_SHUFFLE + seed / ROUND).shuffle(&mut kinds);
    let first = KINDS_PER_SEED * usize::try_from(seed % ROUND).expect("it is small");
    let is_last = seed % ROUND == ROUND - 1;
    let next = if is_last { kinds.len() } else { first + KINDS_PER_SEED };
    kinds[first..next].to_vec()
}

fn faults_of(kind: Kind, at: Duration, rng: &mut Rng) -> Vec<Fault> {
    let node = if rng.u8(..5) > 0 { Pick::Leader } else { Pick::Other(rng.usize(..2)) };
    let server = rng.bool().then(|| rng.usize(..SERVERS));
    let fault = Fault { at, lasts: length(kind, rng), kind, node, server };
    match kind {
        Kind::RollingRestart => {
            // Enough time for one server to serve again before the next is stopped, if the machine is not too busy.
            let one = |i: usize| Fault { at: at + Duration::from_secs(3 * i as u64), server: Some(i), ..fault.clone() };
            (0..SERVERS).map(one).collect()
        }
        _ => vec![fault],
    }
}

fn length(kind: Kind, rng: &mut Rng) -> Duration {
    let within = |rng: &mut Rng, from: f64, to: f64| TIMEOUT.mul_f64(from + (to - from) * rng.f64());
    match kind {
        Kind::Signal(SentSignal::Stop, _) | Kind::Suspended | Kind::HostLost | Kind::Blackout => within(rng, 1.3, 1.7),
        // Started again while its session is alive and its runs might be: a host that stays away is another kind.
        Kind::Signal(SentSignal::Kill, _) => within(rng, 0.0, 0.6),
        Kind::Signal(..) => within(rng, 0.0, 1.5),
        Kind::RollingRestart => within(rng, 0.1, 0.2),
        Kind::CandidateDeleted | Kind::MemberDeleted | Kind::QueueDeleted => Duration::ZERO,
        Kind::ServerKilled | Kind::ServerPaused | Kind::DiskFull => within(rng, 0.2, 1.5),
        // Around the ends of lease and session, and well beyond them.
        _ if rng.u8(..3) == 0 => within(rng, 0.2, 1.1),
        _ => within(rng, 1.2, 1.8),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Fault { at, lasts, kind, node, server } in &self.faults {
            let (at, lasts) = (at.as_secs_f64(), lasts.as_secs_f64());
            writeln!(f, "  at {at:5.2} s for {lasts:5.2} s: {kind:?}, node {node:?}, server {server:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan() {
        assert_eq!(Plan::of(7), Plan::of(7));
        assert_ne!(Plan::of(7), Plan::of(8));
    }

    #[test]
    fn every_round_of_seeds_has_every_kind() {
        for round in 0..20 {
            let seeds = round * ROUND..(round + 1) * ROUND;
            let kinds: Vec<Kind> = seeds.flat_map(|seed| Plan::of(seed).faults).map(|fault| fault.kind).collect();
            assert!(ALL_KINDS.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
        }
    }

    #[test]
    fn what_is_to_outlast_the_session_does() {
        let faults = (0..200).flat_map(|seed| Plan::of(seed).faults);
        let long = |kind| {
            matches!(kind, Kind::Signal(SentSignal::Stop, _) | Kind::Suspended | Kind::HostLost | Kind::Blackout)
        };
        assert!(faults.filter(|fault| long(fault.kind)).all(|fault| fault.lasts > TIMEOUT));
    }
}
