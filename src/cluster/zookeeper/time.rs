//! The servers' time, read from their stamps on a node's own writes.
//!
//! A stamp is the clock of the ensemble's leader when it accepted the write. The write goes to the parent of the
//! members, which every node has, and whose data nobody reads or watches.

use std::time::Duration;

use super::client::{Done, Op};
use super::paths;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::server::ServerTime;

/// How often a node reads the servers' time.
pub const EVERY: Duration = Duration::from_secs(60);

/// A write that changes nothing, made for its stamp.
pub fn touch() -> Op {
    Op::Set { path: paths::NODES.into(), data: Vec::new(), version: -1 }
}

/// A replacement for [`touch`] if the parent of the members must not be written. It fires the watches on this node's
/// member, which makes the watchers read it again.
pub fn touch_member(path: String, data: Vec<u8>) -> Op {
    Op::Set { path, data, version: -1 }
}

/// The stamp on a set inside a multi. The stamp on a create does not work: inside a multi 3.8.0 fills in garbage.
pub fn of(done: &[Done], sent: Uptime, received: Uptime) -> Option<ServerTime> {
    let stamp = done.iter().find_map(|done| match done {
        Done::Set(stat) => Some(stat.mtime_ms),
        Done::Created(_) | Done::Nothing => None,
    });
    ServerTime::new(stamp?, sent, received)
}
