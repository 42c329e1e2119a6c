//! The invariants of a cluster, one file each. An invariant observes every fact as it happens and reports when it
//! breaks.

mod a_stalled_loop_leads_no_more;
mod alarms_are_told_once;
mod answers_are_true;
mod attempts_are_accounted_for;
mod chains_go_on;
mod events_keep_their_order;
mod hooks_follow_what_is_written;
mod marks_never_go_back;
mod no_attempt_ends_without_a_process;
mod no_program_begins_early;
mod no_run_begins_twice;
mod no_two_processes_of_a_run;
mod nothing_begins_ahead;
mod nothing_vanishes;
mod one_acting_term;
mod parameters_stay_with_the_run;
#[cfg(test)]
mod proofs;
mod requests_are_heeded;
mod starts_are_in_time;
mod tokens_grow;
mod what_is_due_has_had_its_process;

use std::borrow::Cow;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;

use super::facts::Fact;
use super::zookeeper::wire::Entry;
use super::zookeeper::{Change, STRANGER};

pub use no_two_processes_of_a_run::Successors;
pub use nothing_vanishes::Schedules;

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
pub fn all(nodes: usize, timeout: Duration, successors: Successors) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(one_acting_term::OneActingTerm::new(nodes)),
        Box::<starts_are_in_time::StartsAreInTime>::default(),
        Box::<tokens_grow::TokensGrow>::default(),
        Box::<marks_never_go_back::MarksNeverGoBack>::default(),
        Box::<attempts_are_accounted_for::AttemptsAreAccountedFor>::default(),
        Box::<no_run_begins_twice::NoRunBeginsTwice>::default(),
        Box::new(no_two_processes_of_a_run::NoTwoProcesses::new(nodes, successors)),
        Box::<answers_are_true::AnswersAreTrue>::default(),
        Box::<nothing_vanishes::NothingVanishes>::default(),
        Box::<requests_are_heeded::RequestsAreHeeded>::default(),
        Box::<parameters_stay_with_the_run::ParametersStayWithTheRun>::default(),
        Box::new(nothing_begins_ahead::NothingBeginsAhead),
        Box::<no_program_begins_early::NoProgramBeginsEarly>::default(),
        Box::new(events_keep_their_order::EventsKeepTheirOrder),
        Box::<alarms_are_told_once::AlarmsAreToldOnce>::default(),
        Box::<hooks_follow_what_is_written::HooksFollowWhatIsWritten>::default(),
        Box::<chains_go_on::ChainsGoOn>::default(),
        Box::new(a_stalled_loop_leads_no_more::AStalledLoopLeadsNoMore::new(nodes, timeout)),
        Box::<no_attempt_ends_without_a_process::NoAttemptEndsWithoutAProcess>::default(),
        Box::new(what_is_due_has_had_its_process::WhatIsDueHasHadItsProcess::new()),
    ]
}

/// The invariants that check only what the ensemble commits. They also hold for the log of real servers.
pub fn of_ledger(schedules: Schedules) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<tokens_grow::TokensGrow>::default(),
        Box::<marks_never_go_back::MarksNeverGoBack>::default(),
        Box::<no_run_begins_twice::NoRunBeginsTwice>::default(),
        Box::new(nothing_vanishes::NothingVanishes::of(Cow::Owned(schedules))),
        Box::new(nothing_begins_ahead::NothingBeginsAhead),
    ]
}

/// The operations of a write; none of a foreign client's.
pub fn ops(entry: &Entry) -> &[Op] {
    match &entry.txn.change {
        // The write of a foreign client says nothing about the nodes.
        Change::Ops(_) if entry.txn.session == STRANGER => &[],
        Change::Ops(ops) => ops,
        Change::OpenSession | Change::CloseSession | Change::Refused => &[],
    }
}

/// True for the write of an operator. It touches the trigger paths, and depends on no term and no run; ending a run
/// touches them too.
fn is_an_operators(entry: &Entry) -> bool {
    let bells = ["/cronkeeper/control", "/cronkeeper/triggers"];
    let rings = |op: &Op| matches!(op, Op::Set { path, .. } if bells.contains(&path.as_str()));
    let is_a_nodes = |op: &Op| matches!(op, Op::Check { .. } | Op::Delete { .. });
    ops(entry).iter().any(rings) && !ops(entry).iter().any(is_a_nodes)
}

/// The name and data of a record that an operation creates or replaces directly below `folder`.
pub fn written<'a>(op: &'a Op, folder: &str) -> Option<(&'a str, &'a [u8])> {
    let (Op::Create { path, data, .. } | Op::Set { path, data, .. }) = op else { return None };
    Some((below(path, folder)?, data))
}

/// The name of a znode directly below `folder`.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder)?.strip_prefix('/').filter(|name| !name.contains('/'))
}
