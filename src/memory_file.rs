//! In-memory files, used as standard input, for the secrets of processes and for what processes note.
//!
//! A file is gone with the last process that has it. Those that hold something are complete and sealed before a process
//! starts, so neither side waits for the other.

use std::os::fd::OwnedFd;

use rustix::fs::{Gid, MemfdFlags, Mode, SealFlags, SeekFrom, Uid};
use rustix::fs::{fchmod, fchown, fcntl_add_seals, memfd_create, seek};
use rustix::io::{Errno, FdFlags, fcntl_setfd, write};

/// A file with these bytes, positioned at its beginning.
///
/// # Errors
/// If there is no memory or no descriptor for it.
pub(crate) fn holding(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let file = create()?;
    fill(&file, bytes)?;
    Ok(file)
}

/// A file with these bytes that its owner, by default the user of this process, may read and nobody else. Programs
/// inherit it.
///
/// # Errors
/// As for [`holding`].
pub(crate) fn secret(bytes: &[u8], owner: Option<(Uid, Gid)>) -> Result<OwnedFd, Errno> {
    let file = create()?;
    // Before there is anything to read in it.
    fchmod(&file, Mode::RUSR)?;
    if let Some((user, group)) = owner {
        fchown(&file, Some(user), Some(group))?;
    }
    fill(&file, bytes)?;
    fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

/// An empty file that every process may write to that has it.
///
/// # Errors
/// As for [`holding`].
pub(crate) fn writable() -> Result<OwnedFd, Errno> {
    create()
}

/// Writes the bytes and seals the file.
fn fill(file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = write(file, rest)?;
        rest = &rest[written..];
    }
    seek(file, SeekFrom::Start(0))?;
    fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)
}

/// Some hosts allow such a file only with the NOEXEC_SEAL flag, which kernels before 6.3 reject as invalid.
fn create() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    memfd_create("cronkeeper", flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
        Errno::INVAL => memfd_create("cronkeeper", flags),
        other => Err(other),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use rustix::io::fcntl_getfd;

    use super::*;

    #[test]
    fn a_secret_can_be_opened_by_its_path_but_not_be_changed() {
        let file = secret(b"hunter2", None).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(std::fs::read(&path).unwrap(), b"hunter2");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o400);
        assert!(std::fs::write(&path, "x").is_err());
        assert_eq!(write(&file, b"x"), Err(Errno::PERM));
        assert!(fcntl_getfd(&file).unwrap().is_empty(), "a program inherits it");
    }

    #[test]
    fn the_file_is_read_from_its_beginning_to_its_end() {
        let text = "äö\n".repeat(10_000);
        let mut read = String::new();
        File::from(holding(text.as_bytes()).unwrap()).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }
}
