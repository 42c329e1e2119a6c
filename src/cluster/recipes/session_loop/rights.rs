//! Schedule of the leader's access list updates, and the warning about open access lists.
//!
//! A leader sets the access lists of cronkeeper's paths once it leads, and again whenever nodes have come or gone: a
//! new node may bring another authentication file, and the last records of a node that has gone may have been created
//! under another. Each node warns once, at its start, about paths that are open to identities other than its own.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::futures::{BoxFuture, under_way};
use crate::recipes::context::{SessionContext, SessionError};
use crate::recipes::damage::{Damage, Source};
use crate::recipes::node::Node;
use crate::tree::{Ownership, RISK, Secured, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Member;
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::term::NodeName;

/// A leader that takes over, and a node that has just started, have more urgent things to do first.
const AFTER: Duration = Duration::from_secs(2);
/// Pause before another try when an access list could not be changed: somebody may open it later.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// The result of a finished pass.
pub(super) enum PassResult {
    /// All access lists that this node may change are set.
    Updated(Secured),
    /// What is open to others.
    Checked(Vec<String>),
}

pub(super) type Finished = Result<PassResult, SessionError>;

/// The pass in flight, and when the next one is due.
#[derive(Default)]
pub(super) struct AccessUpdates {
    under_way: Option<BoxFuture<Finished>>,
    at: Option<Uptime>,
    /// It was reported that all access lists are as they should be, and none was changed since.
    is_reported: bool,
    /// The processes that were members at the last update.
    members: Vec<(NodeName, Timestamp)>,
}

impl AccessUpdates {
    /// When the next pass is due; absent while one is in flight.
    pub fn at(&self) -> Option<Uptime> {
        self.at.filter(|_| self.under_way.is_none())
    }

    /// The result of the pass in flight, forever if there is none. Cancellation safe: the pass is kept.
    pub async fn finished(&mut self) -> Finished {
        under_way(self.under_way.as_mut()).await
    }

    /// Schedules an update, if there are access lists to set: a node without an identity has none.
    pub fn schedule(&mut self, ownership: Ownership, now: Uptime) {
        if matches!(ownership, Ownership::Own | Ownership::OwnAndEverybody(_)) {
            self.at = Some(now + AFTER);
        }
    }

    /// Schedules a check for open paths. A follower changes none; the leader may be able to close them.
    pub fn schedule_check(&mut self, ownership: Ownership, now: Uptime, node: &Node) {
        if !node.has_reported_open_paths && ownership == Ownership::Own {
            self.at = Some(now);
        }
    }

    /// Schedules a leader's update if the living members, as just read, have changed.
    pub fn update_for(&mut self, members: &[Member], ownership: Ownership, now: Uptime) {
        let members: Vec<_> = members.iter().map(|member| (member.node.clone(), member.started_at)).collect();
        if members != self.members {
            self.members = members;
            self.schedule(ownership, now);
        }
    }

    /// Starts a pass if one is due.
    pub fn start<C: Session, K: Clock>(
        &mut self,
        now: Uptime,
        leads: bool,
        node: &Node,
        context: &SessionContext<C, K>,
    ) {
        if self.at().is_none_or(|at| at > now) {
            return;
        }
        self.at = None;
        let (context, locks) = (context.clone(), locks_of_jobs(node));
        self.under_way = Some(if leads { secure(context, locks) } else { check_exposure(context, locks) });
    }

    /// Applies the result of a pass.
    pub fn finish<C: Session, K: Clock>(
        &mut self,
        finished: Finished,
        now: Uptime,
        node: &mut Node,
        context: &SessionContext<C, K>,
    ) {
        self.under_way = None;
        let is_done = match finished {
            Ok(PassResult::Checked(exposed)) => {
                warn_of_exposure(&exposed, node);
                true
            }
            Ok(PassResult::Updated(Secured { changed, refused })) => {
                let is_done = refused.is_empty();
                if is_done && !std::mem::replace(&mut self.is_reported, changed == 0) {
                    log!(COORDINATION_SECURED, changed);
                }
                node.found_damage(Source::Rights, refused.into_iter().map(|(path, why)| Damage::new(path, why)));
                if !node.has_reported_open_paths {
                    self.under_way = Some(check_exposure(context.clone(), locks_of_jobs(node)));
                }
                is_done
            }
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "cannot check the access lists; trying again later");
                false
            }
        };
        if !is_done {
            let pause = if node.has_reported_open_paths { AGAIN_AFTER } else { AFTER };
            self.at.get_or_insert(now + pause);
        }
    }
}

/// The locks of all jobs that this node's file defines.
pub(super) fn locks_of_jobs(node: &Node) -> BTreeSet<LockPath> {
    node.desired.defined.as_ref().map(|defined| defined.locks.clone()).unwrap_or_default()
}

/// Says if what this node creates is open to everybody. Known as soon as the node has a member. It is a warning if the
/// operator wanted it otherwise.
pub(super) fn warn_if_open_to_everybody<C: Session>(client: &C, node: &mut Node) {
    let (to_whom, is_configured) = match client.ownership() {
        Ownership::Own | Ownership::OfLogin => return,
        Ownership::OwnAndEverybody(everybody) | Ownership::Unowned(everybody) => (everybody, true),
        Ownership::Everybody(everybody) => (everybody, false),
    };
    if std::mem::replace(&mut node.has_reported_open_paths, true) {
        return;
    }
    let service = C::SERVICE;
    if is_configured {
        log!(INFO COORDINATION_EXPOSED, "cronkeeper's data in {service} is open to everybody {to_whom}. {RISK}");
    } else {
        log!(WARN COORDINATION_EXPOSED, "cronkeeper's data in {service} is open to everybody {to_whom}. {RISK}");
    }
}

fn warn_of_exposure(exposed: &[String], node: &mut Node) {
    if std::mem::replace(&mut node.has_reported_open_paths, true) {
        return;
    }
    for exposure in exposed {
        log!(WARN COORDINATION_EXPOSED, "{exposure}");
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
