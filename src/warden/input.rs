//! A text that a process finds on its standard input: a file in memory, written whole before the fork, so that nobody has to
//! wait for whoever reads it, or does not.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::{Errno, write};

/// The text, to be read from its beginning.
pub(super) fn holding(text: &str) -> Result<OwnedFd, Errno> {
    let file = made()?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let written = write(&file, rest)?;
        rest = &rest[written..];
    }
    seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}

/// Some hosts refuse such files unless they can never be executed; kernels before 6.3 do not know the word for that.
fn made() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC;
    memfd_create("input", flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
        Errno::INVAL => memfd_create("input", flags),
        other => Err(other),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_is_handed_over_is_read_from_its_beginning_to_its_end() {
        let text = "äö\n".repeat(10_000);
        let mut read = String::new();
        File::from(holding(&text).unwrap()).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }
}
