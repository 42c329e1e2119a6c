//! What others may try: local users, clients of the API and of ZooKeeper, jobs. They get nothing, and stop nothing.

mod forks;
mod local;
mod logs;
mod net;
mod paths;
mod zookeeper;
