//! Marks that lie ahead of the time: before them occurrences may be hidden that nobody decided on, for years.
//!
//! Two things can be behind such a mark, and its record tells them apart, for leaders write beside the mark how far they counted.
//!
//! - The mark lies ahead of what was counted: no leader wrote it. Every begin moves both, so nothing later than what was counted was
//!   ever begun, and the job is counted on from there. The mark itself never goes back: it stays until it is passed.
//! - A leader wrote it: then time has gone back since, everywhere, for none decides further than a minute ahead of the coordination
//!   service's clock. What lies before the mark may have been run, and counting from now would run it twice, while a run that
//!   was skipped can be started by hand. So nothing is due before it, unless an operator removes the record.
//!
//! Both are errors that a human must see.

use jiff::Timestamp;

use super::timeline::Timeline;
use crate::clock::{Now, later};
use crate::engine::clocks::AHEAD;
use crate::engine::{Engine, Report, Turn};
use crate::job::JobName;
use crate::run::JobRecord;

/// From where a job is counted, and its mark, where that lies further ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub from: Timestamp,
    pub ahead: Option<Timestamp>,
}

/// A mark that lies ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkAhead {
    /// The mark.
    pub mark: Timestamp,
    /// True where occurrences before it are decided on all the same.
    pub is_ignored: bool,
}

impl Counted {
    pub fn of(record: &JobRecord) -> Self {
        let mark = record.last_scheduled;
        match record.counted.filter(|&counted| counted < mark) {
            Some(from) => Self { from, ahead: Some(mark) },
            None => Self { from: mark, ahead: None },
        }
    }
}

impl Timeline {
    /// What the job's record is to say at this mark: the mark, and how far is counted.
    pub fn marks(&self, mark: Timestamp) -> (Timestamp, Option<Timestamp>) {
        (self.ahead.map_or(mark, |ahead| ahead.max(mark)), Some(mark))
    }

    fn mark_ahead(&self, now: Timestamp) -> Option<MarkAhead> {
        let (mark, is_ignored) = match self.ahead {
            Some(ahead) if ahead > self.mark => (ahead, true),
            _ => (self.mark, false),
        };
        (mark > later(now, AHEAD.unsigned_abs())).then_some(MarkAhead { mark, is_ignored })
    }
}

impl Engine {
    /// The jobs whose marks lie ahead of the time, while this node leads.
    pub fn marks_ahead(&self, now: Now) -> impl Iterator<Item = (&JobName, MarkAhead)> {
        let latest = self.clocks.latest(now);
        let timelines = self.leading.iter().flat_map(|leading| &leading.timelines);
        timelines.filter_map(move |(name, timeline)| Some((name, timeline.mark_ahead(latest)?)))
    }

    /// Says it where a job's mark, just read, lies ahead.
    pub(super) fn tell_mark_ahead(&self, t: &mut Turn, name: &JobName) {
        let latest = self.clocks.latest(t.now);
        let timeline = self.leading.as_ref().and_then(|leading| leading.timelines.get(name));
        if let Some(ahead) = timeline.and_then(|timeline| timeline.mark_ahead(latest)) {
            t.tell(Report::MarkAhead { job: name.clone(), ahead });
        }
    }
}
