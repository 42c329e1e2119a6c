//! Nodes on a real etcd.
//!
//! ```text
//! settings   how to log in, and what is refused
//! members    what happens when members of etcd fail
//! nemesis    whether the promises hold while nodes and members fail at random
//! ```

mod members;
mod nemesis;
mod settings;
