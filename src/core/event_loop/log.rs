//! Log lines about what the loop itself does or cannot do.

use std::error::Error;
use std::time::Duration;

use tracing::error;

use super::CLOSING;
use crate::election::TransferError;
use crate::log;
use crate::log_event::TARGET;
use crate::process::NotSent;
use crate::run::{RunId, millis};

/// The process was stopped, or its host was frozen. Whatever is logged next about the warden or the service is due to
/// that.
pub(super) fn stood_still(stood: Duration) {
    log!(NODE_STOOD_STILL, stood_ms = millis(stood));
}

/// The warden did not report a run dead in time, so the daemon kills it.
pub(super) fn overdue(run: &RunId) {
    log!(RUN_OUTLIVED, job = %run.job(), %run);
}

/// The daemon gives up on a warden that does not respond.
pub(super) fn warden_silent(runs: usize) {
    log!(WARDEN_SILENT, runs);
}

pub(super) fn order_not_sent(error: &NotSent) {
    log!(WARDEN_FAILED, %error, "cannot send an order to the warden");
}

pub(super) fn start_not_sent(run: &RunId, error: &NotSent) {
    log!(WARDEN_FAILED, job = %run.job(), %run, %error, "cannot send the start of a run to the warden");
}

/// The processes have not all died while the daemon was closing.
pub(super) fn left_running() {
    error!(
        target: TARGET,
        "some processes are still running after {} s; the warden continues to kill them without the daemon",
        CLOSING.as_secs(),
    );
}

/// An operator requested a handover by a signal; `leads`: this node leads, so it will be tried.
pub(super) fn signalled_handover(leads: bool) {
    let (request, by) = ("handover", "SIGUSR2");
    log!(OPERATOR_REQUESTED, request, by);
    if !leads {
        let reason = TransferError::NotLeading.to_string();
        log!(INFO OPERATOR_REFUSED, request, by, reason, "{request} by {by} refused: {reason}");
    }
}

/// An operator, after a first request to stop, does not want to wait for the runs.
pub(super) fn stopping(runs: usize) {
    log!(NODE_STOPPING, runs);
}

/// The state directory did not take something about a run, in `what`.
pub(super) fn state_failed(run: &RunId, what: &str, error: &dyn Error) {
    log!(STATE_FAILED, job = %run.job(), %run, %error, "{what}");
}
