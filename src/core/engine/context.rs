//! State shared by all parts of the engine: node, session, term, lease, and the turn's commands.
//!
//! The parts do not call upwards. A part that has news for another part, which it does not know, records it as a
//! [`Fact`]; the engine passes the facts on before the turn continues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::command::Command;
use super::commits::{Purpose, Requested, Takeover, UnreportedSkip};
use super::misfire::Missed;
use super::report::{AlarmNews, Report};
use crate::clock::{Now, Uptime, earlier};
use crate::coordination::Request;
use crate::election::Place;
use crate::job::{Job, JobName, JobSet, RunOn};
use crate::ledger::{Change, Commit, CommitId};
use crate::process::Order;
use crate::run::{Nonce, Outcome, Owner, RunEnd, RunId, Skip, SkipReason};
use crate::term::{FencingToken, NodeName, SessionId, Term};
use crate::{election, ledger, run_lock};

/// News that one part of the engine records for others.
#[derive(Debug)]
pub(super) enum Fact {
    /// A run of this job ended, or started to wait; other runs may have waited for that.
    JobChanged(JobName),
    /// A commit about this job was answered, so the job can be decided on again.
    JobReleased(JobName),
    /// A run of this job ended and this node did not write its end, so it does not know how.
    OutcomeUnknown(JobName),
    /// A run that was on record is over or shared out, so this node forgets it. Not reported for a share.
    Closed {
        run: RunId,
        /// Of the trigger that led to it.
        trigger: Option<Uuid>,
    },
    /// The ledger accepted this end from this node.
    Ended {
        /// The definition that the run used, if known.
        job: Option<Arc<Job>>,
        end: Box<RunEnd>,
        /// The outcome of the job's end that was written before it.
        before: Option<Outcome>,
    },
    /// The ledger accepted this skip from this node.
    Skipped(UnreportedSkip),
    /// The ledger accepted that this alarm was raised or ended.
    Alarm(AlarmNews),
    /// A program of this run began.
    Started {
        run: RunId,
        due_at: Timestamp,
        /// From when it was due to its start.
        lateness: Duration,
        /// No attempt had a process before.
        is_first: bool,
    },
    /// A program of this run began on another node, as the leader reads.
    StartedElsewhere { run: RunId, due_at: Timestamp, lateness: Duration, is_first: bool },
    /// There may be room, or a node, for what is due of these jobs.
    RoomFound(Vec<JobName>),
    /// The warden could not start a process, and the job is not to blame.
    StartFailed,
}

/// State shared by all parts, and the commands and facts of one turn, in order.
#[derive(Debug)]
pub(super) struct Context {
    pub now: Now,
    /// The time of day by which occurrences are due; see [`Clocks::due`](super::clocks::Clocks::due).
    pub due: Timestamp,
    /// The later of the node's clock and the coordination service's.
    pub latest: Timestamp,
    /// By how much more than the uptime the wall clock has moved since the last turn.
    pub clock_step: SignedDuration,
    pub commands: Vec<Command>,
    pub facts: VecDeque<Fact>,
    pub node: NodeName,
    pub jobs: JobSet,
    pub session: Option<SessionId>,
    /// What this node is as a place to run jobs; absent if its backend places nothing.
    pub place: Option<Place>,
    /// Jobs that were placed once, as their records say.
    pub once_placed: BTreeSet<JobName>,
    /// An operator keeps the node from leading, and from starting what is placed here.
    pub is_drained: bool,
    /// The node's clock is far from the coordination service's.
    pub is_clock_far: bool,
    /// All sessions that this process has had, the current one included.
    sessions: BTreeSet<SessionId>,
    pub lease_until: Uptime,
    term: Option<LeadersTerm>,
    /// The node was requested to end.
    pub is_ending: bool,
    /// The node no longer waits for runs, so it starts no more attempts.
    pub is_at_once: bool,
    /// The node gives leadership up, or was requested to end.
    pub is_leaving_the_term: bool,
    commits: BTreeMap<CommitId, Requested>,
    /// Numbers commits, trees and decisions. One process never uses a number twice.
    counter: u64,
    /// Where the random part of a nonce comes from; without it nonces are predictable, as tests need them.
    pub random: Option<fn() -> u64>,
}

/// The term that this node leads in.
#[derive(Debug)]
struct LeadersTerm {
    term: Term,
    /// A commit found the node's own candidate gone. Nothing more is decided; the election will report that the term is
    /// over.
    is_fenced: bool,
    takeover: Option<Takeover>,
}

impl Context {
    pub fn new(node: NodeName) -> Self {
        Self {
            now: Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::ZERO },
            due: Timestamp::UNIX_EPOCH,
            latest: Timestamp::UNIX_EPOCH,
            clock_step: SignedDuration::ZERO,
            commands: Vec::new(),
            facts: VecDeque::new(),
            node,
            jobs: JobSet::default(),
            session: None,
            place: None,
            once_placed: BTreeSet::new(),
            is_drained: false,
            is_clock_far: false,
            sessions: BTreeSet::new(),
            lease_until: Uptime::ZERO,
            term: None,
            is_ending: false,
            is_at_once: false,
            is_leaving_the_term: false,
            commits: BTreeMap::new(),
            counter: 0,
            random: None,
        }
    }

    pub fn election(&mut self, request: election::Request) {
        self.commands.push(Command::Ask(Request::Election(request)));
    }

    pub fn ledger(&mut self, request: ledger::Request) {
        self.commands.push(Command::Ask(Request::Ledger(request)));
    }

    pub fn request_lock(&mut self, request: run_lock::Request) {
        self.commands.push(Command::Ask(Request::Lock(request)));
    }

    pub fn order(&mut self, order: Order) {
        self.commands.push(Command::Order(order));
    }

    pub fn report(&mut self, report: Report) {
        self.commands.push(Command::Report(report));
    }

    /// Has the state directory forget the run.
    pub fn forget(&mut self, run: &RunId) {
        self.commands.push(Command::Forget(run.clone()));
    }

    /// Has the state directory forget the run's attempt: it had no process.
    pub fn note_unstarted(&mut self, run: &RunId) {
        self.commands.push(Command::NoteUnstarted(run.clone()));
    }

    /// The instant up to which occurrences of `job` are decided on: now, less the job's splay.
    pub fn due_for(&self, job: &Job) -> Timestamp {
        earlier(self.due, job.splay.delay())
    }

    pub fn job(&self, name: &JobName) -> Option<&Arc<Job>> {
        self.jobs.jobs.get(name)
    }

    /// True if the leader places the attempts of the job. A job that was placed once goes the same way to the leader's own
    /// node, because its fencing tokens must not fall back to those of terms.
    pub fn places(&self, job: &Job) -> bool {
        self.place.is_some() && (job.run_on.is_placed() || self.once_placed.contains(&job.name))
    }

    /// True if each node that fits gets its own share of a run of the job.
    pub fn shares(&self, job: &Job) -> bool {
        self.place.is_some() && job.run_on == RunOn::Every
    }

    /// The job whose schedule starts `job`'s chain; `job` itself if it runs after no other.
    pub fn root_of<'a>(&'a self, job: &'a Job) -> &'a Job {
        self.jobs.root_of(job).unwrap_or(job)
    }

    /// Records that the node's member exists under this session.
    pub fn begin_session(&mut self, session: SessionId) {
        self.sessions.insert(session.clone());
        self.session = Some(session);
    }

    /// True if this process has or had the session.
    pub fn is_own_session(&self, session: &SessionId) -> bool {
        self.sessions.contains(session)
    }

    pub fn begin_term(&mut self, term: Term) {
        let takeover = Some(Takeover::new(self.now.up));
        self.term = Some(LeadersTerm { term, is_fenced: false, takeover });
    }

    pub fn end_term(&mut self) {
        self.term = None;
    }

    /// The term this node leads in.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref().map(|own| &own.term)
    }

    /// This node under its session, if it has one.
    pub fn owner(&self) -> Option<Owner> {
        self.session.clone().map(|session| Owner { node: self.node.clone(), session })
    }

    pub fn token(&self) -> Option<FencingToken> {
        self.term().map(|term| term.token)
    }

    /// The record of occurrences of a job that are not run, as decided now.
    pub fn new_skip(&self, token: FencingToken, job: &JobName, reason: SkipReason, missed: Missed) -> Skip {
        let Missed { first, last, count } = missed;
        Skip {
            v: 1,
            job: job.clone(),
            reason,
            first,
            last,
            count,
            trigger: None,
            on: None,
            detail: None,
            token,
            node: self.node.clone(),
            decided_at: self.now.wall,
        }
    }

    pub fn leads(&self) -> bool {
        self.term.is_some()
    }

    /// True once the takeover is done, while this node leads.
    pub fn is_settled(&self) -> bool {
        self.term.as_ref().is_some_and(|own| own.takeover.is_none())
    }

    /// True while this node may begin runs and move marks.
    pub fn may_decide(&self) -> bool {
        self.may_decide_at(self.now)
    }

    pub fn may_decide_at(&self, now: Now) -> bool {
        let leads = self.term.as_ref().is_some_and(|own| !own.is_fenced);
        leads && self.session.is_some() && now.up < self.lease_until && !self.is_leaving_the_term
    }

    pub fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// A nonce that no other write has, not even one of a copy of this process: of a virtual machine that was cloned
    /// while it ran, both sides have the same session and the same counters.
    pub fn nonce(&mut self) -> Nonce {
        let count = self.count();
        let by = match (self.token(), &self.session) {
            (Some(token), _) => token.to_string(),
            (None, Some(session)) => session.to_string(),
            (None, None) => self.node.to_string(),
        };
        match self.random {
            Some(random) => Nonce(format!("{by}-{count}-{:016x}", random())),
            None => Nonce(format!("{by}-{count}")),
        }
    }

    pub fn commit(&mut self, change: Change, purpose: Purpose) -> CommitId {
        let id = CommitId(self.count());
        let token = self.token();
        let change = change.with_notices(purpose.notices(&self.jobs));
        self.commits.insert(id, Requested { token, job: change.job().clone(), purpose });
        self.ledger(ledger::Request::Commit { id, change });
        id
    }

    /// Makes the takeover, if one is in progress, wait for this commit.
    pub fn add_to_takeover(&mut self, id: CommitId) {
        if let Some(takeover) = self.takeover() {
            takeover.open.insert(id);
        }
    }

    fn takeover(&mut self) -> Option<&mut Takeover> {
        self.term.as_mut()?.takeover.as_mut()
    }

    /// Removes an answered commit. `None` if this process did not request it.
    ///
    /// The flag is true if the commit was requested in the current term: an answer may arrive when the node already
    /// leads in another.
    pub fn answered(&mut self, id: CommitId, answer: Commit) -> Option<(Requested, bool)> {
        let requested = self.commits.remove(&id)?;
        let is_of_this_term = requested.token == self.token();
        if let Some(own) = self.term.as_mut().filter(|_| is_of_this_term) {
            own.is_fenced |= answer == Commit::Fenced;
            if let Some(takeover) = &mut own.takeover {
                takeover.answered(id, &requested.purpose, answer);
            }
        }
        Some((requested, is_of_this_term))
    }

    /// Handles a commit that the service refuses for now. Returns its job; `None` if this process did not request it.
    ///
    /// The takeover no longer waits for any write of that job.
    pub fn refused(&mut self, id: CommitId) -> Option<JobName> {
        let job = self.commits.get(&id)?.job.clone();
        let commits = &self.commits;
        if let Some(takeover) = self.term.as_mut().and_then(|own| own.takeover.as_mut()) {
            takeover.open.retain(|open| commits.get(open).is_some_and(|requested| requested.job != job));
        }
        Some(job)
    }

    /// Reports that the takeover is done, once none of its commits is open and the node may decide. Runs that must be
    /// begun again wait for the lease, and are part of the takeover.
    pub fn report_takeover(&mut self) {
        let may = self.may_decide();
        let (up, Some(own)) = (self.now.up, self.term.as_mut().filter(|_| may)) else { return };
        let Some(done) = own.takeover.take_if(|takeover| takeover.open.is_empty()) else { return };
        let token = own.term.token;
        let took = up.since(done.since);
        let (settled, cut_off, missed) = (done.settled, done.cut_off, done.missed);
        self.report(Report::TakeoverDone { token, settled, cut_off, missed, took });
    }
}
