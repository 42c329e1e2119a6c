//! The warden as the processes of the event loop.

use std::thread;
use std::time::Duration;

use crate::warden::CodecError;
use crate::warden::handle::Handle;
use crate::warden::recover::{self, Survivor};
use cronkeeper_core::log;
use cronkeeper_core::process::{Launch, NotSent, Notice, Order, Processes, Recorded, TreeId, WardenGone};
use cronkeeper_core::term::NodeName;

/// How long to wait for processes to die that the daemon kills itself.
const DYING: Duration = Duration::from_secs(5);

impl Processes for Handle {
    fn start(&mut self, launch: &Launch) -> Result<(), NotSent> {
        Self::start(self, launch).map_err(not_sent)
    }

    fn send(&mut self, order: Order) -> Result<(), NotSent> {
        Self::send(self, order).map_err(not_sent)
    }

    async fn notice(&mut self) -> Result<Notice, WardenGone> {
        Self::notice(self).await.map_err(|error| {
            log!(WARDEN_FAILED, %error);
            WardenGone
        })
    }

    fn begins_file(&self) -> Option<&str> {
        Self::begins_file(self)
    }

    fn start_time(&self, pid: i32) -> Option<u64> {
        recover::start_time(pid)
    }

    fn kill_trees(&mut self, trees: Vec<Recorded>, node: &NodeName) {
        let node = node.clone();
        let kill = move || match recover::kill_orphans(&trees, node.as_str(), DYING) {
            Ok(survivors) => survivors.iter().for_each(|Survivor { run, pid }| {
                log!(RUN_UNKILLABLE, %run, pid);
            }),
            Err(error) => log!(WARDEN_FAILED, %error, "cannot find the processes that the warden left behind"),
        };
        // On a thread of its own, because all of the runtime's threads may be waiting for a disk.
        if let Err(error) = thread::Builder::new().name("kill".into()).spawn(kill) {
            log!(WARDEN_FAILED, %error, "cannot kill the processes that the warden left behind");
        }
    }

    fn kill_warden(&mut self) {
        if let Err(error) = self.kill() {
            log!(WARDEN_FAILED, %error, "cannot kill the warden");
        }
    }

    async fn close(self, mut trees: Vec<TreeId>) -> Vec<TreeId> {
        match Self::close(self).await {
            Ok(closed) => trees.retain(|tree_id| closed.is_unbegun(*tree_id)),
            Err(error) => {
                log!(WARDEN_FAILED, %error, "cannot wait for the warden to end");
                trees.clear();
            }
        }
        trees
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it converts the error of a call")]
fn not_sent(error: CodecError) -> NotSent {
    NotSent(error.to_string())
}
