//! Nodes on a real etcd.
//!
//! ```text
//! settings   how to log in, and what is refused
//! members    what happens when members of etcd fail
//! ```

mod members;
mod settings;
