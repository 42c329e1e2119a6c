//! The promises, on virtual time: the real backend and the real core in a world made of one seed.
//!
//! ```text
//! programs   the processes of the nodes: polled only while they run          executor, clock
//! world      ZooKeeper's servers, the client crate, links, wardens, jobs     zookeeper, network, warden
//! faults     what goes wrong and when, from the seed                         faults, targeted fault
//! facts      what came true, judged after every step                         facts, invariants
//! ```
//!
//! First faults, and safety is judged after every step; then peace, and everything must come right. A seed that fails
//! is run once more for its transcript: `CRONKEEPER_SIM_SEED=<seed>` runs it alone, `CRONKEEPER_SIM_SEEDS=<n>` says how
//! many are tried: each test has a number that the ordinary run has time for, a night has time for a hundred thousand;
//! `CRONKEEPER_SIM_SURVEY=1` goes on after a seed that fails, and says of each what is broken. No
//! real time, no threads within a seed, no chance but the seed's.

mod targeted_fault;
mod backend;
mod clock;
mod executor;
pub mod facts;
mod faults;
pub mod invariants;
mod jobs;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod scripted;
mod network;
mod nodes;
mod operators;
mod queue;
mod strays;
mod toy;
mod transcript;
mod traps;
mod trial;
mod warden;
mod world;
pub mod zookeeper;
