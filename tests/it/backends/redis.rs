//! Nodes of one cluster in Redis.

use cronkeeper_cluster::redis::Redis;
use cronkeeper_cluster::store::Rewinds;

use super::on_store;
use crate::promises::cluster::Cluster;
use crate::support::redis::{settings, shared};

/// Shows that a promise holds.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    let place = shared().place();
    let store = {
        let place = place.clone();
        move || Redis::new(settings(&place), on_store::TIMEOUT, Rewinds::Refused)
    };
    on_store::hold(&place, store, promise);
}
