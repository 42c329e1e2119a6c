//! Hooks: what follows the end of a run, or a skip, once the ledger has it.
//!
//! ```text
//!   end or skip accepted ─► which hooks ─► waits ─► RunHook ─► ended ─► reported
//!                              └─ on_recovery: how did the run before end? ─┘
//! ```
//!
//! Whoever's write ended the run runs its hooks, so each is run once at most: on an answer that is not known, or not the
//! ledger's, none is. A hook is nobody's run: it counts for no `overlap` and no group, it is not fenced and not noted
//! anywhere, and nothing waits for it but the end of the node. A node that dies takes its hooks with it; they are not made up.
//! What a process left when it died is ended by the node's next one, or by whoever leads, and whoever does that runs the hooks;
//! `cronkeeper release`, which knows no jobs, leaves them to the node's next start.

pub(super) mod call;
mod queue;
mod recovery;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use self::call::{Cause, HookCall, HookStart};
pub use self::queue::AT_ONCE;
use self::queue::{HookQueue, Running};
use self::recovery::Recovery;
use super::command::Command;
use super::commits::UnreportedSkip;
use super::context::Context;
pub use super::report::HookOutcome;
use super::report::Report;
use crate::clock::Uptime;
use crate::job::{Hook, Job, JobName};
use crate::ledger::Request;
use crate::process::{EndedBy, Ending, Order, StartFailure, TreeId};
use crate::run::{Outcome, RunEnd, RunId, SkipReason, millis};

/// How long a hook may take; then SIGTERM, and SIGKILL after the job's `kill_grace`.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The warden kills what the engine did not stop, so much later.
const SLACK: Duration = Duration::from_secs(10);

/// The hooks of this node: those that wait, those that run, and those that may have to.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    queue: HookQueue,
    recovery: Recovery,
    /// When those that run have taken their time.
    timeouts: BTreeSet<(Uptime, TreeId)>,
}

impl Hooks {
    /// True while none runs, waits, or may be found to have to.
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle() && self.recovery.is_idle()
    }

    /// When one has taken its time.
    pub fn next_at(&self) -> Option<Uptime> {
        self.timeouts.first().map(|&(at, _)| at)
    }

    /// The ledger has accepted, from this node, that a run ended so. `sees_all`: this node leads, and no other has a run of the job.
    pub fn follow_end(&mut self, cx: &mut Context, job: Option<Arc<Job>>, end: RunEnd, sees_all: bool) {
        let Some(job) = job.or_else(|| cx.job(&end.run.job).cloned()) else { return };
        let end = Arc::new(end);
        let hook = if end.outcome == Outcome::Success { Hook::Success } else { Hook::Failure };
        self.call(cx, hook, &job, Cause::Ended(Arc::clone(&end)));
        self.look_for_recovery(cx, &job, end, sees_all);
    }

    /// The ledger has accepted a skip from this node.
    pub fn follow_skip(&mut self, cx: &mut Context, UnreportedSkip { skip, first, count }: UnreportedSkip) {
        if skip.reason != SkipReason::Missed {
            return;
        }
        let Some(job) = cx.job(&skip.job).cloned() else { return };
        self.call(cx, Hook::Missed, &job, Cause::Skipped { skip: Arc::new(skip), first, count });
    }

    fn call(&mut self, cx: &mut Context, hook: Hook, job: &Arc<Job>, cause: Cause) {
        if job.hooks.contains_key(&hook) {
            let call = HookCall { hook, job: Arc::clone(job), cause };
            if let Err(call) = self.queue.wait(call, self.recovery.len()) {
                drop_call(cx, &call);
            }
        }
    }

    /// Starts what waits, as far as there is room, and stops what has taken its time.
    pub fn act(&mut self, cx: &mut Context) {
        while let Some(call) = self.queue.next() {
            let tree_id = TreeId(cx.count());
            self.queue.started(tree_id, &call);
            let until = cx.now.up + TIMEOUT + call.job.kill_grace + SLACK;
            cx.commands.push(Command::RunHook(Box::new(HookStart { tree_id, call, until })));
        }
    }

    /// Stops those that have taken their time.
    pub fn stop_overdue(&mut self, cx: &mut Context) {
        while self.next_at().is_some_and(|at| at <= cx.now.up)
            && let Some((_, tree_id)) = self.timeouts.pop_first()
        {
            if let Some(Running { grace, .. }) = self.queue.get(tree_id) {
                cx.order(Order::Stop { tree_id, grace_ms: millis(*grace) });
            }
        }
    }

    pub fn on_started(&mut self, tree_id: TreeId, at: Uptime) {
        if self.queue.get(tree_id).is_some() {
            self.timeouts.insert((at + TIMEOUT, tree_id));
        }
    }

    pub fn on_not_started(&mut self, cx: &mut Context, tree_id: TreeId, why: StartFailure) {
        if let Some(Running { hook, run, .. }) = self.queue.ended(tree_id) {
            cx.report(Report::HookFinished { hook, run, how: HookOutcome::NotStarted(why) });
        }
    }

    pub fn on_ended(&mut self, cx: &mut Context, ending: &Ending) {
        let Some(Running { hook, run, .. }) = self.queue.ended(ending.tree_id) else { return };
        self.timeouts.retain(|&(_, tree_id)| tree_id != ending.tree_id);
        let how = match ending.ended_by {
            None => HookOutcome::Exited(ending.exit),
            Some(EndedBy::Order | EndedBy::Deadline) => HookOutcome::TimedOut,
        };
        cx.report(Report::HookFinished { hook, run, how });
    }

    /// The node ends: nothing more is started, and what runs is killed.
    pub fn give_up(&mut self, cx: &mut Context) {
        let (running, waiting) = self.queue.close();
        for (tree_id, Running { hook, run, .. }) in running {
            cx.order(Order::Kill { tree_id });
            cx.report(Report::HookFinished { hook, run, how: HookOutcome::Killed });
        }
        for call in waiting.into_iter().chain(self.recovery.close()) {
            drop_call(cx, &call);
        }
    }

    /// A run of the job ended so, and this node has written it.
    fn look_for_recovery(&mut self, cx: &mut Context, job: &Arc<Job>, end: Arc<RunEnd>, sees_all: bool) {
        let before = self.recovery.take_last(&job.name);
        if !job.hooks.contains_key(&Hook::Recovery) {
            return;
        }
        if sees_all {
            self.recovery.note_last(&job.name, end.outcome);
        }
        if end.outcome != Outcome::Success {
            return;
        }
        match before.filter(|_| sees_all) {
            Some(before) => self.recover(cx, job, end, Some(before)),
            None => self.ask_what_was_before(
                cx,
                HookCall { hook: Hook::Recovery, job: Arc::clone(job), cause: Cause::Ended(end) },
            ),
        }
    }

    fn recover(&mut self, cx: &mut Context, job: &Arc<Job>, end: Arc<RunEnd>, before: Option<Outcome>) {
        if before.is_some_and(|before| before != Outcome::Success) {
            self.call(cx, Hook::Recovery, job, Cause::Ended(end));
        }
    }

    fn ask_what_was_before(&mut self, cx: &mut Context, call: HookCall) {
        if !self.queue.has_room(self.recovery.len()) {
            return drop_call(cx, &call);
        }
        if self.recovery.ask(call) {
            self.ask_again(cx);
        }
    }

    /// Asks about the first; again under a new session, because what was asked under another may never be answered.
    pub fn ask_again(&self, cx: &mut Context) {
        if let (Some(run), true) = (self.recovery.asked_about(), cx.session.is_some()) {
            cx.ledger(Request::ReadBefore(run));
        }
    }

    /// How the run ended that ended before this one; absent: none did.
    pub fn on_before_read(&mut self, cx: &mut Context, run: &RunId, before: Option<Outcome>) {
        let Some(call) = self.recovery.answered(run) else { return };
        if let HookCall { job, cause: Cause::Ended(end), .. } = call {
            self.recover(cx, &job, end, before);
        }
        self.ask_again(cx);
    }

    /// How the job's last run ended is not known any more.
    pub fn forget_last_outcome(&mut self, job: &JobName) {
        self.recovery.take_last(job);
    }

    /// Other leaders have ended runs, or will: nothing is known without asking any more.
    pub fn forget_last_outcomes(&mut self) {
        self.recovery.forget_all();
    }
}

fn drop_call(cx: &mut Context, call: &HookCall) {
    cx.report(Report::HookFinished { hook: call.hook, run: call.run(), how: HookOutcome::Dropped });
}
