//! When a leader takes cronkeeper's paths into possession: once it leads, and again whenever nodes have come, which may bring another
//! authentication file, or gone, whose last records may have been made under another.

use std::time::Duration;

use jiff::Timestamp;

use super::{Life, Pending, Role};
use crate::clock::{Clock, Uptime};
use crate::election::Member;
use crate::telemetry::TARGET;
use crate::term::NodeName;
use crate::zookeeper::client::{Client, Connect};
use crate::zookeeper::damage::Source;
use crate::zookeeper::desk::Trouble;
use crate::zookeeper::rights;

/// A takeover, and a node that has just come, have more urgent things to do.
const AFTER: Duration = Duration::from_secs(2);
/// What could not be taken may be open some day.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// What it came to.
pub type Taken = Result<rights::Taken, Trouble>;

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

impl<C: Connect, K: Clock> Life<'_, C, K> {
    /// Without an identity there is nothing to take.
    pub(super) fn take_rights(&mut self) {
        if self.states.is_authenticated() {
            self.taking.at = Some(self.now() + AFTER);
        }
    }

    /// The living members, as just read.
    pub(super) fn take_rights_of(&mut self, members: &[Member]) {
        let members: Vec<_> = members.iter().map(|member| (member.node.clone(), member.started_at)).collect();
        if members != self.taking.members && matches!(self.role, Role::Leading(_)) {
            self.taking.members = members;
            self.take_rights();
        }
    }

    pub(super) fn start_taking(&mut self, now: Uptime) {
        if self.taking.at().is_some_and(|at| at <= now) && matches!(self.role, Role::Leading(_)) {
            self.taking.at = None;
            self.taking.under_way = Some(Box::pin(rights::take(self.desk.clone())));
        }
    }

    pub(super) fn taken(&mut self, taken: Taken) {
        self.taking.under_way = None;
        let is_done = match taken {
            Ok(rights::Taken { changed, refused }) => {
                let is_done = refused.is_empty();
                if is_done && !std::mem::replace(&mut self.taking.is_told, changed == 0) {
                    tracing::info!(target: TARGET, changed, "ZooKeeper's access lists are as the authentication file here says");
                }
                self.found_damage(Source::Rights, refused);
                is_done
            }
            Err(trouble) => {
                tracing::debug!(%trouble, "access lists are looked at again later");
                false
            }
        };
        if !is_done {
            let again = self.now() + AGAIN_AFTER;
            self.taking.at.get_or_insert(again);
        }
    }
}
