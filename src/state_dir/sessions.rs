//! The sessions of this node whose entries may still stand in the coordination service.
//!
//! Each is recorded with the boot it was made in. A cloned disk and a directory moved to another host bring the sessions
//! of a process that may be alive elsewhere; their boot is not this one, and nobody may remove their entries but the server.
//! So they are passed over, and gone from the file with the next session that is recorded.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{StateDirError, boot_id, file};
use crate::term::SessionId;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sessions {
    v: u32,
    sessions: Vec<Recorded>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Recorded {
    id: SessionId,
    boot_id: String,
}

impl Sessions {
    pub(super) fn read(folder: &Path) -> Result<Self, StateDirError> {
        let known = file::read(&folder.join("sessions.json"))?;
        Ok(known.unwrap_or(Self { v: 1, sessions: Vec::new() }))
    }

    /// Those made in this boot of this kernel, oldest first.
    pub(super) fn of_this_boot(&self) -> Vec<SessionId> {
        let boot_id = boot_id();
        self.sessions.iter().filter(|recorded| recorded.is_of(&boot_id)).map(|recorded| recorded.id.clone()).collect()
    }

    pub(super) fn record(&mut self, folder: &Path, id: &SessionId) -> Result<(), StateDirError> {
        let (mut next, boot_id) = (self.clone(), boot_id());
        next.sessions.retain(|recorded| recorded.is_of(&boot_id));
        next.sessions.push(Recorded { id: id.clone(), boot_id });
        self.become_written(folder, next)
    }

    pub(super) fn forget(&mut self, folder: &Path, ids: &[SessionId]) -> Result<(), StateDirError> {
        let mut next = self.clone();
        next.sessions.retain(|recorded| !ids.contains(&recorded.id));
        if next.sessions.len() == self.sessions.len() {
            return Ok(());
        }
        self.become_written(folder, next)
    }

    fn become_written(&mut self, folder: &Path, next: Self) -> Result<(), StateDirError> {
        file::replace(&folder.join("sessions.json"), &next)?;
        *self = next;
        Ok(())
    }
}

impl Recorded {
    /// Where the kernel does not name its boots, none is known to be this one.
    fn is_of(&self, boot_id: &str) -> bool {
        !boot_id.is_empty() && self.boot_id == boot_id
    }
}
