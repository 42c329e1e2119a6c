//! Schedule of the leader's access list updates, and the warning about open access lists.
//!
//! A leader sets the access lists of cronkeeper's paths once it leads, and again whenever nodes have come or gone: a
//! new node may bring another authentication file, and the last records of a node that has gone may have been created
//! under another. Each node warns once, at its start, about paths that are open to identities other than its own.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::candidacy::Role;
use super::{BoxFuture, SessionLoop};
use crate::zookeeper::client::{Client, Connect, OpenReason, Ownership};
use crate::zookeeper::context::{SessionContext, SessionError};
use crate::zookeeper::damage::Source;
use crate::zookeeper::rights;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Member;
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::term::NodeName;

/// A leader that takes over, and a node that has just started, have more urgent things to do first.
const AFTER: Duration = Duration::from_secs(2);
/// Pause before another try when an access list could not be changed: somebody may open it later.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// The result of a finished pass.
pub enum PassResult {
    /// All access lists that this node may change are set.
    Updated(rights::Taken),
    /// The paths that are open to others.
    Checked(rights::Open),
}

pub type Finished = Result<PassResult, SessionError>;

/// The pass in flight, and when the next one is due.
#[derive(Default)]
pub(super) struct AccessUpdates {
    pub(super) under_way: Option<BoxFuture<Finished>>,
    at: Option<Uptime>,
    /// It was reported that all access lists are as they should be, and none was changed since.
    is_reported: bool,
    /// The processes that were members at the last update.
    members: Vec<(NodeName, Timestamp)>,
}

impl AccessUpdates {
    /// When the next pass is due; absent while one is in flight.
    pub(super) fn at(&self) -> Option<Uptime> {
        self.at.filter(|_| self.under_way.is_none())
    }
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// Schedules an update. A node without an identity has no access lists to set.
    pub(super) fn schedule_access_update(&mut self) {
        if self.has_identity() {
            self.housekeeping.rights.at = Some(self.now() + AFTER);
        }
    }

    fn has_identity(&self) -> bool {
        !matches!(self.link.client.belongs(), Ownership::Everybody(_))
    }

    /// Warns if what this node creates is open to everybody. Known as soon as the node has a member.
    pub(super) fn warn_if_open_to_everybody(&mut self) {
        let to_whom = match self.link.client.belongs() {
            Ownership::Own => return,
            Ownership::OwnAndEverybody => AS_CONFIGURED,
            Ownership::Everybody(because) => describe(because),
        };
        if !std::mem::replace(&mut self.supervisor.has_reported_open_paths, true) {
            let event = log_event::COORDINATION_EXPOSED;
            tracing::warn!(target: TARGET, event, "{OPEN} to everybody {to_whom}. {RISK}");
        }
    }

    /// Schedules a check for open paths. A follower changes none; the leader may be able to close them.
    pub(super) fn schedule_open_check(&mut self) {
        if !self.supervisor.has_reported_open_paths && self.link.client.belongs() == Ownership::Own {
            self.housekeeping.rights.at = Some(self.now());
        }
    }

    /// Schedules an update if the living members, as just read, have changed.
    pub(super) fn update_access_for(&mut self, members: &[Member]) {
        let members: Vec<_> = members.iter().map(|member| (member.node.clone(), member.started_at)).collect();
        if members != self.housekeeping.rights.members && self.candidacy.leads() {
            self.housekeeping.rights.members = members;
            self.schedule_access_update();
        }
    }

    pub(super) fn start_access_update(&mut self, now: Uptime) {
        if self.housekeeping.rights.at().is_none_or(|at| at > now) {
            return;
        }
        self.housekeeping.rights.at = None;
        let (context, locks) = (self.context.clone(), self.locks_of_jobs());
        self.housekeeping.rights.under_way = match self.candidacy.role {
            Role::Leading(_) => Some(Box::pin(async { rights::take(context, locks).await.map(PassResult::Updated) })),
            Role::None | Role::Waiting(_) | Role::First(_) => Some(check_open(context, locks)),
        };
    }

    fn locks_of_jobs(&self) -> BTreeSet<LockPath> {
        self.supervisor.desired.defined.as_ref().map(|defined| defined.locks.clone()).unwrap_or_default()
    }

    /// Schedules an update if jobs have other locks than before.
    pub(super) fn update_access_to(&mut self, locks: &BTreeSet<LockPath>) {
        if *locks != self.locks_of_jobs() && self.candidacy.leads() {
            self.schedule_access_update();
        }
    }

    pub(super) fn finish_access_update(&mut self, finished: Finished) {
        self.housekeeping.rights.under_way = None;
        let is_done = match finished {
            Ok(PassResult::Checked(open)) => {
                self.warn_of_open_paths(&open);
                true
            }
            Ok(PassResult::Updated(rights::Taken { changed, refused })) => {
                let is_done = refused.is_empty();
                if is_done && !std::mem::replace(&mut self.housekeeping.rights.is_reported, changed == 0) {
                    tracing::info!(
                        target: TARGET,
                        event = log_event::COORDINATION_SECURED,
                        changed,
                        "ZooKeeper's access lists are as the authentication file here says",
                    );
                }
                self.found_damage(Source::Rights, refused);
                if !self.supervisor.has_reported_open_paths {
                    self.housekeeping.rights.under_way = Some(check_open(self.context.clone(), self.locks_of_jobs()));
                }
                is_done
            }
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "cannot check the access lists; trying again later");
                false
            }
        };
        if !is_done {
            let pause = if self.supervisor.has_reported_open_paths { AGAIN_AFTER } else { AFTER };
            let again = self.now() + pause;
            self.housekeeping.rights.at.get_or_insert(again);
        }
    }

    fn warn_of_open_paths(&mut self, open: &rights::Open) {
        if std::mem::replace(&mut self.supervisor.has_reported_open_paths, true) {
            return;
        }
        let rights::Open { base, locks, folders } = open;
        if !base.is_nothing() {
            tracing::warn!(
                target: TARGET,
                event = log_event::COORDINATION_EXPOSED,
                "{OPEN} to identities other than this node's: {base}. {RISK}. A leader with the same identities closes \
                 what it can"
            );
        }
        if !folders.is_nothing() {
            tracing::warn!(
                target: TARGET,
                event = log_event::COORDINATION_EXPOSED,
                "folders of jobs' locks are open to everybody: {folders}. {RISK_OF_FOLDERS}. cronkeeper leaves them as \
                 they are, because other programs may use them too; give each an access list (`setAcl` in ZooKeeper's \
                 shell)"
            );
        }
        if !locks.is_nothing() {
            tracing::warn!(
                target: TARGET,
                event = log_event::COORDINATION_EXPOSED,
                "locks of jobs are open to identities other than this node's: {locks}. {RISK_OF_LOCKS}. A leader \
                 with the same identities closes those that name nobody else"
            );
        }
    }
}

const OPEN: &str = "cronkeeper's data in ZooKeeper is open";
const RISK: &str = "Everybody who can write there can trigger, pause and kill any job and stop the cluster; everybody \
                    who can read there sees the output of jobs";
const RISK_OF_LOCKS: &str = "Everybody who can write there can hold a lock forever, so that its jobs wait or are \
                             skipped, and can delete the entry of a run, which kills the run";
const RISK_OF_FOLDERS: &str = "Everybody who can reach the servers can put a znode of their own in place of a lock that \
                               nobody uses, which keeps its jobs from running";
const AS_CONFIGURED: &str = "who can reach the servers, because the authentication file contains `world:anyone`";

fn describe(because: OpenReason) -> &'static str {
    match because {
        OpenReason::NoIdentity => {
            "who can reach the servers, because this node has no identity there (`--zookeeper-auth-file`)"
        }
        OpenReason::NotIdentified => {
            "who can reach the servers, because they do not accept this node's certificate as an identity (x509 \
             authentication)"
        }
        OpenReason::CannotBeAsked => {
            "who can reach the servers: servers before ZooKeeper 3.7 do not report whether they accept this node's \
             certificate as an identity, so the authentication file has to (a line `x509:`)"
        }
        OpenReason::OpenBefore => {
            "who can reach the servers, as before: a line `x509:` in the authentication file limits it to this node's \
             certificate"
        }
    }
}

fn check_open<C: Client, K: Clock>(context: SessionContext<C, K>, locks: BTreeSet<LockPath>) -> BoxFuture<Finished> {
    Box::pin(async { rights::look(context, locks).await.map(PassResult::Checked) })
}
