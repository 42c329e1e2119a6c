//! What operators want of this node, and the watch on that record.

use super::futures::{BoxFuture, under_way};
use cronkeeper_core::run::NodeControl;

/// The node's own record under `wanted`.
pub(super) struct WantedOfNode {
    /// The record as last read in this session; absent until then.
    known: Option<NodeControl>,
    watch: Option<BoxFuture<()>>,
}

impl WantedOfNode {
    pub fn new() -> Self {
        Self { known: None, watch: None }
    }

    /// True once it is known that the node is not drained.
    pub fn may_join(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.drained.is_none())
    }

    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// The watch has fired, or was lost with the connection.
    pub fn unwatch(&mut self) {
        self.watch = None;
    }

    /// Takes the record as just read, with a watch on it. Returns it if that is news to the daemon.
    pub fn read(&mut self, control: NodeControl, watch: BoxFuture<()>) -> Option<NodeControl> {
        self.watch = Some(watch);
        let is_news = self.known.as_ref() != Some(&control);
        self.known = Some(control.clone());
        is_news.then_some(control)
    }

    /// Waits until the record may have changed, or forever if it is not watched. Cancellation safe: the watch is kept.
    pub async fn changed(&mut self) {
        under_way(self.watch.as_mut()).await;
    }
}
