//! A hook that is to be run, and what it follows.

use std::sync::Arc;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::job::{Hook, Job};
use crate::process::TreeId;
use crate::run::{RunEnd, RunId, Skip};

/// A hook to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct HookCall {
    /// Which.
    pub hook: Hook,
    /// Of this job, as it was for the run.
    pub job: Arc<Job>,
    /// What it follows.
    pub cause: Cause,
}

/// What a hook follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The end of a run.
    Ended(Arc<RunEnd>),
    /// A decision to skip.
    Skipped {
        /// The record, with all neighbours.
        skip: Arc<Skip>,
        /// The first of this decision.
        first: Timestamp,
        /// How many in this decision.
        count: u64,
    },
}

/// A hook to start.
#[derive(Clone, Debug, PartialEq)]
pub struct HookStart {
    /// The tree's name to the warden.
    pub tree_id: TreeId,
    /// What to start, and why.
    pub call: HookCall,
    /// When it is killed without being told to.
    pub until: Uptime,
}

impl HookCall {
    /// The run it is about: of several that were skipped, the first.
    pub fn run(&self) -> RunId {
        match &self.cause {
            Cause::Ended(end) => end.run.id(),
            Cause::Skipped { skip, .. } if skip.trigger.is_some() => skip.id(),
            Cause::Skipped { skip, first, .. } => RunId::scheduled(skip.job.clone(), *first),
        }
    }

    /// What it finds on its standard input: the kept tail of the output.
    pub fn input(&self) -> &str {
        match &self.cause {
            Cause::Ended(end) => &end.tail,
            Cause::Skipped { .. } => "",
        }
    }
}
