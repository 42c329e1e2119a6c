//! A leader's work on runs that no node has, and on runs of other nodes.
//!
//! At its takeover the leader watches runs of living nodes and leaves them alone. It begins runs of dead nodes again,
//! ends them, or marks them cut off, by the rule that was fixed when they began. Runs that wait for another attempt, or
//! for other runs, are begun at their time.
//!
//! ```text
//!   an attempt ends ─ its owner ─► retrying, retry_at ─ any leader ─► attempt + 1
//! ```

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::active_run::{ActiveRun, ActiveRunState, News, Phase, RunStep, StopCause};
use super::active_runs::WaitingPosition;
use super::agenda::{Changed, pop_due};
use super::retry::Attempt;
use super::rewound::waits_for_leader;
use super::waiting::{margin, why_abandoned};
use super::window::{self, Window};
use super::{Runs, offers, retry};
use crate::clock::later;
use crate::election::Member;
use crate::engine::clocks::AHEAD;
use crate::engine::commits::{Purpose, UnreportedSkip};
use crate::engine::context::{Context, Fact};
use crate::engine::misfire::Missed;
use crate::engine::report::Report;
use crate::job::{JobName, Overlap};
use crate::ledger::{Change, Commit, CommitId, OwnerState, Request, Running};
use crate::run::{
    KillRequest, Link, OnLoss, Outcome, Reason, RunEnd, RunId, RunRecord, RunState, Skip, SkipReason, UpstreamResult,
    Version,
};

/// Longest time that a run stays cut off. After that, a host that never comes back no longer blocks other runs.
pub(super) const LONGEST_CUT_OFF: Duration = Duration::from_secs(24 * 3600);

/// How long the leader waits for the report of a node that has just come back, before it gives up a run of it whose time
/// is over. It is shorter than the second between that time and the next occurrence, which must find the job free.
const REPORTING: Duration = Duration::from_millis(400);

impl Runs {
    /// Begins a term with the runs in flight that earlier leaders left. `lost_until`: until when what was to begin may
    /// have begun by a commit that the store has lost.
    pub fn begin_term(&mut self, cx: &mut Context, mut running: Vec<Running>, lost_until: Option<Timestamp>) {
        self.agenda = super::Agenda::default();
        self.begin_placing(cx);
        self.sharing = super::Sharing::default();
        self.noted_loss = lost_until;
        // Nobody notices a loss before it happens. A later time is that of a clock that is wrong.
        self.lost_until = lost_until.map(|until| until.min(later(cx.latest, AHEAD.unsigned_abs())));
        // Unanswered attempts of an earlier term. Those that were written are in the snapshot, which was read after
        // that term's candidate was gone; the others can no longer be written.
        self.retain(cx, ActiveRun::is_begun);
        self.release_all_unneeded_locks(cx);
        running.sort_by_key(|found| (found.record.scheduled_at, found.record.job.clone()));
        for Running { record, version, owner } in running {
            let run = record.id();
            match self.active.get(&run).filter(|active| active.is_local()) {
                // This node's end will be rejected: another attempt has begun since, and counts from now on.
                Some(own)
                    if own.process().is_none()
                        && !own.is_offered()
                        && own.record.attempt <= record.attempt
                        && !own.record.is_same_attempt(&record) =>
                {
                    self.supersede(cx, &run, StopCause::Superseded);
                    self.adopt(cx, &run, record, version, owner);
                }
                // It was moved since it was offered here.
                Some(own) if own.is_offered() && own.commit.is_none() && !offers::is_for(cx, &record) => {
                    self.active.remove(&run);
                    self.adopt(cx, &run, record, version, owner);
                    self.release_unneeded_locks(cx, &run);
                }
                Some(_) => self.on_own_read(cx, &run, Some((record, version))),
                None => self.adopt(cx, &run, record, version, owner),
            }
        }
    }

    /// Until when what was to begin may have begun by a commit that the store has lost; `None` if nothing is lost.
    pub fn lost_until(&self) -> Option<Timestamp> {
        self.lost_until
    }

    /// True if what was to begin then may have begun by a commit that the store has lost.
    pub fn may_be_lost(&self, at: Timestamp) -> bool {
        self.lost_until.is_some_and(|until| at <= until)
    }

    fn may_be_begun(&self, active: &ActiveRun) -> bool {
        let waits = matches!(active.record.state, RunState::Queued | RunState::Unstarted) && !active.record.has_past();
        waits && self.may_be_lost(active.record.begun_at)
    }

    /// True if an attempt may have begun, or have ended, by a commit that the store has lost: the one in the record, or
    /// the next one if that was due by then. What this term has begun, this leader knows.
    fn is_in_doubt(&self, cx: &Context, record: &RunRecord) -> bool {
        let is_of_earlier_term = cx.token().is_some_and(|token| record.token < token);
        is_of_earlier_term && record.attempt > 0 && self.may_be_lost(record.retry_at.unwrap_or(record.begun_at))
    }

    /// The end of an attempt whose node is gone, as far as anyone knows.
    pub(super) fn lost_end(&self, cx: &Context, record: &RunRecord) -> RunEnd {
        if record.state != RunState::Queued && self.is_in_doubt(cx, record) {
            let detail = Some("the service has lost commits, one of which may have ended it".to_owned());
            return RunEnd { detail, ..RunEnd::unseen(record, Outcome::Abandoned, None, cx.now.wall) };
        }
        // A run that only waited had no node to lose.
        let reason = (record.state != RunState::Queued).then_some(Reason::NodeDied);
        RunEnd::unseen(record, Outcome::Interrupted, reason, cx.now.wall)
    }

    /// Ends the term: drops all runs that this node does not have itself.
    pub fn end_term(&mut self, cx: &mut Context) {
        self.agenda = super::Agenda::default();
        self.placing = super::Placing::default();
        self.retain(cx, ActiveRun::is_local);
        self.release_all_unneeded_locks(cx);
        self.watch_all(cx);
    }

    /// Adds a run of another node, or of none, by its record and the state of its owner.
    fn adopt(&mut self, cx: &mut Context, run: &RunId, record: RunRecord, version: Version, owner: OwnerState) {
        if self.is_over_here(cx, &record) {
            return self.look_up_over(cx, run, record, version);
        }
        let record = as_known_here(cx, record);
        let state = record.state;
        let is_held = owner == OwnerState::Alive && !state.waits();
        let active_state = match state {
            RunState::Placed => ActiveRunState::Placed,
            _ if is_held => ActiveRunState::Remote,
            _ => ActiveRunState::Unowned,
        };
        self.note_answer(cx, &record);
        self.active.insert(run.clone(), ActiveRun::new(record, version, active_state));
        self.changed(cx, run.job());
        match (state, owner) {
            (RunState::Placed, _) => self.await_answer(cx, run),
            (RunState::Queued, _) => self.await_others(cx, run),
            (RunState::Retrying | RunState::Unstarted, _) => self.await_retry(cx, run),
            // Cut off and alive: its owner is back and about to claim it. Until then nothing ends its process.
            (RunState::Running | RunState::CutOff, OwnerState::Alive) => cx.ledger(Request::Watch(run.clone())),
            (RunState::Running, owner) => self.settle_lost(cx, run, owner),
            (RunState::CutOff, OwnerState::Dead) => self.settle_dead(cx, run),
            (RunState::CutOff, OwnerState::Gone) => self.keep_cut_off(cx, run),
        }
        self.apply_kill(cx, run);
    }

    /// Adds a run that this node did not know of. A leader tracks every run, so it watches this one too.
    pub(super) fn adopt_unknown(&mut self, cx: &mut Context, run: &RunId, found: Option<(RunRecord, Version)>) {
        if let Some((record, version)) = &found
            && self.is_over_here(cx, record)
        {
            return self.look_up_over(cx, run, record.clone(), *version);
        }
        let (Some((record, version)), leads) = (found, cx.leads()) else { return };
        if !leads && offers::is_for(cx, &record) {
            return self.insert_offered(cx, record, version);
        }
        if leads {
            let record = as_known_here(cx, record);
            self.note_answer(cx, &record);
            let state = record.state;
            self.active.insert(run.clone(), ActiveRun::new(record, version, ActiveRunState::Remote));
            self.changed(cx, run.job());
            match state {
                RunState::Queued => self.await_others(cx, run),
                RunState::Running => cx.ledger(Request::Watch(run.clone())),
                RunState::Placed => self.on_still_placed(cx, run),
                RunState::Retrying | RunState::Unstarted => self.await_retry(cx, run),
                RunState::CutOff => self.keep_cut_off(cx, run),
            }
            self.apply_kill(cx, run);
        }
    }

    /// Settles a run whose owner is gone, by the rule that was fixed when it began.
    pub(super) fn settle_lost(&mut self, cx: &mut Context, run: &RunId, owner: OwnerState) {
        let Some(active) = self.active.get(run) else { return };
        let margin = margin(cx, run);
        let is_over = active.record.keep_until.is_some_and(|until| later(until, margin) <= cx.due);
        match (active.record.on_loss, owner) {
            (OnLoss::Rerun, _) => self.retry_at_its_time(cx, run),
            (OnLoss::Interrupt, _) | (OnLoss::CutOff, OwnerState::Dead) => self.settle_dead(cx, run),
            (OnLoss::CutOff, _) if is_over => self.abandon(cx, run),
            (OnLoss::CutOff, _) => {
                let record = active.record.clone();
                let nonce = cx.nonce();
                let longest = later(cx.due, LONGEST_CUT_OFF);
                let keep_until = Some(record.keep_until.map_or(longest, |until| until.min(longest)));
                self.update(cx, run, RunRecord { state: RunState::CutOff, keep_until, nonce, ..record });
            }
        }
    }

    /// Writes a run's new record: another attempt, here or placed; the run as taken back, or as cut off.
    pub(super) fn update(&mut self, cx: &mut Context, run: &RunId, record: RunRecord) {
        let Some(active) = self.active.get(run) else { return };
        let is_attempt = matches!(record.state, RunState::Running | RunState::Placed);
        let in_doubt = is_attempt && self.is_in_doubt(cx, &active.record);
        let Some(active) = self.active.get_mut(run) else { return };
        let before = std::mem::replace(&mut active.record, record.clone());
        let taken_from = (before.state == RunState::Placed).then(|| before.owner.node.clone());
        active.waiting = (!before.state.has_process()).then(|| Box::new(before));
        let at = active.version;
        let purpose = Purpose::UpdateRun { run: run.clone(), is_cut_off: record.state == RunState::CutOff, in_doubt };
        let id = cx.commit(Change::UpdateRun { at, run: record, taken_from }, purpose);
        self.note_settling(cx, run, id);
    }

    fn settle_dead(&mut self, cx: &mut Context, run: &RunId) {
        if let Some(active) = self.active.get(run) {
            let end = self.lost_end(cx, &active.record);
            self.settle_as(cx, run, end);
        }
    }

    /// Ends a cut-off run whose time is over.
    fn abandon(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        let is_back = self.agenda.is_alive(&active.record.owner.node);
        let detail = Some(why_abandoned(cx, &active.record, is_back));
        let end = RunEnd { detail, ..RunEnd::unseen(&active.record, Outcome::Abandoned, None, cx.now.wall) };
        self.settle_as(cx, run, end);
    }

    fn settle_end(&mut self, cx: &mut Context, run: &RunId, outcome: Outcome, reason: Option<Reason>) {
        let Some(active) = self.active.get(run) else { return };
        let end = RunEnd::unseen(&active.record, outcome, reason, cx.now.wall);
        self.settle_as(cx, run, end);
    }

    /// Writes the end of a run that no node has.
    pub(super) fn settle_as(&mut self, cx: &mut Context, run: &RunId, end: RunEnd) {
        let Some(active) = self.active.get(run).filter(|active| active.commit.is_none()) else { return };
        let change = Change::End { at: active.version, end: end.clone(), as_leader: true };
        if self.step(cx, run, RunStep::Settle) {
            let id = cx.commit(change, Purpose::End { run: run.clone(), settled: Some(Box::new(end)) });
            self.note_settling(cx, run, id);
        }
    }

    pub(super) fn note_settling(&mut self, cx: &mut Context, run: &RunId, id: CommitId) {
        if let Some(active) = self.active.get_mut(run) {
            active.commit = Some(id);
        }
        cx.add_to_takeover(id);
    }

    /// Handles the answer to another attempt, or to marking a run cut off.
    pub fn on_update_answer(&mut self, cx: &mut Context, run: &RunId, id: CommitId, in_doubt: bool, answer: Commit) {
        let Some(active) = self.answered_run(run, id) else { return };
        let is_own = active.is_local();
        match answer {
            Commit::Accepted => {
                active.version = active.version.next();
                active.waiting = None;
                if in_doubt {
                    cx.report(Report::BegunInDoubt { run: run.clone(), attempt: active.record.attempt });
                }
                match active.record.state {
                    _ if is_own => self.on_begun(cx, run),
                    RunState::Placed => self.on_placed(cx, run),
                    RunState::Unstarted => self.on_taken_back(cx, run),
                    RunState::Queued => self.queue_again(cx, run),
                    _ => self.on_cut_off(cx, run),
                }
                // It may have been requested while the write was on its way.
                self.apply_kill(cx, run);
                self.take_up_news(cx, run);
            }
            Commit::Unknown if is_own => self.read_unconfirmed(cx, run),
            Commit::Superseded | Commit::Unknown => self.on_settled_by_another(cx, run),
            Commit::Fenced => self.leave(cx, run),
        }
    }

    fn on_cut_off(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        let (owner, keep_until) = (active.record.owner.node.clone(), active.record.keep_until);
        cx.report(Report::CutOff { run: run.clone(), owner, keep_until });
        self.keep_cut_off(cx, run);
    }

    /// Keeps a cut-off run until its time is over, and watches for its owner's return.
    fn keep_cut_off(&mut self, cx: &mut Context, run: &RunId) {
        self.give_up_at_its_time(cx, run);
        cx.ledger(Request::Watch(run.clone()));
    }

    /// Takes the nodes that are alive.
    pub fn on_members(&mut self, cx: &mut Context, members: &[Member]) {
        self.on_living(cx, members);
        self.agenda.members = members.iter().map(|member| member.node.clone()).collect();
    }

    fn give_up_at_its_time(&mut self, cx: &mut Context, run: &RunId) {
        if self.step(cx, run, RunStep::CutOff)
            && let Some(until) = self.active.get(run).and_then(|active| active.record.keep_until)
        {
            self.agenda.keeps.insert((later(until, margin(cx, run)), run.clone()));
        }
    }

    /// Gives up the cut-off runs whose time is over.
    pub fn give_up_cut_off(&mut self, cx: &mut Context) {
        while cx.may_decide() && !self.is_quiet() {
            let Some(run) = pop_due(&mut self.agenda.keeps, cx.due) else { return };
            let Some(active) = self.active.get(&run) else { continue };
            if !matches!(active.state(), ActiveRunState::CutOff) {
                continue;
            }
            let record = &active.record;
            let latest = record.keep_until.map(|until| later(later(until, margin(cx, &run)), REPORTING));
            match latest.filter(|latest| cx.due < *latest && self.agenda.is_alive(&record.owner.node)) {
                Some(latest) => drop(self.agenda.keeps.insert((latest, run))),
                None => self.abandon(cx, &run),
            }
        }
    }

    /// Handles the answer to the end of a run that the leader settles.
    pub fn on_settled_end_answer(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        id: CommitId,
        end: Box<RunEnd>,
        answer: Commit,
        before: Option<Outcome>,
    ) {
        let is_awaited = self.answered_run(run, id).is_some();
        match answer {
            Commit::Accepted => {
                if is_awaited {
                    self.close(cx, run);
                }
                // Also if the term is over and the run forgotten: nobody else will report this end.
                cx.report(Report::Finished(end.clone()));
                cx.facts.push_back(Fact::Ended { job: None, end, before });
            }
            _ if !is_awaited => {}
            Commit::Superseded | Commit::Unknown => self.on_settled_by_another(cx, run),
            Commit::Fenced => self.leave(cx, run),
        }
    }

    /// Reads a run again that another node wrote, or may have written, while this leader was settling it. News that
    /// arrived meanwhile may be older than that write.
    pub(super) fn on_settled_by_another(&mut self, cx: &mut Context, run: &RunId) {
        // The answer can come after the term: then the run is the business of the current leader.
        if !cx.leads() {
            return self.leave(cx, run);
        }
        if !self.step(cx, run, RunStep::Disown) {
            return;
        }
        let news = self.active.get_mut(run).and_then(|active| active.news.take());
        cx.ledger(Request::Watch(run.clone()));
        cx.ledger(Request::ReadRun(run.clone()));
        if let Some(news) = news {
            self.on_news(cx, run, news);
        }
    }

    /// Handles news of a run that this leader watches.
    pub fn on_news(&mut self, cx: &mut Context, run: &RunId, news: News) {
        if !cx.leads() {
            return;
        }
        let Some(active) = self.active.get_mut(run) else { return };
        if active.commit.is_some() {
            return active.note_news(news);
        }
        if active.is_local() {
            return;
        }
        let is_quiet = self.agenda.is_quiet();
        if is_quiet && matches!(news, News::OwnerGone(..)) {
            self.agenda.gone.insert(run.clone());
        }
        match news {
            News::OwnerGone(owner, Some((record, version)))
                if !is_quiet && (record.state == RunState::Running || owner == OwnerState::Dead) =>
            {
                self.adopt(cx, run, record, version, owner);
            }
            News::OwnerGone(_, found) | News::Changed(found) => self.on_other_read(cx, run, found),
        }
    }

    /// Writes a run as it is known over an older record: the service has lost what was written since, and whoever has the
    /// run may be out of touch with it.
    fn write_forward(&mut self, cx: &mut Context, run: &RunId, found: RunRecord, version: Version) {
        let Some(active) = self.active.get_mut(run) else { return };
        active.version = version;
        active.record.kill = found.kill.or(active.record.kill.take());
        let is_offered_again = active.is_placed() && active.record.owner.node == found.owner.node;
        let is_taken = found.state == RunState::Placed && !is_offered_again;
        self.rewrite(cx, run, is_taken.then_some(found.owner.node));
    }

    fn on_other_read(&mut self, cx: &mut Context, run: &RunId, found: Option<(RunRecord, Version)>) {
        let Some((record, version)) = found else {
            // Ended by another node; or the service has lost it, perhaps before this leader could begin it.
            let is_shared_out = self.is_shared_out(run);
            let resumed_at = self.placing.resumed_at;
            let is_lost = |active: &mut ActiveRun| {
                let is_gone = active.is_to_share() && is_shared_out;
                let is_doubtful = active.is_unanswered() && active.is_placed_by(resumed_at);
                !is_gone && (active.put_back() || waits_for_leader(active) || is_doubtful)
            };
            if !self.active.get_mut(run).is_some_and(is_lost) {
                return self.leave(cx, run);
            }
            if self.active.get(run).is_some_and(|active| active.record.state == RunState::Placed) {
                // It was to be moved when it was lost.
                self.step(cx, run, RunStep::Place);
            }
            return self.look_up(cx, run);
        };
        if self.is_over_here(cx, &record) {
            return self.look_up(cx, run);
        }
        let record = as_known_here(cx, record);
        self.note_answer(cx, &record);
        let Some(active) = self.active.get_mut(run) else { return };
        if version < active.version {
            self.placing.on_loss(cx);
            if active.is_older(&record) {
                return self.write_forward(cx, run, record, version);
            }
        }
        let was_lost = active.is_unowned() && active.record.state == RunState::Running;
        let was_remote = active.is_remote();
        let was_accepted = was_remote && !active.is_unanswered();
        if was_accepted && record.state == RunState::Placed && active.record.is_same_attempt(&record) {
            self.placing.on_loss(cx);
        }
        let (state, request) = (record.state, active.record.kill.take());
        let is_unwritten = record.kill.is_none() && request.is_some();
        let is_other_attempt = !active.record.is_same_attempt(&record);
        (active.record, active.version, active.waiting) = (record, version, None);
        active.record.kill = active.record.kill.take().or(request);
        if !matches!(state, RunState::Placed | RunState::Running) {
            active.placed = None;
        }
        match state {
            RunState::Queued => self.queue_again(cx, run),
            RunState::Placed => self.on_still_placed(cx, run),
            RunState::Running => {
                let was_placed = self.active.get(run).is_some_and(|active| active.placed.is_some());
                self.step(cx, run, RunStep::FindRemote);
                if was_placed {
                    self.on_accepted_elsewhere(cx, run);
                } else if was_lost || !was_remote {
                    // The watch reports a gone owner once. Watching again makes it report the owner again, if it is
                    // still gone.
                    cx.ledger(Request::Watch(run.clone()));
                }
            }
            RunState::Retrying | RunState::Unstarted => self.retry_at_its_time(cx, run),
            RunState::CutOff => self.give_up_at_its_time(cx, run),
        }
        if is_other_attempt {
            self.changed(cx, run.job());
        }
        if is_unwritten { self.write_kill(cx, run) } else { self.apply_kill(cx, run) }
    }

    /// Performs the kill that a run's record requests, as far as this node can.
    pub(super) fn apply_kill(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        let Some(kill) = &active.record.kill else { return };
        let (reason, force, leads) = (kill.reason, kill.force, cx.leads());
        match active.state() {
            ActiveRunState::Local(local) => match &local.phase {
                Phase::Alive(_) => self.stop(cx, run, StopCause::Killed(reason)),
                // Accepted by the ledger, but not started yet.
                Phase::Beginning | Phase::Accepting(_) if active.commit.is_none() => self.end_killed(cx, run),
                Phase::Offered(_) if leads && active.commit.is_none() => self.end_killed(cx, run),
                // The attempt is over, and no other must follow.
                Phase::Releasing(_) => self.end_killed(cx, run),
                Phase::Offered(_) | Phase::Accepting(_) | Phase::Beginning | Phase::Unconfirmed | Phase::Ended(_) => {}
            },
            ActiveRunState::Unowned | ActiveRunState::Placed if leads && active.commit.is_none() => {
                self.settle_end(cx, run, Outcome::Killed, Some(reason))
            }
            ActiveRunState::CutOff if leads && force => self.settle_end(cx, run, Outcome::Killed, Some(reason)),
            ActiveRunState::Unowned
            | ActiveRunState::Placed
            | ActiveRunState::Remote
            | ActiveRunState::CutOff
            | ActiveRunState::Settling => {}
        }
    }

    /// Writes the kill request for another node's run into its record.
    pub(super) fn write_kill(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run).filter(|active| active.commit.is_none()) else { return };
        if !matches!(active.state(), ActiveRunState::Remote) {
            return self.apply_kill(cx, run);
        }
        let change = Change::Kill { at: active.version, run: active.record.clone() };
        let id = cx.commit(change, Purpose::Kill { run: run.clone() });
        if let Some(active) = self.active.get_mut(run) {
            active.commit = Some(id);
        }
    }

    /// Handles the answer to a kill request for another node's run.
    pub fn on_kill_answer(&mut self, cx: &mut Context, run: &RunId, id: CommitId, answer: Commit) {
        let Some(active) = self.answered_run(run, id) else { return };
        match answer {
            Commit::Accepted => {
                active.version = active.version.next();
                self.take_up_news(cx, run);
            }
            // The record as it is now decides if the request is written again.
            Commit::Superseded | Commit::Unknown => cx.ledger(Request::ReadRun(run.clone())),
            Commit::Fenced => {}
        }
    }

    /// Schedules a run, new to this leader, that waits for another attempt.
    pub(super) fn await_retry(&mut self, cx: &mut Context, run: &RunId) {
        self.retry_at_its_time(cx, run);
        self.watch_unowned(cx, run);
    }

    /// Schedules a run that waits for this leader.
    pub(super) fn await_its_turn(&mut self, cx: &mut Context, run: &RunId) {
        match self.active.get(run).map(|active| active.record.state) {
            Some(RunState::Queued) => self.await_others(cx, run),
            _ => self.await_retry(cx, run),
        }
    }

    fn watch_unowned(&mut self, cx: &mut Context, run: &RunId) {
        if self.active.get(run).is_some_and(ActiveRun::is_unowned) {
            cx.ledger(Request::Watch(run.clone()));
        }
    }

    /// Schedules another attempt of a run that no node has. Only a leader whose lease holds begins it, because an
    /// attempt begun without a lease is not started.
    fn retry_at_its_time(&mut self, cx: &mut Context, run: &RunId) {
        if !self.step(cx, run, RunStep::Disown) {
            return;
        }
        let Some(active) = self.active.get(run).filter(|_| cx.leads()) else { return };
        let at = self.again_at(cx, run, active).unwrap_or_else(|| run.scheduled_at().min(cx.due));
        self.agenda.retries.insert((at, run.clone()));
    }

    /// When a run must be begun again; `None`: at once. A run that was begun ahead of its time, and then released,
    /// waits for its time on every node.
    fn again_at(&self, cx: &Context, run: &RunId, active: &ActiveRun) -> Option<Timestamp> {
        // Also if its owner died while it held the start: nobody knows whether its program began.
        let waits = active.never_started() || active.record.state == RunState::Running;
        let its_time = self.time_to_come(cx, run).filter(|_| waits);
        let is_placed =
            cx.job(run.job()).is_some_and(|job| cx.places(job)) && active.record.state == RunState::Unstarted;
        let retry_at = match is_placed {
            // It goes to another node meanwhile; but not from one to the next if it fails everywhere.
            true => {
                let setbacks = active.record.placement.as_ref().map_or(0, |placement| placement.setbacks);
                active.record.retry_at.filter(|_| setbacks > 1 || self.is_only_place(cx, active))
            }
            false => retry::retry_at(&active.record, &cx.node),
        };
        its_time.max(retry_at)
    }

    /// Takes the next run that must be begun again now.
    pub fn pop_retry(&mut self, cx: &Context) -> Option<RunId> {
        self.agenda.next_retry()?;
        pop_due(&mut self.agenda.retries, cx.due)
    }

    /// Has all runs of a job checked that wait for another attempt.
    pub fn retry_all_of(&mut self, cx: &Context, job: &JobName) {
        if cx.leads() {
            let waiting: Vec<RunId> = self.active.of_job(job).map(|(run, _)| run.clone()).collect();
            self.check_now(cx, waiting);
        }
    }

    /// Has runs checked now that wait for another attempt, or for their first one, the oldest first.
    pub(super) fn check_now(&mut self, cx: &Context, runs: impl IntoIterator<Item = RunId>) {
        self.agenda.retries.extend(runs.into_iter().map(|run| (run.scheduled_at().min(cx.due), run)));
    }

    /// Begins an unowned run again, unless its state has changed since it was scheduled.
    pub fn retry(&mut self, cx: &mut Context, run: &RunId) {
        let job = cx.job(run.job());
        let (is_defined, is_placed) = (job.is_some(), job.is_some_and(|job| cx.places(job)));
        // A queued run whose job is not defined here is handled here too: it waits for the job.
        let waits = |active: &&ActiveRun| active.is_idle() && (!active.is_queued() || !is_defined || is_placed);
        let Some(active) = self.active.get(run).filter(waits) else { return };
        if active.is_queued() && is_defined {
            // It waited for a node, or for room on one. Others may be in its way now.
            return self.begin_if_free(cx, run);
        }
        let later = self.again_at(cx, run, active).filter(|&at| at > cx.due);
        if let Some(at) = later {
            // The clock was set back.
            self.agenda.retries.insert((at, run.clone()));
        }
        if later.is_some() || self.active.is_refused(run.job()) {
            self.release_locks(cx, run);
        } else {
            self.begin_again(cx, run);
        }
    }

    /// Begins another attempt of a run that no node has. Ends the run if its job is not defined.
    fn begin_again(&mut self, cx: &mut Context, run: &RunId) {
        // If it is gone it must be written first. Whatever is found has it begun then.
        let Some(active) = self.active.get(run).filter(|_| !self.is_looked_up(run)) else { return };
        if active.record.kill.is_some() {
            return self.apply_kill(cx, run);
        }
        if self.may_be_begun(active) {
            return self.skip(cx, run, SkipReason::Rewound);
        }
        let job = cx.job(run.job()).cloned();
        let waits_for_node = active.is_queued() && active.record.no_node_since.is_some();
        if active.never_started() || waits_for_node || (active.is_queued() && job.is_none()) {
            match window::of(cx, &active.record) {
                Window::Over if waits_for_node || self.placing.unplaced.contains(run) => {
                    return self.skip(cx, run, SkipReason::NoNode);
                }
                Window::Over => return self.skip(cx, run, SkipReason::Missed),
                // Wait until a node leads whose file defines the job.
                Window::UndefinedUntil(at) => {
                    if cx.leads() {
                        self.agenda.retries.insert((at, run.clone()));
                    }
                    return self.release_locks(cx, run);
                }
                Window::Open => {}
            }
        }
        let Some((token, owner)) = cx.token().zip(cx.owner()) else { return };
        let Some(job) = job else { return self.end_as_before(cx, run) };
        if let Err(why) = active.record.parameters.fit(&job) {
            let next = Attempt { owner, token, nonce: cx.nonce(), placement: None };
            let next = retry::next_attempt(cx, active, &self.lost_end(cx, &active.record), &job, next);
            return self.settle_as(cx, run, retry::end_for_parameters(next, &job, &why));
        }
        if cx.places(&job) {
            return self.place_again(cx, run, &job);
        }
        if active.is_to_share() {
            // It was to be shared out, and runs on the leader now.
            return self.skip(cx, run, SkipReason::NoNode);
        }
        if !self.has_locks(cx, run, &job) {
            return;
        }
        let Some(active) = self.active.get(run) else { return };
        let next = Attempt { owner, token, nonce: cx.nonce(), placement: None };
        let record = retry::next_attempt(cx, active, &self.lost_end(cx, &active.record), &job, next);
        if self.step(cx, run, RunStep::Begin(job)) {
            self.update(cx, run, record);
        }
    }

    /// Ends a run that gets no further attempt as its last attempt ended.
    pub(super) fn end_as_before(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        let end = retry::end_without_job(&active.record, self.lost_end(cx, &active.record));
        self.settle_as(cx, run, end);
    }

    /// Records a job's runs as missed that never had a process and whose window is over, so that they do not block the
    /// job's next run.
    pub fn miss_overdue(&mut self, cx: &mut Context, job: &JobName) {
        if self.is_quiet() {
            return;
        }
        let is_over = |active: &ActiveRun| {
            let is_unplaced = active.is_queued() && self.placing.unplaced.contains(&active.record.id());
            active.is_idle()
                && (active.never_started() || is_unplaced)
                && matches!(window::of(cx, &active.record), Window::Over)
        };
        let overdue = self.active.of_job(job).filter(|(_, active)| is_over(active));
        let overdue: Vec<RunId> = overdue.map(|(run, _)| run.clone()).collect();
        overdue.iter().for_each(|run| self.miss(cx, run));
    }

    fn miss(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get(run) else { return };
        // Whatever it waits for, that is not what comes of it now.
        match active.is_queued() && active.record.kill.is_none() && !self.may_be_begun(active) {
            true => self.skip(cx, run, SkipReason::NoNode),
            false => self.begin_again(cx, run),
        }
    }

    /// Records a run that no node has, and that had no process, as skipped.
    pub fn skip(&mut self, cx: &mut Context, run: &RunId, reason: SkipReason) {
        let Some(token) = cx.token() else { return };
        // It may be over: the answer shows, and a commit in flight would hide it.
        if self.is_looked_up(run) {
            return;
        }
        let Some(active) = self.active.get(run).filter(|active| active.commit.is_none()) else { return };
        let record = &active.record;
        let skip = cx.new_skip(token, &record.job, reason, Missed::one(record.scheduled_at));
        let detail = if reason == SkipReason::NoNode { self.why_nowhere(cx, run) } else { None };
        let skip = Skip { trigger: record.trigger.clone(), on: record.on.clone(), detail, ..skip };
        // A run that an operator has triggered is the first of its chain.
        let is_first = record.trigger.is_some() && record.ready_at.is_none();
        let is_in_chain = !is_first && cx.job(run.job()).is_some_and(|job| job.upstreams().is_some());
        let result = if is_in_chain { UpstreamResult::Skipped } else { UpstreamResult::NotBegun };
        let links = Link::of_skip(&skip, skip.first, 1, result, &record.dependents);
        let links = Link::since(links, Some(record.earliest_end()));
        let taken_from = (record.state == RunState::Placed).then(|| record.owner.node.clone());
        let change = Change::SkipRun { at: active.version, run: run.clone(), skip: skip.clone(), links, taken_from };
        if self.step(cx, run, RunStep::Settle) {
            let id = cx.commit(change, Purpose::SkipRun { run: run.clone(), skip: UnreportedSkip::of(skip) });
            self.note_settling(cx, run, id);
        }
    }

    /// Handles the answer to recording a run as skipped.
    pub fn on_skip_answer(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        id: CommitId,
        skip: UnreportedSkip,
        answer: Commit,
    ) {
        if self.answered_run(run, id).is_none() {
            return;
        }
        match answer {
            Commit::Accepted => {
                self.close(cx, run);
                cx.facts.push_back(Fact::Skipped(skip));
            }
            Commit::Superseded | Commit::Unknown => self.on_settled_by_another(cx, run),
            Commit::Fenced => self.leave(cx, run),
        }
    }

    /// Handles the answer to the begin of a run that waits for others.
    pub(super) fn on_queued_answer(&mut self, cx: &mut Context, run: &RunId, answer: Commit) {
        match answer {
            Commit::Accepted => self.await_others(cx, run),
            Commit::Superseded | Commit::Fenced => self.leave(cx, run),
            Commit::Unknown => {
                self.forget(cx, run);
                // If the ledger has it, the read adds it again.
                if cx.session.is_some() && cx.leads() {
                    cx.ledger(Request::ReadRun(run.clone()));
                }
            }
        }
    }

    /// Queues a run, new to this leader, that waits for others.
    fn await_others(&mut self, cx: &mut Context, run: &RunId) {
        self.queue_again(cx, run);
        if self.active.get(run).is_some_and(|active| active.record.no_node_since.is_some()) {
            // Its window continues, even while others are in its way.
            self.check_now(cx, [run.clone()]);
        }
        self.apply_kill(cx, run);
        // What is shared out at once shows by its version if somebody else has changed it.
        if !self.active.is_to_share(run) {
            self.watch_unowned(cx, run);
        }
    }

    fn queue_again(&mut self, cx: &mut Context, run: &RunId) {
        if self.step(cx, run, RunStep::Disown) {
            self.changed(cx, run.job());
        }
    }

    /// Begins waiting runs that nothing blocks any more, in the order of their occurrences.
    ///
    /// Checks only runs that a change concerns: the waiting runs of a job, and those of a group as far as it has room.
    pub fn begin_waiting(&mut self, cx: &mut Context) {
        if !cx.may_decide() || self.is_quiet() {
            return;
        }
        let placed = std::mem::take(&mut self.agenda.changed_placed);
        self.begin_changed(cx, placed);
        if !self.agenda.changed.is_none() && self.may_begin(cx) {
            let changed = std::mem::take(&mut self.agenda.changed);
            self.begin_changed(cx, changed);
        }
    }

    fn begin_changed(&mut self, cx: &mut Context, changed: Changed) {
        let Changed { all, jobs, mut groups } = changed;
        let position = |run: &RunId| (run.scheduled_at(), run.clone());
        let mut runs: Vec<WaitingPosition> = Vec::new();
        match all {
            true => runs.extend(self.active.iter().filter(|(_, run)| run.is_waiting()).map(|(run, _)| position(run))),
            false => jobs.iter().for_each(|job| runs.extend(self.active.waiting_of(job).map(position))),
        }
        runs.sort_unstable();
        for (_, run) in runs {
            if !self.may_begin_of(cx, run.job()) {
                self.has_changed(cx, run.job());
                continue;
            }
            // Runs of a group are begun below, in the order of their occurrences among all of the group.
            let is_to_share = self.active.is_to_share(&run);
            if let Some(group) = self.group_of(run.job()).filter(|_| !is_to_share) {
                self.request_end_of_rivals(cx, &run);
                groups.insert(group);
            } else {
                self.begin_if_free(cx, &run);
            }
        }
        for group in groups {
            self.begin_in_group(cx, &group);
        }
    }

    /// Fills a group with runs that wait for a position in it.
    fn begin_in_group(&mut self, cx: &mut Context, group: &Arc<str>) {
        let mut last: Option<WaitingPosition> = None;
        while let Some(position) = self.active.next_waiting(group, last.as_ref()) {
            if cx.job(position.1.job()).is_some_and(|job| self.active.is_group_full(job)) {
                return self.release_locks_in_group(cx, group);
            }
            if !self.may_begin_of(cx, position.1.job()) {
                self.has_changed(cx, position.1.job());
                return;
            }
            self.begin_if_free(cx, &position.1);
            last = Some(position);
        }
    }

    /// Requests that the runs end which a waiting run replaces. Returns the runs that block it.
    fn request_end_of_rivals(&mut self, cx: &mut Context, run: &RunId) -> Vec<RunId> {
        let Some(overlap) = cx.job(run.job()).map(|job| job.overlap) else { return Vec::new() };
        if overlap == Overlap::Allow {
            return Vec::new();
        }
        let before = self.active.runs_before(run);
        if overlap == Overlap::Replace {
            before.iter().for_each(|other| self.replace(cx, other));
        }
        before
    }

    /// Begins a waiting run, unless something blocks it.
    fn begin_if_free(&mut self, cx: &mut Context, run: &RunId) {
        let is_refused = self.active.is_refused(run.job());
        let has_rivals = !is_refused && !self.request_end_of_rivals(cx, run).is_empty();
        let is_full =
            !self.active.is_to_share(run) && cx.job(run.job()).is_some_and(|job| self.active.is_group_full(job));
        if is_refused || has_rivals || is_full {
            self.release_locks(cx, run);
            self.await_others_first(cx, run);
        } else {
            self.begin_again(cx, run);
        }
    }

    fn replace(&mut self, cx: &mut Context, run: &RunId) {
        let by = format!("the next run, on {}", cx.node);
        let kill = KillRequest { reason: Reason::Replaced, by, at: cx.now.wall, force: false };
        self.request_to_end(cx, run, kill);
    }
}

/// Corrects the record of a run that the ledger has under a session of this very process, but that is not among its own
/// runs: its begin was never answered, so the run was never started.
fn as_known_here(cx: &Context, record: RunRecord) -> RunRecord {
    let is_ours = record.owner.node == cx.node && cx.is_own_session(&record.owner.session);
    let is_lost = is_ours && !record.state.waits() && record.state != RunState::Placed;
    let state = if is_lost { RunState::Unstarted } else { record.state };
    RunRecord { state, ..record }
}
