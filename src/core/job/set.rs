//! The set of a node's jobs, and their chains.
//!
//! The creator of a set (the program's `config`) must ensure that every upstream exists, that no job runs after itself, and that all
//! chains of a job start at the same scheduled job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Channel, ChannelName, Digest, Job, JobName, NoticeKind, NoticeKinds};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSet {
    pub jobs: BTreeMap<JobName, Arc<Job>>,
    /// Digest of the files that the jobs were read from.
    pub digest: Digest,
    /// For each job, the jobs that run directly after it.
    dependents: BTreeMap<JobName, Vec<JobName>>,
    /// The channels of notifications.
    pub channels: BTreeMap<ChannelName, Channel>,
}

/// The difference between an old and a new set, as job names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Only in the new set.
    pub added: Vec<JobName>,
    /// In both sets, with different definitions.
    pub changed: Vec<JobName>,
    /// Only in the old set.
    pub removed: Vec<JobName>,
}

impl JobSet {
    pub fn new(jobs: BTreeMap<JobName, Arc<Job>>, digest: Digest) -> Self {
        let mut dependents: BTreeMap<JobName, Vec<JobName>> = BTreeMap::new();
        for job in jobs.values() {
            for upstream in job.upstreams().into_iter().flat_map(BTreeMap::keys) {
                dependents.entry(upstream.clone()).or_default().push(job.name.clone());
            }
        }
        Self { jobs, digest, dependents, channels: BTreeMap::new() }
    }

    /// The same set, with these channels. Every channel that a job names must be among them.
    #[must_use]
    pub fn with_channels(self, channels: BTreeMap<ChannelName, Channel>) -> Self {
        Self { channels, ..self }
    }

    /// The channels that want a notification of this kind; `job`: the job that it is about. `None` if the job is not
    /// defined here: another node's file may have it.
    pub fn wanted_by(&self, kind: NoticeKind, job: Option<&JobName>) -> Option<BTreeSet<ChannelName>> {
        let Some(name) = job else { return Some(self.subscribers(kind)) };
        let job = self.jobs.get(name)?;
        let own = job.notify.0.iter().filter(|(name, kinds)| self.gets(name, kinds.as_ref(), kind));
        Some(own.map(|(name, _)| name.clone()).collect())
    }

    /// The channels that get this kind by default.
    fn subscribers(&self, kind: NoticeKind) -> BTreeSet<ChannelName> {
        let of_kind = self.channels.iter().filter(|(_, channel)| channel.on.contains(&kind));
        of_kind.map(|(name, _)| name.clone()).collect()
    }

    /// True if somebody wants a notification of this kind about the job.
    pub fn is_wanted(&self, kind: NoticeKind, job: &JobName) -> bool {
        self.jobs.get(job).is_some_and(|job| self.wants(job, kind))
    }

    /// The kinds of notifications that the ends of the job's runs leave.
    pub fn notices_of_runs(&self, job: &Job) -> NoticeKinds {
        let kinds = [NoticeKind::Failure, NoticeKind::Recovery, NoticeKind::Output];
        kinds.into_iter().filter(|&kind| self.wants(job, kind)).collect()
    }

    fn wants(&self, job: &Job, kind: NoticeKind) -> bool {
        job.notify.0.iter().any(|(name, kinds)| self.gets(name, kinds.as_ref(), kind))
    }

    /// `kinds`: what a job says of the channel.
    fn gets(&self, name: &ChannelName, kinds: Option<&NoticeKinds>, kind: NoticeKind) -> bool {
        let kinds = kinds.or_else(|| self.channels.get(name).map(|channel| &channel.on));
        kinds.is_some_and(|kinds| kinds.contains(&kind))
    }

    /// The jobs that run directly after this one, ordered by name.
    pub fn dependents_of(&self, job: &JobName) -> &[JobName] {
        self.dependents.get(job).map_or(&[], Vec::as_slice)
    }

    /// The scheduled job at which all chains of `job` start, possibly `job` itself. `None` if an upstream is not in the
    /// set.
    pub fn root_of<'a>(&'a self, job: &'a Job) -> Option<&'a Job> {
        let up = |job: &&'a Job| {
            let first = job.upstreams()?.keys().next()?;
            self.jobs.get(first).map(Arc::as_ref)
        };
        // No chain is longer than the number of jobs, so this ends even if the set has a cycle.
        std::iter::successors(Some(job), up).take(self.jobs.len() + 1).find(|job| job.schedule().is_some())
    }

    /// The job and all its direct and indirect upstreams.
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

    /// The job and all its direct and indirect dependents.
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

    /// The changes from this set to `new`.
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
