//! Decides when another node should lead: one with a higher priority, or a fitter one.
//!
//! Checked whenever the living members were read. A node gets leadership only after it has been fit for [`SETTLED`]
//! without a break, and each time that it gets leadership from this node that time doubles, so that leadership does not
//! go back and forth with a node that fails whenever it leads. The same doubling applies to giving leadership up for
//! lack of fitness. All of this is forgotten when the process ends.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::context::Context;
use super::report::Unfit;
use crate::clock::Uptime;
use crate::election::{Member, highest_priority};
use crate::term::NodeName;

/// A node must have been fit for this long before it gets leadership for the first time.
pub const SETTLED: Duration = Duration::from_secs(30);
/// Upper limit of the doubled times.
const LONGEST: Duration = Duration::from_secs(3600);
/// A node is unfit after this many consecutive failed starts for which the job is not to blame.
const FAILED_STARTS: u32 = 3;

/// State of the decision to hand leadership over.
#[derive(Debug, Default)]
pub(super) struct LeadershipTransfer {
    /// This node's own priority.
    pub(super) priority: u32,
    /// This node never leads.
    pub(super) never_leads: bool,
    /// The node that should lead, the start time of its process, and since when it has been the better choice.
    successor: Option<(NodeName, Timestamp, Uptime)>,
    /// How often this node has handed leadership to each.
    given: BTreeMap<NodeName, u32>,
    /// The jobs file on disk is invalid; the jobs loaded before stay in force.
    pub(super) has_invalid_file: bool,
    /// Consecutive starts that failed and for which the job is not to blame.
    failed_starts: u32,
    /// How often leadership was given up for lack of fitness, and when last.
    given_up: Option<(u32, Uptime)>,
    /// Other nodes are alive and may lead, as of the last reading.
    has_others: bool,
}

/// A decision to give leadership up.
pub(super) struct GivingUp {
    /// The next leader; absent: the next in the queue.
    pub to: Option<NodeName>,
    pub why: Unfit,
}

impl LeadershipTransfer {
    /// Time for which `successor` must have been fit; doubles each time that it gets leadership.
    fn settle(&self, successor: &NodeName) -> Duration {
        doubled(SETTLED, self.given.get(successor).copied().unwrap_or_default())
    }

    /// True once leadership may be given up for lack of fitness (again).
    fn may_give_up(&self, now: Uptime) -> bool {
        self.given_up.is_none_or(|(times, at)| now >= at + doubled(SETTLED * 2, times))
    }

    /// Records which node should lead now, and returns it once it has been the same one for long enough.
    fn settled(&mut self, successor: Option<&Member>, now: Uptime) -> Option<NodeName> {
        let Some(successor) = successor else {
            self.successor = None;
            return None;
        };
        let since = match &self.successor {
            Some((node, started_at, since)) if *node == successor.node && *started_at == successor.started_at => *since,
            _ => now,
        };
        self.successor = Some((successor.node.clone(), successor.started_at, since));
        (now.since(since) >= self.settle(&successor.node)).then(|| successor.node.clone())
    }

    /// Decides on a handover by the living members, as just read.
    pub fn on_members(&mut self, cx: &Context, members: &[Member]) -> Option<GivingUp> {
        self.has_others = members.iter().any(|member| member.node != cx.node && member.published.may_lead());
        if !may_hand_over(cx) {
            self.successor = None;
            return None;
        }
        let others = members.iter().filter(|member| member.node != cx.node && !member.published.jobs_invalid);
        let (successor, why) = if self.has_invalid_file {
            (highest_priority(others), Unfit::InvalidFile)
        } else {
            let like = others.filter(|member| member.published.digest == cx.jobs.digest);
            let preferred = like.filter(|member| member.published.priority > self.priority);
            (highest_priority(preferred), Unfit::LowerPriority)
        };
        let to = self.settled(successor, cx.now.up)?;
        if why == Unfit::InvalidFile && !self.may_give_up(cx.now.up) {
            return None;
        }
        self.successor = None;
        *self.given.entry(to.clone()).or_default() += 1;
        Some(self.give_up(cx, Some(to), why))
    }

    /// The warden has started a process, so the node can start processes again.
    pub fn on_started(&mut self) {
        self.failed_starts = 0;
    }

    /// Counts a start that failed and for which the job is not to blame.
    pub fn on_failed_start(&mut self, cx: &Context) -> Option<GivingUp> {
        self.failed_starts += 1;
        let is_unfit = self.failed_starts >= FAILED_STARTS;
        if !(is_unfit && self.has_others && may_hand_over(cx) && self.may_give_up(cx.now.up)) {
            return None;
        }
        self.failed_starts = 0;
        Some(self.give_up(cx, None, Unfit::NoStarts))
    }

    fn give_up(&mut self, cx: &Context, to: Option<NodeName>, why: Unfit) -> GivingUp {
        if why != Unfit::LowerPriority {
            let times = self.given_up.map_or(0, |(times, _)| times + 1);
            self.given_up = Some((times, cx.now.up));
        }
        GivingUp { to, why }
    }
}

/// True if the leader may hand over: the takeover must be done first.
fn may_hand_over(cx: &Context) -> bool {
    cx.is_settled() && cx.may_decide()
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(times)).min(LONGEST)
}
