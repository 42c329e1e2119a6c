//! The tables of the status: queue, members, runs, pauses, jobs.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::cli::ask::span;
use crate::cli::table::Table;
use crate::status::{
    AlarmStatus, JobStatus, LastRun, LedgerPart, NodeState, QueuedCandidate, RunStatus, Status, shown,
};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::Published;
use cronkeeper_core::escape;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Outcome, Refusal, RunId, RunState};
use cronkeeper_core::term::NodeName;

pub(super) fn queue(status: &Status) -> Table {
    let mut table = Table::new(&["QUEUE", "NODE", "WAITS FOR", "CANDIDATE"]);
    for (i, queued) in status.queue.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|before| status.queue.get(before));
        // An old queue does not say who leads now.
        let leads = queued.node.is_some() && queued.node == status.role.leader_node;
        let first = match (leads, status.has_old_queue()) {
            (true, false) => "- (leads)",
            (true, true) if status.role.token.is_some() => "- (leads)",
            (_, true) => "- (was first)",
            (false, false) => "-",
        };
        let waits_for = before.map_or_else(|| first.to_owned(), holder);
        table.row([(i + 1).to_string(), holder(queued), waits_for, short(&queued.candidate.0)]);
    }
    table
}

fn holder(queued: &QueuedCandidate) -> String {
    queued.node.as_ref().map_or_else(|| "(not cronkeeper's)".into(), NodeName::to_string)
}

/// Shortens a candidate's name to its end, which is unique; the uuid in front is not needed.
fn short(candidate: &str) -> String {
    let chars = candidate.chars().count();
    if chars <= 24 {
        candidate.into()
    } else {
        format!("…{}", candidate.chars().skip(chars - 16).collect::<String>())
    }
}

pub(super) fn members(status: &Status) -> Table {
    let has_notes = status.members.iter().any(|member| !notes(&member.published).is_empty());
    let last: &[&str] = if has_notes { &["NOTES"] } else { &[] };
    let mut table = Table::new(&[&["MEMBER", "HOST", "PID", "VERSION", "JOBS", "UP"], last].concat());
    for member in &status.members {
        let is_unknown = status.has_old_queue() && member.node != status.node;
        let mut row = vec![
            member.node.to_string(),
            shown(&member.host).unwrap_or("-").to_owned(),
            shown(&member.host).map_or_else(|| "-".to_owned(), |_| member.pid.to_string()),
            member.version.clone(),
            member.published.digest.to_string(),
            if is_unknown { "not known".to_owned() } else { span(member.started_at, status.at) },
        ];
        row.extend(has_notes.then(|| notes(&member.published)));
        table.row(row);
    }
    table
}

/// What distinguishes a member from most others.
fn notes(published: &Published) -> String {
    let priority = (published.priority > 0).then(|| format!("priority {}", published.priority));
    let draining = published.draining.then(|| NodeState::Draining.in_words().to_owned());
    let invalid = published.jobs_invalid.then(|| "jobs file INVALID".to_owned());
    let drained = published.drained.then(|| "drained".to_owned());
    let never_leads = published.never_leads.then(|| "never leads".to_owned());
    priority.into_iter().chain(never_leads).chain(drained).chain(draining).chain(invalid).collect::<Vec<_>>().join(", ")
}

pub(super) fn runs(status: &Status) -> Table {
    let mut table = Table::new(&["RUNNING", "NODE", "ATTEMPT", "FOR", "STATE"]);
    let begun = status.runs.iter().filter(|run| run.state != RunState::Queued);
    let begun: BTreeMap<_, &RunId> = begun.map(|run| (place(&run.run), &run.run)).collect();
    for run in &status.runs {
        let before = begun.get(&place(&run.run)).copied();
        let is_old = status.is_old(run);
        let state = match run.ended {
            Some(outcome) => ended(outcome),
            None if is_old && run.state == RunState::Running => "was running".to_owned(),
            None => state_in_words(run, before, status),
        };
        let known_at = status.read_at.filter(|_| is_old).unwrap_or(status.at);
        // A run that waits for its turn has had no attempt.
        let attempt = if run.attempt == 0 { "-".to_owned() } else { run.attempt.to_string() };
        let node = run.place().to_string();
        table.row([run.run.to_string(), node, attempt, span(run.since, known_at), state]);
    }
    table
}

/// The runs of a job that wait for each other; shares wait for those of the same node.
fn place(run: &RunId) -> (&JobName, Option<&NodeName>) {
    (run.job(), run.node())
}

/// What a run in flight does or waits for.
pub(in crate::cli) fn run_state(run: &RunStatus, status: &Status) -> String {
    let is_before = |other: &&RunStatus| place(&other.run) == place(&run.run) && other.state != RunState::Queued;
    let before = status.runs.iter().find(is_before).map(|before| &before.run);
    state_in_words(run, before, status)
}

/// `before`: another run of the job, which has begun.
fn state_in_words(run: &RunStatus, before: Option<&RunId>, status: &Status) -> String {
    let awaited = status.awaited_node(run);
    let is_behind = run.state == RunState::Queued && before.is_some();
    if let Some(node) = awaited.filter(|_| !is_behind) {
        return format!("waits for {node}");
    }
    match (run.state, run.retry_at) {
        (RunState::Queued, _) => match before {
            Some(before) => format!("waits for {before}"),
            // The status does not have them.
            None => match run.run.node() {
                Some(node) => format!("waits for {node}, its group or its locks"),
                None => "waits for its group, its locks or a node".to_owned(),
            },
        },
        (RunState::Running, _) if run.unconfirmed => "not begun yet, waits for the ledger".to_owned(),
        (RunState::Running, _) => "running".to_owned(),
        (RunState::Placed, _) => format!("placed on {}, waits for it to accept", run.node),
        (RunState::Retrying, Some(at)) => retry(at, run, status),
        (RunState::Retrying, None) => "retrying now".to_owned(),
        (RunState::Unstarted, Some(at)) => format!("not started yet, {}", retry(at, run, status)),
        (RunState::Unstarted, None) => match &run.refused {
            Some(Refusal { node, reason, .. }) => format!("not started yet; {node} refused it: {}", reason.explained()),
            None => "not started yet".to_owned(),
        },
        (RunState::CutOff, _) => cut_off(run.keep_until),
    }
}

/// How long a leader may need for what is due.
const PROMPT: SignedDuration = SignedDuration::from_secs(2);

/// When a run is tried again: `retrying in 4s`, or `retry planned for …` if no leader is known that would do it.
fn retry(at: Timestamp, run: &RunStatus, status: &Status) -> String {
    let is_known = status.role.leader_node.is_some() && status.why_nobody_leads().is_none() && !status.is_old(run);
    match status.at.duration_since(at) {
        late if late > PROMPT => format!("retry overdue by {}", span(at, status.at)),
        late if late >= SignedDuration::ZERO => "retrying now".to_owned(),
        _ if is_known => format!("retrying in {}", span(status.at, at)),
        _ => format!("retry planned for {}Z", stamp(at)),
    }
}

fn ended(outcome: Outcome) -> String {
    format!("{}, not yet recorded", outcome.as_str())
}

fn cut_off(keep_until: Option<Timestamp>) -> String {
    match keep_until {
        Some(until) => format!("CUT OFF, given up at {}Z unless its node is back", stamp(until)),
        None => "CUT OFF until its node is back, or `kill --force`".to_owned(),
    }
}

pub(super) fn paused(status: &Status) -> Table {
    let paused = || status.jobs.iter().filter_map(|job| Some((&job.name, job.paused.as_ref()?)));
    let has_ends = paused().any(|(_, pause)| pause.until.is_some());
    let end: &[&str] = if has_ends { &["UNTIL (UTC)"] } else { &[] };
    let mut table = Table::new(&[&["PAUSED", "SINCE (UTC)"], end, &["BY", "WHY"]].concat());
    for (name, pause) in paused() {
        let why = pause.reason.as_deref().and_then(shown);
        let why = why.map_or_else(|| "-".to_owned(), |why| escape::plain(why).to_string());
        let end = has_ends.then(|| pause.until.map_or_else(|| "resumed".to_owned(), stamp));
        let by = shown(&pause.by).unwrap_or("-").to_owned();
        let columns = [name.to_string(), pause.since().map_or_else(|| "not known".to_owned(), stamp)]
            .into_iter()
            .chain(end)
            .chain([by, why]);
        table.row(columns);
    }
    table
}

/// The active alarms.
pub(super) fn alarms(status: &Status) -> Table {
    let mut table = Table::new(&["ALARM", "JOB", "RUN", "SINCE (UTC)", "FOR"]);
    for job in &status.jobs {
        for AlarmStatus { alarm, since, run, .. } in &job.alarms {
            let run = run.as_ref().map_or_else(|| "-".to_owned(), RunId::to_string);
            let (since, lasts) = (stamp(*since), span(*since, status.at));
            table.marked_row(true, [alarm.as_str().to_owned(), job.name.to_string(), run, since, lasts]);
        }
    }
    table
}

/// The jobs, those that need attention first.
pub(super) fn jobs(status: &Status) -> Table {
    let mut table = Table::new(&["JOB", "LAST", "ON", "ENDED", "NEXT (UTC)", "IN"]);
    let (failing, others): (Vec<_>, Vec<_>) = status.jobs.iter().partition(|job| job.is_failing());
    for (is_failing, job) in failing.iter().map(|job| (true, job)).chain(others.iter().map(|job| (false, job))) {
        let (outcome, node, ended) = match job.telling_end() {
            Some(last) => {
                let outcome = if job.running.contains(&last.run) { ended(last.outcome) } else { outcome(last) };
                let ago = format!("{} ago", span(last.at, status.at));
                match &job.shares {
                    Some(shares) => (format!("{outcome}; {}", shares.in_words()), shares.nodes_in_words(), ago),
                    None => (outcome, last.place().to_string(), ago),
                }
            }
            None if status.knows(LedgerPart::Ends) => ("-".into(), "-".into(), "-".into()),
            None => ("not known".into(), String::new(), String::new()),
        };
        let outcome = with_problems(outcome, job);
        let (next, within) = next(job, status);
        let name = if is_failing { format!("! {}", job.name) } else { job.name.to_string() };
        table.marked_row(is_failing, [name, outcome, node, ended, next, within]);
    }
    table
}

/// How the job ended last, and what else is wrong with it.
fn with_problems(outcome: String, job: &JobStatus) -> String {
    let cut_off = (!job.cut_off.is_empty()).then_some("a run is cut off");
    let alarms = job.alarms.iter().map(|alarm| alarm.alarm.as_str());
    let unplaceable = job.unplaceable.as_ref().map(|_| "no node can run it");
    let problems: Vec<&str> = cut_off.into_iter().chain(alarms).chain(unplaceable).collect();
    match (problems.is_empty(), outcome.as_str()) {
        (true, _) => outcome,
        (false, "-") => problems.join(", "),
        (false, _) => format!("{outcome}; {}", problems.join(", ")),
    }
}

/// How a run ended, with what explains it best: `failure, exit 3`, `failure, not-found`, `killed, operator`.
fn outcome(last: &LastRun) -> String {
    let reason = last.reason.map(|reason| reason.as_str().to_owned());
    let exit = last.exit_code.filter(|_| last.outcome == Outcome::Failure).map(|code| format!("exit {code}"));
    let signal = last.signal.filter(|_| last.outcome == Outcome::Failure).map(|signal| format!("signal {signal}"));
    match reason.or(exit).or(signal) {
        Some(detail) => format!("{}, {detail}", last.outcome.as_str()),
        None => last.outcome.as_str().to_owned(),
    }
}

fn next(job: &JobStatus, status: &Status) -> (String, String) {
    match job.next {
        _ if !job.enabled => ("disabled".into(), String::new()),
        _ if job.paused.is_some() => ("paused".into(), String::new()),
        // Without a leader nothing runs, however long it lasts.
        Some(at) if status.role.leader_node.is_none() => (stamp(at), "no leader".into()),
        Some(at) if status.role.token.is_some() && status.is_disconnected() => (stamp(at), "not connected".into()),
        Some(at) => (stamp(at), span(status.at, at)),
        None if !job.waits_for.is_empty() => (format!("waits for {}", listed(job.waits_for.iter())), String::new()),
        None if !job.after.is_empty() => (format!("after {}", listed(job.after.keys())), String::new()),
        None => ("never".into(), String::new()),
    }
}

fn listed<'a>(jobs: impl Iterator<Item = &'a JobName>) -> String {
    jobs.map(JobName::as_str).collect::<Vec<_>>().join(", ")
}
