//! What every backend promises the daemon: one suite for solo, for ZooKeeper and SQLite, and for the simulated ensemble and
//! the weakest store.
//!
//! A promise is an async function over a [`cluster::Cluster`], in which the test plays the daemon of each node. No
//! promise names a backend: each of the two test binaries has its own, in its module `backends`. `port::event_order`
//! checks every event that a node receives meanwhile.

pub mod cluster;

/// Makes a test of each promise on one backend of this binary.
macro_rules! on_backend {
    ($backend:ident: $($promise:ident),+) => {
        mod $backend {
            $(
                #[test]
                fn $promise() {
                    crate::backends::$backend::hold(super::$promise);
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
mod places;
mod runs;
