//! Locks on ranges of a file, each held by one open file description (`F_OFD_SETLK`).
//!
//! The kernel releases them when the last duplicate of the descriptor is closed, or before on request. They are
//! independent of flock(2). Whoever may read the file can share a lock, and so keep others from an exclusive one.

use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, off_t};

/// Bytes of a file, less the last one. They need not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: off_t,
    pub(super) end: off_t,
}

/// Longest pause between two attempts of [`RangeKind::within`], which the kernel does not end early.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// A lock that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeKind {
    Exclusive,
    /// Others may share it.
    Shared,
}

impl RangeKind {
    /// False if others keep it from this file for that long. A range that this file holds already is kept.
    pub(super) fn within(self, file: &File, range: Range, within: Duration) -> io::Result<bool> {
        let (start, mut pause) = (Instant::now(), Duration::from_micros(50));
        while !try_lock(file, range, self)? {
            if start.elapsed() >= within {
                return Ok(false);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(true)
    }

    fn kind(self) -> libc::c_int {
        match self {
            Self::Exclusive => libc::F_WRLCK,
            Self::Shared => libc::F_RDLCK,
        }
    }
}

/// Waits in the kernel for an exclusive lock. A range that this file holds already is kept.
pub(super) fn take(file: &File, range: Range) -> io::Result<()> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&range.lock(libc::F_WRLCK))) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

/// False if another holds a lock in the range.
pub(super) fn try_take(file: &File, range: Range) -> io::Result<bool> {
    try_lock(file, range, RangeKind::Exclusive)
}

fn try_lock(file: &File, range: Range, wanted: RangeKind) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range.lock(wanted.kind()))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

pub(super) fn release(file: &File, range: Range) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range.lock(libc::F_UNLCK))).map(drop).map_err(io::Error::from)
}

/// Releases everything that is held by the file and its duplicates.
pub(super) fn release_all(file: &File) -> io::Result<()> {
    // A length of zero means: to the end.
    release(file, Range { start: 0, end: 0 })
}

/// The exclusive locks that others hold in the range, in no particular order.
///
/// Shared ones do not count: they can be taken by whoever may read the file.
pub(super) fn held_by_others(file: &File, range: Range) -> io::Result<Vec<Range>> {
    let mut found = Vec::new();
    let mut rest = vec![range];
    while let Some(range) = rest.pop() {
        if range.start >= range.end {
            continue;
        }
        // The kernel names any lock in its way, not the first one. So both sides of that lock are searched.
        if let Some(held) = conflict(file, range)? {
            rest.push(Range { end: held.start, ..range });
            rest.push(Range { start: held.end, ..range });
            found.push(held);
        }
    }
    Ok(found)
}

fn conflict(file: &File, range: Range) -> io::Result<Option<Range>> {
    let mut lock = range.lock(libc::F_RDLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    let is_to_the_end = lock.l_len == 0;
    let end = if is_to_the_end { range.end } else { lock.l_start.saturating_add(lock.l_len) };
    Ok((libc::c_int::from(lock.l_type) != libc::F_UNLCK).then_some(Range { start: lock.l_start, end }))
}

impl Range {
    fn lock(self, kind: libc::c_int) -> libc::flock {
        // `l_pid` must be 0 for locks of an open file description.
        libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: self.start,
            l_len: self.end - self.start,
            l_pid: 0,
        }
    }
}
