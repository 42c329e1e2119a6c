//! Jobs that operators paused: what passes is recorded as such, until the leader itself ends the pause.
//!
//! A pause changes `jobs/<job>` too, so a begin that was decided on without knowing of it is refused, and the job is read
//! again together with its pause. What comes by watches only makes it known sooner, and may be old: it adds a pause, it
//! never takes one away.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::engine::{Engine, Pending, Report, Turn, misfire};
use crate::job::{Job, JobName};
use crate::ledger::{Change, Commit, ControlEntry, Request};
use crate::run::{JobRecord, SkipReason};

/// The pauses that a leader has heard of.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    paused: BTreeMap<JobName, ControlEntry>,
    /// The newest pause of a job that this leader ended: what is heard of it later is old.
    lifted: BTreeMap<JobName, Uuid>,
}

impl Pauses {
    pub fn has(&self, name: &JobName) -> bool {
        self.paused.contains_key(name)
    }

    /// Why occurrences of the job pass that nobody decided on.
    pub fn passing(&self, name: &JobName) -> SkipReason {
        if self.has(name) { SkipReason::Paused } else { SkipReason::Missed }
    }

    /// Takes what was heard, if it is news.
    pub fn hear(&mut self, name: &JobName, heard: ControlEntry) -> bool {
        let is_lifted = self.lifted.get(name) == Some(&heard.record.id);
        let is_known = self
            .paused
            .get(name)
            .is_some_and(|known| known.record.id == heard.record.id && known.version >= heard.version);
        if is_lifted || is_known {
            return false;
        }
        self.paused.insert(name.clone(), heard);
        true
    }

    /// Nothing is left of the job.
    pub fn forget(&mut self, name: &JobName) {
        self.paused.remove(name);
        self.lifted.remove(name);
    }

    /// Ending it failed: what is heard of the pause counts again.
    pub fn not_lifted(&mut self, name: &JobName) {
        self.lifted.remove(name);
    }
}

impl Engine {
    /// The pauses that the node knows of; none while it does not lead.
    pub fn pauses(&self) -> impl Iterator<Item = (&JobName, &ControlEntry)> {
        self.leading.iter().flat_map(|leading| &leading.pauses.paused)
    }

    pub(in crate::engine) fn hear_pauses(&mut self, t: &mut Turn, heard: BTreeMap<JobName, ControlEntry>) {
        for (name, entry) in heard {
            self.hear_pause(t, &name, entry);
        }
    }

    /// True where it is news.
    fn hear_pause(&mut self, t: &mut Turn, name: &JobName, entry: ControlEntry) -> bool {
        let Some(leading) = &mut self.leading else { return false };
        let pause = entry.record.paused.clone();
        let was = leading.pauses.paused.get(name).map(|known| known.record.paused.clone());
        if !leading.pauses.hear(name, entry) {
            return false;
        }
        if was.as_ref() != Some(&pause) {
            t.tell(Report::Paused { job: name.clone(), pause });
        }
        if let Some(timeline) = leading.timelines.get_mut(name) {
            timeline.backlog.clear();
            timeline.cursor = timeline.mark;
        }
        leading.look_at_backlog(name);
        leading.schedule(name);
        true
    }

    /// What was read after the job's record. True where it is news.
    pub(super) fn read_pause(&mut self, t: &mut Turn, name: &JobName, found: Option<ControlEntry>) -> bool {
        let Some(entry) = found else {
            return self.leading.as_mut().is_some_and(|leading| leading.pauses.paused.remove(name).is_some());
        };
        self.hear_pause(t, name, entry)
    }

    /// A paused job's occurrences up to now pass.
    pub(super) fn pass_paused(&mut self, t: &mut Turn, name: &JobName) {
        let Some(timeline) = self.timeline(name) else { return };
        let (Some(job), mark) = (timeline.job.clone(), timeline.mark) else { return };
        if let Some(passed) = misfire::missed(&job, mark, t.due_for(&job)) {
            self.advance(t, name, passed.last, Some((SkipReason::Paused, passed)));
        }
        if let Some(leading) = &mut self.leading {
            leading.schedule(name);
        }
    }

    /// Ends the pauses that operators want ended.
    pub(in crate::engine) fn lift_pauses(&mut self, t: &mut Turn) {
        if !self.may_decide(t.now) {
            return;
        }
        let wanted = self.pauses().filter(|(_, entry)| entry.record.resume.is_some());
        let wanted: Vec<JobName> = wanted.map(|(name, _)| name.clone()).collect();
        for name in wanted {
            self.lift(t, &name);
        }
    }

    /// The mark moves to now: what was due until then passed under the pause, also where nobody was there to say so.
    fn lift(&mut self, t: &mut Turn, name: &JobName) {
        let nonce = self.nonce();
        let Some(leading) = &mut self.leading else { return };
        if leading.timelines.get(name).is_some_and(|timeline| timeline.is_in_conflict) {
            return;
        }
        let Some(entry) = leading.pauses.paused.remove(name) else { return };
        leading.pauses.lifted.insert(name.clone(), entry.record.id);
        let by = entry.record.resume.map(|resume| resume.by).unwrap_or_default();
        let mut change = Change::Resume { job: name.clone(), control: entry.version, mark: None, skip: None };
        let Some(timeline) = leading.timelines.get_mut(name) else {
            self.commit(t, change, Pending::Resume { job: name.clone(), mark: None, told: None, by });
            return;
        };
        let (job, at) = (timeline.job.clone(), timeline.version);
        let until = job.as_ref().map_or(t.due, |job| t.due_for(job));
        // What runs after others has no occurrence that passed: a chain that is under way goes on.
        let is_due_by_time = job.as_ref().is_none_or(|job| job.schedule().is_some());
        let mark = if is_due_by_time { timeline.mark.max(until) } else { timeline.mark };
        let passed = job.as_ref().and_then(|job| misfire::missed(job, timeline.mark, until));
        let told = passed
            .map(|passed| Self::told(&self.node, leading.term.token, t.now.wall, name, SkipReason::Paused, passed));
        let (told, write) = timeline.join_skip(told, self.jobs.dependents_of(name));
        timeline.skip = None;
        timeline.step(mark);
        let schedule = job.as_deref().map(Job::schedule_digest);
        let (last_scheduled, counted) = timeline.marks(mark);
        let record = JobRecord { v: 1, last_scheduled, counted, schedule, nonce };
        if let Change::Resume { mark, skip, .. } = &mut change {
            (*mark, *skip) = (Some((at, record)), write);
        }
        leading.schedule(name);
        self.commit(t, change, Pending::Resume { job: name.clone(), mark: Some(mark), told, by });
    }

    /// Refused: whatever stands now is read, and the pause with it.
    pub(in crate::engine) fn on_resume_answer(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        mark: Option<jiff::Timestamp>,
        answer: Commit,
    ) {
        if let Some(leading) = self.leading.as_mut().filter(|_| answer != Commit::Accepted) {
            leading.pauses.not_lifted(name);
            if let Some(timeline) = leading.timelines.get_mut(name) {
                // What was in the way is the pause and no occurrence's place: none is passed over for it.
                timeline.written.0 = None;
            }
        }
        match mark {
            Some(mark) => self.on_timeline_answer(t, name, mark, answer),
            None if matches!(answer, Commit::Superseded | Commit::Unknown) => t.ledger(Request::ReadJob(name.clone())),
            None => {}
        }
    }
}
