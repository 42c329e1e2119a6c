//! The events that alerts and dashboards rely on: their names, their fields, and the words where a line brings none.
//!
//! The list is the contract's. A line may have more fields than are listed, and leaves out those that do not apply.

/// What is promised of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Its `message`, where a line has no words of its own.
    pub message: &'static str,
    /// Its fields.
    pub fields: &'static [&'static str],
}

/// The event of this name.
pub fn by_name(name: &str) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.name == name)
}

macro_rules! events {
    ($($id:ident $name:literal $message:literal [$($field:ident),*];)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $message, ".")]
            pub const $id: &str = $name;
        )*

        /// Every event.
        pub const EVENTS: &[Event] =
            &[$(Event { name: $name, message: $message, fields: &[$(stringify!($field)),*] }),*];
    };
}

events! {
    NODE_STARTED "node.started" "the node started" [version, backend, jobs];
    NODE_STATE "node.state" "the state of the node" [state];
    NODE_DRAINING "node.draining" "the node lets its runs end" [runs, timeout_ms];
    NODE_STOPPED "node.stopped" "the node stopped" [reason];
    JOBS_LOADED "jobs.loaded" "the jobs were loaded" [path, jobs, digest, added, changed, removed];
    JOBS_REJECTED "jobs.rejected" "the jobs file is invalid, the set loaded before stays" [path, errors, first];
    JOBS_DRIFT "jobs.drift" "another node has other jobs" [other, digest, other_digest];
    ELECTION_JOINED "election.joined" "the node has a place in the queue" [candidate];
    ELECTION_FOLLOWING "election.following" "the node waits behind another"
        [candidate, predecessor, predecessor_node, leader_node];
    LEADER_ELECTED "leader.elected" "the node leads" [candidate, token, took_ms];
    LEADER_RESIGNED "leader.resigned" "the node gave leadership up" [token, reason];
    LEADER_LOST "leader.lost" "leadership was taken from the node" [token, reason];
    TAKEOVER_DONE "takeover.done" "what the last leader left is settled" [token, settled, missed, took_ms];
    COORDINATION_UNREACHABLE "coordination.unreachable" "nobody answers" [retry_ms];
    COORDINATION_STALLED "coordination.stalled" "what the node needs of ZooKeeper fails again and again" [error];
    COORDINATION_DAMAGED "coordination.damaged" "a path cannot be read, written or trusted, and is passed over" [path];
    COORDINATION_SUSPENDED "coordination.suspended" "the connection is lost, the session may live" [session];
    COORDINATION_RESUMED "coordination.resumed" "the connection is back, the session lives" [session];
    COORDINATION_EXPIRED "coordination.expired" "the session is gone" [session];
    CLOCK_STEPPED "clock.stepped" "the clock was set" [by_ms];
    CLOCK_SKEWED "clock.skewed" "the clock differs from that of the coordination service" [by_ms];
    RUN_STARTED "run.started" "a run started" [job, run, scheduled_at, attempt, token, pid, lateness_ms];
    RUN_OUTPUT "run.output" "a run wrote a line" [job, run, stream, line];
    RUN_FINISHED "run.finished" "a run ended"
        [job, run, attempt, outcome, reason, exit_code, signal, duration_ms, leftovers];
    RUN_UNSTARTED "run.unstarted" "a run was not started yet, and will be" [job, run, attempt, reason];
    RUN_RETRYING "run.retrying" "a run is tried again" [job, run, attempt, delay_ms];
    RUN_SKIPPED "run.skipped" "occurrences were not run" [job, run, scheduled_at, reason, count, first, last];
    RUN_SUPERSEDED "run.superseded" "a run was settled by another node" [job, run];
    RUN_CUT_OFF "run.cut_off" "a run's node is cut off, and may go on with it" [job, run, owner, keep_until];
    RUN_OUTLIVED "run.outlived" "the warden has not killed a run in time, it is killed without it" [job, run];
    WARDEN_SILENT "warden.silent" "the warden neither starts nor ends anything any more, it is killed with all that runs" [runs];
    JOB_PAUSED "job.paused" "a job is paused" [job, by, reason];
    JOB_RESUMED "job.resumed" "a job's pause is over" [job, by];
    JOB_TRIGGERED "job.triggered" "a run is wanted now" [job, run, by];
    JOB_FORGOTTEN "job.forgotten" "no node has the job any more, what was kept of it is removed" [job, records];
    HOOK_FINISHED "hook.finished" "a hook ended" [job, run, hook, outcome];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract's table: names between slashes, and for each its fields; one field list stands for all of a row
    /// where the row has only one.
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
