//! A hook to run, and its cause.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::job::{Alarm, CommandLine, Hook, Job, NodeHook};
use crate::process::TreeId;
use crate::run::{Attempt, Parameters, RaisedAlarm, RunEnd, RunId, RunRecord, Skip};

/// Time between SIGTERM and SIGKILL for a hook of the node.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// Bytes of what every hook has: its names, times and numbers.
const SMALL: usize = 1 << 10;

/// A hook to run.
#[derive(Clone, Debug, PartialEq)]
pub enum HookCall {
    OfJob(JobHookCall),
    OfNode(NodeHookCall),
}

/// A job's hook to run.
#[derive(Clone, Debug, PartialEq)]
pub struct JobHookCall {
    pub hook: Hook,
    /// The job as it was for the run.
    pub job: Arc<Job>,
    pub cause: Cause,
}

/// A node's own hook to run.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeHookCall {
    pub hook: NodeHook,
    pub command: CommandLine,
    /// Variables for its environment, without the prefix `CRONKEEPER_`.
    pub variables: Vec<(&'static str, String)>,
}

/// Cause of a job's hook.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The run's program has begun, in this attempt for the first time.
    Started(Arc<RunRecord>),
    Ended(Arc<RunEnd>),
    Skipped {
        /// The skip record, which may cover neighbouring occurrences too.
        skip: Arc<Skip>,
        /// The first occurrence of this decision.
        first: Timestamp,
        /// Number of occurrences in this decision.
        count: u64,
    },
    /// An alarm was raised.
    Alarm {
        alarm: Alarm,
        raised: Box<RaisedAlarm>,
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
    /// The hook's key, in logs and in CRONKEEPER_HOOK.
    pub fn name(&self) -> &'static str {
        match self {
            Self::OfJob(call) => call.hook.as_str(),
            Self::OfNode(call) => call.hook.as_str(),
        }
    }

    /// The job whose hook it is; `None` for a node's own.
    pub fn job(&self) -> Option<&Arc<Job>> {
        match self {
            Self::OfJob(call) => Some(&call.job),
            Self::OfNode(_) => None,
        }
    }

    /// The parameters of the run that the hook follows. Another node may have had the run, and its record may have been
    /// changed since: only those that the job takes.
    pub fn parameters(&self) -> Parameters {
        match self {
            Self::OfJob(JobHookCall { job, cause: Cause::Started(run), .. }) => run.parameters.fitting(job),
            Self::OfJob(JobHookCall { job, cause: Cause::Ended(end), .. }) => end.run.parameters.fitting(job),
            Self::OfJob(_) | Self::OfNode(_) => Parameters::default(),
        }
    }

    /// The run that the hook is about; `None` if it is about no run.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::OfJob(call) => call.run(),
            Self::OfNode(_) => None,
        }
    }

    /// True for a hook that follows every run that goes well. It gives way to those that tell of anything else.
    pub fn is_routine(&self) -> bool {
        matches!(self, Self::OfJob(JobHookCall { hook: Hook::Start | Hook::Success, .. }))
    }

    /// About how many bytes it takes, apart from its input.
    pub fn bytes(&self) -> usize {
        match self {
            Self::OfJob(call) => call.bytes(),
            Self::OfNode(call) => SMALL + call.variables.iter().map(|(_, value)| value.len()).sum::<usize>(),
        }
    }

    /// What to execute.
    pub fn command(&self) -> Option<&CommandLine> {
        match self {
            Self::OfJob(call) => call.job.hooks.get(&call.hook),
            Self::OfNode(call) => Some(&call.command),
        }
    }

    /// Time between SIGTERM and SIGKILL.
    pub fn kill_grace(&self) -> Duration {
        self.job().map_or(KILL_GRACE, |job| job.kill_grace)
    }

    /// The hook's standard input: the kept tail of the run's output.
    pub fn input(&self) -> &str {
        match self {
            Self::OfJob(JobHookCall { cause: Cause::Ended(end), .. }) => &end.tail,
            Self::OfJob(_) | Self::OfNode(_) => "",
        }
    }
}

impl JobHookCall {
    /// About how many bytes it takes, apart from its input.
    pub fn bytes(&self) -> usize {
        let run = match &self.cause {
            Cause::Started(run) => run,
            Cause::Ended(end) => &end.run,
            Cause::Skipped { .. } | Cause::Alarm { .. } => return SMALL,
        };
        let parameters: usize = run.parameters.iter().map(|(name, value)| name.len() + value.len()).sum();
        let dependents: usize = run.dependents.iter().map(|job| job.as_str().len()).sum();
        SMALL + parameters + dependents + run.past.attempts.len() * size_of::<Attempt>()
    }

    /// The run that the hook is about; the first one if several were skipped. `None` if it is about no run.
    pub fn run(&self) -> Option<RunId> {
        match &self.cause {
            Cause::Started(run) => Some(run.id()),
            Cause::Ended(end) => Some(end.run.id()),
            Cause::Skipped { skip, first, .. } => Some(skip.id_from(*first)),
            Cause::Alarm { raised, .. } => raised.run.clone(),
        }
    }
}
