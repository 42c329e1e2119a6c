//! What a leader asks the ledger to write about a job, and what follows from the answers.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::engine::flight::{Flight, Own, RunOwner};
use crate::engine::misfire::Missed;
use crate::engine::{Engine, Pending, Told, Turn};
use crate::job::{Job, JobName, Overlap};
use crate::ledger::{Change, Commit, CommitId, Request};
use crate::run::{
    JobRecord, Nonce, OnLoss, Owner, Past, RunId, RunRecord, RunState, Skip, SkipReason, Trigger, Version,
};
use crate::term::{FencingToken, NodeName};

const SECOND: Duration = Duration::from_secs(1);

impl Engine {
    /// Moves the mark, and writes down what it passes.
    pub(in crate::engine) fn advance(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        mark: Timestamp,
        skipped: Option<(SkipReason, Missed)>,
    ) {
        let nonce = self.nonce();
        let Some(leading) = &mut self.leading else { return };
        let token = leading.term.token;
        let Some(timeline) = leading.timelines.get_mut(name) else { return };
        let mark = mark.max(timeline.mark);
        let schedule = timeline.job.as_deref().map(Job::schedule_digest);
        let (last_scheduled, counted) = timeline.marks(mark);
        let record = JobRecord { v: 1, last_scheduled, counted, schedule, nonce };
        let at = timeline.version;
        let told = skipped.map(|(reason, missed)| Self::told(&self.node, token, t.now.wall, name, reason, missed));
        let (told, skip) = timeline.join_skip(told, self.jobs.dependents_of(name));
        timeline.step(mark);
        let change = Change::Advance { job: name.clone(), at, record, skip };
        let id = self.commit(t, change, Pending::Advance { job: name.clone(), mark, told });
        if let Some(takeover) = self.leading.as_mut().and_then(|leading| leading.takeover.as_mut()) {
            takeover.open.insert(id);
        }
    }

    /// A skip, as it is written and told.
    pub(super) fn told(
        node: &NodeName,
        token: FencingToken,
        now: Timestamp,
        name: &JobName,
        reason: SkipReason,
        missed: Missed,
    ) -> Told {
        let skip = Skip {
            v: 1,
            job: name.clone(),
            reason,
            first: missed.first,
            last: missed.last,
            count: missed.count,
            trigger: None,
            token,
            node: node.clone(),
            decided_at: now,
        };
        Told { skip, first: missed.first, count: missed.count }
    }

    /// The record of a run that this node is about to begin, or to let wait for others; absent while it may not.
    pub(super) fn new_run(
        &self,
        t: &Turn,
        job: &Job,
        at: Timestamp,
        trigger: Option<Trigger>,
        nonce: Nonce,
    ) -> Option<RunRecord> {
        let waits = self.must_wait(job);
        Some(RunRecord {
            v: 1,
            job: job.name.clone(),
            scheduled_at: at,
            trigger,
            state: if waits { RunState::Queued } else { RunState::Running },
            owner: Owner { node: self.node.clone(), session: self.session.clone()? },
            token: self.term()?.token,
            attempt: u32::from(!waits),
            nonce,
            begun_at: t.now.wall,
            on_loss: OnLoss::of(job),
            keep_until: Self::keep_until(job, self.jobs.root_of(job).unwrap_or(job), at, t.due),
            ready_at: None,
            retry_at: None,
            past: Past::default(),
            dependents: self.jobs.dependents_of(&job.name).to_vec(),
            kill: None,
        })
    }

    /// Moves the mark and begins a run of this occurrence, or lets it wait for others.
    pub(in crate::engine) fn begin(&mut self, t: &mut Turn, job: &Arc<Job>, at: Timestamp) {
        let id = RunId::scheduled(job.name.clone(), at);
        if self.flights.get(&id).is_some_and(Flight::is_begun) {
            // Somebody set the mark back by hand: the occurrence has its run, which goes on and ends as that.
            return self.advance(t, &job.name, at, None);
        }
        let nonce = self.nonce();
        let Some(run) = self.new_run(t, job, at, None, nonce.clone()) else { return };
        let Some((version, record)) = self.step_mark(job, at, nonce) else { return };
        let change = Change::Begin { at: version, record, run: run.clone() };
        let commit = self.commit(t, change, Pending::Begin { run: id });
        self.enter(run, job, commit);
    }

    /// A job's next record, whose mark is that of a run about to be begun, and the version that it is to be written at.
    pub(super) fn step_mark(&mut self, job: &Job, at: Timestamp, nonce: Nonce) -> Option<(Version, JobRecord)> {
        let timeline = self.leading.as_mut()?.timelines.get_mut(&job.name)?;
        let version = timeline.version?;
        let schedule = Some(job.schedule_digest());
        let (last_scheduled, counted) = timeline.marks(at);
        timeline.skip = None;
        timeline.step(at);
        Some((version, JobRecord { v: 1, last_scheduled, counted, schedule, nonce }))
    }

    /// A run that the ledger is just asked to accept.
    pub(super) fn enter(&mut self, run: RunRecord, job: &Arc<Job>, commit: CommitId) {
        let is_queued = run.state == RunState::Queued;
        let holder = if is_queued { RunOwner::Nobody } else { RunOwner::Own(Own::beginning(job.clone())) };
        let flight = Flight::new(run, Version::FIRST, holder);
        self.flights.insert(flight.record.id(), Flight { commit: Some(commit), ..flight });
    }

    /// How long a run may go on while cut off: until the second before whatever may begin beside it. With `after` that is when its
    /// `root` is due next; any other job is its own.
    pub(in crate::engine) fn keep_until(
        job: &Job,
        root: &Job,
        scheduled_at: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if OnLoss::of(job) != OnLoss::CutOff || job.overlap == Overlap::Allow {
            return None;
        }
        let delay = root.splay.delay();
        let next = root.next_after(scheduled_at.max(earlier(now, delay)))?;
        Some(earlier(later(next, delay), SECOND))
    }

    /// The answer to a commit that moves a job's mark.
    pub(in crate::engine) fn on_timeline_answer(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        mark: Timestamp,
        answer: Commit,
    ) {
        let Some(leading) = &mut self.leading else { return };
        let Some(timeline) = leading.timelines.get_mut(name) else { return };
        timeline.open = timeline.open.saturating_sub(1);
        match answer {
            Commit::Accepted => {
                timeline.written = (Some(timeline.written.0.map_or(Version::FIRST, Version::next)), mark);
                timeline.is_new = false;
            }
            // Unknown under a living session: others wrote over what would tell. With the session the term goes too.
            Commit::Superseded | Commit::Unknown => timeline.is_in_conflict = true,
            Commit::Fenced => return,
        }
        if timeline.is_in_conflict && timeline.open == 0 {
            t.ledger(Request::ReadJob(name.clone()));
        }
        leading.schedule(name);
    }
}
