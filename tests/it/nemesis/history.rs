//! Checks of the promises: compares what the jobs themselves wrote with what the ensemble committed.
//!
//! The checks use two records that no node can falsify: the witness's file, to which each run writes one line when it
//! begins and one when it ends by itself; and the servers' transaction logs. They check:
//!
//! - From the witness: no attempt of a run began twice, no two runs of a job were alive together where that is not
//!   allowed, and none began under an older token after one began under a newer token.
//! - What the ensemble committed satisfies the rules of the ledger, the same that judge the simulation: terms open
//!   with growing tokens and nothing is accepted from an older one, marks never go back, a run begins once and ends
//!   once, and every occurrence that a mark passes is begun or counted in a skip.
//! - Every process that began had been committed first, with its token and node.
//! - None began when the next term had already opened, except for attempts that their nodes have accepted themselves.
//! - Each recorded success was seen to begin and to end.
//! - Everything that was begun has ended, once; and no occurrence is `missed` where all must be made up.
//!
//! Nothing here depends on speed, except for [`STARTING`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::later;
use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd, RunRecord, RunState, Skip, SkipReason};
use cronkeeper_core::term::NodeName;
use jiff::{SignedDuration, Timestamp};

use super::work::Work;
use crate::ledger::txn::Txn;
use crate::ledger::{ops, rules, written};
use crate::support::witness::{Entry, Fault, Mark, faults};

#[cfg(test)]
mod proofs;

/// The longest time from the warden's last check of its clock to the first line of the process it starts, on a busy
/// machine. It is half of the session timeout: a node that is cut off is silent long before another leads.
const STARTING: SignedDuration = SignedDuration::from_secs(2);

/// From one instant to another.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// Everything that is known about what a cluster did.
pub struct History {
    /// In the order in which the lines were written. It was read before `committed`, because a begin comes before its
    /// process.
    pub seen: Vec<Entry>,
    /// In the order of the commits.
    pub committed: Vec<Txn>,
    /// Times when a daemon and its warden were both stopped. Nobody could then kill a run that outlived its lease; the
    /// token is for that case.
    pub nodes_stood_still: Vec<Span>,
    /// Occurrences due until then must be settled.
    pub horizon: Timestamp,
}

/// The violations, for people.
#[derive(Debug, Default)]
pub struct Broken {
    /// What the jobs themselves saw.
    pub by_the_jobs: Vec<String>,
    /// What the servers' logs say. If ZooKeeper has lost some of what they have, it says nothing: a run that it lost and
    /// that a node has written again has ended twice there.
    pub by_the_record: Vec<String>,
}

impl Broken {
    /// All that counts, if the servers have lost something or not.
    pub fn that_counts(self, is_lost: bool) -> Vec<String> {
        let Self { mut by_the_jobs, by_the_record } = self;
        if !is_lost {
            by_the_jobs.extend(by_the_record);
        }
        by_the_jobs
    }
}

impl History {
    pub fn new(seen: Vec<Entry>, txns: Vec<Txn>, nodes_stood_still: Vec<Span>, horizon: Timestamp) -> Self {
        let committed = txns;
        Self { seen, committed, nodes_stood_still, horizon }
    }

    /// The violations; see [`Broken`].
    pub fn broken(&self, work: &Work) -> Broken {
        let mut by_the_record = self.starts_off_the_record();
        by_the_record.extend(self.broken_by_the_ledger(work));
        by_the_record.extend(self.starts_of_former_leaders(work));
        by_the_record.extend(self.successes_unseen());
        by_the_record.extend(self.unended());
        by_the_record.extend(self.missed(&work.make_up_for_all()));
        Broken { by_the_jobs: self.broken_by_what_was_seen(&work.may_overlap()), by_the_record }
    }

    /// What was committed about the runs that the violations name, for people.
    pub fn about(&self, broken: &[String]) -> String {
        let is_named =
            |path: &str| path.rsplit('/').next().is_some_and(|name| broken.iter().any(|what| what.contains(name)));
        let is_about = |op: &&Op| match op {
            Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } | Op::Check { path, .. } => {
                is_named(path)
            }
        };
        let each =
            self.committed.iter().flat_map(|entry| ops(entry).iter().filter(is_about).map(move |op| (entry, op)));
        let lines = each.map(|(entry, op)| {
            let (verb, path, data) = match op {
                Op::Create { path, data, .. } => ("create", path, &data[..]),
                Op::Set { path, data, .. } => ("set", path, &data[..]),
                Op::Delete { path, .. } => ("delete", path, &[][..]),
                Op::Check { path, .. } => ("check", path, &[][..]),
            };
            let (at, zxid, session) = (committed_at(entry), entry.zxid, entry.session);
            format!("  {at} {zxid:#x} by {session:#x}: {verb} {path} {}\n", String::from_utf8_lossy(data))
        });
        lines.collect()
    }

    fn broken_by_what_was_seen(&self, may_overlap: &[&str]) -> Vec<String> {
        let is_broken = |fault: &Fault| match fault {
            Fault::Twice(_) => true,
            Fault::Overlap(entry) => !self.is_excused(entry),
            // Two runs of two terms may run side by side there, and either may write first.
            Fault::TokenWentBack { late, .. } => {
                !may_overlap.contains(&late.job.as_str()) && !self.may_have_begun_before_a_stop(late)
            }
        };
        let faults = faults(&self.seen, may_overlap).into_iter().filter(is_broken);
        faults.map(|fault| format!("the runs saw: {fault:?}")).collect()
    }

    fn is_excused(&self, entry: &Entry) -> bool {
        self.stops_at(entry).next().is_some()
    }

    /// A program may begin and be stopped with its node before it has written its first line. It writes the line as soon
    /// as it goes on, and the warden kills it then. What became due only meanwhile must not begin any more.
    fn may_have_begun_before_a_stop(&self, start: &Entry) -> bool {
        let due = start.scheduled_at.parse::<Timestamp>().expect("a job is given a time");
        self.stops_at(start).any(|span| due <= span.from)
    }

    /// The stops in which something happened, or just after which.
    fn stops_at(&self, entry: &Entry) -> impl Iterator<Item = &Span> {
        let at = time_of(entry);
        let is_in = move |span: &&Span| span.from <= at && at <= later(span.to, STARTING.unsigned_abs());
        self.nodes_stood_still.iter().filter(is_in)
    }

    fn broken_by_the_ledger(&self, work: &Work) -> Option<String> {
        let mut rules = rules(Cow::Owned(work.schedules()));
        self.committed.iter().find_map(|entry| {
            let broken = rules.iter_mut().find_map(|rule| rule.committed(entry, &made(entry)).err())?;
            Some(format!("the ledger, at {} ({:#x}): {broken}", committed_at(entry), entry.zxid))
        })
    }

    fn starts_off_the_record(&self) -> Vec<String> {
        let mut begun = BTreeMap::new();
        for (entry, record) in self.records() {
            if record.state == RunState::Running {
                let id = (record.id().to_string(), record.attempt);
                // The token of a placed attempt is the place of its acceptance among all writes.
                let token = if record.placement.is_some() { entry.zxid } else { record.token.0 };
                begun.entry(id).or_insert((token, record.owner.node.to_string(), committed_at(entry)));
            }
        }
        let is_on_record = |start: &&Entry| match begun.get(&(start.run.clone(), start.attempt)) {
            Some((token, node, at)) => (*token, node, *at <= time_of(start)) == (start.token, &start.node, true),
            None => false,
        };
        let unrecorded = self.starts().filter(|start| !is_on_record(start));
        unrecorded.map(|start| format!("this began and was not on record as it began: {start:?}")).collect()
    }

    fn starts_of_former_leaders(&self, work: &Work) -> Vec<String> {
        let terms = self.terms();
        let late = self.starts().filter(|start| !work.is_placed(&start.job)).filter_map(|start| {
            let (token, opened) = terms.iter().find(|(token, _)| *token > start.token)?;
            (time_of(start) > *opened + STARTING && !self.may_have_begun_before_a_stop(start))
                .then(|| format!("the term {token} opened at {opened}, then began {start:?}"))
        });
        late.collect()
    }

    fn successes_unseen(&self) -> Vec<String> {
        let was_seen = |mark, run: &str, attempt| {
            self.seen.iter().any(|entry| (entry.mark, entry.run.as_str(), entry.attempt) == (mark, run, attempt))
        };
        // A run that was due later may have ended after the witness was read.
        let is_judged = |end: &RunEnd| end.outcome == Outcome::Success && end.run.scheduled_at <= self.horizon;
        let successes = self.ends().filter(is_judged).map(|end| (end.run.id().to_string(), end.run.attempt));
        let unseen = successes
            .filter(|(run, attempt)| !was_seen(Mark::Start, run, *attempt) || !was_seen(Mark::End, run, *attempt));
        unseen
            .map(|(run, attempt)| format!("attempt {attempt} of {run} is on record as a success, and was not seen"))
            .collect()
    }

    fn unended(&self) -> Vec<String> {
        let mut ends = BTreeMap::<String, usize>::new();
        for end in self.ends() {
            *ends.entry(end.run.id().to_string()).or_default() += 1;
        }
        // What is shared out ends with the commit that creates the last share.
        let has_end = |record: &RunRecord| record.share_among.is_none();
        let records = self.records().filter(|(_, record)| has_end(record));
        let begun: BTreeMap<String, Timestamp> =
            records.map(|(_, record)| (record.id().to_string(), record.scheduled_at)).collect();
        let count = |run: &str| ends.get(run).copied().unwrap_or(0);
        let due = begun.iter().filter(|(_, at)| **at <= self.horizon);
        // A run whose process was never started leaves a skip in place of its end: its window has passed, or a commit that
        // is gone may have begun it.
        let was_skipped = |run: &str, at: Timestamp| {
            let is_of_it = |skip: &Skip| {
                matches!(skip.reason, SkipReason::Missed | SkipReason::Rewound | SkipReason::NoNode)
                    && skip.on.as_ref().map(NodeName::as_str) == run.split_once('@').map(|(_, node)| node)
                    && run.starts_with(&format!("{}.", skip.job))
                    && skip.first <= at
                    && at <= skip.last
            };
            self.history().any(|record| matches!(&record, HistoryRecord::Skip(skip) if is_of_it(skip)))
                && !self.starts().any(|start| start.run == run)
        };
        let wrong = due.filter(|(run, at)| match count(run) {
            0 => !was_skipped(run, **at),
            ends => ends != 1,
        });
        wrong.map(|(run, _)| format!("{run} was begun and has {} ends", count(run))).collect()
    }

    fn missed(&self, never: &[&str]) -> Vec<String> {
        let skips = self.history().filter_map(|record| match record {
            HistoryRecord::Skip(skip) if skip.reason == SkipReason::Missed => Some(skip),
            _ => None,
        });
        skips
            .filter(|skip| never.contains(&skip.job.as_str()))
            .map(|skip| format!("missed within its window: {skip:?}"))
            .collect()
    }

    fn starts(&self) -> impl Iterator<Item = &Entry> {
        self.seen.iter().filter(|entry| entry.mark == Mark::Start)
    }

    /// All versions of the records of runs in flight.
    fn records(&self) -> impl Iterator<Item = (&Txn, RunRecord)> {
        self.written("/cronkeeper/running")
            .filter_map(|(entry, data)| Some((entry, serde_json::from_slice(data).ok()?)))
    }

    fn written<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a Txn, &'a [u8])> {
        let all = self.committed.iter().flat_map(|entry| ops(entry).iter().map(move |op| (entry, op)));
        all.filter_map(move |(entry, op)| Some((entry, written(op, folder)?.1)))
    }

    fn history(&self) -> impl Iterator<Item = HistoryRecord> {
        let all = self.committed.iter().flat_map(ops);
        let data = all.filter_map(|op| match op {
            Op::Create { path, data, .. } | Op::Set { path, data, .. } if path.starts_with("/cronkeeper/history/") => {
                Some(data)
            }
            _ => None,
        });
        // The parent znodes of the jobs have no data.
        data.filter_map(|data| serde_json::from_slice(data).ok())
    }

    /// The ends of all runs.
    fn ends(&self) -> impl Iterator<Item = RunEnd> {
        self.history().filter_map(|record| match record {
            HistoryRecord::Run(end) => Some(end),
            HistoryRecord::Skip(_) => None,
        })
    }

    /// The tokens of the terms, and when each opened by the servers' clock, which all hosts of this machine share.
    fn terms(&self) -> Vec<(i64, Timestamp)> {
        let mut candidates = BTreeMap::new();
        let mut terms = Vec::new();
        for entry in &self.committed {
            candidates.extend(made(entry).into_iter().map(|path| (path, entry.zxid)));
            let fence = ops(entry).iter().find_map(|op| match op {
                Op::Check { path, .. } => candidates.get(path),
                _ => None,
            });
            let opens = ops(entry).iter().any(|op| matches!(op, Op::Set { path, .. } if path == "/leader"));
            terms.extend(fence.filter(|_| opens).map(|token| (*token, committed_at(entry))));
        }
        terms
    }
}

/// The znodes that a write created.
fn made(entry: &Txn) -> Vec<String> {
    let paths = ops(entry).iter().filter_map(|op| match op {
        Op::Create { path, .. } => Some(path.clone()),
        _ => None,
    });
    paths.collect()
}

fn committed_at(entry: &Txn) -> Timestamp {
    Timestamp::from_millisecond(entry.time_ms).expect("servers have sane clocks")
}

fn time_of(entry: &Entry) -> Timestamp {
    Timestamp::from_nanosecond(entry.at_ns).expect("hosts have sane clocks")
}
