//! Log lines about attempts that the leader places on nodes.

use cronkeeper_core::engine::Report;
use cronkeeper_core::log;

/// Logs what became of a placed attempt, or of what is to be placed.
pub(super) fn news(report: &Report) {
    match report {
        Report::Placed { run, attempt, to } => log!(RUN_PLACED, job = %run.job(), %run, attempt, %to),
        // Every line has the node that logs it, and that is the one that refuses.
        Report::Refused { run, reason, .. } if reason.is_fault() => {
            log!(WARN RUN_REFUSED, job = %run.job(), %run, reason = reason.as_str());
        }
        Report::Refused { run, reason, .. } => {
            log!(INFO RUN_REFUSED, job = %run.job(), %run, reason = reason.as_str());
        }
        Report::Moved { run, from, to, reason } => {
            log!(RUN_MOVED, job = %run.job(), %run, %from, to = to.as_ref().map(tracing::field::display), reason);
        }
        Report::Unplaced { run, why } => log!(RUN_UNPLACED, job = %run.job(), %run, why),
        Report::Unplaceable { job, why } => log!(JOB_UNPLACEABLE, %job, why),
        Report::Placeable { job } => log!(JOB_PLACEABLE, %job),
        Report::Suspect { node } => log!(NODE_SUSPECT, other = %node),
        _ => {}
    }
}
