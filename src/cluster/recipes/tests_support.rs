//! What the recipes' unit tests share: a node's context on the simulated service.

use super::context::{LocalNode, SessionContext};
pub use crate::zookeeper::tests_support::{ByHand, Fate, OWNER, Right, Server};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::term::NodeName;

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
