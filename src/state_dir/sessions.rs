//! The sessions of this node whose entries may still stand in the coordination service.
//!
//! Each is recorded with its [`BootScope`]. A cloned disk, a copied folder and a directory moved to another host bring the
//! sessions of a process that may be alive elsewhere; nobody may remove their entries but the server. So they are passed over,
//! and gone from the file with the next session that is recorded.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::boot_scope::BootScope;
use super::{StateDirError, file};
use crate::run::journal::Written;
use crate::term::SessionId;

/// Those in the file, and where the file is.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    here: BootScope,
    kept: Kept,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    v: u32,
    sessions: Vec<Recorded>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Recorded {
    id: SessionId,
    #[serde(flatten)]
    made: BootScope,
}

impl Sessions {
    pub(super) fn read(folder: &Path) -> Result<Self, StateDirError> {
        let here = BootScope::here(folder).map_err(|source| StateDirError::Read { path: folder.to_owned(), source })?;
        let kept = file::read(&folder.join("sessions.json"))?.unwrap_or(Kept { v: 1, sessions: Vec::new() });
        Ok(Self { here, kept })
    }

    /// Those made here, oldest first.
    pub(super) fn made_here(&self) -> Vec<SessionId> {
        self.kept
            .sessions
            .iter()
            .filter(|recorded| self.is_ours(recorded))
            .map(|recorded| recorded.id.clone())
            .collect()
    }

    pub(super) fn record(&mut self, folder: &Path, id: &SessionId) -> Result<(), StateDirError> {
        let mut next = self.kept.clone();
        next.sessions.retain(|recorded| self.is_ours(recorded));
        next.sessions.push(Recorded { id: id.clone(), made: self.here.clone() });
        self.become_written(folder, next)
    }

    pub(super) fn forget(&mut self, folder: &Path, ids: &[SessionId]) -> Result<(), StateDirError> {
        let mut next = self.kept.clone();
        next.sessions.retain(|recorded| !ids.contains(&recorded.id));
        if next.sessions.len() == self.kept.sessions.len() {
            return Ok(());
        }
        self.become_written(folder, next)
    }

    fn become_written(&mut self, folder: &Path, next: Kept) -> Result<(), StateDirError> {
        file::replace(&folder.join("sessions.json"), &next)?;
        self.kept = next;
        Ok(())
    }

    fn is_ours(&self, recorded: &Recorded) -> bool {
        recorded.made.seen_from(&self.here) == Written::Here
    }
}
