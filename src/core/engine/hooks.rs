//! Runs hooks when a run has started, and after the end or the skip of a run, or when an alarm is raised, once the ledger
//! has it.
//!
//! ```text
//!   first program began ────────► on_start ───┐
//!   end, skip or alarm accepted ─► which hooks ─► waits ─► RunHook ─► ended ─► reported
//! ```
//!
//! `on_recovery` runs after a success if the end that was written before it was none. The ledger says which that was when
//! it accepts an end, whichever node wrote the one before.
//!
//! `on_start` runs on the node of the first attempt whose program begins, beside it. A later attempt finds that one in its
//! record, whichever node has it, so the hook is not run again.
//!
//! The node that wrote it runs the hooks, so each is run at most once: if that write's result is unknown,
//! no hook runs. A hook is not a run: it does not count for `overlap` or groups, it has no fencing token, it is not
//! recorded anywhere, and nothing waits for it except the end of the node. A node that dies takes its hooks with it;
//! they are not made up. Runs that a process left when it died are ended by the node's next process, or by the leader,
//! and the one that ends them runs their hooks. `cronkeeper release`, which knows no jobs, leaves them to the node's
//! next start.

pub(super) mod call;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use self::call::{Cause, HookCall, HookStart, JobHookCall, NodeHookCall};
pub use self::queue::AT_ONCE;
use self::queue::{HookQueue, Load};
#[cfg(test)]
pub(super) use self::queue::{LARGEST, LONGEST, ROUTINE_AT_ONCE};
use super::command::Command;
use super::commits::UnreportedSkip;
use super::context::Context;
pub use super::report::HookOutcome;
use super::report::{AlarmChange, AlarmNews, Report};
use crate::clock::Uptime;
use crate::job::{Hook, Job, JobName};
use crate::process::{EndedBy, Ending, Order, StartFailure, TreeId, UnusableFile};
use crate::run::{Outcome, RunEnd, RunRecord, SkipReason, millis};
use crate::start_problem::StartProblem;
use crate::term::NodeName;

/// Timeout of a hook: then SIGTERM, and SIGKILL after the job's `kill_grace`.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The warden kills a hook by itself this long after the engine should have stopped it.
const SLACK: Duration = Duration::from_secs(10);

/// The hooks of this node, waiting and running.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    queue: HookQueue,
    /// When running hooks time out.
    timeouts: BTreeSet<(Uptime, TreeId)>,
    /// How this node's last share of each job on every node ended.
    own_shares: BTreeMap<JobName, Outcome>,
}

impl Hooks {
    /// True while no hook runs or waits.
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// When the next hook times out.
    pub fn next_at(&self) -> Option<Uptime> {
        self.timeouts.first().map(|&(at, _)| at)
    }

    /// Handles the start of an attempt that this node has.
    pub fn follow_start(&mut self, cx: &mut Context, job: &Arc<Job>, run: &RunRecord) {
        if job.hooks.contains_key(&Hook::Start) && !run.past.may_have_begun() {
            self.call(cx, Hook::Start, job, Cause::Started(Arc::new(run.clone())));
        }
    }

    /// Handles an end that the ledger accepted from this node. `before` is the outcome of the job's end that was written
    /// before it.
    pub fn follow_end(&mut self, cx: &mut Context, job: Option<Arc<Job>>, end: RunEnd, before: Option<Outcome>) {
        let Some(job) = job.or_else(|| cx.job(&end.run.job).cloned()) else { return };
        let before = self.before(&cx.node, &end, before);
        let end = Arc::new(end);
        let has_succeeded = end.outcome == Outcome::Success;
        let hook = if has_succeeded { Hook::Success } else { Hook::Failure };
        self.call(cx, hook, &job, Cause::Ended(Arc::clone(&end)));
        if has_succeeded && before.is_some_and(|before| before != Outcome::Success) {
            self.call(cx, Hook::Recovery, &job, Cause::Ended(end));
        }
    }

    /// The outcome that an end is compared with: of a share, that of the same node's share before it, as far as this process
    /// has seen it. What another node's share came to says nothing about this node.
    fn before(&mut self, own: &NodeName, end: &RunEnd, before: Option<Outcome>) -> Option<Outcome> {
        match &end.run.on {
            None => before,
            Some(node) if node == own => self.own_shares.insert(end.run.job.clone(), end.outcome),
            Some(_) => None,
        }
    }

    /// Handles a skip that the ledger accepted from this node.
    pub fn follow_skip(&mut self, cx: &mut Context, UnreportedSkip { skip, first, count }: UnreportedSkip) {
        if !matches!(skip.reason, SkipReason::Missed | SkipReason::NoNode | SkipReason::Rewound) {
            return;
        }
        let Some(job) = cx.job(&skip.job).cloned() else { return };
        self.call(cx, Hook::Missed, &job, Cause::Skipped { skip: Arc::new(skip), first, count });
    }

    /// Handles an alarm that the ledger has from this node.
    pub fn follow_alarm(&mut self, cx: &mut Context, news: AlarmNews) {
        let AlarmNews { job, alarm, raised, change } = news;
        if let (AlarmChange::Raised, Some(job)) = (change, cx.job(&job).cloned()) {
            self.call(cx, alarm.hook(), &job, Cause::Alarm { alarm, raised: Box::new(raised) });
        }
    }

    fn call(&mut self, cx: &mut Context, hook: Hook, job: &Arc<Job>, cause: Cause) {
        if job.hooks.contains_key(&hook) {
            self.wait(cx, HookCall::OfJob(JobHookCall { hook, job: Arc::clone(job), cause }));
        }
    }

    /// Runs a hook of the node itself.
    pub fn call_of_node(&mut self, cx: &mut Context, call: NodeHookCall) {
        self.wait(cx, HookCall::OfNode(call));
    }

    fn wait(&mut self, cx: &mut Context, call: HookCall) {
        if !call.is_routine() {
            self.make_room(cx, Load::of(call.bytes()));
        }
        if let Err(call) = self.queue.wait(call) {
            report(cx, &call, HookOutcome::Dropped, None);
        }
    }

    /// Drops routine hooks, as far as another one needs their room.
    fn make_room(&mut self, cx: &mut Context, load: Load) {
        while let Some(dropped) = self.queue.give_way(load) {
            report(cx, &dropped, HookOutcome::Dropped, None);
        }
    }

    /// Starts waiting hooks, as far as there is room.
    pub fn act(&mut self, cx: &mut Context) {
        while let Some(call) = self.queue.next() {
            if let Some(overtaken) = self.queue.overtaken_by(&call) {
                report(cx, &overtaken, HookOutcome::Dropped, None);
            }
            let tree_id = TreeId(cx.count());
            self.queue.started(tree_id, &call);
            let until = cx.now.up + TIMEOUT + call.kill_grace() + SLACK;
            cx.commands.push(Command::RunHook(Box::new(HookStart { tree_id, call, until })));
        }
    }

    /// Stops hooks that have timed out.
    pub fn stop_overdue(&mut self, cx: &mut Context) {
        while self.next_at().is_some_and(|at| at <= cx.now.up)
            && let Some((_, tree_id)) = self.timeouts.pop_first()
        {
            if let Some(call) = self.queue.get(tree_id) {
                cx.order(Order::Stop { tree_id, grace_ms: millis(call.kill_grace()) });
            }
        }
    }

    /// Reports the files of the job that a hook starts without.
    pub fn on_without_files(&self, cx: &mut Context, tree_id: TreeId, files: &[UnusableFile]) {
        let Some(call) = self.queue.get(tree_id) else { return };
        let (Some(job), Some(command)) = (call.job(), call.command()) else { return };
        for &UnusableFile { step, errno } in files {
            let problem = StartProblem::of(Some(job.as_ref()), command, step, errno);
            cx.report(Report::HookWithoutFile { hook: call.name(), job: job.name.clone(), run: call.run(), problem });
        }
    }

    pub fn on_started(&mut self, tree_id: TreeId, at: Uptime) {
        if self.queue.get(tree_id).is_some() {
            self.timeouts.insert((at + TIMEOUT, tree_id));
        }
    }

    pub fn on_not_started(&mut self, cx: &mut Context, tree_id: TreeId, why: StartFailure) {
        let Some(call) = self.queue.ended(tree_id) else { return };
        let problem = match (why, call.command()) {
            (StartFailure::Step { step, errno }, Some(command)) => {
                Some(StartProblem::of(call.job().map(Arc::as_ref), command, step, errno))
            }
            _ => None,
        };
        report(cx, &call, HookOutcome::NotStarted(why), problem);
    }

    pub fn on_ended(&mut self, cx: &mut Context, ending: &Ending) {
        let Some(call) = self.queue.ended(ending.tree_id) else { return };
        self.timeouts.retain(|&(_, tree_id)| tree_id != ending.tree_id);
        let how = match ending.ended_by {
            None => HookOutcome::Exited(ending.exit),
            Some(EndedBy::Order | EndedBy::Deadline | EndedBy::TimeLimit) => HookOutcome::TimedOut,
        };
        report(cx, &call, how, None);
    }

    /// Kills all running hooks and starts no more: the node ends.
    pub fn give_up(&mut self, cx: &mut Context) {
        let (running, waiting) = self.queue.close();
        for (tree_id, call) in running {
            cx.order(Order::Kill { tree_id });
            report(cx, &call, HookOutcome::Killed, None);
        }
        for call in waiting {
            report(cx, &call, HookOutcome::Dropped, None);
        }
    }
}

fn report(cx: &mut Context, call: &HookCall, how: HookOutcome, problem: Option<StartProblem>) {
    let job = call.job().map(|job| job.name.clone());
    cx.report(Report::HookFinished { hook: call.name(), job, run: call.run(), how, problem });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};

    #[test]
    fn a_share_recovers_from_what_the_same_node_failed_and_not_another() {
        let (mut hooks, own) = (Hooks::default(), NodeName::new("host-a"));
        let mut before = |on: Option<&str>, outcome, others| {
            let run = RunRecord { on: on.map(NodeName::new), ..record("rotate", 0, "0x1") };
            hooks.before(&own, &RunEnd { outcome, ..success(run) }, others)
        };
        let (success, failure) = (Outcome::Success, Outcome::Failure);
        assert_eq!(before(None, success, Some(failure)), Some(failure));
        assert_eq!(before(Some("host-a"), failure, Some(success)), None);
        assert_eq!(
            before(Some("host-b"), success, Some(failure)),
            None,
            "the leader writes it for a node that is gone"
        );
        assert_eq!(before(Some("host-a"), success, Some(success)), Some(failure));
        assert_eq!(before(Some("host-a"), success, Some(failure)), Some(success));
    }
}
