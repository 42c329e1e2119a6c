//! What earlier processes of this node left, given up in order: the ends they could not send, then candidate and member.
//!
//! In this order, because once the member is gone the leader settles its runs by what it knows: it would begin a run again
//! whose success is only known here. Relies on the caller that these processes were seen dead.

use futures_util::future::join_all;

use super::client::{Client, Connect, ConnectError, Error, Mode, Op};
use super::desk::{self, Desk, Me, Trouble};
use super::store::{ClaimError, OpenEnd, SessionStore};
use super::{lower, paths, snapshot};
use crate::clock::Clock;
use crate::election::Failure;
use crate::ledger::Change;
use crate::run::Version;
use crate::term::NodeName;

/// What dead processes left.
#[derive(Clone, Debug, Default)]
pub(super) struct Leftover {
    /// Their sessions.
    pub(super) sessions: Vec<i64>,
    /// The ends they could not send.
    pub(super) ends: Vec<OpenEnd>,
}

/// Where a node's entries are, and whose.
#[derive(Clone, Debug)]
pub struct Estate {
    /// The node.
    pub node: NodeName,
    /// The connect string, for messages.
    pub service: String,
    /// Its chroot, for messages.
    pub chroot: String,
}

/// Why nothing, or not all, was given up. It is the affair of the node's next start then, or of the server.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReleaseError {
    /// The servers do not answer as they should.
    #[error("{0}")]
    NotNow(String),
    /// An operator must act.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Gives up what the dead processes of a node left, under a session that makes nothing.
///
/// # Errors
/// Where not all could be given up; doing it again is harmless.
pub async fn release<C: Connect, K: Clock>(
    connect: &C,
    clock: K,
    estate: Estate,
    store: &mut dyn SessionStore,
) -> Result<(), ReleaseError> {
    let client = connect.connect().await.map_err(|error| estate.not_connected(error))?;
    let (cluster, _) = client.get(paths::CLUSTER).await.map_err(|error| estate.in_trouble(error.into()))?;
    store.claim(&String::from_utf8_lossy(&cluster)).map_err(|error| estate.refused(error, &cluster))?;
    let me =
        Me { node: estate.node.clone(), owner: client.owner_id(), prefix: String::new(), candidate_data: Vec::new() };
    let left = Leftover { sessions: store.removable(), ends: store.open_ends() };
    let sessions = left.sessions.clone();
    give_up(&Desk::new(client, clock, me), left).await.map_err(|trouble| estate.in_trouble(trouble))?;
    store.forget(&sessions);
    Ok(())
}

impl Estate {
    fn not_connected(&self, error: ConnectError) -> ReleaseError {
        match error {
            ConnectError::Unreachable(error) => ReleaseError::NotNow(error),
            ConnectError::AuthFailed(detail) => Failure::Refused { service: self.service.clone(), detail }.into(),
        }
    }

    fn in_trouble(&self, trouble: Trouble) -> ReleaseError {
        let service = self.service.clone();
        match trouble {
            Trouble::Again(error) => ReleaseError::NotNow(error),
            Trouble::SessionOver => ReleaseError::NotNow(Error::SessionOver.to_string()),
            Trouble::NoAuth(detail) => Failure::Refused { service, detail }.into(),
            Trouble::NoChroot => Failure::NoChroot { chroot: self.chroot.clone(), service }.into(),
        }
    }

    fn refused(&self, error: ClaimError, cluster: &[u8]) -> ReleaseError {
        match error {
            ClaimError::OtherCluster { ours } => {
                let theirs = String::from_utf8_lossy(cluster).into_owned();
                Failure::OtherCluster { ours, theirs, service: self.service.clone() }.into()
            }
            ClaimError::Store(error) => Failure::StateDir(error.to_string()).into(),
        }
    }
}

/// Sends the ends, then removes the entries.
pub(super) async fn give_up<C: Client, K: Clock>(desk: &Desk<C, K>, left: Leftover) -> Result<(), Trouble> {
    if left.sessions.is_empty() {
        return Ok(());
    }
    // All are waited for, whatever the first one says: what was handed over is never dropped.
    let sent = join_all(left.ends.into_iter().map(|end| send(desk, end))).await;
    sent.into_iter().collect::<Result<(), Trouble>>()?;
    remove_entries(desk, &left.sessions).await
}

/// Sends an end, unless the run was settled otherwise. What the servers refuse is left to the daemon, whose committer says so.
async fn send<C: Client, K: Clock>(desk: &Desk<C, K>, open: OpenEnd) -> Result<(), Trouble> {
    let OpenEnd { end, mut version } = open;
    let run = end.run.id();
    loop {
        // There already, in most cases; the multi says what else is wrong.
        let _ = desk.line()?.create(&paths::job_history(&end.run.job), Vec::new(), Mode::Persistent).await;
        let change = Change::End { at: version, end: end.clone(), as_leader: false };
        match desk.line()?.multi(lower::ops(&change)).await.map_err(|failed| failed.error) {
            Ok(_) | Err(Error::NoNode | Error::NodeExists | Error::Refused(_)) => return Ok(()),
            Err(Error::BadVersion) => {}
            Err(error) => return Err(error.into()),
        }
        let (data, stat) = match desk.line()?.get(&paths::running(&run)).await {
            Ok(found) => found,
            Err(Error::NoNode) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_ours = |found: &crate::run::RunRecord| found.attempt == end.run.attempt && found.token == end.run.token;
        if !snapshot::run_record(&data).is_ok_and(|found| is_ours(&found)) {
            return Ok(());
        }
        version = Version(stat.version);
    }
}

/// Candidate and member of a session go in one multi, so that nobody sees the one without the other.
async fn remove_entries<C: Client, K: Clock>(desk: &Desk<C, K>, sessions: &[i64]) -> Result<(), Trouble> {
    let names = desk::children(desk.line()?, paths::LEADER).await?;
    let mut ops: Vec<Op> = desk
        .get_small(paths::LEADER, names)
        .await?
        .into_iter()
        .filter(|(_, _, stat)| sessions.contains(&stat.ephemeral_owner))
        .map(|(name, _, _)| Op::Delete { path: paths::under(paths::LEADER, &name), version: -1 })
        .collect();
    let member = desk.member();
    match desk.line()?.get(&member).await {
        Ok((_, stat)) if sessions.contains(&stat.ephemeral_owner) => {
            ops.push(Op::Delete { path: member, version: stat.version });
        }
        Ok(_) | Err(Error::NoNode) => {}
        Err(error) => return Err(error.into()),
    }
    if !ops.is_empty() {
        desk.line()?.multi(ops).await?;
    }
    Ok(())
}
