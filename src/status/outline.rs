//! The public form of status and history, shown over TCP without a token: names, times and outcomes.
//!
//! Text that somebody wrote is left out, because it may contain a secret: the output of jobs, the contents and errors
//! of the jobs file, the names and reasons of operators. Paths on the host are left out too. The functions list every
//! field, so that a new one fails to compile until somebody decides whether to show it.

use std::collections::BTreeMap;

use super::{
    Confinement, EndedRun, FailingChannel, HistoryEntry, JobStatus, JobsFile, LastRun, MissingMember, QueuedCandidate,
    Role, RunStatus, Session, SharesStatus, Skipped, Status,
};
use cronkeeper_core::election::{Member, Place, Published, Worth};
use cronkeeper_core::job::Labels;
use cronkeeper_core::run::{Drain, Pause};

/// Replaces a text that is left out.
pub const WITHHELD: &str = "shown only on the Unix socket, or with the token";

fn withheld() -> String {
    WITHHELD.to_owned()
}

fn each_withheld(texts: &[String]) -> Vec<String> {
    texts.iter().map(|_| withheld()).collect()
}

/// What a node waits for, without the reason behind the colon, which may name servers and paths.
pub fn without_cause(awaiting: &str) -> String {
    awaiting.split_once(": ").map_or(awaiting, |(what, _)| what).to_owned()
}

impl Status {
    /// The public form of the status.
    #[must_use]
    pub fn outlined(self) -> Self {
        let Self {
            v,
            at,
            node,
            backend,
            version,
            started_at,
            state,
            ready,
            awaiting,
            role,
            session,
            service,
            confinement: Confinement { cgroup, limits },
            jobs_file: JobsFile { path: _, digest, valid, errors, loaded_at, last_good },
            clock_skew_ms,
            jobs,
            runs,
            queue,
            members,
            members_at,
            missing,
            drained,
            places,
            suspects,
            failing_channels,
            drift,
            unread,
            read_at,
            parts_read_at,
            unknown,
            damaged,
        } = self;
        let Role { candidate, predecessor, predecessor_node, leader_node, last_leader, token, term_since, is_first } =
            role;
        Self {
            v,
            at,
            node,
            backend,
            version,
            started_at,
            state,
            ready,
            awaiting: awaiting.as_deref().map(without_cause),
            role: Role {
                candidate,
                predecessor,
                predecessor_node,
                leader_node,
                last_leader,
                token,
                term_since,
                is_first,
            },
            session: session.map(outlined_session),
            service: service.map(outlined_worth),
            confinement: Confinement { cgroup: cgroup.map(|_| withheld()), limits },
            jobs_file: JobsFile {
                path: withheld(),
                digest,
                valid,
                errors: each_withheld(&errors),
                loaded_at,
                last_good,
            },
            clock_skew_ms,
            jobs: jobs.into_iter().map(JobStatus::outlined).collect(),
            runs: runs.into_iter().map(outlined_run).collect(),
            queue: queue.into_iter().map(outlined_candidate).collect(),
            members: members.into_iter().map(outlined_member).collect(),
            members_at,
            missing: missing.into_iter().map(outlined_missing).collect(),
            drained: drained.into_iter().map(|(node, drain)| (node, outlined_drain(drain))).collect(),
            // Labels are texts of the hosts' settings.
            places: places.into_iter().map(|(node, place)| (node, Place { labels: Labels::new(), ..place })).collect(),
            suspects,
            failing_channels: failing_channels.into_iter().map(outlined_channel).collect(),
            drift,
            unread: unread.map(|_| withheld()),
            read_at,
            parts_read_at,
            unknown,
            damaged: each_withheld(&damaged),
        }
    }
}

/// The answer of a service may be anything.
fn outlined_channel(channel: FailingChannel) -> FailingChannel {
    let FailingChannel { channel, since, waiting, error: _ } = channel;
    FailingChannel { channel, since, waiting, error: withheld() }
}

impl JobStatus {
    fn outlined(self) -> Self {
        let Self {
            name,
            description: _,
            schedule,
            timezone,
            after,
            enabled,
            parameters: _,
            last,
            shares,
            next,
            running,
            cut_off,
            waits_for,
            run_on,
            run_where: _,
            unplaceable,
            error,
            paused,
            alarms,
        } = self;
        Self {
            name,
            description: None,
            schedule,
            timezone,
            after,
            enabled,
            parameters: Vec::new(),
            last: last.map(|last| Box::new(outlined_last(*last))),
            shares: shares.map(|shares| {
                let SharesStatus { run, ok, failed, also_failed, open, unknown } = *shares;
                let failed = failed.into_iter().map(outlined_last).collect();
                Box::new(SharesStatus { run, ok, failed, also_failed, open, unknown })
            }),
            next,
            running,
            cut_off,
            waits_for,
            run_on,
            run_where: Vec::new(),
            // It names labels.
            unplaceable: unplaceable.map(|_| withheld()),
            error: error.map(|_| withheld()),
            paused: paused.map(|pause| {
                let Pause { by: _, at, reason, until } = *pause;
                Box::new(Pause { by: withheld(), at, reason: reason.map(|_| withheld()), until })
            }),
            alarms,
        }
    }
}

/// The session's id is left out: together with the session's password it would allow others to use the session.
fn outlined_session(session: Session) -> Session {
    let Session { id: _, timeout_ms, connected, since, lease_remaining_ms } = session;
    // The id must be one that a client can parse.
    let id = cronkeeper_core::term::SessionId("withheld".to_owned());
    Session { id, timeout_ms, connected, since, lease_remaining_ms }
}

fn outlined_worth(worth: Worth) -> Worth {
    let Worth { service, durability: _, may_rewind } = worth;
    Worth { service, durability: withheld(), may_rewind }
}

fn outlined_drain(drain: Drain) -> Drain {
    let Drain { by: _, at, reason } = drain;
    Drain { by: withheld(), at, reason: reason.map(|_| withheld()) }
}

fn outlined_run(mut run: RunStatus) -> RunStatus {
    let RunStatus {
        run: _,
        node: _,
        attempt: _,
        since: _,
        state: _,
        retry_at: _,
        keep_until: _,
        ended: _,
        unconfirmed: _,
        refused: _,
        triggered_by,
        killed_by,
    } = &mut run;
    [triggered_by, killed_by].into_iter().flatten().for_each(|by| *by = withheld());
    run
}

fn outlined_last(last: LastRun) -> LastRun {
    let LastRun { run, node, attempt, outcome, reason, exit_code, signal, at, reported_at } = last;
    LastRun { run, node, attempt, outcome, reason, exit_code, signal, at, reported_at }
}

fn outlined_candidate(queued: QueuedCandidate) -> QueuedCandidate {
    let QueuedCandidate { candidate, node, predecessor } = queued;
    QueuedCandidate { candidate, node, predecessor }
}

fn outlined_member(member: Member) -> Member {
    let Member { v, node, host: _, pid: _, version, started_at, session_timeout_ms, published, opened, session: _ } =
        member;
    let published = Published { listen: None, ..published };
    Member {
        v,
        node,
        host: withheld(),
        pid: 0,
        version,
        started_at,
        session_timeout_ms,
        published,
        opened,
        session: None,
    }
}

fn outlined_missing(missing: MissingMember) -> MissingMember {
    let MissingMember { node, host: _, gone_since, last_seen, stopped, was_place } = missing;
    MissingMember { node, host: withheld(), gone_since, last_seen, stopped, was_place }
}

impl HistoryEntry {
    /// The public form of the record.
    #[must_use]
    pub fn outlined(self) -> Self {
        match self {
            Self::Run(run) => Self::Run(Box::new(run.outlined())),
            Self::Skip(skip) => Self::Skip(Box::new(skip.outlined())),
        }
    }
}

impl EndedRun {
    fn outlined(self) -> Self {
        let Self {
            job,
            run,
            scheduled_at,
            triggered_by,
            triggered_for,
            parameters: _,
            killed_by,
            node,
            token,
            attempt,
            begun_at,
            started_at,
            ended_at,
            duration_ms,
            outcome,
            reason,
            exit_code,
            signal,
            leftovers,
            dropped_bytes,
            detail,
            tail,
            earlier_attempts,
        } = self;
        let tail = if tail.is_empty() { tail } else { withheld() };
        Self {
            job,
            run,
            scheduled_at,
            triggered_by: triggered_by.map(|_| withheld()),
            triggered_for,
            parameters: BTreeMap::new(),
            killed_by: killed_by.map(|_| withheld()),
            node,
            token,
            attempt,
            begun_at,
            started_at,
            ended_at,
            duration_ms,
            outcome,
            reason,
            exit_code,
            signal,
            leftovers,
            dropped_bytes,
            detail: detail.map(|_| withheld()),
            tail,
            earlier_attempts,
        }
    }
}

impl Skipped {
    fn outlined(self) -> Self {
        let Self { job, run, reason, first, triggered_by, triggered_for, last, count, detail, node, token, decided_at } =
            self;
        // It may name labels.
        let detail = detail.map(|_| withheld());
        let triggered_by = triggered_by.map(|_| withheld());
        Self { job, run, reason, first, triggered_by, triggered_for, last, count, detail, node, token, decided_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};
    use cronkeeper_core::job::JobName;
    use cronkeeper_core::run::{HistoryRecord, KillRequest, Outcome, Parameters, Reason};

    #[test]
    fn who_killed_a_run_is_not_public() {
        let mut end = success(record("load", 60, "s"));
        let by = "uid 0 (root) on host-a".to_owned();
        end.outcome = Outcome::Killed;
        end.run.kill = Some(Box::new(KillRequest { reason: Reason::Operator, by, at: end.ended_at, force: false }));
        let entry = HistoryEntry::from(HistoryRecord::Run(end.clone()));
        assert!(serde_json::to_string(&entry).unwrap().contains(r#""killed_by":"uid 0 (root) on host-a""#));
        assert!(!serde_json::to_string(&entry.outlined()).unwrap().contains("root"));
        end.outcome = Outcome::Success;
        let late = HistoryEntry::from(HistoryRecord::Run(end));
        assert!(!serde_json::to_string(&late).unwrap().contains("killed_by"), "it had ended by itself");
    }

    #[test]
    fn neither_names_nor_values_of_parameters_are_public() {
        let load = JobName::parse("load").unwrap();
        let given = [("DAY".to_owned(), "1".to_owned())].into();
        let parameters = Parameters::check(load.as_str(), &["DAY".to_owned()].into(), given).unwrap();
        let ended = success(record("load", 60, "s").with(parameters));
        let entry = HistoryEntry::from(HistoryRecord::Run(ended));
        assert!(serde_json::to_string(&entry).unwrap().contains("DAY"));
        assert!(!serde_json::to_string(&entry.outlined()).unwrap().contains("DAY"));
    }
}
