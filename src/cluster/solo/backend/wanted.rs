//! What operators want of this node. Another process may have written it, and none can notify this one.

use std::time::Duration;

use super::Backend;
use super::error::BackendError;
use cronkeeper_core::election;
use cronkeeper_core::run::NodeControl;

/// Interval of checks for writes by other processes.
pub(super) const POLL_EVERY: Duration = Duration::from_secs(1);

/// What is wanted, as last read.
#[derive(Debug, Default)]
pub(super) struct WantedOfNode {
    known: Option<NodeControl>,
    /// SQLite's `data_version` at the last read.
    data_version: Option<i64>,
}

impl Backend {
    /// Reads what is wanted of this node, if anything was written since the last time.
    pub(super) fn read_wanted(&mut self) -> Result<(), BackendError> {
        let data_version = self.store.data_version()?;
        if self.wanted.data_version == Some(data_version) {
            return Ok(());
        }
        let control = self.store.wanted(&self.member.name().node)?;
        self.wanted.data_version = Some(data_version);
        self.contender.may_join(control.drained.is_none());
        if self.wanted.known.as_ref() != Some(&control) {
            self.wanted.known = Some(control.clone());
            self.emit(election::Event::Wanted(control));
        }
        Ok(())
    }
}
