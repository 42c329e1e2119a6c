//! The CRONKEEPER_ environment variables of runs and hooks.
//!
//! A hook gets its run's variables and the result of the run. Variables that do not apply are set to the empty string,
//! so that a script may require its variables to be set (`set -u`).

use jiff::Timestamp;

use crate::clock::instant;
use crate::engine::hooks::{Cause, HookCall, JobHookCall};
use crate::job::Alarm;
use crate::run::{RaisedAlarm, RunEnd, RunRecord, Skip, millis};
use crate::run_lock::LockGrant;
use crate::term::NodeName;

/// Names, without the prefix `CRONKEEPER_`, and values. Values of several lines are separated by line feeds.
pub type Variables = Vec<(&'static str, String)>;

/// The variables of a run's attempts.
pub fn of_run(run: &RunRecord, here: &NodeName) -> Variables {
    vec![
        ("JOB", run.job.to_string()),
        ("RUN_ID", run.id().to_string()),
        ("SCHEDULED_AT", instant(run.made_for()).to_string()),
        ("ATTEMPT", run.attempt.to_string()),
        ("NODE", here.to_string()),
        ("FENCING_TOKEN", run.fencing_token().to_string()),
    ]
}

/// The variables of an attempt that holds locks, instead of its run's of the same names.
///
/// The token is that of the locks, by which other clients are known to whatever the job writes to.
pub fn of_lock(grant: &LockGrant) -> Variables {
    let lines = |lines: Vec<String>| lines.join("\n");
    vec![
        ("LOCK_PATH", lines(grant.held.iter().map(|(path, _)| path.to_string()).collect())),
        ("FENCING_TOKEN", lines(grant.held.iter().map(|(_, token)| token.to_string()).collect())),
        ("LOCK_KEYS", grant.key.with(&[])),
    ]
}

/// The variables of a hook.
pub fn of_hook(call: &HookCall, here: &NodeName) -> Variables {
    let mut variables = match call {
        HookCall::OfJob(call) => of_job_hook(call, here),
        HookCall::OfNode(call) => {
            [("NODE", here.to_string())].into_iter().chain(call.variables.iter().cloned()).collect()
        }
    };
    variables.push(("HOOK", call.name().to_owned()));
    variables
}

fn of_job_hook(call: &JobHookCall, here: &NodeName) -> Variables {
    let mut variables = match &call.cause {
        Cause::Started(run) => of_start(run, here),
        Cause::Ended(end) => of_end(end, here),
        Cause::Skipped { skip, first, count } => of_skip(call, skip, *first, *count, here),
        Cause::Alarm { alarm, raised } => of_alarm(call, *alarm, raised, here),
    };
    // See `UNUSABLE_FILES`: the process that reads the files replaces the value.
    variables.push(("UNUSABLE_FILES", String::new()));
    variables
}

fn of_start(run: &RunRecord, here: &NodeName) -> Variables {
    let mut variables = of_run(run, here);
    variables.push(("RUN_NODE", run.owner.node.to_string()));
    variables.extend(["OUTCOME", "REASON", "EXIT_CODE", "DURATION_MS"].map(|name| (name, String::new())));
    variables
}

/// NODE is the node on which the hook runs, because a node recognizes its processes by that variable. RUN_NODE is the
/// node that had the run.
fn of_end(end: &RunEnd, here: &NodeName) -> Variables {
    let mut variables = of_run(&end.run, here);
    variables.extend([
        ("RUN_NODE", end.run.owner.node.to_string()),
        ("OUTCOME", end.outcome.as_str().to_owned()),
        ("REASON", end.reason.map(|reason| reason.as_str()).unwrap_or_default().to_owned()),
        ("EXIT_CODE", shown(end.exit_code)),
        ("DURATION_MS", shown(end.duration_ms)),
    ]);
    variables
}

fn of_skip(call: &JobHookCall, skip: &Skip, first: Timestamp, count: u64, here: &NodeName) -> Variables {
    let made_for = skip.trigger.as_ref().and_then(|trigger| trigger.scheduled_at).unwrap_or(first);
    vec![
        ("JOB", skip.job.to_string()),
        ("RUN_ID", shown(call.run())),
        ("SCHEDULED_AT", instant(made_for).to_string()),
        ("ATTEMPT", "0".to_owned()),
        ("NODE", here.to_string()),
        ("FENCING_TOKEN", skip.token.to_string()),
        ("RUN_NODE", String::new()),
        ("OUTCOME", "skipped".to_owned()),
        ("REASON", skip.reason.as_str().to_owned()),
        ("EXIT_CODE", String::new()),
        ("DURATION_MS", String::new()),
        ("COUNT", count.to_string()),
        ("FIRST", instant(first).to_string()),
        ("LAST", instant(skip.last).to_string()),
    ]
}

fn of_alarm(call: &JobHookCall, alarm: Alarm, raised: &RaisedAlarm, here: &NodeName) -> Variables {
    let limit = call.job.alarms.of(alarm).map(millis);
    vec![
        ("JOB", call.job.name.to_string()),
        ("RUN_ID", shown(raised.run.as_ref())),
        ("SCHEDULED_AT", shown(raised.run.as_ref().map(|run| instant(run.scheduled_at())))),
        ("ATTEMPT", String::new()),
        ("NODE", here.to_string()),
        ("FENCING_TOKEN", String::new()),
        ("RUN_NODE", String::new()),
        ("OUTCOME", String::new()),
        ("REASON", String::new()),
        ("EXIT_CODE", String::new()),
        ("DURATION_MS", String::new()),
        ("ALARM", alarm.as_str().to_owned()),
        ("SINCE", instant(raised.since).to_string()),
        ("LIMIT_MS", shown(limit)),
    ]
}

fn shown(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
