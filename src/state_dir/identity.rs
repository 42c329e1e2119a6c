//! What a state directory belongs to.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{StateDirError, file};

/// The backend that a state directory is used with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "backend", rename_all = "kebab-case")]
pub enum BackendIdentity {
    /// ZooKeeper, below this path.
    Zookeeper {
        /// The path; empty for the root.
        chroot: String,
    },
    /// One host, without ZooKeeper.
    Solo,
}

impl fmt::Display for BackendIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zookeeper { chroot } if chroot.is_empty() => f.write_str("ZooKeeper"),
            Self::Zookeeper { chroot } => write!(f, "ZooKeeper under `{chroot}`"),
            Self::Solo => f.write_str("the solo backend (no --zookeeper)"),
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
    instance: String,
}

impl Identity {
    /// True once a process has lived in the directory.
    pub(super) fn is_kept(folder: &Path) -> Result<bool, StateDirError> {
        let path = folder.join("identity.json");
        path.try_exists().map_err(|source| StateDirError::Read { path, source })
    }

    /// What the directory remembers; a new directory remembers `belongs` from now on.
    pub(super) fn remembered(folder: &Path, belongs: BackendIdentity) -> Result<Self, StateDirError> {
        let path = folder.join("identity.json");
        let new = Self { v: 1, belongs, cluster: None, instance: uuid::Uuid::new_v4().to_string() };
        let known = match file::read::<Self>(&path)? {
            Some(known) => known,
            None if file::create(&path, &new)? => return Ok(new),
            None => file::read(&path)?.unwrap_or_else(|| new.clone()), // another process was quicker
        };
        if known.belongs == new.belongs {
            return Ok(known);
        }
        Err(StateDirError::OtherBackend { path: folder.to_owned(), ours: known.belongs, asked: new.belongs })
    }

    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    pub(super) fn cluster(&self) -> Option<String> {
        self.cluster.clone()
    }

    pub(super) fn claim_cluster(&mut self, folder: &Path, id: &str) -> Result<(), StateDirError> {
        match &self.cluster {
            Some(ours) if ours == id => Ok(()),
            Some(ours) => {
                Err(StateDirError::OtherCluster { path: folder.to_owned(), ours: ours.clone(), theirs: id.to_owned() })
            }
            None => {
                let claimed = Self { cluster: Some(id.to_owned()), ..self.clone() };
                file::replace(&folder.join("identity.json"), &claimed)?;
                *self = claimed;
                Ok(())
            }
        }
    }
}
