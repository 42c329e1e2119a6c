//! What operators want of nodes, in the table `wanted`.
//!
//! Earlier versions of cronkeeper ignore the table.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::commit::Json;
use cronkeeper_core::run::{Drain, NodeControl};
use cronkeeper_core::term::NodeName;

/// True if the table exists; otherwise [`make_table`] creates it.
pub(super) fn has_table(db: &Connection) -> rusqlite::Result<bool> {
    db.table_exists(None::<&str>, "wanted")
}

pub(super) fn make_table(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute_batch("CREATE TABLE IF NOT EXISTS wanted (node TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID")
}

/// What is wanted of a node. A record that cannot be read counts as drained.
pub(super) fn of(db: &Connection, node: &NodeName) -> rusqlite::Result<NodeControl> {
    let sql = "SELECT record FROM wanted WHERE node = ?1";
    let text: Option<String> = db.prepare_cached(sql)?.query_row([node.as_str()], |row| row.get(0)).optional()?;
    Ok(text.map_or_else(NodeControl::default, |text| NodeControl::read(text.as_bytes())))
}

/// Replaces what is wanted of a node, and returns what was. A record that wants nothing is removed.
pub(super) fn change(
    tx: &Transaction<'_>,
    node: &NodeName,
    change: impl FnOnce(NodeControl) -> NodeControl,
) -> rusqlite::Result<NodeControl> {
    let was = of(tx, node)?;
    let control = change(was.clone());
    if control == NodeControl::default() {
        tx.execute("DELETE FROM wanted WHERE node = ?1", [node.as_str()])?;
    } else {
        tx.execute("REPLACE INTO wanted (node, record) VALUES (?1, ?2)", params![node.as_str(), Json(&control)])?;
    }
    Ok(was)
}

/// The nodes that are drained.
pub(super) fn drained(db: &Connection) -> rusqlite::Result<BTreeMap<NodeName, Drain>> {
    let mut statement = db.prepare_cached("SELECT node, record FROM wanted ORDER BY node")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let rows: Vec<(String, String)> = rows.collect::<rusqlite::Result<_>>()?;
    let named = rows.into_iter().filter_map(|(node, record)| {
        Some((NodeName::parse(&node).ok()?, NodeControl::read(record.as_bytes()).drained?))
    });
    Ok(named.collect())
}
