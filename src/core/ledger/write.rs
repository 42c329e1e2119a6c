//! What a change writes, each part with its precondition: one table for all backends.
//!
//! A backend carries out all writes of a change, or none where a precondition does not hold. It interprets the kinds of
//! [`Write`] and needs to know no kind of [`Change`].

use jiff::SignedDuration;

use super::Change;
use crate::job::JobName;
use crate::run::{HistoryRecord, JobRecord, Link, RunId, RunRecord, Skip, TriggerSeq, Version};

/// Servers that elect a leader among them take longer.
const LATE: SignedDuration = SignedDuration::from_millis(200);

/// One write of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Write<'a> {
    /// `jobs/<job>`, which has this version; absent: it does not exist.
    Job { job: &'a JobName, at: Option<Version>, record: &'a JobRecord },
    /// `running/<run>`, which has this version; absent: it does not exist.
    Run { at: Option<Version>, record: &'a RunRecord },
    /// `running/<run>`, which has this version, is removed.
    RemoveRun { run: RunId, at: Version },
    /// A trigger or link, which exists, is removed.
    RemoveTrigger(TriggerSeq),
    /// The pause of a job, which has this version, is removed.
    RemovePause { job: &'a JobName, at: Version },
    /// A record of the history, which has this version; absent: it does not exist.
    History { at: Option<Version>, record: Box<HistoryRecord>, existing: Existing },
    /// The history has no record of the run. Needed where the service may have lost that the run was begun, and has its
    /// trigger, its links or the older mark again.
    NotEnded(RunId),
    /// A link is left for a job that runs after this one.
    Link(Link),
}

/// What becomes of a change whose new history record exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Another has written it: nothing is written.
    Refuses,
    /// The existing record stays, and all else is written: what was given up may have been decided on before.
    Stays,
}

impl Write<'_> {
    /// The run or skip that a history record is about.
    pub fn history_id(record: &HistoryRecord) -> RunId {
        match record {
            HistoryRecord::Run(end) => end.run.id(),
            HistoryRecord::Skip(skip) => skip.id(),
        }
    }
}

impl Change {
    /// All that the change writes.
    pub fn writes(&self) -> Vec<Write<'_>> {
        let mut writes = self.own_writes();
        writes.extend(self.links().into_iter().map(Write::Link));
        writes
    }

    fn own_writes(&self) -> Vec<Write<'_>> {
        let begun = |record| Write::Run { at: None, record };
        match self {
            Self::Advance { job, at, record, skip } => {
                let skip = skip.iter().map(|write| history(&write.skip, write.at, Existing::Refuses));
                std::iter::once(Write::Job { job, at: *at, record }).chain(skip).collect()
            }
            Self::Begin { at, record, run } => {
                let not_ended = is_late(run).then(|| Write::NotEnded(run.id()));
                let begin = [Write::Job { job: &run.job, at: Some(*at), record }, begun(run)];
                begin.into_iter().chain(not_ended).collect()
            }
            Self::Restore { run, mark } => {
                let mark = mark.iter().map(|(at, record)| Write::Job { job: &run.job, at: Some(*at), record });
                mark.chain([begun(run), Write::NotEnded(run.id())]).collect()
            }
            Self::BeginTriggered { run } => {
                let trigger = run.trigger.iter().map(|trigger| Write::RemoveTrigger(trigger.seq));
                [begun(run), Write::NotEnded(run.id())].into_iter().chain(trigger).collect()
            }
            Self::DropTrigger { seq, skip, .. } => {
                let skip = skip.iter().map(|skip| history(skip, None, Existing::Refuses));
                std::iter::once(Write::RemoveTrigger(*seq)).chain(skip).collect()
            }
            Self::BeginDownstream { mark, run, links } => {
                let mark = mark.iter().map(|(at, record)| Write::Job { job: &run.job, at: Some(*at), record });
                let links = links.iter().copied().map(Write::RemoveTrigger);
                mark.chain([begun(run), Write::NotEnded(run.id())]).chain(links).collect()
            }
            Self::DropLinks { links, skip, .. } => {
                let skip = skip.iter().map(|skip| history(skip, None, Existing::Stays));
                links.iter().copied().map(Write::RemoveTrigger).chain(skip).collect()
            }
            Self::Resume { job, control, mark, skip } => {
                let mark = mark.iter().map(|(at, record)| Write::Job { job, at: *at, record });
                let skip = skip.iter().map(|write| history(&write.skip, write.at, Existing::Refuses));
                mark.chain([Write::RemovePause { job, at: *control }]).chain(skip).collect()
            }
            Self::UpdateRun { at, run } | Self::ChangeOwner { at, run } | Self::Kill { at, run } => {
                vec![Write::Run { at: Some(*at), record: run }]
            }
            Self::SkipRun { at, run, skip, .. } => {
                vec![Write::RemoveRun { run: run.clone(), at: *at }, history(skip, None, Existing::Refuses)]
            }
            Self::End { at, end, .. } => vec![
                Write::RemoveRun { run: end.run.id(), at: *at },
                Write::History {
                    at: None,
                    record: Box::new(HistoryRecord::Run(end.clone())),
                    existing: Existing::Refuses,
                },
            ],
        }
    }

    /// The attempt that this change begins, with the version of its record afterwards.
    pub fn begun(&self) -> Option<(&RunRecord, Version)> {
        match self {
            Self::Begin { run, .. } | Self::BeginTriggered { run } | Self::BeginDownstream { run, .. } => {
                Some((run, Version::FIRST))
            }
            Self::UpdateRun { at, run } => Some((run, at.next())),
            _ => None,
        }
        .filter(|(run, _)| run.state == crate::run::RunState::Running)
    }
}

fn history(skip: &Skip, at: Option<Version>, existing: Existing) -> Write<'_> {
    Write::History { at, record: Box::new(HistoryRecord::Skip(skip.clone())), existing }
}

/// True for a begin so late that another node may have begun the run before, and the service may have lost that: its
/// servers need longer to find a new leader among them.
fn is_late(run: &RunRecord) -> bool {
    run.begun_at.duration_since(run.scheduled_at) > LATE
}
