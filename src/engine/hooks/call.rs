//! A hook to run, and its cause.

use std::sync::Arc;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::job::{Hook, Job};
use crate::process::TreeId;
use crate::run::{RunEnd, RunId, Skip};

/// A hook to run.
#[derive(Clone, Debug, PartialEq)]
pub struct HookCall {
    pub hook: Hook,
    /// The job as it was for the run.
    pub job: Arc<Job>,
    pub cause: Cause,
}

/// Cause of a hook.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    Ended(Arc<RunEnd>),
    Skipped {
        /// The skip record, which may cover neighbouring occurrences too.
        skip: Arc<Skip>,
        /// The first occurrence of this decision.
        first: Timestamp,
        /// Number of occurrences in this decision.
        count: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct HookStart {
    pub tree_id: TreeId,
    pub call: HookCall,
    /// When the warden kills it without an order.
    pub until: Uptime,
}

impl HookCall {
    /// The run that the hook is about; the first one if several were skipped.
    pub fn run(&self) -> RunId {
        match &self.cause {
            Cause::Ended(end) => end.run.id(),
            Cause::Skipped { skip, .. } if skip.trigger.is_some() => skip.id(),
            Cause::Skipped { skip, first, .. } => RunId::scheduled(skip.job.clone(), *first),
        }
    }

    /// The hook's standard input: the kept tail of the run's output.
    pub fn input(&self) -> &str {
        match &self.cause {
            Cause::Ended(end) => &end.tail,
            Cause::Skipped { .. } => "",
        }
    }
}
