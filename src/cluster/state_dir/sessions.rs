//! The recorded sessions of this node: those whose entries may still exist, and the last of those that left none.
//!
//! A session that left no entry stays recorded for a while, because ZooKeeper may lose that its entries were removed.
//!
//! Each session is recorded with its [`BootScope`]. A cloned disk, a copied directory and a directory moved to another
//! host contain sessions of a process that may be running elsewhere; only the ZooKeeper server may remove their entries.
//! Such sessions are skipped, and the next session that is recorded removes them from the file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::boot_scope::BootScope;
use super::{StateDirError, file};
use cronkeeper_core::run::journal::Written;
use cronkeeper_core::term::SessionId;

/// Most sessions without entries that are kept. A service loses only its newest transactions.
pub const KEPT_SESSIONS: usize = 16;

/// The content of `sessions.json`.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    here: BootScope,
    file: SessionsFile,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SessionsFile {
    v: u32,
    sessions: Vec<RecordedSession>,
    /// Those whose entries are gone, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<RecordedSession>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RecordedSession {
    id: SessionId,
    #[serde(flatten)]
    scope: BootScope,
}

impl Sessions {
    pub(super) fn read(directory: &Path) -> Result<Self, StateDirError> {
        let here =
            BootScope::here(directory).map_err(|source| StateDirError::Read { path: directory.to_owned(), source })?;
        let file = file::read(&directory.join("sessions.json"))?.unwrap_or(SessionsFile {
            v: 1,
            sessions: Vec::new(),
            left: Vec::new(),
        });
        Ok(Self { here, file })
    }

    /// The sessions recorded in this boot and directory whose entries may exist, oldest first.
    pub(super) fn made_here(&self) -> Vec<SessionId> {
        self.ours(&self.file.sessions)
    }

    /// Those whose entries are gone, oldest first.
    pub(super) fn left_here(&self) -> Vec<SessionId> {
        self.ours(&self.file.left)
    }

    fn ours(&self, recorded: &[RecordedSession]) -> Vec<SessionId> {
        recorded.iter().filter(|recorded| self.is_ours(recorded)).map(|recorded| recorded.id.clone()).collect()
    }

    pub(super) fn record(&mut self, directory: &Path, id: &SessionId) -> Result<(), StateDirError> {
        let mut next = self.file.clone();
        next.sessions.retain(|recorded| self.is_ours(recorded));
        next.left.retain(|recorded| self.is_ours(recorded));
        next.sessions.push(RecordedSession { id: id.clone(), scope: self.here.clone() });
        self.write(directory, next)
    }

    pub(super) fn note_left(&mut self, directory: &Path, ids: &[SessionId]) -> Result<(), StateDirError> {
        let mut next = self.file.clone();
        let (left, sessions): (Vec<_>, Vec<_>) =
            next.sessions.into_iter().partition(|recorded| ids.contains(&recorded.id));
        if left.is_empty() {
            return Ok(());
        }
        next.sessions = sessions;
        next.left.extend(left);
        next.left.drain(..next.left.len().saturating_sub(KEPT_SESSIONS));
        self.write(directory, next)
    }

    fn write(&mut self, directory: &Path, next: SessionsFile) -> Result<(), StateDirError> {
        file::replace(&directory.join("sessions.json"), &next)?;
        self.file = next;
        Ok(())
    }

    fn is_ours(&self, recorded: &RecordedSession) -> bool {
        recorded.scope.seen_from(&self.here) == Written::Here
    }
}
