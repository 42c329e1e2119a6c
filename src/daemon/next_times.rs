//! When each job is next due, as the status shows it.
//!
//! The status is published up to four times a second, and some searches are long: for a schedule that its calendar never
//! meets, to the end of all years. So what was found counts until it has passed.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::status::InOrder;
use cronkeeper_core::job::{Job, JobName, JobSet};

/// The next occurrence of each job.
#[derive(Debug, Default)]
pub(super) struct NextTimes(BTreeMap<JobName, Found>);

/// The result of a search.
#[derive(Debug)]
struct Found {
    /// The definition that it is of.
    job: Arc<Job>,
    /// The instant after which it is the next one.
    after: Timestamp,
    next: Option<Timestamp>,
}

impl NextTimes {
    /// The first occurrence of each job after `now`, in the order of the jobs; none for one that is disabled. Of a job
    /// with a mark, the first after it.
    pub fn of_all(
        &mut self,
        jobs: &JobSet,
        now: Timestamp,
        marks: &BTreeMap<JobName, Timestamp>,
    ) -> Vec<Option<Timestamp>> {
        let (mut known, mut marks) = (InOrder::of(&self.0), InOrder::of(marks));
        let mut searched = Vec::new();
        let next_of = |(name, job): (&JobName, &Arc<Job>)| {
            if !job.enabled {
                return None;
            }
            let after = marks.get(name).map_or(now, |&mark| mark.max(now));
            if let Some(found) = known.get(name).filter(|found| found.is_of(job, after)) {
                return found.next;
            }
            let next = job.next_after(after);
            searched.push((name.clone(), Found { job: Arc::clone(job), after, next }));
            next
        };
        let all = jobs.jobs.iter().map(next_of).collect();
        self.0.extend(searched);
        all
    }

    /// Forgets all jobs, since others are loaded.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Found {
    /// True if it is the job's first occurrence after `after` too.
    fn is_of(&self, job: &Arc<Job>, after: Timestamp) -> bool {
        // Before `self.after`, because a clock was set back, there may be an earlier one.
        Arc::ptr_eq(&self.job, job) && self.after <= after && self.next.is_none_or(|next| after < next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(schedule: &str) -> JobSet {
        let yaml = format!("jobs: {{a: {{schedule: '{schedule}', command: x}}}}");
        crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap().0
    }

    fn only(jobs: &JobSet) -> &Arc<Job> {
        jobs.jobs.values().next().unwrap()
    }

    #[test]
    fn what_was_found_counts_until_it_has_passed_the_clock_is_set_back_or_the_job_changes() {
        let at = |time: &str| -> Timestamp { format!("2026-11-20T{time}:00Z").parse().unwrap() };
        let mut times = NextTimes::default();
        let (hourly, once) = (jobs("0 * * * *"), jobs("@at 2026-11-20T12:00:00Z"));
        for (now, next) in [("10:30", "11:00"), ("10:59", "11:00"), ("11:00", "12:00"), ("09:59", "10:00")] {
            assert_eq!(times.of_all(&hourly, at(now), &BTreeMap::new()), [Some(at(next))], "{now}");
        }
        let marked = BTreeMap::from([(only(&hourly).name.clone(), at("14:10"))]);
        for (now, next) in [("10:30", "15:00"), ("14:20", "15:00"), ("15:10", "16:00")] {
            assert_eq!(times.of_all(&hourly, at(now), &marked), [Some(at(next))], "{now}");
        }
        assert_eq!(times.of_all(&hourly, at("10:30"), &BTreeMap::new()), [Some(at("11:00"))], "the mark is gone");
        assert_eq!(times.of_all(&once, at("10:30"), &BTreeMap::new()), [Some(at("12:00"))]);
        for (now, next) in [("12:00", None), ("12:30", None), ("11:30", Some("12:00"))] {
            assert_eq!(times.of_all(&once, at(now), &BTreeMap::new()), [next.map(at)], "{now}");
        }
        let once = only(&once);
        let found = &times.0[&once.name];
        assert!(found.is_of(once, at("11:45")) && !found.is_of(only(&jobs("0 * * * *")), at("11:45")));
    }
}
