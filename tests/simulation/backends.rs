//! The simulated ensemble and the weakest store as backends, for the promises.

pub mod simulated;

pub mod weakest {
    use super::simulated::hold_on;
    use crate::backend::backend_on_store;
    use crate::promises::cluster::Cluster;

    /// Shows that a promise holds on the weakest store.
    pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
        hold_on(backend_on_store, promise);
    }
}

/// Makes a test of each promise on each backend of this binary.
macro_rules! on_every_backend {
    ($($promise:ident),+ $(,)?) => {
        on_backend!(simulated: $($promise),+);
        on_backend!(weakest: $($promise),+);
    };
}

/// The same: promises that concern several hosts.
macro_rules! on_every_cluster {
    ($($promise:ident),+ $(,)?) => {
        on_every_backend! { $($promise),+ }
    };
}
