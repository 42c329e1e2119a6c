//! Sample jobs and records, and a journal that stores nothing, for the unit tests of all crates.
#![allow(dead_code, reason = "each crate uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_core::job::{
    AlarmLimits, CommandLine, Due, Hooks, Interrupted, Job, JobName, Limits, Misfire, NoticeKinds, Notify, OnLeaseEnd,
    Overlap, Retries, RunAs, RunOn, RunWhere, Splay,
};
use cronkeeper_core::run::journal::{Journal, JournalEntry, RecoveredRun};
use cronkeeper_core::run::{
    Nonce, OnLoss, Outcome, Owner, Parameters, Past, RunEnd, RunRecord, RunState, Skip, SkipReason,
};
use cronkeeper_core::schedule::{Calendar, Dates, DatesFile, Dst, Schedule};
use cronkeeper_core::term::{FencingToken, NodeName, SessionId};
use jiff::Timestamp;

/// The first attempt of `job`'s run at `second`, owned by `session` of node `n`.
pub fn record(job: &str, second: i64, session: &str) -> RunRecord {
    let at = Timestamp::from_second(second).unwrap();
    RunRecord {
        v: 1,
        job: JobName::parse(job).unwrap(),
        scheduled_at: at,
        trigger: None,
        on: None,
        share_among: None,
        parameters: Parameters::default(),
        state: RunState::Running,
        owner: Owner { node: NodeName::new("n"), session: SessionId(session.to_owned()) },
        token: FencingToken(1),
        attempt: 1,
        nonce: Nonce(format!("1-{job}-{second}")),
        begun_at: at,
        on_loss: OnLoss::Interrupt,
        keep_until: None,
        ready_at: None,
        no_node_since: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        notify: NoticeKinds::new(),
        placement: None,
        kill: None,
    }
}

/// A success of `run`, one second after its scheduled time.
pub fn success(run: RunRecord) -> RunEnd {
    let ended_at = run.scheduled_at + jiff::SignedDuration::from_secs(1);
    RunEnd {
        v: 1,
        run,
        outcome: Outcome::Success,
        reason: None,
        exit_code: Some(0),
        signal: None,
        ended_at,
        duration_ms: Some(1000),
        leftovers: 0,
        tail: String::new(),
        dropped_bytes: 0,
        detail: None,
    }
}

/// One missed occurrence of `job` at `second`.
pub fn skip(job: &str, second: i64) -> Skip {
    let at = Timestamp::from_second(second).unwrap();
    Skip {
        v: 1,
        job: JobName::parse(job).unwrap(),
        reason: SkipReason::Missed,
        first: at,
        last: at,
        count: 1,
        trigger: None,
        on: None,
        detail: None,
        token: FencingToken(1),
        node: NodeName::new("n"),
        decided_at: at,
    }
}

/// A job that is due by `schedule`, with every key at its default.
pub fn job(job: &str, schedule: &str) -> Job {
    Job {
        name: JobName::parse(job).unwrap(),
        description: None,
        due: Due::At(Schedule::parse(&[schedule], "UTC", Dst::Once, job).unwrap()),
        splay: Splay::default(),
        command: CommandLine::Shell("true".into()),
        enabled: true,
        environment: BTreeMap::new(),
        environment_file: Vec::new(),
        secrets: BTreeMap::new(),
        parameters: BTreeSet::new(),
        run_as: RunAs::default(),
        nice: None,
        limits: Limits::default(),
        working_directory: None,
        umask: 0o022,
        timeout: None,
        kill_grace: Duration::from_secs(10),
        retries: Retries::default(),
        overlap: Overlap::Skip,
        concurrency_group: None,
        run_on: RunOn::Leader,
        run_where: RunWhere::default(),
        lock: Vec::new(),
        misfire: Misfire::RunOnce,
        misfire_window: None,
        misfire_limit: 100,
        interrupted: Interrupted::Skip,
        on_lease_end: OnLeaseEnd::Keep,
        success_exit_codes: BTreeSet::from([0]),
        max_output: 1 << 20,
        history_limit: 20,
        alarms: AlarmLimits::default(),
        hooks: Hooks::new(),
        notify: Notify::default(),
    }
}

/// The job with a calendar that leaves out these dates.
pub fn without(job: &Job, dates: &str) -> Job {
    let dates = Arc::new(Dates::parse(&format!("{dates}\n")).expect("valid"));
    let calendar = Calendar::new(vec![DatesFile { name: "x.txt".into(), dates }], Vec::new());
    let schedule = job.schedule().expect("it has one").with_calendar(Some(calendar));
    Job { due: Due::At(schedule), ..job.clone() }
}

/// A journal that stores nothing.
pub struct NullJournal;

impl Journal for NullJournal {
    fn store(&mut self, _: JournalEntry) -> io::Result<()> {
        Ok(())
    }

    fn open_runs(&self) -> Vec<RecoveredRun> {
        Vec::new()
    }
}
