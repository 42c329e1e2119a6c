//! The jobs of the simulated nodes: one for each policy that matters at a failover.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cronkeeper_core::job::{
    AlarmLimits, CommandLine, Condition, Digest, Due, Group, Hook, Interrupted, Job, JobName, JobSet, Misfire,
    OnLeaseEnd, Overlap, Requirement, Retries, RunOn, RunWhere,
};
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::run::RunId;
use cronkeeper_core::schedule::Schedule;
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::port::test_records;

/// Name prefix of jobs whose runs may be alive at the same time.
pub const BESIDE: &str = "beside";

/// Name prefix of jobs of which together only one run may be alive at a time.
const GROUP: &str = "group";

/// Name prefix of jobs that hold the same lock, so that only one of their runs may be alive at a time.
pub const LOCKED: &str = "locked";

/// The jobs that hold the same lock.
const LOCKED_JOBS: [&str; 3] = ["locked-a", "locked-b", "locked-c"];

/// Jobs in a chain: the second and third run after the first, the last after both.
const CHAIN: [&str; 4] = ["chain-a", "chain-b", "chain-c", "chain-d"];

/// The label that some nodes have, and some jobs ask for.
pub const LABEL: &str = "gpu";

/// True for a job that runs after others.
pub fn follows_others(job: &str) -> bool {
    CHAIN[1..].contains(&job)
}

/// Number of jobs that are due in the same second.
const BURST: usize = 12;

/// The variable that triggers may set for a run of any job.
pub const PARAMETER: &str = "PARAMETER";

/// The retry limit of jobs that have retries.
pub const RETRIES: u32 = 2;

fn job(name: &str, schedule: &str) -> Job {
    Job {
        parameters: BTreeSet::from([PARAMETER.to_owned()]),
        kill_grace: Duration::from_secs(1),
        max_output: 0,
        ..test_records::job(name, schedule)
    }
}

/// The job with all hooks, and with alarms that are raised now and then.
fn with_hooks(job: Job) -> Job {
    let [late_after, long_after, stale_after] = [2, 3, 15].map(|seconds| Some(Duration::from_secs(seconds)));
    let alarms = AlarmLimits { late_after, long_after, stale_after };
    Job { alarms, hooks: Hook::ALL.map(|hook| (hook, CommandLine::Shell("true".into()))).into(), ..job }
}

fn set_of(jobs: Vec<Job>, digest: &str) -> JobSet {
    let jobs = jobs.into_iter().map(|job| (job.name.clone(), Arc::new(job))).collect();
    JobSet::new(jobs, Digest::of(digest.as_bytes()))
}

fn all() -> Vec<Job> {
    let mut rerun = job("rerun", "*/3 * * * * *");
    (rerun.interrupted, rerun.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    rerun.retries = Retries { limit: RETRIES, delay: Duration::ZERO, ..Retries::default() };
    (rerun.misfire, rerun.misfire_window) = (Misfire::RunAll, Some(Duration::from_secs(60)));
    let mut kill = job("kill", "*/5 * * * * *");
    kill.on_lease_end = OnLeaseEnd::Kill;
    kill.timeout = Some(Duration::from_secs(4));
    let mut beside = job("beside", "*/7 * * * * *");
    (beside.overlap, beside.misfire, beside.misfire_limit) = (Overlap::Allow, Misfire::RunAll, 3);
    beside.misfire_window = Some(Duration::from_secs(30));
    let mut retry = job("retry", "*/8 * * * * *");
    let seconds = Duration::from_secs;
    retry.retries = Retries { limit: RETRIES, delay: seconds(1), backoff: 2.0, max_delay: seconds(5) };
    retry.timeout = Some(seconds(3));
    let mut queue = job("queue", "*/6 * * * * *");
    queue.overlap = Overlap::Queue;
    let mut replace = job("replace", "*/9 * * * * *");
    (replace.overlap, replace.on_lease_end) = (Overlap::Replace, OnLeaseEnd::Kill);
    let grouped = |name, schedule| {
        let concurrency_group = Some(Group { name: GROUP.into(), limit: 1 });
        Job { concurrency_group, on_lease_end: OnLeaseEnd::Kill, ..job(name, schedule) }
    };
    let (group_a, group_b) = (grouped("group-a", "*/11 * * * * *"), grouped("group-b", "*/13 * * * * *"));
    let locked = |name, schedule, overlap| {
        let lock = vec![LockPath::parse("/locks/simulated").unwrap()];
        Job { lock, overlap, on_lease_end: OnLeaseEnd::Kill, ..job(name, schedule) }
    };
    let (locked_a, locked_b) = (
        locked(LOCKED_JOBS[0], "*/5 * * * * *", Overlap::Skip),
        Job { interrupted: Interrupted::Rerun, ..locked(LOCKED_JOBS[1], "*/7 * * * * *", Overlap::Queue) },
    );
    let mut locked_c = locked(LOCKED_JOBS[2], "*/12 * * * * *", Overlap::Allow);
    // Who has the position in the group may need the lock again.
    let concurrency_group = Some(Group { name: "behind-the-lock".into(), limit: 1 });
    let locked_b = Job { concurrency_group: concurrency_group.clone(), ..locked_b };
    locked_c.concurrency_group = concurrency_group;
    locked_c.retries = Retries { limit: RETRIES, delay: seconds(1), ..Retries::default() };
    let mut never = job("never-late", "*/10 * * * * *");
    never.misfire = Misfire::Skip;
    let chain = |name, upstreams: &[(&str, Condition)]| {
        let upstreams = upstreams.iter().map(|(name, condition)| (JobName::parse(name).unwrap(), *condition)).collect();
        Job { due: Due::After(upstreams), on_lease_end: OnLeaseEnd::Kill, ..job(name, "@yearly") }
    };
    let mut burst: Vec<Job> = (0..BURST).map(|number| job(&format!("burst-{number:02}"), "*/20 * * * * *")).collect();
    for (number, one) in burst.iter_mut().enumerate() {
        one.misfire_window = Some(Duration::from_secs(120));
        match number % 3 {
            0 => (one.interrupted, one.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill),
            1 => one.retries = Retries { limit: RETRIES, delay: seconds(1), ..Retries::default() },
            _ => {}
        }
    }
    let first = Job { on_lease_end: OnLeaseEnd::Kill, ..job(CHAIN[0], "*/14 * * * * *") };
    let second = chain(CHAIN[1], &[(CHAIN[0], Condition::Success)]);
    let beside_it = Job { interrupted: Interrupted::Rerun, ..chain(CHAIN[2], &[(CHAIN[0], Condition::Always)]) };
    let last = chain(CHAIN[3], &[(CHAIN[1], Condition::Success), (CHAIN[2], Condition::Always)]);
    let any = |job: Job| Job { run_on: RunOn::Any, ..job };
    let labelled = RunWhere(vec![Requirement::parse(LABEL).unwrap()]);
    let mut any_rerun = any(job("any-rerun", "*/3 * * * * *"));
    (any_rerun.interrupted, any_rerun.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    let mut any_retry = any(job("any-retry", "*/7 * * * * *"));
    any_retry.retries = Retries { limit: RETRIES, delay: seconds(1), ..Retries::default() };
    let any_kill = Job { on_lease_end: OnLeaseEnd::Kill, ..any(job("any-kill", "* * * * * *")) };
    let any_queue = Job { overlap: Overlap::Queue, ..any(job("any-queue", "*/6 * * * * *")) };
    let any_where = Job { run_where: labelled.clone(), ..any(job("any-where", "*/5 * * * * *")) };
    let every = |job: Job| Job { run_on: RunOn::Every, ..job };
    let mut every_once = every(job("every-once", "*/8 * * * * *"));
    (every_once.misfire, every_once.misfire_window) = (Misfire::RunOnce, Some(seconds(20)));
    let mut every_group = every(job("every-group", "*/9 * * * * *"));
    every_group.concurrency_group = Some(Group { name: "one-node-at-a-time".into(), limit: 1 });
    every_group.on_lease_end = OnLeaseEnd::Kill;
    let mut every_retry = every(job("every-retry", "*/7 * * * * *"));
    every_retry.retries = Retries { limit: RETRIES, delay: seconds(1), ..Retries::default() };
    let mut every_where = Job { run_where: labelled.clone(), ..every(job("every-where", "*/5 * * * * *")) };
    (every_where.interrupted, every_where.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    let others = vec![
        every(job("every-skip", "*/3 * * * * *")),
        every_once,
        every_group,
        every_retry,
        every_where,
        any(job("any-keep", "*/4 * * * * *")),
        any_rerun,
        any_retry,
        any_kill,
        any_queue,
        any_where,
        job("keep", "*/4 * * * * *"),
        job("keep-long", "*/45 * * * * *"),
        rerun,
        with_hooks(kill),
        with_hooks(beside),
        with_hooks(retry),
        queue,
        replace,
        group_a,
        group_b,
        locked_a,
        locked_b,
        locked_c,
        with_hooks(never),
        with_hooks(first),
        second,
        beside_it,
        last,
    ];
    others.into_iter().chain(burst).collect()
}

/// The jobs of one seed.
///
/// Mostly a few of all: a job that is absent cannot interfere with one that is present, so seeds differ more from one
/// another than by chance alone, and each costs less (swarm testing: Groce and others, 2012).
#[derive(Clone)]
pub struct Cast {
    set: JobSet,
    edited: JobSet,
}

impl Cast {
    pub fn all() -> Self {
        Self::of(|_| true)
    }

    /// Jobs that belong together, a chain or a group, are drawn together.
    pub fn drawn(rng: &mut Rng) -> Self {
        let kinds: BTreeSet<&str> = SET.jobs.keys().map(kind).collect();
        let sure = rng.usize(..kinds.len());
        let chosen: BTreeSet<&str> = kinds
            .into_iter()
            .enumerate()
            // The burst costs more than the others, so it is rarer.
            .filter(|(place, kind)| *place == sure || rng.u8(..if *kind == "burst" { 8 } else { 4 }) == 0)
            .map(|(_, kind)| kind)
            .collect();
        Self::of(|name| chosen.contains(kind(name)))
    }

    /// This many jobs, all due at the same second of every minute.
    pub fn burst(jobs: usize) -> Self {
        let jobs = (0..jobs).map(|number| job(&format!("burst-{number:04}"), "30 * * * * *")).collect();
        let set = set_of(jobs, "burst");
        Self { edited: set.clone(), set }
    }

    /// This many jobs, of which so many are due every second, each at its own second of the minute. The others are never
    /// due.
    pub fn mostly_idle(jobs: usize, due_every_second: usize) -> Self {
        let job = |number: usize| {
            let is_due = number < due_every_second * 60;
            let schedule = if is_due { format!("{} * * * * *", number % 60) } else { "0 0 29 2 *".to_owned() };
            job(&format!("scale-{number:06}"), &schedule)
        };
        let set = set_of((0..jobs).map(job).collect(), "scale");
        Self { edited: set.clone(), set }
    }

    /// The same jobs, each on one of the nodes, or on every one.
    pub fn placed(self, run_on: RunOn) -> Self {
        let placed = |set: JobSet| {
            let job = |job: Arc<Job>| Job { run_on, ..Job::clone(&job) };
            set_of(set.jobs.into_values().map(job).collect(), "placed")
        };
        Self { set: placed(self.set), edited: placed(self.edited) }
    }

    fn of(is_in: impl Fn(&JobName) -> bool) -> Self {
        let part = |of: &JobSet| {
            let jobs = of.jobs.iter().filter(|(name, _)| is_in(name));
            JobSet::new(jobs.map(|(name, job)| (name.clone(), job.clone())).collect(), of.digest.clone())
        };
        Self { set: part(&SET), edited: part(&EDITED) }
    }

    /// The set that nodes start with.
    pub fn set(&self) -> JobSet {
        self.set.clone()
    }

    /// The set after an operator's edit: one job less, another schedule, another policy.
    pub fn edited(&self) -> JobSet {
        self.edited.clone()
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &JobName> {
        self.set.jobs.keys()
    }
}

/// The first part of a name, which jobs that belong together share.
fn kind(name: &JobName) -> &str {
    name.as_str().split('-').next().unwrap_or_default()
}

/// Created once, because parsing all the schedules takes longer than most seeds run.
static SET: LazyLock<JobSet> = LazyLock::new(|| set_of(all(), "set"));
static EDITED: LazyLock<JobSet> = LazyLock::new(|| set_of(changed(all()), "edited"));

/// The jobs whose runs go on while their node is cut off, until their next occurrence.
pub static KEPT_WHILE_CUT_OFF: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let kept = SET.jobs.values().filter(|job| job.on_lease_end == OnLeaseEnd::Keep);
    kept.map(|job| job.name.as_str()).collect()
});

/// Every set that a node may have, in any seed.
pub fn sets() -> [&'static JobSet; 2] {
    [&SET, &EDITED]
}

fn changed(mut jobs: Vec<Job>) -> Vec<Job> {
    jobs.retain(|job| job.name.as_str() != "kill");
    for edited in &mut jobs {
        match edited.name.as_str() {
            "keep" => edited.due = job("keep", "*/6 * * * * *").due,
            "rerun" => edited.misfire = Misfire::Skip,
            // A node with the other definition refuses it.
            "any-retry" | "every-retry" => edited.timeout = Some(Duration::from_secs(30)),
            name if name == CHAIN[3] => {
                edited.due = Due::After([(JobName::parse(CHAIN[1]).unwrap(), Condition::Always)].into());
            }
            _ => {}
        }
    }
    jobs
}

/// True if the two runs are of one job, and on one node if each is a node's share. A run on one node, whichever that is,
/// may be in the way of a share of a job that was triggered on nodes by name.
pub fn share_a_place(run: &RunId, other: &RunId) -> bool {
    let is_every = SET.jobs.get(run.job()).is_some_and(|job| job.run_on == RunOn::Every);
    let are_shares = run.node().is_some() && other.node().is_some();
    run.job() == other.job() && (run.node() == other.node() || !is_every && !are_shares)
}

/// True if the two runs are of jobs of one concurrency group.
pub fn share_a_group(run: &RunId, other: &RunId) -> bool {
    let group = |run: &RunId| SET.jobs.get(run.job()).and_then(|job| job.concurrency_group.as_ref());
    group(run).is_some() && group(run) == group(other)
}

/// Every schedule that a job's record may be counted with, by its digest.
pub fn schedules() -> &'static BTreeMap<(String, Digest), Schedule> {
    static SCHEDULES: LazyLock<BTreeMap<(String, Digest), Schedule>> = LazyLock::new(|| {
        // None has a calendar, so its digest is the same at any mark.
        let digest = |job: &Job| job.schedule_digest(Timestamp::UNIX_EPOCH);
        let jobs = sets().into_iter().flat_map(|set| set.jobs.values());
        let named = jobs.filter_map(|job| Some(((job.name.to_string(), digest(job)), job.schedule()?.clone())));
        named.collect()
    });
    &SCHEDULES
}

/// True if some nodes may have a set without this job. A job that is added never fires for the past, and a run that
/// never began cannot be begun without its job.
pub fn is_in_doubt(name: &JobName) -> bool {
    let defined = sets().iter().filter(|set| set.jobs.contains_key(name)).count();
    defined > 0 && defined < sets().len()
}

/// True if a run that could start at `ready` may be recorded as missed at `decided`, under one of the definitions of
/// its job.
pub fn may_be_missed(name: &JobName, is_triggered: bool, ready: Timestamp, decided: Timestamp) -> bool {
    sets().into_iter().any(|set| {
        let Some(job) = set.jobs.get(name) else { return false };
        let root = set.root_of(job).unwrap_or(job);
        match is_triggered || job.schedule().is_none() {
            true => is_too_old(job, root, ready, decided),
            false => is_window_over(job, ready, decided),
        }
    })
}

fn is_window_over(job: &Job, at: Timestamp, decided: Timestamp) -> bool {
    let age = decided.duration_since(at);
    let is_surplus = || {
        let newer = std::iter::successors(job.next_after(at), |at| job.next_after(*at));
        newer.take_while(|newer| *newer <= decided).take(job.misfire_limit).count() == job.misfire_limit
    };
    match (job.misfire, job.misfire_window) {
        _ if age <= LATE => false,
        (Misfire::Skip, _) => true,
        (Misfire::RunAll, Some(window)) => age.unsigned_abs() > window || is_surplus(),
        // Of several occurrences in the window, the newest counts.
        (Misfire::RunOnce, Some(window)) => age.unsigned_abs() > window || is_next_due(job, at, decided),
        (_, None) => age > LONGEST || is_next_due(job, at, decided),
    }
}

/// Triggers, and runs after other jobs, are valid for at least a minute.
fn is_too_old(job: &Job, root: &Job, at: Timestamp, decided: Timestamp) -> bool {
    let age = decided.duration_since(at);
    match job.misfire_window {
        Some(window) => age > LATE && age.unsigned_abs() > window,
        None => age > SignedDuration::from_secs(60) && (age > LONGEST || is_next_due(root, at, decided)),
    }
}

/// True if what a node could not take of an occurrence may be given up: its window is over, or the next one is due.
pub fn may_be_given_up(name: &JobName, at: Timestamp, decided: Timestamp) -> bool {
    let jobs = sets().into_iter().filter_map(|set| set.jobs.get(name));
    jobs.into_iter().any(|job| is_next_due(job, at, decided) || is_too_old(job, job, at, decided))
}

fn is_next_due(job: &Job, after: Timestamp, now: Timestamp) -> bool {
    job.next_after(after).is_some_and(|next| next <= now)
}

/// An occurrence later than this is missed.
const LATE: SignedDuration = SignedDuration::from_secs(1);

/// The misfire window of a job that sets none.
const LONGEST: SignedDuration = SignedDuration::from_hours(12);
