//! Options that `run` and `release` share: the node's name, state directory and coordination service.

use std::path::PathBuf;
use std::time::Duration;

use super::stores::{NamedStore, StoreArgs};
use super::{Error, credentials, host};
use crate::api::client::SocketSearch;
use cronkeeper_cluster::state_dir::BackendIdentity;
use cronkeeper_cluster::store::Rewinds;
use cronkeeper_cluster::zookeeper::connect_string::{ConnectString, ConnectStringError};
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct NodeArgs {
    /// ZooKeeper servers, `host:port,host:port/chroot`. Without any service, the replicas on this host elect a leader
    /// among themselves
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_ZOOKEEPER", value_parser = servers)]
    zookeeper: Option<ConnectString>,
    #[command(flatten)]
    stores: StoreArgs,
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

/// The coordination service that the options name.
#[derive(Clone, Debug)]
pub(super) enum Named {
    ZooKeeper(ConnectString),
    Store(NamedStore),
}

impl NodeArgs {
    /// The service; `None`: the replicas on this host do without.
    ///
    /// # Errors
    /// If its settings cannot be used.
    pub(super) fn named(&self) -> Result<Option<Named>, Error> {
        match &self.zookeeper {
            Some(connect) => Ok(Some(Named::ZooKeeper(connect.clone()))),
            None => Ok(self.stores.named()?.map(Named::Store)),
        }
    }

    /// Whether the service may lose what it has acknowledged.
    pub(super) fn rewinds(&self) -> Rewinds {
        self.stores.rewinds(false)
    }

    /// True if the node is one of a cluster.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.zookeeper.is_some() || self.stores.is_named()
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
            Some(Named::Store(store)) => store.identity(),
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
