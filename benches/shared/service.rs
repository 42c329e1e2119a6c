//! The coordination service that a bench measures: `--service zookeeper`, which is the default, `postgres`, `etcd` or
//! `redis`.
#![allow(dead_code, reason = "each bench uses a part of it")]

use std::mem;

use cronkeeper_cluster::etcd;
use cronkeeper_cluster::postgres::Postgres;
use cronkeeper_cluster::redis::Redis;
use cronkeeper_cluster::store::{Rewinds, Store};

use crate::support::LONG;
use crate::support::etcd::{Etcd, settings as of_etcd};
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

pub const POSTGRES: &str = "PostgreSQL";
pub const ETCD: &str = "etcd";
pub const REDIS: &str = "Redis";

/// As the rows name it.
pub fn name() -> &'static str {
    match named().as_deref() {
        Some("postgres") => POSTGRES,
        Some("etcd") => ETCD,
        Some("redis") => REDIS,
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

    /// How many commits the cluster at this place has made, on etcd those of others included; `None` on ZooKeeper.
    pub fn commits(&self, [_, connect]: &[String; 2]) -> Option<i64> {
        async fn newest(store: impl Store) -> i64 {
            store.read(Vec::new()).await.expect("the service answers").0.revision.0
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
        runtime.block_on(async {
            match self {
                Self::ZooKeeper(_) => None,
                Self::Postgres(_) => {
                    let settings = connect.parse().expect("they are correct");
                    Some(newest(Postgres::new(settings, LONG, Rewinds::Accepted)).await)
                }
                Self::Etcd(_) => Some(newest(etcd::Etcd::new(of_etcd(connect), LONG, Rewinds::Accepted)).await),
                Self::Redis(_) => Some(newest(Redis::new(redis::settings(connect), LONG, Rewinds::Accepted)).await),
            }
        })
    }

    /// Nodes of one cluster with these names.
    pub fn nodes<const N: usize>(&self, program: &str, names: [&str; N]) -> [Spec; N] {
        let place = self.place();
        names.map(|name| Spec::new(program, name).on_service(&place))
    }
}
