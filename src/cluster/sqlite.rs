//! The port [`store`](crate::store) in a file of SQLite, for several processes of one host.
//!
//! WAL with `synchronous=FULL`: what is acknowledged has been written to the disk, and survives the loss of power. Each
//! commit takes the write lock at its beginning, so that what it compares still holds when it writes.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use uuid::Uuid;

use crate::paths;
use crate::safe_path;
use crate::store::{self, Done, Found, Head, KEPT_NONCES, Meta, NotDone, Op, Store, Then, Wanted};
use crate::tree::{Error, Limits, Revision};
use cronkeeper_core::clock::system;
use cronkeeper_core::run::Version;

/// How long to wait for the write lock, which other processes hold for one commit at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an answer: a disk may hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks for what other processes have written.
const LOOK: Duration = Duration::from_millis(25);
/// Version of the tables.
const FORMAT: i64 = 1;

/// Records in a file. Reads do not wait for commits.
#[derive(Clone, Debug)]
pub struct Sqlite {
    commits: Arc<OpenFile>,
    reads: Arc<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    connection: Mutex<Connection>,
    path: PathBuf,
    /// Another file may have been put in its place.
    identity: FileIdentity,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}: {error}", path = path.display())]
    Sqlite { path: PathBuf, error: rusqlite::Error },
    #[error("{path} is not a store of cronkeeper, or one of a later version (format {format})", path = path.display())]
    Format { path: PathBuf, format: i64 },
}

impl Sqlite {
    /// Opens the file, and makes it if there is none. The caller has checked that its folder is safe to use.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |error| OpenError::Io { path: path.to_owned(), error };
        make_file(path).map_err(io)?;
        // Each request finds out if the file is replaced before the connections are there.
        let identity = identity(path).map_err(io)?;
        let sqlite = |error| OpenError::Sqlite { path: path.to_owned(), error };
        let mut db = connect(path, BUSY_TIMEOUT).map_err(sqlite)?;
        // Without the write lock if it is not needed: a process that is stopped inside a commit keeps it.
        if read_format(&db).map_err(sqlite)? == 0 {
            make_tables(&mut db).map_err(sqlite)?;
        }
        let format = read_format(&db).map_err(sqlite)?;
        if format != FORMAT {
            return Err(OpenError::Format { path: path.to_owned(), format });
        }
        let reads = connect(path, BUSY_TIMEOUT).map_err(sqlite)?;
        let file =
            |connection| Arc::new(OpenFile { connection: Mutex::new(connection), path: path.to_owned(), identity });
        Ok(Self { commits: file(db), reads: file(reads) })
    }
}

impl OpenFile {
    /// Runs this on a thread that may block. Dropping the future does not stop it.
    fn on_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Connection) -> Result<T, NotDone> + Send + 'static,
    ) -> impl Future<Output = Result<T, NotDone>> + Send + 'static {
        let file = Arc::clone(self);
        let worked = tokio::task::spawn_blocking(move || {
            let mut connection = file.connection.lock().unwrap_or_else(PoisonError::into_inner);
            file.check_place()?;
            work(&mut connection)
        });
        async move {
            match tokio::time::timeout(ANSWER_TIMEOUT, worked).await {
                Ok(Ok(worked)) => worked,
                // The thread has panicked, or does not run any more.
                Ok(Err(lost)) => Err(NotDone::Failed(Error::Unanswered(lost.to_string()))),
                Err(_) => Err(NotDone::Failed(Error::Unanswered("the disk does not answer".to_owned()))),
            }
        }
    }

    /// Refuses to continue with a file that others cannot find any more: they would be another cluster.
    fn check_place(&self) -> Result<(), NotDone> {
        match identity(&self.path) {
            Ok(found) if found == self.identity => Ok(()),
            Ok(_) => Err(format!("{} has been replaced by another file", self.path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("{}: {error}", self.path.display())),
            Err(_) => Ok(()),
        }
        .map_err(|why| NotDone::Failed(Error::Refused(why)))
    }
}

fn read_format(db: &Connection) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn has_tables(db: &Connection) -> rusqlite::Result<bool> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_master)", [], |row| row.get(0))
}

/// Makes the tables in an empty file.
fn make_tables(db: &mut Connection) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have made them meanwhile; or they are somebody else's.
    if has_tables(&tx)? {
        return Ok(());
    }
    tx.execute_batch(&format!(
        "CREATE TABLE record (
             path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
             created INTEGER NOT NULL, changed INTEGER NOT NULL,
             created_at INTEGER NOT NULL, changed_at INTEGER NOT NULL -- microseconds
         ) WITHOUT ROWID;
         CREATE INDEX record_of_folder ON record (parent);
         CREATE TABLE head (revision INTEGER PRIMARY KEY, nonce INTEGER NOT NULL);
         INSERT INTO head VALUES (0, 0);
         PRAGMA user_version = {FORMAT};"
    ))?;
    tx.commit()
}

impl Store for Sqlite {
    const SERVICE: &'static str = "SQLite";

    fn limits(&self) -> Limits {
        Limits { operations: 1_000, bytes: 1 << 20, in_flight: 1, repeats: false, last_number: i64::MAX }
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let limits = self.limits();
        self.commits.on_thread(move |db| store::check(&ops, limits).and_then(|()| commit(db, &ops)))
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let found = self.reads.on_thread(move |db| read(db, &wanted).map_err(failed));
        async move {
            found.await.map_err(|not_done| match not_done {
                NotDone::Failed(error) => error,
                NotDone::Refused { .. } => Error::Missing,
            })
        }
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let store = self.clone();
        async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Ok(newest) = store.reads.on_thread(|db| head(db).map_err(failed)).await
                    && newest.revision > since
                {
                    return;
                }
            }
        }
    }
}

fn commit(db: &mut Connection, ops: &[Op]) -> Result<Done, NotDone> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    for (index, op) in ops.iter().enumerate() {
        let found = version(&tx, &op.path).map_err(failed)?;
        if !op.when.holds(found) {
            return Err(NotDone::Refused { index, found });
        }
    }
    let at = system::now().wall;
    let Head { revision, nonce } = write(&tx, ops, at).and_then(|head| tx.commit().map(|()| head)).map_err(failed)?;
    Ok(Done { revision, nonce, at: Some(at) })
}

fn write(tx: &Transaction<'_>, ops: &[Op], at: Timestamp) -> rusqlite::Result<Head> {
    let (revision, nonce) = (Revision(head(tx)?.revision.0 + 1), Uuid::new_v4().as_u64_pair().1);
    let newest = params![revision.0, nonce.cast_signed()];
    tx.prepare_cached("INSERT INTO head (revision, nonce) VALUES (?1, ?2)")?.execute(newest)?;
    tx.prepare_cached("DELETE FROM head WHERE revision <= ?1")?.execute([revision.0 - KEPT_NONCES])?;
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
    Ok(Head { revision, nonce })
}

fn read(db: &mut Connection, wanted: &[Wanted]) -> rusqlite::Result<(Head, Vec<Found>)> {
    let tx = db.transaction()?;
    let head = head(&tx)?;
    let found = wanted.iter().map(|wanted| read_one(&tx, wanted)).collect::<rusqlite::Result<_>>()?;
    Ok((head, found))
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
        Wanted::Nonce(revision) => {
            let mut statement = db.prepare_cached("SELECT nonce FROM head WHERE revision = ?1")?;
            let nonce = statement.query_row([revision.0], |row| row.get(0)).optional()?;
            Found::Nonce(nonce.map(i64::cast_unsigned))
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

fn head(db: &Connection) -> rusqlite::Result<Head> {
    let newest = "SELECT revision, nonce FROM head ORDER BY revision DESC LIMIT 1";
    let head =
        |row: &Row<'_>| Ok(Head { revision: Revision(row.get(0)?), nonce: row.get::<_, i64>(1)?.cast_unsigned() });
    db.prepare_cached(newest)?.query_row([], head)
}

/// Device and inode of a file.
pub type FileIdentity = (u64, u64);

/// Which file this path names.
///
/// # Errors
/// If there is none, or that is not known.
pub fn identity(path: &Path) -> io::Result<FileIdentity> {
    path.symlink_metadata().map(|facts| (facts.dev(), facts.ino()))
}

/// Added to the name of a file for those that SQLite keeps beside it.
pub const LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Creates a file for SQLite if it does not exist, and checks it as [`check_files`] does.
///
/// The mode is 0600, because such files contain output of jobs; SQLite gives the same mode to its other files.
///
/// # Errors
/// If it is unsafe, or cannot be created.
pub fn make_file(path: &Path) -> io::Result<()> {
    check_files(path)?;
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Refuses a link, or another user's file, because SQLite would write into it. The files are not opened for that: SQLite's
/// locks belong to the process, and closing any descriptor of the file would release them.
///
/// # Errors
/// If one of them is unsafe.
pub fn check_files(path: &Path) -> io::Result<()> {
    [""].iter().chain(&LOGS).try_for_each(|suffix| safe_path::check_own(&with_suffix(path, suffix)))
}

/// The path with this added to its name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens a file in which what is acknowledged survives the loss of power. Waits this long for the write lock.
pub(crate) fn connect(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(busy_timeout)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    Ok(db)
}

fn failed(error: rusqlite::Error) -> NotDone {
    let why = error.to_string();
    NotDone::Failed(if may_pass(&error) { Error::Unanswered(why) } else { Error::Refused(why) })
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
