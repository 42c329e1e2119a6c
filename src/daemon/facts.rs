//! The facts that a process of a run, or a hook, finds in its environment: the CRONKEEPER_ variables.
//!
//! A hook finds those of its run and how that ended. What there is none of is empty, so that a script may insist on its
//! variables being set.

use jiff::Timestamp;

use crate::engine::hooks::{Cause, HookCall};
use crate::run::{RunEnd, RunRecord, Skip};
use crate::telemetry::instant;
use crate::term::NodeName;

/// Names without their prefix, and values.
pub(super) type Facts = Vec<(&'static str, String)>;

/// Of a run: what its attempts find.
pub(super) fn of_run(run: &RunRecord, here: &NodeName) -> Facts {
    vec![
        ("JOB", run.job.to_string()),
        ("RUN_ID", run.id().to_string()),
        ("SCHEDULED_AT", instant(run.scheduled_at).to_string()),
        ("ATTEMPT", run.attempt.to_string()),
        ("NODE", here.to_string()),
        ("FENCING_TOKEN", run.token.to_string()),
    ]
}

/// Of what a hook follows.
pub(super) fn of_hook(call: &HookCall, here: &NodeName) -> Facts {
    let mut facts = match &call.cause {
        Cause::Ended(end) => of_end(end, here),
        Cause::Skipped { skip, first, count } => of_skip(call, skip, *first, *count, here),
    };
    facts.push(("HOOK", call.hook.as_str().to_owned()));
    facts
}

/// Processes of a node are known by its name, so that stands for the hook's own; who had the run stands beside it.
fn of_end(end: &RunEnd, here: &NodeName) -> Facts {
    let mut facts = of_run(&end.run, here);
    facts.extend([
        ("RUN_NODE", end.run.owner.node.to_string()),
        ("OUTCOME", end.outcome.as_str().to_owned()),
        ("REASON", end.reason.map(|reason| reason.as_str()).unwrap_or_default().to_owned()),
        ("EXIT_CODE", shown(end.exit_code)),
        ("DURATION_MS", shown(end.duration_ms)),
    ]);
    facts
}

fn of_skip(call: &HookCall, skip: &Skip, first: Timestamp, count: u64, here: &NodeName) -> Facts {
    vec![
        ("JOB", skip.job.to_string()),
        ("RUN_ID", call.run().to_string()),
        ("SCHEDULED_AT", instant(first).to_string()),
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

fn shown(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
