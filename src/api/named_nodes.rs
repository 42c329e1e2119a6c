//! The nodes that a trigger names: whether its job can run there, as far as this node knows.
//!
//! The leader judges them again, by its own jobs file, when it gives each node its share.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use jiff::Timestamp;

use super::nodes::no_such_node;
use super::{ApiState, RefusedRequest};
use crate::status::{Status, away_in_words, drain_in_words};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::{Place, Queue};
use cronkeeper_core::engine::{too_old_from, unplaceable};
use cronkeeper_core::job::{Job, JobName, RunOn};
use cronkeeper_core::term::NodeName;

/// Why a job is not triggered on the nodes that were named.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NotThere {
    #[error(
        "job `{job}` runs on the leader, so no other node can be named; `cronkeeper exec {job}` runs it on the host \
         where you call it"
    )]
    OnLeader { job: JobName },
    #[error("{0}")]
    Unknown(String),
    /// It is alive, and has no record as a place.
    #[error("node `{node}` cannot get runs: it has not published its labels yet, or runs an older version")]
    NoPlace { node: NodeName },
    #[error("job `{job}` does not run on node `{node}`, only on nodes {which}; its labels: {labels}")]
    Unfit { job: JobName, node: NodeName, which: String, labels: String },
    /// Without a service, nobody gives runs to other nodes.
    #[error("without a service all jobs run on this host: node `{node}` cannot be named, only `{own}`")]
    Solo { node: NodeName, own: NodeName },
}

impl ApiState {
    /// The nodes that a trigger is to give shares to, and what there is to say of them; empty: where the job runs anyway.
    ///
    /// # Errors
    /// If the job cannot run on one of these nodes, or that cannot be read.
    pub(super) async fn named_nodes(
        &self,
        job: &JobName,
        named: BTreeSet<NodeName>,
    ) -> Result<(BTreeSet<NodeName>, Vec<String>), RefusedRequest> {
        if named.is_empty() {
            return Ok((named, self.obstacles(job).await));
        }
        let refused = |why: NotThere| RefusedRequest::new(why.code(), why.to_string());
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
                None => Ok((BTreeSet::new(), Vec::new())),
            };
        }
        let queue = self.read_queue().await?;
        named.iter().try_for_each(|node| check(job, node, &queue)).map_err(refused)?;
        let status = self.status_with(&queue);
        let until = until(job, status.at);
        let notes = named.iter().filter_map(|node| note(node, job, &status, &until)).collect();
        Ok((named, notes))
    }

    /// What keeps a run of the job from starting now, if the trigger names no nodes. If that cannot be read, the job
    /// can still be triggered.
    async fn obstacles(&self, job: &JobName) -> Vec<String> {
        let set = self.sources.jobs.borrow().clone();
        let is_solo = self.sources.status.borrow().backend == SOLO;
        let Some(job) = set.jobs.get(job).filter(|_| !is_solo) else { return Vec::new() };
        match self.read_queue().await {
            Ok(queue) => obstacles(job, &self.status_with(&queue)),
            Err(_) => Vec::new(),
        }
    }

    fn status_with(&self, queue: &Queue) -> Status {
        let mut status = self.sources.status_now();
        status.put_queue(queue);
        status
    }
}

/// What keeps the nodes from a run of this job, or from their shares of it.
fn obstacles(job: &Job, status: &Status) -> Vec<String> {
    let until = until(job, status.at);
    if job.run_on == RunOn::Leader {
        let waits = format!("nobody leads, because every node is drained: the run waits {until}, and is skipped then");
        return status.is_all_drained().then_some(waits).into_iter().collect();
    }
    // The leader knows more than a look at the nodes shows: what they have refused.
    let known = status.jobs.iter().find(|known| known.name == job.name).and_then(|known| known.unplaceable.clone());
    let why = known.or_else(|| unplaceable(std::iter::once(job), &status.places, &status.members).remove(&job.name));
    if let Some(why) = why {
        return vec![format!("the run waits for a node {until}, and is skipped then: {why}")];
    }
    if job.run_on != RunOn::Every {
        return Vec::new();
    }
    let takes = |(node, place): &(&NodeName, &Place)| job.run_where.is_met_by(node, &place.labels);
    status.places.iter().filter(takes).filter_map(|(node, _)| note(node, job, status, &until)).collect()
}

/// How long a run that is triggered now may wait for a node: `until 2026-11-20 15:00:00Z`.
fn until(job: &Job, now: Timestamp) -> String {
    if job.upstreams().is_some() && job.misfire_window.is_none() {
        // An occurrence of a job that it runs after may come before that.
        return "until its misfire window is over".to_owned();
    }
    format!("until {}Z", stamp(too_old_from(job, job, now)))
}

impl NotThere {
    fn code(&self) -> StatusCode {
        match self {
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::OnLeader { .. } | Self::NoPlace { .. } | Self::Unfit { .. } | Self::Solo { .. } => {
                StatusCode::BAD_REQUEST
            }
        }
    }
}

/// What keeps a node from its part in a run of the job for now, and what becomes of that.
fn note(node: &NodeName, job: &Job, status: &Status, until: &str) -> Option<String> {
    // A share is one of several, which a job that runs on any node has only if somebody names its nodes.
    let part = if job.run_on == RunOn::Every { "its share" } else { "the run there" };
    if let Some(drain) = status.drained.get(node) {
        return Some(format!("{}; {part} is skipped", drain_in_words(node, drain)));
    }
    let member = status.members.iter().find(|member| member.node == *node);
    let state = match member {
        Some(member) if member.published.draining => "is stopping".to_owned(),
        Some(_) => return None,
        None => match status.missing.iter().find(|missing| missing.node == *node) {
            Some(missing) => {
                let seen = missing.seen_well_before();
                let verb = if seen.is_some() { "is" } else { "has been" };
                format!("{verb} {}", away_in_words(missing.gone_since, seen))
            }
            None => "is away".to_owned(),
        },
    };
    Some(format!("{node} {state}: {part} waits for it {until}, and is skipped then"))
}

/// The name of the backend without a service, as in the status.
const SOLO: &str = "solo";

fn check(job: &Job, node: &NodeName, queue: &Queue) -> Result<(), NotThere> {
    let Some(place) = queue.places.get(node) else {
        if queue.members.iter().any(|member| member.node == *node) {
            return Err(NotThere::NoPlace { node: node.clone() });
        }
        return Err(NotThere::Unknown(no_such_node(node, queue.places.keys())));
    };
    if job.run_where.is_met_by(node, &place.labels) {
        return Ok(());
    }
    let labels: Vec<String> = place.labels.iter().map(ToString::to_string).collect();
    let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
    Err(NotThere::Unfit { job: job.name.clone(), node: node.clone(), which: job.run_where.in_words(), labels })
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
        assert_eq!(refused(&any, "hots-a"), "the cluster knows no node `hots-a`, did you mean `host-a`?");
        assert_eq!(refused(&any, "elsewhere"), "the cluster knows no node `elsewhere`");
        let gpu = job("run_on: every, run_where: [gpu, '!old']");
        assert_eq!(check(&gpu, &NodeName::new("host-a"), &queue), Ok(()));
        let error =
            "job `load` does not run on node `host-b`, only on nodes with gpu and without old; its labels: none";
        assert_eq!(refused(&gpu, "host-b"), error);
    }

    #[test]
    fn a_node_that_cannot_take_its_share_now_is_named_with_what_becomes_of_that() {
        let queue = Queue { places: sample::places(), drained: sample::drained("host-b"), ..sample::queue() };
        let mut status = sample::leader();
        status.put_queue(&queue);
        let every = job("run_on: every");
        let noted = |node: &str, status: &Status| note(&NodeName::new(node), &every, status, "until noon");
        assert_eq!(noted("host-a", &status), None);
        let drained = "host-b was drained by alice at 2026-11-20 02:00:00Z; its share is skipped";
        assert_eq!(noted("host-b", &status).as_deref(), Some(drained));
        let of_any = note(&NodeName::new("host-b"), &job("run_on: any"), &status, "until noon").unwrap();
        assert!(of_any.ends_with("; the run there is skipped"), "{of_any}");
        let waits = "its share waits for it until noon, and is skipped then";
        assert_eq!(noted("host-c", &status), Some(format!("host-c is away: {waits}")));
        status.missing.push(sample::missing("host-c"));
        let away = format!("host-c has been away since 2026-11-20 02:57:00Z: {waits}");
        assert_eq!(noted("host-c", &status), Some(away));
        status.members[0].published.draining = true;
        assert_eq!(noted("host-a", &status), Some(format!("host-a is stopping: {waits}")));
    }

    #[test]
    fn what_keeps_a_run_from_starting_is_said_with_how_long_it_waits() {
        let mut status = sample::leader();
        let drained = [sample::drained("host-a"), sample::drained("host-b")].into_iter().flatten().collect();
        let mut queue = Queue { places: sample::places(), drained, ..sample::queue() };
        queue.members.iter_mut().for_each(|member| {
            (member.published.places, member.published.drained) = (cronkeeper_core::election::PLACES, true);
        });
        status.put_queue(&queue);
        let why = "no node can take it: host-a is drained; host-b is drained; host-c is away";
        let waits = |until: &str| vec![format!("the run waits for a node until {until}, and is skipped then: {why}")];
        assert_eq!(obstacles(&job("run_on: any"), &status), waits("2026-11-20 15:00:00Z"));
        let leads = "nobody leads, because every node is drained: the run waits until 2026-11-20 15:00:00Z, and is skipped then";
        assert_eq!(obstacles(&job("run_on: leader"), &status), [leads]);
        let window = job("run_on: any, misfire_window: 10m");
        assert_eq!(obstacles(&window, &status), waits("2026-11-20 03:10:00Z"));
        status.jobs[1].unplaceable = Some("what the leader knows".into());
        assert!(obstacles(&window, &status)[0].ends_with(": what the leader knows"));

        status.jobs[1].unplaceable = None;
        status.drained.remove(&NodeName::new("host-a"));
        status.members[0].published.drained = false;
        assert_eq!([obstacles(&window, &status), obstacles(&job("run_on: leader"), &status)], [[""; 0]; 2]);
        let of_shares = obstacles(&job("run_on: every, misfire_window: 10m"), &status);
        let away = "host-c is away: its share waits for it until 2026-11-20 03:10:00Z, and is skipped then";
        assert!(of_shares.len() == 2 && of_shares[0].starts_with("host-b was drained") && of_shares[1] == away);
        assert_eq!(obstacles(&job("run_on: every, run_where: gpu"), &status), [""; 0], "those are not asked");
    }

    #[test]
    fn only_a_node_that_nobody_knows_is_not_found() {
        let queue = Queue { places: sample::places(), ..sample::queue() };
        let code = |keys: &str, node: &str| check(&job(keys), &NodeName::new(node), &queue).unwrap_err().code();
        assert_eq!(code("run_on: any", "elsewhere"), StatusCode::NOT_FOUND);
        assert_eq!(code("run_on: any, run_where: gpu", "host-b"), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_node_that_has_no_record_of_its_labels_is_told_from_one_that_does_not_exist() {
        let queue = sample::queue();
        let error = check(&job("run_on: any"), &NodeName::new("host-a"), &queue);
        assert_eq!(error, Err(NotThere::NoPlace { node: NodeName::new("host-a") }));
    }
}
