//! Options that `run` and `release` share: the node's name, state directory and ZooKeeper.

use std::path::PathBuf;
use std::time::Duration;

use super::{Error, credentials, host};
use crate::api::client::SocketSearch;
use cronkeeper_cluster::state_dir::BackendIdentity;
use cronkeeper_cluster::zookeeper::connect_string::{ConnectString, ConnectStringError};
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct NodeArgs {
    /// ZooKeeper servers, `host:port,host:port/chroot`. Without it, the replicas on this host elect a leader among
    /// themselves
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_ZOOKEEPER", value_parser = servers)]
    pub zookeeper: Option<ConnectString>,
    /// The node's name [default: the host name; without ZooKeeper, host name and process id]
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

impl NodeArgs {
    /// The node's name, if it was given.
    pub(super) fn given_node(&self) -> Option<&NodeName> {
        self.node.as_ref()
    }

    pub(super) fn node(&self) -> Result<NodeName, Error> {
        match (&self.node, &self.zookeeper) {
            (Some(node), _) => Ok(node.clone()),
            (None, Some(_)) => NodeName::parse(&host::name()).map_err(Error::NodeName),
            (None, None) => Ok(NodeName::new(format!("{}-{}", host::plain_name(), std::process::id()))),
        }
    }

    /// The node's state and runtime directories.
    pub(super) fn directories(&self, runtime_dir: Option<&std::path::Path>) -> SocketSearch {
        SocketSearch::new(runtime_dir, self.state_dir.as_deref())
    }

    /// The backend that the node's state directory belongs to.
    pub(super) fn backend_identity(&self) -> BackendIdentity {
        match &self.zookeeper {
            None => BackendIdentity::Solo,
            Some(connect) => BackendIdentity::Zookeeper { chroot: connect.chroot().to_owned() },
        }
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
