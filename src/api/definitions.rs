//! `GET /v1/definitions`: the jobs as the node has loaded them, for `cronkeeper check --diff`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{ApiState, RefusedRequest};
use crate::config::definition::Definitions;
use cronkeeper_core::job::Digest;
use cronkeeper_core::term::NodeName;

/// The body of the answer.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Served {
    /// The node that answers.
    pub node: NodeName,
    /// The leader, as far as the node knows.
    pub leader: Option<NodeName>,
    /// Digest of the files that the leader has loaded, as far as the node knows.
    pub leader_digest: Option<Digest>,
    #[serde(flatten)]
    pub definitions: Definitions,
}

/// `GET /v1/definitions`. Commands may hold secrets, so a role is needed.
pub(super) async fn definitions(State(state): State<Arc<ApiState>>) -> Result<Json<Served>, RefusedRequest> {
    let (status, set) = (Arc::clone(&state.sources.status.borrow()), Arc::clone(&state.sources.jobs.borrow()));
    let definitions = Definitions::of(&set, Uuid::new_v4().simple().to_string().as_str());
    let leader = status.role.leader_node.clone();
    let leader_digest = match &leader {
        Some(leader) if *leader == status.node => Some(definitions.digest.clone()),
        Some(leader) => {
            let member = status.members.iter().find(|member| member.node == *leader);
            member.map(|member| member.published.digest.clone())
        }
        None => None,
    };
    Ok(Json(Served { node: status.node.clone(), leader, leader_digest, definitions }))
}
