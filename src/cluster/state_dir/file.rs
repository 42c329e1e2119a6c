//! Atomic replacement of small files: either the whole file exists or none of it.
//!
//! A file is written under a temporary name and then renamed. It is synced if it must survive a crash of the host.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StateDirError;
use crate::safe_path::{Access, open_own, read_whole};

/// Most bytes of a JSON file. What a node writes has some hundred, and as many again for each session.
const LARGEST: u64 = 1 << 20;

/// Reads a JSON file; `None` if it does not exist.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateDirError> {
    let found = read_bytes(path, LARGEST).map_err(|source| StateDirError::Read { path: path.to_owned(), source })?;
    let Some(text) = found else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).map_err(|source| StateDirError::Damaged { path: path.to_owned(), source })
}

/// Reads one of this process's own files, at most this many bytes; `None` if it does not exist.
pub fn read_bytes(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    match open_own(path, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => read_whole(opened?, most).map(Some),
    }
}

/// Replaces a JSON file.
pub fn replace<T: Serialize>(path: &Path, value: &T) -> Result<(), StateDirError> {
    let write = || -> io::Result<()> { replace_bytes(path, &serde_json::to_vec(value)?) };
    write().map_err(|source| StateDirError::Write { path: path.to_owned(), source })
}

/// Removes a file if it exists.
pub fn remove(path: &Path) -> Result<(), StateDirError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(StateDirError::Write { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Creates a JSON file if it does not exist, and returns whether it did.
///
/// If several processes try at the same time, exactly one succeeds.
pub fn create<T: Serialize>(path: &Path, value: &T) -> Result<bool, StateDirError> {
    let write = || -> io::Result<bool> {
        let temp = TempFile::synced(path, &serde_json::to_vec(value)?)?;
        match fs::hard_link(&temp.0, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            linked => linked.and_then(|()| sync_directory(path)).map(|()| true),
        }
    };
    write().map_err(|source| StateDirError::Write { path: path.to_owned(), source })
}

/// Replaces a file and opens the new one for appending.
///
/// For files that need not survive a crash of the host: nothing is synced, so it does not wait for the disk, and an
/// error always means that the old file is still in place.
pub fn replace_to_append(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let (temp, _) = TempFile::written(path, bytes)?;
    let file = open_own(&temp.0, Access::Append)?;
    fs::rename(&temp.0, path)?;
    Ok(file)
}

fn replace_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = TempFile::synced(path, bytes)?;
    fs::rename(&temp.0, path)?;
    sync_directory(path)
}

/// Without this, the rename itself may not survive a crash of the host.
fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// A complete file under a temporary name, removed when dropped, so that a full disk leaves no temporary file behind.
struct TempFile(PathBuf);

impl TempFile {
    fn synced(path: &Path, bytes: &[u8]) -> io::Result<Self> {
        let (temp, file) = Self::written(path, bytes)?;
        file.sync_all()?;
        Ok(temp)
    }

    fn written(path: &Path, bytes: &[u8]) -> io::Result<(Self, File)> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", uuid::Uuid::new_v4().simple()));
        let temp = Self(name.into());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp.0)?;
        file.write_all(bytes)?;
        Ok((temp, file))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // does not exist any more if it was renamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_longer_than_any_of_ours_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        let text = |bytes: u64| serde_json::to_vec(&"x".repeat(usize::try_from(bytes).unwrap() - 2)).unwrap();
        replace_bytes(&path, &text(LARGEST)).unwrap();
        assert_eq!(read::<String>(&path).unwrap().map(|text| text.len() as u64), Some(LARGEST - 2));
        replace_bytes(&path, &text(LARGEST + 1)).unwrap();
        let StateDirError::Read { path: named, source } = read::<String>(&path).unwrap_err() else { panic!() };
        assert_eq!((named, source.to_string()), (path, "it is larger than 1048576 bytes".to_owned()));
    }
}
