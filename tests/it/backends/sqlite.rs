//! Nodes of one cluster on one file of SQLite.

use cronkeeper_cluster::sqlite::Sqlite;

use super::on_store;
use crate::promises::cluster::Cluster;

/// Shows that a promise holds.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let ledger = folder.path().join("ledger");
    let place = ledger.display().to_string();
    on_store::hold(&place, move || Sqlite::open(&ledger).expect("the file can be used"), promise);
}
