//! A run on every node: its shares, one for each node that fits.
//!
//! ```text
//!   due ─► queued, with the names of the nodes ─ share out ─┬─ the node takes it ──► running/<run>@<node> placed
//!                                                           ├─ it is away, full ──► running/<run>@<node> queued
//!                                                           └─ drained, overlap ──► a skip of this share
//! ```
//!
//! The write that moves the mark names the nodes, so none loses its share, whoever leads then, and one that joins later
//! gets none. The run goes away with the write that creates the last share: a commit takes some twenty, because services
//! limit what one may have. From then on each share is a run of its own, with its own attempts, overlap and history. It
//! stays with its node: while that is away it waits, until the misfire window is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Runs;
use super::active_run::{ActiveRun, ActiveRunState, RunStep};
use super::active_runs::ActiveRuns;
use super::places::Share;
use super::waiting::{keep_until, overlap};
use crate::engine::commits::{Given, Purpose, UnreportedSkip};
use crate::engine::context::{Context, Fact};
use crate::engine::misfire::Missed;
use crate::engine::report::Report;
use crate::job::{Job, JobName, Overlap};
use crate::ledger::{Change, Commit, CommitId, Request, SkipWrite};
use crate::run::{Link, Nonce, OnLoss, Owner, RunId, RunRecord, RunState, Skip, SkipReason, UpstreamResult, Version};
use crate::term::NodeName;

/// Most shares in one commit: etcd takes 128 operations, and a share has up to five.
const SHARES_A_COMMIT: usize = 20;

/// A share that was rejected so often, although nothing is known to be in its place, is skipped.
const OBSTRUCTED: u32 = 3;

/// What a leader keeps of runs that it shares out, for one term.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// The newest skip record of a node's shares, while neighbouring occurrences may join it.
    skips: BTreeMap<JobName, BTreeMap<NodeName, (Version, Skip)>>,
    /// The runs whose shares were rejected.
    rejected: BTreeMap<RunId, Rejected>,
    /// The nodes that are reported because they do not take their shares of a job. Further ones are not news.
    absent: BTreeSet<(JobName, NodeName)>,
}

impl Sharing {
    /// The run is shared out, or over.
    pub fn forget(&mut self, run: &RunId) {
        self.rejected.remove(run);
    }
}

/// A run whose shares were rejected: some share is on record already, or something else is in its place. They are tried
/// one by one.
#[derive(Debug, Default)]
struct Rejected {
    /// How often in a row.
    count: u32,
    /// The share that is being looked up.
    sought: Option<RunId>,
    /// Shares that have ended.
    ended: BTreeSet<RunId>,
}

/// What becomes of a node's share.
enum Verdict {
    Run(RunState, Owner),
    /// It waits for its node.
    Await,
    Skip(SkipReason),
}

impl ActiveRuns {
    /// True if another share of the node may neither begin nor wait.
    fn overlaps_on(&self, job: &Job, node: &NodeName) -> bool {
        overlap(job, self.runs_on(&job.name, node))
    }

    /// The runs of the job that the node has, or waits for.
    fn runs_on<'r>(&'r self, job: &JobName, node: &'r NodeName) -> impl Iterator<Item = &'r ActiveRun> {
        self.in_flight(job).filter(move |run| run.counts_on(node))
    }
}

impl Runs {
    /// True once the leader knows all nodes, also those that are away.
    pub fn knows_roster(&self) -> bool {
        self.places.know_all()
    }

    /// The nodes that a run of the job is to be shared out to; `None` if it is not. Empty: they are not known yet.
    pub(super) fn share_among(&self, cx: &Context, job: &Job) -> Option<BTreeSet<NodeName>> {
        let nodes = || if self.knows_roster() { self.places.roster(job) } else { BTreeSet::new() };
        cx.shares(job).then(nodes)
    }

    /// True if waiting occurrences of the job must continue to wait for one of its runs. What waits for a node that is
    /// away holds nobody up.
    pub fn is_held_up(&self, cx: &Context, job: &Job) -> bool {
        let is_away = |run: &RunId| cx.shares(job) && self.placing.unplaced.contains(run);
        let holds = |(id, run): (&RunId, &ActiveRun)| run.ended().is_none() && !is_away(id);
        job.overlap != Overlap::Allow && self.active.of_job(&job.name).any(holds)
    }

    /// Gives nodes their shares of a run, as many as fit one commit.
    pub(super) fn share_out(&mut self, cx: &mut Context, run: &RunId, job: &Arc<Job>) {
        if !self.knows_roster() {
            self.await_room(cx, run, job);
            return;
        }
        let Some(active) = self.active.get(run).filter(|active| active.is_idle()) else { return };
        let Some(mut left) = active.record.share_among.as_deref().cloned() else { return };
        let rejected = self.sharing.rejected.get(run);
        if rejected.is_some_and(|rejected| rejected.sought.is_some()) {
            return;
        }
        if left.is_empty() {
            left = self.places.roster(job);
            if left.is_empty() {
                return self.skip(cx, run, SkipReason::NoNode);
            }
        }
        let rejected = rejected.map_or(0, |rejected| rejected.count);
        left.retain(|node| !self.has_share(&run.clone().on(Some(node.clone()))));
        if self.give_up_older(cx, run, &left) {
            // Their ends have this run checked again.
            return;
        }
        let width = if rejected == 0 { SHARES_A_COMMIT } else { 1 };
        let now: Vec<NodeName> = left.iter().take(width).cloned().collect();
        left.retain(|node| !now.contains(node));
        let (Some(own), nonce) = (cx.owner(), cx.nonce()) else { return };
        let (mut shares, mut skips, mut unreported) = (Vec::new(), Vec::new(), Vec::new());
        for node in now {
            let verdict = match rejected {
                0..OBSTRUCTED => self.judge(cx, (run, job), &node, &own),
                // Something else is in its place.
                OBSTRUCTED => Verdict::Skip(SkipReason::Missed),
                _ => {
                    cx.report(Report::Obstructed { job: job.name.clone(), run: run.clone().on(Some(node)) });
                    continue;
                }
            };
            match verdict {
                Verdict::Run(state, owner) => {
                    shares.extend(self.share(cx, run, job, (node, state, owner), None, &nonce));
                }
                Verdict::Await => {
                    let place = (node, RunState::Queued, own.clone());
                    shares.extend(self.share(cx, run, job, place, self.due_since(run, job), &nonce));
                }
                Verdict::Skip(reason) => {
                    let Some((write, skip)) = self.skip_share(cx, run, job, (&node, reason)) else { continue };
                    skips.push(write);
                    unreported.push(skip);
                }
            }
        }
        self.commit_shares(cx, run, job, (left, nonce), (shares, skips, unreported));
    }

    fn commit_shares(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        job: &Arc<Job>,
        (left, nonce): (BTreeSet<NodeName>, Nonce),
        (shares, skips, unreported): (Vec<RunRecord>, Vec<SkipWrite>, Vec<UnreportedSkip>),
    ) {
        let Some(active) = self.active.get(run) else { return };
        let (at, is_last) = (active.version, left.is_empty());
        let rest = RunRecord { share_among: Some(Box::new(left)), nonce, ..active.record.clone() };
        let rest = (!is_last).then(|| Box::new(rest));
        if !self.step(cx, run, RunStep::Settle) {
            return;
        }
        let ids = shares.iter().map(RunRecord::id).collect();
        let given = Box::new(Given { shares: ids, skips: unreported, rest: rest.clone() });
        let purpose = Purpose::ShareOut { run: run.clone(), given };
        let change = Change::ShareOut { at, run: run.clone(), rest, shares: shares.clone(), skips };
        let id = cx.commit(change, purpose);
        self.note_settling(cx, run, id);
        shares.into_iter().for_each(|share| self.begin(share, job, id));
    }

    /// True if the node has its share already, or had it: the service may have lost that the run was shared out.
    fn has_share(&self, share: &RunId) -> bool {
        let run = share.clone().on(None);
        let has_ended = self.sharing.rejected.get(&run).is_some_and(|rejected| rejected.ended.contains(share));
        self.active.contains_key(share) || self.over.mentions(share) || has_ended
    }

    /// Skips older shares of these nodes that wait for their nodes to come back: the newest waits. Returns true while the end
    /// of any share of theirs is being written.
    fn give_up_older(&mut self, cx: &mut Context, run: &RunId, nodes: &BTreeSet<NodeName>) -> bool {
        let is_older = |share: &RunId, active: &ActiveRun| {
            share.node().is_some_and(|node| nodes.contains(node))
                && share.scheduled_at() < run.scheduled_at()
                // A triggered share does not replace one that is due, nor the other way round.
                && (share.trigger(), run.trigger()) == (None, None)
                && active.is_idle()
                && active.record.kill.is_none()
                && self.placing.unplaced.contains(share)
                && active.awaits_first_start()
        };
        let older = self.active.of_job(run.job()).filter(|(share, active)| is_older(share, active));
        let older: Vec<RunId> = older.map(|(share, _)| share.clone()).collect();
        older.iter().for_each(|share| self.skip(cx, share, SkipReason::NoNode));
        let is_ending = |share: &RunId, active: &ActiveRun| {
            let is_open = matches!(active.state(), ActiveRunState::Settling) || self.is_looked_up(share);
            is_open && share.node().is_some_and(|node| nodes.contains(node))
        };
        self.active.of_job(run.job()).any(|(share, active)| is_ending(share, active))
    }

    /// Whether a node can take its share of the run. One that a trigger names may have joined a moment ago, without this
    /// leader having read that, unless it has been forgotten.
    pub(super) fn share_on(&self, cx: &Context, run: &RunId, job: &Job, node: &NodeName) -> Share {
        let is_new = |active: &ActiveRun| active.awaits_first_start();
        let is_forgotten = |active: &ActiveRun| self.places.has_forgotten(node, active.record.begun_at);
        let may_join = self.active.get(run).is_none_or(|active| is_new(active) && !is_forgotten(active));
        match self.places.share(job, node, self.active.load_of(node, &cx.node)) {
            Share::Unknown if run.trigger().is_some() && may_join => Share::Away,
            share => share,
        }
    }

    fn judge(&self, cx: &Context, (run, job): (&RunId, &Job), node: &NodeName, own: &Owner) -> Verdict {
        let queued = Verdict::Run(RunState::Queued, own.clone());
        let has_rivals = match job.overlap {
            Overlap::Queue | Overlap::Replace => self.active.runs_on(&job.name, node).next().is_some(),
            Overlap::Skip | Overlap::Allow => false,
        };
        match self.share_on(cx, run, job, node) {
            Share::Drained => Verdict::Skip(SkipReason::Drained),
            Share::Unfit | Share::Unknown => Verdict::Skip(SkipReason::NoNode),
            _ if self.active.overlaps_on(job, node) => Verdict::Skip(SkipReason::Overlap),
            // The oldest of a group begin first.
            Share::Now(_) | Share::Full if has_rivals || job.concurrency_group.is_some() => queued,
            Share::Now(owner) => Verdict::Run(RunState::Placed, owner),
            Share::Full | Share::Away => Verdict::Await,
        }
    }

    /// Since when the run could have had its shares.
    fn due_since(&self, run: &RunId, job: &Job) -> Option<Timestamp> {
        let active = self.active.get(run)?;
        let is_occurrence = active.record.trigger.is_none() && job.schedule().is_some();
        Some(if is_occurrence { active.due_at(Some(job)) } else { active.record.begun_at })
    }

    /// The record of a node's share.
    fn share(
        &mut self,
        cx: &Context,
        run: &RunId,
        job: &Job,
        (node, state, owner): (NodeName, RunState, Owner),
        no_node_since: Option<Timestamp>,
        nonce: &Nonce,
    ) -> Option<RunRecord> {
        self.sharing.skips.entry(job.name.clone()).or_default().remove(&node);
        if state == RunState::Placed {
            self.sharing.absent.remove(&(job.name.clone(), node.clone()));
        }
        let (record, token) = (&self.active.get(run)?.record, cx.token()?);
        let placement = (state == RunState::Placed).then(|| Self::placement(cx, job, self.time_to_come(cx, run)));
        let share = RunRecord {
            on: Some(node),
            share_among: None,
            state,
            owner,
            token,
            attempt: u32::from(state == RunState::Placed),
            nonce: nonce.clone(),
            begun_at: cx.now.wall,
            on_loss: OnLoss::of(job),
            keep_until: keep_until(job, cx.root_of(job), record.scheduled_at, cx.due),
            placement,
            no_node_since,
            ..record.clone()
        };
        Some(share.in_its_format())
    }

    /// The record of a node's share that is not run. It joins that of the occurrence before.
    fn skip_share(
        &mut self,
        cx: &Context,
        run: &RunId,
        job: &Job,
        (node, reason): (&NodeName, SkipReason),
    ) -> Option<(SkipWrite, UnreportedSkip)> {
        let (record, token) = (&self.active.get(run)?.record, cx.token()?);
        let (scheduled_at, trigger) = (record.scheduled_at, record.trigger.clone());
        let known = self.sharing.skips.entry(run.job().clone()).or_default();
        let is_next = |last| job.next_after(last) == Some(scheduled_at);
        let before = match &trigger {
            Some(_) => None,
            None => known.remove(node).filter(|(_, skip)| skip.reason == reason && is_next(skip.last)),
        };
        let skip = cx.new_skip(token, run.job(), reason, Missed::one(scheduled_at));
        let share = run.clone().on(Some(node.clone()));
        let detail = if reason == SkipReason::NoNode { self.why_nowhere(cx, &share) } else { None };
        let known = self.sharing.skips.entry(run.job().clone()).or_default();
        let mut unreported = UnreportedSkip::of(Skip { trigger, on: Some(node.clone()), detail, ..skip });
        let at = unreported.join(before);
        let skip = unreported.skip.clone();
        if skip.trigger.is_none() {
            known.insert(node.clone(), (at.map_or(Version::FIRST, Version::next), skip.clone()));
        }
        let links = Link::of_skip(&skip, scheduled_at, 1, UpstreamResult::NotBegun, &record.dependents);
        Some((SkipWrite { at, skip, links }, unreported))
    }

    /// Handles the answer to giving nodes their shares of a run.
    pub fn on_share_out_answer(&mut self, cx: &mut Context, run: &RunId, id: CommitId, given: Given, answer: Commit) {
        let Given { shares, skips, rest } = given;
        for share in &shares {
            self.on_attempt_answer(cx, share, id, answer);
            if answer == Commit::Superseded && cx.leads() {
                // It may be there: by this commit, whose answer was lost, or written again by its node.
                cx.ledger(Request::ReadRun(share.clone()));
            }
        }
        if answer == Commit::Accepted {
            cx.facts.extend(skips.iter().cloned().map(Fact::Skipped));
        } else {
            // It is not known whether they were written.
            self.sharing.skips.remove(run.job());
        }
        if self.answered_run(run, id).is_none() {
            return;
        }
        match answer {
            Commit::Accepted => self.on_shared_out(cx, run, rest),
            Commit::Superseded | Commit::Unknown => {
                let rejected = self.sharing.rejected.entry(run.clone()).or_default();
                rejected.count += 1;
                let mut ids = shares.into_iter().chain(skips.iter().map(|skip| skip.skip.id_from(skip.first)));
                rejected.sought = ids.next();
                if let Some(share) = rejected.sought.clone() {
                    self.look_up(cx, &share);
                }
                self.on_settled_by_another(cx, run);
            }
            Commit::Fenced => self.leave(cx, run),
        }
    }

    fn on_shared_out(&mut self, cx: &mut Context, run: &RunId, rest: Option<Box<RunRecord>>) {
        self.sharing.rejected.entry(run.clone()).and_modify(|rejected| rejected.count = 0);
        let Some(rest) = rest else { return drop(self.close(cx, run)) };
        let Some(active) = self.active.get_mut(run) else { return };
        active.record = *rest;
        active.version = active.version.next();
        if !self.step(cx, run, RunStep::Disown) {
            return;
        }
        self.take_up_news(cx, run);
        self.apply_kill(cx, run);
        if let Some(job) = cx.job(run.job()).cloned() {
            self.share_out(cx, run, &job);
        }
    }

    /// Handles what there is of a share whose run was rejected.
    pub(super) fn on_share_looked_up(&mut self, cx: &mut Context, share: &RunId, has_ended: bool) {
        let run = share.clone().on(None);
        let Some(rejected) = self.sharing.rejected.get_mut(&run) else { return };
        if rejected.sought.take_if(|sought| sought == share).is_some() {
            rejected.ended.extend(has_ended.then(|| share.clone()));
            if has_ended || self.active.contains_key(share) {
                // That was the reason; the next rejection has another one.
                rejected.count = 1;
            }
            self.changed(cx, run.job());
        }
    }

    /// True if some node is known to have its share of the run.
    pub(super) fn is_shared_out(&self, run: &RunId) -> bool {
        let has_ended = self.sharing.rejected.get(run).is_some_and(|rejected| !rejected.ended.is_empty());
        has_ended
            || self.active.of_job(run.job()).any(|(share, _)| share.node().is_some() && share.clone().on(None) == *run)
    }

    /// Has the runs shared out whose shares are being looked up: the answers may be lost with the connection.
    pub(super) fn share_out_again(&mut self, cx: &mut Context) {
        let sought = |(run, rejected): (&RunId, &mut Rejected)| rejected.sought.take().map(|_| run.clone());
        let runs: Vec<RunId> = self.sharing.rejected.iter_mut().filter_map(sought).collect();
        runs.iter().for_each(|run| self.changed(cx, run.job()));
    }

    /// Goes on with a node's share: places it on its node, or keeps it until that is back.
    pub(super) fn place_share(&mut self, cx: &mut Context, run: &RunId, job: &Arc<Job>, node: &NodeName) {
        let Some(active) = self.active.get(run) else { return };
        let had_process = !active.awaits_first_start();
        if let Some(at) = self.time_to_come(cx, run).filter(|_| active.is_queued()) {
            self.agenda.retries.insert((at, run.clone()));
            return;
        }
        if !self.knows_roster() {
            self.await_room(cx, run, job);
            return;
        }
        match self.share_on(cx, run, job, node) {
            Share::Now(owner) => {
                self.placing.unplaced.remove(run);
                self.sharing.absent.remove(&(job.name.clone(), node.clone()));
                self.place_on(cx, run, job, owner);
            }
            Share::Full => self.await_room(cx, run, job),
            Share::Drained if !had_process => self.skip(cx, run, SkipReason::Drained),
            Share::Unfit | Share::Unknown if !had_process => self.skip(cx, run, SkipReason::NoNode),
            Share::Unfit | Share::Unknown => self.end_as_before(cx, run),
            Share::Away | Share::Drained => {
                let is_news = self.sharing.absent.insert((job.name.clone(), node.clone()));
                let why = is_news.then(|| self.places.why_not(job, node));
                self.await_place(cx, run, job, why);
            }
        }
    }
}
