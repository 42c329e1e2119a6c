//! A lock on a file of its own, which the kernel drops when its holder dies.
//!
//! A lock of the open file description (`F_OFD_SETLK`), not the classic record lock: that one belongs to the process, so
//! it vanishes when *any* descriptor of the file is closed, and two holders in one process cannot contend. An open file
//! description is shared with a forked child, but only until that child executes something: every descriptor here is
//! close-on-exec, and the daemon forks for nothing but to execute. The warden, parent of all jobs, is started before any
//! lock is taken. The price is that `F_GETLK` cannot name the holder; so holders write their names into the file.
//!
//! A lock file may be removed by its last holder, so whoever gets a lock looks whether the path still names that file.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::safe_path::{Access, open_own};

/// Who else may hold a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Others of this kind.
    Shared,
    /// Nobody.
    Exclusive,
}

/// A lock, held until dropped or until the process ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
}

impl FileLock {
    /// Takes the lock if it is free, making the file if there is none.
    ///
    /// # Errors
    /// When the file cannot be opened or locked.
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

    /// Takes the lock, waiting in the kernel for it: only on a thread that may wait.
    ///
    /// # Errors
    /// When the file cannot be opened or locked.
    pub fn take(path: &Path, kind: Kind) -> io::Result<Self> {
        loop {
            let lock = Self::open(path)?;
            wait(&lock.file, kind)?;
            if lock.is_current() {
                return Ok(lock);
            }
        }
    }

    /// Makes a lock file that nobody ever sees unlocked. The name must be one that nobody else makes.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(path: &Path) -> io::Result<Self> {
        let beside = path.with_file_name(format!(".{}", uuid::Uuid::new_v4().simple()));
        let made = Self::take(&beside, Kind::Exclusive)?;
        std::fs::rename(&beside, path).inspect_err(|_| {
            let _ = std::fs::remove_file(&beside);
        })?;
        Ok(Self { file: made.file, path: path.to_owned() })
    }

    /// True while the path names the locked file: a lock on a file that was removed or replaced keeps nobody out.
    pub fn is_current(&self) -> bool {
        let (Ok(held), Ok(named)) = (self.file.metadata(), std::fs::symlink_metadata(&self.path)) else { return false };
        (held.dev(), held.ino()) == (named.dev(), named.ino())
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was written into the file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn text(&self) -> io::Result<String> {
        let mut text = [0; 256];
        let read = self.file.read_at(&mut text, 0)?;
        Ok(String::from_utf8_lossy(&text[..read]).into_owned())
    }

    /// Writes a short text into the file, in place of what is there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_text(&self, text: &str) -> io::Result<()> {
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Removes the file, then drops the lock.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    fn open(path: &Path) -> io::Result<Self> {
        let file = open_own(path, Access::ReadWrite)?;
        Ok(Self { file, path: path.to_owned() })
    }
}

/// True while anybody holds the file's lock exclusively. No file: nobody.
///
/// # Errors
/// When it cannot be found out.
pub fn is_held(path: &Path) -> io::Result<bool> {
    let Some(file) = open_existing(path)? else { return Ok(false) };
    let mut lock = whole_file(libc::F_RDLCK);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Returns when nobody holds the file's lock exclusively. Waits in the kernel: only on a thread that may wait.
///
/// # Errors
/// When it cannot be waited for.
pub fn wait_until_free(path: &Path) -> io::Result<()> {
    match open_existing(path)? {
        Some(file) => wait(&file, Kind::Shared),
        None => Ok(()),
    }
}

/// What the holder of a lock wrote into its file.
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
    fn one_holder_keeps_the_other_out_until_it_drops() {
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
    fn who_waits_is_woken_by_the_drop() {
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
    fn a_holder_can_be_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::take(&path, Kind::Exclusive).unwrap();
        held.set_text("process 4242 (node host-a)\n").unwrap();
        assert_eq!(holder(&path), "process 4242 (node host-a)");
    }
}
