//! The servers' time, read from their stamps on a node's own writes.
//!
//! A stamp is the service's clock when it accepted the write. The write goes to the folder of the members, which every
//! cluster has, and whose data nobody reads or watches.

use std::time::Duration;

use crate::paths;
use crate::tree::{AtVersion, Op};

/// How often a node reads the servers' time.
pub const EVERY: Duration = Duration::from_secs(60);

/// A write that changes nothing, made for its stamp.
pub fn touch() -> Op {
    Op::Set { path: paths::NODES.into(), data: Vec::new(), at: AtVersion::Any }
}

/// A replacement for [`touch`] if the parent of the members must not be written. It fires the watches on this node's
/// member, which makes the watchers read it again.
pub fn touch_member(path: String, data: Vec<u8>) -> Op {
    Op::Set { path, data, at: AtVersion::Any }
}
