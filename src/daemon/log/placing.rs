//! Log lines about attempts that the leader places on nodes.

use tracing::field::display;
use tracing::{debug, info, warn};

use cronkeeper_core::engine::Report;
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::run::{RefusalReason, RunId};

/// Logs what became of a placed attempt, or of what is to be placed.
pub(super) fn news(report: &Report) {
    match report {
        Report::Placed { run, attempt, to } => {
            debug!(target: TARGET, event = log_event::RUN_PLACED, job = %run.job(), %run, attempt, %to);
        }
        Report::Refused { run, reason, .. } => refused(run, *reason),
        Report::Moved { run, from, to, reason } => {
            let to = to.as_ref().map(display);
            warn!(target: TARGET, event = log_event::RUN_MOVED, job = %run.job(), %run, %from, to, reason);
        }
        Report::Unplaced { run, why } => {
            warn!(target: TARGET, event = log_event::RUN_UNPLACED, job = %run.job(), %run, why, "the run waits: {why}");
        }
        Report::Unplaceable { job, why } => {
            warn!(target: TARGET, event = log_event::JOB_UNPLACEABLE, %job, why, "the job cannot run anywhere: {why}");
        }
        Report::Placeable { job } => info!(target: TARGET, event = log_event::JOB_PLACEABLE, %job),
        Report::Suspect { node } => warn!(target: TARGET, event = log_event::NODE_SUSPECT, other = %node),
        _ => {}
    }
}

/// Every line has the node that logs it, and that is the one that refuses.
fn refused(run: &RunId, reason: RefusalReason) {
    macro_rules! line {
        ($level:ident) => {
            $level!(
                target: TARGET,
                event = log_event::RUN_REFUSED,
                job = %run.job(),
                %run,
                reason = reason.as_str(),
                "this node does not run what the leader placed on it: {}",
                reason.explained(),
            )
        };
    }
    if reason.is_fault() { line!(warn) } else { line!(info) }
}
