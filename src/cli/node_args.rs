//! Options that `run` and `release` share: the node's name, state directory and coordination service.

use std::convert::Infallible;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uuid::Uuid;

use super::{Error, credentials, host};
use crate::api::client::SocketSearch;
use cronkeeper_cluster::observed::{Heads, Observed, OnTokio};
use cronkeeper_cluster::state_dir::BackendIdentity;
use cronkeeper_cluster::store::Rewinds;
use cronkeeper_cluster::zookeeper::connect_string::{ConnectString, ConnectStringError};
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_cluster::{etcd, postgres};
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct NodeArgs {
    /// ZooKeeper servers, `host:port,host:port/chroot`. Without a service, the replicas on this host elect a leader among
    /// themselves
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_ZOOKEEPER", value_parser = servers)]
    zookeeper: Option<ConnectString>,
    /// A database of PostgreSQL instead of ZooKeeper, as for psql: `host=db1,db2 dbname=ops user=cronkeeper` or
    /// `postgres://cronkeeper@db1/ops`. Keep passwords in a file: `passfile=FILE`
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_POSTGRES", hide_env_values = true, value_parser = given::<postgres::Settings>)]
    #[arg(conflicts_with = "zookeeper")]
    postgres: Option<Given<postgres::Settings>>,
    /// Members of etcd instead, `https://e1:2379,https://e2:2379/prefix?cacert=FILE`
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_ETCD", hide_env_values = true, value_parser = given::<etcd::Settings>)]
    #[arg(conflicts_with_all = ["zookeeper", "postgres"])]
    etcd: Option<Given<etcd::Settings>>,
    /// Use a database that may lose acknowledged commits when it fails over; what they may have begun is then skipped
    #[arg(long, env = "CRONKEEPER_ACCEPT_REWIND", value_parser = clap::builder::BoolishValueParser::new())]
    accept_rewind: bool,
    /// The node's name [default: the host name; without a service, host name and process id]
    #[arg(long, value_name = "NAME", env = "CRONKEEPER_NODE", value_parser = NodeName::parse)]
    node: Option<NodeName>,
    /// Directory in which the node keeps its runs, their output and its history across restarts [default:
    /// $STATE_DIRECTORY, else /var/lib/cronkeeper for root, else $XDG_STATE_HOME/cronkeeper]
    #[arg(long, value_name = "DIR", env = "CRONKEEPER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    credentials: credentials::Args,
}

/// A connect string. Empty where the environment file of the service names no servers.
pub(super) fn servers(text: &str) -> Result<ConnectString, String> {
    text.parse().map_err(|error: ConnectStringError| match error {
        ConnectStringError::NoServers => format!(
            "{error}; set CRONKEEPER_ZOOKEEPER in the environment file, by default /etc/cronkeeper/cronkeeper.env"
        ),
        ConnectStringError::Scheme { .. } => format!("{error}, and for TLS add `--zookeeper-ca FILE`"),
        error => error.to_string(),
    })
}

/// The settings of a service, or why they cannot be used. The command line's own message would show a password.
#[derive(Clone, Debug)]
pub(super) struct Given<T>(Result<T, String>);

pub(super) fn given<T: FromStr<Err: Display>>(text: &str) -> Result<Given<T>, Infallible> {
    Ok(Given(text.parse().map_err(|error: T::Err| error.to_string())))
}

impl Given<postgres::Settings> {
    /// # Errors
    /// If they cannot be used.
    pub(super) fn settings(&self) -> Result<&postgres::Settings, Error> {
        self.of("--postgres", "CRONKEEPER_POSTGRES")
    }
}

impl Given<etcd::Settings> {
    /// # Errors
    /// If they cannot be used.
    pub(super) fn settings(&self) -> Result<&etcd::Settings, Error> {
        self.of("--etcd", "CRONKEEPER_ETCD")
    }
}

impl<T> Given<T> {
    fn of(&self, option: &'static str, variable: &'static str) -> Result<&T, Error> {
        self.0.as_ref().map_err(|why| Error::ServiceSettings { option, variable, why: why.clone() })
    }
}

/// The coordination service that the options name.
#[derive(Clone, Debug)]
pub(super) enum Named {
    ZooKeeper(ConnectString),
    Postgres(postgres::Settings),
    Etcd(etcd::Settings),
}

/// What `--accept-rewind` says.
pub(super) fn rewinds(is_accepted: bool) -> Rewinds {
    if is_accepted { Rewinds::Accepted } else { Rewinds::Refused }
}

/// What runs a cluster on a store.
pub(super) type OnStore<S> = Observed<S, SystemClock, OnTokio>;

/// Sessions on this store; `heads`: what this node was shown there.
pub(super) fn on_store<S>(store: S, session_timeout: Duration, heads: Arc<Mutex<Heads>>) -> OnStore<S> {
    let clock = SystemClock::default();
    Observed { store, clock, spawn: OnTokio, timeout: session_timeout, uuid: Arc::new(Uuid::new_v4), heads }
}

impl NodeArgs {
    /// The service; `None`: the replicas on this host do without.
    ///
    /// # Errors
    /// If its settings cannot be used.
    pub(super) fn named(&self) -> Result<Option<Named>, Error> {
        Ok(match (&self.zookeeper, &self.postgres, &self.etcd) {
            (Some(connect), ..) => Some(Named::ZooKeeper(connect.clone())),
            (_, Some(given), _) => Some(Named::Postgres(given.settings()?.clone())),
            (.., Some(given)) => Some(Named::Etcd(given.settings()?.clone())),
            (None, None, None) => None,
        })
    }

    /// Whether the service may lose what it has acknowledged.
    pub(super) fn rewinds(&self) -> Rewinds {
        rewinds(self.accept_rewind)
    }

    /// True if the node is one of a cluster.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.zookeeper.is_some() || self.postgres.is_some() || self.etcd.is_some()
    }

    /// The node's name, if it was given.
    pub(super) fn given_node(&self) -> Option<&NodeName> {
        self.node.as_ref()
    }

    pub(super) fn node(&self) -> Result<NodeName, Error> {
        match (&self.node, self.is_in_cluster()) {
            (Some(node), _) => Ok(node.clone()),
            (None, true) => NodeName::parse(&host::name()).map_err(Error::NodeName),
            (None, false) => Ok(NodeName::new(format!("{}-{}", host::plain_name(), std::process::id()))),
        }
    }

    /// The node's state and runtime directories.
    pub(super) fn directories(&self, runtime_dir: Option<&std::path::Path>) -> SocketSearch {
        SocketSearch::new(runtime_dir, self.state_dir.as_deref())
    }

    /// The backend that the node's state directory belongs to.
    ///
    /// # Errors
    /// If the settings cannot be used.
    pub(super) fn backend_identity(&self) -> Result<BackendIdentity, Error> {
        Ok(match self.named()? {
            None => BackendIdentity::Solo,
            Some(Named::ZooKeeper(connect)) => BackendIdentity::Zookeeper { chroot: connect.chroot().to_owned() },
            Some(Named::Postgres(settings)) => BackendIdentity::Postgres { database: settings.database() },
            Some(Named::Etcd(settings)) => BackendIdentity::Etcd { prefix: settings.prefix },
        })
    }

    pub(super) fn connector(&self, connect: &ConnectString, session_timeout: Duration) -> Result<Connector, Error> {
        Connector::new(self.settings(connect, session_timeout)?).map_err(Error::ZooKeeperOptions)
    }

    /// Connection settings for the servers at `connect`, with credentials.
    pub(super) fn settings(
        &self,
        connect: &ConnectString,
        session_timeout: Duration,
    ) -> Result<ConnectionSettings, Error> {
        let (auth, tls) = (self.credentials.auth()?, self.credentials.tls()?);
        Ok(ConnectionSettings { connect: connect.to_string(), session_timeout, auth, tls })
    }
}
