//! The file that is locked: opening it as flock(1) does, and the check that its path still names it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::FileLockError;
use cronkeeper_core::lock::LockKind;

/// The modes that flock(1) gives to new files, less the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);
/// A FIFO does not block, and a terminal does not become this process's.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

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
}

impl LockFile {
    /// Opens the file, creating it if it does not exist.
    pub(super) fn open(given: &Path) -> Result<Self, FileLockError> {
        let (descriptor, may_write) = loop {
            if let Some(opened) = open_or_create(given)? {
                break opened;
            }
        };
        let stat = fstat(&descriptor).map_err(|errno| FileLockError::io(given, "examine", errno))?;
        Ok(Self { given: given.to_owned(), descriptor, stat, may_write })
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
    pub(super) fn lock(&self, kind: LockKind, waits: bool) -> Result<(), FileLockError> {
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
                Err(errno) => return Err(FileLockError::io(&self.given, "lock", errno)),
            }
        }
    }

    /// The place of the file; none if its path names another file now, or none.
    pub(super) fn place(&self) -> Result<Option<Place>, FileLockError> {
        let place = Place::find(&self.given)?;
        Ok(place.filter(|place| place.id() == self.id()))
    }

    /// The path as given, and the descriptor that holds the lock.
    pub(super) fn into_parts(self) -> (PathBuf, OwnedFd) {
        (self.given, self.descriptor)
    }
}

/// Opens the file, or else creates it, and says whether for writing; none if another process was faster.
///
/// `O_CREAT` without `O_EXCL` would not do: in a sticky directory, the kernel refuses it for existing files of other
/// users (fs.protected_regular), and it would create the missing target of a link that another user has left there.
fn open_or_create(given: &Path) -> Result<Option<(OwnedFd, bool)>, FileLockError> {
    let failed = |what| move |errno| FileLockError::io(given, what, errno);
    let open = |flags| openat(CWD, given, flags | FLAGS, MODE);
    match open(OFlags::RDWR) {
        Err(Errno::NOENT) => {}
        // Not for writing: of another user, a directory, on a read-only file system, a program that is running.
        Err(Errno::ACCESS | Errno::PERM | Errno::ISDIR | Errno::ROFS | Errno::TXTBSY) => {
            return match open(OFlags::RDONLY) {
                Err(Errno::NOENT) => Ok(None),
                other => other.map(|file| Some((file, false))).map_err(failed("open")),
            };
        }
        other => return other.map(|file| Some((file, true))).map_err(failed("open")),
    }
    match open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
        Err(Errno::EXIST) if leads_nowhere(given) => {
            Err(FileLockError::unsafe_file(given, "is a symbolic link to a missing file"))
        }
        Err(Errno::EXIST) => Ok(None),
        other => other.map(|file| Some((file, true))).map_err(failed("create")),
    }
}

fn leads_nowhere(given: &Path) -> bool {
    let target = std::fs::metadata(given).map_err(|error| error.kind());
    given.is_symlink() && target.is_err_and(|kind| kind == io::ErrorKind::NotFound)
}

/// The directory of a file and its name there, after all links.
#[derive(Debug)]
pub(super) struct Place {
    /// The path as given, for messages.
    pub(super) given: PathBuf,
    pub(super) folder: OwnedFd,
    folder_path: PathBuf,
    name: OsString,
    /// Of the file.
    pub(super) stat: Stat,
}

impl Place {
    /// None if there is no such file.
    pub(super) fn find(given: &Path) -> Result<Option<Self>, FileLockError> {
        let path = match given.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            path => path.map_err(|error| FileLockError::io(given, "find", error))?,
        };
        let (Some(folder_path), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(FileLockError::unsafe_file(given, "has no directory above it for the record of its holders"));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = openat(CWD, folder_path, flags, Mode::empty())
            .and_then(|folder| Ok((statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?, folder)));
        match found {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(FileLockError::io(given, "find", errno)),
            Ok((stat, folder)) => Ok(Some(Self {
                given: given.to_owned(),
                folder,
                folder_path: folder_path.to_owned(),
                name: name.to_owned(),
                stat,
            })),
        }
    }

    pub(super) fn id(&self) -> FileId {
        id(&self.stat)
    }

    /// The name and the path of a file beside it.
    pub(super) fn beside(&self, suffix: &str) -> (OsString, PathBuf) {
        let name: OsString = [&self.name, OsStr::new(suffix)].into_iter().collect();
        let path = self.folder_path.join(&name);
        (name, path)
    }
}
