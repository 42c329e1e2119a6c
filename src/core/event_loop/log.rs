//! Log lines about what the loop itself does or cannot do.

use std::error::Error;
use std::time::Duration;

use tracing::{error, info, warn};

use super::CLOSING;
use crate::election::TransferError;
use crate::log_event::{self, TARGET};
use crate::process::NotSent;
use crate::run::{RunId, millis};

/// The process was stopped, or its host was frozen. Whatever is logged next about the warden or the service is due to
/// that.
pub(super) fn stood_still(stood: Duration) {
    let (event, stood_ms) = (log_event::NODE_STOOD_STILL, millis(stood));
    warn!(target: TARGET, event, stood_ms, "this process stood still for {} s", stood.as_secs());
}

/// The warden did not report a run dead in time, so the daemon kills it.
pub(super) fn overdue(run: &RunId) {
    warn!(target: TARGET, event = log_event::RUN_OUTLIVED, job = %run.job(), %run);
}

/// The daemon gives up on a warden that does not respond.
pub(super) fn warden_silent(runs: usize) {
    error!(target: TARGET, event = log_event::WARDEN_SILENT, runs);
}

pub(super) fn order_not_sent(error: &NotSent) {
    error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "cannot send an order to the warden: {error}");
}

pub(super) fn start_not_sent(run: &RunId, error: &NotSent) {
    let (event, job) = (log_event::WARDEN_FAILED, run.job());
    error!(target: TARGET, event, %job, %run, %error, "cannot send the start of a run to the warden: {error}");
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
    info!(target: TARGET, event = log_event::OPERATOR_REQUESTED, request, by, "{by} requested a handover");
    if !leads {
        let reason = TransferError::NotLeading.to_string();
        info!(target: TARGET, event = log_event::OPERATOR_REFUSED, request, by, reason, "handover refused: {reason}");
    }
}

/// An operator, after a first request to stop, does not want to wait for the runs.
pub(super) fn stopping(runs: usize) {
    warn!(target: TARGET, event = log_event::NODE_STOPPING, runs);
}

/// The state directory did not take something about a run, in `what`.
pub(super) fn state_failed(run: &RunId, what: &str, error: &dyn Error) {
    let event = log_event::STATE_FAILED;
    error!(target: TARGET, event, job = %run.job(), %run, %error, "cannot {what} in the state directory: {error}");
}
