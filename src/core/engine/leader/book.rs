//! The leader's book: all jobs' timelines, their due instants, and commits on their marks.
//!
//! Writes to one job form a pipeline: each expects the version that the previous one will produce. When one is
//! rejected, all later ones are rejected too; then the leader reads the record and decides again from it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;

use super::Room;
use super::agenda::Agenda;
use super::timeline::Timeline;
use crate::clock::later;
use crate::engine::clocks::AHEAD;
use crate::engine::commits::{Purpose, UnreportedSkip};
use crate::engine::context::Context;
use crate::engine::misfire::Missed;
use crate::engine::report::{AlarmNews, MarkAhead, Report};
use crate::engine::runs::Runs;
use crate::job::{Job, JobName};
use crate::ledger::{Change, Commit, JobEntry, Request};
use crate::run::{JobRecord, Nonce, RunId, SkipReason, StandingAlarms, Version};

/// Most unanswered writes to one job's record. Occurrences that become due beyond that are decided on later.
const MOST_OPEN: usize = 50;

/// The timelines of the jobs, and when each is due.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// In boxes, because they are large, and the nodes of a map are half empty.
    timelines: BTreeMap<JobName, Box<Timeline>>,
    agendas: Agendas,
    /// Records of jobs that this node's file does not define. They are not changed, because another node's file may
    /// define them.
    pub undefined: BTreeMap<JobName, JobEntry>,
    /// Due jobs that are decided on when a commit about them is answered.
    deferred: BTreeSet<JobName>,
    /// The job whose record was written last.
    newest: Option<JobName>,
    /// That job and those written since, once the connection was lost. The servers may have lost any of them: the answer
    /// of the old servers may arrive after the loss of the connection, and one of the new servers before the search.
    newest_at_loss: Option<BTreeSet<JobName>>,
}

/// The agendas of the jobs: neither must wait for room of the other.
#[derive(Debug, Default)]
struct Agendas {
    /// Of those that the leader begins itself.
    own: Pending,
    /// Of those whose attempts are placed.
    placed: Pending,
}

/// What is to be decided on.
#[derive(Debug, Default)]
struct Pending {
    agenda: Agenda,
    /// Jobs whose backlog must be checked, by its oldest occurrence.
    backlogs: BTreeSet<(Timestamp, JobName)>,
}

impl Agendas {
    fn of(&self, is_placed: bool) -> &Agenda {
        if is_placed { &self.placed.agenda } else { &self.own.agenda }
    }

    fn of_mut(&mut self, is_placed: bool) -> &mut Agenda {
        &mut self.pending(is_placed).agenda
    }

    fn pending(&mut self, is_placed: bool) -> &mut Pending {
        if is_placed { &mut self.placed } else { &mut self.own }
    }
}

impl Pending {
    fn first_at(&self) -> Option<Timestamp> {
        self.agenda.first_at().into_iter().chain(self.backlogs.first().map(|&(at, _)| at)).min()
    }
}

/// A job that is due.
pub(super) enum Due {
    /// The oldest occurrence of its backlog is due.
    Backlog(JobName),
    /// Its next occurrence is due.
    Job(JobName),
}

impl Book {
    pub fn insert(&mut self, name: JobName, timeline: Timeline) {
        self.timelines.insert(name, Box::new(timeline));
    }

    /// Removes everything about the job.
    pub fn forget(&mut self, name: &JobName) {
        self.undefined.remove(name);
        self.timelines.remove(name);
    }

    pub fn get(&self, name: &JobName) -> Option<&Timeline> {
        self.timelines.get(name).map(Box::as_ref)
    }

    pub fn get_mut(&mut self, name: &JobName) -> Option<&mut Timeline> {
        self.timelines.get_mut(name).map(Box::as_mut)
    }

    /// The job's timeline, if its occurrences can be decided on: its record is not in conflict.
    pub fn decidable(&mut self, name: &JobName) -> Option<&mut Timeline> {
        self.get_mut(name).filter(|timeline| !timeline.is_in_conflict)
    }

    /// True if a job whose attempts are placed has something due some day, and does not wait for room.
    pub fn has_placed(&self) -> bool {
        self.agendas.placed.first_at().is_some()
    }

    /// When the next occurrence is due of the jobs for which there is room.
    pub fn next_at(&self, room: Room) -> Option<Timestamp> {
        let own = self.agendas.own.first_at().filter(|_| room.own);
        let placed = self.agendas.placed.first_at().filter(|_| room.placed);
        own.into_iter().chain(placed).min()
    }

    /// Takes the oldest due entry of the jobs for which there is room.
    pub fn pop_due(&mut self, now: Timestamp, room: Room) -> Option<Due> {
        let at = self.next_at(room).filter(|&at| at <= now)?;
        let is_placed = room.placed && self.agendas.placed.first_at() == Some(at);
        let pending = self.agendas.pending(is_placed);
        if pending.backlogs.first().is_some_and(|&(first, _)| first == at) {
            let (_, name) = pending.backlogs.pop_first()?;
            if let Some(timeline) = self.timelines.get_mut(&name) {
                timeline.check_at = None;
            }
            return Some(Due::Backlog(name));
        }
        let name = pending.agenda.pop_first()?;
        self.taken(&name);
        Some(Due::Job(name))
    }

    /// The first instant with occurrences that may be decided on before it, of the jobs that are placed or of the others;
    /// and their number.
    pub fn first_ahead(&self, is_placed: bool) -> Option<(Timestamp, usize)> {
        self.agendas.of(is_placed).first_ahead()
    }

    /// Takes a job of that instant.
    pub fn pop_ahead(&mut self, is_placed: bool) -> Option<(Timestamp, JobName)> {
        let (at, name) = self.agendas.of_mut(is_placed).pop_ahead()?;
        self.taken(&name);
        Some((at, name))
    }

    /// The job is in no agenda any more.
    fn taken(&mut self, name: &JobName) {
        if let Some(timeline) = self.timelines.get_mut(name) {
            timeline.next = None;
        }
    }

    /// Notes if the job's attempts are placed.
    pub fn set_placed(&mut self, name: &JobName, is_placed: bool) {
        let Some(timeline) = self.timelines.get_mut(name).filter(|timeline| timeline.is_placed != is_placed) else {
            return;
        };
        if let Some(old) = timeline.next.take() {
            self.agendas.of_mut(timeline.is_placed).remove(old, name);
        }
        if let Some(old) = timeline.check_at.take() {
            self.agendas.pending(timeline.is_placed).backlogs.remove(&(old, name.clone()));
        }
        timeline.is_placed = is_placed;
        self.schedule(name);
        self.queue_backlog_check(name);
    }

    /// Schedules a job that must not be decided on before its time.
    pub fn schedule_on_time(&mut self, at: Timestamp, name: &JobName) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let agenda = self.agendas.of_mut(timeline.is_placed);
        if let Some(old) = timeline.next.replace(at) {
            agenda.remove(old, name);
        }
        agenda.insert_on_time(at, name.clone());
    }

    /// Schedules a check of the job's backlog, if it has one.
    pub fn queue_backlog_check(&mut self, name: &JobName) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let at = timeline.backlog.front().copied();
        if at != timeline.check_at {
            let backlogs = &mut self.agendas.pending(timeline.is_placed).backlogs;
            if let Some(old) = timeline.check_at {
                backlogs.remove(&(old, name.clone()));
            }
            if let Some(new) = at {
                backlogs.insert((new, name.clone()));
            }
            timeline.check_at = at;
        }
    }

    /// Schedules the job's next occurrence.
    pub fn schedule(&mut self, name: &JobName) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let next = match &timeline.job {
            Some(job) if !timeline.is_in_conflict => {
                // An occurrence beyond the last representable instant is never due.
                job.next_after(timeline.cursor).and_then(|at| at.checked_add(job.splay.delay()).ok())
            }
            _ => None,
        };
        if next != timeline.next {
            let agenda = self.agendas.of_mut(timeline.is_placed);
            if let Some(old) = timeline.next {
                agenda.remove(old, name);
            }
            if let Some(new) = next {
                agenda.insert(new, name.clone());
            }
            timeline.next = next;
        }
    }

    pub fn enqueue(&mut self, name: &JobName, at: Timestamp) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        timeline.backlog.push_back(at);
        timeline.cursor = at;
        self.queue_backlog_check(name);
    }

    /// Clears the backlog: from now on only occurrences after the mark count.
    pub fn clear_backlog(&mut self, name: &JobName) {
        if let Some(timeline) = self.timelines.get_mut(name) {
            timeline.backlog.clear();
            timeline.cursor = timeline.mark;
        }
        self.queue_backlog_check(name);
        self.schedule(name);
    }

    /// Defers a due job until a commit about it is answered.
    pub fn defer(&mut self, name: &JobName) {
        self.deferred.insert(name.clone());
    }

    /// Schedules the job again if it was deferred: a commit about it is answered.
    pub fn release(&mut self, name: &JobName) {
        if self.deferred.remove(name) {
            self.schedule(name);
        }
    }

    /// True while too many writes about the job are unanswered.
    pub fn has_too_many_open(&self, name: &JobName) -> bool {
        self.timelines.get(name).is_some_and(|timeline| timeline.open >= MOST_OPEN)
    }

    /// Moves the mark, and records the skipped occurrences, if any.
    pub fn advance(
        &mut self,
        cx: &mut Context,
        name: &JobName,
        mark: Timestamp,
        skipped: Option<(SkipReason, Missed)>,
    ) {
        let nonce = cx.nonce();
        // Without a term nothing moves: a mark that moved without its skip record would lose occurrences silently.
        let Some(token) = cx.token() else { return };
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let mark = mark.max(timeline.mark);
        let record = timeline.record(mark, nonce);
        let at = timeline.version;
        let skipped = skipped.and_then(|(reason, missed)| Some((reason, timeline.undecided(missed)?)));
        let skip = skipped.map(|(reason, missed)| UnreportedSkip::of(cx.new_skip(token, name, reason, missed)));
        let (unreported, skip) = timeline.join_skip(skip, cx.jobs.dependents_of(name));
        timeline.step(mark);
        let change = Change::Advance { job: name.clone(), at, record, skip };
        let id = cx.commit(change, Purpose::Advance { job: name.clone(), mark, skip: unreported });
        cx.add_to_takeover(id);
    }

    /// Writes the job's alarms, and nothing else of its record.
    pub fn write_alarms(&mut self, cx: &mut Context, name: &JobName, alarms: StandingAlarms, news: Vec<AlarmNews>) {
        let nonce = cx.nonce();
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        timeline.alarms = alarms.clone();
        let (mark, at) = (timeline.mark, timeline.version);
        let record = timeline.record(mark, nonce);
        timeline.step(mark);
        let change = Change::Advance { job: name.clone(), at, record, skip: None };
        cx.commit(change, Purpose::WriteAlarms { job: name.clone(), mark, alarms, news });
    }

    /// Moves the mark and begins a run of this occurrence, or queues it behind others.
    pub fn begin(&mut self, cx: &mut Context, runs: &mut Runs, job: &Arc<Job>, at: Timestamp) {
        let id = RunId::scheduled(job.name.clone(), at);
        if self.get(&job.name).is_some_and(|timeline| timeline.was_decided(at)) {
            return self.advance(cx, &job.name, at, None);
        }
        if runs.is_begun(&id) {
            // Somebody set the mark back by hand. The occurrence already has its run, which continues.
            return self.advance(cx, &job.name, at, None);
        }
        if runs.is_over(&id) {
            // The service has lost that it was begun.
            cx.report(Report::Rewound { run: id, outcome: None });
            cx.ledger(Request::NoteLoss);
            return self.advance(cx, &job.name, at, None);
        }
        let nonce = cx.nonce();
        let Some(run) = runs.new_record(cx, job, at, Default::default(), nonce.clone()) else { return };
        let Some((version, record)) = self.step_mark(job, at, nonce) else { return };
        let change = Change::Begin { at: version, record, run: run.clone() };
        let commit = cx.commit(change, Purpose::Begin { run: id });
        runs.begin(run, job, commit);
    }

    /// Moves the mark to a run that is about to be begun. Returns the job's next record and the version that the write
    /// must expect.
    pub fn step_mark(&mut self, job: &Job, at: Timestamp, nonce: Nonce) -> Option<(Version, JobRecord)> {
        let timeline = self.timelines.get_mut(&job.name)?;
        let version = timeline.version?;
        let record = JobRecord { schedule: Some(job.schedule_digest(at)), ..timeline.record(at, nonce) };
        timeline.skip = None;
        timeline.step(at);
        Some((version, record))
    }

    /// Handles the answer to a commit that moves a job's mark.
    pub fn on_answer(&mut self, cx: &mut Context, name: &JobName, mark: Timestamp, answer: Commit) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        timeline.open = timeline.open.saturating_sub(1);
        match answer {
            Commit::Accepted => {
                timeline.on_written(mark);
                self.newest = Some(name.clone());
                if let Some(since) = &mut self.newest_at_loss {
                    since.insert(name.clone());
                }
            }
            // Unknown while the session lives: another write has replaced the traces of this one. If the session is
            // gone, so is the term.
            Commit::Superseded | Commit::Unknown => timeline.is_in_conflict = true,
            Commit::Fenced => return,
        }
        if timeline.is_in_conflict && timeline.open == 0 {
            cx.ledger(Request::ReadJob(name.clone()));
        }
        self.schedule(name);
    }

    /// The connection is lost: it may come back with other servers.
    pub fn suspend(&mut self) {
        self.newest_at_loss.get_or_insert_with(|| self.newest.iter().cloned().collect());
    }

    /// The jobs whose records show whether a record of this term is lost: the one that was written last before the
    /// connection was lost, and those written since.
    pub fn newest_written(&mut self) -> BTreeSet<JobName> {
        self.suspend();
        self.newest_at_loss.take().unwrap_or_default()
    }

    /// The jobs whose marks were written since then, without those that are read again anyway.
    pub fn written_since(&self, since: Timestamp) -> impl Iterator<Item = &JobName> {
        let is_new = move |timeline: &Timeline| timeline.open == 0 && timeline.written.1 >= since;
        self.timelines.iter().filter(move |(_, timeline)| is_new(timeline)).map(|(name, _)| name)
    }

    /// The alarms of the jobs that have any, as in their records once all requested commits are accepted.
    pub fn alarms(&self) -> impl Iterator<Item = (&JobName, &StandingAlarms)> {
        self.timelines
            .iter()
            .map(|(name, timeline)| (name, &timeline.alarms))
            .filter(|(_, alarms)| alarms.is_any_active())
    }

    /// The jobs that are not due before a time later than `now`, each with that time: its mark, as a rule.
    pub fn marks_after(&self, now: Timestamp) -> impl Iterator<Item = (&JobName, Timestamp)> {
        let marks = self.timelines.iter().map(move |(name, timeline)| (name, timeline.idle_until(now)));
        marks.filter(move |&(_, mark)| mark > now)
    }

    /// The jobs after `name` whose marks are later than `limit`, and whose records nothing is about to change or to read.
    pub fn settled_after(&self, limit: Timestamp, name: Option<&JobName>) -> impl Iterator<Item = &JobName> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let timelines = self.timelines.range::<JobName, _>((from, Bound::Unbounded));
        let is_settled =
            move |timeline: &Timeline| timeline.mark > limit && timeline.open == 0 && !timeline.is_in_conflict;
        timelines.filter(move |(_, timeline)| is_settled(timeline)).map(|(name, _)| name)
    }

    /// The jobs whose marks are later than `latest`, by more than [`AHEAD`].
    pub fn marks_ahead(&self, latest: Timestamp) -> impl Iterator<Item = (&JobName, MarkAhead)> {
        let limit = later(latest, AHEAD.unsigned_abs());
        self.timelines.iter().filter_map(move |(name, timeline)| Some((name, timeline.mark_ahead(limit)?)))
    }
}
