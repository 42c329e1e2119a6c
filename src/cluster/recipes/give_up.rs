//! Gives up what earlier processes of this node left: first their runs, then candidate and member.
//!
//! The order matters: once the member is gone, the leader settles the runs by what it knows, and would repeat a run
//! whose success is known only here. If a process died before it handed a begun run to its warden, the run was never
//! started; only this node knows, so it marks the run as unstarted and the leader starts it. The caller must know that
//! these processes are dead.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::sync::mpsc::UnboundedSender;

use super::cluster_id::{self, Recorded};
use super::context::{self, At as _, LocalNode, SessionContext, SessionError};
use super::store::{ClaimError, SessionStore};
use super::transaction::{self, Planned};
use super::{lasts, snapshot};
use crate::paths;
use crate::tree::{CommitError, Connect, ConnectError, Error, Life, Session};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::coordination::Event;
use cronkeeper_core::election::Failure;
use cronkeeper_core::ledger::{self, Change};
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::journal::Noted;
use cronkeeper_core::run::{OnLoss, Outcome, Reason, RunEnd, RunRecord, RunState, Version};
use cronkeeper_core::term::{NodeName, SessionId};

/// What earlier sessions left behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Leftover {
    /// Sessions whose entries are removed.
    pub(super) sessions: Vec<SessionId>,
    /// Sessions that had left nothing. If one of them holds the node's name again, the member is removed. The rest is left
    /// to the servers, which expire the session: until then this node restores what it knows.
    pub(super) left: Vec<SessionId>,
    /// Those of `sessions` whose processes are dead: their runs end here. A living process ends its own runs itself.
    pub(super) dead: BTreeSet<SessionId>,
    /// Ends that the dead processes could not send.
    pub(super) ends: Vec<RunEnd>,
    /// The runs that the dead processes handed to their wardens, if known.
    pub(super) noted: Option<Noted>,
    /// Receives every end that was written.
    pub(super) successor: Option<UnboundedSender<Event>>,
}

impl Leftover {
    /// What the state directory knows of dead processes.
    pub(super) fn of_the_dead(store: &dyn SessionStore) -> Self {
        let sessions = store.removable();
        let dead = sessions.iter().cloned().collect();
        Self { sessions, left: Vec::new(), dead, ends: store.open_ends(), noted: store.noted(), successor: None }
    }

    /// Reports an end. The receiver may be gone.
    fn report(&self, end: RunEnd, version: Version, before: Option<Outcome>) {
        if let Some(successor) = &self.successor {
            let _ = successor.send(Event::Ledger(ledger::Event::Ended { end: Box::new(end), at: version, before }));
        }
    }

    /// The change to write for a run of a dead process; `None` if it is another's run, or the leader's to begin again.
    fn settle(&self, run: &RunRecord, at: Version, node: &NodeName, now: Timestamp) -> Option<Change> {
        // A waiting run is the leader's, whatever is noted of its last attempt: that attempt is over. One that was placed
        // has not been accepted: the next process may do that.
        if run.state.waits()
            || run.state == RunState::Placed
            || run.owner.node != *node
            || !self.dead.contains(&run.owner.session)
        {
            return None;
        }
        let end = |end| Some(Change::End { at, end, as_leader: false });
        if let Some(known) = self.ends.iter().find(|end| end.run.is_same_attempt(run)) {
            return end(known.clone());
        }
        // The servers have had this end, and lost it since.
        if let Some(known) = self.noted.as_ref().and_then(|noted| noted.end_of(run)) {
            return end(known);
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

/// A node whose entries are to be removed.
#[derive(Clone, Debug)]
pub struct ReleaseTarget {
    pub node: NodeName,
    /// The connect string, for messages.
    pub service: String,
    /// The root, for messages.
    pub root: String,
}

/// Failure to give everything up. The node's next start, or the servers' session timeout, does the rest.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReleaseError {
    /// The servers do not answer, or refuse; a later try may succeed.
    #[error("{0}")]
    NotNow(String),
    /// An operator must act.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Gives up what the dead processes of a node left, under a session that creates no entries.
///
/// `successor` receives every end that was written, even if the rest fails.
///
/// # Errors
/// If not everything could be given up. Calling it again is harmless.
pub async fn release<C: Connect, K: Clock>(
    connect: &C,
    clock: K,
    target: ReleaseTarget,
    store: &mut dyn SessionStore,
    successor: UnboundedSender<Event>,
) -> Result<(), ReleaseError> {
    let client = connect.connect().await.map_err(|error| target.not_connected(error))?;
    client.check_root().await.at("/").map_err(|error| target.failed(error))?;
    let recorded = cluster_id::read(&client).await.at(paths::CLUSTER);
    let cluster = recorded.and_then(Recorded::id).map_err(|error| target.failed(error))?;
    store.claim(&cluster).map_err(|error| target.refused(error, cluster))?;
    let me = LocalNode {
        node: target.node.clone(),
        session: client.id(),
        prefix: String::new(),
        candidate_data: Vec::new(),
    };
    let left = Leftover { successor: Some(successor), ..Leftover::of_the_dead(store) };
    give_up(&SessionContext::new(client, clock, me), &left).await.map_err(|error| target.failed(error))?;
    store.note_left(&left.sessions);
    Ok(())
}

impl ReleaseTarget {
    fn not_connected(&self, error: ConnectError) -> ReleaseError {
        match error {
            ConnectError::Unreachable(error) => ReleaseError::NotNow(error),
            ConnectError::AuthFailed(detail) => Failure::Refused { service: self.service.clone(), detail }.into(),
            ConnectError::Refused(detail) => Failure::Unusable { service: self.service.clone(), detail }.into(),
        }
    }

    fn failed(&self, error: SessionError) -> ReleaseError {
        let service = self.service.clone();
        match error {
            SessionError::Again(error) => ReleaseError::NotNow(error),
            SessionError::SessionOver => ReleaseError::NotNow(Error::SessionOver.to_string()),
            SessionError::NoAuth(detail) => Failure::Refused { service, detail }.into(),
            SessionError::NoRoot => Failure::NoRoot { root: self.root.clone(), service }.into(),
            SessionError::RootInCluster { cluster } => {
                Failure::RootInCluster { root: self.root.clone(), cluster, service }.into()
            }
        }
    }

    fn refused(&self, error: ClaimError, theirs: String) -> ReleaseError {
        match error {
            ClaimError::OtherCluster { ours } => {
                Failure::OtherCluster { ours, theirs, service: self.service.clone() }.into()
            }
            ClaimError::Store(error) => Failure::StateDir(error.to_string()).into(),
        }
    }
}

/// Ends the runs, then removes the entries.
pub(super) async fn give_up<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    left: &Leftover,
) -> Result<(), SessionError> {
    if left.sessions.is_empty() {
        return Ok(());
    }
    end_runs(context, left).await?;
    remove_entries(context, &left.sessions).await?;
    // A begin still in flight may have arrived meanwhile. Without the candidate, no other can follow.
    end_runs(context, left).await
}

/// Settles the runs in flight of the dead processes.
pub(super) async fn end_runs<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    left: &Leftover,
) -> Result<(), SessionError> {
    if left.dead.is_empty() {
        return Ok(());
    }
    context::catch_up(context.line()?).await?;
    // Records that cannot be read stay; the leader reports them.
    let names = context::or_none(context::names(context.line()?, paths::RUNNING).await)?;
    let found = context.get_small(paths::RUNNING, names).await?.found;
    let runs = found.into_iter().filter_map(|(name, data, stat)| snapshot::run_record(&name, &data, &stat).ok());
    // Wait for all, whatever the first one returns: a request that was handed over is never dropped.
    let ended = join_all(runs.map(|(run, version)| settle_run(context, left, run, version))).await;
    ended.into_iter().collect()
}

/// Ends a run of a dead process, or marks it as unstarted, unless somebody else has settled it.
///
/// Changes that the servers refuse are left to the daemon: its committer retries and reports them.
async fn settle_run<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    left: &Leftover,
    mut run: RunRecord,
    mut version: Version,
) -> Result<(), SessionError> {
    let path = paths::running(&run.id());
    let (mut moves_last, mut has_hints) = (true, true);
    while let Some(change) = left.settle(&run, version, &context.me.node, context.clock.now().wall) {
        // It exists in most cases. If this fails for another reason, the multi fails too.
        let _ = context.line()?.create(&paths::job_history(&run.job), Vec::new(), Life::Lasting).await;
        let Planned { mut ops, rung, .. } = Planned::of(&change);
        let own = ops.len();
        let (mut before, mut compared) = (None, None);
        if let Change::End { end, .. } = &change
            && moves_last
        {
            let moved = lasts::write_of(context.line()?, end, context.clock.now().wall).await?;
            ops.push(moved.write);
            (before, compared) = (moved.before, moved.compared);
        }
        let others = ops.len();
        if has_hints {
            ops.extend(transaction::notices(&change.notices(compared)));
            ops.extend(transaction::bells(&rung));
        }
        match context.line()?.commit(ops).await {
            Ok(_) => {
                if let Change::End { end, .. } = change {
                    left.report(end, version, before);
                }
                return Ok(());
            }
            // The end must not wait for what others are told of it.
            Err(CommitError { error, index: Some(index) }) if index >= others && error.is_of_path() => {
                tracing::warn!(target: TARGET, %error, run = %run.id(), "the end of a run is written without its notification");
                has_hints = false;
            }
            Err(CommitError { error: Error::Changed, .. }) => {}
            // Another node has written an end of the job, or nobody can write its record: the end must not wait for that.
            Err(CommitError { error: Error::Exists, index: Some(index) }) if index == own => {}
            Err(CommitError { error, index: Some(index) }) if index == own && error.is_of_path() => moves_last = false,
            Err(CommitError { error, .. }) if error.is_of_path() => return Ok(()),
            Err(failed) => return Err(failed).at(&path),
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

async fn remove_entries<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    sessions: &[SessionId],
) -> Result<(), SessionError> {
    let names = context::names(context.line()?, paths::LEADER).await?;
    let found = context::stats(context.line()?, paths::LEADER, names).await?;
    let theirs =
        found.into_iter().filter(|(_, stat)| stat.session.as_ref().is_some_and(|session| sessions.contains(session)));
    context.remove_entries(theirs.map(|(name, _)| name).collect(), sessions).await
}
