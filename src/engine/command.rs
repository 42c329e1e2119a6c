//! The engine's interface: observed facts in, commands out.

use std::sync::Arc;
use std::time::Duration;

use super::hooks::call::HookStart;
use super::report::Report;
use crate::clock::Uptime;
use crate::coordination::Request;
use crate::job::{Job, JobSet};
use crate::process::{Deadline, Notice, Order, TreeId};
use crate::run::journal::RecoveredRun;
use crate::run::{RunEnd, RunId, RunRecord, Version};
use crate::term::NodeName;
use crate::{election, ledger};

/// An observed fact, as the engine takes it.
#[expect(clippy::large_enum_variant, reason = "one at a time, and most are of the ledger")]
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed, or may have.
    Tick,
    /// From the election.
    Election(election::Event),
    /// From the ledger.
    Ledger(ledger::Event),
    /// From the warden; its lines of output are not the engine's business.
    Warden(Notice),
    /// A valid set of jobs was read.
    Loaded(JobSet),
    /// The jobs file was read and is invalid: the jobs loaded before stay.
    Rejected,
    /// Runs of an earlier process of this node, which are known to be dead. To be told before anything else.
    Recovered(Vec<RecoveredRun>),
    /// The operator wants the node to end once its runs have, after `timeout` at the latest.
    Drain {
        /// How long runs may take.
        timeout: Duration,
    },
    /// The operator wants the node to end now.
    Stop,
    /// The operator wants another node to lead: this one, or the next in line.
    HandOver {
        /// Who is to lead.
        to: Option<NodeName>,
    },
    /// The node cannot take part until an operator changes something: nobody is heard from now on. It ends once its runs have, after
    /// `timeout` at the latest.
    Failed {
        /// How long runs may take.
        timeout: Duration,
    },
}

/// An order to the shell around the engine.
#[expect(clippy::large_enum_variant, reason = "most ask for commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Ask the election or the ledger.
    Ask(Request),
    /// Note the run in the state directory, then tell the warden to start it. Where that cannot be noted, it is not
    /// started: [`Notice::NotStarted`] comes back.
    Start(Box<Start>),
    /// Tell the warden to start a hook. Where that cannot be done, [`Notice::NotStarted`] comes back.
    RunHook(Box<HookStart>),
    /// Tell the warden.
    Order(Order),
    /// Kill these trees without the warden, which has not said in time that they are dead.
    EndTrees(Vec<TreeId>),
    /// Keep an end in the state directory until the ledger has it.
    KeepEnd {
        /// How the run ended.
        end: Box<RunEnd>,
        /// Of its record in the ledger.
        version: Version,
    },
    /// Forget a run in the state directory: the ledger knows all about it.
    Forget(RunId),
    /// Tell people.
    Tell(Report),
    /// End the daemon: all is done.
    Exit,
}

/// An attempt to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// The tree's name to the warden.
    pub tree_id: TreeId,
    /// The run, as the ledger has it.
    pub run: RunRecord,
    /// Of the record.
    pub version: Version,
    /// What to start.
    pub job: Arc<Job>,
    /// Not to be started at or after this instant.
    pub not_after: Uptime,
    /// When it is killed without being told to.
    pub deadline: Deadline,
}
