//! What an ensemble has committed, read from its servers' own logs of transactions.
//!
//! The ledger keeps only its newest records; these logs keep every write, in its order, with session and time, and no part of
//! cronkeeper takes part in reading them. A log is a header and then transactions, each with its checksum, its length, and
//! one byte that says it is whole; numbers are big-endian, texts and data have their length in front. What was refused,
//! and the coming and going of sessions, changes nothing here and is passed over.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cronkeeper::zookeeper::client::{Mode, Op};

use crate::simulation::zookeeper::Change;
use crate::simulation::zookeeper::wire::Txn;

const MAGIC: &[u8] = b"ZKLG";
const HEADER: usize = 16;
/// Numbers of transactions.
const CREATES: [i32; 4] = [1, 15, 19, 21];
const DELETES: [i32; 2] = [2, 20];
const SET: i32 = 5;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const ERROR: i32 = -1;

/// All writes below `chroot` that a majority of the servers has in its log, in their order. `folders`: one of each server;
/// logs that nobody has written to `since` then are left out.
///
/// A server that led the ensemble and was cut off may have logged more than was ever committed, until it is taken back into
/// the ensemble, or for good where it is given a snapshot then.
pub fn committed(folders: &[PathBuf], chroot: &str, since: SystemTime) -> Vec<Txn> {
    let mut all = BTreeMap::<i64, (usize, Txn)>::new();
    for folder in folders {
        for (zxid, txn) in logged(folder, chroot, since) {
            all.entry(zxid).and_modify(|(count, _)| *count += 1).or_insert((1, txn));
        }
    }
    all.into_values().filter(|(count, _)| 2 * count > folders.len()).map(|(_, txn)| txn).collect()
}

/// What one server has in all its logs.
fn logged(folder: &Path, chroot: &str, since: SystemTime) -> BTreeMap<i64, Txn> {
    let files = std::fs::read_dir(folder).expect("a server has a folder for its logs").flatten();
    let logs = files.filter(|file| file.file_name().to_string_lossy().starts_with("log."));
    let written = |log: &DirEntry| log.metadata().and_then(|log| log.modified()).is_ok_and(|at| at >= since);
    let txns =
        logs.filter(written).flat_map(|log| read(&std::fs::read(log.path()).expect("a log can be read"), chroot));
    txns.map(|txn| (txn.zxid, txn)).collect()
}

/// The writes of one log. It ends where nothing was written yet, or where a write was torn.
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

/// What is left to be read.
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

    /// A length of -1 stands for nothing.
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

    /// `Some(None)`: no write.
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

    /// All or nothing: of one that was refused the log has what came before the refusal, and errors from there on.
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

    /// `Some(None)`: of another kind.
    fn op(&mut self, kind: i32) -> Option<Option<Op>> {
        Some(Some(match kind {
            _ if CREATES.contains(&kind) => {
                let (path, data) = (self.path()?, self.buffer()?.to_vec());
                // How long it stays makes no difference here.
                Op::Create { path, data, mode: Mode::Persistent }
            }
            _ if DELETES.contains(&kind) => Op::Delete { path: self.path()?, version: -1 },
            // Of both the log has the version that follows.
            SET => Op::Set { path: self.path()?, data: self.buffer()?.to_vec(), version: self.int()? - 1 },
            CHECK => Op::Check { path: self.path()?, version: self.int()? - 1 },
            _ => return Some(None),
        }))
    }
}

/// The operation as seen from below `chroot`; `None` for one elsewhere.
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

    /// What a write did to which path.
    fn told(txns: &[Txn]) -> Vec<String> {
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
        assert_eq!(told(&committed(&[ensemble.data_of(0)], "/place", SystemTime::UNIX_EPOCH)), expected);
    }
}
