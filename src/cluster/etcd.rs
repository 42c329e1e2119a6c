//! The port [`store`](crate::store) in etcd, 3.4 or newer, through its JSON gateway.
//!
//! ```text
//!   commits ─┐
//!   reads   ─┼─ gateway ─ json ─► keys below a prefix
//!   hints   ─┘    └─── settings, examine
//! ```
//!
//! A commit is one transaction: it compares the versions of its keys, and writes. If one does not compare, the same
//! transaction reads all of them, and so tells which. It also writes the key of the newest commit, with a nonce. A read is
//! one transaction too, and so of one moment. etcd has no clock of its own: the time of a record is that of whoever wrote
//! it. Commits are not ordered on a connection, so one follows the other.

mod examine;
mod gateway;
mod json;
mod keys;
mod settings;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use self::gateway::{Failed, Gateway, OUT_OF_RANGE};
use self::json::{
    Base64, Compare, Delete, KeyValue, Number, Put, Range, RangeResponse, RequestOp, Txn, TxnResponse, Watch,
    WatchCreate, Watched,
};
pub use self::settings::{Settings, SettingsError};
use crate::line::{Beside, hint};
use crate::paths;
use crate::store::{
    self, Done, Found, Head, If, Looked, Meta, NotDone, Op, Remote, Rewinds, Store, Then, Tolerance, Wanted,
};
use crate::tree::{ConnectError, Error, Limits, Revision};
use cronkeeper_core::clock::system;
use cronkeeper_core::election::Worth;
use cronkeeper_core::run::Version;

/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before a lost connection for hints is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// Operations that a transaction may have in etcd, unless its settings say otherwise.
const MOST_OPERATIONS: usize = 128;

/// Records in etcd. Connects when it is used.
#[derive(Clone)]
pub struct Etcd(Arc<Gateways>);

/// A request waits for those before it on the same connection only.
struct Gateways {
    settings: Arc<Settings>,
    commits: Gateway,
    reads: Gateway,
    hints: Arc<Gateway>,
    /// The newest revision that etcd has hinted at.
    hinted: watch::Sender<i64>,
    /// Of a node's client: what watches the newest commit, and what keeps etcd's history short.
    beside: OnceLock<[Beside; 2]>,
    tolerance: Tolerance,
    /// Longest wait for an answer.
    patience: Duration,
    /// How often etcd's history is looked at.
    upkeep_every: Duration,
}

impl Etcd {
    /// A client for sessions with this timeout: a request that takes half of it is given up.
    pub fn new(settings: Settings, session_timeout: Duration, rewinds: Rewinds) -> Self {
        Self::with_upkeep(settings, session_timeout, rewinds, upkeep::EVERY)
    }

    /// The same, which looks at etcd's history every so often: for tests, which have no hour.
    pub fn with_upkeep(
        settings: Settings,
        session_timeout: Duration,
        rewinds: Rewinds,
        upkeep_every: Duration,
    ) -> Self {
        let settings = Arc::new(settings);
        let gateway = || Gateway::new(Arc::clone(&settings));
        let (commits, reads, hints) = (gateway(), gateway(), Arc::new(gateway()));
        let (hinted, beside, tolerance) = (watch::Sender::new(0), OnceLock::new(), Tolerance::new(rewinds));
        let patience = ANSWER_TIMEOUT.min(session_timeout / 2);
        Self(Arc::new(Gateways { settings, commits, reads, hints, hinted, beside, tolerance, patience, upkeep_every }))
    }

    async fn examined(&self) -> Result<Worth, ConnectError> {
        let worth = examine::look(&self.0.reads, &self.0.settings, self.0.patience).await?;
        self.0.tolerance.check(&worth, "update it, ")?;
        Ok(worth)
    }
}

impl Remote for Etcd {
    fn place(&self) -> String {
        self.0.settings.to_string()
    }

    async fn look(&self) -> Result<Looked, ConnectError> {
        Ok(Looked { worth: self.examined().await?, for_node: None })
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused { message, .. } => Self::Refused(message),
            Failed::Unanswered(why) => Self::Unanswered(why),
            // Only a new session finds out that it must be given up: a running one continues.
            Failed::NotConnected(error) => Self::Unanswered(error.to_string()),
        }
    }
}

impl Store for Etcd {
    const SERVICE: &'static str = "etcd";

    fn limits(&self) -> Limits {
        // One operation writes the key of the newest commit.
        let operations = MOST_OPERATIONS - 1;
        Limits { operations, bytes: 1 << 20, in_flight: 1, repeats: false, last_number: i64::MAX }
    }

    fn removal(&self, path: &str) -> Option<String> {
        let key = keys::record(&self.0.settings.prefix, path);
        Some(format!("`etcdctl del '{}'`", String::from_utf8_lossy(&key.0)))
    }

    fn examine(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        let etcd = self.clone();
        async move {
            let worth = etcd.examined().await?;
            etcd.0.tolerance.note_use();
            Ok(Some(worth))
        }
    }

    fn worth(&self) -> impl Future<Output = Result<Option<Worth>, ConnectError>> + Send + 'static {
        let gateways = Arc::clone(&self.0);
        async move { examine::look(&gateways.hints, &gateways.settings, gateways.patience).await.map(Some) }
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let (gateways, limits) = (Arc::clone(&self.0), self.limits());
        async move {
            store::check(&ops, limits)?;
            let nonce = Uuid::new_v4().as_u64_pair().1;
            let txn = transaction(&gateways.settings.prefix, &ops, nonce, system::now().wall);
            let answer = gateways.commits.ask::<TxnResponse>("/v3/kv/txn", &txn, gateways.patience).await;
            let answer = answer.map_err(|failed| NotDone::Failed(failed.into()))?;
            match answer.succeeded {
                true => Ok(Done { revision: Revision(answer.header.revision.0), nonce, at: None }),
                false => Err(refused(&ops, answer)),
            }
        }
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let gateways = Arc::clone(&self.0);
        async move { gateways.read(&wanted).await.map_err(Error::from) }
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        let mut hinted = self.0.hinted.subscribe();
        let Gateways { hints, hinted: sender, settings, patience, upkeep_every, .. } = &*self.0;
        let prefix = &settings.prefix;
        self.0.beside.get_or_init(|| {
            let listening = listen(Arc::clone(hints), sender.clone(), keys::head(prefix), *patience);
            let upkeep = upkeep::keep(Arc::clone(hints), prefix.clone(), *patience, *upkeep_every);
            [Beside::spawn(listening), Beside::spawn(upkeep)]
        });
        // The sender may be gone together with the store.
        async move { drop(hinted.wait_for(|newest| *newest > since.0).await) }
    }
}

/// Watches the key of the newest commit.
async fn listen(gateway: Arc<Gateway>, hinted: watch::Sender<i64>, head: Base64, patience: Duration) {
    loop {
        let watch = Watch { create_request: WatchCreate { key: head.clone() } };
        if let Ok(mut stream) = gateway.stream("/v3/watch", &watch).await {
            while let Some(Watched { result: Some(result) }) = stream.next().await {
                if result.canceled {
                    break;
                }
                if result.created {
                    // What was committed before is a hint too.
                    let range = Range { key: head.clone(), ..Range::default() };
                    if let Ok(answer) = gateway.ask("/v3/kv/range", &range, patience).await {
                        hint(&hinted, head_of(Some(answer)).revision.0);
                    }
                }
                result
                    .events
                    .iter()
                    .filter_map(|event| event.kv.as_ref())
                    .for_each(|kv| hint(&hinted, kv.mod_revision.0));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn transaction(prefix: &str, ops: &[Op], nonce: u64, now: Timestamp) -> Txn {
    let key = |op: &Op| keys::record(prefix, &op.path);
    let compare = |op: &Op| {
        let (result, version) = match op.when {
            If::Absent => ("EQUAL", 0),
            If::Exists => ("GREATER", 0),
            // etcd counts from 1.
            If::Version(version) => ("EQUAL", i64::from(version.0) + 1),
            If::Anything => return None,
        };
        Some(Compare { key: key(op), target: "VERSION", result, version: Number(version) })
    };
    let change = |op: &Op| match &op.then {
        Then::Nothing => None,
        Then::Put(data) => Some(RequestOp::Put(Put { key: key(op), value: stamped(data, now) })),
        Then::Delete => Some(RequestOp::Delete(Delete { key: key(op) })),
    };
    let head = Put { key: keys::head(prefix), value: stamped(format!("{nonce:016x}").as_bytes(), now) };
    let known = |op: &Op| RequestOp::Range(Range { key: key(op), keys_only: true, ..Range::default() });
    Txn {
        compare: ops.iter().filter_map(compare).collect(),
        success: ops.iter().filter_map(change).chain([RequestOp::Put(head)]).collect(),
        failure: ops.iter().map(known).collect(),
    }
}

/// The first operation whose condition does not hold, by the keys as the refused transaction has read them.
fn refused(ops: &[Op], answer: TxnResponse) -> NotDone {
    let found = answer.responses.into_iter().map(|response| {
        let kv = response.response_range.unwrap_or_default().kvs.into_iter().next();
        kv.map(|kv| version(&kv))
    });
    let first = ops.iter().zip(found).enumerate().find(|(_, (op, found))| !op.when.holds(*found));
    match first {
        Some((index, (_, found))) => NotDone::Refused { index, found },
        None => NotDone::Failed(Error::Unanswered("etcd refuses a commit although all its conditions hold".to_owned())),
    }
}

impl Gateways {
    async fn read(&self, wanted: &[Wanted]) -> Result<(Head, Vec<Found>), Failed> {
        let prefix = &self.settings.prefix;
        let mut ranges = vec![Range { key: keys::head(prefix), ..Range::default() }];
        let mut revisions = BTreeSet::new();
        for wanted in wanted {
            match wanted {
                Wanted::Meta(path) | Wanted::Record(path) => {
                    ranges.push(Range { key: keys::record(prefix, path), ..Range::default() });
                }
                Wanted::Names(folder) => {
                    let (key, end) = keys::below(prefix, folder);
                    // Of the ledger's folders nobody asks for more than the names, and all values may be megabytes.
                    let keys_only = !paths::may_be_entry(&paths::under(folder, ""));
                    ranges.push(Range { key, range_end: Some(end), keys_only, ..Range::default() });
                }
                Wanted::Nonce(revision) => _ = revisions.insert(*revision),
            }
        }
        let mut answers = self.ranges(ranges).await?.into_iter();
        let head = head_of(answers.next());
        let nonces = self.nonces(revisions, head).await?;
        let mut next = || answers.next().unwrap_or_default();
        let found = wanted.iter().map(|wanted| match wanted {
            Wanted::Meta(_) => Found::Meta(next().kvs.first().map(|kv| split(kv).1)),
            Wanted::Record(_) => Found::Record(next().kvs.first().map(split)),
            Wanted::Names(_) => Found::Names(next().kvs.iter().map(|kv| (keys::name(&kv.key), split(kv).1)).collect()),
            Wanted::Nonce(revision) => Found::Nonce(nonces.get(revision).copied()),
        });
        Ok((head, found.collect()))
    }

    /// The answers to all of these, at one moment unless they name another.
    async fn ranges(&self, ranges: Vec<Range>) -> Result<Vec<RangeResponse>, Failed> {
        let (mut answers, mut moment) = (Vec::new(), None);
        for part in ranges.chunks(MOST_OPERATIONS) {
            // Later parts are read as they were at the moment of the first.
            let at_moment = |range: Range| RequestOp::Range(Range { revision: range.revision.or(moment), ..range });
            let success = part.iter().cloned().map(at_moment).collect();
            let txn = Txn { compare: Vec::new(), success, failure: Vec::new() };
            let answer = self.reads.ask::<TxnResponse>("/v3/kv/txn", &txn, self.patience).await?;
            if !answer.succeeded || answer.header.revision.0 == 0 || answer.responses.len() != part.len() {
                return Err(Failed::Unanswered("etcd's answer does not fit the request".to_owned()));
            }
            moment.get_or_insert(answer.header.revision);
            answers.extend(answer.responses.into_iter().map(|response| response.response_range.unwrap_or_default()));
        }
        Ok(answers)
    }

    /// The nonces of commits, which etcd knows until its history is compacted.
    async fn nonces(&self, revisions: BTreeSet<Revision>, head: Head) -> Result<BTreeMap<Revision, u64>, Failed> {
        let mut nonces = BTreeMap::from([(head.revision, head.nonce)]);
        let earlier = revisions.into_iter().filter(|revision| 0 < revision.0 && *revision < head.revision);
        let earlier: Vec<Revision> = earlier.collect();
        let key = keys::head(&self.settings.prefix);
        let range =
            |revision: &Revision| Range { key: key.clone(), revision: Some(Number(revision.0)), ..Range::default() };
        // If another commit has that revision, the wanted one is not there.
        let nonce = |answer: RangeResponse| head_of(Some(answer)).nonce;
        match self.ranges(earlier.iter().map(range).collect()).await {
            Ok(answers) => nonces.extend(earlier.into_iter().zip(answers.into_iter().map(nonce))),
            Err(Failed::Refused { code: OUT_OF_RANGE, .. }) => {
                for revision in earlier {
                    match self.ranges(vec![range(&revision)]).await {
                        Ok(mut answers) => _ = answers.pop().map(|answer| nonces.insert(revision, nonce(answer))),
                        Err(Failed::Refused { code: OUT_OF_RANGE, .. }) => {}
                        Err(failed) => return Err(failed),
                    }
                }
            }
            Err(failed) => return Err(failed),
        }
        Ok(nonces)
    }
}

fn head_of(answer: Option<RangeResponse>) -> Head {
    let Some(kv) = answer.and_then(|answer| answer.kvs.into_iter().next()) else { return Head::default() };
    let (data, meta) = split(&kv);
    let nonce = std::str::from_utf8(&data).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    Head { revision: meta.changed, nonce: nonce.unwrap_or_default() }
}

/// The data with its time before it, in microseconds.
fn stamped(data: &[u8], now: Timestamp) -> Base64 {
    let mut value = format!("{}\n", now.as_microsecond()).into_bytes();
    value.extend_from_slice(data);
    Base64(value)
}

/// The time of a value, and its data; `None` if it has no time.
fn stamp_and_data(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = value.iter().position(|byte| *byte == b'\n')?;
    Some((&value[..end], &value[end + 1..]))
}

/// The data of a record, and what is known of it.
fn split(kv: &KeyValue) -> (Vec<u8>, Meta) {
    let (stamp, data) = stamp_and_data(&kv.value.0).unwrap_or((&[], &kv.value.0));
    let micros = std::str::from_utf8(stamp).ok().and_then(|text| text.parse().ok());
    let at = micros.and_then(|micros| Timestamp::from_microsecond(micros).ok()).unwrap_or_default();
    let meta = Meta {
        version: version(kv),
        created: Revision(kv.create_revision.0),
        changed: Revision(kv.mod_revision.0),
        // Who changes a record does not know when it was made.
        created_at: at,
        changed_at: at,
        bytes: data.len(),
    };
    (data.to_vec(), meta)
}

fn version(kv: &KeyValue) -> Version {
    Version(i32::try_from(kv.version.0 - 1).unwrap_or(i32::MAX))
}
