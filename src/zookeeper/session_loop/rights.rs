//! When a leader takes cronkeeper's paths into possession: once it leads, and again whenever nodes have come, which may bring another
//! authentication file, or gone, whose last records may have been made under another. And what each node says at its start: what
//! stands open to others than those whom it was told of.

use std::time::Duration;

use jiff::Timestamp;

use super::candidacy::Role;
use super::{Pending, SessionLoop};
use crate::clock::{Clock, Uptime};
use crate::election::Member;
use crate::telemetry::TARGET;
use crate::term::NodeName;
use crate::zookeeper::client::{Client, Connect, OpenReason, Ownership};
use crate::zookeeper::context::{SessionContext, SessionError};
use crate::zookeeper::damage::Source;
use crate::zookeeper::rights;

/// A takeover, and a node that has just come, have more urgent things to do.
const AFTER: Duration = Duration::from_secs(2);
/// What could not be taken may be open some day.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// What it came to.
pub enum Done {
    /// All was taken that may be.
    Taken(rights::Taken),
    /// What is open to others.
    Looked(rights::Open),
}

/// See [`Done`].
pub type Taken = Result<Done, SessionError>;

/// What is under way, and when the next time is.
#[derive(Default)]
pub(super) struct Taking {
    pub(super) under_way: Option<Pending<Taken>>,
    at: Option<Uptime>,
    /// That all is as it should be was told, and nothing was changed since.
    is_told: bool,
    /// The processes that were members then.
    members: Vec<(NodeName, Timestamp)>,
}

impl Taking {
    /// When the next time is.
    pub(super) fn at(&self) -> Option<Uptime> {
        self.at.filter(|_| self.under_way.is_none())
    }
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// Without an identity there is nothing to take.
    pub(super) fn take_rights(&mut self) {
        if self.has_identity() {
            self.housekeeping.rights.at = Some(self.now() + AFTER);
        }
    }

    fn has_identity(&self) -> bool {
        !matches!(self.link.client.belongs(), Ownership::Everybody(_))
    }

    /// The node has a member: it is known to whom belongs what it makes.
    pub(super) fn tell_what_is_open(&mut self) {
        let told = match self.link.client.belongs() {
            Ownership::Own => return,
            Ownership::OwnAndEverybody => AS_TOLD,
            Ownership::Everybody(because) => in_words(because),
        };
        if !std::mem::replace(&mut self.supervisor.is_openness_told, true) {
            tracing::warn!(target: TARGET, "{OPEN} to everybody {told}. {DEEDS}");
        }
    }

    /// A node that follows takes nothing; what it finds open may be the leader's to close.
    pub(super) fn look_what_is_open(&mut self) {
        if !self.supervisor.is_openness_told && self.link.client.belongs() == Ownership::Own {
            self.housekeeping.rights.at = Some(self.now());
        }
    }

    /// The living members, as just read.
    pub(super) fn take_rights_of(&mut self, members: &[Member]) {
        let members: Vec<_> = members.iter().map(|member| (member.node.clone(), member.started_at)).collect();
        if members != self.housekeeping.rights.members && self.candidacy.leads() {
            self.housekeeping.rights.members = members;
            self.take_rights();
        }
    }

    pub(super) fn start_taking(&mut self, now: Uptime) {
        if self.housekeeping.rights.at().is_none_or(|at| at > now) {
            return;
        }
        self.housekeeping.rights.at = None;
        let context = self.context.clone();
        self.housekeeping.rights.under_way = match self.candidacy.role {
            Role::Leading(_) => Some(Box::pin(async { rights::take(context).await.map(Done::Taken) })),
            Role::None | Role::Waiting(_) | Role::First(_) => Some(look(context)),
        };
    }

    pub(super) fn taken(&mut self, taken: Taken) {
        self.housekeeping.rights.under_way = None;
        let is_done = match taken {
            Ok(Done::Looked(open)) => {
                self.tell_open(&open);
                true
            }
            Ok(Done::Taken(rights::Taken { changed, refused })) => {
                let is_done = refused.is_empty();
                if is_done && !std::mem::replace(&mut self.housekeeping.rights.is_told, changed == 0) {
                    tracing::info!(target: TARGET, changed, "ZooKeeper's access lists are as the authentication file here says");
                }
                self.found_damage(Source::Rights, refused);
                if !self.supervisor.is_openness_told {
                    self.housekeeping.rights.under_way = Some(look(self.context.clone()));
                }
                is_done
            }
            Err(error) => {
                tracing::debug!(%error, "access lists are looked at again later");
                false
            }
        };
        if !is_done {
            let pause = if self.supervisor.is_openness_told { AGAIN_AFTER } else { AFTER };
            let again = self.now() + pause;
            self.housekeeping.rights.at.get_or_insert(again);
        }
    }

    fn tell_open(&mut self, open: &rights::Open) {
        if !std::mem::replace(&mut self.supervisor.is_openness_told, true) && !open.is_nothing() {
            tracing::warn!(
                target: TARGET,
                "{OPEN} to others than this node's identities, {open}. {DEEDS}. A leader with the same identities closes what it may"
            );
        }
    }
}

const OPEN: &str = "what cronkeeper keeps in ZooKeeper stands open";
const DEEDS: &str = "Who may write there can trigger, pause and kill any job and stop the cluster; who may read there sees what jobs print";
const AS_TOLD: &str = "who reaches the servers, for the authentication file says `world:anyone`";

fn in_words(because: OpenReason) -> &'static str {
    match because {
        OpenReason::NoIdentity => {
            "who reaches the servers, for this node has no identity there (`--zookeeper-auth-file`)"
        }
        OpenReason::NotIdentified => {
            "who reaches the servers, for they take this node's certificate for no identity (x509 authentication)"
        }
        OpenReason::CannotBeAsked => {
            "who reaches the servers: before ZooKeeper 3.7 they do not say whether this node's certificate is an identity to them, so \
             an authentication file has to (a line `x509:`)"
        }
        OpenReason::OpenBefore => {
            "who reaches the servers, as before: this node's certificate closes it once an authentication file says `x509:`"
        }
    }
}

fn look<C: Client, K: Clock>(context: SessionContext<C, K>) -> Pending<Taken> {
    Box::pin(async { rights::look(context).await.map(Done::Looked) })
}
