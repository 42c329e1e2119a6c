//! What a change writes, each part with its precondition: one table for all backends.
//!
//! A backend carries out all writes of a change, or none where a precondition does not hold. It interprets the kinds of
//! [`Write`] and needs to know no kind of [`Change`].

use jiff::SignedDuration;

use super::{Change, SkipWrite};
use crate::job::JobName;
use crate::run::{HistoryRecord, JobRecord, Link, RunId, RunRecord, RunState, Skip, TriggerSeq, Version};
use crate::term::NodeName;

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
    /// The node's member exists.
    Member(&'a NodeName),
    /// `offers/<node>/<run>`, which does not exist, is created.
    Offer { node: &'a NodeName, run: RunId },
    /// `offers/<node>/<run>`, which exists, is removed.
    RemoveOffer { node: &'a NodeName, run: RunId },
    /// Somebody is notified of the change. A service that has no records for that notifies nobody.
    Ring(Bell<'a>),
}

/// Who else, besides its writer, is affected by a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bell<'a> {
    /// The node on which an attempt is placed.
    Node(&'a NodeName),
    /// The leader: the run waits for it, or others wait for the run.
    Leader(RunId),
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
        let removed = |node, run: &RunRecord| Write::RemoveOffer { node, run: run.id() };
        match self {
            Self::Advance { job, at, record, skip } => {
                let skip = skip.iter().map(|write| history(&write.skip, write.at, Existing::Refuses));
                std::iter::once(Write::Job { job, at: *at, record }).chain(skip).collect()
            }
            Self::Begin { at, record, run } => {
                let not_ended = is_late(run).then(|| Write::NotEnded(run.id()));
                let begin = [Write::Job { job: &run.job, at: Some(*at), record }, begun(run)];
                begin.into_iter().chain(not_ended).chain(placed(run)).collect()
            }
            Self::Restore { run, mark } => {
                let mark = mark.iter().map(|(at, record)| Write::Job { job: &run.job, at: Some(*at), record });
                mark.chain([begun(run), Write::NotEnded(run.id())]).chain(placed(run)).collect()
            }
            Self::BeginTriggered { run } => {
                let trigger = run.trigger.iter().map(|trigger| Write::RemoveTrigger(trigger.seq));
                [begun(run), Write::NotEnded(run.id())].into_iter().chain(trigger).chain(placed(run)).collect()
            }
            Self::DropTrigger { seq, skip, .. } => {
                let skip = skip.iter().map(|skip| history(skip, None, Existing::Refuses));
                std::iter::once(Write::RemoveTrigger(*seq)).chain(skip).collect()
            }
            Self::BeginDownstream { mark, run, links } => {
                let mark = mark.iter().map(|(at, record)| Write::Job { job: &run.job, at: Some(*at), record });
                let links = links.iter().copied().map(Write::RemoveTrigger);
                mark.chain([begun(run), Write::NotEnded(run.id())]).chain(links).chain(placed(run)).collect()
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
            Self::UpdateRun { at, run, taken_from } | Self::RewriteRun { at, run, taken_from } => {
                let taken = taken_from.iter().map(|node| removed(node, run));
                std::iter::once(Write::Run { at: Some(*at), record: run }).chain(taken).chain(placed(run)).collect()
            }
            Self::Kill { at, run } => vec![Write::Run { at: Some(*at), record: run }],
            Self::ChangeOwner { at, run } => {
                let bell = (run.placement.is_some() && run.state.is_released()).then(|| rung(run));
                std::iter::once(Write::Run { at: Some(*at), record: run }).chain(bell).collect()
            }
            Self::Accept { at, run } => {
                let node = &run.owner.node;
                vec![Write::Member(node), Write::Run { at: Some(*at), record: run }, removed(node, run)]
            }
            Self::Refuse { at, run } => {
                let node = &run.owner.node;
                vec![Write::Member(node), Write::Run { at: Some(*at), record: run }, removed(node, run), rung(run)]
            }
            Self::SkipRun { at, run, skip, taken_from, .. } => {
                let taken = taken_from.iter().map(|node| Write::RemoveOffer { node, run: run.clone() });
                let skip = [Write::RemoveRun { run: run.clone(), at: *at }, history(skip, None, Existing::Refuses)];
                skip.into_iter().chain(taken).collect()
            }
            Self::ShareOut { at, run, rest, shares, skips } => {
                let rest = match rest {
                    Some(record) => Write::Run { at: Some(*at), record },
                    None => Write::RemoveRun { run: run.clone(), at: *at },
                };
                // If the answer is lost, the share may be over before it is known that it was written.
                let share = |run| [begun(run), Write::NotEnded(run.id())].into_iter().chain(placed(run));
                // What has ended is not overwritten by a skip.
                let existing = |write: &SkipWrite| if write.at.is_none() { Existing::Stays } else { Existing::Refuses };
                let skips = skips.iter().map(|write| history(&write.skip, write.at, existing(write)));
                std::iter::once(rest).chain(shares.iter().flat_map(share)).chain(skips).collect()
            }
            Self::Noticed { change, .. } => change.own_writes(),
            Self::End { at, end, as_leader } => {
                let record = Box::new(HistoryRecord::Run(end.clone()));
                let history = Write::History { at: None, record, existing: Existing::Refuses };
                let taken = (end.run.state == RunState::Placed).then(|| removed(&end.run.owner.node, &end.run));
                let is_awaited = end.run.placement.as_ref().is_some_and(|placement| placement.is_awaited);
                let bell = (is_awaited && !as_leader).then(|| rung(&end.run));
                let end = [Write::RemoveRun { run: end.run.id(), at: *at }, history];
                end.into_iter().chain(taken).chain(bell).collect()
            }
        }
    }

    /// The attempt that this change begins, with the version of its record afterwards.
    pub fn begun(&self) -> Option<(&RunRecord, Version)> {
        match self {
            Self::Begin { run, .. } | Self::BeginTriggered { run } | Self::BeginDownstream { run, .. } => {
                Some((run, Version::FIRST))
            }
            Self::UpdateRun { at, run, .. } | Self::Accept { at, run } => Some((run, at.next())),
            Self::Noticed { change, .. } => change.begun(),
            _ => None,
        }
        .filter(|(run, _)| run.state == RunState::Running)
    }
}

/// What else is written when an attempt is placed.
fn placed(run: &RunRecord) -> impl Iterator<Item = Write<'_>> {
    let node = (run.state == RunState::Placed).then_some(&run.owner.node);
    node.into_iter().flat_map(|node| [Write::Offer { node, run: run.id() }, Write::Ring(Bell::Node(node))])
}

fn rung(run: &RunRecord) -> Write<'_> {
    Write::Ring(Bell::Leader(run.id()))
}

fn history(skip: &Skip, at: Option<Version>, existing: Existing) -> Write<'_> {
    Write::History { at, record: Box::new(HistoryRecord::Skip(skip.clone())), existing }
}

/// True for a begin so late that another node may have begun the run before, and the service may have lost that: its
/// servers need longer to find a new leader among them.
fn is_late(run: &RunRecord) -> bool {
    run.begun_at.duration_since(run.scheduled_at) > LATE
}
