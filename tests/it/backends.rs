//! The real backends, for the promises.

pub mod etcd;
mod on_store;
pub mod postgres;
pub mod redis;
pub mod solo;
pub mod sqlite;
pub mod zookeeper;

/// Makes a test of each promise on each backend of this binary.
macro_rules! on_every_backend {
    ($($promise:ident),+ $(,)?) => {
        on_backend!(solo: $($promise),+);
        on_every_cluster! { $($promise),+ }
    };
}

/// The same without solo: promises that concern several hosts.
macro_rules! on_every_cluster {
    ($($promise:ident),+ $(,)?) => {
        on_backend!(sqlite: $($promise),+);
        on_backend!(postgres: $($promise),+);
        on_backend!(etcd: $($promise),+);
        on_backend!(redis: $($promise),+);
        on_backend!(zookeeper: $($promise),+);
    };
}
