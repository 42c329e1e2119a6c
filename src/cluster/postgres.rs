//! The port [`store`](crate::store) in PostgreSQL, 12 or newer.
//!
//! ```text
//!   commits ─┐
//!   reads   ─┼─ connection ─ settings, tls ─► schema `cronkeeper`
//!   hints   ─┘    └─── examine
//! ```
//!
//! A commit is one call of a function of the schema, and so one round trip. It locks the one row of `head` first, which
//! gives all commits one order, and never for longer than the call: a client that is stopped blocks nobody. A read is one
//! statement, and so of one moment. Nothing needs a session of the server, so a pool in transaction mode may be in between;
//! then the hints of `LISTEN` do not come, and the polls are enough.
//!
//! What is acknowledged has been written to the disk, and to the standbys that the server waits for. If that wait is
//! given up, PostgreSQL commits all the same, with a warning; then the result is not known, as without an answer.

mod connection;
mod examine;
mod settings;
mod standbys;
mod tls;

use std::error::Error as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use self::connection::Connected;
use self::examine::{Entered, IfMissing};
pub use self::settings::{Settings, SettingsError};
use crate::line::{Beside, Failed, Line, Losses, hint_as_read};
use crate::paths;
use crate::store::{
    self, Done, Found, Head, If, KEPT_NONCES, Looked, Meta, NotDone, Op, Remote, Rewinds, Store, Then, Tolerance,
    Wanted,
};
use crate::tree::{ConnectError, Error, Limits, Revision};
use cronkeeper_core::election::Worth;
use cronkeeper_core::run::Version;

/// What makes the schema.
pub const SCHEMA: &str = include_str!("postgres/schema.sql");

/// Longest wait for an answer. A commit waits for the standbys that must have it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before a lost connection for hints is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Records in a database. Connects when it is used.
#[derive(Clone)]
pub struct Postgres(Arc<Lines>);

/// A request waits for those before it on the same connection only.
struct Lines {
    settings: Arc<Settings>,
    commits: Line<Connected>,
    reads: Line<Connected>,
    hints: Arc<Line<Connected>>,
    /// The newest revision that the server has hinted at.
    hinted: watch::Sender<i64>,
    /// Keeps the connection for hints open.
    listening: OnceLock<Beside>,
    tolerance: Tolerance,
    /// Longest wait for an answer.
    patience: Duration,
}

impl Postgres {
    /// A client for sessions with this timeout: a request that takes half of it is given up.
    pub fn new(settings: Settings, session_timeout: Duration, rewinds: Rewinds) -> Self {
        let (settings, losses, hinted) = (Arc::new(settings), Losses::default(), watch::Sender::new(0));
        let line = || {
            let (settings, hinted) = (Arc::clone(&settings), hinted.clone());
            Line::new(losses.clone(), move || connection::connect(Arc::clone(&settings), hinted.clone()))
        };
        let (commits, reads, hints) = (line(), line(), Arc::new(line()));
        let (patience, tolerance) = (ANSWER_TIMEOUT.min(session_timeout / 2), Tolerance::new(rewinds));
        Self(Arc::new(Lines {
            settings,
            commits,
            reads,
            hints,
            hinted,
            listening: OnceLock::new(),
            tolerance,
            patience,
        }))
    }
}

impl Remote for Postgres {
    fn place(&self) -> String {
        self.0.settings.to_string()
    }

    async fn look(&self) -> Result<Looked, ConnectError> {
        let Entered { worth, existed, .. } = self.0.enter(IfMissing::Leave).await?;
        let for_node = if existed { "the cluster's schema is there" } else { "a node would create the schema" };
        Ok(Looked { worth, for_node: Some(for_node) })
    }
}

impl Lines {
    async fn enter(&self, if_missing: IfMissing) -> Result<Entered, ConnectError> {
        let live = self.reads.live().await?;
        let entering = timeout(ANSWER_TIMEOUT, examine::enter(&live.client, if_missing));
        let entered = entering.await.unwrap_or_else(|_| Err(no_answer()));
        let entered = match entered {
            Ok(entered) => entered,
            // A refusal is reported together with the place.
            Err(ConnectError::Unreachable(why)) => {
                self.reads.abandon(&live, true).await;
                return Err(ConnectError::Unreachable(format!("database `{}`: {why}", self.settings.database())));
            }
            Err(refused) => return Err(refused),
        };
        self.tolerance.check(&entered.worth, &entered.remedy)?;
        Ok(entered)
    }
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        let why = in_full(&error);
        let is_elsewhere = error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
        match error.code() {
            Some(code) if examine::needs_somebody(code) => Self { error: Error::Refused(why), is_elsewhere },
            _ => Self { error: Error::Unanswered(why), is_elsewhere },
        }
    }
}

fn no_answer() -> ConnectError {
    ConnectError::Unreachable("no answer in time".to_owned())
}

/// The server is a standby, perhaps since a moment ago. It may not know what others have committed.
fn standby() -> Failed {
    let error = Error::Unanswered("the server has become a standby".to_owned());
    Failed { error, is_elsewhere: true }
}

/// An error with its causes, which the client library leaves out.
fn in_full(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(said), _) => said.message().to_owned(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

impl Store for Postgres {
    const SERVICE: &'static str = "PostgreSQL";

    fn limits(&self) -> Limits {
        Limits { operations: 1_000, bytes: 1 << 20, in_flight: 1, repeats: false, last_number: i64::MAX }
    }

    fn removal(&self, path: &str) -> Option<String> {
        Some(format!("`psql -c \"delete from cronkeeper.record where path = '{path}'\"`"))
    }

    fn examine(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        let lines = Arc::clone(&self.0);
        async move {
            let Entered { worth, .. } = lines.enter(IfMissing::Make).await?;
            lines.tolerance.note_use();
            Ok(Some(worth))
        }
    }

    fn worth(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        let lines = Arc::clone(&self.0);
        async move {
            let examined = async {
                // The connection on which nobody waits for an answer.
                let live = lines.hints.live().await?;
                examine::enter(&live.client, IfMissing::Leave).await
            };
            let examined = timeout(ANSWER_TIMEOUT, examined).await.unwrap_or_else(|_| Err(no_answer()));
            Ok(Some(examined?.worth))
        }
    }

    fn reconnected(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.commits.lost()
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let (lines, limits) = (Arc::clone(&self.0), self.limits());
        async move {
            store::check(&ops, limits)?;
            let nonce = Uuid::new_v4().as_u64_pair().1;
            let done = lines.commits.carry_out(lines.patience, false, |live| async move {
                let before = live.warnings();
                let answer = apply(&live, &ops, nonce).await?;
                Ok((answer, live.warnings() > before))
            });
            match done.await.map_err(NotDone::Failed)? {
                (_, true) => {
                    let why = "PostgreSQL has given up waiting for its standbys".to_owned();
                    Err(NotDone::Failed(Error::Unanswered(why)))
                }
                (Applied::Done(revision, at), false) => Ok(Done { revision, nonce, at: Some(at) }),
                (Applied::Refused(index, found), false) => Err(NotDone::Refused { index, found }),
            }
        }
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let lines = Arc::clone(&self.0);
        async move {
            let read = |live: Arc<Connected>| async move { read(&live, &wanted).await };
            lines.reads.carry_out(lines.patience, true, read).await
        }
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let (hints, sender, patience) = (&self.0.hints, &self.0.hinted, self.0.patience);
        let mut hinted = sender.subscribe();
        let listen = || listen(Arc::clone(hints), sender.clone(), patience);
        self.0.listening.get_or_init(|| Beside::spawn(listen()));
        // The sender may be gone together with the store.
        async move { drop(hinted.wait_for(|newest| *newest > since.0).await) }
    }
}

/// Keeps a connection open that the server tells of new commits.
async fn listen(line: Arc<Line<Connected>>, hinted: watch::Sender<i64>, patience: Duration) {
    loop {
        if let Ok(live) = line.live().await {
            let before = *hinted.borrow();
            // What was committed before is a hint too.
            let begun = async {
                live.client.batch_execute("LISTEN cronkeeper").await?;
                live.client.query_typed("SELECT revision FROM cronkeeper.head", &[]).await
            };
            match timeout(patience, begun).await {
                Ok(Ok(rows)) => {
                    let revisions = rows.iter().filter_map(|row| row.try_get(0).ok());
                    revisions.for_each(|revision| hint_as_read(&hinted, before, revision));
                    while line.is_current(&live) {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Ok(Err(_)) => {}
                Err(_) => line.abandon(&live, true).await,
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What a commit has come to.
enum Applied {
    Done(Revision, Timestamp),
    /// By the operation with this index, whose record has this version.
    Refused(usize, Option<Version>),
}

async fn apply(live: &Connected, ops: &[Op], nonce: u64) -> Result<Applied, Failed> {
    let paths: Vec<&str> = ops.iter().map(|op| op.path.as_str()).collect();
    let parents: Vec<&str> = paths.iter().map(|path| paths::parent(path)).collect();
    let conditions: Vec<i32> = ops.iter().map(|op| condition(op.when)).collect();
    let data = |op: &'_ Op| match &op.then {
        Then::Put(data) => Some(data.clone()),
        Then::Nothing | Then::Delete => None,
    };
    let datas: Vec<Option<Vec<u8>>> = ops.iter().map(data).collect();
    let deletes: Vec<bool> = ops.iter().map(|op| op.then == Then::Delete).collect();
    let sql = "SELECT refused, version, revision, moment FROM cronkeeper.apply($1, $2, $3, $4, $5, $6, $7)";
    let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
        (&paths, Type::TEXT_ARRAY),
        (&parents, Type::TEXT_ARRAY),
        (&conditions, Type::INT4_ARRAY),
        (&datas, Type::BYTEA_ARRAY),
        (&deletes, Type::BOOL_ARRAY),
        (&nonce.cast_signed(), Type::INT8),
        (&KEPT_NONCES, Type::INT8),
    ];
    // To its end: the commit is answered after the row.
    let row = live.client.query_typed_one(sql, &parameters).await?;
    if let Some(place) = row.try_get::<_, Option<i32>>(0)? {
        let found: Option<i32> = row.try_get(1)?;
        return Ok(Applied::Refused(usize::try_from(place).unwrap_or_default(), found.map(Version)));
    }
    Ok(Applied::Done(Revision(row.try_get(2)?), time(row.try_get(3)?)))
}

/// As `cronkeeper.apply` takes it.
fn condition(when: If) -> i32 {
    match when {
        If::Absent => -1,
        If::Exists => -2,
        If::Anything => -3,
        If::Version(version) => version.0,
    }
}

/// The parts of one statement: what is wanted at which place, by the number of its kind.
async fn read(live: &Connected, wanted: &[Wanted]) -> Result<(Head, Vec<Found>), Failed> {
    let sql = "SELECT place, path, data, version, created, changed, created_at, changed_at, bytes \
               FROM cronkeeper.look($1, $2, $3)";
    let (mut kinds, mut paths, mut revisions) = (Vec::new(), Vec::new(), Vec::new());
    for wanted in wanted {
        let (kind, path, revision) = match wanted {
            Wanted::Meta(path) => (0, path.as_str(), None),
            Wanted::Record(path) => (1, path.as_str(), None),
            Wanted::Names(path) => (2, path.as_str(), None),
            Wanted::Nonce(revision) => (3, "", Some(revision.0)),
        };
        kinds.push(kind);
        paths.push(path);
        revisions.push(revision);
    }
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&kinds, Type::INT4_ARRAY), (&paths, Type::TEXT_ARRAY), (&revisions, Type::INT8_ARRAY)];
    let mut head = Head::default();
    let nothing = |wanted: &Wanted| match wanted {
        Wanted::Meta(_) => Found::Meta(None),
        Wanted::Record(_) => Found::Record(None),
        Wanted::Names(_) => Found::Names(Vec::new()),
        Wanted::Nonce(_) => Found::Nonce(None),
    };
    let mut found: Vec<Found> = wanted.iter().map(nothing).collect();
    for row in live.client.query_typed(sql, &parameters).await? {
        let place: i64 = row.try_get(0)?;
        let nonce = || row.try_get::<_, i64>(5).map(i64::cast_unsigned);
        let Some(place) = usize::try_from(place).ok().and_then(|place| place.checked_sub(1)) else {
            if row.try_get::<_, i32>(3)? != 0 {
                return Err(standby());
            }
            head = Head { revision: Revision(row.try_get(4)?), nonce: nonce()? };
            continue;
        };
        match found.get_mut(place) {
            Some(Found::Meta(found)) => *found = Some(meta(&row)?),
            Some(Found::Record(found)) => *found = Some((row.try_get(2)?, meta(&row)?)),
            Some(Found::Names(names)) => {
                let path: &str = row.try_get(1)?;
                names.push((paths::name(path).to_owned(), meta(&row)?));
            }
            Some(Found::Nonce(found)) => *found = Some(nonce()?),
            None => {}
        }
    }
    Ok((head, found))
}

fn meta(row: &Row) -> Result<Meta, tokio_postgres::Error> {
    Ok(Meta {
        version: Version(row.try_get(3)?),
        created: Revision(row.try_get(4)?),
        changed: Revision(row.try_get(5)?),
        created_at: time(row.try_get(6)?),
        changed_at: time(row.try_get(7)?),
        bytes: usize::try_from(row.try_get::<_, i32>(8)?).unwrap_or_default(),
    })
}

/// A time in microseconds.
fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}
