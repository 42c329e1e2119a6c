//! Checks of `after` over all jobs together.
//!
//! Every name must be that of a job, no job may run after itself, and all chains of a job must start at the same
//! scheduled job. The checks cover all files at once, because a chain may lead through several.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Problem;
use super::spanned::{Fault, Position};
use cronkeeper_core::job::{Condition, JobName};
use cronkeeper_core::suggest::{did_you_mean, nearest};

/// Maximum number of direct dependents, and of direct upstreams, of a job: one write to the ledger contains them all.
pub(super) const MAX_ADJACENT: usize = 64;

/// The parts of a job that `after` depends on.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub name: JobName,
    pub enabled: bool,
    /// It runs on every node.
    pub is_on_every_node: bool,
    /// Its schedule has no occurrence any more.
    pub is_over: bool,
    pub upstreams: Vec<Upstream>,
}

/// An upstream of a job, with its position in the file.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub name: JobName,
    pub condition: Condition,
    pub at: Position,
}

/// All jobs of all files. Includes invalid ones, so that an error in a job is not reported again for its dependents.
#[derive(Default)]
pub(super) struct Outlines<'a> {
    jobs: BTreeMap<JobName, (&'a Path, Outline)>,
    /// Every name under `jobs`, even if the job or the name is invalid.
    names: BTreeSet<String>,
    /// The job names of some file are unknown, because the file could not be parsed that far.
    is_partial: bool,
}

#[derive(Default)]
pub(super) struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl<'a> Outlines<'a> {
    /// Adds the jobs of a file; `names` is `None` if the file could not be parsed.
    pub fn add(&mut self, path: &'a Path, names: Option<Vec<String>>, outlines: Vec<Outline>) {
        self.is_partial |= names.is_none();
        self.names.extend(names.into_iter().flatten());
        for outline in outlines {
            self.jobs.entry(outline.name.clone()).or_insert((path, outline));
        }
    }

    /// Runs all checks.
    pub fn check(&self) -> Findings {
        let mut findings = Findings::default();
        self.unknown_upstreams(&mut findings);
        self.too_many_dependents(&mut findings);
        self.upstreams_on_every_node(&mut findings);
        let order = self.order();
        self.cycles(&order, &mut findings);
        self.roots(&order, &mut findings);
        if findings.problems.is_empty() {
            self.jobs_never_run(&order, &mut findings);
        }
        findings
    }

    fn problem(path: &Path, job: &Outline, at: Position, why: &str) -> Problem {
        Problem::new(path, Fault::new(at, format!("job `{}`: `after`: {why}", job.name)))
    }

    fn unknown_upstreams(&self, findings: &mut Findings) {
        for (path, job) in self.jobs.values() {
            for upstream in &job.upstreams {
                let name = &upstream.name;
                if *name == job.name {
                    findings.problems.push(Self::problem(path, job, upstream.at, "a job cannot run after itself"));
                } else if !self.is_partial && !self.names.contains(name.as_str()) {
                    let others = self.names.iter().map(String::as_str).filter(|other| *other != job.name.as_str());
                    let why = format!("there is no job `{name}`{}", did_you_mean(nearest(name.as_str(), others)));
                    findings.problems.push(Self::problem(path, job, upstream.at, &why));
                }
            }
        }
    }

    fn too_many_dependents(&self, findings: &mut Findings) {
        let mut dependents: BTreeMap<&JobName, usize> = BTreeMap::new();
        for (path, job) in self.jobs.values() {
            for upstream in &job.upstreams {
                let count = dependents.entry(&upstream.name).or_default();
                *count += 1;
                if *count > MAX_ADJACENT {
                    let why = format!(
                        "at most {MAX_ADJACENT} jobs may run directly after one job, and this is number {count} after `{}`",
                        upstream.name
                    );
                    findings.problems.push(Self::problem(path, job, upstream.at, &why));
                }
            }
        }
    }

    /// What runs on every node has no single end.
    fn upstreams_on_every_node(&self, findings: &mut Findings) {
        for (path, job) in self.jobs.values() {
            for (upstream, _) in self.upstreams_of(job).filter(|(_, other)| other.is_on_every_node) {
                let why =
                    format!("`{}` has `run_on: every`, and no job can run after a job on every node", upstream.name);
                findings.problems.push(Self::problem(path, job, upstream.at, &why));
            }
        }
    }

    /// The upstreams of a job that exist, except itself.
    fn upstreams_of<'b>(&'b self, job: &'b Outline) -> impl Iterator<Item = (&'b Upstream, &'b Outline)> {
        let others = job.upstreams.iter().filter(|upstream| upstream.name != job.name);
        others.filter_map(|upstream| Some((upstream, &self.jobs.get(&upstream.name)?.1)))
    }

    /// The jobs in topological order, upstreams first. Jobs in a cycle, or downstream of one, are missing.
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

    /// Reports each cycle once, at its first job by name.
    fn cycles(&self, order: &[&JobName], findings: &mut Findings) {
        let acyclic: BTreeSet<&JobName> = order.iter().copied().collect();
        let mut reported: BTreeSet<&JobName> = BTreeSet::new();
        for (name, (path, job)) in self.jobs.iter().filter(|(name, _)| !acyclic.contains(name)) {
            if reported.contains(name) {
                continue;
            }
            let Some(cycle) = self.cycle(job, &acyclic) else {
                // It is only downstream of a cycle.
                continue;
            };
            reported.extend(cycle.iter().map(|upstream| &upstream.name));
            let names: Vec<String> = cycle.iter().map(|upstream| format!("`{}`", upstream.name)).collect();
            let why = format!("it runs after itself: after {}", names.join(", which runs after "));
            findings.problems.extend(cycle.first().map(|first| Self::problem(path, job, first.at, &why)));
        }
    }

    /// The shortest cycle through a job.
    fn cycle<'b>(&'b self, job: &'b Outline, acyclic: &BTreeSet<&JobName>) -> Option<Vec<&'b Upstream>> {
        let mut reached_by: BTreeMap<&JobName, (&Upstream, &JobName)> = BTreeMap::new();
        let mut open = vec![job];
        let mut next = 0;
        while let Some(here) = open.get(next).copied() {
            next += 1;
            for (upstream, other) in self.upstreams_of(here).filter(|(_, other)| !acyclic.contains(&other.name)) {
                if !reached_by.contains_key(&other.name) {
                    reached_by.insert(&other.name, (upstream, &here.name));
                    open.push(other);
                }
            }
        }
        let mut steps = Vec::new();
        let mut at = &job.name;
        loop {
            let &(upstream, from) = reached_by.get(at)?;
            steps.push(upstream);
            at = from;
            if *at == job.name {
                steps.reverse();
                return Some(steps);
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
                        "all chains of a job must start at the same scheduled job; the chain through `{}` starts at `{root}`, \
                         earlier ones at `{first}`",
                        upstream.name
                    );
                    findings.problems.push(Self::problem(path, job, upstream.at, &why));
                }
            }
        }
    }

    /// Warns of enabled jobs that never run by themselves, because an upstream does not.
    fn jobs_never_run(&self, order: &[&JobName], findings: &mut Findings) {
        // The jobs that never run; and among them those whose chain never begins, so that `always` does not help.
        let (mut never_run, mut never_begun) = (BTreeSet::new(), BTreeSet::new());
        for name in order.iter().copied() {
            let Some((path, job)) = self.jobs.get(name) else { continue };
            let is_first = job.upstreams.is_empty();
            let is_blocking = |upstream: &Upstream| {
                let needs_success = upstream.condition == Condition::Success;
                never_begun.contains(&upstream.name) || (needs_success && never_run.contains(&upstream.name))
            };
            let blocking = job.upstreams.iter().find(|upstream| is_blocking(upstream)).cloned();
            if (is_first && (!job.enabled || job.is_over))
                || blocking.as_ref().is_some_and(|upstream| never_begun.contains(&upstream.name))
            {
                never_begun.insert(name.clone());
            }
            if let Some(upstream) = blocking.as_ref().filter(|_| job.enabled) {
                let why = format!("it never runs by itself, because `{}` never does or is disabled", upstream.name);
                findings.warnings.push(Self::problem(path, job, upstream.at, &why));
            }
            if !job.enabled || job.is_over || blocking.is_some() {
                never_run.insert(name.clone());
            }
        }
    }
}
