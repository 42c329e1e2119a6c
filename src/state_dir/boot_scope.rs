//! Where something was written down: in which boot of the kernel, and in which folder.
//!
//! What is remembered of processes is true of those that live here only where it was written here. A cloned disk brings it
//! to another kernel, a copied folder to another folder of the same one, and on both the processes may be those of a node that
//! lives. The boot alone does not tell: containers share a kernel.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::run::journal::Written;

/// A boot and a folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BootScope {
    boot_id: String,
    /// A copy of the folder is another inode, also where it has the same path in another container.
    #[serde(default)]
    device: u64,
    #[serde(default)]
    inode: u64,
}

impl BootScope {
    /// This boot, and this folder.
    pub(super) fn here(folder: &Path) -> io::Result<Self> {
        let folder = std::fs::metadata(folder)?;
        Ok(Self { boot_id: boot_id(), device: folder.dev(), inode: folder.ino() })
    }

    /// How what was written there stands to `here`. Where the kernel does not name its boots, none is known to be this one.
    pub(super) fn seen_from(&self, here: &Self) -> Written {
        if here.boot_id.is_empty() || self.boot_id != here.boot_id {
            Written::BeforeBoot
        } else if (self.device, self.inode) == (here.device, here.inode) {
            Written::Here
        } else {
            Written::Elsewhere
        }
    }
}

/// Tells one boot of this kernel from all others; empty where the kernel does not say.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
