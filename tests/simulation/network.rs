//! The links between hosts, each direction by itself: delay, loss, cuts.
//!
//! A connection is a TCP stream: data arrives in order or not at all. Loss shows as the delay of the retransmission. A
//! cut link holds the data that is sent into it, and delivers it when it heals, even if the sender has closed the
//! stream meanwhile (its kernel keeps trying): a prefix of the stream, never a part after a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use fastrand::Rng;

use super::zookeeper::wire::Body;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Server(usize),
    Node(usize),
}

/// A TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conn(pub u64);

pub struct Packet {
    pub from: Host,
    pub to: Host,
    pub conn: Conn,
    pub body: Body,
}

type Way = (Host, Host);

pub struct Network {
    cut: BTreeSet<Way>,
    slow: BTreeSet<Way>,
    held: BTreeMap<Way, Vec<Packet>>,
    /// Streams that lost a part for good. Nothing after that part arrives.
    broken: BTreeSet<(Conn, Host)>,
    /// Arrival of the last packet of a stream, which the next packet must not overtake.
    last: BTreeMap<(Conn, Host), Uptime>,
    opened: u64,
    /// If true, nothing is lost any more.
    is_calm: bool,
}

impl Network {
    pub fn new() -> Self {
        Self {
            cut: BTreeSet::new(),
            slow: BTreeSet::new(),
            held: BTreeMap::new(),
            broken: BTreeSet::new(),
            last: BTreeMap::new(),
            opened: 0,
            is_calm: false,
        }
    }

    pub fn open(&mut self) -> Conn {
        self.opened += 1;
        Conn(self.opened)
    }

    /// The time at which a packet sent now arrives at the far end.
    pub fn arrival(&mut self, now: Uptime, rng: &mut Rng, packet: &Packet) -> Uptime {
        let slow = self.slow.contains(&(packet.from, packet.to));
        let at = now + delay(rng, slow, self.is_calm);
        let last = self.last.entry((packet.conn, packet.to)).or_insert(Uptime::ZERO);
        *last = at.max(*last + Duration::from_nanos(1));
        *last
    }

    /// Delivers a packet that has arrived at the far end, or holds it if the link is cut.
    pub fn pass(&mut self, packet: Packet) -> Option<Packet> {
        let way = (packet.from, packet.to);
        if self.broken.contains(&(packet.conn, packet.from)) {
            return None;
        }
        if self.cut.contains(&way) {
            self.held.entry(way).or_default().push(packet);
            return None;
        }
        Some(packet)
    }

    /// How long something takes that is no part of a connection.
    pub fn delay(&self, rng: &mut Rng, from: Host, to: Host) -> Duration {
        delay(rng, self.slow.contains(&(from, to)), self.is_calm)
    }

    pub fn calm(&mut self) {
        self.is_calm = true;
    }

    pub fn is_calm(&self) -> bool {
        self.is_calm
    }

    /// Drops what a host that is gone had in its kernel and not sent.
    pub fn lose(&mut self, host: Host) {
        for packet in self.held.extract_if(.., |(from, _), _| *from == host).flat_map(|(_, held)| held) {
            self.broken.insert((packet.conn, host));
        }
    }

    pub fn is_cut(&self, from: Host, to: Host) -> bool {
        self.cut.contains(&(from, to))
    }

    pub fn cut(&mut self, from: Host, to: Host) {
        self.cut.insert((from, to));
    }

    pub fn slow(&mut self, from: Host, to: Host) {
        self.slow.insert((from, to));
    }

    /// Repairs one direction, and returns the packets that were held; of some streams only the first part.
    pub fn heal(&mut self, from: Host, to: Host, rng: &mut Rng) -> Vec<Packet> {
        self.cut.remove(&(from, to));
        self.slow.remove(&(from, to));
        let held = self.held.remove(&(from, to)).unwrap_or_default();
        let closed: BTreeSet<Conn> =
            held.iter().filter(|packet| matches!(packet.body, Body::Fin)).map(|packet| packet.conn).collect();
        let mut goes_on = |packet: &Packet| {
            if closed.contains(&packet.conn) && rng.u8(..4) == 0 {
                self.broken.insert((packet.conn, from));
            }
            !self.broken.contains(&(packet.conn, from))
        };
        held.into_iter().filter(|packet| goes_on(packet)).collect()
    }
}

fn delay(rng: &mut Rng, slow: bool, is_calm: bool) -> Duration {
    let micros = |range: Range<u64>, rng: &mut Rng| Duration::from_micros(rng.u64(range));
    match (slow, rng.u16(..1000)) {
        // Lost and retransmitted.
        (_, 0) if !is_calm => micros(200_000..1_200_000, rng),
        (_, 0..10) => micros(2_000..30_000, rng),
        (true, _) => micros(20_000..400_000, rng),
        (false, _) => micros(100..1_500, rng),
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(index) => write!(f, "server-{index}"),
            Self::Node(index) => write!(f, "node-{index}"),
        }
    }
}
