//! What time it is at the servers: their stamp on a node's own writes.
//!
//! A stamp is the clock of the ensemble's leader at the moment it took the write in. Nothing reads what is written here, and nobody watches
//! it: the folder of the members serves, for it is there wherever a node is one.

use std::time::Duration;

use super::client::{Done, Op};
use super::paths;
use crate::clock::Uptime;
use crate::clock::server::ServerTime;

/// How often a node looks.
pub const EVERY: Duration = Duration::from_secs(60);

/// A write that changes nothing, for its stamp.
pub fn touch() -> Op {
    Op::Set { path: paths::NODES.into(), data: Vec::new(), version: -1 }
}

/// The same, where that folder may not be written to: it fires the watches on the own member, which then is looked at again.
pub fn touch_member(path: String, data: Vec<u8>) -> Op {
    Op::Set { path, data, version: -1 }
}

/// The stamp on a multi's set. That of a create would not do: inside a multi 3.8.0 fills in garbage.
pub fn of(done: &[Done], sent: Uptime, received: Uptime) -> Option<ServerTime> {
    let stamp = done.iter().find_map(|done| match done {
        Done::Set(stat) => Some(stat.mtime_ms),
        Done::Created(_) | Done::Nothing => None,
    });
    ServerTime::new(stamp?, sent, received)
}
