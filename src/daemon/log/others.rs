//! What this node notices of others: who goes and comes back, and who has other jobs or time zones.

use tracing::{info, warn};

use crate::daemon::drift::Drift;
use crate::daemon::members::MemberNews;
use cronkeeper_core::clock::{instant, stamp};
use cronkeeper_core::log_event::{self, TARGET};

/// Logs that a node has gone, or is back.
pub(super) fn member(news: &MemberNews) {
    match news {
        MemberNews::Gone { missing, was_stopping: true } => info!(
            target: TARGET,
            event = log_event::MEMBER_GONE,
            other = %missing.node,
            reason = "stopped",
            last_seen = missing.last_seen.map(instant).map(tracing::field::display),
            "{} has stopped, as it was asked to",
            missing.node,
        ),
        MemberNews::Gone { missing, was_stopping: false } => {
            let seen = missing.last_seen.filter(|_| missing.is_vague());
            let seen = seen.map(|at| format!("; it was last seen alive at {}Z", stamp(at)));
            warn!(
                target: TARGET,
                event = log_event::MEMBER_GONE,
                other = %missing.node,
                reason = "session-ended",
                last_seen = missing.last_seen.map(instant).map(tracing::field::display),
                "{} is gone: its session has ended{}",
                missing.node,
                seen.unwrap_or_default(),
            );
        }
        MemberNews::Back(missing) => info!(
            target: TARGET,
            event = log_event::MEMBER_BACK,
            other = %missing.node,
            gone_since = %instant(missing.gone_since),
            "{} is back; it was gone since {}Z",
            missing.node,
            stamp(missing.gone_since),
        ),
    }
}

/// Logs that another node's jobs or time zone data differ.
pub(super) fn drift_begun(drift: &Drift) {
    match drift {
        Drift::Jobs { other, digest, other_digest } => {
            warn!(target: TARGET, event = log_event::JOBS_DRIFT, %other, %digest, %other_digest);
        }
        Drift::Zones { other, tzdata, other_tzdata } => warn!(
            target: TARGET,
            event = log_event::ZONES_DRIFT,
            %other,
            tzdata,
            other_tzdata,
            "another node has different time zone data: install the same tzdata on all nodes, \
             or they may disagree about when a job is due",
        ),
    }
}

/// Logs that another node's jobs or time zone data are the same again.
pub(super) fn drift_ended(drift: &Drift) {
    match drift {
        Drift::Jobs { other, .. } => info!(target: TARGET, event = log_event::JOBS_DRIFT_ENDED, %other),
        Drift::Zones { other, .. } => info!(target: TARGET, event = log_event::ZONES_DRIFT_ENDED, %other),
    }
}
