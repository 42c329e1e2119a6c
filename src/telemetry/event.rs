//! Log events that alerts and dashboards rely on.
//!
//! Each has a name, a list of fields, and a default message for log lines without one of their own. The list is the
//! one in docs/contract.md. A line may have more fields than are listed, and leaves out those that do not apply.

/// An event as docs/contract.md promises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: &'static str,
    /// Used as the line's `message` when the line has none of its own.
    pub message: &'static str,
    pub fields: &'static [&'static str],
}

pub fn by_name(name: &str) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.name == name)
}

macro_rules! events {
    ($($id:ident $name:literal $message:literal [$($field:ident),*];)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $message, ".")]
            pub const $id: &str = $name;
        )*

        pub const EVENTS: &[Event] =
            &[$(Event { name: $name, message: $message, fields: &[$(stringify!($field)),*] }),*];
    };
}

events! {
    NODE_STARTED "node.started" "the node started" [version, backend, jobs];
    NODE_STATE "node.state" "the current state of the node" [state];
    NODE_DRAINING "node.draining" "the node is draining: it waits for its runs to end" [runs, timeout_ms];
    NODE_STOPPED "node.stopped" "the node stopped" [reason];
    JOBS_LOADED "jobs.loaded" "the jobs were loaded" [path, jobs, digest, added, changed, removed];
    JOBS_REJECTED "jobs.rejected" "the jobs file is invalid; keeping the jobs loaded before" [path, errors, first];
    JOBS_DRIFT "jobs.drift" "another node has loaded different jobs" [other, digest, other_digest];
    ELECTION_JOINED "election.joined" "the node joined the queue" [candidate];
    ELECTION_FOLLOWING "election.following" "the node is waiting behind its predecessor in the queue"
        [candidate, predecessor, predecessor_node, leader_node];
    LEADER_ELECTED "leader.elected" "the node became the leader" [candidate, token, took_ms];
    LEADER_RESIGNED "leader.resigned" "the node resigned as leader" [token, reason];
    LEADER_LOST "leader.lost" "the node lost leadership" [token, reason];
    TAKEOVER_DONE "takeover.done" "the new leader has settled everything earlier leaders left open"
        [token, settled, missed, took_ms];
    COORDINATION_UNREACHABLE "coordination.unreachable" "the coordination service does not answer; retrying" [retry_ms];
    COORDINATION_STALLED "coordination.stalled" "an operation that the node needs keeps failing" [error];
    COORDINATION_DAMAGED "coordination.damaged" "ignoring a path that cannot be read, written or trusted" [path];
    COORDINATION_SUSPENDED "coordination.suspended" "connection lost; the session may still be alive" [session];
    COORDINATION_RESUMED "coordination.resumed" "connection restored; the session is still alive" [session];
    COORDINATION_EXPIRED "coordination.expired" "the session expired" [session];
    CLOCK_STEPPED "clock.stepped" "the system clock was stepped" [by_ms];
    CLOCK_SKEWED "clock.skewed" "the node's clock differs from the coordination service's clock" [by_ms];
    RUN_STARTED "run.started" "a run started" [job, run, scheduled_at, attempt, token, pid, lateness_ms];
    RUN_OUTPUT "run.output" "a run wrote a line of output" [job, run, stream, line];
    RUN_FINISHED "run.finished" "a run ended"
        [job, run, attempt, outcome, reason, exit_code, signal, duration_ms, leftovers];
    RUN_UNSTARTED "run.unstarted" "an attempt could not be started; the leader will begin another"
        [job, run, attempt, reason];
    RUN_RETRYING "run.retrying" "an attempt failed; the run will be retried" [job, run, attempt, delay_ms];
    RUN_SKIPPED "run.skipped" "occurrences were skipped" [job, run, scheduled_at, reason, count, first, last];
    RUN_SUPERSEDED "run.superseded" "another node has already settled this run" [job, run];
    RUN_CUT_OFF "run.cut_off" "the run's node is cut off and may still be running it" [job, run, owner, keep_until];
    RUN_OUTLIVED "run.outlived" "the warden did not report the run dead in time; killing it without the warden"
        [job, run];
    WARDEN_SILENT "warden.silent" "the warden has stopped responding; killing it and all running jobs" [runs];
    LOCK_LOST "lock.lost" "somebody else has ended a lock of this run; killing it" [job, run, path];
    LOCK_REVOKE_REQUESTED "lock.revoke_requested" "somebody asks to release a lock of this run" [job, run, path];
    LOCK_REFUSED "lock.refused" "a lock of this run is refused; trying again" [job, run];
    JOB_PAUSED "job.paused" "a job was paused" [job, by, reason];
    JOB_RESUMED "job.resumed" "a job was resumed" [job, by];
    JOB_TRIGGERED "job.triggered" "a job was triggered" [job, run, by];
    JOB_FORGOTTEN "job.forgotten" "no node defines this job any more; its records were removed" [job, records];
    HOOK_FINISHED "hook.finished" "a hook ended" [job, run, hook, outcome];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/contract.md: names separated by slashes, then the fields of each. A row with a single field
    /// list applies it to all its names.
    const CONTRACT: &str = "\
node.started / node.state / node.draining / node.stopped | version, backend, jobs / state / runs, timeout_ms / reason
jobs.loaded / jobs.rejected | path, jobs, digest, added, changed, removed / path, errors, first
jobs.drift | other, digest, other_digest
election.joined | candidate
election.following | candidate, predecessor, predecessor_node, leader_node
leader.elected | candidate, token, took_ms
leader.resigned / leader.lost | token, reason
takeover.done | token, settled, missed, took_ms
coordination.unreachable | retry_ms
coordination.stalled | error
coordination.damaged | path
coordination.suspended / coordination.resumed / coordination.expired | session
clock.stepped / clock.skewed | by_ms
run.started | job, run, scheduled_at, attempt, token, pid, lateness_ms
run.output | job, run, stream, line
run.finished | job, run, attempt, outcome, reason, exit_code, signal, duration_ms, leftovers
run.unstarted | job, run, attempt, reason
run.retrying | job, run, attempt, delay_ms
run.skipped | job, run, scheduled_at, reason, count, first, last
run.superseded | job, run
run.cut_off | job, run, owner, keep_until
run.outlived | job, run
warden.silent | runs
lock.lost | job, run, path
lock.revoke_requested | job, run, path
lock.refused | job, run
job.paused / job.resumed / job.triggered | job, by, reason / job, by / job, run, by
job.forgotten | job, records
hook.finished | job, run, hook, outcome";

    #[test]
    fn every_event_of_the_contract_is_listed_with_its_fields_and_no_other() {
        let mut promised = Vec::new();
        for row in CONTRACT.lines() {
            let (names, fields) = row.split_once(" | ").unwrap();
            let lists: Vec<_> = fields.split(" / ").collect();
            for (i, name) in names.split(" / ").enumerate() {
                promised.push((name, lists[i.min(lists.len() - 1)].split(", ").collect::<Vec<_>>()));
            }
        }
        let listed: Vec<_> = EVENTS.iter().map(|event| (event.name, event.fields.to_vec())).collect();
        assert_eq!(listed, promised);
    }

    #[test]
    fn no_event_has_a_field_that_every_line_has() {
        for event in EVENTS {
            for taken in ["timestamp", "level", "event", "message", "node"] {
                assert!(!event.fields.contains(&taken), "{}: {taken}", event.name);
            }
        }
    }
}
