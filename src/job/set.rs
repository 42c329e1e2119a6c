//! The jobs of a node, and how they hang together.
//!
//! That what `after` names is there, that no job runs after itself, and that all chains of a job start at one scheduled job is for
//! whoever makes a set to see to (`config`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Digest, Job, JobName};

/// All jobs of a node, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSet {
    /// The jobs.
    pub jobs: BTreeMap<JobName, Arc<Job>>,
    /// Of the files they were read from.
    pub digest: Digest,
    /// Which jobs run directly after a job.
    dependents: BTreeMap<JobName, Vec<JobName>>,
}

/// How one set differs from another, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Only in the other.
    pub added: Vec<JobName>,
    /// In both, and not the same.
    pub changed: Vec<JobName>,
    /// Not in the other.
    pub removed: Vec<JobName>,
}

impl JobSet {
    /// These jobs, read from files with this digest.
    pub fn new(jobs: BTreeMap<JobName, Arc<Job>>, digest: Digest) -> Self {
        let mut dependents: BTreeMap<JobName, Vec<JobName>> = BTreeMap::new();
        for job in jobs.values() {
            for upstream in job.upstreams().into_iter().flat_map(BTreeMap::keys) {
                dependents.entry(upstream.clone()).or_default().push(job.name.clone());
            }
        }
        Self { jobs, digest, dependents }
    }

    /// The jobs that run directly after this one, by name.
    pub fn dependents_of(&self, job: &JobName) -> &[JobName] {
        self.dependents.get(job).map_or(&[], Vec::as_slice)
    }

    /// The scheduled job at which all chains of `job` start: itself, where it is one. Absent where its upstreams are not all in the set.
    pub fn root_of<'a>(&'a self, job: &'a Job) -> Option<&'a Job> {
        let up = |job: &&'a Job| {
            let first = job.upstreams()?.keys().next()?;
            self.jobs.get(first).map(Arc::as_ref)
        };
        // No chain is longer than there are jobs.
        std::iter::successors(Some(job), up).take(self.jobs.len() + 1).find(|job| job.schedule().is_some())
    }

    /// A job's name, and those of all before it in its chains.
    pub fn lineage_of(&self, job: &JobName) -> BTreeSet<JobName> {
        let mut found = BTreeSet::new();
        let mut open = vec![job.clone()];
        while let Some(name) = open.pop() {
            if found.insert(name.clone()) {
                let upstreams = self.jobs.get(&name).and_then(|job| job.upstreams());
                open.extend(upstreams.into_iter().flat_map(BTreeMap::keys).cloned());
            }
        }
        found
    }

    /// A job's name, and those of all after it in its chains.
    pub fn descendants_of(&self, job: &JobName) -> BTreeSet<JobName> {
        let mut found = BTreeSet::new();
        let mut open = vec![job.clone()];
        while let Some(name) = open.pop() {
            if found.insert(name.clone()) {
                open.extend(self.dependents_of(&name).iter().cloned());
            }
        }
        found
    }

    /// What has to change for this set to become `new`.
    pub fn difference(&self, new: &Self) -> Difference {
        let mut difference = Difference::default();
        for (name, job) in &new.jobs {
            match self.jobs.get(name) {
                None => difference.added.push(name.clone()),
                Some(old) if old != job => difference.changed.push(name.clone()),
                Some(_) => {}
            }
        }
        difference.removed = self.jobs.keys().filter(|name| !new.jobs.contains_key(*name)).cloned().collect();
        difference
    }
}
