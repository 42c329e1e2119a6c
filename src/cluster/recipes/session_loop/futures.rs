//! The futures that the parts of the loop keep until they are done.

use std::pin::Pin;

use crate::tree::Watch;

pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Awaits the future, or forever if there is none.
pub(super) async fn under_way<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Resolves once the watch has fired.
pub(super) fn fired<W: Watch>(watch: W) -> BoxFuture<()> {
    Box::pin(watch.fired())
}
