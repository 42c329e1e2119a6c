//! What this node notices of others: who goes and comes back, and who has other jobs or time zones.

use tracing::field::display;

use crate::daemon::drift::Drift;
use crate::daemon::members::MemberNews;
use cronkeeper_core::clock::{instant, stamp};
use cronkeeper_core::log;

/// Logs that a node has gone, or is back.
pub(super) fn member(news: &MemberNews) {
    match news {
        MemberNews::Gone(missing) => {
            let (other, last_seen) = (&missing.node, missing.last_seen.map(instant).map(display));
            if missing.stopped {
                return log!(INFO MEMBER_GONE, %other, reason = "stopped", last_seen, "stopped, as it was asked to");
            }
            let seen = missing.seen_well_before();
            let seen = seen.map(|at| format!("; it was last seen alive at {}Z", stamp(at))).unwrap_or_default();
            log!(WARN MEMBER_GONE, %other, reason = "session-ended", last_seen, "is gone: its session has ended{seen}");
        }
        MemberNews::Back(missing) => {
            log!(MEMBER_BACK, other = %missing.node, gone_since = %instant(missing.gone_since));
        }
    }
}

/// Logs that another node's jobs or time zone data differ.
pub(super) fn drift_begun(drift: &Drift) {
    match drift {
        Drift::Jobs { other, digest, other_digest } => log!(JOBS_DRIFT, %other, %digest, %other_digest),
        Drift::Zones { other, tzdata, other_tzdata } => log!(ZONES_DRIFT, %other, tzdata, other_tzdata),
    }
}

/// Logs that another node's jobs or time zone data are the same again.
pub(super) fn drift_ended(drift: &Drift) {
    match drift {
        Drift::Jobs { other, .. } => log!(JOBS_DRIFT_ENDED, %other),
        Drift::Zones { other, .. } => log!(ZONES_DRIFT_ENDED, %other),
    }
}
