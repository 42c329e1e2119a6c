//! A status as text, at most 80 columns wide, with problems at the top.

mod tables;

pub(in crate::cli) use tables::run_state;

use std::io::{self, Write};

use super::super::ask::span;
use super::screen::Screen;
use crate::status::{Confinement, LastLeader, LimitedBy, NodeState, Role, Status, drain_in_words};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::{Published, highest_priority};
use cronkeeper_core::escape;
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

/// Writes the status; on a terminal that is redrawn, as much of it as fits. `all`: the number of jobs there are, of which
/// the status may have fewer.
pub(super) fn write(status: &Status, all: usize, screen: Screen, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::new();
    write_head(status, all, &mut text)?;
    let tables = [
        tables::queue(status),
        tables::members(status),
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

fn write_head(status: &Status, all: usize, out: &mut dyn Write) -> io::Result<()> {
    line(out, "LEADER", &leader(status))?;
    if let Some(successor) = successor(status) {
        line(out, "NEXT", &successor)?;
    }
    line(out, "NODE", &node(status))?;
    if !status.ready {
        let awaited = status.awaiting.as_deref().unwrap_or("its turn to take part");
        line(out, "WAITING", &format!("NOT READY: waits for {awaited}"))?;
    }
    for missing in &status.missing {
        line(out, "MISSING", &format!("{}, gone for {}", missing.node, span(missing.gone_since, status.at)))?;
    }
    for (node, drain) in &status.drained {
        line(out, "DRAINED", &drain_in_words(node, drain))?;
    }
    if status.is_all_drained() {
        line(out, "IDLE", "NOBODY LEADS and no job runs: every node is drained")?;
    }
    if let Some(failing) = failing(status, all) {
        line(out, "FAILING", &failing)?;
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
    Ok(())
}

/// How many jobs need attention.
fn failing(status: &Status, all: usize) -> Option<String> {
    let failing = status.jobs.iter().filter(|job| job.is_failing()).count();
    let all = counted(all, "job");
    (failing > 0).then(|| format!("{failing} of {all}; the last run did not succeed, or the job has a problem"))
}

fn line(out: &mut dyn Write, label: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{label:<8} {}", escape::plain(text))
}

fn leader(status: &Status) -> String {
    let role = &status.role;
    let Some(leader) = &role.leader_node else { return no_leader(role) };
    match (role.token, role.term_since) {
        (Some(token), Some(since)) if *leader == status.node => {
            format!("{leader} (this node) for {}, token {token}", span(since, status.at))
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
    let used = if file.last_good { "the last good jobs," } else { "jobs" };
    line(out, "JOBS", &format!("{} REJECTED, using {used} of {loaded}Z:", file.path))?;
    file.errors.iter().try_for_each(|error| line(out, "", error))
}

fn names(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, LEDGER_WORDS, is_read_back};
    use crate::status::{AlarmStatus, JobStatus, MissingMember, sample};
    use cronkeeper_core::job::{Alarm, JobName};
    use cronkeeper_core::run::{Link, Outcome, RunId, RunState, Span, UpstreamResult};

    fn shown(status: &Status) -> String {
        let mut out = Vec::new();
        write(status, status.jobs.len(), Screen { width: Some(80), ..Screen::default() }, &mut out).unwrap();
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
        status.jobs[0].paused = Some(Box::new(cronkeeper_core::run::Pause {
            by: "uid 1000 (alice) on host-b".into(),
            at: sample::at("2026-11-19T17:00:00Z"),
            reason: Some("new disks\u{7}".into()),
            until: None,
        }));
        let shown = shown(&status);
        let expected = [
            "PAUSED          SINCE (UTC)          BY                          WHY",
            "nightly-backup  2026-11-19 17:00:00  uid 1000 (alice) on host-b  new disks\\u{7}",
            "nightly-backup  success  host-b  48m 51s ago  paused",
        ];
        for line in expected {
            assert!(shown.lines().any(|shown| shown.trim_end() == line), "{shown}");
        }
    }

    #[test]
    fn alarms_are_shown_with_their_run_and_since_when() {
        let mut status = sample::leader();
        let since = sample::at("2026-11-20T02:40:00Z");
        let alarm = |alarm, run| AlarmStatus { alarm, since, raised_at: since, run };
        let late = RunId::scheduled(sample::job("load"), since);
        status.jobs[0].alarms = vec![alarm(Alarm::Stale, None)];
        status.jobs[1].alarms = vec![alarm(Alarm::Late, Some(late))];
        let shown = shown(&status);
        let expected = [
            "ALARM  JOB             RUN                    SINCE (UTC)          FOR",
            "stale  nightly-backup  -                      2026-11-20 02:40:00  20m",
            "late   load            load.20261120T024000Z  2026-11-20 02:40:00  20m",
            "! load            -        -       -            2026-11-20 03:01:00  1m",
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
        let expected = "NEXT     host-b, higher priority: takes over once it has been fit for a while";
        assert_eq!(next(&status).as_deref(), Some(expected));
        status.members[1].published.jobs_invalid = true;
        assert_eq!(next(&status), None, "a node with an invalid jobs file is not handed leadership");
        let shown = shown(&status);
        for line in ["2d  draining", "2d  priority 10, jobs file INVALID"] {
            assert!(shown.lines().any(|shown| shown.ends_with(line)), "{shown}");
        }
        status.members[0].published.priority = 10;
        assert_eq!(next(&status), None, "the leader has the same priority");
    }

    fn failing() -> Status {
        let mut status = sample::leader();
        let mut last = status.jobs[0].last.clone().expect("it has run");
        (last.outcome, last.exit_code) = (Outcome::Failure, Some(3));
        status.jobs[1].last = Some(last);
        status
    }

    fn shown_on(screen: Screen, status: &Status) -> Vec<String> {
        let mut out = Vec::new();
        write(status, status.jobs.len(), screen, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn of_how_many_the_shown_jobs_are_is_said() {
        let mut status = failing();
        let all = status.jobs.len();
        let written = |status: &Status| {
            let mut out = Vec::new();
            write(status, all, Screen::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        status.jobs.retain(|job| job.is_failing());
        let expected = format!("FAILING  1 of {all} jobs; ");
        assert!(written(&status).contains(&expected), "{}", written(&status));
        status.jobs.clear();
        assert!(written(&status).ends_with(&format!("none of {all} jobs is selected\n")), "{}", written(&status));
    }

    #[test]
    fn a_failing_job_comes_first_and_is_marked() {
        let lines = shown_on(Screen { has_colours: true, ..Screen::default() }, &failing());
        assert!(lines.iter().any(|line| line.starts_with("FAILING  1 of 3 jobs")), "{lines:#?}");
        let jobs = lines.iter().position(|line| line.starts_with("JOB ")).expect("the jobs are shown");
        let row = "\u{1b}[31m! load          failure, exit 3  host-b  48m 51s ago  2026-11-20 03:01:00  1m\u{1b}[0m";
        assert_eq!(lines[jobs + 1], row);
        assert!(lines[jobs + 2].starts_with("nightly-backup  success "), "{lines:#?}");
    }

    #[test]
    fn a_job_with_a_run_that_is_cut_off_is_marked() {
        let mut status = sample::leader();
        let mut runs = status.runs.clone();
        runs[0].state = RunState::CutOff;
        status.put_runs(&runs);
        let shown = shown(&status);
        let expected = [
            "FAILING  1 of 3 jobs; the last run did not succeed, or the job has a problem",
            "load.20261120T025900Z  host-a  1        1m   CUT OFF until 2026-11-20 03:00:59Z",
            "! load          -        -       -            2026-11-20 03:01:00  1m",
        ];
        for line in expected {
            assert!(shown.lines().any(|shown| shown.trim_end() == line), "{shown}");
        }
    }

    #[test]
    fn a_terminal_shows_what_fits() {
        let mut status = failing();
        let job = status.jobs[0].clone();
        let more = (0..100).map(|n| JobStatus { name: JobName::parse(&format!("job-{n}")).unwrap(), ..job.clone() });
        status.jobs.extend(more);
        let lines = shown_on(Screen { width: Some(60), height: Some(30), has_colours: false }, &status);
        assert_eq!(lines.len(), 29);
        assert!(lines.iter().any(|line| line.starts_with("! load ")), "{lines:#?}");
        assert!(lines[28].contains(" more: --failing or --job PATTERN shows fewer"), "{lines:#?}");
        let table = lines.iter().skip_while(|line| !line.starts_with("JOB "));
        assert!(table.clone().count() > 1 && table.clone().all(|line| line.chars().count() <= 60), "{lines:#?}");
    }

    #[test]
    fn a_node_that_was_there_is_missing() {
        let mut status = sample::leader();
        let (node, gone_since) = (NodeName::new("host-c"), sample::at("2026-11-20T02:57:00Z"));
        status.missing.push(MissingMember { node, host: "host-c.example".into(), gone_since });
        assert!(shown(&status).contains("\nMISSING  host-c, gone for 3m\n"));
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
        Fuzz { longest: 32 << 10, ..Fuzz::of("status", LEDGER_WORDS) }.run(|input| {
            let read = serde_json::from_slice::<Status>(input);
            if let Ok(status) = &read {
                is_read_back(status);
                assert!(!shown(status).contains(|c| c != '\n' && escape::is_harmful(c)));
            }
            read.is_ok()
        });
    }
}
