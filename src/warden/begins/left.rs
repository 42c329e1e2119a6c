//! What a warden leaves of the notes on begins when its daemon is dead.
//!
//! ```text
//!  daemon ── makes and locks begins.<id> in the state directory ──▶ warden: has the same open file
//!    dies                                                           ends all trees, copies the notes, ends
//!  next daemon ── waits until the lock is free, and reads
//! ```
//!
//! The lock is that of the open file, which daemon and warden share: it is free when both have ended. The journal names
//! the file with each begin, so the notes of one daemon are never taken for those of another.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread, pwrite};

use super::{TREES, is_unbegun};
use cronkeeper_cluster::state_dir::lock::{FileLock, Kind};
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::TreeId;
use cronkeeper_core::run::BeginNote;

/// What the names of these files begin with.
const PREFIX: &str = "begins.";
/// Behind the notes once all of them are copied.
const COMPLETE: &[u8; 8] = b"complete";
/// Bytes copied at once.
const CHUNK: usize = 64 << 10;
/// Pause between two looks at the lock.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The file in which the warden leaves the notes, should this process die.
#[derive(Debug)]
pub struct BeginsFile {
    name: String,
    lock: FileLock,
}

impl BeginsFile {
    /// Makes the file in the state directory.
    ///
    /// # Errors
    /// If it cannot be created or locked.
    pub fn create(state_dir: &Path) -> io::Result<Self> {
        let name = format!("{PREFIX}{}", uuid::Uuid::new_v4().simple());
        let lock = FileLock::make(&state_dir.join(&name))?;
        Ok(Self { name, lock })
    }

    pub(in crate::warden) fn name(&self) -> &str {
        &self.name
    }

    /// Removes the file: the daemon itself has used the notes.
    pub(in crate::warden) fn remove(self) {
        // If it stays, a later start removes it.
        let _ = self.lock.remove();
    }
}

impl AsFd for BeginsFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

/// In the warden, once all trees are dead: copies the notes into the file.
pub(in crate::warden) fn leave(notes: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while let Some(from) = next_noted(notes, at)? {
        let read = pread(notes, &mut buffer, from)?;
        if read == 0 {
            break;
        }
        pwrite_all(file, &buffer[..read], from)?;
        at = from + read as u64;
    }
    pwrite_all(file, COMPLETE, TREES)
}

/// The next place at or behind this one that is not in a hole.
fn next_noted(notes: BorrowedFd<'_>, at: u64) -> Result<Option<u64>, Errno> {
    match seek(notes, SeekFrom::Data(at)) {
        Ok(from) => Ok(Some(from)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

fn pwrite_all(file: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = pwrite(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// The notes that the warden of a dead daemon has left.
#[derive(Debug)]
pub struct LeftBegins(FileLock);

impl LeftBegins {
    /// Waits until the warden has ended, but not for longer than `within`. `None` if it left nothing, or not everything:
    /// then nothing is known of its trees.
    pub fn read(state_dir: &Path, name: &str, within: Duration) -> Option<Self> {
        let is_name = name.strip_prefix(PREFIX).is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let path = state_dir.join(name);
        if !is_name || !path.exists() {
            return None;
        }
        let lock = await_lock(&path, within)?;
        let mut end = [0; COMPLETE.len()];
        let is_complete = pread(&lock, &mut end, TREES) == Ok(end.len()) && end == *COMPLETE;
        is_complete.then_some(Self(lock))
    }

    /// True if the program of a tree is known not to have begun. The caller must know that its processes are dead.
    pub fn is_unbegun(&self, note: &BeginNote) -> bool {
        is_unbegun(self.0.as_fd(), TreeId(note.tree))
    }
}

fn await_lock(path: &Path, within: Duration) -> Option<FileLock> {
    let until = uptime() + within;
    loop {
        match FileLock::try_take(path, Kind::Exclusive) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) if uptime() < until => thread::sleep(LOOK_EVERY),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Removes what dead daemons have left, but for the newest `kept`: the runs of those may not be settled yet.
pub fn remove_left(state_dir: &Path, kept: usize) {
    let Ok(entries) = fs::read_dir(state_dir) else { return };
    let is_left = |name: &str| name.starts_with(PREFIX);
    let left = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_left));
    let mut left: Vec<(std::time::SystemTime, PathBuf)> =
        left.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    left.sort_unstable();
    left.truncate(left.len().saturating_sub(kept));
    for (_, path) in left {
        // That of a living daemon is locked.
        if let Ok(Some(lock)) = FileLock::try_take(&path, Kind::Exclusive) {
            let _ = lock.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Begins, note};
    use super::*;

    fn noted(trees: &[u64]) -> Begins {
        let begins = Begins::new().unwrap();
        trees.iter().for_each(|tree| note(begins.as_fd(), TreeId(*tree)).unwrap());
        begins
    }

    fn note_of(file: &BeginsFile, tree: u64) -> BeginNote {
        BeginNote { file: file.name().to_owned(), tree }
    }

    #[test]
    fn the_next_daemon_finds_the_notes_once_the_warden_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (begins, file) = (noted(&[3, 5_000, 900_000]), BeginsFile::create(dir.path()).unwrap());
        assert!(LeftBegins::read(dir.path(), file.name(), Duration::ZERO).is_none(), "it is still in use");
        leave(begins.as_fd(), file.as_fd()).unwrap();
        let note = |tree| note_of(&file, tree);
        let notes = [0, 3, 4, 5_000, 900_000, 900_001, TREES - 1].map(note);
        let name = file.name().to_owned();
        drop(file);
        let left = LeftBegins::read(dir.path(), &name, Duration::ZERO).unwrap();
        assert_eq!(notes.map(|note| left.is_unbegun(&note)), [true, false, true, false, false, true, true]);
    }

    #[test]
    fn what_is_not_complete_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = BeginsFile::create(dir.path()).unwrap();
        let name = file.name().to_owned();
        drop(file);
        assert!(LeftBegins::read(dir.path(), &name, Duration::ZERO).is_none(), "the warden has left nothing");
        assert!(LeftBegins::read(dir.path(), "begins.00", Duration::ZERO).is_none(), "there is no such file");
        assert!(!dir.path().join("begins.00").exists());
        std::fs::write(dir.path().join("lock"), "").unwrap();
        assert!(LeftBegins::read(dir.path(), "../lock", Duration::ZERO).is_none());
    }

    #[test]
    fn only_what_nobody_uses_is_removed_the_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let used = BeginsFile::create(dir.path()).unwrap();
        for id in 0..4 {
            let file = fs::File::create(dir.path().join(format!("{PREFIX}{id}"))).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(id)).unwrap();
        }
        fs::write(dir.path().join("journal"), "").unwrap();
        remove_left(dir.path(), 3);
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        let mut wanted = ["begins.2", "begins.3", "journal", used.name()].map(str::to_owned);
        wanted.sort_unstable();
        assert_eq!(names, wanted);
        remove_left(dir.path(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        used.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
