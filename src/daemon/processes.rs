//! What starts and ends process trees for the daemon: the warden; in tests, and on virtual time, others.
//!
//! Nothing here blocks the loop, whatever does not die.

use std::thread;
use std::time::Duration;

use tracing::error;

use crate::telemetry::TARGET;
use crate::term::NodeName;
use crate::warden::CodecError;
use crate::warden::handle::Handle;
use crate::warden::recover::{self, Recorded, Survivor};
use crate::warden::wire::{Notice, Order};

/// How long what the daemon kills itself is seen to.
const DYING: Duration = Duration::from_secs(5);

/// What starts and ends process trees: the warden, or a model of it.
pub trait Processes: Send {
    /// Hands an order over. Never blocks.
    ///
    /// # Errors
    /// When the order cannot be put into a message; nothing was sent.
    fn send(&mut self, order: &Order) -> Result<(), CodecError>;

    /// The next notice. Cancel safe.
    fn notice(&mut self) -> impl Future<Output = Result<Notice, WardenGone>> + Send;

    /// When the kernel started a process, to tell it from a later one with its number; absent once it is gone.
    fn start_time(&self, pid: i32) -> Option<u64>;

    /// Kills trees without the warden. Never blocks, whatever does not die.
    fn kill_trees(&mut self, trees: Vec<Recorded>, node: &NodeName);

    /// Kills the warden itself.
    fn kill_warden(&mut self);

    /// Kills all that still runs, and returns when that is done. Dropped, it goes on without anybody waiting for it.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// The warden is gone, and with it the promise that nothing outlives the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the warden is gone")]
pub struct WardenGone;

impl Processes for Handle {
    fn send(&mut self, order: &Order) -> Result<(), CodecError> {
        Self::send(self, order)
    }

    async fn notice(&mut self) -> Result<Notice, WardenGone> {
        Self::notice(self).await.map_err(|error| {
            error!(target: TARGET, "{error}");
            WardenGone
        })
    }

    fn start_time(&self, pid: i32) -> Option<u64> {
        recover::start_time(pid)
    }

    fn kill_trees(&mut self, trees: Vec<Recorded>, node: &NodeName) {
        let node = node.clone();
        let kill = move || match recover::kill_strays(&trees, node.as_str(), DYING) {
            Ok(survivors) => survivors.iter().for_each(|Survivor { run, pid }| {
                error!(target: TARGET, %run, "process {pid} does not die of SIGKILL");
            }),
            Err(error) => error!(target: TARGET, "what the warden left cannot be found: {error}"),
        };
        // Not on the runtime's threads, which may all wait for a disk.
        if let Err(error) = thread::Builder::new().name("kill".into()).spawn(kill) {
            error!(target: TARGET, "what the warden left cannot be killed: {error}");
        }
    }

    fn kill_warden(&mut self) {
        if let Err(error) = self.kill() {
            error!(target: TARGET, "the warden cannot be killed: {error}");
        }
    }

    async fn close(self) {
        if let Err(error) = Self::close(self).await {
            error!(target: TARGET, "the end of the warden cannot be waited for: {error}");
        }
    }
}
