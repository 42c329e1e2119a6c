//! Locks that scripts take on one host: `cronkeeper lock --file PATH`.
//!
//! The lock is flock(2) on the file itself, as flock(1) takes it, so both exclude each other. The kernel releases it
//! when the last process that has it open is dead. The file's content is never touched. What flock(2) cannot say is in
//! a second file beside it:
//!
//! ```text
//! backup.lock              flock: exclusive for `Mutex` and `Exclusive`, shared for `Shared` and `Permits`
//! backup.lock.cronkeeper   the newest token, and one record per holder, each locked by that holder    (sidecar)
//!                          the line of those who wait for permits                                     (permits)
//! ```
//! A record is valid as long as its range of the sidecar is locked. A holder locks its record by one of its
//! descriptors, so a record ends with the lock, whichever process dies first, and nobody has to clean up or to ask
//! whether a pid is still the same process. That holds across containers too, where a pid says nothing.
//!
//! A holder of permits shares the file with other such holders, and its permits are counted in the records. Somebody
//! who locks the file exclusively therefore excludes them all.
//!
//! Not covered: files of several names (hard links) are one lock, but each name has a sidecar of its own, and so its
//! own listing. Whoever removes the sidecar makes its holders unknown, so that their permits count as free.

mod lock_file;
mod permits;
mod ranges;
mod record;
mod sidecar;
#[cfg(test)]
pub(super) mod tests;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use self::lock_file::{FileId, LockFile, Place};
pub use self::record::ListedHolder;
use self::record::next_token;
use self::sidecar::{Recording, Sidecar};
use crate::safe_path;
use cronkeeper_core::clock::system::now;
use cronkeeper_core::lock::{LockKey, LockKind};
use cronkeeper_core::term::FencingToken;

/// What a process wants to hold.
#[derive(Clone, Debug)]
pub struct FileLockRequest {
    /// The files or directories to lock: all or none. One that is named twice counts once.
    pub files: Vec<PathBuf>,
    pub kind: LockKind,
    /// Wait until the lock is free. If false, [`FileLockError::Busy`] is the answer at once.
    pub waits: bool,
    pub holder: Holder,
}

/// The process that takes a lock, for the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    pub user: String,
    pub program: String,
    /// The key that its command gets.
    pub key: LockKey,
}

/// A lock that is held.
///
/// Dropping it releases it, unless a duplicate of one of its descriptors is still open elsewhere.
#[derive(Debug)]
pub struct HeldFileLock {
    /// The file as the request named it.
    pub file: PathBuf,
    /// Larger than that of every earlier holder of the file; without a record, only as far as this host's clock goes.
    pub token: FencingToken,
    /// Why there is no record of this holder. It is then not listed, and a lock inside its command does not know it.
    pub unrecorded: Option<FileLockError>,
    /// The sidecar comes first, so that on dropping the record ends before the lock does.
    descriptors: Vec<OwnedFd>,
    /// The last of them, which has the lock of the file, allows no writing.
    is_read_only: bool,
}

impl HeldFileLock {
    /// The descriptors that hold the lock.
    ///
    /// The warden gets duplicates of all of them. The lock is then released only when the warden is gone too, and with
    /// it the processes of the command, even if this process is killed. They are close-on-exec.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descriptors.iter().map(OwnedFd::as_fd)
    }

    /// The descriptor that a command may inherit, as under flock(1): the file stays locked as long as one of the command's
    /// processes runs, whoever else was killed. `None` if it would let the command write to the file.
    pub fn inheritable(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors.last().filter(|_| self.is_read_only).map(OwnedFd::as_fd)
    }

    /// Releases the lock now, even while duplicates of its descriptors are open elsewhere.
    pub fn release(self) {
        for descriptor in self.descriptors.into_iter().map(File::from) {
            // Closing is the next best: the warden closes its duplicates too.
            let _ = ranges::release_all(&descriptor);
            let _ = flock(&descriptor, FlockOperation::Unlock);
        }
    }
}

/// Why a lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum FileLockError {
    #[error("`{file}` is locked")]
    Busy { file: PathBuf },
    /// A live holder has named another number of permits.
    #[error("`{file}` has {permits} permits for its present holders, not {wanted}")]
    OtherPermits { file: PathBuf, permits: u32, wanted: u32 },
    /// Another user could forge the record of the holders, or the file is not a record.
    #[error("`{file}` {why}")]
    Unsafe { file: PathBuf, why: String },
    /// A link of another user is on the way to it.
    #[error(transparent)]
    Misled(safe_path::Unsafe),
    /// Whoever may read the record of the holders can do that.
    #[error(
        "another process keeps `{file}` locked, so that nobody can read or record the holders of the lock; \
         lslocks(8) shows its pid"
    )]
    Occupied { file: PathBuf },
    #[error("cannot {what} `{file}`")]
    Io { file: PathBuf, what: &'static str, source: io::Error },
}

impl FileLockError {
    fn io(file: &Path, what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { file: file.to_owned(), what, source: source.into() }
    }

    fn unsafe_file(file: &Path, why: impl Into<String>) -> Self {
        Self::Unsafe { file: file.to_owned(), why: why.into() }
    }
}

/// Takes the locks, in the order of the request.
///
/// Waits in the kernel and cannot be interrupted: call it on a thread, and to give up, end the process. Missing files
/// are created. Even a request that does not wait may wait for others to read or write their records, at most a second.
///
/// # Errors
/// If a lock is busy and the request does not wait, or if a file cannot be locked or its sidecar not be trusted or
/// written. Then none is held.
pub fn acquire(request: &FileLockRequest) -> Result<Vec<HeldFileLock>, FileLockError> {
    loop {
        match attempt(request) {
            Ok(Some(held)) => return Ok(held),
            Ok(None) => {}
            // Everything is released in between: a client that keeps one sidecar locked must not keep everybody from
            // the files.
            Err(FileLockError::Occupied { .. }) if request.waits => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits in the kernel until the file can be locked, as far as flock(2) says. The next may be faster.
///
/// # Errors
/// If the file cannot be opened or locked.
pub fn wait_until_free(file: &Path, kind: LockKind) -> Result<(), FileLockError> {
    LockFile::open(file)?.lock(kind, true)
}

/// None if a file was removed or replaced meanwhile. Then all locks are given back, because the new file has another
/// position in the order.
fn attempt(request: &FileLockRequest) -> Result<Option<Vec<HeldFileLock>>, FileLockError> {
    let mut held = Vec::new();
    for (position, file) in open_in_order(&request.files)? {
        match take(request, file)? {
            Some(lock) => held.push((position, lock)),
            None => return Ok(None),
        }
    }
    held.sort_by_key(|(position, _)| *position);
    Ok(Some(held.into_iter().map(|(_, lock)| lock).collect()))
}

/// Opens the files in the order in which everybody locks them, each with its position in the request.
///
/// The order is that of the inodes. Paths would not do: two containers name the same file differently, as do links.
fn open_in_order(files: &[PathBuf]) -> Result<Vec<(usize, LockFile)>, FileLockError> {
    let opened = files.iter().enumerate().map(|(position, file)| Ok((position, LockFile::open(file)?)));
    let mut opened = opened.collect::<Result<Vec<_>, FileLockError>>()?;
    opened.sort_by_key(|(position, file)| (file.id(), *position));
    opened.dedup_by_key(|(_, file)| file.id());
    Ok(opened)
}

fn take(request: &FileLockRequest, mut file: LockFile) -> Result<Option<HeldFileLock>, FileLockError> {
    file.lock(request.kind, request.waits)?;
    let Some(place) = file.place()? else { return Ok(None) };
    let sidecar = match Sidecar::open(place, file.is_writable())? {
        Recording::Possible(sidecar) => *sidecar,
        // Permits are counted in the record only.
        Recording::Impossible(_, why) if matches!(request.kind, LockKind::Permits { .. }) => return Err(why),
        Recording::Impossible(newest, why) => return without_record(file, newest, why).map(Some),
    };
    let claimed = match request.kind {
        LockKind::Permits { of, count } => permits::claim(&sidecar, request, of, count)?,
        LockKind::Mutex | LockKind::Shared | LockKind::Exclusive => sidecar.claim(request)?,
    };
    Ok(claimed.map(|token| {
        let (file, lock, is_read_only) = file.into_parts();
        let descriptors = vec![sidecar.into_descriptor(), lock];
        HeldFileLock { file, token, unrecorded: None, descriptors, is_read_only }
    }))
}

/// A lock of somebody who may open the file and nothing else, as flock(1) gives it.
fn without_record(
    file: LockFile,
    newest: Option<FencingToken>,
    why: FileLockError,
) -> Result<HeldFileLock, FileLockError> {
    let (file, lock, is_read_only) = file.into_parts();
    let token = next_token(newest, now().wall)
        .ok_or_else(|| FileLockError::unsafe_file(&file, "has a record with the largest token there is"))?;
    Ok(HeldFileLock { file, token, unrecorded: Some(why), descriptors: vec![lock], is_read_only })
}

/// How this process already holds the file: by a key that it got from a process that holds it now.
///
/// If it has several such keys, the strongest kind counts. Whether that is enough, [`LockKind::covers`] says.
///
/// # Errors
/// If the record of the holders cannot be trusted or read.
pub fn held_by_key(file: &Path, keys: &[LockKey]) -> io::Result<Option<(LockKind, FencingToken)>> {
    if keys.is_empty() {
        return Ok(None);
    }
    let (file, holders) = match list(file) {
        // Nothing here proves a hold. Whether the file can be locked all the same, `acquire` finds out.
        Err(FileLockError::Unsafe { .. }) => return Ok(None),
        listed => listed.map_err(into_io)?,
    };
    let outer = holders.into_iter().filter(|holder| keys.iter().any(|key| holder.is_by(key, file)));
    let strongest = outer.max_by_key(|holder| (strength(holder.kind), holder.token));
    Ok(strongest.map(|holder| (holder.kind, holder.token)))
}

fn strength(kind: LockKind) -> u8 {
    match kind {
        LockKind::Permits { .. } => 0,
        LockKind::Shared => 1,
        LockKind::Mutex | LockKind::Exclusive => 2,
    }
}

/// Who holds the file, in the order of the tokens.
///
/// Lists only holders that took the lock by [`acquire`]; of flock(1) there is no record.
///
/// # Errors
/// If the record of the holders cannot be trusted or read.
pub fn holders(file: &Path) -> io::Result<Vec<ListedHolder>> {
    list(file).map(|(_, holders)| holders).map_err(into_io)
}

/// The same, with the file that its path names.
fn list(file: &Path) -> Result<(FileId, Vec<ListedHolder>), FileLockError> {
    match Place::find(file)? {
        Some(place) => Ok((place.id(), Sidecar::list(place)?)),
        None => Ok(((0, 0), Vec::new())),
    }
}

fn into_io(error: FileLockError) -> io::Error {
    match error {
        FileLockError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}
