//! Tracks tasks that keep failing and reports the first of them.
//!
//! A failure is reported once it has lasted [`REPORT_AFTER`], then after growing pauses, and shown for as long as it
//! lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::SessionLoop;
use crate::recipes::damage::{Damage, NewDamage, Source};
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Event;
use cronkeeper_core::log_event::TARGET;

/// Shorter failures are normal for a connection and are not reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// A request that a node sends to the servers, and retries when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    Prepare,
    Enter,
    SettleLeft,
    Join,
    Look,
    Open,
    WriteOpening,
    Withdraw,
    HandOver,
    Clear,
    Leave,
    Find,
    Verify,
    ReadWanted,
    Publish,
    Survey,
    LookForLeader,
    Renumber,
    Read,
    Listen,
    Watch,
    Renew,
}

impl Task {
    /// The task as it appears in reports.
    fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "creating its paths",
            Self::Enter => "becoming a member",
            Self::SettleLeft => "settling the runs of its earlier processes",
            Self::Join => "joining the queue",
            Self::Look => "reading its position in the queue",
            Self::Open => "taking over",
            Self::WriteOpening => "recording that it leads",
            Self::Withdraw | Self::Clear => "leaving the queue",
            Self::HandOver => "handing leadership over",
            Self::Leave => "leaving",
            Self::Find => "looking up the node to hand leadership to",
            Self::Verify => "verifying its own entries",
            Self::ReadWanted => "reading whether it is drained",
            Self::Publish => "publishing its member record",
            Self::Survey => "reading the queue and the members",
            Self::LookForLeader => "looking for the leader's entry",
            Self::Renumber => "restarting the sequence numbers of triggers",
            Self::Read => "reading the ledger",
            Self::Listen => "reading the requests of operators",
            Self::Watch => "watching runs",
            Self::Renew => "renewing its lease",
        }
    }

    /// True for the tasks of a node's start, without which it cannot take part at all.
    pub(super) fn is_of_the_start(self) -> bool {
        matches!(self, Self::Prepare | Self::Enter | Self::Join)
    }

    /// True for a step of the election. Once one of them succeeds, the failures of all others are over.
    fn is_step(self) -> bool {
        match self {
            Self::Prepare
            | Self::Enter
            | Self::Join
            | Self::Look
            | Self::Open
            | Self::WriteOpening
            | Self::Withdraw
            | Self::HandOver
            | Self::Clear
            | Self::Leave => true,
            Self::Find
            | Self::SettleLeft
            | Self::Verify
            | Self::ReadWanted
            | Self::Publish
            | Self::Survey
            | Self::LookForLeader
            | Self::Renumber
            | Self::Read
            | Self::Listen
            | Self::Watch
            | Self::Renew => false,
        }
    }
}

/// The tasks that are failing now.
#[derive(Debug, Default)]
pub(super) struct Failing {
    tasks: BTreeMap<Task, Failed>,
    /// The report that was emitted last.
    reported: Option<String>,
}

#[derive(Debug)]
struct Failed {
    since: Uptime,
    report_from: Uptime,
    silence: Duration,
    /// The text of the report; absent until the task has failed for long enough.
    reported: Option<String>,
}

impl Failing {
    /// Records another failure. Returns true if it is time to report it.
    fn failed(&mut self, task: Task, now: Uptime, error: &str) -> bool {
        let failed = self.tasks.entry(task).or_insert_with(|| Failed {
            since: now,
            report_from: now + REPORT_AFTER,
            silence: REPORT_AFTER,
            reported: None,
        });
        if now < failed.report_from {
            return false;
        }
        failed.silence = (failed.silence * 2).min(LONGEST_SILENCE);
        failed.report_from = now + failed.silence;
        let seconds = now.since(failed.since).as_secs();
        failed.reported = Some(format!("{}, which has failed for {seconds} s: {error}", task.as_str()));
        true
    }

    fn done(&mut self, task: Task) {
        self.tasks.retain(|failed, _| *failed != task && !(failed.is_step() && task.is_step()));
    }

    /// The report to emit now, about the first failing task; `None` if it was emitted already.
    fn news(&mut self, is_due: bool) -> Option<Option<String>> {
        let now = self.tasks.values().find_map(|failed| failed.reported.clone());
        (is_due || now != self.reported).then(|| {
            self.reported.clone_from(&now);
            now
        })
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Records that a task has failed and will be retried.
    pub(super) fn failed(&mut self, task: Task, error: &str) {
        // Without a connection everything fails, and the lost connection is reported already.
        if !self.link.is_connected {
            return;
        }
        tracing::debug!(target: TARGET, error, "{} failed; retrying", task.as_str());
        let is_due = self.housekeeping.failing.failed(task, self.context.clock.now().up, error);
        self.report_failing(is_due);
    }

    pub(super) fn succeeded(&mut self, task: Task) {
        if !self.housekeeping.failing.tasks.is_empty() {
            self.housekeeping.failing.done(task);
            self.report_failing(false);
        }
    }

    /// Forgets all failures: the session or its connection is gone, and that is the actual problem now.
    pub(super) fn forget_failures(&mut self) {
        self.housekeeping.failing.tasks.clear();
        self.report_failing(false);
    }

    /// Forgets what the servers refused this session: they may allow it to the next.
    pub(super) fn forget_refusals(&mut self) {
        for source in [Source::Queue, Source::Writes, Source::Renewals, Source::Locks] {
            self.found_damage(source, None);
        }
    }

    fn report_failing(&mut self, is_due: bool) {
        if let Some(news) = self.housekeeping.failing.news(is_due) {
            self.node.emit(Event::Stalled(news));
        }
    }

    /// Replaces the damaged paths that `source` has found.
    pub(super) fn found_damage(&mut self, source: Source, found: impl IntoIterator<Item = Damage>) {
        let news = self.node.damages.found(source, found);
        self.report_damage(news);
    }

    /// Forgets the damage that only a leader checks: this node no longer leads, and the next leader will report it.
    pub(super) fn forget_damage(&mut self) {
        for source in [Source::Ledger, Source::OperatorRequests, Source::Rights] {
            self.found_damage(source, None);
        }
        let refused: Vec<Damage> = self.committer.refusals().collect();
        self.found_damage(Source::Writes, refused);
    }

    /// Adds a damaged path.
    pub(super) fn damaged(&mut self, source: Source, damage: Damage) {
        let news = self.node.damages.add(source, damage);
        self.report_damage(news);
    }

    pub(super) fn mended(&mut self, source: Source, path: &str) {
        let news = self.node.damages.mend(source, path);
        self.report_damage(news);
    }

    fn report_damage(&self, news: Option<NewDamage>) {
        if let Some(NewDamage { all, new }) = news {
            self.node.emit(Event::Damaged { all, new });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Uptime {
        Uptime::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_failure_is_reported_after_five_seconds_and_then_after_growing_pauses() {
        let mut failing = Failing::default();
        let reported: Vec<u64> = (0..60).filter(|&now| failing.failed(Task::Open, at(now), "no")).collect();
        assert_eq!(reported, [5, 15, 35]);
        assert_eq!(failing.news(true), Some(Some("taking over, which has failed for 35 s: no".to_owned())));
        failing.done(Task::Verify);
        assert_eq!(failing.news(false), None, "another task has succeeded");
        failing.done(Task::Join);
        assert_eq!(failing.news(false), Some(None), "a later step of the election has succeeded");
    }

    #[test]
    fn a_failure_that_does_not_last_is_not_reported() {
        let mut failing = Failing::default();
        for now in 0..60 {
            assert!(!failing.failed(Task::Read, at(now), "no"));
            failing.done(Task::Read);
            assert_eq!(failing.news(false), None);
        }
    }
}
