//! A status as text, at most 80 columns wide, with problems at the top.

use std::io::{self, Write};

use jiff::Timestamp;

use super::super::ask::{span, stamp};
use super::super::table::Table;
use crate::election::{Published, highest_priority};
use crate::escape;
use crate::job::JobName;
use crate::run::RunState;
use crate::status::{Confinement, JobStatus, LimitedBy, NodeState, QueuedCandidate, Status};
use crate::term::NodeName;

pub(super) fn write(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    line(out, "LEADER", &leader(status))?;
    if let Some(successor) = successor(status) {
        line(out, "NEXT", &successor)?;
    }
    line(out, "NODE", &node(status))?;
    if !status.ready {
        let awaited = status.awaiting.as_deref().unwrap_or("its turn to take part");
        line(out, "WAITING", &format!("NOT READY: waits for {awaited}"))?;
    }
    if let Some(session) = session(status) {
        line(out, "SESSION", &session)?;
    }
    if let Some(clock) = clock(status) {
        line(out, "CLOCK", &clock)?;
    }
    line(out, "LIMITS", &limits(&status.confinement))?;
    write_jobs_file(status, out)?;
    for job in &status.jobs {
        if let Some(error) = &job.error {
            line(out, "ERROR", &format!("{}: {error}", job.name))?;
        }
    }
    if !status.drift.is_empty() {
        line(out, "DRIFT", &format!("other jobs or time zones than the leader: {}", names(&status.drift)))?;
    }
    if let Some(why) = &status.unread {
        line(out, "LEDGER", &format!("NOT READ, the rest may be old or incomplete: {why}"))?;
    }
    for damage in &status.damaged {
        line(out, "DAMAGED", damage)?;
    }
    for table in [queue(status), members(status), runs(status), paused(status), jobs(status)] {
        if !table.is_empty() {
            writeln!(out)?;
            table.write(out)?;
        }
    }
    Ok(())
}

fn line(out: &mut dyn Write, label: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{label:<8} {}", escape::plain(text))
}

fn leader(status: &Status) -> String {
    let role = &status.role;
    let Some(leader) = &role.leader_node else { return "none known".into() };
    match (role.token, role.term_since) {
        (Some(token), Some(since)) if *leader == status.node => {
            format!("{leader} (this node) for {}, token {token}", span(since, status.at))
        }
        _ => leader.to_string(),
    }
}

/// The member with the highest priority, if it is higher than the leader's.
fn successor(status: &Status) -> Option<String> {
    let priority = |node: &NodeName| {
        status.members.iter().find(|member| member.node == *node).map(|member| member.published.priority)
    };
    let leaders = priority(status.role.leader_node.as_ref()?)?;
    let preferred = status.members.iter().filter(|member| member.published.priority > leaders);
    let successor = highest_priority(preferred)?;
    Some(format!("{}, higher priority: takes over once it has been fit for a while", successor.node))
}

fn node(status: &Status) -> String {
    let mut text = format!("{}, {}", status.node, status.state.as_str());
    if status.state == NodeState::Following
        && let Some(before) = &status.role.predecessor_node
    {
        text.push_str(&format!(" behind {before}"));
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

/// The clock skew, if it is at least one second.
fn clock(status: &Status) -> Option<String> {
    let skew = status.clock_skew_ms.filter(|skew| skew.unsigned_abs() >= 1_000)?;
    let side = if skew > 0 { "AHEAD of" } else { "BEHIND" };
    Some(format!("{:.1}s {side} ZooKeeper's", seconds(skew.unsigned_abs())))
}

fn limits(confinement: &Confinement) -> String {
    let by = match confinement.limits {
        LimitedBy::Cgroup => "memory and processes by cgroup",
        LimitedBy::Rlimit => "memory and processes by rlimit",
    };
    let own = if confinement.cgroup.is_some() { "each run in a cgroup of its own" } else { "no cgroup available" };
    format!("{by}; {own}")
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

fn write_jobs_file(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let file = &status.jobs_file;
    let loaded = stamp(file.loaded_at);
    if file.valid {
        return line(out, "JOBS", &format!("{}, {}, since {loaded}Z", file.path, file.digest));
    }
    line(out, "JOBS", &format!("{} REJECTED, using jobs of {loaded}Z:", file.path))?;
    file.errors.iter().try_for_each(|error| line(out, "", error))
}

fn names(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

fn queue(status: &Status) -> Table {
    let mut table = Table::new(&["QUEUE", "NODE", "WAITS FOR", "CANDIDATE"]);
    for (i, queued) in status.queue.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|before| status.queue.get(before));
        let waits_for = before.map_or_else(|| "- (leads)".into(), holder);
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

fn members(status: &Status) -> Table {
    let has_notes = status.members.iter().any(|member| !notes(&member.published).is_empty());
    let last: &[&str] = if has_notes { &["NOTES"] } else { &[] };
    let mut table = Table::new(&[&["MEMBER", "HOST", "PID", "VERSION", "JOBS", "UP"], last].concat());
    for member in &status.members {
        let mut row = vec![
            member.node.to_string(),
            member.host.clone(),
            member.pid.to_string(),
            member.version.clone(),
            member.published.digest.to_string(),
            span(member.started_at, status.at),
        ];
        row.extend(has_notes.then(|| notes(&member.published)));
        table.row(row);
    }
    table
}

/// What distinguishes a member from most others.
fn notes(published: &Published) -> String {
    let priority = (published.priority > 0).then(|| format!("priority {}", published.priority));
    let draining = published.draining.then(|| "draining".to_owned());
    let invalid = published.jobs_invalid.then(|| "jobs file INVALID".to_owned());
    priority.into_iter().chain(draining).chain(invalid).collect::<Vec<_>>().join(", ")
}

fn runs(status: &Status) -> Table {
    let mut table = Table::new(&["RUNNING", "NODE", "ATTEMPT", "FOR", "STATE"]);
    for run in &status.runs {
        let state = match (run.state, run.retry_at) {
            (RunState::Queued, _) => "waits for other runs".to_owned(),
            (RunState::Running, _) => "running".to_owned(),
            (RunState::Retrying, Some(at)) => format!("retrying in {}", span(status.at, at)),
            (RunState::Retrying, None) => "retrying now".to_owned(),
            (RunState::Unstarted, Some(at)) => format!("not started yet, retry in {}", span(status.at, at)),
            (RunState::Unstarted, None) => "not started yet".to_owned(),
            (RunState::CutOff, _) => cut_off(run.keep_until),
        };
        let node = run.node.to_string();
        table.row([run.run.to_string(), node, run.attempt.to_string(), span(run.since, status.at), state]);
    }
    table
}

fn cut_off(keep_until: Option<Timestamp>) -> String {
    keep_until.map_or_else(|| "CUT OFF for good".to_owned(), |until| format!("CUT OFF until {}Z", stamp(until)))
}

fn paused(status: &Status) -> Table {
    let mut table = Table::new(&["PAUSED", "SINCE (UTC)", "BY", "WHY"]);
    for job in &status.jobs {
        if let Some(pause) = &job.paused {
            let why = pause.reason.as_deref().map_or_else(|| "-".to_owned(), |why| escape::plain(why).to_string());
            table.row([job.name.to_string(), stamp(pause.at), pause.by.clone(), why]);
        }
    }
    table
}

fn jobs(status: &Status) -> Table {
    let mut table = Table::new(&["JOB", "LAST", "ENDED", "NEXT (UTC)", "IN"]);
    for job in &status.jobs {
        let (outcome, ended) = match &job.last {
            Some(last) => (last.outcome.as_str().to_owned(), format!("{} ago", span(last.at, status.at))),
            None => ("-".into(), "-".into()),
        };
        let (next, within) = next(job, status);
        table.row([job.name.to_string(), outcome, ended, next, within]);
    }
    table
}

fn next(job: &JobStatus, status: &Status) -> (String, String) {
    match job.next {
        _ if !job.enabled => ("disabled".into(), String::new()),
        _ if job.paused.is_some() => ("paused".into(), String::new()),
        Some(at) => (stamp(at), span(status.at, at)),
        None if !job.waits_for.is_empty() => (format!("waits for {}", listed(job.waits_for.iter())), String::new()),
        None if !job.after.is_empty() => (format!("after {}", listed(job.after.keys())), String::new()),
        None => ("never".into(), String::new()),
    }
}

fn listed<'a>(jobs: impl Iterator<Item = &'a JobName>) -> String {
    jobs.map(JobName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, is_read_back};
    use crate::run::fuzz::WORDS;
    use crate::run::{Link, Span, UpstreamResult};
    use crate::status::sample;

    fn shown(status: &Status) -> String {
        let mut out = Vec::new();
        write(status, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_leader_shows_the_whole_cluster_in_80_columns() {
        let shown = shown(&sample::leader());
        assert_eq!(shown, include_str!("leader.txt"));
        assert!(shown.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn problems_are_at_the_top() {
        let shown = shown(&sample::cut_off());
        assert_eq!(shown, include_str!("cut_off.txt"));
        assert!(shown.lines().all(|line| line.chars().count() <= 80 || line.contains("jobs.yaml:")));
    }

    #[test]
    fn a_paused_job_is_shown_with_who_paused_it_since_when_and_why() {
        let mut status = sample::leader();
        status.jobs[0].paused = Some(crate::run::Pause {
            by: "uid 1000 (alice) on host-b".into(),
            at: sample::at("2026-11-19T17:00:00Z"),
            reason: Some("new disks\u{7}".into()),
        });
        let shown = shown(&status);
        let expected = [
            "PAUSED          SINCE (UTC)          BY                          WHY",
            "nightly-backup  2026-11-19 17:00:00  uid 1000 (alice) on host-b  new disks\\u{7}",
            "nightly-backup  success  48m 51s ago  paused",
        ];
        for line in expected {
            assert!(shown.lines().any(|shown| shown.trim_end() == line), "{shown}");
        }
    }

    #[test]
    fn members_show_priority_draining_and_an_invalid_jobs_file() {
        let mut status = sample::leader();
        let next = |status: &Status| shown(status).lines().find(|line| line.starts_with("NEXT")).map(str::to_owned);
        assert_eq!(next(&status), None, "all have the same priority");
        status.members[0].published.draining = true;
        status.members[1].published.priority = 10;
        status.members[1].published.jobs_invalid = true;
        let expected = "NEXT     host-b, higher priority: takes over once it has been fit for a while";
        assert_eq!(next(&status).as_deref(), Some(expected));
        let shown = shown(&status);
        for line in ["2d  draining", "2d  priority 10, jobs file INVALID"] {
            assert!(shown.lines().any(|shown| shown.ends_with(line)), "{shown}");
        }
        status.members[0].published.priority = 10;
        assert_eq!(next(&status), None, "the leader has the same priority");
    }

    #[test]
    fn a_dependent_job_names_its_upstreams_and_those_it_waits_for() {
        let name = |job: &str| JobName::parse(job).unwrap();
        let mut status = sample::leader();
        let job = &mut status.jobs[1];
        (job.next, job.after) = (None, ["extract", "clean"].map(|job| (name(job), "success".to_owned())).into());
        assert!(
            shown(&status)
                .lines()
                .any(|line| line.starts_with("load ") && line.trim_end().ends_with("after clean, extract"))
        );
        let at = sample::at("2026-11-20T03:00:00Z");
        let link = Link {
            v: 1,
            upstream: name("clean"),
            job: name("load"),
            scheduled_at: at,
            span: Span { last: at, count: 1 },
            trigger: None,
            result: UpstreamResult::Success,
            at,
        };
        status.put_links([link].iter());
        let shown = shown(&status);
        let waits = |line: &str| line.starts_with("load ") && line.trim_end().ends_with("waits for extract");
        assert!(shown.lines().any(waits), "{shown}");
    }

    #[test]
    fn damaged_records_are_named_with_their_path() {
        let mut status = sample::leader();
        status.damaged = vec!["/cronkeeper/history/a: it cannot be written: not authorized".into()];
        let expected = "DAMAGED  /cronkeeper/history/a: it cannot be written: not authorized\n";
        assert!(shown(&status).contains(expected));
    }

    #[test]
    fn a_hostile_message_cannot_paint_the_screen() {
        let mut status = sample::cut_off();
        status.jobs_file.errors = vec!["x\u{1b}[2J\ny".into()];
        assert!(shown(&status).contains("x\\u{1b}[2J\\ny"));
    }

    /// The daemon may be of another version, and its answer may contain text that somebody wrote into the ledger.
    #[test]
    fn fuzz_status_of_a_daemon() {
        Fuzz { longest: 32 << 10, ..Fuzz::of("status", WORDS) }.run(|input| {
            let read = serde_json::from_slice::<Status>(input);
            if let Ok(status) = &read {
                is_read_back(status);
                assert!(!shown(status).contains(|c| c != '\n' && escape::is_harmful(c)));
            }
            read.is_ok()
        });
    }
}
