//! The port [`store`](crate::store) in Redis, 6 or newer, or Valkey.
//!
//! ```text
//!   commits ─┐
//!   reads   ─┼─ connection ─ settings ─► keys with one hash tag
//!   hints   ─┘    └─── examine
//! ```
//!
//! A commit is one script, which compares all records before it writes any; Redis carries scripts out one after the other.
//! A read is one script too, and so of one moment. Both are refused by a replica. If replicas must have each commit, the
//! same connection then waits until they have what the script has written or seen (`WAIT`): without enough of them nobody
//! knows, as without an answer. So a master that was replaced, and has lost its replicas, answers nothing. No key has a
//! time to live.
//!
//! A folder is a hash: the names of its records with what is known of each. The data of a record is a string.

mod connection;
mod examine;
mod settings;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use redis::{Cmd, RedisError, RedisResult, Value, cmd, pipe};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use self::connection::Connected;
use self::examine::Facts;
pub use self::settings::{Settings, SettingsError};
use crate::line::{Beside, Failed, Line, Losses, hint};
use crate::paths;
use crate::store::{
    self, Done, Found, Head, If, KEPT_NONCES, Looked, Meta, NotDone, Op, Remote, Rewinds, Store, Then, Tolerance,
    Wanted,
};
use crate::tree::{ConnectError, Error, Limits, Revision};
use cronkeeper_core::election::Worth;
use cronkeeper_core::run::Version;

const COMMIT: &str = include_str!("redis/commit.lua");
const LOOK: &str = include_str!("redis/look.lua");

/// Longest wait for an answer. A commit waits for the replicas that must have it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before a lost connection for hints is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Records in Redis. Connects when it is used.
#[derive(Clone)]
pub struct Redis(Arc<Lines>);

/// A request waits for those before it on the same connection only.
struct Lines {
    settings: Arc<Settings>,
    commits: Line<Connected>,
    reads: Arc<Line<Connected>>,
    /// The newest revision that the server has hinted at.
    hinted: watch::Sender<i64>,
    /// Keeps the connection for hints open.
    listening: OnceLock<Beside>,
    tolerance: Tolerance,
    /// Longest wait for an answer.
    patience: Duration,
}

/// How many replicas must have a commit before it counts.
fn wait(settings: &Settings) -> usize {
    settings.wait.unwrap_or_else(|| settings.fails_over().into())
}

impl Redis {
    /// A client for sessions with this timeout: a request that takes half of it is given up.
    pub fn new(settings: Settings, session_timeout: Duration, rewinds: Rewinds) -> Self {
        let (settings, losses) = (Arc::new(settings), Losses::default());
        let line = || {
            let settings = Arc::clone(&settings);
            Line::new(losses.clone(), move || connection::connect(Arc::clone(&settings)))
        };
        let (commits, reads) = (line(), Arc::new(line()));
        Self(Arc::new(Lines {
            settings,
            commits,
            reads,
            hinted: watch::Sender::new(0),
            listening: OnceLock::new(),
            tolerance: Tolerance::new(rewinds),
            patience: ANSWER_TIMEOUT.min(session_timeout / 2),
        }))
    }

    async fn examined(&self) -> Result<Worth, ConnectError> {
        let facts = self.facts().await?;
        self.worth_of(&facts)
    }

    fn worth_of(&self, facts: &Facts) -> Result<Worth, ConnectError> {
        let worth = facts.worth(&self.0.settings);
        self.0.tolerance.check(&worth, "")?;
        Ok(worth)
    }

    /// What the server says of itself, if commits may be made there.
    async fn facts(&self) -> Result<Facts, ConnectError> {
        let Lines { settings, reads, .. } = &*self.0;
        let live = reads.live().await?;
        let tried = timeout(ANSWER_TIMEOUT, Facts::try_rights(&live.redis, settings)).await;
        let failed = match tried {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                Some(connection::lacking(&error, settings).unwrap_or_else(|| connection::not_connected(&error)))
            }
            Err(_) => Some(ConnectError::Unreachable(format!("{settings}: no answer in time"))),
        };
        if let Some(failed) = failed {
            reads.abandon(&live, true).await;
            return Err(failed);
        }
        Ok(live.facts.clone())
    }
}

impl Remote for Redis {
    fn place(&self) -> String {
        self.0.settings.to_string()
    }

    async fn look(&self) -> Result<Looked, ConnectError> {
        let facts = self.facts().await?;
        let worth = self.worth_of(&facts)?;
        match facts.full() {
            Some(why) => Err(ConnectError::Unreachable(why)),
            None => Ok(Looked { worth, for_node: None }),
        }
    }
}

fn head_key(settings: &Settings) -> String {
    format!("{}:head", settings.tag())
}

impl From<RedisError> for Failed {
    fn from(error: RedisError) -> Self {
        let why = connection::in_full(&error);
        // Whatever it is, it may be because this is not the master any more.
        match connection::needs_somebody(&error) {
            true => Self { error: Error::Refused(why), is_elsewhere: false },
            false => Self { error: Error::Unanswered(why), is_elsewhere: true },
        }
    }
}

/// What no script of ours answers.
fn unexpected() -> Failed {
    let error = Error::Unanswered("Redis' answer does not fit the request".to_owned());
    Failed { error, is_elsewhere: true }
}

impl Store for Redis {
    const SERVICE: &'static str = "Redis";

    fn limits(&self) -> Limits {
        // While a script runs, Redis does nothing else.
        Limits { operations: 500, bytes: 1 << 20, in_flight: 1, repeats: false, last_number: i64::MAX }
    }

    fn removal(&self, path: &str) -> Option<String> {
        let (settings, (folder, name)) = (&self.0.settings, path.rsplit_once('/')?);
        let (tag, cli) = (settings.tag(), format!("redis-cli -n {}", settings.database));
        Some(format!("`{cli} hdel '{tag}:folder:{folder}' {name}` and `{cli} del '{tag}:record:{path}'`"))
    }

    fn examine(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        let redis = self.clone();
        async move {
            let worth = redis.examined().await?;
            redis.0.tolerance.note_use();
            Ok(Some(worth))
        }
    }

    fn worth(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        let lines = Arc::clone(&self.0);
        async move {
            let Lines { settings, reads, .. } = &*lines;
            match connection::connect(Arc::clone(settings)).await {
                Ok(connected) => Ok(Some(connected.facts.worth(settings))),
                Err(refused @ ConnectError::Refused(_)) => {
                    // Replicas may have been added, or settings changed: then nothing more is answered.
                    if let Ok(live) = reads.live().await {
                        reads.abandon(&live, false).await;
                    }
                    Err(refused)
                }
                Err(error) => Err(error),
            }
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
            let Lines { settings, commits, patience, .. } = &*lines;
            let committed = commits.carry_out(*patience, false, |live| commit(live, settings, &ops, nonce, *patience));
            match committed.await.map_err(NotDone::Failed)? {
                Committed::Done(revision, at) => Ok(Done { revision, nonce, at: Some(at) }),
                Committed::Refused(index, found) => Err(NotDone::Refused { index, found }),
            }
        }
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let lines = Arc::clone(&self.0);
        async move {
            let Lines { settings, reads, patience, .. } = &*lines;
            reads.carry_out(*patience, true, |live| read(live, settings, &wanted, *patience)).await
        }
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let Lines { settings, reads, hinted, listening, patience, .. } = &*self.0;
        let mut receiver = hinted.subscribe();
        let listen = || listen(Arc::clone(settings), Arc::clone(reads), hinted.clone(), *patience);
        listening.get_or_init(|| Beside::spawn(listen()));
        // The sender may be gone together with the store.
        async move { drop(receiver.wait_for(|newest| *newest > since.0).await) }
    }
}

/// Keeps a connection open that the server tells of new commits.
async fn listen(settings: Arc<Settings>, reads: Arc<Line<Connected>>, hinted: watch::Sender<i64>, patience: Duration) {
    let channel = format!("{}:changed", settings.tag());
    loop {
        // The connection for reads shows whether the servers have changed their roles since.
        if let (Ok(live), Ok(subscribed)) = (reads.live().await, connection::subscribe(&settings, &channel).await) {
            // What was committed before is a hint too.
            if let Ok((head, _)) = reads.carry_out(patience, true, |live| read(live, &settings, &[], patience)).await {
                hint(&hinted, head.revision.0);
            }
            let mut messages = subscribed.into_on_message();
            while reads.is_current(&live) {
                match timeout(PAUSE, messages.next()).await {
                    Ok(Some(message)) => drop(message.get_payload().map(|revision: i64| hint(&hinted, revision))),
                    Ok(None) => break,
                    Err(_) => {}
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What a commit has come to.
enum Committed {
    Done(Revision, Timestamp),
    /// By the operation with this index, whose record has this version.
    Refused(usize, Option<Version>),
}

async fn commit(
    live: Arc<Connected>,
    settings: &Settings,
    ops: &[Op],
    nonce: u64,
    patience: Duration,
) -> Result<Committed, Failed> {
    let mut script = cmd("EVAL");
    script.arg(COMMIT).arg(1).arg(head_key(settings)).arg(settings.tag()).arg(nonce).arg(KEPT_NONCES);
    for op in ops {
        script.arg(paths::parent(&op.path)).arg(paths::name(&op.path)).arg(condition(op.when));
        match &op.then {
            Then::Nothing => script.arg("nothing").arg(""),
            Then::Put(data) => script.arg("put").arg(data.as_slice()),
            Then::Delete => script.arg("delete").arg(""),
        };
    }
    let answer = answer(&live, settings, script, patience).await?;
    committed(&answer).ok_or_else(unexpected)
}

/// The answer to a script, once as many replicas as must have it have all that it has written or seen. Without them, this
/// may be a master that others have replaced: what it has need not be there any more.
async fn answer(live: &Connected, settings: &Settings, script: Cmd, patience: Duration) -> Result<Value, Failed> {
    let (mut redis, wait) = (live.redis.clone(), wait(settings));
    if wait == 0 {
        return Ok(script.query_async(&mut redis).await?);
    }
    // Redis gives up before this client does, which would give up the connection.
    let at_most = u64::try_from(patience.as_millis() * 3 / 4).unwrap_or(u64::MAX);
    let mut both = pipe();
    both.add_command(script).cmd("WAIT").arg(wait).arg(at_most).ignore_errors();
    let (answer, replicas): (RedisResult<Value>, RedisResult<usize>) = both.query_async(&mut redis).await?;
    let (answer, replicas) = (answer?, replicas?);
    if replicas < wait {
        let why = format!("{replicas} of the {wait} replicas that must have each commit have it");
        return Err(Failed { error: Error::Unanswered(why), is_elsewhere: true });
    }
    Ok(answer)
}

/// What the script returns.
fn committed(answer: &Value) -> Option<Committed> {
    match answer {
        Value::Array(parts) => match &parts[..] {
            [Value::Int(0), Value::Int(revision), at] => Some(Committed::Done(Revision(*revision), time(number(at)?))),
            [Value::Int(1), Value::Int(place), Value::Int(version)] => {
                let found = i32::try_from(*version).ok().filter(|version| *version >= 0).map(Version);
                Some(Committed::Refused(usize::try_from(*place).ok()?, found))
            }
            _ => None,
        },
        _ => None,
    }
}

/// As `commit.lua` takes it.
fn condition(when: If) -> i32 {
    match when {
        If::Absent => -1,
        If::Exists => -2,
        If::Anything => -3,
        If::Version(version) => version.0,
    }
}

async fn read(
    live: Arc<Connected>,
    settings: &Settings,
    wanted: &[Wanted],
    patience: Duration,
) -> Result<(Head, Vec<Found>), Failed> {
    let mut script = cmd("EVAL");
    script.arg(LOOK).arg(1).arg(head_key(settings)).arg(settings.tag());
    for wanted in wanted {
        match wanted {
            Wanted::Meta(path) => script.arg("meta").arg(paths::parent(path)).arg(paths::name(path)),
            Wanted::Record(path) => script.arg("record").arg(paths::parent(path)).arg(paths::name(path)),
            Wanted::Names(folder) => script.arg("names").arg(folder).arg(""),
            Wanted::Nonce(revision) => script.arg("nonce").arg("").arg(revision.0),
        };
    }
    match answer(&live, settings, script, patience).await? {
        Value::Array(parts) => seen(&parts, wanted).ok_or_else(unexpected),
        _ => Err(unexpected()),
    }
}

fn seen(answer: &[Value], wanted: &[Wanted]) -> Option<(Head, Vec<Found>)> {
    let [revision, nonce, parts @ ..] = answer else { return None };
    let head = Head { revision: Revision(number(revision)?), nonce: nonce_of(nonce)? };
    if parts.len() != wanted.len() {
        return None;
    }
    let found = wanted.iter().zip(parts).map(|(wanted, part)| {
        Some(match (wanted, part) {
            (Wanted::Meta(_), Value::Nil) => Found::Meta(None),
            (Wanted::Record(_), Value::Nil) => Found::Record(None),
            (Wanted::Nonce(_), Value::Nil) => Found::Nonce(None),
            (Wanted::Meta(_), part) => Found::Meta(Some(meta(part)?)),
            (Wanted::Nonce(_), part) => Found::Nonce(Some(nonce_of(part)?)),
            (Wanted::Record(_), Value::Array(parts)) => match &parts[..] {
                [known, Value::BulkString(data)] => Found::Record(Some((data.clone(), meta(known)?))),
                _ => return None,
            },
            (Wanted::Names(_), Value::Array(names)) => {
                let (pairs, _) = names.as_chunks::<2>();
                let names = pairs.iter().map(|[name, known]| Some((text(name)?.to_owned(), meta(known)?)));
                Found::Names(names.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    });
    Some((head, found.collect::<Option<_>>()?))
}

/// What `commit.lua` keeps of a record.
fn meta(known: &Value) -> Option<Meta> {
    let mut numbers = text(known)?.split(' ').map(|number| number.parse::<i64>().ok());
    let mut next = || numbers.next().flatten();
    Some(Meta {
        version: Version(next()?.try_into().ok()?),
        created: Revision(next()?),
        changed: Revision(next()?),
        created_at: time(next()?),
        changed_at: time(next()?),
        bytes: next()?.try_into().ok()?,
    })
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<i64> {
    text(value)?.parse().ok()
}

fn nonce_of(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// A time in microseconds.
fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_to_the_question_is_refused() {
        let text = |text: &str| Value::BulkString(text.into());
        let wanted = [Wanted::Record("/a/b".to_owned())];
        let known = text("3 1 2 1000000 2000000 1");
        let record = Value::Array(vec![known.clone(), text("x")]);
        let (head, found) = seen(&[text("7"), text("9"), record.clone()], &wanted).expect("it is an answer");
        assert_eq!(head, Head { revision: Revision(7), nonce: 9 });
        let expected = Meta {
            version: Version(3),
            created: Revision(1),
            changed: Revision(2),
            created_at: time(1_000_000),
            changed_at: time(2_000_000),
            bytes: 1,
        };
        assert_eq!(found, [Found::Record(Some((b"x".to_vec(), expected)))]);
        for parts in [
            vec![],
            vec![text("7"), text("9")],
            vec![text("7"), text("x"), record.clone()],
            vec![text("7"), text("9"), record.clone(), record],
            vec![text("7"), text("9"), known.clone()],
            vec![text("7"), text("9"), Value::Array(vec![known, Value::Nil])],
            vec![text("7"), text("9"), Value::Array(vec![text("1 2"), text("x")])],
        ] {
            assert_eq!(seen(&parts, &wanted), None);
        }
    }

    #[test]
    fn a_commit_is_refused_by_the_first_condition_that_does_not_hold() {
        let refused = |version| Value::Array(vec![Value::Int(1), Value::Int(2), Value::Int(version)]);
        assert!(matches!(committed(&refused(4)), Some(Committed::Refused(2, Some(Version(4))))));
        assert!(matches!(committed(&refused(-1)), Some(Committed::Refused(2, None))));
        assert!(committed(&Value::Int(0)).is_none());
    }
}
