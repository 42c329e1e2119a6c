//! What commits under way are about, so that their answers are understood.

use jiff::Timestamp;

use super::{Engine, Report, Turn};
use crate::job::JobName;
use crate::ledger::{Commit, CommitId};
use crate::run::{RunEnd, RunId, Skip};
use crate::term::FencingToken;

/// What a commit under way is about.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// A job's mark, with what is to be told once it is accepted.
    Advance { job: JobName, mark: Timestamp, told: Option<Told> },
    /// A run's beginning.
    Begin { run: RunId },
    /// A trigger's run.
    BeginTriggered { run: RunId, by: String },
    /// A trigger that leads to no run, with what is to be told once it is accepted.
    DropTrigger { told: Option<Told> },
    /// A run after its upstreams' runs.
    BeginDownstream { run: RunId },
    /// A run after others that is given up, with what is to be told once that is accepted.
    DropLinks { run: RunId, told: Option<Told> },
    /// The end of a pause, with the mark that it moves.
    Resume { job: JobName, mark: Option<Timestamp>, told: Option<Told>, by: String },
    /// Another attempt of a run, or its mark as cut off.
    UpdateRun { run: RunId },
    /// A run that never had a process is recorded as missed, with what is to be told once that is accepted.
    Miss { run: RunId, told: Told },
    /// That a run of another node is to end.
    Kill { run: RunId },
    /// An own run under the new session, or let go.
    ChangeOwner { run: RunId },
    /// A run's end; of another node's run where `told` by the leader.
    End { run: RunId, settled: Option<Box<RunEnd>> },
}

/// A commit without an answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The term it was asked for in.
    pub token: Option<FencingToken>,
    /// The job that it is about.
    pub job: JobName,
    /// What it is about.
    pub pending: Pending,
}

/// A skip to be told once it is written.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub skip: Skip,
    pub first: Timestamp,
    pub count: u64,
}

impl Engine {
    pub(super) fn on_answer(&mut self, t: &mut Turn, id: CommitId, answer: Commit) {
        let Some(Asked { token, job: about, pending }) = self.commits.remove(&id) else { return };
        // The answer may come when the node leads in another term already: it says nothing about that one.
        let is_of_this_term = token == self.term().map(|term| term.token);
        if let Some(leading) = self.leading.as_mut().filter(|_| is_of_this_term) {
            leading.is_fenced |= answer == Commit::Fenced;
            leading.answered(id, &pending, answer);
        }
        match pending {
            Pending::Advance { job, mark, told } => {
                self.on_skip_answer(t, answer, told);
                if is_of_this_term {
                    self.on_timeline_answer(t, &job, mark, answer);
                }
            }
            Pending::Begin { run } => {
                if is_of_this_term {
                    self.on_timeline_answer(t, run.job(), run.scheduled_at(), answer);
                }
                self.on_attempt_answer(t, &run, id, answer);
            }
            Pending::BeginTriggered { run, by } => {
                self.on_begin_triggered_answer(t, &run, by, answer);
                self.on_attempt_answer(t, &run, id, answer);
            }
            Pending::BeginDownstream { run } => {
                if is_of_this_term {
                    if run.trigger().is_none() {
                        self.on_timeline_answer(t, run.job(), run.scheduled_at(), answer);
                    }
                    self.on_follow_answer(&run, answer);
                }
                self.on_attempt_answer(t, &run, id, answer);
            }
            Pending::DropLinks { run, told } => {
                self.on_skip_answer(t, answer, told);
                if is_of_this_term {
                    self.on_drop_links_answer(&run, answer);
                }
            }
            Pending::DropTrigger { told } => self.on_skip_answer(t, answer, told),
            Pending::Resume { job, mark, told, by } => {
                self.on_skip_answer(t, answer, told);
                if is_of_this_term {
                    self.on_resume_answer(t, &job, mark, answer);
                }
                if answer == Commit::Accepted {
                    t.tell(Report::Resumed { job, by });
                }
            }
            Pending::UpdateRun { run } => self.on_update_answer(t, &run, id, answer),
            Pending::Miss { run, told } => self.on_miss_answer(t, &run, id, told, answer),
            Pending::Kill { run } => self.on_kill_answer(t, &run, id, answer),
            Pending::ChangeOwner { run } => self.on_change_owner_answer(t, &run, id, answer),
            Pending::End { run, settled: None } => self.on_own_end_answer(t, &run, id, answer),
            Pending::End { run, settled: Some(end) } => self.on_settled_end_answer(t, &run, id, end, answer),
        }
        if self.flights.answer(&about, id) {
            self.look_at_waiting(t, &about);
        }
        self.release_job(&about);
    }

    /// The service refuses this commit for now, because of rights or of a record that stands in the way. It is tried again, and what
    /// else is asked for about its job waits behind it: nothing more is decided about that job, what is due waits undecided, and the
    /// takeover waits for none of it.
    pub(super) fn on_refused(&mut self, id: CommitId) {
        let Some(Asked { job, .. }) = self.commits.get(&id).cloned() else { return };
        if let Some(takeover) = self.leading.as_mut().and_then(|leading| leading.takeover.as_mut()) {
            takeover.open.retain(|open| self.commits.get(open).is_some_and(|asked| asked.job != job));
        }
        if self.flights.refuse(&job, id) {
            // Their places in a group are free.
            self.mark_job_changed(&job);
        }
    }

    /// A skip is told once it is written.
    pub(super) fn on_skip_answer(&mut self, t: &mut Turn, answer: Commit, told: Option<Told>) {
        if let (Commit::Accepted, Some(told)) = (answer, told) {
            t.tell(Report::Skipped { skip: told.skip.clone(), first: told.first, count: told.count });
            self.follow_skip(t, told);
        }
    }
}
