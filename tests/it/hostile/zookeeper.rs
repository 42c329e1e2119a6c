//! Clients of ZooKeeper: one without rights gets nothing, and one who may write everything stops nothing that does not come to itself
//! again.

mod insider;
mod outsider;
