//! The backend and cluster that a state directory belongs to.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{StateDirError, file};
use cronkeeper_core::term::NodeName;

/// The backend that a state directory is used with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "backend", rename_all = "kebab-case")]
pub enum BackendIdentity {
    /// ZooKeeper, below the path `chroot`.
    Zookeeper {
        /// Empty for the root.
        chroot: String,
    },
    /// A database of PostgreSQL.
    Postgres { database: String },
    /// etcd, below the prefix of all keys.
    Etcd { prefix: String },
    /// Redis, in the database and with the prefix `place`: `0/cronkeeper`.
    Redis { place: String },
    /// A single host, without a service.
    Solo,
}

impl BackendIdentity {
    /// The option that names it, with its variable; `None` for the one that no option names.
    fn option(&self) -> Option<&'static str> {
        match self {
            Self::Zookeeper { .. } => Some("--zookeeper (CRONKEEPER_ZOOKEEPER)"),
            Self::Postgres { .. } => Some("--postgres (CRONKEEPER_POSTGRES)"),
            Self::Etcd { .. } => Some("--etcd (CRONKEEPER_ETCD)"),
            Self::Redis { .. } => Some("--redis (CRONKEEPER_REDIS)"),
            Self::Solo => None,
        }
    }

    /// What is wrong if a directory belongs to `self` and the settings name another, and what to do.
    pub(super) fn but_asked(&self, asked: &Self) -> String {
        match (asked.option(), self.option()) {
            (Some(option), _) => format!("the settings name {asked}: correct {option}"),
            (None, Some(option)) => format!("no service is named: add {option}"),
            (None, None) => format!("the settings name {asked}: correct them"),
        }
    }
}

impl fmt::Display for BackendIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zookeeper { chroot } if chroot.is_empty() => f.write_str("ZooKeeper's root"),
            Self::Zookeeper { chroot } => write!(f, "ZooKeeper under `{chroot}`"),
            Self::Postgres { database } => write!(f, "PostgreSQL's database `{database}`"),
            Self::Etcd { prefix } => write!(f, "etcd under `{prefix}`"),
            Self::Redis { place } => write!(f, "Redis in `{place}`"),
            Self::Solo => f.write_str("the solo backend, which has no service"),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Identity {
    v: u32,
    #[serde(flatten)]
    belongs: BackendIdentity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// The node that used it last; absent if several may share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeName>,
    instance: String,
}

impl Identity {
    /// True if a process has used the directory before.
    pub(super) fn exists(directory: &Path) -> Result<bool, StateDirError> {
        let path = directory.join("identity.json");
        path.try_exists().map_err(|source| StateDirError::Read { path, source })
    }

    /// Reads the identity of a directory; a new directory is bound to `belongs`.
    ///
    /// A directory that never joined a cluster, because its path in ZooKeeper was misspelt, is bound again.
    pub(super) fn load_or_create(directory: &Path, belongs: BackendIdentity) -> Result<Self, StateDirError> {
        let path = directory.join("identity.json");
        let new = Self { v: 1, belongs, cluster: None, node: None, instance: uuid::Uuid::new_v4().to_string() };
        let known = match file::read::<Self>(&path)? {
            Some(known) => known,
            None if file::create(&path, &new)? => return Ok(new),
            None => file::read(&path)?.unwrap_or_else(|| new.clone()), // another process created it first
        };
        if known.belongs == new.belongs {
            return Ok(known);
        }
        if known.may_move_to(&new.belongs) {
            // What another service has shown says nothing about this one.
            file::remove(&directory.join(super::HEAD))?;
            let moved = Self { belongs: new.belongs, ..known };
            file::replace(&path, &moved)?;
            return Ok(moved);
        }
        Err(StateDirError::OtherBackend { path: directory.to_owned(), ours: known.belongs, asked: new.belongs })
    }

    /// True if nothing in a service or in the directory can come from `self`: a node claims its cluster before it
    /// creates a member, and runs jobs only after that. A directory that was meant for a service never becomes one of
    /// solo, where a missing environment file would make every host a leader.
    fn may_move_to(&self, other: &BackendIdentity) -> bool {
        let is_service = |belongs: &BackendIdentity| *belongs != BackendIdentity::Solo;
        self.cluster.is_none() && is_service(&self.belongs) && is_service(other)
    }

    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    pub(super) fn cluster(&self) -> Option<String> {
        self.cluster.clone()
    }

    pub(super) fn node(&self) -> Option<&NodeName> {
        self.node.as_ref()
    }

    /// Records the node that uses the directory from now on.
    pub(super) fn note_node(&mut self, directory: &Path, node: &NodeName) -> Result<(), StateDirError> {
        if self.node.as_ref() == Some(node) {
            return Ok(());
        }
        self.replace(directory, Self { node: Some(node.clone()), ..self.clone() })
    }

    fn replace(&mut self, directory: &Path, with: Self) -> Result<(), StateDirError> {
        file::replace(&directory.join("identity.json"), &with)?;
        *self = with;
        Ok(())
    }

    pub(super) fn claim_cluster(&mut self, directory: &Path, id: &str) -> Result<(), StateDirError> {
        match &self.cluster {
            Some(ours) if ours == id => Ok(()),
            Some(ours) => Err(StateDirError::OtherCluster {
                path: directory.to_owned(),
                ours: ours.clone(),
                theirs: id.to_owned(),
            }),
            None => self.replace(directory, Self { cluster: Some(id.to_owned()), ..self.clone() }),
        }
    }
}
