//! What a command that changes something did, as its `--json` shows it: one object, of the same shape for all of them.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use super::json;
use crate::api::recount::Recounting;
use crate::status::HistoryEntry;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Drain, Pause, RunId};
use cronkeeper_core::term::NodeName;

/// The object.
#[derive(Debug, Serialize)]
pub(super) struct Effects {
    v: u32,
    command: &'static str,
    /// False if some of it is requested, but not carried out yet.
    done: bool,
    results: Vec<Effect>,
}

/// What happened to one job, run or node.
#[derive(Debug, Default, Serialize)]
pub(super) struct Effect {
    pub effect: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The node that leads now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<NodeName>,
    #[serde(flatten)]
    pub asked: Option<Asked>,
    /// What was in force before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Asked>,
    /// From when a job is counted again, and what is not run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recounted: Option<Recounting>,
    /// The run's record, as in the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<HistoryEntry>>,
}

/// Who asked, when, why and until when.
#[derive(Debug, Serialize)]
pub(super) struct Asked {
    pub by: String,
    pub at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl From<Drain> for Asked {
    fn from(Drain { by, at, reason }: Drain) -> Self {
        Self { by, at, reason, until: None }
    }
}

impl From<Pause> for Asked {
    fn from(Pause { by, at, reason, until }: Pause) -> Self {
        Self { by, at, reason, until }
    }
}

impl Effects {
    /// Everything was done.
    pub fn of(command: &'static str, results: Vec<Effect>) -> Self {
        Self { v: 1, command, done: true, results }
    }

    /// The one thing that a command is about; it is done unless `is_pending`.
    pub fn one(command: &'static str, effect: Effect, is_pending: bool) -> Self {
        Self { done: !is_pending, ..Self::of(command, vec![effect]) }
    }

    /// The same, but some of it is only requested.
    pub fn pending(self) -> Self {
        Self { done: false, ..self }
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        json::line(self, out)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_object_names_who_asked_and_what_was_replaced() {
        let at: Timestamp = "2026-11-20T03:00:00Z".parse().unwrap();
        let drain = |reason: Option<&str>| Drain { by: "root".into(), at, reason: reason.map(str::to_owned) };
        let effect = Effect {
            effect: "drained",
            node: Some(NodeName::new("host-a")),
            asked: Some(drain(Some("disks")).into()),
            replaced: Some(drain(None).into()),
            ..Effect::default()
        };
        let mut out = Vec::new();
        Effects::one("drain", effect, true).write(&mut out).unwrap();
        let at = "2026-11-20T03:00:00Z";
        let expected = json!({ "v": 1, "command": "drain", "done": false, "results": [{
            "effect": "drained", "node": "host-a", "by": "root", "at": at, "reason": "disks",
            "replaced": { "by": "root", "at": at },
        }] });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&out).unwrap(), expected);
    }
}
