//! Sealed in-memory files, used as standard input of processes.
//!
//! The file is complete before the process starts, so neither side waits for the other.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, memfd_create, seek};
use rustix::io::{Errno, write};

/// A file with these bytes, positioned at its beginning.
///
/// # Errors
/// If there is no memory or no descriptor for it.
pub(crate) fn holding(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let file = create()?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = write(&file, rest)?;
        rest = &rest[written..];
    }
    seek(&file, SeekFrom::Start(0))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
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

    use super::*;

    #[test]
    fn the_file_is_read_from_its_beginning_to_its_end() {
        let text = "äö\n".repeat(10_000);
        let mut read = String::new();
        File::from(holding(text.as_bytes()).unwrap()).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }
}
