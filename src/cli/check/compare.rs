//! What jobs would add, remove and alter in those that a node has loaded.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use crate::api::definitions::Served;
use crate::config::definition::{Definition, Definitions};
use cronkeeper_core::job::{Digest, JobName};
use cronkeeper_core::term::NodeName;

/// Occurrences shown of each job.
const COMING: usize = 3;

/// The changes to the jobs of a node. A part of `check --diff --json`: docs/contract.md.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// The node that was asked.
    pub node: NodeName,
    pub leader: Option<NodeName>,
    /// The node that was asked has the same jobs as the leader.
    pub is_leaders: bool,
    /// Digest of the files that the node has loaded.
    pub digest: Digest,
    pub added: Vec<JobChange>,
    pub removed: Vec<JobChange>,
    pub altered: Vec<JobChange>,
}

#[derive(Debug, Serialize)]
pub(super) struct JobChange {
    pub job: JobName,
    pub keys: Vec<KeyChange>,
    /// The next occurrences as the jobs are loaded, and as they would be; absent if they depend on a calendar.
    pub next_before: Option<Vec<Timestamp>>,
    pub next_after: Option<Vec<Timestamp>>,
}

/// A key that has another value, or none any more. Absent: the built-in default.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct KeyChange {
    pub key: String,
    pub before: Option<String>,
    pub after: Option<String>,
    /// The values are not shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

impl Comparison {
    pub fn of(served: Served, new: &Definitions, now: Timestamp) -> Self {
        let Served { node, leader, leader_digest, definitions: old } = served;
        let (mut added, mut removed, mut altered) = (Vec::new(), Vec::new(), Vec::new());
        let names: BTreeSet<&JobName> = old.jobs.keys().chain(new.jobs.keys()).collect();
        for name in names {
            let (before, after) = (old.jobs.get(name), new.jobs.get(name));
            if before == after {
                continue;
            }
            let changes = match (before, after) {
                (None, _) => &mut added,
                (_, None) => &mut removed,
                _ => &mut altered,
            };
            changes.push(JobChange::of(name, before, after, now));
        }
        let is_leaders = leader_digest.as_ref() == Some(&old.digest);
        Self { node, leader, is_leaders, digest: old.digest, added, removed, altered }
    }

    pub fn is_empty(&self) -> bool {
        [&self.added, &self.removed, &self.altered].iter().all(|changes| changes.is_empty())
    }
}

impl JobChange {
    fn of(job: &JobName, before: Option<&Definition>, after: Option<&Definition>, now: Timestamp) -> Self {
        let none = Definition::default();
        let (old, new) = (before.unwrap_or(&none), after.unwrap_or(&none));
        let coming = |definition: Option<&Definition>| match definition {
            Some(definition) => definition.coming(job, now, COMING),
            None => Some(Vec::new()),
        };
        Self { job: job.clone(), keys: keys(old, new), next_before: coming(before), next_after: coming(after) }
    }
}

fn keys(old: &Definition, new: &Definition) -> Vec<KeyChange> {
    let names: BTreeSet<&String> = old.keys.keys().chain(new.keys.keys()).collect();
    let shown = names.into_iter().map(|key| KeyChange {
        key: key.clone(),
        before: old.keys.get(key).cloned(),
        after: new.keys.get(key).cloned(),
        hidden: false,
    });
    let shown = shown.filter(|change| change.before != change.after);
    let names: BTreeSet<&String> = old.hidden.keys().chain(new.hidden.keys()).collect();
    let hidden = names.into_iter().filter(|key| old.hidden.get(*key) != new.hidden.get(*key));
    let hidden = hidden.map(|key| KeyChange { key: key.clone(), before: None, after: None, hidden: true });
    shown.chain(hidden).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn definitions(jobs: &str) -> Definitions {
        let (set, _) = crate::config::parse("j", format!("jobs: {{{jobs}}}").as_bytes()).unwrap();
        Definitions::of(&set, "salt")
    }

    pub fn compared(old: &str, new: &str) -> Comparison {
        let definitions_before = definitions(old);
        let served = Served {
            node: NodeName::new("host-a"),
            leader: Some(NodeName::new("host-a")),
            leader_digest: Some(definitions_before.digest.clone()),
            definitions: definitions_before,
        };
        Comparison::of(served, &definitions(new), "2026-11-20T12:00:00Z".parse().unwrap())
    }

    const A: &str = "a: {schedule: '0 2 * * *', command: x, environment: {TOKEN: hunter2, OTHER: x}}";

    #[test]
    fn the_same_jobs_in_another_form_are_no_change() {
        let other = "a: {command: x, timezone: UTC, schedule: ['0 2 * * *'], environment: {OTHER: x, TOKEN: hunter2}}";
        let same = compared(A, other);
        assert!(same.is_empty() && same.is_leaders, "{same:?}");
    }

    #[test]
    fn each_key_that_differs_is_named_and_values_of_environment_are_not_shown() {
        let new = "a: {schedule: '0 3 * * *', command: x, environment: {TOKEN: hunter3, OTHER: x}, timeout: 5m}";
        let changed = compared(A, new);
        let [change] = &changed.altered[..] else { panic!("{changed:?}") };
        let shown = |key: &str, before: Option<&str>, after: Option<&str>, hidden| KeyChange {
            key: key.into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            hidden,
        };
        assert_eq!(
            change.keys,
            [
                shown("schedule", Some("0 2 * * *"), Some("0 3 * * *"), false),
                shown("timeout", None, Some("5m"), false),
                shown("environment.TOKEN", None, None, true),
            ]
        );
        let first = |occurrences: &Option<Vec<Timestamp>>| occurrences.as_ref().unwrap()[0].to_string();
        assert_eq!(first(&change.next_before), "2026-11-21T02:00:00Z");
        assert_eq!(first(&change.next_after), "2026-11-21T03:00:00Z");
        assert!(!serde_json::json!(changed).to_string().contains("hunter"));
    }

    #[test]
    fn jobs_come_and_go() {
        let changed = compared(A, "b: {schedule: '@hourly', command: y}");
        let names = |changes: &[JobChange]| changes.iter().map(|change| change.job.to_string()).collect::<Vec<_>>();
        assert_eq!((names(&changed.added), names(&changed.removed)), (vec!["b".to_owned()], vec!["a".to_owned()]));
        let count = |occurrences: &Option<Vec<Timestamp>>| occurrences.as_ref().map(Vec::len);
        assert_eq!((count(&changed.added[0].next_before), count(&changed.added[0].next_after)), (Some(0), Some(3)));
    }
}
