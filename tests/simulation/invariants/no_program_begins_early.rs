//! Invariant: no program of an occurrence that was begun ahead of its time begins before that, by its node's clock.
//!
//! A clock that is set back while a start is held cancels it; the program may begin before the warden knows that. A run
//! that has had a process is begun again by its retries, or by the loss of its node. A run that waits for others, or
//! follows them, may have been decided on by a node whose clock was ahead.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{LONGEST_HOLD, RunId, RunRecord, RunState};
use jiff::SignedDuration;

use super::super::facts::Fact;
use super::super::jobs::follows_others;
use super::super::world::wall_at;
use super::{Invariant, ops, written};

fn is_begun_ahead(record: &RunRecord) -> bool {
    let follows_its_schedule = record.trigger.is_none() && !follows_others(record.job.as_str());
    record.state == RunState::Running && follows_its_schedule && record.begun_at < record.scheduled_at
}

#[derive(Default)]
pub struct NoProgramBeginsEarly {
    clocks: BTreeMap<usize, NodeClock>,
    /// The runs that were begun ahead and have had no process.
    ahead: BTreeSet<String>,
}

/// How far a node's clock is ahead, and the furthest that it was of late.
#[derive(Clone, Copy, Default)]
struct NodeClock {
    skew: SignedDuration,
    /// The skew before the clock was set back, and until when that counts.
    before: Option<(SignedDuration, Uptime)>,
}

impl Invariant for NoProgramBeginsEarly {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => {
                // Another attempt was begun when it was due, whatever a later leader's clock shows.
                let records = ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/running"));
                let is_due = |data| {
                    let record: Option<RunRecord> = serde_json::from_slice(data).ok();
                    record.is_some_and(|record| record.state == RunState::Running && !is_begun_ahead(&record))
                };
                let due = records.filter(|(_, data)| is_due(data)).map(|(run, _)| run.to_owned());
                for run in due.collect::<Vec<_>>() {
                    self.ahead.remove(&run);
                }
                let creates = ops(txn).iter().filter(|op| matches!(op, Op::Create { .. }));
                let records = creates.filter_map(|op| written(op, "/cronkeeper/running"));
                let is_ahead = |data| serde_json::from_slice(data).is_ok_and(|record| is_begun_ahead(&record));
                self.ahead.extend(records.filter(|(_, data)| is_ahead(data)).map(|(run, _)| run.to_owned()));
            }
            Fact::ClockSet { node, by } => {
                let clock = self.clocks.entry(*node).or_default();
                let before =
                    clock.before.filter(|&(_, until)| at <= until).map_or(clock.skew, |(skew, _)| skew.max(clock.skew));
                clock.before = Some((before, at + LONGEST_HOLD));
                clock.skew += *by;
            }
            Fact::Spawned(process) => {
                let Ok(run) = RunId::parse(&process.run) else { return Ok(()) };
                let clock = self.clocks.get(&process.node).copied().unwrap_or_default();
                let before = clock.before.filter(|&(_, until)| at <= until).map(|(skew, _)| skew);
                let time = wall_at(at) + before.map_or(clock.skew, |before| before.max(clock.skew));
                if self.ahead.remove(&process.run) && run.scheduled_at() > time {
                    return Err(format!("{process:?} began when it was {time} at its node"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
