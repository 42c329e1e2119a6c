//! When each job last succeeded, as far as the ledger of runs on other nodes matters.
//!
//! A new leader did not see the runs of the leaders before it. So the ledger is read once a term for each job of the
//! jobs file. What ends during the term is in [`Counts`](super::Counts), except runs that were still in flight on
//! another node: their jobs are read again until the run is gone, and once after that.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::status::{NodeState, Status};
use cronkeeper_core::job::JobName;
use cronkeeper_core::term::FencingToken;

/// What a term has read so far. It holds at most the jobs of the jobs file.
#[derive(Debug, Default)]
pub struct Successes {
    /// The term; absent on a node that does not lead.
    token: Option<FencingToken>,
    known: BTreeMap<JobName, Known>,
}

#[derive(Debug)]
struct Known {
    at: Option<Timestamp>,
    /// It must be read again.
    is_stale: bool,
}

impl Successes {
    /// The jobs to read now. Empty on a node that does not lead, and during a takeover, which needs the servers more.
    pub fn unread(&mut self, status: &Status) -> Vec<JobName> {
        let token = status.role.token.filter(|_| status.state == NodeState::Leading);
        if token.is_none() || token != self.token {
            (self.token, self.known) = (token, BTreeMap::new());
        }
        if token.is_none() {
            return Vec::new();
        }
        let (elsewhere, defined) = (elsewhere(status), status.jobs.iter().map(|job| &job.name));
        let defined: BTreeSet<&JobName> = defined.collect();
        self.known.retain(|job, _| defined.contains(job));
        let is_read = |job: &JobName| self.known.get(job).is_some_and(|known| !known.is_stale);
        defined.into_iter().filter(|job| !is_read(job) || elsewhere.contains(job)).cloned().collect()
    }

    /// Takes what was read for these jobs after `status` was published. Ignored if the term has changed meanwhile.
    pub fn learn(&mut self, status: &Status, jobs: &[JobName], found: &BTreeMap<JobName, Timestamp>) {
        if self.token == status.role.token {
            let elsewhere = elsewhere(status);
            let known = |job: &JobName| Known { at: found.get(job).copied(), is_stale: elsewhere.contains(job) };
            self.known.extend(jobs.iter().map(|job| (job.clone(), known(job))));
        }
    }

    /// The last success of each job that has one in the ledger.
    pub fn known(&self) -> BTreeMap<JobName, Timestamp> {
        self.known.iter().filter_map(|(job, known)| Some((job.clone(), known.at?))).collect()
    }
}

/// The jobs with runs on other nodes, which may end without this node seeing it.
fn elsewhere(status: &Status) -> BTreeSet<&JobName> {
    status.runs.iter().filter(|run| run.node != status.node).map(|run| run.run.job()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::term::NodeName;

    #[test]
    fn each_job_is_read_once_a_term_by_the_leader_alone() {
        let (mut successes, mut status) = (Successes::default(), sample::leader());
        status.runs.clear();
        let jobs = successes.unread(&status);
        assert_eq!(jobs.len(), status.jobs.len());
        let at = sample::at("2026-11-20T02:40:00Z");
        successes.learn(&status, &jobs, &BTreeMap::from([(sample::job("load"), at)]));
        assert_eq!(successes.unread(&status), []);
        assert_eq!(successes.known(), BTreeMap::from([(sample::job("load"), at)]));

        status.role.token = Some(FencingToken(i64::MAX));
        assert_eq!(successes.unread(&status).len(), status.jobs.len());
        status.role.token = None;
        assert_eq!(successes.unread(&status), []);
        successes.learn(&sample::leader(), &jobs, &BTreeMap::new());
        assert!(successes.known.is_empty());
    }

    #[test]
    fn a_job_is_read_again_until_its_run_on_another_node_has_ended() {
        let (mut successes, mut status) = (Successes::default(), sample::leader());
        status.runs[0].node = NodeName::new("host-z");
        let job = status.runs[0].run.job().clone();
        let jobs = successes.unread(&status);
        successes.learn(&status, &jobs, &BTreeMap::new());
        for _ in 0..2 {
            assert_eq!(successes.unread(&status), std::slice::from_ref(&job));
            successes.learn(&status, std::slice::from_ref(&job), &BTreeMap::new());
        }
        status.runs.clear();
        assert_eq!(successes.unread(&status), std::slice::from_ref(&job), "it may have ended after the last read");
        successes.learn(&status, &[job], &BTreeMap::new());
        assert_eq!(successes.unread(&status), []);
    }

    #[test]
    fn a_removed_job_is_forgotten() {
        let (mut successes, mut status) = (Successes::default(), sample::leader());
        status.runs.clear();
        let jobs = successes.unread(&status);
        successes.learn(&status, &jobs, &BTreeMap::new());
        status.jobs.clear();
        assert_eq!(successes.unread(&status), []);
        assert!(successes.known.is_empty());
    }
}
