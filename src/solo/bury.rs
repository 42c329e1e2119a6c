//! Seeing to what dead members left behind: their processes dead first, then the ends they could not commit.

use std::io;

use super::members::{MemberName, Members};
use super::{Leftovers, StillAlive};
use crate::run::RunEnd;
use crate::run::journal::RecoveredRun;
use crate::state_dir::journal;

/// A dead member of which no process lives. Its files go when its ends are in the ledger.
#[derive(Debug)]
pub(super) struct Buried {
    pub(super) name: MemberName,
    pub(super) ends: Vec<RunEnd>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BuryError {
    #[error(transparent)]
    StillAlive(#[from] StillAlive),
    #[error("what a dead node left behind cannot be read: {0}")]
    Files(#[from] io::Error),
}

/// Sees to all dead members. Blocks until their processes are dead.
pub(super) fn all(members: &Members, leftovers: &Leftovers) -> Result<Vec<Buried>, BuryError> {
    let mut dead = Vec::new();
    for name in members.all()? {
        if !members.lives(&name)? {
            dead.push(name);
        }
    }
    these(members, dead, leftovers)
}

/// Sees to these members, which are dead. Blocks until their processes are too.
pub(super) fn these(members: &Members, dead: Vec<MemberName>, leftovers: &Leftovers) -> Result<Vec<Buried>, BuryError> {
    let mut runs: Vec<RecoveredRun> = Vec::new();
    let mut buried = Vec::new();
    for name in dead {
        let open = journal::read(&members.journal(&name))?.recovered().runs;
        buried.push(Buried { name, ends: open.iter().filter_map(|run| run.end.clone()).collect() });
        runs.extend(open);
    }
    if !runs.is_empty() {
        leftovers(&runs)?;
    }
    Ok(buried)
}
