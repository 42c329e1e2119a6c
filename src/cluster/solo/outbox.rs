//! The outbox of notifications, in the tables `outbox` and `channels`.
//!
//! Earlier versions of cronkeeper ignore the tables.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::commit::Json;
use super::operator::{on_blocking_thread, open, write};
use super::read::parsed;
use super::reader::SoloReader;
use cronkeeper_core::job::ChannelName;
use cronkeeper_core::ledger::{ChannelEntry, OperatorFuture, Outbox};
use cronkeeper_core::run::{ChannelRecord, Notice, NoticeKey, Version};

/// True if the tables exist; otherwise [`make_tables`] creates them.
pub(super) fn has_tables(db: &Connection) -> rusqlite::Result<bool> {
    db.table_exists(None::<&str>, "channels")
}

pub(super) fn make_tables(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute_batch(
        "CREATE TABLE IF NOT EXISTS outbox (notice TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS channels
             (channel TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;",
    )
}

/// Adds a notification, unless it is there.
pub(super) fn add(tx: &Transaction<'_>, notice: &Notice) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO outbox (notice, record) VALUES (?1, ?2)";
    tx.prepare_cached(sql)?.execute(params![NoticeKey::of(notice).to_string(), Json(notice)]).map(drop)
}

fn keys(db: &Connection) -> rusqlite::Result<BTreeSet<NoticeKey>> {
    let mut statement = db.prepare("SELECT notice FROM outbox")?;
    let rows = statement.query_map([], |row| Ok(NoticeKey::parse(&row.get::<_, String>(0)?)))?;
    rows.filter_map(Result::transpose).collect()
}

fn notices(
    db: &Connection,
    wanted: &BTreeSet<NoticeKey>,
) -> rusqlite::Result<BTreeMap<NoticeKey, Result<Notice, String>>> {
    let mut statement = db.prepare("SELECT record FROM outbox WHERE notice = ?1")?;
    let mut found = BTreeMap::new();
    for &key in wanted {
        let text: Option<String> = statement.query_row([key.to_string()], |row| row.get(0)).optional()?;
        found.extend(text.map(|text| (key, parsed(&text))));
    }
    Ok(found)
}

fn remove(tx: &Transaction<'_>, keys: &BTreeSet<NoticeKey>) -> rusqlite::Result<()> {
    let mut statement = tx.prepare("DELETE FROM outbox WHERE notice = ?1")?;
    keys.iter().try_for_each(|key| statement.execute([key.to_string()]).map(drop))
}

fn channel(db: &Connection, name: &ChannelName) -> rusqlite::Result<ChannelEntry> {
    let sql = "SELECT version, record FROM channels WHERE channel = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((Version(row.get(0)?), row.get::<_, String>(1)?));
    let found = db.query_row(sql, [name.as_str()], row).optional()?;
    Ok(found.map_or_else(ChannelEntry::default, |(version, text)| {
        let record = parsed(&text);
        let is_damaged = record.is_err();
        ChannelEntry { record: record.unwrap_or_default(), at: Some(version), is_damaged }
    }))
}

fn put_channel(
    tx: &Transaction<'_>,
    name: &ChannelName,
    record: &ChannelRecord,
    at: Option<Version>,
) -> rusqlite::Result<Option<Version>> {
    if channel(tx, name)?.at != at {
        return Ok(None);
    }
    let version = at.map_or(Version::FIRST, Version::next);
    let sql = "REPLACE INTO channels (channel, version, record) VALUES (?1, ?2, ?3)";
    tx.execute(sql, params![name.as_str(), version.0, Json(record)])?;
    Ok(Some(version))
}

impl Outbox for SoloReader {
    fn keys(&self) -> OperatorFuture<'_, BTreeSet<NoticeKey>> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || keys(&open(&ledger)?)))
    }

    fn notices(&self, wanted: BTreeSet<NoticeKey>) -> OperatorFuture<'_, BTreeMap<NoticeKey, Result<Notice, String>>> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || notices(&open(&ledger)?, &wanted)))
    }

    fn add(&self, notice: Notice) -> OperatorFuture<'_, ()> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || write(&ledger, |tx| add(tx, &notice))))
    }

    fn remove(&self, keys: BTreeSet<NoticeKey>) -> OperatorFuture<'_, ()> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || write(&ledger, |tx| remove(tx, &keys))))
    }

    fn channel(&self, name: ChannelName) -> OperatorFuture<'_, ChannelEntry> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || channel(&open(&ledger)?, &name)))
    }

    fn put_channel(
        &self,
        name: ChannelName,
        record: ChannelRecord,
        at: Option<Version>,
    ) -> OperatorFuture<'_, Option<Version>> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || write(&ledger, |tx| put_channel(tx, &name, &record, at))))
    }
}
