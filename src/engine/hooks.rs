//! Hooks: what follows the end of a run, or a skip, once the ledger has it.
//!
//! ```text
//!   end or skip accepted ─► which hooks ─► waits ─► RunHook ─► ended ─► told
//!                              └─ on_recovery: how did the run before end? ─┘
//! ```
//!
//! Whoever's write ended the run runs its hooks, so each is run once at most: on an answer that is not known, or not the
//! ledger's, none is. A hook is nobody's run: it counts for no `overlap` and no group, it is not fenced and not noted
//! anywhere, and nothing waits for it but the end of the node. A node that dies takes its hooks with it; they are not made up.
//! What a process left when it died is ended by the node's next one, or by whoever leads, and whoever does that runs the hooks;
//! `cronkeeper release`, which knows no jobs, leaves them to the node's next start.

mod queue;
mod recovery;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub(super) use self::queue::Hooks;
use self::queue::Running;
use super::{Command, Engine, Report, Told, Turn};
use crate::clock::Uptime;
use crate::job::{Hook, Job, JobName};
use crate::run::{Outcome, RunEnd, RunId, Skip, SkipReason, millis};
use crate::warden::wire::{EndedBy, Ending, Exit, Order, StartFailure, TreeId};

/// How long a hook may take; then SIGTERM, and SIGKILL after the job's `kill_grace`.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// How many run at once on a node; the others wait in order.
pub const AT_ONCE: usize = 16;
/// The warden kills what the engine did not stop, so much later.
const SLACK: Duration = Duration::from_secs(10);

/// A hook to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct HookCall {
    /// Which.
    pub hook: Hook,
    /// Of this job, as it was for the run.
    pub job: Arc<Job>,
    /// What it follows.
    pub cause: Cause,
}

/// What a hook follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The end of a run.
    Ended(Arc<RunEnd>),
    /// A decision to skip.
    Skipped {
        /// The record, with all neighbours.
        skip: Arc<Skip>,
        /// The first of this decision.
        first: Timestamp,
        /// How many in this decision.
        count: u64,
    },
}

/// A hook to start.
#[derive(Clone, Debug, PartialEq)]
pub struct HookStart {
    /// The tree's name to the warden.
    pub tree_id: TreeId,
    /// What to start, and why.
    pub call: HookCall,
    /// When it is killed without being told to.
    pub until: Uptime,
}

/// How a hook went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// It ended by itself.
    Exited(Exit),
    /// It could not be started.
    NotStarted(StartFailure),
    /// It took too long.
    TimedOut,
    /// The node ended.
    Killed,
    /// It was not started: too many waited, or the node ended.
    Dropped,
}

impl HookOutcome {
    /// The word in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited(Exit::Code(0)) => "success",
            Self::Exited(_) | Self::NotStarted(_) => "failure",
            Self::TimedOut => "timeout",
            Self::Killed => "killed",
            Self::Dropped => "dropped",
        }
    }
}

impl HookCall {
    /// The run it is about: of several that were skipped, the first.
    pub fn run(&self) -> RunId {
        match &self.cause {
            Cause::Ended(end) => end.run.id(),
            Cause::Skipped { skip, .. } if skip.trigger.is_some() => skip.id(),
            Cause::Skipped { skip, first, .. } => RunId::scheduled(skip.job.clone(), *first),
        }
    }

    /// What it finds on its standard input: the kept tail of the output.
    pub fn input(&self) -> &str {
        match &self.cause {
            Cause::Ended(end) => &end.tail,
            Cause::Skipped { .. } => "",
        }
    }
}

impl Engine {
    /// The ledger has accepted, from this node, that a run ended so.
    pub(super) fn follow_end(&mut self, t: &mut Turn, job: Option<Arc<Job>>, end: RunEnd) {
        let Some(job) = job.or_else(|| self.jobs.jobs.get(&end.run.job).cloned()) else { return };
        let end = Arc::new(end);
        let hook = if end.outcome == Outcome::Success { Hook::Success } else { Hook::Failure };
        self.call(t, hook, &job, Cause::Ended(Arc::clone(&end)));
        self.look_for_recovery(t, &job, end);
    }

    /// The backend has ended a run of a dead process. Of one that this process took over it hears by its own end, which is the same.
    pub(super) fn on_ended_for_the_dead(&mut self, t: &mut Turn, end: RunEnd) {
        let is_own = self.flights.get(&end.run.id()).is_some_and(|flight| flight.own().is_some());
        if !is_own {
            self.follow_end(t, None, end);
        }
    }

    /// The ledger has accepted a skip from this node.
    pub(super) fn follow_skip(&mut self, t: &mut Turn, told: Told) {
        let Told { skip, first, count } = told;
        if skip.reason != SkipReason::Missed {
            return;
        }
        let Some(job) = self.jobs.jobs.get(&skip.job).cloned() else { return };
        self.call(t, Hook::Missed, &job, Cause::Skipped { skip: Arc::new(skip), first, count });
    }

    fn call(&mut self, t: &mut Turn, hook: Hook, job: &Arc<Job>, cause: Cause) {
        if job.hooks.contains_key(&hook) {
            let call = HookCall { hook, job: Arc::clone(job), cause };
            if let Err(call) = self.hooks.wait(call) {
                drop_call(t, &call);
            }
        }
    }

    /// Starts what waits, as far as there is room.
    pub(super) fn start_hooks(&mut self, t: &mut Turn) {
        while let Some(call) = self.hooks.next() {
            let tree_id = TreeId(self.count());
            self.hooks.started(tree_id, &call);
            let until = t.now.up + TIMEOUT + call.job.kill_grace + SLACK;
            t.commands.push(Command::RunHook(Box::new(HookStart { tree_id, call, until })));
        }
    }

    pub(super) fn on_hook_started(&mut self, tree_id: TreeId, at: Uptime) {
        if self.hooks.get(tree_id).is_some() {
            self.timeouts.insert((at + TIMEOUT, tree_id));
        }
    }

    pub(super) fn on_hook_not_started(&mut self, t: &mut Turn, tree_id: TreeId, why: StartFailure) {
        if let Some(Running { hook, run, .. }) = self.hooks.ended(tree_id) {
            t.tell(Report::HookFinished { hook, run, how: HookOutcome::NotStarted(why) });
        }
    }

    pub(super) fn on_hook_ended(&mut self, t: &mut Turn, ending: &Ending) {
        let Some(Running { hook, run, .. }) = self.hooks.ended(ending.tree_id) else { return };
        self.timeouts.retain(|&(_, tree_id)| tree_id != ending.tree_id);
        let how = match ending.ended_by {
            None => HookOutcome::Exited(ending.exit),
            Some(EndedBy::Order | EndedBy::Deadline) => HookOutcome::TimedOut,
        };
        t.tell(Report::HookFinished { hook, run, how });
    }

    /// It took its time.
    pub(super) fn stop_hook(&mut self, t: &mut Turn, tree_id: TreeId) {
        if let Some(Running { grace, .. }) = self.hooks.get(tree_id) {
            t.order(Order::Stop { tree_id, grace_ms: millis(*grace) });
        }
    }

    /// The node ends: nothing more is started, and what runs is killed.
    pub(super) fn give_up_hooks(&mut self, t: &mut Turn) {
        let (running, waiting) = self.hooks.close();
        for (tree_id, Running { hook, run, .. }) in running {
            t.order(Order::Kill { tree_id });
            t.tell(Report::HookFinished { hook, run, how: HookOutcome::Killed });
        }
        for call in waiting {
            drop_call(t, &call);
        }
    }

    /// What is known of a job's last run is so no more.
    pub(super) fn lose_sight(&mut self, job: &JobName) {
        self.hooks.recovery.forget(job);
    }
}

fn drop_call(t: &mut Turn, call: &HookCall) {
    t.tell(Report::HookFinished { hook: call.hook, run: call.run(), how: HookOutcome::Dropped });
}
