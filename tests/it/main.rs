//! What runs against real processes and real servers, and the simulation: one binary, so that one link serves all.

mod borders;
mod cli;
mod failover;
mod harness;
mod hostile;
mod lock;
mod monitoring;
mod mutants;
mod nemesis;
mod page;
mod port;
mod promises;
mod readme;
mod release;
mod simulation;
mod solo;
mod support;
mod systemd;
mod torture;
mod warden;
mod zookeeper;
