//! The file that is locked: opening it as flock(1) does, and the check that its path still names it.
//!
//! It is opened for reading only, as by flock(1): a command that inherits the descriptor gets no right to write, and a
//! device that reacts to being opened for writing is never opened at all. Only regular files and directories are. Each
//! link on the way must belong to root or to this user: another user could lead root to any file of the system, lock it,
//! and leave a sidecar beside it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, accessat, flock, fstat, openat, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::FileLockError;
use crate::safe_path::{self, Found, Refusal};
use cronkeeper_core::lock::LockKind;

/// The modes that flock(1) gives to new files, less the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);
/// A link is not followed; what has become a FIFO meanwhile does not block, nor does a terminal become this process's.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// Device and inode: what a file is, whatever its name.
pub(super) type FileId = (u64, u64);

pub(super) fn id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// A file or directory to lock, open.
#[derive(Debug)]
pub(super) struct LockFile {
    given: PathBuf,
    descriptor: OwnedFd,
    stat: Stat,
    may_write: bool,
    /// The descriptor allows writing.
    is_open_for_writing: bool,
}

impl LockFile {
    /// Opens the file, creating it if it does not exist.
    pub(super) fn open(given: &Path) -> Result<Self, FileLockError> {
        loop {
            match find(given)? {
                None => create(given)?,
                Some(found) => {
                    if let Some(file) = Self::open_found(given, &found, OFlags::RDONLY)? {
                        return Ok(file);
                    }
                }
            }
        }
    }

    /// None if the file has lost its name meanwhile.
    fn open_found(given: &Path, found: &Found, access: OFlags) -> Result<Option<Self>, FileLockError> {
        let failed = |what| move |errno| FileLockError::io(given, what, errno);
        let stat = fstat(&found.node).map_err(failed("examine"))?;
        let (opened, may_write) = match (FileType::from_raw_mode(stat.st_mode), &found.folder, found.path.file_name()) {
            (FileType::Directory, ..) => {
                (openat(&found.node, ".", OFlags::RDONLY | OFlags::DIRECTORY | FLAGS, MODE), false)
            }
            (FileType::RegularFile, Some(folder), Some(name)) => {
                let may_write = accessat(folder, name, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
                (openat(folder, name, access | FLAGS, MODE), may_write)
            }
            _ => return Err(FileLockError::unsafe_file(given, "is neither a regular file nor a directory")),
        };
        let descriptor = match opened {
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            opened => opened.map_err(failed("open"))?,
        };
        let now = fstat(&descriptor).map_err(failed("examine"))?;
        let is_open_for_writing = access == OFlags::RDWR;
        let given = given.to_owned();
        Ok((id(&now) == id(&stat)).then_some(Self { given, descriptor, stat: now, may_write, is_open_for_writing }))
    }

    pub(super) fn id(&self) -> FileId {
        id(&self.stat)
    }

    /// True if this user may write the file, or could allow it: then others trust what this user says about it.
    pub(super) fn is_writable(&self) -> bool {
        let me = geteuid();
        self.may_write || me.is_root() || me.as_raw() == self.stat.st_uid
    }

    /// Takes the lock of the file.
    pub(super) fn lock(&mut self, kind: LockKind, waits: bool) -> Result<(), FileLockError> {
        let operation = match (kind, waits) {
            (LockKind::Mutex | LockKind::Exclusive, true) => FlockOperation::LockExclusive,
            (LockKind::Mutex | LockKind::Exclusive, false) => FlockOperation::NonBlockingLockExclusive,
            (LockKind::Shared | LockKind::Permits { .. }, true) => FlockOperation::LockShared,
            (LockKind::Shared | LockKind::Permits { .. }, false) => FlockOperation::NonBlockingLockShared,
        };
        loop {
            match flock(&self.descriptor, operation) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Err(FileLockError::Busy { file: self.given.clone() }),
                // On NFS, flock(2) is fcntl(2), which locks exclusively only what is open for writing.
                Err(Errno::BADF) if !self.is_open_for_writing => self.open_for_writing()?,
                Err(errno) => return Err(FileLockError::io(&self.given, "lock", errno)),
            }
        }
    }

    fn open_for_writing(&mut self) -> Result<(), FileLockError> {
        let found = find(&self.given)?;
        let opened = found.map(|found| Self::open_found(&self.given, &found, OFlags::RDWR)).transpose()?.flatten();
        // One that has replaced it would have another position in the order of the files.
        let same = opened.filter(|file| file.id() == self.id());
        *self = same.ok_or_else(|| FileLockError::io(&self.given, "lock", Errno::STALE))?;
        Ok(())
    }

    /// The place of the file; none if its path names another file now, or none.
    pub(super) fn place(&self) -> Result<Option<Place>, FileLockError> {
        let place = Place::find(&self.given)?;
        Ok(place.filter(|place| place.id() == self.id()))
    }

    /// The path as given, the descriptor that holds the lock, and whether that allows reading only.
    pub(super) fn into_parts(self) -> (PathBuf, OwnedFd, bool) {
        (self.given, self.descriptor, !self.is_open_for_writing)
    }
}

/// None if there is no such file.
fn find(given: &Path) -> Result<Option<Found>, FileLockError> {
    match safe_path::find(given) {
        Ok(found) => Ok(Some(found)),
        Err(Refusal::Unsafe(found)) => Err(FileLockError::Misled(found)),
        Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(Refusal::Io(error)) => Err(FileLockError::io(given, "find", error)),
    }
}

/// Creates a missing file, unless another process is faster.
///
/// `O_CREAT` without `O_EXCL` would not do: in a sticky directory, the kernel refuses it for existing files of other
/// users (fs.protected_regular), and it would create the missing target of a link that another user has left there.
fn create(given: &Path) -> Result<(), FileLockError> {
    let missing = || FileLockError::io(given, "find", Errno::NOENT);
    let is_file_name = !given.as_os_str().as_bytes().ends_with(b"/");
    let name = given.file_name().filter(|_| is_file_name).ok_or_else(missing)?;
    let folder = given.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = find(folder)?.ok_or_else(missing)?;
    match openat(&folder.node, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FLAGS, MODE) {
        Ok(_) => Ok(()),
        Err(Errno::EXIST) if leads_nowhere(&folder.node, name, given) => {
            Err(FileLockError::unsafe_file(given, "is a symbolic link to a missing file"))
        }
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(FileLockError::io(given, "create", errno)),
    }
}

fn leads_nowhere(folder: &OwnedFd, name: &OsStr, given: &Path) -> bool {
    let named = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_link = named.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    is_link && matches!(find(given), Ok(None))
}

/// The directory of a file and its name there, after all links.
#[derive(Debug)]
pub(super) struct Place {
    /// The path as given, for messages.
    pub(super) given: PathBuf,
    pub(super) folder: OwnedFd,
    path: PathBuf,
    /// Of the file.
    pub(super) stat: Stat,
}

impl Place {
    /// None if there is no such file.
    pub(super) fn find(given: &Path) -> Result<Option<Self>, FileLockError> {
        let Some(Found { path, node, folder }) = find(given)? else { return Ok(None) };
        let Some(folder) = folder else {
            return Err(FileLockError::unsafe_file(given, "has no directory above it for the record of its holders"));
        };
        let stat = fstat(&node).map_err(|errno| FileLockError::io(given, "examine", errno))?;
        Ok(Some(Self { given: given.to_owned(), folder, path, stat }))
    }

    pub(super) fn id(&self) -> FileId {
        id(&self.stat)
    }

    /// The name and the path of a file beside it.
    pub(super) fn beside(&self, suffix: &str) -> (OsString, PathBuf) {
        let name: OsString = [self.path.file_name().unwrap_or_default(), OsStr::new(suffix)].into_iter().collect();
        let path = self.path.with_file_name(&name);
        (name, path)
    }
}
