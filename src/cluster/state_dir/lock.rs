//! A lock on a file, which the kernel releases when its holder dies.
//!
//! It is a lock of the open file description (`F_OFD_SETLK`), not the classic record lock. A record lock belongs to the
//! process, so it vanishes when *any* descriptor of the file is closed, and two holders in one process do not exclude
//! each other. A forked child shares the open file description, but only until it executes a program: every descriptor
//! here is close-on-exec, and the daemon forks only to execute. The warden, which is the parent of all jobs, is started
//! before any lock is taken. The drawback is that `F_GETLK` cannot name the holder, so holders write their names into
//! the file.
//!
//! The last holder may remove a lock file, so after taking a lock, a process checks that the path still names that
//! file.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::safe_path::{Access, open_own};

/// The mode of a lock: which others may hold it at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Other shared holders may.
    Shared,
    /// No other holder may.
    Exclusive,
}

/// A lock, held until dropped or until the process ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
}

impl FileLock {
    /// Takes the lock if it is free, creating the file if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be opened or locked.
    pub fn try_take(path: &Path, kind: Kind) -> io::Result<Option<Self>> {
        loop {
            let lock = Self::open(path)?;
            match fcntl(&lock.file, FcntlArg::F_OFD_SETLK(&whole_file(kind.code()))) {
                Ok(_) if lock.is_current() => return Ok(Some(lock)),
                Ok(_) => {} // removed between open and lock: the path now names another file
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes the lock, waiting for it in the kernel: call it only on a thread that may block.
    ///
    /// # Errors
    /// If the file cannot be opened or locked.
    pub fn take(path: &Path, kind: Kind) -> io::Result<Self> {
        loop {
            let lock = Self::open(path)?;
            wait(&lock.file, kind)?;
            if lock.is_current() {
                return Ok(lock);
            }
        }
    }

    /// Creates a lock file that no other process ever sees unlocked.
    ///
    /// No other process may create a file of this name.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make(path: &Path) -> io::Result<Self> {
        let beside = path.with_file_name(format!(".{}", uuid::Uuid::new_v4().simple()));
        let made = Self::take(&beside, Kind::Exclusive)?;
        std::fs::rename(&beside, path).inspect_err(|_| {
            let _ = std::fs::remove_file(&beside);
        })?;
        Ok(Self { file: made.file, path: path.to_owned() })
    }

    /// True while the path names the locked file: a lock on a removed or replaced file excludes nobody.
    pub fn is_current(&self) -> bool {
        let (Ok(held), Ok(named)) = (self.file.metadata(), std::fs::symlink_metadata(&self.path)) else { return false };
        (held.dev(), held.ino()) == (named.dev(), named.ino())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text that a holder wrote into the file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn text(&self) -> io::Result<String> {
        let mut text = [0; 256];
        let read = self.file.read_at(&mut text, 0)?;
        Ok(String::from_utf8_lossy(&text[..read]).into_owned())
    }

    /// Replaces the text in the file by a short one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_text(&self, text: &str) -> io::Result<()> {
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Removes the file, then releases the lock.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    fn open(path: &Path) -> io::Result<Self> {
        let file = open_own(path, Access::ReadWrite)?;
        Ok(Self { file, path: path.to_owned() })
    }
}

impl AsFd for FileLock {
    /// A process with a duplicate of it holds the lock too.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// True while a process holds the file's lock exclusively; false if the file does not exist.
///
/// # Errors
/// If the lock cannot be queried.
pub fn is_held(path: &Path) -> io::Result<bool> {
    let Some(file) = open_existing(path)? else { return Ok(false) };
    let mut lock = whole_file(libc::F_RDLCK);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Waits in the kernel until no process holds the file's lock exclusively.
///
/// Call it only on a thread that may block.
///
/// # Errors
/// If waiting fails.
pub fn wait_until_free(path: &Path) -> io::Result<()> {
    match open_existing(path)? {
        Some(file) => wait(&file, Kind::Shared),
        None => Ok(()),
    }
}

/// The text that the holder of a lock wrote into its file.
pub fn holder(path: &Path) -> String {
    let file = open_existing(path).ok().flatten();
    let text = file.and_then(|file| io::read_to_string(file.take(256)).ok()).unwrap_or_default();
    if text.trim().is_empty() { "another process".to_owned() } else { text.trim().to_owned() }
}

fn open_existing(path: &Path) -> io::Result<Option<File>> {
    match open_own(path, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn wait(file: &File, kind: Kind) -> io::Result<()> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&whole_file(kind.code()))) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

impl Kind {
    fn code(self) -> libc::c_int {
        match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        }
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // `l_pid` must be 0 for locks of an open file description.
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_excludes_the_other_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = FileLock::try_take(&path, Kind::Exclusive).unwrap().unwrap();
        assert!(is_held(&path).unwrap());
        assert!(FileLock::try_take(&path, Kind::Exclusive).unwrap().is_none());
        drop(first);
        assert!(!is_held(&path).unwrap());
        assert!(FileLock::try_take(&path, Kind::Exclusive).unwrap().is_some());
    }

    #[test]
    fn a_waiting_thread_is_woken_when_the_lock_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::take(&path, Kind::Exclusive).unwrap();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || wait_until_free(&path)
        });
        drop(held);
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_not_current() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::take(&path, Kind::Exclusive).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!held.is_current());
        let other = FileLock::try_take(&path, Kind::Exclusive).unwrap().unwrap();
        assert!(other.is_current() && !held.is_current());
    }

    #[test]
    fn the_holder_is_named_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::take(&path, Kind::Exclusive).unwrap();
        held.set_text("process 4242 (node host-a)\n").unwrap();
        assert_eq!(holder(&path), "process 4242 (node host-a)");
    }
}
