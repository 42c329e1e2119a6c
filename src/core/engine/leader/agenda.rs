//! When jobs are due: at their time, or shortly before it.
//!
//! If nothing can change the decision about an occurrence until it is due, it may be decided before that (see
//! [`horizon`](crate::engine::runs)). All others wait for their time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::job::JobName;

/// The next due time of each job. A job is in it at most once.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Jobs that are decided on at their time, not before.
    on_time: BTreeSet<(Timestamp, JobName)>,
    /// Jobs that may be decided on before their time.
    ahead: BTreeMap<Timestamp, BTreeSet<JobName>>,
    /// The instant whose first job was decided ahead of time, and how many jobs were due then.
    opened: Option<(Timestamp, usize)>,
}

impl Agenda {
    /// Adds a job that may be decided on before its time.
    pub fn insert(&mut self, at: Timestamp, job: JobName) {
        self.ahead.entry(at).or_default().insert(job);
    }

    /// Adds a job that is decided on at its time.
    pub fn insert_on_time(&mut self, at: Timestamp, job: JobName) {
        self.on_time.insert((at, job));
    }

    pub fn remove(&mut self, at: Timestamp, job: &JobName) {
        if self.on_time.remove(&(at, job.clone())) {
            return;
        }
        if let Some(jobs) = self.ahead.get_mut(&at) {
            jobs.remove(job);
            if jobs.is_empty() {
                self.ahead.remove(&at);
            }
        }
    }

    /// When the first job is due.
    pub fn first_at(&self) -> Option<Timestamp> {
        let on_time = self.on_time.first().map(|&(at, _)| at);
        on_time.into_iter().chain(self.ahead.keys().next().copied()).min()
    }

    /// Takes the first job, whether it is due or not.
    pub fn pop_first(&mut self) -> Option<JobName> {
        let at = self.first_at()?;
        if self.on_time.first().is_some_and(|&(first, _)| first == at) {
            return self.on_time.pop_first().map(|(_, job)| job);
        }
        self.pop_ahead().map(|(_, job)| job)
    }

    /// The first instant with jobs that may be decided on before, and how many of them were due then when the first of
    /// them was decided on: so the last of them is decided on as early as the first.
    pub fn first_ahead(&self) -> Option<(Timestamp, usize)> {
        let (&at, jobs) = self.ahead.first_key_value()?;
        Some(self.opened.filter(|&(opened, _)| opened == at).unwrap_or((at, jobs.len())))
    }

    /// Takes a job of that instant.
    pub fn pop_ahead(&mut self) -> Option<(Timestamp, JobName)> {
        self.opened = self.first_ahead();
        let mut jobs = self.ahead.first_entry()?;
        let (at, job) = (*jobs.key(), jobs.get_mut().pop_first()?);
        if jobs.get().is_empty() {
            jobs.remove();
        }
        Some((at, job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::fixture::at;

    #[test]
    fn jobs_leave_in_the_order_of_their_time_and_an_instant_keeps_its_count() {
        let name = |text: &str| JobName::parse(text).unwrap();
        let mut agenda = Agenda::default();
        for (second, job) in [(2, "c"), (1, "b"), (1, "a")] {
            agenda.insert(at(&format!("10:00:0{second}")), name(job));
        }
        agenda.insert_on_time(at("10:00:01"), name("d"));
        assert_eq!(agenda.first_ahead(), Some((at("10:00:01"), 2)));
        assert_eq!(agenda.pop_ahead(), Some((at("10:00:01"), name("a"))));
        assert_eq!(agenda.first_ahead(), Some((at("10:00:01"), 2)), "as when the first was taken");
        assert_eq!(agenda.pop_first(), Some(name("d")));
        agenda.remove(at("10:00:01"), &name("b"));
        assert_eq!(agenda.first_ahead(), Some((at("10:00:02"), 1)));
        assert_eq!((agenda.pop_first(), agenda.first_at()), (Some(name("c")), None));
    }
}
