//! The archive's file: its tables, and the settings of SQLite.
//!
//! It uses WAL with `synchronous=NORMAL`: a host that loses power may forget the last transactions, which for a copy is
//! fine, and no commit waits for the disk. Records are found by time, or by job and time; both indexes also have what
//! the filters look at, so that a record is read only if it is wanted.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params};

use cronkeeper_cluster::sqlite::{self, FileIdentity, LOGS, check_files, make_file, with_suffix};
use cronkeeper_core::ledger::filter::{Ending, Kind, Position};
use cronkeeper_core::run::HistoryRecord;
use cronkeeper_core::term::NodeName;

/// Version of the tables, in `user_version`.
const SCHEMA: i64 = 1;
/// How long a writer waits for another process of this host, which holds the write lock for one transaction.
const WRITE_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts to lock the directory.
const LOCK_RETRY: Duration = Duration::from_millis(10);
/// Added to the name of a damaged file.
const ASIDE: &str = ".damaged";
/// How long a reader waits, which WAL makes it do only while the file is made or recovered.
const READ_WAIT: Duration = Duration::from_millis(500);
/// Pages that a connection keeps in memory, in KiB.
const CACHE_KIB: i64 = 256;
/// Size that the log shrinks to once its contents are in the file, in bytes.
const LOG_BYTES: i64 = 4 << 20;

/// Why the archive cannot be used now.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The file is unsafe, or cannot be created.
    #[error(transparent)]
    File(#[from] io::Error),
    /// Another version of cronkeeper has written it.
    #[error("it has format {0}, which this version of cronkeeper does not know")]
    Format(i64),
    #[error("less than {} MiB of the disk are free", .0 >> 20)]
    NoSpace(u64),
    /// The thread that reads was lost.
    #[error("the read was lost")]
    Lost,
}

impl ArchiveError {
    /// True if the file will never be usable again.
    pub(super) fn is_damage(&self) -> bool {
        let is_damaged = |code| matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase);
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => is_damaged(error.code),
            // A table is missing, or is not as it should be.
            Self::Sqlite(rusqlite::Error::SqlInputError { .. }) | Self::Format(_) => true,
            Self::Sqlite(_) | Self::File(_) | Self::NoSpace(_) | Self::Lost => false,
        }
    }
}

type Result<T> = std::result::Result<T, ArchiveError>;

/// An open archive.
pub(super) struct Store {
    pub db: Connection,
    path: PathBuf,
    identity: Option<FileIdentity>,
}

pub(super) fn identity(path: &Path) -> Option<FileIdentity> {
    sqlite::identity(path).ok()
}

impl Store {
    /// Opens the archive to write, and makes it if it does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        // Nobody moves the file aside meanwhile, with a log that belongs to the next one.
        let _lock = lock_folder(path)?;
        make_file(path)?;
        let identity = identity(path);
        let mut db = Connection::open(path)?;
        db.busy_timeout(WRITE_WAIT)?;
        limit_memory(&db)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        db.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        make_tables(&tx)?;
        tx.commit()?;
        Ok(Self { db, path: path.to_owned(), identity })
    }

    /// Opens the archive to read; `None` if there is none.
    pub fn open_to_read(path: &Path) -> Result<Option<Self>> {
        let Some(identity) = identity(path) else { return Ok(None) };
        check_files(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags)?;
        db.busy_timeout(READ_WAIT)?;
        limit_memory(&db)?;
        match format(&db)? {
            SCHEMA => Ok(Some(Self { db, path: path.to_owned(), identity: Some(identity) })),
            // Its maker has not got further yet.
            0 => Ok(None),
            found => Err(ArchiveError::Format(found)),
        }
    }

    /// False if the file was removed, or moved aside by another process.
    pub fn is_in_place(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }

    /// Writes the records in one transaction; with `complete`, also that nothing of this node is missing at that time, in
    /// microseconds. Returns how many of the records it did not have.
    pub fn write(&mut self, records: &[HistoryRecord], complete: Option<(&NodeName, i64)>) -> Result<usize> {
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let added = records.iter().try_fold(0, |sum, record| Ok::<_, ArchiveError>(sum + insert(&tx, record)?))?;
        if let Some((node, now)) = complete {
            note_complete(&tx, node, now)?;
        }
        tx.commit()?;
        Ok(added)
    }

    /// Notes that a process of this node writes the archive, and that nothing is missing at `now`. If an earlier one
    /// never noted its end, returns until when nothing was missing then; both in microseconds.
    pub fn enter(&mut self, node: &NodeName, now: i64) -> Result<Option<i64>> {
        let known = "SELECT complete_until FROM writers WHERE node = ?1";
        let known = self.db.query_row(known, [node.as_str()], |row| row.get(0)).optional()?;
        if known.is_none() {
            self.db
                .execute("INSERT INTO writers (node, complete_until) VALUES (?1, ?2)", params![node.as_str(), now])?;
        }
        Ok(known)
    }

    /// Notes that nothing of this node is missing at `now`, in microseconds.
    pub fn note_complete(&mut self, node: &NodeName, now: i64) -> Result<()> {
        note_complete(&self.db, node, now)
    }

    /// Notes that the archive has all that this node's process had to write.
    pub fn leave(&mut self, node: &NodeName) -> Result<()> {
        self.db.execute("DELETE FROM writers WHERE node = ?1", [node.as_str()])?;
        Ok(())
    }

    /// Deletes at most `most` of the records from before `until`, in microseconds, oldest first. Returns how many.
    pub fn delete_before(&mut self, until: i64, most: u32) -> Result<usize> {
        let sql = "DELETE FROM records WHERE id IN (SELECT id FROM records WHERE at < ?1 ORDER BY at LIMIT ?2)";
        Ok(self.db.prepare_cached(sql)?.execute(params![until, most])?)
    }

    /// Deletes the oldest records, and returns how many.
    pub fn delete_oldest(&mut self, most: u32) -> Result<usize> {
        self.delete_before(i64::MAX, most)
    }

    /// Bytes of the file in use.
    pub fn bytes(&self) -> Result<u64> {
        let pragma = |name: &str| self.db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let pages = pragma("page_count")?.saturating_sub(pragma("freelist_count")?);
        Ok(u64::try_from(pages.saturating_mul(pragma("page_size")?)).unwrap_or(0))
    }
}

/// Moves a damaged file aside, and returns where to. Of several only the last is kept.
///
/// `None` if it is no longer the file that was found damaged: another process of this host, which shares the directory,
/// has moved that one aside already, and this one may be whole.
pub(super) fn set_aside(path: &Path, damaged: Option<FileIdentity>) -> io::Result<Option<PathBuf>> {
    let _lock = lock_folder(path)?;
    if damaged.is_none() || identity(path) != damaged {
        return Ok(None);
    }
    let aside = with_suffix(path, ASIDE);
    fs::rename(path, &aside)?;
    LOGS.iter().try_for_each(|suffix| remove_file(&with_suffix(path, suffix)).map(drop))?;
    Ok(Some(aside))
}

/// Removes the archive, and one that was moved aside. Returns false if there was none.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    let _lock = lock_folder(path)?;
    let mut was_there = false;
    for suffix in ["", ASIDE].iter().chain(&LOGS) {
        was_there |= remove_file(&with_suffix(path, suffix))?;
    }
    Ok(was_there)
}

/// Returns false if the file does not exist.
fn remove_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks the directory against other writers of this host, until the result is dropped: while the file is made, moved
/// aside or removed, but not while it is written.
fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let until = Instant::now() + WRITE_WAIT;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOCK_RETRY),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns 1 if the record is new, or newer than the one that is there, else 0.
fn insert(tx: &Transaction<'_>, record: &HistoryRecord) -> Result<usize> {
    let Position { at, run, kind } = Position::of(record);
    let text = serde_json::to_string(record).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let (job, ending, node) = (record.job().as_str(), Ending::of(record).as_str(), record.about().as_str());
    let values = params![run, kind.as_str(), job, at, ending, node, text];
    Ok(tx
        .prepare_cached(match kind {
            Kind::Run => {
                "INSERT INTO records (run, kind, job, at, outcome, node, record) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
             WHERE NOT EXISTS (SELECT 1 FROM records INDEXED BY by_job
                               WHERE job = ?3 AND at = ?4 AND outcome = ?5 AND run = ?1 AND kind = ?2)"
            }
            // A skip record grows as long as neighbouring occurrences are skipped for the same reason.
            Kind::Skip => {
                "INSERT INTO records (run, kind, job, at, outcome, node, record) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (run) WHERE kind = 'skip'
             DO UPDATE SET at = excluded.at, node = excluded.node, record = excluded.record
             WHERE excluded.at > at OR (excluded.at = at AND excluded.record <> record)"
            }
        })?
        .execute(values)?)
}

fn note_complete(db: &Connection, node: &NodeName, now: i64) -> Result<()> {
    let sql = "UPDATE writers SET complete_until = ?2 WHERE node = ?1";
    db.prepare_cached(sql)?.execute(params![node.as_str(), now])?;
    Ok(())
}

fn limit_memory(db: &Connection) -> Result<()> {
    Ok(db.pragma_update(None, "cache_size", -CACHE_KIB)?)
}

fn format(db: &Connection) -> Result<i64> {
    Ok(db.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

fn make_tables(tx: &Transaction<'_>) -> Result<()> {
    // Versions that do not know this table leave it alone.
    tx.execute_batch("CREATE TABLE IF NOT EXISTS writers (node TEXT PRIMARY KEY, complete_until INTEGER NOT NULL);")?;
    match format(tx)? {
        SCHEMA => return Ok(()),
        0 => {}
        found => return Err(ArchiveError::Format(found)),
    }
    tx.execute_batch(
        "CREATE TABLE records (
             id INTEGER PRIMARY KEY, run TEXT NOT NULL, kind TEXT NOT NULL, job TEXT NOT NULL,
             at INTEGER NOT NULL, -- microseconds
             outcome TEXT NOT NULL, node TEXT NOT NULL, record TEXT NOT NULL
         );
         CREATE INDEX by_job ON records (job, at, outcome, node);
         CREATE INDEX by_time ON records (at, outcome, node, job);
         CREATE UNIQUE INDEX skips ON records (run) WHERE kind = 'skip';",
    )?;
    Ok(tx.pragma_update(None, "user_version", SCHEMA)?)
}
