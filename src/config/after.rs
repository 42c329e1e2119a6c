//! What `after` says of all jobs together: every name is that of a job, none runs after itself, and all chains of a job start at one
//! scheduled job. Over all files at once, because a chain may lead through several.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Problem;
use super::schema::meant;
use super::spanned::{Fault, Position};
use crate::job::{Condition, JobName};

/// Most jobs that run directly after one, or one after: each is part of one write of the ledger.
pub(super) const MOST: usize = 64;

/// A job as far as `after` is concerned.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub name: JobName,
    pub enabled: bool,
    pub upstreams: Vec<Upstream>,
}

/// One job that another runs after, and where that is said.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub name: JobName,
    pub condition: Condition,
    pub at: Position,
}

/// All jobs of all files, wrong ones too, so that what is wrong with one is not said of those that name it.
#[derive(Default)]
pub(super) struct Outlines<'a> {
    jobs: BTreeMap<JobName, (&'a Path, Outline)>,
    /// Every name that stands under `jobs`, whatever is wrong with it.
    names: BTreeSet<String>,
    /// A file could not be read far enough to know its jobs.
    is_partial: bool,
}

/// What is to be said.
#[derive(Default)]
pub(super) struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl<'a> Outlines<'a> {
    /// Adds what a file holds; without names nothing is known of it.
    pub fn add(&mut self, path: &'a Path, names: Option<Vec<String>>, outlines: Vec<Outline>) {
        self.is_partial |= names.is_none();
        self.names.extend(names.into_iter().flatten());
        for outline in outlines {
            self.jobs.entry(outline.name.clone()).or_insert((path, outline));
        }
    }

    /// All that is wrong, and what is hardly meant.
    pub fn judge(&self) -> Findings {
        let mut findings = Findings::default();
        self.strangers(&mut findings);
        self.crowds(&mut findings);
        let order = self.order();
        self.circles(&order, &mut findings);
        self.roots(&order, &mut findings);
        if findings.problems.is_empty() {
            self.idle(&order, &mut findings);
        }
        findings
    }

    fn problem(path: &Path, job: &Outline, at: Position, why: &str) -> Problem {
        Problem::new(path, Fault::new(at, format!("job `{}`: `after`: {why}", job.name)))
    }

    fn strangers(&self, findings: &mut Findings) {
        for (path, job) in self.jobs.values() {
            for upstream in &job.upstreams {
                let name = &upstream.name;
                if *name == job.name {
                    findings.problems.push(Self::problem(path, job, upstream.at, "a job cannot run after itself"));
                } else if !self.is_partial && !self.names.contains(name.as_str()) {
                    let others = self.names.iter().map(String::as_str).filter(|other| *other != job.name.as_str());
                    let why = format!("there is no job `{name}`{}", meant(name.as_str(), others));
                    findings.problems.push(Self::problem(path, job, upstream.at, &why));
                }
            }
        }
    }

    fn crowds(&self, findings: &mut Findings) {
        let mut dependents: BTreeMap<&JobName, usize> = BTreeMap::new();
        for (path, job) in self.jobs.values() {
            for upstream in &job.upstreams {
                let count = dependents.entry(&upstream.name).or_default();
                *count += 1;
                if *count > MOST {
                    let why = format!(
                        "at most {MOST} jobs run directly after one, and this is number {count} after `{}`",
                        upstream.name
                    );
                    findings.problems.push(Self::problem(path, job, upstream.at, &why));
                }
            }
        }
    }

    /// The jobs that a job is known to run after.
    fn upstreams_of<'b>(&'b self, job: &'b Outline) -> impl Iterator<Item = (&'b Upstream, &'b Outline)> {
        let others = job.upstreams.iter().filter(|upstream| upstream.name != job.name);
        others.filter_map(|upstream| Some((upstream, &self.jobs.get(&upstream.name)?.1)))
    }

    /// Each job behind all that it runs after. What is missing runs in a circle, or after one.
    fn order(&self) -> Vec<&JobName> {
        let mut open: BTreeMap<&JobName, usize> = BTreeMap::new();
        let mut behind: BTreeMap<&JobName, Vec<&JobName>> = BTreeMap::new();
        for (name, (_, job)) in &self.jobs {
            let before = self.upstreams_of(job).inspect(|(_, other)| behind.entry(&other.name).or_default().push(name));
            open.insert(name, before.count());
        }
        let mut order: Vec<&JobName> = open.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
        let mut next = 0;
        while let Some(done) = order.get(next).copied() {
            next += 1;
            for name in behind.get(done).into_iter().flatten() {
                if let Some(count) = open.get_mut(name) {
                    *count -= 1;
                    if *count == 0 {
                        order.push(name);
                    }
                }
            }
        }
        order
    }

    /// One word for each circle, at its first job by name.
    fn circles(&self, order: &[&JobName], findings: &mut Findings) {
        let straight: BTreeSet<&JobName> = order.iter().copied().collect();
        let mut told: BTreeSet<&JobName> = BTreeSet::new();
        for (name, (path, job)) in self.jobs.iter().filter(|(name, _)| !straight.contains(name)) {
            if told.contains(name) {
                continue;
            }
            let Some(circle) = self.circle(job, &straight) else {
                // It runs after one: no way leads back to it.
                continue;
            };
            told.extend(circle.iter().map(|upstream| &upstream.name));
            let names: Vec<String> = circle.iter().map(|upstream| format!("`{}`", upstream.name)).collect();
            let why = format!("it runs after itself: after {}", names.join(", which runs after "));
            findings.problems.extend(circle.first().map(|first| Self::problem(path, job, first.at, &why)));
        }
    }

    /// The shortest way from a job back to itself.
    fn circle<'b>(&'b self, job: &'b Outline, straight: &BTreeSet<&JobName>) -> Option<Vec<&'b Upstream>> {
        let mut reached_by: BTreeMap<&JobName, (&Upstream, &JobName)> = BTreeMap::new();
        let mut open = vec![job];
        let mut next = 0;
        while let Some(here) = open.get(next).copied() {
            next += 1;
            for (upstream, other) in self.upstreams_of(here).filter(|(_, other)| !straight.contains(&other.name)) {
                if !reached_by.contains_key(&other.name) {
                    reached_by.insert(&other.name, (upstream, &here.name));
                    open.push(other);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = &job.name;
        loop {
            let &(upstream, from) = reached_by.get(at)?;
            way.push(upstream);
            at = from;
            if *at == job.name {
                way.reverse();
                return Some(way);
            }
        }
    }

    fn roots(&self, order: &[&JobName], findings: &mut Findings) {
        let mut roots: BTreeMap<&JobName, &JobName> = BTreeMap::new();
        for name in order.iter().copied() {
            let Some((path, job)) = self.jobs.get(name) else { continue };
            if job.upstreams.is_empty() {
                roots.insert(name, name);
            }
            for (upstream, other) in self.upstreams_of(job) {
                let Some(root) = roots.get(&other.name).copied() else { continue };
                let first = *roots.entry(name).or_insert(root);
                if first != root {
                    let why = format!(
                        "all chains of a job start at the same scheduled job; `{}` leads to `{root}`, those before it to `{first}`",
                        upstream.name
                    );
                    findings.problems.push(Self::problem(path, job, upstream.at, &why));
                }
            }
        }
    }

    /// Jobs that never run by themselves, because one before them does not.
    fn idle(&self, order: &[&JobName], findings: &mut Findings) {
        // Those that never run, and those of them whose chains never begin.
        let (mut idle, mut unbegun) = (BTreeSet::new(), BTreeSet::new());
        for name in order.iter().copied() {
            let Some((path, job)) = self.jobs.get(name) else { continue };
            let is_first = job.upstreams.is_empty();
            let is_dead = |upstream: &Upstream| {
                let needs_success = upstream.condition == Condition::Success;
                unbegun.contains(&upstream.name) || (needs_success && idle.contains(&upstream.name))
            };
            let dead = job.upstreams.iter().find(|upstream| is_dead(upstream)).cloned();
            if (is_first && !job.enabled) || dead.as_ref().is_some_and(|upstream| unbegun.contains(&upstream.name)) {
                unbegun.insert(name.clone());
            }
            if let Some(upstream) = dead.as_ref().filter(|_| job.enabled) {
                let why = format!("it never runs by itself: `{}` does not, or is disabled", upstream.name);
                findings.warnings.push(Self::problem(path, job, upstream.at, &why));
            }
            if !job.enabled || dead.is_some() {
                idle.insert(name.clone());
            }
        }
    }
}
