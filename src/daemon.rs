//! The daemon: the event loop with the real ports, and what people see of it.
//!
//! [`Monitor`] follows the loop, for the log, the status, the metrics, the archive, the kept output, systemd and the
//! hooks of the node.

pub mod cluster_watch;
mod drift;
pub mod launch;
mod log;
mod members;
mod monitor;
mod next_times;
pub mod orphans;
mod processes;
pub mod reload;
mod shown;
pub mod signals;
pub mod view;

use self::launch::Launcher;
pub use self::monitor::{Monitor, MonitorSettings};
use self::reload::Reloaded;
pub use self::shown::Shown;
use crate::config::Loaded;
use crate::warden::handle::Handle;
use cronkeeper_cluster::state_dir::journal::FileJournal;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::event_loop;
use cronkeeper_core::job::JobSet;

/// A request of the operator, made by a signal, the API or an edit of the jobs file.
pub type Control = event_loop::Control<Reloaded>;

/// The ports of a real node.
#[derive(Debug)]
pub enum RealPorts {}

impl event_loop::Ports for RealPorts {
    type Clock = SystemClock;
    type Processes = Handle;
    type Journal = FileJournal;
    type Launcher = Launcher;
    type Observer = Monitor;
}

/// Logs which jobs the node starts with.
pub fn announce(loaded: &Loaded) {
    log::loaded(loaded, &JobSet::default().difference(&loaded.set), true);
}
