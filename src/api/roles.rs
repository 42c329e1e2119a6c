//! Roles, and the one table of what each request needs.
//!
//! The socket's file mode decides who may use it, so whoever can is [`Role::Admin`]. Over TCP the token decides. A
//! change that the table does not name needs the highest role, and any other such request the lowest: a new route is
//! closed until it has a line here.

use std::fmt;

use axum::http::Method;

use super::caller::{Caller, Grant};

/// What the holder of a token may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Role {
    /// See everything, and change nothing
    Read,
    /// Also run, pause, resume, kill, drain and hand over
    Operate,
    /// Also what cannot be taken back: forget a node, recount a job, abandon a run that is cut off
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Admin];

    /// The word in token files, answers and log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing. Without a role, the answer shows names, times and outcomes only.
    Nothing,
    /// At least this role.
    Role(Role),
}

/// An abandoned run may go on, and is not watched any more.
pub(super) const KILL_BY_FORCE: Role = Role::Admin;

const READ: Need = Need::Role(Role::Read);
const OPERATE: Need = Need::Role(Role::Operate);
const ADMIN: Need = Need::Role(Role::Admin);

/// Every request, with what it needs.
const NEEDS: &[(&str, Need)] = &[
    ("GET /healthz", Need::Nothing),
    ("GET /readyz", Need::Nothing),
    ("GET /metrics", Need::Nothing),
    ("GET /v1", Need::Nothing),
    ("GET /v1/status", Need::Nothing),
    ("GET /v1/jobs", Need::Nothing),
    ("GET /v1/nodes", Need::Nothing),
    ("GET /v1/jobs/{job}", Need::Nothing),
    ("GET /v1/next", Need::Nothing),
    ("GET /v1/definitions", READ),
    ("GET /v1/jobs/{job}/history", Need::Nothing),
    ("GET /v1/history", Need::Nothing),
    ("GET /v1/runs/{run}", Need::Nothing),
    ("GET /v1/runs/{run}/output", READ),
    ("GET /v1/events", Need::Nothing),
    ("POST /v1/jobs/{job}/trigger", OPERATE),
    ("POST /v1/jobs/{job}/pause", OPERATE),
    ("POST /v1/jobs/{job}/resume", OPERATE),
    ("POST /v1/jobs/{job}/recount", ADMIN),
    ("POST /v1/pause", OPERATE),
    ("POST /v1/resume", OPERATE),
    // With `force` it needs KILL_BY_FORCE.
    ("POST /v1/runs/{run}/kill", OPERATE),
    ("POST /v1/handover", OPERATE),
    ("POST /v1/nodes/{node}/drain", OPERATE),
    ("POST /v1/nodes/{node}/undrain", OPERATE),
    ("POST /v1/nodes/{node}/forget", ADMIN),
    ("GET /", Need::Nothing),
    ("GET /jobs/{job}", Need::Nothing),
    ("GET /runs/{run}", Need::Nothing),
    ("GET /history", Need::Nothing),
    ("GET /static/{file}", Need::Nothing),
    ("GET /zone", Need::Nothing),
    ("POST /jobs/{job}/trigger", OPERATE),
    ("POST /jobs/{job}/pause", OPERATE),
    ("POST /jobs/{job}/resume", OPERATE),
    ("POST /runs/{run}/kill", OPERATE),
    ("POST /handover", OPERATE),
    ("POST /drain", OPERATE),
    ("POST /undrain", OPERATE),
    ("GET /session", Need::Nothing),
    // Signing in is how a browser gets a role, and signing out gives it back.
    ("POST /session", Need::Nothing),
    ("POST /session/end", Need::Nothing),
];

/// What a request with this method needs on this route.
pub(super) fn need(method: &Method, route: &str) -> Need {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    need_of(&format!("{method} {route}"))
}

/// The same of a request that is written as in [`NEEDS`].
pub(super) fn need_of(request: &str) -> Need {
    let unknown = if request.starts_with("GET ") { READ } else { ADMIN };
    NEEDS.iter().find(|(known, _)| *known == request).map_or(unknown, |(_, need)| *need)
}

/// The role of a caller; `None` for one that has shown nothing. Another node has none: what it may see is in
/// [`network`](super::network).
pub(super) fn role_of(caller: Caller, grant: Option<&Grant>) -> Option<Role> {
    match (caller, grant) {
        (Caller::Local { .. }, _) => Some(Role::Admin),
        (_, Some(Grant::Token(identity) | Grant::Session { identity, .. })) => Some(identity.role),
        (_, Some(Grant::Peer) | None) => None,
    }
}
