//! The invariants of a cluster, one file each. An invariant observes every fact as it happens and reports when it
//! breaks.

mod a_stalled_loop_leads_no_more;
mod alarms_are_reported_once;
mod answers_are_true;
mod attempts_are_accounted_for;
mod chains_go_on;
mod events_keep_their_order;
mod every_node_has_its_share;
mod hooks_follow_what_is_written;
mod lasts_follow_the_ends;
mod losses_are_noticed;
mod no_attempt_ends_without_a_process;
mod no_program_begins_early;
mod no_two_processes_of_a_run;
mod nothing_known_is_lost;
mod one_acting_term;
mod parameters_stay_with_the_run;
mod placed_runs_follow_their_acceptance;
#[cfg(test)]
mod proofs;
mod requests_are_heeded;
mod starts_are_in_time;
mod what_is_due_has_had_its_process;

use std::borrow::Cow;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{HistoryRecord, Skip};

use crate::facts::Fact;
use crate::jobs;
use crate::ledger::txn::Txn;
use crate::ledger::{Rule, below, ops, rules, written};

pub use no_two_processes_of_a_run::Successors;

/// The history record that an operation writes.
fn history_record(op: &Op) -> Option<HistoryRecord> {
    let (Op::Create { path, data, .. } | Op::Set { path, data, .. }) = op else { return None };
    path.strip_prefix("/cronkeeper/history/")?;
    serde_json::from_slice(data).ok()
}

/// The record of occurrences not run that an operation writes.
fn skip(op: &Op) -> Option<Skip> {
    match history_record(op)? {
        HistoryRecord::Skip(skip) => Some(skip),
        HistoryRecord::Run(_) => None,
    }
}

pub trait Invariant {
    /// Observes a fact.
    ///
    /// # Errors
    /// A description of what is broken, for people.
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String>;

    /// Checks the world in peace.
    ///
    /// # Errors
    /// A description of what is broken, for people.
    fn conclude(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// All invariants, for `nodes` nodes whose sessions last `timeout`.
pub fn all(nodes: usize, timeout: Duration, successors: Successors, on_store: bool) -> Vec<Box<dyn Invariant>> {
    let mut all = besides_lasts(nodes, timeout, successors, on_store);
    all.push(Box::<lasts_follow_the_ends::LastsFollowTheEnds>::default());
    all
}

/// All invariants but that of `last/<job>`, which facts that are made by hand leave out.
fn besides_lasts(nodes: usize, timeout: Duration, successors: Successors, on_store: bool) -> Vec<Box<dyn Invariant>> {
    let of_ledger = rules(Cow::Borrowed(jobs::schedules())).map(|rule| Box::new(OfLedger(rule)) as Box<dyn Invariant>);
    let others: [Box<dyn Invariant>; 17] = [
        Box::new(one_acting_term::OneActingTerm::new(nodes)),
        Box::<starts_are_in_time::StartsAreInTime>::default(),
        Box::<attempts_are_accounted_for::AttemptsAreAccountedFor>::default(),
        Box::new(no_two_processes_of_a_run::NoTwoProcesses::new(nodes, successors)),
        Box::<placed_runs_follow_their_acceptance::PlacedRunsFollowTheirAcceptance>::default(),
        Box::<every_node_has_its_share::EveryNodeHasItsShare>::default(),
        Box::<answers_are_true::AnswersAreTrue>::default(),
        Box::<requests_are_heeded::RequestsAreHeeded>::default(),
        Box::<parameters_stay_with_the_run::ParametersStayWithTheRun>::default(),
        Box::<no_program_begins_early::NoProgramBeginsEarly>::default(),
        Box::new(events_keep_their_order::EventsKeepTheirOrder),
        Box::<alarms_are_reported_once::AlarmsAreReportedOnce>::default(),
        Box::<hooks_follow_what_is_written::HooksFollowWhatIsWritten>::default(),
        Box::<chains_go_on::ChainsGoOn>::default(),
        Box::new(a_stalled_loop_leads_no_more::AStalledLoopLeadsNoMore::new(nodes, timeout, on_store)),
        Box::<no_attempt_ends_without_a_process::NoAttemptEndsWithoutAProcess>::default(),
        Box::new(what_is_due_has_had_its_process::WhatIsDueHasHadItsProcess::new()),
    ];
    of_ledger.into_iter().chain(others).collect()
}

/// The invariants of a cluster whose servers lose what they have committed.
pub fn under_rewinds(timeout: Duration, on_store: bool) -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<nothing_known_is_lost::NothingKnownIsLost>::default(),
        Box::<no_program_begins_early::NoProgramBeginsEarly>::default(),
        Box::new(events_keep_their_order::EventsKeepTheirOrder),
    ];
    if on_store {
        all.push(Box::new(losses_are_noticed::LossesAreNoticed::new(timeout)));
    }
    all
}

/// A rule about what the ensemble commits.
struct OfLedger(Box<dyn Rule>);

impl Invariant for OfLedger {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, touched } => self.0.committed(txn, touched),
            _ => Ok(()),
        }
    }
}

/// True for the write of an operator. It touches the trigger paths, and depends on no term and no run; ending a run
/// touches them too.
fn is_an_operators(txn: &Txn) -> bool {
    let bells = ["/cronkeeper/control", "/cronkeeper/triggers"];
    let rings = |op: &Op| matches!(op, Op::Set { path, .. } if bells.contains(&path.as_str()));
    let is_a_nodes = |op: &Op| matches!(op, Op::Check { .. } | Op::Delete { .. });
    ops(txn).iter().any(rings) && !ops(txn).iter().any(is_a_nodes)
}
