//! The interface through which the daemon starts and ends process trees.
//!
//! The program uses the warden; tests and the simulation use models. Nothing here blocks the loop, not even when
//! processes survive SIGKILL.

use std::thread;
use std::time::Duration;

use tracing::error;

use crate::warden::CodecError;
use crate::warden::handle::Handle;
use crate::warden::recover::{self, Recorded, Survivor};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::process::{Launch, Notice, Order};
use cronkeeper_core::term::NodeName;

/// How long to wait for processes to die that the daemon kills itself.
const DYING: Duration = Duration::from_secs(5);

/// Starts and ends process trees: the warden, or a model of it.
pub trait Processes: Send {
    /// Orders the start of a process tree. Never blocks.
    ///
    /// # Errors
    /// If the launch is too long for a message. Nothing was sent then.
    fn start(&mut self, launch: &Launch) -> Result<(), CodecError>;

    /// Sends an order. Never blocks.
    ///
    /// # Errors
    /// If the order cannot be encoded as a message. Nothing was sent then.
    fn send(&mut self, order: Order) -> Result<(), CodecError>;

    /// Waits for the next notice. Cancel safe.
    fn notice(&mut self) -> impl Future<Output = Result<Notice, WardenGone>> + Send;

    /// When the kernel started a process, in clock ticks since boot; absent once the process is gone.
    ///
    /// It distinguishes the process from a later one with the same PID.
    fn start_time(&self, pid: i32) -> Option<u64>;

    /// Kills trees without the warden. Never blocks, not even on processes that survive.
    fn kill_trees(&mut self, trees: Vec<Recorded>, node: &NodeName);

    fn kill_warden(&mut self);

    /// Kills everything that still runs, and returns when it is dead. The killing continues if the future is dropped.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// The warden is gone, so nothing guarantees any more that all processes end with the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the warden is gone")]
pub struct WardenGone;

impl Processes for Handle {
    fn start(&mut self, launch: &Launch) -> Result<(), CodecError> {
        Self::start(self, launch)
    }

    fn send(&mut self, order: Order) -> Result<(), CodecError> {
        Self::send(self, order)
    }

    async fn notice(&mut self) -> Result<Notice, WardenGone> {
        Self::notice(self).await.map_err(|error| {
            error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "{error}");
            WardenGone
        })
    }

    fn start_time(&self, pid: i32) -> Option<u64> {
        recover::start_time(pid)
    }

    fn kill_trees(&mut self, trees: Vec<Recorded>, node: &NodeName) {
        let node = node.clone();
        let kill = move || match recover::kill_orphans(&trees, node.as_str(), DYING) {
            Ok(survivors) => survivors.iter().for_each(|Survivor { run, pid }| {
                error!(target: TARGET, event = log_event::RUN_UNKILLABLE, %run, pid, "process {pid} survived SIGKILL");
            }),
            Err(error) => {
                error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "cannot find the processes the warden left behind: {error}")
            }
        };
        // On a thread of its own, because all of the runtime's threads may be waiting for a disk.
        if let Err(error) = thread::Builder::new().name("kill".into()).spawn(kill) {
            error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "cannot kill the processes the warden left behind: {error}");
        }
    }

    fn kill_warden(&mut self) {
        if let Err(error) = self.kill() {
            error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "cannot kill the warden: {error}");
        }
    }

    async fn close(self) {
        if let Err(error) = Self::close(self).await {
            error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "cannot wait for the warden to end: {error}");
        }
    }
}
