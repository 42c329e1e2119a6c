//! Which attempts of a run may have output, and where: decided from the ledger's records alone.

use std::collections::BTreeSet;

use crate::status::{EndedRun, HistoryEntry};
use cronkeeper_core::ledger::Followed;
use cronkeeper_core::run::{Attempt, Reason, RunId, RunRecord};
use cronkeeper_core::term::NodeName;

/// Where the output of a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The attempts in order, each with its node.
    pub attempts: Vec<(u32, NodeName)>,
    /// The attempt that has a process now.
    pub running: Option<u32>,
    /// The run has ended, or was skipped.
    pub is_over: bool,
    /// The end of the last attempt's output.
    pub tail: String,
    /// That end is all that the last attempt has written.
    pub tail_is_whole: bool,
    /// Why there is no output.
    pub note: Option<String>,
    /// The shares of a run on every node: the output is theirs.
    pub shares: BTreeSet<RunId>,
    /// Why the ledger was not asked: these are the attempts that this node keeps.
    pub unread: Option<String>,
}

impl Plan {
    pub fn in_flight(record: &RunRecord) -> Self {
        let has_process = record.state.has_process();
        let mut attempts = past(&record.past.attempts);
        if has_process {
            attempts.retain(|(attempt, _)| *attempt < record.attempt);
            attempts.push((record.attempt, record.owner.node.clone()));
        }
        Self { attempts, running: has_process.then_some(record.attempt), ..Self::default() }
    }

    /// The plan for a run that has ended; `None` if the ledger has no record of it.
    pub fn followed(followed: Followed) -> Option<Self> {
        match followed {
            Followed::Ended(record) => Some(Self::over((*record).into())),
            Followed::Shared(shares) => Some(Self::shared(shares)),
            Followed::Gone => None,
        }
    }

    /// The plan for a run that has a share on each node.
    fn shared(shares: BTreeSet<RunId>) -> Self {
        let each: Vec<String> = shares.iter().map(RunId::to_string).collect();
        let note = format!("each node has its own share of it: {}", each.join(", "));
        Self { is_over: true, note: Some(note), shares, ..Self::default() }
    }

    /// The plan for a run that has this record.
    pub fn over(record: HistoryEntry) -> Self {
        match record {
            HistoryEntry::Run(end) => Self::ended(*end),
            HistoryEntry::Skip(skip) => {
                let note = format!("it was skipped: {}", skip.explained());
                Self { is_over: true, note: Some(note), ..Self::default() }
            }
        }
    }

    /// Adds attempts that have output, and that the record does not name (any more).
    pub fn add(&mut self, found: Vec<(u32, NodeName)>) {
        let known: BTreeSet<u32> = self.attempts.iter().map(|(attempt, _)| *attempt).collect();
        self.attempts.extend(found.into_iter().filter(|(attempt, _)| !known.contains(attempt)));
        self.attempts.sort();
        self.attempts.dedup_by_key(|(attempt, _)| *attempt);
    }

    fn ended(end: EndedRun) -> Self {
        let tail_is_whole = end.keeps_all_output();
        let EndedRun { attempt: last, node, reason, tail, earlier_attempts, .. } = end;
        let mut attempts = past(&earlier_attempts);
        attempts.retain(|(attempt, _)| *attempt < last);
        attempts.push((last, node));
        Self {
            attempts,
            running: None,
            is_over: true,
            tail,
            tail_is_whole,
            note: reason.and_then(Reason::prevented_start).map(str::to_owned),
            shares: BTreeSet::new(),
            unread: None,
        }
    }

    /// True if this is the last attempt.
    pub fn is_last(&self, attempt: u32) -> bool {
        self.attempts.last().is_some_and(|(last, _)| *last == attempt)
    }
}

fn past(attempts: &[Attempt]) -> Vec<(u32, NodeName)> {
    attempts.iter().map(|attempt| (attempt.attempt, attempt.node.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, skip, success};
    use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd, RunState};

    fn nodes(plan: &Plan) -> Vec<(u32, &str)> {
        plan.attempts.iter().map(|(attempt, node)| (*attempt, node.as_str())).collect()
    }

    fn on(mut run: RunRecord, attempt: u32, node: &str, state: RunState) -> RunRecord {
        (run.attempt, run.owner.node, run.state) = (attempt, NodeName::new(node), state);
        run
    }

    #[test]
    fn each_attempt_is_where_it_ran() {
        let first = on(record("load", 0, "s"), 1, "host-a", RunState::Running);
        assert_eq!((nodes(&Plan::in_flight(&first)), Plan::in_flight(&first).running), (vec![(1, "host-a")], Some(1)));
        let mut retrying = on(first.clone(), 1, "host-a", RunState::Retrying);
        retrying.past.note(&RunEnd { outcome: Outcome::Failure, ..success(first) });
        let plan = Plan::in_flight(&retrying);
        assert_eq!((nodes(&plan), plan.running, plan.is_over), (vec![(1, "host-a")], None, false));
        let second = on(retrying, 3, "host-b", RunState::CutOff);
        let plan = Plan::in_flight(&second);
        assert_eq!((nodes(&plan), plan.running), (vec![(1, "host-a"), (3, "host-b")], Some(3)));
        let end = RunEnd { tail: "end".into(), ..success(second) };
        let plan = Plan::followed(Followed::Ended(Box::new(HistoryRecord::Run(end)))).unwrap();
        assert_eq!((nodes(&plan), plan.is_over, plan.tail.as_str()), (vec![(1, "host-a"), (3, "host-b")], true, "end"));
        assert!(plan.is_last(3) && !plan.is_last(1));
    }

    #[test]
    fn a_short_end_is_all_of_the_output_if_its_end_was_seen() {
        let plan = |change: fn(&mut RunEnd)| {
            let mut end = RunEnd { tail: "all of it".into(), ..success(record("load", 0, "s")) };
            change(&mut end);
            Plan::over(HistoryRecord::Run(end).into()).tail_is_whole
        };
        assert!(plan(|_| {}));
        assert!(plan(|end| end.tail.clear()), "it wrote nothing");
        assert!(!plan(|end| end.dropped_bytes = 1));
        assert!(!plan(|end| end.tail = "x".repeat(510)), "of a success less is kept");
        assert!(plan(|end| (end.outcome, end.tail) = (Outcome::Failure, "x".repeat(510))));
        assert!(!plan(|end| (end.outcome, end.tail) = (Outcome::Failure, "x".repeat(4_094))));
        assert!(!plan(|end| end.duration_ms = None), "nobody saw what it wrote");
    }

    #[test]
    fn attempts_that_the_record_does_not_name_are_added() {
        let mut plan = Plan::default();
        let node = |attempt, name| (attempt, NodeName::new(name));
        plan.attempts = vec![node(2, "host-a"), node(3, "host-b")];
        plan.add(vec![node(3, "host-c"), node(1, "host-c"), node(1, "host-d")]);
        assert_eq!(nodes(&plan), [(1, "host-c"), (2, "host-a"), (3, "host-b")]);
    }

    #[test]
    fn a_run_without_a_process_says_why() {
        let missing = RunEnd { reason: Some(Reason::NotFound), ..success(record("load", 0, "s")) };
        let plan = Plan::followed(Followed::Ended(Box::new(HistoryRecord::Run(missing)))).unwrap();
        assert_eq!(plan.note.as_deref(), Some("its program was not found"));
        let skipped = Plan::followed(Followed::Ended(Box::new(HistoryRecord::Skip(skip("load", 0))))).unwrap();
        assert!(
            skipped.note.unwrap().starts_with("it was skipped: ") && skipped.is_over && skipped.attempts.is_empty()
        );
        assert_eq!(Plan::followed(Followed::Gone), None);
        let shares: BTreeSet<RunId> =
            ["host-a", "host-b"].map(|node| record("load", 0, "s").id().on(Some(NodeName::new(node)))).into();
        let shared = Plan::followed(Followed::Shared(shares.clone())).unwrap();
        let note = "each node has its own share of it: load.19700101T000000Z@host-a, load.19700101T000000Z@host-b";
        assert_eq!((shared.is_over, shared.note.as_deref(), shared.shares), (true, Some(note), shares));
    }
}
