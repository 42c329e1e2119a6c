//! Requests of operators about nodes: drain, undrain and handover.
//!
//! They can be asked of any node about any other: what is wanted of a node is written to the ledger, where that node
//! reads it. A handover is asked of the leader's loop directly if this node leads.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::authorize::{Actor, ApiActor, log_requested};
use super::control::{PathParam, READ, RequestBody, TIMEOUT, limited_reason, parse_body, unavailable, whole_second};
use super::{ApiState, RefusedRequest};
use crate::status::Status;
use cronkeeper_core::clock::system;
use cronkeeper_core::election::{Candidate, Queue, TransferError};
use cronkeeper_core::ledger::ForgetNode;
use cronkeeper_core::run::{Drain, HandoverRequest};
use cronkeeper_core::suggest::{did_you_mean, nearest};
use cronkeeper_core::term::{CandidateName, NodeName};

/// Interval at which the queue is read while a request takes effect. Nothing notifies a node of the whole queue.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long to wait for the successor of a leader that has resigned.
const SUCCESSION: Duration = Duration::from_secs(2);

/// The body of `POST /v1/nodes/{node}/drain`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Drained {
    pub node: NodeName,
    /// As shown in the status.
    pub drained: Drain,
    /// The drain that this one replaced: the node was drained already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Drain>,
    /// The node is out of the queue. If not, it is not yet, as while it does not answer.
    pub is_out: bool,
}

/// The body of `POST /v1/nodes/{node}/undrain`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UndrainBody {}

/// The body of `POST /v1/nodes/{node}/forget`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForgetBody {}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ForgottenNode {
    pub node: NodeName,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Undrained {
    pub node: NodeName,
    /// The drain that is over; absent: the node was not drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Drain>,
}

/// The body of `POST /v1/handover`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandoverBody {
    /// The node that leads next; absent: the next in line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeName>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandedOver {
    /// The node that resigned. If it is the one that `to` names, it led already, and nobody resigned.
    pub node: NodeName,
    /// The node that leads now; absent if none did within some seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<NodeName>,
}

/// A handover request to the daemon's loop.
#[derive(Debug)]
pub struct Handover {
    /// The node that leads next; absent: the next in line.
    pub to: Option<NodeName>,
    /// Receives the result.
    pub answer: oneshot::Sender<Result<(), TransferError>>,
}

/// `POST /v1/nodes/{node}/drain`.
pub(super) async fn drain(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    node: PathParam,
    body: RequestBody,
) -> Result<Json<Drained>, RefusedRequest> {
    let (node, DrainBody { reason }) = (node_name(node)?, parse_body(body)?);
    state.drain(actor, node, reason).await.map(Json)
}

/// `POST /v1/nodes/{node}/undrain`.
pub(super) async fn undrain(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    node: PathParam,
    body: RequestBody,
) -> Result<Json<Undrained>, RefusedRequest> {
    let (node, UndrainBody {}) = (node_name(node)?, parse_body(body)?);
    state.undrain(actor, node).await.map(Json)
}

/// `POST /v1/nodes/{node}/forget`.
pub(super) async fn forget(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    node: PathParam,
    body: RequestBody,
) -> Result<Json<ForgottenNode>, RefusedRequest> {
    let (node, ForgetBody {}) = (node_name(node)?, parse_body(body)?);
    state.forget(actor, node).await.map(Json)
}

/// `POST /v1/handover`. On a node that does not lead, the request is passed on to the leader.
pub(super) async fn handover(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    body: RequestBody,
) -> Result<Json<HandedOver>, RefusedRequest> {
    let HandoverBody { to } = parse_body(body)?;
    state.hand_over(actor, to).await.map(Json)
}

impl ApiState {
    pub(super) async fn drain(
        &self,
        actor: Actor,
        node: NodeName,
        reason: Option<String>,
    ) -> Result<Drained, RefusedRequest> {
        let until = Instant::now() + TIMEOUT;
        let queue = self.require_node(&node).await?;
        let now = whole_second(system::now().wall);
        let drain = drain_after(queue.drained.get(&node), actor.by.clone(), now, limited_reason(reason)?);
        let replaced = self.recorded(self.sources.operator.drain(node.clone(), drain.clone())).await?;
        let reason = drain.reason.as_deref();
        log_requested!(actor, request = "drain", to = %node, reason);
        let is_out = |queue: &Queue| !queue.candidates.iter().any(|queued| queued.node.as_ref() == Some(&node));
        let is_out = self.queue_with(until, is_out).await.is_some();
        Ok(Drained { node, drained: drain, replaced, is_out })
    }

    pub(super) async fn undrain(&self, actor: Actor, node: NodeName) -> Result<Undrained, RefusedRequest> {
        let was = self.recorded(self.sources.operator.undrain(node.clone())).await?;
        if was.is_none() {
            self.require_node(&node).await?;
            return Ok(Undrained { node, was });
        }
        log_requested!(actor, request = "undrain", to = %node);
        Ok(Undrained { node, was })
    }

    pub(super) async fn forget(&self, actor: Actor, node: NodeName) -> Result<ForgottenNode, RefusedRequest> {
        let queue = self.read_queue().await?;
        let is_alive = queue.members.iter().any(|member| member.node == node);
        let answer = match is_alive {
            true => ForgetNode::Alive,
            false => self.recorded(self.sources.operator.forget_node(node.clone())).await?,
        };
        match answer {
            ForgetNode::Forgotten => {}
            ForgetNode::Alive => {
                let error = format!(
                    "{node} is alive, and would come back at once: stop its daemon first; if its daemon is dead, its \
                     session ends within the session timeout"
                );
                return Err(RefusedRequest::new(StatusCode::CONFLICT, error));
            }
            ForgetNode::Unknown => {
                // It may only be drained: then it is not known as a place to run jobs.
                let error = no_such_node(&node, queue.places.keys());
                return Err(RefusedRequest::new(StatusCode::NOT_FOUND, error));
            }
        }
        log_requested!(actor, request = "forget", to = %node);
        Ok(ForgottenNode { node })
    }

    pub(super) async fn hand_over(&self, actor: Actor, to: Option<NodeName>) -> Result<HandedOver, RefusedRequest> {
        let until = Instant::now() + TIMEOUT;
        let named = to.clone();
        let next = named.as_ref().map(NodeName::as_str);
        log_requested!(actor, request = "handover", to = next);
        let queue = self.read_queue().await;
        let own = Arc::clone(&self.sources.status.borrow());
        let leads = {
            // The published status may be older than the beginning of the term.
            let is_first = |queue: &Queue| first(queue).is_some_and(|first| first.node.as_ref() == Some(&own.node));
            own.role.token.is_some() || queue.as_ref().is_ok_and(is_first)
        };
        let already = |leader: &NodeName| Ok(HandedOver { node: leader.clone(), leader: Some(leader.clone()) });
        let unknown = to.as_ref().zip(queue.as_ref().ok()).and_then(|(to, queue)| self.find_node(to, queue).err());
        let answer = match unknown.map_or(queue, Err) {
            // A node that nobody knows does not concern the leader.
            Err(refused) if refused.code == StatusCode::NOT_FOUND => Err(refused),
            // A leader can resign also while the ledger cannot be read.
            queue if leads => self.hand_over_here(&queue.unwrap_or_default(), to.clone(), until).await,
            Ok(queue) => match to.as_ref().filter(|to| leads_elsewhere(&queue, to)) {
                Some(leader) => return already(leader),
                None => self.hand_over_elsewhere(&queue, to.clone(), &actor.by, until).await.map(Answer::Resigned),
            },
            Err(error) => Err(error),
        };
        let done = match answer {
            Ok(Answer::LeadsAlready) => return already(&own.node),
            // The published status was older than the end of the term.
            Ok(Answer::LeadsNoMore) => match self.read_queue().await {
                Ok(queue) => self.hand_over_elsewhere(&queue, to, &actor.by, until).await,
                Err(error) => Err(error),
            },
            Ok(Answer::Resigned(done)) => Ok(done),
            Err(error) => Err(error),
        };
        self.reads.changed();
        let (node, candidate) = done?;
        let leads =
            |queue: &Queue| queue.leader.is_some() && first(queue).is_some_and(|first| first.candidate != candidate);
        let queue = self.queue_with(until.min(Instant::now() + SUCCESSION), leads).await;
        Ok(HandedOver { node, leader: queue.and_then(|queue| queue.leader) })
    }

    /// Asks the loop of this node, which alone knows whether it leads.
    async fn hand_over_here(
        &self,
        queue: &Queue,
        to: Option<NodeName>,
        until: Instant,
    ) -> Result<Answer, RefusedRequest> {
        let status: Arc<Status> = Arc::clone(&self.sources.status.borrow());
        if let Some((to, why)) = to.as_ref().and_then(|to| Some((to, kept_out(queue, to)?))) {
            return Err(conflict(Some(to), &why));
        }
        let (answer, answered) = oneshot::channel();
        let asked = to.clone();
        // If the loop is gone, `answer` is dropped, and the wait below ends.
        let _ = self.sources.handovers.send(Handover { to, answer });
        match timeout(until.saturating_duration_since(Instant::now()), answered).await {
            Ok(Ok(Ok(()))) => {
                let candidate = status.role.candidate.clone().unwrap_or_else(no_candidate);
                Ok(Answer::Resigned((status.node.clone(), candidate)))
            }
            Ok(Ok(Err(TransferError::NotLeading))) => Ok(Answer::LeadsNoMore),
            Ok(Ok(Err(TransferError::Leads))) => Ok(Answer::LeadsAlready),
            Ok(Ok(Err(why))) => Err(conflict(asked.as_ref(), &why)),
            Ok(Err(_)) => Err(unavailable("the node is stopping, and resigns anyway")),
            Err(_) => Err(late(&status.node)),
        }
    }

    /// Writes the request to the ledger for the leader, which another node is. Returns who resigned.
    async fn hand_over_elsewhere(
        &self,
        queue: &Queue,
        to: Option<NodeName>,
        by: &str,
        until: Instant,
    ) -> Result<(NodeName, CandidateName), RefusedRequest> {
        let Some(Candidate { candidate, node: Some(leader) }) = first(queue) else {
            let error = "no handover: no node of cronkeeper leads".to_owned();
            return Err(RefusedRequest::new(StatusCode::CONFLICT, error));
        };
        // It is first, but has not taken over yet.
        if *leader == self.sources.status.borrow().node {
            return Err(conflict(to.as_ref(), &TransferError::NotLeading));
        }
        if queue.leader.as_ref() != Some(leader) {
            let error = format!("no handover: {leader} is first in the queue, but does not lead yet");
            return Err(RefusedRequest::new(StatusCode::CONFLICT, error));
        }
        if let Some(to) = &to {
            may_follow(queue, leader, to).map_err(|why| conflict(Some(to), &why))?;
        }
        let request = HandoverRequest {
            id: Uuid::new_v4(),
            candidate: candidate.clone(),
            to,
            by: by.to_owned(),
            at: whole_second(system::now().wall),
        };
        self.recorded(self.sources.operator.request_handover(leader.clone(), request)).await?;
        let is_over = |queue: &Queue| !queue.candidates.iter().any(|queued| queued.candidate == *candidate);
        match self.queue_with(until, is_over).await {
            Some(_) => Ok((leader.clone(), candidate.clone())),
            None => Err(late(leader)),
        }
    }

    pub(super) async fn read_queue(&self) -> Result<Queue, RefusedRequest> {
        let read = timeout(READ, self.sources.reader.queue()).await;
        read.map_err(|_| unavailable("the queue cannot be read in time"))?.map_err(unavailable)
    }

    /// Reads the queue until it is as wanted, or until this instant.
    async fn queue_with(&self, until: Instant, is_wanted: impl Fn(&Queue) -> bool) -> Option<Queue> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let queue = timeout(left, self.sources.reader.queue()).await.ok()?.ok();
            if let Some(queue) = queue.filter(&is_wanted) {
                self.reads.changed();
                return Some(queue);
            }
            if left < LOOK_EVERY {
                return None;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Refuses a node that the cluster does not know: it is probably mistyped. Returns the queue.
    async fn require_node(&self, node: &NodeName) -> Result<Queue, RefusedRequest> {
        let queue = self.read_queue().await?;
        self.find_node(node, &queue)?;
        Ok(queue)
    }

    /// Refuses a node that is neither alive, nor was lately, nor is drained or a place to run jobs.
    fn find_node(&self, node: &NodeName, queue: &Queue) -> Result<(), RefusedRequest> {
        let status: Arc<Status> = Arc::clone(&self.sources.status.borrow());
        let missing = status.missing.iter().map(|missing| &missing.node);
        let members = queue.members.iter().map(|member| &member.node);
        let known = members.chain(queue.drained.keys()).chain(queue.places.keys()).chain(missing);
        let known: Vec<&NodeName> = known.collect();
        match known.contains(&node) {
            true => Ok(()),
            false => Err(RefusedRequest::new(StatusCode::NOT_FOUND, no_such_node(node, known.into_iter()))),
        }
    }
}

/// Says that the cluster does not know a node, and which one may be meant.
pub fn no_such_node<'n>(node: &NodeName, known: impl Iterator<Item = &'n NodeName>) -> String {
    format!("the cluster knows no node `{node}`{}", did_you_mean(nearest(node.as_str(), known.map(NodeName::as_str))))
}

fn first(queue: &Queue) -> Option<&Candidate> {
    queue.candidates.first()
}

/// The drain of a node that may be drained already: since then, and without a new reason as it is.
fn drain_after(before: Option<&Drain>, by: String, now: Timestamp, reason: Option<String>) -> Drain {
    match (before, reason) {
        (Some(before), None) => before.clone(),
        (Some(before), reason) => Drain { by, at: before.at, reason },
        (None, reason) => Drain { by, at: now, reason },
    }
}

/// The answer of this node's loop to a handover.
enum Answer {
    /// The node with this candidate resigned.
    Resigned((NodeName, CandidateName)),
    /// This node leads, and is the one that is wanted.
    LeadsAlready,
    /// This node does not lead any more.
    LeadsNoMore,
}

/// True if another node leads, as far as this one can know, and is not drained.
fn leads_elsewhere(queue: &Queue, node: &NodeName) -> bool {
    let is_alive = queue.members.iter().any(|member| member.node == *node);
    is_alive && queue.leader.as_ref() == Some(node) && !queue.drained.contains_key(node)
}

/// Checks by the queue that `to` can lead after `leader`. The leader checks it again.
fn may_follow(queue: &Queue, leader: &NodeName, to: &NodeName) -> Result<(), TransferError> {
    if to == leader {
        return Err(TransferError::Leads);
    }
    if let Some(why) = kept_out(queue, to) {
        return Err(why);
    }
    let Some(place) = queue.candidates.iter().position(|queued| queued.node.as_ref() == Some(to)) else {
        return Err(TransferError::NotQueued);
    };
    match queue.candidates[..place].iter().find(|queued| queued.node.is_none()) {
        Some(foreign) => Err(TransferError::Foreign { entry: foreign.candidate.clone() }),
        None if queue.members.iter().any(|member| member.node == *to) => Ok(()),
        None => Err(TransferError::NotAlive),
    }
}

/// Why its operators keep a node out of the queue, if they do.
fn kept_out(queue: &Queue, node: &NodeName) -> Option<TransferError> {
    let node = node.clone();
    if queue.drained.contains_key(&node) {
        return Some(TransferError::Drained { node });
    }
    let never_leads = queue.members.iter().any(|member| member.node == node && member.published.never_leads);
    never_leads.then_some(TransferError::NeverLeads { node })
}

/// Takes the place of the candidate of a leader whose published status is between two terms.
fn no_candidate() -> CandidateName {
    CandidateName(String::new())
}

fn conflict(to: Option<&NodeName>, why: &TransferError) -> RefusedRequest {
    let error = match to {
        Some(to) => format!("no handover to {to}: {why}"),
        None => format!("no handover: {why}"),
    };
    RefusedRequest::new(StatusCode::CONFLICT, error)
}

fn late(leader: &NodeName) -> RefusedRequest {
    let error = format!("{leader} did not resign within {} s, and may still do so: see its log", TIMEOUT.as_secs());
    RefusedRequest::new(StatusCode::GATEWAY_TIMEOUT, error)
}

fn node_name(node: PathParam) -> Result<NodeName, RefusedRequest> {
    let Path(node) = node.map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    NodeName::parse(&node).map_err(|bad| RefusedRequest::new(StatusCode::NOT_FOUND, bad.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    #[test]
    fn who_drains_a_node_once_more_changes_nothing_but_what_is_new() {
        let (first, later) = (sample::at("2026-11-20T02:00:00Z"), sample::at("2026-11-20T03:00:00Z"));
        let of = |by: &str, at, reason: &str| Drain { by: by.into(), at, reason: Some(reason.into()) };
        let before = of("alice", first, "disks");
        assert_eq!(drain_after(None, "bob".into(), later, Some("disks".into())), of("bob", later, "disks"));
        assert_eq!(drain_after(Some(&before), "bob".into(), later, None), before);
        let renamed = drain_after(Some(&before), "bob".into(), later, Some("fans".into()));
        assert_eq!(renamed, of("bob", first, "fans"), "it is drained since then");
    }

    #[test]
    fn another_node_leads_if_it_is_first_and_alive_and_not_drained() {
        let mut queue = sample::queue();
        let (a, b) = (NodeName::new("host-a"), NodeName::new("host-b"));
        assert!(leads_elsewhere(&queue, &a) && !leads_elsewhere(&queue, &b));
        let drain = Drain { by: "root".into(), at: sample::at("2026-11-20T03:00:00Z"), reason: None };
        queue.drained.insert(a.clone(), drain);
        assert!(!leads_elsewhere(&queue, &a));
        queue.drained.clear();
        queue.members.remove(0);
        assert!(!leads_elsewhere(&queue, &a));
    }

    #[test]
    fn only_a_node_of_the_queue_that_is_alive_and_not_drained_can_lead_next() {
        let mut queue = sample::queue();
        let (a, b) = (NodeName::new("host-a"), NodeName::new("host-b"));
        assert_eq!(may_follow(&queue, &a, &a), Err(TransferError::Leads));
        assert!(matches!(may_follow(&queue, &a, &b), Err(TransferError::Foreign { .. })));
        queue.candidates.remove(1);
        assert_eq!(may_follow(&queue, &a, &b), Ok(()));
        queue.members[1].published.never_leads = true;
        assert_eq!(may_follow(&queue, &a, &b), Err(TransferError::NeverLeads { node: b.clone() }));
        assert_eq!(may_follow(&queue, &a, &NodeName::new("host-c")), Err(TransferError::NotQueued));
        queue.members.remove(1);
        assert_eq!(may_follow(&queue, &a, &b), Err(TransferError::NotAlive));
        let drain = Drain { by: "root".into(), at: sample::at("2026-11-20T03:00:00Z"), reason: None };
        queue.drained.insert(b.clone(), drain);
        assert_eq!(may_follow(&queue, &a, &b), Err(TransferError::Drained { node: b }));
    }
}
