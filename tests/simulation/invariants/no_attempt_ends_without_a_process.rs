//! Invariant: a run ends for good only if an attempt had a process, or nobody could know that none had.
//!
//! The same holds for an attempt that counts as failed or interrupted. Only the end of a run's own window ends the run
//! unstarted, and then it is recorded as missed.
//!
//! The node that has the attempt knows it, as long as its host does not die; the others know it as long as that node is
//! alive and keeps its session and its member. A run that an operator ends may never have begun.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_cluster::zookeeper::session_id;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{HistoryRecord, Outcome, RunId, RunRecord, RunState, Skip, SkipReason};
use cronkeeper_core::term::SessionId;

use super::super::facts::Fact;
use super::super::jobs;
use super::super::zookeeper::Change;
use super::{Invariant, below, ops, written};
use crate::ledger::txn::Txn;

const RUNNING: &str = "/cronkeeper/running";

#[derive(Default)]
pub struct NoAttemptEndsWithoutAProcess {
    /// The newest attempt of each run in flight.
    attempts: BTreeMap<String, Attempt>,
    /// The node of each living session whose process is alive.
    sessions: BTreeMap<i64, (usize, SessionId)>,
    /// Sessions that are over, or whose process is dead.
    over: BTreeSet<SessionId>,
    /// Sessions whose process died with its host.
    of_dead_hosts: BTreeSet<SessionId>,
}

struct Attempt {
    number: u32,
    /// As last written.
    record: RunRecord,
    owner: SessionId,
    node: String,
    /// Its host died, and with it the notes on what has begun.
    is_unknown: bool,
    is_started: bool,
    /// This attempt or an earlier one had a process.
    run_is_started: bool,
    /// The node's process died, or its session or its member is gone.
    is_lost: bool,
}

impl NoAttemptEndsWithoutAProcess {
    fn change(&mut self, run: &str, record: &RunRecord) {
        let is_lost = self.over.contains(&record.owner.session);
        let known = self.attempts.get_mut(run).filter(|known| known.number == record.attempt);
        if let Some(known) = known {
            // A mark that it is cut off brings it no nearer.
            let stays_lost = known.is_lost && record.state == RunState::CutOff;
            known.owner = record.owner.session.clone();
            known.record = record.clone();
            known.is_lost = is_lost || stays_lost;
            return;
        }
        let attempt = Attempt {
            number: record.attempt,
            record: record.clone(),
            owner: record.owner.session.clone(),
            node: record.owner.node.to_string(),
            is_unknown: self.of_dead_hosts.contains(&record.owner.session),
            is_started: false,
            run_is_started: self.attempts.get(run).is_some_and(|before| before.run_is_started),
            is_lost,
        };
        self.attempts.insert(run.to_owned(), attempt);
    }

    /// Checks that a record about an attempt is true, or that nobody can know better.
    fn judge(&self, run: &str, attempt: u32, outcome: Outcome, writer: Option<&str>) -> Result<(), String> {
        if outcome == Outcome::Killed || is_in_doubt(run) {
            return Ok(());
        }
        let Some(known) = self.attempts.get(run).filter(|known| known.number == attempt) else { return Ok(()) };
        let is_anothers = known.is_lost && writer != Some(known.node.as_str());
        if known.is_started || known.is_unknown || is_anothers {
            return Ok(());
        }
        Err(format!("attempt {attempt} of `{run}` ends as {}, and no process was ever started", outcome.as_str()))
    }

    fn sessions_of(&self, node: usize) -> Vec<SessionId> {
        self.sessions.values().filter(|(of, _)| *of == node).map(|(_, id)| id.clone()).collect()
    }

    fn writer(&self, txn: &Txn) -> Option<String> {
        Some(format!("node-{}", self.sessions.get(&txn.session)?.0))
    }

    fn write(&mut self, txn: &Txn) -> Result<(), String> {
        let writer = self.writer(txn);
        for op in ops(txn) {
            if let Some((run, data)) = written(op, RUNNING)
                && let Ok(record) = serde_json::from_slice::<RunRecord>(data)
            {
                if let Some(last) = record.past.attempts.last() {
                    self.judge(run, last.attempt, last.outcome, writer.as_deref())?;
                }
                self.change(run, &record);
            }
            match history(op) {
                Some(HistoryRecord::Run(end)) => {
                    let run = end.run.id().to_string();
                    self.judge(&run, end.run.attempt, end.outcome, writer.as_deref())?;
                }
                Some(HistoryRecord::Skip(skip)) => self.judge_skip(&skip)?,
                None => {}
            }
        }
        for op in ops(txn) {
            let Op::Delete { path, .. } = op else { continue };
            if let Some(run) = below(path, RUNNING) {
                self.attempts.remove(run);
            }
        }
        Ok(())
    }

    /// Notes that a node's member is gone, whoever removed it: the leader cannot ask the node.
    fn note_members(&mut self, txn: &Txn) {
        let Change::Ops(ops) = &txn.change else { return };
        for op in ops {
            let Op::Delete { path, .. } = op else { continue };
            if let Some(node) = below(path, "/cronkeeper/nodes") {
                self.attempts.values_mut().filter(|known| known.node == node).for_each(|known| known.is_lost = true);
            }
        }
    }

    /// Checks the skip of a run that was in flight and never will be again.
    fn judge_skip(&self, skip: &Skip) -> Result<(), String> {
        let run = skip.id();
        let Some(known) = self.attempts.get(&run.to_string()) else { return Ok(()) };
        if known.run_is_started {
            return Err(format!("`{run}` has had a process, and is skipped for {}", skip.reason.as_str()));
        }
        if skip.reason == SkipReason::Locked && skip.job.as_str().starts_with(jobs::LOCKED) {
            return Ok(());
        }
        // Its time came during a pause: it was begun ahead of it, or by a clock that was wrong.
        if skip.reason == SkipReason::Paused && skip.trigger.is_none() {
            return Ok(());
        }
        let is_placed = |kinds: &[&str]| kinds.iter().any(|kind| skip.job.as_str().starts_with(kind));
        if skip.reason == SkipReason::NoNode && skip.on.is_some() {
            return self.judge_given_up(skip, &known.record);
        }
        if skip.reason == SkipReason::NoNode && is_placed(&["any", "every"]) {
            return Ok(());
        }
        if skip.reason == SkipReason::Drained && skip.on.is_some() {
            return Ok(());
        }
        if skip.reason != SkipReason::Missed {
            return Err(format!("`{run}` was begun, and is skipped for {}", skip.reason.as_str()));
        }
        let (is_triggered, ready) = (skip.trigger.is_some(), known.record.ready());
        if !jobs::may_be_missed(&skip.job, is_triggered, ready, skip.decided_at) {
            return Err(format!("`{run}` is missed at {}, and it was still in its window", skip.decided_at));
        }
        Ok(())
    }
}

impl NoAttemptEndsWithoutAProcess {
    /// Checks the skip of a share whose node did not take it: its time is over, or a newer one waits instead.
    fn judge_given_up(&self, skip: &Skip, record: &RunRecord) -> Result<(), String> {
        let is_newer = |run: &RunId| *run.job() == skip.job && run.scheduled_at() > skip.last;
        let has_newer = self.attempts.keys().any(|run| RunId::parse(run).is_ok_and(|run| is_newer(&run)));
        // What has waited for others is ready when it need not wait any more, by the leader's clock.
        let ready = record.ready().min(skip.last);
        if has_newer || skip.trigger.is_some() || jobs::may_be_given_up(&skip.job, ready, skip.decided_at) {
            return Ok(());
        }
        Err(format!("`{}` is given up at {}, and nothing newer waits for its node", skip.id(), skip.decided_at))
    }
}

fn is_in_doubt(run: &str) -> bool {
    RunId::parse(run).is_ok_and(|run| jobs::is_in_doubt(run.job()))
}

fn history(op: &Op) -> Option<HistoryRecord> {
    let (Op::Create { path, data, .. } | Op::Set { path, data, .. }) = op else { return None };
    path.strip_prefix("/cronkeeper/history/")?;
    serde_json::from_slice(data).ok()
}

impl Invariant for NoAttemptEndsWithoutAProcess {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Connected { node, session, id } => drop(self.sessions.insert(*session, (*node, id.clone()))),
            Fact::Spawned(process) => {
                if let Some(known) = self.attempts.get_mut(&process.run).filter(|at| at.number == process.attempt) {
                    (known.is_started, known.run_is_started) = (true, true);
                }
            }
            Fact::Died { node } => {
                let theirs = self.sessions_of(*node);
                self.over.extend(theirs);
                let name = format!("node-{node}");
                self.attempts.values_mut().filter(|known| known.node == name).for_each(|known| known.is_lost = true);
            }
            Fact::HostDied { node } => {
                let theirs = self.sessions_of(*node);
                self.of_dead_hosts.extend(theirs);
                let name = format!("node-{node}");
                self.attempts.values_mut().filter(|known| known.node == name).for_each(|known| known.is_unknown = true);
            }
            Fact::Committed { txn, .. } if matches!(txn.change, Change::CloseSession) => {
                let known = self.sessions.get(&txn.session).map(|(_, id)| id.clone());
                let session = known.unwrap_or_else(|| session_id(txn.session));
                for known in self.attempts.values_mut().filter(|known| known.owner == session) {
                    known.is_lost = true;
                }
                self.over.insert(session);
            }
            Fact::Committed { txn, .. } => {
                let checked = self.write(txn);
                self.note_members(txn);
                return checked;
            }
            _ => {}
        }
        Ok(())
    }
}
