//! Clients of ZooKeeper: one without rights gains nothing, and one that may write everything causes no lasting damage.

mod insider;
mod large;
mod outsider;
mod placed;
