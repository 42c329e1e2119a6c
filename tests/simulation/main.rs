//! Simulated clusters on virtual time: the real backend and the real engine in a world built from one seed.
//!
//! ```text
//! programs   the nodes' processes, polled only while they run                executor, clock
//! world      ZooKeeper's servers, the client crate, links, wardens, jobs     zookeeper, network, warden
//! faults     what fails and when, drawn from the seed                        faults, targeted_fault
//! facts      what happened, checked after every step                         facts, invariants
//! ```
//!
//! First come faults, and safety is checked after every step; then comes peace, in which the cluster must recover. A
//! seed that fails is run once more for its transcript.
//!
//! `CRONKEEPER_SIM_SEED=<seed>` runs one seed. `CRONKEEPER_SIM_SEEDS=<n>` sets how many seeds are tried: each test has
//! a default that fits the ordinary run, and another for `CRONKEEPER_LONG=1`; a night is enough for a hundred thousand.
//! `CRONKEEPER_SIM_SURVEY=1` continues after a failing seed and reports what each seed breaks.
//!
//! A seed uses no real time, no threads, and no random numbers but its own.

mod backend;
#[macro_use]
mod backends;
mod clock;
mod executor;
mod facts;
mod faults;
mod foreign_entries;
mod invariants;
mod jobs;
mod launcher;
#[path = "../support/ledger/mod.rs"]
mod ledger;
mod locks;
mod network;
mod nodes;
mod operators;
#[path = "../support/port/mod.rs"]
mod port;
#[path = "../promises/mod.rs"]
mod promises;
mod queue;
mod scale;
mod scripted;
mod spread;
mod targeted_fault;
mod testbed;
mod toy;
mod transcript;
mod trial;
mod triggered_stall;
mod warden;
mod weak_store;
mod world;
mod zookeeper;
