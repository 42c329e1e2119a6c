//! What operators want of this node: a watch on its record, and when to read it again.

use super::{BoxFuture, SessionLoop, fired};
use crate::recipes::damage::Source;
use crate::recipes::wanted::Wanted;
use crate::tree::Session;
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::Event;
use cronkeeper_core::run::NodeControl;

/// The node's own record under `wanted`.
pub(super) struct WantedOfNode {
    /// The record as last read in this session; absent until then.
    pub known: Option<NodeControl>,
    /// The record may have changed.
    pub must_read: bool,
    pub watch: Option<BoxFuture<()>>,
}

impl WantedOfNode {
    pub fn new() -> Self {
        Self { known: None, must_read: true, watch: None }
    }

    /// True once it is known that the node is not drained.
    pub fn may_join(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.drained.is_none())
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    pub(super) fn read_wanted(&mut self, wanted: Wanted<C::Watch>) {
        self.wanted.watch = Some(fired(wanted.watch));
        self.found_damage(Source::Wanted, wanted.damage);
        if self.wanted.known.as_ref() != Some(&wanted.control) {
            self.wanted.known = Some(wanted.control.clone());
            self.node.emit(Event::Wanted(wanted.control));
        }
    }

    /// The record may have changed: the watch fired, or was lost with the connection.
    pub(super) fn wanted_changed(&mut self) {
        self.wanted.must_read = true;
        self.wanted.watch = None;
    }
}
