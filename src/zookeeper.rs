//! Both ports on ZooKeeper.
pub mod client;
