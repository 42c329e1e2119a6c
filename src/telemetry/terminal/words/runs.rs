//! What the events of runs, jobs, locks and hooks say to people.

use super::Facts;
use cronkeeper_core::log_event;
use cronkeeper_core::run::RefusalReason;

/// Lateness below this is not worth a word.
const PUNCTUAL_MS: u64 = 100;

pub(super) fn words(f: &Facts<'_>) -> Option<String> {
    run(f).or_else(|| job(f))
}

fn run(f: &Facts<'_>) -> Option<String> {
    Some(match f.line.event.as_str() {
        log_event::RUN_STARTED => format!("started{}{}", attempt(f), late(f)),
        log_event::RUN_PLACED => format!("placed on {}{}", f.any("to"), attempt(f)),
        log_event::RUN_REFUSED => format!("not run here: {}; the leader looks for another node", refusal(f)),
        log_event::RUN_MOVED => moved(f),
        log_event::RUN_UNPLACED => format!("waits for a node: {}", f.any("why")),
        log_event::RUN_OUTPUT => match f.text("stream") {
            None | Some("stdout" | "stderr") => format!("| {}", f.any("line")),
            Some(hook) => format!("{hook} | {}", f.any("line")),
        },
        log_event::RUN_FINISHED => finished(f),
        log_event::RUN_RETRYING if f.number("delay_ms") == Some(0) => format!("{}; tries again at once", ended(f)),
        log_event::RUN_RETRYING => format!("{}; tries again in {}", ended(f), f.time("delay_ms")),
        log_event::RUN_NOT_STARTED => match &f.line.message {
            Some(message) => message.clone(),
            None => format!("not started: {}{}", f.with("", "path"), f.with(": ", "error")),
        },
        log_event::RUN_SUPERSEDED => {
            let result = f
                .text("outcome")
                .map(|outcome| format!("; its result here was {outcome}, which came too late for the history"));
            format!("another node has already settled this run{}", result.unwrap_or_default())
        }
        log_event::RUN_KILLED => format!("killed here{}; another node may begin it again", reason(f)),
        log_event::RUN_UNSTARTED => format!("not started{}; the leader begins another attempt", reason(f)),
        log_event::RUN_SKIPPED => skipped(f),
        log_event::RUN_DOUBTFUL => {
            "the service has lost commits, one of which may have ended it; begun again as its job says".to_owned()
        }
        log_event::RUN_CUT_OFF => {
            let until = f.text("keep_until").map(|_| format!(" until {}", f.at("keep_until"))).unwrap_or_default();
            format!("{} is cut off, and the run may go on there{until}", f.any("owner"))
        }
        _ => return None,
    })
}

fn job(f: &Facts<'_>) -> Option<String> {
    Some(match f.line.event.as_str() {
        log_event::LOCK_LOST => format!("somebody else has ended its lock {}; killing it", f.any("path")),
        log_event::LOCK_REVOKE_REQUESTED => format!("somebody asks it to release its lock {}", f.any("path")),
        log_event::JOB_UNPLACEABLE => format!("cannot run anywhere: {}", f.any("why")),
        log_event::JOB_PLACEABLE => "can run again: a node fits".to_owned(),
        log_event::ALARM_LATE => format!("has not started in time: was due at {}", f.at("since")),
        log_event::ALARM_LONG => format!("takes long: runs since {}", f.at("since")),
        log_event::ALARM_STALE => format!("has not succeeded for {}", f.time("after_ms")),
        log_event::ALARM_CLEARED => format!("is no longer {}", f.any("alarm")),
        log_event::JOB_PAUSED => format!("paused by {}{}", f.any("by"), f.with(": ", "reason")),
        log_event::JOB_RESUMED => match &f.line.message {
            Some(message) => message.clone(),
            None => format!("resumed by {}", f.any("by")),
        },
        log_event::JOB_TRIGGERED => format!("triggered by {}", f.any("by")),
        log_event::JOB_FORGOTTEN => format!("no node defines it any more; removed {}", f.count("records", "record")),
        log_event::JOB_EDITED => format!(
            "its schedule is not the last leader's: what that one had due after {}, up to {}, is not made up for",
            f.at("since"),
            f.at("until"),
        ),
        log_event::HOOK_WITHOUT_FILE => {
            format!("{} starts without {}{}", f.any("hook"), f.any("path"), f.with(": ", "error"))
        }
        log_event::HOOK_FINISHED => {
            let why = f.line.message.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("{} {}{why}", f.any("hook"), f.any("outcome"))
        }
        _ => return None,
    })
}

fn refusal(f: &Facts<'_>) -> String {
    let reason = f.any("reason");
    RefusalReason::ALL
        .into_iter()
        .find(|known| known.as_str() == reason)
        .map_or(reason, |known| known.explained().into())
}

fn moved(f: &Facts<'_>) -> String {
    let why = match f.text("reason") {
        Some("overdue") => "did not accept it in time",
        Some("node-gone") => "is gone",
        Some("node-drained") => "is drained or shutting down",
        Some("offer-removed") => "never saw it: its offer was deleted",
        _ => "did not accept it",
    };
    let then = f.text("to").map_or("waits for a node".to_owned(), |to| format!("placed on {to}"));
    format!("{} {why}; {then}", f.any("from"))
}

fn attempt(f: &Facts<'_>) -> String {
    f.number("attempt").filter(|&attempt| attempt > 1).map(|attempt| format!(", attempt {attempt}")).unwrap_or_default()
}

fn late(f: &Facts<'_>) -> String {
    let is_late = f.number("lateness_ms").is_some_and(|late| late > PUNCTUAL_MS);
    if is_late { format!(", {} late", f.time("lateness_ms")) } else { String::new() }
}

/// How an attempt ended: `success in 1 ms`, `failure, exit code 3, after 2.3 s`.
fn ended(f: &Facts<'_>) -> String {
    let mut text = format!("{}{}", f.any("outcome"), reason(f));
    let outcome = text.len();
    match (f.number("exit_code"), f.number("signal")) {
        (Some(code), _) if code != 0 => text.push_str(&format!(", exit code {code}")),
        (_, Some(signal)) => text.push_str(&format!(", signal {signal}")),
        _ => {}
    }
    text.push_str(&f.with(", by ", "by"));
    if f.number("duration_ms").is_some() {
        let joint = if text.len() == outcome { " in" } else { ", after" };
        text.push_str(&format!("{joint} {}", f.time("duration_ms")));
    }
    text + &attempt(f)
}

fn finished(f: &Facts<'_>) -> String {
    let mut text = ended(f);
    if f.text("outcome") == Some("abandoned") {
        text.push_str(&f.with(": ", "detail"));
    }
    if let Some(left @ 1..) = f.number("leftovers") {
        let noun = if left == 1 { "process" } else { "processes" };
        text.push_str(&format!("; killed {left} {noun} that it left behind"));
    }
    if f.number("dropped_bytes").is_some_and(|bytes| bytes > 0) {
        text.push_str(&format!("; {} bytes of output over `max_output` were not logged", f.any("dropped_bytes")));
    }
    text
}

fn reason(f: &Facts<'_>) -> String {
    f.text("reason").map(|reason| format!(" ({})", cause(reason))).unwrap_or_default()
}

fn cause(reason: &str) -> &str {
    match reason {
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
        "lease" => "the node's lease ended",
        "lock" => "a lock was lost",
        "node-died" => "its node died",
        other => other,
    }
}

fn skipped(f: &Facts<'_>) -> String {
    let why = match f.text("reason") {
        Some("overlap") => "the run before is still in flight",
        Some("missed") => "it was too late to start it",
        Some("paused") => "the job is paused",
        Some("upstream") => "a job before it did not end as required",
        Some("locked") => "another client holds its lock",
        Some("not-defined") => "the leader has no such job",
        Some("parameters") => "the leader's jobs file does not allow its parameters",
        Some("no-node") => "no node that fits could take it in time",
        Some("rewound") => "the service has lost commits, and this occurrence may have run",
        Some(other) => other,
        None => "?",
    };
    match f.number("count") {
        Some(count) => format!("skipped {count} times, {} to {}: {why}", f.at("first"), f.at("last")),
        None if f.value("scheduled_at").is_some() => format!("skipped {}: {why}", f.at("scheduled_at")),
        None => format!("skipped: {why}"),
    }
}
