//! Tracks tasks that keep failing and reports the first of them.
//!
//! A failure is reported once it has lasted [`REPORT_AFTER`], then after growing pauses, and shown for as long as it
//! lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::task::Task;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Event;
use cronkeeper_core::log_event::TARGET;

/// Shorter failures are normal for a connection and are not reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

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
    /// Records that a task has failed and will be retried. Returns what the daemon must know.
    pub fn failed(&mut self, task: Task, now: Uptime, error: &str) -> Option<Event> {
        tracing::debug!(target: TARGET, error, "{} failed; retrying", task.as_str());
        let is_due = self.record(task, now, error);
        self.news(is_due)
    }

    /// A task has succeeded. Returns what the daemon must know.
    pub fn succeeded(&mut self, task: Task) -> Option<Event> {
        if self.tasks.is_empty() {
            return None;
        }
        self.done(task);
        self.news(false)
    }

    /// Forgets all failures: the session or its connection is gone, and that is the actual problem now.
    pub fn forget(&mut self) -> Option<Event> {
        self.tasks.clear();
        self.news(false)
    }

    /// Records another failure. Returns true if it is time to report it.
    fn record(&mut self, task: Task, now: Uptime, error: &str) -> bool {
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
    fn news(&mut self, is_due: bool) -> Option<Event> {
        let now = self.tasks.values().find_map(|failed| failed.reported.clone());
        (is_due || now != self.reported).then(|| {
            self.reported.clone_from(&now);
            Event::Stalled(now)
        })
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
        let reported: Vec<u64> = (0..60).filter(|&now| failing.record(Task::Open, at(now), "no")).collect();
        assert_eq!(reported, [5, 15, 35]);
        let text = "taking over, which has failed for 35 s: no".to_owned();
        assert_eq!(failing.news(true), Some(Event::Stalled(Some(text))));
        failing.done(Task::Verify);
        assert_eq!(failing.news(false), None, "another task has succeeded");
        failing.done(Task::Join);
        assert_eq!(failing.news(false), Some(Event::Stalled(None)), "a later step of the election has succeeded");
    }

    #[test]
    fn a_failure_that_does_not_last_is_not_reported() {
        let mut failing = Failing::default();
        for now in 0..60 {
            assert_eq!(failing.failed(Task::Read, at(now), "no"), None);
            failing.done(Task::Read);
            assert_eq!(failing.news(false), None);
        }
    }
}
