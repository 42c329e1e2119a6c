//! Jobs whose marks are in the future, read again after a request of an operator: one of them may have been recounted.
//!
//! While its mark hides what is due, the leader writes nothing about such a job, so no refused write tells it that the
//! record has changed. If all clocks were ahead there may be many such jobs, so they are read a few at a time.

use std::time::Duration;

use super::book::Book;
use crate::clock::{Uptime, later};
use crate::engine::clocks::STEP;
use crate::engine::context::Context;
use crate::job::JobName;
use crate::ledger::Request;

/// Most jobs that are read at a time.
const MOST: usize = 200;
/// The time between two reads.
const PAUSE: Duration = Duration::from_secs(1);

/// A round through the jobs whose marks are in the future.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// When the next jobs are read, if there is anything to read.
    at: Option<Uptime>,
    /// The last job that was read in this round.
    after: Option<JobName>,
    /// An operator has requested something since this round began.
    is_wanted_again: bool,
    /// No job is read before this time.
    not_before: Option<Uptime>,
}

impl Recheck {
    /// Notes that operators may have requested something.
    pub fn request(&mut self, now: Uptime) {
        self.is_wanted_again = self.at.is_some() && self.after.is_some();
        self.at.get_or_insert(self.not_before.map_or(now, |at| at.max(now)));
    }

    /// When the next jobs are read.
    pub fn next_at(&self) -> Option<Uptime> {
        self.at
    }

    /// Reads the next jobs, if it is time.
    pub fn act(&mut self, cx: &mut Context, book: &Book) {
        if self.at.is_none_or(|at| cx.now.up < at) {
            return;
        }
        // What is begun ahead of its time is less than that ahead.
        let limit = later(cx.due, STEP.unsigned_abs());
        let names: Vec<JobName> = book.settled_after(limit, self.after.as_ref()).take(MOST).cloned().collect();
        let has_more = names.len() == MOST;
        self.after = names.last().filter(|_| has_more).cloned();
        self.not_before = Some(cx.now.up + PAUSE);
        let goes_on = has_more || std::mem::take(&mut self.is_wanted_again);
        self.at = self.not_before.filter(|_| goes_on);
        for name in names {
            cx.ledger(Request::ReadJob(name));
        }
    }
}
