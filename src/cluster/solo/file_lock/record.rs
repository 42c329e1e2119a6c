//! The text of a sidecar: blocks of one line each, JSON and padding.
//!
//! Pure: knows nothing of files.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Holder;
use super::lock_file::FileId;
use cronkeeper_core::lock::{LockKey, LockKind};
use cronkeeper_core::term::FencingToken;

/// Length of a block. A holder's record fits whatever its texts are, because they are cut.
pub(super) const BLOCK: usize = 1024;
/// Most characters of a user's and a program's name: up to six bytes each in JSON.
const LONGEST_USER: usize = 32;
const LONGEST_PROGRAM: usize = 64;
/// Version of the format.
const FORMAT: u32 = 1;

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedHolder {
    pub token: FencingToken,
    #[serde(with = "RecordedKind")]
    pub kind: LockKind,
    /// In its own pid namespace.
    pub pid: u32,
    /// Its user and its program. Any text: escape it.
    pub user: String,
    pub program: String,
    /// [`LockKey::uuid`] of its key.
    pub key: Uuid,
    /// That whoever has that key wrote the record, for this file: others may be able to write the sidecar too.
    #[serde(default)]
    pub proof: String,
    pub since: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "LockKind", rename_all = "snake_case")]
enum RecordedKind {
    Mutex,
    Shared,
    Exclusive,
    Permits { of: u32, count: u32 },
}

impl ListedHolder {
    /// The record of a holder of `file`.
    pub(super) fn new(file: FileId, holder: &Holder, kind: LockKind, token: FencingToken, since: Timestamp) -> Self {
        let cut = |text: &str, longest| text.chars().take(longest).collect();
        let (user, program) = (cut(&holder.user, LONGEST_USER), cut(&holder.program, LONGEST_PROGRAM));
        let (key, proof) = (holder.key.uuid(), holder.key.proof(&statement(file, kind, token)));
        Self { token, kind, pid: holder.pid, user, program, key, proof, since }
    }

    /// True if the owner of this key wrote the record, for `file`.
    pub(super) fn is_by(&self, key: &LockKey, file: FileId) -> bool {
        self.key == key.uuid() && self.proof == key.proof(&statement(file, self.kind, self.token))
    }

    /// The record that [`block`] made; none if it is no record.
    pub(super) fn parse(block: &[u8]) -> Option<Self> {
        serde_json::from_slice(content(block)).ok()
    }
}

/// What a record proves. The device is left out: containers number it differently.
fn statement((_, inode): FileId, kind: LockKind, FencingToken(token): FencingToken) -> String {
    format!("{inode} {kind:?} {token}")
}

/// The first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    cronkeeper_lock: u32,
    pub(super) token: FencingToken,
}

/// What the first block of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Nothing, or zeros: the state of a file that was created, or lost its content in a power failure.
    Empty,
    Header(Header),
    /// Not written by this version, perhaps by a person.
    Foreign,
}

impl Header {
    pub(super) fn new(token: FencingToken) -> Self {
        Self { cronkeeper_lock: FORMAT, token }
    }
}

impl Start {
    pub(super) fn parse(block: &[u8]) -> Self {
        match content(block) {
            [] => Self::Empty,
            content => match serde_json::from_slice::<Header>(content) {
                Ok(header) if header.cronkeeper_lock == FORMAT => Self::Header(header),
                _ => Self::Foreign,
            },
        }
    }
}

/// The token of the next holder: larger than the newest one, and not less than the microseconds since 1970.
///
/// Without the clock, the tokens would start over when the sidecar is removed, or loses its newest writes in a power
/// failure. Without the newest token, they would go back with a clock that was set back. None if there is no larger
/// number.
pub(super) fn next_token(newest: Option<FencingToken>, now: Timestamp) -> Option<FencingToken> {
    let after = match newest {
        Some(FencingToken(newest)) => newest.checked_add(1)?,
        None => 1,
    };
    Some(FencingToken(after.max(now.as_microsecond())))
}

/// A block with this value; none if it is too long.
pub(super) fn block<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    let mut block = serde_json::to_vec(value).ok()?;
    let padding = (BLOCK - 1).checked_sub(block.len())?;
    block.extend(std::iter::repeat_n(b' ', padding));
    block.push(b'\n');
    Some(block)
}

/// A block without its padding and the zeros of parts that were never written.
fn content(block: &[u8]) -> &[u8] {
    let is_padding = |byte: &u8| matches!(byte, 0 | b' ' | b'\n');
    let end = block.iter().rposition(|byte| !is_padding(byte)).map_or(0, |last| last + 1);
    &block[..end]
}
