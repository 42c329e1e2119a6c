//! Attacks by local users, clients of the API and of ZooKeeper, and jobs: they gain nothing and stop nothing.

mod forks;
mod local;
mod logs;
mod net;
mod paths;
mod zookeeper;
