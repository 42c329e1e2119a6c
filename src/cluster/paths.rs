//! The paths of a cluster's records, below its root.

use cronkeeper_core::job::{ChannelName, JobName};
use cronkeeper_core::run::{NoticeKey, RunId, TriggerSeq};
use cronkeeper_core::term::{CandidateName, NodeName};

/// The queue.
pub const LEADER: &str = "/leader";
/// Parent of everything except the queue.
pub const ROOT: &str = "/cronkeeper";
/// Holds the cluster id.
pub const CLUSTER: &str = "/cronkeeper/cluster";
/// Parent of the members.
pub const NODES: &str = "/cronkeeper/nodes";
/// Parent of the marks.
pub const JOBS: &str = "/cronkeeper/jobs";
/// Parent of the runs in flight.
pub const RUNNING: &str = "/cronkeeper/running";
/// Runs that ended and occurrences that were skipped, by job.
pub const HISTORY: &str = "/cronkeeper/history";
/// How each job's runs ended last, by job.
pub const LAST: &str = "/cronkeeper/last";
/// Pauses, by job.
pub const CONTROL: &str = "/cronkeeper/control";
/// Requested runs, and links to downstream jobs.
pub const TRIGGERS: &str = "/cronkeeper/triggers";

/// What operators want of nodes, by node.
pub const WANTED: &str = "/cronkeeper/wanted";

/// The nodes as places to run jobs, by node. Its data is set with every change below it.
pub const PLACES: &str = "/cronkeeper/places";
/// The attempts that are placed on nodes and not accepted yet: a folder for each node, whose data is set with every new
/// one.
pub const OFFERS: &str = "/cronkeeper/offers";

/// Notifications that are to be sent.
pub const OUTBOX: &str = "/cronkeeper/outbox";
/// What is known of the delivery of notifications, by channel.
pub const CHANNELS: &str = "/cronkeeper/channels";

/// What nobody may begin because a store has lost commits. Created with the first loss.
pub const REWOUND: &str = "/cronkeeper/rewound";

/// Jobs that are absent from every node's files. Created with the first such job.
pub const GONE: &str = "/cronkeeper/gone";
/// What distinguishes the note of a node from that of a job.
const GONE_NODE: char = '@';

/// The folders of a cluster, outer ones first.
pub const PARENTS: [&str; 14] =
    [LEADER, ROOT, NODES, JOBS, RUNNING, HISTORY, LAST, CONTROL, TRIGGERS, WANTED, PLACES, OFFERS, OUTBOX, CHANNELS];

/// The path of a child.
pub fn under(parent: &str, name: &str) -> String {
    format!("{parent}/{name}")
}

pub fn candidate(name: &CandidateName) -> String {
    under(LEADER, &name.0)
}

pub fn member(node: &NodeName) -> String {
    under(NODES, node.as_str())
}

/// The job's mark.
pub fn job(job: &JobName) -> String {
    under(JOBS, job.as_str())
}

pub fn running(run: &RunId) -> String {
    under(RUNNING, &run.to_string())
}

/// The parent of a job's history records.
pub fn job_history(job: &JobName) -> String {
    under(HISTORY, job.as_str())
}

/// The history record of a run, or of skipped occurrences.
pub fn history(run: &RunId) -> String {
    under(&job_history(run.job()), &run.to_string())
}

/// How the job's runs ended last.
pub fn last(job: &JobName) -> String {
    under(LAST, job.as_str())
}

/// The job's pause.
pub fn control(job: &JobName) -> String {
    under(CONTROL, job.as_str())
}

/// What operators want of the node.
pub fn wanted(node: &NodeName) -> String {
    under(WANTED, node.as_str())
}

/// The node as a place to run jobs.
pub fn place(node: &NodeName) -> String {
    under(PLACES, node.as_str())
}

/// The parent of a node's offers.
pub fn offers(node: &NodeName) -> String {
    under(OFFERS, node.as_str())
}

/// The attempt of a run that is placed on the node and not accepted yet.
pub fn offer(node: &NodeName, run: &RunId) -> String {
    under(&offers(node), &run.to_string())
}

/// The note that the job is absent from every node's files. Its age shows since when.
pub fn gone(job: &JobName) -> String {
    under(GONE, job.as_str())
}

/// The note that a node is gone. No job has such a name.
pub fn gone_node(node: &NodeName) -> String {
    format!("{GONE}/{GONE_NODE}{node}")
}

/// The node that is gone by the note of this name.
pub fn gone_node_in(name: &str) -> Option<NodeName> {
    NodeName::parse(name.strip_prefix(GONE_NODE)?).ok()
}

pub fn trigger(seq: TriggerSeq) -> String {
    format!("{TRIGGERS}/{:010}", seq.0)
}

pub fn notice(key: NoticeKey) -> String {
    format!("{OUTBOX}/{key}")
}

/// What is known of a channel.
pub fn channel(name: &ChannelName) -> String {
    under(CHANNELS, name.as_str())
}

/// The number in a trigger's name. Only names that servers make have one: [`trigger`] must lead back to the
/// same record, or the leader could never remove it.
pub fn trigger_seq(name: &str) -> Option<TriggerSeq> {
    let number: i64 = name.parse().ok()?;
    let seq = TriggerSeq(u64::try_from(number).ok()?);
    (self::name(&trigger(seq)) == name).then_some(seq)
}

/// The last part of a path.
pub fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// All of a path but its last part; empty if that is all it has.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// True for what is below the folder of the ledger.
pub fn is_of_ledger(path: &str) -> bool {
    path == ROOT || path.strip_prefix(ROOT).is_some_and(|rest| rest.starts_with('/'))
}

/// True where entries are: candidates, members, and those of locks.
pub fn may_be_entry(path: &str) -> bool {
    let is_folder_of_all = parent(path).is_empty();
    !is_folder_of_all && (!is_of_ledger(path) || parent(path) == NODES)
}

/// True for the parent of a job's history records.
pub fn is_job_history(path: &str) -> bool {
    parent(path) == HISTORY
}

/// True for the parent of a node's offers.
pub fn is_offers_of_node(path: &str) -> bool {
    parent(path) == OFFERS
}

/// True for the path of an offer.
pub fn is_offer(path: &str) -> bool {
    is_offers_of_node(parent(path))
}

/// The ancestors of a path, highest first.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).filter(|ancestor| !ancestor.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ancestors_of_a_record_are_listed_from_the_top() {
        let found: Vec<_> = ancestors("/cronkeeper/history/backup/backup.20261120T023000Z").collect();
        assert_eq!(found, ["/cronkeeper", "/cronkeeper/history", "/cronkeeper/history/backup"]);
        assert_eq!(ancestors("/leader").count(), 0);
    }

    #[test]
    fn only_a_name_that_a_server_makes_is_a_trigger() {
        assert_eq!(trigger_seq("0000000007"), Some(TriggerSeq(7)));
        assert_eq!(trigger_seq("9223372036854775807"), Some(TriggerSeq(i64::MAX.unsigned_abs())));
        for bad in ["7", "+000000007", "00000000007", "18446744073709551615", "-000000007", ""] {
            assert_eq!(trigger_seq(bad), None, "{bad}");
        }
    }

    #[test]
    fn parents_come_before_their_children() {
        for (index, path) in PARENTS.iter().enumerate() {
            assert!(ancestors(path).all(|parent| PARENTS[..index].contains(&parent)), "{path}");
        }
    }
}
