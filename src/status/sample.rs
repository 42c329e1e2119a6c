//! Sample statuses for tests: one of a healthy leader, one of a node that is cut off.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    Confinement, JobStatus, JobsFile, LastRun, LedgerPart, LimitedBy, MissingMember, NodeState, Role, RunStatus,
    Session, SharesStatus, Status,
};
use cronkeeper_core::election::{Candidate, Member, Place, Published, Queue};
use cronkeeper_core::job::{Digest, JobName, Label};
use cronkeeper_core::run::{Drain, Outcome, RunId, RunState};
use cronkeeper_core::term::{CandidateName, FencingToken, NodeName, SessionId};

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(crate) fn job(name: &str) -> JobName {
    JobName::parse(name).unwrap()
}

/// A queue of two nodes and an entry that is not cronkeeper's. The nodes have different jobs.
pub(crate) fn queue() -> Queue {
    let candidate = |n, node: Option<&str>| Candidate {
        candidate: CandidateName(format!("_c_9f1c2f4e-7a31-4c55-b1f6-0d2a6c1e9a77-lock-{n:010}")),
        node: node.map(NodeName::new),
    };
    let member = |node: &str, jobs: &str| Member {
        v: 1,
        node: NodeName::new(node),
        host: format!("{node}.example"),
        pid: 4242,
        version: "0.1.0".into(),
        started_at: at("2026-11-18T03:00:00Z"),
        session_timeout_ms: None,
        published: Published { digest: Digest::of(jobs.as_bytes()), tzdata: "2026b".into(), ..Published::default() },
        opened: None,
        session: None,
    };
    Queue {
        candidates: vec![candidate(7, Some("host-a")), candidate(8, None), candidate(9, Some("host-b"))],
        leader: Some(NodeName::new("host-a")),
        members: vec![member("host-a", "new"), member("host-b", "old")],
        drained: Default::default(),
        places: Default::default(),
    }
}

/// Three places; one of them is away.
pub(crate) fn places() -> BTreeMap<NodeName, Place> {
    let place = |labels: &[&str], weight| Place {
        v: 1,
        labels: labels.iter().map(|label| Label::parse_own(label).unwrap()).collect(),
        weight,
        stopped: None,
    };
    let places = [("host-a", place(&["zone=eu", "gpu"], 8)), ("host-b", place(&[], 4)), ("host-c", place(&["db"], 0))];
    places.map(|(node, place)| (NodeName::new(node), place)).into()
}

pub(crate) fn drained(node: &str) -> BTreeMap<NodeName, Drain> {
    let drain = Drain { by: "alice".into(), at: at("2026-11-20T02:00:00Z"), reason: None };
    [(NodeName::new(node), drain)].into()
}

/// A node on another host that was a place, and is gone since.
pub(crate) fn missing(node: &str) -> MissingMember {
    let gone_since = at("2026-11-20T02:57:00Z");
    let (node, host) = (NodeName::new(node), "c.example".into());
    MissingMember { node, host, gone_since, last_seen: None, stopped: false, was_place: true }
}

/// How the shares of a run ended, each with its node.
pub(crate) fn shares(run: &LastRun, ends: &[(&str, Outcome)]) -> SharesStatus {
    let end = |(node, outcome): &(&str, Outcome)| {
        let (node, outcome) = (NodeName::new(*node), *outcome);
        LastRun { run: run.run.clone().on(Some(node.clone())), node, outcome, exit_code: Some(1), ..run.clone() }
    };
    let (ok, failed): (Vec<_>, Vec<_>) = ends.iter().map(end).partition(|end| end.outcome == Outcome::Success);
    let ok = ok.into_iter().map(|end| end.node).collect();
    let run = run.run.clone();
    SharesStatus {
        run,
        ok,
        failed,
        also_failed: Default::default(),
        open: Default::default(),
        unknown: Default::default(),
    }
}

pub(crate) fn leader() -> Status {
    let running = RunId::scheduled(job("load"), at("2026-11-20T02:59:00Z"));
    let mut status = Status {
        v: 1,
        at: at("2026-11-20T03:00:00Z"),
        node: NodeName::new("host-a"),
        backend: "zookeeper".into(),
        version: "0.1.0".into(),
        started_at: at("2026-11-18T03:00:00Z"),
        state: NodeState::Leading,
        ready: true,
        awaiting: None,
        role: Role {
            candidate: Some(queue().candidates[0].candidate.clone()),
            leader_node: Some(NodeName::new("host-a")),
            token: Some(FencingToken(4_294_967_301)),
            term_since: Some(at("2026-11-19T23:12:00Z")),
            ..Role::default()
        },
        session: Some(Session {
            id: SessionId("0x10001a2b3c40000".into()),
            timeout_ms: 10_000,
            connected: true,
            since: at("2026-11-18T03:00:00Z"),
            lease_remaining_ms: Some(4_870),
        }),
        service: None,
        confinement: Confinement {
            cgroup: Some("/sys/fs/cgroup/system.slice/cronkeeper.service/cronkeeper.4026531836.4242.777".into()),
            limits: LimitedBy::Cgroup,
        },
        jobs_file: JobsFile {
            path: "/etc/cronkeeper/jobs.yaml".into(),
            digest: Digest::of(b"new"),
            valid: true,
            errors: Vec::new(),
            loaded_at: at("2026-11-19T23:11:30Z"),
            last_good: false,
        },
        clock_skew_ms: Some(0),
        jobs: vec![
            JobStatus {
                name: job("nightly-backup"),
                description: Some("Full backup of the catalogue".into()),
                schedule: vec!["30 2 * * *".into()],
                timezone: "Europe/Berlin".into(),
                after: Default::default(),
                enabled: true,
                parameters: Vec::new(),
                last: Some(Box::new(LastRun {
                    run: RunId::scheduled(job("nightly-backup"), at("2026-11-20T01:30:00Z")),
                    node: NodeName::new("host-b"),
                    attempt: 1,
                    outcome: Outcome::Success,
                    reason: None,
                    exit_code: Some(0),
                    signal: None,
                    at: at("2026-11-20T02:11:09Z"),
                    reported_at: None,
                })),
                shares: None,
                next: Some(at("2026-11-21T01:30:00Z")),
                running: Vec::new(),
                cut_off: Vec::new(),
                waits_for: Vec::new(),
                run_on: None,
                run_where: Vec::new(),
                unplaceable: None,
                error: None,
                paused: None,
                alarms: Vec::new(),
            },
            JobStatus {
                name: job("load"),
                description: None,
                schedule: vec!["* * * * *".into()],
                timezone: "UTC".into(),
                after: Default::default(),
                enabled: true,
                parameters: Vec::new(),
                last: None,
                shares: None,
                next: Some(at("2026-11-20T03:01:00Z")),
                running: vec![running.clone()],
                cut_off: Vec::new(),
                waits_for: Vec::new(),
                run_on: None,
                run_where: Vec::new(),
                unplaceable: None,
                error: None,
                paused: None,
                alarms: Vec::new(),
            },
            JobStatus {
                name: job("old-report"),
                description: None,
                schedule: vec!["0 6 * * 1".into()],
                timezone: "UTC".into(),
                after: Default::default(),
                enabled: false,
                parameters: Vec::new(),
                last: None,
                shares: None,
                next: None,
                running: Vec::new(),
                cut_off: Vec::new(),
                waits_for: Vec::new(),
                run_on: None,
                run_where: Vec::new(),
                unplaceable: None,
                error: None,
                paused: None,
                alarms: Vec::new(),
            },
        ],
        runs: vec![RunStatus {
            run: running,
            node: NodeName::new("host-a"),
            attempt: 1,
            since: at("2026-11-20T02:59:00Z"),
            state: RunState::Running,
            retry_at: None,
            keep_until: Some(at("2026-11-20T03:00:59Z")),
            ended: None,
            unconfirmed: false,
            refused: None,
            triggered_by: None,
            killed_by: None,
        }],
        queue: Vec::new(),
        members: Vec::new(),
        members_at: None,
        missing: Vec::new(),
        drained: Default::default(),
        places: Default::default(),
        suspects: Default::default(),
        failing_channels: Vec::new(),
        drift: Vec::new(),
        unread: None,
        read_at: None,
        parts_read_at: Default::default(),
        unknown: Vec::new(),
        damaged: Vec::new(),
    };
    status.put_queue(&queue());
    status
}

/// A node that has lost ZooKeeper, and whose jobs file has become invalid.
pub(crate) fn cut_off() -> Status {
    let mut status = leader();
    status.state = NodeState::Joining;
    status.ready = false;
    status.awaiting = Some("ZooKeeper at zk1:2181,zk2:2181".into());
    status.role = Role::default();
    status.session = status.session.map(|session| Session {
        connected: false,
        since: at("2026-11-20T02:59:47Z"),
        lease_remaining_ms: Some(0),
        ..session
    });
    status.confinement = Confinement::default();
    status.jobs_file.valid = false;
    status.jobs_file.errors = vec![
        "/etc/cronkeeper/jobs.yaml:3:5: unknown key `shedule`, did you mean `schedule`?".into(),
        "/etc/cronkeeper/jobs.yaml:9:15: `25` is not an hour".into(),
    ];
    for run in &mut status.runs {
        run.state = RunState::CutOff;
    }
    status.jobs.truncate(1);
    status.clock_skew_ms = Some(3_599_240);
    status.jobs[0].error = Some("last-scheduled time is in the future".into());
    (status.queue, status.members, status.drift) = Default::default();
    status.unread = Some("no answer within 3 s".into());
    status.unknown = LedgerPart::ALL.to_vec();
    status
}
