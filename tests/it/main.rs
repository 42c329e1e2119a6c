//! What runs against real processes and real servers: one binary, so that one link serves all.

#[macro_use]
mod backends;
mod borders;
mod cli;
mod deny;
mod etcd;
mod failover;
mod full;
mod harness;
mod hostile;
#[expect(dead_code, reason = "the simulation uses the rest")]
#[path = "../support/ledger/mod.rs"]
mod ledger;
mod lock;
mod monitoring;
mod mutants;
mod nemesis;
mod notify;
mod page;
#[path = "../support/port/mod.rs"]
mod port;
mod postgres;
#[path = "../promises/mod.rs"]
mod promises;
mod readme;
mod redis;
mod release;
mod services;
mod solo;
mod store;
mod support;
mod systemd;
mod torture;
mod warden;
mod zookeeper;
