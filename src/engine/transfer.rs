//! Whether another node should lead instead: one that the operator prefers, or any other where this one cannot do its work.
//!
//! Looked at whenever the living members were read. A node is given leadership only after it was fit for [`SETTLED`] on end, and
//! each time it got it from here it has to be fit for twice as long, so that one that fails whenever it leads does not
//! make leadership go back and forth; likewise with giving it up for want of fitness. The memory of it ends with the process.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::context::Context;
use super::report::Unfit;
use crate::clock::Uptime;
use crate::election::{Member, highest_priority};
use crate::term::NodeName;

/// How long a node must have been fit before it is given leadership, at first.
pub const SETTLED: Duration = Duration::from_secs(30);
/// Up to this it is doubled.
const LONGEST: Duration = Duration::from_secs(3600);
/// So many starts in a row that failed for want of anything but the job itself make a node unfit.
const FAILED_STARTS: u32 = 3;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LeadershipTransfer {
    /// The own priority.
    pub(super) priority: u32,
    /// Who would lead better, which process of it, and since when.
    successor: Option<(NodeName, Timestamp, Uptime)>,
    /// How often each was given leadership.
    given: BTreeMap<NodeName, u32>,
    /// The jobs file on disk is invalid; the jobs loaded before stay.
    pub(super) has_invalid_file: bool,
    /// In a row.
    failed_starts: u32,
    /// How often leadership was given up for want of fitness, and when last.
    given_up: Option<(u32, Uptime)>,
    /// Other nodes are alive.
    has_others: bool,
}

/// Leadership is to be given up.
pub(super) struct GivingUp {
    /// To whom; absent: to the next in line.
    pub to: Option<NodeName>,
    pub why: Unfit,
}

impl LeadershipTransfer {
    /// How long `successor` must be fit, by how often it was given leadership already.
    fn settle(&self, successor: &NodeName) -> Duration {
        doubled(SETTLED, self.given.get(successor).copied().unwrap_or_default())
    }

    /// True once leadership may be given up for want of fitness (again).
    fn may_give_up(&self, now: Uptime) -> bool {
        self.given_up.is_none_or(|(times, at)| now >= at + doubled(SETTLED * 2, times))
    }

    /// Notes who would lead better now; returns it once that has been so for long enough.
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

    /// Whether and to whom to give leadership, by the living members as just read.
    pub fn on_members(&mut self, cx: &Context, members: &[Member]) -> Option<GivingUp> {
        self.has_others = members.iter().any(|member| member.node != cx.node);
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

    /// The warden has started a process.
    pub fn on_started(&mut self) {
        self.failed_starts = 0;
    }

    /// A process was not started, and the job is not to blame.
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

/// A term is not given up before it has settled what it took over.
fn may_hand_over(cx: &Context) -> bool {
    cx.is_settled() && cx.may_decide()
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(times)).min(LONGEST)
}
