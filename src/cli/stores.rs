//! The options that name a store, instead of ZooKeeper, as a cluster's service.

use std::convert::Infallible;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::ArgMatches;
use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use uuid::Uuid;

use super::Error;
use cronkeeper_cluster::observed::{Heads, Observed, OnTokio};
use cronkeeper_cluster::state_dir::BackendIdentity;
use cronkeeper_cluster::store::{Rewinds, Store};
use cronkeeper_cluster::{etcd, postgres, redis};
use cronkeeper_core::clock::system::SystemClock;

#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// A PostgreSQL database instead of ZooKeeper, as for psql: `host=db1,db2 dbname=ops user=cronkeeper` or
    /// `postgres://cronkeeper@db1/ops`. Keep passwords in a file: `passfile=FILE`
    #[arg(long, value_name = "CONNECT", env = POSTGRES, hide_env_values = true, value_parser = given::<postgres::Settings>)]
    postgres: Option<Given<postgres::Settings>>,
    /// Members of etcd instead, `https://e1:2379,https://e2:2379/prefix?cacert=FILE`
    #[arg(long, value_name = "CONNECT", env = ETCD, hide_env_values = true, value_parser = given::<etcd::Settings>)]
    etcd: Option<Given<etcd::Settings>>,
    /// Redis or Valkey instead, `rediss://r1:6379/0?cacert=FILE&passfile=FILE`, or its Sentinels,
    /// `redis://s1:26379,redis://s2:26379/0?sentinel=mymaster`
    #[arg(long, value_name = "CONNECT", env = REDIS, hide_env_values = true, value_parser = given::<redis::Settings>)]
    redis: Option<Given<redis::Settings>>,
    /// Use a service that may lose acknowledged commits when it fails over. What those commits may have begun is then
    /// skipped, and a lock may use a fencing token twice
    #[arg(long, env = ACCEPT_REWIND, value_parser = BoolishValueParser::new())]
    accept_rewind: bool,
}

const POSTGRES: &str = "CRONKEEPER_POSTGRES";
const ETCD: &str = "CRONKEEPER_ETCD";
const REDIS: &str = "CRONKEEPER_REDIS";
pub(super) const ACCEPT_REWIND: &str = "CRONKEEPER_ACCEPT_REWIND";
/// The variables that name a store.
pub(super) const VARIABLES: [&str; 3] = [POSTGRES, ETCD, REDIS];

/// The options that name a service, and their variables.
const NAMING: [(&str, &str, &str); 4] = [
    ("zookeeper", "--zookeeper", "CRONKEEPER_ZOOKEEPER"),
    ("postgres", "--postgres", POSTGRES),
    ("etcd", "--etcd", ETCD),
    ("redis", "--redis", REDIS),
];

/// Makes sure that at most one service is named. The command line's own message would name options that nobody has
/// typed where variables name two.
///
/// # Errors
/// If two are.
pub(super) fn check_one_named(found: &ArgMatches) -> Result<(), Error> {
    let mut command = found;
    while let Some((_, below)) = command.subcommand() {
        command = below;
    }
    let named = |(id, option, variable): (&str, &'static str, &'static str)| {
        let is_there = command.ids().any(|known| known == id);
        match is_there.then(|| command.value_source(id))?? {
            ValueSource::EnvVariable => Some(variable),
            _ => Some(option),
        }
    };
    let mut named = NAMING.into_iter().filter_map(named);
    match (named.next(), named.next()) {
        (Some(one), Some(other)) => Err(Error::TwoServices { one, other }),
        _ => Ok(()),
    }
}

/// The settings of a store, or why they cannot be used. The command line's own message would show a password.
#[derive(Clone, Debug)]
struct Given<T>(Result<T, String>);

fn given<T: FromStr<Err: Display>>(text: &str) -> Result<Given<T>, Infallible> {
    Ok(Given(text.parse().map_err(|error: T::Err| error.to_string())))
}

impl<T: Clone> Given<T> {
    fn of(&self, option: &'static str, variable: &'static str) -> Result<T, Error> {
        self.0.clone().map_err(|why| Error::ServiceSettings { option, variable, why })
    }
}

/// A store that is named as a cluster's service.
#[derive(Clone, Debug)]
pub(super) enum NamedStore {
    Postgres(Box<postgres::Settings>),
    Etcd(Box<etcd::Settings>),
    Redis(Box<redis::Settings>),
}

/// Does the same with whichever store is named: `$settings` are its settings, `$Store` is its type.
macro_rules! for_store {
    ($named:expr, $settings:ident, $Store:ident => $done:expr) => {
        match $named {
            $crate::cli::stores::NamedStore::Postgres($settings) => {
                type $Store = cronkeeper_cluster::postgres::Postgres;
                $done
            }
            $crate::cli::stores::NamedStore::Etcd($settings) => {
                type $Store = cronkeeper_cluster::etcd::Etcd;
                $done
            }
            $crate::cli::stores::NamedStore::Redis($settings) => {
                type $Store = cronkeeper_cluster::redis::Redis;
                $done
            }
        }
    };
}
pub(super) use for_store;

impl NamedStore {
    /// Reads the value of one of the [`VARIABLES`].
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn parse(variable: &str, text: &str) -> Result<Self, String> {
        match variable {
            POSTGRES => text
                .parse()
                .map(Box::new)
                .map(Self::Postgres)
                .map_err(|error: postgres::SettingsError| error.to_string()),
            ETCD => text.parse().map(Box::new).map(Self::Etcd).map_err(|error: etcd::SettingsError| error.to_string()),
            _ => text.parse().map(Box::new).map(Self::Redis).map_err(|error: redis::SettingsError| error.to_string()),
        }
    }

    /// The backend's name in logs and status.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Etcd(_) => "etcd",
            Self::Redis(_) => "redis",
        }
    }

    /// The store as people call it.
    pub(super) fn service(&self) -> &'static str {
        for_store!(self, _settings, S => <S as Store>::SERVICE)
    }

    /// What a state directory remembers of it.
    pub(super) fn identity(&self) -> BackendIdentity {
        match self {
            Self::Postgres(settings) => BackendIdentity::Postgres { database: settings.database() },
            Self::Etcd(settings) => BackendIdentity::Etcd { prefix: settings.prefix.clone() },
            Self::Redis(settings) => BackendIdentity::Redis { place: settings.place() },
        }
    }
}

/// What runs a cluster on a store.
pub(super) type OnStore<S> = Observed<S, SystemClock, OnTokio>;

/// Sessions on this store; `heads`: what this node was shown there.
pub(super) fn on_store<S>(store: S, session_timeout: Duration, heads: Arc<Mutex<Heads>>) -> OnStore<S> {
    let clock = SystemClock::default();
    Observed { store, clock, spawn: OnTokio, timeout: session_timeout, uuid: Arc::new(Uuid::new_v4), heads }
}

impl StoreArgs {
    /// The store that the options name.
    ///
    /// # Errors
    /// If its settings cannot be used.
    pub(super) fn named(&self) -> Result<Option<NamedStore>, Error> {
        Ok(match self {
            Self { postgres: Some(given), .. } => {
                Some(NamedStore::Postgres(Box::new(given.of("--postgres", POSTGRES)?)))
            }
            Self { etcd: Some(given), .. } => Some(NamedStore::Etcd(Box::new(given.of("--etcd", ETCD)?))),
            Self { redis: Some(given), .. } => Some(NamedStore::Redis(Box::new(given.of("--redis", REDIS)?))),
            Self { postgres: None, etcd: None, redis: None, .. } => None,
        })
    }

    /// True if the options name a store.
    pub(super) fn is_named(&self) -> bool {
        self.postgres.is_some() || self.etcd.is_some() || self.redis.is_some()
    }

    /// Whether the service may lose what it has acknowledged. `or_accepted`: the environment file says so.
    pub(super) fn rewinds(&self, or_accepted: bool) -> Rewinds {
        if self.accept_rewind || or_accepted { Rewinds::Accepted } else { Rewinds::Refused }
    }
}
