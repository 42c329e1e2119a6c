//! Nodes on a real Redis.
//!
//! ```text
//! settings   how to log in, and what is refused
//! failover   what happens when the master fails
//! ```

mod failover;
mod settings;
