//! Backend tests on real ZooKeeper servers: queue, terms, commits, and lost connections.

mod damage;
mod election;
mod ledger;
mod operator;
pub mod fixture;
mod time;
mod errors;
