//! Invariant: every attempt of a triggered run finds what its trigger set, whichever node makes it; no other run does.
//!
//! The jobs after a triggered one find the trigger's time, and not its parameters.

use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{Note, RunId, TriggerRecord};
use jiff::Timestamp;

use super::super::facts::Fact;
use super::super::jobs::PARAMETER;
use super::super::warden::Process;
use super::{Invariant, below, ops};

const TRIGGERS: &str = "/cronkeeper/triggers";

#[derive(Default)]
pub struct ParametersStayWithTheRun {
    /// The triggers, by number.
    made: BTreeMap<u64, TriggerRecord>,
}

impl ParametersStayWithTheRun {
    fn created(&mut self, op: &Op, touched: &[String]) {
        let Op::Create { path, data, .. } = op else { return };
        // An operator's write creates one trigger, and the server names it.
        let name = touched.iter().find_map(|path| below(path, TRIGGERS)).filter(|_| below(path, TRIGGERS).is_some());
        if let (Some(Ok(number)), Ok(Note::Trigger(record))) = (name.map(str::parse), Note::read(data)) {
            self.made.insert(number, record);
        }
    }

    fn spawned(&self, process: &Process) -> Result<(), String> {
        let Ok(run) = RunId::parse(&process.run) else { return Ok(()) };
        let trigger = run.trigger().and_then(|seq| self.made.get(&seq.0));
        let own = trigger.filter(|trigger| trigger.job == *run.job());
        let set = own.and_then(|own| own.parameters.iter().find(|(name, _)| *name == PARAMETER));
        let parameter = set.map(|(_, value)| value);
        let time = trigger.and_then(|trigger| trigger.scheduled_at).unwrap_or(run.scheduled_at());
        if process.parameter.as_deref() != parameter || process.scheduled_at.parse::<Timestamp>().ok() != Some(time) {
            return Err(format!("{process:?} does not find {parameter:?} and {time}"));
        }
        Ok(())
    }
}

impl Invariant for ParametersStayWithTheRun {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, touched } => ops(txn).iter().for_each(|op| self.created(op, touched)),
            Fact::Spawned(process) => return self.spawned(process),
            _ => {}
        }
        Ok(())
    }
}
