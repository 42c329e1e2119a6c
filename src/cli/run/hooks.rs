//! The options for hooks of the node: commands to run when something happens to the cluster.

use std::time::Duration;

use crate::daemon::cluster_watch::NodeHooks;
use cronkeeper_core::duration;
use cronkeeper_core::job::{CommandLine, NodeHook};

/// Each command is a script for `/bin/sh -c`, and runs as the daemon does.
#[derive(Debug, clap::Args)]
#[group(id = "node-hooks", multiple = true)]
pub struct Args {
    /// Command to run when this node has become the leader
    #[arg(long, value_name = "COMMAND", env = "CRONKEEPER_ON_LEADER_CHANGE")]
    on_leader_change: Option<String>,
    /// Command to run when this node has known of no leader for `--no-leader-after`
    #[arg(long, value_name = "COMMAND", env = "CRONKEEPER_ON_NO_LEADER")]
    on_no_leader: Option<String>,
    /// How long there may be no leader before --on-no-leader runs
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_NO_LEADER_AFTER", default_value = "1m", value_parser = duration::parse_positive)]
    no_leader_after: Duration,
    /// Command that the leader runs when another node has been gone for `--node-missing-after`
    #[arg(long, value_name = "COMMAND", env = "CRONKEEPER_ON_NODE_MISSING")]
    on_node_missing: Option<String>,
    /// How long a node may be gone before --on-node-missing runs, and channels get `node_missing`
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_NODE_MISSING_AFTER", default_value = "5m", value_parser = duration::parse_positive)]
    node_missing_after: Duration,
    /// Command to run when this node's jobs file was rejected
    #[arg(long, value_name = "COMMAND", env = "CRONKEEPER_ON_JOBS_REJECTED")]
    on_jobs_rejected: Option<String>,
    /// Command that the leader runs when another node has had different jobs or time zones for `--jobs-drift-after`
    #[arg(long, value_name = "COMMAND", env = "CRONKEEPER_ON_JOBS_DRIFT")]
    on_jobs_drift: Option<String>,
    /// How long a node's jobs or time zones may differ from the leader's before --on-jobs-drift runs
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_JOBS_DRIFT_AFTER", default_value = "5m", value_parser = duration::parse_positive)]
    jobs_drift_after: Duration,
}

impl Args {
    pub fn hooks(&self) -> NodeHooks {
        let given = [
            (NodeHook::LeaderChange, &self.on_leader_change),
            (NodeHook::NoLeader, &self.on_no_leader),
            (NodeHook::NodeMissing, &self.on_node_missing),
            (NodeHook::JobsRejected, &self.on_jobs_rejected),
            (NodeHook::JobsDrift, &self.on_jobs_drift),
        ];
        // An empty value, as in an environment file, is none.
        let given = given.into_iter().filter_map(|(hook, command)| Some((hook, command.as_ref()?)));
        let given = given.filter(|(_, command)| !command.trim().is_empty());
        NodeHooks {
            commands: given.map(|(hook, command)| (hook, CommandLine::Shell(command.clone()))).collect(),
            no_leader_after: self.no_leader_after,
            node_missing_after: self.node_missing_after,
            jobs_drift_after: self.jobs_drift_after,
        }
    }
}
