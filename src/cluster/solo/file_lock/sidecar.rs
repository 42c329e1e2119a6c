//! The sidecar of a locked file: the newest token, and who holds the lock.
//!
//! ```text
//!  block 0      {"cronkeeper_lock":1,"token":1764000000000000}          its first bytes are locked:
//!               byte 0 for a turn, byte 1 by the first in the line for permits
//!  block 1..    {"token":…,"kind":"mutex","pid":4242,"user":…,"program":…,"key":…,"since":…}
//!               locked by its holder; without that lock, it is what an earlier holder has left, and free
//! ```
//! The file is read and changed only in a turn, which is short. It is never replaced, because it is locked. Whoever may
//! read the file can keep the turn from others, so nobody waits for it longer than [`LONGEST_TURN`].
//!
//! A crash leaves a good file. A claim writes the token, locks a free block, and writes the record; each write is a
//! small one to one page, which the kernel does as a whole or not at all. After a crash in between, a token is
//! unused, or the record of the dead process is free. (Even a write that stopped inside the token would leave none
//! below the old one: both have the same number of digits, so its first digits are the larger ones.) A power failure
//! may lose the newest writes, or leave zeros. All locks are gone then, and the clock keeps the tokens from going back,
//! as it does after the file was removed: see [`next_token`]. Any other content is refused, never overwritten: it may
//! belong to somebody, or to a newer version.
//!
//! Whoever may write the sidecar can forge tokens and entries of the list. So it has the rights of the locked file,
//! however it was created: those who may write that file share its lock, and can block it forever anyway. Nobody can
//! pass for a holder of the lock, though: a record has a proof by the holder's secret key. The sidecar is accepted from
//! root, from this user, from the owner of its directory, who could replace it anyway, and from whoever may write the
//! file. Those who may only read the file lock it without a record, as do those who cannot create the sidecar.
//!
//! In a directory that everybody may write, a stranger can put anything under the sidecar's name. That must not keep
//! others from the lock, which is flock(2) on the file itself: they take it without a record, and say what is in the way.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::libc::off_t;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::Serialize;

use super::lock_file::{Place, id};
use super::ranges::{self, Range, RangeKind};
use super::record::{BLOCK, Header, ListedHolder, Start, block, next_token};
use super::{FileLockError, FileLockRequest};
use cronkeeper_core::clock::system::now;
use cronkeeper_core::term::FencingToken;

const SUFFIX: &str = ".cronkeeper";
/// A link is not followed, and a FIFO does not block.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// Most holders at a time, which bounds the search for a free block.
const MOST_HOLDERS: u32 = 100_000;

/// Longest wait for the others' turns. Each takes far less than a millisecond.
const LONGEST_TURN: Duration = Duration::from_secs(1);

const TURN: Range = Range { start: 0, end: 1 };
const FIRST_IN_LINE: Range = Range { start: 1, end: 2 };

/// An open sidecar.
#[derive(Debug)]
pub(super) struct Sidecar {
    file: File,
    place: Place,
    name: OsString,
    path: PathBuf,
}

/// A sidecar, or why this user has none for a file that it can lock.
#[derive(Debug)]
pub(super) enum Recording {
    Possible(Box<Sidecar>),
    /// The newest token, as far as it can be read, and why nothing can be written.
    Impossible(Option<FencingToken>, FileLockError),
}

impl Sidecar {
    /// Opens the sidecar to write it; creates it if it does not exist. `may_write`: this user may write the locked file.
    pub(super) fn open(place: Place, may_write: bool) -> Result<Recording, FileLockError> {
        let (name, path) = place.beside(SUFFIX);
        let open = |flags| openat(&place.folder, &name, flags | FLAGS, Mode::from_raw_mode(0o600));
        let opened = loop {
            match open(OFlags::RDWR) {
                Err(Errno::NOENT) if may_write || owner_of(&place.folder) == Some(geteuid().as_raw()) => {}
                // One that others do not trust would keep them from the lock.
                Err(Errno::NOENT) => break Err(Errno::ACCESS),
                other => break other,
            }
            match open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
                Err(Errno::EXIST) => {}
                other => break other.inspect(|file| give_to_owner(file, &place)),
            }
        };
        match opened {
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                let newest = match open(OFlags::RDONLY) {
                    Err(_) => None,
                    opened => match Self::checked(opened, place, name, path.clone()) {
                        Err(planted @ FileLockError::Unsafe { .. }) => return Ok(Recording::Impossible(None, planted)),
                        sidecar => sidecar?.newest()?,
                    },
                };
                Ok(Recording::Impossible(newest, FileLockError::io(&path, "record the holder in", errno)))
            }
            opened => match Self::checked(opened, place, name, path) {
                Err(planted @ FileLockError::Unsafe { .. }) => Ok(Recording::Impossible(None, planted)),
                sidecar => {
                    let sidecar = sidecar?;
                    sidecar.share();
                    Ok(Recording::Possible(Box::new(sidecar)))
                }
            },
        }
    }

    /// Gives everybody the rights that they have on the locked file. Only the owner can, so others leave it as it is.
    fn share(&self) {
        let Ok(own) = fstat(&self.file) else { return };
        let locked = &self.place.stat;
        let mut wanted = locked.st_mode & 0o666 | 0o600;
        if own.st_mode & wanted == wanted {
            return;
        }
        // Rights that only the group has mean nothing in another group.
        let is_about_group = (locked.st_mode >> 3) & 0o6 != locked.st_mode & 0o6 && own.st_gid != locked.st_gid;
        if is_about_group && fchown(&self.file, None, Some(Gid::from_raw(locked.st_gid))).is_err() {
            wanted &= !0o060;
        }
        let _ = fchmod(&self.file, Mode::from_raw_mode(own.st_mode & 0o7777 | wanted));
    }

    /// The newest token.
    fn newest(&self) -> Result<Option<FencingToken>, FileLockError> {
        self.take_turn(RangeKind::Shared)?.newest()
    }

    /// The present holders in the order of their tokens.
    pub(super) fn list(place: Place) -> Result<Vec<ListedHolder>, FileLockError> {
        let (name, path) = place.beside(SUFFIX);
        let opened = match openat(&place.folder, &name, OFlags::RDONLY | FLAGS, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other,
        };
        let sidecar = Self::checked(opened, place, name, path)?;
        let live = sidecar.take_turn(RangeKind::Shared)?.live()?;
        let mut holders: Vec<ListedHolder> = live.into_iter().flatten().collect();
        holders.sort_by_key(|holder| holder.token);
        Ok(holders)
    }

    /// Records a holder; none if the sidecar was removed meanwhile.
    pub(super) fn claim(&self, request: &FileLockRequest) -> Result<Option<FencingToken>, FileLockError> {
        self.turn()?.map(|turn| turn.claim(request)).transpose()
    }

    /// Waits until no other process reads or changes the sidecar; none if it was removed meanwhile.
    pub(super) fn turn(&self) -> Result<Option<Turn<'_>>, FileLockError> {
        let turn = self.take_turn(RangeKind::Exclusive)?;
        Ok(self.is_current()?.then_some(turn))
    }

    fn take_turn(&self, wanted: RangeKind) -> Result<Turn<'_>, FileLockError> {
        match wanted.within(&self.file, TURN, LONGEST_TURN).map_err(|error| self.failed("lock", error))? {
            true => Ok(Turn(self)),
            false => Err(FileLockError::Occupied { file: self.path.clone() }),
        }
    }

    /// Becomes the first in line if nobody is.
    pub(super) fn try_lead_line(&self) -> Result<bool, FileLockError> {
        ranges::try_take(&self.file, FIRST_IN_LINE).map_err(|error| self.failed("lock", error))
    }

    /// Waits in the kernel to become the first in line.
    pub(super) fn lead_line(&self) -> Result<(), FileLockError> {
        ranges::take(&self.file, FIRST_IN_LINE).map_err(|error| self.failed("lock", error))
    }

    pub(super) fn leave_line(&self) -> Result<(), FileLockError> {
        ranges::release(&self.file, FIRST_IN_LINE).map_err(|error| self.failed("unlock", error))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The locked file as the request named it.
    pub(super) fn locked_file(&self) -> PathBuf {
        self.place.given.clone()
    }

    /// The descriptor that holds the record.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.file.into()
    }

    pub(super) fn failed(&self, what: &'static str, source: impl Into<io::Error>) -> FileLockError {
        FileLockError::io(&self.path, what, source)
    }

    pub(super) fn refused(&self, why: impl Into<String>) -> FileLockError {
        FileLockError::unsafe_file(&self.path, why)
    }

    fn checked(
        opened: Result<OwnedFd, Errno>,
        place: Place,
        name: OsString,
        path: PathBuf,
    ) -> Result<Self, FileLockError> {
        let file = match opened {
            Ok(file) => file.into(),
            // A link, a directory, a socket, or a file on which its owner has a lease.
            Err(errno) => {
                let found = statat(&place.folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
                let why = found.and_then(|found| fault(&found, owner_of(&place.folder), &place.stat));
                return Err(match why {
                    Some(why) => FileLockError::unsafe_file(&path, why),
                    None => FileLockError::io(&path, "open", errno),
                });
            }
        };
        let sidecar = Self { file, place, name, path };
        let own = fstat(&sidecar.file).map_err(|errno| sidecar.failed("examine", errno))?;
        match fault(&own, owner_of(&sidecar.place.folder), &sidecar.place.stat) {
            Some(why) => Err(sidecar.refused(why)),
            None => Ok(sidecar),
        }
    }

    fn is_current(&self) -> Result<bool, FileLockError> {
        let own = fstat(&self.file).map_err(|errno| self.failed("examine", errno))?;
        match statat(&self.place.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            named => Ok(id(&named.map_err(|errno| self.failed("examine", errno))?) == id(&own)),
        }
    }
}

/// In a directory of another user, root leaves the new sidecar to that user, who could not use the lock otherwise.
fn give_to_owner(file: &OwnedFd, place: &Place) {
    if !geteuid().is_root() {
        return;
    }
    if let Ok(folder) = fstat(&place.folder)
        && folder.st_uid != 0
    {
        // Root without the right to do that keeps the file.
        let _ = fchown(file, Some(Uid::from_raw(folder.st_uid)), Some(Gid::from_raw(folder.st_gid)));
    }
}

fn owner_of(folder: &OwnedFd) -> Option<u32> {
    fstat(folder).ok().map(|folder| folder.st_uid)
}

/// Why a sidecar cannot be trusted.
fn fault(stat: &Stat, folder_owner: Option<u32>, locked: &Stat) -> Option<String> {
    let accepted = [Some(0), Some(geteuid().as_raw()), folder_owner, Some(locked.st_uid)];
    // Only its members can give a file to a group.
    let is_of_group = locked.st_mode & 0o020 != 0 && stat.st_gid == locked.st_gid;
    let is_shared = locked.st_mode & 0o002 != 0 || is_of_group;
    let uid = stat.st_uid;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Symlink => Some("a symbolic link"),
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        _ => Some("a device"),
    };
    if let Some(kind) = kind {
        Some(format!("is {kind} that belongs to uid {uid}, not a record of holders; remove it"))
    } else if stat.st_nlink > 1 {
        Some(format!("has another name (hard link; owner: uid {uid}); remove it"))
    } else if !accepted.contains(&Some(stat.st_uid)) && !is_shared {
        Some(format!("belongs to another user (uid {uid}), who may not write the locked file; remove it"))
    } else {
        None
    }
}

/// The right to read and change the sidecar, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Sidecar);

impl Turn<'_> {
    /// The present holders; none for one whose record cannot be read.
    pub(super) fn live(&self) -> Result<Vec<Option<ListedHolder>>, FileLockError> {
        let (first, last) = (block_range(1), block_range(MOST_HOLDERS));
        let held = ranges::held_by_others(&self.0.file, Range { end: last.end, ..first });
        let held = held.map_err(|error| self.0.failed("read the locks of", error))?;
        let starts: BTreeSet<off_t> = held.iter().map(|range| range.start - range.start % LENGTH).collect();
        starts.into_iter().map(|start| Ok(ListedHolder::parse(&self.read(start)?))).collect()
    }

    /// Draws a token and records the holder.
    pub(super) fn claim(&self, request: &FileLockRequest) -> Result<FencingToken, FileLockError> {
        let since = now().wall;
        let token =
            next_token(self.newest()?, since).ok_or_else(|| self.0.refused("has the largest token there is"))?;
        self.write(0, &Header::new(token))?;
        let start = self.take_free_block()?;
        self.write(start, &ListedHolder::new(self.0.place.id(), &request.holder, request.kind, token, since))?;
        Ok(token)
    }

    fn newest(&self) -> Result<Option<FencingToken>, FileLockError> {
        match Start::parse(&self.read(0)?) {
            Start::Empty => Ok(None),
            Start::Header(header) => Ok(Some(header.token)),
            Start::Foreign => {
                Err(self.0.refused("is not a record of holders that this version can read, so it is kept"))
            }
        }
    }

    fn take_free_block(&self) -> Result<off_t, FileLockError> {
        for range in (1..=MOST_HOLDERS).map(block_range) {
            if ranges::try_take(&self.0.file, range).map_err(|error| self.0.failed("lock", error))? {
                return Ok(range.start);
            }
        }
        Err(self.0.failed("lock", Errno::NOLCK))
    }

    /// A block, filled up with zeros where the file ends.
    fn read(&self, start: off_t) -> Result<Vec<u8>, FileLockError> {
        let mut block = vec![0; BLOCK];
        self.0.file.read_at(&mut block, start.cast_unsigned()).map_err(|error| self.0.failed("read", error))?;
        Ok(block)
    }

    fn write(&self, start: off_t, value: &impl Serialize) -> Result<(), FileLockError> {
        let block = block(value).ok_or_else(|| self.0.failed("write", Errno::MSGSIZE))?;
        self.0.file.write_all_at(&block, start.cast_unsigned()).map_err(|error| self.0.failed("write", error))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = ranges::release(&self.0.file, TURN); // else it ends with the descriptor
    }
}

const LENGTH: off_t = BLOCK as off_t;

fn block_range(index: u32) -> Range {
    let start = off_t::from(index) * LENGTH;
    Range { start, end: start + LENGTH }
}
