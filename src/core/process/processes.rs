//! The port through which the daemon starts and ends process trees.
//!
//! The program uses the warden; tests and the simulation use models. Nothing here blocks the loop, not even when
//! processes survive SIGKILL.

use super::{Launch, Notice, Order, TreeId};
use crate::run::Traces;
use crate::term::NodeName;

/// Starts and ends process trees: the warden, or a model of it.
pub trait Processes: Send {
    /// Orders the start of a process tree. Never blocks.
    ///
    /// # Errors
    /// If the launch is too long for a message. Nothing was sent then.
    fn start(&mut self, launch: &Launch) -> Result<(), NotSent>;

    /// Sends an order. Never blocks.
    ///
    /// # Errors
    /// If the order cannot be encoded as a message. Nothing was sent then.
    fn send(&mut self, order: Order) -> Result<(), NotSent>;

    /// Waits for the next notice. Cancel safe.
    fn notice(&mut self) -> impl Future<Output = Result<Notice, WardenGone>> + Send;

    /// The file in the state directory in which the warden leaves, should the daemon die, which programs have begun;
    /// `None` if nowhere.
    fn begins_file(&self) -> Option<&str>;

    /// When the kernel started a process, in clock ticks since boot; absent once the process is gone.
    ///
    /// It distinguishes the process from a later one with the same PID.
    fn start_time(&self, pid: i32) -> Option<u64>;

    /// Kills trees without the warden. Never blocks, not even on processes that survive.
    fn kill_trees(&mut self, trees: Vec<Recorded>, node: &NodeName);

    /// Kills the warden, and with it every start that it has not carried out. Never blocks.
    fn kill_warden(&mut self);

    /// Kills everything that still runs, and returns when it is dead. The killing continues if the future is dropped.
    ///
    /// Returns those of `trees` whose programs certainly never began; none of `trees` was reported as over.
    fn close(self, trees: Vec<TreeId>) -> impl Future<Output = Vec<TreeId>> + Send;
}

/// A message that cannot be sent to the warden, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotSent(pub String);

/// The warden is gone, so nothing guarantees any more that all processes end with the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the warden is gone")]
pub struct WardenGone;

/// The record that a daemon wrote about a tree that it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The run's id.
    pub run: String,
    /// The main process and its start time, if it was started and the time was read before it ended.
    pub main: Option<(i32, Option<u64>)>,
    /// What its processes are recognized by.
    pub traces: Traces,
}
