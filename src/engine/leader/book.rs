//! The leader's book: every defined job's timeline, when each is due, and the commits that move its mark.
//!
//! A job's decisions form a chain: each is requested at the version that the one before will have produced. When one is rejected the
//! later ones are too; then the record is read and deciding starts from what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::timeline::Timeline;
use crate::clock::later;
use crate::engine::clocks::AHEAD;
use crate::engine::commits::{Pending, UnreportedSkip};
use crate::engine::context::Context;
use crate::engine::misfire::Missed;
use crate::engine::report::MarkAhead;
use crate::engine::runs::Runs;
use crate::job::{Job, JobName};
use crate::ledger::{Change, Commit, JobEntry, Request};
use crate::run::{JobRecord, Nonce, RunId, Skip, SkipReason, Version};

/// Most changes of a job's record without an answer: what comes due meanwhile is decided on when they have one.
const MOST_OPEN: usize = 50;

/// The timelines of the jobs, and when each is due.
#[derive(Debug, Default)]
pub(super) struct Book {
    timelines: BTreeMap<JobName, Timeline>,
    /// When each job is next to be looked at.
    agenda: BTreeSet<(Timestamp, JobName)>,
    /// Jobs whose backlog is to be looked at, by its oldest occurrence.
    backlogs: BTreeSet<(Timestamp, JobName)>,
    /// Records of jobs that this node's file does not define: another node's may, so they stay as they are.
    pub undefined: BTreeMap<JobName, JobEntry>,
    /// Jobs that are due, and decided on when a commit about them is answered.
    held: BTreeSet<JobName>,
}

/// What of a job is due.
pub(super) enum Due {
    /// The oldest of its backlog.
    Backlog(JobName),
    /// Its next occurrence.
    Job(JobName),
}

impl Book {
    pub fn insert(&mut self, name: JobName, timeline: Timeline) {
        self.timelines.insert(name, timeline);
    }

    /// Nothing is left of the job.
    pub fn forget(&mut self, name: &JobName) {
        self.undefined.remove(name);
        self.timelines.remove(name);
    }

    pub fn get(&self, name: &JobName) -> Option<&Timeline> {
        self.timelines.get(name)
    }

    pub fn get_mut(&mut self, name: &JobName) -> Option<&mut Timeline> {
        self.timelines.get_mut(name)
    }

    /// The job's timeline, where its occurrences can be decided on.
    pub fn decidable(&mut self, name: &JobName) -> Option<&mut Timeline> {
        self.timelines.get_mut(name).filter(|timeline| !timeline.is_in_conflict)
    }

    /// When an occurrence is next due.
    pub fn next_at(&self) -> Option<Timestamp> {
        [self.agenda.first(), self.backlogs.first()].into_iter().flatten().map(|&(at, _)| at).min()
    }

    /// The first that is due, the oldest first.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<Due> {
        let at = self.next_at().filter(|&at| at <= now)?;
        if self.backlogs.first().is_some_and(|&(first, _)| first == at) {
            let (_, name) = self.backlogs.pop_first()?;
            if let Some(timeline) = self.timelines.get_mut(&name) {
                timeline.looked_at = None;
            }
            return Some(Due::Backlog(name));
        }
        let (_, name) = self.agenda.pop_first()?;
        if let Some(timeline) = self.timelines.get_mut(&name) {
            timeline.next = None;
        }
        Some(Due::Job(name))
    }

    /// Puts the job's backlog where it is looked at, if there is any.
    pub fn look_at_backlog(&mut self, name: &JobName) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let at = timeline.backlog.front().copied();
        if at != timeline.looked_at {
            if let Some(old) = timeline.looked_at {
                self.backlogs.remove(&(old, name.clone()));
            }
            if let Some(new) = at {
                self.backlogs.insert((new, name.clone()));
            }
            timeline.looked_at = at;
        }
    }

    /// Puts the job's next occurrence on the agenda.
    pub fn schedule(&mut self, name: &JobName) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let next = match &timeline.job {
            Some(job) if !timeline.is_in_conflict => {
                // What lies beyond all instants never comes.
                job.next_after(timeline.cursor).and_then(|at| at.checked_add(job.splay.delay()).ok())
            }
            _ => None,
        };
        if next != timeline.next {
            if let Some(old) = timeline.next {
                self.agenda.remove(&(old, name.clone()));
            }
            if let Some(new) = next {
                self.agenda.insert((new, name.clone()));
            }
            timeline.next = next;
        }
    }

    pub fn enqueue(&mut self, name: &JobName, at: Timestamp) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        timeline.backlog.push_back(at);
        timeline.cursor = at;
        self.look_at_backlog(name);
    }

    /// Forgets what waits to be made up: from now on only occurrences after the mark count.
    pub fn clear_backlog(&mut self, name: &JobName) {
        if let Some(timeline) = self.timelines.get_mut(name) {
            timeline.backlog.clear();
            timeline.cursor = timeline.mark;
        }
        self.look_at_backlog(name);
        self.schedule(name);
    }

    /// Decides on a job once a commit about it is answered.
    pub fn hold(&mut self, name: &JobName) {
        self.held.insert(name.clone());
    }

    /// A commit about the job is answered.
    pub fn release(&mut self, name: &JobName) {
        if self.held.remove(name) {
            self.schedule(name);
        }
    }

    /// True while the service has left too many writes about the job without an answer.
    pub fn has_too_many_open(&self, name: &JobName) -> bool {
        self.timelines.get(name).is_some_and(|timeline| timeline.open >= MOST_OPEN)
    }

    /// Moves the mark, and writes down what it passes.
    pub fn advance(
        &mut self,
        cx: &mut Context,
        name: &JobName,
        mark: Timestamp,
        skipped: Option<(SkipReason, Missed)>,
    ) {
        let nonce = cx.nonce();
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let mark = mark.max(timeline.mark);
        let schedule = timeline.job.as_deref().map(Job::schedule_digest);
        let (last_scheduled, counted) = timeline.marks(mark);
        let record = JobRecord { v: 1, last_scheduled, counted, schedule, nonce };
        let at = timeline.version;
        let skip = skipped.and_then(|(reason, missed)| new_skip(cx, name, reason, missed));
        let (unreported, skip) = timeline.join_skip(skip, cx.jobs.dependents_of(name));
        timeline.step(mark);
        let change = Change::Advance { job: name.clone(), at, record, skip };
        let id = cx.commit(change, Pending::Advance { job: name.clone(), mark, skip: unreported });
        cx.is_of_the_takeover(id);
    }

    /// Moves the mark and begins a run of this occurrence, or lets it wait for others.
    pub fn begin(&mut self, cx: &mut Context, runs: &mut Runs, job: &Arc<Job>, at: Timestamp) {
        let id = RunId::scheduled(job.name.clone(), at);
        if runs.is_begun(&id) {
            // Somebody set the mark back by hand: the occurrence has its run, which goes on and ends as that.
            return self.advance(cx, &job.name, at, None);
        }
        let nonce = cx.nonce();
        let Some(run) = runs.new_record(cx, job, at, None, nonce.clone()) else { return };
        let Some((version, record)) = self.step_mark(job, at, nonce) else { return };
        let change = Change::Begin { at: version, record, run: run.clone() };
        let commit = cx.commit(change, Pending::Begin { run: id });
        runs.begin(run, job, commit);
    }

    /// A job's next record, whose mark is that of a run about to be begun, and the version that it is to be written at.
    pub fn step_mark(&mut self, job: &Job, at: Timestamp, nonce: Nonce) -> Option<(Version, JobRecord)> {
        let timeline = self.timelines.get_mut(&job.name)?;
        let version = timeline.version?;
        let schedule = Some(job.schedule_digest());
        let (last_scheduled, counted) = timeline.marks(at);
        timeline.skip = None;
        timeline.step(at);
        Some((version, JobRecord { v: 1, last_scheduled, counted, schedule, nonce }))
    }

    /// The answer to a commit that moves a job's mark.
    pub fn on_answer(&mut self, cx: &mut Context, name: &JobName, mark: Timestamp, answer: Commit) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
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
            cx.ledger(Request::ReadJob(name.clone()));
        }
        self.schedule(name);
    }

    /// The jobs whose marks lie ahead of `latest`.
    pub fn marks_ahead(&self, latest: Timestamp) -> impl Iterator<Item = (&JobName, MarkAhead)> {
        let limit = later(latest, AHEAD.unsigned_abs());
        self.timelines.iter().filter_map(move |(name, timeline)| Some((name, timeline.mark_ahead(limit)?)))
    }
}

/// A skip that is decided on now; absent where this node does not lead.
pub(super) fn new_skip(cx: &Context, name: &JobName, reason: SkipReason, missed: Missed) -> Option<UnreportedSkip> {
    let Missed { first, last, count } = missed;
    let skip = Skip {
        v: 1,
        job: name.clone(),
        reason,
        first,
        last,
        count,
        trigger: None,
        token: cx.token()?,
        node: cx.node.clone(),
        decided_at: cx.now.wall,
    };
    Some(UnreportedSkip::of(skip))
}
