//! What the recipes' unit tests share: a node's context on the simulated service.

use super::context::{LocalNode, SessionContext};
pub use crate::zookeeper::tests_support::{ByHand, Fate, OWNER, Right, Server};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::Member;
use cronkeeper_core::term::NodeName;

/// The member of a living node.
pub fn member(node: &str) -> Member {
    let text = format!(
        r#"{{"v":1,"node":"{node}","host":"h","pid":7,"version":"1","started_at":"1970-01-01T00:00:00Z","digest":"",
            "tzdata":"","session_timeout_ms":4000}}"#
    );
    serde_json::from_str(&text).unwrap()
}

impl Server {
    /// A context for a node with the server's session.
    pub fn context<K: Clock>(&self, clock: K) -> SessionContext<Self, K> {
        let me = LocalNode {
            node: NodeName::new("host-a"),
            session: crate::zookeeper::session_id(OWNER),
            prefix: "_c_1-lock-".into(),
            candidate_data: Vec::new(),
        };
        SessionContext::new(self.clone(), clock, me)
    }
}
