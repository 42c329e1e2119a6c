//! Destinations of log lines: a stream, or the systemd journal. Writes may block.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::telemetry::journal;

/// Approximate maximum of bytes in one write to a stream.
const BATCH: usize = 64 << 10;

/// Where log lines are written.
#[derive(Debug)]
pub enum Destination {
    Stream(File),
    /// Each entry is sent as one message.
    Journal {
        /// Not connected, because the journal may recreate its socket.
        socket: UnixDatagram,
        /// Path of the journal's socket.
        path: PathBuf,
    },
}

impl Destination {
    pub fn stream(to: OwnedFd) -> Self {
        Self::Stream(File::from(to))
    }

    /// The journal that listens at `path`.
    ///
    /// # Errors
    /// When no journal listens there.
    pub fn journal(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self::Journal { socket: UnixDatagram::unbound()?, path: path.to_owned() })
    }

    /// Approximate number of bytes to pass to one [`write`](Self::write).
    pub(super) fn batch(&self) -> usize {
        match self {
            Self::Stream(_) => BATCH,
            // The entries of one event.
            Self::Journal { .. } => 1,
        }
    }

    /// Writes all bytes, however long it takes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(file) => write_all(file, bytes),
            Self::Journal { socket, path } => journal::split(bytes).try_for_each(|entry| send(socket, path, entry)),
        }
    }
}

fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares the descriptor may have made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for_room(file)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_for_room(file: &File) -> io::Result<()> {
    match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn send(socket: &UnixDatagram, path: &Path, entry: &[u8]) -> io::Result<()> {
    loop {
        match socket.send_to(entry, path) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake journal, and a destination that writes to it.
    fn journal() -> (tempfile::TempDir, UnixDatagram, Destination) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let destination = Destination::journal(&path).unwrap();
        (home, journal, destination)
    }

    #[test]
    fn an_entry_is_a_message() {
        let (_home, journal, mut destination) = journal();
        destination.write(b"MESSAGE=one\n").unwrap();
        destination.write(b"MESSAGE=two\n").unwrap();
        let mut bytes = [0; 64];
        for expected in ["MESSAGE=one\n", "MESSAGE=two\n"] {
            let length = journal.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], expected.as_bytes());
        }
    }

    #[test]
    fn each_entry_of_an_event_is_a_message() {
        let (_home, journal, mut destination) = journal();
        destination.write(b"MESSAGE=one\nCONTINUES=true\n\nMESSAGE=two\n").unwrap();
        let mut bytes = [0; 64];
        for expected in ["MESSAGE=one\nCONTINUES=true\n", "MESSAGE=two\n"] {
            let length = journal.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], expected.as_bytes());
        }
    }

    #[test]
    fn a_recreated_journal_receives_entries_again() {
        let (home, journal, mut destination) = journal();
        drop(journal);
        assert!(destination.write(b"MESSAGE=lost\n").is_err());
        std::fs::remove_file(home.path().join("socket")).unwrap();
        assert!(destination.write(b"MESSAGE=lost\n").is_err());
        let journal = UnixDatagram::bind(home.path().join("socket")).unwrap();
        destination.write(b"MESSAGE=kept\n").unwrap();
        let mut bytes = [0; 64];
        let length = journal.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"MESSAGE=kept\n");
    }

    #[test]
    fn a_journal_that_does_not_listen_is_an_error() {
        assert!(Destination::journal("/nonexistent/socket").is_err());
    }
}
