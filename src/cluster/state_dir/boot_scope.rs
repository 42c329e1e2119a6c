//! The boot of the kernel and the directory in which something was recorded.
//!
//! Recorded PIDs are valid only on the boot and in the directory they were recorded on. A cloned disk brings them to
//! another kernel, a copied directory to another directory under the same kernel; in both cases they may belong to a
//! node that is running elsewhere. The boot alone is not enough, because containers share a kernel.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use cronkeeper_core::run::journal::Written;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BootScope {
    boot_id: String,
    /// A copy of the directory has another inode, even under the same path in another container.
    #[serde(default)]
    device: u64,
    #[serde(default)]
    inode: u64,
}

impl BootScope {
    pub(super) fn here(directory: &Path) -> io::Result<Self> {
        let directory = std::fs::metadata(directory)?;
        Ok(Self { boot_id: boot_id(), device: directory.dev(), inode: directory.ino() })
    }

    /// The relation of this scope to `here`. If the kernel has no boot id, everything counts as written before this
    /// boot.
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

/// An id of this boot of the kernel; empty if the kernel has none.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
