//! Taking over: what a new leader makes of the ledger that earlier leaders left.
//!
//! Runs of living nodes are left alone and watched. Runs of dead ones are begun again, ended, or marked cut off, by
//! the rule that was fixed when they began. Then every job's occurrences since its mark are decided on as `misfire` says.

use std::collections::BTreeSet;
use std::time::Duration;

use super::flight::{Flight, News, RunOwner};
use super::leading::Leadership;
use super::{Command, Engine, Pending, Report, Turn};
use crate::clock::{Uptime, later};
use crate::ledger::{Change, Commit, CommitId, OwnerState, Request, Running, Snapshot};
use crate::run::{OnLoss, Outcome, Reason, RunEnd, RunId, RunRecord, RunState, Version};
use crate::term::{Term, TermEnd};

/// How long a run may be cut off at most: then a host that never comes back takes no place from others any more.
pub(super) const LONGEST_CUT_OFF: Duration = Duration::from_secs(24 * 3600);

/// A takeover under way: it is done when all its commits are answered.
#[derive(Debug)]
pub(super) struct Takeover {
    since: Uptime,
    /// Commits that settle what was found.
    pub open: BTreeSet<CommitId>,
    /// Runs settled so far.
    pub settled: u64,
    /// Occurrences recorded as missed so far.
    pub missed: u64,
}

impl Engine {
    pub(super) fn take_over(&mut self, t: &mut Turn, term: Term, snapshot: Snapshot, took: Duration) {
        t.tell(Report::Elected { term: term.clone(), took });
        for damage in snapshot.damaged {
            t.tell(Report::Damaged(damage));
        }
        let takeover = Takeover { since: t.now.up, open: BTreeSet::new(), settled: 0, missed: 0 };
        let mut leading = Leadership::new(term, takeover);
        leading.adopt_requests(snapshot.requests);
        self.leading = Some(leading);
        self.forget_unbegun();
        self.forget_last_outcomes();
        self.adopt_runs(t, snapshot.running);
        self.adopt_jobs(t, snapshot.jobs);
    }

    /// Attempts of an earlier term that nobody answered for. What of them was written is in the snapshot, which was read after
    /// that term's candidate had gone; the rest can no longer be written.
    fn forget_unbegun(&mut self) {
        self.flights.retain(Flight::is_begun);
    }

    fn adopt_runs(&mut self, t: &mut Turn, mut running: Vec<Running>) {
        running.sort_by_key(|found| (found.record.scheduled_at, found.record.job.clone()));
        for Running { record, version, owner } in running {
            let run = record.id();
            let own = self.flights.get(&run).filter(|flight| flight.own().is_some());
            match own {
                // An end that is still to be refused: another attempt has begun since, and counts from now on.
                Some(own) if own.alive().is_none() && !own.record.is_same_attempt(&record) => {
                    self.on_superseded(t, &run);
                    self.adopt_run(t, &run, record, version, owner);
                }
                Some(_) => self.on_own_run_read(t, &run, Some((record, version))),
                None => self.adopt_run(t, &run, record, version, owner),
            }
        }
    }

    /// Takes a run of another node, or of nobody, for what its record and its owner's state say.
    fn adopt_run(&mut self, t: &mut Turn, run: &RunId, record: RunRecord, version: Version, owner: OwnerState) {
        let record = self.as_known_here(record);
        let state = record.state;
        let is_held = owner == OwnerState::Alive && !state.waits();
        let holder = if is_held { RunOwner::Other } else { RunOwner::Nobody };
        self.flights.insert(run.clone(), Flight::new(record, version, holder));
        self.mark_job_changed(run.job());
        match (state, owner) {
            (RunState::Queued, _) => self.await_others(t, run),
            (RunState::Retrying | RunState::Unstarted, _) => self.await_retry(t, run),
            // Cut off and alive: its owner is back and about to say so. Until then nothing ends its process.
            (RunState::Running | RunState::CutOff, OwnerState::Alive) => t.ledger(Request::Watch(run.clone())),
            (RunState::Running, owner) => self.settle_lost(t, run, owner),
            (RunState::CutOff, OwnerState::Dead) => self.settle_dead(t, run),
            (RunState::CutOff, OwnerState::Gone) => self.keep_cut_off(t, run),
        }
        self.apply_kill(t, run);
    }

    /// A run that the ledger has under a session of this very process, and that is not among the own runs: it was begun, never answered,
    /// and never started.
    fn as_known_here(&self, record: RunRecord) -> RunRecord {
        let is_ours = record.owner.node == self.node && self.sessions.contains(&record.owner.session);
        let state = if is_ours && !record.state.waits() { RunState::Unstarted } else { record.state };
        RunRecord { state, ..record }
    }

    /// A run whose owner is gone: settled by the rule fixed at its beginning.
    fn settle_lost(&mut self, t: &mut Turn, run: &RunId, owner: OwnerState) {
        let Some(flight) = self.flights.get(run) else { return };
        let margin = self.margin(run);
        let is_over = flight.record.keep_until.is_some_and(|until| later(until, margin) <= t.due);
        match (flight.record.on_loss, owner) {
            (OnLoss::Rerun, _) => self.retry_at_its_time(t, run),
            (OnLoss::Interrupt, _) | (OnLoss::CutOff, OwnerState::Dead) => self.settle_dead(t, run),
            (OnLoss::CutOff, _) if is_over => self.abandon(t, run),
            (OnLoss::CutOff, _) => {
                let record = flight.record.clone();
                let nonce = self.nonce();
                let longest = later(t.due, LONGEST_CUT_OFF);
                let keep_until = Some(record.keep_until.map_or(longest, |until| until.min(longest)));
                self.settle(t, run, RunRecord { state: RunState::CutOff, keep_until, nonce, ..record });
            }
        }
    }

    pub(super) fn settle(&mut self, t: &mut Turn, run: &RunId, record: RunRecord) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        flight.record = record.clone();
        let at = flight.version;
        let id = self.commit(t, Change::UpdateRun { at, run: record }, Pending::UpdateRun { run: run.clone() });
        self.note_settling(run, id);
    }

    pub(super) fn settle_dead(&mut self, t: &mut Turn, run: &RunId) {
        self.settle_end(t, run, Outcome::Interrupted, Some(Reason::NodeDied));
    }

    /// A cut-off run whose time is over.
    pub(super) fn abandon(&mut self, t: &mut Turn, run: &RunId) {
        self.settle_end(t, run, Outcome::Abandoned, None);
    }

    pub(super) fn settle_end(&mut self, t: &mut Turn, run: &RunId, outcome: Outcome, reason: Option<Reason>) {
        let Some(flight) = self.flights.get(run) else { return };
        let end = RunEnd::unseen(&flight.record, outcome, reason, t.now.wall);
        self.settle_as(t, run, end);
    }

    /// Ends a run that no node has.
    pub(super) fn settle_as(&mut self, t: &mut Turn, run: &RunId, end: RunEnd) {
        let Some(flight) = self.flights.get_mut(run).filter(|flight| flight.commit.is_none()) else { return };
        flight.holder = RunOwner::Settling;
        let change = Change::End { at: flight.version, end: end.clone(), as_leader: true };
        let id = self.commit(t, change, Pending::End { run: run.clone(), settled: Some(Box::new(end)) });
        self.note_settling(run, id);
    }

    pub(super) fn note_settling(&mut self, run: &RunId, id: CommitId) {
        if let Some(flight) = self.flights.get_mut(run) {
            flight.commit = Some(id);
        }
        if let Some(takeover) = self.leading.as_mut().and_then(|leading| leading.takeover.as_mut()) {
            takeover.open.insert(id);
        }
    }

    pub(super) fn on_update_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, answer: Commit) {
        let Some(flight) = self.answered_flight(run, id) else { return };
        let is_own = flight.own().is_some();
        match answer {
            Commit::Accepted => {
                flight.version = flight.version.next();
                if is_own {
                    self.on_begun(t, run);
                    return self.hear_news(t, run);
                }
                let (owner, keep_until) = (flight.record.owner.node.clone(), flight.record.keep_until);
                t.tell(Report::CutOff { run: run.clone(), owner, keep_until });
                self.keep_cut_off(t, run);
                self.hear_news(t, run);
            }
            Commit::Superseded => self.settled_by_another(t, run),
            Commit::Unknown if is_own => self.look_up(t, run),
            Commit::Unknown => self.settled_by_another(t, run),
            Commit::Fenced => drop(self.forget(run)),
        }
    }

    /// Lets a cut-off run be until its time is over, and watches for its owner's return.
    fn keep_cut_off(&mut self, t: &mut Turn, run: &RunId) {
        self.give_up_at_its_time(run);
        t.ledger(Request::Watch(run.clone()));
    }

    fn give_up_at_its_time(&mut self, run: &RunId) {
        let margin = self.margin(run);
        let Some(flight) = self.flights.get_mut(run) else { return };
        flight.holder = RunOwner::CutOff;
        if let (Some(until), Some(leading)) = (flight.record.keep_until, &mut self.leading) {
            leading.keeps.insert((later(until, margin), run.clone()));
        }
    }

    pub(super) fn on_settled_end_answer(
        &mut self,
        t: &mut Turn,
        run: &RunId,
        id: CommitId,
        end: Box<RunEnd>,
        answer: Commit,
    ) {
        if self.answered_flight(run, id).is_none() {
            return;
        }
        match answer {
            Commit::Accepted => {
                self.close(run);
                t.tell(Report::Finished(end.clone()));
                self.follow_end(t, None, *end);
            }
            Commit::Superseded | Commit::Unknown => self.settled_by_another(t, run),
            Commit::Fenced => drop(self.forget(run)),
        }
    }

    /// Another wrote, or may have written, of a run that this leader was just settling: the ledger is asked. What was heard
    /// meanwhile may be older than that.
    pub(super) fn settled_by_another(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        flight.holder = RunOwner::Nobody;
        let news = flight.news.take();
        t.ledger(Request::Watch(run.clone()));
        t.ledger(Request::ReadRun(run.clone()));
        if let Some(news) = news {
            self.on_news(t, run, news);
        }
    }

    /// Something was heard of a run that this leader watches.
    pub(super) fn on_news(&mut self, t: &mut Turn, run: &RunId, news: News) {
        if self.leading.is_none() {
            return;
        }
        let Some(flight) = self.flights.get_mut(run) else { return };
        if flight.commit.is_some() {
            flight.note_news(news);
            return;
        }
        if flight.own().is_some() {
            return;
        }
        match news {
            News::OwnerGone(owner, Some((record, version)))
                if record.state == RunState::Running || owner == OwnerState::Dead =>
            {
                self.adopt_run(t, run, record, version, owner);
            }
            News::OwnerGone(_, found) | News::Changed(found) => self.on_other_run_read(t, run, found),
        }
    }

    /// A run that is not among those this node knows of. A leader knows of all: whatever it is, it is watched.
    pub(super) fn take_note(&mut self, t: &mut Turn, run: &RunId, found: Option<(RunRecord, Version)>) {
        if let (Some((record, version)), true) = (found, self.leading.is_some()) {
            let record = self.as_known_here(record);
            let state = record.state;
            self.flights.insert(run.clone(), Flight::new(record, version, RunOwner::Other));
            self.mark_job_changed(run.job());
            match state {
                RunState::Queued => self.await_others(t, run),
                RunState::Running => t.ledger(Request::Watch(run.clone())),
                RunState::Retrying | RunState::Unstarted => self.await_retry(t, run),
                RunState::CutOff => self.keep_cut_off(t, run),
            }
            self.apply_kill(t, run);
        }
    }

    fn on_other_run_read(&mut self, t: &mut Turn, run: &RunId, found: Option<(RunRecord, Version)>) {
        let Some((record, version)) = found else {
            self.forget(run);
            return;
        };
        let record = self.as_known_here(record);
        let Some(flight) = self.flights.get_mut(run) else { return };
        let was_lost = matches!(flight.holder, RunOwner::Nobody) && flight.record.state == RunState::Running;
        let (state, request) = (record.state, flight.record.kill.take());
        let is_unwritten = record.kill.is_none() && request.is_some();
        (flight.record, flight.version) = (record, version);
        flight.record.kill = flight.record.kill.take().or(request);
        match state {
            RunState::Queued => self.queue_again(run),
            RunState::Running => {
                flight.holder = RunOwner::Other;
                if was_lost {
                    // That its owner is gone was told once: it is to be told again, if it is so.
                    t.ledger(Request::Watch(run.clone()));
                }
            }
            RunState::Retrying | RunState::Unstarted => self.retry_at_its_time(t, run),
            RunState::CutOff => self.give_up_at_its_time(run),
        }
        if is_unwritten { self.write_kill(t, run) } else { self.apply_kill(t, run) }
    }

    pub(super) fn on_term_over(&mut self, t: &mut Turn, term: &Term, why: TermEnd) {
        if self.leading.as_ref().is_none_or(|leading| leading.term.token != term.token) {
            return;
        }
        self.leading = None;
        self.forget_last_outcomes();
        self.flights.retain(|flight| flight.own().is_some());
        self.watch_all(t);
        t.tell(Report::TermOver { token: term.token, why });
        self.kill_for_lease(t, why);
    }

    /// Tells that the takeover is done, once nothing of it is open.
    pub(super) fn report_takeover(&mut self, t: &mut Turn) {
        // What is to be begun again waits for the lease, and belongs to it.
        let may = self.may_decide(t.now);
        let Some(leading) = self.leading.as_mut().filter(|_| may) else { return };
        let Some(done) = leading.takeover.take_if(|takeover| takeover.open.is_empty()) else { return };
        t.commands.push(Command::Tell(Report::TakeoverDone {
            token: leading.term.token,
            settled: done.settled,
            missed: done.missed,
            took: t.now.up.since(done.since),
        }));
    }
}
