//! Nodes on a real Redis.
//!
//! ```text
//! settings   how to log in, and what is refused
//! failover   what happens when the master fails
//! nemesis    whether the promises hold while nodes and servers fail at random
//! ```

mod failover;
mod nemesis;
mod settings;
