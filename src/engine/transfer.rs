//! Whether another node should lead instead: one that the operator prefers, or any other where this one cannot do its work.
//!
//! Looked at whenever the living members were read. A node is given leadership only after it was fit for [`SETTLED`] on end, and
//! each time it got it from here it has to be fit for twice as long, so that one that fails whenever it leads does not
//! make leadership go back and forth; likewise with giving it up for want of fitness. The memory of it ends with the process.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::{Engine, Report, Turn};
use crate::clock::{Now, Uptime};
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
    /// The own weight.
    pub(super) priority: u32,
    /// Who would lead better, which process of it, and since when.
    successor: Option<(NodeName, Timestamp, Uptime)>,
    /// How often each was given leadership.
    given: BTreeMap<NodeName, u32>,
    /// The jobs file on disk is invalid; the jobs loaded before stay.
    pub(super) has_invalid_file: bool,
    /// In a row.
    pub(super) failed_starts: u32,
    /// How often leadership was given up for want of fitness, and when last.
    given_up: Option<(u32, Uptime)>,
}

/// Why a node gives leadership away by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It cannot start processes.
    NoStarts,
    /// Its jobs file is invalid, the other's is not.
    InvalidFile,
    /// The operator prefers the other.
    Lighter,
}

impl Unfit {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoStarts => "processes cannot be started here",
            Self::InvalidFile => "the jobs file here is invalid, and there it is not",
            Self::Lighter => "it is preferred",
        }
    }
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
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(times)).min(LONGEST)
}

impl Engine {
    /// The living members, as just read.
    pub(super) fn on_members(&mut self, t: &mut Turn, members: &[Member]) {
        self.has_others = members.iter().any(|member| member.node != self.node);
        if !self.may_hand_over(t.now) {
            self.transfer.successor = None;
            return;
        }
        let others = members.iter().filter(|member| member.node != self.node && !member.published.jobs_invalid);
        let (successor, why) = if self.transfer.has_invalid_file {
            (highest_priority(others), Unfit::InvalidFile)
        } else {
            let like = others.filter(|member| member.published.digest == self.jobs.digest);
            let preferred = like.filter(|member| member.published.priority > self.transfer.priority);
            (highest_priority(preferred), Unfit::Lighter)
        };
        let Some(to) = self.transfer.settled(successor, t.now.up) else { return };
        if why == Unfit::InvalidFile && !self.transfer.may_give_up(t.now.up) {
            return;
        }
        self.transfer.successor = None;
        *self.transfer.given.entry(to.clone()).or_default() += 1;
        self.give_up(t, Some(to), why);
    }

    /// A process was not started, and the job is not to blame.
    pub(super) fn note_failed_start(&mut self, t: &mut Turn) {
        self.transfer.failed_starts += 1;
        let is_unfit = self.transfer.failed_starts >= FAILED_STARTS;
        if is_unfit && self.has_others && self.may_hand_over(t.now) && self.transfer.may_give_up(t.now.up) {
            self.transfer.failed_starts = 0;
            self.give_up(t, None, Unfit::NoStarts);
        }
    }

    /// A term is not given up before it has settled what it took over.
    fn may_hand_over(&self, now: Now) -> bool {
        self.is_settled() && self.may_decide(now)
    }

    fn give_up(&mut self, t: &mut Turn, to: Option<NodeName>, why: Unfit) {
        if why != Unfit::Lighter {
            let times = self.transfer.given_up.map_or(0, |(times, _)| times + 1);
            self.transfer.given_up = Some((times, t.now.up));
        }
        t.tell(Report::GivingUp { to: to.clone(), why });
        self.on_hand_over(t, to);
    }
}
