//! What every backend promises the daemon: one suite for solo, for ZooKeeper, and for the simulated ensemble.
//!
//! A promise is an async function over a [`cluster::Cluster`], in which the test plays the daemon of each node. No
//! promise names a backend. `port::event_order` checks every event that a node receives meanwhile.

mod cluster;
mod simulated;
mod solo;
mod zookeeper;

/// Makes a test of each promise on each backend.
macro_rules! on_every_backend {
    ($($promise:ident),+ $(,)?) => {
        on_every_backend!(@ solo $($promise)+);
        on_every_backend!(@ zookeeper $($promise)+);
        on_every_backend!(@ simulated $($promise)+);
    };
    (@ $backend:ident $($promise:ident)+) => {
        mod $backend {
            $(
                #[test]
                fn $promise() {
                    crate::promises::$backend::hold(super::$promise);
                }
            )+
        }
    };
}

mod commits;
mod election;
mod links;
mod locks;
mod operators;
mod runs;
