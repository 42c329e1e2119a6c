//! Backend tests on real ZooKeeper servers: queue, terms, commits, and lost connections.

mod damage;
mod election;
mod errors;
pub mod fixture;
mod ledger;
mod operator;
mod time;
