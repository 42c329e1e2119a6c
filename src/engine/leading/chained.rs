//! Jobs that run after others (`after`): begun when every upstream has left its link, or given up with a reason.
//!
//! ```text
//!   an upstream's run ends, or is skipped ─ in the same write ─► triggers/<seq>: a link
//!   all links are in, and good ─────► mark + running/<run> - links
//!   one is bad, or comes no more ───► skip record + links for the jobs behind - links
//! ```
//!
//! The links stand in the ledger until the run they are for is decided on, and whatever decides takes them away: no change of leader
//! loses a step of a chain, or takes one twice. A run that is given up moves no mark, for an earlier one may still come.
//! What was heard of links may be old; the commit finds that out.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::judge::Objection;
use crate::clock::{Now, Uptime};
use crate::engine::{Engine, Pending, Told, Turn};
use crate::job::{Job, JobName, JobSet};
use crate::ledger::{Change, Commit};
use crate::run::{Answer, Link, RunId, Skip, SkipReason, TriggerSeq};

/// How long a link is waited for that nobody can leave any more, as far as is known here: that may lag behind. And how long a job is
/// waited for that this node's file lacks.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// So long at least, however old the other links are: those of earlier leaders' terms count, but not what this one has not heard yet.
const LISTEN_FOR: Duration = Duration::from_secs(10);
/// Most links, and runs of triggers, that are remembered once decided on. The ledger knows of the others.
const REMEMBERED: usize = 1_000;

/// The links that a leader has heard.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// By the run that they may lead to.
    open: BTreeMap<RunId, Waiting>,
    /// Decided on in this term.
    decided: BTreeSet<TriggerSeq>,
    /// The runs that were begun for triggers in this term.
    followed: BTreeSet<(TriggerSeq, JobName)>,
    /// Runs that something changed for: they are to be looked at.
    changed: BTreeSet<RunId>,
    /// When runs are given up.
    give_up: BTreeSet<(Uptime, RunId)>,
}

/// A run that is not decided on.
#[derive(Debug, Default)]
struct Waiting {
    links: BTreeMap<TriggerSeq, Link>,
    /// Those that a commit under way takes away.
    asked: Vec<TriggerSeq>,
    /// How often its begin was refused.
    refused: u32,
    /// When it is given up: nobody can leave the links that are missing.
    give_up_at: Option<Uptime>,
}

impl Chains {
    pub fn hear(&mut self, told: BTreeMap<TriggerSeq, Link>) {
        for (seq, link) in told {
            if !self.decided.contains(&seq) {
                let run = link.run();
                self.open.entry(run.clone()).or_default().links.insert(seq, link);
                self.changed.insert(run);
            }
        }
    }

    /// Everything may have changed that decisions waited for.
    pub fn mark_changed(&mut self) {
        self.changed = self.open.keys().cloned().collect();
    }

    /// A run of this job ended, or its mark moved: what waits for it, or for a place beside it, is looked at.
    pub fn mark_job_changed(&mut self, job: &JobName, jobs: &JobSet) {
        if self.open.is_empty() {
            return;
        }
        for name in jobs.descendants_of(job) {
            self.changed.extend(self.open.range(RunId::all_of(&name)).map(|(run, _)| run.clone()));
        }
    }

    /// When a run is given up.
    pub fn next_at(&self) -> Option<Uptime> {
        self.give_up.first().map(|&(at, _)| at)
    }

    /// The next run to be looked at now, the oldest of each job first.
    fn pop_due(&mut self, now: Uptime) -> Option<RunId> {
        while self.next_at().is_some_and(|at| at <= now) {
            self.changed.extend(self.give_up.pop_first().map(|(_, run)| run));
        }
        while let Some(run) = self.changed.pop_first() {
            if self.open.get(&run).is_some_and(|waiting| waiting.asked.is_empty()) {
                return Some(run);
            }
        }
        None
    }

    /// It is looked at again when something has changed, and given up then, where it is to be.
    fn give_up_at(&mut self, run: &RunId, at: Option<Uptime>) {
        let Some(waiting) = self.open.get_mut(run) else { return };
        if let Some(old) = std::mem::replace(&mut waiting.give_up_at, at) {
            self.give_up.remove(&(old, run.clone()));
        }
        self.give_up.extend(at.map(|at| (at, run.clone())));
    }

    /// Nothing waits for it any more.
    fn close(&mut self, run: &RunId) {
        self.give_up_at(run, None);
        self.open.remove(run);
    }

    /// A commit takes away all the links of a run that are heard of.
    fn ask(&mut self, run: &RunId) -> Vec<TriggerSeq> {
        let Some(waiting) = self.open.get_mut(run) else { return Vec::new() };
        waiting.asked = waiting.links.keys().copied().collect();
        waiting.asked.clone()
    }

    /// They are gone from the ledger.
    fn taken(&mut self, run: &RunId) {
        let Some(waiting) = self.open.get_mut(run) else { return };
        for seq in std::mem::take(&mut waiting.asked) {
            waiting.links.remove(&seq);
            self.decided.insert(seq);
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
        self.followed.extend(run.trigger().map(|seq| (seq, run.job().clone())));
        while self.followed.len() > REMEMBERED {
            self.followed.pop_first();
        }
    }

    fn is_followed(&self, run: &RunId) -> bool {
        run.trigger().is_some_and(|seq| self.followed.contains(&(seq, run.job().clone())))
    }

    /// They stand as before.
    fn refused(&mut self, run: &RunId) {
        if let Some(waiting) = self.open.get_mut(run) {
            waiting.asked.clear();
            waiting.refused += 1;
            self.changed.insert(run.clone());
        }
    }
}

impl Waiting {
    fn link_of(&self, upstream: &JobName) -> Option<&Link> {
        self.links.values().find(|link| link.upstream == *upstream)
    }

    /// Since when the newest of them stands.
    fn newest(&self) -> Timestamp {
        self.links.values().map(|link| link.at).max().unwrap_or(Timestamp::MIN)
    }

    /// How much longer a missing link is waited for that nobody can leave.
    fn timeout(&self, now: Timestamp) -> Duration {
        let waited = Duration::try_from(now.duration_since(self.newest())).unwrap_or_default();
        GIVE_UP_AFTER.saturating_sub(waited).max(LISTEN_FOR)
    }

    /// What those behind it are told when it is not run.
    fn dependents(&self) -> Answer {
        let is_not_begun = self.links.values().any(|link| link.answer == Answer::NotBegun);
        if is_not_begun { Answer::NotBegun } else { Answer::Skipped }
    }
}

impl Engine {
    /// The links that runs wait with for other links; none while the node does not lead.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        let open = self.leading.iter().flat_map(|leading| leading.chains.open.values());
        open.flat_map(|waiting| waiting.links.values())
    }

    /// Decides on the runs whose links are in.
    pub(in crate::engine) fn decide_chains(&mut self, t: &mut Turn) {
        while self.may_begin(t.now) {
            let Some(run) = self.leading.as_mut().and_then(|leading| leading.chains.pop_due(t.now.up)) else { return };
            let verdict = self.judge_chain(t, &run);
            let is_stuck = matches!(verdict, Err(Objection::Stuck | Objection::Undefined));
            match verdict {
                Ok(job) => self.follow(t, &job, &run),
                Err(Objection::Skip(reason)) => self.drop_links(t, &run, Some(reason), true),
                Err(Objection::Pass) => self.drop_links(t, &run, None, true),
                Err(Objection::Drop) => self.drop_links(t, &run, None, false),
                Err(Objection::Stuck) if self.is_given_up(&run, t.now) => {
                    self.drop_links(t, &run, Some(SkipReason::Upstream), true);
                }
                Err(Objection::Undefined) if self.is_given_up(&run, t.now) => {
                    self.drop_links(t, &run, Some(SkipReason::Missed), true);
                }
                Err(Objection::Wait | Objection::Stuck | Objection::Undefined) => {}
            }
            self.note_stuck(&run, is_stuck.then_some(t.now));
        }
    }

    fn is_given_up(&self, run: &RunId, now: Now) -> bool {
        let waiting = self.leading.as_ref().and_then(|leading| leading.chains.open.get(run));
        waiting.and_then(|waiting| waiting.give_up_at).is_some_and(|at| at <= now.up)
    }

    fn note_stuck(&mut self, run: &RunId, since: Option<Now>) {
        let Some(leading) = &mut self.leading else { return };
        let Some(waiting) = leading.chains.open.get(run) else { return };
        let at = since.map(|now| waiting.give_up_at.unwrap_or(now.up + waiting.timeout(now.wall)));
        leading.chains.give_up_at(run, at);
    }

    /// Begins the run in the place of its links.
    fn follow(&mut self, t: &mut Turn, job: &Arc<Job>, id: &RunId) {
        let nonce = self.nonce();
        let trigger = self.first_link(id).and_then(|link| link.trigger.clone());
        let Some(mut run) = self.new_run(t, job, id.scheduled_at(), trigger, nonce.clone()) else { return };
        // How long its upstreams took makes it not late.
        run.ready_at = Some(t.now.wall);
        let moves_mark = id.trigger().is_none();
        let mark = moves_mark.then(|| self.step_mark(job, id.scheduled_at(), nonce)).flatten();
        let Some(leading) = self.leading.as_mut().filter(|_| mark.is_some() == moves_mark) else { return };
        let links = leading.chains.ask(id);
        let change = Change::BeginDownstream { mark, run: run.clone(), links };
        let commit = self.commit(t, change, Pending::BeginDownstream { run: id.clone() });
        self.enter(run, job, commit);
    }

    /// Takes the links away, says why where there is a reason, and tells those behind.
    fn drop_links(&mut self, t: &mut Turn, id: &RunId, why: Option<SkipReason>, is_told_dependents: bool) {
        let Some(token) = self.term().map(|term| term.token) else { return };
        let Some(link) = self.first_link(id).cloned() else { return };
        let skip = Skip {
            v: 1,
            job: id.job().clone(),
            reason: why.unwrap_or(SkipReason::Upstream),
            first: link.scheduled_at,
            last: link.span.last,
            count: link.span.count,
            trigger: link.trigger,
            token,
            node: self.node.clone(),
            decided_at: t.now.wall,
        };
        let Some(leading) = &mut self.leading else { return };
        let answer = leading.chains.open.get(id).map_or(Answer::Skipped, Waiting::dependents);
        let behind = if is_told_dependents { self.jobs.dependents_of(id.job()) } else { &[] };
        let dependents = Link::of_skip(&skip, skip.first, skip.count, answer, behind);
        let links = leading.chains.ask(id);
        let skip = why.map(|_| skip);
        let told = skip.clone().map(|skip| Told { first: skip.first, count: skip.count, skip });
        let change = Change::DropLinks { job: id.job().clone(), links, skip, dependents };
        self.commit(t, change, Pending::DropLinks { run: id.clone(), told });
    }

    fn first_link(&self, run: &RunId) -> Option<&Link> {
        self.leading.as_ref()?.chains.open.get(run)?.links.values().next()
    }

    /// Refused: the job's record is read again, or some of the links are gone, which is found out by trying.
    pub(in crate::engine) fn on_follow_answer(&mut self, run: &RunId, answer: Commit) {
        self.mark_job_changed(run.job());
        let Some(leading) = &mut self.leading else { return };
        match answer {
            Commit::Accepted => {
                leading.chains.note_followed(run);
                leading.chains.taken(run);
            }
            Commit::Superseded | Commit::Unknown => leading.chains.refused(run),
            Commit::Fenced => {}
        }
    }

    pub(in crate::engine) fn on_drop_links_answer(&mut self, run: &RunId, answer: Commit) {
        self.mark_job_changed(run.job());
        let Some(leading) = &mut self.leading else { return };
        match answer {
            Commit::Accepted => leading.chains.taken(run),
            // Some of the links are gone. What is left of them is told again when the ledger is read next.
            Commit::Superseded => leading.chains.close(run),
            Commit::Unknown => leading.chains.refused(run),
            Commit::Fenced => {}
        }
    }
}
