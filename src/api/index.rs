//! `GET /v1`: what can be asked here.

use axum::Json;
use serde::Serialize;

use super::roles::{Need, need_of};

/// Every request of the API, for people who explore it; docs/api.md and docs/openapi.json describe them.
const REQUESTS: [(&str, &str); 25] = [
    ("GET /healthz", "200 while the daemon's loop turns"),
    ("GET /readyz", "200 while the node takes part in the cluster"),
    ("GET /v1", "this list"),
    ("GET /v1/status", "who leads, the queue, the members, the runs and the jobs"),
    ("GET /v1/jobs", "the jobs"),
    ("GET /v1/nodes", "the nodes as places to run jobs"),
    ("GET /v1/jobs/{job}", "a job, and its coming occurrences"),
    ("GET /v1/next", "coming occurrences"),
    ("GET /v1/definitions", "the definitions of the jobs"),
    ("GET /v1/jobs/{job}/history", "the job's runs and skips, newest first"),
    ("GET /v1/history", "the runs and skips of all jobs, newest first"),
    ("GET /v1/runs/{run}", "the end of a run; waits some seconds for it"),
    ("GET /v1/runs/{run}/output", "a page of the run's output"),
    ("GET /v1/events", "an event whenever the status has changed, as a stream"),
    ("POST /v1/jobs/{job}/trigger", "run the job now"),
    ("POST /v1/jobs/{job}/pause", "pause the job"),
    ("POST /v1/jobs/{job}/resume", "resume the job"),
    ("POST /v1/jobs/{job}/recount", "make the job count from now on again, after a clock that was ahead"),
    ("POST /v1/pause", "pause many jobs"),
    ("POST /v1/resume", "resume many jobs"),
    ("POST /v1/runs/{run}/kill", "end the run"),
    ("POST /v1/handover", "let another node lead"),
    ("POST /v1/nodes/{node}/drain", "keep the node from leading until it is undrained"),
    ("POST /v1/nodes/{node}/undrain", "let the node lead again"),
    ("POST /v1/nodes/{node}/forget", "forget a node that is gone: jobs on every node stop waiting for it"),
];

/// The body of `GET /v1`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Index {
    v: u32,
    requests: Vec<IndexEntry>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct IndexEntry {
    request: &'static str,
    description: &'static str,
    /// The least role that it needs over TCP; absent: none, but without one it shows names, times and outcomes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
}

/// `GET /v1`.
pub(super) async fn index() -> Json<Index> {
    let requests =
        REQUESTS.iter().map(|&(request, description)| IndexEntry { request, description, role: role(request) });
    Json(Index { v: 1, requests: requests.collect() })
}

/// The least role that a request needs.
pub(super) fn role(request: &str) -> Option<&'static str> {
    match need_of(request) {
        Need::Role(role) => Some(role.as_str()),
        Need::Nothing => None,
    }
}

#[cfg(test)]
pub(super) fn requests() -> impl Iterator<Item = &'static str> {
    REQUESTS.iter().map(|(request, _)| *request)
}

#[cfg(test)]
pub(super) fn description(request: &str) -> Option<&'static str> {
    REQUESTS.iter().find(|(known, _)| *known == request).map(|(_, description)| *description)
}

#[cfg(test)]
mod tests {
    use crate::api::tests::daemon::{Behaviour, Daemon};

    #[tokio::test]
    async fn every_request_of_the_index_exists() {
        let daemon = Daemon::start(Behaviour::Well).await;
        let (code, index) = daemon.get("/v1").await;
        assert_eq!(code, 200);
        for entry in index["requests"].as_array().expect("a list") {
            let request = entry["request"].as_str().expect("a text");
            let (method, path) = request.split_once(' ').expect("method and path");
            // A stream of events has no end to wait for; it has tests of its own.
            if path == "/v1/events" {
                continue;
            }
            let path =
                path.replace("{job}", "load").replace("{node}", "host-a").replace("{run}", "load.20261120T024000Z.m7");
            let (code, answer) = match method {
                "GET" => daemon.get(&path).await,
                // A body that no request takes is refused by the request itself.
                _ => daemon.post(&path, "x").await,
            };
            assert!(code == if method == "GET" { 200 } else { 400 }, "{request}: {code} {answer}");
        }
    }
}
