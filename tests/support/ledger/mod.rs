//! The rules that everything that an ensemble commits obeys, one file each.
//!
//! They judge the simulated ensemble, and the transaction logs of real servers.

mod marks_never_go_back;
mod no_run_begins_twice;
mod nothing_begins_ahead;
mod nothing_vanishes;
mod placed_runs_keep_to_their_nodes;
mod tokens_grow;
pub mod txn;

use std::borrow::Cow;

use cronkeeper_cluster::zookeeper::client::Op;

pub use self::nothing_vanishes::Schedules;
use self::txn::{Change, STRANGER, Txn};

/// A rule. It sees every transaction that the ensemble commits and accepts, in order, and reports when it is broken.
pub trait Rule {
    /// `touched`: the znodes that the transaction created, changed or removed.
    ///
    /// # Errors
    /// A description of what is broken, for people.
    fn committed(&mut self, txn: &Txn, touched: &[String]) -> Result<(), String>;
}

/// All rules. `schedules`: those that the jobs' records may be counted with.
pub fn rules(schedules: Cow<'static, Schedules>) -> [Box<dyn Rule>; 6] {
    [
        Box::<tokens_grow::TokensGrow>::default(),
        Box::<marks_never_go_back::MarksNeverGoBack>::default(),
        Box::<no_run_begins_twice::NoRunBeginsTwice>::default(),
        Box::<placed_runs_keep_to_their_nodes::PlacedRunsKeepToTheirNodes>::default(),
        Box::new(nothing_vanishes::NothingVanishes::of(schedules)),
        Box::new(nothing_begins_ahead::NothingBeginsAhead),
    ]
}

/// The operations of a write; none of a foreign client's.
pub fn ops(txn: &Txn) -> &[Op] {
    match &txn.change {
        // The write of a foreign client says nothing about the nodes.
        Change::Ops(_) if txn.session == STRANGER => &[],
        Change::Ops(ops) => ops,
        Change::OpenSession | Change::CloseSession | Change::Refused => &[],
    }
}

/// The name and data of a record that an operation creates or replaces directly below `folder`.
pub fn written<'a>(op: &'a Op, folder: &str) -> Option<(&'a str, &'a [u8])> {
    let (Op::Create { path, data, .. } | Op::Set { path, data, .. }) = op else { return None };
    Some((below(path, folder)?, data))
}

/// The name of a znode directly below `folder`.
pub fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder)?.strip_prefix('/').filter(|name| !name.contains('/'))
}
