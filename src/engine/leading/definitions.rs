//! Which jobs a leader decides on, and from which mark: as earlier leaders left them, as loaded, as read after a conflict.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::ahead::Counted;
use super::timeline::Timeline;
use crate::engine::misfire::Missed;
use crate::engine::{Engine, Report, Turn, misfire};
use crate::job::{Digest, Job, JobName, JobSet};
use crate::ledger::{ControlEntry, JobEntry};
use crate::run::{RunId, SkipReason, Version};

/// What a job's record says of itself.
pub(super) struct Recorded {
    /// Its version; absent: there is no record.
    version: Option<Version>,
    /// The schedule that its mark was counted with.
    schedule: Option<Digest>,
    /// The job has come to this node's file since the record was written.
    is_new: bool,
}

impl Engine {
    /// The records that earlier leaders left, matched with the jobs as loaded here. Those of jobs that are not defined here stay as they
    /// are: another node's file may define them, and when that one leads it is to find what passed meanwhile.
    pub(in crate::engine) fn adopt_jobs(&mut self, t: &mut Turn, mut entries: BTreeMap<JobName, JobEntry>) {
        let jobs: Vec<Arc<Job>> = self.jobs.jobs.values().cloned().collect();
        for job in jobs {
            let entry = entries.remove(&job.name);
            let name = job.name.clone();
            let job = Some(job).filter(is_scheduled);
            if job.is_some() || entry.is_some() {
                self.adopt_job(t, &name, job, entry, false);
            }
        }
        if let Some(leading) = &mut self.leading {
            leading.undefined = entries;
        }
    }

    /// Takes a job's record for what it says. A schedule that `is_new` to this node's file, or another than recorded, counts from now.
    pub(super) fn adopt_job(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        job: Option<Arc<Job>>,
        entry: Option<JobEntry>,
        is_new: bool,
    ) {
        let version = entry.as_ref().map(|entry| entry.version);
        let record = entry.and_then(|entry| entry.record);
        let counted = record.as_ref().map_or(Counted { from: t.due, ahead: None }, Counted::of);
        let recorded = Recorded { version, schedule: record.and_then(|record| record.schedule), is_new };
        self.count_from(t, name, job, counted, recorded);
        self.tell_mark_ahead(t, name);
    }

    pub(super) fn count_from(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        job: Option<Arc<Job>>,
        Counted { from: mark, ahead }: Counted,
        Recorded { version, schedule: recorded, is_new }: Recorded,
    ) {
        let digest = job.as_deref().map(Job::schedule_digest);
        let timeline = Timeline {
            job: job.clone(),
            version,
            mark,
            written: (version, mark),
            ahead,
            cursor: mark,
            backlog: VecDeque::new(),
            skip: None,
            open: 0,
            is_in_conflict: false,
            next: None,
            looked_at: None,
            is_new,
        };
        let Some(leading) = &mut self.leading else { return };
        leading.timelines.insert(name.clone(), timeline);
        let passing = leading.pauses.passing(name);
        let is_new = is_new || digest != recorded;
        if is_new || (version.is_none() && job.is_some()) {
            let gap = job.as_ref().filter(|_| is_new && recorded.is_some());
            let gap = gap.and_then(|job| misfire::missed(job, mark, t.due));
            let to = if is_new && digest.is_some() { mark.max(t.due) } else { mark };
            self.advance(t, name, to, gap.map(|gap| (passing, gap)));
        }
        if let Some(leading) = &mut self.leading {
            leading.schedule(name);
        }
    }

    /// A valid set of jobs was read: it replaces the running one at once. Runs in flight keep their definitions.
    pub(in crate::engine) fn on_loaded(&mut self, t: &mut Turn, jobs: JobSet) {
        let old = std::mem::replace(&mut self.jobs, jobs);
        self.flights.define(&self.jobs);
        if self.leading.is_none() {
            return;
        }
        self.mark_all_changed();
        let names: BTreeSet<JobName> = old.jobs.keys().chain(self.jobs.jobs.keys()).cloned().collect();
        for name in names {
            self.redefine(t, &name);
            if !old.jobs.contains_key(&name) {
                self.look_at_waiting(t, &name);
            }
        }
    }

    /// What of a job waited for another attempt is looked at.
    pub(in crate::engine) fn look_at_waiting(&mut self, t: &Turn, name: &JobName) {
        let waiting: Vec<RunId> = self.flights.of_job(name).map(|(run, _)| run.clone()).collect();
        if let Some(leading) = &mut self.leading {
            leading.retries.extend(waiting.into_iter().map(|run| (run.scheduled_at().min(t.due), run)));
        }
    }

    pub(super) fn redefine(&mut self, t: &mut Turn, name: &JobName) {
        let new = self.jobs.jobs.get(name).filter(|job| is_scheduled(job)).cloned();
        let Some(timeline) = self.leading.as_mut().and_then(|leading| leading.timelines.get_mut(name)) else {
            return self.define(t, name, new);
        };
        let was = timeline.job.as_deref().map(Job::schedule_digest);
        let is = new.as_deref().map(Job::schedule_digest);
        let old = std::mem::replace(&mut timeline.job, new);
        if was == is || timeline.is_in_conflict {
            return;
        }
        let (mark, now) = (timeline.mark, t.due);
        timeline.backlog.clear();
        timeline.skip = None;
        let gap = old.and_then(|old| misfire::missed(&old, mark, now));
        let passing = self.leading.as_ref().map_or(SkipReason::Missed, |leading| leading.pauses.passing(name));
        self.advance(t, name, mark.max(now), gap.map(|gap| (passing, gap)));
        if let Some(leading) = &mut self.leading {
            leading.look_at_backlog(name);
            leading.schedule(name);
        }
    }

    /// A job that this node's file did not define until now. It never fires for the past.
    fn define(&mut self, t: &mut Turn, name: &JobName, new: Option<Arc<Job>>) {
        let Some(job) = new else { return };
        let entry = self.leading.as_mut().and_then(|leading| leading.undefined.remove(name));
        self.adopt_job(t, name, Some(job), entry, true);
        self.mark_job_changed(name);
    }

    /// A job's record and its pause after a conflict: deciding starts again from what they say.
    pub(in crate::engine) fn on_job_read(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        entry: Option<JobEntry>,
        control: Option<ControlEntry>,
    ) {
        let is_pause_new = self.read_pause(t, name, control);
        self.mark_job_changed(name);
        let Some(leading) = &mut self.leading else { return };
        let Some(timeline) = leading.timelines.get_mut(name).filter(|timeline| timeline.is_in_conflict) else { return };
        let (written, is_new) = (timeline.written, timeline.is_new);
        let job = timeline.job.clone();
        let Some(entry) = entry else {
            // Somebody removed the record: it is made again as it was.
            let digest = job.as_deref().map(Job::schedule_digest);
            let counted = Counted { from: written.1, ahead: None };
            let recorded = Recorded { version: None, schedule: digest, is_new: false };
            return self.count_from(t, name, job, counted, recorded);
        };
        let is_unchanged = Some(entry.version) == written.0 && !is_pause_new;
        self.adopt_job(t, name, job.clone(), Some(entry), is_new);
        let is_paused = self.leading.as_ref().is_some_and(|leading| leading.pauses.has(name));
        if let (true, false, Some(job)) = (is_unchanged, is_paused, job) {
            self.pass_over(t, &job);
        }
    }

    /// Nothing is left of a job that no node's files define. One of that name that comes later is a new one.
    pub(in crate::engine) fn on_forgotten(&mut self, t: &mut Turn, name: &JobName, records: usize) {
        t.tell(Report::Forgotten { job: name.clone(), records });
        if let Some(leading) = self.leading.as_mut().filter(|_| !self.jobs.jobs.contains_key(name)) {
            leading.undefined.remove(name);
            leading.timelines.remove(name);
            leading.pauses.forget(name);
        }
    }

    /// The record was not in the way, so something else is: the next occurrence's place among the runs in flight is taken by what nobody
    /// knows as its run. It is missed, and that is written down.
    pub(super) fn pass_over(&mut self, t: &mut Turn, job: &Arc<Job>) {
        let Some(timeline) = self.timeline(&job.name) else { return };
        let Some(at) = job.next_after(timeline.mark).filter(|&at| at <= t.due_for(job)) else { return };
        let run = RunId::scheduled(job.name.clone(), at);
        let one = Missed { first: at, last: at, count: 1 };
        t.tell(Report::Obstructed { job: job.name.clone(), run });
        self.advance(t, &job.name, at, Some((SkipReason::Missed, one)));
        if let Some(leading) = &mut self.leading {
            leading.schedule(&job.name);
        }
    }
}

fn is_scheduled(job: &Arc<Job>) -> bool {
    job.enabled
}
