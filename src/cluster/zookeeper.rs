//! The port [`tree`](crate::tree) on ZooKeeper.
//!
//! ```text
//!  recipes ─ tree ─ znodes ┬ client ─ session    real servers; the simulation has its own
//!                          ├ parents, folders    what must be there before a record is
//!                          ├ proof               what answers prove of the session
//!                          ├ rights              access lists
//!                          └ chroot
//! ```

mod chroot;
pub mod client;
pub mod connect_string;
mod folders;
mod parents;
mod proof;
mod rights;
pub mod session;
#[cfg(test)]
pub(crate) mod tests_support;
mod znodes;

use cronkeeper_core::term::SessionId;

pub use znodes::{ZnodeSession, Znodes};

/// A session with real servers, as the recipes use it.
pub type ServerSession = ZnodeSession<session::Session>;

/// The name of a session, from the owner id that the stat of its entries shows.
pub fn session_id(owner: i64) -> SessionId {
    SessionId(format!("{owner:#x}"))
}

/// The owner id behind a name made by [`session_id`]; `None` for any other name.
pub fn owner_of(session: &SessionId) -> Option<i64> {
    u64::from_str_radix(session.0.strip_prefix("0x")?, 16).ok().map(u64::cast_signed)
}
