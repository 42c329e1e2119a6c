//! Waits for the end of a run, through restarts of the daemon and changes of the leader.

use std::collections::BTreeSet;

use super::ask::AskFailure;
use super::wait;
use crate::api::client::{AskError, Client};
use crate::api::control::RunAnswer;
use crate::status::HistoryEntry;
use cronkeeper_core::run::RunId;

/// The result of waiting for a run.
pub(super) enum AwaitedRun {
    Ended(Box<HistoryEntry>),
    /// Each node has its own share of the run: these.
    Shared(BTreeSet<RunId>),
    /// The ledger has no record of the run.
    Gone,
}

impl AwaitedRun {
    pub fn into_record(self) -> Option<Box<HistoryEntry>> {
        match self {
            Self::Ended(record) => Some(record),
            Self::Shared(_) | Self::Gone => None,
        }
    }
}

/// Waits until the run has ended, or each node has its share. Fails only if the daemon stays unreachable.
pub(super) fn follow(client: &Client, run: &RunId) -> Result<AwaitedRun, AskFailure> {
    let path = format!("/v1/runs/{run}");
    loop {
        match wait::steadily(|| client.get(&path)) {
            Ok(RunAnswer::Pending) => {}
            Ok(RunAnswer::Ended { record }) => return Ok(AwaitedRun::Ended(record)),
            Ok(RunAnswer::Shared { shares }) => return Ok(AwaitedRun::Shared(shares)),
            Err(AskError::NotFound(_)) => return Ok(AwaitedRun::Gone),
            Err(error) => return Err(error.into()),
        }
    }
}
