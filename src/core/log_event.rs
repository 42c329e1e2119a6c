//! Log events that alerts and dashboards rely on.
//!
//! Each has a name, a list of fields, and a default message for log lines without one of their own. The list is the
//! one in docs/contract.md. A line may have more fields than are listed, and leaves out those that do not apply.

/// The `tracing` target of the daemon's own events.
pub const TARGET: &str = "cronkeeper";

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
    NODE_DRAINING "node.draining" "the node waits for its runs to end; a second signal kills them at once"
        [runs, waits_for, timeout_ms];
    NODE_DRAINED "node.drained" "an operator drained the node: it leads no more, and its runs go on to their end"
        [by, reason, runs, waits_for];
    NODE_UNDRAINED "node.undrained" "the node is no longer drained, and joins the queue again" [by];
    NODE_STOPPING "node.stopping" "the node was asked again to stop: it kills its runs" [runs];
    NODE_STOPPED "node.stopped" "the node stopped" [reason];
    NODE_UNSETTLED "node.unsettled" "the node stops before the ledger has the ends of all its runs" [runs];
    NODE_STUCK "node.stuck" "the daemon's loop is stuck" [stood_ms];
    NODE_UNSTUCK "node.unstuck" "the daemon's loop turns again" [];
    NODE_STOOD_STILL "node.stood_still" "this process stood still" [stood_ms];
    JOBS_LOADED "jobs.loaded" "the jobs were loaded"
        [path, jobs, digest, added, changed, removed, added_jobs, changed_jobs, removed_jobs];
    JOBS_REJECTED "jobs.rejected" "the jobs file is invalid; keeping the jobs loaded before"
        [path, errors, first, last_good];
    JOBS_ERROR "jobs.error" "a further error of a jobs file that is invalid" [path];
    JOBS_WARNING "jobs.warning" "the jobs file is valid, but probably not what was meant" [path];
    JOBS_UNWATCHED "jobs.unwatched" "changes of the jobs file are noticed late: it cannot be watched" [path, error];
    JOBS_UNCOPIED "jobs.uncopied" "the jobs were not copied, so a start without a valid jobs file would fail"
        [path, error];
    JOBS_DRIFT "jobs.drift" "another node has loaded another jobs file" [other, digest, other_digest];
    ZONES_DRIFT "zones.drift" "another node has different time zone data" [other, tzdata, other_tzdata];
    JOBS_DRIFT_ENDED "jobs.drift_ended" "the other node has the same jobs file again" [other];
    ZONES_DRIFT_ENDED "zones.drift_ended" "the other node has the same time zone data again" [other];
    MEMBER_GONE "member.gone" "another node is gone" [other, reason, last_seen];
    MEMBER_BACK "member.back" "another node is back" [other, gone_since];
    NODE_SUSPECT "node.suspect" "another node does not accept in time what is placed there; others get runs first"
        [other];
    NODE_FORGOTTEN "node.forgotten" "jobs on every node no longer count on a node that is gone" [other];
    ELECTION_JOINED "election.joined" "the node joined the queue" [candidate];
    ELECTION_FOLLOWING "election.following" "the node is waiting behind its predecessor in the queue"
        [candidate, predecessor, predecessor_node, leader_node];
    ELECTION_OBSERVING "election.observing" "the node never leads, and has looked who does" [leader_node];
    ELECTION_UNFIT "election.unfit" "the node cannot lead, so it goes to the end of the queue" [path];
    ELECTION_ALL_DRAINED "election.all_drained" "nobody leads and no job runs: every node is drained" [nodes];
    ELECTION_NOBODY_MAY_LEAD "election.nobody_may_lead" "nobody leads: no node that may lead is alive" [nodes];
    LEADER_ELECTED "leader.elected" "the node became the leader" [candidate, token, took_ms, after];
    LEADER_RESIGNED "leader.resigned" "the node resigned as leader" [token, reason];
    LEADER_LOST "leader.lost" "the node lost leadership" [token, reason];
    LEADER_HANDING_OVER "leader.handing_over" "the leader hands leadership over by its own decision" [to, reason];
    LEADER_HANDOVER_FAILED "leader.handover_failed" "leadership was not handed over" [to, reason];
    TAKEOVER_DONE "takeover.done" "the new leader has settled everything earlier leaders left open"
        [token, settled, cut_off, missed, took_ms];
    COORDINATION_EXAMINED "coordination.examined" "what the coordination service's commits are worth"
        [service, durability, may_rewind];
    COORDINATION_UNEXAMINED "coordination.unexamined" "the service no longer says what its commits are worth"
        [service, error];
    COORDINATION_FILLING "coordination.filling" "the coordination service has used up half of its space"
        [service, used_mb, quota_mb];
    COORDINATION_UNREACHABLE "coordination.unreachable" "the coordination service does not answer; retrying" [retry_ms];
    COORDINATION_STALLED "coordination.stalled" "an operation that the node needs keeps failing" [error];
    COORDINATION_RECOVERED "coordination.recovered" "what kept failing works again" [];
    COORDINATION_FAILED "coordination.failed" "the node cannot take part until an operator acts" [error];
    COORDINATION_DAMAGED "coordination.damaged" "ignoring a path that cannot be read, written or trusted" [path];
    COORDINATION_REPAIRED "coordination.repaired" "a damaged path is written again" [path];
    COORDINATION_EXPOSED "coordination.exposed" "cronkeeper's data in ZooKeeper is open to others" [];
    COORDINATION_SECURED "coordination.secured" "the access lists are as the authentication file says" [changed];
    COORDINATION_NUMBERS_LOW "coordination.numbers_low" "half of the sequence numbers of a path are used up" [path];
    COORDINATION_NUMBERS_RESTARTED "coordination.numbers_restarted" "the sequence numbers of a path restarted at 0"
        [path];
    COORDINATION_SUSPENDED "coordination.suspended" "connection lost; the session may still be alive" [session, error];
    COORDINATION_RESUMED "coordination.resumed" "connection restored; the session is still alive" [session];
    COORDINATION_EXPIRED "coordination.expired" "the session expired" [session];
    COORDINATION_RESTORED "coordination.restored" "the coordination service is back" [away_ms];
    COORDINATION_REWOUND "coordination.rewound" "the coordination service has lost what it had acknowledged"
        [job, run, outcome, mark, found, path, revision, until];
    CLOCK_STEPPED "clock.stepped" "the system clock was stepped" [by_ms];
    CLOCK_SKEWED "clock.skewed" "the node's clock differs from the coordination service's clock" [by_ms];
    RUN_PLACED "run.placed" "the leader placed an attempt of a run on a node" [job, run, attempt, to];
    RUN_REFUSED "run.refused" "the node refused a run that the leader had placed on it" [job, run, reason];
    RUN_MOVED "run.moved" "the leader took a run back that its node had not accepted" [job, run, from, to, reason];
    RUN_UNPLACED "run.unplaced" "a run waits because no node can take it" [job, run, why];
    RUN_STARTED "run.started" "a run started"
        [job, run, scheduled_at, attempt, token, pid, started_at, lateness_ms];
    RUN_OUTPUT "run.output" "a run wrote a line of output" [job, run, stream, line];
    RUN_FINISHED "run.finished" "a run ended"
        [job, run, attempt, outcome, reason, detail, exit_code, signal, duration_ms, leftovers, dropped_bytes, by];
    RUN_NOT_STARTED "run.not_started" "the process of an attempt could not be started"
        [job, run, attempt, step, path, error];
    RUN_UNSTARTED "run.unstarted" "an attempt could not be started; the leader will begin another"
        [job, run, attempt, reason];
    RUN_RETRYING "run.retrying" "an attempt failed; the run will be retried" [job, run, attempt, delay_ms];
    RUN_KILLED "run.killed" "a run was killed here, and another node may begin it again" [job, run, attempt, reason];
    RUN_SKIPPED "run.skipped" "occurrences were skipped" [job, run, scheduled_at, reason, count, first, last];
    RUN_SUPERSEDED "run.superseded" "another node has already settled this run" [job, run, outcome];
    RUN_DOUBTFUL "run.doubtful" "a run was begun again that may have ended by a commit that the service has lost"
        [job, run, attempt];
    RUN_CUT_OFF "run.cut_off" "the run's node is cut off and may still be running it" [job, run, owner, keep_until];
    RUN_OUTLIVED "run.outlived" "the warden did not report the run dead in time; killing it without the warden"
        [job, run];
    RUN_UNKILLABLE "run.unkillable" "a process of the run survived SIGKILL" [run, pid];
    RUN_OBSTRUCTED "run.obstructed" "the run's place in the ledger is taken by something else" [job, run];
    WARDEN_FAILED "warden.failed" "the warden cannot be used as it should be" [error];
    WARDEN_SILENT "warden.silent" "the warden has stopped responding; killing it and all running jobs" [runs];
    LOCK_LOST "lock.lost" "somebody else has ended a lock of this run; killing it" [job, run, path];
    LOCK_REVOKE_REQUESTED "lock.revoke_requested" "somebody asks to release a lock of this run" [job, run, path];
    LOCK_REFUSED "lock.refused" "a lock of this run is refused; trying again" [job, run];
    JOB_PAUSED "job.paused" "a job was paused" [job, by, reason];
    JOB_RESUMED "job.resumed" "a job was resumed" [job, by];
    JOB_TRIGGERED "job.triggered" "a job was triggered" [job, run, by, parameters];
    JOB_FORGOTTEN "job.forgotten" "no node defines this job any more; its records were removed" [job, records];
    JOB_EDITED "job.edited"
        "the job's schedule is not the last leader's: what that one had due in between is not known, and not made up for"
        [job, since, until];
    JOB_MARK_AHEAD "job.mark_ahead" "the job's last scheduled time is in the future" [job];
    JOB_RECOUNTED "job.recounted" "the job is counted from now on again, as an operator asked" [job, by, from, listed];
    JOB_UNPLACEABLE "job.unplaceable" "no node can run the job" [job, why];
    JOB_PLACEABLE "job.placeable" "a node can run the job again" [job];
    ALARM_LATE "alarm.late" "a run did not start in time" [job, run, since, after_ms];
    ALARM_LONG "alarm.long" "a run takes longer than it should" [job, run, since, after_ms];
    ALARM_STALE "alarm.stale" "the job has not succeeded for too long" [job, since, after_ms];
    ALARM_CLEARED "alarm.cleared" "an alarm of the job is over" [job, alarm, run, raised_at];
    HISTORY_UNTRIMMED "history.untrimmed" "the job's history cannot be trimmed, so it grows" [job];
    ARCHIVE_FAILED "archive.failed" "the archive of the history cannot be written; the ledger has the newest records"
        [path, error, lost];
    ARCHIVE_RECOVERED "archive.recovered" "the archive of the history is written again" [path, lost];
    ARCHIVE_COPIED "archive.copied" "records of the history that the archive lacked were copied from the ledger"
        [records];
    ARCHIVE_INCOMPLETE "archive.incomplete" "the history may lack records of a process that was killed" [since, until];
    OUTPUT_FAILED "output.failed" "the output of runs cannot be kept; the runs do not depend on it" [path, error];
    OUTPUT_RECOVERED "output.recovered" "the output of runs is kept again" [path];
    OPERATOR_REQUESTED "operator.requested" "an operator asked for something" [request, job, run, to, by, reason, parameters];
    OPERATOR_REFUSED "operator.refused" "what an operator asked for is not done" [request, by, reason];
    API_LISTENING "api.listening" "the API is served" [path, address];
    API_FAILED "api.failed" "the API cannot be served on its socket; trying again" [error];
    API_RELOADED "api.reloaded" "the token and the certificates were reloaded" [address];
    API_REJECTED "api.rejected" "keeping the old token and certificates" [address, error];
    API_UNENCRYPTED "api.unencrypted" "clients send their token unencrypted" [address];
    API_REFUSED "api.refused" "requests with a wrong token were refused" [caller, count];
    API_SIGNED_IN "api.signed_in" "somebody has signed in on the page" [caller];
    STATE_FAILED "state.failed" "the state directory cannot be written" [run, error];
    LOG_DROPPED "log.dropped" "log lines were dropped because they could not be written fast enough"
        [output_lines, other_lines];
    INTERNAL_ERROR "internal.error" "a bug of cronkeeper, please report it" [place];
    HOOK_WITHOUT_FILE "hook.without_file" "a hook starts without a file of its job" [job, run, hook, step, path, error];
    HOOK_FINISHED "hook.finished" "a hook ended" [job, run, hook, outcome, detail];
    NOTICE_SENT "notice.sent" "a channel has got a message" [channel, delivery, count, second_copy];
    NOTICE_FAILED "notice.failed" "a channel's message was not delivered" [channel, delivery, count, error, retry_ms];
    NOTICE_GIVEN_UP "notice.given_up" "notifications were given up: a channel does not get them" [channel, count, error];
    NOTICE_DROPPED "notice.dropped" "a notification was removed, and nobody got it" [notice, reason];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in docs/contract.md: names separated by slashes, then the fields of each. A row with a
    /// single field list applies it to all its names.
    fn contract() -> impl Iterator<Item = (&'static str, &'static str)> {
        let text = include_str!("../../docs/contract.md");
        let section = text.split("\n## ").find(|section| section.starts_with("Log events")).unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_matches(['|', ' ']).split_once(" | ").unwrap())
    }

    #[test]
    fn every_event_of_the_contract_is_listed_with_its_fields_and_no_other() {
        let mut promised = Vec::new();
        for (names, fields) in contract() {
            let lists: Vec<_> = fields.split(" / ").collect();
            for (i, name) in names.split(" / ").enumerate() {
                let fields = lists[i.min(lists.len() - 1)].split(", ").filter(|field| *field != "none");
                promised.push((name.trim_matches('`'), fields.collect::<Vec<_>>()));
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
