//! The numbers that a process counts: plain values, which can be added up and copied.

use std::collections::BTreeMap;
use std::mem::take;
use std::time::Duration;

use jiff::Timestamp;

use cronkeeper_core::engine::Report;
use cronkeeper_core::job::{JobName, JobSet};
use cronkeeper_core::run::{Outcome, RunEnd};
use cronkeeper_core::term::NodeName;

/// The most nodes whose placed attempts are counted. There are as many series.
const MOST_NODES: usize = 1_000;
/// Seconds from when a run is due to its start: milliseconds if all is well, minutes after a failover.
const LATENESS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0, f64::INFINITY];
/// Seconds that a run takes.
const DURATIONS: &[f64] = &[
    0.1,
    0.5,
    1.0,
    5.0,
    15.0,
    60.0,
    300.0,
    900.0,
    1_800.0,
    3_600.0,
    7_200.0,
    14_400.0,
    43_200.0,
    86_400.0,
    f64::INFINITY,
];
/// Seconds that a commit takes.
const COMMITS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, f64::INFINITY];

/// All counters and histograms.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// Terms as leader that this node has begun.
    pub elections: u64,
    /// How late the first attempts of runs were started.
    pub lateness: Histogram,
    /// How long the last attempts of runs took.
    pub durations: Histogram,
    /// How long commits took.
    pub commits: Histogram,
    pub placing: PlacingCounts,
    pub jobs: BTreeMap<JobName, JobCounts>,
}

/// What this node, as leader, placed on nodes, and what it refused itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacingCounts {
    /// Attempts placed, by node; at most [`MOST_NODES`] nodes.
    pub placed: BTreeMap<NodeName, u64>,
    /// Attempts that were taken back, by reason.
    pub moves: BTreeMap<&'static str, u64>,
    /// Attempts that this node refused, by reason.
    pub refusals: BTreeMap<&'static str, u64>,
}

impl PlacingCounts {
    fn placed(&mut self, node: NodeName, count: u64) {
        if self.placed.len() < MOST_NODES || self.placed.contains_key(&node) {
            *self.placed.entry(node).or_default() += count;
        }
    }

    fn is_empty(&self) -> bool {
        let Self { placed, moves, refusals } = self;
        placed.is_empty() && moves.is_empty() && refusals.is_empty()
    }

    fn append(&mut self, more: &mut Self) {
        take(&mut more.placed).into_iter().for_each(|(node, count)| self.placed(node, count));
        append(&mut self.moves, &mut more.moves);
        append(&mut self.refusals, &mut more.refusals);
    }
}

/// The counters of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobCounts {
    /// Number of runs by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Number of skipped occurrences by reason.
    pub skips: BTreeMap<&'static str, u64>,
    /// Number of runs that had to wait for a node.
    pub unplaced: u64,
    /// When a run of the job last succeeded.
    pub last_success: Option<Timestamp>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            elections: 0,
            lateness: Histogram::new(LATENESS),
            durations: Histogram::new(DURATIONS),
            commits: Histogram::new(COMMITS),
            placing: PlacingCounts::default(),
            jobs: BTreeMap::new(),
        }
    }
}

impl Counts {
    /// Counts what a report says; of jobs outside `jobs` only what has no label.
    pub(super) fn add(&mut self, report: &Report, jobs: &JobSet) {
        match report {
            Report::Elected { .. } => self.elections += 1,
            Report::Started { lateness, .. } => lateness.iter().for_each(|lateness| self.lateness.observe(*lateness)),
            Report::Recorded(end) => self.finished(end, jobs),
            Report::Skipped { skip, count, .. } => {
                if let Some(job) = self.job(&skip.job, jobs) {
                    *job.skips.entry(skip.reason.as_str()).or_default() += count;
                }
            }
            Report::Placed { to, .. } => self.placing.placed(to.clone(), 1),
            Report::Moved { reason, .. } => *self.placing.moves.entry(reason).or_default() += 1,
            Report::Refused { reason, .. } => *self.placing.refusals.entry(reason.as_str()).or_default() += 1,
            Report::Unplaced { run, .. } => self.job(run.job(), jobs).into_iter().for_each(|job| job.unplaced += 1),
            _ => {}
        }
    }

    fn finished(&mut self, end: &RunEnd, jobs: &JobSet) {
        if let Some(duration) = end.duration_ms {
            self.durations.observe(Duration::from_millis(duration));
        }
        let Some(job) = self.job(&end.run.job, jobs) else { return };
        *job.outcomes.entry(end.outcome.as_str()).or_default() += 1;
        if end.outcome == Outcome::Success {
            // Not the latest: with a clock that was ahead, that would be wrong.
            job.last_success = Some(end.ended_at);
        }
    }

    fn job(&mut self, name: &JobName, jobs: &JobSet) -> Option<&mut JobCounts> {
        jobs.jobs.contains_key(name).then(|| self.jobs.entry(name.clone()).or_default())
    }

    pub(super) fn forget(&mut self, job: &JobName) {
        self.jobs.remove(job);
    }

    /// True if nothing was counted.
    pub(super) fn is_empty(&self) -> bool {
        let Self { elections, lateness, durations, commits, placing, jobs } = self;
        let histograms = [lateness, durations, commits];
        let is_counted = *elections > 0 || histograms.iter().any(|histogram| histogram.count() > 0);
        !is_counted && placing.is_empty() && jobs.is_empty()
    }

    /// Adds all that `more` has, and empties it.
    pub(super) fn append(&mut self, more: &mut Self) {
        self.elections += take(&mut more.elections);
        self.lateness.append(&mut more.lateness);
        self.durations.append(&mut more.durations);
        self.commits.append(&mut more.commits);
        self.placing.append(&mut more.placing);
        for (name, mut more) in take(&mut more.jobs) {
            let job = self.jobs.entry(name).or_default();
            append(&mut job.outcomes, &mut more.outcomes);
            append(&mut job.skips, &mut more.skips);
            job.unplaced += more.unplaced;
            job.last_success = more.last_success.or(job.last_success);
        }
    }
}

fn append(counts: &mut BTreeMap<&'static str, u64>, more: &mut BTreeMap<&'static str, u64>) {
    take(more).into_iter().for_each(|(label, count)| *counts.entry(label).or_default() += count);
}

/// A histogram of durations, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper bounds of the buckets; the last is infinite.
    bounds: &'static [f64],
    /// The number of durations in each bucket, without those of the buckets before.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0 }
    }

    pub(super) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|bucket| self.counts.get_mut(bucket)) {
            *count += 1;
            self.sum += seconds;
        }
    }

    fn append(&mut self, more: &mut Self) {
        self.counts.iter_mut().zip(&mut more.counts).for_each(|(count, more)| *count += take(more));
        self.sum += take(&mut more.sum);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the durations, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The buckets: upper bound, and number of durations above the bound before.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        self.bounds.iter().copied().zip(self.counts.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_includes_its_upper_bound_and_the_last_takes_the_rest() {
        let mut histogram = Histogram::new(&[1.0, 2.0, f64::INFINITY]);
        for millis in [0, 1_000, 1_001, 2_000, 86_400_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        assert_eq!(histogram.buckets(), [(1.0, 2), (2.0, 2), (f64::INFINITY, 1)]);
        let mut both = histogram.clone();
        both.append(&mut histogram.clone());
        assert_eq!((both.count(), both.sum()), (10, 2.0 * histogram.sum()));
    }

    #[test]
    fn what_is_placed_is_counted_for_a_limited_number_of_nodes() {
        let jobs = crate::config::parse("jobs.yaml", b"jobs: {load: {schedule: '@daily', command: x}}").unwrap().0;
        let run = crate::test_records::record("load", 60, "0x1").id();
        let mut counts = Counts::default();
        for node in 0..2 * MOST_NODES {
            let to = NodeName::new(format!("host-{node}"));
            counts.add(&Report::Placed { run: run.clone(), attempt: 1, to }, &jobs);
        }
        counts.add(&Report::Unplaced { run: run.clone(), why: "no node has gpu".into() }, &jobs);
        counts.add(&Report::Moved { run, from: NodeName::new("a"), to: None, reason: "overdue" }, &jobs);
        let mut both = counts.clone();
        both.append(&mut counts);
        assert_eq!((both.placing.placed.len(), both.placing.moves["overdue"]), (MOST_NODES, 2));
        assert!(both.placing.placed.values().all(|&placed| placed == 2));
        assert_eq!(both.jobs.values().map(|job| job.unplaced).sum::<u64>(), 2);
    }

    #[test]
    fn all_bounds_grow_and_end_at_infinity() {
        for bounds in [LATENESS, DURATIONS, COMMITS] {
            assert!(bounds.is_sorted_by(|one, next| one < next) && bounds.last() == Some(&f64::INFINITY));
        }
    }
}
