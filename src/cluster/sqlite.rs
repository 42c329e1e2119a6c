//! The port [`store`](crate::store) in a file of SQLite, for several processes of one host.
//!
//! WAL with `synchronous=FULL`: what is acknowledged has been written to the disk, and survives the loss of power. Each
//! commit takes the write lock at its beginning, so that what it compares still holds when it writes.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use tokio::task::{JoinError, JoinHandle};

use crate::paths;
use crate::store::{Done, Found, Meta, NotDone, Op, Store, Then, Wanted};
use crate::tree::{Error, Limits, Revision};
use cronkeeper_core::clock::system;
use cronkeeper_core::run::Version;

/// How long to wait for the write lock, which other processes hold for one commit at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks for what other processes have written.
const LOOK: Duration = Duration::from_millis(25);

/// A ledger in a file.
#[derive(Clone, Debug)]
pub struct Sqlite(Arc<Mutex<Connection>>);

impl Sqlite {
    /// Opens the file, and makes it if there is none. The caller has checked that it is safe to use.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        let mut db = connect(path, BUSY_TIMEOUT)?;
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(
            "CREATE TABLE IF NOT EXISTS record (
                 path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
                 created INTEGER NOT NULL, changed INTEGER NOT NULL,
                 created_at INTEGER NOT NULL, changed_at INTEGER NOT NULL -- microseconds
             ) WITHOUT ROWID;
             CREATE INDEX IF NOT EXISTS record_of_folder ON record (parent);
             CREATE TABLE IF NOT EXISTS head (revision INTEGER NOT NULL);
             INSERT INTO head SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM head);",
        )?;
        tx.commit()?;
        Ok(Self(Arc::new(Mutex::new(db))))
    }

    /// Runs this on a thread that may block. Dropping the future does not stop it.
    fn on_thread<T: Send + 'static>(&self, work: impl FnOnce(&mut Connection) -> T + Send + 'static) -> JoinHandle<T> {
        let db = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || work(&mut db.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Store for Sqlite {
    const SERVICE: &'static str = "the ledger";

    fn limits(&self) -> Limits {
        Limits { operations: 1_000, bytes: 1 << 20, in_flight: 1, repeats: false }
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let done = self.on_thread(move |db| commit(db, &ops));
        async move { done.await.map_err(|error| NotDone::Failed(lost(&error)))? }
    }

    fn read(
        &self,
        wanted: Vec<Wanted>,
    ) -> impl Future<Output = Result<(Revision, Vec<Found>), Error>> + Send + 'static {
        let found = self.on_thread(move |db| read(db, &wanted));
        async move { found.await.map_err(|error| lost(&error))?.map_err(failed) }
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let store = self.clone();
        async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Ok(Ok(newest)) = store.on_thread(|db| revision(db)).await
                    && newest > since
                {
                    return;
                }
            }
        }
    }
}

fn commit(db: &mut Connection, ops: &[Op]) -> Result<Done, NotDone> {
    let refused = |error| NotDone::Failed(failed(error));
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(refused)?;
    for (index, op) in ops.iter().enumerate() {
        let found = version(&tx, &op.path).map_err(refused)?;
        if !op.when.holds(found) {
            return Err(NotDone::Refused { index, found });
        }
    }
    let at = system::now().wall;
    let done = write(&tx, ops, at).and_then(|revision| tx.commit().map(|()| revision)).map_err(refused)?;
    Ok(Done { revision: done, at: Some(at) })
}

fn write(tx: &Transaction<'_>, ops: &[Op], at: Timestamp) -> rusqlite::Result<Revision> {
    let revision = Revision(revision(tx)?.0 + 1);
    tx.execute("UPDATE head SET revision = ?1", [revision.0])?;
    for Op { path, then, .. } in ops {
        match then {
            Then::Nothing => {}
            Then::Put(data) => {
                let sql = "INSERT INTO record (path, parent, data, version, created, changed, created_at, changed_at)
                           VALUES (?1, ?2, ?3, 0, ?4, ?4, ?5, ?5)
                           ON CONFLICT (path) DO UPDATE
                           SET data = excluded.data, version = version + 1, changed = excluded.changed,
                               changed_at = excluded.changed_at";
                let row = params![path, paths::parent(path), data, revision.0, at.as_microsecond()];
                tx.prepare_cached(sql)?.execute(row)?;
            }
            Then::Delete => drop(tx.prepare_cached("DELETE FROM record WHERE path = ?1")?.execute([path])?),
        }
    }
    Ok(revision)
}

fn read(db: &mut Connection, wanted: &[Wanted]) -> rusqlite::Result<(Revision, Vec<Found>)> {
    let tx = db.transaction()?;
    let revision = revision(&tx)?;
    let found = wanted.iter().map(|wanted| read_one(&tx, wanted)).collect::<rusqlite::Result<_>>()?;
    Ok((revision, found))
}

fn read_one(db: &Connection, wanted: &Wanted) -> rusqlite::Result<Found> {
    const META: &str = "version, created, changed, created_at, changed_at, length(data)";
    let one = |what: &str| format!("SELECT {META}{what} FROM record WHERE path = ?1");
    Ok(match wanted {
        Wanted::Meta(path) => Found::Meta(db.prepare_cached(&one(""))?.query_row([path], meta).optional()?),
        Wanted::Record(path) => {
            let record = |row: &Row<'_>| Ok((row.get(6)?, meta(row)?));
            Found::Record(db.prepare_cached(&one(", data"))?.query_row([path], record).optional()?)
        }
        Wanted::Names(parent) => {
            let sql = format!("SELECT {META}, path FROM record WHERE parent = ?1");
            let name = |row: &Row<'_>| {
                let path: String = row.get(6)?;
                Ok((path[parent.len() + 1..].to_owned(), meta(row)?))
            };
            Found::Names(db.prepare_cached(&sql)?.query_map([parent], name)?.collect::<rusqlite::Result<_>>()?)
        }
    })
}

fn meta(row: &Row<'_>) -> rusqlite::Result<Meta> {
    let time = |index: usize| -> rusqlite::Result<Timestamp> {
        Ok(Timestamp::from_microsecond(row.get(index)?).unwrap_or_default())
    };
    Ok(Meta {
        version: Version(row.get(0)?),
        created: Revision(row.get(1)?),
        changed: Revision(row.get(2)?),
        created_at: time(3)?,
        changed_at: time(4)?,
        bytes: usize::try_from(row.get::<_, i64>(5)?).unwrap_or(usize::MAX),
    })
}

fn version(db: &Connection, path: &str) -> rusqlite::Result<Option<Version>> {
    let mut statement = db.prepare_cached("SELECT version FROM record WHERE path = ?1")?;
    statement.query_row([path], |row| row.get(0)).optional().map(|found| found.map(Version))
}

fn revision(db: &Connection) -> rusqlite::Result<Revision> {
    db.prepare_cached("SELECT revision FROM head")?.query_row([], |row| row.get(0)).map(Revision)
}

/// Opens a file in which what is acknowledged survives the loss of power. Waits this long for the write lock.
pub(crate) fn connect(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(busy_timeout)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    Ok(db)
}

/// The thread that did it has panicked, or does not run any more.
fn lost(error: &JoinError) -> Error {
    Error::Unanswered(error.to_string())
}

fn failed(error: rusqlite::Error) -> Error {
    if may_pass(&error) { Error::Unanswered(error.to_string()) } else { Error::Refused(error.to_string()) }
}

/// True if a retry can help: a full disk, a failed write and a lock that is held too long are temporary.
pub(crate) fn may_pass(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::OutOfMemory
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}
