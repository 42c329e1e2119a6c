//! The events of the log: what others rely on, and what they say.
//!
//! This table is the only place that says what an event is called, at which level it is logged, which fields it has,
//! and which sentence describes it. A terminal, the journal's MESSAGE, text lines and JSON's `message` all show the
//! sentence; alerts and dashboards rely on the rest, which is docs/contract.md's. A line may have more fields than are
//! listed, and leaves out those that do not apply.
//!
//! ERROR: somebody must act now, or a promise is at risk. WARN: something was lost or late, or will need somebody.
//! INFO: the course of nodes, terms and runs. DEBUG: reasons. Of several levels the line that is logged says which.
//!
//! A sentence is made of the line's fields:
//!
//! ```text
//! {name}          a field, or a word that is computed of several (`telemetry::sentence` in the program)
//! {name_ms}       a length of time, `2.3 s`
//! {@name}         an instant, `03:38:15Z`, with its day if that is not today
//! {name:noun}     a number of things, `1 run`, `2 runs`
//! {message}       what only the place that logs the line can say
//! [; for {name}]  left out if one of its fields is missing, or 0
//! ```
//!
//! An event with the field `job` is about the job, and its sentence goes on after the job's name: `backup started`. If
//! it begins with a colon, the job is not its subject: `backup: this node refuses it`.

use tracing::Level;

/// The `tracing` target of the daemon's own events.
pub const TARGET: &str = "cronkeeper";

/// An event as docs/contract.md promises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: &'static str,
    /// The level; several if it depends on what has happened.
    pub levels: &'static [Level],
    pub fields: &'static [&'static str],
    pub sentence: &'static str,
}

pub fn by_name(name: &str) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.name == name)
}

/// Logs an event of the table: its name, its level if it has several, then fields and a text as `tracing` takes them.
///
/// ```ignore
/// log!(RUN_STARTED, %job, %run, attempt);
/// log!(WARN RUN_FINISHED, %job, %run, outcome);
/// ```
#[macro_export]
macro_rules! log {
    ($level:ident $event:ident $(, $($field:tt)*)?) => {
        tracing::event!(
            target: $crate::log_event::TARGET,
            tracing::Level::$level,
            event = $crate::log_event::$event
            $(, $($field)*)?
        )
    };
    ($event:ident $(, $($field:tt)*)?) => {
        tracing::event!(
            target: $crate::log_event::TARGET,
            $crate::log_event::level::$event,
            event = $crate::log_event::$event
            $(, $($field)*)?
        )
    };
}

macro_rules! events {
    ($($id:ident $name:literal $($level:ident)|+ [$($field:ident),*] $sentence:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $sentence, ".")]
            pub const $id: &str = $name;
        )*

        /// The level of each event, by the name of its constant; the first if it has several.
        pub mod level {
            use tracing::Level;
            $(pub const $id: Level = [$(Level::$level),+][0];)*
        }

        pub const EVENTS: &[Event] = &[$(Event {
            name: $name,
            levels: &[$(Level::$level),+],
            fields: &[$(stringify!($field)),*],
            sentence: $sentence,
        }),*];
    };
}

events! {
    NODE_STARTED "node.started" INFO [version, backend, jobs]
        "cronkeeper {version} started with {jobs:job}, backend {backend}";
    NODE_STATE "node.state" INFO [state] "state of this node: {state}";
    NODE_DRAINING "node.draining" INFO [runs, waits_for, timeout_ms]
        "stopping[; waiting up to {timeout_ms} for {runs:run}: {waits_for}; Ctrl-C or a second signal kills them now]";
    NODE_DRAINED "node.drained" INFO [by, reason, runs, waits_for]
        "node drained by {by}[: {reason}]; it will not lead[, and {runs:run} will finish: {waits_for}]";
    NODE_UNDRAINED "node.undrained" INFO [by] "node no longer drained; joining the queue again";
    NODE_STOPPING "node.stopping" WARN [runs] "asked again to stop[: killing {runs:run}]";
    NODE_STOPPED "node.stopped" INFO [reason] "stopped{how_stopped}";
    NODE_UNSETTLED "node.unsettled" WARN [runs]
        "stopping before recording the end of {runs:run}: the state directory keeps them, and `cronkeeper release` \
         or the next start records them";
    NODE_STUCK "node.stuck" WARN [stood_ms]
        "the daemon's loop has been stuck for {stood_ms}, perhaps because the disk of the state directory hangs; {message}";
    NODE_UNSTUCK "node.unstuck" INFO [] "the daemon's loop works again; rejoining";
    NODE_STOOD_STILL "node.stood_still" WARN [stood_ms] "this process was stopped or frozen for {stood_ms}";
    JOBS_LOADED "jobs.loaded" INFO
        [path, jobs, digest, added, changed, removed, added_jobs, changed_jobs, removed_jobs]
        "loaded {jobs:job} from {path}[; added {added_jobs}][; changed {changed_jobs}][; removed {removed_jobs}]";
    JOBS_REJECTED "jobs.rejected" ERROR [path, errors, first, last_good]
        "{path} has {errors:error}; keeping the previous jobs[ (the copy of {@last_good})]: {first}";
    JOBS_ERROR "jobs.error" ERROR [path] "{message}";
    JOBS_WARNING "jobs.warning" WARN [path] "{message}";
    JOBS_UNWATCHED "jobs.unwatched" WARN [path, error]
        "cannot watch {path}, so it takes some seconds to notice changes to the jobs file: {error}";
    JOBS_UNCOPIED "jobs.uncopied" WARN [path, error]
        "cannot copy the jobs to the state directory, so a start with an invalid jobs file would fail: {error}";
    JOBS_DRIFT "jobs.drift" WARN [other, digest, other_digest] "{other} has loaded a different jobs file";
    ZONES_DRIFT "zones.drift" WARN [other, tzdata, other_tzdata]
        "{other} has time zone data {other_tzdata}, this node {tzdata}: install the same tzdata on all nodes, or they may \
         disagree about when a job is due";
    JOBS_DRIFT_ENDED "jobs.drift_ended" INFO [other] "{other} has the same jobs file again";
    ZONES_DRIFT_ENDED "zones.drift_ended" INFO [other] "{other} has the same time zone data again";
    MEMBER_GONE "member.gone" WARN | INFO [other, reason, last_seen] "{other} {message}";
    MEMBER_BACK "member.back" INFO [other, gone_since] "{other} is back; its absence was noticed at {@gone_since}";
    NODE_SUSPECT "node.suspect" WARN [other]
        "{other} did not accept a run in time; other nodes get runs first";
    NODE_FORGOTTEN "node.forgotten" INFO [other] "{other} was gone for too long and is forgotten: jobs on every node no longer include it";
    ELECTION_JOINED "election.joined" INFO [candidate] "joined the queue";
    ELECTION_FOLLOWING "election.following" INFO [candidate, predecessor, predecessor_node, leader_node]
        "waiting behind {ahead}";
    ELECTION_OBSERVING "election.observing" INFO [leader_node] "this node never leads; {leader}";
    ELECTION_UNFIT "election.unfit" WARN [path]
        "this node cannot lead, because it can neither write {path} nor read the jobs or runs; going to the end of the queue";
    ELECTION_ALL_DRAINED "election.all_drained" WARN [nodes]
        "nobody leads and no job runs: every node is drained; `cronkeeper undrain NODE` lets one lead again";
    ELECTION_NOBODY_MAY_LEAD "election.nobody_may_lead" ERROR [nodes]
        "nobody leads, so no new run starts: no live node may lead; start one without `--lead false`, or undrain one";
    LEADER_ELECTED "leader.elected" INFO [candidate, token, took_ms, after]
        "now the leader[, after {after}] (token {token}, {took_ms})";
    LEADER_RESIGNED "leader.resigned" INFO [token, reason] "resigned as leader";
    LEADER_LOST "leader.lost" WARN [token, reason] "no longer the leader: {cause}";
    LEADER_HANDING_OVER "leader.handing_over" INFO [to, reason] "handing leadership over to {successor}: {cause}";
    LEADER_HANDOVER_FAILED "leader.handover_failed" WARN [to, reason]
        "leadership was not handed over to {to}: {reason}";
    TAKEOVER_DONE "takeover.done" INFO [token, settled, cut_off, missed, took_ms]
        "took over in {took_ms}[, {settled:run} settled][, {cut_off:run} cut off]\
         [, {missed:occurrence} already recorded as missed]";
    COORDINATION_EXAMINED "coordination.examined" INFO | WARN [service, durability, may_rewind] "{service}: {durability}";
    COORDINATION_UNEXAMINED "coordination.unexamined" WARN [service, error]
        "can no longer check how durable {service}'s commits are: {error}";
    COORDINATION_FILLING "coordination.filling" WARN [service, used_mb, quota_mb]
        "{service}'s database has grown to {used_mb} MB; at {quota_mb} MB, unless set otherwise, it rejects writes: \
         start it with --auto-compaction-retention=1h, and defragment it";
    COORDINATION_UNREACHABLE "coordination.unreachable" WARN [retry_ms, repeat_ms, error]
        "{service} is unavailable: {brief}; next try in {retry_ms}";
    COORDINATION_STALLED "coordination.stalled" WARN [error] "{stall}";
    COORDINATION_RECOVERED "coordination.recovered" INFO [] "the node is no longer held up";
    COORDINATION_FAILED "coordination.failed" ERROR [error] "{error}";
    COORDINATION_DAMAGED "coordination.damaged" WARN | ERROR [path] "{message}";
    COORDINATION_REPAIRED "coordination.repaired" WARN [path] "{message}";
    COORDINATION_EXPOSED "coordination.exposed" INFO | WARN [] "{message}";
    COORDINATION_SECURED "coordination.secured" INFO [changed]
        "{service}'s access lists match the authentication file of this node";
    COORDINATION_NUMBERS_LOW "coordination.numbers_low" INFO | WARN [path]
        "half of the sequence numbers of {path} are used up; {message}";
    COORDINATION_NUMBERS_RESTARTED "coordination.numbers_restarted" INFO [path]
        "the sequence numbers of {path} restarted at 0";
    COORDINATION_SUSPENDED "coordination.suspended" WARN [session, error]
        "no working connection to {service}[: {brief}]";
    COORDINATION_RESUMED "coordination.resumed" INFO [session]
        "the connection to {service} is back, and the session has survived";
    COORDINATION_EXPIRED "coordination.expired" WARN [session] "the session with {service} has expired";
    COORDINATION_RESTORED "coordination.restored" INFO [away_ms] "{service} is back after {away_ms}";
    COORDINATION_REWOUND "coordination.rewound" ERROR [job, run, outcome, mark, found, path, revision, until]
        ": {service} has lost {message}";
    CLOCK_STEPPED "clock.stepped" WARN [by_ms] "the clock of this host was set {set}";
    CLOCK_SKEWED "clock.skewed" WARN | ERROR | INFO [by_ms] "the clock of this host {skew} {service}'s[: {message}]";
    RUN_PLACED "run.placed" DEBUG [job, run, attempt, to] "placed on {to}[, attempt {again}]";
    RUN_REFUSED "run.refused" INFO | WARN [job, run, reason]
        ": this node refuses it: {cause}; the leader looks for another node";
    RUN_MOVED "run.moved" WARN [job, run, from, to, reason] "was taken back from {from}, which {cause}; {then}";
    RUN_UNPLACED "run.unplaced" WARN [job, run, why] "is waiting for a node: {why}";
    RUN_STARTED "run.started" INFO [job, run, scheduled_at, attempt, token, pid, started_at, lateness_ms]
        "started[ as {manual}][, attempt {again}][, {late} late]";
    RUN_OUTPUT "run.output" INFO [job, run, stream, line] "{pipe} {line}";
    RUN_FINISHED "run.finished" INFO | WARN
        [job, run, attempt, outcome, reason, detail, exit_code, signal, duration_ms, leftovers, dropped_bytes, by]
        "{ended}[; killed {leftovers:process} that it left behind][; dropped {dropped_bytes:byte} of output over `max_output`]";
    RUN_NOT_STARTED "run.not_started" INFO [job, run, attempt, step, path, error] "did not start: {message}";
    RUN_UNSTARTED "run.unstarted" WARN [job, run, attempt, reason]
        ": attempt {attempt} did not start[: {cause}]; the leader will start another";
    RUN_RETRYING "run.retrying" WARN
        [job, run, attempt, delay_ms, outcome, reason, detail, exit_code, signal, duration_ms]
        "{ended}; trying again {when}";
    RUN_KILLED "run.killed" WARN [job, run, attempt, reason]
        "was killed on this node[: {cause}]; another node may start it again";
    RUN_SKIPPED "run.skipped" WARN | INFO [job, run, scheduled_at, reason, count, first, last] "skipped {which}: {cause}";
    RUN_SUPERSEDED "run.superseded" WARN [job, run, outcome]
        "was already settled by another node[; its result here, {outcome}, came too late for the history]";
    RUN_DOUBTFUL "run.doubtful" WARN [job, run, attempt]
        "started again, although it may have ended: {service} has lost commits";
    RUN_CUT_OFF "run.cut_off" WARN [job, run, owner, keep_until]
        "may still be running on {owner}, which is cut off[; it counts as running until {@keep_until}]";
    RUN_OUTLIVED "run.outlived" WARN [job, run] ": the warden did not report it dead in time; killing it without the warden";
    RUN_UNKILLABLE "run.unkillable" ERROR [run, pid] "process {pid} of {run} survived SIGKILL";
    RUN_OBSTRUCTED "run.obstructed" ERROR [job, run]
        "did not run: something else is in the place of this run's record; delete that, then trigger the job";
    WARDEN_FAILED "warden.failed" ERROR [error] ": [{message}: ]{error}";
    WARDEN_SILENT "warden.silent" ERROR [runs] "the warden no longer responds: killing it and {runs:run}";
    LOCK_LOST "lock.lost" WARN [job, run, path] ": somebody else removed its lock {path}; killing it";
    LOCK_REVOKE_REQUESTED "lock.revoke_requested" INFO [job, run, path] "was asked to release its lock {path}";
    LOCK_REFUSED "lock.refused" ERROR [job, run] "cannot get its lock, trying again: {message}";
    JOB_PAUSED "job.paused" INFO [job, by, reason] "paused by {by}[: {reason}]";
    JOB_RESUMED "job.resumed" INFO [job, by] "resumed{how}";
    JOB_TRIGGERED "job.triggered" INFO [job, run, by, parameters] "triggered by {by}[ with {parameters}]";
    JOB_FORGOTTEN "job.forgotten" INFO [job, records] "forgotten: no node defines it any more; removed {records:record}";
    JOB_EDITED "job.edited" WARN [job, since, until]
        "was edited since the last leader: runs due by its old schedule from {@since} to {@until} may be missing";
    JOB_MARK_AHEAD "job.mark_ahead" ERROR [job] ": {message}";
    JOB_RECOUNTED "job.recounted" INFO [job, by, from, listed]
        "recounted from {@from} on, as {by} asked[; {listed:occurrence} after that will not be repeated]";
    JOB_UNPLACEABLE "job.unplaceable" WARN [job, why] "cannot run on any node: {why}";
    JOB_PLACEABLE "job.placeable" INFO [job] "can run again: a node can take it";
    ALARM_LATE "alarm.late" WARN [job, run, since, after_ms] "has not started in time: it was due at {@since}";
    ALARM_LONG "alarm.long" WARN [job, run, since, after_ms] "is taking too long: it has been running since {@since}";
    ALARM_STALE "alarm.stale" WARN [job, since, after_ms] "has not succeeded for {after_ms}";
    ALARM_CLEARED "alarm.cleared" INFO [job, alarm, run, raised_at] "is no longer {alarm}";
    HISTORY_UNTRIMMED "history.untrimmed" WARN [job] ": its history grows, because it cannot be trimmed: {message}";
    ARCHIVE_FAILED "archive.failed" WARN [path, error, lost]
        "cannot write the archive of the history, {path}: {error}[; it lacks {lost:record}]";
    ARCHIVE_RECOVERED "archive.recovered" INFO [path, lost]
        "writing the archive of the history again[; it lacks {lost:record}]";
    ARCHIVE_COPIED "archive.copied" INFO [records]
        "copied {records:record} of the history, which this node's archive lacked, from the ledger";
    ARCHIVE_INCOMPLETE "archive.incomplete" WARN [since, until]
        "the history may lack runs that ended on this node, {@since} to {@until}: its last process did not archive \
         them, and the ledger no longer has them";
    OUTPUT_FAILED "output.failed" WARN | ERROR [path, error] "cannot {message} the output of runs in {path}: {error}";
    OUTPUT_RECOVERED "output.recovered" INFO [path] "keeping the output of runs in {path} again";
    OPERATOR_REQUESTED "operator.requested" INFO [request, job, run, to, by, role, peer, reason, parameters]
        ": {by} requested {request}[ of {message}][ of {run}][ for {to}][ with {parameters}][: {reason}]";
    OPERATOR_REFUSED "operator.refused" INFO | WARN [request, job, run, to, by, role, peer, code, reason, count] ": {message}";
    API_LISTENING "api.listening" INFO [path, address] "serving the API at {where}";
    API_FAILED "api.failed" ERROR [error] "cannot serve the API on the socket, trying again: {error}";
    API_RELOADED "api.reloaded" INFO [address] "reloaded the tokens and certificates of {address}";
    API_REJECTED "api.rejected" ERROR [address, error] "keeping the old tokens and certificates of {address}: {error}";
    API_UNENCRYPTED "api.unencrypted" WARN [address]
        "clients send their token to {address} unencrypted: set a certificate with `--listen-cert`";
    API_REFUSED "api.refused" WARN [caller, count] "refused {count:request} from {caller} with a wrong token";
    API_SIGNED_IN "api.signed_in" INFO [caller, by, role] "{by} signed in on the web page from {caller}";
    STATE_FAILED "state.failed" ERROR [run, error] ": cannot {message} in the state directory: {error}";
    LOG_DROPPED "log.dropped" WARN [output_lines, other_lines]
        "the log cannot be written fast enough: {output_lines:line} of output and {other_lines:other line} are lost";
    INTERNAL_ERROR "internal.error" ERROR [place] "a bug in cronkeeper, please report it: {message}[, at {place}]";
    HOOK_WITHOUT_FILE "hook.without_file" WARN [job, run, hook, step, path, error]
        ": its hook {hook} starts without {message}";
    HOOK_FINISHED "hook.finished" INFO | WARN [job, run, hook, outcome, detail] ": {hook}: {outcome}[, {message}]";
    NOTICE_SENT "notice.sent" INFO [channel, delivery, count, second_copy]
        "channel {channel}: sent a message with {count:notification}[; {doubt}]";
    NOTICE_FAILED "notice.failed" WARN [channel, delivery, count, error, retry_ms]
        "channel {channel}: could not deliver {count:notification}: {error}[; trying again in {retry_ms}]";
    NOTICE_GIVEN_UP "notice.given_up" ERROR | WARN [channel, count, error]
        "channel {channel}: giving up on {count:notification}[: {error}]";
    NOTICE_DROPPED "notice.dropped" WARN [notice, reason] "notification {notice} dropped: {reason}";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in docs/contract.md: names separated by slashes, then the levels and the fields of each. A
    /// row with a single list applies it to all its names.
    fn contract() -> impl Iterator<Item = [&'static str; 3]> {
        let text = include_str!("../../docs/contract.md");
        let section = text.split("\n## ").find(|section| section.starts_with("Log events")).unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>().try_into().unwrap())
    }

    #[test]
    fn every_event_of_the_contract_is_listed_with_its_levels_and_fields_and_no_other() {
        let mut promised = Vec::new();
        for [names, levels, fields] in contract() {
            let of = |column: &'static str, index: usize| {
                let lists: Vec<_> = column.split(" / ").collect();
                lists[index.min(lists.len() - 1)].split(", ").filter(|it| *it != "none").collect::<Vec<_>>()
            };
            for (index, name) in names.split(" / ").enumerate() {
                promised.push((name.trim_matches('`'), of(levels, index), of(fields, index)));
            }
        }
        let levels = |event: &Event| event.levels.iter().map(Level::as_str).collect();
        let listed: Vec<_> = EVENTS.iter().map(|event| (event.name, levels(event), event.fields.to_vec())).collect();
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
