//! What lines are written to, by a thread that may wait.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::telemetry::journal;

/// Bytes given to one write of a stream.
const BATCH: usize = 64 << 10;

/// Where lines go.
#[derive(Debug)]
pub enum Way {
    /// Bytes, one line after the other.
    Stream(File),
    /// Entries of the journal, a message each.
    Journal {
        /// Not connected: the journal may make its own anew.
        socket: UnixDatagram,
        /// Of the journal's socket.
        path: PathBuf,
    },
}

impl Way {
    /// To a stream.
    pub fn stream(to: OwnedFd) -> Self {
        Self::Stream(File::from(to))
    }

    /// To the journal that listens at this path.
    ///
    /// # Errors
    /// When none does.
    pub fn journal(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self::Journal { socket: UnixDatagram::unbound()?, path: path.to_owned() })
    }

    /// About how many bytes are given to one write.
    pub(super) fn batch(&self) -> usize {
        match self {
            Self::Stream(_) => BATCH,
            // One event's entries, each a message.
            Self::Journal { .. } => 1,
        }
    }

    /// Writes all of it, however long that takes.
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
            // Whoever shares the descriptor may have made it non-blocking.
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

    /// A journal of our own, and the way to it.
    fn journal() -> (tempfile::TempDir, UnixDatagram, Way) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let way = Way::journal(&path).unwrap();
        (home, journal, way)
    }

    #[test]
    fn an_entry_is_a_message() {
        let (_home, journal, mut way) = journal();
        way.write(b"MESSAGE=one\n").unwrap();
        way.write(b"MESSAGE=two\n").unwrap();
        let mut bytes = [0; 64];
        for expected in ["MESSAGE=one\n", "MESSAGE=two\n"] {
            let length = journal.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], expected.as_bytes());
        }
    }

    #[test]
    fn what_one_event_says_is_a_message_for_each_entry() {
        let (_home, journal, mut way) = journal();
        way.write(b"MESSAGE=one\nCONTINUES=true\n\nMESSAGE=two\n").unwrap();
        let mut bytes = [0; 64];
        for expected in ["MESSAGE=one\nCONTINUES=true\n", "MESSAGE=two\n"] {
            let length = journal.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], expected.as_bytes());
        }
    }

    #[test]
    fn a_journal_that_is_made_anew_is_written_to() {
        let (home, journal, mut way) = journal();
        drop(journal);
        assert!(way.write(b"MESSAGE=lost\n").is_err());
        std::fs::remove_file(home.path().join("socket")).unwrap();
        assert!(way.write(b"MESSAGE=lost\n").is_err());
        let journal = UnixDatagram::bind(home.path().join("socket")).unwrap();
        way.write(b"MESSAGE=kept\n").unwrap();
        let mut bytes = [0; 64];
        let length = journal.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"MESSAGE=kept\n");
    }

    #[test]
    fn where_no_journal_listens_there_is_no_way_to_it() {
        assert!(Way::journal("/nonexistent/socket").is_err());
    }
}
