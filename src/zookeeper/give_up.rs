//! What earlier processes of this node left, given up in order: their runs, then candidate and member.
//!
//! In this order, because once the member is gone the leader settles its runs by what it knows: it would begin a run again
//! whose success is only known here. A run that was begun for a process which died before it handed it to its warden was never
//! started: it goes back to be started, and only here is that known. Relies on the caller that these processes were seen dead.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::sync::mpsc::UnboundedSender;

use super::client::{Client, Connect, ConnectError, Error, Mode, MultiError, Op};
use super::context::{self, At as _, LocalNode, SessionContext, SessionError};
use super::store::{ClaimError, SessionStore};
use super::{lower, paths, session_id, snapshot};
use crate::clock::Clock;
use crate::coordination::Event;
use crate::election::Failure;
use crate::ledger::{self, Change};
use crate::run::journal::Noted;
use crate::run::{OnLoss, Outcome, Reason, RunEnd, RunRecord, RunState, Version};
use crate::term::{NodeName, SessionId};

/// What is left of earlier sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Leftover {
    /// Whose entries go.
    pub(super) sessions: Vec<i64>,
    /// Those among them whose processes are dead: their runs end. The living process sees to its own runs itself.
    pub(super) dead: BTreeSet<SessionId>,
    /// The ends that dead processes could not send.
    pub(super) ends: Vec<RunEnd>,
    /// What they handed to their wardens, where that is known.
    pub(super) noted: Option<Noted>,
    /// Who wants to know of every end that was written.
    pub(super) successor: Option<UnboundedSender<Event>>,
}

impl Leftover {
    /// What dead processes left, by what the state directory says.
    pub(super) fn of_the_dead(store: &dyn SessionStore) -> Self {
        let sessions = store.removable();
        let dead = sessions.iter().copied().map(session_id).collect();
        Self { sessions, dead, ends: store.open_ends(), noted: store.noted(), successor: None }
    }

    /// Whoever wanted to know may have gone.
    fn inherit(&self, end: RunEnd, version: Version) {
        if let Some(successor) = &self.successor {
            let _ = successor.send(Event::Ledger(ledger::Event::Ended { end: Box::new(end), at: version }));
        }
    }

    /// What is to be written of a run, if it is a dead process's and not the leader's to begin again.
    fn settle(&self, run: &RunRecord, at: Version, node: &NodeName, now: Timestamp) -> Option<Change> {
        // One that waits is the leader's: whatever is noted of its last attempt, that one is over.
        if run.state.waits() || run.owner.node != *node || !self.dead.contains(&run.owner.session) {
            return None;
        }
        let end = |end| Some(Change::End { at, end, as_leader: false });
        if let Some(known) = self.ends.iter().find(|end| end.run.is_same_attempt(run)) {
            return end(known.clone());
        }
        if self.noted.as_ref().is_some_and(|noted| noted.never_started(run)) {
            return Some(Change::ChangeOwner { at, run: RunRecord { state: RunState::Unstarted, ..run.clone() } });
        }
        if run.on_loss == OnLoss::Rerun {
            return None;
        }
        end(RunEnd::unseen(run, Outcome::Interrupted, Some(Reason::NodeDied), now))
    }
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

/// Gives up what the dead processes of a node left, under a session that makes nothing. `successor` hears of every end that was written,
/// whatever becomes of the rest.
///
/// # Errors
/// Where not all could be given up; doing it again is harmless.
pub async fn release<C: Connect, K: Clock>(
    connect: &C,
    clock: K,
    target: Estate,
    store: &mut dyn SessionStore,
    successor: UnboundedSender<Event>,
) -> Result<(), ReleaseError> {
    let client = connect.connect().await.map_err(|error| target.not_connected(error))?;
    let (cluster, _) = client.get(paths::CLUSTER).await.at(paths::CLUSTER).map_err(|error| target.failed(error))?;
    store.claim(&String::from_utf8_lossy(&cluster)).map_err(|error| target.refused(error, &cluster))?;
    let me = LocalNode {
        node: target.node.clone(),
        owner: client.owner_id(),
        prefix: String::new(),
        candidate_data: Vec::new(),
    };
    let left = Leftover { successor: Some(successor), ..Leftover::of_the_dead(store) };
    let sessions = left.sessions.clone();
    give_up(&SessionContext::new(client, clock, me), left).await.map_err(|error| target.failed(error))?;
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

    fn failed(&self, error: SessionError) -> ReleaseError {
        let service = self.service.clone();
        match error {
            SessionError::Again(error) => ReleaseError::NotNow(error),
            SessionError::SessionOver => ReleaseError::NotNow(Error::SessionOver.to_string()),
            SessionError::NoAuth(detail) => Failure::Refused { service, detail }.into(),
            SessionError::NoChroot => Failure::NoChroot { chroot: self.chroot.clone(), service }.into(),
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

/// Ends the runs, then removes the entries.
pub(super) async fn give_up<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    left: Leftover,
) -> Result<(), SessionError> {
    if left.sessions.is_empty() {
        return Ok(());
    }
    end_runs(context, &left).await?;
    remove_entries(context, &left.sessions).await?;
    // A begin that was still on its way may have arrived meanwhile. Without the candidate none does any more.
    end_runs(context, &left).await
}

async fn end_runs<C: Client, K: Clock>(context: &SessionContext<C, K>, left: &Leftover) -> Result<(), SessionError> {
    if left.dead.is_empty() {
        return Ok(());
    }
    // A server that lags behind does not know of the newest runs yet; once it has answered a write it does.
    match context.line()?.multi(vec![Op::Check { path: paths::RUNNING.to_owned(), version: -1 }]).await {
        Ok(_) | Err(MultiError { error: Error::NoNode | Error::NoAuth, .. }) => {}
        Err(failed) => return Err(failed).at(paths::RUNNING),
    }
    // What cannot be read is the leader's to name: nobody gives it up.
    let names = context::or_none(context::children(context.line()?, paths::RUNNING).await)?;
    let found = context.get_small(paths::RUNNING, names).await?.found;
    let runs = found.into_iter().filter_map(|(name, data, stat)| snapshot::run_record(&name, &data, &stat).ok());
    // All are waited for, whatever the first one says: what was handed over is never dropped.
    let ended = join_all(runs.map(|(run, version)| settle_run(context, left, run, version))).await;
    ended.into_iter().collect()
}

/// Ends a run of a dead process, or lets it go, unless it was settled otherwise. What the servers refuse is left to the daemon, whose committer
/// says so.
async fn settle_run<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    left: &Leftover,
    mut run: RunRecord,
    mut version: Version,
) -> Result<(), SessionError> {
    let path = paths::running(&run.id());
    while let Some(change) = left.settle(&run, version, &context.me.node, context.clock.now().wall) {
        // There already, in most cases; the multi says what else is wrong.
        let _ = context.line()?.create(&paths::job_history(&run.job), Vec::new(), Mode::Persistent).await;
        match context.line()?.multi(lower::ops(&change)).await.map_err(|failed| failed.error) {
            Ok(_) => {
                if let Change::End { end, .. } = change {
                    left.inherit(end, version);
                }
                return Ok(());
            }
            Err(Error::BadVersion) => {}
            Err(error) if error.is_of_path() => return Ok(()),
            Err(error) => return Err(error).at(&path),
        }
        let (data, stat) = match context.line()?.get(&path).await {
            Ok(found) => found,
            Err(error) if error.is_of_path() => return Ok(()),
            Err(error) => return Err(error).at(&path),
        };
        let Ok(found) = snapshot::run_record(paths::name(&path), &data, &stat) else { return Ok(()) };
        (run, version) = found;
    }
    Ok(())
}

async fn remove_entries<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    sessions: &[i64],
) -> Result<(), SessionError> {
    let names = context::children(context.line()?, paths::LEADER).await?;
    let found = context::stats(context.line()?, paths::LEADER, names).await?;
    let theirs = found.into_iter().filter(|(_, stat)| sessions.contains(&stat.ephemeral_owner));
    context.remove_entries(theirs.map(|(name, _)| name).collect(), sessions).await
}
