//! The engine's interface: events in, commands out.

use std::sync::Arc;
use std::time::Duration;

use super::hooks::call::{HookStart, NodeHookCall};
use super::report::Report;
use crate::clock::Uptime;
use crate::coordination::Request;
use crate::job::{Job, JobSet};
use crate::process::{Deadline, Notice, Order, TreeId};
use crate::run::OverAttempts;
use crate::run::journal::RecoveredRun;
use crate::run::{RunEnd, RunId, RunRecord, Version};
use crate::run_lock::LockGrant;
use crate::term::NodeName;
use crate::{election, ledger, run_lock};

/// An observed fact, as the engine receives it.
#[expect(clippy::large_enum_variant, reason = "one at a time, and most are of the ledger")]
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed, or may have.
    Tick,
    Election(election::Event),
    Ledger(ledger::Event),
    Lock(run_lock::Event),
    /// A notice of the warden. The engine ignores lines of output.
    Warden(Notice),
    /// The jobs file was read and is valid.
    Loaded(JobSet),
    /// The jobs file was read and is invalid: the jobs loaded before stay in force.
    Rejected,
    /// Runs of an earlier process of this node whose processes are known to be dead. Must be the first event.
    Recovered {
        runs: Vec<RecoveredRun>,
        over: OverAttempts,
    },
    /// The operator requests that the node end once its runs have ended, after `timeout` at the latest.
    Drain {
        /// How long runs may take to end.
        timeout: Duration,
    },
    /// Something happened to the cluster that a hook of the node follows.
    CallHook(NodeHookCall),
    /// The operator requests that the node end now.
    Stop,
    /// The operator requests that another node lead.
    HandOver {
        /// The node to lead; absent: the next in the queue.
        to: Option<NodeName>,
    },
    /// The node cannot take part until an operator changes something: the coordination service sends no events from now
    /// on. The node ends once its runs have ended, after `timeout` at the latest.
    Failed {
        /// How long runs may take to end.
        timeout: Duration,
    },
}

/// A command to the daemon around the engine.
#[expect(clippy::large_enum_variant, reason = "most ask for commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Send a request to the election or the ledger.
    Ask(Request),
    /// Record the run in the state directory, then order the warden to start it. If it cannot be recorded, it is not
    /// started and [`Notice::NotStarted`] comes back.
    Start(Box<Start>),
    /// Order the warden to start a hook. If that fails, [`Notice::NotStarted`] comes back.
    RunHook(Box<HookStart>),
    /// Send an order to the warden.
    Order(Order),
    /// Kill these process trees without the warden, which has not reported in time that they are dead.
    EndTrees(Vec<TreeId>),
    /// Keep a run's end in the state directory until the ledger has it.
    KeepEnd {
        end: Box<RunEnd>,
        /// Version of the run's record in the ledger.
        version: Version,
    },
    /// Forget a run in the state directory: the ledger has everything about it.
    Forget(RunId),
    /// Forget a run's attempt in the state directory: it had no process.
    NoteUnstarted(RunId),
    /// Log a report, count it and show it in the status.
    Report(Report),
    /// End the daemon: nothing is left to do.
    Exit,
}

/// An attempt for the warden to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub tree_id: TreeId,
    /// The run as the ledger has it.
    pub run: RunRecord,
    /// Version of that record.
    pub version: Version,
    pub job: Arc<Job>,
    /// The locks that it holds.
    pub lock: Option<LockGrant>,
    /// The program must not begin before this instant; absent: it begins at once.
    pub not_before: Option<Uptime>,
    /// The attempt must not be started at or after this instant.
    pub not_after: Uptime,
    /// When the warden kills it without an order.
    pub deadline: Deadline,
}
