//! The metrics of a node, for Prometheus.
//!
//! ```text
//!  daemon ─ reports ─▶ Recorder ─ try_lock ─▶ Metrics ◀─ a copy per scrape ─ api
//!                                                        + the status, as the API shows it ─▶ exposition
//! ```
//!
//! Counters and histograms cover what this process saw since its start. The daemon records them with a [`Recorder`],
//! which never waits: while a scrape copies the numbers, new ones are kept back until the next turn of the loop. Gauges
//! are not recorded at all, but taken from the status at the time of the scrape.
//!
//! Memory is bounded: only jobs of the loaded jobs file are counted, each with at most one number for each outcome and
//! each reason, and the numbers of a removed job are dropped.

mod channels;
mod counts;
mod exposition;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

pub use self::channels::{ChannelHealth, Health};
pub use self::counts::{Counts, Histogram, JobCounts, PlacingCounts};
pub use self::exposition::{Format, Scrape};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::coordination::Request;
use cronkeeper_core::engine::Report;
use cronkeeper_core::job::{JobName, JobSet};
use cronkeeper_core::ledger::{self, CommitId};

/// The daemon's end.
#[derive(Debug, Default)]
pub struct Recorder {
    metrics: Metrics,
    /// What is not in [`Metrics`] yet.
    pending: Counts,
    /// Jobs whose numbers must still be dropped from [`Metrics`].
    removed: BTreeSet<JobName>,
    /// The commits that are not answered yet. The engine limits their number, and each is answered once.
    asked: BTreeMap<CommitId, Uptime>,
}

impl Recorder {
    /// The end of those who show the metrics.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Records a request to the backend.
    pub fn requested(&mut self, now: Uptime, request: &Request) {
        if let Request::Ledger(ledger::Request::Commit { id, .. }) = request {
            self.asked.insert(*id, now);
        }
    }

    /// Records an event of the ledger.
    pub fn answered(&mut self, now: Uptime, event: &ledger::Event) {
        if let ledger::Event::Answered { id, .. } = event
            && let Some(asked) = self.asked.remove(id)
        {
            self.pending.commits.observe(now.since(asked));
        }
    }

    /// Records a report of the engine.
    pub fn reported(&mut self, report: &Report, jobs: &JobSet) {
        self.pending.add(report, jobs);
    }

    /// Drops the numbers of jobs that the jobs file no longer defines.
    pub fn dropped(&mut self, removed: Vec<JobName>) {
        removed.iter().for_each(|job| self.pending.forget(job));
        self.removed.extend(removed);
    }

    /// Passes on what was recorded, unless a scrape is reading. The daemon calls it on every turn.
    pub fn share(&mut self) {
        if self.pending.is_empty() && self.removed.is_empty() {
            return;
        }
        let mut shared = match self.metrics.0.try_lock() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        std::mem::take(&mut self.removed).iter().for_each(|job| shared.forget(job));
        shared.append(&mut self.pending);
    }
}

/// The end of those who show the metrics. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Counts>>, Health);

impl Metrics {
    /// The numbers as of now.
    pub fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the channels of notifications got; the task that sends notes it there.
    pub fn channels(&self) -> Health {
        self.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::status::sample::job;
    use crate::test_records::{record, success};
    use cronkeeper_core::ledger::{Change, Commit};
    use cronkeeper_core::run::{RunEnd, Version};

    fn jobs(names: &[&str]) -> JobSet {
        let yaml: String = names.iter().map(|name| format!("  {name}: {{schedule: '@daily', command: x}}\n")).collect();
        crate::config::parse("jobs.yaml", format!("jobs:\n{yaml}").as_bytes()).unwrap().0
    }

    fn recorded(name: &str) -> Report {
        Report::Recorded(Box::new(success(record(name, 60, "0x1"))))
    }

    fn outcomes(metrics: &Metrics, name: &str) -> u64 {
        metrics.counts().jobs.get(&job(name)).map_or(0, |job| job.outcomes["success"])
    }

    #[test]
    fn what_happens_during_a_scrape_is_counted_after_it() {
        let mut recorder = Recorder::default();
        let metrics = recorder.metrics();
        let jobs = jobs(&["a"]);
        let scrape = metrics.0.lock().unwrap();
        for _ in 0..2 {
            recorder.reported(&recorded("a"), &jobs);
            recorder.share();
        }
        drop(scrape);
        assert_eq!(outcomes(&metrics, "a"), 0);
        recorder.share();
        recorder.share();
        assert_eq!(outcomes(&metrics, "a"), 2);
    }

    #[test]
    fn only_jobs_of_the_jobs_file_are_counted_and_removed_ones_start_again_at_zero() {
        let mut recorder = Recorder::default();
        let metrics = recorder.metrics();
        for name in ["a", "b", "unknown"] {
            recorder.reported(&recorded(name), &jobs(&["a", "b"]));
        }
        recorder.share();
        assert_eq!(metrics.counts().jobs.len(), 2);
        assert_eq!(metrics.counts().durations.count(), 3, "the histogram has no labels and counts them all");

        let scrape = metrics.0.lock().unwrap();
        recorder.dropped(vec![job("a")]);
        recorder.share();
        recorder.reported(&recorded("a"), &jobs(&["a", "b"]));
        drop(scrape);
        recorder.share();
        assert_eq!((outcomes(&metrics, "a"), outcomes(&metrics, "b")), (1, 1));
    }

    #[test]
    fn a_commit_is_timed_from_its_request_to_its_answer() {
        let at = |millis| Uptime::ZERO + Duration::from_millis(millis);
        let mut recorder = Recorder::default();
        let end: RunEnd = success(record("a", 60, "0x1"));
        let change = Change::End { at: Version::FIRST, end, as_leader: false };
        let request = ledger::Request::Commit { id: CommitId(1), change };
        recorder.requested(at(1_000), &Request::Ledger(request));
        for id in [CommitId(2), CommitId(1), CommitId(1)] {
            recorder.answered(
                at(1_250),
                &ledger::Event::Answered { id, answer: Commit::Unknown, before: None, token: None },
            );
        }
        recorder.share();
        let commits = recorder.metrics().counts().commits;
        assert_eq!((commits.count(), commits.sum()), (1, 0.25));
        assert!(recorder.asked.is_empty());
    }
}
