//! Small files that are there whole or not at all: written beside, then moved into place; synced where they must survive the host.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StateDirError;
use crate::safe_path::{Access, open_own};

/// Reads a JSON file; absent: there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateDirError> {
    let found = read_bytes(path).map_err(|source| StateDirError::Read { path: path.to_owned(), source })?;
    let Some(text) = found else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).map_err(|source| StateDirError::Damaged { path: path.to_owned(), source })
}

/// Reads a file of this process's own, whole; absent: there is none.
pub(super) fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match open_own(path, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?.read_to_end(&mut bytes)?,
    };
    Ok(Some(bytes))
}

/// Writes a JSON file in place of what is there.
pub(crate) fn replace<T: Serialize>(path: &Path, value: &T) -> Result<(), StateDirError> {
    let write = || -> io::Result<()> { replace_bytes(path, &serde_json::to_vec(value)?) };
    write().map_err(|source| StateDirError::Write { path: path.to_owned(), source })
}

/// Writes a JSON file unless there is one already: of several processes that try, one succeeds. True if this one did.
pub(crate) fn create<T: Serialize>(path: &Path, value: &T) -> Result<bool, StateDirError> {
    let write = || -> io::Result<bool> {
        let beside = Beside::synced(path, &serde_json::to_vec(value)?)?;
        match fs::hard_link(&beside.0, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            linked => linked.and_then(|()| sync_folder(path)).map(|()| true),
        }
    };
    write().map_err(|source| StateDirError::Write { path: path.to_owned(), source })
}

/// Writes a file in place of what is there, and hands it on to append to. For what need not survive the host: nothing is
/// synced, so it does not wait for the disk, and an error always means that the old file is still in place.
pub(crate) fn replace_to_append(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let (beside, _) = Beside::written(path, bytes)?;
    let file = open_own(&beside.0, Access::Append)?;
    fs::rename(&beside.0, path)?;
    Ok(file)
}

fn replace_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = Beside::synced(path, bytes)?;
    fs::rename(&beside.0, path)?;
    sync_folder(path)
}

/// Without this the move itself may not survive the host.
fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// A complete file under a name of its own, removed when dropped: after a full disk nothing is left lying about.
struct Beside(PathBuf);

impl Beside {
    fn synced(path: &Path, bytes: &[u8]) -> io::Result<Self> {
        let (beside, file) = Self::written(path, bytes)?;
        file.sync_all()?;
        Ok(beside)
    }

    fn written(path: &Path, bytes: &[u8]) -> io::Result<(Self, File)> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", uuid::Uuid::new_v4().simple()));
        let beside = Self(name.into());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside.0)?;
        file.write_all(bytes)?;
        Ok((beside, file))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // gone already where it was moved
    }
}
