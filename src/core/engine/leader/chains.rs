//! Jobs that run after others (`after`): begun once every upstream has left its link.
//!
//! ```text
//!   an upstream's run ends, or is skipped ─ in the same write ─► triggers/<seq>: a link
//!   all links are in, and good ─────► mark + running/<run> - links
//!   one is bad or cannot arrive ────► skip record + links for its dependents - links
//! ```
//!
//! The links stay in the ledger until their run is decided on, and the write that decides removes them, so a change of
//! leader neither loses a step of a chain nor takes one twice. A run that is given up moves no mark, because an earlier
//! one may still follow. The leader's list of links may be outdated; the commit detects that.

mod judge;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use self::judge::{Objection, judge};
use self::waiting::WaitingRun;
use super::MOST_PASSED_OVER;
use super::book::Book;
use super::pauses::Pauses;
use crate::clock::{Now, Uptime};
use crate::engine::commits::{Purpose, UnreportedSkip};
use crate::engine::context::Context;
use crate::engine::misfire::Missed;
use crate::engine::runs::Runs;
use crate::job::{Job, JobName, JobSet};
use crate::ledger::{Change, Commit};
use crate::run::{Link, RunId, Skip, SkipReason, TriggerSeq, UpstreamResult};

/// Most decided links, and begun runs, that are remembered. For older ones the ledger is checked by the commit.
const REMEMBERED: usize = 1_000;

/// The undecided runs of jobs that run after others, with the links that a leader knows of.
#[derive(Debug, Default)]
pub(super) struct DownstreamRuns {
    /// Undecided runs with their links.
    open: BTreeMap<RunId, WaitingRun>,
    /// Links that were decided on in this term, since the last reconnect.
    decided: BTreeMap<TriggerSeq, Link>,
    /// Runs that were begun in this term, or on record. By occurrence, because the oldest are forgotten first.
    followed: BTreeSet<(Timestamp, RunId)>,
    /// Runs that must be checked because of a change.
    changed: BTreeSet<RunId>,
    /// When runs are given up.
    give_up: BTreeSet<(Uptime, RunId)>,
}

impl DownstreamRuns {
    /// Adds the links in the ledger that are not decided on yet.
    pub fn add(&mut self, read: BTreeMap<TriggerSeq, Link>) {
        for (seq, link) in read {
            // A service that has lost links gives their numbers to others.
            if self.decided.get(&seq) != Some(&link) {
                let run = link.run();
                self.open.entry(run.clone()).or_default().links.insert(seq, link);
                self.changed.insert(run);
            }
        }
    }

    /// Has links that are listed decided on again: the service may have lost that they were. A link that is gone is
    /// rejected.
    pub fn forget_decided(&mut self) {
        self.decided.clear();
    }

    /// Has all undecided runs checked again.
    pub fn mark_changed(&mut self) {
        self.changed = self.open.keys().cloned().collect();
    }

    /// Has the runs of the job and its descendants checked: a run of the job ended, or its mark moved.
    pub fn mark_job_changed(&mut self, job: &JobName, jobs: &JobSet) {
        if self.open.is_empty() {
            return;
        }
        for name in jobs.descendants_of(job) {
            self.changed.extend(self.open.range(RunId::all_of(&name)).map(|(run, _)| run.clone()));
        }
    }

    /// When the next run is given up.
    pub fn next_at(&self) -> Option<Uptime> {
        self.give_up.first().map(|&(at, _)| at)
    }

    /// Takes the next run to check now, the oldest of each job first.
    fn pop_due(&mut self, now: Uptime) -> Option<RunId> {
        while self.next_at().is_some_and(|at| at <= now) {
            self.changed.extend(self.give_up.pop_first().map(|(_, run)| run));
        }
        while let Some(run) = self.changed.pop_first() {
            if self.open.get(&run).is_some_and(|waiting| waiting.removing.is_empty()) {
                return Some(run);
            }
        }
        None
    }

    /// Sets or clears the instant at which a run is given up, if nothing changes before.
    fn give_up_at(&mut self, run: &RunId, at: Option<Uptime>) {
        let Some(waiting) = self.open.get_mut(run) else { return };
        if let Some(old) = std::mem::replace(&mut waiting.give_up_at, at) {
            self.give_up.remove(&(old, run.clone()));
        }
        self.give_up.extend(at.map(|at| (at, run.clone())));
    }

    /// Removes a run that is decided on.
    fn close(&mut self, run: &RunId) {
        self.give_up_at(run, None);
        self.open.remove(run);
    }

    /// Marks all known links of a run as being removed by a commit, and returns them.
    fn mark_removing(&mut self, run: &RunId) -> Vec<TriggerSeq> {
        let Some(waiting) = self.open.get_mut(run) else { return Vec::new() };
        waiting.removing = waiting.links.keys().copied().collect();
        waiting.removing.clone()
    }

    /// Removes the links that a commit has removed from the ledger.
    fn on_links_removed(&mut self, run: &RunId) {
        let Some(waiting) = self.open.get_mut(run) else { return };
        for seq in std::mem::take(&mut waiting.removing) {
            self.decided.extend(waiting.links.remove(&seq).map(|link| (seq, link)));
        }
        if waiting.links.is_empty() {
            self.close(run);
        } else {
            self.changed.insert(run.clone());
        }
        while self.decided.len() > REMEMBERED {
            self.decided.pop_first();
        }
    }

    fn note_followed(&mut self, run: &RunId) {
        self.followed.insert((run.scheduled_at(), run.clone()));
        while self.followed.len() > REMEMBERED {
            self.followed.pop_first();
        }
    }

    fn is_followed(&self, run: &RunId) -> bool {
        self.followed.contains(&(run.scheduled_at(), run.clone()))
    }

    /// Notes that a run was on record, and is not known any more.
    pub fn on_closed(&mut self, cx: &Context, run: &RunId) {
        if cx.job(run.job()).is_some_and(|job| job.upstreams().is_some()) {
            self.note_followed(run);
        }
    }

    /// Keeps the links: the commit that would have removed them was rejected.
    fn on_removal_rejected(&mut self, run: &RunId) {
        if let Some(waiting) = self.open.get_mut(run) {
            waiting.removing.clear();
            waiting.rejected += 1;
            self.changed.insert(run.clone());
        }
    }

    /// The links of runs that wait for more links.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.open.values().flat_map(|waiting| waiting.links.values())
    }

    fn get(&self, run: &RunId) -> Option<&WaitingRun> {
        self.open.get(run)
    }

    /// Decides on the runs that a change or a deadline concerns.
    pub fn decide(&mut self, cx: &mut Context, runs: &mut Runs, book: &mut Book, pauses: &Pauses) {
        let mut passed_over = Vec::new();
        while cx.may_decide() && !runs.is_quiet() && passed_over.len() < MOST_PASSED_OVER {
            let Some(run) = self.pop_due(cx.now.up) else { break };
            if !runs.may_begin_of(cx, run.job()) {
                passed_over.push(run);
                continue;
            }
            let verdict = judge(cx, runs, book, pauses, self, &run);
            let is_stuck = matches!(verdict, Err(Objection::Stuck | Objection::Undefined));
            match verdict {
                Ok(job) => self.begin(cx, runs, book, &job, &run),
                Err(Objection::Skip(reason)) => self.drop_links(cx, &run, Some(reason), true),
                Err(Objection::Pass) => self.drop_links(cx, &run, None, true),
                Err(Objection::Drop) => self.drop_links(cx, &run, None, false),
                Err(Objection::Stuck) if self.is_given_up(&run, cx.now) => {
                    self.drop_links(cx, &run, Some(SkipReason::Upstream), true);
                }
                Err(Objection::Undefined) if self.is_given_up(&run, cx.now) => {
                    self.drop_links(cx, &run, Some(SkipReason::NotDefined), true);
                }
                Err(Objection::Wait | Objection::Stuck | Objection::Undefined) => {}
            }
            self.note_stuck(&run, is_stuck.then_some(cx.now));
        }
        self.changed.extend(passed_over);
    }

    fn is_given_up(&self, run: &RunId, now: Now) -> bool {
        self.open.get(run).and_then(|waiting| waiting.give_up_at).is_some_and(|at| at <= now.up)
    }

    fn note_stuck(&mut self, run: &RunId, since: Option<Now>) {
        let Some(waiting) = self.open.get(run) else { return };
        let at = since.map(|now| waiting.give_up_at.unwrap_or(now.up + waiting.timeout(now.wall)));
        self.give_up_at(run, at);
    }

    fn first_link(&self, run: &RunId) -> Option<&Link> {
        self.open.get(run)?.links.values().next()
    }

    /// Begins the run, and removes its links with the same write.
    fn begin(&mut self, cx: &mut Context, runs: &mut Runs, book: &mut Book, job: &Arc<Job>, id: &RunId) {
        let nonce = cx.nonce();
        let trigger = self.first_link(id).and_then(|link| link.trigger.clone());
        let Some(mut run) = runs.new_record(cx, job, id.scheduled_at(), (trigger, BTreeSet::new()), nonce.clone())
        else {
            return;
        };
        // The time that its upstreams took does not count as lateness.
        run.ready_at = Some(cx.now.wall);
        let moves_mark = id.trigger().is_none();
        let mark = moves_mark.then(|| book.step_mark(job, id.scheduled_at(), nonce)).flatten();
        if mark.is_some() != moves_mark {
            return;
        }
        let links = self.mark_removing(id);
        let change = Change::BeginDownstream { mark, run: run.clone(), links };
        let commit = cx.commit(change, Purpose::BeginDownstream { run: id.clone() });
        runs.begin(run, job, commit);
    }

    /// Removes the links of a run that is not begun, records the reason if there is one, and leaves links for its
    /// dependents.
    fn drop_links(&mut self, cx: &mut Context, id: &RunId, why: Option<SkipReason>, notifies_dependents: bool) {
        let Some(token) = cx.token() else { return };
        let Some(link) = self.first_link(id).cloned() else { return };
        let missed = Missed { first: link.scheduled_at, last: link.span.last, count: link.span.count };
        let skip = cx.new_skip(token, id.job(), why.unwrap_or(SkipReason::Upstream), missed);
        let skip = Skip { trigger: link.trigger, ..skip };
        let result = self.open.get(id).map_or(UpstreamResult::Skipped, WaitingRun::result_for_dependents);
        let dependents = if notifies_dependents { cx.jobs.dependents_of(id.job()) } else { &[] };
        let dependents = Link::of_skip(&skip, skip.first, skip.count, result, dependents);
        let dependents = Link::since(dependents, self.open.get(id).map(WaitingRun::earliest));
        let links = self.mark_removing(id);
        let skip = why.map(|_| skip);
        let unreported = skip.clone().map(UnreportedSkip::of);
        let change = Change::DropLinks { job: id.job().clone(), links, skip, dependents };
        cx.commit(change, Purpose::DropLinks { run: id.clone(), skip: unreported });
    }

    /// Handles the answer to a begin. If it was rejected, the job's record has changed or some links are gone; the next
    /// try shows which.
    pub fn on_begin_answer(&mut self, run: &RunId, answer: Commit) {
        match answer {
            Commit::Accepted => {
                self.note_followed(run);
                self.on_links_removed(run);
            }
            Commit::Superseded | Commit::Unknown => self.on_removal_rejected(run),
            Commit::Fenced => {}
        }
    }

    /// Handles the answer to the removal of links without a run.
    pub fn on_drop_answer(&mut self, run: &RunId, answer: Commit) {
        match answer {
            Commit::Accepted => self.on_links_removed(run),
            // Some of the links are gone. The others are added again when the ledger is next read.
            Commit::Superseded => self.close(run),
            Commit::Unknown => self.on_removal_rejected(run),
            Commit::Fenced => {}
        }
    }
}
