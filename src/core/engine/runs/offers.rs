//! Attempts that the leader has placed on this node: accepted shortly before their time, or refused.
//!
//! ```text
//!   placed here ─► offered ─┬─ its time is near, and there is room ─► accepting ─ accepted ─► held, started
//!                           └─ not as the leader took it to be ─────► refused: the leader places it elsewhere
//! ```
//!
//! Nothing is started before the ledger has accepted the acceptance, at the version that was read and while the own member
//! exists. So what was not accepted is known not to have been started, and the leader may take it back. The node reads
//! nothing but the occurrence and a digest from the record: what it runs is in its own file.

use std::collections::BTreeSet;
use std::time::Duration;

use super::active_run::{ActiveRun, ActiveRunState, LocalRun, News, Offer, Phase, Release, RunStep};
use super::ending::pause_after;
use super::placing::LOOK_AT_LOCKED_EVERY;
use super::{Runs, window};
use crate::clock::{Uptime, later};
use crate::engine::commits::Purpose;
use crate::engine::context::Context;
use crate::engine::report::Report;
use crate::ledger::{Change, Commit, CommitId, Request};
use crate::run::{Refusal, RefusalReason, RunId, RunRecord, RunState, Version};
use crate::term::FencingToken;

/// After this time without its locks, an attempt notes in its record that it waits for them.
const QUIET: Duration = Duration::from_millis(300);

/// The first look at the offers after a reconnect. What it finds is not accepted at once: it may have been taken back, and
/// have returned by a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstLook {
    Awaited,
    Over { at: Uptime },
}

impl Default for FirstLook {
    fn default() -> Self {
        Self::Over { at: Uptime::ZERO }
    }
}

impl Runs {
    /// Handles the attempts that are placed on this node: the ids of all, and the records of those that are new.
    pub fn on_offers(&mut self, cx: &mut Context, listed: &BTreeSet<RunId>, found: Vec<(RunRecord, Version)>) {
        let is_gone = |id: &RunId, run: &ActiveRun| run.is_offered() && run.commit.is_none() && !listed.contains(id);
        let gone = self.active.iter().filter(|(id, run)| is_gone(id, run)).map(|(id, _)| id.clone());
        // The list may be older than what this node knows.
        gone.collect::<Vec<_>>().into_iter().for_each(|run| cx.ledger(Request::ReadRun(run)));
        for (record, version) in found {
            if is_for(cx, &record) {
                self.take_offer(cx, record, version);
            }
        }
        if self.first_look == FirstLook::Awaited {
            self.first_look = FirstLook::Over { at: cx.now.up };
        }
    }

    fn take_offer(&mut self, cx: &mut Context, record: RunRecord, version: Version) {
        let run = record.id();
        if !self.active.contains_key(&run) && self.is_over_here(cx, &record) {
            // The service has lost that it was accepted.
            return self.look_up_over(cx, &run, record, version);
        }
        match self.active.get_mut(&run) {
            None => self.insert_offered(cx, record, version),
            Some(active) if version < active.version => {}
            // It is being read whether this node has accepted it, which the list may be older than.
            Some(active) if matches!(active.phase(), Some(Phase::Unconfirmed)) => {}
            Some(active) if active.commit.is_some() => active.note_news(News::Changed(Some((record, version)))),
            Some(active) if active.is_offered() => {
                active.read(record, version);
                self.consider(cx, &run);
            }
            Some(_) => self.on_read(cx, &run, Some((record, version))),
        }
    }

    /// Adds an attempt that is placed on this node.
    pub(super) fn insert_offered(&mut self, cx: &mut Context, record: RunRecord, version: Version) {
        let not_before = match self.first_look {
            FirstLook::Awaited => cx.now.up + self.claims_take(),
            // The node that has the run may write that the service has lost it.
            FirstLook::Over { at } if record.attempt > 1 && self.resumed_at.is_some() => at + self.claims_take(),
            FirstLook::Over { .. } => Uptime::ZERO,
        };
        let (run, offer) = (record.id(), Offer::new(cx.now.up, not_before));
        let state = ActiveRunState::Local(LocalRun { job: None, phase: Phase::Offered(offer) });
        self.active.insert(run.clone(), ActiveRun::new(record, version, state));
        self.consider(cx, &run);
    }

    /// Offers a run to this node that the leader here has placed on it.
    pub(super) fn offer_here(&mut self, cx: &mut Context, run: &RunId) {
        if self.step(cx, run, RunStep::Offer(Offer::new(cx.now.up, Uptime::ZERO))) {
            self.active.get_mut(run).into_iter().for_each(|active| active.placed = None);
            self.consider(cx, run);
        }
    }

    /// Schedules the answer to an offer: shortly before its time, or now.
    pub(super) fn consider(&mut self, cx: &Context, run: &RunId) {
        let horizon = self.horizon.of(self.active.starting() + 1);
        // Half of the lease is left then, so that no program begins just when the lease ends.
        let is_covered = horizon * 2 < cx.lease_until.since(cx.now.up);
        let lead = if is_covered { horizon } else { Duration::ZERO };
        let at = self.begins_at(cx, run);
        let at = at.map_or(cx.now.up, |at| cx.now.up + at.since(cx.now.up).saturating_sub(lead));
        let not_before = self.active.get(run).and_then(ActiveRun::offer).map(|offer| offer.not_before);
        self.offers.set(run, not_before.map_or(at, |not_before| at.max(not_before)));
    }

    /// Considers all offers again, because something about this node has changed.
    pub fn consider_all(&mut self, cx: &Context) {
        let offered = self.active.iter().filter(|(_, run)| run.is_offered()).map(|(id, _)| id.clone());
        offered.collect::<Vec<_>>().iter().for_each(|run| self.consider(cx, run));
    }

    /// When the program of an attempt that was placed here may begin, if its time is to come: when this node's clock says
    /// so, but no later than by the leader's, plus the time that the offer took.
    pub(super) fn begins_at(&self, cx: &Context, run: &RunId) -> Option<Uptime> {
        let active = self.active.get(run)?;
        let by_own_clock = cx.now.up + self.time_to_come(cx, run)?.duration_since(cx.due).unsigned_abs();
        let ahead = active.record.placement.as_ref().map(|placement| Duration::from_millis(placement.ahead_ms));
        let by_leaders = active.offer().zip(ahead).map(|(offer, ahead)| offer.received + ahead);
        Some(by_leaders.map_or(by_own_clock, |at| at.min(by_own_clock))).filter(|&at| at > cx.now.up)
    }

    /// When the next offer is to be answered; `None` while none can be.
    pub fn offer_at(&self, cx: &Context) -> Option<Uptime> {
        let &(at, _) = self.offers.first()?;
        let must_wait = !self.trees.admission.has_room(self.active.starting()) || !self.may_accept(cx);
        (!must_wait).then_some(at)
    }

    /// True while the lease holds, and not too many starts are held.
    fn may_accept(&self, cx: &Context) -> bool {
        cx.session.is_some() && cx.now.up < cx.lease_until && !cx.is_at_once && self.has_hands()
    }

    /// Accepts or refuses what is to be answered now.
    pub fn answer_offers(&mut self, cx: &mut Context) {
        let now = cx.now.up;
        while let Some((_, run)) = self.offers.first().filter(|&&(at, _)| at <= now).cloned() {
            let Some(active) = self.active.get(&run).filter(|active| active.is_offered() && active.commit.is_none())
            else {
                self.offers.pop_due(now);
                continue;
            };
            if cx.session.is_none() {
                return;
            }
            if let Some(reason) = why_refused(cx, &active.record) {
                self.offers.pop_due(now);
                self.refuse(cx, &run, reason);
                continue;
            }
            if !self.trees.admission.admits(self.active.starting()) || !self.may_accept(cx) {
                return;
            }
            self.offers.pop_due(now);
            self.accept(cx, &run);
        }
    }

    /// Requests to accept an attempt. If its job has locks, it must hold them first.
    fn accept(&mut self, cx: &mut Context, run: &RunId) {
        let (Some(owner), Some(job)) = (cx.owner(), cx.job(run.job()).cloned()) else { return };
        // Whoever requested its end has it ended by the leader.
        if self.active.get(run).is_none_or(|active| active.record.kill.is_some()) {
            return;
        }
        if !self.has_locks(cx, run, &job) {
            return self.note_wait_for_locks(cx, run);
        }
        let (now, nonce) = (cx.now.wall, cx.nonce());
        let offer = self.active.get_mut(run).and_then(ActiveRun::offer_mut);
        offer.into_iter().for_each(|offer| offer.accepted_at = Some(cx.now.up));
        if !self.step(cx, run, RunStep::Accept(job)) {
            return;
        }
        let Some(active) = self.active.get_mut(run) else { return };
        let record = RunRecord { state: RunState::Running, owner, begun_at: now, nonce, ..active.record.clone() };
        active.record = record.clone();
        let id = cx.commit(Change::Accept { at: active.version, run: record }, Purpose::Accept { run: run.clone() });
        active.commit = Some(id);
    }

    /// After a while without its locks, notes that in the record of an attempt, so that the leader leaves it here.
    fn note_wait_for_locks(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get_mut(run).filter(|active| active.commit.is_none()) else { return };
        let Some(offer) = active.offer_mut() else { return };
        let quiet_until = *offer.quiet_until.get_or_insert(cx.now.up + QUIET);
        if cx.now.up < quiet_until {
            self.offers.set(run, quiet_until);
            return;
        }
        // It is refused once it is too late to begin it.
        self.offers.set(run, cx.now.up + LOOK_AT_LOCKED_EVERY);
        let Some(placement) = active.record.placement.as_mut().filter(|placement| !placement.awaits_locks) else {
            return;
        };
        placement.awaits_locks = true;
        active.record.nonce = cx.nonce();
        let change = Change::ChangeOwner { at: active.version, run: active.record.clone() };
        active.commit = Some(cx.commit(change, Purpose::ChangeOwner { run: run.clone() }));
    }

    /// Requests to refuse an attempt.
    pub(super) fn refuse(&mut self, cx: &mut Context, run: &RunId, reason: RefusalReason) {
        let report = Report::Refused { run: run.clone(), node: cx.node.clone(), reason };
        let release = Release { state: RunState::Unstarted, report: Some(Box::new(report)), refusal: Some(reason) };
        let its_time = self.time_to_come(cx, run);
        if !self.step(cx, run, RunStep::Release(release)) {
            return;
        }
        if let Some(active) = self.active.get_mut(run) {
            active.record.retry_at = its_time;
            let placed_at = active.record.begun_at;
            if let Some(placement) = &mut active.record.placement {
                if reason == RefusalReason::Late {
                    placement.setbacks += 1;
                    // By the leader's clock: this one may be wrong.
                    active.record.retry_at = its_time.max(Some(later(placed_at, pause_after(placement.setbacks))));
                }
                placement.refused =
                    Some(Refusal { node: cx.node.clone(), reason, digest: Some(cx.jobs.digest.clone()) });
            }
        }
        self.commit_next(cx, run);
    }

    /// Handles the answer to the acceptance of an attempt, with its fencing token.
    pub fn on_accept_answer(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        id: CommitId,
        answer: Commit,
        token: Option<FencingToken>,
    ) {
        let resumed_at = self.resumed_at;
        let Some(active) = self.answered_run(run, id) else { return };
        let crossed_reconnect =
            resumed_at.is_some() && active.offer().and_then(|offer| offer.accepted_at) <= resumed_at;
        match (answer, token) {
            (Commit::Accepted, Some(token)) if !crossed_reconnect => {
                active.version = active.version.next();
                if let Some(placement) = &mut active.record.placement {
                    placement.token = Some(token);
                }
                let took = cx.now.wall.duration_since(active.record.begun_at);
                self.horizon.accepted(Duration::try_from(took).unwrap_or_default());
                self.on_begun(cx, run);
                self.take_up_news(cx, run);
                if cx.leads() {
                    self.on_accepted_here(cx);
                }
            }
            // Nothing is started without a token that is larger than that of every earlier attempt.
            // What was carried out after a loss may have been taken back before: whoever has the run writes that.
            // What is superseded may have been carried out too: if the service has lost that, the leader, which has
            // read it, writes it again.
            (Commit::Accepted | Commit::Unknown | Commit::Superseded, _) => self.read_unconfirmed(cx, run),
            (Commit::Fenced, _) => {
                self.drop_offer(cx, run);
                if cx.session.is_some() {
                    cx.ledger(Request::ReadRun(run.clone()));
                }
            }
        }
    }

    /// Handles the record of a run that this node was offered, or whose acceptance was not answered.
    pub(super) fn on_offer_read(&mut self, cx: &mut Context, run: &RunId, found: Option<(RunRecord, Version)>) {
        let Some(active) = self.active.get_mut(run) else { return };
        match found {
            Some((record, version)) if is_for(cx, &record) && active.is_offered() => {
                active.read(record, version);
                self.apply_kill(cx, run);
                self.consider(cx, run);
            }
            found => {
                self.drop_offer(cx, run);
                match self.active.contains_key(run) {
                    true => self.on_news(cx, run, News::Changed(found)),
                    false => self.adopt_unknown(cx, run, found),
                }
            }
        }
    }

    /// Forgets an offer that no longer counts. It has had no process here. A leader keeps the run as one that is placed.
    pub(super) fn drop_offer(&mut self, cx: &mut Context, run: &RunId) {
        if cx.leads() {
            let received = self.active.get(run).and_then(ActiveRun::offer).map(|offer| offer.received);
            self.step(cx, run, RunStep::Disown);
            self.await_answer_again(cx, run, received.unwrap_or(cx.now.up));
        } else {
            self.active.remove(run);
            self.release_unneeded_locks(cx, run);
        }
    }
}

/// True for the record of an attempt that is placed on this node.
pub(super) fn is_for(cx: &Context, record: &RunRecord) -> bool {
    record.state == RunState::Placed && record.owner.node == cx.node
}

/// Why this node does not run an attempt that was placed here, as it and its files are now.
fn why_refused(cx: &Context, record: &RunRecord) -> Option<RefusalReason> {
    let (Some(place), Some(placement)) = (&cx.place, &record.placement) else { return Some(RefusalReason::Definition) };
    if cx.is_ending {
        return Some(RefusalReason::Ending);
    }
    if cx.is_drained {
        return Some(RefusalReason::Drained);
    }
    let Some(job) = cx.job(&record.job) else { return Some(RefusalReason::NotDefined) };
    // Only whoever writes in the ledger by hand places the share of another node, or what is to be shared out.
    let is_of_another = record.on.as_ref().is_some_and(|on| *on != cx.node);
    if is_of_another || record.share_among.is_some() || record.attempt == 0 {
        return Some(RefusalReason::Definition);
    }
    // A leader places jobs on its own node that were placed once and are not any more.
    let is_placed = job.run_on.is_placed() || cx.leads();
    if !is_placed || job.execution_digest() != placement.definition || record.parameters.fit(job).is_err() {
        return Some(RefusalReason::Definition);
    }
    if !job.run_where.is_met_by(&cx.node, &place.labels) {
        return Some(RefusalReason::Labels);
    }
    if cx.is_clock_far {
        return Some(RefusalReason::Clock);
    }
    window::is_too_late_to_accept(cx, record).then_some(RefusalReason::Late)
}
