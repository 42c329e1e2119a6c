//! Nodes on a real etcd.
//!
//! ```text
//! settings   how to log in, and what is refused
//! members    what happens when members of etcd fail
//! compaction its history is cut while nodes run
//! nemesis    whether the promises hold while nodes and members fail at random
//! ```

mod compaction;
mod members;
mod nemesis;
mod settings;
