//! What a leader does with time: every job's occurrences, in order, each decided on once.
//!
//! A job's decisions are chained by the version of its record: each is asked for at the version that the one before
//! will have made. When one is refused the later ones are too; then the record is read and deciding starts from what it says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::flight::{Flight, Holder, Own, Phase};
use super::misfire::{self, Missed};
use super::takeover::Takeover;
use super::{Engine, Pending, Report, Told, Turn};
use crate::job::{Digest, Job, JobName, JobSet, Misfire, Overlap};
use crate::ledger::{Change, Commit, CommitId, JobEntry, Request, SkipWrite};
use crate::run::{JobRecord, OnLoss, Owner, RunId, RunRecord, RunState, Skip, SkipReason, Version};
use crate::term::Term;

const NANOSECOND: std::time::Duration = std::time::Duration::from_nanos(1);
const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// What only a leader keeps.
#[derive(Debug)]
pub(super) struct Leadership {
    pub term: Term,
    /// A write found the own candidate gone: nothing more is decided, the election will say that the term is over.
    pub is_fenced: bool,
    pub takeover: Option<Takeover>,
    /// When cut-off runs are given up.
    pub keeps: BTreeSet<(Timestamp, RunId)>,
    timelines: BTreeMap<JobName, Timeline>,
    /// When each job is next to be looked at.
    agenda: BTreeSet<(Timestamp, JobName)>,
    /// Jobs with a backlog.
    waiting: BTreeSet<JobName>,
    /// Jobs that are due, and decided on when the end of a run that the leader settles is answered.
    held: BTreeSet<JobName>,
}

/// One job's occurrences, as far as they are decided on.
#[derive(Debug)]
struct Timeline {
    /// The definition; absent while the job is disabled or not defined.
    job: Option<Arc<Job>>,
    /// Of the job's record, once all commits asked for are accepted; absent: there is no record.
    version: Option<Version>,
    /// The mark, likewise.
    mark: Timestamp,
    /// The version and mark that are known to be written.
    written: (Option<Version>, Timestamp),
    /// The newest occurrence taken in: the mark, or the last of the backlog.
    cursor: Timestamp,
    /// Missed occurrences that wait to be made up, oldest first.
    backlog: VecDeque<Timestamp>,
    /// The newest skip record with its version, while neighbours may join it.
    skip: Option<(Version, Skip)>,
    /// Commits under way.
    open: usize,
    /// A commit was refused: the record is read once all others are answered, and nothing is decided until then.
    is_in_conflict: bool,
    /// Its place in the agenda.
    next: Option<Timestamp>,
}

impl Leadership {
    pub fn new(term: Term, takeover: Takeover) -> Self {
        Self {
            term,
            is_fenced: false,
            takeover: Some(takeover),
            keeps: BTreeSet::new(),
            timelines: BTreeMap::new(),
            agenda: BTreeSet::new(),
            waiting: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// When an occurrence is next due, or a cut-off run is given up.
    pub fn next_at(&self) -> Option<Timestamp> {
        let due = self.agenda.first().map(|&(at, _)| at);
        let keep = self.keeps.first().map(|&(at, _)| at);
        due.into_iter().chain(keep).min()
    }

    /// Keeps the account of the takeover.
    pub fn answered(&mut self, id: CommitId, pending: &Pending, answer: Commit) {
        let Some(takeover) = &mut self.takeover else { return };
        if !takeover.open.remove(&id) || answer != Commit::Accepted {
            return;
        }
        match pending {
            Pending::Settle { .. } | Pending::End { .. } => takeover.settled += 1,
            Pending::Advance { told: Some(told), .. } if told.skip.reason == SkipReason::Missed => {
                takeover.missed += told.count;
            }
            Pending::Advance { .. } | Pending::Begin { .. } | Pending::Reown { .. } => {}
        }
    }

    fn schedule(&mut self, name: &JobName) {
        let Some(timeline) = self.timelines.get_mut(name) else { return };
        let next = match &timeline.job {
            Some(job) if !timeline.is_in_conflict => job.schedule.next_after(timeline.cursor),
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
}

/// A job's schedule, as its record knows it.
fn digest_of(job: &Job) -> Digest {
    Digest::of(job.schedule.canonical().as_bytes())
}

fn is_scheduled(job: &Arc<Job>) -> bool {
    job.enabled
}

impl Engine {
    /// The records that earlier leaders left, matched with the jobs as loaded here.
    pub(super) fn adopt_jobs(&mut self, t: &mut Turn, mut entries: BTreeMap<JobName, JobEntry>) {
        let jobs: Vec<Arc<Job>> = self.jobs.jobs.values().filter(|job| is_scheduled(job)).cloned().collect();
        for job in jobs {
            let entry = entries.remove(&job.name);
            self.adopt_job(t, &job.name.clone(), Some(job), entry);
        }
        for (name, entry) in entries {
            self.adopt_job(t, &name, None, Some(entry));
        }
    }

    /// Takes a job's record for what it says. A schedule that is new, or another than recorded, counts from now.
    fn adopt_job(&mut self, t: &mut Turn, name: &JobName, job: Option<Arc<Job>>, entry: Option<JobEntry>) {
        let version = entry.as_ref().map(|entry| entry.version);
        let (mark, recorded) = match entry.and_then(|entry| entry.record) {
            Some(record) => (record.last_scheduled, record.schedule),
            None => (t.now.wall, None),
        };
        self.count_from(t, name, job, version, mark, recorded);
    }

    fn count_from(
        &mut self,
        t: &mut Turn,
        name: &JobName,
        job: Option<Arc<Job>>,
        version: Option<Version>,
        mark: Timestamp,
        recorded: Option<Digest>,
    ) {
        let digest = job.as_deref().map(digest_of);
        let timeline = Timeline {
            job: job.clone(),
            version,
            mark,
            written: (version, mark),
            cursor: mark,
            backlog: VecDeque::new(),
            skip: None,
            open: 0,
            is_in_conflict: false,
            next: None,
        };
        let Some(leading) = &mut self.leading else { return };
        leading.timelines.insert(name.clone(), timeline);
        if digest != recorded || (version.is_none() && job.is_some()) {
            let is_new = digest != recorded;
            let gap = job.as_ref().filter(|_| is_new && recorded.is_some());
            let gap = gap.and_then(|job| t.missed(job, mark, t.now.wall));
            let to = if is_new && digest.is_some() { mark.max(t.now.wall) } else { mark };
            self.advance(t, name, to, gap.map(|gap| (SkipReason::Missed, gap)));
        }
        if let Some(leading) = &mut self.leading {
            leading.schedule(name);
        }
    }

    /// A valid set of jobs was read: it replaces the running one at once. Runs in flight keep their definitions.
    pub(super) fn on_loaded(&mut self, t: &mut Turn, jobs: JobSet) {
        let old = std::mem::replace(&mut self.jobs, jobs);
        if self.leading.is_none() {
            return;
        }
        let names: BTreeSet<JobName> = old.jobs.keys().chain(self.jobs.jobs.keys()).cloned().collect();
        for name in names {
            self.redefine(t, &name);
        }
    }

    fn redefine(&mut self, t: &mut Turn, name: &JobName) {
        let new = self.jobs.jobs.get(name).filter(|job| is_scheduled(job)).cloned();
        let Some(timeline) = self.leading.as_mut().and_then(|leading| leading.timelines.get_mut(name)) else {
            if new.is_some() {
                self.adopt_job(t, name, new, None);
            }
            return;
        };
        let was = timeline.job.as_deref().map(digest_of);
        let is = new.as_deref().map(digest_of);
        let old = std::mem::replace(&mut timeline.job, new);
        if was == is || timeline.is_in_conflict {
            return;
        }
        let (mark, now) = (timeline.mark, t.now.wall);
        timeline.backlog.clear();
        timeline.skip = None;
        let gap = old.and_then(|old| t.missed(&old, mark, now));
        self.advance(t, name, mark.max(now), gap.map(|gap| (SkipReason::Missed, gap)));
        if let Some(leading) = &mut self.leading {
            leading.waiting.remove(name);
            leading.schedule(name);
        }
    }

    /// Decides on everything that is due.
    pub(super) fn decide_due(&mut self, t: &mut Turn) {
        while self.may_decide(t.now) {
            let Some(leading) = &mut self.leading else { return };
            if let Some((_, run)) = leading.keeps.pop_first_if_due(t.now.wall) {
                if self.flights.get(&run).is_some_and(|flight| matches!(flight.holder, Holder::CutOff)) {
                    self.abandon(t, &run);
                }
                continue;
            }
            let Some((_, name)) = leading.agenda.pop_first_if_due(t.now.wall) else { break };
            if let Some(timeline) = leading.timelines.get_mut(&name) {
                timeline.next = None;
            }
            self.decide(t, &name);
        }
        if self.may_decide(t.now) {
            let waiting: Vec<JobName> =
                self.leading.iter().flat_map(|leading| leading.waiting.iter().cloned()).collect();
            for name in waiting {
                self.make_up(t, &name);
            }
        }
    }

    /// A run that was being settled is, or is not the leader's to settle: its job can be decided on.
    pub(super) fn release_job(&mut self, name: &JobName) {
        if let Some(leading) = &mut self.leading
            && leading.held.remove(name)
        {
            leading.schedule(name);
        }
    }

    /// True while the leader writes the end of a run of the job: only the answer tells whether it is in flight.
    fn is_settling(&self, name: &JobName) -> bool {
        self.flights_of(name).any(|flight| matches!(flight.holder, Holder::Settling))
    }

    /// Decides on one job's occurrences up to now.
    fn decide(&mut self, t: &mut Turn, name: &JobName) {
        if self.is_settling(name) {
            if let Some(leading) = &mut self.leading {
                leading.held.insert(name.clone());
            }
            return;
        }
        let Some(timeline) = self.timeline(name) else { return };
        let Some(job) = timeline.job.clone() else { return };
        let now = t.now.wall;
        if timeline.backlog.is_empty() {
            let plan = misfire::plan(&job, timeline.cursor, now, &mut t.counting);
            if let Some(missed) = plan.skipped {
                self.advance(t, name, missed.last, Some((SkipReason::Missed, missed)));
            }
            for at in plan.run {
                if job.misfire == Misfire::RunAll { self.enqueue(name, at) } else { self.decide_one(t, &job, at) }
            }
        } else {
            self.join_backlog(t, &job, now);
        }
        self.decide_fresh(t, &job, now);
        self.make_up(t, name);
        if let Some(leading) = &mut self.leading {
            leading.schedule(name);
        }
    }

    /// The occurrences that are on time.
    fn decide_fresh(&mut self, t: &mut Turn, job: &Arc<Job>, now: Timestamp) {
        while let Some(timeline) = self.timeline(&job.name) {
            let from = timeline.cursor.max(now - misfire::LATE - NANOSECOND);
            let Some(at) = job.schedule.next_after(from).filter(|&at| at <= now) else { return };
            if timeline.backlog.is_empty() {
                self.decide_one(t, job, at)
            } else {
                self.enqueue(&job.name, at)
            }
            if self.timeline(&job.name).is_none_or(|timeline| timeline.cursor < at) {
                return;
            }
        }
    }

    fn decide_one(&mut self, t: &mut Turn, job: &Arc<Job>, at: Timestamp) {
        if job.overlap == Overlap::Skip && self.is_in_flight(&job.name) {
            let one = Missed { first: at, last: at, count: 1 };
            self.advance(t, &job.name, at, Some((SkipReason::Overlap, one)));
        } else {
            self.begin(t, job, at);
        }
    }

    /// What comes due while missed occurrences are made up joins their end; the oldest beyond `misfire_limit` are missed.
    fn join_backlog(&mut self, t: &mut Turn, job: &Arc<Job>, now: Timestamp) {
        let Some(timeline) = self.timeline(&job.name) else { return };
        let limit = job.misfire_limit;
        let mut newest = VecDeque::new();
        let mut until = now;
        while newest.len() < limit {
            let Some(at) = job.schedule.last_before_or_at(until, timeline.cursor) else { break };
            newest.push_front(at);
            until = at - NANOSECOND;
        }
        timeline.backlog.extend(&newest);
        let surplus = timeline.backlog.len().saturating_sub(limit);
        timeline.backlog.drain(..surplus);
        timeline.cursor = timeline.cursor.max(newest.back().copied().unwrap_or(timeline.cursor));
        let (mark, first) = (timeline.mark, timeline.backlog.front().copied());
        let before = first.map_or(now, |first| first - NANOSECOND);
        if let Some(missed) = (surplus > 0 || newest.len() == limit).then(|| t.missed(job, mark, before)).flatten() {
            self.advance(t, &job.name, missed.last, Some((SkipReason::Missed, missed)));
        }
    }

    fn enqueue(&mut self, name: &JobName, at: Timestamp) {
        let Some(leading) = &mut self.leading else { return };
        let Some(timeline) = leading.timelines.get_mut(name) else { return };
        timeline.backlog.push_back(at);
        timeline.cursor = at;
        leading.waiting.insert(name.clone());
    }

    /// Begins what waits to be made up, as far as `overlap` lets it.
    fn make_up(&mut self, t: &mut Turn, name: &JobName) {
        while let Some(timeline) = self.timeline(name) {
            let (Some(job), Some(&at)) = (timeline.job.clone(), timeline.backlog.front()) else {
                if let Some(leading) = &mut self.leading {
                    leading.waiting.remove(name);
                }
                return;
            };
            let is_late = at < t.now.wall - misfire::LATE;
            if is_late && !misfire::is_in_window(&job, at, t.now.wall) {
                self.pop_backlog(name);
                let one = Missed { first: at, last: at, count: 1 };
                self.advance(t, name, at, Some((SkipReason::Missed, one)));
            } else if job.overlap == Overlap::Allow || !self.is_in_flight(name) {
                self.pop_backlog(name);
                self.begin(t, &job, at);
            } else {
                return;
            }
        }
    }

    fn pop_backlog(&mut self, name: &JobName) {
        if let Some(timeline) = self.timeline(name) {
            timeline.backlog.pop_front();
        }
    }

    /// True while a process of the job runs, or may run, anywhere.
    fn is_in_flight(&self, name: &JobName) -> bool {
        self.flights_of(name).any(|flight| !matches!(flight.own().map(|own| &own.phase), Some(Phase::Ended(_))))
    }

    fn flights_of(&self, name: &JobName) -> impl Iterator<Item = &Flight> {
        let first = RunId::scheduled(name.clone(), Timestamp::MIN);
        let last = RunId::scheduled(name.clone(), Timestamp::MAX);
        self.flights.range(first..=last).map(|(_, flight)| flight)
    }

    /// The job's timeline, where its occurrences can be decided on.
    fn timeline(&mut self, name: &JobName) -> Option<&mut Timeline> {
        let leading = self.leading.as_mut()?;
        leading.timelines.get_mut(name).filter(|timeline| !timeline.is_in_conflict)
    }

    /// Moves the mark, and writes down what it passes.
    fn advance(&mut self, t: &mut Turn, name: &JobName, mark: Timestamp, skipped: Option<(SkipReason, Missed)>) {
        let nonce = self.nonce();
        let Some(leading) = &mut self.leading else { return };
        let token = leading.term.token;
        let Some(timeline) = leading.timelines.get_mut(name) else { return };
        let mark = mark.max(timeline.mark);
        let schedule = timeline.job.as_deref().map(digest_of);
        let record = JobRecord { v: 1, last_scheduled: mark, schedule, nonce };
        let at = timeline.version;
        let told = skipped.map(|(reason, missed)| {
            let skip = Skip {
                v: 1,
                job: name.clone(),
                reason,
                first: missed.first,
                last: missed.last,
                count: missed.count,
                token,
                node: self.node.clone(),
                decided_at: t.now.wall,
            };
            Told { skip, first: missed.first, count: missed.count }
        });
        let (told, skip) = timeline.join_skip(told);
        timeline.step(mark);
        let change = Change::Advance { job: name.clone(), at, record, skip };
        let id = self.commit(t, change, Pending::Advance { job: name.clone(), mark, told });
        if let Some(takeover) = self.leading.as_mut().and_then(|leading| leading.takeover.as_mut()) {
            takeover.open.insert(id);
        }
    }

    /// Moves the mark and begins a run of this occurrence.
    fn begin(&mut self, t: &mut Turn, job: &Arc<Job>, at: Timestamp) {
        let (nonce, session) = (self.nonce(), self.session.clone());
        let (Some(leading), Some(session)) = (&mut self.leading, session) else { return };
        let token = leading.term.token;
        let Some(timeline) = leading.timelines.get_mut(&job.name) else { return };
        let Some(version) = timeline.version else { return };
        let schedule = Some(digest_of(job));
        let record = JobRecord { v: 1, last_scheduled: at, schedule, nonce: nonce.clone() };
        timeline.skip = None;
        timeline.step(at);
        let run = RunRecord {
            v: 1,
            job: job.name.clone(),
            scheduled_at: at,
            state: RunState::Running,
            owner: Owner { node: self.node.clone(), session },
            token,
            attempt: 1,
            nonce,
            begun_at: t.now.wall,
            on_loss: OnLoss::of(job),
            keep_until: Self::keep_until(job, at, t.now.wall),
        };
        let id = RunId::scheduled(job.name.clone(), at);
        let change = Change::Begin { at: version, record, run: run.clone() };
        let commit = self.commit(t, change, Pending::Begin { run: id.clone() });
        let flight = Flight::new(run, Version::FIRST, Holder::Own(Own::beginning(job.clone())));
        self.flights.insert(id, Flight { commit: Some(commit), ..flight });
    }

    /// How long a run may go on while cut off: until the second before whatever may begin beside it.
    pub(super) fn keep_until(job: &Job, scheduled_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        if OnLoss::of(job) != OnLoss::CutOff || job.overlap == Overlap::Allow {
            return None;
        }
        job.schedule.next_after(scheduled_at.max(now)).map(|next| next - SECOND)
    }

    /// The answer to a commit that moves a job's mark.
    pub(super) fn on_timeline_answer(&mut self, t: &mut Turn, name: &JobName, mark: Timestamp, answer: Commit) {
        let Some(leading) = &mut self.leading else { return };
        let Some(timeline) = leading.timelines.get_mut(name) else { return };
        timeline.open = timeline.open.saturating_sub(1);
        match answer {
            Commit::Accepted => {
                timeline.written = (Some(timeline.written.0.map_or(Version::FIRST, Version::next)), mark);
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

    /// A job's record after a conflict: deciding starts again from what it says.
    pub(super) fn on_job_read(&mut self, t: &mut Turn, name: &JobName, entry: Option<JobEntry>) {
        let Some(leading) = &mut self.leading else { return };
        let Some(timeline) = leading.timelines.get_mut(name).filter(|timeline| timeline.is_in_conflict) else { return };
        let written = timeline.written;
        let job = timeline.job.clone();
        let Some(entry) = entry else {
            // Somebody removed the record: it is made again as it was.
            let digest = job.as_deref().map(digest_of);
            return self.count_from(t, name, job, None, written.1, digest);
        };
        let is_unchanged = Some(entry.version) == written.0;
        self.adopt_job(t, name, job.clone(), Some(entry));
        if let (true, Some(job)) = (is_unchanged, job) {
            self.pass_over(t, &job);
        }
    }

    /// The record was not in the way, so something else is: the next occurrence's place in the ledger is taken.
    fn pass_over(&mut self, t: &mut Turn, job: &Arc<Job>) {
        let Some(timeline) = self.timeline(&job.name) else { return };
        let Some(at) = job.schedule.next_after(timeline.mark).filter(|&at| at <= t.now.wall) else { return };
        t.tell(Report::Obstructed { job: job.name.clone(), run: RunId::scheduled(job.name.clone(), at) });
        self.advance(t, &job.name, at, None);
        if let Some(leading) = &mut self.leading {
            leading.schedule(&job.name);
        }
    }
}

impl Timeline {
    /// One more commit is asked for.
    fn step(&mut self, mark: Timestamp) {
        self.version = Some(self.version.map_or(Version::FIRST, Version::next));
        self.mark = mark;
        self.cursor = self.cursor.max(mark);
        self.open += 1;
    }

    /// Joins a skip to the newest record of the same reason, or makes a new one.
    fn join_skip(&mut self, told: Option<Told>) -> (Option<Told>, Option<SkipWrite>) {
        let Some(mut told) = told else { return (None, None) };
        let before = self.skip.take().filter(|(_, skip)| skip.reason == told.skip.reason);
        let (at, now) = match before {
            Some((version, skip)) => {
                told.skip.first = skip.first;
                told.skip.count += skip.count;
                (Some(version), version.next())
            }
            None => (None, Version::FIRST),
        };
        self.skip = Some((now, told.skip.clone()));
        let skip = told.skip.clone();
        (Some(told), Some(SkipWrite { at, skip }))
    }
}

impl Turn {
    fn missed(&mut self, job: &Job, after: Timestamp, until: Timestamp) -> Option<Missed> {
        misfire::missed(job, after, until, &mut self.counting)
    }
}

/// A queue of instants that can give what is due.
trait PopDue {
    type Item;
    fn pop_first_if_due(&mut self, now: Timestamp) -> Option<Self::Item>;
}

impl<T: Ord> PopDue for BTreeSet<(Timestamp, T)> {
    type Item = (Timestamp, T);
    fn pop_first_if_due(&mut self, now: Timestamp) -> Option<Self::Item> {
        if self.first().is_some_and(|&(at, _)| at <= now) { self.pop_first() } else { None }
    }
}
