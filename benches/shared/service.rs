//! The coordination service that a bench measures: `--service zookeeper`, which is the default, `postgres`, `etcd` or
//! `redis`.
#![allow(dead_code, reason = "each bench uses a part of it")]

use std::mem;

use crate::support::etcd::Etcd;
use crate::support::node::Spec;
use crate::support::postgres::Server;
use crate::support::redis;
use crate::support::zookeeper::Ensemble;

/// A service's servers.
pub enum Service {
    ZooKeeper(Ensemble),
    Postgres(Server),
    Etcd(Etcd),
    Redis(redis::Server),
}

/// The words of the command line, without those of [`Service`] and without the arguments that Cargo adds.
pub fn words() -> Vec<String> {
    let mut arguments = std::env::args().skip(1);
    let mut words = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--service" => _ = arguments.next(),
            _ if argument.starts_with('-') => {}
            _ => words.push(argument),
        }
    }
    words
}

fn named() -> Option<String> {
    std::env::args().skip_while(|argument| argument != "--service").nth(1)
}

/// True if the bench measures something other than ZooKeeper.
pub fn is_another() -> bool {
    named().is_some_and(|name| name != "zookeeper")
}

/// As the rows name it.
pub fn name() -> &'static str {
    match named().as_deref() {
        Some("postgres") => "PostgreSQL",
        Some("etcd") => "etcd",
        Some("redis") => "Redis",
        _ => "three servers",
    }
}

impl Service {
    /// Starts the servers of the service that the command line names: three of ZooKeeper or etcd, one of
    /// PostgreSQL or Redis.
    pub fn start() -> Self {
        match named().as_deref() {
            None | Some("zookeeper") => Self::ZooKeeper(Ensemble::start(3)),
            Some("postgres") => Self::Postgres(Server::start(&["fsync = on"], &[])),
            Some("etcd") => Self::Etcd(Etcd::start(3)),
            Some("redis") => Self::Redis(redis::Server::start(&[])),
            Some(other) => panic!("`--service {other}`: it is zookeeper, postgres, etcd or redis"),
        }
    }

    /// The option that names a place of its own for a cluster.
    pub fn place(&self) -> [String; 2] {
        match self {
            Self::ZooKeeper(ensemble) => {
                ["--zookeeper".to_owned(), format!("{}{}", ensemble.connect_string(), ensemble.chroot())]
            }
            Self::Postgres(server) => {
                let database = server.database();
                let place = ["--postgres".to_owned(), database.connect_string()];
                // It ends with the server.
                mem::forget(database);
                place
            }
            Self::Etcd(etcd) => ["--etcd".to_owned(), etcd.place()],
            Self::Redis(server) => ["--redis".to_owned(), server.place()],
        }
    }

    /// Nodes of one cluster with these names.
    pub fn nodes<const N: usize>(&self, program: &str, names: [&str; N]) -> [Spec; N] {
        let place = self.place();
        names.map(|name| Spec::new(program, name).on_service(&place))
    }
}
