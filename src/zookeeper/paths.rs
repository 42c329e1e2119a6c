//! Every znode path there is, relative to the chroot.

use crate::job::JobName;
use crate::run::{RunId, TriggerSeq};
use crate::term::{CandidateName, NodeName};

/// The queue.
pub const LEADER: &str = "/leader";
/// All else.
pub const ROOT: &str = "/cronkeeper";
/// Holds the cluster's id.
pub const CLUSTER: &str = "/cronkeeper/cluster";
/// The members.
pub const NODES: &str = "/cronkeeper/nodes";
/// The marks.
pub const JOBS: &str = "/cronkeeper/jobs";
/// The runs in flight.
pub const RUNNING: &str = "/cronkeeper/running";
/// What ended or was skipped, by job.
pub const HISTORY: &str = "/cronkeeper/history";
/// What operators paused.
pub const CONTROL: &str = "/cronkeeper/control";
/// What operators want now.
pub const TRIGGERS: &str = "/cronkeeper/triggers";

/// Jobs that are gone from every node's files. Made when there is one.
pub const GONE: &str = "/cronkeeper/gone";

/// The folders that must be there, parents first.
pub const FOLDERS: [&str; 8] = [LEADER, ROOT, NODES, JOBS, RUNNING, HISTORY, CONTROL, TRIGGERS];

/// A node under a folder.
pub fn under(folder: &str, name: &str) -> String {
    format!("{folder}/{name}")
}

/// An entry of the queue.
pub fn candidate(name: &CandidateName) -> String {
    under(LEADER, &name.0)
}

/// A living node.
pub fn member(node: &NodeName) -> String {
    under(NODES, node.as_str())
}

/// A job's mark.
pub fn job(job: &JobName) -> String {
    under(JOBS, job.as_str())
}

/// A run in flight.
pub fn running(run: &RunId) -> String {
    under(RUNNING, &run.to_string())
}

/// The folder of a job's history.
pub fn job_history(job: &JobName) -> String {
    under(HISTORY, job.as_str())
}

/// A record of the history.
pub fn history(run: &RunId) -> String {
    under(&job_history(run.job()), &run.to_string())
}

/// What an operator said of a job.
pub fn control(job: &JobName) -> String {
    under(CONTROL, job.as_str())
}

/// That a job is gone, and since when.
pub fn gone(job: &JobName) -> String {
    under(GONE, job.as_str())
}

/// A run wanted now.
pub fn trigger(seq: TriggerSeq) -> String {
    format!("{TRIGGERS}/{:010}", seq.0)
}

/// The number that a trigger's node is named by, as the server wrote it.
pub fn trigger_seq(name: &str) -> Option<TriggerSeq> {
    name.parse().ok().map(TriggerSeq)
}

/// The last part of a path.
pub fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The folders above a path, the highest first.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).filter(|folder| !folder.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ancestors_of_a_record_are_its_folders_from_the_top() {
        let folders: Vec<_> = ancestors("/cronkeeper/history/backup/backup.20261120T023000Z").collect();
        assert_eq!(folders, ["/cronkeeper", "/cronkeeper/history", "/cronkeeper/history/backup"]);
        assert_eq!(ancestors("/leader").count(), 0);
    }

    #[test]
    fn every_folder_comes_after_its_parents() {
        for (index, folder) in FOLDERS.iter().enumerate() {
            assert!(ancestors(folder).all(|parent| FOLDERS[..index].contains(&parent)), "{folder}");
        }
    }
}
