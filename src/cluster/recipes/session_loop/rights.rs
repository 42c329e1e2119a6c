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
use crate::recipes::context::{SessionContext, SessionError};
use crate::recipes::damage::{Damage, Source};
use crate::tree::{Ownership, RISK, Secured, Session};
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
    Updated(Secured),
    /// What is open to others.
    Checked(Vec<String>),
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

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    /// Schedules an update. A node without an identity has no access lists to set.
    pub(super) fn schedule_access_update(&mut self) {
        if self.has_identity() {
            self.housekeeping.rights.at = Some(self.now() + AFTER);
        }
    }

    fn has_identity(&self) -> bool {
        !matches!(self.link.client.ownership(), Ownership::Everybody(_))
    }

    /// Warns if what this node creates is open to everybody. Known as soon as the node has a member.
    pub(super) fn warn_if_open_to_everybody(&mut self) {
        let to_whom = match self.link.client.ownership() {
            Ownership::Own => return,
            Ownership::OwnAndEverybody(everybody) | Ownership::Everybody(everybody) => everybody,
        };
        if !std::mem::replace(&mut self.node.has_reported_open_paths, true) {
            let event = log_event::COORDINATION_EXPOSED;
            let service = C::SERVICE;
            tracing::warn!(target: TARGET, event, "cronkeeper's data in {service} is open to everybody {to_whom}. {RISK}");
        }
    }

    /// Schedules a check for open paths. A follower changes none; the leader may be able to close them.
    pub(super) fn schedule_open_check(&mut self) {
        if !self.node.has_reported_open_paths && self.link.client.ownership() == Ownership::Own {
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
            Role::Leading(_) => Some(secure(context, locks)),
            Role::None | Role::Waiting(_) | Role::First(_) => Some(check_exposure(context, locks)),
        };
    }

    fn locks_of_jobs(&self) -> BTreeSet<LockPath> {
        self.node.desired.defined.as_ref().map(|defined| defined.locks.clone()).unwrap_or_default()
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
            Ok(PassResult::Checked(exposed)) => {
                self.warn_of_exposure(&exposed);
                true
            }
            Ok(PassResult::Updated(Secured { changed, refused })) => {
                let is_done = refused.is_empty();
                if is_done && !std::mem::replace(&mut self.housekeeping.rights.is_reported, changed == 0) {
                    tracing::info!(
                        target: TARGET,
                        event = log_event::COORDINATION_SECURED,
                        changed,
                        "{}'s access lists are as the authentication file here says",
                        C::SERVICE,
                    );
                }
                let refused: Vec<_> = refused.into_iter().map(|(path, why)| Damage::new(path, why)).collect();
                self.found_damage(Source::Rights, refused);
                if !self.node.has_reported_open_paths {
                    self.housekeeping.rights.under_way =
                        Some(check_exposure(self.context.clone(), self.locks_of_jobs()));
                }
                is_done
            }
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "cannot check the access lists; trying again later");
                false
            }
        };
        if !is_done {
            let pause = if self.node.has_reported_open_paths { AGAIN_AFTER } else { AFTER };
            let again = self.now() + pause;
            self.housekeeping.rights.at.get_or_insert(again);
        }
    }

    fn warn_of_exposure(&mut self, exposed: &[String]) {
        if std::mem::replace(&mut self.node.has_reported_open_paths, true) {
            return;
        }
        for exposure in exposed {
            tracing::warn!(target: TARGET, event = log_event::COORDINATION_EXPOSED, "{exposure}");
        }
    }
}

fn check_exposure<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    locks: BTreeSet<LockPath>,
) -> BoxFuture<Finished> {
    Box::pin(async move {
        let exposed = context.line()?.exposed(context.member(), locks).await;
        exposed.map(PassResult::Checked).map_err(|(path, error)| SessionError::of(&error, &path))
    })
}

fn secure<C: Session, K: Clock>(context: SessionContext<C, K>, locks: BTreeSet<LockPath>) -> BoxFuture<Finished> {
    Box::pin(async move {
        let secured = context.line()?.secure(context.member(), locks, context.clock.clone()).await;
        secured.map(PassResult::Updated).map_err(|(path, error)| SessionError::of(&error, &path))
    })
}
