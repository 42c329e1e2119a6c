//! Reader of the servers' own transaction logs: everything that an ensemble has committed, and more.
//!
//! The ledger keeps only its newest records. These logs keep every write, in order, with session and time, and no part
//! of cronkeeper is involved in reading them. A log is a header followed by transactions, each with its checksum, its
//! length, and one byte that marks it as complete. Numbers are big-endian; texts and data are prefixed with their
//! length. Refused writes, and the start and end of sessions, change nothing here and are skipped.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cronkeeper_cluster::zookeeper::client::{Mode, Op};

use crate::ledger::txn::{Change, Txn};

const MAGIC: &[u8] = b"ZKLG";
const HEADER: usize = 16;
/// Transaction types of creates.
const CREATES: [i32; 4] = [1, 15, 19, 21];
const DELETES: [i32; 2] = [2, 20];
const SET: i32 = 5;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const ERROR: i32 = -1;

/// A transaction, and the servers that have it in their logs.
pub struct LoggedTxn {
    pub txn: Txn,
    pub servers: Vec<usize>,
}

/// What the logs of all servers have, in order.
pub struct Logs {
    /// The number of servers.
    pub servers: usize,
    pub txns: Vec<LoggedTxn>,
}

impl Logs {
    /// All writes below `chroot`. `folders`: one per server. Logs that nobody has written to since `since` are left
    /// out.
    pub fn read(folders: &[PathBuf], chroot: &str, since: SystemTime) -> Self {
        Self::of(folders.iter().map(|folder| logged(folder, chroot, since)))
    }

    /// `each`: what each server has.
    pub fn of(each: impl ExactSizeIterator<Item = Vec<Txn>>) -> Self {
        let servers = each.len();
        let mut all = BTreeMap::<i64, LoggedTxn>::new();
        for (server, txns) in each.enumerate() {
            for txn in txns {
                let logged = all.entry(txn.zxid).or_insert_with(|| LoggedTxn { txn, servers: Vec::new() });
                // A server that was sent a transaction again may have it twice.
                if !logged.servers.contains(&server) {
                    logged.servers.push(server);
                }
            }
        }
        Self { servers, txns: all.into_values().collect() }
    }

    /// What a majority of the servers has.
    ///
    /// A server that led the ensemble and was cut off may have logged more than was ever committed, until it rejoins
    /// the ensemble, or permanently if it then gets a snapshot.
    pub fn of_majority(&self) -> impl Iterator<Item = &LoggedTxn> {
        self.txns.iter().filter(|logged| self.is_majority(logged))
    }

    pub fn into_committed(mut self) -> Vec<Txn> {
        let all = std::mem::take(&mut self.txns);
        all.into_iter().filter(|logged| self.is_majority(logged)).map(|logged| logged.txn).collect()
    }

    fn is_majority(&self, logged: &LoggedTxn) -> bool {
        2 * logged.servers.len() > self.servers
    }
}

/// All transactions in one server's logs.
fn logged(folder: &Path, chroot: &str, since: SystemTime) -> Vec<Txn> {
    let files = std::fs::read_dir(folder).expect("a server has a folder for its logs").flatten();
    let logs = files.filter(|file| file.file_name().to_string_lossy().starts_with("log."));
    let written = |log: &DirEntry| log.metadata().and_then(|log| log.modified()).is_ok_and(|at| at >= since);
    logs.filter(written).flat_map(|log| read(&std::fs::read(log.path()).expect("a log can be read"), chroot)).collect()
}

/// The writes of one log. It ends at the first part that is unwritten or torn.
fn read(log: &[u8], chroot: &str) -> Vec<Txn> {
    if !log.starts_with(MAGIC) {
        return Vec::new();
    }
    let mut rest = Bytes(&log[HEADER..]);
    let mut txns = Vec::new();
    while let Some(mut body) = rest.entry() {
        let txn = body.txn(chroot).expect("what a server has written whole can be read");
        txns.extend(txn.filter(|txn| !matches!(&txn.change, Change::Ops(ops) if ops.is_empty())));
    }
    txns
}

/// The bytes that are still to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(count)?;
        self.0 = left;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_be_bytes)
    }

    /// A length of -1 means no data.
    fn buffer(&mut self) -> Option<&'a [u8]> {
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    fn path(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?.to_vec()).ok()
    }

    /// The next transaction with its header.
    fn entry(&mut self) -> Option<Self> {
        let _checksum = self.long()?;
        let body = self.buffer().filter(|body| !body.is_empty())?;
        (self.take(1)? == b"B").then_some(Self(body))
    }

    /// `Some(None)`: not a write.
    fn txn(&mut self, chroot: &str) -> Option<Option<Txn>> {
        let (session, _cxid, zxid, time_ms, kind) =
            (self.long()?, self.int()?, self.long()?, self.long()?, self.int()?);
        let ops = match kind {
            MULTI => self.multi()?,
            _ => self.op(kind)?.into_iter().collect(),
        };
        let below = |op: Op| relative(op, chroot);
        let change = Change::Ops(ops.into_iter().filter_map(below).collect());
        Some(Some(Txn { zxid, time_ms, session, change }))
    }

    /// All or nothing: of a refused multi, the log has the operations before the refusal, and errors from there on.
    fn multi(&mut self) -> Option<Vec<Op>> {
        let count = self.int()?;
        let (mut ops, mut is_refused) = (Vec::new(), false);
        for _ in 0..count {
            let kind = self.int()?;
            is_refused |= kind == ERROR;
            ops.extend(Self(self.buffer()?).op(kind)?);
        }
        Some(if is_refused { Vec::new() } else { ops })
    }

    /// `Some(None)`: an operation of another kind.
    fn op(&mut self, kind: i32) -> Option<Option<Op>> {
        Some(Some(match kind {
            _ if CREATES.contains(&kind) => {
                let (path, data) = (self.path()?, self.buffer()?.to_vec());
                // The lifetime of the znode makes no difference here.
                Op::Create { path, data, mode: Mode::Persistent }
            }
            _ if DELETES.contains(&kind) => Op::Delete { path: self.path()?, version: -1 },
            // For both, the log has the resulting version.
            SET => Op::Set { path: self.path()?, data: self.buffer()?.to_vec(), version: self.int()? - 1 },
            CHECK => Op::Check { path: self.path()?, version: self.int()? - 1 },
            _ => return Some(None),
        }))
    }
}

/// The operation relative to `chroot`; `None` if it is elsewhere.
fn relative(op: Op, chroot: &str) -> Option<Op> {
    let below = |path: String| path.strip_prefix(chroot).filter(|rest| rest.starts_with('/')).map(str::to_owned);
    Some(match op {
        Op::Check { path, version } => Op::Check { path: below(path)?, version },
        Op::Create { path, data, mode } => Op::Create { path: below(path)?, data, mode },
        Op::Set { path, data, version } => Op::Set { path: below(path)?, data, version },
        Op::Delete { path, version } => Op::Delete { path: below(path)?, version },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zookeeper_client::{Acls, Client, CreateMode};

    use super::*;
    use crate::support::zookeeper::Ensemble;

    /// Each write and its path, as text.
    fn described(txns: &[Txn]) -> Vec<String> {
        let ops = txns.iter().flat_map(|txn| match &txn.change {
            Change::Ops(ops) => &ops[..],
            _ => &[],
        });
        let each = ops.map(|op| match op {
            Op::Create { path, data, .. } => format!("create {path} {}", String::from_utf8_lossy(data)),
            Op::Set { path, data, version } => format!("set {path} {version} {}", String::from_utf8_lossy(data)),
            Op::Delete { path, .. } => format!("delete {path}"),
            Op::Check { path, version } => format!("check {path} {version}"),
        });
        each.collect()
    }

    #[tokio::test]
    async fn what_a_server_has_carried_out_is_read_from_its_log_and_what_it_refused_is_not() {
        let ensemble = Ensemble::start(1);
        let connector = Client::connector().with_session_timeout(Duration::from_secs(8));
        let client = connector.connect(&ensemble.connect_string()).await.unwrap();
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for path in ["/place", "/elsewhere", "/place/a"] {
            client.create(path, b"new", &options).await.unwrap();
        }
        let mut whole = client.new_multi_writer();
        whole.add_check_version("/place/a", 0).unwrap();
        whole.add_set_data("/place/a", b"set", Some(0)).unwrap();
        whole.add_create("/place/b", b"", &options).unwrap();
        whole.commit().await.unwrap();
        let mut refused = client.new_multi_writer();
        refused.add_delete("/place/b", None).unwrap();
        refused.add_create("/place/none/c", b"", &options).unwrap();
        refused.commit().await.unwrap_err();
        client.delete("/place/b", None).await.unwrap();

        let expected = ["create /a new", "check /a 0", "set /a 0 set", "create /b ", "delete /b"];
        let logs = Logs::read(&[ensemble.data_of(0)], "/place", SystemTime::UNIX_EPOCH);
        assert_eq!(described(&logs.into_committed()), expected);
    }
}
