//! Nodes of one cluster in one database of PostgreSQL.

use cronkeeper_cluster::postgres::Postgres;
use cronkeeper_cluster::store::Rewinds;

use super::on_store;
use crate::promises::cluster::Cluster;
use crate::support::postgres::shared;

/// Shows that a promise holds.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    let database = shared().database();
    let settings = database.settings();
    on_store::hold(
        &settings.to_string(),
        move || Postgres::new(settings.clone(), on_store::TIMEOUT, Rewinds::Accepted),
        promise,
    );
}
