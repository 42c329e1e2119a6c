//! A leader's placing of attempts on nodes, and what becomes of those that are not accepted.
//!
//! ```text
//!   due ─┬─ a node fits, and has room ─► placed ─┬─ accepted ────────────────► its node has it
//!        └─ none ─► queued                       ├─ refused ─► unstarted ─► placed elsewhere, attempt + 1
//!                                                └─ overdue, node gone ─────► placed elsewhere, attempt + 1
//! ```
//!
//! Each change of a placed run is a write at the version that was read, and so is its acceptance: one of the two fails. An
//! attempt names one node forever. That a node has accepted shows when the leader reads the run: once its answer is
//! overdue, or when the leader needs to know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::active_run::{ActiveRun, PlacedAt, RunStep};
use super::active_runs::ActiveRuns;
use super::agenda::{Quiet, Times};
use super::crowd::{Crowd, WaitsFor};
use super::places::{Choice, Load, Presence};
use super::window::{self, Window};
use super::{Runs, retry};
use crate::clock::Uptime;
use crate::election::{Member, Place};
use crate::engine::commits::Purpose;
use crate::engine::context::{Context, Fact};
use crate::engine::report::Report;
use crate::escape;
use crate::job::{Job, JobName, JobSet, Misfire, Overlap, RunWhere};
use crate::ledger::{Change, Commit, CommitId, OwnerState, Request};
use crate::run::{LONGEST_HOLD, Owner, Placement, RefusalReason, RunId, RunRecord, RunState, SkipReason};
use crate::term::NodeName;

/// How long after its time, or its placing, an attempt is overdue. Doubled with each move of the run.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How often that is doubled at most.
const MOST_DOUBLINGS: u32 = 4;
/// How often a leader looks for room on nodes that have as many open attempts as they may.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_millis(25);
/// How long a new leader waits for the list of nodes before it places on what it knows.
const MEMBERS_WITHIN: Duration = Duration::from_secs(1);
/// News of a run on another node that are older are read again before anything is skipped because of that run.
const FRESH: Duration = Duration::from_millis(100);
/// A read that is not answered by then is requested again; so is that of an overdue attempt that stays where it is.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// An attempt that waits for locks is looked at so often.
pub(super) const LOOK_AT_LOCKED_EVERY: Duration = Duration::from_secs(5);
/// How long before its time an attempt is placed, in addition to what commits take.
const TRANSFER: Duration = Duration::from_millis(20);
/// Longest time that an attempt is placed before its time.
const LONGEST_AHEAD: Duration = Duration::from_millis(500);

/// What a leader keeps of its placing, for one term.
#[derive(Debug, Default)]
pub(super) struct Placing {
    /// When the answers to placed attempts are overdue.
    overdue: Times,
    /// Runs that wait for a node that fits.
    pub unplaced: BTreeSet<RunId>,
    /// Those that are reported. Shares are reported by node.
    reported: BTreeSet<RunId>,
    /// Runs that wait for room on the nodes that fit.
    crowd: Crowd<RunId>,
    /// Jobs with a due run that waits for room.
    crowd_of_jobs: Crowd<JobName>,
    /// The jobs that no node can run, which are reported, and what keeps each node from them.
    unplaceable: BTreeMap<JobName, String>,
    /// All nodes are full, and something else is due that is to be placed.
    wants_room: bool,
    /// What this node has accepted of late.
    accepted_here: JustAccepted,
    /// When room was last looked for.
    room_asked: Option<Uptime>,
    /// The nodes whose open offers are being read.
    asked: BTreeMap<NodeName, Asked>,
    /// When the term began.
    since: Uptime,
    /// When the connection was last back, perhaps to servers that have lost something.
    pub resumed_at: Option<Uptime>,
    /// When it was last noticed that the service has lost something. What was placed before may have been accepted.
    lost_at: Option<Uptime>,
}

/// A read of a node's open offers.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// What was placed there later is not in the answer.
    since: Uptime,
    /// When it was last requested.
    last: Uptime,
}

/// How many attempts this node has accepted since it last looked for room on the others. Until it looks again they count as
/// not accepted: else the leader, who knows of its own at once, would place most of a burst on itself.
#[derive(Clone, Copy, Debug, Default)]
struct JustAccepted {
    until: Uptime,
    count: usize,
}

/// What each node has.
fn load_of<'r>(active: &'r ActiveRuns, cx: &'r Context, just_accepted_here: usize) -> impl Fn(&NodeName) -> Load + 'r {
    move |node| {
        let load = active.load_of(node, &cx.node);
        Load { open: load.open + if *node == cx.node { just_accepted_here } else { 0 }, ..load }
    }
}

impl Placing {
    /// The service has lost something: what has been placed until now may have been accepted.
    pub fn on_loss(&mut self, cx: &Context) {
        self.lost_at = Some(cx.now.up);
    }

    /// The run waits for no node any more.
    pub fn forget(&mut self, run: &RunId) {
        self.unplaced.remove(run);
        self.reported.remove(run);
        self.crowd.remove(run);
    }

    /// True if some node was asked a moment ago what it has accepted, and this is not known yet.
    fn is_asking(&self, now: Uptime) -> bool {
        self.asked.values().any(|asked| now < asked.since + LOOK_FOR_ROOM_EVERY)
    }

    /// When it no longer matters that some node is asked, or what this node has accepted of late.
    fn room_known_at(&self, now: Uptime) -> Option<Uptime> {
        let asked = self.asked.values().map(|asked| asked.since + LOOK_FOR_ROOM_EVERY);
        let accepted = (self.accepted_here.count > 0).then_some(self.accepted_here.until);
        asked.chain(accepted).filter(|&at| at > now).min()
    }

    /// See [`JustAccepted`]. Nobody asks the others while nothing waits for room.
    fn just_accepted_here(&self, now: Uptime) -> usize {
        let JustAccepted { until, count } = self.accepted_here;
        if now < until || self.looks_for_room() { count } else { 0 }
    }

    /// True if something waits for room.
    fn looks_for_room(&self) -> bool {
        self.wants_room || self.crowd.wants_room() || self.crowd_of_jobs.wants_room()
    }
}

impl Runs {
    /// Begins the placing of a new term.
    pub(super) fn begin_placing(&mut self, cx: &Context) {
        self.placing = Placing { since: cx.now.up, ..Placing::default() };
        if let Some(session) = &cx.session {
            self.places.begin_term(&cx.node, session, &cx.jobs.digest);
        }
    }

    fn load_of<'r>(&'r self, cx: &'r Context) -> impl Fn(&NodeName) -> Load + 'r {
        load_of(&self.active, cx, self.placing.just_accepted_here(cx.now.up))
    }

    /// Handles that this node, as leader, has accepted an attempt.
    pub(super) fn on_accepted_here(&mut self, cx: &mut Context) {
        let count = self.placing.just_accepted_here(cx.now.up) + 1;
        self.placing.accepted_here = JustAccepted { until: cx.now.up + LOOK_FOR_ROOM_EVERY, count };
    }

    /// True if some node has room for one more attempt. While nodes are asked for theirs nobody knows: what waits would all
    /// go to the one whose answer arrives first.
    pub(super) fn has_any_room(&self, cx: &Context) -> bool {
        !self.placing.is_asking(cx.now.up) && self.places.have_room(self.load_of(cx))
    }

    /// True once it is known where attempts can be placed, or it has taken too long to find out.
    pub(super) fn knows_places(&self, cx: &Context) -> bool {
        self.places.are_complete() || cx.now.up >= self.placing.since + MEMBERS_WITHIN
    }

    /// When it no longer matters that the members are not known; `None` if it does not matter any more.
    fn places_due_at(&self, cx: &Context) -> Option<Uptime> {
        let waits = self.placing.looks_for_room() && !self.knows_places(cx) && cx.leads();
        waits.then(|| self.placing.since + MEMBERS_WITHIN)
    }

    /// True if an occurrence of the job can be decided on as far as placing is concerned.
    pub fn has_place(&self, cx: &Context, job: &Job) -> bool {
        match cx.shares(job) {
            // Each share waits for room by itself.
            true => self.knows_roster(),
            false => self.knows_places(cx) && self.places.has_room(job, self.load_of(cx)),
        }
    }

    /// Keeps a run until there is room for it.
    pub(super) fn await_room(&mut self, cx: &mut Context, run: &RunId, job: &Job) {
        let waits_for = self.waits_for(cx, job, run.node());
        let waits_for_nodes = waits_for == WaitsFor::Nodes || !self.knows_places(cx);
        self.placing.crowd.insert(run, run.scheduled_at(), waits_for);
        self.placing.unplaced.remove(run);
        let Some(active) = self.active.get(run).filter(|active| active.awaits_first_start() && !waits_for_nodes) else {
            return;
        };
        if active.is_queued() && active.record.no_node_since.is_none() {
            if !active.is_to_share() {
                // Its window counts from now on, whoever leads.
                self.note_no_node(cx, run, Some(cx.due));
            }
        } else {
            self.agenda.retries.insert((window::over_from(cx, job, &active.record), run.clone()));
        }
    }

    /// Keeps a due job until there is room for an attempt of it: [`Fact::RoomFound`].
    ///
    /// `since`: up to when its occurrences are decided on; who is behind most gets room first.
    pub fn await_room_for(&mut self, cx: &Context, job: &Job, since: Timestamp) {
        self.placing.crowd_of_jobs.insert(&job.name, since, self.waits_for(cx, job, None));
    }

    fn waits_for(&self, cx: &Context, job: &Job, node: Option<&NodeName>) -> WaitsFor {
        match node {
            _ if cx.shares(job) && !self.knows_roster() => WaitsFor::Nodes,
            Some(node) => WaitsFor::Node(node.clone()),
            None => WaitsFor::Any(job.run_where.clone()),
        }
    }

    /// Looks for room: something is due that is to be placed, or soon will be, and no node that fits has any.
    pub fn want_room(&mut self) {
        self.placing.wants_room = true;
    }

    /// How long before its time an attempt is placed; zero: not before.
    pub fn placing_lead(&self, cx: &Context, lead: Duration) -> Duration {
        if lead.is_zero() || !self.knows_places(cx) { Duration::ZERO } else { (lead * 2 + TRANSFER).min(LONGEST_AHEAD) }
    }

    /// Chooses the node for an attempt of a job.
    pub(super) fn choose(&mut self, cx: &Context, job: &Job, avoided: Option<&NodeName>) -> Choice {
        if !job.run_on.is_placed() {
            // It was placed once, and its token must not fall back: it goes the same way to this node.
            return cx.owner().map_or(Choice::Nobody, Choice::On);
        }
        if !self.knows_places(cx) {
            return Choice::Full;
        }
        let Self { places, active, placing, .. } = self;
        places.choose(job, avoided, load_of(active, cx, placing.just_accepted_here(cx.now.up)))
    }

    /// What the record of an attempt of the job says that is placed now. `its_time`: when its program may begin, if that is to
    /// come.
    pub(super) fn placement(cx: &Context, job: &Job, its_time: Option<Timestamp>) -> Box<Placement> {
        let ahead = its_time.map_or(0, |at| at.duration_since(cx.due).as_millis());
        // Further ahead is nothing placed: the clock was set back since it was due.
        let ahead = u64::try_from(ahead).unwrap_or(0);
        let ahead_ms = if u128::from(ahead) <= LONGEST_HOLD.as_millis() { ahead } else { 0 };
        let is_awaited = matches!(job.overlap, Overlap::Queue | Overlap::Replace)
            || job.concurrency_group.is_some()
            || job.misfire == Misfire::RunAll;
        Box::new(Placement { ahead_ms, is_awaited, ..Placement::new(job.execution_digest()) })
    }

    /// Handles the answer to the begin of a run that is placed.
    pub(super) fn on_placing_answer(&mut self, cx: &mut Context, run: &RunId, answer: Commit) {
        match answer {
            Commit::Accepted => {
                self.on_placed(cx, run);
                self.take_up_news(cx, run);
            }
            Commit::Superseded | Commit::Fenced => self.forget(cx, run),
            Commit::Unknown => {
                self.forget(cx, run);
                // If the ledger has it, the read adds it again.
                if cx.session.is_some() && cx.leads() {
                    cx.ledger(Request::ReadRun(run.clone()));
                }
            }
        }
    }

    /// Handles that the ledger has an attempt as placed.
    pub(super) fn on_placed(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get_mut(run) else { return };
        let moved = active.placed.take().and_then(|placed| placed.moved);
        let (attempt, to) = (active.record.attempt, active.record.owner.node.clone());
        if let Some((from, reason)) = moved {
            cx.report(Report::Moved { run: run.clone(), from, to: Some(to.clone()), reason });
        }
        cx.report(Report::Placed { run: run.clone(), attempt, to });
        self.await_answer(cx, run);
    }

    /// Adds the state of a placed run as read: it is this node's, or its answer is awaited.
    pub(super) fn await_answer(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run).filter(|_| cx.leads()) else { return };
        if active.record.kill.is_some() {
            return self.apply_kill(cx, run);
        }
        if active.record.owner.node == cx.node {
            return self.offer_here(cx, run);
        }
        let moves = active.record.unstarted_attempts().saturating_sub(1).min(MOST_DOUBLINGS);
        let answer_by = cx.now.up + self.until_its_time(cx, run) + ANSWER_WITHIN * (1 << moves);
        self.expect_answer(cx, run, answer_by.max(self.answers_from(cx)));
    }

    /// How long it is until the time of a run; zero once that has come.
    fn until_its_time(&self, cx: &Context, run: &RunId) -> Duration {
        self.time_to_come(cx, run).map_or(Duration::ZERO, |at| at.duration_since(cx.due).unsigned_abs())
    }

    fn expect_answer(&mut self, cx: &Context, run: &RunId, answer_by: Uptime) {
        if let Some(active) = self.active.get_mut(run) {
            let since = active.placed.as_ref().map_or(cx.now.up, |placed| placed.since);
            let moved = active.placed.as_mut().and_then(|placed| placed.moved.take());
            active.placed = Some(PlacedAt { moved, ..PlacedAt::new(since, answer_by) });
            self.placing.overdue.set(run, answer_by);
        }
    }

    /// The service may have changed its servers: gives the nodes time to write again what they have accepted.
    pub(super) fn put_off_placed(&mut self, cx: &Context) {
        self.placing.resumed_at = Some(cx.now.up);
        self.agenda.quiet = if cx.leads() { Quiet::Looking } else { Quiet::Over };
        self.await_claims(cx);
    }

    /// What is in flight has been read: the service answers, and what the nodes write again is there soon.
    pub(super) fn on_service_answers(&mut self, cx: &Context) {
        if self.agenda.quiet == Quiet::Looking {
            self.agenda.quiet = Quiet::Until(cx.now.up + self.claims_take());
            self.await_claims(cx);
        }
    }

    /// Has no placed attempt overdue before the nodes had the time to write what they have.
    fn await_claims(&mut self, cx: &Context) {
        let answer_by = cx.now.up + self.claims_take();
        let is_earlier = |placed: &PlacedAt| placed.answer_by < answer_by || placed.unlisted.is_some();
        let is_open = |run: &ActiveRun| run.is_unanswered() && run.placed.as_ref().is_some_and(is_earlier);
        let placed = self.active.iter().filter(|(_, run)| is_open(run));
        let placed: Vec<RunId> = placed.map(|(run, _)| run.clone()).collect();
        placed.iter().for_each(|run| self.expect_answer(cx, run, answer_by));
    }

    /// Once the nodes have had the time to write what they have, has everything tried again that was put off.
    pub fn end_quiet(&mut self, cx: &mut Context) {
        if self.agenda.quiet.ends_at().is_some_and(|at| at <= cx.now.up) {
            self.agenda.quiet = Quiet::Over;
            // The watch reports again each owner that is gone.
            std::mem::take(&mut self.agenda.gone).into_iter().for_each(|run| cx.ledger(Request::Watch(run)));
        }
    }

    /// From when on the nodes that are in touch with the service have written again what it may have lost.
    fn answers_from(&self, cx: &Context) -> Uptime {
        match self.agenda.quiet {
            Quiet::Over => cx.now.up,
            Quiet::Looking => cx.now.up + self.claims_take(),
            Quiet::Until(until) => until.max(cx.now.up),
        }
    }

    /// How long the nodes take to write again what they have, once they are in touch with the service.
    pub(super) fn claims_take(&self) -> Duration {
        ASK_AGAIN.max(self.session_timeout / 4)
    }

    /// Takes a run as one that was placed at this time, or before: what has become of it is read.
    pub(super) fn await_answer_again(&mut self, cx: &mut Context, run: &RunId, since: Uptime) {
        if !self.step(cx, run, RunStep::Place) {
            return;
        }
        let answer_by = (cx.now.up + self.until_its_time(cx, run).max(ASK_AGAIN)).max(self.answers_from(cx));
        if let Some(active) = self.active.get_mut(run) {
            active.record.state = RunState::Placed;
            active.placed.get_or_insert(PlacedAt::new(since, answer_by));
        }
        self.expect_answer(cx, run, answer_by);
    }

    /// Writes a run once more as it is known; one that is placed is offered to its node again, which may have accepted it,
    /// and knows.
    /// `taken_from`: the node that has an offer of it by the record that is there, and is to have none.
    pub(super) fn rewrite(&mut self, cx: &mut Context, run: &RunId, taken_from: Option<NodeName>) {
        let nonce = cx.nonce();
        let Some(active) = self.active.get_mut(run).filter(|active| active.commit.is_none()) else { return };
        active.record.nonce = nonce;
        let change = Change::RewriteRun { at: active.version, run: active.record.clone(), taken_from };
        active.commit = Some(cx.commit(change, Purpose::RewriteRun { run: run.clone() }));
    }

    /// Handles the answer to writing a run once more.
    pub fn on_rewritten(&mut self, cx: &mut Context, run: &RunId, id: CommitId, answer: Commit) {
        let Some(active) = self.answered_run(run, id) else { return };
        match answer {
            Commit::Accepted => {
                active.version = active.version.next();
                match active.record.state {
                    RunState::Placed => self.await_answer_again(cx, run, cx.now.up),
                    _ => cx.ledger(Request::Watch(run.clone())),
                }
                self.apply_kill(cx, run);
                self.take_up_news(cx, run);
            }
            Commit::Superseded | Commit::Unknown => self.on_settled_by_another(cx, run),
            Commit::Fenced => self.leave(cx, run),
        }
    }

    /// When a placed attempt is next overdue, or room is looked for.
    pub fn placing_at(&self, cx: &Context) -> Option<Uptime> {
        let overdue = self.placing.overdue.first().map(|&(at, _)| at);
        let looks = self.placing.looks_for_room() && self.knows_places(cx) && cx.leads();
        let room = looks.then(|| self.placing.room_asked.map_or(Uptime::ZERO, |asked| asked + LOOK_FOR_ROOM_EVERY));
        let pause = self.places.pause_ends_at().filter(|_| cx.leads());
        let known = self.placing.room_known_at(cx.now.up).filter(|_| cx.leads());
        let quiet = self.agenda.quiet.ends_at();
        overdue.into_iter().chain(room).chain(self.places_due_at(cx)).chain(pause).chain(known).chain(quiet).min()
    }

    /// Reads the runs whose answers are overdue, and looks for room where something waits for it.
    pub fn follow_placed(&mut self, cx: &mut Context) {
        if !cx.leads() || cx.session.is_none() {
            return;
        }
        while let Some(run) = self.placing.overdue.pop_due(cx.now.up) {
            if self.active.get(&run).is_some_and(ActiveRun::is_placed) {
                // Should the answer be lost with the connection, it is asked again.
                self.placing.overdue.set(&run, cx.now.up + ASK_AGAIN);
                cx.ledger(Request::ReadRun(run));
            }
        }
        if self.places.end_pauses(cx.now.up) {
            self.on_other_places(cx);
        }
        self.look_for_room(cx);
    }

    /// Looks for room on the nodes, if something waits for it: asks the full ones what they have accepted since, and tries
    /// again what fits where there is some.
    fn look_for_room(&mut self, cx: &mut Context) {
        let is_due = self.placing.room_asked.is_none_or(|asked| cx.now.up >= asked + LOOK_FOR_ROOM_EVERY);
        if !self.placing.looks_for_room() || !is_due || !self.knows_places(cx) {
            return;
        }
        let is_first = self.placing.room_asked.replace(cx.now.up).is_none();
        self.placing.wants_room = false;
        self.placing.accepted_here = JustAccepted::default();
        if is_first && !self.places.are_complete() {
            // What waits to know the nodes cannot wait any longer.
            return self.try_unplaced(cx);
        }
        for (node, room) in self.places.rooms(self.load_of(cx)) {
            if room == 0 && node != cx.node {
                self.ask_for_offers(cx, &node);
            }
        }
        self.use_room(cx);
    }

    /// Tries again what fits where there is room, once it is known of all nodes.
    fn use_room(&mut self, cx: &mut Context) {
        if !self.placing.is_asking(cx.now.up) {
            let rooms = self.places.rooms(self.load_of(cx));
            rooms.into_iter().filter(|&(_, room)| room > 0).for_each(|(node, room)| self.try_crowded(cx, &node, room));
        }
    }

    fn ask_for_offers(&mut self, cx: &mut Context, node: &NodeName) {
        let now = cx.now.up;
        let asked = self.placing.asked.get(node);
        // Should the answer be lost with the connection, it is asked again.
        if asked.is_none_or(|asked| now >= asked.last + ASK_AGAIN) {
            let since = asked.map_or(now, |asked| asked.since);
            self.placing.asked.insert(node.clone(), Asked { since, last: now });
            cx.ledger(Request::ReadOpenOffers(node.clone()));
        }
    }

    /// Takes which attempts a node has not accepted yet. All others that were placed there before have been answered; or
    /// somebody has removed their offers, which shows when they are read.
    pub fn on_open_offers(&mut self, cx: &mut Context, node: &NodeName, open: &BTreeSet<RunId>) {
        let Some(Asked { since, .. }) = self.placing.asked.remove(node).filter(|_| cx.leads()) else { return };
        let is_answered = |run: &RunId, active: &ActiveRun| {
            active.is_placed()
                && active.commit.is_none()
                && active.record.owner.node == *node
                && active.placed.as_ref().is_some_and(|placed| placed.since < since)
                && !open.contains(run)
        };
        let answered = self.active.iter().filter(|(run, active)| is_answered(run, active));
        let answered: Vec<RunId> = answered.map(|(run, _)| run.clone()).collect();
        for run in &answered {
            let Some(active) = self.active.get_mut(run) else { continue };
            let version = active.version;
            active.placed.iter_mut().for_each(|placed| placed.unlisted = Some(version));
            let is_overdue = active.placed.as_ref().is_some_and(|placed| placed.is_overdue);
            if !is_overdue {
                self.places.note_answer(node);
            }
            // What its node has answered in time most likely runs there.
            let request = if is_overdue { Request::ReadRun } else { Request::Follow };
            if self.step(cx, run, RunStep::FindRemote) {
                cx.ledger(request(run.clone()));
            }
        }
        self.use_room(cx);
    }

    /// Reads those of the runs that are placed: their nodes do not run them.
    pub fn on_rung(&mut self, cx: &mut Context, rung: BTreeSet<RunId>) {
        let is_placed = |run: &RunId| self.active.get(run).is_some_and(|active| active.is_placed());
        let placed: Vec<RunId> = rung.into_iter().filter(|run| cx.leads() && is_placed(run)).collect();
        placed.into_iter().for_each(|run| cx.ledger(Request::ReadRun(run)));
    }

    /// True if no node can take the run now.
    fn has_nowhere(&self, cx: &Context, run: &RunId, job: &Job) -> bool {
        match run.node() {
            Some(node) => Choice::from(self.share_on(cx, run, job, node)) == Choice::Nobody,
            None => self.places.has_nobody(job),
        }
    }

    /// What keeps the nodes from a run, for its record; `None` if one could take it by now.
    pub(super) fn why_nowhere(&self, cx: &Context, run: &RunId) -> Option<String> {
        let job = cx.job(run.job()).filter(|job| job.run_on.is_placed() && self.has_nowhere(cx, run, job))?;
        let why = match run.node() {
            Some(node) => self.places.why_not(job, node),
            None => self.places.why_nobody(job),
        };
        // They may have many labels.
        Some(escape::short(&why, retry::LONGEST_DETAIL))
    }

    /// Takes it that a run waits for others now. If it has waited for a node and one can take it, it does not any more.
    pub(super) fn await_others_first(&mut self, cx: &mut Context, run: &RunId) {
        let Some(job) = cx.job(run.job()).cloned() else { return };
        let has_nowhere = self.has_nowhere(cx, run, &job);
        self.placing.crowd.remove(run);
        if !has_nowhere {
            self.placing.unplaced.remove(run);
        }
        let waited = |active: &&ActiveRun| active.is_waiting() && active.record.no_node_since.is_some();
        let Some(active) = self.active.get(run).filter(waited) else { return };
        if has_nowhere {
            return self.await_place(cx, run, &job, None);
        }
        match window::of(cx, &active.record) {
            Window::Over => self.skip(cx, run, SkipReason::NoNode),
            Window::Open | Window::UndefinedUntil(_) => self.note_no_node(cx, run, None),
        }
    }

    /// Writes since when a queued run waits for a node, or that it does not.
    fn note_no_node(&mut self, cx: &mut Context, run: &RunId, since: Option<Timestamp>) {
        let nonce = cx.nonce();
        // It may be over: the answer shows.
        let Some(active) = self.active.get(run).filter(|_| !self.is_looked_up(run)) else { return };
        if active.record.kill.is_some() {
            return self.apply_kill(cx, run);
        }
        let record = RunRecord { no_node_since: since, nonce, ..active.record.clone() };
        self.update(cx, run, record);
    }

    /// Tries again what waits for room, as much as fits on a node with room for this many attempts.
    pub(super) fn try_crowded(&mut self, cx: &mut Context, node: &NodeName, room: usize) {
        let Self { placing, places, .. } = self;
        let fits = |run_where: &RunWhere| places.meets(node, run_where);
        let takes = |job: &JobName| cx.job(job).is_none_or(|job| places.takes(node, job));
        let runs = placing.crowd.take(node, room, fits, |run| takes(run.job()));
        let jobs = placing.crowd_of_jobs.take(node, room, fits, takes);
        self.check_now(cx, runs);
        cx.facts.push_back(Fact::RoomFound(jobs));
    }

    /// Has everything tried again that waits for a node, or for room on one.
    pub fn try_unplaced(&mut self, cx: &mut Context) {
        let Placing { unplaced, crowd, crowd_of_jobs, .. } = &mut self.placing;
        let waiting: Vec<RunId> = unplaced.iter().cloned().chain(crowd.take_all()).collect();
        let jobs = crowd_of_jobs.take_all();
        self.check_now(cx, waiting);
        cx.facts.push_back(Fact::RoomFound(jobs));
    }

    /// Takes all places that the cluster knows.
    pub fn on_places(&mut self, cx: &mut Context, all: BTreeMap<NodeName, Place>) {
        let shares = self.active.iter().filter_map(|(run, _)| run.node());
        let to_share =
            self.active.values().flat_map(|active| active.record.share_among.iter().flat_map(|nodes| nodes.iter()));
        let named: BTreeSet<NodeName> = shares.chain(to_share).cloned().collect();
        self.places.define(cx.due, all, &named);
        if cx.leads() {
            self.on_other_places(cx);
        }
    }

    /// Takes the nodes that are alive. What is placed on one that is gone or drained, and not accepted, is placed elsewhere.
    pub(super) fn on_living(&mut self, cx: &mut Context, members: &[Member]) {
        if !cx.leads() {
            return;
        }
        let left = self.places.on_members(members);
        let is_there = |active: &ActiveRun| active.is_placed() && left.contains(&active.record.owner.node);
        let placed = self.active.iter().filter(|(_, active)| !left.is_empty() && is_there(active));
        let placed: Vec<RunId> = placed.map(|(run, _)| run.clone()).collect();
        let answer_by = self.answers_from(cx);
        placed.iter().for_each(|run| self.expect_answer(cx, run, answer_by));
        self.on_other_places(cx);
    }

    /// The nodes have changed, or what is asked of them: has everything tried again that waits for one, and reports the jobs
    /// that no node can run, before a run of theirs is due.
    fn on_other_places(&mut self, cx: &mut Context) {
        self.try_unplaced(cx);
        if !self.knows_places(cx) {
            return;
        }
        let now = self.places.unplaceable(cx.jobs.jobs.values().map(Arc::as_ref));
        let before = std::mem::replace(&mut self.placing.unplaceable, now);
        for (job, why) in self.placing.unplaceable.iter().filter(|(job, _)| !before.contains_key(*job)) {
            cx.report(Report::Unplaceable { job: job.clone(), why: why.clone() });
        }
        let is_over = |job: &&JobName| !self.placing.unplaceable.contains_key(*job) && cx.jobs.jobs.contains_key(*job);
        let over: Vec<JobName> = before.keys().filter(is_over).cloned().collect();
        over.into_iter().for_each(|job| cx.report(Report::Placeable { job }));
    }

    /// The jobs that no node can run now, each with what keeps the nodes from it.
    pub fn unplaceable(&self) -> impl Iterator<Item = (&JobName, &str)> {
        self.placing.unplaceable.iter().map(|(job, why)| (job, why.as_str()))
    }

    /// The nodes that have not accepted in time what was placed there.
    pub fn suspects(&self) -> impl Iterator<Item = &NodeName> {
        self.places.suspects()
    }

    /// Handles the record of a run, as just read, that is still placed and not accepted.
    pub(super) fn on_still_placed(&mut self, cx: &mut Context, run: &RunId) {
        if !self.step(cx, run, RunStep::Place) {
            return;
        }
        let Some(active) = self.active.get(run) else { return };
        let is_moved = |(from, _): &(NodeName, _)| *from != active.record.owner.node;
        match &active.placed {
            // By a write whose answer was lost.
            Some(placed) if placed.moved.as_ref().is_some_and(is_moved) => self.on_placed(cx, run),
            Some(placed)
                if active.record.owner.node != cx.node && (placed.answer_by <= cx.now.up || active.has_no_offer()) =>
            {
                self.on_overdue(cx, run);
            }
            Some(placed) if active.record.owner.node != cx.node => {
                self.placing.overdue.set(run, placed.answer_by);
            }
            _ => self.await_answer(cx, run),
        }
    }

    /// Handles an attempt that its node has not accepted in time: places it elsewhere, if that is better.
    fn on_overdue(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run).filter(|active| active.commit.is_none()) else { return };
        let (owner, job) = (active.record.owner.clone(), cx.job(run.job()).cloned());
        let is_removed = active.has_no_offer();
        let presence = self.places.presence(&owner);
        let is_alive = presence == Presence::Open;
        let awaits_locks = active.record.placement.as_ref().is_some_and(|placement| placement.awaits_locks);
        if !self.knows_places(cx) {
            return self.expect_answer(cx, run, cx.now.up + LOOK_FOR_ROOM_EVERY);
        }
        if self.agenda.quiet == Quiet::Looking {
            return self.expect_answer(cx, run, cx.now.up + ASK_AGAIN);
        }
        let may_be_lost = self.may_be_lost(active.record.begun_at) || active.is_placed_by(self.placing.lost_at);
        // What is being looked up may show that.
        let is_unclear = active.is_placed_by(self.placing.resumed_at) && self.own_writes.is_looking();
        if may_be_lost || is_unclear && presence != Presence::Gone {
            // The service may have lost that it was accepted. A node that is alive says so, also while it is drained.
            return match presence {
                Presence::Open | Presence::Closed if is_removed => self.rewrite(cx, run, None),
                Presence::Open | Presence::Closed => {
                    self.ask_for_offers(cx, &owner.node);
                    self.expect_answer(cx, run, cx.now.up + ASK_AGAIN);
                }
                Presence::Gone => self.settle_lost(cx, run, OwnerState::Gone),
            };
        }
        let has_better = |job: &Arc<Job>| self.places.has_better(job, &owner.node, self.load_of(cx));
        let is_better = run.node().is_none() && job.as_ref().is_some_and(has_better);
        if is_alive && is_removed {
            // Its node does not know of it. It is offered again, under the next number.
            return self.move_on(cx, run, job.as_ref(), "offer-removed");
        }
        let stays = (awaits_locks || !is_better) && !window::is_too_late_to_accept(cx, &active.record);
        if is_alive && stays {
            let again = if awaits_locks { LOOK_AT_LOCKED_EVERY } else { ASK_AGAIN };
            self.ask_for_offers(cx, &owner.node);
            self.expect_answer(cx, run, cx.now.up + again);
            let placed = self.active.get_mut(run).and_then(|active| active.placed.as_mut());
            return placed.into_iter().for_each(|placed| placed.is_overdue = true);
        }
        // Should it be accepted at this moment, one of the two writes fails.
        if is_alive && !awaits_locks && self.places.suspect(&owner.node) {
            cx.report(Report::Suspect { node: owner.node.clone() });
        }
        let reason = match presence {
            Presence::Open => "overdue",
            Presence::Closed => "node-drained",
            Presence::Gone => "node-gone",
        };
        self.move_on(cx, run, job.as_ref(), reason);
    }

    /// Places a run elsewhere whose node has not accepted it; or takes it back, if nobody else can have it.
    fn move_on(&mut self, cx: &mut Context, run: &RunId, job: Option<&Arc<Job>>, reason: &'static str) {
        let Some(from) = self.active.get(run).map(|active| active.record.owner.node.clone()) else { return };
        let is_too_late = self.active.get(run).is_some_and(|active| window::is_too_late_to_accept(cx, &active.record));
        let choice = match job {
            Some(job) if !is_too_late => match run.node() {
                Some(node) => self.share_on(cx, run, job, node).into(),
                None => self.choose(cx, job, Some(&from)),
            },
            _ => Choice::Nobody,
        };
        match (choice, job) {
            (Choice::On(owner), Some(job)) => self.place_on(cx, run, job, owner),
            _ => self.take_back(cx, run),
        }
        if let Some(active) = self.active.get_mut(run) {
            active.placed = Some(PlacedAt { moved: Some((from, reason)), ..PlacedAt::new(cx.now.up, cx.now.up) });
        }
    }

    /// Writes that a run is placed on a node, as its next attempt.
    pub(super) fn place_on(&mut self, cx: &mut Context, run: &RunId, job: &Arc<Job>, owner: Owner) {
        let (Some(token), nonce) = (cx.token(), cx.nonce()) else { return };
        let Some(active) = self.active.get(run) else { return };
        let its_time = self.time_to_come(cx, run);
        let setbacks = active.record.placement.as_ref().map_or(0, |placement| placement.setbacks);
        let placement = Some(Box::new(Placement { setbacks, ..*Self::placement(cx, job, its_time) }));
        let lost = self.lost_end(cx, &active.record);
        let record = retry::next_attempt(cx, active, &lost, job, retry::Attempt { owner, token, nonce, placement });
        self.placing.crowd.remove(run);
        self.placing.unplaced.remove(run);
        if self.step(cx, run, RunStep::Place) {
            self.update(cx, run, record);
        }
    }

    /// Takes a run back from a node that has not accepted it: it waits until it can be placed again, or its time is over.
    fn take_back(&mut self, cx: &mut Context, run: &RunId) {
        let nonce = cx.nonce();
        let Some(active) = self.active.get(run).filter(|active| active.commit.is_none()) else { return };
        let retry_at = self.time_to_come(cx, run);
        let record = RunRecord { state: RunState::Unstarted, retry_at, nonce, ..active.record.clone() };
        self.update(cx, run, record);
    }

    /// Handles that a run was taken back.
    pub(super) fn on_taken_back(&mut self, cx: &mut Context, run: &RunId) {
        let moved = self.active.get_mut(run).and_then(|active| active.placed.take()?.moved);
        if let Some((from, reason)) = moved {
            cx.report(Report::Moved { run: run.clone(), from, to: None, reason });
        }
        self.await_retry(cx, run);
    }

    /// Handles that another node is known to have accepted a run.
    pub(super) fn on_accepted_elsewhere(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get_mut(run) else { return };
        active.placed = None;
        let (is_first, begun_at) = (!active.record.has_past(), active.record.begun_at);
        let node = active.record.owner.node.clone();
        let due_at = self.active.get(run).map(|active| active.due_at(cx.job(run.job()).map(Arc::as_ref)));
        cx.ledger(Request::Watch(run.clone()));
        let Some(due_at) = due_at else { return };
        let lateness = Duration::try_from(begun_at.duration_since(due_at)).unwrap_or_default();
        cx.facts.push_back(Fact::StartedElsewhere { run: run.clone(), due_at, lateness, is_first });
        self.try_crowded(cx, &node, 1);
    }

    /// True if no other node than the one that had the last attempt can take the run.
    pub(super) fn is_only_place(&self, cx: &Context, active: &ActiveRun) -> bool {
        let job = cx.job(&active.record.job);
        active.record.on.is_some()
            || job.is_none_or(|job| !job.run_on.is_placed() || !self.places.has_other(job, &active.record.owner.node))
    }

    /// Takes back what is placed of a job, ahead of its time, and not accepted: the job is paused or changed.
    pub fn recall(&mut self, cx: &mut Context, job: &JobName) {
        let is_ahead = |run: &RunId, active: &ActiveRun| {
            let is_open = active.is_placed() || active.is_offered() && cx.leads();
            is_open && active.commit.is_none() && self.time_to_come(cx, run).is_some()
        };
        let ahead = self.active.of_job(job).filter(|(run, active)| is_ahead(run, active));
        let ahead: Vec<RunId> = ahead.map(|(run, _)| run.clone()).collect();
        for run in ahead {
            let is_own = self.active.get(&run).is_some_and(ActiveRun::is_offered);
            if !is_own || self.step(cx, &run, RunStep::Disown) {
                self.take_back(cx, &run);
            }
        }
    }

    /// The same of all jobs that are no longer as they were in `old`. What was refused may fit now.
    pub fn recall_redefined(&mut self, cx: &mut Context, old: &JobSet) {
        if !cx.leads() {
            return;
        }
        self.places.redefined();
        let placed = self.active.iter().filter(|(_, active)| active.is_placed());
        let jobs: BTreeSet<JobName> = placed.map(|(run, _)| run.job().clone()).collect();
        for job in jobs {
            if old.jobs.get(&job) != cx.jobs.jobs.get(&job) {
                self.recall(cx, &job);
            }
        }
        self.on_other_places(cx);
    }

    /// Places another attempt of a run that no node has, or the first one of a run that had to wait.
    pub(super) fn place_again(&mut self, cx: &mut Context, run: &RunId, job: &Arc<Job>) {
        let Some(active) = self.active.get(run) else { return };
        let record = &active.record;
        let refused = record.placement.as_ref().and_then(|placement| placement.refused.clone());
        if refused.is_some_and(|refused| refused.reason == RefusalReason::Locked) && job.overlap == Overlap::Skip {
            return self.skip(cx, run, SkipReason::Locked);
        }
        if let Some(node) = run.node() {
            return self.place_share(cx, run, job, node);
        }
        if record.share_among.is_some() {
            return self.share_out(cx, run, job);
        }
        // Whatever it failed over there may be well elsewhere.
        let avoided = (record.attempt > 0).then(|| record.owner.node.clone());
        match self.choose(cx, job, avoided.as_ref()) {
            Choice::On(owner) => {
                self.placing.unplaced.remove(run);
                self.place_on(cx, run, job, owner);
            }
            Choice::Full => self.await_room(cx, run, job),
            Choice::Nobody => {
                let is_new = self.placing.reported.insert(run.clone());
                let why = is_new.then(|| self.places.why_nobody(job));
                self.await_place(cx, run, job, why);
            }
        }
    }

    /// Keeps a run that no node can take, until one can or its time is over. `why`: what is reported.
    pub(super) fn await_place(&mut self, cx: &mut Context, run: &RunId, job: &Arc<Job>, why: Option<String>) {
        let Some(active) = self.active.get(run) else { return };
        // What had a process is never skipped.
        let had_process = !active.awaits_first_start();
        let is_new = active.is_queued() && active.record.no_node_since.is_none();
        let until = window::over_from(cx, job, &active.record);
        self.placing.unplaced.insert(run.clone());
        if let Some(why) = why {
            cx.report(Report::Unplaced { run: run.clone(), why });
        }
        if had_process {
            return;
        }
        if is_new {
            // Its window counts from now on, whoever leads.
            self.note_no_node(cx, run, Some(cx.due));
        } else if until <= cx.due {
            self.placing.unplaced.remove(run);
            self.skip(cx, run, SkipReason::NoNode);
        } else {
            self.agenda.retries.insert((until, run.clone()));
        }
    }

    /// Takes what a node has answered about a run that was placed there, from its record.
    pub(super) fn note_answer(&mut self, cx: &mut Context, record: &RunRecord) {
        let Some(placement) = record.placement.as_ref().filter(|_| cx.leads()) else { return };
        match (&placement.refused, record.state) {
            // What it refused of an earlier definition says nothing about this one.
            (Some(refused), RunState::Unstarted)
                if refused.node == record.owner.node
                    && cx.job(&record.job).is_some_and(|job| job.execution_digest() == placement.definition) =>
            {
                let takes_nothing = self.places.note_refusal(refused, &record.job, cx.now.up);
                self.on_less_taken(cx, &record.job, takes_nothing);
            }
            (None, RunState::Unstarted) if placement.failed_start => {
                let takes_nothing = self.places.note_failed_start(&record.owner.node, cx.now.up);
                self.on_less_taken(cx, &record.job, takes_nothing);
            }
            (_, RunState::Running) => self.places.note_answer(&record.owner.node),
            _ => {}
        }
    }

    /// A node has refused a run of the job, or cannot run it: it may have been the last one that could take it, for whose
    /// room something waits. `takes_nothing`: nor does it take anything else from now on.
    fn on_less_taken(&mut self, cx: &mut Context, job: &JobName, takes_nothing: bool) {
        if takes_nothing {
            self.try_unplaced(cx);
        } else if cx.job(job).is_some_and(|job| self.places.has_nobody(job)) {
            let Self { active, placing, .. } = self;
            let runs = active.of_job(job).map(|(run, _)| run);
            let crowded: Vec<RunId> = runs.filter(|run| placing.crowd.remove(run)).cloned().collect();
            self.check_now(cx, crowded);
            if self.placing.crowd_of_jobs.remove(job) {
                cx.facts.push_back(Fact::RoomFound(vec![job.clone()]));
            }
        }
        for (job, why) in self.places.unplaceable(cx.job(job).map(Arc::as_ref).into_iter()) {
            if self.placing.unplaceable.insert(job.clone(), why.clone()).is_none() {
                cx.report(Report::Unplaceable { job, why });
            }
        }
    }

    /// True if a run of the job is on another node, and news of it are so old that it may be over. It is read then, and the
    /// job released.
    pub fn must_ask(&mut self, cx: &mut Context, job: &JobName) -> bool {
        let is_old = |active: &ActiveRun| {
            let is_elsewhere = active.is_remote() || active.is_placed();
            active.record.placement.is_some()
                && is_elsewhere
                && active.commit.is_none()
                && active.record.owner.node != cx.node
                && active.read_at.is_none_or(|at| cx.now.up >= at + FRESH)
        };
        let old = self.active.of_job(job).filter(|(_, active)| is_old(active)).map(|(run, _)| run.clone());
        let old: Vec<RunId> = old.collect();
        for run in &old {
            let Some(active) = self.active.get_mut(run) else { continue };
            // Should the answer be lost with the connection, it is asked again.
            if active.asked_at.is_none_or(|at| cx.now.up >= at + ASK_AGAIN) {
                active.asked_at = Some(cx.now.up);
                cx.ledger(Request::ReadRun(run.clone()));
            }
        }
        !old.is_empty()
    }
}
