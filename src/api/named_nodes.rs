//! The nodes that a trigger names: whether its job can run there, as far as this node knows.
//!
//! The leader judges them again, by its own jobs file, when it gives each node its share.

use std::collections::BTreeSet;

use axum::http::StatusCode;

use super::{ApiState, RefusedRequest};
use cronkeeper_core::election::Queue;
use cronkeeper_core::job::{Job, JobName, Requirement, RunOn};
use cronkeeper_core::suggest::{did_you_mean, nearest};
use cronkeeper_core::term::NodeName;

/// Why a job is not triggered on the nodes that were named.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NotThere {
    #[error(
        "job `{job}` runs on the leader, so no other node can be named; `cronkeeper exec {job}` runs it on the host where \
         it is called"
    )]
    OnLeader { job: JobName },
    #[error("there is no node `{node}`{}", did_you_mean(.nearest.as_deref()))]
    Unknown { node: NodeName, nearest: Option<String> },
    /// It is alive, and has no record as a place.
    #[error("node `{node}` cannot be given runs: it has not said yet which labels it has, or is of an older version")]
    NoPlace { node: NodeName },
    #[error("job `{job}` does not run on node `{node}`, only on nodes {which}; its labels: {labels}")]
    Unfit { job: JobName, node: NodeName, which: String, labels: String },
    /// Without a service, nobody gives runs to other nodes.
    #[error("without a service all jobs run on this host: node `{node}` cannot be named, only `{own}`")]
    Solo { node: NodeName, own: NodeName },
}

impl ApiState {
    /// The nodes that a trigger is to give shares to; empty: where the job runs anyway.
    ///
    /// # Errors
    /// If the job cannot run on one of these nodes, or that cannot be read.
    pub(super) async fn named_nodes(
        &self,
        job: &JobName,
        named: BTreeSet<NodeName>,
    ) -> Result<BTreeSet<NodeName>, RefusedRequest> {
        if named.is_empty() {
            return Ok(named);
        }
        let refused = |why: NotThere| RefusedRequest::new(StatusCode::BAD_REQUEST, why.to_string());
        let set = self.sources.jobs.borrow().clone();
        // Its status may name a job that has just been removed.
        let job = set
            .jobs
            .get(job)
            .ok_or_else(|| RefusedRequest::new(StatusCode::NOT_FOUND, format!("there is no job `{job}` any more")))?;
        if job.run_on == RunOn::Leader {
            return Err(refused(NotThere::OnLeader { job: job.name.clone() }));
        }
        let (is_solo, own) = {
            let status = self.sources.status.borrow();
            (status.backend == SOLO, status.node.clone())
        };
        if is_solo {
            return match named.into_iter().find(|node| *node != own) {
                Some(node) => Err(refused(NotThere::Solo { node, own })),
                None => Ok(BTreeSet::new()),
            };
        }
        let queue = self.read_queue().await?;
        named.iter().try_for_each(|node| check(job, node, &queue)).map_err(refused)?;
        Ok(named)
    }
}

/// The name of the backend without a service, as in the status.
const SOLO: &str = "solo";

fn check(job: &Job, node: &NodeName, queue: &Queue) -> Result<(), NotThere> {
    let Some(place) = queue.places.get(node) else {
        if queue.members.iter().any(|member| member.node == *node) {
            return Err(NotThere::NoPlace { node: node.clone() });
        }
        let nearest = nearest(node.as_str(), queue.places.keys().map(NodeName::as_str));
        return Err(NotThere::Unknown { node: node.clone(), nearest: nearest.map(str::to_owned) });
    };
    if job.run_where.is_met_by(node, &place.labels) {
        return Ok(());
    }
    let parts: Vec<String> = job.run_where.0.iter().map(Requirement::in_words).collect();
    let labels: Vec<String> = place.labels.iter().map(ToString::to_string).collect();
    let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
    Err(NotThere::Unfit { job: job.name.clone(), node: node.clone(), which: parts.join(" and "), labels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    fn job(keys: &str) -> Job {
        let yaml = format!("jobs:\n  load: {{schedule: '@daily', command: 'true', {keys}}}\n");
        let (set, _) = crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap();
        Job::clone(&set.jobs[&sample::job("load")])
    }

    #[test]
    fn a_node_is_named_if_it_is_known_and_has_the_labels_also_while_it_is_away() {
        let queue = Queue { places: sample::places(), ..sample::queue() };
        let any = job("run_on: any");
        for node in queue.places.keys() {
            assert_eq!(check(&any, node, &queue), Ok(()), "{node}");
        }
        let refused = |job: &Job, node: &str| check(job, &NodeName::new(node), &queue).unwrap_err().to_string();
        assert_eq!(refused(&any, "hots-a"), "there is no node `hots-a`, did you mean `host-a`?");
        assert_eq!(refused(&any, "elsewhere"), "there is no node `elsewhere`");
        let gpu = job("run_on: every, run_where: [gpu, '!old']");
        assert_eq!(check(&gpu, &NodeName::new("host-a"), &queue), Ok(()));
        let error =
            "job `load` does not run on node `host-b`, only on nodes with gpu and without old; its labels: none";
        assert_eq!(refused(&gpu, "host-b"), error);
    }

    #[test]
    fn a_node_that_has_no_record_of_its_labels_is_told_from_one_that_does_not_exist() {
        let queue = sample::queue();
        let error = check(&job("run_on: any"), &NodeName::new("host-a"), &queue);
        assert_eq!(error, Err(NotThere::NoPlace { node: NodeName::new("host-a") }));
    }
}
