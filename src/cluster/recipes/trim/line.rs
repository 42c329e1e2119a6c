//! Waiting line of jobs: each job at most once, first come first served.

use std::collections::{BTreeSet, VecDeque};

use cronkeeper_core::job::JobName;

#[derive(Debug, Default)]
pub(super) struct JobLine {
    order: VecDeque<JobName>,
    waiting: BTreeSet<JobName>,
}

impl JobLine {
    pub fn push(&mut self, job: JobName) {
        if self.waiting.insert(job.clone()) {
            self.order.push_back(job);
        }
    }

    pub fn pop(&mut self) -> Option<JobName> {
        let job = self.order.pop_front()?;
        self.waiting.remove(&job);
        Some(job)
    }

    pub fn has(&self, job: &JobName) -> bool {
        self.waiting.contains(job)
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_served_in_order_and_wait_only_once() {
        let mut line = JobLine::default();
        for name in ["b", "a", "b", "c"] {
            line.push(JobName::parse(name).unwrap());
        }
        let served: Vec<_> = std::iter::from_fn(|| line.pop()).map(|job| job.to_string()).collect();
        assert_eq!(served, ["b", "a", "c"]);
        assert!(line.is_empty());
    }
}
