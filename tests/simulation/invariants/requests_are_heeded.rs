//! Invariant: every trigger leads to a result, no uuid runs twice, and no paused job begins an occurrence.
//!
//! The result of a trigger is a run or a record with a reason; a trigger with a uuid that was already seen has none of
//! its own. The shares of a run on every node are of one run, which began with the first record of it.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{HistoryRecord, RunRecord, TriggerRecord};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::super::facts::Fact;
use super::{Invariant, below, ops};

const TRIGGERS: &str = "/cronkeeper/triggers";
const CONTROL: &str = "/cronkeeper/control";
const RUNNING: &str = "/cronkeeper/running";

/// A uuid and its job; the jobs that run after it have the same uuid.
type Request = (Uuid, JobName);

#[derive(Default)]
pub struct RequestsAreHeeded {
    /// The waiting triggers, by the name of their znode.
    waiting: BTreeMap<String, Request>,
    /// The run or the record that each request led to.
    answered: BTreeMap<Request, String>,
    paused: BTreeSet<String>,
}

impl RequestsAreHeeded {
    fn made(&mut self, data: &[u8], touched: &[String]) {
        let name =
            touched.iter().find_map(|path| below(path, TRIGGERS).filter(|name| !self.waiting.contains_key(*name)));
        if let (Some(name), Some(request)) = (name, read::<TriggerRecord>(data)) {
            self.waiting.insert(name.to_owned(), (request.uuid, request.job));
        }
    }

    fn answer(&mut self, uuid: Uuid, job: JobName, id: String) -> Result<(), String> {
        match self.answered.insert((uuid, job), id.clone()) {
            Some(before) if before != id => Err(format!("{uuid} led to `{before}`, and now to `{id}`")),
            _ => Ok(()),
        }
    }

    fn operation(&mut self, op: &Op, touched: &[String]) -> Result<(), String> {
        match op {
            Op::Create { path, data, .. } if path.starts_with(TRIGGERS) && below(path, TRIGGERS).is_some() => {
                self.made(data, touched);
            }
            Op::Create { path, data, .. } if below(path, RUNNING).is_some() => {
                let Some(run) = read::<RunRecord>(data) else { return Ok(()) };
                match &run.trigger {
                    Some(trigger) => {
                        let id = run.id().on(None).to_string();
                        return self.answer(trigger.uuid, run.job.clone(), id);
                    }
                    None if run.on.is_some() => {}
                    None if self.paused.contains(run.job.as_str()) => {
                        return Err(format!("`{}` is begun while its job is paused", run.id()));
                    }
                    None => {}
                }
            }
            Op::Create { path, .. } => self.paused.extend(below(path, CONTROL).map(str::to_owned)),
            Op::Delete { path, .. } => {
                if let Some(job) = below(path, CONTROL) {
                    self.paused.remove(job);
                }
            }
            Op::Check { .. } | Op::Set { .. } => {}
        }
        Ok(())
    }

    /// The result of a trigger is in the same write as the trigger's removal.
    fn removed(&mut self, name: &str) -> Result<(), String> {
        match self.waiting.remove(name) {
            Some(request) if !self.answered.contains_key(&request) => {
                Err(format!("trigger {name} by {} vanished", request.0))
            }
            _ => Ok(()),
        }
    }
}

fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    serde_json::from_slice(data).ok()
}

impl Invariant for RequestsAreHeeded {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        let Fact::Committed { txn, touched } = fact else { return Ok(()) };
        for op in ops(txn) {
            self.operation(op, touched)?;
            let Op::Create { path, data, .. } = op else { continue };
            let skip = path.starts_with("/cronkeeper/history/").then(|| read::<HistoryRecord>(data)).flatten();
            if let Some(HistoryRecord::Skip(skip)) = skip
                && let Some(trigger) = &skip.trigger
            {
                self.answer(trigger.uuid, skip.job.clone(), skip.id().on(None).to_string())?;
            }
        }
        for op in ops(txn) {
            if let Op::Delete { path, .. } = op
                && let Some(name) = below(path, TRIGGERS)
            {
                self.removed(name)?;
            }
        }
        Ok(())
    }
}
