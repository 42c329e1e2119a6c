//! A status as text, at most 80 columns wide, with problems at the top.

mod tables;

pub(in crate::cli) use tables::run_state;

use std::io::{self, Write};

use super::super::ask::span;
use super::screen::Screen;
use crate::cli::table::Table;
use crate::status::{
    Confinement, LastLeader, LedgerPart, LimitedBy, MissingMember, NodeState, Role, Status, drain_in_words, shown,
};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::{Published, Worth, highest_priority};
use cronkeeper_core::escape;
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

/// Replaces a text that is left out for those who see only the outline.
pub(super) const HIDDEN: &str = "details only on the Unix socket, or with the token";

/// What is shown of a status.
pub(super) struct Shown<'a> {
    /// Perhaps with some of the jobs, and their runs, only.
    pub status: &'a Status,
    /// The number of jobs that there are.
    pub all: usize,
    /// The number of jobs among which the failing ones are counted.
    pub counted: usize,
    /// The nodes, with the runs of all jobs.
    pub nodes: Table,
}

/// Writes the status; on a terminal that is redrawn, as much of it as fits.
pub(super) fn write(shown: Shown<'_>, screen: Screen, out: &mut dyn Write) -> io::Result<()> {
    let Shown { status, all, counted: of_jobs, nodes } = shown;
    let mut text = Vec::new();
    write_head(status, of_jobs, &mut text)?;
    let tables = [
        tables::queue(status),
        tables::members(status),
        nodes,
        tables::runs(status),
        tables::paused(status),
        tables::alarms(status),
    ];
    for table in tables {
        if !table.is_empty() {
            writeln!(text)?;
            table.write(&mut text)?;
        }
    }
    write_jobs(status, screen, &mut text)?;
    if status.jobs.is_empty() && all > 0 {
        writeln!(text, "\nnone of {} is selected", counted(all, "job"))?;
    }
    match screen.height {
        // The last line is for the cursor.
        Some(height) => {
            text.split_inclusive(|byte| *byte == b'\n').take(height - 1).try_for_each(|line| out.write_all(line))
        }
        None => out.write_all(&text),
    }
}

fn write_jobs(status: &Status, screen: Screen, text: &mut Vec<u8>) -> io::Result<()> {
    let mut table = tables::jobs(status);
    if table.is_empty() {
        return Ok(());
    }
    if let Some(width) = screen.width {
        table.fit(width, &["IN", "ON", "ENDED"]);
    }
    let above = text.iter().filter(|byte| **byte == b'\n').count();
    // Besides the rows: a blank line, the heading, the line about the rest, and the line of the cursor.
    let room = screen.height.map_or(usize::MAX, |height| height.saturating_sub(above + 4));
    let rest = table.len().saturating_sub(room);
    if rest > 0 {
        table.truncate(room);
    }
    writeln!(text)?;
    table.write_on(screen.has_colours, text)?;
    match rest {
        0 => Ok(()),
        rest => writeln!(text, "and {} more: --failing or --job PATTERN shows fewer", counted(rest, "job")),
    }
}

fn write_head(status: &Status, counted_jobs: usize, out: &mut dyn Write) -> io::Result<()> {
    line(out, "LEADER", &leader(status))?;
    if let Some(why) = &status.unread {
        line(out, "LEDGER", &unread(status, why))?;
    }
    for (place, part) in status.unknown.iter().enumerate() {
        line(out, if place == 0 { "UNKNOWN" } else { "" }, part.describe())?;
    }
    if let Some(successor) = successor(status) {
        line(out, "NEXT", &successor)?;
    }
    line(out, "NODE", &node(status))?;
    if !status.ready {
        let awaited = status.awaiting.as_deref().unwrap_or("its turn to take part");
        line(out, "WAITING", &format!("NOT READY: waits for {awaited}"))?;
    }
    for missing in &status.missing {
        if missing.stopped {
            line(out, "STOPPED", &format!("{}, {} ago", missing.node, gone_for(missing, status)))?;
            continue;
        }
        line(out, "MISSING", &format!("{}, {}", missing.node, session_ended(missing, status)))?;
    }
    for (node, drain) in &status.drained {
        line(out, "DRAINED", &drain_in_words(node, drain))?;
    }
    if status.is_all_drained() {
        line(out, "IDLE", "NOBODY LEADS and no job runs: every node is drained")?;
    }
    if status.has_none_that_may_lead() {
        line(out, "IDLE", "NOBODY LEADS and nothing new runs: no node that may lead is alive")?;
    }
    if let Some(failing) = failing(status, counted_jobs) {
        line(out, "FAILING", &failing)?;
    }
    if let Some(session) = session(status) {
        line(out, "SESSION", &session)?;
    }
    if let Some(service) = service(status) {
        line(out, "SERVICE", &service)?;
    }
    if let Some(clock) = clock(status) {
        line(out, "CLOCK", &clock)?;
    }
    line(out, "LIMITS", &limits(&status.confinement))?;
    write_jobs_file(status, out)?;
    for job in &status.jobs {
        if let Some(error) = &job.error {
            line(out, "ERROR", &format!("{}: {}", job.name, shown(error).unwrap_or(HIDDEN)))?;
        }
        if let Some(why) = &job.unplaceable {
            line(out, "NO NODE", &format!("{}: {}", job.name, shown(why).unwrap_or(HIDDEN)))?;
        }
    }
    if !status.drift.is_empty() {
        line(out, "DRIFT", &format!("jobs file or time zones differ from the leader's: {}", names(&status.drift)))?;
    }
    for failing in &status.failing_channels {
        let since = format!("{}Z", stamp(failing.since));
        let why = shown(&failing.error).unwrap_or(HIDDEN);
        line(out, "CHANNEL", &format!("{}: {why}", failing.in_words(&since)))?;
    }
    for damage in &status.damaged {
        line(out, "DAMAGED", shown(damage).unwrap_or(HIDDEN))?;
    }
    Ok(())
}

/// Why the ledger was not read, as far as that is shown, and how old the rest is.
fn unread(status: &Status, why: &str) -> String {
    let why = shown(why).map(|why| format!(": {why}")).unwrap_or_default();
    match status.parts_in_words(|at| format!("{}Z", stamp(at))) {
        Some(parts) => format!("NOT READ, showing {parts}{why}"),
        None => format!("NOT READ{why}"),
    }
}

/// Since when a node is gone: `its session ended 12s ago`. Its daemon may have died earlier.
pub(in crate::cli) fn session_ended(missing: &MissingMember, status: &Status) -> String {
    format!("its session ended {} ago", gone_for(missing, status))
}

/// How long a node has been gone: `12s`, or `between 12s and 27s` if it was last seen some time before it was noticed.
fn gone_for(missing: &MissingMember, status: &Status) -> String {
    let least = span(missing.gone_since, status.at);
    match missing.seen_well_before().map(|last_seen| span(last_seen, status.at)) {
        Some(most) if most != least => format!("between {least} and {most}"),
        Some(_) | None => least,
    }
}

/// Most jobs that are named in one line.
const MOST_NAMED: usize = 5;

/// How many of all jobs need attention, and which.
fn failing(status: &Status, counted_jobs: usize) -> Option<String> {
    let failing: Vec<&str> = status.jobs.iter().filter(|job| job.is_failing()).map(|job| job.name.as_str()).collect();
    let (count, all) = (failing.len(), counted(counted_jobs, "job"));
    let named = failing.get(..MOST_NAMED).unwrap_or(&failing).join(", ");
    let more = count.saturating_sub(MOST_NAMED);
    let named = if more > 0 { format!("{named} and {more} more") } else { named };
    let is_old = status.parts_read_at.contains_key(&LedgerPart::Ends);
    (count > 0).then(|| match status.knows(LedgerPart::Ends) {
        true if is_old => format!("{count} of {all} when last known: {named}"),
        true => format!("{count} of {all}: {named}"),
        false => format!("at least {count} of {all}: {named}; how all of them ended is not known"),
    })
}

fn line(out: &mut dyn Write, label: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{label:<8} {}", escape::plain(text))
}

fn leader(status: &Status) -> String {
    let role = &status.role;
    // Who led last may still be known for a moment.
    if let Some(why) = status.why_nobody_leads() {
        return format!("nobody, {why}");
    }
    let Some(leader) = &role.leader_node else { return no_leader(role) };
    match (role.token, role.term_since) {
        (Some(token), Some(since)) if *leader == status.node => {
            let text = format!("{leader} (this node) for {}, token {token}", span(since, status.at));
            if status.is_disconnected() { format!("{text}, NOT CONNECTED") } else { text }
        }
        _ => leader.to_string(),
    }
}

/// `unknown since 03:04:12Z (host3 until then)`.
pub(super) fn no_leader(role: &Role) -> String {
    match &role.last_leader {
        Some(LastLeader { node, unknown_since }) => {
            format!("unknown since {}Z ({node} until then)", stamp(*unknown_since))
        }
        None => "none known".to_owned(),
    }
}

/// The member with the highest priority among those that can lead, if it is higher than the leader's.
fn successor(status: &Status) -> Option<String> {
    let priority = |node: &NodeName| {
        status.members.iter().find(|member| member.node == *node).map(|member| member.published.priority)
    };
    let leaders = priority(status.role.leader_node.as_ref()?)?;
    let is_fit = |published: &Published| !published.draining && !published.jobs_invalid;
    let preferred = status.members.iter().filter(|member| is_fit(&member.published));
    let preferred = preferred.filter(|member| member.published.priority > leaders);
    let successor = highest_priority(preferred)?;
    Some(format!("{}, higher priority: takes over once it has been fit for a while", successor.node))
}

fn node(status: &Status) -> String {
    let mut text = format!("{}, {}", status.node, status.state.in_words());
    if status.state == NodeState::Following
        && let Some(before) = &status.role.predecessor_node
    {
        text.push_str(&format!(" behind {before}"));
    }
    let own = status.members.iter().find(|member| member.node == status.node);
    if own.is_some_and(|own| own.published.never_leads) {
        text.push_str(", never leads");
    }
    format!("{text}; {}, version {}", status.backend, status.version)
}

fn session(status: &Status) -> Option<String> {
    let session = status.session.as_ref()?;
    let state = if session.connected { "connected" } else { "SUSPENDED" };
    let mut text = format!("{}, {state} for {}", session.id, span(session.since, status.at));
    if status.backend != "solo" {
        // On one host a session ends with its process and has no timeout.
        text.push_str(&format!(", timeout {}s", seconds(session.timeout_ms)));
    }
    if let Some(left) = session.lease_remaining_ms {
        text.push_str(&format!(", lease {:.1}s left", seconds(left)));
    }
    Some(text)
}

/// What the service says of itself.
fn service(status: &Status) -> Option<String> {
    let Worth { service, durability, may_rewind } = status.service.as_ref()?;
    let mark = if *may_rewind { "ATTENTION: " } else { "" };
    Some(format!("{service}; {mark}{durability}"))
}

/// The clock skew, if it is at least one second.
fn clock(status: &Status) -> Option<String> {
    let skew = status.clock_skew_ms.filter(|skew| skew.unsigned_abs() >= 1_000)?;
    let side = if skew > 0 { "AHEAD of" } else { "BEHIND" };
    Some(format!("{:.1}s {side} the service's", seconds(skew.unsigned_abs())))
}

fn limits(confinement: &Confinement) -> String {
    let by = match confinement.limits {
        LimitedBy::Cgroup => "memory and processes by cgroup",
        LimitedBy::Rlimit => "memory and processes by rlimit",
    };
    let own = if confinement.cgroup.is_some() { "each run in its own cgroup" } else { "no cgroup available" };
    format!("{by}; {own}")
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

fn write_jobs_file(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let file = &status.jobs_file;
    let (path, loaded) = (shown(&file.path).unwrap_or("file"), stamp(file.loaded_at));
    if file.valid {
        return line(out, "JOBS", &format!("{path}, {}, since {loaded}Z", file.digest));
    }
    let used = if file.last_good { "the last good jobs," } else { "jobs" };
    line(out, "JOBS", &format!("{path} REJECTED, using {used} of {loaded}Z:"))?;
    match file.errors.iter().any(|error| shown(error).is_none()) {
        true => line(out, "", &format!("{}: {HIDDEN}", counted(file.errors.len(), "error"))),
        false => file.errors.iter().try_for_each(|error| line(out, "", error)),
    }
}

fn names(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
