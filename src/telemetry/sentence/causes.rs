//! What the reasons in events mean, in words. The field `reason` has the name that programs rely on.

use cronkeeper_core::log_event;
use cronkeeper_core::run::RefusalReason;

/// A reason of this event in words; a reason that is not known stands for itself.
pub(super) fn cause<'a>(event: &str, reason: &'a str) -> &'a str {
    let known = match event {
        log_event::LEADER_LOST => of_lost_terms(reason),
        log_event::LEADER_HANDING_OVER => of_handovers(reason),
        log_event::RUN_REFUSED => {
            RefusalReason::ALL.into_iter().find(|known| known.as_str() == reason).map(RefusalReason::explained)
        }
        log_event::RUN_MOVED => of_moves(reason),
        log_event::RUN_SKIPPED => of_skips(reason),
        _ => of_ends(reason),
    };
    known.unwrap_or(reason)
}

fn of_lost_terms(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "lease" => "its lease ran out",
        "entry-gone" => "its entry in the queue is gone",
        "session-expired" => "its session has expired",
        "fenced" => "another node leads",
        "stalled" => "its loop is stuck",
        _ => return None,
    })
}

fn of_handovers(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "no-starts" => "this node cannot start processes",
        "invalid-file" => "the jobs file is invalid here, and valid there",
        "priority" => "the other node has a higher priority",
        _ => return None,
    })
}

fn of_moves(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "overdue" => "did not accept it in time",
        "node-gone" => "is gone",
        "node-drained" => "is drained or stopping",
        "offer-removed" => "never saw it, because its offer was deleted",
        _ => return None,
    })
}

fn of_skips(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "overlap" => "the run before it is still in flight",
        "missed" => "it was not started in time",
        "paused" => "the job is paused",
        "drained" => "its node is drained",
        "upstream" => "a job before it did not end as required",
        "locked" => "another client holds its lock",
        "not-defined" => "the leader's jobs file does not have the job",
        "parameters" => "the leader's jobs file does not allow its parameters",
        "no-node" => "no node that fits could take it in time",
        "rewound" => "the service has lost commits, and it may have run",
        _ => return None,
    })
}

fn of_ends(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "not-found" => "no such program",
        "not-executable" => "the program cannot be executed",
        "no-user" => "no such user or group",
        "no-directory" => "the working directory cannot be entered",
        "no-environment" => "an environment file cannot be used",
        "no-secret" => "a secret cannot be used",
        "parameters" => "its job does not take its parameters",
        "no-memory" => "out of memory or processes",
        "core-dump" => "core dumped",
        "operator" => "an operator asked for it",
        "replaced" => "the next run replaced it",
        "drain" => "the node stops",
        "lease" => "the lease of its node is over",
        "lock" => "a lock was lost",
        "node-died" => "its node died",
        _ => return None,
    })
}
