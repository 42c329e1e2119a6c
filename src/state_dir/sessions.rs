//! The sessions of this node whose entries may still stand in the coordination service.
//!
//! Each is recorded with the boot it was made in. A cloned disk and a directory moved to another host bring the sessions
//! of a process that may be alive elsewhere; their boot is not this one, and nobody may remove their entries but the server.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{StateDirError, boot_id, file};
use crate::term::SessionId;

/// The sessions that earlier processes recorded and nobody forgot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// The sessions, oldest first.
    pub sessions: Vec<SessionId>,
    /// True where all of them were made in this boot of this kernel: then their processes are dead, for the lock was free.
    pub boot_id_matches: bool,
}

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

    pub(super) fn earlier(&self) -> Earlier {
        let boot_id = boot_id();
        let here = |recorded: &Recorded| !boot_id.is_empty() && recorded.boot_id == boot_id;
        Earlier {
            sessions: self.sessions.iter().map(|recorded| recorded.id.clone()).collect(),
            boot_id_matches: self.sessions.iter().all(here),
        }
    }

    pub(super) fn record(&mut self, folder: &Path, id: &SessionId) -> Result<(), StateDirError> {
        let mut next = self.clone();
        next.sessions.push(Recorded { id: id.clone(), boot_id: boot_id() });
        self.become_written(folder, next)
    }

    pub(super) fn keep(&mut self, folder: &Path, id: &SessionId) -> Result<(), StateDirError> {
        let mut next = self.clone();
        next.sessions.retain(|recorded| recorded.id == *id);
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
