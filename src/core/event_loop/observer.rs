//! The port through which the loop tells what it does.

use super::trees::Tree;
use crate::clock::{Clock, Now, Uptime};
use crate::coordination::Request;
use crate::election::Event as Election;
use crate::engine::hooks::NodeHookCall;
use crate::engine::{Engine, Report};
use crate::job::JobSet;
use crate::ledger::Event as LedgerEvent;
use crate::process::{Stream, Unsent};

/// Learns what happens, for the log, the status and whatever else people see.
///
/// The engine's decisions do not depend on it, except that it reads the jobs from what a reload brings. Besides, it says
/// which hooks of the node to call, and when to turn next. Each call is a part of a turn of the loop, so it must not
/// block. By default nothing is done.
pub trait Observer: Send {
    /// The result of reading the jobs file again, with all that only the observer needs of it.
    type Reloaded: Send;

    /// A turn begins.
    fn on_turn(&mut self, _now: Now) {}

    /// The election sent this event, which the engine has not handled yet. [`Election::Lease`] is not passed here.
    fn on_election(&mut self, _now: Now, _event: &Election, _engine: &Engine) {}

    /// The end of the lease has changed.
    fn on_lease(&mut self, _engine: &Engine) {}

    /// This request is about to be sent to the backend.
    fn on_request(&mut self, _now: Now, _request: &Request) {}

    /// The ledger sent this event, which the engine has not handled yet.
    fn on_ledger(&mut self, _now: Now, _event: &LedgerEvent) {}

    /// The engine made this report.
    fn on_report(&mut self, _now: Now, _report: Report, _engine: &Engine) {}

    /// A process of the tree has written lines, without their ends; `continues`: the next one of the stream continues the
    /// last of them.
    fn on_output(&mut self, _now: Now, _tree: &Tree, _stream: Stream, _lines: Vec<String>, _continues: bool) {}

    /// The tree has ended; of its output, this was not passed on.
    fn on_tree_ended(&mut self, _now: Now, _tree: &Tree, _unsent: Option<Unsent>) {}

    /// The jobs file was read again. Returns its jobs; `None` if it was rejected.
    fn on_reloaded(&mut self, now: Now, reloaded: Self::Reloaded, engine: &Engine) -> Option<JobSet>;

    /// The engine has handled the result of the last [`on_reloaded`](Self::on_reloaded).
    fn on_reload_done(&mut self) {}

    /// The node begins to stop.
    fn on_stopping(&mut self) {}

    /// An operator asked for the node's state in the log.
    fn log_state(&mut self, _now: Now, _engine: &Engine) {}

    /// The hooks of the node to call now.
    fn hooks_to_call(&mut self, _now: Now, _engine: &Engine) -> Vec<NodeHookCall> {
        Vec::new()
    }

    /// A turn ends. `now` is when it began, and the clock shows how long this call takes.
    fn on_turn_end(&mut self, _now: Now, _engine: &Engine, _clock: &impl Clock) {}

    /// When the loop is to turn next even if nothing happens; `None`: never.
    fn next_at(&self) -> Option<Uptime> {
        None
    }
}
