//! The thread of one request: it locks the files and deposits their descriptors with the warden.

use std::error::Error;
use std::fmt::Write as _;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::safe_path::Refusal;
use crate::solo::file_lock::{self, FileLockError, FileLockRequest, HeldFileLock, Holder};
use crate::solo::lock_files::LockFiles;
use cronkeeper_core::job::JobName;
use cronkeeper_core::lock::{LockKey, LockKind, LockPath};
use cronkeeper_core::process::{Custody, Deposit};
use cronkeeper_core::run_lock::LockGrant;

/// What all requests have in common.
pub(super) struct Place {
    pub(super) files: LockFiles,
    pub(super) user: String,
    pub(super) custody: Option<Arc<dyn Custody>>,
}

/// What one thread waits for.
pub(super) struct WantedLocks {
    pub(super) job: JobName,
    pub(super) paths: Vec<LockPath>,
    pub(super) waits: bool,
    pub(super) key: LockKey,
}

/// How a wait ended.
#[derive(Debug)]
pub(in crate::solo) enum WaitEnd {
    Acquired(AcquiredLocks),
    Busy(LockPath),
    Refused(String),
    /// Nobody wanted the locks any more.
    GivenUp,
}

/// Files that are locked, for this process and for the warden.
///
/// Dropping it ends this process's part only: whoever has not decided to release may have processes to kill.
#[derive(Debug)]
pub(in crate::solo) struct AcquiredLocks {
    /// A file for each path of the wanted locks, in the same order.
    files: Vec<PathBuf>,
    held: Vec<HeldFileLock>,
    deposit: Option<Box<dyn Deposit>>,
}

impl AcquiredLocks {
    pub(super) fn grant(&self, wanted_locks: &WantedLocks) -> LockGrant {
        // A file that is linked to another one of them was not locked twice.
        let lock_of = |file: &PathBuf| self.held.iter().find(|held| held.file == *file).or(self.held.first());
        let tokens = self.files.iter().filter_map(|file| Some(lock_of(file)?.token));
        LockGrant { key: wanted_locks.key.clone(), held: wanted_locks.paths.iter().cloned().zip(tokens).collect() }
    }

    pub(super) fn release(self) {
        self.held.into_iter().for_each(HeldFileLock::release);
        self.deposit.into_iter().for_each(Deposit::withdraw);
    }
}

/// Why locks cannot be had.
#[derive(Debug, thiserror::Error)]
enum WaitError {
    #[error("the directory of the locks")]
    Directory(#[source] Refusal),
    #[error(transparent)]
    File(#[from] FileLockError),
    #[error("the warden cannot hold the lock too")]
    Warden(#[source] std::io::Error),
}

/// Waits in the kernel until the locks are held. Once `is_wanted` is false, it may give up.
pub(super) fn wait(place: &Place, wanted_locks: &WantedLocks, is_wanted: &AtomicBool) -> WaitEnd {
    let files = wanted_locks.paths.iter().map(|path| place.files.file_of(path)).collect::<Result<Vec<_>, _>>();
    let files = match files {
        Ok(files) => files,
        Err(refusal) => return refused(&WaitError::Directory(refusal)),
    };
    match acquire(place, wanted_locks, &files, is_wanted) {
        Ok(Some(acquired)) => WaitEnd::Acquired(acquired),
        Ok(None) => WaitEnd::GivenUp,
        Err(WaitError::File(FileLockError::Busy { file })) => {
            let path =
                files.iter().position(|wanted| *wanted == file).and_then(|position| wanted_locks.paths.get(position));
            path.or(wanted_locks.paths.first()).cloned().map_or(WaitEnd::GivenUp, WaitEnd::Busy)
        }
        Err(error) => refused(&error),
    }
}

fn acquire(
    place: &Place,
    wanted_locks: &WantedLocks,
    files: &[PathBuf],
    is_wanted: &AtomicBool,
) -> Result<Option<AcquiredLocks>, WaitError> {
    let holder = Holder {
        pid: std::process::id(),
        user: place.user.clone(),
        program: format!("job {}", wanted_locks.job),
        key: wanted_locks.key.clone(),
    };
    let request = FileLockRequest { files: files.to_vec(), kind: LockKind::Mutex, waits: wanted_locks.waits, holder };
    let is_wanted = || is_wanted.load(Ordering::Relaxed);
    let Some(held) = lock(request, is_wanted)? else { return Ok(None) };
    let acquired = AcquiredLocks { files: files.to_vec(), held, deposit: None };
    if !is_wanted() {
        return Ok(None);
    }
    let descriptors: Vec<BorrowedFd<'_>> = acquired.held.iter().flat_map(HeldFileLock::descriptors).collect();
    match place.custody.as_ref().map(|custody| custody.deposit(&descriptors)).transpose() {
        Ok(deposit) => Ok(Some(AcquiredLocks { deposit, ..acquired })),
        Err(error) => {
            acquired.release();
            Err(WaitError::Warden(error))
        }
    }
}

/// Locks all files or none. Several are waited for without holding any: nobody can make this thread give some back if
/// its request is given up meanwhile.
fn lock(request: FileLockRequest, is_wanted: impl Fn() -> bool) -> Result<Option<Vec<HeldFileLock>>, FileLockError> {
    if !request.waits || request.files.len() < 2 {
        return file_lock::acquire(&request).map(Some);
    }
    let request = FileLockRequest { waits: false, ..request };
    while is_wanted() {
        match file_lock::acquire(&request) {
            Err(FileLockError::Busy { file }) => file_lock::wait_until_free(&file, request.kind)?,
            held => return held.map(Some),
        }
    }
    Ok(None)
}

fn refused(error: &WaitError) -> WaitEnd {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing into a string cannot fail.
        let _ = write!(why, ": {error}");
        cause = error.source();
    }
    WaitEnd::Refused(why)
}
