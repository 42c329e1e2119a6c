//! What a leader does with time: every job's occurrences, in order, each decided on once.
//!
//! A job's decisions are chained by the version of its record: each is asked for at the version that the one before
//! will have made. When one is refused the later ones are too; then the record is read and deciding starts from what it says.

mod ahead;
mod chained;
mod definitions;
mod manual;
mod paused;
mod timeline;
mod writing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

pub use self::ahead::MarkAhead;
use self::chained::Chains;
use self::manual::Triggers;
pub(super) use self::manual::is_too_old;
use self::paused::Pauses;
use self::timeline::Timeline;
use super::flight::{Flight, LetGo, Phase, RunOwner};
use super::misfire::{self, Missed};
use super::takeover::Takeover;
use super::{Engine, Pending, Turn};
use crate::clock::{Uptime, earlier};
use crate::job::{Job, JobName, JobSet, Misfire, Overlap};
use crate::ledger::{Commit, CommitId, JobEntry, OperatorRequests};
use crate::run::{RunId, RunState, SkipReason};
use crate::term::Term;

/// Most jobs and runs that are decided on in one turn.
const DECISIONS_A_TURN: usize = 200;
/// Most changes of a job's record without an answer: what comes due meanwhile is decided on when they have one.
const MOST_OPEN: usize = 50;

/// What only a leader keeps.
#[derive(Debug)]
pub(super) struct Leadership {
    pub term: Term,
    /// A write found the own candidate gone: nothing more is decided, the election will say that the term is over.
    pub is_fenced: bool,
    pub takeover: Option<Takeover>,
    /// When cut-off runs are given up.
    pub keeps: BTreeSet<(Timestamp, RunId)>,
    /// When runs that no node has are begun again.
    pub retries: BTreeSet<(Timestamp, RunId)>,
    /// What changed that runs may have waited for.
    pub changed: Changed,
    timelines: BTreeMap<JobName, Timeline>,
    /// When each job is next to be looked at.
    agenda: BTreeSet<(Timestamp, JobName)>,
    /// Jobs whose backlog is to be looked at, by its oldest occurrence.
    backlogs: BTreeSet<(Timestamp, JobName)>,
    /// Records of jobs that this node's file does not define: another node's may, so they stay as they are.
    undefined: BTreeMap<JobName, JobEntry>,
    /// Jobs that are due, and decided on when the end of a run that the leader settles is answered.
    held: BTreeSet<JobName>,
    /// What operators want now.
    triggers: Triggers,
    /// What operators paused.
    pauses: Pauses,
    /// What jobs that run after others wait for.
    chains: Chains,
}

impl Leadership {
    pub fn new(term: Term, takeover: Takeover) -> Self {
        Self {
            term,
            is_fenced: false,
            takeover: Some(takeover),
            keeps: BTreeSet::new(),
            retries: BTreeSet::new(),
            changed: Changed::default(),
            timelines: BTreeMap::new(),
            agenda: BTreeSet::new(),
            backlogs: BTreeSet::new(),
            undefined: BTreeMap::new(),
            held: BTreeSet::new(),
            triggers: Triggers::default(),
            pauses: Pauses::default(),
            chains: Chains::default(),
        }
    }

    /// What operators wanted before this term. That a job is paused is no news then.
    pub fn adopt_requests(&mut self, requests: OperatorRequests) {
        self.triggers.hear(requests.triggers);
        self.chains.hear(requests.links);
        for (name, entry) in requests.control {
            self.pauses.hear(&name, entry);
        }
    }

    /// When an occurrence is next due, a retrying run is begun again, or a cut-off one is given up.
    pub fn next_at(&self) -> Option<Timestamp> {
        let jobs = [self.agenda.first(), self.backlogs.first()].into_iter().flatten().map(|&(at, _)| at);
        let runs = [self.keeps.first(), self.retries.first()].into_iter().flatten().map(|&(at, _)| at);
        jobs.chain(runs).chain(self.triggers.give_up_at()).min()
    }

    /// When a cut-off run is given up.
    pub fn give_up_runs_at(&self) -> Option<Timestamp> {
        self.keeps.first().map(|&(at, _)| at)
    }

    /// When a run is given up that waits for what nobody can say any more.
    pub fn give_up_at(&self) -> Option<Uptime> {
        self.chains.next_at()
    }

    /// Everything may have changed that runs waited for.
    pub fn mark_all_changed(&mut self) {
        self.changed.all = true;
        self.chains.mark_changed();
    }

    /// A run of this job ended or came to wait.
    pub fn mark_job_changed(&mut self, job: &JobName, group: Option<&Arc<str>>, jobs: &JobSet) {
        self.changed.jobs.insert(job.clone());
        self.changed.groups.extend(group.cloned());
        self.look_at_backlog(job);
        self.chains.mark_job_changed(job, jobs);
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

    /// The first that is due of what is to be begun, the oldest first.
    fn pop_due(&mut self, now: Timestamp) -> Option<Due> {
        let run = self.retries.first().map(|&(at, _)| (at, 0));
        let backlog = self.backlogs.first().map(|&(at, _)| (at, 1));
        let job = self.agenda.first().map(|&(at, _)| (at, 2));
        let (at, which) = [run, backlog, job].into_iter().flatten().min()?;
        if at > now {
            return None;
        }
        match which {
            0 => self.retries.pop_first().map(|(_, run)| Due::Run(run)),
            1 => {
                let (_, name) = self.backlogs.pop_first()?;
                if let Some(timeline) = self.timelines.get_mut(&name) {
                    timeline.looked_at = None;
                }
                Some(Due::Backlog(name))
            }
            _ => {
                let (_, name) = self.agenda.pop_first()?;
                if let Some(timeline) = self.timelines.get_mut(&name) {
                    timeline.next = None;
                }
                Some(Due::Job(name))
            }
        }
    }

    /// Keeps the account of the takeover.
    pub fn answered(&mut self, id: CommitId, pending: &Pending, answer: Commit) {
        let Some(takeover) = &mut self.takeover else { return };
        if !takeover.open.remove(&id) || answer != Commit::Accepted {
            return;
        }
        match pending {
            Pending::UpdateRun { .. } | Pending::End { .. } | Pending::Miss { .. } => takeover.settled += 1,
            Pending::Advance { told: Some(told), .. } if told.skip.reason == SkipReason::Missed => {
                takeover.missed += told.count;
            }
            Pending::Advance { .. }
            | Pending::Begin { .. }
            | Pending::BeginTriggered { .. }
            | Pending::DropTrigger { .. }
            | Pending::BeginDownstream { .. }
            | Pending::DropLinks { .. }
            | Pending::Resume { .. }
            | Pending::ChangeOwner { .. }
            | Pending::Kill { .. } => {}
        }
    }

    fn schedule(&mut self, name: &JobName) {
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
}

impl Engine {
    /// Gives up the cut-off runs whose time is over.
    pub(super) fn give_up_cut_off(&mut self, t: &mut Turn) {
        while self.may_decide(t.now) {
            let Some(leading) = &mut self.leading else { return };
            let Some((_, run)) = leading.keeps.pop_first_if_due(t.due) else { return };
            if self.flights.get(&run).is_some_and(|flight| matches!(flight.holder, RunOwner::CutOff)) {
                self.abandon(t, &run);
            }
        }
    }

    /// Decides on what is due, the oldest first, as far as it can be started soon. The rest waits undecided: it is in nobody's way, and
    /// whoever leads next finds it as if its time had just come.
    pub(super) fn decide_due(&mut self, t: &mut Turn) {
        // A turn has an end: what is left is due, so the next one comes at once, after what was heard meanwhile.
        for _ in 0..DECISIONS_A_TURN {
            if !self.may_begin(t.now) {
                return;
            }
            let Some(leading) = &mut self.leading else { return };
            match leading.pop_due(t.due) {
                Some(Due::Run(run)) => self.retry(t, &run),
                Some(Due::Backlog(name)) => self.make_up(t, &name),
                Some(Due::Job(name)) => self.decide(t, &name),
                None => return,
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
        self.mark_job_changed(name);
    }

    /// Decides on a job once something that it waits for is answered.
    fn hold(&mut self, name: &JobName) {
        if let Some(leading) = &mut self.leading {
            leading.held.insert(name.clone());
        }
    }

    /// True while the service refuses a write about the job, or has left too many without an answer.
    fn is_held_up(&self, name: &JobName) -> bool {
        let timeline = self.leading.as_ref().and_then(|leading| leading.timelines.get(name));
        self.flights.is_refused(name) || timeline.is_some_and(|timeline| timeline.open >= MOST_OPEN)
    }

    /// True while only an answer tells whether a run of the job is in flight: its end is being written, or, where no other may run
    /// beside it, its beginning, or that it has not begun.
    fn is_undecidable(&self, name: &JobName) -> bool {
        let overlap = self.jobs.jobs.get(name).map(|job| job.overlap);
        self.flights_of(name).any(|flight| match flight.own().map(|own| &own.phase) {
            Some(Phase::Beginning | Phase::Unsure | Phase::LettingGo(LetGo { state: RunState::Unstarted, .. })) => {
                overlap == Some(Overlap::Skip)
            }
            _ => matches!(flight.holder, RunOwner::Settling),
        })
    }

    /// What operators want, as heard.
    pub(super) fn on_requests(&mut self, t: &mut Turn, requests: OperatorRequests) {
        let Some(leading) = &mut self.leading else { return };
        leading.triggers.hear(requests.triggers);
        leading.chains.hear(requests.links);
        self.hear_pauses(t, requests.control);
    }

    /// Decides on one job's occurrences up to now.
    fn decide(&mut self, t: &mut Turn, name: &JobName) {
        if self.is_held_up(name) {
            return self.hold(name);
        }
        if self.leading.as_ref().is_some_and(|leading| leading.pauses.has(name)) {
            return self.pass_paused(t, name);
        }
        self.miss_overdue(t, name);
        if self.is_undecidable(name) {
            return self.hold(name);
        }
        let Some(timeline) = self.timeline(name) else { return };
        let Some(job) = timeline.job.clone() else { return };
        let now = t.due_for(&job);
        if timeline.backlog.is_empty() {
            let plan = misfire::plan(&job, timeline.cursor, now);
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
            let from = timeline.cursor.max(earlier(now, misfire::LATE + misfire::NANOSECOND));
            let Some(at) = job.next_after(from).filter(|&at| at <= now) else { return };
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

    /// What comes due while missed occurrences are made up joins their end; the oldest beyond `misfire_limit` are missed.
    fn join_backlog(&mut self, t: &mut Turn, job: &Arc<Job>, now: Timestamp) {
        let Some(timeline) = self.timeline(&job.name) else { return };
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
        if let Some(missed) =
            (surplus > 0 || newest.len() == limit).then(|| misfire::missed(job, mark, before)).flatten()
        {
            self.advance(t, &job.name, missed.last, Some((SkipReason::Missed, missed)));
        }
    }

    fn enqueue(&mut self, name: &JobName, at: Timestamp) {
        let Some(leading) = &mut self.leading else { return };
        let Some(timeline) = leading.timelines.get_mut(name) else { return };
        timeline.backlog.push_back(at);
        timeline.cursor = at;
        leading.look_at_backlog(name);
    }

    /// Begins what waits to be made up, as far as `overlap` and the starts under way let it. Where a run of the job is in the way, its
    /// end has the backlog looked at again.
    fn make_up(&mut self, t: &mut Turn, name: &JobName) {
        while !self.flights.is_refused(name)
            && let Some(timeline) = self.timeline(name)
        {
            let (Some(job), Some(&at)) = (timeline.job.clone(), timeline.backlog.front()) else { return };
            if !self.may_begin(t.now) {
                if let Some(leading) = &mut self.leading {
                    leading.look_at_backlog(name);
                }
                return;
            }
            let now = t.due_for(&job);
            let is_late = at < earlier(now, misfire::LATE);
            if is_late && !misfire::is_in_window(&job, at, now) {
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
    pub(super) fn is_in_flight(&self, name: &JobName) -> bool {
        self.flights_of(name).any(|flight| !matches!(flight.own().map(|own| &own.phase), Some(Phase::Ended(_))))
    }

    pub(super) fn flights_of(&self, name: &JobName) -> impl Iterator<Item = &Flight> {
        self.flights.of_job(name).map(|(_, flight)| flight)
    }

    /// The job's timeline, where its occurrences can be decided on.
    fn timeline(&mut self, name: &JobName) -> Option<&mut Timeline> {
        let leading = self.leading.as_mut()?;
        leading.timelines.get_mut(name).filter(|timeline| !timeline.is_in_conflict)
    }
}

/// What is to be begun next.
enum Due {
    /// A run that no node has.
    Run(RunId),
    /// The oldest of a job's backlog.
    Backlog(JobName),
    /// A job's next occurrence.
    Job(JobName),
}

/// What changed that runs may have waited for.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Everything.
    pub all: bool,
    /// A run of these jobs ended, or one of them came to wait.
    pub jobs: BTreeSet<JobName>,
    /// A place in these groups may be free.
    pub groups: BTreeSet<Arc<str>>,
}

impl Changed {
    pub fn is_none(&self) -> bool {
        !self.all && self.jobs.is_empty() && self.groups.is_empty()
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
