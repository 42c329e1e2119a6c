//! Marks that the service has lost.
//!
//! Versions only grow, so a record with an older version than one that was acknowledged to this leader shows that the
//! service has lost the newer one. The leader's own mark counts: it knows that the occurrences until then are decided,
//! even if it no longer knows how. Nothing else can tell, so the mark is written again at once. So it is over a newer record
//! with an earlier mark: since the loss another node has restored an earlier run, and moved the mark only to that.
//!
//! A store also shows that commits are lost without saying which. The next leader then begins nothing that one of them
//! may have begun: it skips that as `rewound`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::timeline::{Counted, Timeline};
use super::{Leader, Recorded};
use crate::clock::earlier;
use crate::engine::context::Context;
use crate::engine::misfire::{self, NANOSECOND};
use crate::engine::report::Report;
use crate::engine::runs::Runs;
use crate::job::{Job, JobName};
use crate::ledger::{JobEntry, Request};
use crate::run::{JobRecord, RunId, SkipReason, Version};

/// A service loses only what was written last. Marks are close to the time at which they were written.
const NEW: Duration = Duration::from_secs(60);

/// The marks that a leader looks for.
#[derive(Debug, Default)]
pub(super) struct SoughtMarks {
    /// What was acknowledged when the records were requested: what is read later may be newer.
    marks: BTreeMap<JobName, (Version, Timestamp)>,
    /// If one mark is lost, the others are looked for too.
    all: bool,
}

impl Leader {
    /// Reads the record again that was written last: the service may have changed its servers. If it is there, all that
    /// was written before it is there too.
    pub fn look_for_newest_mark(&mut self, cx: &mut Context) {
        self.sought.all = true;
        self.triggers.doubt_decided();
        self.downstream.forget_decided();
        for job in self.book.newest_written() {
            self.look_for_mark(cx, job);
        }
    }

    fn look_for_mark(&mut self, cx: &mut Context, job: JobName) {
        if let Some((Some(version), mark)) = self.book.get(&job).map(|timeline| timeline.written) {
            self.sought.marks.insert(job.clone(), (version, mark));
            cx.ledger(Request::ReadJob(job));
        }
    }

    /// The connection is lost.
    pub fn suspend(&mut self) {
        self.book.suspend();
    }

    /// Skips the occurrences that may have begun by a commit that is lost. Runs, triggers and links of that time are
    /// skipped when they are decided on.
    pub fn pass_over_lost(&mut self, cx: &mut Context, runs: &Runs) {
        if runs.lost_until().is_none() {
            return;
        }
        let jobs: Vec<Arc<Job>> = cx.jobs.jobs.values().cloned().collect();
        for job in jobs {
            self.pass_over_lost_of(cx, runs, &job);
        }
    }

    /// The same for one job, also after its record was read again: another node may have moved its mark meanwhile.
    pub(super) fn pass_over_lost_of(&mut self, cx: &mut Context, runs: &Runs, job: &Job) {
        let Some(until) = runs.lost_until() else { return };
        let is_counted = |timeline: &&mut Timeline| timeline.job.is_some() && timeline.mark < until;
        let Some(timeline) = self.book.decidable(&job.name).filter(is_counted) else { return };
        let mark = timeline.mark;
        let mut from = mark;
        // What is known to have begun is not skipped.
        for known in runs.known_occurrences(&job.name).into_iter().filter(|&at| at > mark && at <= until) {
            self.skip_as_rewound(cx, job, from, earlier(known, NANOSECOND));
            let run = RunId::scheduled(job.name.clone(), known);
            if !runs.is_begun(&run) {
                cx.report(Report::Rewound { run, outcome: None });
            }
            self.book.advance(cx, &job.name, known, None);
            from = known;
        }
        self.skip_as_rewound(cx, job, from, until);
        self.book.schedule(&job.name);
    }

    /// Skips the job's occurrences in (`after`, `until`].
    fn skip_as_rewound(&mut self, cx: &mut Context, job: &Job, after: Timestamp, until: Timestamp) {
        if let Some(lost) = misfire::missed(job, after, until) {
            let reason = if self.pauses.has(&job.name) { SkipReason::Paused } else { SkipReason::Rewound };
            self.book.advance(cx, &job.name, lost.last, Some((reason, lost)));
        }
    }

    /// Keeps a job's mark if the record as just read is older than what was acknowledged, or has an earlier mark, and
    /// writes it again. Returns false if nothing is to be written again.
    ///
    /// Somebody may also have set the mark back by hand. Only a recount has a job counted from an earlier time.
    pub(super) fn keep_lost_mark(&mut self, cx: &mut Context, name: &JobName, entry: Option<&JobEntry>) -> bool {
        let sought = self.sought.marks.remove(name);
        let Some(timeline) = self.book.get(name).filter(|timeline| timeline.open == 0) else { return false };
        let mark = timeline.written.1;
        // Nothing is written to a job in conflict, so what is read then is not older.
        let written = timeline.written.0.filter(|_| timeline.is_in_conflict).map(|version| (version, mark));
        let Some(entry) = entry else { return false };
        let known: Vec<(Version, Timestamp)> = sought.into_iter().chain(written).collect();
        let is_set_back = |mark| {
            let record = entry.record.as_ref().filter(|record| record.count() < mark);
            record.is_some_and(|record| !timeline.is_recounted_by(record))
        };
        // The timeline's mark is the earlier one if the job was recounted after its record was requested.
        let falls_short =
            |&(version, sought): &(Version, Timestamp)| entry.version < version || is_set_back(sought.min(mark));
        if !known.iter().any(falls_short) {
            return false;
        }
        let (job, ahead) = (timeline.job.clone(), timeline.ahead);
        let recorded = Recorded { is_new: timeline.is_new, ..Recorded::as_written(timeline, Some(entry.version)) };
        let found = entry.record.as_ref().map(JobRecord::count);
        cx.report(Report::MarkRewound { job: name.clone(), found, mark });
        if known.iter().any(|&(version, _)| entry.version <= version) {
            cx.ledger(Request::NoteLoss);
        }
        self.count_from(cx, name, job, Counted { from: mark, ahead }, recorded);
        if self.book.get(name).is_some_and(|timeline| timeline.open == 0) {
            self.book.advance(cx, name, mark, None);
            self.book.schedule(name);
        }
        if std::mem::take(&mut self.sought.all) {
            let since = earlier(cx.due, NEW);
            let others = self.book.written_since(since).filter(|&other| other != name).cloned();
            others.collect::<Vec<_>>().into_iter().for_each(|job| self.look_for_mark(cx, job));
        }
        true
    }
}
