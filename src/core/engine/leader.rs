//! The leader's decisions: every job's occurrences, in order, each decided on once.
//!
//! ```text
//!   leader ─┬─ book       the jobs' timelines, and the commits that move their marks
//!           ├─ agenda     when jobs are due
//!           ├─ timeline   one job's occurrences and mark
//!           ├─ pauses     jobs that operators paused
//!           ├─ triggers   runs that operators requested
//!           ├─ chains     jobs that run after others
//!           ├─ alarms     jobs that start late, run long, or do not succeed
//!           ├─ rewound    marks and begins that the service has lost
//!           └─ recheck    jobs that operators may have had recounted
//! ```

mod agenda;
mod alarms;
mod book;
mod chains;
mod pauses;
mod recheck;
mod rewound;
mod timeline;
mod triggers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use self::alarms::{Alarms, FirstStart};
use self::book::{Book, Due};
use self::chains::DownstreamRuns;
use self::pauses::Pauses;
use self::recheck::Recheck;
use self::rewound::SoughtMarks;
use self::timeline::{Counted, Timeline};
use self::triggers::Triggers;
use super::context::Context;
use super::misfire::{self, Missed};
use super::report::{MarkAhead, Report};
use super::runs::Runs;
use crate::clock::{Uptime, earlier, later};
use crate::engine::clocks::{AHEAD, STEP};
use crate::job::{Digest, Edit, Job, JobName, JobSet, Misfire};
use crate::ledger::{Commit, ControlEntry, JobEntry, LastSuccess, OperatorRequests, RunLookup};
use crate::run::{JobRecord, Link, Nonce, Recount, RunEnd, RunId, SkipReason, StandingAlarms, Version};

/// Most jobs and runs that are decided on in one turn.
const DECISIONS_A_TURN: usize = 200;

/// State that only a leader keeps, for one term.
#[derive(Debug, Default)]
pub(super) struct Leader {
    book: Book,
    pauses: Pauses,
    triggers: Triggers,
    downstream: DownstreamRuns,
    alarms: Alarms,
    sought: SoughtMarks,
    recheck: Recheck,
}

/// Where one more attempt can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// On this node, by the leader's own begin.
    own: bool,
    /// On some node, as placed.
    placed: bool,
}

/// True if a run that waits for another attempt can begin it, as far as room is concerned.
fn may_retry(cx: &Context, room: Room, run: &RunId) -> bool {
    room.own || room.placed && cx.job(run.job()).is_some_and(|job| cx.places(job))
}

/// Most triggers, and most runs of a chain, that are passed over in a turn because nothing more may be started on this node.
const MOST_PASSED_OVER: usize = 256;

/// A job's record, as far as it concerns the schedule.
struct Recorded {
    /// Version of the record; absent: there is no record.
    version: Option<Version>,
    /// Digest of the schedule by which the mark was set.
    schedule: Option<Digest>,
    /// The mark that the leader set by it.
    marked_at: Timestamp,
    /// The job was added to this node's file since the record was written.
    is_new: bool,
    /// What was due after this is recorded as missed; absent: nothing is.
    missed_since: Option<Timestamp>,
    alarms: StandingAlarms,
    recount: Option<Box<Recount>>,
    /// The record of the last recount that was read.
    recounted: Option<Nonce>,
    /// The job was placed once.
    was_placed: bool,
}

impl Recorded {
    /// The record as this leader wrote or read it, with which it is written again.
    fn as_written(timeline: &Timeline, version: Option<Version>) -> Self {
        let marked_at = timeline.written.1;
        Self {
            version,
            schedule: timeline.written_by().map(|job| job.schedule_digest(marked_at)),
            marked_at,
            is_new: false,
            missed_since: None,
            alarms: timeline.written_alarms.clone(),
            recount: timeline.recount.clone(),
            recounted: timeline.recounted.clone(),
            was_placed: timeline.was_placed,
        }
    }
}

impl Leader {
    /// Creates the leader's state, with the requests that operators made before the term. Pauses among them are not
    /// reported again.
    pub fn new(requests: OperatorRequests) -> Self {
        let mut leader = Self::default();
        leader.triggers.add(requests.triggers);
        leader.downstream.add(requests.links);
        for (name, entry) in requests.control {
            leader.pauses.add(&name, entry);
        }
        leader
    }

    pub fn is_paused(&self, job: &JobName) -> bool {
        self.pauses.has(job)
    }

    /// The pauses that the leader knows of.
    pub fn pauses(&self) -> impl Iterator<Item = (&JobName, &ControlEntry)> {
        self.pauses.iter()
    }

    /// The links of runs that wait for more links.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.downstream.links()
    }

    /// The jobs that are not due before a time later than `now`, each with that time.
    pub fn marks_after(&self, now: Timestamp) -> impl Iterator<Item = (&JobName, Timestamp)> {
        self.book.marks_after(now)
    }

    /// The jobs whose marks are later than `latest`, by more than the tolerance.
    pub fn marks_ahead(&self, latest: Timestamp) -> impl Iterator<Item = (&JobName, MarkAhead)> {
        self.book.marks_ahead(latest)
    }

    /// When the next occurrence is decided on, or the next trigger is given up. `lead`: how long before their time so
    /// many occurrences are decided on that are due at once.
    pub fn next_at(&self, lead: impl Fn(usize) -> Duration) -> Option<Timestamp> {
        let due = self.book.next_at(Room { own: true, placed: false });
        let ahead = self.book.first_ahead(false).map(|(at, count)| earlier(at, lead(count)));
        due.into_iter().chain(ahead).chain(self.triggers.give_up_at()).min()
    }

    /// When the next occurrence is decided on that is placed. `lead`: how long before its time.
    pub fn next_placed_at(&self, lead: Duration) -> Option<Timestamp> {
        let due = self.book.next_at(Room { own: false, placed: true });
        let ahead = self.book.first_ahead(true).map(|(at, _)| earlier(at, lead));
        due.into_iter().chain(ahead).min()
    }

    /// Decides on jobs that waited for room on a node, or for one that fits.
    pub fn on_room_found(&mut self, jobs: &[JobName]) {
        for job in jobs {
            self.book.queue_backlog_check(job);
            self.book.schedule(job);
        }
    }

    /// When the next pause ends by itself after `due`.
    pub fn next_pause_end(&self, due: Timestamp) -> Option<Timestamp> {
        self.pauses.next_end(due)
    }

    /// When the next run is given up that waits for a link that cannot arrive any more, or when records are read again.
    /// `is_quiet`: nothing is given up for now.
    pub fn next_up_at(&self, is_quiet: bool) -> Option<Uptime> {
        self.downstream.next_at().filter(|_| !is_quiet).into_iter().chain(self.recheck.next_at()).min()
    }

    /// Has all waiting runs checked again.
    fn mark_all_changed(&mut self, runs: &mut Runs) {
        runs.mark_all_changed();
        self.downstream.mark_changed();
    }

    /// Has the job's backlog and dependents checked: one of its runs ended or started to wait.
    pub fn on_job_changed(&mut self, cx: &Context, job: &JobName) {
        self.book.queue_backlog_check(job);
        self.downstream.mark_job_changed(job, &cx.jobs);
        self.alarms.mark_changed(job);
    }

    /// Decides on the job again, if it was deferred until a commit was answered.
    pub fn on_job_released(&mut self, job: &JobName) {
        self.book.release(job);
        self.alarms.mark_changed(job);
    }

    /// Notes for the alarms how late a run started.
    pub fn on_started(&mut self, run: &RunId, due_at: Timestamp, lateness: Duration, is_first: bool) {
        let late_after = self.book.get(run.job()).and_then(|timeline| timeline.job.as_ref()?.alarms.late_after);
        let start =
            is_first.then(|| FirstStart::of(run.clone(), due_at, late_after.is_some_and(|limit| lateness > limit)));
        self.alarms.on_started(run.job(), start);
    }

    /// Notes for the alarms that a run has ended.
    pub fn on_ended(&mut self, cx: &Context, end: &RunEnd) {
        self.alarms.on_ended(cx, end);
    }

    /// Notes that a run was on record, which is over or shared out: what led to it may be listed again.
    pub fn on_closed(&mut self, cx: &Context, run: &RunId, trigger: Option<Uuid>) {
        self.triggers.on_closed(run, trigger);
        self.downstream.on_closed(cx, run);
    }

    /// Has the last success of the job read again: another node has ended a run of it.
    pub fn on_outcome_unknown(&mut self, job: &JobName) {
        self.alarms.read_again(job, &self.book);
    }

    /// Takes when jobs last succeeded, as read.
    pub fn on_successes_read(&mut self, cx: &Context, found: BTreeMap<JobName, LastSuccess>) {
        self.alarms.on_successes_read(cx, found);
    }

    /// Raises and ends alarms.
    pub fn raise_alarms(&mut self, cx: &mut Context, runs: &Runs) {
        if cx.may_decide() {
            self.alarms.act(cx, runs, &mut self.book, &self.pauses);
        }
    }

    /// When an alarm is next raised, unless the job gets well before.
    pub fn alarm_at(&self) -> Option<Timestamp> {
        self.alarms.next_at()
    }

    /// The active alarms, as far as this leader has decided.
    pub fn alarms(&self) -> impl Iterator<Item = (&JobName, &StandingAlarms)> {
        self.book.alarms()
    }

    /// Takes the current requests of operators.
    pub fn on_requests(&mut self, cx: &mut Context, runs: &mut Runs, requests: OperatorRequests) {
        self.triggers.add(requests.triggers);
        self.downstream.add(requests.links);
        for (name, entry) in requests.control {
            self.on_pause_read(cx, runs, &name, entry);
        }
        self.recheck.request(cx.now.up);
    }

    fn on_pause_read(&mut self, cx: &mut Context, runs: &mut Runs, name: &JobName, entry: ControlEntry) -> bool {
        let is_new = self.pauses.on_read(cx, &mut self.book, name, entry);
        if is_new {
            runs.recall(cx, name);
            runs.cancel_held_of(cx, name);
        }
        is_new
    }

    /// Decides on everything that is due or may have changed.
    pub fn act(&mut self, cx: &mut Context, runs: &mut Runs) {
        if cx.clock_step <= -STEP {
            self.on_clock_set_back(cx);
        }
        self.recheck.act(cx, &self.book);
        self.decide_due(cx, runs);
        self.triggers.decide(cx, runs);
        self.downstream.decide(cx, runs, &mut self.book, &self.pauses);
    }

    /// Marks that were in the past may be in the future now, and hide what is due.
    fn on_clock_set_back(&mut self, cx: &mut Context) {
        let ahead = self.book.marks_ahead(cx.latest).map(|(job, ahead)| Report::MarkAhead { job: job.clone(), ahead });
        ahead.collect::<Vec<_>>().into_iter().for_each(|report| cx.report(report));
        self.alarms.mark_all_changed();
        self.recheck.request(cx.now.up);
    }

    /// Ends the pauses that operators requested to end, and those whose time is over.
    pub fn lift_pauses(&mut self, cx: &mut Context) {
        if cx.may_decide() {
            self.pauses.lift_all(cx, &mut self.book);
        }
    }

    /// Decides on due jobs and runs, the oldest first, as long as new runs can be started soon.
    ///
    /// The rest waits undecided: it blocks nothing, and the next leader would find it as if its time had just come.
    fn decide_due(&mut self, cx: &mut Context, runs: &mut Runs) {
        // Bounded, so that events received meanwhile are handled. The rest is due, so the next turn follows at once.
        for _ in 0..DECISIONS_A_TURN {
            let may_have_to_place = cx.may_decide() && (self.book.has_placed() || runs.next_retry().is_some());
            let room = Room { own: runs.may_begin(cx), placed: may_have_to_place && runs.may_place(cx) };
            if !room.placed && may_have_to_place && self.has_to_place(cx, runs) {
                runs.want_room();
            }
            if !room.own && !room.placed {
                return;
            }
            let is_first = |at| at <= cx.due && self.book.next_at(room).is_none_or(|next| at <= next);
            if runs.next_retry().is_some_and(|(at, run)| is_first(at) && may_retry(cx, room, run)) {
                let Some(run) = runs.pop_retry(cx) else { return };
                match self.reason_to_skip(cx, runs, &run) {
                    Some(reason) => runs.skip(cx, &run, reason),
                    None => runs.retry(cx, &run),
                }
                continue;
            }
            match self.book.pop_due(cx.due, room) {
                Some(Due::Backlog(name)) => self.make_up(cx, runs, &name),
                Some(Due::Job(name)) => self.decide(cx, runs, &name),
                None if room.own && self.decide_next_ahead(cx, runs, false) => {}
                None if room.placed && self.decide_next_ahead(cx, runs, true) => {}
                None => return,
            }
        }
    }

    /// True if something that is to be placed is due, or so near that it is placed ahead of its time.
    fn has_to_place(&self, cx: &Context, runs: &Runs) -> bool {
        let lead = runs.placing_lead(cx, runs.lead(cx, (cx.now, cx.due), 1));
        self.next_placed_at(lead).is_some_and(|at| at <= cx.due)
    }

    /// Why a run that was begun ahead, and never had a process, is not begun again now that its time has come: its job
    /// was paused or disabled in between.
    fn reason_to_skip(&self, cx: &Context, runs: &Runs, run: &RunId) -> Option<SkipReason> {
        if !runs.is_due_again(cx, run) || runs.is_refused(run.job()) {
            return None;
        }
        if self.pauses.has(run.job()) {
            return Some(SkipReason::Paused);
        }
        cx.job(run.job()).is_some_and(|job| !job.enabled).then_some(SkipReason::Missed)
    }

    /// Decides on the next occurrence before its time, if that is near; `is_placed`: on that of a job that is placed.
    /// Returns false if nothing is left to decide now.
    fn decide_next_ahead(&mut self, cx: &mut Context, runs: &mut Runs, is_placed: bool) -> bool {
        let Some((at, count)) = self.book.first_ahead(is_placed) else { return false };
        let lead = |count| runs.lead(cx, (cx.now, cx.due), count);
        let lead = if is_placed { runs.placing_lead(cx, lead(1)) } else { lead(count) };
        if lead.is_zero() || earlier(at, lead) > cx.due {
            return false;
        }
        let Some((at, name)) = self.book.pop_ahead(is_placed) else { return false };
        match self.certain_at(cx, runs, &name, at) {
            Some((job, occurrence)) if !cx.places(&job) || runs.has_place(cx, &job) => {
                self.book.begin(cx, runs, &job, occurrence);
                self.book.schedule(&name);
            }
            undecided => {
                if undecided.is_some_and(|(job, _)| !cx.shares(&job)) {
                    runs.want_room();
                }
                self.book.schedule_on_time(at, &name);
            }
        }
        true
    }

    /// The job's occurrence that is due at `at`, with its splay, if nothing that is known can turn out otherwise until
    /// then: no pause, no backlog, no unanswered write, no run in flight, no group, no lock.
    fn certain_at(
        &mut self,
        cx: &Context,
        runs: &Runs,
        name: &JobName,
        at: Timestamp,
    ) -> Option<(Arc<Job>, Timestamp)> {
        if self.pauses.has(name) || runs.is_refused(name) {
            return None;
        }
        let timeline = self.book.decidable(name).filter(|timeline| timeline.is_settled())?;
        let job = timeline.job.clone()?;
        let occurrence = job.next_after(timeline.cursor).filter(|&at| !runs.may_be_lost(at))?;
        let is_alone = job.concurrency_group.is_none() && (job.lock.is_empty() || cx.places(&job));
        let is_free = !runs.is_held_up(cx, &job) && !runs.must_wait(cx, &job);
        (is_alone && is_free && later(occurrence, job.splay.delay()) == at).then_some((job, occurrence))
    }

    /// Decides on one job's occurrences up to now.
    fn decide(&mut self, cx: &mut Context, runs: &mut Runs, name: &JobName) {
        if runs.is_refused(name) || self.book.has_too_many_open(name) {
            return self.book.defer(name);
        }
        if self.pauses.has(name) {
            return self.pauses.pass(cx, &mut self.book, name);
        }
        runs.miss_overdue(cx, name);
        if runs.is_undecidable(cx, name) || runs.must_ask(cx, name) {
            return self.book.defer(name);
        }
        if let Some(job) = cx.job(name).filter(|job| cx.places(job) && !runs.has_place(cx, job)) {
            let since = self.book.get(name).map_or(cx.due, |timeline| timeline.cursor);
            return runs.await_room_for(cx, job, since);
        }
        // Whoever has a job recounted wants its occurrences run, whatever is lost.
        if runs.lost_until().is_some()
            && self.book.get(name).is_none_or(|timeline| timeline.recount.is_none())
            && let Some(job) = cx.job(name).cloned()
        {
            self.pass_over_lost_of(cx, runs, &job);
        }
        let Some(timeline) = self.book.decidable(name) else { return };
        let Some(job) = timeline.job.clone() else { return };
        let now = cx.due_for(&job);
        if timeline.backlog.is_empty() {
            let plan = misfire::plan(&job, timeline.cursor, now);
            if let Some(missed) = plan.skipped {
                self.book.advance(cx, name, missed.last, Some((SkipReason::Missed, missed)));
            }
            for at in plan.run {
                if job.misfire == Misfire::RunAll {
                    self.book.enqueue(name, at);
                } else {
                    self.decide_one(cx, runs, &job, at);
                }
            }
        } else {
            self.join_backlog(cx, &job, now);
        }
        self.decide_fresh(cx, runs, &job, now);
        self.make_up(cx, runs, name);
        self.book.schedule(name);
    }

    /// Decides on one occurrence by itself.
    fn decide_one(&mut self, cx: &mut Context, runs: &mut Runs, job: &Arc<Job>, at: Timestamp) {
        if runs.overlaps(cx, job) {
            self.book.advance(cx, &job.name, at, Some((SkipReason::Overlap, Missed::one(at))));
        } else {
            self.book.begin(cx, runs, job, at);
        }
    }

    /// Decides on the occurrences that are not late.
    fn decide_fresh(&mut self, cx: &mut Context, runs: &mut Runs, job: &Arc<Job>, now: Timestamp) {
        while let Some(timeline) = self.book.decidable(&job.name) {
            let from = timeline.cursor.max(earlier(now, misfire::LATE + misfire::NANOSECOND));
            let Some(at) = job.next_after(from).filter(|&at| at <= now) else { return };
            if timeline.backlog.is_empty() {
                self.decide_one(cx, runs, job, at);
            } else {
                self.book.enqueue(&job.name, at);
            }
            if self.book.decidable(&job.name).is_none_or(|timeline| timeline.cursor < at) {
                return;
            }
        }
    }

    /// Appends newly due occurrences to the backlog; the oldest beyond `misfire_limit` are missed.
    fn join_backlog(&mut self, cx: &mut Context, job: &Arc<Job>, now: Timestamp) {
        let Some(timeline) = self.book.decidable(&job.name) else { return };
        let limit = job.misfire_limit;
        let mut newest = VecDeque::new();
        let mut until = now;
        while newest.len() < limit {
            let Some(at) = job.last_before_or_at(until, timeline.cursor) else { break };
            newest.push_front(at);
            until = earlier(at, misfire::NANOSECOND);
        }
        timeline.backlog.extend(&newest);
        let surplus = timeline.backlog.len().saturating_sub(limit);
        timeline.backlog.drain(..surplus);
        timeline.cursor = timeline.cursor.max(newest.back().copied().unwrap_or(timeline.cursor));
        let (mark, first) = (timeline.mark, timeline.backlog.front().copied());
        let before = first.map_or(now, |first| earlier(first, misfire::NANOSECOND));
        let is_cut = surplus > 0 || newest.len() == limit;
        if let Some(missed) = is_cut.then(|| misfire::missed(job, mark, before)).flatten() {
            self.book.advance(cx, &job.name, missed.last, Some((SkipReason::Missed, missed)));
        }
    }

    /// Begins occurrences of the backlog, as far as `overlap` and the starts in flight allow. If a run of the job
    /// blocks them, its end has the backlog checked again.
    fn make_up(&mut self, cx: &mut Context, runs: &mut Runs, name: &JobName) {
        while !runs.is_refused(name)
            && let Some(timeline) = self.book.decidable(name)
        {
            let (Some(job), Some(&at)) = (timeline.job.clone(), timeline.backlog.front()) else { return };
            if !runs.may_begin_job(cx, &job) {
                return match cx.places(&job) {
                    true => runs.await_room_for(cx, &job, at),
                    false => self.book.queue_backlog_check(name),
                };
            }
            let now = cx.due_for(&job);
            let is_late = at < earlier(now, misfire::LATE);
            if is_late && !misfire::is_in_window(&job, at, now) {
                timeline.backlog.pop_front();
                self.book.advance(cx, name, at, Some((SkipReason::Missed, Missed::one(at))));
            } else if !runs.is_held_up(cx, &job) {
                timeline.backlog.pop_front();
                self.book.begin(cx, runs, &job, at);
            } else {
                return;
            }
        }
    }

    /// Takes the records that earlier leaders left, and matches them with the jobs as loaded here.
    ///
    /// Records of jobs that are not defined here are not changed: another node's file may define them, and if that node
    /// leads it must find the occurrences that passed meanwhile.
    pub fn adopt_jobs(
        &mut self,
        cx: &mut Context,
        mut entries: BTreeMap<JobName, JobEntry>,
        decided: &BTreeMap<JobName, Timestamp>,
    ) {
        let jobs: Vec<Arc<Job>> = cx.jobs.jobs.values().cloned().collect();
        for job in jobs {
            let entry = entries.remove(&job.name);
            let name = job.name.clone();
            let job = Some(job).filter(|job| job.enabled);
            if job.is_some() || entry.is_some() {
                self.adopt_job(cx, &name, job, entry, false, decided.get(&name).copied());
            }
        }
        self.book.undefined = entries;
    }

    /// Takes a job's record. A schedule that `is_new` to this node's file, or that differs from the recorded one,
    /// counts from now: what the new one had due until then is recorded as missed. What the schedule had due before its
    /// edit is not known here, so a report names the gap.
    ///
    /// A record that cannot be read counts from now too, because nothing begins because of what somebody else has
    /// written. What was due since the newest occurrence that is `decided`, as far as this leader or other records say,
    /// is recorded as missed. So is what a mark hides that somebody else has written during the term.
    fn adopt_job(
        &mut self,
        cx: &mut Context,
        name: &JobName,
        job: Option<Arc<Job>>,
        entry: Option<JobEntry>,
        is_new: bool,
        decided: Option<Timestamp>,
    ) {
        let limit = later(cx.latest, AHEAD.unsigned_abs());
        let decided = decided.filter(|at| *at <= limit);
        let version = entry.as_ref().map(|entry| entry.version);
        let record = entry.and_then(|entry| entry.record);
        // A record that cannot be read does not have the job counted from earlier than what this leader knows of it.
        let known = self.book.get(name).map(|timeline| timeline.written.1).max(decided);
        let from = known.map_or(cx.due, |at| at.max(cx.due));
        let counted = record.as_ref().map_or(Counted { from, ahead: None }, Counted::of);
        // What passed before it is counted again is not decided until its record is written.
        let written = known.filter(|_| record.is_none());
        let marked_at = record.as_ref().map_or(counted.from, JobRecord::digested_at);
        let timeline = self.book.get(name);
        let is_news = |record: &&JobRecord| timeline.is_none_or(|timeline| timeline.is_recounted_by(record));
        let news = record.as_ref().filter(is_news).and_then(|record| Some((record.fresh_recount()?, &record.nonce)));
        let recounted = news.map(|(_, nonce)| nonce.clone()).or_else(|| timeline?.recounted.clone());
        let news = news.map(|(recount, _)| Report::Recounted {
            job: name.clone(),
            by: recount.by.clone(),
            from: counted.from,
            listed: recount.listed.len(),
        });
        let was_placed = match &record {
            Some(record) => record.placed,
            None => self.book.get(name).is_some_and(|timeline| timeline.was_placed),
        };
        let (schedule, alarms, recount) = match record {
            Some(record) => (record.schedule, record.alarms, record.recount),
            // Its record cannot be read. What stood in it before is still known, if this leader wrote or read it.
            None => self.book.get(name).map_or_else(Default::default, |timeline| {
                (None, timeline.written_alarms.clone(), timeline.recount.clone())
            }),
        };
        if let Some(news) = news {
            cx.report(news);
        }
        // With a recount, an operator has said what counts.
        let missed_since = decided.filter(|_| recount.is_none());
        let recorded =
            Recorded { version, schedule, marked_at, is_new, missed_since, alarms, recount, recounted, was_placed };
        self.count_from(cx, name, job, counted, recorded);
        if let (Some(timeline), Some(written)) = (self.book.get_mut(name), written) {
            timeline.written.1 = written;
        }
        if let Some(ahead) = self.book.get(name).and_then(|timeline| timeline.mark_ahead(limit)) {
            cx.report(Report::MarkAhead { job: name.clone(), ahead });
        }
    }

    fn count_from(
        &mut self,
        cx: &mut Context,
        name: &JobName,
        job: Option<Arc<Job>>,
        counted: Counted,
        Recorded { version, schedule, marked_at, is_new, missed_since, alarms, recount, recounted, was_placed }: Recorded,
    ) {
        let mark = counted.from;
        let is_edited = match (job.as_deref(), &schedule) {
            (Some(job), Some(recorded)) => job.is_edited_since(recorded, marked_at, cx.due),
            (job, recorded) => job.is_some() != recorded.is_some(),
        };
        let written_alarms = alarms.clone();
        let timeline = Timeline::new(job.clone(), version, counted, is_new);
        let mut timeline = Timeline { alarms, written_alarms, recount, recounted, was_placed, ..timeline };
        if version.is_some() && schedule.is_none() {
            // No leader counted it: it was disabled, or not defined.
            timeline.count_success_from(cx.due);
        }
        self.book.insert(name.clone(), timeline);
        self.alarms.watch(name, &self.book);
        let is_placed_now = self.note_placed(cx, name, job.as_deref());
        let is_new = is_new || is_edited;
        // A mark that is further in the future is an error that all see, and what it hides is still to come.
        let hidden_until = mark.min(later(cx.latest, AHEAD.unsigned_abs()));
        let hides =
            |since: &Timestamp| job.as_ref().is_some_and(|job| misfire::missed(job, *since, hidden_until).is_some());
        let is_hiding = version.is_some() && missed_since.as_ref().is_some_and(hides);
        let until = if is_new { hidden_until.max(cx.due) } else { hidden_until };
        if is_edited && schedule.is_some() && mark < cx.due {
            // Before the write: should that fail, the next leader tells it again rather than nobody.
            cx.report(Report::Edited { job: name.clone(), since: mark, until: cx.due });
        }
        if is_new || is_hiding || (version.is_none() && job.is_some()) || is_placed_now {
            let since = missed_since.or_else(|| (is_new && schedule.is_some()).then_some(mark));
            let gap = job.as_ref().zip(since).and_then(|(job, since)| misfire::missed(job, since, until));
            let to = if is_new && job.is_some() { mark.max(cx.due) } else { mark };
            self.book.advance(cx, name, to, gap.map(|gap| (self.pauses.passing(name), gap)));
        }
        self.book.schedule(name);
    }

    /// Applies a new set of jobs, which replaces `old`. Runs in flight keep their definitions.
    pub fn on_loaded(&mut self, cx: &mut Context, runs: &mut Runs, old: &JobSet) {
        self.mark_all_changed(runs);
        let names: BTreeSet<JobName> = old.jobs.keys().chain(cx.jobs.jobs.keys()).cloned().collect();
        for name in names {
            self.redefine(cx, runs, &name);
            // Also different if only one of the sets has the job.
            if old.jobs.get(&name).map(|job| &job.lock) != cx.jobs.jobs.get(&name).map(|job| &job.lock) {
                runs.retry_all_of(cx, &name);
            }
        }
    }

    /// Notes if the job is placed, and was once. Returns true if its record does not say so yet: before it is placed, it
    /// must.
    fn note_placed(&mut self, cx: &mut Context, name: &JobName, job: Option<&Job>) -> bool {
        let Some(timeline) = self.book.get_mut(name) else { return false };
        let is_new = !timeline.was_placed && job.is_some_and(|job| cx.places(job));
        timeline.was_placed |= is_new;
        if timeline.was_placed {
            cx.once_placed.insert(name.clone());
        }
        let is_placed = job.is_some_and(|job| cx.places(job));
        self.book.set_placed(name, is_placed);
        is_new
    }

    fn redefine(&mut self, cx: &mut Context, runs: &mut Runs, name: &JobName) {
        let new = cx.job(name).filter(|job| job.enabled).cloned();
        let Some(timeline) = self.book.get_mut(name) else { return self.define(cx, runs, name, new) };
        let old = timeline.redefine(new.clone());
        if old.is_none() {
            timeline.count_success_from(cx.due);
        }
        let (is_in_conflict, mark, now) = (timeline.is_in_conflict, timeline.mark, cx.due);
        if self.note_placed(cx, name, new.as_deref()) && !is_in_conflict {
            self.book.advance(cx, name, mark, None);
        }
        let Some(timeline) = self.book.get_mut(name) else { return };
        let edit = Edit::of(old.as_deref(), new.as_deref(), mark, now);
        if edit == Edit::Past && !is_in_conflict {
            timeline.backlog.clear();
            timeline.skip = None;
        }
        // It was disabled until now, so nobody has counted its occurrences.
        timeline.is_new |= is_in_conflict && old.is_none();
        self.alarms.watch(name, &self.book);
        match edit {
            // What is in conflict is compared with its record once that is read.
            _ if is_in_conflict => return,
            Edit::None => return,
            Edit::ToCome => {
                let recorded = old.map(|old| old.schedule_digest(mark));
                if new.zip(recorded).is_some_and(|(new, recorded)| new.is_edited_since(&recorded, mark, now)) {
                    // The next leader knows only the record, and must not take this for an edit of the past.
                    self.book.advance(cx, name, mark, None);
                }
                return self.book.schedule(name);
            }
            Edit::Past => {}
        }
        let gap = old.and_then(|old| misfire::missed(&old, mark, now));
        self.book.advance(cx, name, mark.max(now), gap.map(|gap| (self.pauses.passing(name), gap)));
        self.book.queue_backlog_check(name);
        self.book.schedule(name);
    }

    /// Adds a job that this node's file did not define until now. It does not fire for the past.
    fn define(&mut self, cx: &mut Context, runs: &mut Runs, name: &JobName, new: Option<Arc<Job>>) {
        let Some(job) = new else { return };
        let entry = self.book.undefined.remove(name);
        self.adopt_job(cx, name, Some(job), entry, true, None);
        runs.changed(cx, name);
    }

    /// Decides on a job again after a conflict, or after an operator had it recounted, from its record and its pause as
    /// just read.
    pub fn on_job_read(
        &mut self,
        cx: &mut Context,
        runs: &mut Runs,
        name: &JobName,
        entry: Option<JobEntry>,
        control: Option<ControlEntry>,
    ) {
        let is_pause_new = match control {
            Some(entry) => self.on_pause_read(cx, runs, name, entry),
            None => self.pauses.remove(name),
        };
        runs.changed(cx, name);
        let Some(timeline) = self.book.get_mut(name) else { return };
        if entry.as_ref().is_some_and(|entry| entry.record.is_some() && timeline.was_replaced(entry.version)) {
            timeline.is_in_conflict = true;
            self.book.schedule(name);
        }
        if self.keep_lost_mark(cx, name, entry.as_ref()) {
            return runs.on_loss(cx);
        }
        // While a write is not answered, it is not known what it has begun. The record is read again after that.
        let is_settled = |timeline: &&Timeline| timeline.is_in_conflict && timeline.open == 0;
        let Some(timeline) = self.book.get(name).filter(is_settled) else { return };
        let (written, is_new, job) = (timeline.written, timeline.is_new, timeline.job.clone());
        let Some(entry) = entry else {
            // Somebody removed the record: recreate it as it was.
            let counted = Counted { from: written.1, ahead: None };
            let recorded = Recorded::as_written(timeline, None);
            return self.count_from(cx, name, job, counted, recorded);
        };
        let is_unchanged = Some(entry.version) == written.0 && !is_pause_new && !timeline.is_pause_in_doubt;
        // After a loss, another node may have decided on what this mark hides.
        let is_mine = !is_new && (entry.record.is_none() || runs.lost_until().is_none());
        let decided = is_mine.then(|| runs.newest_occurrence(name).max(Some(written.1))).flatten();
        self.adopt_job(cx, name, job.clone(), Some(entry), is_new, decided);
        if let (true, false, Some(job)) = (is_unchanged, self.pauses.has(name), job) {
            self.pass_over(cx, &job);
        }
    }

    /// Forgets a job whose records were removed because no node's file defines it. A later job of that name is a new
    /// one.
    pub fn on_forgotten(&mut self, cx: &Context, name: &JobName) {
        if cx.job(name).is_none() {
            self.book.forget(name);
            self.alarms.forget(name);
            self.pauses.forget(name);
        }
    }

    /// Skips the next occurrence: the record is unchanged, so something else rejected the begin.
    ///
    /// The path of the occurrence's run is taken by something that is not that run. The occurrence is recorded as
    /// missed.
    fn pass_over(&mut self, cx: &mut Context, job: &Arc<Job>) {
        let Some(timeline) = self.book.decidable(&job.name) else { return };
        let Some(at) = job.next_after(timeline.mark) else { return };
        if at > cx.due_for(job) {
            // It was begun ahead. At its time it is decided on again.
            return self.book.schedule_on_time(later(at, job.splay.delay()), &job.name);
        }
        let run = RunId::scheduled(job.name.clone(), at);
        cx.report(Report::Obstructed { job: job.name.clone(), run });
        self.book.advance(cx, &job.name, at, Some((SkipReason::Missed, Missed::one(at))));
        self.book.schedule(&job.name);
    }

    /// Handles the answer to a commit that moves a job's mark.
    pub fn on_mark_answer(&mut self, cx: &mut Context, job: &JobName, mark: Timestamp, answer: Commit) {
        self.book.on_answer(cx, job, mark, answer);
    }

    /// Handles the answer to a commit that writes a job's alarms.
    pub fn on_alarms_answer(
        &mut self,
        cx: &mut Context,
        job: &JobName,
        mark: Timestamp,
        alarms: StandingAlarms,
        answer: Commit,
    ) {
        self.alarms.on_answer(job);
        if let Some(timeline) = self.book.get_mut(job).filter(|_| answer == Commit::Accepted) {
            timeline.written_alarms = alarms;
        }
        self.book.on_answer(cx, job, mark, answer);
    }

    /// Handles a write about the job that the service refuses for now.
    pub fn on_refused(&mut self, job: &JobName) {
        self.alarms.on_answer(job);
    }

    /// Handles the answer to the end of a pause.
    pub fn on_resume_answer(&mut self, cx: &mut Context, job: &JobName, mark: Option<Timestamp>, answer: Commit) {
        self.pauses.on_resume_answer(cx, &mut self.book, job, mark, answer);
    }

    /// Handles the answer to the begin of a trigger's run.
    pub fn on_triggered_answer(&mut self, run: &RunId, answer: Commit) {
        self.triggers.on_begin_answer(run, answer);
    }

    /// Handles what there is of a run that was looked up.
    pub fn on_looked_up(&mut self, cx: &mut Context, run: &RunId, found: &RunLookup) {
        self.triggers.on_looked_up(cx, run, found);
    }

    /// Handles the answer to the begin of a run after its upstreams' runs.
    pub fn on_downstream_answer(&mut self, cx: &mut Context, runs: &mut Runs, run: &RunId, answer: Commit) {
        if run.trigger().is_none() {
            self.book.on_answer(cx, run.job(), run.scheduled_at(), answer);
        }
        runs.changed(cx, run.job());
        self.downstream.on_begin_answer(run, answer);
    }

    /// Handles the answer to the removal of links without a run.
    pub fn on_drop_links_answer(&mut self, cx: &mut Context, runs: &mut Runs, run: &RunId, answer: Commit) {
        runs.changed(cx, run.job());
        self.downstream.on_drop_answer(run, answer);
    }
}
